//! `ginlab shmem`: its cases on both paths, and how it ends when a PE is killed in the middle of one.

use nix::sys::signal::{Signal, kill};

use crate::common::{Job, Stream, ginlab, rows, run};

fn shmem(args: &str) -> std::process::Command {
    ginlab(&format!("shmem -d emulated --np 2 {args}"))
}

#[test]
fn every_case_is_right_by_memory_and_by_rails() {
    for (path, skipped) in [("nvlink", 0), ("rails -p model:p5", 1)] {
        let line = format!("--path {path} -n 4 -w 1 -r 1 -b 8 -e 512 -f 64 --grid 2 --block 40 --volume 64K --csv -");
        let rows = rows(&run(shmem(&line)).expect(0).stdout);
        let right = rows.iter().filter(|row| row.status.to_string() == "ok" && row.wrong == Some(0)).count();
        assert_eq!((rows.len() - right, rows.len() > 16), (skipped, true), "{rows:#?}");
    }
}

#[test]
fn a_node_has_a_row_of_what_its_pes_move() {
    let line = "--np 4 --path rails -p model:p5 --rails 2 --strategy split --cases put-bandwidth,all-to-all,barrier-all --per-node";
    let line = format!("shmem -d emulated {line} -n 2 -w 1 -r 2 -b 64K -e 64K --grid 1 --block 32 --csv -");
    let rows = rows(&run(ginlab(&line)).expect(0).stdout);
    let cases: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
    assert_eq!(cases, ["put-bandwidth", "node", "job", "all-to-all", "node", "job", "barrier-all"]);
    // Half of the PEs put; all of them exchange.
    for (row, senders) in
        rows.iter().filter(|row| ["node", "job"].contains(&row.case.as_str())).zip([2.0, 2.0, 4.0, 4.0])
    {
        let number = |name: &str| row.own(name).number().unwrap();
        assert_eq!(number("senders"), senders, "{row:?}");
        assert!(number("gpu_gbits_s_min") <= number("gpu_gbits_s_max") && number("rail_gbits_s_min") > 0.0, "{row:?}");
        assert!(row.line_rate_pct.is_some() && row.wrong.is_none(), "{row:?}");
    }
}

/// Rails that deliver late and in any order, seen from the command line.
#[test]
fn no_signal_is_seen_before_its_bytes() {
    for rule in ["count", "own", "drain", "sequence"] {
        let line = format!(
            "--cases signal-order --path rails -p worst --rule {rule} -n 100 -r 2 --grid 1 --block 33 --scope warp,block \
             --csv -"
        );
        let rows = rows(&run(shmem(&line)).expect(0).stdout);
        assert_eq!(rows.len(), 2);
        for row in rows {
            // Both PEs look, in two launches.
            assert!(row.wrong == Some(0) && row.iterations >= Some(2 * 2 * 100) && row.grid == Some(2), "{row:?}");
        }
    }
    let line = run(shmem("--cases signal-order --grid 64 --block 256 --scope thread")).expect(2);
    assert!(line.complaint().contains("signals for these rows"), "{}", line.stderr);
}

/// As above, of messages, exchanges, gets and what a barrier waits for.
#[test]
fn nothing_is_read_before_it_is_there() {
    for path in ["nvlink", "rails -p worst:longest=500,watch=strict --rule count", "rails -p worst --rule own"] {
        let line = format!("--cases data-order --path {path} -n 20 -r 2 --block 33 --scope thread,warp,block --csv -");
        let rows = rows(&run(shmem(&line)).expect(0).stdout);
        assert_eq!(rows.len(), 3);
        for row in rows {
            // Both PEs look, in two launches, five times a round.
            assert!(row.wrong == Some(0) && row.iterations == Some(2 * 2 * 20 * 5), "{row:?}");
        }
    }
}

#[test]
fn a_grid_that_is_not_there_at_once_is_refused_before_the_first_row() {
    let line = "--cases signal-ping-pong,put-bandwidth --grid 1,133 --block 1024 -b 8 -e 8 -n 1 -w 1 -r 1 --no-header";
    let done = run(shmem(line)).expect(2);
    assert!(done.complaint().contains("grid 133 x 1024 refused by emulated"), "{}", done.stderr);
    assert!(done.complaint().contains("at most 132 of 1024 threads"), "{}", done.stderr);
    assert_eq!(done.stdout, "");
}

#[test]
fn a_pe_that_is_killed_is_named_and_ends_the_others() {
    for path in ["nvlink", "rails -p tcp"] {
        let line =
            format!("--path {path} --cases put-signal-ping-pong,all-to-all -n 20 -w 2 -r 2 -b 8 -e 1M -f 2 --block 4");
        let mut job = Job::start(shmem(&line));
        job.until(Stream::Stdout, "put-sign");
        kill(job.rank(1), Signal::SIGKILL).unwrap();
        let done = job.finish().expect(1);
        let line = done.complaint();
        assert!(line.starts_with("ginlab: rank 1 (host ") && line.contains("signal: 9"), "{path}: {line}");
    }
}
