//! Cards in software below libfabric's own EFA provider: `-p soft-efa`.

use crate::common::lab::Lab;
use crate::common::server::{Server, verified};
use crate::common::{Job, all_verified, clean, free_port, ginlab, records, rows, run, skip};
use std::process::Command;

/// Whether the installed libfabric has the EFA provider, which hides where it finds no card; says so where it has not.
fn has_provider() -> bool {
    let has = run(ginlab("efa -p soft-efa:fast,cards=1 --csv -")).code == 0;
    if !has {
        skip("this libfabric has no EFA provider");
    }
    has
}

/// The command with the cards, without their times and with small pools: so many ranks share two cores.
fn over(cards: &str, args: &str) -> Command {
    let mut command = ginlab(&format!("{args} -p soft-efa:{cards} -d emulated"));
    command.env("FI_EFA_RX_SIZE", "1024");
    command
}

#[test]
fn libfabrics_own_provider_lists_the_cards() {
    if !has_provider() {
        return;
    }
    let listed = |provider: &str| {
        let done = run(ginlab(&format!("efa -p {provider} --csv -"))).expect(0);
        assert!(done.stderr.contains("the EFA cards are software: a run calls them efa/soft:"), "{}", done.stderr);
        records(&done.stdout)
    };
    let cards = listed("soft-efa");
    let column = |name: &str| cards.iter().map(|card| card[name].clone()).collect::<Vec<_>>();
    assert_eq!(column("pci"), ["0000:4f:00.0", "0000:50:00.0", "0000:51:00.0", "0000:52:00.0"]);
    assert_eq!(column("domain"), ["rdmap79s0-rdm", "rdmap80s0-rdm", "rdmap81s0-rdm", "rdmap82s0-rdm"]);
    assert!(column("provider").iter().all(|name| name == "efa"));
    assert_eq!(listed("soft-efa:fast,cards=32").len(), 32);
    let plain = run(ginlab("efa --csv -")).expect(0);
    assert!(!plain.stderr.contains("software"), "nothing of them where they are not asked for");
}

#[test]
fn another_program_runs_over_them() {
    if !has_provider() || Command::new("fi_info").arg("--version").output().is_err() {
        return skip("no fi_info");
    }
    let done = run(ginlab("soft-efa -p soft-efa:p4d,cards=2 -- fi_info -p efa -t FI_EP_RDM")).expect(0);
    assert_eq!(done.stdout.matches("domain: rdmap").count(), 2, "{}", done.stdout);
    let wrong = run(ginlab("soft-efa -p soft-efa:p3 -- fi_info")).expect(2);
    assert!(wrong.complaint().contains("known are soft-efa:p4d, "), "{}", wrong.stderr);
}

#[test]
fn every_experiment_moves_every_byte_over_one_and_four_rails() {
    if !has_provider() {
        return;
    }
    for args in [
        "write -b 8 -e 256K -f 181 -n 20 -r 2 --rails 1,4",
        "sendrecv -b 0 -e 9000 -f 90 -n 20 -r 2 --rails 1,4 --window 7",
        "all2all --np 3 -b 8 -e 100K -f 110 -n 5 --rails 1,4",
        "proxy -b 4K -e 70000 -f 16 -n 10 -r 1 --rails 1,4 --mode quiet,nbi --check",
    ] {
        let done = run(over("fast", &format!("{args} --csv -"))).expect(0);
        let rows = rows(&done.stdout);
        all_verified(&rows);
        assert!(rows.iter().all(|row| row.fabric == "efa/soft:fast"), "{rows:?}");
        assert!(done.stderr.contains("# environment: FI_EFA_ENABLE_SHM_TRANSFER=0"), "{}", done.stderr);
    }
}

#[test]
fn a_server_has_visitors_over_them() {
    if !has_provider() {
        return;
    }
    let server = Server::start("-p soft-efa:fast --peers 2 --bytes 100000 --rails 4 --visits 2");
    verified(run(server.join("-p soft-efa:fast -b 4097 -n 100 --csv -")));
    verified(run(server.join("-p soft-efa:fast -b 33333 -n 30 --csv -")));
    server.finish().expect(0);
}

#[test]
fn what_goes_wrong_on_a_card_is_named_within_the_deadline() {
    if !has_provider() {
        return;
    }
    for (words, part) in [
        // The write itself is complete by the peer's receipt; the card's completion is missed when the rail is closed.
        ("lose=30", "fi_close has not returned within 5 s, since the provider waits for completions"),
        ("dead=30", "nothing has completed for 3s"),
        // Status 12 of EFA's: unexpected status returned by the responder.
        ("fail=30/12", "failed: Input/output error"),
        ("fail=30/9", "Invalid receiver queue pair number (QPN) [9]"),
        ("full=30", "failed: Cannot allocate memory"),
    ] {
        let write = format!("write -b 64 -e 64 -n 50 -r 1 --rails 1 -t 3 -p soft-efa:fast,{words} -d emulated");
        let mut command = ginlab(&write);
        command.env("FI_EFA_RX_SIZE", "1024");
        let done = run(command).expect(1);
        assert!(done.stderr.contains(part), "{words}: {}", done.stderr);
    }
}

#[test]
fn two_nodes_of_the_lab_are_two_machines() {
    if !has_provider() {
        return;
    }
    let Some(lab) = Lab::up("--rails 1 --rate none") else { return };
    let rank = |node: usize| {
        let args = "write -b 8 -e 256K -f 181 -n 20 -r 1 --rails 1,4 -p soft-efa:fast -d emulated --csv -";
        let mut command = lab.ginlab(node, args);
        command.env("FI_EFA_RX_SIZE", "1024");
        Job::start(command)
    };
    let [first, second] = [rank(0), rank(1)].map(|job| job.finish().expect(0));
    all_verified(&rows(&first.stdout));
    assert!(!first.stderr.contains("all ranks are on one host"), "{}", first.stderr);
    assert_eq!(second.stdout, "");
}

#[test]
fn what_cannot_be_is_one_line() {
    for (cards, part) in [
        ("p3", "known are soft-efa:p4d"),
        ("p5,cards=40", "cards=1..32"),
        ("fast,colour=red", "says nothing about cards"),
    ] {
        let done = run(over(cards, "write -b 8 -e 8")).expect(2);
        assert!(done.complaint().contains(part), "{}", done.stderr);
    }
}

/// A libfabric 2.x with all below it, as scripts/check-libfabric2.sh unpacks it: its loader and the folder of its libraries.
fn libfabric2() -> Option<(String, String)> {
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| format!("{}/target", env!("CARGO_MANIFEST_DIR")));
    let folder = format!("{target}/libfabric2/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let loader = format!("{folder}/ld-linux-x86-64.so.2");
    if std::path::Path::new(&loader).is_file() {
        return Some((loader, folder));
    }
    skip("no target/libfabric2 (scripts/check-libfabric2.sh)");
    None
}

/// Two ranks over libfabric 2.x, by its own loader: it needs a newer C library than this machine may have.
fn two_over_libfabric2(args: &str) -> Option<[crate::common::Done; 2]> {
    let (loader, folder) = libfabric2()?;
    let port = free_port().to_string();
    let rank = |rank: &str| {
        let mut command = Command::new(&loader);
        command.args(["--library-path", &format!("{folder}:/usr/lib/{}-linux-gnu", std::env::consts::ARCH)]);
        command.arg(env!("CARGO_BIN_EXE_ginlab")).args(args.split_whitespace());
        clean(&mut command);
        command.env("RANK", rank).env("WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
        command.env("GINLAB_TOKEN", "two").env("GINLAB_LIBFABRIC", format!("{folder}/libfabric.so.1"));
        command.env("FI_EFA_RX_SIZE", "1024");
        Job::start(command)
    };
    let ranks = [rank("0"), rank("1")];
    Some(ranks.map(Job::finish))
}

/// All four cards in the fabric `efa-direct`.
const DIRECT: &str =
    "--domain efa-direct:rdmap79s0-rdm,efa-direct:rdmap80s0-rdm,efa-direct:rdmap81s0-rdm,efa-direct:rdmap82s0-rdm";

#[test]
fn both_fabrics_of_libfabric_2_write_into_the_peers_memory() {
    for domains in ["", DIRECT] {
        for what in [
            "write -b 8 -e 256K -f 181 -n 20 -r 2 --rails 1,4",
            "all2all -b 8 -e 100K -f 110 -n 5 --rails 1,4",
            "proxy -b 4K -e 70000 -f 16 -n 10 -r 1 --rails 1,4 --mode quiet,nbi --check",
        ] {
            let Some([first, second]) =
                two_over_libfabric2(&format!("{what} {domains} -p soft-efa:fast -d emulated --csv -"))
            else {
                return;
            };
            let (first, second) = (first.expect(0), second.expect(0));
            let rows = rows(&first.stdout);
            all_verified(&rows);
            assert!(rows.iter().all(|row| row.fabric == "efa/soft:fast"), "{rows:?}");
            let said = first.stderr + &second.stderr;
            assert!(said.contains("# libfabric: 2.") && !said.contains("soft_efa: "), "{said}");
        }
    }
}

#[test]
fn messages_want_an_order_that_efa_direct_has_not() {
    let messages = "sendrecv -b 90 -e 9000 -f 100 -n 20 -r 1 --rails 1 --window 7 -p soft-efa:fast -d emulated --csv -";
    let Some([first, second]) = two_over_libfabric2(messages) else { return };
    all_verified(&rows(&first.expect(0).stdout));
    second.expect(0);
    let Some([first, _]) = two_over_libfabric2(&format!("{messages} --domain efa-direct:rdmap79s0-rdm")) else {
        return;
    };
    assert!(first.code != 0 && first.stderr.contains("FI_ORDER_SAS, which efa-direct has not"), "{}", first.stderr);
}

/// The real provider below `doctor`: each card registers, writes to itself and reads back; and rails are cards.
#[test]
fn doctor_tries_every_card() {
    if !has_provider() {
        return;
    }
    let done = run(over("fast,cards=2", "doctor --only smoke,rma,libfabric --csv -")).expect(0);
    let found: Vec<String> =
        records(&done.stdout).iter().map(|row| format!("{} {}", row["state"], row["found"])).collect();
    assert!(found[0].ends_with("RDM domains 2 of efa"), "{found:?}");
    assert!(found[1].starts_with("ok efa: RMA, immediates of "), "{found:?}");
    assert_eq!(found[2], "ok written to oneself and verified: rdmap79s0-rdm, rdmap80s0-rdm, proxy");
    let usual = run(over("fast,cards=1", "write -b 4K -e 4K -n 4 -r 1 --csv -")).expect(0);
    assert_eq!(rows(&usual.stdout).iter().map(|row| row.rails).collect::<Vec<_>>(), [Some(1)]);
    assert!(
        usual.stderr.contains("--rails was not given: 1, the cards that are here, in place of 4"),
        "{}",
        usual.stderr
    );
    let four = run(over("fast,cards=1", "write --rails 4 -b 4K -e 4K")).expect(2);
    assert!(four.complaint().contains("4 rails need as many cards, and there are 1"), "{}", four.stderr);
}
