//! Random shapes of `ginlab shmem`: call, scope, size, alignments, block and grid.
//!
//! A lane moves at most [`LANE_BYTES`] in a call and [`LANE_VOLUME`] in a launch: a baseline that copies byte by byte
//! takes about 10 ms for the former. With these limits, 200 shapes take less than five minutes.

use super::args::{ShmemArgs, ShmemCase, ShmemConfig};
use crate::random::SeededChoices;
use crate::world::CallScope;
use ginlab::report::each_once;

const CASES: [ShmemCase; 5] = [
    ShmemCase::PutLatency,
    ShmemCase::GetLatency,
    ShmemCase::PutSignalPingPong,
    ShmemCase::PutBandwidth,
    ShmemCase::GetBandwidth,
];
const LANE_BYTES: u64 = 64 << 10;
const LANE_VOLUME: u64 = 256 << 10;
/// Largest grid.
const BLOCKS: u64 = 32;

/// Returns the random shapes that the options select, or `None` without `--random`.
pub fn tuples(args: &ShmemArgs) -> Option<Vec<ShmemConfig>> {
    Some(each_once(args.random.generators()?.map(|random| shape(args, random))))
}

fn shape(args: &ShmemArgs, mut random: SeededChoices) -> ShmemConfig {
    let case = random.one(&CASES);
    let blocks = 32 * random.from(1, 32) as u32;
    let (scope, block) = match random.from(0, 2) {
        _ if case.is_bandwidth() => (CallScope::Block, blocks),
        0 => (CallScope::Thread, 1),
        1 => (CallScope::Warp, 32),
        _ => (CallScope::Block, blocks),
    };
    let grid = if case.is_bandwidth() { random.from(2, BLOCKS) } else { 1 };
    let lanes = grid * u64::from(block);
    // Every block of a grid moves at least one byte.
    let least = args.sizes.begin.max(grid).min(args.sizes.end);
    let bytes = random.size_within(least, args.sizes.end.min(lanes * LANE_BYTES).max(least));
    let volume = args.volume.min(lanes * LANE_VOLUME);
    let iterations = (volume / bytes).clamp(1, args.iterations.into()) as u32;
    ShmemConfig {
        case,
        scope,
        bytes,
        grid: grid as u32,
        block,
        iterations,
        warmup: args.warmup.min(iterations),
        by_messages: false,
        to_at: random.from(0, 15) as u32,
        from_at: random.from(0, 15) as u32,
    }
}
