//! `ginlab ipc` on the emulated device: processes that write into each other's shared memory.

use crate::common;

use crate::common::{JobOutput, OutputStream, ProcessGroup, all_verified, count_by, ginlab, rows, run};
use ginlab::report::{Row, Value};
use nix::sys::signal::{Signal, kill};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Options of a run that lasts longer than any of these tests waits for its fault. The signal must arrive in the middle
/// of the run.
const LONG: &str =
    "ipc -d emulated -r 2 -n 2 -t 10 --no-header -b 1K -e 4M -f 2 --volume 1M -g 1,2,3,4,5,6,7,8,9,10,11,12";

/// Options for few repeats of few launches, because only the bytes are checked.
const SHORT: &str = "-r 2 -n 2 -w 1 -t 20 --no-header";

fn ipc(args: &str) -> JobOutput {
    run(ginlab(&format!("ipc -d emulated {SHORT} {args}")))
}

fn measured(args: &str) -> Vec<Row> {
    let found = rows(&ipc(&format!("{args} --csv -")).expect(0).stdout);
    all_verified(&found);
    assert!(found.iter().all(|row| row.device == "emulated" && row.fabric == "shm" && row.experiment == "ipc"));
    found
}

fn pairs(rows: &[Row]) -> BTreeSet<String> {
    rows.iter().filter_map(|row| row.own("pair").text().map(str::to_owned)).collect()
}

#[test]
fn every_operation_width_and_launch_verifies() {
    // Tests sizes below a word, around a vector, and around one iteration of eight vectors by all threads of the grid.
    for bytes in [1, 3, 4, 15, 16, 17, 1001, 2 * 3 * 16 * 8, 2 * 3 * 16 * 8 + 5, 100_003] {
        let rows = measured(&format!(
            "-b {bytes} -e {bytes} -o write,copy,read --width 4,8,16 --launch stream,graph -g 2 --block 3"
        ));
        let cases = count_by(&rows, |row| {
            (row.case.clone(), row.own("operation").text().map(str::to_owned), row.own("width_bytes").list())
        });
        // The cases are three widths in each direction, three copy engine cases, and the loop for written bytes. Each
        // case runs by stream and by graph.
        assert_eq!((cases.len(), rows.len()), (3 * 3 + 3 + 1, 2 * (3 * 3 + 3 + 1)), "{cases:?}");
        assert!(cases.values().all(|count| *count == 2), "{cases:?}");
    }
}

#[test]
fn baselines_are_named_and_receivers_see_writes() {
    let rows = measured("-b 64K -e 64K -o write,read -g 1,2 --launch stream");
    for row in &rows {
        let expected = (row.case != "copy-engine").then_some("copy-engine");
        assert_eq!(row.baseline.as_deref(), expected, "{row:?}");
        assert_eq!(row.baseline_ratio.is_some(), expected.is_some(), "{row:?}");
        // Only writes have flags, because a read causes no arrival.
        assert_eq!(row.own("received_us_p50").number().is_some(), row.case == "write", "{row:?}");
        assert_eq!(row.grid.is_some(), row.case != "copy-engine", "{row:?}");
        assert_eq!(row.own("knee"), &Value::None);
    }
}

#[test]
fn both_directions_have_sum_and_single_rows() {
    let rows = measured("-b 5K -e 5K -o write,copy,read -g 2 --direction one,both");
    assert_eq!(pairs(&rows), ["0<>1", "0>1", "1>0"].map(String::from).into());
    for row in rows.iter().filter(|row| row.own("direction").text() == Some("both")) {
        // One-way results exist only for 0>1.
        assert_eq!(row.own("one_way_ratio").number().is_some(), row.own("pair").text() == Some("0>1"), "{row:?}");
    }
    let bandwidth = |row: &&Row| row.bandwidth_gbytes_s.unwrap();
    for case in ["write", "copy", "read", "copy-engine"] {
        let both = rows.iter().filter(|row| row.case == case && row.own("direction").text() == Some("both"));
        for sum in both.clone().filter(|row| row.own("pair").text() == Some("0<>1")) {
            let each = both
                .clone()
                .filter(|row| row.own("operation") == sum.own("operation") && row.own("pair") != sum.own("pair"));
            let all: f64 = each.clone().map(|row| bandwidth(&row)).sum();
            assert_eq!(each.count(), 2);
            assert!(bandwidth(&sum) <= all * 1.0001, "the slowest counts: {sum:?}");
        }
    }
}

#[test]
fn three_ranks_verify_as_matrix_and_all() {
    let matrix = measured("--ranks 3 --pairs matrix -b 4K -e 4K -g 2 --direction one,both -o write,read");
    let expected = ["0>1", "0>2", "1>0", "1>2", "2>0", "2>1", "0<>1", "0<>2", "1<>2"];
    assert_eq!(pairs(&matrix), expected.map(String::from).into());
    assert!(matrix.iter().all(|row| row.ranks == 3));

    let all = measured("--ranks 3 --pairs all -b 4K -e 4K -g 2 -o write,copy,read --launch stream,graph");
    assert_eq!(pairs(&all), ["0>1", "0>2", "1>0", "1>2", "2>0", "2>1", "all"].map(String::from).into());
    let sums = all.iter().filter(|row| row.own("pair").text() == Some("all")).count();
    assert_eq!(all.len(), 7 * sums);
}

#[test]
fn grid_sweep_marks_one_knee_per_case() {
    let rows = measured("-b 16K -e 16K -g auto");
    let knee = |row: &Row| match row.own("knee") {
        Value::Flag(knee) => Some(*knee),
        _ => None,
    };
    let knees = count_by(&rows, |row| (row.case.clone(), knee(row)));
    for case in ["write", "int-loop"] {
        assert_eq!(knees[&(case.to_owned(), Some(true))], 1, "{knees:?}");
        assert_eq!(knees[&(case.to_owned(), Some(false))], 3, "grids 1, 2, 4, 8: {knees:?}");
    }
    assert_eq!(knees[&("copy-engine".to_owned(), None)], 4);
}

#[test]
fn parts_are_written_completely_by_every_launch() {
    // Tests no, one, and more than one part of 32 KiB, and many parts for few warps. Also tests a partial warp of 8
    // lanes, and three launches or more.
    for sizes in ["-b 15 -e 15", "-b 32K -e 32K", "-b 33000 -e 33000", "-b 1M -e 1M"] {
        for block in ["8", "40", "64"] {
            let rows = measured(&format!(
                "{sizes} -g 1,3 --block {block} --store parts --launch stream,graph --direction one,both"
            ));
            let parts: Vec<&Row> = rows.iter().filter(|row| row.case == "parts-write").collect();
            assert!(
                parts.len() >= 8 && parts.iter().all(|row| row.wrong_bytes == Some(0)),
                "{sizes} {block}: {parts:?}"
            );
        }
    }
}

#[test]
fn one_launch_writes_to_all_targets() {
    // Tests no, one and several vectors, followed by single bytes. Also tests one target, three targets, and more
    // targets than a thread handles at a time.
    for (pairs, np) in [("first --direction one,both", 2), ("all", 4), ("all", 11)] {
        let sizes = if np > 4 { "-b 4099 -e 4099" } else { "-b 15 -e 33000 -f 47" };
        let rows = measured(&format!(
            "--pairs {pairs} --np {np} {sizes} -g 1,3 --block 32 --store plain,together --launch stream,graph"
        ));
        let of = |case: &str| rows.iter().filter(|row| row.case == case).collect::<Vec<_>>();
        let (together, plain) = (of("together-write"), of("write"));
        assert!(together.len() >= 4 && together.len() == plain.len(), "{pairs}: {together:?}");
        assert!(together.iter().all(|row| row.wrong_bytes == Some(0)), "{pairs}: {together:?}");
    }
}

#[test]
fn bulk_stores_are_skipped_with_reason() {
    let done = ipc("-b 4K -e 4K -g 1 --store plain,bulk -o write,copy,read --csv -").expect(0);
    let found = rows(&done.stdout);
    let skipped: Vec<&Row> = found.iter().filter(|row| row.own("store").text() == Some("bulk")).collect();
    assert_eq!(skipped.iter().map(|row| row.case.as_str()).collect::<Vec<_>>(), ["bulk-write", "bulk-copy"]);
    for row in skipped {
        assert_eq!(row.status.to_string(), "skipped: the emulated device has no bulk stores (TMA)");
        assert_eq!((row.time_us_p50, row.wrong_bytes), (None, None));
    }
}

#[test]
fn check_detects_corrupted_byte_in_every_case() {
    let done = ipc("-b 10K -e 10K -g 2 -o write,copy,read --direction both --fault corrupt --csv -").expect(1);
    assert!(done.complaint().starts_with("ginlab: verification failed: "), "{}", done.stderr);
    for row in rows(&done.stdout) {
        let flows = if row.own("pair").text() == Some("0<>1") { 2 } else { 1 };
        // A sum does not identify the wrong byte.
        let wrong = if row.case == "read" { 10 * 1024 } else { 1 };
        assert_eq!(row.wrong_bytes, Some(flows * wrong), "{row:?}");
        assert!(row.status.to_string().starts_with("failed: "), "{row:?}");
    }
}

#[test]
fn invalid_options_print_one_line() {
    for (args, words) in [
        ("--operation erase", "expected one of write, copy, read"),
        ("--width 3", "expected 4, 8 or 16"),
        ("--store tape", "expected one of plain, parts, together, bulk"),
        ("--launch rocket", "expected one of stream, graph"),
        ("--direction up", "expected one of one, both"),
        ("--pairs some", "expected one of first, matrix, all"),
        ("--pairs first,all", "one of first, matrix, all"),
        ("--ranks 1", "from 2 to 64"),
        ("--ranks 65", "from 2 to 64"),
        ("-b 0", "from 1 B to 16 GiB"),
        ("-b 1K -e 32G", "from 1 B to 16 GiB"),
        ("-b 2K -e 1K", "smaller than the beginning"),
        ("--grid 0", "at least 1"),
        ("--grid automatic", "not a whole number"),
        ("--block 2048", "invalid grid"),
        ("--volume 1X", "unknown unit"),
        ("--cuda-module /nonexistent.cubin", "--cuda-module: "),
    ] {
        let done = ipc(args).expect(2);
        assert!(done.complaint().contains(words), "{args}: {}", done.stderr);
        assert!(done.stdout.is_empty(), "{args}: {}", done.stdout);
    }
}

#[test]
fn missing_gpu_is_reported() {
    if ginlab::cuda::visible_gpus().is_ok_and(|gpus| !gpus.is_empty()) {
        common::skip("there is a GPU");
        return;
    }
    let done = run(ginlab(&format!("ipc -d gpu {SHORT}"))).expect(2);
    assert!(done.complaint().contains("no CUDA driver") || done.complaint().contains("PTX"), "{}", done.stderr);
}

#[test]
fn killed_rank_ends_others_within_deadline() {
    for (dies, pairs) in [(1, "--pairs first --direction both"), (2, "--ranks 3 --pairs all")] {
        let began = Instant::now();
        let mut job = ProcessGroup::start(ginlab(&format!("{LONG} {pairs}")));
        job.until(OutputStream::Stdout, "write");
        kill(job.rank(dies), Signal::SIGKILL).unwrap();
        let done = job.finish().expect(1);
        assert!(done.complaint().contains(&format!("rank {dies} ")), "{}", done.stderr);
        assert!(began.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn interrupted_run_keeps_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = ginlab(&format!("{LONG} --csv run.csv"));
    command.current_dir(folder.path());
    let mut job = ProcessGroup::start(command);
    job.until(OutputStream::Stdout, "write");
    job.signal(Signal::SIGINT);
    let done = job.finish().expect(130);
    assert_eq!(done.complaint(), "ginlab: interrupted; the rows so far are complete");
    assert!(!common::rows_of(&folder.path().join("run.csv")).is_empty());
}
