//! What the threads of a block agree on, and what a block reports.

use cuda_std::thread;

/// What one block reports. Times are of the device's clock, in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockResult {
    /// Before the first put.
    pub started: u64,
    /// All puts of the block are in the ring.
    pub posted: u64,
    /// All puts of the block are at the target.
    pub done: u64,
    /// 0, or the first reason ([`Status`](crate::ring::Status)) that ended a thread of the block early.
    pub stop: u64,
}

// SAFETY: four u64.
unsafe impl cuda_std::Plain for BlockResult {}

/// The largest reason of the block, in every thread: reasons are below 8, so three votes find it, the highest bit first. A
/// thread whose reason is smaller by then has no vote for the bits below.
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
    fn a_block_reports_the_largest_of_its_reasons() {
        for reasons in [[0, 0, 0, 0], [0, 1, 0, 4], [1, 4, 3, 2], [3, 1, 2, 0], [2, 1, 2, 1], [7, 5, 6, 0]] {
            emulation::run(1, 4, || {
                let worst = block_maximum(reasons[thread::thread_idx_x() as usize]);
                assert_eq!(Some(&worst), reasons.iter().max(), "{reasons:?}");
            })
            .expect("every thread has the largest");
        }
    }
}
