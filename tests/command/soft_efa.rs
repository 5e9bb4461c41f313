//! Software NICs below libfabric's own EFA provider: `-p soft-efa`.

use crate::common::lab::Lab;
use crate::common::libfabric2::{DIRECT, Libfabric2};
use crate::common::server::{ServeProcess, verified};
use crate::common::{OutputStream, ProcessGroup, all_verified, free_port, ginlab, records, rows, run, skip, tcp_rank};
use nix::sys::signal::{Signal, kill};
use std::collections::BTreeSet;
use std::process::Command;

/// Returns whether the installed libfabric has the EFA provider, which is hidden if it finds no device. Reports a skip
/// otherwise.
pub fn has_provider() -> bool {
    let has = run(ginlab("efa -p soft-efa:fast,cards=1 --csv -")).code == 0;
    if !has {
        skip("this libfabric has no EFA provider");
    }
    has
}

/// Returns whether the machine's own libfabric is 2.x, which lists each device in two fabrics and uses RDMA writes.
pub fn is_two() -> bool {
    run(ginlab("--version")).expect(0).stdout.contains("libfabric   2.")
}

/// Returns the command with these NICs, without their modelled times, because several ranks share two cores.
fn over(cards: &str, args: &str) -> Command {
    ginlab(&format!("{args} -p soft-efa:{cards} -d emulated"))
}

/// A program that was copied without its library reports what is missing, and what to copy or name.
#[test]
fn missing_library_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (program, spaced) = (folder.path().join("ginlab"), folder.path().join("a b:c.so"));
    let beside = std::path::Path::new(env!("CARGO_BIN_EXE_ginlab"));
    // Another process copies the program. Otherwise, a child that another test starts concurrently would inherit the
    // open file, and a program that is open for writing cannot be executed.
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
    assert!(line.contains("no libsoft_efa.so in ") && line.contains("GINLAB_SOFT_EFA"), "{line}");
    // LD_PRELOAD would split this name.
    assert!(alone(Some("a b:c.so")).expect(0).stdout.contains("/a b:c.so"));
}

#[test]
fn libfabric_efa_provider_lists_software_nics() {
    if !has_provider() {
        return;
    }
    let listed = |provider: &str| {
        let done = run(ginlab(&format!("efa -p {provider} --csv -"))).expect(0);
        assert!(
            done.stderr.contains("the EFA devices are software NICs; runs report them as efa/soft:"),
            "{}",
            done.stderr
        );
        records(&done.stdout)
    };
    let cards = listed("soft-efa");
    let column = |name: &str| cards.iter().map(|card| card[name].clone()).collect::<Vec<_>>();
    assert_eq!(column("pci"), ["0000:4f:00.0", "0000:50:00.0", "0000:51:00.0", "0000:52:00.0"]);
    assert_eq!(column("domain"), ["rdmap79s0-rdm", "rdmap80s0-rdm", "rdmap81s0-rdm", "rdmap82s0-rdm"]);
    assert!(column("provider").iter().all(|name| name == "efa"));
    // The NICs have the PCI addresses of a real p5.
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
fn other_programs_run_over_software_nics() {
    if !has_provider() || Command::new("fi_info").arg("--version").output().is_err() {
        return skip("no fi_info");
    }
    let done = run(ginlab("soft-efa -p soft-efa:p4d,cards=2 -- fi_info -p efa -t FI_EP_RDM")).expect(0);
    let domains: BTreeSet<&str> = done.stdout.lines().filter(|line| line.contains("domain: rdmap")).collect();
    assert_eq!(domains.len(), 2, "{}", done.stdout);
    let wrong = run(ginlab("soft-efa -p soft-efa:p3 -- fi_info")).expect(2);
    assert!(wrong.complaint().contains("expected one of soft-efa:p4d, "), "{}", wrong.stderr);
}

#[test]
fn every_experiment_verifies_over_one_and_four_rails() {
    if !has_provider() {
        return;
    }
    // Runs the NICs without modelled times and in any order, and each profile once. A p4d's devices do not support RDMA
    // writes.
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

/// Emulates a command that is linked with an MPI that is linked with libibverbs. The provider would find the functions
/// of libibverbs first.
#[test]
fn software_nics_take_precedence_over_preloaded_verbs() {
    if !has_provider() {
        return;
    }
    let mut command = over("fast", "write -b 8 -e 64K -f 8192 -n 20 -r 1 --rails 1,4 --csv -");
    command.env("LD_PRELOAD", "libibverbs.so.1");
    let done = run(command).expect(0);
    let rows = rows(&done.stdout);
    all_verified(&rows);
    assert!(rows.len() == 4 && rows.iter().all(|row| row.fabric == "efa/soft:fast"), "{rows:?}");
    // A loader that does not preload must not cause endless restarts.
    let mut command = over("fast", "write -b 8 -e 8");
    command.env("LD_PRELOAD", "libibverbs.so.1").env("GINLAB_SOFT_EFA_PRELOADED", "1");
    assert!(run(command).expect(2).complaint().contains("does not preload the software NICs"));
}

#[test]
fn peers_join_server_over_software_nics() {
    if !has_provider() {
        return;
    }
    let server = ServeProcess::start("-p soft-efa:fast --peers 2 --bytes 100000 --rails 4 --visits 2");
    verified(run(server.join("-p soft-efa:fast -b 4097 -n 100 --csv -")));
    verified(run(server.join("-p soft-efa:fast -b 33333 -n 30 --csv -")));
    server.finish().expect(0);
}

#[test]
fn nic_faults_are_reported_within_deadline() {
    if !has_provider() {
        return;
    }
    // With 1.17 the peer's receipt completes a write, and the NIC's lost completion is noticed when the rail is closed.
    // A full queue is an error there; 2.1 asks to retry.
    let (lost, full, unexpected, bad_pair) = match is_two() {
        true => {
            let unexpected = "failed: Remote I/O error: Unexpected status returned by responder";
            let stalls = ([124, 124], "no operation completed within 3s");
            (stalls, stalls, unexpected, "Bad queue pair (QP) number")
        }
        false => {
            let closing = "fi_close did not return within 5 s, because the provider waits for completions";
            let full = ([1, 1], "failed: Cannot allocate memory");
            (([1, 0], closing), full, "failed: Input/output error", "Invalid receiver queue pair number (QPN) [9]")
        }
    };
    // The rank that writes has the fault, so that the failure is not a missing receipt of its peer. All jobs run
    // concurrently, because they mostly wait.
    let jobs = [
        ("fast", "lose=30", lost.0, lost.1),
        // Both ranks exit as after a stall, regardless of which rank notices first.
        ("fast", "dead=30", [124, 124], "no operation completed within 3s"),
        // Each one-way transfer takes 10 s.
        ("p5", "slow=1000000", [124, 124], "no operation completed within 3s"),
        // EFA status 12: unexpected status returned by the responder.
        ("fast", "fail=30/12", [1, 1], unexpected),
        ("fast", "fail=30/9", [1, 1], bad_pair),
        ("fast", "full=30", full.0, full.1),
    ]
    .map(|(cards, fault, codes, part)| {
        // Faults that do not stall have ample time, because the ranks of six jobs share the cores.
        let limit = if codes[0] == 124 { 3 } else { 30 };
        let (port, write) = (free_port(), format!("write -b 64 -e 64 -n 50 -r 1 --rails 1 -t {limit} -d emulated"));
        let rank = |rank: usize, cards: String| {
            ProcessGroup::start(tcp_rank(rank, port, "faults", &format!("{write} -p soft-efa:{cards}")))
        };
        (fault, codes, part, [rank(0, format!("{cards},{fault}")), rank(1, cards.to_owned())])
    });
    for (fault, codes, part, ranks) in jobs {
        let [first, second] = ranks.map(ProcessGroup::finish);
        assert!(first.stderr.contains(part), "{fault}: {}", first.stderr);
        assert_eq!([first.code, second.code], codes, "{fault}: {}{}", first.stderr, second.stderr);
    }
}

/// The rank that is written to is killed; the provider then has no receiver.
#[test]
fn killed_peer_is_named() {
    if !has_provider() {
        return;
    }
    let mut job =
        ProcessGroup::start(over("fast", "write -b 64 -e 64 -n 100000000 --volume 100G -r 9 --rails 1 -t 5 --csv -"));
    job.until(OutputStream::Stderr, "# rails");
    kill(job.rank(1), Signal::SIGKILL).unwrap();
    let done = job.finish();
    // 2.1's provider aborts if its own requests reach a queue pair that no longer exists (seen twice in a bare Debian
    // 13). The process then reports only that.
    if matches!(done.code, 1 | 134) && done.stderr.contains("Your application will now abort()") {
        return skip("libfabric's EFA provider called abort() by itself, its peer had gone");
    }
    let done = done.expect(1);
    assert!(done.stderr.contains("rank 1 (host ") && done.stderr.contains("signal: 9"), "{}", done.stderr);
}

/// Requests overtake one another, determined by the seed. Each rule must keep signals after their bytes.
#[test]
fn signals_follow_their_bytes_despite_reordering() {
    if !has_provider() {
        return;
    }
    for (rule, seed) in [("count", 7), ("own", 8), ("drain", 9), ("sequence", 10)] {
        let args = format!(
            "shmem --np 2 --cases signal-order --path rails --rails 1 --rule {rule} -n 60 -r 1 --grid 1 --block 33 --csv -"
        );
        let rows = rows(&run(over(&format!("fast,reorder=9,seed={seed}"), &args)).expect(0).stdout);
        assert!(
            rows.iter().all(|row| row.wrong_bytes == Some(0) && row.iterations >= Some(2 * 60)),
            "{rule}: {rows:?}"
        );
    }
}

/// Mooncake and UCX check for the device's file, and the Python package efa and NCCL load the libraries at run time.
#[test]
fn programs_find_software_nics_by_path_and_dlopen() {
    let over = |program: &str| run(ginlab(&format!("soft-efa -p soft-efa:fast,cards=2 -- {program}")));
    over("test -c /dev/infiniband/uverbs1").expect(0);
    over("test -c /dev/infiniband/uverbs2").expect(1);
    if Command::new("python3").arg("--version").output().is_err() {
        return skip("no python3");
    }
    // Uses a nonexistent path, because the loader does not open the file.
    let script = "import ctypes as c; [c.CDLL(name).soft_efa_cause for name in ('libibverbs.so.1', '/no/libefa.so')]";
    let mut command = ginlab("soft-efa -p soft-efa:fast -- python3 -c");
    command.arg(script);
    run(command).expect(0);
}

/// fi_pingpong uses its own control connection, and exits with 111 if the port is not open yet.
#[test]
fn fi_pingpong_runs_over_both_libraries_and_fabrics() {
    if !has_provider() || Command::new("fi_pingpong").arg("-h").output().is_err() {
        return skip("no fi_pingpong");
    }
    // libfabric 2.x lists efa-direct first. It has no tags, so tagged messages use the other fabric.
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
        let server = ProcessGroup::start(side(&format!("-B {port}")));
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
fn lab_nodes_are_separate_machines() {
    if !has_provider() {
        return;
    }
    let Some(lab) = Lab::up("--rails 1 --rate none") else { return };
    let two = Libfabric2::here();
    let write = "write -b 8 -e 256K -f 181 -n 20 -r 1 --rails 1,4";
    // Over `efa-direct` only the program itself gives a NIC the addresses of its peers, without which the NIC rejects
    // writes (14).
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
            ProcessGroup::start(match over {
                Some(two) => two.told(lab.program(node, &format!("{} {args} {domains}", two.words()))),
                None => lab.ginlab(node, &args),
            })
        };
        let [first, second] = [rank(0), rank(1)].map(|job| job.finish().expect(0));
        let rows = rows(&first.stdout);
        if what.starts_with("shmem") {
            // This case has no times.
            assert!(!rows.is_empty() && rows.iter().all(|row| row.wrong_bytes == Some(0)), "{rows:?}");
        } else {
            all_verified(&rows);
        }
        assert!(!first.stderr.contains("all ranks are on one host"), "{}", first.stderr);
        assert_eq!(second.stdout, "");
    }
}

#[test]
fn invalid_options_print_one_line() {
    for (cards, part) in [
        ("p3", "expected one of soft-efa:p4d"),
        ("p5,cards=40", "cards=1..32"),
        ("fast,colour=red", "invalid NIC option"),
    ] {
        let done = run(over(cards, "write -b 8 -e 8")).expect(2);
        assert!(done.complaint().contains(part), "{}", done.stderr);
    }
}

/// Runs `doctor` over the real provider. Each NIC registers memory, writes to itself and reads back, and each rail is a
/// NIC.
#[test]
fn doctor_tests_every_nic() {
    if !has_provider() {
        return;
    }
    let done = run(over("fast,cards=2", "doctor --only smoke,rma,libfabric --csv -")).expect(0);
    let found: Vec<String> =
        records(&done.stdout).iter().map(|row| format!("{} {}", row["state"], row["found"])).collect();
    let fabrics = if is_two() { "2 of efa, 2 of efa-direct" } else { "2 of efa" };
    assert!(found[0].ends_with(&format!("RDM domains {fabrics}")), "{found:?}");
    assert!(found[1].starts_with("ok efa: RMA, immediates of "), "{found:?}");
    assert_eq!(found[2], "ok written to itself and verified: rdmap79s0-rdm, rdmap80s0-rdm, proxy");
    let usual = run(over("fast,cards=1", "write -b 4K -e 4K -n 4 -r 1 --csv -")).expect(0);
    assert_eq!(rows(&usual.stdout).iter().map(|row| row.rails).collect::<Vec<_>>(), [Some(1)]);
    assert!(
        usual.stderr.contains("--rails was not given: using 1, the number of NICs of this machine, instead of 4"),
        "{}",
        usual.stderr
    );
    let four = run(over("fast,cards=1", "write --rails 4 -b 4K -e 4K")).expect(2);
    assert!(four.complaint().contains("4 rails need 4 NICs, but there are 1"), "{}", four.stderr);
}

/// A NIC of a p5 is faster than a core of any test machine: rows must report that they show the machine's speed.
#[test]
fn rows_slower_than_nic_are_marked_suspect() {
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
    // If other tests use the cores and nothing is in flight, no NIC waits, and such a run shows only that.
    let runs = [(); 3].map(|()| suspects("p5"));
    assert!(runs.iter().flatten().any(|why| why.contains("slower than the modelled NIC")), "{runs:?}");
    assert!(suspects("fast").iter().all(String::is_empty));
}

/// libfabric and verbs on the same software NICs, in one run.
#[test]
fn libfabric_and_verbs_share_nics_in_one_run() {
    if !has_provider() {
        return;
    }
    for args in ["write --window 4", "sendrecv --window 4"] {
        let versus = "--versus efa-verbs/soft:fast,cards=2";
        let args = format!("{args} -b 64 -e 64K -f 1024 -n 10 -r 2 --rails 1,2 {versus} --csv -");
        let rows = rows(&run(over("fast,cards=2", &args)).expect(0).stdout);
        all_verified(&rows);
        for pair in rows.chunks(2) {
            assert_eq!([pair[0].fabric.as_str(), pair[1].fabric.as_str()], ["efa/soft:fast", "efa-verbs/soft:fast"]);
            assert!(pair[1].baseline_ratio.is_some(), "{pair:?}");
        }
    }
}
