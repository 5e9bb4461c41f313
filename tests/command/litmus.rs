//! `ginlab litmus`: the network shows every allowed outcome and no forbidden one. The kernels run on the emulated
//! device. Their counts are therefore not evidence about a GPU.

use crate::common::{ginlab, run};
use serde_json::Value;
use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../experiments/litmus/README.md");

/// Returns the rows of a command's JSON document.
fn rows(command: &str) -> Vec<Value> {
    let text = run(ginlab(&format!("litmus {command} --json -"))).expect(0).stdout;
    let mut document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["schema"], 1);
    serde_json::from_value(document["rows"].take()).unwrap()
}

/// The page shows the counts of these seeds, which are the same on every machine.
#[test]
fn allowed_outcomes_are_seen_and_forbidden_are_not() {
    let rows = rows("--seeds 100");
    let of = |allowed: bool| rows.iter().filter(move |row| row["allowed"] == allowed);
    let names = |allowed| of(allowed).map(|row| row["test"].as_str().unwrap()).collect::<BTreeSet<_>>();
    assert!(names(true) == names(false) && names(true).len() >= 7, "{rows:#?}");
    assert!(of(true).all(|row| row["weak_outcomes"].as_u64() > Some(0) && row["outcome"].is_string()), "{rows:#?}");
    assert!(of(false).all(|row| row["weak_outcomes"] == 0 && row["first_seed"].is_null()), "{rows:#?}");
    for row in &rows {
        let [name, wait, rule] = ["test", "wait", "rule"].map(|key| row[key].as_str().unwrap());
        let allowed = if row["allowed"] == true { "allowed" } else { "forbidden" };
        let line = format!("| `{name}` | {wait} | {allowed} | {} | {rule} |", row["weak_outcomes"]);
        assert!(PAGE.contains(&line), "not on the page: {line}");
    }
}

#[test]
fn seed_repeats_its_outcome() {
    let row = |options: &str| rows(options).into_iter().find(|row| row["test"] == "message-passing").unwrap();
    let many = row("--seeds 50");
    let alone = row(&format!("--seed {} --seeds 1", many["first_seed"]));
    assert_eq!((&alone["weak_outcomes"], &alone["outcome"]), (&1.into(), &many["outcome"]));
}

/// Returns the rows of the kernels on the emulated device.
fn counted(options: &str) -> Vec<Value> {
    rows(&format!("-d emulated --trials 64 --row-time 20000 {options}"))
}

/// Checks the conditions that hold for error-free rows of any device.
fn check_counts(rows: &[Value]) {
    for row in rows {
        let number = |key: &str| row[key].as_u64().unwrap_or_else(|| panic!("{key}: {row}"));
        let outcomes: Vec<u64> = serde_json::from_value(row["outcomes"].clone()).unwrap();
        assert!(number("trials") >= 64 && outcomes.iter().sum::<u64>() == number("trials"), "{row}");
        assert_eq!(row["device"], "emulated");
        let verdict = match (row["allowed"].as_str().unwrap(), number("weak") > 0) {
            ("yes", true) => "seen",
            ("yes", false) => "not-seen",
            (_, weak) => {
                assert!(!weak, "{row}");
                "kept"
            }
        };
        assert_eq!(row["verdict"], verdict, "{row}");
    }
}

/// Returns the values of a column.
fn values(rows: &[Value], column: &str) -> BTreeSet<String> {
    rows.iter().map(|row| row[column].as_str().unwrap_or_else(|| panic!("{column}: {row}")).to_owned()).collect()
}

#[test]
fn emulated_device_runs_every_combination() {
    let rows = counted("");
    check_counts(&rows);
    let expected = |column: &str, list: &str| {
        let listed = list.split(' ').map(str::to_owned).collect::<BTreeSet<_>>();
        assert_eq!(values(&rows, column), listed, "{column}");
    };
    expected("test", "message-passing signal-after-bytes store-buffering load-buffering 2+2w iriw wrc isa2");
    expected("scope", "block device system");
    expected("writer", "thread cpu proxy copy-engine");
    expected("reader", "thread cpu");
    expected("placement", "block device host");
    expected("fence", "none release-acquire fence-acq-rel fence-sc read-back stream-order");
    let of = |test: &str, scope: &str, fence: &str, placement: &str| {
        let is = |row: &&Value| {
            [("test", test), ("scope", scope), ("fence", fence), ("placement", placement), ("writer", "thread")]
                .iter()
                .all(|(column, value)| row[*column] == *value)
        };
        rows.iter().find(is).unwrap_or_else(|| panic!("{test} {scope} {fence} {placement}"))["allowed"].clone()
    };
    // A scope that does not include the reader orders nothing, and store buffering needs more than a release.
    for (test, scope, fence, placement, allowed) in [
        ("message-passing", "block", "fence-sc", "block", "no"),
        ("message-passing", "block", "fence-sc", "device", "yes"),
        ("message-passing", "device", "release-acquire", "device", "no"),
        ("message-passing", "device", "read-back", "device", "yes"),
        ("store-buffering", "system", "release-acquire", "device", "yes"),
        ("store-buffering", "system", "fence-sc", "device", "no"),
        ("2+2w", "device", "fence-acq-rel", "device", "yes"),
        ("iriw", "device", "release-acquire", "device", "yes"),
        ("iriw", "device", "fence-sc", "device", "no"),
        ("wrc", "device", "release-acquire", "device", "no"),
        ("isa2", "device", "none", "device", "yes"),
    ] {
        assert_eq!(of(test, scope, fence, placement), allowed, "{test} {scope} {fence} {placement}");
    }
}

#[test]
fn emulated_pes_meet_through_mapped_memory() {
    for np in [2, 3] {
        let rows = counted(&format!("--np {np} --test message-passing,signal-after-bytes,wrc --scope system"));
        check_counts(&rows);
        assert_eq!(values(&rows, "placement"), BTreeSet::from(["peer".into()]));
        let memories = ["of-reader", "of-writer", "split"].map(str::to_owned);
        assert_eq!(values(&rows, "memory"), BTreeSet::from(memories));
    }
}

#[test]
fn forbidden_outcome_of_device_is_exit_code_3() {
    let ended = run(ginlab("litmus -d emulated --trials 64 --test message-passing --fault corrupt")).expect(3);
    let complaint = ended.complaint();
    assert!(complaint.contains("message-passing (thread to thread, release-acquire, scope block)"), "{complaint}");
    assert!(complaint.contains("a forbidden outcome in 1 of 64 trials"), "{complaint}");
    assert!(ended.stdout.contains("violated"), "{}", ended.stdout);
}

#[test]
fn participants_that_do_not_arrive_time_out() {
    let ended =
        run(ginlab("litmus -d emulated --trials 64 --test message-passing --writer thread -t 1 --fault absent"));
    let ended = ended.expect(124);
    assert!(ended.complaint().contains("a role has waited for the others for 1 s"), "{}", ended.stderr);
}

#[test]
fn invalid_options_print_one_line() {
    for (options, why) in [
        ("--seeds 0", "--seeds"),
        ("--seed 18446744073709551615 --seeds 2", "--seed: the last seed does not fit in 64 bits"),
        ("--scope block", "--scope: applies only to devices: specify -d or --np"),
        ("--test iriw", "--test: invalid value \"iriw\": expected one of message-passing, signal-after-bytes"),
        ("-d emulated --test same-word", "--test: invalid value \"same-word\": expected one of message-passing"),
        ("-d emulated --fence sc", "--fence: invalid value \"sc\": expected one of none, release-acquire"),
        ("-d emulated --test iriw --writer proxy", "no combination has all of these values"),
        ("-d first", "--device: invalid device \"first\": expected the number of a GPU, gpu, emulated or auto"),
        ("-d 0 --np 2", "--device: a number specifies one GPU"),
        ("-d emulated --np 9", "--np: 9: must be from 1 to 4"),
    ] {
        let ended = run(ginlab(&format!("litmus {options}"))).expect(2);
        assert!(ended.stderr.contains(why) && ended.stderr.lines().count() == 1, "{options}: {}", ended.stderr);
    }
}
