//! Tests that commands become transfers, and that completions advance the watermark.

use super::{Bench, SOON, SPACE, put};
use crate::engine::{EngineError, IDLE_RAIL_POLLS, MOST_QUEUED};
use ginlab_fabric::chosen::BareWrites;
use ginlab_fabric::testing::scripted::Scripted;
use ginlab_fabric::{Completion, FabricError};
use ginlab_rails::strategy::Strategy;
use kernels::command::{Command, MOST_ADDED, Opcode, SIGNALS, signal_immediate};

const STRATEGIES: [Strategy; 4] =
    [Strategy::Single, Strategy::Split, Strategy::RoundRobin, Strategy::Auto { threshold: 0 }];

#[test]
fn empty_commands_complete_and_empty_signals_are_sent() {
    for strategy in STRATEGIES {
        for rails in 1..4 {
            let mut bench = Bench::new(rails, 8, SOON);
            bench.engine.configure(rails, strategy);
            let get = Command { opcode: Opcode::Get, source_region: 1, destination_region: 0, ..put(0, 0, 0) };
            // The end of a region is a valid offset for 0 bytes.
            for empty in [put(0, 0, 0), put(SPACE, 2 * SPACE, 0), get] {
                let ticket = bench.submit(empty);
                assert_eq!(bench.engine.watermark(), ticket + 1, "{strategy} {rails} {empty:?}");
            }
            bench.pump();
            assert!(
                (0..rails).all(|rail| bench.written(rail).is_empty() && bench.rails[rail].borrow().read.is_empty())
            );
            assert_eq!((bench.engine.in_flight(), bench.engine.room()), (0, 8));

            let signals = [
                Command { opcode: Opcode::PutSignal, immediate: 7, ..put(0, 0, 0) },
                // The length of a signal without a put is ignored.
                Command { opcode: Opcode::Signal, immediate: SIGNALS - 1, ..put(0, 0, 64) },
            ];
            for signal in signals {
                bench.submit(signal);
            }
            bench.pump();
            let posted: Vec<_> =
                (0..rails).flat_map(|rail| bench.written(rail)).map(|t| (t.bytes, t.immediate)).collect();
            assert_eq!(posted, [(0, Some(7)), (0, Some(SIGNALS - 1))], "{strategy} {rails}");
            assert_eq!(bench.engine.watermark(), 3, "a signal waits for its completion");
        }
    }
}

#[test]
fn empty_put_waits_in_order_and_is_checked() {
    let mut bench = Bench::new(1, 8, SOON);
    bench.submit(put(0, 0, 8));
    bench.submit(put(0, 0, 0));
    bench.pump();
    assert_eq!(bench.engine.watermark(), 0);
    bench.complete(&[0]);
    assert_eq!(bench.progress(), Ok(true));
    assert_eq!(bench.engine.watermark(), 2);
    for bad in [Command { peer: 2, ..put(0, 0, 0) }, put(SPACE + 1, 0, 0), put(0, 2 * SPACE + 1, 0)] {
        assert!(matches!(bench.engine.submit(&bad), Err(EngineError::Refused(_))), "{bad:?}");
    }
}

#[test]
fn transfer_matches_command() {
    let mut bench = Bench::new(2, 8, SOON);
    bench.engine.configure(2, Strategy::RoundRobin);
    bench.submit(Command { peer: 1, ..put(100, 200, 50) });
    bench.submit(Command { opcode: Opcode::PutSignal, immediate: 9, ..put(1, 2, 3) });
    let get = Command { opcode: Opcode::Get, source_region: 1, destination_region: 0, peer: 1, ..put(300, 400, 60) };
    bench.submit(get);
    bench.pump();
    let first = bench.written(0)[0];
    assert_eq!((first.local_offset, first.remote_offset, first.bytes, first.peer), (100, 200, 50, 1));
    assert_eq!((first.token, first.immediate, first.remote.key), (0, None, 2 * 110));
    let second = bench.written(1)[0];
    assert_eq!((second.token, second.immediate, second.remote.key, second.peer), (1, Some(9), 111, 0));
    let read = bench.rails[0].borrow().read[0];
    assert_eq!((read.local_offset, read.remote_offset, read.bytes, read.peer), (400, 300, 60, 1));
    assert_eq!((read.token, read.immediate, read.remote.key), (2, None, 2 * 110));
    assert_eq!(bench.engine.counters().rail_bytes, [110, 3]);
    assert_eq!((bench.engine.commands(), bench.engine.posted()), (3, 3));
}

#[test]
fn split_put_uses_active_rails_and_completes_once() {
    let mut bench = Bench::new(3, 8, SOON);
    bench.engine.configure(2, Strategy::Split);
    let ticket = bench.submit(put(0, 4096, 16384));
    bench.pump();
    let all: Vec<_> = (0..3).map(|rail| bench.written(rail)).collect();
    let shape = |rail: usize| all[rail].iter().map(|t| (t.local_offset, t.remote_offset, t.bytes)).collect::<Vec<_>>();
    assert_eq!(shape(0), [(0, 4096, 8192)]);
    assert_eq!(shape(1), [(8192, 12288, 8192)]);
    assert!(all[2].is_empty());
    bench.complete(&[ticket]);
    bench.progress().unwrap();
    assert_eq!((bench.engine.watermark(), bench.engine.posted()), (0, 1), "one of two pieces");
    bench.complete(&[ticket]);
    bench.progress().unwrap();
    assert_eq!((bench.engine.watermark(), bench.engine.posted()), (1, 0));
}

#[test]
fn shortest_limit_of_rails_fragments_puts() {
    // The limit of rail 2 is a quarter of that of rail 0.
    let mut bench = Bench::new(3, 8, SOON);
    bench.submit(put(0, 0, SPACE));
    bench.pump();
    assert_eq!(bench.written(0).iter().map(|t| t.bytes).collect::<Vec<_>>(), [SPACE / 4; 4]);
    let signal = |bytes| Command { opcode: Opcode::PutSignal, ..put(0, 0, bytes) };
    bench.submit(signal(SPACE / 4));
    bench.submit(signal(SPACE / 4 + 1));
    bench.pump();
    let posted: Vec<_> = bench.written(0)[4..].iter().map(|t| (t.token, t.bytes)).collect();
    assert_eq!(posted, [(1, SPACE / 4), (2, SPACE / 4), (2, 1)]);
    bench.complete(&[0, 0, 0, 0, 1, 2]);
    bench.progress().unwrap();
    assert_eq!(bench.engine.watermark(), 2);
    bench.complete(&[2]);
    bench.progress().unwrap();
    assert_eq!(bench.engine.watermark(), 3);
}

#[test]
fn doorbells_are_held_in_chains_of_sixteen() {
    let mut bench = Bench::new(1, 64, SOON);
    (0..40).for_each(|_| _ = bench.submit(put(0, 0, 8)));
    bench.pump();
    let rung: Vec<usize> = bench.written(0).iter().enumerate().filter(|(_, t)| !t.more).map(|(at, _)| at).collect();
    assert_eq!(rung, [15, 31, 39]);
}

#[test]
fn missing_regions_and_peers_are_rejected() {
    let mut bench = Bench::new(2, 64, SOON);
    let get = Command { opcode: Opcode::Get, source_region: 1, destination_region: 0, ..put(0, 0, 8) };
    let good = [put(SPACE - 8, 2 * SPACE - 8, 8), Command { peer: 1, ..put(0, 0, 8) }, get];
    for command in good {
        bench.submit(command);
    }
    let signal = Command { opcode: Opcode::Signal, immediate: MOST_ADDED << 12, ..put(0, 0, 0) };
    let bad = [
        Command { source_region: 2, ..put(0, 0, 8) },
        Command { destination_region: 2, ..put(0, 0, 8) },
        Command { peer: 2, ..put(0, 0, 8) },
        put(SPACE - 7, 0, 8),
        put(0, 2 * SPACE - 7, 8),
        put(u64::MAX, 0, 8),
        put(0, u64::MAX, 8),
        signal,
        Command { opcode: Opcode::PutSignal, bytes: 8, ..signal },
        // A get reads from the peer's region, which is larger than ours.
        Command { destination_offset: SPACE - 7, ..get },
        Command { source_offset: 2 * SPACE - 7, ..get },
    ];
    for command in bad {
        let text = bench.engine.submit(&command).unwrap_err().to_string();
        assert!(
            text.starts_with("command refused: ") && text.contains("2 regions of [1048576, 2097152] bytes"),
            "{text}"
        );
    }
    bench.pump();
    assert_eq!(bench.written(0).len() + bench.rails[0].borrow().read.len(), good.len());
}

#[test]
fn full_rail_is_retried_and_stops_intake() {
    let mut bench = Bench::new(1, 4 * MOST_QUEUED, SOON);
    bench.rails[0].borrow_mut().full = true;
    for queued in 0..MOST_QUEUED {
        assert_eq!(bench.engine.room(), 4 * MOST_QUEUED - queued);
        bench.submit(put(0, 0, 8));
    }
    assert_eq!(bench.engine.room(), 0, "as many as may wait");
    bench.pump();
    bench.pump();
    assert_eq!((bench.engine.counters().again, bench.engine.posted()), (2, 0));
    assert!(bench.engine.state().contains("rail 0 posted 0 B, 1024 waiting to be posted"), "{}", bench.engine.state());
    bench.rails[0].borrow_mut().full = false;
    bench.pump();
    assert_eq!((bench.written(0).len(), bench.engine.posted()), (MOST_QUEUED, MOST_QUEUED as u64));
    assert_eq!(bench.engine.room(), 3 * MOST_QUEUED);
}

#[test]
fn failed_post_is_reported_and_earlier_posts_count() {
    let mut bench = Bench::new(1, 8, SOON);
    bench.rails[0].borrow_mut().breaks_after = Some(2);
    (0..4).for_each(|_| _ = bench.submit(put(0, 0, 8)));
    assert!(matches!(bench.engine.pump(&mut ()), Err(EngineError::Fabric(_))));
    assert_eq!((bench.engine.posted(), bench.engine.counters().rail_bytes[0]), (2, 16));
}

#[test]
fn inactive_rails_are_polled_occasionally() {
    let mut bench = Bench::new(2, 8, SOON);
    bench.engine.configure(1, Strategy::Split);
    (0..2 * IDLE_RAIL_POLLS).for_each(|_| assert_eq!(bench.progress(), Ok(false)));
    assert_eq!(bench.rails[0].borrow().polls, 2 * IDLE_RAIL_POLLS);
    assert_eq!(bench.rails[1].borrow().polls, 2);
    // A number above the number of rails selects all of them, and 0 selects one.
    for (asked, used) in [(9, 2), (0, 1)] {
        bench.engine.configure(asked, Strategy::RoundRobin);
        assert_eq!(bench.engine.active_rails, used);
    }
}

#[test]
fn signals_are_counted_and_strangers_are_not() {
    let mut bench = Bench::new(1, 8, SOON);
    let arrived = [0, 3, 3, SIGNALS - 1, signal_immediate(3, 1000), MOST_ADDED << 12, u32::MAX];
    bench.rails[0].borrow_mut().ready.extend(arrived.map(|value| Completion::Immediate { value }));
    assert_eq!(bench.progress(), Ok(true));
    let signals = bench.engine.signals();
    assert_eq!((signals.len(), signals[0], signals[3]), (SIGNALS as usize, 1, 1002));
    assert_eq!((signals.last(), signals.iter().sum::<u64>()), (Some(&1), 1004));
}

#[test]
fn failures_are_reported_and_other_completions_count() {
    let mut bench = Bench::new(2, 8, SOON);
    bench.engine.configure(2, Strategy::RoundRobin);
    (0..4).for_each(|_| _ = bench.submit(put(0, 0, 8)));
    bench.pump();
    let error = |text: &str| {
        let (rail, operation, text) = (String::new(), String::new(), text.to_owned());
        Box::new(FabricError { rail, operation, code: 5, text, hint: String::new() })
    };
    // A completion without a token does not count as one of our transfers.
    bench.rails[0].borrow_mut().ready.extend([
        Completion::Failed { token: None, error: error("a stranger's") },
        Completion::Failed { token: Some(2), error: error("the second") },
        Completion::Done { token: 0 },
    ]);
    bench.rails[1].borrow_mut().ready.push(Completion::Done { token: 1 });
    assert!(bench.progress().unwrap_err().to_string().contains("a stranger's"));
    assert_eq!((bench.engine.watermark(), bench.engine.posted()), (2, 1));
    // A failed rail hides neither the completions of the other rails nor its own error.
    bench.rails[0].borrow_mut().dead = true;
    bench.rails[1].borrow_mut().ready.push(Completion::Done { token: 3 });
    assert!(bench.progress().unwrap_err().to_string().contains("rail 0: poll failed: as the test says"));
    assert_eq!(bench.engine.posted(), 0);
    assert!(bench.progress().is_err(), "dead for good");
}

#[test]
fn baseline_tickets_are_separate_from_ring_tickets() {
    let mut bench = Bench::new(1, 4, SOON);
    bench.submit(put(0, 0, 0));
    let ring = bench.engine.suspend();
    assert_eq!((bench.engine.watermark(), bench.engine.room()), (0, 4));
    assert_eq!((bench.submit(put(0, 0, 0)), bench.submit(put(0, 0, 0))), (0, 1));
    bench.engine.resume(ring);
    assert_eq!((bench.engine.watermark(), bench.submit(put(0, 0, 0))), (1, 1));
}

#[test]
fn bare_loop_requires_valid_route() {
    let mut bench = Bench::new(2, 4, SOON);
    assert_eq!(bench.engine.bare_writes((0, 1, 1), 8, 3), Ok(None));
    let answer: BareWrites<Scripted> =
        |_, _, run| Ok((run.peer as u64 * 1_000_000 + run.remote.key * 1000 + run.bytes) as f64);
    bench.engine.set_bare_writes(Some(answer));
    assert_eq!(bench.engine.bare_writes((0, 1, 1), 8, 3), Ok(Some(1_220_008.0)));
    for route in [(2, 1, 0), (0, 2, 0), (0, 1, 2)] {
        assert!(matches!(bench.engine.bare_writes(route, 8, 1), Err(EngineError::Refused(_))), "{route:?}");
    }
    assert_eq!(bench.engine.rails().len(), 2);
    assert_eq!(bench.engine.rails_mut().len(), 2);
}
