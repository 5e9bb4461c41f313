//! Collectives over [`gin`](crate::gin): all-to-all, all-gather, reduce-scatter, all-reduce and broadcast. They run
//! from a launched kernel, in a graph, or iteration after iteration in a persistent kernel. There is one kernel per
//! scope and transport; the arguments select the operation.
//!
//! ```text
//! words (few bytes)      every PE exchanges tagged words with every PE, if all heaps are mapped; sums are computed
//!                        from what arrives, in the order of PEs
//! messages (few bytes)   the same by `send` and `receive`, if a PE is reached over rails; broadcasts
//! puts (many bytes)      ready?  >  scatter  >  sums inside the node  >  sums to their owners  >  sums of nodes  >
//!                        own chunk to the other nodes  >  to the own node  >  received chunks to the own node  >
//!                        arrived?
//! stores (the most)      within a node: small parts of all chunks, which warps take from a queue ([`stores`])
//! ```
//!
//! An all-to-all by puts uses two of these steps: [gather within the node](GATHERED)  >  every chunk to its PE.
//!
//! **Chunks and slices.** The bytes are split into one chunk per PE, and each chunk into one slice per block of the
//! grid. A block processes its own slice of every chunk and waits only for blocks with the same index on other PEs.
//! No grid barrier is used, and in a persistent kernel blocks may be iterations apart.
//!
//! The chunks that an all-to-all sends to another node are not copied by threads, and a NIC writes few long fragments
//! faster than many short ones. There a block therefore processes whole chunks, or parts of them if there are more
//! blocks than PEs to send to.
//!
//! **Nodes.** `local` PEs with adjacent numbers form a node. Their heaps are mapped and are accessed by loads and
//! stores. Between nodes a PE communicates only with the PEs at the same place in their nodes, by signalled puts over
//! rails. All-to-all and the scatter of a broadcast are exceptions.
//!
//! **State.** The counts of what a block has sent and waited for are kept in device memory ([`BlockCounters`]), not in
//! the arguments, because a graph replays the arguments.

#[cfg(feature = "collective_messages")]
pub mod messages;
#[cfg(feature = "collective_puts")]
pub mod puts;
#[cfg(feature = "collective_puts")]
pub mod stores;
mod sum;
#[cfg(feature = "collective_words")]
pub mod words;

use crate::gin::{Context, Inbox, Program, Scope, Signal, Sym};
use crate::ring::Status;
use cuda_std::memory::Word;
use cuda_std::{args, grid, thread};

/// PE `i` receives chunk `i` of every PE.
pub const ALL_TO_ALL: u32 = 0;
/// Every PE receives every PE's chunk.
pub const ALL_GATHER: u32 = 1;
/// PE `i` receives the sum of all PEs' chunks `i`.
pub const REDUCE_SCATTER: u32 = 2;
/// Every PE receives the sum of all PEs' bytes.
pub const ALL_REDUCE: u32 = 3;
/// Every PE receives the root's bytes.
pub const BROADCAST: u32 = 4;

/// Elements are `f32`.
pub const F32: u32 = 0;
/// Elements are bfloat16 ([`cuda_std::half`]). Sums are accumulated in f32 and rounded once.
pub const BF16: u32 = 1;
/// Elements are IEEE half precision, summed like [`BF16`].
pub const F16: u32 = 2;

/// Flag of [`CollectiveKernelArgs::flags`]: the kernel waits for the arrival of each put.
pub const BLOCKING: u32 = 1;
/// Flag of [`CollectiveKernelArgs::flags`]: this PE raises its signals but sends no data, or wrong data, to other PEs,
/// so that tests can check that verification fails.
pub const MUTE: u32 = 2;

/// Flag of [`CollectiveKernelArgs::flags`]: in an all-reduce by words each PE sums one chunk and sends the sums in a
/// second round.
pub const TWO_TRIPS: u32 = 4;

/// Flag of [`CollectiveKernelArgs::flags`]: an all-to-all between nodes first gathers, over NVLink, all data of a node
/// for one remote PE at the local PE of the same place, which sends it as one transfer.
pub const GATHERED: u32 = 8;

/// Signals of a block: ready, parts, chunks of other nodes, chunks of this node.
pub const SIGNALS_OF_BLOCK: u32 = 4;

/// Counters of a block that persist across launches. The host zeroes them once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounters {
    /// Rounds completed in each of the two inboxes.
    pub rounds: [u64; 2],
    /// Values that the block's signals had reached at the end of the last launch.
    pub counted: [u64; SIGNALS_OF_BLOCK as usize],
    /// Bytes that the block has stored to or loaded from other PEs' mapped heaps.
    pub mapped_bytes: u64,
    /// Number of puts and messages to other PEs.
    pub puts: u64,
}

// SAFETY: the type consists of `u64` words, without padding.
unsafe impl cuda_std::Plain for BlockCounters {}

/// Arguments of the collective kernels.
#[args]
pub struct CollectiveKernelArgs {
    /// The operation: [`ALL_TO_ALL`], [`ALL_GATHER`], [`REDUCE_SCATTER`], [`ALL_REDUCE`] or [`BROADCAST`].
    pub operation: u32,
    /// Element type of sums: [`F32`], [`BF16`] or [`F16`].
    pub element: u32,
    /// Any of [`BLOCKING`], [`MUTE`], [`TWO_TRIPS`] and [`GATHERED`].
    pub flags: u32,
    /// PEs per node, with adjacent numbers; the same for all nodes. 1 if no heap is mapped.
    pub local: u32,
    /// Root of a broadcast.
    pub root: u32,
    /// Number of iterations before the first timestamp. 0 disables the timestamps.
    pub warmup: u32,
    /// Number of iterations between the two timestamps.
    pub turns: u32,
    /// Bytes of a PE's chunk, a multiple of 16 if a chunk has several slices. In an all-reduce or a broadcast the last
    /// chunks may be shorter.
    pub chunk: u64,
    /// Total bytes of all chunks.
    pub bytes: u64,
    /// Number of bytes that are split into slices: a chunk, or all bytes if words or messages send them to every PE.
    /// With [`stores`], the number of bytes of a piece of a chunk.
    pub whole: u64,
    /// Distance in bytes between consecutive slices, from [`slice_bytes`]. The host computes it, because it needs a
    /// division.
    pub slice: u64,
    /// Maximum bytes of one put.
    pub packet: u64,
    /// Number of parts, at least 1, into which an all-to-all splits the data for a PE of another node.
    pub parts: u32,
    /// Distance in bytes between consecutive parts. With [`stores`], the number of bytes of a part, which one warp
    /// processes.
    pub part: u64,
    /// Source: one chunk for all-gather, otherwise all bytes.
    pub from: Sym<u8>,
    /// Destination: one chunk for reduce-scatter, otherwise all bytes. In an in-place operation it overlaps `from`:
    /// `from` is this PE's chunk of `to` for all-gather, and `to` is this PE's chunk of `from` for reduce-scatter.
    pub to: Sym<u8>,
    /// Scratch memory: two chunks per node if there are several nodes; one chunk per PE with [`stores`] and for an
    /// all-to-all that gathers.
    pub scratch: Sym<u8>,
    /// Inboxes of the first block, followed by those of the other blocks. The second inbox is for broadcasts: in a
    /// round of the first inbox every PE sends, in a round of the second only the root.
    pub inboxes: [Inbox; 2],
    /// Signals of the first block, [`SIGNALS_OF_BLOCK`] per block.
    pub signals: Signal,
    /// Device memory with the words of [`stores`].
    pub queue: *const Word,
    /// Signals of the grid, for [`stores`].
    pub queue_signals: Signal,
    /// Device memory: one state per block.
    pub state: *mut BlockCounters,
    /// Device memory: two timestamps per block.
    pub times: *mut u64,
}

/// Returns the distance in bytes between consecutive slices of a chunk, for `blocks` blocks.
#[inline(always)]
pub const fn slice_bytes(chunk: u64, blocks: u32) -> u64 {
    chunk.div_ceil(blocks as u64).next_multiple_of(16)
}

type CallResult = Result<(), Status>;
/// One iteration of one block.
type Turn<S> = fn(&CollectiveKernelArgs, &mut Context<S>, &mut BlockCounters) -> CallResult;

/// Runs the iterations of this block on its first thread, its first warp or the whole block, depending on the scope.
#[inline(always)]
fn turns<S: Scope>(program: &Program<CollectiveKernelArgs>, turn: Turn<S>) {
    let Some(scope) = S::first_of_block() else { return };
    let args = &program.args;
    let block = thread::block_idx_x() as usize;
    grid::wait_for_grids_before();
    grid::let_next_grid_begin();
    // SAFETY: `state` has one entry per block (contract of the kernels).
    let mut state = unsafe { *args.state.add(block) };
    if program.world.has_failed_for(&scope) {
        return;
    }
    let mut line = program.world.context(scope);
    let stamp = |number: usize| {
        // `warmup` exceeds 0 only in a persistent kernel that is timed.
        if scope.rank() == 0 && args.warmup > 0 {
            // SAFETY: `times` has two entries per block (contract of the kernels).
            unsafe { *args.times.add(2 * block + number) = thread::global_timer_ns() };
        }
    };
    for number in 0..args.warmup + args.turns {
        if number == args.warmup {
            stamp(0);
        }
        // The failure is recorded in the world's report.
        if turn(args, &mut line, &mut state).is_err() {
            return;
        }
    }
    stamp(1);
    if scope.rank() == 0 {
        // SAFETY: `state` has one entry per block (contract of the kernels).
        unsafe { *args.state.add(block) = state };
    }
}
