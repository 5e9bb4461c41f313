//! `ginlab ladder`: steps, their order and changes, verification, invalid input.

use crate::common::{self, ginlab, run};
use ginlab::report::Row;

/// Runs the ladder without a header. Returns its rows, and the other lines of stderr.
#[track_caller]
fn climbed(args: &str) -> (Vec<Row>, Vec<String>) {
    let done = run(ginlab(&format!("ladder -d emulated -r 2 -b 4K -n 20 {args} --csv -"))).expect(0);
    let rows = common::rows(&done.stdout);
    common::all_verified(&rows);
    assert!(rows.iter().all(|row| row.experiment == "ladder" && row.bandwidth_gbits_s.is_some()), "{rows:?}");
    // Each row has the ratio to the one before it.
    assert_eq!(rows[0].own("step_ratio").number(), None);
    for pair in rows.windows(2) {
        let [before, after] = [&pair[0], &pair[1]].map(|row| row.bandwidth_gbits_s.unwrap());
        let ratio = pair[1].own("step_ratio").number().unwrap();
        assert!((ratio * before / after - 1.0).abs() < 1e-3, "{ratio}, {before}, {after}");
    }
    (rows, done.complaints().into_iter().map(str::to_owned).collect())
}

fn cases(rows: &[Row]) -> Vec<&str> {
    rows.iter().map(|row| row.case.as_str()).collect()
}

#[test]
fn steps_climb_over_tcp() {
    let (rows, said) = climbed("-p tcp --rails 2");
    let without_pin = ["one", "queue", "nics", "warm", "threads", "shard", "batch", "lazy"];
    // Tests usually run on machines with too few cores for a thread each.
    let names: Vec<&str> = cases(&rows).into_iter().filter(|name| *name != "pin").collect();
    assert_eq!(names, without_pin);
    let pinned = rows.len() > names.len();
    assert!(
        pinned || said == ["ginlab: step pin is absent: this machine has too few cores for the threads of all ranks"],
        "{said:?}"
    );
    let of = |case: &str| rows.iter().find(|row| row.case == case).unwrap();
    assert_eq!((of("queue").rails, of("nics").rails), (Some(1), Some(2)));
    let threads = |case: &str| of(case).own("proxy_threads").number();
    assert_eq!((threads("warm"), threads("threads")), (Some(1.0), Some(2.0)));
    assert_eq!(
        (of("one").mode.as_deref(), of("batch").mode.as_deref()),
        (Some("quiet-every=1"), Some("quiet-every=16"))
    );
    assert_eq!(of("lazy").mode.as_deref(), Some("nbi"));
    assert_eq!(of("nics").own("change").text(), Some("2 NICs"));
}

#[test]
fn modelled_cards_have_no_cold_start() {
    let (rows, said) = climbed("-p model:p5 --rails 4 --threads 2 --steps one,nics,warm,threads,shard,lazy");
    assert_eq!(cases(&rows), ["one", "nics", "threads", "shard", "lazy"]);
    assert_eq!(said, ["ginlab: step warm is absent: modelled and null rails have no cold start"]);
    assert!(rows.iter().all(|row| row.fabric == "model:p5" && row.line_rate_pct.is_some()), "{rows:?}");
}

#[test]
fn other_fabrics_climb() {
    for fabric in ["shared", "efa-verbs/soft:fast,cards=2", "worst:seed=3"] {
        let (rows, _) = climbed(&format!("-p {fabric} --steps one,nics,warm,threads,shard --rails 2"));
        assert_eq!(cases(&rows), ["one", "nics", "warm", "threads", "shard"], "{fabric}");
    }
    let done = run(ginlab("ladder -p null -d emulated -r 1 -n 20 --rails 1 --steps one,queue,nics,batch,lazy --csv -"))
        .expect(0);
    assert_eq!(cases(&common::rows(&done.stdout)), ["one", "queue", "batch", "lazy"]);
    assert_eq!(done.complaint(), "ginlab: step nics is absent: there is one NIC");
}

#[test]
fn missing_byte_is_found_in_cold_and_warm_steps() {
    // The first pass of a cold step is timed and not verified; its 20 writes precede those of the verified pass.
    for (step, number) in [("one", 20), ("warm", 0)] {
        let args =
            format!("ladder -p tcp -d emulated -r 1 -b 4K -n 20 --rails 1 --steps {step} --fault corrupt={number}");
        let done = run(ginlab(&args)).expect(1);
        assert!(done.stderr.contains(&format!("1 wrong bytes in writes of step {step} of 4096 B")), "{}", done.stderr);
    }
}

#[test]
fn invalid_options_print_one_line() {
    for (args, part) in [
        ("--rails 0", "--rails: 0 is not in 1..=64"),
        ("--steps fly", "--steps: invalid value \"fly\": expected one of one, queue, nics, warm,"),
        ("--threads 3 --rails 4", "--threads: 3: must divide the number of NICs, 4, into equal parts"),
        ("-p model:p5 --rails 33 --threads 1", "--rails: 33: a p5 has only 32 cards"),
        ("-p model:p5 --steps warm", "--steps: none of these steps has a meaning here"),
        ("-b 0", "--bytes: must be at least 1 byte"),
        ("--np 3 -p tcp", "--np: 3: must be a positive even number"),
        ("-p model:p3", "expected one of model:p4d"),
    ] {
        let done = run(ginlab(&format!("ladder -d emulated {args}"))).expect(2);
        assert!(done.complaint().contains(part), "{args}: {}", done.complaint());
        assert_eq!(done.stdout, "");
    }
}
