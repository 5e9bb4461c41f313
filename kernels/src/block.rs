//! Votes among the threads of a block, and the result record of a block.

use cuda_std::thread;

/// Result of one block. Times are of the device's clock, in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockResult {
    /// Time before the first put.
    pub started: u64,
    /// Time at which all puts of the block are in the ring.
    pub posted: u64,
    /// Time at which all puts of the block are at the target.
    pub done: u64,
    /// Largest reason ([`Status`](crate::ring::Status)) that ended a thread of the block early; 0 if none did.
    pub stop: u64,
}

// SAFETY: the struct is four `u64` without padding.
unsafe impl cuda_std::Plain for BlockResult {}

/// Returns the largest reason in the block, in every thread. Reasons are below 8, so three votes find it, starting with
/// the highest bit. A thread whose reason differs from the result in a higher bit does not vote on the lower bits.
#[inline(always)]
#[track_caller]
pub fn block_maximum(stop: u64) -> u64 {
    let mut largest = 0;
    for bit in (0..3).rev() {
        let with_bit = largest | 1 << bit;
        if thread::sync_threads_or(stop >> bit == with_bit >> bit) {
            largest = with_bit;
        }
    }
    largest
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use cuda_std::emulation;

    #[test]
    fn block_reports_largest_reason() {
        for reasons in [[0, 0, 0, 0], [0, 1, 0, 4], [1, 4, 3, 2], [3, 1, 2, 0], [2, 1, 2, 1], [7, 5, 6, 0]] {
            emulation::run(1, 4, || {
                let worst = block_maximum(reasons[thread::thread_idx_x() as usize]);
                assert_eq!(Some(&worst), reasons.iter().max(), "{reasons:?}");
            })
            .expect("every thread has the largest");
        }
    }
}
