//! `ginlab doctor --peers`: the table and the document are written whatever is missing, and name it.

use crate::common::{ListingRecord, ProcessGroup, both, free_port, records, run, tcp_rank};
use crate::soft_efa::has_provider;
use std::process::Command;

fn found<'a>(rows: &'a [ListingRecord], check: &str) -> Vec<(&'a str, &'a str)> {
    let of = rows.iter().filter(|row| row["check"] == check);
    of.map(|row| (&*row["state"], &*row["found"])).collect()
}

/// A host that has only 3 of 4 NICs is reported among the findings of both hosts, and not as a usage error.
#[test]
fn host_with_fewer_nics_is_named() {
    if !has_provider() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("doctor.json");
    let port = free_port();
    let rank = |rank: usize, cards: usize, outputs: &str| {
        let only = "--only memlock,efa-devices,network";
        let args = format!("doctor --peers --rails 4 -p soft-efa:p5,cards={cards} -d emulated {only} -t 3 {outputs}");
        tcp_rank(rank, port, "doctor", &args)
    };
    let (first, second) = both(rank(0, 4, &format!("--json {} --csv -", json.display())), rank(1, 3, ""));
    second.expect(0);
    let first = first.expect(3);
    let rows = records(&first.stdout);
    let rails = found(&rows, "peers-rails");
    let short = "4 rails need 4 NICs, but there are 3";
    assert!(rails[0].0 == "fail" && rails[0].1.contains(short), "{rails:?}");
    assert_eq!(rails[1].0, "skipped", "{rails:?}");
    assert_eq!(found(&rows, "peers-ranks"), [("ok", "2 ranks")]);
    assert_eq!(found(&rows, "memlock").len(), 1, "the ranks share a machine, which is examined once");
    assert!(first.complaint().contains("peers-rails on "), "{}", first.stderr);
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(document["worst"], "fail");
    assert_eq!(document["findings"].as_array().unwrap().len(), rows.len());
}

/// Rank 1 of 3 never starts: the other two are examined, compared and tested.
#[test]
fn absent_rank_is_named_after_results_of_others() {
    let port = free_port();
    let rank = |rank: usize| {
        let args = "doctor --peers --rails 2 -p tcp -d emulated --only memlock,network -t 1 --csv -";
        let mut command = tcp_rank(rank, port, "doctor", args);
        command.env("WORLD_SIZE", "3");
        command
    };
    let (first, third) = both(rank(0), rank(2));
    third.expect(0);
    let first = first.expect(3);
    let rows = records(&first.stdout);
    let (state, text) = found(&rows, "peers-ranks")[0];
    assert_eq!(state, "fail");
    assert!(text.starts_with("1 of 3 ranks are missing: rank 1 (never connected): it did not arrive"), "{text}");
    assert_eq!(found(&rows, "peers-rails"), [("ok", "2 ranks, 2 rails: writes to every peer verified")]);
    assert_eq!(found(&rows, "memlock").len(), 1);
    assert!(first.complaint().contains("peers-ranks on all"), "{}", first.stderr);
}

/// Each rank prints its own findings if rank 0, which gathers them, is missing.
#[test]
fn ranks_without_rank_0_print_their_own_findings() {
    let args = "doctor --peers -p tcp -d emulated --only memlock -t 1";
    let done = run(tcp_rank(1, free_port(), "doctor", args)).expect(3);
    assert!(done.stdout.contains("memlock"), "{}", done.stdout);
    assert!(
        done.stdout.contains("peers-ranks") && done.stdout.contains("connecting rank 1 to rank 0"),
        "{}",
        done.stdout
    );
}

/// A rank that is killed before it has reported is missing, and the others are still compared.
#[test]
fn killed_rank_is_named() {
    let port = free_port();
    let rank = |rank: usize| {
        let args = "doctor --peers --no-smoke -p tcp -d emulated --only memlock,network -t 2 --csv -";
        let mut command = tcp_rank(rank, port, "doctor", args);
        command.env("WORLD_SIZE", "3");
        command
    };
    // The rank connects, and waits for rank 2, which has not started.
    let (first, second) = (ProcessGroup::start(rank(0)), ProcessGroup::start(rank(1)));
    crate::common::until_listening(port);
    second.signal(nix::sys::signal::Signal::SIGKILL);
    let third = ProcessGroup::start(rank(2));
    let first = first.finish().expect(3);
    third.finish().expect(0);
    let rows = records(&first.stdout);
    let (state, text) = found(&rows, "peers-ranks")[0];
    assert!(state == "fail" && text.starts_with("1 of 3 ranks are missing: rank 1 ("), "{text}");
}

/// Node 2 of four nodes over software NICs has a slow first NIC. Every NIC is measured with three partners, and the
/// slow NIC is named. Others may also differ because of the load of the test machine.
#[test]
fn slow_nic_is_named_among_four_nodes() {
    if !has_provider() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("rates.json");
    let port = free_port();
    let rank = |rank: usize, outputs: &str| {
        let slow = if rank == 2 { ",slow=20000" } else { "" };
        let args = format!(
            "doctor --peers --rates --bytes 64K --at-least 20% --only memlock -p soft-efa:p5,cards=2{slow} -d emulated \
             -t 20 {outputs}"
        );
        let mut command = tcp_rank(rank, port, "doctor", &args);
        command.env("WORLD_SIZE", "4");
        command
    };
    let others: Vec<ProcessGroup> = (1..4).map(|number| ProcessGroup::start(rank(number, ""))).collect();
    let first = run(rank(0, &format!("--json {} --csv -", json.display()))).expect(3);
    others.into_iter().for_each(|other| drop(other.finish().expect(0)));
    let document: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let nics = document["rates"]["nics"].as_array().unwrap();
    assert_eq!(nics.len(), 8, "{document}");
    for nic in nics {
        assert_eq!(nic["partners"], 3, "{nic}");
        assert!(
            nic["sends_gbits_s"].as_f64().unwrap() > 0.0 && nic["receives_gbits_s"].as_f64().unwrap() > 0.0,
            "{nic}"
        );
    }
    let slow = nics.iter().find(|nic| nic["node"] == 2 && nic["nic"] == "efa:rdmap79s0-rdm").unwrap();
    assert_eq!((&slow["slow"], &slow["rail"]), (&true.into(), &0.into()), "{document}");
    let rows = records(&first.stdout);
    let is_named = |row: &ListingRecord| {
        row["check"] == "peers-rates" && row["found"].starts_with("efa:rdmap79s0-rdm (rail 0) sends")
    };
    let named = rows.iter().find(|row| is_named(row) && row["host"].ends_with("/2")).unwrap();
    assert_eq!((&*named["state"], &*named["severity"]), ("fail", "isolate"), "{rows:?}");
}

/// Ranks that ginlab starts itself, over the loopback.
#[test]
fn all_pairs_are_measured_over_loopback() {
    let args = "doctor --peers --rates --bytes 256K --at-least 1% --only memlock --np 3 --rails 2 -p tcp -d emulated \
                -t 10 --json -";
    let done = run(crate::common::ginlab(args));
    let document: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let nics = document["rates"]["nics"].as_array().unwrap();
    assert_eq!(nics.len(), 6, "{document}");
    for nic in nics {
        assert_eq!(nic["partners"], 2, "{nic}");
        assert!(nic["sends_gbits_s"].as_f64().unwrap() > 0.0, "{nic}");
    }
}

/// The connections of 64 ranks exceed the soft limit of open files, which is raised. A hard limit is named.
#[test]
fn sixty_four_ranks_are_compared_within_limit_of_files() {
    let limited = |limit: &str| {
        let args = "doctor --peers --no-smoke --only memlock,network --np 64 -p tcp -d emulated --csv -";
        let mut command = Command::new("bash");
        let line = format!("ulimit {limit} && exec \"$0\" {args}");
        command.args(["-c", &line, env!("CARGO_BIN_EXE_ginlab")]);
        crate::common::clean(&mut command);
        run(command)
    };
    let done = limited("-S -n 64");
    let rows = records(&done.stdout);
    assert_eq!(found(&rows, "peers-ranks"), [("ok", "64 ranks")], "{}", done.stderr);
    assert_eq!(found(&rows, "memlock").len(), 1, "the ranks share a machine, which is examined once");
    for check in ["peers-versions", "peers-clocks", "peers-processes"] {
        assert_eq!(found(&rows, check)[0].0, "ok", "{rows:?}");
    }
    let refused = limited("-n 64").expect(2);
    let line = refused.complaint();
    assert!(line.contains("connections of 64 ranks: ") && line.contains("raise it (ulimit -n 128)"), "{line}");
}
