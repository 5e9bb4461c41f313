//! `--trace`: the stages of a put on the emulated device, and modelled NICs below the real proxy.

use crate::common;

use crate::common::{ginlab, run};
use std::collections::HashMap;
use std::path::Path;

/// Lines of the stages' CSV by mode and stage.
type Stages = HashMap<(String, String), HashMap<String, String>>;

fn stages(prefix: &Path) -> Stages {
    let mut reader = csv::Reader::from_path(prefix.with_extension("csv")).unwrap();
    let lines = reader.deserialize::<HashMap<String, String>>().map(Result::unwrap);
    lines.map(|line| ((line["mode"].clone(), line["stage"].clone()), line)).collect()
}

fn traced(options: &str) -> (tempfile::TempDir, Stages, String) {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("life");
    let done = run(ginlab(&format!("proxy -d emulated {options} --trace {}", prefix.display()))).expect(0);
    let found = stages(&prefix);
    (folder, found, done.stdout)
}

fn number(line: &HashMap<String, String>, column: &str) -> f64 {
    line[column].parse().unwrap()
}

#[test]
fn stages_sum_to_whole_put() {
    for options in ["-p null -b 64 -e 64 -n 300 -r 2", "-p tcp --rails 2 -b 64 -e 64 -n 100 -r 2 --strategy split"] {
        let (_folder, found, table) = traced(options);
        for (mode, count) in [("quiet", 9), ("nbi", 8)] {
            let of_mode = || found.iter().filter(|((of, _), _)| of == mode);
            let total = &found[&(mode.into(), "total".into())];
            assert_eq!(of_mode().count(), count + 1, "{options} {mode}");
            let parts = of_mode().filter(|((_, stage), _)| stage != "total").map(|(_, line)| number(line, "mean_us"));
            let (sum, whole) = (parts.sum::<f64>(), number(total, "mean_us"));
            assert!((sum - whole).abs() <= 0.001 * whole, "{options} {mode}: {sum} of {whole}");
            assert!(number(total, "samples") >= 100.0 && total["device"] == "emulated", "{total:?}");
            // A stage can be negative only within the uncertainty of the clocks.
            for ((_, stage), line) in of_mode() {
                assert!(number(line, "mean_us") >= -number(line, "clock_uncertainty_us"), "{stage}: {line:?}");
            }
        }
        // With a quiet after each put the producer does nothing else, so the puts follow each other without a gap.
        let total = &found[&("quiet".into(), "total".into())];
        let (whole, traced) = (number(total, "mean_us"), number(total, "traced_us"));
        assert!((whole - traced).abs() <= 0.05 * traced, "{options}: {whole} of {traced} us per put");
        assert!(table.contains("life of a put: quiet of 64 B") && table.contains("<- most"), "{table}");
        // The emulated device has no such hardware.
        assert!(["PCIe", "GPU", "NVLink", "HBM"].iter().all(|hardware| !table.contains(hardware)), "{table}");
    }
}

#[test]
fn perfetto_events_are_balanced() {
    let (folder, found, _) = traced("-p null -b 64 -e 64 -n 20 -r 1 --mode quiet --grid 2");
    assert_eq!(found.len(), 10);
    let text = std::fs::read_to_string(folder.path().join("life.json")).unwrap();
    let drawing: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut open: HashMap<u64, Vec<(String, f64)>> = HashMap::new();
    for event in drawing["traceEvents"].as_array().unwrap() {
        let name = || event["name"].as_str().unwrap().to_owned();
        let at = event["ts"].as_f64();
        match event["ph"].as_str().unwrap() {
            "b" => open.entry(event["id"].as_u64().unwrap()).or_default().push((name(), at.unwrap())),
            "e" => {
                let (begun, since) = open.get_mut(&event["id"].as_u64().unwrap()).unwrap().pop().unwrap();
                assert!(begun == name() && since <= at.unwrap(), "{event}");
            }
            other => assert!(["M", "n"].contains(&other), "{event}"),
        }
    }
    assert_eq!((open.len(), open.values().all(Vec::is_empty)), (40, true));
}

#[test]
fn trace_in_missing_directory_is_rejected_before_run() {
    let done = run(ginlab("proxy -d emulated -p null --trace /nowhere/life")).expect(2);
    assert!(
        done.complaint().contains("expected a file name in an existing directory") && done.stdout.is_empty(),
        "{done:?}"
    );
}

#[test]
fn modelled_cards_verify_and_are_marked() {
    for (options, fabric) in [("", "model:p5"), ("--no-copy", "model:p5/unmoved")] {
        let done = run(ginlab(&format!(
            "proxy -d emulated -p model:p5 {options} -b 1 -e 70000 -f 265 -n 4 -r 2 --rails 1,4 --strategy split,round-robin \
             --csv -"
        )))
        .expect(0);
        let rows = common::rows(&done.stdout);
        assert_eq!(rows.len(), 2 * 2 * 2 * 3);
        for row in &rows {
            assert!(row.fabric == fabric && row.wrong_bytes == Some(0) && row.line_rate_pct.is_some(), "{row:?}");
        }
        assert!(done.stderr.contains("MODELLED cards of a p5") && done.stderr.contains("assumed"), "{}", done.stderr);
    }
}

#[test]
fn wrong_byte_with_modelled_cards_is_detected() {
    for options in ["", "--no-copy"] {
        let done = run(ginlab(&format!(
            "proxy -d emulated -p model:p5 {options} -b 4K -e 4K -n 4 -r 1 -w 0 --rails 1 --mode nbi --window 2 --fault corrupt=1"
        )));
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.complaint().contains("verification failed"), "{done:?}");
    }
}
