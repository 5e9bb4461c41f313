//! Failures in the middle of every exchange, every collective and every call: each run ends in time, with its code and
//! one line. The kernels run on the emulated device, which ends a grid with its own message if a thread exits while
//! others of its block are at a barrier. No failure may cause that.

use crate::common::{JobOutput, OutputStream, ProcessGroup, beside_each_other, ginlab, run};
use nix::sys::signal::{Signal, kill};

/// A fault of each rank's proxy after a number of commands, and the exit codes that a run may have.
struct Fault {
    name: &'static str,
    timeout: &'static str,
    codes: &'static [i32],
}

const FAULTS: [Fault; 3] = [
    Fault { name: "proxy-stop", timeout: "20", codes: &[1] },
    // Waits for a signal end when the other PE exits. Waits for the ring end at the deadline.
    Fault { name: "proxy-vanish", timeout: "1", codes: &[1, 124] },
    Fault { name: "rails-silent", timeout: "1", codes: &[124] },
];

const SCOPES: [&str; 3] = ["thread", "warp", "block"];

/// Number of concurrent jobs, each of which has two ranks with a proxy.
const AT_ONCE: usize = 3;

/// A command line, and the number of commands after which it fails.
struct FailingCommand {
    args: String,
    commands: u32,
    /// Whether the experiment has kernels of several scopes.
    has_scopes: bool,
    /// Whether the run may succeed although the proxy exits. The proxy may have taken all commands before, and it
    /// completes those.
    may_end_well: bool,
}

fn cases() -> Vec<FailingCommand> {
    let rows = "-d emulated --np 2 --csv - --no-header --path rails -p worst";
    // Uses enough values that a proxy fails before it has taken all of them. At that moment, only some threads of a
    // block have sent their values.
    let jacobi = ["p", "host-write", "block", "row", "resident"].map(|exchange| FailingCommand {
        args: format!("jacobi {rows} -n 7 -r 99 --nx 1000 --ny 16 --block 256 --no-check --exchange {exchange}"),
        commands: if exchange == "p" { 300 } else { 20 },
        has_scopes: false,
        may_end_well: false,
    });
    let operations = ["all-to-all", "all-gather", "reduce-scatter", "all-reduce", "broadcast"];
    // Runs each collective by messages and by puts.
    let collectives = operations.iter().flat_map(|operation| ["64", "256K"].map(|bytes| (operation, bytes)));
    let collectives = collectives.map(|(operation, bytes)| FailingCommand {
        args: format!("collective {rows} -n 8 -w 1 -r 1 --cases gin-{operation} -b {bytes} -e {bytes}"),
        // Uses few launches, because each has its own deadline if a proxy vanishes without notification.
        commands: 5,
        has_scopes: true,
        may_end_well: false,
    });
    let calls = [
        "p-latency",
        "put-latency",
        "get-latency",
        "signal-ping-pong",
        "put-signal-ping-pong",
        "message-ping-pong",
        "barrier-all",
        "all-to-all",
        "signal-order",
        "data-order",
        "put-bandwidth",
        "put-signal-bandwidth",
        "get-bandwidth",
    ];
    let shmem = calls.map(|call| FailingCommand {
        args: format!("shmem {rows} -n 50 -w 1 -r 1 -b 64 -e 64 --grid 2 --block 40 --cases {call}"),
        commands: if call.ends_with("bandwidth") { 3 } else { 20 },
        may_end_well: call.ends_with("bandwidth"),
        has_scopes: !call.starts_with("p-") && !call.starts_with("signal-p"),
    });
    jacobi.into_iter().chain(collectives).chain(shmem).collect()
}

#[track_caller]
fn ends(args: &str, codes: &[i32], done: &JobOutput) {
    assert!(codes.contains(&done.code), "{args}: code {}: {}", done.code, done.stderr);
    if done.code != 0 {
        assert!(!done.complaint().contains("emulated device"), "{args}: {}", done.stderr);
    }
}

fn all_end(jobs: &[(FailingCommand, &Fault, &str)]) {
    beside_each_other(AT_ONCE, jobs, |(case, fault, scope)| {
        let Fault { name, timeout, codes } = fault;
        let scope = if case.has_scopes { format!("--scope {scope}") } else { String::new() };
        let args = format!("{} {scope} -t {timeout} --fault {name}={}", case.args, case.commands);
        let codes = if case.may_end_well && *name != "rails-silent" { [&[0], *codes].concat() } else { codes.to_vec() };
        eprintln!("{args}");
        ends(&args, &codes, &run(ginlab(&args)));
    });
}

/// Each case with one of the faults, and with one of the scopes.
#[test]
fn exchanges_over_rails_exit_with_code() {
    let one = |(index, case): (usize, FailingCommand)| (case, &FAULTS[index % 3], SCOPES[(index + index / 3) % 3]);
    all_end(&(0..).zip(cases()).map(one).collect::<Vec<_>>());
}

#[test]
#[ignore = "all faults and scopes: some minutes"]
fn exchanges_over_rails_exit_with_code_after_faults() {
    let mut jobs = Vec::new();
    for (fault, scope) in FAULTS.iter().flat_map(|fault| SCOPES.map(|scope| (fault, scope))) {
        let cases = cases().into_iter().filter(|case| case.has_scopes || scope == SCOPES[0]);
        jobs.extend(cases.map(|case| (case, fault, scope)));
    }
    eprintln!("{} runs", jobs.len());
    all_end(&jobs);
}

/// No proxy can fail over mapped memory. Instead a peer is stopped in the middle. Other tests cover the
/// death of a peer.
#[test]
fn exchanges_over_mapped_memory_time_out() {
    let rows = "-d emulated --np 2 --csv - --no-header --path nvlink -t 2";
    let jacobi = ["p,row", "host-write,row", "block,row", "row,p", "resident,row"];
    let jacobi = jacobi.map(|exchange| {
        format!(
            "jacobi {rows} -n 7 -r 9 --nx 32,36,40,44,48,52,56,60 --ny 16 --block 32 --no-check --exchange {exchange}"
        )
    });
    let operations = ["all-to-all", "all-gather", "reduce-scatter", "all-reduce", "broadcast"];
    let collectives = (0..).zip(operations).map(|(index, operation)| {
        let scope = SCOPES[index % SCOPES.len()];
        format!("collective {rows} -n 40 -w 1 -r 9 --cases gin-{operation} -b 64 -e 1M -f 2 --scope {scope}")
    });
    let calls = ["put-signal-ping-pong", "message-ping-pong", "barrier-all,put-latency", "all-to-all"];
    let shmem =
        calls.map(|call| format!("shmem {rows} -n 50 -w 1 -r 9 -b 8 -e 1M -f 2 --grid 2 --block 40 --cases {call}"));
    let all: Vec<String> = jacobi.into_iter().chain(collectives).chain(shmem).collect();
    // Each job has one stopped rank and waits for its deadline. The host waits four times as long for its kernel.
    beside_each_other(2 * AT_ONCE, &all, |args| {
        let mut job = ProcessGroup::start(ginlab(args));
        job.until(OutputStream::Stdout, ",emulated,");
        kill(job.rank(1), Signal::SIGSTOP).unwrap();
        ends(args, &[124], &job.finish());
    });
}
