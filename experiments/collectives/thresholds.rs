//! From which sizes on an operation of ours goes by messages, by puts, in two trips, and by how many blocks: what has been measured, and
//! what has room.

use super::args::{Args, Route, Tuple};
use super::shape::{Operation, Shape};
use kernels::collective::{slice_bytes, stores};

/// Bytes of a message from one block to another, where both are GPUs of a node: at most, and as many as one block should have where there are
/// blocks enough: 8 for each of its threads. A block of few threads begins while the launch before still has some.
const PART: u64 = 8192;
const LEAN_PART: u64 = 1024;
/// Most blocks for messages: two for each multiprocessor of a large GPU.
const MOST_PARTS: u64 = 264;
/// Threads of such a block.
pub const LEAN_THREADS: u64 = 128;
/// Bytes up to which a rank sends messages: to ranks of the node, and over rails, where one block sends each.
const MESSAGES: u64 = 2 << 20;
const MESSAGES_OVER_RAILS: u64 = 64 << 10;
/// Bytes that a second trip must save, words as often as they are: what NVLink carries in the microsecond that it takes.
const SAVED_BY_TWO_TRIPS: u64 = 256 << 10;
/// Bytes of a slice from which another block is worth its while: over NVLink, and over rails.
pub const SLICE: u64 = 16 << 10;
pub const SLICE_OF_RAILS: u64 = 256 << 10;
/// Chunks from which few blocks store, and how many: to one other rank, and to more.
pub const FEW: u64 = 16 << 20;
pub const FEW_BLOCKS: u32 = 16;
pub const FEW_BLOCKS_OF_MANY: u32 = 64;
/// Chunks from which a block has all its threads, and threads below it.
pub const WIDE: u64 = 16 << 20;
pub const NARROW: u32 = 256;
/// Most blocks over rails: the proxy is one thread.
pub const BLOCKS_OF_RAILS: u32 = 8;

/// Whether an all-reduce by words takes two trips: a chunk's sums each, then those to everyone. Of S bytes among n ranks it sends
/// 2 (n - 1) S / n in place of (n - 1) S, twice that as words, and is a trip longer.
pub fn two_trips(shape: &Shape) -> bool {
    let n = shape.ranks;
    // Chunks of one length alone.
    shape.operation == Operation::AllReduce
        && shape.chunk * n == shape.bytes
        && shape.bytes * (n - 1) * (n - 2) / n >= SAVED_BY_TWO_TRIPS
}

/// Chunks from which a node's PEs store parts that warps take from one queue: of an all-reduce between two and among more, of a reduce-scatter, whose
/// sums are then a step of their own, and of what is only moved. Below, sums by loads and puts by blocks are as fast or faster.
const STORED_BY_TWO: u64 = 8 << 20;
const STORED: u64 = 4 << 20;
const STORED_TO_SCATTER: u64 = 128 << 20;
const STORED_WITHOUT_SUMS: u64 = 16 << 20;
/// Blocks and threads: few, since more stores under way are slower. Of a reduce-scatter more: its sums are bound by this GPU's memory.
const STORE_GRID: (u32, u32) = (64, 128);
const STORE_GRID_TO_SCATTER: (u32, u32) = (132, 192);

/// Blocks and threads for stores.
pub fn store_grid(operation: Operation) -> (u32, u32) {
    if operation == Operation::ReduceScatter { STORE_GRID_TO_SCATTER } else { STORE_GRID }
}

/// Where a node's bytes go by stores from one queue: bytes of a piece.
pub fn by_stores(args: &Args, shape: &Shape) -> Option<u64> {
    let from = match (shape.operation, shape.ranks) {
        // Not measured between two below 256 MiB, where loads are fast.
        (Operation::ReduceScatter, 2) => u64::MAX,
        (Operation::ReduceScatter, _) => STORED_TO_SCATTER,
        (Operation::AllReduce, 2) => STORED_BY_TWO,
        (Operation::AllReduce, _) => STORED,
        (Operation::AllGather | Operation::AllToAll, _) => STORED_WITHOUT_SUMS,
        (Operation::Broadcast | Operation::SendRecv, _) => return None,
    };
    // Vectors of 16 bytes, in every chunk; and somebody to send to.
    if shape.ranks < 2 || shape.chunk < args.stores_from.unwrap_or(from) || !shape.chunk.is_multiple_of(16) {
        return None;
    }
    if !shape.operation.sums() {
        return Some(shape.chunk);
    }
    // The sums of an all-reduce use links as its other stores do; those of a reduce-scatter do not, and few should be behind the last stores.
    let most = u64::from(stores::PIECES);
    let pieces = if shape.operation == Operation::ReduceScatter { most } else { 1 };
    let pieces = args.piece.map_or(pieces, |piece| shape.chunk.div_ceil(piece.max(1)).clamp(1, most));
    Some(shape.chunk.div_ceil(pieces).next_multiple_of(stores::part_bytes(shape.ranks as u32)))
}

/// Whether a message that so many blocks send has room: each has an inbox of its own, for one slice.
pub fn messages_fit(message: u64, parts: u32, inboxes: u32, capacity: u64) -> bool {
    parts <= inboxes && slice_bytes(message, parts) <= capacity
}

/// Whether a grid may come onto the GPU while the one before still runs. Where PEs share the GPU both must fit into a PE's share: blocks that wait
/// for the end of the grid before would keep out blocks of another PE for which that one waits. Alone, a grid comes once all blocks of the one
/// before are there.
pub fn overlap_fits(grid: u32, share: u32, sharers: u32) -> bool {
    sharers < 2 || grid <= share / 2
}

/// What the tuples need.
pub fn most(tuples: &[Tuple], ranks: u64, what: impl Fn(&Shape) -> u64) -> u64 {
    tuples.iter().map(|tuple| what(&tuple.shape(ranks))).max().unwrap_or(0)
}

/// What the tuples need between their steps, among so many nodes: two chunks for each node, what others sum, or what is gathered.
pub fn scratch(args: &Args, tuples: &[Tuple], ranks: u64, nodes: u64) -> u64 {
    let needs = tuples.iter().map(|tuple| {
        let shape = tuple.shape(ranks);
        if nodes == 1 {
            by_stores(args, &shape).filter(|_| shape.operation.sums()).map_or(0, |_| ranks * shape.chunk)
        } else if shape.operation.sums() {
            2 * nodes * shape.chunk
        } else if tuple.route == Route::Gathered {
            shape.bytes
        } else {
            0
        }
    });
    needs.max().unwrap_or(0)
}

/// Bytes of a message that one block takes, and how many blocks there are for them.
pub fn parts(args: &Args, ranks: u64, mapped: bool, emulated: bool) -> (u64, u32) {
    let limit = limit(args, ranks, mapped, emulated).next_multiple_of(16);
    let part = match (mapped, emulated) {
        (true, false) => PART,
        (true, true) => PART.max(limit / 4),
        (false, _) => limit,
    };
    let part = part.max(16).next_multiple_of(16);
    (part, limit.div_ceil(each(part, mapped, emulated)).clamp(1, MOST_PARTS) as u32)
}

/// Bytes of a message that a block should have.
pub fn each(part: u64, mapped: bool, emulated: bool) -> u64 {
    if mapped && !emulated { part.min(LEAN_PART) } else { part }
}

/// The longest message.
pub fn limit(args: &Args, ranks: u64, mapped: bool, emulated: bool) -> u64 {
    let all = args.message_limit.unwrap_or(if mapped && !emulated { MESSAGES } else { MESSAGES_OVER_RAILS });
    all / (ranks - 1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one H200 holds of blocks with 128 registers a thread.
    fn on_a_gpu(threads: u32) -> u32 {
        132 * (65536 / 128 / threads)
    }

    #[test]
    fn messages_of_all_pes_of_a_gpu_fit_or_go_by_puts() {
        // As `--np N -e 1M` on one GPU, which never ended.
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
        // A PE that has a GPU of its own overlaps whatever its grid.
        assert!(overlap_fits(132, 132, 1) && !overlap_fits(34, 66, 2) && overlap_fits(33, 66, 2));
    }
}
