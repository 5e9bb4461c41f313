//! The chunks of a message in rows: one chunk per lane of a scope, and as many rows as needed.
//!
//! The lanes of a warp process the same rows; a lane without a chunk in the last row polls the last chunk, together
//! with another lane. If some lanes of a warp polled while the others waited for them, the warp would alternate between
//! the two groups, which delays each poll. In a block, each lane processes only the rows in which it has a chunk, which
//! is faster there.
//!
//! Each poll loads all chunks that a lane has in flight: the chunks of a message arrive together, and polling one after
//! the other would add a round trip to memory for each.

use super::Scope;
use super::chunk::{joined, missing};
use super::limit::{Control, Limit};
use crate::ring::Status;
use core::array::from_fn;
use cuda_std::memory::{WordPair, load_relaxed_sys_v2_u64};

/// The remaining chunks of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    chunks: u32,
    lanes: u32,
    /// This lane's chunk of the next row, and the number of lanes of its warp before and after it. In a block both
    /// numbers are 0, and a lane processes only its own chunks: lanes that wait at the block's barrier do not compete
    /// with it for issue slots.
    first: u32,
    before: u32,
    after: u32,
}

impl Rows {
    #[inline(always)]
    pub fn of<S: Scope>(scope: &S, bytes: u64) -> Rows {
        Rows::of_lane((scope.rank(), scope.size()), S::IS_WARP, bytes)
    }

    #[inline(always)]
    fn of_lane((first, lanes): (u32, u32), is_warp: bool, bytes: u64) -> Rows {
        let (before, after) = if is_warp { (first, lanes - 1 - first) } else { (0, 0) };
        Rows { chunks: bytes.div_ceil(8) as u32, lanes, first, before, after }
    }

    /// Returns whether this warp has chunks left. The result is the same for all its lanes.
    #[inline(always)]
    pub fn are_left(&self) -> bool {
        self.first - self.before < self.chunks
    }

    /// Returns whether this warp has `rows` rows left, each with a chunk for each of its lanes. The result is the same
    /// for all its lanes.
    #[inline(always)]
    pub fn are_full(&self, rows: usize) -> bool {
        self.first + self.after + (rows as u32 - 1) * self.lanes < self.chunks
    }

    /// Returns this lane's chunk of a row. If not `FULL`, a lane that has none gets the last chunk.
    #[inline(always)]
    fn chunk<const FULL: bool>(&self, row: usize) -> u32 {
        let chunk = self.first + row as u32 * self.lanes;
        if FULL { chunk } else { chunk.min(self.chunks - 1) }
    }

    /// Passes this lane's chunks of the next `N` rows to `take`, and advances past these rows.
    #[inline(always)]
    fn pass<T: Copy, const N: usize, const FULL: bool>(&mut self, held: &[T; N], take: impl Fn(u32, T)) {
        for (row, &held) in held.iter().enumerate() {
            let chunk = self.first + row as u32 * self.lanes;
            if FULL || chunk < self.chunks {
                take(chunk, held);
            }
        }
        self.first += N as u32 * self.lanes;
    }

    /// Copies `N` rows, which must be full if `FULL`. All loads precede the first store, so that their latencies
    /// overlap.
    #[inline(always)]
    pub fn copy<const N: usize, const FULL: bool>(&mut self, load: impl Fn(u32) -> u64, store: impl Fn(u32, u64)) {
        let held: [u64; N] = from_fn(|row| load(self.chunk::<FULL>(row)));
        self.pass::<_, N, FULL>(&held, store);
    }

    /// Waits for the words of `N` rows, which must be full if `FULL`, and passes their chunks to `write`.
    ///
    /// # Safety
    /// `slot` must have words for each chunk, and `abort` must be valid.
    ///
    /// # Errors
    /// Returns the status that ended the wait, and the round found in words that did not arrive.
    #[inline(always)]
    pub unsafe fn take<const N: usize, const FULL: bool>(
        &mut self,
        (slot, round): (*const WordPair, u32),
        (limit, abort): (&mut Limit, *const Control),
        write: impl Fn(u32, u64),
    ) -> Result<(), (Status, u64)> {
        let held = loop {
            // SAFETY: the caller guarantees that `slot` has words for each chunk.
            let look = |row| load_relaxed_sys_v2_u64(unsafe { &*slot.add(self.chunk::<FULL>(row) as usize) });
            let held: [(u64, u64); N] = from_fn(look);
            let Some(seen) = missing(&held, round) else { break held };
            // SAFETY: the caller guarantees that `abort` is valid.
            limit.look(unsafe { &*abort }).map_err(|stop| (stop, seen))?;
            cuda_std::thread::relax();
        };
        self.pass::<_, N, FULL>(&held, |chunk, pair| write(chunk, joined(pair)));
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;

    proptest! {
        /// Each chunk is processed exactly once by the lanes together, for any number of rows per pass. The lanes of a
        /// warp take the same steps.
        #[test]
        fn each_chunk_is_one_lanes(bytes in 0u64..4000, lanes in 1u32..=32, warp: bool) {
            let taken = RefCell::new(vec![0; bytes.div_ceil(8) as usize]);
            let mut steps = Vec::new();
            for lane in 0..lanes {
                let mut rows = Rows::of_lane((lane, lanes), warp, bytes);
                let mut mine = Vec::new();
                let load = |chunk: u32| {
                    assert!((chunk as u64) < bytes.div_ceil(8));
                    chunk as u64
                };
                let store = |chunk: u32, value: u64| {
                    assert_eq!(chunk as u64, value);
                    taken.borrow_mut()[chunk as usize] += 1;
                };
                while rows.are_left() {
                    let full = rows.are_full(4);
                    mine.push(full);
                    if full { rows.copy::<4, true>(load, store) } else { rows.copy::<1, false>(load, store) }
                }
                steps.push(mine);
            }
            prop_assert!(taken.borrow().iter().all(|times| *times == 1));
            prop_assert!(!warp || steps.windows(2).all(|pair| pair[0] == pair[1]), "{:?}", steps);
        }
    }
}
