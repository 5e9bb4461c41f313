//! `ginlab jacobi` on the emulated device: every exchange, every norm, every wait; fields equal to the last bit; and
//! failures.

use crate::common::{JobOutput, OutputStream, ProcessGroup, all_verified, count_by, ginlab, rows, run};
use ginlab::report::Row;
use nix::sys::signal::{Signal, kill};

/// Options for fields of odd sizes, and for few runs, because only the points are checked.
const BASE: &str = "jacobi -d emulated -n 7 --no-header --csv -";
const EXCHANGES: [&str; 5] = ["host-write", "p", "block", "row", "resident"];

fn measured(args: &str) -> Vec<Row> {
    let found = rows(&run(ginlab(&format!("{BASE} -r 1 -t 20 --block 32 {args}"))).expect(0).stdout);
    let (done, skipped): (Vec<Row>, Vec<Row>) = found.into_iter().partition(|row| row.status.to_string() == "ok");
    all_verified(&done);
    assert!(done.iter().all(|row| row.device == "emulated" && row.experiment == "jacobi"));
    assert!(skipped.iter().all(|row| row.case == "resident"), "{skipped:?}");
    [done, skipped].concat()
}

#[test]
fn every_exchange_computes_identical_field() {
    let found = measured("--np 3 --nx 141 --ny 23 --norm block,never --sync barrier,neighbours --path nvlink");
    let cases = count_by(&found, |row| row.case.clone());
    assert_eq!(cases.len(), 5, "{cases:?}");
    // The resident case has no barrier.
    assert!(EXCHANGES.iter().all(|case| cases[*case] == if *case == "resident" { 2 } else { 4 }), "{cases:?}");
    for row in &found {
        let number = |name: &str| row.own(name).number();
        let (time, alone) = (row.time_us_p50.unwrap(), number("t1_us").unwrap());
        // Figures are written with six digits, so a difference of two is only as precise as they are.
        let near =
            |found: Option<f64>, expected: f64| (found.unwrap() - expected).abs() <= 1e-3 * expected.abs().max(1.0);
        let near_in_time = |found: Option<f64>, expected: f64| (found.unwrap() - expected).abs() <= 1e-4 * time;
        assert!(near(number("speedup"), alone / time), "{row:?}");
        assert!(near(number("efficiency_pct"), 100.0 * alone / time / 3.0), "{row:?}");
        match number("exposed_us") {
            Some(exposed) => assert!(near_in_time(Some(exposed), time - alone / 3.0) && exposed >= 0.0, "{row:?}"),
            None => assert!(row.case == "resident" || time < alone / 3.0, "{row:?}"),
        }
        assert_eq!(number("norm_value").is_some(), row.own("norm").text() == Some("block"), "{row:?}");
        assert!(number("wait_us").is_some(), "{row:?}");
    }
}

#[test]
fn exchanges_over_rails_compute_identical_field() {
    for rails in ["--provider worst --rule drain --proxy-threads 2", "--provider model:p5 --rails 4"] {
        let found = measured(&format!("--np 2 --nx 64 --ny 16 --path rails {rails}"));
        assert_eq!(found.len(), 5, "{found:?}");
        assert!(found.iter().all(|row| row.rails.is_some() && row.fabric != "memory"), "{found:?}");
    }
}

#[test]
fn norm_arrives_on_request_and_atomics_have_note() {
    let found = measured("--np 2 --nx 40 --ny 24 --norm block,thread-atomic --norm-when now,delayed,every=3");
    let skipped: Vec<&Row> = found.iter().filter(|row| row.status.to_string() != "ok").collect();
    assert_eq!(skipped.len(), 4, "now, and all three of thread-atomic: {skipped:?}");
    for row in &found {
        let note = row.own("note").text().unwrap_or_default().to_owned();
        assert_eq!(note.contains("artefact"), row.own("norm").text() == Some("thread-atomic"), "{row:?}");
    }
    let norms: Vec<f64> = found.iter().filter_map(|row| row.own("norm_value").number()).collect();
    assert!(norms.iter().all(|norm| (norm - norms[0]).abs() < 1e-4 * norms[0]), "{norms:?}");
}

#[test]
fn single_pe_runs_and_paths_are_swept() {
    let found = measured("--np 1 --nx 33 --ny 9 --exchange row,resident,host-write");
    assert!(found.len() == 3 && found.iter().all(|row| row.fabric == "self"), "{found:?}");
    let found = measured("--np 2 --nx 32,36 --ny 12 --exchange block,resident --path nvlink,rails --provider worst");
    assert_eq!(count_by(&found, |row| row.fabric.clone()).len(), 2, "{found:?}");
    assert_eq!(found.len(), 8);
}

#[test]
fn rows_split_over_blocks_compute_identical_field() {
    // Rows of 1 to 3 pieces, the last of which has 1 to 128 columns, and blocks of a single row.
    for (path, np) in [("nvlink", 1), ("nvlink", 3), ("rails --provider worst", 2), ("rails --provider worst", 3)] {
        let args = "--exchange resident --piece 128 --nx 100,129,259,384 --ny 3,14 --norm-when delayed,every=3";
        let found = measured(&format!("--np {np} --path {path} {args}"));
        assert!(found.len() == 16 && found.iter().all(|row| row.status.to_string() == "ok"), "{found:?}");
    }
    // Wider than one block, and more blocks than rows require.
    let found = measured("--np 2 --exchange resident --nx 4099 --ny 3,5 --path nvlink");
    assert_eq!(found.iter().filter(|row| row.status.to_string() == "ok").count(), 2, "{found:?}");
    assert_eq!(measured("--np 2 --exchange resident --nx 300 --piece 128 --ny 9 --grid 9,12 --path nvlink").len(), 2);
}

#[test]
fn random_shapes_compute_identical_field() {
    let found = measured("--np 3 --path nvlink --random 12 --seed 5 --nx 900 --ny 24");
    assert!(found.len() == 12 && found.iter().all(|row| row.status.to_string() == "ok"), "{found:?}");
}

#[test]
fn invalid_options_print_one_line() {
    let complaint = |args: &str| run(ginlab(&format!("{BASE} -r 1 {args}"))).expect(2).complaint().to_owned();
    assert!(complaint("--exchange resident --nx 1000000 --ny 8").contains("blocks of 3968 columns is "));
    assert!(complaint("--exchange resident --nx 256 --ny 8 --piece 128 --grid 3").contains("a multiple of 2 blocks"));
    assert!(complaint("--piece 100").contains("expected a multiple of 128, up to 4096"));
    assert!(complaint("--exchange resident --norm-when now --nx 32").contains("delayed or every=K"));
    let text = complaint("--exchange resident --nx 4096 --ny 30000");
    assert!(text.contains("does not fit") && text.contains("the maximum for 4096 columns is"), "{text}");
    assert!(complaint("--np 40 --ny 20").contains("40 PEs are too many for a field of 20 rows"));
    assert!(complaint("--nx 2").contains("at least 3 columns"));
    assert!(complaint("--block 33").contains("must be a multiple of 32"));
    assert!(complaint("--exchange nccl --nx 32").contains("NCCL needs GPUs, but this is the emulated device"));
    assert!(complaint("--exchange nccl-window --nx 32").contains("NCCL needs GPUs, but this is the emulated device"));
    assert!(complaint("--exchange nccl-graph --nx 32 --path rails --provider worst").contains("does not use rails"));
    assert!(complaint("--nx 32 --nvshmem true").contains("NVSHMEM requires GPUs"));
    assert!(complaint("--norm-when every=0").contains("every=K with K of at least 1"));
}

/// Checks that the run exited with one of these codes and that its message contains `part`.
#[track_caller]
fn ends(done: &JobOutput, codes: &[i32], part: &str) {
    assert!(codes.contains(&done.code), "{}: {}", done.code, done.stderr);
    assert!(done.complaint().contains(part), "{part:?}: {}", done.complaint());
}

/// Starts a job that first measures a row of another exchange, and then this one for some seconds.
fn job(exchange: &str) -> (ProcessGroup, String) {
    let first = if exchange == "row" { "p" } else { "row" };
    let job = ProcessGroup::start(ginlab(&format!(
        "{BASE} --exchange {first},{exchange} --nx 32 --ny 16 -r 40 -t 10 --block 32 --no-check",
    )));
    (job, format!("jacobi,{first},emulated"))
}

#[test]
fn killed_peer_ends_every_exchange() {
    for exchange in EXCHANGES {
        let (mut job, first_row) = job(exchange);
        job.until(OutputStream::Stdout, &first_row);
        kill(job.rank(1), Signal::SIGKILL).unwrap();
        let done = job.finish();
        ends(&done, &[1], "rank 1 (host ");
        ends(&done, &[1], "signal: 9");
    }
}

#[test]
fn vanished_proxy_ends_every_exchange() {
    let job = |exchange: &str, fault: &str| {
        ProcessGroup::start(ginlab(&format!(
            "{BASE} --exchange {exchange} --nx 32 --ny 16 -r 99 -t 2 --block 32 --no-check --path rails --provider worst \
             --fault {fault}"
        )))
    };
    // One after the other: their ranks and proxies poll, and would take the cores from each other.
    for exchange in EXCHANGES {
        ends(&job(exchange, "proxy-stop=20").finish(), &[1], "proxy thread was stopped");
    }
    // Either the kernel's or the proxy's deadline reports the stall, whichever expires first.
    for exchange in ["host-write", "resident"] {
        let done = job(exchange, "rails-silent=20").finish();
        let line = done.complaint().to_owned();
        ends(&done, &[1, 124], if line.contains("no progress for ") { "no progress for " } else { "deadline passed" });
    }
}
