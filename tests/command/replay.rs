//! `ginlab replay`: a trace that the plugin has recorded (with the double of NCCL), over modelled NICs in virtual time.

use crate::common::{self, ginlab, run};

/// Trace that `ginlab nccl --np 1 --trace ... -- double exchanges_alternate` recorded: two ranks, eight alternating
/// puts of 4 KiB in each direction, then four concurrent puts of 1 MiB and a get.
const TRACE: &str = "tests/fixtures/replay/double.jsonl";

fn rows(options: &str) -> Vec<ginlab::report::Row> {
    common::rows(&run(ginlab(&format!("replay {TRACE} --csv - {options}"))).expect(0).stdout)
}

#[test]
fn recorded_exchange_is_replayed_over_other_cards() {
    let first = rows("-p model:p5,model:p5en --rails 1,4 --strategy split");
    assert_eq!(first.len(), 8);
    assert_eq!(rows("-p model:p5,model:p5en --rails 1,4 --strategy split"), first, "the same on each run");
    let number = |row: &ginlab::report::Row, column: &str| row.own(column).number().unwrap();
    for row in &first {
        assert!(row.device == "virtual" && row.fabric.starts_with("model:p5") && row.ranks == 2, "{row:?}");
        let time = row.time_us_p50.unwrap();
        let parts = ["computing_us", "posting_us", "sending_us", "wire_us", "latency_us", "receiving_us"];
        let sum: f64 = parts.iter().map(|column| number(row, column)).sum();
        assert!((sum - time).abs() < 0.01 * time, "{sum} of {time}: {row:?}");
        // Sixteen alternating puts cannot be shorter than their latencies.
        assert!(number(row, "latency_us") > 16.0 * 5.0 && number(row, "recorded_puts") == 21.0, "{row:?}");
    }
    // Four NICs are not slower than one; the interpretation that waits for more is not faster.
    for pair in first.chunks(2) {
        assert!(pair[0].own("depends").text() != pair[1].own("depends").text());
        assert!(pair[1].time_us_p50 >= pair[0].time_us_p50.map(|time| time * 0.99), "{pair:?}");
    }
}

#[test]
fn invalid_traces_print_one_line() {
    for (args, why) in [
        ("replay /nowhere.jsonl", "/nowhere.jsonl: "),
        ("replay Cargo.toml", "line 1: "),
        ("replay tests/fixtures/replay/double.jsonl -p model:p3", "expected one of"),
        ("replay tests/fixtures/replay/double.jsonl --rails 0", "0"),
        ("replay tests/fixtures/replay/double.jsonl --strategy both", "expected one of single, split"),
    ] {
        let said = run(ginlab(args)).expect(2);
        let line = said.complaint();
        assert!(line.contains(why), "{args}: {line}");
    }
}
