//! `ginlab moe`: every unit and method of counting correct to the bit, over every path; the arithmetic of its plan in
//! rows; virtual time compared with published results.

use crate::common::{contents, ginlab, rows, run};
use crate::passed;
use ginlab::report::Row;

const SMALL: &str = "--hidden 64 --tokens 6 --topk 3 --grid 2 --block 33 -n 2 -w 1 -r 1 --csv -";
const ALL: &str = "--unit expert,rank,node --count signal,word,immediate";

fn moe(args: &str) -> Vec<Row> {
    rows(&run(ginlab(&format!("moe -d emulated {SMALL} {args}"))).expect(0).stdout)
}

fn number(row: &Row, column: &str) -> f64 {
    row.own(column).number().unwrap_or_else(|| panic!("{column}: {row:?}"))
}

#[test]
fn every_unit_and_count_verifies_on_every_path() {
    for path in
        ["--np 2 --path nvlink", "--np 3 --path rails -p model:p5", "--np 4 --node-size 2 -p model:p5 --rails 2"]
    {
        let rows = moe(&format!("{path} {ALL} --experts 12 --type fp8,bf16"));
        assert_eq!(rows.len(), 18);
        for row in &rows {
            assert!(row.wrong_bytes == Some(0) && row.status.to_string() == "ok", "{row:?}");
            let (dispatch, combine) = (number(row, "dispatch_us"), number(row, "combine_us"));
            assert!(dispatch > 0.0 && combine > 0.0 && number(row, "messages") > 0.0, "{row:?}");
            // The rounds of two repeats have as many transfers as messages and signals, or more if puts are split.
            let by_rails = path.contains("model:p5");
            assert_eq!(
                row.own("rail_transfers").text().is_some() || row.own("rail_transfers").number().is_some(),
                by_rails,
                "{row:?}"
            );
            assert_eq!(row.own("bound").text().is_some(), by_rails, "{row:?}");
        }
    }
}

/// A word's round has three bits. Eight rounds separate the two units that count by words here: the second must not use
/// the first one's count, which is larger.
#[test]
fn counts_of_other_units_are_not_confused() {
    let small = "--hidden 64 --tokens 6 --experts 12 --topk 3 --grid 2 --block 33 -n 4 -w 0 -r 1 -t 20 --csv -";
    let line =
        format!("moe -d emulated --np 2 --path rails -p model:p5 --unit expert,rank --count word,immediate {small}");
    let done = run(ginlab(&line)).expect(0);
    let rows = rows(&done.stdout);
    assert!(rows.len() == 4 && rows.iter().all(|row| row.wrong_bytes == Some(0)), "{rows:?}");
}

/// Rows contain the operations of the timed rounds: the mean over the choices that these rounds use.
#[test]
fn row_columns_are_means_over_timed_rounds() {
    let sent = |rounds: &str| {
        let line = "--hidden 64 --tokens 6 --experts 12 --topk 3 --grid 2 --block 33 -r 1 --check-rounds 2 --csv -";
        let line = format!("moe -d emulated --np 2 --path nvlink --unit expert --count signal {line} {rounds}");
        let rows = rows(&run(ginlab(&line)).expect(0).stdout);
        assert_eq!(rows.len(), 1);
        (number(&rows[0], "messages"), number(&rows[0], "sent_bytes"))
    };
    let (first, second, both) = (sent("-w 0 -n 1"), sent("-w 1 -n 1"), sent("-w 0 -n 2"));
    assert!(first.0 > both.0 && both.0 > second.0, "{first:?} {both:?} {second:?}");
    assert!(first.1 > both.1 && both.1 > second.1, "{first:?} {both:?} {second:?}");
}

/// A skewed router, and one from a file: all tokens to one PE, which leaves the others without a message.
#[test]
fn pes_without_tokens_participate() {
    let folder = tempfile::tempdir().unwrap();
    let lists = folder.path().join("lists");
    std::fs::write(&lists, "0 1 2\n2 1 0\n").unwrap();
    let rails = "--np 4 --path rails -p worst:seed=5,delay=300,watch=strict";
    for router in [format!("--routing {}", lists.display()), "--skew 2.5".into()] {
        for row in moe(&format!("{rails} {ALL} --experts 12 --check-rounds 6 {router}")) {
            assert!(row.wrong_bytes == Some(0), "{router}: {row:?}");
        }
    }
}

#[test]
fn invalid_options_print_one_line() {
    for (options, part) in [
        ("--np 3 --experts 8", "--experts: 8: must be a multiple of the 3 ranks"),
        ("--np 2 --topk 40", "--topk: 40: must be from 1 to 32"),
        ("--np 2 --hidden 100", "--hidden: 100 elements: must be a multiple of 8"),
        ("--np 2 --skew 9", "--skew: 9"),
        ("--np 1", "--np: 1"),
        ("--np 3 --node-size 2 --experts 12", "--node-size: 2"),
        ("--np 2 --tokens 4096", "use --count word"),
        ("--np 2 --routing /nowhere", "--routing: /nowhere"),
    ] {
        let done = run(ginlab(&format!("moe -d emulated {options} --csv -"))).expect(2);
        assert!(done.complaint().contains(part), "{options}: {}", done.stderr);
    }
}

#[test]
fn modelled_rows_are_compared_with_published() {
    passed::once("virtual_time", &contents(&[env!("CARGO_BIN_EXE_ginlab").into()]), virtual_time);
}

fn virtual_time() {
    let line = "model moe -p p5en --gpus 16,64 --csv -";
    let all = rows(&run(ginlab(line)).expect(0).stdout);
    assert_eq!(rows(&run(ginlab(line)).expect(0).stdout), all, "the same on each run");
    let (modelled, published): (Vec<&Row>, Vec<&Row>) = all.iter().partition(|row| row.device == "virtual");
    assert!(modelled.len() == 6 && modelled.iter().all(|row| row.fabric == "model:p5en"), "{modelled:#?}");
    assert!(published.len() >= 4 && published.iter().all(|row| row.device == "published"), "{published:#?}");
    for row in published {
        let alike =
            modelled.iter().find(|other| other.ranks == row.ranks && other.own("unit") == row.own("unit")).unwrap();
        let ratio = number(row, "dispatch_us") / number(alike, "dispatch_us");
        assert!((number(row, "dispatch_ratio") / ratio - 1.0).abs() < 1e-3, "{row:?}");
    }
    let refused = run(ginlab("model moe -p p4d")).expect(2);
    assert!(refused.complaint().contains("share cards"), "{}", refused.stderr);
}
