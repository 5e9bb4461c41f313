//! `ginlab bootstrap`: its output, and its messages if the ranks do not match.

use std::collections::BTreeSet;
use std::process::Command;

use crate::common::lab::{Lab, command};
use crate::common::{self, ListingRecord, ProcessGroup, both, free_port, ginlab, mpirun, records, run};

/// Returns the command of one rank of a tcp job of two.
fn tcp_rank(rank: usize, port: u16, token: &str, args: &str) -> Command {
    common::tcp_rank(rank, port, token, &format!("bootstrap -d emulated {args}"))
}

/// Returns the ranks that a cell names.
fn listed(cell: &str) -> BTreeSet<usize> {
    cell.split(';').filter(|part| !part.is_empty()).map(|part| part.parse().unwrap()).collect()
}

/// Checks that every rank writes to every other one over exactly one rail, and loads its rails equally.
#[track_caller]
fn all_pairs_once(rows: &[ListingRecord], ranks: usize, rails: usize) {
    assert_eq!(rows.len(), ranks * rails);
    for rank in 0..ranks {
        let of_rank: Vec<_> = rows.iter().filter(|row| row["rank"] == rank.to_string()).collect();
        let numbers: Vec<_> = of_rank.iter().map(|row| row["rail"].parse::<usize>().unwrap()).collect();
        assert_eq!(numbers, (0..rails).collect::<Vec<_>>());
        let targets: Vec<_> = of_rank.iter().map(|row| listed(&row["writes_to"])).collect();
        let loads: Vec<usize> = targets.iter().map(BTreeSet::len).collect();
        assert_eq!(loads.iter().sum::<usize>(), ranks - 1);
        assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1, "{loads:?}");
        let union: BTreeSet<usize> = targets.into_iter().flatten().collect();
        assert_eq!(union, (0..ranks).filter(|other| *other != rank).collect());
    }
    let addresses: BTreeSet<_> = rows.iter().map(|row| &row["address"]).collect();
    assert_eq!(addresses.len(), rows.len(), "every rail has an address of its own");
}

#[test]
fn local_ranks_print_target_of_each_rail() {
    let done = run(ginlab("bootstrap -d emulated --np 3 --rails 2 -p tcp --csv -")).expect(0);
    let rows = records(&done.stdout);
    all_pairs_once(&rows, 3, 2);
    for row in &rows {
        assert_eq!((row["provider"].starts_with("tcp"), row["domain"].as_str()), (true, "lo"));
        assert!(row["address"].starts_with("127.0.0.1:"), "{}", row["address"]);
        let time = |column: &str| row[column].parse::<f64>().unwrap();
        assert!(time("exchange_us_min") <= time("exchange_us_p50"));
        assert!(time("exchange_us_p50") <= time("exchange_us_p99"));
        assert!(row["exchange_bytes"].parse::<usize>().unwrap() > 3 * 2 * 16);
    }
    assert_eq!(rows.iter().map(|row| &row["pid"]).collect::<BTreeSet<_>>().len(), 3);
    assert!(done.stderr.contains("# note: 3 ranks by the local bootstrap"), "{}", done.stderr);
}

#[test]
fn document_contains_every_pair_and_exchange() {
    let done = run(ginlab("bootstrap -d emulated --np 4 --rails 3 -p shm -r 5 --no-header --json -")).expect(0);
    assert_eq!(done.stderr, "");
    let document: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!((document["ranks"].as_u64(), document["bootstrap"].as_str()), (Some(4), Some("local")));
    let pairs = document["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 4 * 3);
    for pair in pairs {
        let rows = document["rails"].as_array().unwrap();
        let row = rows.iter().find(|row| row["rank"] == pair["from"] && row["rail"] == pair["rail"]).unwrap();
        assert!(row["writes_to"].as_array().unwrap().contains(&pair["to"]), "{pair}");
        // A string, because most readers round numbers above 2^53.
        assert!(row["key"].as_str().is_some_and(|key| key.starts_with("0x")), "{row}");
    }
    let exchanges = document["exchanges_us"].as_array().unwrap();
    assert!(exchanges.len() == 4 && exchanges.iter().all(|of_rank| of_rank.as_array().unwrap().len() == 5));
    // The table for humans.
    let table = run(ginlab("bootstrap -d emulated --np 4 --rails 3 -p shm -r 1 --no-header")).expect(0).stdout;
    assert_eq!(table.lines().count(), 2 + 4 * 3, "{table}");
    assert!(table.starts_with("rank  host"), "{table}");
}

#[test]
fn single_rank_has_no_targets() {
    let done = run(ginlab("bootstrap -d emulated --np 1 --rails 1 -p tcp -r 1 --csv -")).expect(0);
    let rows = records(&done.stdout);
    assert_eq!((rows.len(), rows[0]["writes_to"].as_str()), (1, ""));
}

#[test]
fn two_processes_connect_by_tcp_variables() {
    let port = free_port();
    let rank = |rank| tcp_rank(rank, port, "secret", "-p tcp --rails 2 --csv -");
    let (first, second) = both(rank(0), rank(1));
    let (first, second) = (first.expect(0), second.expect(0));
    all_pairs_once(&records(&first.stdout), 2, 2);
    assert!(first.stderr.contains("# note: 2 ranks by the tcp bootstrap"), "{}", first.stderr);
    assert_eq!((second.stdout.as_str(), second.stderr.as_str()), ("", ""), "rank 0 alone speaks");
}

#[test]
fn two_ranks_run_under_mpirun() {
    let Some(command) = mpirun(2, "bootstrap -d emulated -p tcp --rails 2 --csv -") else { return };
    let done = run(command).expect(0);
    all_pairs_once(&records(&done.stdout), 2, 2);
    assert!(done.stderr.contains("# note: 2 ranks by the mpi bootstrap"), "{}", done.stderr);
}

#[test]
fn different_options_are_reported() {
    for (first, second, difference) in [
        ("-p tcp", "-p shm", "provider is \"tcp\" on rank 0 but \"shm\" on rank 1"),
        ("-p tcp --rails 2", "-p tcp --rails 3", "number of rails is \"2\" on rank 0 but \"3\" on rank 1"),
        ("-p tcp -r 4", "-p tcp -r 5", "--repeats is \"4\" on rank 0 but \"5\" on rank 1"),
    ] {
        let port = free_port();
        let (first, second) = both(tcp_rank(0, port, "secret", first), tcp_rank(1, port, "secret", second));
        for done in [first, second] {
            let done = done.expect(2);
            // libfabric 1.17 layers tcp under ofi_rxm, 2.x does not.
            let said = done.complaint().replace("tcp;ofi_rxm", "tcp");
            assert_eq!(said, format!("ginlab: ranks differ: {difference}"));
            assert_eq!(done.stdout, "");
        }
    }
}

#[test]
fn missing_rank_is_named() {
    let done = run(tcp_rank(0, free_port(), "secret", "-p tcp -t 1")).expect(124);
    let line = done.complaint();
    assert!(line.starts_with("ginlab: timed out after 8 s waiting for rank 1 at \"start\" (arrived: 0)"), "{line}");
    assert_eq!(done.stdout, "");
}

#[test]
fn unused_port_is_named() {
    let port = free_port();
    let done = run(tcp_rank(1, port, "secret", "-p tcp -t 1")).expect(124);
    let line = done.complaint();
    let part = format!("timed out after 8 s connecting rank 1 to rank 0 at 127.0.0.1:{port}");
    assert!(line.contains(&part) && line.contains("Connection refused"), "{line}");
}

#[test]
fn wrong_token_is_rejected() {
    let port = free_port();
    let first = ProcessGroup::start(tcp_rank(0, port, "secret", "-p tcp -t 3"));
    let stranger = run(tcp_rank(1, port, "guess", "-p tcp -t 3")).expect(1);
    let line = stranger.complaint();
    assert!(line.contains("refused rank 1: it has a different job token"), "{line}");
    let first = first.finish().expect(124);
    let line = *first.complaints().last().unwrap();
    assert!(line.contains("waiting for rank 1") && line.contains("different job token"), "{line}");
}

#[test]
fn invalid_options_print_one_line() {
    for (args, part) in [
        ("--rails 0", "must be from 1 to "),
        ("-p tcp --domain nothing9", "no nothing9; available: "),
        ("-p nothing", "unknown provider \"nothing\""),
        ("--np 0", "invalid number of ranks 0"),
        ("--csv - --json -", "stdout"),
    ] {
        let done = run(ginlab(&format!("bootstrap -d emulated {args}"))).expect(2);
        assert!(
            done.complaints().iter().any(|line| line.starts_with("ginlab: ") && line.contains(part)),
            "{part}: {done:?}"
        );
        assert_eq!(done.stdout, "");
    }
    for args in ["-t 0", "-r 0"] {
        assert!(run(ginlab(&format!("bootstrap {args}"))).expect(2).stderr.contains("0 is not in 1.."));
    }
}

#[test]
fn reordered_rails_between_hosts_are_detected() {
    let Some(lab) = Lab::up("--rate none") else { return };
    let rank = |rank: usize, args: &str| lab.ginlab(rank, &format!("bootstrap -d emulated -p tcp -r 3 --csv - {args}"));
    let (first, second) = both(rank(0, "--rails 4"), rank(1, "--rails 4"));
    let (first, second) = (first.expect(0), second.expect(0));
    assert_eq!(second.stdout, "");
    let rows = records(&first.stdout);
    all_pairs_once(&rows, 2, 4);
    let domains = |rank: usize| rows[rank * 4..][..4].iter().map(|row| row["domain"].as_str()).collect::<Vec<_>>();
    assert_eq!(domains(0), domains(1), "rails of one number are in one network");
    assert_eq!(domains(0).into_iter().collect::<BTreeSet<_>>(), ["rail0", "rail1", "rail2", "rail3"].into());

    let order = |names: &str| format!("--rails 2 --domain {names}");
    let (first, second) = both(rank(0, &order("rail0,rail1")), rank(1, &order("rail1,rail0")));
    for done in [first, second] {
        let done = done.expect(2);
        let line = done.complaint();
        assert!(line.starts_with("ginlab: ranks differ: rail 0 is \"rail0 in 10."), "{line}");
        assert!(line.contains(" on rank 0 but \"rail1 in 10.") && line.ends_with(" on rank 1"), "{line}");
    }
}

/// Two nodes with an interface of the same address, like docker0 and usb0 on every host.
#[test]
fn duplicate_address_on_two_hosts_is_rejected() {
    let Some(lab) = Lab::up("--rails 1 --rate none") else { return };
    for node in 0..2 {
        let namespace = lab.namespace(node);
        for line in [
            "link add usb0 type veth peer name usb1",
            "address add 172.30.0.1/16 dev usb0",
            "link set usb0 up",
            "link set usb1 up",
        ] {
            command(&format!("ip -n {namespace} {line}")).unwrap();
        }
    }
    for args in ["bootstrap", "write -b 64 -e 64 -n 2 -r 1", "proxy -d emulated -b 4K -e 4K -n 2 -r 1"] {
        let rank = |rank: usize| {
            let mut command = lab.ginlab(rank, &format!("{args} -p tcp --rails 2 -t 20"));
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
            ProcessGroup::start(command)
        };
        for done in [rank(0), rank(1)].map(ProcessGroup::finish) {
            let done = done.expect(2);
            let line = done.complaint();
            for part in [" of rank 0 (host ", " of rank 1 (host ", "same address 172.30.0.1", "naming the domains"] {
                assert!(line.contains(part), "{args}: {line}");
            }
        }
    }
}
