//! `ginlab replay`: a trace that the plugin has recorded (through the double of NCCL), over modelled cards in virtual time.

use crate::common::{self, ginlab, run};

/// `ginlab nccl --np 1 --trace ... -- double exchanges_in_turns`: two ranks, eight puts of 4 KiB each way in turns, then four of 1 MiB together and
/// a get.
const TRACE: &str = "tests/fixtures/replay/double.jsonl";

fn rows(options: &str) -> Vec<ginlab::report::Row> {
    common::rows(&run(ginlab(&format!("replay {TRACE} --csv - {options}"))).expect(0).stdout)
}

#[test]
fn a_recorded_exchange_has_its_time_over_other_cards() {
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
        // Sixteen turns cannot be shorter than their latencies.
        assert!(number(row, "latency_us") > 16.0 * 5.0 && number(row, "recorded_puts") == 21.0, "{row:?}");
    }
    // Four cards are no slower than one; the reading that waits for more is no faster.
    for pair in first.chunks(2) {
        assert!(pair[0].own("depends").text() != pair[1].own("depends").text());
        assert!(pair[1].time_us_p50 >= pair[0].time_us_p50.map(|time| time * 0.99), "{pair:?}");
    }
}

#[test]
fn what_is_no_trace_is_one_line() {
    for (args, why) in [
        ("replay /nowhere.jsonl", "/nowhere.jsonl: "),
        ("replay Cargo.toml", "line 1: "),
        ("replay tests/fixtures/replay/double.jsonl -p model:p3", "known are"),
        ("replay tests/fixtures/replay/double.jsonl --rails 0", "0"),
        ("replay tests/fixtures/replay/double.jsonl --strategy both", "is none of single, split"),
    ] {
        let said = run(ginlab(args)).expect(2);
        let line = said.complaint();
        assert!(line.contains(why), "{args}: {line}");
    }
}
