//! Checks of the rail: each error is reported by name, and correct programs cause no error.

use super::*;

const BYTES: usize = 4096;

#[test]
fn source_rewritten_in_flight_is_reported() {
    for seed in 0..60 {
        let mut pair = nodes::<2>(&format!("worst:seed={seed}"), BYTES);
        bytes_of(&pair[0]).fill(1);
        let there = put(&pair[1], 1, 100, 200, 3000, 77);
        write(&mut pair[0], &there).unwrap();
        // The source changes immediately, or when all bytes have arrived and only the completion is missing.
        while seed % 2 == 1 && bytes_of(&pair[1])[200..3200].iter().any(|byte| *byte != 1) {
            assert!(poll(&mut pair[0]).is_empty());
        }
        bytes_of(&pair[0])[2500] = 2;
        let error = first_failure(&mut pair, 1).expect("a source was rewritten").to_string();
        assert!(error.starts_with("source rewritten while its put is in flight (in the packet at byte "), "{error}");
        for part in [
            " of it); wait for a put's completion (quiet, or its own) before its source is rewritten; put ",
            " of rank 0 to rank 1: 3000 B from offset 100 of region 0 (worst:seed=",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert_eq!(error.lines().count(), 1);
    }
}

#[test]
fn detects_source_modified_then_restored() {
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
        // Restores the original bytes before the completion.
        bytes_of(&pair[0]).fill(1);
        assert!(found || first_failure(&mut pair, 1).is_some(), "{seed}");
    }
}

#[test]
fn source_is_free_after_put_completion() {
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
fn conflicting_puts_to_one_range_are_reported() {
    let [mut a, mut b, c] = nodes::<3>("worst:seed=5", BYTES);
    bytes_of(&a).fill(1);
    bytes_of(&b).fill(2);
    write(&mut a, &put(&c, 2, 0, 1000, 500, 11)).unwrap();
    let error = write(&mut b, &put(&c, 2, 300, 1499, 64, 12)).expect_err("two puts").to_string();
    for part in [
        "destination written by two puts at the same time: the other is put ",
        " of rank 0 to rank 2, 500 B to offset 1000 of rank 2's region; give each sender its own slot; put ",
        " of rank 1 to rank 2: 64 B to offset 1499 of rank 2's region (worst:seed=5)",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // The error also names the same sender. Adjacent ranges do not conflict.
    let error = write(&mut a, &put(&c, 2, 0, 900, 200, 13)).expect_err("two puts").to_string();
    assert!(error.contains("; the slot is free once rank 2 has signalled that it used the other put"), "{error}");
    write(&mut b, &put(&c, 2, 0, 1500, 64, 14)).unwrap();
    write(&mut b, &put(&c, 2, 0, 936, 64, 15)).unwrap();
}

/// Two senders alternate in writing to one place. The next one starts when the target or its sender has been notified
/// of the previous one.
#[test]
fn range_is_free_after_completion_or_immediate() {
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
            // The sender may reuse its source only after the completion.
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
fn equal_puts_to_one_range_are_allowed() {
    for seed in 0..100 {
        let mut three = nodes::<3>(&format!("worst:seed={seed},resend={}", seed % 2 * 100), BYTES);
        bytes_of(&three[0]).fill(7);
        bytes_of(&three[1]).fill(7);
        let there = put(&three[2], 2, 0, 0, BYTES as u64, 0);
        let mut done = 0;
        for sender in [0, 1, 0, 1] {
            write(&mut three[sender], &there).unwrap();
            // The next put is posted while the bytes of this one arrive.
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
fn get_conflicting_with_put_is_reported() {
    let [mut a, mut b, c] = nodes::<3>("worst:seed=5,again=0", BYTES);
    bytes_of(&a).fill(1);
    // SAFETY: here and below, no other code accesses the memory.
    let mut get = |from: &Node, at, token| unsafe { b.rail.read(&b.region, &put(from, 2, 0, at, 100, token)) };
    get(&c, 0, 1).unwrap();
    get(&c, 50, 2).expect_err("both come to one place of b");
    let error = write(&mut a, &put(&c, 2, 0, 99, 8, 3)).expect_err("put into what is read").to_string();
    assert!(
        error.contains("destination written while a get of its bytes is in flight: the other is get ")
            && error.contains(" of rank 1 from rank 2, 100 B from offset 0 of rank 2's region"),
        "{error}"
    );
    write(&mut a, &put(&c, 2, 0, 100, 8, 4)).unwrap();
    let peer = Transfer { local_offset: 2000, ..put(&c, 2, 0, 100, 8, 5) };
    // SAFETY: no other code accesses the memory.
    let error = unsafe { b.rail.read(&b.region, &peer) }.expect_err("a put is in flight there").to_string();
    assert!(
        error.contains("bytes read by a get while a put to them is in flight: the other is put ")
            && error.contains(" of rank 0 to rank 2, 8 B to offset 100 of rank 2's region"),
        "{error}"
    );
}

#[test]
fn disabled_watch_reports_no_misuse() {
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

/// The target's response proves that the bytes are not read again. According to the libfabric specification, the source
/// belongs to the provider until the completion.
#[test]
fn strict_watch_requires_completion_after_immediate() {
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
