//! Tests of the intake: each rule is enforced, and nothing else is refused.

use efa_queue::intake::{Intake, Refusal, SendQueue};
use efa_queue::request::{self, Head, Malformed};
use efa_queue::{Local, rules};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};

const DEPTH: u32 = 8;
const MAX_BATCH: u32 = 3;

/// A queue in memory, whose writer may ring the doorbell between two loads of it.
struct Queue {
    doorbell: Cell<u32>,
    /// Doorbell after the first load.
    next: Cell<u32>,
    slots: RefCell<[u64; DEPTH as usize]>,
}

impl SendQueue for Queue {
    fn doorbell(&self) -> u32 {
        self.doorbell.replace(self.next.get())
    }

    fn first_word(&self, number: u64) -> u64 {
        self.slots.borrow()[rules::slot(number, DEPTH) as usize]
    }
}

fn words(number: u64) -> [u64; 8] {
    let head = Head { phase: rules::send_phase(number, DEPTH), ..Head::default() };
    request::write(&head, Local::default(), 0, 0)
}

/// A queue with the requests before `written`, and the doorbell at `rung`.
fn queue(written: u64, rung: u64) -> Queue {
    let slots = RefCell::new([0; DEPTH as usize]);
    for number in written.saturating_sub(DEPTH.into())..written {
        slots.borrow_mut()[rules::slot(number, DEPTH) as usize] = words(number)[0];
    }
    Queue { doorbell: Cell::new(rules::doorbell(rung)), next: Cell::new(rules::doorbell(rung)), slots }
}

fn intake(seen: u64) -> Intake {
    Intake { seen, depth: DEPTH, max_batch: MAX_BATCH }
}

proptest! {
    #[test]
    fn valid_writer_is_never_refused(seen in 0u64..70_000, rung in 0u64..=8, ahead in 0u64..=3) {
        let rung = seen + rung;
        let queue = queue(rung + ahead, rung);
        prop_assert_eq!(intake(seen).poll(&queue, seen), Ok(rung));
        for number in rung.saturating_sub(u64::from(DEPTH - MAX_BATCH))..rung {
            prop_assert_eq!(intake(seen).check(number, queue.first_word(number)), Ok(()));
        }
    }
}

#[test]
fn invalid_doorbells_are_refused() {
    let refused = |rung: u64, ended| intake(20).poll(&queue(20, rung), ended).expect_err("refused");
    assert_eq!(refused(19, 20), Refusal::Back { by: 1, seen: 20 });
    assert_eq!(refused(29, 20), Refusal::Depth { flight: 9, depth: DEPTH });
    assert_eq!(refused(21, 12), Refusal::Depth { flight: 9, depth: DEPTH });
}

#[test]
fn requests_written_beyond_batch_are_refused() {
    let refusal = Refusal::Batch { number: 23, seen: 20, max_batch: MAX_BATCH };
    assert_eq!(intake(20).poll(&queue(24, 20), 20), Err(refusal));
    assert_eq!(
        refusal.to_string(),
        "request 23 is written, but the doorbell is at 20: batches may have at most 3 requests"
    );
    let unlimited = Intake { max_batch: DEPTH, ..intake(20) };
    assert_eq!(unlimited.poll(&queue(28, 20), 20), Ok(20));
    // The writer rings the doorbell and writes on after the first load of the doorbell.
    let late = queue(24, 20);
    late.next.set(21);
    assert_eq!(intake(20).poll(&late, 20), Ok(20));
}

#[test]
fn slots_without_their_request_are_refused() {
    for first in [words(12)[0], words(20)[0] & !(1 << 23), 0] {
        assert_eq!(intake(20).check(20, first), Err(Refusal::Slot { number: 20, first }));
        let mut words = words(20);
        words[0] = first;
        assert_eq!(intake(20).decode(20, &words), Err(Refusal::Slot { number: 20, first }));
    }
    let mut words = words(20);
    words[0] |= 7 << 16;
    assert_eq!(intake(20).decode(20, &words), Err(Refusal::Malformed { number: 20, why: Malformed::Operation(7) }));
    assert_eq!(intake(20).decode(20, &[]), Err(Refusal::Slot { number: 20, first: 0 }));
}
