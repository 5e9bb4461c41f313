//! `ginlab doctor`: of a recorded p5, of this machine, and of the ranks of two nodes.

use crate::common::lab::{Lab, command};
use crate::common::{Job, Record, ginlab, records, run};

const P5: &str = "doctor --from tests/fixtures/p5 --instance p5.48xlarge";

fn found<'a>(rows: &'a [Record], check: &str) -> (&'a str, &'a str) {
    let row = rows.iter().find(|row| row["check"] == check).unwrap_or_else(|| panic!("no {check}"));
    (&row["state"], &row["found"])
}

#[test]
fn a_recorded_p5_has_its_32_cards() {
    let done = run(ginlab(&format!("{P5} --csv -"))).expect(0);
    let rows = records(&done.stdout);
    assert_eq!(rows.len(), 25);
    assert_eq!(found(&rows, "efa-devices"), ("ok", "32 EFA cards, 32 expected"));
    assert_eq!(found(&rows, "libfabric"), ("ok", "libfabric recorded: RDM domains 32 of efa"));
    assert!(found(&rows, "rma").1.contains("GPU memory (FI_HMEM) claimed"));
    // What was not recorded passes nothing.
    for check in ["memlock", "efa-driver", "efa-links", "gpu", "gdrcopy", "network", "counters", "smoke"] {
        assert_eq!(found(&rows, check).0, "skipped", "{check}");
    }
    let lines = run(ginlab(P5)).expect(0).stdout;
    assert_eq!(lines.lines().count(), 25);
    assert!(lines.contains("\nok       efa-devices   32 EFA cards, 32 expected\n"), "{lines}");
}

#[test]
fn the_exit_code_is_the_worst_finding() {
    let done = run(ginlab(&format!("{P5} --cards 33 --only efa-devices,memlock --json -"))).expect(3);
    assert_eq!(done.complaint(), "ginlab: one check stands in the way: efa-devices on recorded");
    let document: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(document["worst"], "fail");
    let fail = &document["findings"].as_array().unwrap()[1];
    assert_eq!((&fail["check"], &fail["state"]), (&"efa-devices".into(), &"fail".into()));
    assert!(fail["mend"].as_str().unwrap().contains("--wait"));
    // A card more or less than an unknown instance has is a warning.
    let unknown = "doctor --from tests/fixtures/p5 --only efa-devices";
    assert!(run(ginlab(unknown)).expect(0).stdout.starts_with("warn     efa-devices"));
    run(ginlab(&format!("{unknown} --strict"))).expect(3);
}

/// A machine without GPU and card hears in its last line what it is fit for, and what to run.
#[test]
fn a_machine_without_gpu_and_card_is_told_what_to_run() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("sys/bus/pci/devices")).unwrap();
    let doctor = format!("doctor --from {}", folder.path().display());
    let lines = run(ginlab(&doctor)).expect(0).stdout;
    let last = lines.lines().last().unwrap();
    assert!(
        last.starts_with("fit for the emulated device alone (no GPU, no EFA card). Run: ginlab proxy --np 2"),
        "{last}"
    );
    let document: serde_json::Value =
        serde_json::from_str(&run(ginlab(&format!("{doctor} --json -"))).expect(0).stdout).unwrap();
    assert_eq!(document["fit"], last);
    assert!(!run(ginlab(&format!("{doctor} --only memlock"))).expect(0).stdout.contains("fit for"));
    let p5 = run(ginlab(P5)).expect(0).stdout;
    assert!(!p5.contains("fit for"), "{p5}");
}

#[test]
fn bad_input_is_one_line() {
    for (args, part) in [
        ("--only all", "there is no check \"all\"; there are memlock, memory,"),
        ("--from Cargo.toml", "no recorded machine"),
        ("--rails 4", "--peers"),
        ("--csv - --json -", "cannot both go to stdout"),
    ] {
        let done = run(ginlab(&format!("doctor {args}"))).expect(2);
        assert!(done.stderr.contains(part) && done.stdout.is_empty(), "{args}: {}", done.stderr);
    }
}

#[test]
fn this_machine_writes_to_itself() {
    let done = run(ginlab("doctor --only smoke,efa-devices,memlock -d emulated -p tcp --csv -")).expect(0);
    let rows = records(&done.stdout);
    assert_eq!(found(&rows, "smoke"), ("ok", "written to oneself and verified: lo, proxy"));
    let done = run(ginlab("doctor --only smoke --require-efa -d emulated -p nothing --csv -")).expect(3);
    let rows = records(&done.stdout);
    assert!(found(&rows, "smoke").1.contains("there is no provider \"nothing\""), "{}", done.stdout);
}

#[test]
fn ranks_of_two_nodes_reach_each_other_or_say_where_not() {
    let Some(lab) = Lab::up("--rails 2 --rate none") else { return };
    let line = "doctor --peers --rails 2 -p tcp -d emulated --only network -t 3 --csv -";
    let both = || {
        let (first, second) = (Job::start(lab.ginlab(0, line)), Job::start(lab.ginlab(1, line)));
        (first.finish(), second.finish())
    };
    let (first, second) = both();
    second.expect(0);
    let rows = records(&first.expect(0).stdout);
    assert_eq!(found(&rows, "peers-rails"), ("ok", "2 ranks, 2 rails: every peer written to and verified"));
    assert_eq!(found(&rows, "peers-versions").0, "ok");
    assert_eq!(found(&rows, "peers-clocks").0, "ok");
    assert_eq!(rows.iter().filter(|row| row["check"] == "network").count(), 2, "each node looks for itself");
    // Answers of the second node to the first one's second rail get lost.
    command(&format!("ip -n {} route add blackhole 10.99.1.1/32", lab.namespace(1))).unwrap();
    let (first, _) = both();
    let first = first.expect(3);
    let rows = records(&first.stdout);
    let (state, text) = found(&rows, "peers-rails");
    assert!(state == "fail" && text.contains("over tcp") && text.contains(":rail1 (rail "), "{text}");
    assert!(first.complaint().contains("peers-rails on all"), "{}", first.stderr);
}
