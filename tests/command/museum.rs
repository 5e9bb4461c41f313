//! `ginlab museum`: every broken form fails under its named seed, every fixed form passes many, and the page shows
//! both.

use crate::common::{ginlab, run};
use serde_json::Value;
use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../experiments/museum/README.md");

/// Seeds of each fixed form.
const SEEDS: u64 = 100;

/// Returns the rows of a command's JSON document.
fn rows(command: &str) -> Vec<Value> {
    let text = run(ginlab(&format!("museum {command} --json -"))).expect(0).stdout;
    let mut document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["schema"], 1);
    serde_json::from_value(document["rows"].take()).unwrap()
}

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or_else(|| panic!("{key}: {row}"))
}

#[test]
fn broken_forms_fail_under_named_seeds() {
    let listed = rows("");
    let broken = rows("all --form broken --seeds 1");
    assert!(listed.len() >= 8 && listed.len() == broken.len(), "{listed:#?}");
    for (exhibit, row) in listed.iter().zip(&broken) {
        assert_eq!((&row["exhibit"], &row["first_failed_seed"]), (&exhibit["exhibit"], &exhibit["seed"]), "{row}");
        assert_eq!((text(row, "form"), &row["failed_seeds"], text(row, "device")), ("broken", &1.into(), "emulated"));
        assert!(text(row, "fabric").starts_with("worst:seed="), "{row}");
    }
}

#[test]
fn fixed_forms_pass_every_seed() {
    for row in rows(&format!("all --form fixed --seed 1 --seeds {SEEDS}")) {
        assert_eq!((text(&row, "form"), &row["seeds"], &row["failed_seeds"]), ("fixed", &SEEDS.into(), &0.into()));
        assert!(row["first_failed_seed"].is_null() && row["seen"].is_null(), "{row}");
    }
}

/// A seed repeats its run exactly, in another process and among other seeds.
#[test]
fn seeds_repeat_their_runs() {
    for name in ["one-counter", "weak-signal"] {
        let many = &rows(&format!("{name} --form broken --seed 1 --seeds 40"))[0];
        let again = &rows(&format!("--exhibit {name} --form broken --seed 1 --seeds 40"))[0];
        assert_eq!((&many["failed_seeds"], &many["seen"]), (&again["failed_seeds"], &again["seen"]));
        let first = &many["first_failed_seed"];
        let alone = &rows(&format!("{name} --form broken --seed {first} --seeds 1"))[0];
        assert_eq!((&alone["seen"], alone["failed_seeds"].as_u64()), (&many["seen"], Some(1)));
    }
}

#[test]
fn page_has_every_exhibit_and_its_output() {
    let output = run(ginlab("museum all --form broken --seeds 1 --no-header")).expect(0).stdout;
    assert!(PAGE.contains(&format!("```text\n{output}```")), "the page does not show this output:\n{output}");
    let code = PAGE.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert!(include_str!("../../kernels/src/museum/one_counter.rs").contains(code), "{code}");
    for exhibit in rows("") {
        for key in ["exhibit", "assumed", "rule", "source"] {
            assert!(PAGE.contains(text(&exhibit, key)), "{key} is not on the page: {exhibit}");
        }
        for issue in text(&exhibit, "issue").split([',', ';']) {
            if let Some((project, number)) = issue.trim().split_once(" #") {
                let link = |kind: &str| format!("(https://github.com/{project}/{kind}/{number})");
                assert!(PAGE.contains(&link("issues")) || PAGE.contains(&link("pull")), "no link to {issue}");
            }
        }
    }
}

/// The page compares the failed seeds over the worst-case network with those over a calm one.
#[test]
fn page_has_failed_seeds_of_both_networks() {
    let [worst, calm] = ["", " --calm"].map(|calm| rows(&format!("all --form broken --seed 1 --seeds 40{calm}")));
    for (worst, calm) in worst.iter().zip(&calm) {
        let line = format!("| `{}` | {} | {} |", text(worst, "exhibit"), worst["failed_seeds"], calm["failed_seeds"]);
        assert!(PAGE.contains(&line), "not on the page: {line}");
    }
}

#[test]
fn list_names_projects_and_rules() {
    let output = run(ginlab("museum --no-header")).expect(0).stdout;
    let heading: Vec<&str> = output.lines().next().unwrap().split("  ").filter(|cell| !cell.is_empty()).collect();
    assert_eq!(
        heading.iter().map(|cell| cell.trim()).collect::<Vec<_>>(),
        ["exhibit", "project and issue", "rule that is broken"]
    );
    let names: BTreeSet<&str> = output.lines().skip(2).filter_map(|line| line.split(' ').next()).collect();
    for name in ["overtaking-signal", "dropped-put", "weak-signal", "reset-word"] {
        assert!(names.contains(name), "{output}");
    }
}

#[test]
fn invalid_options_print_one_line() {
    for (options, why) in [
        ("nothing", "invalid value \"nothing\""),
        ("one-counter --seeds 0", "--seeds"),
        ("one-counter --form both", "--form"),
        ("--seed 3", "NAME: no exhibit given"),
        ("one-counter --seed 18446744073709551615 --seeds 2", "--seed: the last seed does not fit in 64 bits"),
        ("one-counter --exhibit one-counter", "--exhibit"),
    ] {
        let ended = run(ginlab(&format!("museum {options}"))).expect(2);
        assert!(ended.stderr.contains(why) && ended.stderr.lines().count() == 1, "{options}: {}", ended.stderr);
    }
}
