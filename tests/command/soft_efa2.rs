//! Cards in software below the EFA provider of libfabric 2.x: the fabrics `efa` and `efa-direct`, and RDMA writes.

use crate::common::libfabric2::{DIRECT, Libfabric2};
use crate::common::server::{Server, verified};
use crate::common::{Done, Job, all_verified, contents, free_port, rows, run, skip};
use crate::passed;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Two ranks over it.
fn two_ranks(two: &Libfabric2, args: &str) -> [Done; 2] {
    let port = free_port().to_string();
    let rank = |rank: &str| {
        let mut command = two.ginlab(args);
        command.env("RANK", rank).env("WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
        command.env("GINLAB_TOKEN", "two");
        Job::start(command)
    };
    [rank("0"), rank("1")].map(Job::finish)
}

#[test]
fn both_fabrics_write_into_the_peers_memory() {
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

/// What one writes the other one's provider reads, into memory that was registered for remote writes alone.
#[test]
fn cards_that_do_not_write_have_their_peers_read() {
    let Some(two) = Libfabric2::here() else { return };
    let args = "write -b 64K -e 256K -f 4 -n 10 -r 1 --rails 4 -p soft-efa:p4d -d emulated --csv -";
    let [first, second] = two_ranks(&two, args).map(|done| done.expect(0));
    all_verified(&rows(&first.stdout));
    assert_eq!(second.stdout, "");
}

#[test]
fn messages_want_an_order_that_efa_direct_has_not() {
    let Some(two) = Libfabric2::here() else { return };
    let messages = "sendrecv -b 90 -e 9000 -f 100 -n 20 -r 1 --rails 1 --window 7 -p soft-efa:fast -d emulated --csv -";
    let [first, second] = two_ranks(&two, messages).map(|done| done.expect(0));
    all_verified(&rows(&first.stdout));
    assert_eq!(second.stdout, "");
    let [first, _] = two_ranks(&two, &format!("{messages} --domain efa-direct:rdmap79s0-rdm"));
    assert!(first.code != 0 && first.stderr.contains("FI_ORDER_SAS, which efa-direct has not"), "{}", first.stderr);
}

#[test]
fn a_server_has_visitors_over_both_fabrics() {
    let Some(two) = Libfabric2::here() else { return };
    for domains in ["", DIRECT] {
        let program = |args: &str| two.ginlab(&format!("{args} {domains}"));
        let server = Server::by(program, "-p soft-efa:fast --peers 1 --bytes 100000 --rails 4 --visits 2");
        verified(run(server.join_by(program, "-p soft-efa:fast -b 4097 -n 100 --csv -")));
        verified(run(server.join_by(program, "-p soft-efa:fast -b 33333 -n 30 --csv -")));
        server.finish().expect(0);
    }
}

/// A card neither reads nor writes for a card of which it has no address handle (EFA's status 14). On one machine all use the same
/// cards, and each card has a handle of itself, so these are two machines.
#[test]
fn a_server_knows_the_cards_of_its_visitors() {
    let Some(two) = Libfabric2::here() else { return };
    for domains in ["", DIRECT] {
        let program = |args: &str| two.ginlab(&format!("{args} {domains}"));
        let server = Server::by(program, "-p soft-efa:fast,host=1 --peers 1 --bytes 100000 --rails 4 --visits 2");
        for host in [2, 3] {
            verified(run(server.join_by(program, &format!("-p soft-efa:fast,host={host} -b 4097 -n 100 --csv -"))));
        }
        server.finish().expect(0);
    }
}

/// Where nothing but Debian 13's packages is: its own loader, C library and libfabric. Every program, one rail on one machine, four between two nodes.
/// Whether this program runs there is asked once of each program (18 s of a core); what chance may bring, the tests above ask each time.
#[test]
fn in_a_bare_debian_13() {
    let here = env!("CARGO_MANIFEST_DIR");
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| format!("{here}/target"));
    let work = format!("{target}/fresh");
    if !nix::unistd::Uid::effective().is_root() {
        return skip("a root file system wants root");
    }
    let base = format!("{work}/soft-efa-trixie.tar");
    let Ok(system) = Path::new(&base).metadata() else {
        return skip(
            "no root file system (scripts/fresh.sh --release trixie --only soft-efa --prepare --work target/fresh)",
        );
    };
    let ginlab = Path::new(env!("CARGO_BIN_EXE_ginlab"));
    let mut files = vec![ginlab.into()];
    files.extend(["fresh", "soft-efa-matrix", "rails-lab"].map(|name| format!("{here}/scripts/{name}.sh").into()));
    // The cards where fresh.sh takes them from.
    let cards = ["deps/libsoft_efa.so", "libsoft_efa.so"].map(|name| ginlab.with_file_name(name));
    files.extend(cards.into_iter().find(|file| file.is_file()));
    let mut inputs = contents(&files);
    inputs.extend([system.size(), system.mtime() as u64].map(u64::to_le_bytes).concat());
    passed::once_if_run("a_bare_debian_13", &inputs, || bare_debian_13(here, &work));
}

/// Whether it could run.
fn bare_debian_13(here: &str, work: &str) -> bool {
    let mut command = std::process::Command::new(format!("{here}/scripts/fresh.sh"));
    command
        .args(["--release", "trixie", "--only", "soft-efa", "--work", work])
        .env("GINLAB", env!("CARGO_BIN_EXE_ginlab"))
        .env("SHORT", "1");
    let done = Job::start(command).runs(4).finish();
    if done.stderr.contains("fresh.sh: not run: ") {
        skip(&done.stderr);
        return false;
    }
    let done = done.expect(0);
    for expected in ["2.1", "efa-direct", "machine", "lab", "fi_pingpong", "write", "all2all", "proxy", "serve"] {
        assert!(done.stdout.split_whitespace().any(|word| word.starts_with(expected)), "{expected}: {}", done.stdout);
    }
    true
}
