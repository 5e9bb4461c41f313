//! Software NICs below the EFA provider of libfabric 2.x: the fabrics `efa` and `efa-direct`, and RDMA writes.

use crate::common::libfabric2::{DIRECT, Libfabric2, libfabric25};
use crate::common::server::{ServeProcess, verified};
use crate::common::{JobOutput, ProcessGroup, all_verified, contents, free_port, records, rows, run, skip};
use crate::passed;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Runs two ranks over this libfabric.
fn two_ranks(two: &Libfabric2, args: &str) -> [JobOutput; 2] {
    ranks_by(|args| two.ginlab(args), args)
}

fn ranks_by(program: impl Fn(&str) -> std::process::Command, args: &str) -> [JobOutput; 2] {
    let port = free_port().to_string();
    let rank = |rank: &str| {
        let mut command = program(args);
        command.env("RANK", rank).env("WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
        command.env("GINLAB_TOKEN", "two");
        ProcessGroup::start(command)
    };
    [rank("0"), rank("1")].map(ProcessGroup::finish)
}

#[test]
fn both_fabrics_write_into_peer_memory() {
    let Some(two) = Libfabric2::here() else { return };
    for domains in ["", DIRECT] {
        for what in [
            "write -b 8 -e 256K -f 181 -n 20 -r 2 --rails 1,4",
            "all2all -b 8 -e 100K -f 110 -n 5 --rails 1,4",
            "proxy -b 4K -e 70000 -f 16 -n 10 -r 1 --rails 1,4 --mode quiet,nbi --check",
        ] {
            let args = format!("{what} {domains} -p soft-efa:fast -d emulated --csv -");
            let [first, second] = two_ranks(&two, &args).map(|done| done.expect(0));
            let rows = rows(&first.stdout);
            all_verified(&rows);
            assert!(rows.iter().all(|row| row.fabric == "efa/soft:fast"), "{rows:?}");
            let said = first.stderr + &second.stderr;
            assert!(said.contains("# libfabric: 2.") && !said.contains("soft_efa: "), "{said}");
        }
    }
}

/// If libfabric 2.5 was built without unsolicited write receives, it offers its fabric efa-direct only to programs that
/// post a receive for each immediate (FI_RX_CQ_DATA). The fabric efa needs none.
#[test]
fn efa_direct_with_posted_receives_is_selected() {
    let Some(program) = libfabric25() else { return };
    let listed = run(program("efa --all -p soft-efa:p5 --csv -")).expect(0).stdout;
    let listed = records(&listed);
    for fabric in ["efa", "efa-direct"] {
        let cards: Vec<_> = listed.iter().filter(|card| card["fabric"] == fabric).collect();
        assert_eq!(cards.iter().filter(|card| card["delivery_complete"] == "true").count(), 4, "{fabric}: {cards:?}");
    }
    for what in [
        &format!("write -b 8 -e 256K -f 181 -n 20 -r 1 --rails 1,4 {DIRECT} -p soft-efa:p5"),
        "proxy -b 4K -e 70000 -f 16 -n 10 -r 1 --rails 1 --mode quiet,nbi --check --domain efa-direct:rdmap79s0-rdm -p soft-efa:p5",
        // More immediates than receives are posted.
        &format!("all2all -b 8 -e 100K -f 110 -n 30 --rails 1,4 {DIRECT} -p soft-efa:fast"),
    ] {
        let [first, second] = ranks_by(&program, &format!("{what} -d emulated --csv -")).map(|done| done.expect(0));
        all_verified(&rows(&first.stdout));
        let said = first.stderr + &second.stderr;
        assert!(said.contains("# libfabric: 2.5") && !said.contains("soft_efa: "), "{said}");
    }
    let [first, _] = ranks_by(
        &program,
        "sendrecv -b 90 -e 90 -n 2 -r 1 --rails 1 --domain efa-direct:rdmap79s0-rdm -p soft-efa:fast",
    );
    assert!(first.code != 0 && first.stderr.contains("FI_ORDER_SAS, which efa-direct lacks"), "{}", first.stderr);
}

/// The provider of the target reads what a rank writes, into memory that was registered only for remote writes.
#[test]
fn nics_without_writes_use_reads() {
    let Some(two) = Libfabric2::here() else { return };
    let args = "write -b 64K -e 256K -f 4 -n 10 -r 1 --rails 4 -p soft-efa:p4d -d emulated --csv -";
    let [first, second] = two_ranks(&two, args).map(|done| done.expect(0));
    all_verified(&rows(&first.stdout));
    assert_eq!(second.stdout, "");
}

#[test]
fn messages_avoid_unordered_efa_direct() {
    let Some(two) = Libfabric2::here() else { return };
    let messages = "sendrecv -b 90 -e 9000 -f 100 -n 20 -r 1 --rails 1 --window 7 -p soft-efa:fast -d emulated --csv -";
    let [first, second] = two_ranks(&two, messages).map(|done| done.expect(0));
    all_verified(&rows(&first.stdout));
    assert_eq!(second.stdout, "");
    let [first, _] = two_ranks(&two, &format!("{messages} --domain efa-direct:rdmap79s0-rdm"));
    assert!(first.code != 0 && first.stderr.contains("FI_ORDER_SAS, which efa-direct lacks"), "{}", first.stderr);
}

#[test]
fn peers_join_server_over_both_fabrics() {
    let Some(two) = Libfabric2::here() else { return };
    for domains in ["", DIRECT] {
        let program = |args: &str| two.ginlab(&format!("{args} {domains}"));
        let server = ServeProcess::by(program, "-p soft-efa:fast --peers 1 --bytes 100000 --rails 4 --visits 2");
        verified(run(server.join_by(program, "-p soft-efa:fast -b 4097 -n 100 --csv -")));
        verified(run(server.join_by(program, "-p soft-efa:fast -b 33333 -n 30 --csv -")));
        server.finish().expect(0);
    }
}

/// A NIC accepts no reads or writes from a NIC whose address handle it lacks (EFA status 14). On one machine all
/// processes use the same NICs, which have handles of themselves, so this test emulates two machines.
#[test]
fn server_identifies_nics_of_peers() {
    let Some(two) = Libfabric2::here() else { return };
    for domains in ["", DIRECT] {
        let program = |args: &str| two.ginlab(&format!("{args} {domains}"));
        let server = ServeProcess::by(program, "-p soft-efa:fast,host=1 --peers 1 --bytes 100000 --rails 4 --visits 2");
        for host in [2, 3] {
            verified(run(server.join_by(program, &format!("-p soft-efa:fast,host={host} -b 4097 -n 100 --csv -"))));
        }
        server.finish().expect(0);
    }
}

/// On a system with only Debian 13's packages: its own loader, C library and libfabric. Every program, one rail on one
/// machine, four between two nodes. Runs once per build of the program, because it takes 18 s of CPU time. The tests
/// above, which run every time, cover what depends on timing.
#[test]
fn runs_in_minimal_debian_13() {
    let here = env!("CARGO_MANIFEST_DIR");
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| format!("{here}/target"));
    let work = format!("{target}/fresh");
    if !nix::unistd::Uid::effective().is_root() {
        return skip("a root file system wants root");
    }
    let base = format!("{work}/matrix-trixie.tar");
    let Ok(system) = Path::new(&base).metadata() else {
        return skip(
            "no root file system (scripts/fresh.sh --release trixie --only soft-efa --prepare --work target/fresh)",
        );
    };
    let ginlab = Path::new(env!("CARGO_BIN_EXE_ginlab"));
    let mut files = vec![ginlab.into()];
    let scripts = ["fresh.sh", "rails-lab.sh", "matrix.py", "rows.py", "processes.py", "tables/soft-efa.toml"];
    files.extend(scripts.map(|name| format!("{here}/scripts/{name}").into()));
    // Path of the NIC library, which fresh.sh copies.
    let cards = ["deps/libsoft_efa.so", "libsoft_efa.so"].map(|name| ginlab.with_file_name(name));
    files.extend(cards.into_iter().find(|file| file.is_file()));
    let mut inputs = contents(&files);
    inputs.extend([system.size(), system.mtime() as u64].map(u64::to_le_bytes).concat());
    passed::once_if_run("a_bare_debian_13", &inputs, || bare_debian_13(here, &work));
}

/// Returns whether the script could run.
fn bare_debian_13(here: &str, work: &str) -> bool {
    let mut command = std::process::Command::new(format!("{here}/scripts/fresh.sh"));
    command
        .args(["--release", "trixie", "--only", "soft-efa", "--work", work])
        .env("GINLAB", env!("CARGO_BIN_EXE_ginlab"))
        .env("SHORT", "1");
    let done = ProcessGroup::start(command).runs(4).finish();
    if done.stderr.contains("fresh.sh: not run: ") {
        skip(&done.stderr);
        return false;
    }
    let done = done.expect(0);
    for expected in ["2.1", "efa-direct", "machine", "lab", "fi_pingpong", "write", "all2all", "proxy", "serve"] {
        assert!(done.stdout.split([',', '\n']).any(|cell| cell.starts_with(expected)), "{expected}: {}", done.stdout);
    }
    true
}
