//! `ginlab all2all`: every block correct, all rails equally loaded, and the messages if ranks do not match or die.

use crate::common;

use crate::common::lab::Lab;
use crate::common::{OutputStream, ProcessGroup, ginlab, mpirun, run};
use ginlab::report::Row;
use nix::sys::signal::{Signal, kill};

#[track_caller]
fn rows(args: &str) -> Vec<Row> {
    let done = run(ginlab(&format!("all2all -d emulated --csv - {args}"))).expect(0);
    common::rows(&done.stdout)
}

/// Checks that every row is verified, that its rails carried the expected bytes, and that bandwidths are computed as in
/// nccl-tests.
#[track_caller]
fn sound(rows: &[Row]) {
    common::all_verified(rows);
    for row in rows {
        let (ranks, bytes) = (u64::from(row.ranks), row.size_bytes.unwrap());
        let loads = row.own("rail_bytes").list().unwrap();
        assert_eq!(loads.len() as u32, row.rails.unwrap());
        let rounds = row.repeats.unwrap();
        assert_eq!(loads.iter().sum::<u64>(), rounds * ranks * (ranks - 1) * bytes, "{row:?}");
        let (algbw, busbw) = (row.own("algbw_gbytes_s").number().unwrap(), row.own("busbw_gbytes_s").number().unwrap());
        let seconds = row.time_us_p50.unwrap() / 1e6;
        assert!((busbw - (ranks - 1) as f64 * bytes as f64 / seconds / 1e9).abs() <= 1e-4 * busbw, "{row:?}");
        assert!((algbw - ranks as f64 * bytes as f64 / seconds / 1e9).abs() <= 1e-4 * algbw, "{row:?}");
        assert_eq!(row.bandwidth_gbytes_s, row.own("busbw_gbytes_s").number());
        assert!(row.time_us_p99 >= row.time_us_p50);
    }
}

#[test]
fn eight_local_ranks_verify_over_any_rails() {
    // 0, 1, 17, 289, 4913 and, above the size from which blocks are split, 300001 bytes.
    for (sizes, count) in [("-b 0 -e 5000 -f 17 -n 4", 5), ("-b 300001 -e 300001 -n 3", 1)] {
        let rows = rows(&format!("-p tcp --np 8 --rails 1,2,3,8 -w 1 {sizes}"));
        assert_eq!(rows.len(), 4 * count);
        sound(&rows);
        for row in &rows {
            assert_eq!(row.ranks, 8);
            assert!(row.own("imbalance_pct").number().unwrap() < 2.0, "{row:?}");
        }
    }
}

#[test]
fn any_ranks_and_strategies_verify() {
    for ranks in [2, 3, 5] {
        let rows = rows(&format!(
            "-p shm --np {ranks} --rails 1,4 --strategy single,round-robin,split,auto -b 1 -e 9999 -f 99 -n 5 -w 0"
        ));
        assert_eq!(rows.len(), 2 * 4 * 3);
        sound(&rows);
        for row in &rows {
            let imbalance = row.own("imbalance_pct").number().unwrap();
            match (row.strategy.as_deref(), row.rails) {
                // The imbalance that this column must show.
                (Some("single"), Some(4)) => assert_eq!(imbalance, 300.0),
                _ => assert!(imbalance < 2.0, "{row:?}"),
            }
        }
    }
}

#[test]
fn raw_samples_of_many_rounds_reach_rank_0() {
    // 135000 rounds of two ranks: several fragments of each rank's times, all of which are in the document.
    let done = run(ginlab("all2all -d emulated -p shm --np 2 --rails 1 -b 0 -e 0 -n 135000 -w 0 --no-check --json -"))
        .expect(0);
    let document: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let row = &document["rows"][0];
    assert_eq!((row["status"].as_str(), row["repeats"].as_u64()), (Some("ok"), Some(135_000)));
    assert_eq!(row["samples_us"].as_array().unwrap().len(), 135_000);
}

#[test]
fn device_memory_with_transmit_completion_verifies() {
    let rows = rows("-p tcp --np 3 --rails 2 -b 100 -e 100 -n 4 --memory device --completion transmit");
    sound(&rows);
    assert_eq!((rows[0].memory.as_deref(), rows[0].own("completion").text()), (Some("device"), Some("transmit")));
}

#[test]
fn single_wrong_byte_is_detected() {
    let done = run(ginlab("all2all -d emulated -p tcp --np 3 --rails 2 -b 101 -e 101 -n 2 --fault corrupt=0 --csv -"))
        .expect(1);
    let rows = common::rows(&done.stdout);
    assert_eq!(
        (rows.len(), rows[0].wrong_bytes, rows[0].status.to_string().as_str()),
        (1, Some(3), "failed: wrong bytes")
    );
    assert!(done.complaint().starts_with("ginlab: verification failed: 3 wrong bytes in blocks of 101 B"), "{done:?}");
}

#[test]
fn killed_rank_is_named() {
    let mut job = ProcessGroup::start(ginlab(
        "all2all -d emulated -p tcp --np 4 --rails 2 -b 64 -e 64K -n 1000000 --volume 1T -t 5",
    ));
    job.until(OutputStream::Stderr, "# note: 4 ranks");
    kill(job.rank(2), Signal::SIGKILL).unwrap();
    let done = job.finish();
    assert!(done.code == 1 || done.code == 124, "{done:?}");
    let line = *done.complaints().last().unwrap();
    // A survivor's rail may fail before the bootstrap is notified. Peers of rails are ranks.
    assert!(line.contains("rank 2") && line.contains("lost connection") || line.contains("peer 2"), "{line}");
}

#[test]
fn ctrl_c_ends_all_ranks() {
    let mut job =
        ProcessGroup::start(ginlab("all2all -d emulated -p tcp --np 3 --rails 1 -b 64 -e 64K -n 1000000 --volume 1T"));
    job.until(OutputStream::Stderr, "# note: 3 ranks");
    job.signal(Signal::SIGINT);
    job.finish().expect(130);
}

#[test]
fn invalid_options_print_one_line() {
    for (args, part) in [
        ("--np 1", "at least 2 ranks"),
        ("--rails 0", "--rails"),
        ("--rails 65", "from 1 to 64"),
        ("--strategy stripe", "round-robin"),
        ("-b 8 -e 4", "-b/-e/-f"),
        ("-b 1X", "--begin"),
        ("-e 1T", "must be smaller than 1 TiB"),
        ("-b 512G -e 512G", "available"),
        ("--csv - --json -", "stdout"),
    ] {
        let done = run(ginlab(&format!("all2all -d emulated -p tcp {args}"))).expect(2);
        assert!(done.complaint().contains(part), "{part}: {}", done.complaint());
        assert_eq!(done.stdout, "");
    }
}

#[test]
fn two_ranks_run_under_mpirun() {
    let Some(command) = mpirun(2, "all2all -d emulated -p tcp --rails 2 -b 5 -e 5 -n 3 --csv -") else { return };
    sound(&common::rows(&run(command).expect(0).stdout));
}

#[test]
fn two_hosts_run_over_four_rails() {
    let Some(lab) = Lab::up("--rate none") else { return };
    let rank = |rank: usize| {
        ProcessGroup::start(
            lab.ginlab(rank, "all2all -d emulated -p tcp --rails 1,4 -b 0 -e 300001 -f 300001 -n 8 --csv -"),
        )
    };
    let (first, second) = (rank(0), rank(1));
    let (first, second) = (first.finish().expect(0), second.finish().expect(0));
    assert_eq!(second.stdout, "");
    let rows = common::rows(&first.stdout);
    assert_eq!(rows.len(), 2 * 3);
    sound(&rows);
    assert!(rows.iter().all(|row| row.own("imbalance_pct").number().unwrap() < 2.0));
}
