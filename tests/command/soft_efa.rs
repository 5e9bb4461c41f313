//! Cards in software below libfabric's own EFA provider: `-p soft-efa`.

use crate::common::lab::Lab;
use crate::common::libfabric2::{DIRECT, Libfabric2};
use crate::common::server::{Server, verified};
use crate::common::{Job, Stream, all_verified, free_port, ginlab, records, rows, run, skip, tcp_rank};
use nix::sys::signal::{Signal, kill};
use std::collections::BTreeSet;
use std::process::Command;

/// Whether the installed libfabric has the EFA provider, which hides where it finds no card; says so where it has not.
pub fn has_provider() -> bool {
    let has = run(ginlab("efa -p soft-efa:fast,cards=1 --csv -")).code == 0;
    if !has {
        skip("this libfabric has no EFA provider");
    }
    has
}

/// Whether the machine's own libfabric is 2.x, which lists each card in two fabrics and has cards write themselves.
pub fn is_two() -> bool {
    run(ginlab("--version")).expect(0).stdout.contains("libfabric   2.")
}

/// The command with the cards, without their times: so many ranks share two cores.
fn over(cards: &str, args: &str) -> Command {
    ginlab(&format!("{args} -p soft-efa:{cards} -d emulated"))
}

/// A program that was copied alone says what it lacks, and what to copy or name.
#[test]
fn without_the_library_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let (program, spaced) = (folder.path().join("ginlab"), folder.path().join("a b:c.so"));
    let beside = std::path::Path::new(env!("CARGO_BIN_EXE_ginlab"));
    // By a process of its own: what another test starts meanwhile would keep this one's open file, and a program that is open cannot be run.
    let copied = |from: &std::path::Path, to| Command::new("cp").args([from, to]).status().unwrap().success();
    assert!(copied(beside, &program) && copied(&beside.with_file_name("deps").join("libsoft_efa.so"), &spaced));
    let alone = |library: Option<&str>| {
        let mut command = Command::new(&program);
        command.args("soft-efa -p soft-efa:fast -- cat /proc/self/maps".split(' ')).current_dir(&folder);
        command.envs(library.map(|library| ("GINLAB_SOFT_EFA", folder.path().join(library))));
        run(command)
    };
    let said = alone(None).expect(2);
    let line = said.complaint();
    assert!(line.contains("there is no libsoft_efa.so in ") && line.contains("GINLAB_SOFT_EFA"), "{line}");
    // A name that LD_PRELOAD would cut.
    assert!(alone(Some("a b:c.so")).expect(0).stdout.contains("/a b:c.so"));
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
    // In the places of a real p5's.
    let tree = include_str!("../fixtures/p5/lspci.txt").lines().filter(|line| line.contains("Elastic Fabric Adapter"));
    let mut real: Vec<String> =
        tree.map(|line| format!("0000:{}:00.0", &line.rsplit("-[").next().unwrap()[..2])).collect();
    let mut ours: Vec<String> = listed("soft-efa:fast,cards=32").iter().map(|card| card["pci"].clone()).collect();
    real.sort();
    ours.sort();
    assert_eq!((ours.len(), ours), (32, real));
    let plain = run(ginlab("efa --csv -")).expect(0);
    assert!(!plain.stderr.contains("software"), "nothing of them where they are not asked for");
}

#[test]
fn another_program_runs_over_them() {
    if !has_provider() || Command::new("fi_info").arg("--version").output().is_err() {
        return skip("no fi_info");
    }
    let done = run(ginlab("soft-efa -p soft-efa:p4d,cards=2 -- fi_info -p efa -t FI_EP_RDM")).expect(0);
    let domains: BTreeSet<&str> = done.stdout.lines().filter(|line| line.contains("domain: rdmap")).collect();
    assert_eq!(domains.len(), 2, "{}", done.stdout);
    let wrong = run(ginlab("soft-efa -p soft-efa:p3 -- fi_info")).expect(2);
    assert!(wrong.complaint().contains("known are soft-efa:p4d, "), "{}", wrong.stderr);
}

#[test]
fn every_experiment_moves_every_byte_over_one_and_four_rails() {
    if !has_provider() {
        return;
    }
    // Without times of their own, in any order; and each profile once. A p4d's cards write nothing themselves.
    for (cards, args) in [
        ("fast", "write -b 8 -e 256K -f 181 -n 20 -r 2 --rails 1,4"),
        ("p5en", "sendrecv -b 0 -e 9000 -f 90 -n 20 -r 2 --rails 1,4 --window 7"),
        ("p6-b200", "all2all --np 3 -b 8 -e 100K -f 110 -n 5 --rails 1,4"),
        ("p4d", "write -b 8 -e 256K -f 181 -n 10 -r 1 --rails 4"),
        ("p5", "proxy -b 4K -e 70000 -f 16 -n 10 -r 1 --rails 1,4 --mode quiet,nbi --check"),
    ] {
        let done = run(over(cards, &format!("{args} --csv -"))).expect(0);
        let rows = rows(&done.stdout);
        all_verified(&rows);
        assert!(rows.iter().all(|row| row.fabric == format!("efa/soft:{cards}")), "{rows:?}");
        assert!(done.stderr.contains("# environment: FI_EFA_ENABLE_SHM_TRANSFER=0"), "{}", done.stderr);
    }
}

/// As where the command is linked with an MPI that is linked with libibverbs, whose functions the provider would find first.
#[test]
fn they_come_before_verbs_that_the_process_has_from_its_start() {
    if !has_provider() {
        return;
    }
    let mut command = over("fast", "write -b 8 -e 64K -f 8192 -n 20 -r 1 --rails 1,4 --csv -");
    command.env("LD_PRELOAD", "libibverbs.so.1");
    let done = run(command).expect(0);
    let rows = rows(&done.stdout);
    all_verified(&rows);
    assert!(rows.len() == 4 && rows.iter().all(|row| row.fabric == "efa/soft:fast"), "{rows:?}");
    // A loader that preloads nothing is not asked for ever.
    let mut command = over("fast", "write -b 8 -e 8");
    command.env("LD_PRELOAD", "libibverbs.so.1").env("GINLAB_SOFT_EFA_PRELOADED", "1");
    assert!(run(command).expect(2).complaint().contains("does not preload the cards"));
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
    // By 1.17 the peer's receipt completes a write, and the card's lost completion is missed when the rail is closed. A full queue is an
    // error there; 2.1 asks to try again.
    let (lost, full, unexpected, bad_pair) = match is_two() {
        true => {
            let unexpected = "failed: Remote I/O error: Unexpected status returned by responder";
            let stalls = ([124, 124], "nothing has completed for 3s");
            (stalls, stalls, unexpected, "Bad queue pair (QP) number")
        }
        false => {
            let closing = "fi_close has not returned within 5 s, since the provider waits for completions";
            let full = ([1, 1], "failed: Cannot allocate memory");
            (([1, 0], closing), full, "failed: Input/output error", "Invalid receiver queue pair number (QPN) [9]")
        }
    };
    // The fault is of the rank that writes, so that no receipt of its peer's is what goes wrong. Each job at once with the others:
    // what they do is wait.
    let jobs = [
        ("fast", "lose=30", lost.0, lost.1),
        // Whichever rank is the first to notice, both end as of a stall.
        ("fast", "dead=30", [124, 124], "nothing has completed for 3s"),
        // Each way takes 10 s.
        ("p5", "slow=1000000", [124, 124], "nothing has completed for 3s"),
        // Status 12 of EFA's: unexpected status returned by the responder.
        ("fast", "fail=30/12", [1, 1], unexpected),
        ("fast", "fail=30/9", [1, 1], bad_pair),
        ("fast", "full=30", full.0, full.1),
    ]
    .map(|(cards, fault, codes, part)| {
        // What does not stall has time: the ranks of six jobs share the cores.
        let limit = if codes[0] == 124 { 3 } else { 30 };
        let (port, write) = (free_port(), format!("write -b 64 -e 64 -n 50 -r 1 --rails 1 -t {limit} -d emulated"));
        let rank = |rank: usize, cards: String| {
            Job::start(tcp_rank(rank, port, "faults", &format!("{write} -p soft-efa:{cards}")))
        };
        (fault, codes, part, [rank(0, format!("{cards},{fault}")), rank(1, cards.to_owned())])
    });
    for (fault, codes, part, ranks) in jobs {
        let [first, second] = ranks.map(Job::finish);
        assert!(first.stderr.contains(part), "{fault}: {}", first.stderr);
        assert_eq!([first.code, second.code], codes, "{fault}: {}{}", first.stderr, second.stderr);
    }
}

/// The rank whose memory is written to is killed: the provider has nobody there any more.
#[test]
fn a_peer_that_is_killed_is_named() {
    if !has_provider() {
        return;
    }
    let mut job = Job::start(over("fast", "write -b 64 -e 64 -n 100000000 --volume 100G -r 9 --rails 1 -t 5 --csv -"));
    job.until(Stream::Stderr, "# rails");
    kill(job.rank(1), Signal::SIGKILL).unwrap();
    let done = job.finish();
    // 2.1's provider, where what it posts of its own meets a pair that has gone: once in a bare Debian 13. Nothing of ours gets to say anything then.
    if done.code == 134 && done.stderr.contains("Your application will now abort()") {
        return skip("libfabric's EFA provider called abort() by itself, its peer had gone");
    }
    let done = done.expect(1);
    assert!(done.stderr.contains("rank 1 (host ") && done.stderr.contains("signal: 9"), "{}", done.stderr);
}

/// Requests overtake one another, as the seed says: a signal is still never seen before its bytes, whatever rule keeps the two in order.
#[test]
fn no_signal_is_seen_before_its_bytes_though_writes_overtake_one_another() {
    if !has_provider() {
        return;
    }
    for (rule, seed) in [("count", 7), ("own", 8), ("drain", 9), ("sequence", 10)] {
        let args = format!(
            "shmem --np 2 --cases signal-order --path rails --rails 1 --rule {rule} -n 60 -r 1 --grid 1 --block 33 --csv -"
        );
        let rows = rows(&run(over(&format!("fast,reorder=9,seed={seed}"), &args)).expect(0).stdout);
        assert!(rows.iter().all(|row| row.wrong == Some(0) && row.iterations >= Some(2 * 60)), "{rule}: {rows:?}");
    }
}

/// The control connection is the program's own; it ends with 111 while nobody listens.
#[test]
fn ping_pong_of_libfabrics_own_goes_over_both_libraries_and_fabrics() {
    if !has_provider() || Command::new("fi_pingpong").arg("-h").output().is_err() {
        return skip("no fi_pingpong");
    }
    // libfabric 2.x lists efa-direct first; it has no tags, so tagged messages take the other one.
    let both = |program: String| [(program.clone(), "msg", 8000), (program, "tagged", 70000)];
    let mut ways = match is_two() {
        true => both("fi_pingpong".to_owned()).to_vec(),
        false => vec![("fi_pingpong".to_owned(), "msg", 70000)],
    };
    if let Some(two) = Libfabric2::here() {
        ways.extend(both(two.tool("fi_pingpong")));
    }
    for (program, messages, bytes) in ways {
        let port = free_port();
        let side = |rest: &str| {
            let line = format!("{program} -p efa -e rdm -c -I 20 -S {bytes} -m {messages} {rest}");
            ginlab(&format!("soft-efa -p soft-efa:fast,cards=1 -- {line}"))
        };
        let server = Job::start(side(&format!("-B {port}")));
        let client = loop {
            let client = run(side(&format!("-P {port} 127.0.0.1")));
            if client.code != 111 {
                break client.expect(0);
            }
        };
        server.finish().expect(0);
        assert!(client.stdout.lines().nth(1).is_some_and(|line| line.contains("=20")), "{}", client.stdout);
    }
}

#[test]
fn two_nodes_of_the_lab_are_two_machines() {
    if !has_provider() {
        return;
    }
    let Some(lab) = Lab::up("--rails 1 --rate none") else { return };
    let two = Libfabric2::here();
    let write = "write -b 8 -e 256K -f 181 -n 20 -r 1 --rails 1,4";
    // Over `efa-direct` nobody but the program itself gives a card the addresses of its peers, without which it takes no writes (14).
    let direct = (two.as_ref(), DIRECT);
    for ((over, domains), what) in [
        ((None, ""), write),
        ((two.as_ref(), ""), write),
        (direct, write),
        (direct, "all2all -b 8 -e 100K -f 110 -n 5 --rails 1,4"),
        (direct, "proxy -b 4K -e 70000 -f 16 -n 10 -r 1 --rails 4 --mode quiet,nbi --check"),
        (direct, "shmem --cases signal-order -n 20 -r 1 --path rails --rails 4"),
    ] {
        let args = format!("{what} -p soft-efa:fast -d emulated --csv -");
        let rank = |node: usize| {
            Job::start(match over {
                Some(two) => two.told(lab.program(node, &format!("{} {args} {domains}", two.words()))),
                None => lab.ginlab(node, &args),
            })
        };
        let [first, second] = [rank(0), rank(1)].map(|job| job.finish().expect(0));
        let rows = rows(&first.stdout);
        if what.starts_with("shmem") {
            // It has no times.
            assert!(!rows.is_empty() && rows.iter().all(|row| row.wrong == Some(0)), "{rows:?}");
        } else {
            all_verified(&rows);
        }
        assert!(!first.stderr.contains("all ranks are on one host"), "{}", first.stderr);
        assert_eq!(second.stdout, "");
    }
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

/// The real provider below `doctor`: each card registers, writes to itself and reads back; and rails are cards.
#[test]
fn doctor_tries_every_card() {
    if !has_provider() {
        return;
    }
    let done = run(over("fast,cards=2", "doctor --only smoke,rma,libfabric --csv -")).expect(0);
    let found: Vec<String> =
        records(&done.stdout).iter().map(|row| format!("{} {}", row["state"], row["found"])).collect();
    let fabrics = if is_two() { "2 of efa, 2 of efa-direct" } else { "2 of efa" };
    assert!(found[0].ends_with(&format!("RDM domains {fabrics}")), "{found:?}");
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

/// A card of a p5 moves more than a core of any test machine: rows say that they show the machine.
#[test]
fn rows_that_this_machine_moves_slower_than_the_card_say_so() {
    if !has_provider() {
        return;
    }
    let suspects = |cards: &str| {
        let args = "write --np 2 -b 4M -e 4M -n 8 -r 1 --rails 4 --csv -";
        records(&run(over(cards, args)).expect(0).stdout)
            .into_iter()
            .map(|row| row["suspect"].clone())
            .collect::<Vec<_>>()
    };
    // While other tests have the cores and nothing is under way, no card waits: such a run shows that alone.
    let runs = [(); 3].map(|()| suspects("p5"));
    assert!(runs.iter().flatten().any(|why| why.contains("slower than the card in software")), "{runs:?}");
    assert!(suspects("fast").iter().all(String::is_empty));
}
