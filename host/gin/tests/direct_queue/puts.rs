//! Tests of puts by a kernel that drives the queues: every byte arrives, in any order of completions.

use crate::common::{QueueRunConfig, run};
use ginlab_gin::direct::{CardOptions, CompletionOrder, QueueOptions};
use proptest::prelude::*;

#[test]
fn every_put_arrives_where_requests_end_at_once() {
    let ran = run(&QueueRunConfig::default(), CardOptions::default());
    assert!(ran.is_whole(), "{ran:?}");
    assert_eq!(ran.found.iter().map(|found| found.requests).sum::<u64>(), 3 * 40 * 5);
}

#[test]
fn two_slot_queue_wraps_with_single_requests() {
    let options = QueueOptions { depth: 2, completions: 2, max_batch: 1, ..QueueRunConfig::default().options };
    let ran =
        run(&QueueRunConfig { options, grid: 2, iterations: 3, ..QueueRunConfig::default() }, CardOptions::default());
    assert!(ran.is_whole(), "{ran:?}");
}

#[test]
fn counter_wraps_at_maximum() {
    // The requests of the launch straddle the overflow of 31 bits.
    let options = QueueOptions { by_counter: true, counter: (1 << 31) - 50, ..QueueRunConfig::default().options };
    let ran = run(&QueueRunConfig { options, grid: 2, ..QueueRunConfig::default() }, CardOptions::default());
    assert!(ran.is_whole(), "{ran:?}");
}

#[test]
fn request_ids_wrap_in_any_lap() {
    // The memory of completions is zero at first, which is the phase of every second lap.
    for counter in [3, 64, 100, 65_500, (1 << 31) - 50] {
        let options = QueueOptions { depth: 64, completions: 64, counter, ..QueueRunConfig::default().options };
        let ran = run(&QueueRunConfig { options, grid: 2, ..QueueRunConfig::default() }, CardOptions::default());
        assert!(ran.is_whole(), "{counter}: {ran:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_put_arrives_in_any_order(
        seed: u64, grid in 1u32..4, block in 1u32..70, queues in 1u32..4, quiet_every in 0u32..3, power in 1u32..6, wider in 0u32..2,
        batch in 1u32..40, wide: bool, by_counter: bool, held in 1usize..40,
    ) {
        let depth = 1 << power;
        let options = QueueOptions {
            depth,
            completions: depth << wider,
            max_batch: batch.min(depth - 1),
            entry_bytes: if wide { 32 } else { 16 },
            by_counter,
            // IDs wrap around at 16 bits.
            counter: 65_530,
            ..QueueRunConfig::default().options
        };
        // A block that waits for counters needs its own queue.
        let queues = if by_counter { grid } else { queues };
        let quiet_every = if by_counter { 0 } else { quiet_every };
        let case = QueueRunConfig { grid, block, queues, quiet_every, iterations: 4, options, ..QueueRunConfig::default() };
        let ran = run(&case, CardOptions { threads: 2, order: CompletionOrder::Any(seed, held), ..CardOptions::default() });
        prop_assert!(ran.is_whole(), "{:?}", ran);
    }
}
