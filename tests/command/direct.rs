//! `ginlab direct`, and programs with path direct: kernels drive the queues of software NICs themselves.

use crate::common::{OutputStream, ProcessGroup, all_verified, ginlab, proxy, rows, run};
use nix::sys::signal::{Signal, kill};

#[test]
fn every_case_is_measured_and_verified() {
    let line = "direct -d emulated --grid 1,2 --block 1,8 --queues 1,2 -n 20 --repeats 2 --csv -";
    let found = rows(&run(ginlab(line)).expect(0).stdout);
    let (skipped, done): (Vec<_>, Vec<_>) = found.into_iter().partition(|row| row.status.to_string() != "ok");
    // A counter requires one queue per block.
    assert!(skipped.iter().all(|row| row.case == "counter") && skipped.len() == 4, "{skipped:?}");
    let by = |case: &str| done.iter().filter(|row| row.case == case).count();
    assert_eq!(["direct", "counter", "ring", "ping-pong"].map(by), [12, 8, 12, 1]);
    for row in &done {
        assert_eq!((row.fabric.as_str(), row.device.as_str()), ("null", "emulated"));
        let moved = ["direct", "counter"].contains(&row.case.as_str());
        assert_eq!(row.wrong_bytes, moved.then_some(0), "{row:?}");
    }
}

/// Runs the same kernel over ring and proxy and over the NIC's queues, and compares both with the CPU, in one run over
/// one fabric.
#[test]
fn proxy_cases_are_interleaved_over_one_fabric() {
    let cards = "efa-verbs/soft:fast,reorder=9,seed=3";
    let cases = "--cases cpu-write,put,direct --mode quiet,nbi,quiet-every=3,nbi-batch=4";
    // In the first shape, puts exceed the window, so slots are overwritten. In the second, the first timed pass is
    // verified.
    for (shape, per_case) in [
        ("--rails 1,3 --grid 4 --block 3 -b 8 -e 5000 -f 500 -n 9 --window 4", 4),
        ("--rails 2 --grid 3 --block 5 --scope thread -b 100 -e 100 -n 4 --window 4", 1),
    ] {
        // Batches need a block scope.
        let cases = if per_case == 1 { cases.replace(",nbi-batch=4", "") } else { cases.into() };
        let line = format!("-p {cards} {cases} {shape} -w 1 -r 1 --csv -");
        let found = rows(&run(proxy(&line)).expect(0).stdout);
        let (skipped, done): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|row| row.status.to_string().starts_with("skipped"));
        all_verified(&done);
        let by = |case: &str, mode: &str| {
            done.iter().filter(|row| row.case == case && row.mode.as_deref() == Some(mode)).count()
        };
        assert_eq!(by("cpu-write", "nbi"), per_case);
        for mode in ["quiet", "nbi", "quiet-every=3", "nbi-batch=4"] {
            let expected = if cases.contains(mode) { per_case } else { 0 };
            assert_eq!((by("put", mode), by("direct", mode)), (expected, expected), "{mode}");
        }
        assert!(skipped.is_empty(), "{skipped:?}");
        assert!(done.iter().all(|row| row.fabric == "efa-verbs/soft:fast"));
        // Like puts, they are compared with the CPU's writes.
        assert!(done.iter().filter(|row| row.case == "direct").all(|row| row.baseline_ratio.is_some()));
    }
    let done =
        run(proxy("-p efa-verbs/soft:fast,fail=90/7 --cases direct --rails 1 -b 64 -e 64 -n 100 -r 1")).expect(1);
    let text = done.complaint();
    assert!(text.contains("NIC: queue 0: request 89: bad-remote-address (7)"), "{text}");
    for (line, text) in [
        ("-p tcp --cases direct", "--cases: direct: provider tcp has no queues for kernels; use efa-verbs"),
        ("-p null --cases put,direct", "--cases: direct: provider null has no queues for kernels"),
        ("-p efa-verbs/soft:fast --cases direct --trace x", "--trace: requires `put` in --cases"),
        ("--cases direct,ring", "--cases: invalid value \"ring\": expected one of cpu-write, put, direct"),
    ] {
        let done = run(proxy(line)).expect(2);
        assert!(done.complaint().contains(text), "{}", done.stderr);
    }
}

/// The kernel reports the NIC's status and the request. A kernel that waits only for a counter reports nothing, and
/// times out.
#[test]
fn queue_faults_are_reported() {
    let line =
        |fault: &str| format!("direct -d emulated -m nbi --grid 3 --block 8 -n 30 --repeats 1 --no-header {fault}");
    let ended = |fault: &str, code: i32| run(ginlab(&line(fault))).expect(code).complaint().to_owned();
    let text = ended("--cases direct --fault unreachable@100", 1);
    assert!(
        text.contains("(64 B, 3 x 8; 3 of 3 blocks): fabric error: queue 0: request 100: unreachable (15)"),
        "{text}"
    );
    let text = ended("--cases direct --fault twice@40", 1);
    assert!(text.contains("which was not in flight"), "{text}");
    let text = ended("--cases direct --fault lose@70 --timeout 1", 124);
    assert!(text.contains("request 70 and those after it have not completed within the deadline"), "{text}");
    let text = ended("--cases direct --fault overrun@70 --timeout 1", 1);
    assert!(text.contains("the completion queue overran: request 70"), "{text}");
    let text = ended("--cases direct --fault back@70", 1);
    assert!(text.contains("queue-pair-error (2)") && text.contains("the doorbell moved back by "), "{text}");
    let text = ended("--cases counter --queues 3 --fault flushed@9", 1);
    assert!(text.contains("request 9: flushed (1)"), "{text}");
    let text = ended("--cases vendor --queues 3 --fault flushed@9 --timeout 1", 124);
    assert!(text.contains("no cause is known: it waits only for a counter"), "{text}");
}

#[test]
fn unsupported_queue_options_print_one_line() {
    for (options, text) in [
        ("--depth 100", "invalid queue depth 100: must be a power of two"),
        ("--max-batch 4096", "invalid batch size 4096: must be from 1 to 4095"),
        ("--fault wrong@1", "NAME@REQUEST, where NAME is lose, short, twice, dead, overrun, back, batch, flushed"),
        ("--queues 9 --grid 1,8", "more queues than blocks"),
    ] {
        let done = run(ginlab(&format!("direct -d emulated {options}"))).expect(2);
        assert!(done.complaint().contains(text), "{}", done.stderr);
    }
    let line = "shmem -d emulated --np 2 --path rails -p tcp --rule kernel --cases p-latency";
    let done = run(ginlab(line)).expect(2);
    assert!(
        done.complaint().contains("rule kernel: kernels read the queues of an EFA device only on path direct"),
        "{}",
        done.stderr
    );
    for (options, text) in [
        ("-p tcp", "path direct: provider tcp: kernels can drive only EFA devices of efa-verbs"),
        ("-p efa-verbs/soft:fast --rule drain", "rule count, kernel or counter, and one rail"),
    ] {
        let line = format!("shmem -d emulated --np 2 --path direct --cases p-latency {options}");
        let done = run(ginlab(&line)).expect(2);
        assert!(done.complaint().contains(text), "{}", done.stderr);
    }
}

/// NICs that complete and deliver in an order determined by a seed, with the same kernels as over rails.
#[test]
fn programs_verify_over_nic_queues() {
    // Signals are counted by a CPU thread, or by the kernels that wait for them.
    for (seed, queues, rule) in [(1, 1, "kernel"), (2, 3, "count"), (3, 2, "counter")] {
        let cards = format!(
            "--path direct --rule {rule} -p efa-verbs/soft:fast,seed={seed},reorder=24 --proxy-threads {queues} --no-header --csv -"
        );
        let line = format!(
            "shmem -d emulated --np 2 {cards} -n 4 -w 1 -r 1 -b 8 -e 512 -f 64 --grid 2 --block 40 --volume 64K"
        );
        let found = rows(&run(ginlab(&line)).expect(0).stdout);
        let skipped = found.iter().filter(|row| row.status.to_string() != "ok").count();
        assert_eq!((skipped, found.iter().all(|row| row.fabric.ends_with("/direct"))), (1, true), "{found:#?}");
        let orders = format!(
            "shmem -d emulated --np 2 --cases signal-order,data-order {cards} -n 30 -r 1 --grid 1 --block 33 --scope warp,block"
        );
        // The run has no times.
        let found = rows(&run(ginlab(&orders)).expect(0).stdout);
        assert!(found.len() == 4 && found.iter().all(|row| row.wrong_bytes == Some(0)), "{found:#?}");
        let line = format!(
            "collective -d emulated --np 3 {cards} --cases gin-all-to-all,gin-all-reduce,gin-broadcast -b 8 -e 2K -f 16 -n 2 -w 1 -r 1 --launch stream"
        );
        all_verified(&rows(&run(ginlab(&line)).expect(0).stdout));
        let line = format!(
            "jacobi -d emulated --np 2 {cards} -n 7 -r 1 --exchange p,block,row,resident --nx 64 --ny 16 --block 32"
        );
        let found = rows(&run(ginlab(&line)).expect(0).stdout);
        all_verified(&found);
        assert_eq!(found.len(), 4);
    }
}

/// Counters wrap around at 2^31 while programs wait for them. NICs without counters are rejected by name.
#[test]
fn capable_nics_count_signals() {
    let line = |cards: &str| {
        format!(
            "shmem -d emulated --np 2 --path direct --rule counter -p efa-verbs/soft:{cards} --cases signal-order,signal-ping-pong,put-signal-ping-pong \
             -n 20 -w 1 -r 1 -b 8 -e 8 --grid 1 --block 33 --csv -"
        )
    };
    for cards in ["fast,counted=2147483640,seed=5,reorder=20", "p5en", "p6-b200"] {
        let done = run(ginlab(&line(cards))).expect(0);
        assert!(
            done.stderr.contains(
                "rule counter: puts that add 1 to one of a PE's first 16 signals are counted by its EFA device"
            )
        );
        let found = rows(&done.stdout);
        assert!(
            found.len() == 3 && found.iter().all(|row| row.wrong_bytes.is_none_or(|wrong| wrong == 0)),
            "{found:#?}"
        );
    }
    for cards in ["p5", "fast,no-counters"] {
        let done = run(ginlab(&line(cards))).expect(2);
        let text = done.complaint();
        assert!(text.contains("has no completion counters") && text.contains("devices of p5en and p6"), "{text}");
    }
}

#[test]
fn failed_nic_and_killed_pe_are_named() {
    let line = "shmem -d emulated --np 2 --path direct --cases put-latency -n 50 -w 1 -r 1 -b 64 -e 64 --block 4";
    let done = run(ginlab(&format!("{line} -p efa-verbs/soft:fast,fail=20/7"))).expect(1);
    let text = done.complaint();
    assert!(text.contains("fabric error; NIC: queue 0: request") && text.contains("bad-remote-address (7)"), "{text}");
    let line = "shmem -d emulated --np 2 --path direct -p efa-verbs/soft:fast --cases put-signal-ping-pong,all-to-all -n 20 -w 2 -r 2 -b 8 -e 1M -f 2 --block 4";
    let mut job = ProcessGroup::start(ginlab(line));
    job.until(OutputStream::Stdout, "put-sign");
    kill(job.rank(1), Signal::SIGKILL).unwrap();
    let done = job.finish().expect(1);
    let line = done.complaint();
    assert!(line.starts_with("ginlab: lost connection to rank 1 (host ") && line.contains("signal: 9"), "{line}");
}
