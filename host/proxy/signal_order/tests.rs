//! Tests that the accounts count correctly in any order of arrival.

use super::*;
use kernels::command::{MOST_ADDED, signal_immediate};
use proptest::prelude::*;
use strum::VariantArray;

/// Generates puts: number of transfers, signal, and increment.
fn puts() -> impl Strategy<Value = Vec<(usize, u32, u32)>> {
    prop::collection::vec((2usize..=6, 0..8u32, 1..=MOST_ADDED), 1..40)
}

proptest! {
    #[test]
    fn immediates_go_both_ways(bits: u32) {
        let decoded = Immediate::decode(bits);
        // A signal uses 30 bits.
        prop_assert_eq!(decoded.encode(), bits);
        prop_assert_eq!(Immediate::decode(decoded.encode()), decoded);
    }

    /// A signal is counted once, and not before all transfers of its put have arrived. In sequence, all transfers of
    /// previous puts must also have arrived. Slots are returned.
    #[test]
    fn put_is_counted_after_all_fragments(puts in puts(), order in prop::collection::vec(any::<u32>(), 400), in_order: bool) {
        let rule = if in_order { Rule::Sequence } else { Rule::Count };
        let (mut sender, mut target) = (Accounts::new(rule, 1, 2, false), Accounts::new(rule, 0, 2, false));
        let words = SignalWords::default();
        let told = |from: &mut Accounts, to: &mut Accounts| from.take_words().for_each(|(_, bits)| to.arrive(bits, &words));
        let mut under_way: Vec<(usize, u32)> = Vec::new();
        let mut left: Vec<usize> = puts.iter().map(|(parts, ..)| *parts).collect();
        for (number, (parts, signal, add)) in puts.iter().enumerate() {
            let command = signal_immediate(*signal, *add);
            let slot = sender.take_slot(0, *parts).expect("a window is larger than this test");
            under_way.push((number, head(slot, command)));
            under_way.extend((1..*parts).map(|_| (number, part(slot, *parts, command))));
        }
        for choice in order {
            if under_way.is_empty() {
                break;
            }
            let (number, bits) = under_way.swap_remove(choice as usize % under_way.len());
            left[number] -= 1;
            target.arrive(bits, &words);
            let whole = |number: usize| if in_order { left[..=number].iter().all(|left| *left == 0) } else { left[number] == 0 };
            let mut expected = vec![0u64; SIGNALS as usize];
            for (number, (_, signal, add)) in puts.iter().enumerate() {
                if whole(number) {
                    expected[*signal as usize] += u64::from(*add);
                }
            }
            prop_assert_eq!(&words.values()[..8], &expected[..8]);
        }
        told(&mut sender, &mut target);
        told(&mut target, &mut sender);
        prop_assert!(sender.outgoing[0].freed <= sender.outgoing[0].taken);
    }
}

#[test]
fn slot_is_reused_only_after_release_by_target() {
    let (mut sender, mut target) =
        (Accounts::new(Rule::Count, 3, 8192, false), Accounts::new(Rule::Count, 0, 8192, false));
    let words = SignalWords::default();
    let next = |sender: &mut Accounts| [0; 3].map(|target| sender.take_slot(target, 0));
    let slots = [Ok(6), Ok(7), Err(Lacks::Slots)];
    assert_eq!(next(&mut sender), slots);
    assert_eq!(sender.take_slot(1, 0), Ok(6), "each target has places of its own");
    // The second of two puts completes first. No slot is returned, because the first put's slot precedes it.
    target.arrive(head(7, signal_immediate(5, 1)), &words);
    target.arrive(part(7, 2, signal_immediate(5, 1)), &words);
    assert_eq!((words.values()[5], target.has_words()), (1, false));
    target.arrive(part(6, 2, signal_immediate(5, 9000)), &words);
    target.arrive(head(6, signal_immediate(5, 9000)), &words);
    assert_eq!(words.values()[5], 9001);
    let done: Vec<(usize, u32)> = target.take_words().collect();
    assert_eq!(done, [(3, Immediate::Word { rank: 0, word: Word::Done(2) }.encode())]);
    sender.arrive(done[0].1, &words);
    assert_eq!(next(&mut sender), slots);
}

#[test]
fn put_takes_slot_and_credits_or_neither() {
    let mut sender = Accounts::new(Rule::Count, 1, 8192, false);
    // Two credits and two slots at each target.
    assert_eq!(sender.most_parts(), 2);
    assert_eq!([sender.take_slot(0, 2), sender.take_slot(0, 1)], [Ok(2), Err(Lacks::Credits)]);
    assert_eq!((sender.outgoing[0].taken, sender.take(0, 1)), (1, Err(Lacks::Credits)));
    let words = SignalWords::default();
    let asks: Vec<(usize, u32)> = sender.take_words().collect();
    assert_eq!(asks, [(0, Immediate::Word { rank: 1, word: Word::Ask(2) }.encode())], "once");
    sender.arrive(Immediate::Word { rank: 0, word: Word::Grant(2) }.encode(), &words);
    assert_eq!([sender.take_slot(0, 1), sender.take_slot(0, 1)], [Ok(3), Err(Lacks::Slots)]);
    assert_eq!(sender.take(0, 1), Ok(()), "a signal alone needs no slot");
    assert_eq!(sender.take(0, 1), Err(Lacks::Credits));
}

#[test]
fn invalid_immediates_are_ignored() {
    let mut target = Accounts::new(Rule::Count, 0, 2, false);
    let words = SignalWords::default();
    for bits in
        [0x3fff_ffff, part(u16::MAX >> 2, 3, 0), Immediate::Word { rank: 9, word: Word::Done(5) }.encode(), u32::MAX]
    {
        target.arrive(bits, &words);
    }
    assert!(words.values().iter().all(|value| *value == 0));
    // Return of more slots than were taken.
    target.arrive(Immediate::Word { rank: 1, word: Word::Done(5) }.encode(), &words);
    assert_eq!(target.outgoing[1].freed, 0);
}

#[test]
fn names_of_rules_go_both_ways() {
    for rule in Rule::VARIANTS {
        assert_eq!(rule.to_string().parse(), Ok(*rule));
    }
    assert!("fence".parse::<Rule>().expect_err("unknown").contains("sequence"));
}
