//! Ranks that close, exit or die before others.
//!
//! A rank may close as soon as its operations are complete, in any order with the others: NCCL's ncclCommDestroy does
//! not wait for other nodes. A process may also exit without closing. `GINLAB_ROUNDS` sets the number of rounds; the
//! suite runs only a few.

use crate::device::{SignalTarget, TestSignal};
use crate::rank::{NcclRank, RegisteredMemory, SIGNALS, SharedRankState, until};
use crate::ranks;
use nccl_ginlab::abi::{NcclResult, PTR_CUDA, PTR_HOST};
use nccl_ginlab::settings::{COPIES, COUNT, FAULT, PRETEND, RAILS, RECORDS, RULE, STRATEGY, TIMEOUT};
use std::ffi::c_void;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const LONG: usize = 300_000;
const PUTS: usize = 12;
const CASES: [&[(&str, &str)]; 6] = [
    &[],
    &[(COPIES, "kernel:1")],
    &[(RAILS, "model:p5"), (COUNT, "2"), (STRATEGY, "split")],
    &[(RAILS, "worst:seed=1")],
    &[(RAILS, "worst:seed=2,delay=500"), (RULE, "own")],
    &[(RAILS, "worst:seed=3,delay=4000"), (COUNT, "2"), (STRATEGY, "round-robin")],
];

fn rounds(few: usize) -> usize {
    std::env::var("GINLAB_ROUNDS").map_or(few, |text| text.parse().unwrap())
}

/// Registers the memory of a rank in these tests: source, target, and words of each kind.
fn memories(rank: &NcclRank) -> Vec<RegisteredMemory> {
    let mut source = rank.register(LONG, PTR_CUDA, 0);
    source.words.fill(77);
    let target = rank.register(PUTS * LONG, PTR_CUDA, 0);
    let words = [(PTR_CUDA, SIGNALS), (PTR_CUDA, 0), (PTR_HOST, 0)];
    [source, target].into_iter().chain(words.map(|(kind, flags)| rank.register(64, kind, flags))).collect()
}

/// Sends puts with signals of all kinds to a peer, and waits until they are complete.
fn send(rank: &NcclRank, all: &[RegisteredMemory], peer: usize) {
    post(rank, all, peer).into_iter().for_each(|request| rank.wait(request));
}

/// Posts puts with signals of all kinds to a peer.
fn post(rank: &NcclRank, all: &[RegisteredMemory], peer: usize) -> Vec<*mut c_void> {
    let put = |index: usize| {
        let memory = &all[2 + index % 3];
        let word =
            if index.is_multiple_of(3) { SignalTarget::Index(memory, 0) } else { SignalTarget::Address(memory, 0) };
        let bytes = [8, 4096, LONG, 0][index % 4];
        let signal = Some(TestSignal { word, add: 1, strong: index.is_multiple_of(2) });
        rank.gin_put((index % 2) as i32, (&all[0], 0), bytes, (&all[1], (index * LONG) as u64), peer, signal, LONG)
    };
    (0..PUTS).flat_map(put).collect()
}

/// Waits for the puts of `send`, and checks them.
fn receive(rank: &NcclRank, all: &[RegisteredMemory]) {
    let each = PUTS as u64 / 3;
    until("signals of a rank that has closed", || {
        assert!(!rank.failed(), "an error of a rank that has closed");
        all[2..].iter().all(|words| words.word(0) >= each)
    });
    for index in 0..PUTS {
        let bytes = [8, 4096, LONG, 0][index % 4];
        assert!((0..bytes / 8).all(|word| all[1].word(index * LONG / 8 + word) == 77), "put {index}");
    }
}

#[test]
fn closing_first_does_not_harm_peer() {
    for case in CASES {
        for round in 0..rounds(2) {
            let with: Vec<(&str, &str)> = case.iter().copied().chain([(PRETEND, "1"), (TIMEOUT, "20")]).collect();
            ranks(2, &with, |rank| {
                let all = memories(&rank);
                rank.meeting.meet();
                // In half of the rounds both ranks send. Rank 0 closes first.
                if rank.me == 0 || round % 2 == 1 {
                    send(&rank, &all, 1 - rank.me);
                }
                if rank.me == 1 || round % 2 == 1 {
                    receive(&rank, &all);
                }
                let me = rank.me;
                if me == 1 {
                    // Rank 0 closes in the meantime.
                    for _ in 0..2000 {
                        assert!(!rank.failed());
                        std::thread::yield_now();
                    }
                }
                rank.close(all);
            });
        }
    }
}

/// A rank closes as soon as it has seen all signals. The puts have arrived, but their sender may learn of their
/// completion later.
#[test]
fn closing_receiver_does_not_fail_landed_puts() {
    for case in CASES {
        for _ in 0..rounds(2) {
            let with: Vec<(&str, &str)> = case.iter().copied().chain([(PRETEND, "1"), (TIMEOUT, "20")]).collect();
            ranks(2, &with, |rank| {
                let all = memories(&rank);
                rank.meeting.meet();
                if rank.me == 0 {
                    send(&rank, &all, 1);
                    assert!(!rank.failed());
                } else {
                    receive(&rank, &all);
                }
                rank.close(all);
            });
        }
    }
}

/// Closing delivers puts for which no caller has waited. The puts are held back for a while, so that they are not sent
/// before the close.
#[test]
fn closing_delivers_posted_operations() {
    for case in [CASES[0], CASES[3]] {
        let with: Vec<(&str, &str)> =
            case.iter().copied().chain([(PRETEND, "1"), (TIMEOUT, "20"), (FAULT, "slow:20000")]).collect();
        ranks(2, &with, |rank| {
            let all = memories(&rank);
            rank.meeting.meet();
            if rank.me == 0 {
                post(&rank, &all, 1);
            } else {
                receive(&rank, &all);
            }
            rank.close(all);
        });
    }
}

/// A rank that has closed does not block operations between others.
#[test]
fn closed_rank_does_not_hold_up_others() {
    for rule in ["count", "own", "drain", "sequence"] {
        let variables = [(RAILS, "worst:seed=5"), (RULE, rule), (PRETEND, "1"), (TIMEOUT, "20")];
        ranks(3, &variables, |rank| {
            let all = memories(&rank);
            rank.meeting.meet();
            let me = rank.me;
            if me == 0 {
                (0..4).for_each(|_| send(&rank, &all, 1));
                rank.close(all);
                return;
            }
            until("signals of one sender", || all[2].word(0) >= 4 * PUTS as u64 / 3);
            if me == 1 {
                (0..4).for_each(|_| send(&rank, &all, 2));
            }
            assert!(!rank.failed());
            rank.close(all);
        });
    }
}

/// Variable with the role of a test's child process.
const ROLE: &str = "GINLAB_DOUBLE_ROLE";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> [u8; 128] {
    let byte = |index: usize| u8::from_str_radix(&text[2 * index..2 * index + 2], 16).unwrap();
    std::array::from_fn(byte)
}

/// Starts rank 0 in its own process. `role` specifies how it ends. It writes its handle to standard output, and reads
/// that of the other rank from standard input.
fn child(name: &str, role: &str, case: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture"]).env(ROLE, role).envs(case.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Runs as rank 0 of two.
fn be_child(role: &str) -> ! {
    let meeting = SharedRankState::of(2);
    let rank = NcclRank::join_by(&meeting, 0, &[(PRETEND, "1"), (TIMEOUT, "20")], |handle| {
        println!("\nhandle {}", hex(&handle));
        let other = std::io::stdin().lines().next().unwrap().unwrap();
        vec![handle, unhex(&other)]
    });
    let rank = rank.unwrap();
    let all = memories(&rank);
    // The peer must also have registered its memory.
    println!("\nready");
    std::io::stdin().lines().next().unwrap().unwrap();
    if role == "dies" {
        let request = rank.put((&all[0], 0), LONG, (&all[1], 0), 1, None);
        std::hint::black_box(request);
        std::process::abort();
    }
    send(&rank, &all, 1);
    std::process::exit(0)
}

/// Joins as rank 1, with a child process as rank 0.
fn beside_child(
    child: &mut Child,
    variables: &[(&str, &str)],
) -> (NcclRank, Vec<RegisteredMemory>, BufReader<std::process::ChildStdout>) {
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = |start: &str| {
        loop {
            let mut text = String::new();
            assert!(said.read_line(&mut text).unwrap() > 0, "the child has ended");
            if let Some(rest) = text.strip_prefix(start) {
                return rest.trim().to_owned();
            }
        }
    };
    let meeting: Arc<SharedRankState> = SharedRankState::of(2);
    let theirs = unhex(&line("handle "));
    let rank = NcclRank::join_by(&meeting, 1, variables, |handle| {
        writeln!(child.stdin.as_mut().unwrap(), "{}", hex(&handle)).unwrap();
        vec![theirs, handle]
    })
    .unwrap();
    let all = memories(&rank);
    line("ready");
    (rank, all, said)
}

#[test]
fn exit_without_closing_does_not_harm_peer() {
    if let Ok(role) = std::env::var(ROLE) {
        be_child(&role);
    }
    for case in &CASES[2..5] {
        for _ in 0..rounds(1) {
            let mut process = child("closing::exit_without_closing_does_not_harm_peer", "exits", case);
            let with = [case, &[(PRETEND, "1"), (TIMEOUT, "20")][..]].concat();
            let (rank, all, _said) = beside_child(&mut process, &with);
            writeln!(process.stdin.as_mut().unwrap(), "go").unwrap();
            assert!(process.wait().unwrap().success());
            receive(&rank, &all);
            assert!(!rank.failed());
            rank.close(all);
        }
    }
}

/// The error names a peer that dies during an operation to it.
#[test]
fn dead_peer_with_outstanding_put_is_named() {
    if let Ok(role) = std::env::var(ROLE) {
        be_child(&role);
    }
    let folder = std::env::temp_dir().join(format!("ginlab-nccl-dead-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let name = folder.to_str().unwrap().to_owned();
    for case in [&[][..], &[(RAILS, "worst:seed=1")]] {
        let mut process = child("closing::dead_peer_with_outstanding_put_is_named", "dies", case);
        let with = [case, &[(PRETEND, "1"), (TIMEOUT, "20"), (RECORDS, &name)]].concat();
        let (rank, all, _said) = beside_child(&mut process, &with);
        writeln!(process.stdin.as_mut().unwrap(), "go").unwrap();
        assert!(!process.wait().unwrap().success());
        let put = |_| rank.try_put_in(0, (&all[0], 0), LONG, (&all[1], 0), 0, None);
        // The failure may come between two puts.
        let mut requests: Vec<_> = (0..40).map_while(|index| put(index).ok()).collect();
        until("an error", || {
            requests.retain(|request| !rank.test(*request).1);
            rank.failed()
        });
        assert!(requests.iter().all(|request| rank.test(*request) == (NcclResult::REMOTE, false)));
        rank.close(all);
        let mut failures = std::fs::read_dir(&folder).unwrap().map(|entry| {
            let file = entry.unwrap().path();
            let record: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
            std::fs::remove_file(file).unwrap();
            record["failure"].as_str().unwrap_or_default().to_owned()
        });
        let failure = failures.next().unwrap();
        // The failure is reported immediately, not as a stall after the timeout.
        assert!(failure.contains("an operation to rank 0 has not arrived"), "{failure}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
