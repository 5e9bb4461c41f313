//! Collectives over [`gin`](crate::gin): all-to-all, all-gather, reduce-scatter, all-reduce and broadcast, from a launched kernel, in a graph,
//! or turn after turn in a persistent one. A kernel for each scope and each way that bytes travel; which operation it is stands in its arguments.
//!
//! ```text
//! words (few bytes)      everyone exchanges tagged words with everyone, where all heaps are mapped; sums are made of what arrives, in the
//!                        order of PEs
//! messages (few bytes)   the same by `send` and `receive`, where a PE is reached by rails; broadcasts
//! puts (many bytes)      ready?  >  scatter  >  sums inside the node  >  sums to their owners  >  sums of nodes  >
//!                        own chunk to the other nodes  >  to the own node  >  what came, to the own node  >  arrived?
//! stores (the most)      within a node: small parts of all chunks, which warps take as they come ([`stores`])
//! ```
//!
//! An all-to-all by puts is two of these: [gathered within the node](GATHERED)  >  every chunk to its PE.
//!
//! **Chunks and slices.** The bytes are cut into a chunk for each PE, and each chunk into a slice for each block of the grid. A block
//! works for its own slice of every chunk, and waits for blocks of its own number alone: there is no barrier of the grid, and in a
//! persistent kernel blocks may be turns apart.
//!
//! What an all-to-all sends to another node is not copied by threads, and a card writes few long pieces faster than many short ones: there a
//! block works for whole chunks, or for parts of them where there are more blocks than PEs to send to.
//!
//! **Nodes.** `local` PEs with neighbouring numbers are a node, whose heaps are mapped: they are read and written by loads and stores. Between
//! nodes a PE talks to those of its own place alone, by signalled puts over rails, but for all-to-all and the scatter of a broadcast.
//!
//! **State.** What a block has sent and waited for so far stands in device memory ([`State`]), not in the arguments: a graph replays them.

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

/// PE `i` gets block `i` of every PE.
pub const ALL_TO_ALL: u32 = 0;
/// Every PE gets every PE's chunk.
pub const ALL_GATHER: u32 = 1;
/// PE `i` gets the sum of all PEs' chunks `i`.
pub const REDUCE_SCATTER: u32 = 2;
/// Every PE gets the sum of all PEs' bytes.
pub const ALL_REDUCE: u32 = 3;
/// Every PE gets the root's bytes.
pub const BROADCAST: u32 = 4;

/// Numbers of 4 bytes.
pub const F32: u32 = 0;
/// See [`cuda_std::half`]. Sums are made in f32 and rounded once.
pub const BF16: u32 = 1;
/// See [`BF16`].
pub const F16: u32 = 2;

/// In [`CollectiveArgs::flags`]: after each put the kernel waits until it has arrived.
pub const BLOCKING: u32 = 1;
/// In [`CollectiveArgs::flags`]: what this PE puts never leaves it, and its signals do: for tests of what is reported.
pub const MUTE: u32 = 2;

/// In [`CollectiveArgs::flags`]: an all-reduce by words makes the sums of a chunk each, and sends those in a second trip.
pub const TWO_TRIPS: u32 = 4;

/// In [`CollectiveArgs::flags`]: an all-to-all between nodes gathers, over NVLink, what a node has for a PE of another one at its own PE of
/// that place, which sends it as one.
pub const GATHERED: u32 = 8;

/// Signals of a block: ready, sums, other nodes' chunks, this node's.
pub const SIGNALS_OF_BLOCK: u32 = 4;

/// What a block remembers from launch to launch. The host zeroes it once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Rounds of its two inboxes.
    pub rounds: [u64; 2],
    /// What its signals have counted.
    pub counted: [u64; SIGNALS_OF_BLOCK as usize],
    /// Bytes that it has stored to or loaded from other PEs' mapped heaps.
    pub mapped_bytes: u64,
    /// Puts and messages to other PEs.
    pub puts: u64,
}

// SAFETY: words without padding.
unsafe impl cuda_std::Plain for State {}

/// Arguments of the kernels.
#[args]
pub struct CollectiveArgs {
    /// [`ALL_TO_ALL`], ...
    pub operation: u32,
    /// [`F32`], ...
    pub element: u32,
    /// [`BLOCKING`], [`MUTE`], [`TWO_TRIPS`], [`GATHERED`].
    pub flags: u32,
    /// PEs of a node: their numbers are neighbours, and all nodes have as many. 1: no heap is mapped.
    pub local: u32,
    /// Of a broadcast.
    pub root: u32,
    /// Turns before the first stamp; 0: no stamps.
    pub warmup: u32,
    /// Turns with stamps around them.
    pub turns: u32,
    /// Bytes of a PE's chunk; the last chunks of an all-reduce or a broadcast may be shorter. A multiple of 16 where it has several slices.
    pub chunk: u64,
    /// Bytes of all chunks.
    pub bytes: u64,
    /// What is cut into slices: a chunk, or all bytes where these go to everyone by words or messages. By [`stores`] a piece of a chunk.
    pub whole: u64,
    /// Bytes from one slice to the next: [`slice_bytes`]. The host divides.
    pub slice: u64,
    /// Bytes of one put, at most.
    pub packet: u64,
    /// Into how many parts an all-to-all cuts what it sends to a PE of another node, at least 1, and bytes from one to the next.
    pub parts: u32,
    /// See `parts`; by [`stores`] bytes of one that a warp takes.
    pub part: u64,
    /// A chunk for all-gather, otherwise all.
    pub from: Sym<u8>,
    /// A chunk for reduce-scatter, otherwise all. May be `from` in place: all-gather's own chunk of it is `from`, reduce-scatter's is the own
    /// chunk of `from`.
    pub to: Sym<u8>,
    /// Two chunks for each node, where there are several; where an all-to-all gathers, or by [`stores`], a chunk for each PE.
    pub scratch: Sym<u8>,
    /// The first block's inbox; those of the others follow. Of broadcasts, the other one: in a round of an inbox everyone sends, and there the
    /// root alone.
    pub inboxes: [Inbox; 2],
    /// The first block's [`SIGNALS_OF_BLOCK`].
    pub signals: Signal,
    /// Of [`stores`]: its words of device memory.
    pub queue: *const Word,
    /// Of [`stores`]: signals of the grid.
    pub queue_signals: Signal,
    /// Device memory: one for each block.
    pub state: *mut State,
    /// Device memory: two stamps for each block.
    pub times: *mut u64,
}

/// Bytes from one slice of a chunk to the next, for so many blocks.
#[inline(always)]
pub const fn slice_bytes(chunk: u64, blocks: u32) -> u64 {
    chunk.div_ceil(blocks as u64).next_multiple_of(16)
}

type Done = Result<(), Status>;
/// One turn of one block.
type Turn<S> = fn(&CollectiveArgs, &mut Context<S>, &mut State) -> Done;

/// Each block runs its turns, by its first thread, its first warp, or all of it; see the module.
#[inline(always)]
fn turns<S: Scope>(program: &Program<CollectiveArgs>, turn: Turn<S>) {
    let Some(scope) = S::first_of_block() else { return };
    let args = &program.args;
    let block = thread::block_idx_x() as usize;
    grid::wait_for_grids_before();
    grid::let_next_grid_begin();
    // SAFETY: one state for each block, contract of the kernels.
    let mut state = unsafe { *args.state.add(block) };
    let mut line = program.world.context(scope);
    let stamp = |number: usize| {
        // Of a persistent kernel, which has turns before them.
        if scope.rank() == 0 && args.warmup > 0 {
            // SAFETY: two stamps for each block, contract of the kernels.
            unsafe { *args.times.add(2 * block + number) = thread::global_timer_ns() };
        }
    };
    for number in 0..args.warmup + args.turns {
        if number == args.warmup {
            stamp(0);
        }
        // A failure is in the world's report.
        if turn(args, &mut line, &mut state).is_err() {
            return;
        }
    }
    stamp(1);
    if scope.rank() == 0 {
        // SAFETY: as above.
        unsafe { *args.state.add(block) = state };
    }
}
