//! `ginlab model`: figures with sources, and the same virtual time in each run.

use crate::common;

use crate::common::{ginlab, run};

#[test]
fn every_figure_has_source_or_assumption() {
    let done = run(ginlab("model figures --csv -")).expect(0);
    let mut reader = csv::Reader::from_reader(done.stdout.as_bytes());
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 4 * 14);
    assert!(rows.iter().all(|row| row[3].is_empty() != row[4].is_empty()), "a source or an assumption");
    let table = run(ginlab("model figures model:p5")).expect(0).stdout;
    assert!(table.contains("ASSUMED") && !table.contains("p5en"), "{table}");
}

#[test]
fn virtual_time_is_deterministic_per_seed() {
    let rows = |options: &str| common::rows(&run(ginlab(&format!("model all2all --csv - {options}"))).expect(0).stdout);
    let options = "--nodes 2,8 --rails 1,4 -b 1K -e 64K -f 64 --strategy round-robin,split -r 2";
    let first = rows(options);
    assert_eq!(first.len(), 16);
    assert_eq!(rows(options), first);
    assert_ne!(rows(&format!("{options} --seed 9")), first);
    for row in &first {
        assert!(row.fabric == "model:p5" && row.device == "virtual" && row.wrong_bytes.is_none(), "{row:?}");
        let of_line = row.line_rate_pct.unwrap();
        assert!(of_line > 0.0 && of_line <= 97.5, "{row:?}");
    }
}

/// The bytes of a GPU for all others, including those of its own machine, are counted as in nccl-tests and compared
/// with the limit of the links.
#[test]
fn total_all_to_all_has_ceiling() {
    let done = run(ginlab("model all2all --csv - --nodes 2,4 --rails 4 --total 64M,1G")).expect(0);
    let rows = common::rows(&done.stdout);
    assert_eq!(rows.len(), 4);
    for row in &rows {
        let of = |column: &str| row.own(column).number().unwrap();
        let (n, total) = (f64::from(row.ranks), of("total_bytes"));
        assert_eq!(row.size_bytes.unwrap() as f64, total / n);
        let seconds = row.time_us_p50.unwrap() / 1e6;
        assert!((of("busbw_gbytes_s") - total * (n - 1.0) / n / seconds / 1e9).abs() < 1e-3 * of("busbw_gbytes_s"));
        assert!((of("ceiling_gbytes_s") - 50.0 * (n - 1.0) / (n - 8.0)).abs() < 0.01, "{row:?}");
        assert!((50.0..=97.5).contains(&of("ceiling_pct")), "{row:?}");
    }
}

#[test]
fn invalid_options_print_one_line() {
    for (options, part) in [
        ("all2all --nodes 1", "at least 2 machines"),
        ("all2all --nodes 9999", "at most 16384 GPUs"),
        ("all2all --rails 5", "has only 4 cards"),
        ("all2all --rails 0", "--rails"),
        ("all2all -p p4d --rails 1", "share cards"),
        ("all2all -p p9", "expected one of model:p4d"),
        ("all2all -b 0", "-b/-e/-f"),
        ("all2all --total 0", "must be from 1 B to 16 TiB"),
        ("all2all -b 8 -e 4", "-b/-e/-f"),
        ("figures p9", "expected one of model:p4d"),
    ] {
        let done = run(ginlab(&format!("model {options}"))).expect(2);
        assert!(done.complaint().contains(part) && done.stdout.is_empty(), "{options}: {done:?}");
    }
}

#[test]
fn ctrl_c_ends_simulation() {
    let mut job = common::ProcessGroup::start(ginlab("model all2all --nodes 1024 -b 64K"));
    job.until(common::OutputStream::Stderr, "MODELLED");
    job.signal(nix::sys::signal::Signal::SIGINT);
    job.finish().expect(130);
}

#[test]
fn killed_rank_with_modelled_cards_is_named() {
    let mut job = common::ProcessGroup::start(ginlab(
        "proxy -d emulated -p model:p5 -b 64 -e 64 -n 1000000 -r 1000 --rails 2 --block 1 --no-fill --mode nbi -t 20",
    ));
    // Part of the header, which is printed when the ranks are connected.
    job.until(common::OutputStream::Stderr, "MODELLED");
    nix::sys::signal::kill(job.rank(1), nix::sys::signal::Signal::SIGKILL).unwrap();
    let done = job.finish();
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.complaint().contains("rank 1") || done.complaint().contains("peer 1"), "{done:?}");
}

#[test]
fn modelled_cards_use_anonymous_memory_without_domains() {
    let mut job = common::ProcessGroup::start(ginlab(
        "proxy -d emulated -p model:p5 -b 64 -e 64 -n 1000000 -r 1000 --rails 2 --block 1 --no-fill --mode nbi -t 20",
    ));
    job.until(common::OutputStream::Stderr, "MODELLED");
    let files = std::fs::read_to_string(format!("/proc/{}/maps", job.rank(1))).unwrap();
    assert!(files.contains("/memfd:ginlab-") && !files.contains("/dev/shm/"), "{files}");
    job.signal(nix::sys::signal::Signal::SIGINT);
    assert_eq!(job.finish().code, 130);
}
