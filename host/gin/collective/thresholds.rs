//! Size thresholds of ginlab's collectives: messages or puts, one step or two, and the number of blocks. They are
//! measured, and limited by available space.

use super::{CollectiveOperation, CollectiveRequest, Shape, Tuning};
use kernels::collective::{slice_bytes, stores};

/// Bytes of a message from one block to another within a node of GPUs. `PART` is the maximum, and `LEAN_PART` the
/// preferred size if there are enough blocks (8 bytes for each thread). Blocks with few threads can start while those
/// of the previous launch still occupy the GPU.
const PART: u64 = 8192;
const LEAN_PART: u64 = 1024;
/// Maximum number of blocks for messages: two per multiprocessor of a large GPU.
const MOST_PARTS: u64 = 264;
/// Number of threads of a block that sends messages.
pub const LEAN_THREADS: u64 = 128;
/// Maximum number of bytes that a rank sends as messages, to ranks of its node and over rails. Over rails one block
/// sends each message.
const MESSAGES: u64 = 2 << 20;
const MESSAGES_OVER_RAILS: u64 = 64 << 10;
/// Minimum number of bytes, counted as words, that a second step must save. NVLink transfers this many bytes in the
/// microsecond that the step takes.
const SAVED_BY_TWO_TRIPS: u64 = 256 << 10;
/// Minimum number of bytes of a slice for which an additional block is worthwhile, over NVLink and over rails.
pub const SLICE: u64 = 16 << 10;
pub const SLICE_OF_RAILS: u64 = 256 << 10;
/// Minimum number of bytes of a chunk for which few blocks store, and the number of these blocks for one other rank and
/// for several.
pub const FEW: u64 = 16 << 20;
pub const FEW_BLOCKS: u32 = 16;
pub const FEW_BLOCKS_OF_MANY: u32 = 64;
/// Minimum number of bytes of a chunk for which a block uses all its threads, and the number of threads for smaller
/// chunks.
pub const WIDE: u64 = 16 << 20;
pub const NARROW: u32 = 256;
/// Maximum number of blocks over rails. The proxy is a single thread.
pub const BLOCKS_OF_RAILS: u32 = 8;

/// Returns whether an all-reduce by words uses two steps. In the first step every rank sums one chunk, and in the
/// second the sums are sent to all ranks.
///
/// For S bytes among n ranks, this sends 2 (n - 1) S / n bytes instead of (n - 1) S, doubled as words. The second step
/// adds one one-way latency.
pub fn two_trips(shape: &Shape) -> bool {
    let n = shape.ranks;
    // All chunks must have the same length.
    shape.operation == CollectiveOperation::AllReduce
        && shape.chunk * n == shape.bytes
        && shape.bytes * (n - 1) * (n - 2) / n >= SAVED_BY_TWO_TRIPS
}

/// Minimum chunk for which a node's PEs store parts that warps take from one queue. There is one limit each for an
/// all-reduce between two PEs, for an all-reduce among more PEs, for a reduce-scatter (whose sums are then a separate
/// step), and for operations without sums. For smaller chunks, sums by loads and puts by blocks are at least as fast.
const STORED_BY_TWO: u64 = 8 << 20;
const STORED: u64 = 4 << 20;
const STORED_TO_SCATTER: u64 = 128 << 20;
const STORED_WITHOUT_SUMS: u64 = 16 << 20;
/// Numbers of blocks and threads for stores. They are small, because more outstanding stores are slower. A
/// reduce-scatter uses more, because its sums are limited by this GPU's memory bandwidth.
const STORE_GRID: (u32, u32) = (64, 128);
const STORE_GRID_TO_SCATTER: (u32, u32) = (132, 192);

/// Returns the blocks and threads for stores.
pub fn store_grid(operation: CollectiveOperation) -> (u32, u32) {
    if operation == CollectiveOperation::ReduceScatter { STORE_GRID_TO_SCATTER } else { STORE_GRID }
}

/// Returns the bytes of a piece if the operation uses stores from one queue within a node. `None` if it does not.
pub fn by_stores(tuning: &Tuning, shape: &Shape) -> Option<u64> {
    let from = match (shape.operation, shape.ranks) {
        // Two PEs use loads. Stores were not measured for them below 256 MiB, where loads are fast.
        (CollectiveOperation::ReduceScatter, 2) => u64::MAX,
        (CollectiveOperation::ReduceScatter, _) => STORED_TO_SCATTER,
        (CollectiveOperation::AllReduce, 2) => STORED_BY_TWO,
        (CollectiveOperation::AllReduce, _) => STORED,
        (CollectiveOperation::AllGather | CollectiveOperation::AllToAll, _) => STORED_WITHOUT_SUMS,
        (CollectiveOperation::Broadcast | CollectiveOperation::SendRecv, _) => return None,
    };
    // Every chunk must consist of 16-byte vectors, and there must be another rank to send to.
    if shape.ranks < 2 || shape.chunk < tuning.stores_from.unwrap_or(from) || !shape.chunk.is_multiple_of(16) {
        return None;
    }
    if !shape.operation.sums() {
        return Some(shape.chunk);
    }
    // The sums of an all-reduce use links like its other stores, so one piece suffices. The sums of a reduce-scatter do
    // not use links, and only few of them should remain after the last stores.
    let most = u64::from(stores::PIECES);
    let pieces = if shape.operation == CollectiveOperation::ReduceScatter { most } else { 1 };
    let pieces = tuning.piece.map_or(pieces, |piece| shape.chunk.div_ceil(piece.max(1)).clamp(1, most));
    Some(shape.chunk.div_ceil(pieces).next_multiple_of(stores::part_bytes(shape.ranks as u32)))
}

/// Returns whether a message that `parts` blocks send fits. Each block has its own inbox, with space for one slice.
pub fn messages_fit(message: u64, parts: u32, inboxes: u32, capacity: u64) -> bool {
    parts <= inboxes && slice_bytes(message, parts) <= capacity
}

/// Returns whether a grid may be launched while the previous one still runs. If PEs share a GPU, both grids must fit
/// into a PE's share. Otherwise blocks that wait for the previous grid could prevent blocks of another PE, for which
/// the previous grid waits, from becoming resident. On an unshared GPU, a grid starts only when all blocks of the
/// previous one are resident.
pub fn overlap_fits(grid: u32, share: u32, sharers: u32) -> bool {
    sharers < 2 || grid <= share / 2
}

/// Returns the maximum of `what` over all requests.
pub fn most(requests: &[CollectiveRequest], what: impl Fn(&Shape) -> u64) -> u64 {
    requests.iter().map(|request| what(&request.shape)).max().unwrap_or(0)
}

/// Returns the bytes of scratch memory that the requests need among `nodes` nodes: two chunks per node for sums, or the
/// gathered chunks.
pub fn scratch(tuning: &Tuning, requests: &[CollectiveRequest], nodes: u64) -> u64 {
    let needs = requests.iter().map(|request| {
        let shape = request.shape;
        if nodes == 1 {
            by_stores(tuning, &shape).filter(|_| shape.operation.sums()).map_or(0, |_| shape.ranks * shape.chunk)
        } else if shape.operation.sums() {
            2 * nodes * shape.chunk
        } else if request.gathered {
            shape.bytes
        } else {
            0
        }
    });
    needs.max().unwrap_or(0)
}

/// Returns the bytes of a message that one block sends, and the number of blocks for messages.
pub fn parts(tuning: &Tuning, ranks: u64, mapped: bool, emulated: bool) -> (u64, u32) {
    let limit = limit(tuning, ranks, mapped, emulated).next_multiple_of(16);
    let part = match (mapped, emulated) {
        (true, false) => PART,
        (true, true) => PART.max(limit / 4),
        (false, _) => limit,
    };
    let part = part.max(16).next_multiple_of(16);
    (part, limit.div_ceil(each(part, mapped, emulated)).clamp(1, MOST_PARTS) as u32)
}

/// Returns the preferred bytes of a message per block.
pub fn each(part: u64, mapped: bool, emulated: bool) -> u64 {
    if mapped && !emulated { part.min(LEAN_PART) } else { part }
}

/// Returns the maximum bytes of a message.
pub fn limit(tuning: &Tuning, ranks: u64, mapped: bool, emulated: bool) -> u64 {
    let all = tuning.message_limit.unwrap_or(if mapped && !emulated { MESSAGES } else { MESSAGES_OVER_RAILS });
    all / (ranks - 1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of blocks with 128 registers per thread that are resident on one H200.
    fn on_a_gpu(threads: u32) -> u32 {
        132 * (65536 / 128 / threads)
    }

    #[test]
    fn messages_of_shared_gpu_fit_or_use_puts() {
        // Regression test: `--np N -e 1M` on one GPU hung.
        for pes in 2..=8u32 {
            let part = PART;
            for size in [8u64, 64 << 10, 1 << 20, MESSAGES] {
                let message = size / u64::from(pes - 1);
                let lean = message.div_ceil(LEAN_PART).clamp(1, MOST_PARTS) as u32;
                let parts = lean.min(on_a_gpu(128) / pes).max(1);
                assert!(parts * pes <= on_a_gpu(128), "{pes} {size}");
                if messages_fit(message, parts, MOST_PARTS as u32, part) {
                    assert!(u64::from(parts) * part >= message, "{pes} {size}");
                }
                let early = overlap_fits(parts, on_a_gpu(128) / pes, pes);
                assert!(!early || 2 * parts * pes <= on_a_gpu(128), "{pes} {size}");
            }
        }
        assert!(!messages_fit(264 << 10, 33, 264, 8000) && messages_fit(264 << 10, 33, 264, 8192));
        assert!(!messages_fit(64, 9, 8, 8192), "more blocks than inboxes");
        // A PE with its own GPU overlaps grids of any size.
        assert!(overlap_fits(132, 132, 1) && !overlap_fits(34, 66, 2) && overlap_fits(33, 66, 2));
    }
}
