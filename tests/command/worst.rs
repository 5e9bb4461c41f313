//! `-p worst`: every program that takes a provider over the worst-case network model, and invalid specifications.

use crate::common::server::{ServeProcess, verified};
use crate::common::{ProcessGroup, TOO_LONG, clean, ginlab, rows, run, skip};
use ginlab::bootstrap::session::Session;
use ginlab::cuda::{Device, MemoryLocation};
use ginlab::fabric::any::AnyRail;
use ginlab::fabric::discover::Reach;
use ginlab::fabric::libfabric::RailOptions;
use ginlab::fabric::{Access, Fabric, RankPlace};
use ginlab::flow::{self, Flow, Offer, Target};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::process::Command;

/// Small runs of programs with ranks, because every byte is checked.
const PROGRAMS: [&str; 6] = [
    "proxy -b 64 -e 256K -f 16 -n 6 -w 1 -r 1 --rails 3 --mode quiet,nbi --proxy-threads 2 --block 33",
    "write --np 4 -b 1 -e 200000 -f 447 -n 8 -r 1 --rails 3 --strategy split,round-robin --targets one,all --window 5",
    "sendrecv -b 1 -e 100000 -f 316 -n 3 -r 1 --rails 2 --window 5",
    "all2all --np 3 -b 0 -e 100000 -f 316 -n 3 -w 1 --rails 1,2 --strategy round-robin,split",
    "shmem --path rails --cases signal-order,put-signal-bandwidth,all-to-all,barrier-all --grid 2 --block 32 -n 4 -w 1 -r 1 -b 8 -e 512 -f 64 --volume 64K",
    "collective --path rails --np 3 --mode nbi --packet 999 --launch stream -b 12 -e 12000 -f 1000 -n 2 -w 1 -r 1",
];

#[test]
fn every_program_verifies_over_worst_network() {
    for (seed, program) in PROGRAMS.iter().enumerate() {
        let done = run(ginlab(&format!("{program} -d emulated -p worst:delay=40,seed={seed} --csv -"))).expect(0);
        let rows = rows(&done.stdout);
        let measured: Vec<_> = rows.into_iter().filter(|row| row.status.to_string() == "ok").collect();
        let (checked, wrong) =
            measured.iter().filter_map(|row| row.wrong_bytes).fold((0, 0), |(n, all), wrong| (n + 1, all + wrong));
        assert!(checked > 0 && wrong == 0, "{program}: {measured:#?}");
        let fabric = format!("worst:seed={seed},delay=40");
        assert!(measured.len() > 1 && measured.iter().all(|row| row.fabric == fabric), "{program}: {measured:#?}");
        assert!(done.stderr.contains("deliberately the least ordered network that EFA permits"), "{}", done.stderr);
    }
}

/// Runs an eighth of all combinations of program, signal rule, 2 to 4 ranks, and scope (thread, warp, block), including
/// every pair of these. Each run has its own seed. All combinations take ten minutes (`scripts/matrix.py worst`).
#[test]
fn matrix_verifies_over_worst_network() {
    let python = Command::new("python3").args(["-c", "import tomllib"]).output();
    if !python.is_ok_and(|done| done.status.success()) {
        return skip("no Python 3.11, which scripts/matrix.py needs");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut matrix = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/matrix.py"));
    matrix.args(["worst", "--every", "8", "--set", "seeds=1", "--ginlab", env!("CARGO_BIN_EXE_ginlab"), "--out"]);
    matrix.arg(folder.path());
    clean(&mut matrix);
    // About 137 runs of 0.3 s of CPU time each.
    let done = ProcessGroup::start(matrix).runs(6).finish();
    let failures = std::fs::read_to_string(folder.path().join("failures.txt")).unwrap_or_default();
    assert!(done.code == 0 && failures.is_empty(), "{}{}{failures}", done.stdout, done.stderr);
    let table = std::fs::read_to_string(folder.path().join("worst.csv")).unwrap();
    let ran = |words: &[&str]| table.lines().any(|row| words.iter().all(|word| row.contains(word)));
    let rules = ["--rule count", "--rule own", "--rule drain", "--rule sequence"];
    let ranks = ["--np 2", "--np 3", "--np 4"];
    let scopes = ["--scope thread", "--scope warp", "--scope block"];
    for program in ["shmem", "collective"] {
        for (some, others) in [(&rules[..], &ranks[..]), (&rules[..], &scopes[..]), (&ranks[..], &scopes[..])] {
            for (one, other) in some.iter().flat_map(|one| others.iter().map(move |other| (one, other))) {
                assert!(ran(&[program, one, other]), "{program} {one} {other}: not run\n{table}");
            }
        }
    }
    for word in rules.iter().chain(&ranks) {
        assert!(ran(&["jacobi", word]), "jacobi {word}: not run\n{table}");
    }
    for program in ["write", "sendrecv", "all2all", "proxy", "moe"] {
        assert!(ran(&[program]), "{program}: not run\n{table}");
    }
    assert!(table.lines().count() > 130, "{table}");
}

#[test]
fn peers_join_server_over_worst_network() {
    let mut server = ServeProcess::start("-p worst:seed=3 --peers 2 --bytes 100000 --rails 2 --visits 2");
    for args in ["-b 4097 -n 100", "-b 1 -n 7 --window 1"] {
        verified(run(server.join(&format!("{args} --csv -"))));
        assert_eq!(server.until("left")["verified"], "true");
    }
    let done = server.finish().expect(0);
    assert!(done.stdout.contains("provider=worst:seed=3 "), "{}", done.stdout);
    let done = run(ginlab("echo -p worst -e 4K -n 20 -w 1 --csv -")).expect(0);
    assert!(
        rows(&done.stdout).iter().any(|row| row.fabric == "worst:seed=1" && row.wrong_bytes == Some(0)),
        "{}",
        done.stdout
    );
}

/// The queue has space for exactly one window of each peer.
#[test]
fn peer_writes_fit_in_small_server_queue() {
    let server = ServeProcess::start("-p worst:seed=5,queue=16 --peers 2 --bytes 4K --rails 2 --visits 2");
    let both = [(); 2].map(|()| ProcessGroup::start(server.join("-b 8 -n 500 --window 200 --csv -")));
    for job in both {
        let done = job.finish();
        assert!(rows(&done.stdout).iter().all(|row| row.own("window").number() == Some(8.0)), "{done:?}");
        verified(done);
    }
    server.finish().expect(0);
}

/// Joins as any peer does. Returns the session, the target of its writes, its tag and its window.
async fn join(flow: &Flow<AnyRail>, port: u16) -> (Session, Target, u32, u64) {
    let mut visit = Session::connect(&format!("127.0.0.1:{port}"), "secret", TOO_LONG).await.unwrap();
    let _: Value = visit.hear("server").await.unwrap();
    visit.say("joining", &json!({ "offer": flow.offer(&[]).unwrap(), "write_bytes": 8 })).await.unwrap();
    let place: Value = visit.hear("place").await.unwrap();
    let offer: Offer = serde_json::from_value(place["offer"].clone()).unwrap();
    let target = Target::new(flow.add_peer(&offer).unwrap(), &offer, 0).unwrap();
    (visit, target, place["tag"].as_u64().unwrap() as u32, place["window"].as_u64().unwrap())
}

/// Reports `writes` writes as done, and leaves. Returns the number that the server has counted.
async fn counted(mut visit: Session, writes: u64) -> u64 {
    visit.say("writes", &json!({ "writes": writes, "extent": 8 })).await.unwrap();
    let last = loop {
        let answer: Value = visit.hear("writes").await.unwrap();
        if let Some(last) = answer.get("Checksum") {
            break last.clone();
        }
    };
    visit.say("verdict", &json!({ "right": true })).await.unwrap();
    last["writes"].as_u64().unwrap()
}

/// Every write of every window completes at its peer while the server does not poll.
#[test]
fn stopped_server_loses_no_writes() {
    let spec = "worst:seed=5,queue=24";
    let server = ServeProcess::start(&format!("-p {spec} --peers 3 --bytes 4K --visits 3"));
    let fabric = Fabric::named(Some(spec), &[]).unwrap();
    let rails = |rank| fabric.choose(1, &RankPlace::alone(rank, Reach::SameHost), RailOptions::default()).unwrap();
    let open = |rank| Flow::new(rails(rank).open().unwrap(), TOO_LONG);
    let flows: Vec<_> = (1..=3).map(open).collect();
    let program = async {
        let mut peers = Vec::new();
        for flow in &flows {
            peers.push(join(flow, server.1).await);
        }
        server.0.signal(Signal::SIGSTOP);
        for (flow, (_, target, tag, window)) in flows.iter().zip(&peers) {
            let source =
                flow.register(Device::Emulated.allocate(MemoryLocation::Host, 64).unwrap(), Access::SOURCE).unwrap();
            let write = |_| flow.write_with_immediate(&source, 0, target, 0, 8, *tag);
            let writes: Vec<_> = (0..*window).map(write).collect();
            for write in writes {
                write.await.unwrap();
            }
        }
        server.0.signal(Signal::SIGCONT);
        for (visit, _, _, window) in peers {
            assert_eq!((window, counted(visit, window).await), (8, 8));
        }
    };
    flow::run(flows.clone(), program).unwrap();
    server.finish().expect(0);
}

#[test]
fn peers_of_stopped_server_time_out() {
    let mut server = ServeProcess::start("-p worst:seed=5,queue=24 --peers 3 --bytes 4K --visits 3");
    let stuck = [(); 2].map(|()| ProcessGroup::start(server.join("-b 8 -n 1000000000 --window 200 -t 3")));
    (0..2).for_each(|_| drop(server.until("writing")));
    server.0.signal(Signal::SIGSTOP);
    // Each peer has sent as many writes as the server has space for.
    for stuck in stuck {
        let stuck = stuck.finish().expect(124);
        assert!(stuck.complaint().contains("the server has not acknowledged more than"), "{stuck:?}");
    }
    server.0.signal(Signal::SIGCONT);
    (0..2).for_each(|_| drop(server.until("died")));
    verified(run(server.join("-b 8 -n 300 --csv -")));
    server.finish().expect(0);
}

#[test]
fn immediates_beyond_queue_capacity_are_rejected() {
    let done = run(with_token("serve -p worst:queue=2 --peers 3 --listen 127.0.0.1:0")).expect(2);
    assert!(done.complaint().contains("--peers 3: too many for a rail's completion queue, which holds 2"), "{done:?}");
    let done = run(ginlab("all2all --np 2 -d emulated -p worst:longest=1K,queue=100 -b 64K -e 64K -n 1")).expect(2);
    assert!(done.complaint().contains("2 ranks with 64 writes on one rail to each other can send 128"), "{done:?}");
    let done = run(ginlab("write --np 2 -d emulated -p worst:queue=1 -b 8 -e 8 -n 1")).expect(2);
    assert!(done.complaint().contains("can send 2 immediates to a rank that does not poll"), "{done:?}");
}

#[test]
fn unknown_settings_print_known_ones() {
    for program in
        ["proxy", "write", "sendrecv", "all2all", "shmem --path rails", "collective --path rails", "serve", "echo"]
    {
        for spec in ["worst:speed=3", "worst:delay=0", "worst:"] {
            let line = run(with_token(&format!("{program} -p {spec}"))).expect(2).complaint().to_owned();
            assert!(line.contains(spec) && line.contains("options are seed=N, delay=1..4096"), "{program}: {line}");
        }
    }
    let line = run(ginlab("write -p worst --domain lo")).expect(2).complaint().to_owned();
    assert!(line.contains("--domain: the worst-case network has no domains"), "{line}");
    assert!(run(ginlab("bootstrap -p worst")).expect(2).complaint().contains("no domains"));
}

fn with_token(args: &str) -> Command {
    let mut command = ginlab(args);
    command.env("GINLAB_TOKEN", "secret");
    command
}
