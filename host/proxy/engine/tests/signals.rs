//! Tests of signals under each rule, and of values inline in commands: which transfers are posted, and when.

use super::{Bench, SOON, put};
use crate::engine::{EngineError, SignalRule};
use crate::signal_order::{Immediate, MOST_PARTS, MOST_RANKS, Rule, Word, head, part};
use ginlab_fabric::{Completion, Transfer};
use kernels::command::{Command, MOST_ADDED, Opcode, SIGNALS, signal_immediate};

/// Signal 7 with an increment of 3000. Some bits of the increment are sent with the parts, the others with the head.
const SEVEN: u32 = signal_immediate(7, 3000);
const SIGNAL: Option<u32> = Some(SEVEN);

/// Creates `rails` rails of which one is used. The last has the smallest limit, 2^(21 - rails) bytes.
fn bench(rails: usize, window: usize, rule: Rule) -> Bench {
    let mut bench = Bench::new(rails, window, SOON);
    bench.engine.set_signals(SignalRule { rule, me: 1, ranks: 2, ..SignalRule::default() }).unwrap();
    bench.engine.configure(1, ginlab_rails::strategy::Strategy::Single);
    bench
}

fn signalled(bytes: u64) -> Command {
    Command { opcode: Opcode::PutSignal, immediate: SEVEN, ..put(0, 0, bytes) }
}

impl Bench {
    /// Returns bytes and immediate of the transfers posted on rail 0.
    fn sent(&mut self) -> Vec<(u64, Option<u32>)> {
        self.pump();
        self.written(0).iter().map(|transfer: &Transfer| (transfer.bytes, transfer.immediate)).collect()
    }

    /// Completes one transfer of each of these tickets and posts the following ones.
    fn done(&mut self, tokens: &[u64]) {
        self.complete(tokens);
        self.progress().unwrap();
        self.pump();
    }

    fn arrives(&mut self, immediate: u32) {
        self.rails[0].borrow_mut().ready.push(Completion::Immediate { value: immediate });
        self.progress().unwrap();
    }
}

#[test]
fn single_transfer_put_carries_count_signal() {
    let mut bench = bench(1, 8, Rule::Count);
    bench.submit(signalled(64));
    assert_eq!(bench.sent(), [(64, SIGNAL)]);
    assert!(!bench.engine.signals.has_more());
    bench.done(&[0]);
    assert_eq!(bench.engine.watermark(), 1);
    // Empty put: only the signal is sent.
    bench.submit(signalled(0));
    assert_eq!(bench.sent()[1..], [(0, SIGNAL)]);
    bench.done(&[1]);
    assert_eq!((bench.engine.watermark(), bench.sent().len()), (2, 2));
}

#[test]
fn fragments_of_counted_put_name_slot() {
    // 2 KiB per transfer.
    for (pieces, counted) in [(2, true), (MOST_PARTS, true), (MOST_PARTS + 1, false)] {
        let mut bench = bench(10, 8, Rule::Count);
        bench.submit(signalled(2048 * pieces as u64 - 1));
        let sent: Vec<Option<u32>> = bench.sent().iter().map(|(_, immediate)| *immediate).collect();
        assert_eq!(sent.len(), pieces);
        let slot = 256; // The first slot of rank 1.
        match counted {
            true => {
                assert_eq!(sent[0], Some(head(slot, SEVEN)));
                assert!(sent[1..].iter().all(|immediate| *immediate == Some(part(slot, pieces, SEVEN))));
            }
            false => assert!(sent.iter().all(Option::is_none), "more than an account has numbers for"),
        }
        bench.done(&vec![0; pieces - 1]);
        assert_eq!((bench.engine.watermark(), bench.sent().len()), (0, pieces));
        bench.done(&[0]);
        if !counted {
            assert_eq!(bench.engine.watermark(), 0);
            assert_eq!(bench.sent()[pieces..], [(0, SIGNAL)]);
            bench.done(&[0]);
        }
        assert_eq!(bench.engine.watermark(), 1);
    }
}

#[test]
fn own_signal_follows_last_transfer_of_put() {
    for early in [false, true] {
        let mut bench = Bench::new(10, 8, SOON);
        let rule = SignalRule { rule: Rule::Own, me: 1, ranks: 2, early, ..SignalRule::default() };
        bench.engine.set_signals(rule).unwrap();
        bench.engine.configure(1, ginlab_rails::strategy::Strategy::Single);
        bench.submit(put(0, 0, 64));
        bench.submit(signalled(4096));
        let puts = [(64, None), (2048, None), (2048, None)];
        if early {
            // The fault does not wait.
            bench.pump();
            assert_eq!(bench.sent(), [&puts[..], &[(0, SIGNAL)]].concat());
            continue;
        }
        assert_eq!(bench.sent(), puts);
        // The completion of another put does not count.
        bench.done(&[0]);
        bench.done(&[1]);
        assert_eq!((bench.sent().len(), bench.engine.watermark()), (3, 1));
        bench.done(&[1]);
        assert_eq!(bench.sent()[3..], [(0, SIGNAL)]);
        assert_eq!(bench.engine.watermark(), 1);
        bench.done(&[1]);
        assert_eq!((bench.sent().len(), bench.engine.watermark()), (4, 2));
        assert!(!bench.engine.signals.has_more());
    }
}

#[test]
fn drained_signal_waits_for_all_transfers_to_peer() {
    let mut bench = bench(10, 8, Rule::Drain);
    assert!(!bench.engine.signals.has_more());
    bench.submit(put(0, 0, 4096));
    bench.submit(Command { peer: 1, ..put(0, 0, 64) });
    bench.submit(signalled(64));
    assert!(bench.engine.signals.has_more());
    bench.submit(put(0, 0, 8));
    // Commands to another peer are not deferred.
    bench.submit(Command { peer: 1, ..put(0, 0, 32) });
    let state = bench.engine.signals.state().unwrap();
    assert_eq!(state, "1 commands wait for a signal to peer 0, which waits for its puts to drain");
    let before = [(2048, None), (2048, None), (64, None), (64, None), (32, None)];
    assert_eq!(bench.sent(), before);
    bench.done(&[0]);
    bench.done(&[2]);
    assert_eq!(bench.sent(), before, "one transfer to the peer is under way");
    // Completions of transfers to the other peer do not count.
    bench.done(&[0]);
    assert_eq!(bench.sent()[5..], [(0, SIGNAL), (8, None)]);
    assert_eq!((bench.engine.signals.state(), bench.engine.signals.has_more()), (None, false));
    assert_eq!(bench.engine.watermark(), 1);
    bench.done(&[1, 2, 3, 4]);
    assert_eq!(bench.engine.watermark(), 5);
    // An empty put sends only its signal, which still has to wait.
    bench.submit(put(0, 0, 16));
    bench.submit(signalled(0));
    assert_eq!(bench.sent()[7..], [(16, None)]);
    bench.done(&[5]);
    assert_eq!(bench.sent()[8..], [(0, SIGNAL)]);
    bench.done(&[6]);
    assert_eq!(bench.engine.watermark(), 7);
}

#[test]
fn signals_to_two_peers_drain_side_by_side() {
    let mut bench = bench(1, 16, Rule::Drain);
    let to = |peer, command| Command { peer, ..command };
    for peer in [0, 1] {
        bench.submit(to(peer, signalled(8)));
        bench.submit(to(peer, signalled(16)));
        bench.submit(to(peer, put(0, 0, 24)));
    }
    assert_eq!(bench.sent(), [(8, None), (8, None)], "each the first one's bytes");
    let state = bench.engine.signals.state().unwrap();
    assert_eq!(
        state,
        "2 commands wait for a signal to peer 0, which waits for its puts to drain; 2 more wait for signals to other \
         peers"
    );
    // The later peer drains first.
    bench.done(&[3]);
    assert_eq!(bench.sent()[2..], [(0, SIGNAL), (16, None)]);
    bench.done(&[0]);
    assert_eq!(bench.sent()[4..], [(0, SIGNAL), (16, None)]);
    // A signal is also a transfer in flight to its peer, so the next signal waits for it.
    bench.done(&[4]);
    assert_eq!(bench.sent().len(), 6);
    bench.done(&[3]);
    assert_eq!(bench.sent()[6..], [(0, SIGNAL), (24, None)]);
    bench.done(&[0, 1]);
    assert_eq!(bench.sent()[8..], [(0, SIGNAL), (24, None)]);
    bench.done(&[4, 5, 1, 2]);
    assert_eq!((bench.engine.watermark(), bench.engine.signals.has_more()), (6, false));
}

/// Injects the fault that checks of the order must detect.
#[test]
fn early_drain_does_not_wait() {
    for bytes in [0, 8] {
        let mut bench = Bench::new(1, 8, SOON);
        bench
            .engine
            .set_signals(SignalRule { rule: Rule::Drain, me: 1, ranks: 2, early: true, ..SignalRule::default() })
            .unwrap();
        bench.submit(put(0, 0, 16));
        bench.submit(signalled(bytes));
        assert_eq!(bench.sent().last(), Some(&(0, SIGNAL)));
        assert!(!bench.engine.signals.has_more());
    }
}

#[test]
fn drain_tickets_wrap_around() {
    let mut bench = bench(1, 4, Rule::Drain);
    for round in 0..3u64 {
        // Alternates between both peers, so that a ticket's peer must be looked up by the ticket.
        for ticket in round * 4..round * 4 + 3 {
            bench.submit(Command { peer: (ticket % 2) as u32, ..put(0, 0, 8) });
        }
        bench.submit(Command { peer: (round % 2) as u32, ..signalled(8) });
        let sent = bench.sent().len();
        for ticket in (round * 4..round * 4 + 4).filter(|ticket| ticket % 4 != 3 && ticket % 2 == round % 2) {
            assert_eq!(bench.sent().len(), sent, "round {round}");
            bench.done(&[ticket]);
        }
        assert_eq!(bench.sent().len(), sent, "its own put");
        bench.done(&[round * 4 + 3]);
        assert_eq!(bench.sent().len(), sent + 1, "round {round}");
        let others: Vec<u64> =
            (round * 4..round * 4 + 3).filter(|ticket| ticket % 2 != round % 2).chain([round * 4 + 3]).collect();
        bench.done(&others);
        assert_eq!(bench.engine.watermark(), round * 4 + 4);
    }
}

#[test]
fn sequence_signal_is_separate_transfer() {
    let slot = 256;
    for (pieces, counted) in [(1, true), (MOST_PARTS - 1, true), (MOST_PARTS, false)] {
        let mut bench = bench(10, 8, Rule::Sequence);
        bench.submit(signalled(2048 * pieces as u64));
        let mut expected = vec![(2048, counted.then(|| part(slot, pieces + 1, SEVEN))); pieces];
        if counted {
            expected.push((0, Some(head(slot, SEVEN))));
        }
        assert_eq!(bench.sent(), expected);
        bench.done(&vec![0; expected.len() - 1]);
        assert_eq!((bench.engine.watermark(), bench.sent().len()), (0, expected.len()));
        bench.done(&[0]);
        if !counted {
            // If there are more transfers than the account can number, only two transfers that follow them are counted.
            let mut behind: Vec<Option<u32>> = bench.sent()[pieces..].iter().map(|(_, immediate)| *immediate).collect();
            behind.sort_unstable();
            assert_eq!(behind, [Some(part(slot, 2, SEVEN)), Some(head(slot, SEVEN))]);
            bench.done(&[0]);
            assert_eq!(bench.engine.watermark(), 0);
            bench.done(&[0]);
        }
        assert_eq!(bench.engine.watermark(), 1);
    }
}

#[test]
fn put_without_slot_waits_for_target() {
    let mut bench = bench(1, 1024, Rule::Sequence);
    for ticket in 0..256 {
        assert_eq!(bench.submit(signalled(0)), ticket);
    }
    assert_eq!(bench.engine.signals.state(), None);
    bench.submit(signalled(0));
    bench.submit(put(0, 0, 8));
    let state = bench.engine.signals.state().unwrap();
    assert_eq!(
        state,
        "2 commands wait for a signal to peer 0, which waits for it to report that it has finished earlier puts"
    );
    let sent = bench.sent().len();
    bench.pump();
    assert_eq!(bench.sent().len(), sent);
    bench.submit(Command { peer: 1, ..put(0, 0, 16) });
    assert_eq!(bench.sent()[sent..], [(16, None)], "what goes to another peer passes");
    let sent = sent + 1;
    bench.arrives(Immediate::Word { rank: 0, word: Word::Done(1) }.encode());
    // The first put's slot is reused.
    let first = bench.sent()[0].1;
    assert_eq!(bench.sent()[sent].1, first);
    // A put in sequence has two transfers: its part, and the head with the signal.
    assert_eq!(bench.sent()[sent + 2], (8, None));
    assert_eq!(bench.engine.signals.state(), None);
}

#[test]
fn arriving_signals_are_counted_and_acknowledged() {
    let mut bench = bench(1, 8, Rule::Count);
    for _ in 0..2 {
        bench.arrives(Immediate::Signal(SEVEN).encode());
    }
    assert_eq!(bench.engine.signals()[7], 6000);
    // Half a window of puts from rank 0, two transfers each.
    for slot in 0..128 {
        bench.arrives(part(slot, 2, SEVEN));
        bench.arrives(head(slot, SEVEN));
    }
    assert_eq!(bench.engine.signals()[7], 6000 + 128 * 3000);
    assert!(bench.engine.signals.has_more());
    assert_eq!(bench.sent(), [(0, Some(Immediate::Word { rank: 1, word: Word::Done(128) }.encode()))]);
    // No command requested this transfer.
    let token = bench.written(0)[0].token;
    bench.done(&[token]);
    assert_eq!((bench.engine.watermark(), bench.engine.in_flight()), (0, 0));
}

#[test]
fn signal_without_bytes_is_sent_within_limits() {
    let mut bench = bench(1, 8, Rule::Count);
    bench.submit(Command { opcode: Opcode::Signal, immediate: SEVEN, ..put(0, 0, 0) });
    assert_eq!(bench.sent(), [(0, SIGNAL)]);
    bench.done(&[0]);
    assert_eq!(bench.engine.watermark(), 1);
    for opcode in [Opcode::Signal, Opcode::PutSignal] {
        let most = Command { opcode, immediate: signal_immediate(SIGNALS - 1, MOST_ADDED), ..put(0, 0, 8) };
        assert!(bench.engine.submit(&most).is_ok());
        let too_much = Command { immediate: most.immediate + 1, ..most };
        assert!(matches!(bench.engine.submit(&too_much), Err(EngineError::Refused(_))), "{opcode:?}");
    }
    let ranks = |ranks| bench.engine.set_signals(SignalRule { ranks, ..SignalRule::default() });
    let [fits, too_many] = [MOST_RANKS, MOST_RANKS + 1].map(ranks);
    assert_eq!(fits, Ok(()));
    assert!(matches!(too_many, Err(EngineError::Refused(text)) if text.contains("at most")));
}

#[test]
fn value_is_sent_from_word_of_ticket() {
    let mut bench = bench(1, 3, Rule::Count);
    // The bytes of the value are stored where a put has its source offset.
    let value = |bytes| Command {
        opcode: Opcode::PutValue,
        source_offset: (1 << 48) - 1,
        immediate: 0x1234,
        ..put(0, 40, bytes)
    };
    assert!(matches!(bench.engine.submit(&value(8)), Err(EngineError::Refused(_))), "before they are accepted");
    let mut bench = self::bench(1, 3, Rule::Count);
    bench.engine.accept_values().unwrap();
    // Four words for a window of three.
    for (ticket, word) in [(0u64, 0u64), (1, 1), (2, 2), (3, 3), (4, 0), (5, 1)] {
        let command = Command { immediate: ticket as u32, ..value(1 + ticket) };
        assert_eq!(bench.submit(command), ticket);
        let sent = {
            bench.pump();
            bench.written(0)[ticket as usize]
        };
        assert_eq!(
            (sent.local_offset, sent.remote_offset, sent.bytes, sent.immediate),
            (word * 8, 40, 1 + ticket, None)
        );
        assert_eq!(bench.engine.values.as_ref().unwrap().words[word as usize], command.value());
        bench.done(&[ticket]);
        assert_eq!(bench.engine.watermark(), ticket + 1);
    }
    for bytes in [0, 9] {
        assert!(matches!(bench.engine.submit(&value(bytes)), Err(EngineError::Refused(_))), "{bytes}");
    }
}
