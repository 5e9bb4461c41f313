//! Tests of the emulated device: scheduling, barriers, residency, failures.

use super::*;
use crate::memory::{Word, fetch_add_relaxed_gpu_u64, load_relaxed_gpu_u64, store_relaxed_gpu_u64};
use crate::thread;
use std::sync::atomic::AtomicU32;

/// Runs a grid that must fail, and returns the error text.
fn failure(grid: EmulatedGrid, body: impl Fn() + Sync) -> String {
    grid.run(body).expect_err("the grid must fail").to_string()
}

#[test]
fn every_thread_runs_once_also_in_waves() {
    // More threads than are resident at the same time, except under Miri, which takes seconds for a hundred.
    let (grid, block) = if cfg!(miri) { (3, 8) } else { (150, 250) };
    for workers in [1, 3] {
        let counts: Vec<AtomicU32> = (0..grid * block).map(|_| AtomicU32::new(0)).collect();
        let body = || {
            counts[thread::index() as usize].fetch_add(1, Ordering::Relaxed);
        };
        EmulatedGrid::new(grid, block).workers(workers).run(body).expect("runs");
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn barrier_joins_block_and_votes() {
    for block in [8, 100] {
        let (sum, votes) = (AtomicU32::new(0), AtomicU32::new(0));
        let body = || {
            sum.fetch_add(1, Ordering::Relaxed);
            thread::sync_threads();
            assert!(sum.load(Ordering::Relaxed) >= block);
            if thread::sync_threads_or(thread::thread_idx_x() == 5) {
                votes.fetch_add(1, Ordering::Relaxed);
            }
            assert!(!thread::sync_threads_or(false));
        };
        run(3, block, body).expect("runs");
        EmulatedGrid::new(3, block).seeded(block.into()).run(body).expect("runs");
        assert_eq!(votes.load(Ordering::Relaxed), 6 * block);
    }
}

/// Every block waits for the last one, and no two blocks belong to the same wave.
#[test]
fn resident_grid_runs_all_blocks_concurrently() {
    let (blocks, threads) = if cfg!(any(miri, feature = "threads")) { (3, 2) } else { (40, 1024) };
    for workers in [1, 2] {
        let arrived = Word::new(0);
        let body = || {
            if thread::thread_idx_x() == 0 {
                fetch_add_relaxed_gpu_u64(&arrived, 1);
                while load_relaxed_gpu_u64(&arrived) < blocks.into() {
                    thread::relax();
                }
            }
            thread::sync_threads();
        };
        EmulatedGrid::new(blocks, threads).resident(true).workers(workers).run(body).expect("all have met");
    }
}

#[test]
fn oversized_grid_is_rejected_with_limit() {
    for (blocks, threads) in [(0, 1), (1, 0), (1, MAX_BLOCK + 1)] {
        assert!(
            failure(EmulatedGrid::new(blocks, threads), || ())
                .contains("must have at least 1 block of 1 to 1024 threads")
        );
    }
    let text = failure(EmulatedGrid::new(133, 1024).resident(true), || ());
    assert!(text.contains("grid 133 x 1024") && text.contains("at most 132 blocks of 1024"), "{text}");
    assert!(EmulatedGrid::new(132, 1024).resident(true).bytes() <= 1_500_000_000);
    assert!(EmulatedGrid::new(u32::MAX, 1024).bytes() < 200_000_000, "waves");
}

#[test]
fn first_panic_ends_grid_and_is_reported() {
    // The other threads wait at a barrier, or spin without end.
    let body = || {
        match thread::thread_idx_x() {
            2 if thread::block_idx_x() == 1 => panic!("expected by the test"),
            3 if !cfg!(any(miri, feature = "threads")) => loop {
                thread::relax();
            },
            _ => {}
        }
        thread::sync_threads();
    };
    let text = failure(EmulatedGrid::new(3, 40), body);
    assert!(text.contains("block 1, thread 2 panicked"), "{text}");
    assert!(cfg!(any(miri, feature = "threads")) || text.contains("expected by the test"), "{text}");
}

#[test]
fn shared_memory_is_private_to_block() {
    let body = || {
        let memory = shared_memory(4).expect("a block's").cast::<Word>();
        // SAFETY: each thread accesses its own word, and the index is within the memory.
        let word = |thread: u32| unsafe { &*memory.add(thread as usize) };
        let (me, threads) = (thread::thread_idx_x(), thread::block_dim_x());
        assert_ne!(load_relaxed_gpu_u64(word(me)), 0, "nobody has cleared it");
        thread::sync_threads();
        store_relaxed_gpu_u64(word(me), thread::index().into());
        thread::sync_threads();
        let neighbour = (me + 1) % threads;
        let expected = thread::block_idx_x() * threads + neighbour;
        assert_eq!(load_relaxed_gpu_u64(word(neighbour)), expected.into());
    };
    run(3, 8, body).expect("each block sees its own");
}

mod barriers;

#[cfg(not(any(miri, feature = "threads")))]
mod lanes {
    use super::*;
    use crate::warp;
    use std::sync::Mutex;

    #[test]
    fn unwound_lanes_drop_their_values() {
        struct Held<'a>(&'a AtomicU32);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
                // The other threads have been unwound; this must not wait for them.
                thread::sync_threads();
            }
        }
        let (begun, dropped) = (AtomicU32::new(0), AtomicU32::new(0));
        let text = failure(EmulatedGrid::new(2, 64), || {
            begun.fetch_add(1, Ordering::Relaxed);
            let _held = Held(&dropped);
            if thread::index() == 100 {
                panic!("expected by the test");
            }
            loop {
                thread::relax();
            }
        });
        assert!(text.contains("block 1, thread 36"), "{text}");
        assert!(begun.load(Ordering::Relaxed) > 64);
        assert_eq!(begun.load(Ordering::Relaxed), dropped.load(Ordering::Relaxed));
    }

    #[test]
    fn deadlocked_block_is_reported_immediately() {
        // Each of the first three lanes of warp 0 waits for the next one, and the other threads wait for all of them.
        let line = line!();
        let text = failure(EmulatedGrid::new(1, 64), || match thread::thread_idx_x() {
            0 => warp::synchronize(0b011),
            1 => warp::synchronize(0b110),
            2 => warp::synchronize(0b101),
            _ => thread::sync_threads(),
        });
        assert!(text.contains("block 0: all its threads wait for one another; 61 of 64 at "), "{text}");
        assert!(text.contains(&format!("lane 1 of warp 0 at {}:{}:", file!(), line + 3)), "{text}");
        assert!(text.contains("(synchronize), mask 0x6"), "{text}");
    }

    /// Uses about 1 KiB of stack per level, and stops at each.
    fn deep(left: u32) -> u32 {
        let frame = std::hint::black_box([left; 250]);
        thread::relax();
        if left == 0 { 0 } else { deep(left - 1) + frame[3] - left }
    }

    /// A frame of 95 KiB is that of a test's kernel.
    #[test]
    fn stack_holds_an_unoptimized_kernel() {
        run(1, 2, || assert_eq!(deep(150), 0)).expect("runs");
    }

    #[test]
    fn nearly_full_stack_panics() {
        let text = failure(EmulatedGrid::new(1, 2), || assert_eq!(deep(1000 * thread::thread_idx_x()), 0));
        assert!(text.contains("block 0, thread 1") && text.contains("stack"), "{text}");
    }

    #[test]
    fn lane_keeps_its_identity_after_every_stop() {
        run(4, 96, || {
            let me = (thread::block_idx_x(), thread::thread_idx_x(), warp::lane());
            assert_eq!(me.2, me.1 % 32);
            for _ in 0..10 {
                thread::relax();
                thread::sync_threads();
                assert_eq!(me, (thread::block_idx_x(), thread::thread_idx_x(), warp::lane()));
            }
        })
        .expect("runs");
        assert_eq!((thread::block_dim_x(), warp::lane()), (1, 0), "outside any grid");
    }

    /// The order of the lanes in a block depends on the seed, not on the number of workers.
    #[test]
    fn seed_determines_order_for_any_worker_count() {
        let order = |seed: Option<u64>, workers: usize| {
            let order = Mutex::new(vec![Vec::new(); 3]);
            let word = Word::new(0);
            let grid = EmulatedGrid::new(3, 64).workers(workers);
            let grid = seed.map_or(grid.clone(), |seed| grid.seeded(seed));
            grid.run(|| {
                for _ in 0..3 {
                    load_relaxed_gpu_u64(&word);
                    let group = warp::active_mask();
                    let mut order = order.lock().expect("no panic");
                    order[thread::block_idx_x() as usize].push((thread::thread_idx_x(), group));
                }
            })
            .expect("runs");
            order.into_inner().expect("no panic")
        };
        assert_eq!(order(Some(1), 1), order(Some(1), 3));
        assert_ne!(order(Some(1), 1), order(Some(2), 1));
        assert_ne!(order(Some(1), 1)[0], order(Some(1), 1)[1], "each block its own");
        let plain = order(None, 1);
        assert_eq!(plain, order(None, 2));
        assert!(plain.iter().flatten().all(|(_, group)| *group == u32::MAX), "without a seed all are together");
    }

    mod warps;
}
