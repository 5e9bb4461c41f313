//! `ginlab litmus`: every allowed outcome is seen, and no forbidden one.

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

#[test]
fn invalid_options_print_one_line() {
    for (options, why) in [
        ("--seeds 0", "--seeds"),
        ("--seed 18446744073709551615 --seeds 2", "--seed: the last seed does not fit in 64 bits"),
    ] {
        let ended = run(ginlab(&format!("litmus {options}"))).expect(2);
        assert!(ended.stderr.contains(why) && ended.stderr.lines().count() == 1, "{options}: {}", ended.stderr);
    }
}
