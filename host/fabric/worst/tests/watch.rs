//! What is watched: each fault by name, and nothing that is right.

use super::*;

const BYTES: usize = 4096;

#[test]
fn a_source_that_is_rewritten_under_way_is_named() {
    for seed in 0..60 {
        let mut pair = nodes::<2>(&format!("worst:seed={seed}"), BYTES);
        bytes_of(&pair[0]).fill(1);
        let there = put(&pair[1], 1, 100, 200, 3000, 77);
        write(&mut pair[0], &there).unwrap();
        // At once, or when all has arrived and only the completion is missing.
        while seed % 2 == 1 && bytes_of(&pair[1])[200..3200].iter().any(|byte| *byte != 1) {
            assert!(poll(&mut pair[0]).is_empty());
        }
        bytes_of(&pair[0])[2500] = 2;
        let error = first_failure(&mut pair, 1).expect("a source was rewritten").to_string();
        for part in [
            "put (ticket 77) of 3000 B from offset 100 of region 0 to offset 200 of peer 1's region of 4096 B failed",
            "source rewritten while its put is under way",
            "rank 0, proxy 0, rail 0",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert_eq!(error.lines().count(), 1);
    }
}

#[test]
fn a_source_that_was_other_bytes_meanwhile_is_found_by_what_was_delivered() {
    for seed in 0..40 {
        let mut pair = nodes::<2>(&format!("worst:seed={seed},resend=0"), BYTES);
        bytes_of(&pair[0]).fill(1);
        let there = put(&pair[1], 1, 0, 0, BYTES as u64, 0);
        write(&mut pair[0], &there).unwrap();
        bytes_of(&pair[0]).fill(2);
        let failed =
            |completions: &[Completion]| completions.iter().any(|one| matches!(one, Completion::Failed { .. }));
        let mut found = false;
        while !found && !bytes_of(&pair[1]).contains(&2) {
            found = failed(&poll(&mut pair[0]));
        }
        // As it was, before the end.
        bytes_of(&pair[0]).fill(1);
        assert!(found || first_failure(&mut pair, 1).is_some(), "{seed}");
    }
}

#[test]
fn a_source_is_free_once_its_put_is_complete() {
    for seed in 0..40 {
        let mut pair = nodes::<2>(&format!("worst:seed={seed},resend=100"), BYTES);
        for round in 1..20 {
            bytes_of(&pair[0]).fill(round);
            let there = put(&pair[1], 1, 0, 0, BYTES as u64, u64::from(round));
            write(&mut pair[0], &there).unwrap();
            assert_eq!(first_failure(&mut pair, 1), None);
            assert!(bytes_of(&pair[1]).iter().all(|byte| *byte == round));
        }
    }
}

#[test]
fn two_puts_of_other_bytes_to_one_place_are_both_named() {
    let [mut a, mut b, c] = nodes::<3>("worst:seed=5", BYTES);
    bytes_of(&a).fill(1);
    bytes_of(&b).fill(2);
    write(&mut a, &put(&c, 2, 0, 1000, 500, 11)).unwrap();
    let error = write(&mut b, &put(&c, 2, 300, 1499, 64, 12)).expect_err("two puts").to_string();
    let me = std::process::id();
    for part in [
        "put (ticket 12) of 64 B from offset 300 of region 0 to offset 1499 of peer 2's region of 4096 B failed",
        "destination written by two puts at once",
        &format!("the other is put (ticket 11) of rank 0, proxy 0, rail 0 (process {me}), 500 B to offset 1000"),
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // Of the same sender, too; and neighbours do not meet.
    assert!(write(&mut a, &put(&c, 2, 0, 900, 200, 13)).is_err());
    write(&mut b, &put(&c, 2, 0, 1500, 64, 14)).unwrap();
    write(&mut b, &put(&c, 2, 0, 936, 64, 15)).unwrap();
}

/// Two senders take turns with one place: the next one begins when the target has been told of the last one, or when its sender has.
#[test]
fn a_place_is_free_once_its_put_is_told_at_either_end() {
    for seed in 0..40 {
        let mut three = nodes::<3>(&format!("worst:seed={seed},resend=100"), BYTES);
        let (mut done, mut told) = (Vec::new(), Vec::new());
        for round in 0..40u32 {
            let sender = round as usize % 2;
            let mut seen = |three: &mut [Node; 3], enough: &dyn Fn(&[u64], &[u32]) -> bool| {
                until(three, |_, _, completion| {
                    match completion {
                        Some(Completion::Done { token }) => done.push(token),
                        Some(Completion::Immediate { value }) => told.push(value),
                        Some(other) => panic!("{other:?}"),
                        None => return enough(&done, &told),
                    }
                    false
                });
            };
            // Its source is the sender's again by the completion alone.
            seen(&mut three, &|done, _| round < 2 || done.contains(&u64::from(round - 2)));
            bytes_of(&three[sender]).fill(round as u8 + 1);
            let there = Transfer { immediate: Some(round), ..put(&three[2], 2, 0, 0, BYTES as u64, round.into()) };
            write(&mut three[sender], &there).unwrap();
            seen(&mut three, &|done, told| match seed % 2 {
                0 => told.contains(&round),
                _ => done.contains(&u64::from(round)),
            });
            assert!(bytes_of(&three[2]).iter().all(|byte| *byte == round as u8 + 1), "{seed}");
        }
    }
}

#[test]
fn the_same_bytes_to_the_same_place_meet_in_silence_and_are_never_rubbish_again() {
    for seed in 0..100 {
        let mut three = nodes::<3>(&format!("worst:seed={seed},resend={}", seed % 2 * 100), BYTES);
        bytes_of(&three[0]).fill(7);
        bytes_of(&three[1]).fill(7);
        let there = put(&three[2], 2, 0, 0, BYTES as u64, 0);
        let mut done = 0;
        for sender in [0, 1, 0, 1] {
            write(&mut three[sender], &there).unwrap();
            // The next one is posted while this one's bytes arrive.
            for turn in 0..seed % 20 {
                done += poll(&mut three[turn % 2]).len();
            }
        }
        until(&mut three, |three, sender, completion| {
            match completion {
                Some(Completion::Done { .. }) => done += 1,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            if done > 0 {
                assert!(bytes_of(&three[2]).iter().all(|byte| *byte == 7), "{seed}");
            }
            if (1..8).contains(&done) && sender < 2 {
                write(&mut three[sender], &there).unwrap();
            }
            done == 12
        });
    }
}

#[test]
fn a_get_of_bytes_that_a_put_is_under_way_to_is_named() {
    let [mut a, mut b, c] = nodes::<3>("worst:seed=5,again=0", BYTES);
    bytes_of(&a).fill(1);
    // SAFETY: nobody touches the memory, here and below.
    let mut get = |from: &Node, at, token| unsafe { b.rail.read(&b.region, &put(from, 2, 0, at, 100, token)) };
    get(&c, 0, 1).unwrap();
    get(&c, 50, 2).expect_err("both come to one place of b");
    let error = write(&mut a, &put(&c, 2, 0, 99, 8, 3)).expect_err("put into what is read").to_string();
    assert!(
        error.contains("destination written while a get of its bytes is under way: the other is get (ticket 1)"),
        "{error}"
    );
    write(&mut a, &put(&c, 2, 0, 100, 8, 4)).unwrap();
    let peer = Transfer { local_offset: 2000, ..put(&c, 2, 0, 100, 8, 5) };
    // SAFETY: as above.
    let error = unsafe { b.rail.read(&b.region, &peer) }.expect_err("a put is under way there").to_string();
    assert!(
        error.contains("bytes read by a get while a put to them is under way: the other is put (ticket 4)"),
        "{error}"
    );
}

#[test]
fn without_the_watch_nothing_is_said() {
    for seed in 0..20 {
        let mut three = nodes::<3>(&format!("worst:seed={seed},watch=off"), BYTES);
        bytes_of(&three[0]).fill(1);
        bytes_of(&three[1]).fill(2);
        for sender in [0, 1] {
            let there = put(&three[2], 2, 0, 0, 100, 0);
            write(&mut three[sender], &there).unwrap();
        }
        bytes_of(&three[0]).fill(3);
        assert_eq!(first_failure(&mut three, 2), None);
    }
}

/// The target's answer proves that its bytes are not read again; by libfabric's letter the source is the provider's until the completion.
#[test]
fn a_source_behind_an_immediate_is_free_unless_the_watch_is_strict() {
    let early = |watch: &str| {
        (0..60)
            .filter(|seed| {
                let mut pair = nodes::<2>(&format!("worst:seed={seed},resend=100,watch={watch}"), BYTES);
                let there = Transfer { immediate: Some(1), ..put(&pair[1], 1, 0, 0, 100, 0) };
                write(&mut pair[0], &there).unwrap();
                let mut completed = false;
                until(&mut pair, |_, number, completion| {
                    completed |= number == 0 && completion.is_some();
                    number == 1 && completion.is_some()
                });
                bytes_of(&pair[0]).fill(9);
                !completed && first_failure(&mut pair, 1).is_some()
            })
            .count()
    };
    assert_eq!(early("on"), 0);
    assert!(early("strict") > 10);
}
