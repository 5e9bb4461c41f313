//! Rails over verbs, without libfabric, over software NICs: `-p efa-verbs/soft`.

use crate::common::{OutputStream, ProcessGroup, all_verified, free_port, ginlab, rows, run, tcp_rank};
use nix::sys::signal::{Signal, kill};
use std::process::Command;

/// libfabric is not available, so the command must not need it.
fn over(cards: &str, args: &str) -> Command {
    let mut command = ginlab(&format!("{args} -p efa-verbs/soft:{cards} -d emulated"));
    command.env("GINLAB_LIBFABRIC", "/nonexistent");
    command
}

#[test]
fn every_program_runs_over_verbs_without_libfabric() {
    for (cards, args) in [
        ("fast,seed=5,reorder=9", "write -b 8 -e 256K -f 181 -n 20 -r 2 --rails 1,4"),
        ("fast,seed=4,reorder=9", "sendrecv --np 4 -b 0 -e 40000 -f 200 -n 20 -r 2 --window 7 --rails 1,4"),
        ("p6-b200", "all2all --np 3 -b 8 -e 100K -f 110 -n 5 --rails 1,4"),
        ("p5", "proxy -b 4K -e 70000 -f 16 -n 10 -r 1 --rails 1,4 --mode quiet,nbi --check"),
    ] {
        let done = run(over(cards, &format!("{args} --csv -"))).expect(0);
        let rows = rows(&done.stdout);
        all_verified(&rows);
        let name = format!("efa-verbs/soft:{}", cards.split(',').next().unwrap());
        assert!(rows.iter().all(|row| row.fabric == name), "{rows:?}");
    }
}

/// Two providers in one run, interleaved, each with its own rails.
#[test]
fn two_providers_are_compared_in_one_run() {
    for (args, case) in [("write --window 4", "write"), ("sendrecv --mode window,roundtrip", "sendrecv")] {
        let args = format!(
            "{args} -p tcp --versus efa-verbs/soft:fast,seed=6,reorder=5 -d emulated -b 64 -e 20K -f 300 -n 20 -r 3 --rails 1,2 --csv -"
        );
        let rows = rows(&run(ginlab(&args)).expect(0).stdout);
        all_verified(&rows);
        for pair in rows.chunks(2) {
            let first = pair[0].fabric.as_str();
            assert!(first.starts_with("tcp") && pair[1].fabric == "efa-verbs/soft:fast", "{rows:?}");
            assert_eq!((pair[0].baseline.as_deref(), pair[0].baseline_ratio), (None, None));
            assert_eq!(pair[1].baseline.as_deref(), Some(format!("{case} over {first}").as_str()));
            assert!(pair[1].baseline_ratio.is_some() && pair[0].size_bytes == pair[1].size_bytes);
            assert_eq!(pair[0].own("rail_bytes").list(), pair[1].own("rail_bytes").list());
        }
    }
}

/// Requests overtake one another: each rule must keep signals after their bytes.
#[test]
fn signals_follow_their_bytes() {
    for (rule, seed) in [("count", 7), ("own", 8), ("drain", 9), ("sequence", 10)] {
        let args = format!(
            "shmem --np 2 --cases signal-order --path rails --rails 1 --rule {rule} -n 60 -r 1 --grid 1 --block 33 --csv -"
        );
        let rows = rows(&run(over(&format!("fast,reorder=9,seed={seed}"), &args)).expect(0).stdout);
        assert!(
            rows.iter().all(|row| row.wrong_bytes == Some(0) && row.iterations >= Some(2 * 60)),
            "{rule}: {rows:?}"
        );
    }
}

#[test]
fn nic_faults_are_reported_within_deadline() {
    let jobs = [
        ("lose=30", 124, "no operation completed within 3s"),
        ("dead=30", 124, "no operation completed within 3s"),
        ("full=30", 124, "no operation completed within 3s"),
        ("overrun=30", 124, "no operation completed within 3s"),
        ("fail=30/12", 1, "remote-bad-status: "),
        ("fail=30/9", 1, "bad-remote-queue-pair: "),
        ("break=30", 1, "write of 64 B to peer 1 failed: "),
    ]
    .map(|(fault, code, part)| {
        // Faults that do not stall have ample time, because the ranks of all these jobs share the cores.
        let limit = if code == 124 { 3 } else { 30 };
        let (port, write) = (free_port(), format!("write -b 64 -e 64 -n 50 -r 1 --rails 1 -t {limit} -d emulated"));
        let rank = |rank: usize, cards: String| {
            ProcessGroup::start(tcp_rank(rank, port, "faults", &format!("{write} -p efa-verbs/soft:{cards}")))
        };
        (fault, code, part, [rank(0, format!("fast,{fault}")), rank(1, "fast".to_owned())])
    });
    for (fault, code, part, ranks) in jobs {
        let [first, second] = ranks.map(ProcessGroup::finish);
        assert!(first.stderr.contains(part), "{fault}: {}", first.stderr);
        assert_eq!([first.code, second.code], [code; 2], "{fault}: {}{}", first.stderr, second.stderr);
    }
}

#[test]
fn killed_peer_is_named() {
    let mut job =
        ProcessGroup::start(over("fast", "write -b 64 -e 64 -n 100000000 --volume 100G -r 9 --rails 1 -t 5 --csv -"));
    job.until(OutputStream::Stderr, "# rails");
    kill(job.rank(1), Signal::SIGKILL).unwrap();
    let done = job.finish().expect(1);
    assert!(done.stderr.contains("rank 1 (host ") && done.stderr.contains("signal: 9"), "{}", done.stderr);
}

#[test]
fn unsupported_verbs_features_are_rejected() {
    for (cards, args, code, part) in [
        ("p4d", "write -b 64 -e 64 -n 5 -r 1 --rails 1", 1, "this EFA device has no RDMA write"),
        ("fast,cards=1", "write -b 64 -e 64 --rails 4", 2, "4 rails need 4 NICs, but there are 1"),
        ("fast", "write -b 64 -e 64 --domain rdmap9s0", 2, "no rdmap9s0; available"),
        ("p3", "write -b 64 -e 64", 2, "expected one of soft-efa:p4d"),
    ] {
        let done = run(over(cards, args));
        assert!(done.code == code && done.stderr.contains(part), "{args}: {} {}", done.code, done.stderr);
    }
}
