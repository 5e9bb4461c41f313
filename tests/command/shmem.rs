//! `ginlab shmem`: its cases on both paths, and its exit when a PE is killed in the middle of one.

use nix::sys::signal::{Signal, kill};

use crate::common::{OutputStream, ProcessGroup, ginlab, rows, run};
use ginlab::report::Row;

fn shmem(args: &str) -> std::process::Command {
    ginlab(&format!("shmem -d emulated --np 2 {args}"))
}

#[test]
fn every_case_verifies_by_memory_and_rails() {
    for (path, skipped) in [("nvlink", 0), ("rails -p model:p5", 1)] {
        let line = format!("--path {path} -n 4 -w 1 -r 1 -b 8 -e 512 -f 64 --grid 2 --block 40 --volume 64K --csv -");
        let rows = rows(&run(shmem(&line)).expect(0).stdout);
        // A barrier has no data to compare.
        let verdict = |row: &Row| if row.case == "barrier-all" { None } else { Some(0) };
        let right = rows.iter().filter(|row| row.status.to_string() == "ok" && row.wrong_bytes == verdict(row)).count();
        assert_eq!((rows.len() - right, rows.len() > 16), (skipped, true), "{rows:#?}");
    }
}

/// Calls without bytes write nothing, and signals and words of the same calls are verified.
#[test]
fn calls_without_bytes_verify() {
    for path in ["nvlink", "rails -p worst"] {
        let line = format!("--path {path} -n 3 -w 1 -r 1 -b 0 -e 0 --grid 2 --block 40 --csv -");
        let rows = rows(&run(shmem(&line)).expect(0).stdout);
        for row in &rows {
            let has_effect = ["put-signal-bandwidth", "put-latency-loaded"].contains(&row.case.as_str());
            assert!(row.wrong_bytes == Some(0) || (row.wrong_bytes.is_none() && !has_effect), "{path}: {row:?}");
        }
        assert!(rows.len() > 10, "{rows:#?}");
    }
}

/// Shapes are only verified if there is no baseline.
#[test]
fn random_shapes_verify_and_repeat() {
    let shapes = |seed: &str, count: &str| {
        let line = format!("--path nvlink --random {count} --seed {seed} -e 8K -n 3 -w 1 -r 1 --csv -");
        let done = run(shmem(&line)).expect(0);
        assert!(done.stderr.contains("# random shapes: no baseline"), "{}", done.stderr);
        let rows = rows(&done.stdout);
        assert!(rows.iter().all(|row| row.wrong_bytes == Some(0)), "{rows:#?}");
        let shape = |row: &Row| {
            let own = |name: &str| row.own(name).text().unwrap_or_default().to_owned();
            (row.case.clone(), row.size_bytes, row.grid, row.block, own("scope"), own("alignment"))
        };
        rows.iter().map(shape).collect::<Vec<_>>()
    };
    let all = shapes("5", "24");
    assert_eq!(all[..6], shapes("5", "6"));
    assert_ne!(all[..6], shapes("6", "6"));
    let line = run(shmem("--random 5 --scope warp")).expect(2);
    assert!(line.stderr.contains("--random"), "{}", line.stderr);
}

#[test]
fn node_rows_sum_bytes_of_pes() {
    let line = "--np 4 --path rails -p model:p5 --rails 2 --strategy split --cases put-bandwidth,all-to-all,barrier-all --per-node";
    let line = format!("shmem -d emulated {line} -n 2 -w 1 -r 2 -b 64K -e 64K --grid 1 --block 32 --csv -");
    let rows = rows(&run(ginlab(&line)).expect(0).stdout);
    let cases: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
    assert_eq!(cases, ["put-bandwidth", "node", "job", "all-to-all", "node", "job", "barrier-all"]);
    // In puts, half of the PEs send. In exchanges, all of them do.
    for (row, senders) in
        rows.iter().filter(|row| ["node", "job"].contains(&row.case.as_str())).zip([2.0, 2.0, 4.0, 4.0])
    {
        let number = |name: &str| row.own(name).number().unwrap();
        assert_eq!(number("senders"), senders, "{row:?}");
        assert!(number("gpu_gbits_s_min") <= number("gpu_gbits_s_max") && number("rail_gbits_s_min") > 0.0, "{row:?}");
        assert!(row.line_rate_pct.is_some() && row.wrong_bytes.is_none(), "{row:?}");
    }
}

/// Rails that deliver late and in any order, tested through the command line.
#[test]
fn signals_follow_their_bytes() {
    for rule in ["count", "own", "drain", "sequence"] {
        let line = format!(
            "--cases signal-order --path rails -p worst --rule {rule} -n 100 -r 2 --grid 1 --block 33 --scope warp,block \
             --csv -"
        );
        let rows = rows(&run(shmem(&line)).expect(0).stdout);
        assert_eq!(rows.len(), 2);
        for row in rows {
            // Both PEs check, in two launches.
            assert!(
                row.wrong_bytes == Some(0) && row.iterations >= Some(2 * 2 * 100) && row.grid == Some(2),
                "{row:?}"
            );
        }
    }
    let line = run(shmem("--cases signal-order --grid 64 --block 256 --scope thread")).expect(2);
    assert!(line.complaint().contains("signals for these rows"), "{}", line.stderr);
}

/// Checks messages, exchanges, gets and the data that a barrier waits for.
#[test]
fn data_is_not_read_before_arrival() {
    for path in ["nvlink", "rails -p worst:longest=500,watch=strict --rule count", "rails -p worst --rule own"] {
        let line = format!("--cases data-order --path {path} -n 20 -r 2 --block 33 --scope thread,warp,block --csv -");
        let rows = rows(&run(shmem(&line)).expect(0).stdout);
        assert_eq!(rows.len(), 3);
        for row in rows {
            // Both PEs check, in two launches, five times a round.
            assert!(row.wrong_bytes == Some(0) && row.iterations == Some(2 * 2 * 20 * 5), "{row:?}");
        }
    }
}

#[test]
fn non_resident_grid_is_rejected_before_first_row() {
    let line = "--cases signal-ping-pong,put-bandwidth --grid 1,133 --block 1024 -b 8 -e 8 -n 1 -w 1 -r 1 --no-header";
    let done = run(shmem(line)).expect(2);
    assert!(done.complaint().contains("grid 133 x 1024 does not fit on emulated"), "{}", done.stderr);
    assert!(done.complaint().contains("at most 132 blocks of 1024 threads"), "{}", done.stderr);
    assert_eq!(done.stdout, "");
}

#[test]
fn killed_pe_is_named_and_ends_others() {
    for path in ["nvlink", "rails -p tcp"] {
        let line =
            format!("--path {path} --cases put-signal-ping-pong,all-to-all -n 20 -w 2 -r 2 -b 8 -e 1M -f 2 --block 4");
        let mut job = ProcessGroup::start(shmem(&line));
        job.until(OutputStream::Stdout, "put-sign");
        kill(job.rank(1), Signal::SIGKILL).unwrap();
        let done = job.finish().expect(1);
        let line = done.complaint();
        assert!(
            line.starts_with("ginlab: lost connection to rank 1 (host ") && line.contains("signal: 9"),
            "{path}: {line}"
        );
    }
}
