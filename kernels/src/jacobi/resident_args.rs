//! What the resident kernels are given: a part of a field, and words for rows on their way.

use super::Link;
use super::stencil::WIDTH;
use crate::gin::Sym;
use cuda_std::args;
use cuda_std::memory::Word;

/// Rows behind the first one that a block has in registers too.
pub const KEPT: usize = 2;
/// Rows of a block at least: its first one, those behind it, and the last one.
pub const LEAST_ROWS: u32 = KEPT as u32 + 2;

/// Words of 8 bytes of one row on its way.
pub const fn row_words(threads: u32) -> u64 {
    threads as u64 * WIDTH as u64
}

/// Rows on their way to a block, or to a PE: two sides in two parities.
pub const PLACES: u64 = 4;

/// Arguments of [`jacobi_resident`](super::resident::jacobi_resident).
#[args]
pub struct ResidentArgs {
    /// The field before, and after the last iteration: `rows` rows of `pitch` points, aligned to 16 bytes.
    pub field: *mut f32,
    /// Rows of this PE, at least [`LEAST_ROWS`] for each block.
    pub rows: u32,
    /// Columns of the field, at most four for each thread.
    pub nx: u32,
    /// Points from one row to the next, a multiple of four.
    pub pitch: u32,
    /// Iterations.
    pub iterations: u32,
    /// Number of the first iteration: from 1 in the first launch over these words and rounds, and then where the launch before ended. The same
    /// on all PEs.
    pub first: u32,
    /// What [`shared_bytes`](super::resident::shared_bytes) says of the block that has most rows.
    pub shared_bytes: u32,
    /// [`NORM_NEVER`](super::NORM_NEVER), or each block adds its squares.
    pub norm: u32,
    /// Device memory, 0 before: a sum for each iteration.
    pub sums: *const Word,
    /// Device memory: [`PLACES`] rows of [`row_words`] for each block, 0 before the first launch.
    pub words: *const Word,
    /// [`PLACES`] rows of [`row_words`] for words of the PEs beside, 0 before the first launch.
    pub inbox: Sym<u64>,
    /// Device memory.
    pub link: *const Link,
}
