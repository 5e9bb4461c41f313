//! `ginlab compare` as a user runs it: ratios with a verdict, exit codes for scripts, every error in one line.

use std::path::Path;

use crate::common::{JobOutput, ginlab, run};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::Value;

const COLUMNS: &str = "schema,experiment,case,device,fabric,mode,size_bytes,time_us_min,time_us_p50,time_us_p99,\
                       bandwidth_gbytes_s,repeats,status";

/// Returns a row of `put` over tcp with this size, lowest, median and highest time.
fn row(size: u64, (low, median, high): (f64, f64, f64)) -> String {
    let bandwidth = size as f64 / median / 1e3;
    format!("1,proxy,put,gpu:H200,tcp,nbi,{size},{low},{median},{high},{bandwidth},9,ok\n")
}

/// Compares two files of these rows.
fn compare(a: &str, b: &str, args: &str) -> JobOutput {
    let folder = tempfile::tempdir().unwrap();
    for (name, rows) in [("a.csv", a), ("b.csv", b)] {
        std::fs::write(folder.path().join(name), format!("{COLUMNS}\n{rows}")).unwrap();
    }
    compare_in(folder.path(), &format!("a.csv b.csv {args}"))
}

fn compare_in(folder: &Path, args: &str) -> JobOutput {
    let mut command = ginlab(&format!("compare {args}"));
    command.current_dir(folder);
    run(command)
}

/// Returns the rows of the JSON document.
fn rows(a: &str, b: &str) -> Vec<Value> {
    let done = compare(a, b, "--json -").expect(0);
    let document: Value = serde_json::from_str(&done.stdout).unwrap();
    document["rows"].as_array().unwrap().clone()
}

fn verdicts(a: &str, b: &str) -> Vec<String> {
    rows(a, b).iter().map(|row| row["verdict"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn equal_runs_have_no_difference() {
    let run = row(64, (9.0, 10.0, 11.0)) + &row(4096, (20.0, 20.0, 20.0));
    assert_eq!(verdicts(&run, &run), ["same within noise"; 2]);
    let done = compare(&run, &run, "--fail-slower 0").expect(0);
    insta::assert_snapshot!(done.stdout, @r"
    size_bytes  A   B   time   GB/s   verdict
                us  us  B/A    B/A
    64          10  10  1.000  1.000  same within noise
    4096        20  20  1.000  1.000  same within noise
    ");
}

#[test]
fn doubled_times_exceed_noise() {
    let (a, b) = (row(64, (9.0, 10.0, 11.0)), row(64, (18.0, 20.0, 22.0)));
    let found = rows(&a, &b);
    assert_eq!(found[0]["verdict"], "slower by 100.0 %");
    assert_eq!((found[0]["time_ratio"].as_f64(), found[0]["bandwidth_ratio"].as_f64()), (Some(2.0), Some(0.5)));
    assert_eq!(verdicts(&b, &a), ["faster by 100.0 %"]);
    compare(&a, &b, "").expect(0);
    compare(&a, &b, "--fail-slower 101").expect(0);
    compare(&b, &a, "--fail-slower 0").expect(0);
    let done = compare(&a, &b, "--fail-slower 99").expect(1);
    assert!(done.complaint().contains("1 of 1 rows failed or are slower by more than 99 %"), "{}", done.stderr);
    assert!(done.stdout.contains("slower by 100.0 %"), "the table is printed all the same: {}", done.stdout);
}

#[test]
fn differences_within_noise_are_not_reported() {
    let (a, b) = (row(64, (5.0, 10.0, 30.0)), row(64, (18.0, 20.0, 22.0)));
    assert_eq!(verdicts(&a, &b), ["same within noise"]);
    compare(&a, &b, "--fail-slower 1").expect(0);
}

#[test]
fn rows_without_spread_have_no_verdict() {
    let once = row(64, (10.0, 10.0, 10.0)).replace(",9,ok", ",1,ok");
    let twice = row(64, (20.0, 20.0, 20.0)).replace(",9,ok", ",1,ok");
    assert_eq!(verdicts(&once, &twice), ["cannot say: no spread: one repeat"]);
    assert_eq!(rows(&once, &twice)[0]["time_ratio"].as_f64(), Some(2.0));
    compare(&once, &twice, "--fail-slower 1").expect(0);
}

#[test]
fn unmatched_rows_are_counted_and_named() {
    let (one, two, three) = (row(64, (9.0, 10.0, 11.0)), row(128, (9.0, 10.0, 11.0)), row(256, (9.0, 10.0, 11.0)));
    let (a, b) = (one.clone() + &two, three + &one);
    let done = compare(&a, &b, "--csv -").expect(0);
    assert!(done.stderr.contains("# note: 3 rows: 1 same within noise, 1 only in A, 1 only in B"), "{}", done.stderr);
    insta::assert_snapshot!(done.stdout, @r"
    file,row,a_time_us,b_time_us,time_ratio,bandwidth_ratio,rate_ratio,verdict,unreal
    a.csv,experiment=proxy case=put mode=nbi fabric=tcp size_bytes=64 device=gpu,10.0,10.0,1.0,1.0,,same within noise,
    a.csv,experiment=proxy case=put mode=nbi fabric=tcp size_bytes=128 device=gpu,10.0,,,,,only in A,
    b.csv,experiment=proxy case=put mode=nbi fabric=tcp size_bytes=256 device=gpu,,10.0,,,,only in B,
    ");
}

#[test]
fn measured_columns_do_not_identify_rows() {
    let a = row(64, (9.0, 10.0, 11.0)).replace("gpu:H200", "gpu:H100") + &row(64, (9.0, 10.0, 11.0));
    let b = row(64, (8.0, 9.5, 12.0)) + &row(64, (30.0, 31.0, 32.0));
    assert_eq!(verdicts(&a, &b), ["same within noise", "slower by 210.0 %"], "repeats of one row, in their order");
}

#[test]
fn emulated_device_is_not_compared_with_gpu() {
    let gpu = row(64, (9.0, 10.0, 11.0));
    let done = compare(&gpu, &gpu.replace("gpu:H200", "emulated"), "").expect(2);
    assert!(done.complaint().contains("device is gpu and emulated"), "{}", done.stderr);
    let emulated = gpu.replace("gpu:H200", "emulated");
    assert_eq!(rows(&emulated, &emulated)[0]["unreal"], "emulated");
    let both = emulated.replace("tcp", "model:p5");
    assert_eq!(rows(&both, &both)[0]["unreal"], "emulated, model:p5");
}

#[test]
fn compare_reports_newly_failing_rows() {
    let good = row(64, (9.0, 10.0, 11.0));
    let bad = "1,proxy,put,gpu:H200,tcp,nbi,64,,,,,,failed: peer 1 is gone\n";
    assert_eq!(verdicts(&good, bad), ["B has failed: peer 1 is gone"]);
    assert_eq!(verdicts(bad, &good), ["cannot say: A has failed: peer 1 is gone"]);
    let done = compare(&good, bad, "--fail-slower 50").expect(1);
    assert!(done.complaint().contains("1 of 1 rows failed or are slower by more than 50 %"), "{}", done.stderr);
    compare(bad, &good, "--fail-slower 50").expect(0);
}

#[test]
fn older_files_with_fewer_columns_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let rows = row(64, (9.0, 10.0, 11.0));
    std::fs::write(folder.path().join("a.csv"), format!("{COLUMNS}\n{rows}")).unwrap();
    let later = format!("{COLUMNS},window\n{},16\n", rows.trim_end());
    std::fs::write(folder.path().join("b.csv"), later).unwrap();
    assert!(compare_in(folder.path(), "a.csv b.csv").expect(0).stdout.contains("same within noise"));
}

#[test]
fn directories_are_compared_file_by_file() {
    let folder = tempfile::tempdir().unwrap();
    for (name, median) in [("a/x.csv", 10.0), ("a/gone.csv", 1.0), ("b/x.csv", 20.0), ("b/deep/new.csv", 1.0)] {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{COLUMNS}\n{}", row(64, (median, median, median)))).unwrap();
    }
    let done = compare_in(folder.path(), "a b").expect(0);
    assert!(done.stdout.contains("slower by 100.0 %"), "{}", done.stdout);
    for part in ["# note: 1 files only in A: a/gone.csv", "# note: 1 files only in B: b/deep/new.csv"] {
        assert!(done.stderr.contains(part), "{}", done.stderr);
    }
    std::fs::remove_file(folder.path().join("a/x.csv")).unwrap();
    std::fs::remove_dir_all(folder.path().join("b/deep")).unwrap();
    std::fs::write(folder.path().join("b/y.csv"), format!("{COLUMNS}\n")).unwrap();
    let done = compare_in(folder.path(), "a b").expect(2);
    let expected = "no file of A has the same name in B: A has a/gone.csv; B has b/x.csv, b/y.csv";
    assert!(done.complaint().contains(expected), "{}", done.stderr);
}

#[test]
fn errors_print_one_line() {
    for (args, part) in [
        ("a.csv none.csv", "cannot read none.csv: No such file"),
        ("other.csv a.csv", "other.csv is not a CSV file of ginlab"),
        ("a.csv queue.csv", "a.csv has proxy, but queue.csv has queue: these cannot be compared"),
        ("a.csv list.csv", "list.csv is a listing"),
        ("a.csv shm.csv", "no row of a.csv is in shm.csv: fabric is tcp and shm; --ignore fabric compares them"),
        ("a.csv empty", "no CSV file of ginlab in empty"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let rows = row(64, (9.0, 10.0, 11.0));
        write("a.csv", &format!("{COLUMNS}\n{rows}"));
        write("queue.csv", &format!("{COLUMNS}\n{}", rows.replace("proxy", "queue")));
        write("shm.csv", &format!("{COLUMNS}\n{}", rows.replace("tcp", "shm")));
        write("other.csv", "a,b\n1,2\n");
        write("list.csv", "schema,gpu\n1,0\n");
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        let done = compare_in(folder.path(), &format!("{args} --csv out.csv")).expect(2);
        assert!(done.complaint().contains(part), "{args}: {}", done.stderr);
        assert!(!folder.path().join("out.csv").exists(), "{args}");
        if args == "a.csv shm.csv" {
            let done = compare_in(folder.path(), &format!("{args} --ignore fabric")).expect(0);
            assert!(done.stdout.contains("same within noise"), "{}", done.stdout);
        }
    }
    let rows = row(64, (9.0, 10.0, 11.0));
    for (args, part) in
        [("--fail-slower -1", "-1"), ("--fail-slower x", "expected a percentage"), ("--ignore sizes", "size_bytes")]
    {
        let done = compare(&rows, &rows, args).expect(2);
        assert!(done.stderr.contains(part), "{args}: {}", done.stderr);
    }
}

#[test]
fn stages_are_compared_by_percentiles() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/report/stages-by-hand.csv");
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(fixture).unwrap();
    std::fs::write(folder.path().join("a.csv"), &text).unwrap();
    let slower = text.replace("put,64,4,quiet,model:p5,wire,6.2,9.1", "put,64,4,quiet,model:p5,wire,31,33");
    std::fs::write(folder.path().join("b.csv"), slower).unwrap();
    let done = compare_in(folder.path(), "a.csv b.csv --json -").expect(0);
    let document: Value = serde_json::from_str(&done.stdout).unwrap();
    for row in document["rows"].as_array().unwrap() {
        let text = row["row"].as_str().unwrap();
        let changed =
            ["stage=wire", "mode=quiet", "size_bytes=64"].iter().all(|part| text.split(' ').any(|word| word == *part));
        assert_eq!(row["verdict"], if changed { "slower by 400.0 %" } else { "same within noise" }, "{row}");
        assert_eq!(row["unreal"], "model:p5");
    }
}

/// Few cases, because it runs the command itself; unit tests cover the arithmetic.
#[test]
fn ratios_of_both_directions_are_inverse() {
    let times = || prop::collection::vec((1.0f64..1e4, 0.0f64..0.5, 0.0f64..0.5), 3);
    let text = |times: &[(f64, f64, f64)]| {
        let rows = times.iter().enumerate().map(|(index, (median, below, above))| {
            row(64 << index, (median * (1.0 - below), *median, median * (1.0 + above)))
        });
        rows.collect::<String>()
    };
    let mut runner = TestRunner::new(Config { cases: 12, failure_persistence: None, ..Config::default() });
    let ran = runner.run(&(times(), times()), |(one, two)| {
        let (a, b) = (text(&one), text(&two));
        for (there, back) in rows(&a, &b).iter().zip(rows(&b, &a)) {
            for ratio in ["time_ratio", "bandwidth_ratio"] {
                let product = there[ratio].as_f64().unwrap() * back[ratio].as_f64().unwrap();
                prop_assert!((product - 1.0).abs() < 1e-4, "{ratio}: {there} {back}");
            }
            let (there, back) = (there["verdict"].as_str().unwrap(), back["verdict"].as_str().unwrap());
            let mirrored = match there.split_once(' ') {
                Some(("slower", by)) => format!("faster {by}"),
                Some(("faster", by)) => format!("slower {by}"),
                _ => there.to_owned(),
            };
            prop_assert_eq!(mirrored, back);
        }
        Ok(())
    });
    ran.unwrap();
}
