//! Warps: what lanes tell each other, and what is a bug of the kernel.

use super::super::failure;
use super::*;

/// The grid as it is, and under some seeds.
fn in_all_orders(block: u32, body: impl Fn() + Sync) {
    Grid::new(2, block).run(&body).expect("runs without a seed");
    for seed in 0..20 {
        Grid::new(2, block).seeded(seed).run(&body).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn lanes_of_a_mask_tell_each_other_what_they_hold() {
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
        // Two halves of a warp, each for itself.
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
fn a_rendezvous_orders_what_lanes_do() {
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
fn a_seed_makes_groups_of_those_that_come_together() {
    let mut sizes = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let groups = Mutex::new(Vec::new());
        let grid = Grid::new(1, 32).seeded(seed);
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

/// The bug that a trace of the put kernel once showed on the GPU: a leader that does something alone is not back with its warp
/// because the source's branch has ended.
#[test]
fn a_leader_that_does_not_come_back_to_its_warp_is_seen() {
    let answer = Word::new(0);
    let kernel = |comes_back: bool| {
        let (answer, seen) = (&answer, Mutex::new(Vec::new()));
        store_relaxed_gpu_u64(answer, 0);
        Grid::new(1, 64)
            .run(|| {
                if thread::thread_idx_x() == 0 {
                    // Waits for what another warp does.
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
                // The warp's lanes divide a piece of work by the mask that they find.
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
fn what_the_hardware_leaves_undefined_ends_the_grid() {
    let failing: [(&str, &(dyn Fn() + Sync)); 5] = [
        ("lane 3 of warp 0 has returned, and lane", &|| {
            if warp::lane() != 3 {
                warp::broadcast_u64(u32::MAX, 1, 0);
            }
        }),
        ("of which 0xff000000 have returned or never were", &|| {
            if warp::lane() < 24 {
                for _ in 0..3 {
                    thread::relax();
                }
                warp::broadcast_u64(u32::MAX, 1, 30);
            }
        }),
        ("wants a value of lane 9, which is not among the lanes 0xff", &|| {
            if warp::lane() < 8 {
                warp::shuffle_u64(0xff, 1, 9);
            }
        }),
        ("to which it does not belong", &|| warp::synchronize(0xff)),
        ("all its threads wait for one another", &|| {
            let mask = u32::MAX;
            if warp::lane() == 0 { warp::synchronize(mask) } else { thread::sync_threads() }
        }),
    ];
    for (expected, body) in failing {
        for seed in 0..5 {
            let text = failure(Grid::new(1, 32).seeded(seed), body);
            let order = "wait for it at";
            assert!(
                text.contains(expected) || text.contains(order) || text.contains("have returned"),
                "{seed}: {text}"
            );
        }
        let text = failure(Grid::new(1, 32), body);
        assert!(text.contains(expected), "{text}");
    }
}

/// The rules of [`Orders`]: barriers order memory, shuffles do not, and a fence covers what its lane knew by then.
#[test]
fn a_fence_covers_what_a_barrier_has_brought_before_it() {
    #[derive(Clone, Copy, PartialEq)]
    enum Way {
        Fenced,
        NoFence,
        FenceBeforeBarrier,
        ShuffleAlone,
        BlockBarrier,
    }
    let covered = |way: Way| {
        let (orders, word) = (Orders::default(), Word::new(0));
        let written = Mutex::new(None);
        let grid = Grid::new(1, 32).observed(&orders);
        grid.run(|| {
            if warp::lane() == 7 {
                *written.lock().expect("no panic") = Some(orders.now());
            }
            if way == Way::FenceBeforeBarrier {
                crate::memory::fence_acq_rel_sys();
            }
            match way {
                Way::ShuffleAlone => drop(warp::broadcast_u64(u32::MAX, 0, 7)),
                Way::BlockBarrier => thread::sync_threads(),
                _ => warp::synchronize(u32::MAX),
            }
            if way != Way::NoFence && way != Way::FenceBeforeBarrier {
                crate::memory::fence_acq_rel_sys();
            }
            if warp::lane() == 3 {
                crate::memory::store_relaxed_sys_u64(&word, 1);
            }
        })
        .expect("runs");
        orders.releases(&word, written.into_inner().expect("no panic").expect("lane 7 has run"))
    };
    assert!(covered(Way::Fenced) && covered(Way::BlockBarrier));
    assert!(!covered(Way::NoFence) && !covered(Way::FenceBeforeBarrier) && !covered(Way::ShuffleAlone));
}
