//! Arguments of the resident kernels: part of a field, and words for rows in flight.

use super::HaloLink;
use super::stencil::WIDTH;
use crate::gin::Sym;
use cuda_std::args;
use cuda_std::memory::Word;

/// Number of rows after the first one that a block also keeps in registers.
pub const KEPT: usize = 2;
/// Minimum number of rows of a block: the first row, the [`KEPT`] rows after it, and the last row.
pub const LEAST_ROWS: u32 = KEPT as u32 + 2;

/// Returns the number of 8-byte words of a row in flight.
pub const fn row_words(threads: u32) -> u64 {
    threads as u64 * WIDTH as u64
}

/// Number of rows in flight to a block or a PE: two sides, two parities.
pub const PLACES: u64 = 4;

/// Arguments of [`jacobi_resident`](super::resident::jacobi_resident).
#[args]
pub struct ResidentArgs {
    /// The field, before the first and after the last iteration: `rows` rows of `pitch` points, aligned to 16 bytes.
    pub field: *mut f32,
    /// Number of rows of this PE, at least [`LEAST_ROWS`] per block.
    pub rows: u32,
    /// Number of columns of the field, at most four per thread.
    pub nx: u32,
    /// Distance in points between consecutive rows, a multiple of four.
    pub pitch: u32,
    /// Number of iterations.
    pub iterations: u32,
    /// Number of the first iteration, the same on all PEs. It is 1 in the first launch with these words and rounds. In
    /// later launches it is one more than the last iteration of the previous launch.
    pub first: u32,
    /// Result of [`shared_bytes`](super::resident::shared_bytes) for the block with the most rows.
    pub shared_bytes: u32,
    /// [`NORM_NEVER`](super::NORM_NEVER), or any other value to add the squares once per block.
    pub norm: u32,
    /// Sums, one per iteration, in device memory, initially 0.
    pub sums: *const Word,
    /// [`PLACES`] rows of [`row_words`] words per block, in device memory, 0 before the first launch.
    pub words: *const Word,
    /// [`PLACES`] rows of [`row_words`] words from the adjacent PEs, 0 before the first launch.
    pub inbox: Sym<u64>,
    /// The connection to the neighbours, in device memory.
    pub link: *const HaloLink,
}

/// Number of words per row of a block for the points to its left and right: two sides, two parities.
pub const WORDS_BESIDE: u64 = 4;

/// Arguments of [`jacobi_pieces`](super::pieces::jacobi_pieces).
#[args]
pub struct PiecesArgs {
    /// The field and the words for rows. A row of blocks has at least one row of the field. `shared_bytes` is the
    /// result of [`shared_bytes`](super::pieces::shared_bytes). `inbox` has [`PLACES`] rows of [`row_words`] per block
    /// of a row.
    pub field: ResidentArgs,
    /// Number of blocks that share a row; the grid's blocks are a multiple of it. The same on all PEs. All but the last
    /// have four columns for each thread, and the last one has at least one.
    pub across: u32,
    /// Maximum number of rows of a block.
    pub most_rows: u32,
    /// Device memory: [`WORDS_BESIDE`] times `most_rows` words per block, 0 before the first launch.
    pub beside: *const Word,
}
