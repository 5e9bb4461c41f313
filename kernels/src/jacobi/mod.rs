//! Jacobi iterations of a field that is split by rows among the PEs: the stencil, the exchange of boundary rows, the
//! norm.
//!
//! ```text
//!        PE above                 launched: one grid per iteration; field in device memory, read and written once
//!   - - - - - - - - - - -         resident: one grid for all iterations; field in registers and shared memory
//!   row 0          | sent up
//!   ...            |              All kernels compute a point by the same additions in the same order, so the fields
//!   row rows - 1   | sent down    are identical to the last bit, regardless of how they are split and exchanged.
//!   - - - - - - - - - - -
//!        PE below
//! ```
//!
//! Left and right columns are fixed. Vertically the field is periodic: the PE below the last one is the first one.

mod exchange;
mod halo;
pub mod launched;
pub mod meet;
pub mod pieces;
pub mod resident;
mod resident_args;
mod shared_rows;
mod stencil;

use crate::gin::{Signal, Sym, WorldView};
use cuda_std::memory::{Word, fetch_max_release_gpu_u64};
use cuda_std::{args, thread};

/// The kernel sends no rows: the rows above and below belong to this PE, or are exchanged by other means.
pub const EXCHANGE_NONE: u32 = 0;
/// Each thread of the stencil sends its values with `p`.
pub const EXCHANGE_P: u32 = 1;
/// Each tile sends its part of the row with a put of its block.
pub const EXCHANGE_BLOCK: u32 = 2;
/// The last tile of a row sends the whole row with one put.
pub const EXCHANGE_ROW: u32 = 3;
/// The CPU sends the rows: the kernel stores them in the heap.
pub const EXCHANGE_HOST: u32 = 4;

/// No norm is computed.
pub const NORM_NEVER: u32 = 0;
/// Each block sums the squares of its threads, and adds the sum with one atomic.
pub const NORM_BLOCK: u32 = 1;
/// Each point is added to one `f32` by its own atomic operation, like a build without block reduction.
pub const NORM_THREAD_ATOMIC: u32 = 2;

/// Index of the side with the PE above.
pub const ABOVE: usize = 0;
/// Index of the side with the PE below.
pub const BELOW: usize = 1;

/// Connection of a PE's rows to those of its neighbours. The host uploads it once for many launches. Kernels receive a
/// pointer, because arguments whose address is taken are copied to each thread's stack.
///
/// Iteration `i` (from 1) reads the halo rows of parity `i % 2`, and sends its new boundary rows to those of parity `(i
/// + 1) % 2`. Two parities suffice: a PE sends the rows for iteration `i + 1` after it has received those for `i`. Its
/// neighbour sent the latter after reading the rows for `i - 1`, which have the same parity as those for `i + 1`.
#[args]
pub struct HaloLink {
    /// The world of the job.
    pub world: WorldView,
    /// PEs above and below.
    pub peers: [u32; 2],
    /// Boundary rows to be sent, by parity and side.
    pub out: [[Sym<f32>; 2]; 2],
    /// Received rows, by parity and side.
    pub halo: [[Sym<f32>; 2]; 2],
    /// Signals, by side, that the neighbour raises when its rows have arrived.
    pub signals: [Signal; 2],
    /// Values of these signals before iteration 1.
    pub counted: [u64; 2],
    /// Amount that one iteration adds to each signal.
    pub each: u64,
    /// Signals of resident kernels over rails, by side. The neighbour raises them once per iteration, as rounds. They
    /// are separate from `signals`. Blocks of [`pieces`] use those at offset 2 times their position in a row.
    pub rounds: [Signal; 2],
    /// Exchange method: [`EXCHANGE_NONE`], [`EXCHANGE_P`], [`EXCHANGE_BLOCK`], [`EXCHANGE_ROW`] or [`EXCHANGE_HOST`].
    pub exchange: u32,
    /// 1 if a tile waits for its neighbour's rows and signals its own; 0 if iterations are synchronized otherwise.
    pub neighbours: u32,
    /// Number of finished tiles of each boundary row, over all iterations, in device memory.
    pub done: *const Word,
    /// [`TRACE_WORDS`] words per iteration, in device memory; null if tracing is disabled.
    pub trace: *const Word,
}

/// Number of trace words per iteration. All are in nanoseconds, and each is the maximum over all blocks.
pub const TRACE_WORDS: usize = 4;
/// Trace word: bitwise complement of the time at which the grid started.
pub const TRACE_BEGAN: usize = 0;
/// Trace word: time at which the grid ended.
pub const TRACE_ENDED: usize = 1;
/// Trace word: time for which a block waited for rows of a neighbour.
pub const TRACE_WAITED: usize = 2;
/// Trace word: time that a block took to send its rows.
pub const TRACE_SENT: usize = 3;

impl HaloLink {
    /// Returns a trace word of an iteration, or `None` if there is no trace.
    #[inline(always)]
    fn traced(&self, iteration: u32, word: usize) -> Option<&Word> {
        // SAFETY: the host has allocated `TRACE_WORDS` words per iteration.
        (!self.trace.is_null()).then(|| unsafe { &*self.trace.add(iteration as usize * TRACE_WORDS + word) })
    }

    /// Raises a trace word to at least `value`, on the block's first thread, if there is a trace.
    #[inline(always)]
    fn note(&self, iteration: u32, word: usize, value: impl FnOnce() -> u64) {
        if thread::thread_idx_x() == 0
            && let Some(word) = self.traced(iteration, word)
        {
            fetch_max_release_gpu_u64(word, value());
        }
    }
}
