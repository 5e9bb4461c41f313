//! Property tests of the queue rules, for any count, depth and batch, and of decoders, which must not panic on any
//! words.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

use efa_queue::request::{self, DecodedRequest, Head, Malformed, RequestData, To};
use efa_queue::rules::{self, DoorbellError};
use efa_queue::{DecodedCompletion, Local, ReceivePiece};
use proptest::prelude::*;

fn depth() -> impl Strategy<Value = u32> {
    (1u32..=15).prop_map(|power| 1 << power)
}

proptest! {
    #[test]
    fn slot_phase_changes_only_with_lap(count in 0u64..1 << 40, depth in depth()) {
        let next = count + u64::from(depth);
        prop_assert_eq!(rules::slot(count, depth), rules::slot(next, depth));
        prop_assert!(rules::slot(count, depth) < depth);
        prop_assert_ne!(rules::send_phase(count, depth), rules::send_phase(next, depth));
        prop_assert_ne!(rules::send_phase(count, depth), rules::completion_phase(count, depth));
        let same_lap = (count + 1) % u64::from(depth) != 0;
        prop_assert_eq!(rules::send_phase(count, depth) == rules::send_phase(count + 1, depth), same_lap);
        prop_assert!(!rules::send_phase(count % u64::from(depth), depth), "0 in the first lap");
    }

    #[test]
    fn doorbells_of_16_and_32_bits_yield_count(seen in 0u64..1 << 40, batch in 0u32..64, depth in depth(), short in any::<bool>()) {
        let batch = batch.min(depth - 1);
        let bell = rules::doorbell(seen + u64::from(batch));
        let bell = if short { bell & 0xffff } else { bell };
        prop_assert_eq!(rules::rung(seen, seen, bell, depth, depth - 1), Ok(seen + u64::from(batch)));
        if batch > 0 {
            prop_assert_eq!(rules::rung(seen, seen, bell, depth, batch - 1), Err(DoorbellError::Batch(batch)));
            let back = rules::doorbell(seen.wrapping_sub(u64::from(batch)));
            prop_assert_eq!(rules::rung(seen, seen, back, depth, depth - 1), Err(DoorbellError::Back(batch)));
            let (ended, full) = (seen.saturating_sub(u64::from(depth)), seen + u64::from(batch) - seen.saturating_sub(u64::from(depth)));
            let too_many = if full > u64::from(depth) { Err(DoorbellError::Depth(full as u32)) } else { Ok(seen + u64::from(batch)) };
            prop_assert_eq!(rules::rung(seen, ended, bell, depth, depth - 1), too_many);
        }
    }

    #[test]
    fn counters_of_31_bits_compare_by_difference(count in 0u64..1 << 40, late in 0u64..1 << 20) {
        let counter = count & rules::COUNTER_MASK;
        prop_assert_eq!(rules::behind(count + late, counter), late);
    }

    #[test]
    fn arbitrary_words_decode_without_panic_and_round_trip(words in proptest::collection::vec(any::<u64>(), 0..20)) {
        let read = DecodedRequest::decode(&words);
        prop_assert!(words.len() == 8 || words.len() == 16 || read == Err(Malformed::NotARequest));
        let _ = DecodedCompletion::decode(&words);
        if let [first, second, ..] = words[..] && let Some(receive) = ReceivePiece::decode([first, second]) {
            prop_assert_eq!(receive.words(), [first, second]);
        }
    }
}

#[test]
fn every_wrong_mandatory_bit_is_rejected() {
    let head =
        Head { id: 0x1234_5678, phase: true, to: To { handle: 1, pair: 2, key: 3 }, immediate: Some(4), hints: 0 };
    let words = request::write(&head, Local { address: 9, length: 64, key: 5 }, 6, 7);
    for bit in 0..512 {
        let mut bent = words;
        bent[bit / 64] ^= 1 << (bit % 64);
        match DecodedRequest::decode(&bent) {
            // The decoded request must contain the changed bit: no field is lost.
            Ok(DecodedRequest {
                head,
                body: RequestData::Memory(local, there),
                operation: efa_queue::EfaOperation::Write,
            }) => {
                let mut again = request::write(&head, local, there.address, there.key);
                again[0] = again[0] & !(1 << 28) | bent[0] & 1 << 28;
                if head.immediate.is_none() {
                    again[1] |= bent[1] & 0xffff_ffff;
                }
                assert_eq!(again, bent, "bit {bit}");
            }
            Ok(_) => assert!((16..20).contains(&bit), "bit {bit} made another operation"),
            Err(_) => {
                let fixed = [16..20, 21..24, 25..28, 29..32, 48..64].iter().any(|range| range.contains(&bit));
                let reserved = (114..128).contains(&bit) || (160..208).contains(&bit) || (440..448).contains(&bit);
                let lengths = (256..288).contains(&bit) || (384..416).contains(&bit);
                assert!(fixed || reserved || lengths, "bit {bit} is no rule");
            }
        }
    }
}

#[test]
fn slot_is_valid_only_for_its_lap() {
    for number in [0u64, 5, 16, 21, 1 << 20] {
        let head = Head { phase: rules::send_phase(number, 16), ..Head::default() };
        let first = request::send(&head, Local::default())[0];
        assert!(rules::is_written(first, number, 16) && !rules::is_written(first, number + 16, 16));
        assert!(!rules::is_written(0, number, 16), "nothing has been written there");
    }
}

#[test]
fn batch_is_device_limit_below_queue_depth() {
    assert_eq!(rules::max_batch(16, 64, 4096), 16);
    assert_eq!(rules::max_batch(16, 128, 4096), 8);
    assert_eq!(rules::max_batch(0, 64, 4096), 4095);
    assert_eq!(rules::max_batch(64, 64, 32), 31);
}
