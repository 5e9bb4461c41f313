//! Tests of warps: exchanges between lanes, and detected bugs of kernels.

use super::super::failure;
use super::*;

/// Runs the grid unseeded, and with several seeds.
fn in_all_orders(block: u32, body: impl Fn() + Sync) {
    EmulatedGrid::new(2, block).run(&body).expect("runs without a seed");
    for seed in 0..20 {
        EmulatedGrid::new(2, block).seeded(seed).run(&body).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn lanes_of_mask_exchange_values() {
    in_all_orders(72, || {
        let (lane, mask) = (warp::lane(), warp::launched_mask());
        assert_eq!(mask, if thread::thread_idx_x() < 64 { u32::MAX } else { 0xff });
        assert_eq!(warp::shuffle_u64(mask, 100 + lane as u64, (lane + 1) % 8), 100 + (lane as u64 + 1) % 8);
        assert_eq!(warp::broadcast_u64(mask, lane as u64, 3), 3);
        let same = (0..32).filter(|other| other % 3 == lane % 3).fold(0, |same, other| same | 1 << other);
        assert_eq!(warp::match_any_u64(mask, (lane % 3).into()), same & mask);
        assert_eq!(warp::ballot(mask, lane % 2 == 1), 0xaaaa_aaaa & mask);
        assert!(warp::any(mask, lane == 5) && !warp::any(mask, lane == 40));
        assert!(warp::all(mask, lane < 32) && !warp::all(mask, lane != 5));
        // The two halves of a warp exchange separately.
        if mask == u32::MAX {
            let half = if lane < 16 { 0xffff } else { 0xffff_0000 };
            for round in 0..5 {
                let source = lane / 16 * 16 + round;
                assert_eq!(warp::shuffle_u64(half, lane.into(), source), source.into());
            }
        }
        warp::synchronize(mask);
    });
}

#[test]
fn rendezvous_orders_accesses_of_lanes() {
    let words: Vec<Word> = (0..128).map(|_| Word::new(0)).collect();
    in_all_orders(64, || {
        let me = thread::index() as usize;
        store_relaxed_gpu_u64(&words[me], 0);
        for round in 1..5 {
            store_relaxed_gpu_u64(&words[me], round);
            warp::synchronize(u32::MAX);
            assert_eq!(load_relaxed_gpu_u64(&words[me ^ 1]), round);
            warp::synchronize(u32::MAX);
        }
    });
}

#[test]
fn those_that_come_together_are_active_together() {
    run(1, 32, || {
        assert_eq!(warp::active_mask(), u32::MAX);
        if warp::lane() % 4 == 1 {
            assert_eq!(warp::active_mask(), 0x2222_2222);
        } else {
            assert_eq!(warp::active_mask(), 0xdddd_dddd);
        }
        assert_eq!(warp::active_mask(), u32::MAX);
    })
    .expect("runs");
}

#[test]
fn seed_groups_lanes_that_arrive_together() {
    let mut sizes = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let groups = Mutex::new(Vec::new());
        let grid = EmulatedGrid::new(1, 32).seeded(seed);
        grid.run(|| {
            let group = warp::active_mask();
            groups.lock().expect("no panic").push((warp::lane(), group));
        })
        .expect("runs");
        let groups = groups.into_inner().expect("no panic");
        for (lane, group) in &groups {
            assert!(group >> lane & 1 == 1);
            let others = groups.iter().filter(|(other, _)| group >> other & 1 == 1);
            assert!(others.into_iter().all(|(_, other)| other == group), "all of a group know the same");
        }
        sizes.extend(groups.iter().map(|(_, group)| group.count_ones()));
    }
    assert!(sizes.len() > 5 && sizes.contains(&32), "{sizes:?}");
}

/// Reproduces a bug that a trace of the put kernel showed on the GPU: after a branch for the leader only, the leader
/// does not reconverge with its warp.
#[test]
fn leader_missing_from_rendezvous_is_detected() {
    let answer = Word::new(0);
    let kernel = |comes_back: bool| {
        let (answer, seen) = (&answer, Mutex::new(Vec::new()));
        store_relaxed_gpu_u64(answer, 0);
        EmulatedGrid::new(1, 64)
            .run(|| {
                if thread::thread_idx_x() == 0 {
                    // Waits for a store of another warp.
                    while load_relaxed_gpu_u64(answer) == 0 {
                        thread::relax();
                    }
                }
                if comes_back {
                    warp::synchronize(u32::MAX);
                }
                if thread::thread_idx_x() == 40 {
                    store_relaxed_gpu_u64(answer, 1);
                }
                // The lanes of the warp divide work by this mask.
                let together = warp::active_mask();
                if thread::thread_idx_x() < 32 {
                    seen.lock().expect("no panic").push(together);
                }
            })
            .expect("runs");
        seen.into_inner().expect("no panic")
    };
    assert_eq!(kernel(true), [u32::MAX; 32]);
    let apart = kernel(false);
    assert!(
        apart.contains(&(u32::MAX - 1)) && apart.contains(&1),
        "the leader works alone, behind the others: {apart:x?}"
    );
}

#[test]
fn undefined_behaviour_of_hardware_ends_grid() {
    let failing: [(&str, &(dyn Fn() + Sync)); 4] = [
        ("thread 3 has returned (has not met other threads), and lane 0 of warp 0 waits for it at", &|| {
            if warp::lane() != 3 {
                warp::broadcast_u64(u32::MAX, 1, 0);
            }
        }),
        ("of which 0xff000000 have returned or never existed: thread 24 has returned", &|| {
            if warp::lane() < 24 {
                for _ in 0..3 {
                    thread::relax();
                }
                warp::broadcast_u64(u32::MAX, 1, 30);
            }
        }),
        ("requests a value of lane 9, which is not in mask 0xff", &|| {
            if warp::lane() < 8 {
                warp::shuffle_u64(0xff, 1, 9);
            }
        }),
        ("which does not contain it", &|| warp::synchronize(0xff)),
    ];
    for (expected, body) in failing {
        for seed in 0..5 {
            let text = failure(EmulatedGrid::new(1, 32).seeded(seed), body);
            assert!(
                text.contains(expected) || text.contains("waits for it at") || text.contains("have returned"),
                "{seed}: {text}"
            );
        }
        let text = failure(EmulatedGrid::new(1, 32), body);
        assert!(text.contains(expected), "{text}");
    }
}

/// Returns the line numbers of all `warps.rs:LINE:` in a message, in ascending order.
fn lines(text: &str) -> Vec<u32> {
    let number = |rest: &str| rest.split(':').next().and_then(|line| line.parse().ok());
    let mut lines: Vec<u32> = text.split(concat!(file!(), ":")).skip(1).filter_map(number).collect();
    lines.sort_unstable();
    lines
}

#[test]
#[expect(clippy::if_same_then_else, reason = "the same call at two places is the fault")]
fn lanes_at_two_calls_are_reported_with_lines() {
    let all = u32::MAX;
    let first = line!() + 4;
    // Covers votes with different masks, two calls of one kind, calls of two kinds, and a rendezvous with the block
    // barrier.
    let failing: [(&str, &(dyn Fn() + Sync)); 5] = [
        ("same mask", &|| assert!(warp::any(if warp::lane() < 8 { 0xffff } else { all }, true))),
        ("same mask", &|| if warp::lane() == 8 { warp::synchronize(all) } else { warp::synchronize(all) }),
        ("same mask", &|| assert!(if warp::lane() == 8 { warp::any(all, true) } else { warp::all(all, true) })),
        ("lane 1 of warp 0", &|| if warp::lane() == 1 { warp::synchronize(all) } else { thread::sync_threads() }),
        ("lane 0", &|| if warp::lane() == 0 { thread::sync_threads() } else { warp::synchronize(all) }),
    ];
    for ((expected, body), line) in failing.into_iter().zip(first..) {
        for seed in [None, Some(1), Some(2), Some(3)] {
            let grid = EmulatedGrid::new(1, 64);
            let text = failure(seed.map_or(grid.clone(), |seed| grid.seeded(seed)), body);
            assert!(text.contains(expected) || text.contains("waits for it at"), "{seed:?}: {text}");
            assert_eq!(lines(&text), [line, line], "{seed:?}: {text}");
        }
    }
}

/// Lanes of a mask may arrive at it after a rendezvous of a subset of them.
#[test]
fn partial_rendezvous_may_precede_full_one() {
    in_all_orders(64, || {
        if warp::lane() < 8 {
            warp::synchronize(0xff);
            assert_eq!(warp::broadcast_u64(0xff, warp::lane().into(), 2), 2);
        }
        warp::synchronize(u32::MAX);
    });
}

/// The rules of [`Orders`]: barriers order memory, shuffles do not, and a fence covers the clock of its lane at that
/// time.
#[test]
fn fence_covers_stores_ordered_by_earlier_barrier() {
    #[derive(Clone, Copy, PartialEq)]
    enum FenceCase {
        Fenced,
        NoFence,
        FenceBeforeBarrier,
        ShuffleAlone,
        BlockBarrier,
    }
    let covered = |way: FenceCase| {
        let (orders, word) = (Orders::default(), Word::new(0));
        let written = Mutex::new(None);
        let grid = EmulatedGrid::new(1, 32).observed(&orders);
        grid.run(|| {
            if warp::lane() == 7 {
                *written.lock().expect("no panic") = Some(orders.now());
            }
            if way == FenceCase::FenceBeforeBarrier {
                crate::memory::fence_acq_rel_sys();
            }
            match way {
                FenceCase::ShuffleAlone => drop(warp::broadcast_u64(u32::MAX, 0, 7)),
                FenceCase::BlockBarrier => thread::sync_threads(),
                _ => warp::synchronize(u32::MAX),
            }
            if way != FenceCase::NoFence && way != FenceCase::FenceBeforeBarrier {
                crate::memory::fence_acq_rel_sys();
            }
            if warp::lane() == 3 {
                crate::memory::store_relaxed_sys_u64(&word, 1);
            }
        })
        .expect("runs");
        orders.releases(&word, written.into_inner().expect("no panic").expect("lane 7 has run"))
    };
    assert!(covered(FenceCase::Fenced) && covered(FenceCase::BlockBarrier));
    assert!(
        !covered(FenceCase::NoFence) && !covered(FenceCase::FenceBeforeBarrier) && !covered(FenceCase::ShuffleAlone)
    );
}
