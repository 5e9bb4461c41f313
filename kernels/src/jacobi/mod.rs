//! Jacobi iterations of a field that is cut into rows, one part for each PE: the stencil, the exchange of boundary rows, the norm.
//!
//! ```text
//!        PE above                 launched: a grid for each iteration; field in device memory, read once and written once
//!   - - - - - - - - - - -         resident: one grid for all iterations; field in registers and shared memory
//!   row 0          | sent up
//!   ...            |              Every kernel computes a point by the same additions in the same order, so fields are equal
//!   row rows - 1   | sent down    to the last bit, however they were cut and exchanged.
//!   - - - - - - - - - - -
//!        PE below
//! ```
//!
//! Left and right columns are fixed, top and bottom meet: the PE below the last one is the first one.

mod chip;
mod door;
mod exchange;
pub mod launched;
pub mod meet;
pub mod resident;
mod resident_args;
mod stencil;

use crate::gin::{Signal, Sym, World};
use cuda_std::memory::{Word, fetch_max_release_gpu_u64};
use cuda_std::{args, thread};

/// The kernel sends no rows: what lies above and below is this PE's own, or comes by somebody else.
pub const EXCHANGE_NONE: u32 = 0;
/// The stencil's threads send each value by `p`.
pub const EXCHANGE_P: u32 = 1;
/// Each tile sends its piece of the row by a put of its block.
pub const EXCHANGE_BLOCK: u32 = 2;
/// The last tile of a row sends the whole row by one put.
pub const EXCHANGE_ROW: u32 = 3;
/// The CPU sends the rows: the kernel leaves them in the heap.
pub const EXCHANGE_HOST: u32 = 4;

/// Nobody sums.
pub const NORM_NEVER: u32 = 0;
/// A block sums what its threads have, and adds it once.
pub const NORM_BLOCK: u32 = 1;
/// Each point is added to one `f32` by an atomic operation of its own: what a build without a block reduction does.
pub const NORM_THREAD_ATOMIC: u32 = 2;

/// Sides of a PE's rows: the PE above.
pub const ABOVE: usize = 0;
/// Sides of a PE's rows: the PE below.
pub const BELOW: usize = 1;

/// How a PE's rows are joined to those of its neighbours. The host uploads it once for many launches; kernels get a pointer, since
/// arguments whose address is taken are copied to each thread's stack.
///
/// Iteration `i` (from 1) reads the halo rows of parity `i % 2`, and sends its new boundary rows to those of parity `(i + 1) % 2`. Two
/// suffice: a PE sends what iteration `i + 1` reads when it has received what `i` reads, which its neighbour sent when it had read the
/// rows of `i - 1` in the same place.
#[args]
pub struct Link {
    /// The job.
    pub world: World,
    /// Who is above and below.
    pub peers: [u32; 2],
    /// Boundary rows to be sent, by parity and side.
    pub out: [[Sym<f32>; 2]; 2],
    /// Rows received, by parity and side.
    pub halo: [[Sym<f32>; 2]; 2],
    /// Raised by the neighbour of each side when rows of it have arrived.
    pub signals: [Signal; 2],
    /// What these signals have counted before iteration 1.
    pub counted: [u64; 2],
    /// What one iteration adds to each.
    pub each: u64,
    /// Of resident rows over rails: raised by the neighbour of each side, a round for each iteration. Signals of their own.
    pub rounds: [Signal; 2],
    /// [`EXCHANGE_P`], ...
    pub exchange: u32,
    /// 1: a tile waits for its neighbour's rows, and signals its own. 0: something else stands between two iterations.
    pub neighbours: u32,
    /// Device memory: tiles of each boundary row that are done, in all iterations.
    pub done: *const Word,
    /// Device memory: [`TRACE_WORDS`] for each iteration; null: nothing is traced.
    pub trace: *const Word,
}

/// Words of a trace for each iteration, all in nanoseconds and each the largest of all blocks.
pub const TRACE_WORDS: usize = 4;
/// In a trace: all bits of the first moment of the grid, flipped.
pub const TRACE_BEGAN: usize = 0;
/// In a trace: its last moment.
pub const TRACE_ENDED: usize = 1;
/// In a trace: how long a block has waited for rows of a neighbour.
pub const TRACE_WAITED: usize = 2;
/// In a trace: how long a block has taken to send its rows.
pub const TRACE_SENT: usize = 3;

impl Link {
    /// The words of an iteration, where it is traced.
    #[inline(always)]
    fn traced(&self, iteration: u32, word: usize) -> Option<&Word> {
        // SAFETY: the host has allocated so many words for each iteration.
        (!self.trace.is_null()).then(|| unsafe { &*self.trace.add(iteration as usize * TRACE_WORDS + word) })
    }

    /// Raises a word of an iteration, by the block's first thread, where it is traced.
    #[inline(always)]
    fn note(&self, iteration: u32, word: usize, value: impl FnOnce() -> u64) {
        if thread::thread_idx_x() == 0
            && let Some(word) = self.traced(iteration, word)
        {
            fetch_max_release_gpu_u64(word, value());
        }
    }
}
