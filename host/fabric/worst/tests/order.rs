//! Tests of delays, order, retransmission and eventual delivery.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

const SLOT: usize = 4096;

/// Fills a slot with bytes that depend on its number and the round.
fn fill(node: &Node, slot: usize, round: usize) {
    let place = &mut bytes_of(node)[slot * SLOT..(slot + 1) * SLOT];
    place.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + slot * 13 + round * 101 + 1) as u8);
}

fn same(a: &Node, b: &Node, slot: usize, length: usize) -> bool {
    let range = slot * SLOT..slot * SLOT + length;
    bytes_of(a)[range.clone()] == bytes_of(b)[range]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// All bytes arrive for every seed, each completion and immediate occurs once, and an immediate follows its own
    /// bytes.
    #[test]
    fn transfers_arrive_once_and_immediates_follow_bytes(
        seed: u64, delay in 1u64..200, sizes in prop::collection::vec(0..=SLOT, 1..60),
    ) {
        let mut pair = nodes::<2>(&format!("worst:seed={seed},delay={delay},again=30,resend=50"), 60 * SLOT);
        for (slot, length) in sizes.iter().enumerate() {
            fill(&pair[0], slot, 0);
            let at = (slot * SLOT) as u64;
            let there = put(&pair[1], 1, at, at, *length as u64, slot as u64);
            let silent = slot % 3 == 0 && *length > 0;
            write(&mut pair[0], &Transfer { immediate: (!silent).then_some(slot as u32), ..there }).unwrap();
        }
        let (mut done, mut told) = (HashSet::new(), HashSet::new());
        let signals = sizes.iter().enumerate().filter(|(slot, length)| slot % 3 != 0 || **length == 0).count();
        until(&mut pair, |pair, number, completion| {
            match completion {
                Some(Completion::Done { token }) => {
                    assert!(number == 0 && done.insert(token), "{token} twice");
                    assert!(same(&pair[0], &pair[1], token as usize, sizes[token as usize]), "{token}: complete before its bytes");
                }
                Some(Completion::Immediate { value }) => {
                    assert!(number == 1 && told.insert(value), "{value} twice");
                    assert!(same(&pair[0], &pair[1], value as usize, sizes[value as usize]), "{value}: told before its bytes");
                }
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            done.len() == sizes.len() && told.len() == signals
        });
    }

    /// No byte of a put is written again once its immediate or its completion has been reported.
    #[test]
    fn no_rewrite_follows_immediate_or_completion(seed: u64, with_immediate: bool) {
        let mut pair = nodes::<2>(&format!("worst:seed={seed},resend=100"), SLOT);
        fill(&pair[0], 0, 0);
        let there = put(&pair[1], 1, 0, 0, SLOT as u64, 1);
        write(&mut pair[0], &Transfer { immediate: with_immediate.then_some(9), ..there }).unwrap();
        until(&mut pair, |_, _, completion| match completion {
            Some(Completion::Immediate { .. }) => true,
            Some(Completion::Done { .. }) => !with_immediate,
            _ => false,
        });
        bytes_of(&pair[1]).fill(0x11);
        for _ in 0..20_000 {
            poll(&mut pair[0]);
            poll(&mut pair[1]);
        }
        prop_assert!(bytes_of(&pair[1]).iter().all(|byte| *byte == 0x11));
    }

    #[test]
    fn gets_return_bytes_of_peer(seed: u64, length in 1..=SLOT) {
        let mut pair = nodes::<2>(&format!("worst:seed={seed},resend=50"), SLOT);
        fill(&pair[1], 0, 0);
        let there = put(&pair[1], 1, 0, 0, length as u64, 5);
        // SAFETY: the destination is not accessed until the completion.
        while unsafe { pair[0].rail.read(&pair[0].region, &there) }.unwrap() == Post::Again {}
        prop_assert_eq!(first_failure(&mut pair, 1), None);
        prop_assert!(same(&pair[0], &pair[1], 0, length));
        prop_assert!(bytes_of(&pair[0])[length..].iter().all(|byte| *byte == 0));
    }
}

/// A considerable share of the puts arrives after several later ones, however fast the sender polls.
#[test]
fn later_posts_may_overtake_put() {
    for polls in [1, 40, 400] {
        let mut pair = nodes::<2>("worst:seed=7", 256 * 64);
        let mut told = Vec::new();
        for slot in 0..256u64 {
            let there = put(&pair[1], 1, slot * 64, slot * 64, 64, slot);
            write(&mut pair[0], &Transfer { immediate: Some(slot as u32), ..there }).unwrap();
            for turn in 0..2 * polls {
                let arrived = poll(&mut pair[turn % 2]);
                told.extend(arrived.iter().filter_map(|one| match one {
                    Completion::Immediate { value } => Some(*value),
                    _ => None,
                }));
            }
        }
        // Number of immediates of later posts that were reported before the one of this slot, which may not have been
        // reported yet.
        let overtakers = |slot: u32| {
            let at = told.iter().position(|value| *value == slot).unwrap_or(told.len());
            told[..at].iter().filter(|value| **value > slot).count()
        };
        let count = (0..256).filter(|slot| overtakers(*slot) >= if polls < 400 { 4 } else { 1 }).count();
        assert!(count > 25, "{count} of 256 at {polls} polls a post");
    }
}

#[test]
fn completion_may_precede_or_follow_its_immediate() {
    let mut first = HashSet::new();
    for seed in 0..40 {
        let mut pair = nodes::<2>(&format!("worst:seed={seed}"), 64);
        let there = put(&pair[1], 1, 0, 0, 8, 0);
        write(&mut pair[0], &Transfer { immediate: Some(1), ..there }).unwrap();
        until(&mut pair, |_, number, completion| completion.is_some() && { first.insert(number) | true });
    }
    assert_eq!(first.len(), 2);
}

/// The sender receives the completions, as with a real NIC.
#[test]
fn unpolled_immediates_overrun_bounded_queue() {
    for (count, overruns) in [(5, false), (6, true)] {
        let mut pair = nodes::<2>("worst:queue=5", 64);
        let there = put(&pair[1], 1, 0, 0, 8, 0);
        for _ in 0..count {
            write(&mut pair[0], &Transfer { immediate: Some(1), ..there }).unwrap();
        }
        let mut done = 0;
        while done < count {
            done += poll(&mut pair[0]).len();
        }
        let [_, target] = &mut pair;
        let (mut told, mut failure) = (Vec::new(), None);
        for _ in 0..100_000 {
            failure = failure.or(target.rail.poll(&mut told).err());
        }
        let text = failure.map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(
            (text.contains("overrun: 6 unpolled immediates, but space for 5"), told.len()),
            (overruns, if overruns { 0 } else { count }),
            "{text}"
        );
    }
}

/// The immediate reaches the target even if its sender never polls again after the completion.
#[test]
fn transfers_arrive_after_sender_is_closed() {
    for seed in 0..40 {
        let mut pair = nodes::<2>(&format!("worst:seed={seed}"), 64);
        let there = put(&pair[1], 1, 0, 0, 8, 0);
        write(&mut pair[0], &Transfer { immediate: Some(1), ..there }).unwrap();
        while poll(&mut pair[0]).is_empty() {}
        let [_, target] = &mut pair;
        assert!((0..100_000).any(|_| matches!(poll(target)[..], [Completion::Immediate { value: 1 }])), "{seed}");
    }
}

#[test]
fn write_bytes_arrive_in_any_order_over_poison() {
    let (mut later_first, mut poisoned) = (0, 0);
    for seed in 0..40 {
        let mut pair = nodes::<2>(&format!("worst:seed={seed}"), SLOT);
        let rubbish = pair[0].rail.poison().unwrap();
        bytes_of(&pair[0]).fill(3);
        let there = put(&pair[1], 1, 0, 0, SLOT as u64, 0);
        write(&mut pair[0], &there).unwrap();
        assert!(bytes_of(&pair[1]).iter().all(|byte| *byte == rubbish));
        let mut seen = false;
        while poll(&mut pair[0]).is_empty() {
            let bytes = bytes_of(&pair[1]);
            poisoned += usize::from(bytes.contains(&rubbish));
            seen |= bytes[SLOT - 1] == 3 && bytes[0] == rubbish;
        }
        later_first += usize::from(seen);
    }
    assert!(later_first > 5 && poisoned > 40, "{later_first}, {poisoned}");
    let mut pair = nodes::<2>("worst:poison=off", SLOT);
    bytes_of(&pair[0]).fill(3);
    let there = put(&pair[1], 1, 0, 0, SLOT as u64, 0);
    write(&mut pair[0], &there).unwrap();
    assert!(bytes_of(&pair[1]).iter().all(|byte| *byte == 0));
}

#[test]
fn packets_are_rewritten_until_completion() {
    let again = |resend: u64| {
        let seeds = (0..60).filter(move |seed| {
            let mut pair = nodes::<2>(&format!("worst:seed={seed},resend={resend}"), SLOT);
            bytes_of(&pair[0]).fill(3);
            let there = put(&pair[1], 1, 0, 0, SLOT as u64, 0);
            write(&mut pair[0], &there).unwrap();
            while bytes_of(&pair[1]).iter().any(|byte| *byte != 3) {
                assert!(poll(&mut pair[0]).is_empty());
            }
            bytes_of(&pair[1]).fill(4);
            while poll(&mut pair[0]).is_empty() {}
            bytes_of(&pair[1]).contains(&3)
        });
        seeds.count()
    };
    assert_eq!(again(0), 0);
    assert!(again(100) > 10);
}

#[test]
fn again_is_returned_occasionally_and_briefly() {
    let posts = |again: u64| {
        let mut pair = nodes::<2>(&format!("worst:again={again}"), SLOT);
        let (mut in_row, mut most, mut all) = (0, 0, 0);
        for token in 0..400 {
            let signal = Transfer { immediate: Some(1), ..put(&pair[1], 1, 0, 0, 0, token) };
            // SAFETY: the write has no bytes.
            match unsafe { pair[0].rail.write(&pair[0].region, &signal) }.unwrap() {
                Post::Again => (in_row, all) = (in_row + 1, all + 1),
                Post::Accepted => in_row = 0,
            }
            most = most.max(in_row);
        }
        (most, all)
    };
    assert_eq!(posts(0), (0, 0));
    let (most, all) = posts(90);
    assert!(most == AGAINS && all > 200, "{most}, {all}");
}

#[test]
fn full_rail_returns_again_until_completion() {
    let mut pair = nodes::<2>("worst:again=0", SLOT);
    let signal = Transfer { immediate: Some(1), ..put(&pair[1], 1, 0, 0, 0, 0) };
    (0..OUTSTANDING).for_each(|_| write(&mut pair[0], &signal).unwrap());
    // SAFETY: the write has no bytes.
    assert_eq!(unsafe { pair[0].rail.write(&pair[0].region, &signal) }, Ok(Post::Again));
    let mut done = 0;
    while done == 0 {
        done = poll(&mut pair[0]).len();
    }
    write(&mut pair[0], &signal).unwrap();
    until(&mut pair, |_, number, completion| {
        done += usize::from(number == 0 && completion.is_some());
        done == OUTSTANDING + 1
    });
}

#[test]
fn invalid_transfers_are_rejected_in_one_line() {
    let mut pair = nodes::<2>("worst:longest=1000,again=0", SLOT);
    let good = put(&pair[1], 1, 0, 0, 8, 0);
    for (what, bad) in [
        ("at most 1000 B", Transfer { bytes: 1001, ..good }),
        ("offset", Transfer { local_offset: SLOT as u64 - 7, ..good }),
        ("offset", Transfer { remote_offset: SLOT as u64 - 7, ..good }),
        ("no such peer", Transfer { peer: 2, ..good }),
        ("no such peer", Transfer { peer: 2, bytes: 0, immediate: Some(1), ..good }),
        ("neither bytes nor an immediate", Transfer { bytes: 0, ..good }),
        ("overlap", Transfer { peer: 0, remote: pair[0].rail.remote(&pair[0].region), remote_offset: 4, ..good }),
    ] {
        let error = write(&mut pair[0], &bad).expect_err(what).to_string();
        assert!(error.contains(what) && error.lines().count() == 1, "{what}: {error}");
    }
    for address in [vec![], vec![0; 20], vec![0; 35], vec![0; 36]] {
        assert!(pair[0].rail.add_peer(&address).is_err(), "{address:?}");
    }
    pair[0].rail.remove_peer(1).unwrap();
    assert!(write(&mut pair[0], &good).is_err());
}
