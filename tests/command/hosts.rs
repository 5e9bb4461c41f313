//! Ranks on hosts with unequal or interleaved numbers of ranks. Each rank has its own host name on this machine, to
//! emulate several hosts.

use crate::common::{ProcessGroup, free_port, rows, skip, tcp_rank};
use ginlab::report::Row;
use nix::unistd::Uid;
use std::process::Command;

/// Runs one rank per name in `hosts`. Returns the rows of rank 0; Returns `None` if host names cannot be set on this
/// machine.
fn on_hosts(hosts: &str, args: &str) -> Option<Vec<Row>> {
    if !Uid::effective().is_root() {
        skip("ranks have host names of their own: root is needed");
        return None;
    }
    let (port, hosts): (u16, Vec<&str>) = (free_port(), hosts.split(' ').collect());
    let rank = |(rank, host): (usize, &&str)| {
        let plain = tcp_rank(rank, port, "secret", &format!("{args} --bootstrap tcp --csv -"));
        let mut command = Command::new("unshare");
        command.args(["--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\"", host]).arg(plain.get_program());
        command.args(plain.get_args());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("WORLD_SIZE", hosts.len().to_string());
        ProcessGroup::start(command)
    };
    let jobs: Vec<ProcessGroup> = hosts.iter().enumerate().map(rank).collect();
    let mut done = jobs.into_iter().map(|job| job.finish().expect(0));
    let first = done.next().unwrap();
    done.for_each(|other| assert_eq!(other.stdout, ""));
    Some(rows(&first.stdout))
}

#[test]
fn moe_agrees_on_nodes_of_any_hosts() {
    for (hosts, nodes) in [("h0 h1 h0 h1", 4.0), ("h0 h0 h1 h2", 4.0), ("h0 h0 h0 h1 h1", 5.0), ("h0 h0 h1 h1", 2.0)] {
        let line = "moe -d emulated --path auto -p worst:seed=3 --tokens 5 --hidden 64 --experts 20 --topk 2 -n 2 -w 1 -r 1 \
                    --grid 2 --block 32";
        let Some(rows) = on_hosts(hosts, line) else { return };
        assert_eq!(rows.len(), 3, "{hosts}");
        for row in rows {
            assert_eq!((row.wrong_bytes, row.own("nodes").number()), (Some(0), Some(nodes)), "{hosts}: {row:?}");
            assert!(row.fabric.starts_with("memory+worst"), "{hosts}: {row:?}");
        }
    }
}

/// Rows of operations of all PEs contain the paths of all PEs, and rows of pairs contain the paths of all pairs.
#[test]
fn rows_name_paths_of_all_ranks() {
    let line = "shmem -d emulated -p worst --cases put-latency,barrier-all,all-to-all -b 8 -e 8 -n 3 -w 1 -r 1 --grid 1 --block 32";
    for (hosts, of_pairs) in [("h0 h0 h1 h1", "memory"), ("h0 h1 h0 h1", "worst"), ("h0 h0 h0 h1", "memory+worst")] {
        let Some(rows) = on_hosts(hosts, line) else { return };
        for (row, fabric) in rows.iter().zip([of_pairs, "memory+worst", "memory+worst"]) {
            let found = row.fabric.split(':').next().unwrap();
            let names_rule = row.own("rule").text().is_some();
            assert_eq!((found, names_rule), (fabric, fabric != "memory"), "{hosts}: {row:?}");
        }
    }
}

/// The neighbours of one rank are reached over other paths than those of another rank.
#[test]
fn collectives_and_jacobi_run_on_any_hosts() {
    for hosts in ["h0 h1 h0 h1", "h0 h0 h0 h1 h1"] {
        for line in [
            "collective -d emulated -p worst --cases gin-all-reduce,gin-all-to-all --launch stream -b 400 -e 400 -n 2 -w 1 -r 1",
            "jacobi -d emulated -p worst --exchange row,resident --nx 40 --ny 40 --block 32 -n 6 -r 1 --norm never",
        ] {
            let Some(rows) = on_hosts(hosts, line) else { return };
            assert!(rows.len() >= 2, "{hosts}: {rows:?}");
            for row in rows {
                assert_eq!((row.wrong_bytes, row.status.to_string().as_str()), (Some(0), "ok"), "{hosts}: {row:?}");
                // Neighbours of interleaved ranks are all on the other host.
                let rails_only = row.experiment == "jacobi" && hosts == "h0 h1 h0 h1";
                let fabric = if rails_only { "worst" } else { "memory+worst" };
                assert!(row.fabric.starts_with(fabric), "{hosts}: {row:?}");
            }
        }
    }
}
