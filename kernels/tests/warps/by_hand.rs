//! The whole-warp push in its shortest form, with one fault at a time.
//!
//! As in the product, a lane stores the element of another lane, here of the next lane in its mask.

use cuda_std::memory::{
    WordPair, fence_acq_rel_sys, fetch_add_relaxed_gpu_u64, load_acquire_sys_u64, store_relaxed_sys_v2_u64,
};
use cuda_std::{thread, warp};
use kernels::ring::{Ring, parity};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WarpFault {
    /// Only shuffles separate the payloads of a warp from the fence after which one lane stores for another.
    NoBarrierBeforeFence,
    /// The barrier comes after the fence.
    FenceBeforeBarrier,
    /// The lanes of a warp take one range of tickets, although they use two rings.
    TicketOfAnotherRing,
    /// A lane returns, and the others continue with a mask that includes it.
    LaneLeaves,
    /// The leader diverges, and the other lanes use the active lanes as the warp.
    LeaderStaysAway,
}

/// Returns the lane of rank `rank` in a mask.
fn nth(mut mask: u32, rank: u32) -> u32 {
    for _ in 0..rank {
        mask &= mask - 1;
    }
    mask.trailing_zeros()
}

/// Waits until this ticket has a slot.
fn wait_for_space(ring: &Ring, ticket: u64) {
    // SAFETY: the test keeps the ring's memory until its grid has ended.
    while ticket >= load_acquire_sys_u64(&unsafe { &*ring.host }.tail.0) + ring.capacity() {
        thread::relax();
    }
}

fn store_pair(ring: &Ring, ticket: u64, index: usize, words: [u64; 4]) {
    let slot = (ticket & (ring.capacity() - 1)) as usize;
    // SAFETY: the test keeps the ring's memory until its grid has ended; the mask keeps the slot below the capacity.
    let pair = unsafe { &*ring.slots.cast::<WordPair>().add(2 * slot + index) };
    let lap = parity(ticket, ring.log2_capacity);
    store_relaxed_sys_v2_u64(pair, words[2 * index] | lap, words[2 * index + 1] | lap);
}

/// Takes `count` tickets on the leader. Returns the first. Orders all payloads of the mask before this lane's later
/// stores.
fn begin(ring: &Ring, mask: u32, leader: u32, count: u64, fault: Option<WarpFault>) -> u64 {
    let mut first = 0;
    if warp::lane() == leader {
        // SAFETY: the test keeps the ring's memory until its grid has ended.
        first = fetch_add_relaxed_gpu_u64(&unsafe { &*ring.device }.head.0, count);
    }
    if !matches!(fault, Some(WarpFault::NoBarrierBeforeFence | WarpFault::FenceBeforeBarrier)) {
        warp::synchronize(mask);
    }
    fence_acq_rel_sys();
    if fault == Some(WarpFault::FenceBeforeBarrier) {
        warp::synchronize(mask);
    }
    warp::broadcast_u64(mask, first, leader)
}

/// Pushes one element per lane. `lanes` is the mask of the lanes that push together.
pub fn push(ring: &mut Ring, lanes: u32, words: [u64; 4], fault: Option<WarpFault>) -> u64 {
    let mask = match fault {
        Some(WarpFault::TicketOfAnotherRing) => lanes,
        Some(WarpFault::LeaderStaysAway) => warp::active_mask(),
        _ => warp::match_any_u64(lanes, ring.device as u64),
    };
    let leader = if fault == Some(WarpFault::LeaderStaysAway) { lanes.trailing_zeros() } else { mask.trailing_zeros() };
    let count = mask.count_ones();
    let rank = (mask & ((1 << warp::lane()) - 1)).count_ones();
    let first = begin(ring, mask, leader, count.into(), fault);
    let next = (rank + 1) % count;
    let theirs = words.map(|word| warp::shuffle_u64(mask, word, nth(mask, next)));
    let ticket = first + u64::from(next);
    wait_for_space(ring, ticket);
    store_pair(ring, ticket, 0, theirs);
    store_pair(ring, ticket, 1, theirs);
    if fault == Some(WarpFault::LeaderStaysAway) && warp::lane() == leader {
        // Waits as a leader does that waits for the completion of its put.
        wait_for_space(ring, first + ring.capacity());
    }
    first + u64::from(rank)
}

/// Pushes one element for all lanes of `lanes`, with adjacent stores.
pub fn push_together(ring: &mut Ring, lanes: u32, words: [u64; 4], fault: Option<WarpFault>) -> u64 {
    let ticket = begin(ring, lanes, lanes.trailing_zeros(), 1, fault);
    wait_for_space(ring, ticket);
    let rank = (lanes & ((1 << warp::lane()) - 1)).count_ones() as usize;
    if rank < 2 {
        store_pair(ring, ticket, rank, words);
    }
    ticket
}
