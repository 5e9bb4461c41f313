//! A test double of NCCL. It calls the plugin's tables like NCCL 2.32.3 (listen, connect, createContext, regMrSym,
//! iput, iputSignal, iget, iflush, test, closeColl), from threads that act as ranks, without a GPU. CUDA memory is host
//! memory that is accessed by delayed copies.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

mod again;
mod alternating;
mod closing;
mod device;
mod driver;
mod early;
mod kernel;
mod order;
mod queues;
mod rank;
mod refusals;
mod soft;
mod sources;
mod stepped;
mod visible;

use nccl_ginlab::abi::{NcclResult, PTR_CUDA, PTR_HOST, SIGNAL_ADD, SIGNAL_INC};
use nccl_ginlab::settings::PRETEND;
use nccl_ginlab::settings::{COPIES, COUNT, FAULT, RAILS, RECORDS, RULE, STRATEGY, TIMEOUT, TRACE};
use nccl_ginlab::tables::{ncclRmaPlugin_v13, ncclRmaPlugin_v14, ncclRmaPlugin_v15, ncclRmaPlugin_v16};
use rank::{NcclRank, OK, RegisteredMemory, SIGNALS, SharedRankState, until};
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Returns a byte of a payload, which depends on the pair of ranks, the index and the round.
fn byte(from: usize, to: usize, index: usize, round: usize) -> u8 {
    (index.wrapping_mul(31) ^ (index >> 8) ^ (from * 17) ^ (to * 61) ^ (round * 7)) as u8
}

/// Runs `program` on threads that act as ranks.
fn ranks(count: usize, variables: &[(&str, &str)], program: impl Fn(NcclRank) + Send + Sync) {
    let meeting = SharedRankState::of(count);
    std::thread::scope(|scope| {
        for me in 0..count {
            let (meeting, program) = (&meeting, &program);
            scope.spawn(move || program(NcclRank::join(meeting, me, variables).unwrap()));
        }
    });
}

const SIZES: [usize; 7] = [0, 1, 8, 4095, 4096, 70_000, 300_000];
const STRIDE: usize = 300_032;

/// Runs puts of all sizes to all ranks, each with a signal; strong signals after puts without one; gets; and signals in
/// a user's own words.
fn everything(rank: &NcclRank, kind: c_int, rounds: usize) -> Vec<RegisteredMemory> {
    let (me, ranks) = (rank.me, rank.meeting.ranks);
    let mut source = rank.register(ranks * STRIDE, kind, 0);
    let mut target = rank.register(ranks * STRIDE, kind, 0);
    let signals = rank.register(64 * 8, kind, SIGNALS);
    let own = rank.register(64 * 8, kind, 0);
    // Values in NCCL's commands are in host memory, whatever `kind` is.
    let mut inline = rank.register(64 * 8, PTR_HOST, 0);
    rank.meeting.meet();
    let mut expected = vec![0u64; 64];
    for round in 0..rounds {
        for (size_index, &size) in SIZES.iter().enumerate() {
            for to in 0..ranks {
                for index in 0..size {
                    source.bytes_mut()[to * STRIDE + index] = byte(me, to, index, round * 10 + size_index);
                }
            }
            target.bytes_mut().fill(0xEE);
            rank.meeting.meet();
            let add = 1 + (round as u64) * 3;
            let put = |to: usize| {
                let strong = size_index % 2 == 0;
                let signal = Some((&signals, me as u64 * 8, add, strong));
                rank.put((&source, (to * STRIDE) as u64), size, (&target, (me * STRIDE) as u64), to, signal)
            };
            let requests: Vec<_> = (0..ranks).map(put).collect();
            expected.iter_mut().take(ranks).for_each(|value| *value += add);
            for (from, expected) in expected.iter().enumerate().take(ranks) {
                until("a signal", || signals.word(from) >= *expected);
                assert_eq!(signals.word(from), *expected);
                let came = &target.bytes()[from * STRIDE..][..STRIDE];
                let wrong =
                    (0..size).filter(|index| came[*index] != byte(from, me, *index, round * 10 + size_index)).count();
                assert_eq!((wrong, came[size]), (0, 0xEE), "{size} B from {from} to {me}");
            }
            requests.into_iter().for_each(|request| rank.wait(request));
            rank.meeting.meet();
        }
        // Many small puts, followed by one strong signal.
        target.bytes_mut().fill(0xEE);
        rank.meeting.meet();
        let mut requests = Vec::new();
        for to in 0..ranks {
            for index in 0..40 {
                inline.words[to * 8] = 0;
                let at = (to * STRIDE + index * 8) as u64;
                requests.push(rank.put((&source, at), 8, (&target, (me * STRIDE + index * 8) as u64), to, None));
            }
            requests.push(rank.put((&source, 0), 0, (&target, 0), to, Some((&signals, (16 + me as u64) * 8, 5, true))));
        }
        expected[16..16 + ranks].iter_mut().for_each(|value| *value += 5);
        for from in 0..ranks {
            until("a strong signal", || signals.word(16 + from) >= expected[16 + from]);
            let came = &target.bytes()[from * STRIDE..][..320];
            let wrong =
                (0..320).filter(|index| came[*index] != byte(from, me, *index, round * 10 + SIZES.len() - 1)).count();
            assert_eq!(wrong, 0, "small puts from {from} to {me}");
        }
        requests.into_iter().for_each(|request| rank.wait(request));
        // A user's own words, two per rank, which the user resets.
        let requests: Vec<_> = (0..ranks)
            .flat_map(|to| {
                [(0, 2u64), (8, 1), (0, 1), (0, 4), (8, 1)].map(|(first, add)| {
                    rank.put((&source, 0), 0, (&target, 0), to, Some((&own, (first + me as u64) * 8, add, false)))
                })
            })
            .collect();
        (0..ranks).for_each(|from| until("a user's signal", || (own.word(from), own.word(8 + from)) == (7, 2)));
        requests.into_iter().for_each(|request| rank.wait(request));
        rank.meeting.meet();
        for from in (0..ranks).chain(8..8 + ranks) {
            // SAFETY: no signal is in flight between the two meetings.
            unsafe { AtomicU64::from_ptr(own.words.as_ptr().add(from).cast_mut()) }.store(0, Ordering::Release);
        }
        // Gets from the sources of all ranks.
        target.bytes_mut().fill(0xEE);
        rank.meeting.meet();
        let size = SIZES[SIZES.len() - 1];
        let requests: Vec<_> = (0..ranks)
            .map(|of| rank.get((&source, (me * STRIDE) as u64), size, (&target, (of * STRIDE) as u64), of))
            .collect();
        requests.into_iter().for_each(|request| rank.wait(request));
        let mut flushed = null_mut();
        // SAFETY: the call and its arguments are those of NCCL.
        assert_eq!(unsafe { (ncclRmaPlugin_v16.iflush)(rank.context, 0, signals.handle, me as u32, &mut flushed) }, OK);
        rank.wait(flushed);
        for of in 0..ranks {
            let came = &target.bytes()[of * STRIDE..][..STRIDE];
            let wrong =
                (0..size).filter(|index| came[*index] != byte(of, me, *index, round * 10 + SIZES.len() - 1)).count();
            assert_eq!((wrong, came[size]), (0, 0xEE), "a get of {me} from {of}");
        }
        rank.meeting.meet();
    }
    vec![source, target, signals, own, inline]
}

fn all_of(count: usize, variables: &[(&str, &str)], kind: c_int, rounds: usize) {
    let with: Vec<(&str, &str)> = variables.iter().copied().chain([(PRETEND, "1")]).collect();
    ranks(count, &with, |rank| {
        let memories = everything(&rank, kind, rounds);
        rank.leave(memories);
    });
}

#[test]
fn shared_memory() {
    all_of(2, &[], PTR_CUDA, 2);
    all_of(4, &[(COUNT, "2"), (STRATEGY, "split")], PTR_HOST, 1);
}

#[test]
fn exchanges_work_with_copy_kernel() {
    let folder = std::env::temp_dir().join(format!("ginlab-nccl-kernel-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let name = folder.to_str().unwrap().to_owned();
    all_of(2, &[(COPIES, "kernel:1"), (RECORDS, &name)], PTR_CUDA, 2);
    all_of(2, &[(COPIES, "kernel:3"), (RAILS, "worst:seed=3"), (RECORDS, &name)], PTR_CUDA, 1);
    let mut count = 0;
    for file in std::fs::read_dir(&folder).unwrap() {
        let record: serde_json::Value = serde_json::from_slice(&std::fs::read(file.unwrap().path()).unwrap()).unwrap();
        let copies = record["copies"].as_str().unwrap_or_default();
        assert!(copies.contains("by a kernel"), "{copies}");
        count += 1;
    }
    assert_eq!(count, 4);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn modelled_cards() {
    all_of(2, &[(RAILS, "model:p5"), (COUNT, "4"), (STRATEGY, "split")], PTR_CUDA, 1);
    all_of(4, &[(RAILS, "model:p5"), (RULE, "own")], PTR_HOST, 1);
}

#[test]
fn tcp() {
    if ginlab_fabric::libfabric::require_library().is_err() {
        eprintln!("skipped: no libfabric");
        return;
    }
    all_of(2, &[(RAILS, "tcp"), (COUNT, "2")], PTR_CUDA, 1);
}

#[test]
fn exchanges_work_over_worst_case_network() {
    // Runs each rule with each strategy.
    for seed in 1..=12 {
        let rails = format!("worst:seed={seed}");
        let rule = ["count", "own", "drain", "sequence"][seed % 4];
        let (count, strategy) = [("1", "single"), ("3", "split"), ("2", "round-robin")][seed % 3];
        let kind = if seed % 2 == 0 { PTR_CUDA } else { PTR_HOST };
        let number = if seed % 5 == 0 { 4 } else { 2 };
        all_of(number, &[(RAILS, &rails), (RULE, rule), (COUNT, count), (STRATEGY, strategy)], kind, 1);
    }
}

#[test]
fn older_tables_call_same_functions() {
    ranks(2, &[], |rank| {
        let mut source = rank.register(64, PTR_HOST, 0);
        let (target, signals) = (rank.register(64, PTR_HOST, 0), rank.register(64, PTR_HOST, SIGNALS));
        source.words[0] = 77;
        let peer = 1 - rank.me as u32;
        let mut requests = [null_mut(); 6];
        // SAFETY: the calls and their arguments are those of older NCCL versions.
        unsafe {
            let (from, to, at, context) = (source.handle, target.handle, signals.handle, rank.context);
            let [a, b, c, d, e, f] = &mut requests;
            assert_eq!((ncclRmaPlugin_v13.iput)(context, 0, 0, from, 8, 0, to, peer, a), OK);
            assert_eq!(
                (ncclRmaPlugin_v13.iput_signal)(context, 0, 0, from, 8, 8, to, peer, 0, at, 9, SIGNAL_INC, b),
                OK
            );
            assert_eq!((ncclRmaPlugin_v14.iput)(context, 0, 0, from, 8, 16, to, peer, c), OK);
            assert_eq!(
                (ncclRmaPlugin_v14.iput_signal)(context, 0, 0, from, 8, 24, to, peer, 0, at, 2, SIGNAL_ADD, true, d),
                OK
            );
            assert_eq!((ncclRmaPlugin_v15.iput)(context, 0, 0, from, 8, 32, to, peer, 1, e), OK);
            assert_eq!(
                (ncclRmaPlugin_v15.iput_signal)(context, 0, 0, from, 8, 40, to, peer, 0, at, 4, SIGNAL_ADD, true, 1, f),
                OK
            );
        }
        until("signals of three versions", || signals.word(0) == 7);
        assert_eq!(target.words[..6], [77; 6]);
        requests.into_iter().for_each(|request| rank.wait(request));
        rank.leave(vec![source, target, signals]);
    });
}

#[test]
fn faults_are_reported_and_waits_end() {
    for fault in ["error:2", "lost:2", "dead:2"] {
        let meeting = SharedRankState::of(2);
        std::thread::scope(|scope| {
            for me in 0..2 {
                let meeting = &meeting;
                scope.spawn(move || {
                    let variables: &[(&str, &str)] =
                        if me == 0 { &[(TIMEOUT, "1"), (FAULT, fault)] } else { &[(TIMEOUT, "1")] };
                    let rank = NcclRank::join(meeting, me, variables).unwrap();
                    let (source, target) = (rank.register(1 << 20, PTR_HOST, 0), rank.register(1 << 20, PTR_HOST, 0));
                    meeting.meet();
                    let first = rank.put((&source, 0), 8, (&target, 0), 1 - me, None);
                    rank.wait(first);
                    meeting.meet();
                    if me == 0 {
                        let second = rank.put((&source, 0), 8, (&target, 0), 1, None);
                        let late =
                            Instant::now() + Duration::from_millis(if fault == "error:2" { 60_000 } else { 300 });
                        let mut ended = rank.test(second);
                        while ended == (OK, false) && Instant::now() < late {
                            ended = rank.test(second);
                            std::thread::yield_now();
                        }
                        let expected = if fault == "error:2" { NcclResult::REMOTE } else { OK };
                        assert_eq!(ended, (expected, false), "{fault}");
                    } else if fault == "dead:2" {
                        meeting.meet();
                        // The dead rank does not return slots, so the puts stall. The stall must be reported.
                        let mut requests = Vec::new();
                        let mut refused = false;
                        for _ in 0..40 {
                            let mut request = null_mut();
                            // SAFETY: the call and its arguments are those of NCCL.
                            let result = unsafe {
                                (ncclRmaPlugin_v16.iput)(
                                    rank.context,
                                    0,
                                    0,
                                    source.handle,
                                    1 << 20,
                                    0,
                                    target.handle,
                                    0,
                                    0,
                                    &mut request,
                                )
                            };
                            refused |= result == NcclResult::REMOTE;
                            requests.push(request);
                        }
                        until("an error", || {
                            for request in &mut requests {
                                let (result, done) = rank.test(*request);
                                refused |= result == NcclResult::REMOTE;
                                if done {
                                    // A completed request must not be tested again.
                                    *request = null_mut();
                                }
                            }
                            refused
                        });
                        let mut error = false;
                        // SAFETY: the call and its arguments are those of NCCL.
                        unsafe { (ncclRmaPlugin_v16.query_last_error)(rank.context, &mut error) };
                        assert!(error);
                    }
                    if me == 0 && fault == "dead:2" {
                        meeting.meet();
                    }
                    rank.leave(vec![source, target]);
                });
            }
        });
    }
}

#[test]
fn records_list_puts_with_targets() {
    let folder = std::env::temp_dir().join(format!("ginlab-nccl-records-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let name = folder.to_str().unwrap().to_owned();
    ranks(2, &[(RECORDS, &name), (TRACE, "100")], |rank| {
        let (source, target) = (rank.register(1 << 20, PTR_HOST, 0), rank.register(1 << 20, PTR_HOST, 0));
        let signals = rank.register(64, PTR_HOST, SIGNALS);
        rank.meeting.meet();
        let peer = 1 - rank.me;
        let request = rank.put((&source, 0), 300_000, (&target, 0), peer, Some((&signals, 8, 5, false)));
        until("a signal", || signals.word(1) == 5);
        rank.wait(request);
        rank.wait(rank.get((&source, 0), 100, (&target, 0), peer));
        rank.leave(vec![source, target, signals]);
    });
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 2);
    for (me, file) in files.iter().enumerate() {
        let record: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let (to, from) = (&record["to"][1 - me], &record["from"][1 - me]);
        assert_eq!((record["rank"].as_u64(), record["ranks"].as_u64()), (Some(me as u64), Some(2)));
        assert_eq!(
            (to["puts"].as_u64(), to["bytes"].as_u64(), to["added"].as_u64()),
            (Some(1), Some(300_000), Some(5))
        );
        assert_eq!(
            (from["puts"].as_u64(), from["added"].as_u64(), from["get_bytes"].as_u64()),
            (Some(1), Some(5), Some(100))
        );
        let kinds: Vec<&str> =
            record["trace"].as_array().unwrap().iter().map(|entry| entry["kind"].as_str().unwrap()).collect();
        assert!(["put", "arrival", "get"].iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
        assert!(record["failure"].is_null() && record["ended"] == true);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
