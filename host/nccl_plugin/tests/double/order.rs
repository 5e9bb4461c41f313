//! Order after the completion of a put: a completed put has arrived, and all operations that are sent afterwards arrive
//! after it.
//!
//! Two puts write to one place, and the second is posted when the first is complete. The final value shows which
//! arrived last, so the test does not depend on a read at the right time.

use crate::kernel::{Card, ContextQueue};
use crate::queues::cards;
use crate::rank::{OK, RegisteredMemory, until};
use nccl_ginlab::settings::{COUNT, RAILS, RULE, STRATEGY, TIMEOUT};

/// Number of places, each written twice.
const PLACES: u64 = 30;
/// Length of a put that exceeds a slot with two ranks, so that its parts arrive one by one.
const LONG: u64 = 300_000;
const OLD: u64 = 0x0101_0101_0101_0101;
const NEW: u64 = 0x0202_0202_0202_0202;

/// Runs `program` over the worst-case network model with several seeds; rank 0 sends.
fn over_seeds(seeds: u64, program: impl Fn(&Card) -> Vec<RegisteredMemory> + Send + Sync) {
    for seed in 1..=seeds {
        let rails = format!("worst:seed={seed},delay=500");
        let rule = ["count", "own", "drain", "sequence"][seed as usize % 4];
        let (count, strategy) = [("1", "single"), ("3", "split"), ("2", "round-robin")][seed as usize % 3];
        // A long timeout, for a machine under load.
        let variables = [(RAILS, &*rails), (RULE, rule), (COUNT, count), (STRATEGY, strategy), (TIMEOUT, "100")];
        cards(2, &variables, |mut card| {
            assert_eq!(card.contexts(Card::config()), OK);
            let memories = program(&card);
            assert!(!card.failed());
            card.leave(memories);
        });
    }
}

/// Checks that all places contain the second value. `place` is the distance between two places in bytes.
fn check(words: &[u64], place: u64) {
    for index in 0..PLACES {
        let at = (index * place / 8) as usize;
        let wrong = words[at..][..(place / 8) as usize].iter().filter(|word| **word != NEW).count();
        assert_eq!(wrong, 0, "place {index} of {place} B: what was sent later has landed first");
    }
}

#[test]
fn complete_puts_precede_later_puts() {
    over_seeds(4, |card| {
        let mut memories = Vec::new();
        for bytes in [8, 4096, LONG] {
            let (mut old, mut new) = (card.register(LONG as usize), card.register(LONG as usize));
            let target = card.register((PLACES * bytes) as usize);
            old.words.fill(OLD);
            new.words.fill(NEW);
            card.meeting.meet();
            let before = card.signal(0, 0);
            card.meeting.meet();
            if card.me == 0 {
                for index in 0..PLACES {
                    for (source, by) in [(&old, ContextQueue::Data), (&new, ContextQueue::Counter(0))] {
                        card.put(0, by, (source, 0), bytes as u32, (&target, index * bytes), 1, Some(0), true);
                        card.wait(&card.poster(0, by));
                    }
                }
            } else {
                until("all puts", || card.signal(0, 0) == before + 2 * PLACES);
                check(&target.words, bytes);
            }
            card.meeting.meet();
            memories.extend([old, new, target]);
        }
        memories
    });
}

/// An incomplete put that was posted earlier does not weaken the guarantee of the completion of a later put.
#[test]
fn completion_guarantee_holds_with_earlier_put_in_flight() {
    over_seeds(4, |card| {
        let (long, target) = (card.register(8 * LONG as usize), card.register(8 * LONG as usize + 8 * PLACES as usize));
        let at = |index: u64| 8 * LONG + 8 * index;
        card.meeting.meet();
        if card.me == 0 {
            for index in 0..PLACES {
                card.put(0, ContextQueue::Data, (&long, 0), 8 * LONG as u32, (&target, 0), 1, None, true);
                for value in [OLD, NEW] {
                    card.put_value(0, value, (&target, at(index)), 1, Some(0));
                    card.wait(&card.poster(0, ContextQueue::Values));
                }
            }
        } else {
            until("all values", || card.signal(0, 0) == 2 * PLACES);
            check(&target.words[LONG as usize..], 8);
        }
        card.meeting.meet();
        card.flush(0);
        vec![long, target]
    });
}

/// A get that is posted after a put is complete returns the bytes of that put, even while longer puts are still being
/// copied to the GPU.
#[test]
fn get_after_complete_put_reads_its_bytes() {
    over_seeds(4, |card| {
        let (long, target, back) =
            (card.register(8 * LONG as usize), card.register(8 * LONG as usize + 8), card.register(8));
        card.meeting.meet();
        if card.me == 0 {
            for round in 1..=PLACES {
                card.put(0, ContextQueue::Data, (&long, 0), 8 * LONG as u32, (&target, 0), 1, None, true);
                card.put_value(0, round, (&target, 8 * LONG), 1, None);
                card.wait(&card.poster(0, ContextQueue::Values));
                card.get(0, (&target, 8 * LONG), 8, (&back, 0), 1);
                card.flush(0);
                assert_eq!(back.word(0), round, "a get that has overtaken a put");
            }
        }
        card.meeting.meet();
        vec![long, target, back]
    });
}
