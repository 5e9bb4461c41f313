//! One put that is sent a byte short must be detected by every program, in every case that transfers bytes: the table
//! of `--fault corrupt=N`.

use crate::common::{ginlab, rows, run};

/// Seeds of a line: the fault is in put 0, 1, ... of the verified pass.
const SEEDS: usize = 3;

/// Programs whose ranks run in one process, and their cases.
const TABLE: &[(&str, &str)] = &[
    (
        "shmem --path rails -p worst -b 72 -e 72 --grid 2 --block 32 -n 6 -w 1 -r 1 --cases",
        "p-latency put-latency put-latency-loaded get-latency put-bandwidth put-signal-bandwidth get-bandwidth put-signal-ping-pong \
      message-ping-pong all-to-all signal-order data-order",
    ),
    ("shmem --path rails -p worst -b 72 -e 72 --block 32 -n 6 -w 1 -r 1 --message-limit 8 --cases", "all-to-all"),
    ("proxy -p tcp -b 72 -e 72 --window 4 -n 6 -w 1 -r 1 --block 32 --rails 1 -m quiet --cases", "put cpu-write"),
    (
        "proxy -p worst -b 72 -e 72 --window 4 -n 6 -w 1 -r 1 --block 32 --rails 1 --cases put -m",
        "nbi quiet-every=2 nbi-batch=2",
    ),
    ("proxy -p null -b 72 -e 72 --window 4 -n 6 -w 1 -r 1 --block 32 --rails 1 --cases put -m", "quiet nbi"),
    ("write -p worst -b 72 -e 72 -n 6 -r 1 --rails 1 --targets", "one turn all"),
    ("all2all -p worst -b 72 -e 72 -n 6 -w 1 --rails 2 --strategy", "single round-robin split"),
    (
        "collective --path rails -p worst -b 400 -e 400 -n 2 -w 1 -r 1 --block 32 --launch stream --cases",
        "gin-all-to-all gin-all-gather gin-reduce-scatter gin-all-reduce gin-broadcast",
    ),
    (
        "moe --path rails -p worst --tokens 5 --hidden 64 --experts 8 --topk 2 -n 2 -w 1 -r 1 --grid 2 --block 32 --count immediate --unit",
        "expert rank node",
    ),
    (
        "jacobi --path rails -p worst --nx 40 --ny 40 --block 32 -n 6 -r 1 --norm never --exchange",
        "row block p host-write resident",
    ),
];

#[test]
fn short_put_is_detected_in_every_case() {
    let mut missed = Vec::new();
    for (line, cases) in TABLE {
        for case in cases.split_whitespace() {
            let line = format!("{line} {case} --np 2 -d emulated --fault corrupt={{seed}}");
            let done = run(ginlab(&format!("soak --first 0 --seeds {SEEDS} --no-header --csv - -- {line}")));
            let found = done.stderr.matches("verification failed: ").count();
            let row = rows(&done.stdout).pop();
            let failed = row.and_then(|row| row.own("failed_seeds").number());
            // Command 2 of data-order is a signal without bytes; moe has none with --count immediate.
            let wanted = if case == "data-order" { SEEDS - 1 } else { SEEDS };
            if (done.code, failed) != (1, Some(wanted as f64)) {
                missed.push(format!("{failed:?} of {SEEDS}, {found} by verification: {line}\n{}", done.stderr));
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// A message that is too short is detected by its length; the other side waits for its own message.
#[test]
fn short_message_is_detected_by_length() {
    for mode in ["roundtrip", "window"] {
        let line = format!(
            "sendrecv -d emulated -p worst -b 72 -e 72 -n 6 -r 1 -t 1 --rails 1 --mode {mode} --fault corrupt=1"
        );
        let done = run(ginlab(&line));
        assert!(done.code != 0 && done.stderr.contains("71 B"), "{done:?}");
    }
    for number in [0, 2] {
        let line = format!("echo -p tcp -b 72 -e 72 -n 4 -w 1 --fault corrupt={number} --csv -");
        let done = run(ginlab(&line)).expect(1);
        assert!(done.complaint().contains("71 B"), "{}", done.stderr);
    }
    let done = run(ginlab("echo -p tcp --fault proxy-stop=3")).expect(2);
    assert!(done.stderr.contains("expected corrupt=N"), "{}", done.stderr);
}

/// Kernels write the queues directly, and the software NIC omits the last byte of a request.
#[test]
fn short_request_of_nic_queue_is_detected() {
    let short = |line: &str| {
        let done = run(ginlab(&format!("{line} -d emulated --csv -"))).expect(1);
        assert!(done.complaint().contains("verification failed: "), "{line}: {done:?}");
        assert!(
            rows(&done.stdout).iter().any(|row| row.wrong_bytes.is_some_and(|wrong| wrong > 0)),
            "{line}: {done:?}"
        );
    };
    for case in ["direct", "counter"] {
        short(&format!("direct -m nbi --grid 1 --block 32 -n 4 --repeats 1 --cases {case} --fault short@3"));
    }
    for request in 1..=3 {
        let nic =
            |request| format!("-p efa-verbs/soft:fast,short={request} --np 2 -b 72 -e 72 -n 6 -w 1 -r 1 --block 32");
        // The first two operations are only timed.
        short(&format!("proxy {} --rails 1 -m quiet --window 4 --cases direct", nic(request + 2)));
        let nic = nic(request);
        for case in ["put-latency", "put-bandwidth", "get-latency", "put-signal-bandwidth"] {
            short(&format!("shmem {nic} --path direct --grid 1 --cases {case}"));
        }
    }
}
