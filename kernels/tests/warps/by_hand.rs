//! The whole-warp push once more, in its shortest form, with a place for one fault at a time.
//!
//! As in the product a lane stores what another one has prepared: here the element of the next lane of its mask.

use cuda_std::memory::{
    WordPair, fence_acq_rel_sys, fetch_add_relaxed_gpu_u64, load_acquire_sys_u64, store_relaxed_sys_v2_u64,
};
use cuda_std::{thread, warp};
use kernels::ring::{Ring, parity};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Only shuffles stand between the payloads of a warp and the fence behind which one lane stores for another.
    NoBarrierBeforeFence,
    /// The barrier stands, but behind the fence.
    FenceBeforeBarrier,
    /// The lanes of a warp take one ticket range, though they hold two rings.
    TicketOfAnotherRing,
    /// A lane returns, and the others go on with a mask that has it.
    LaneLeaves,
    /// The leader does something alone, and the others take whoever is active for the warp.
    LeaderStaysAway,
}

/// The `rank`-th lane of a mask.
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
    // SAFETY: as above; the mask keeps the slot below the capacity.
    let pair = unsafe { &*ring.slots.cast::<WordPair>().add(2 * slot + index) };
    let lap = parity(ticket, ring.log2_capacity);
    store_relaxed_sys_v2_u64(pair, words[2 * index] | lap, words[2 * index + 1] | lap);
}

/// The first of so many tickets, taken by the leader. Behind it every payload of the mask is before this lane's stores.
fn begin(ring: &Ring, mask: u32, leader: u32, count: u64, fault: Option<Fault>) -> u64 {
    let mut first = 0;
    if warp::lane() == leader {
        // SAFETY: as above.
        first = fetch_add_relaxed_gpu_u64(&unsafe { &*ring.device }.head.0, count);
    }
    if !matches!(fault, Some(Fault::NoBarrierBeforeFence | Fault::FenceBeforeBarrier)) {
        warp::synchronize(mask);
    }
    fence_acq_rel_sys();
    if fault == Some(Fault::FenceBeforeBarrier) {
        warp::synchronize(mask);
    }
    warp::broadcast_u64(mask, first, leader)
}

/// One element of each lane; `lanes` are those that push together.
pub fn push(ring: &mut Ring, lanes: u32, words: [u64; 4], fault: Option<Fault>) -> u64 {
    let mask = match fault {
        Some(Fault::TicketOfAnotherRing) => lanes,
        Some(Fault::LeaderStaysAway) => warp::active_mask(),
        _ => warp::match_any_u64(lanes, ring.device as u64),
    };
    let leader = if fault == Some(Fault::LeaderStaysAway) { lanes.trailing_zeros() } else { mask.trailing_zeros() };
    let count = mask.count_ones();
    let rank = (mask & ((1 << warp::lane()) - 1)).count_ones();
    let first = begin(ring, mask, leader, count.into(), fault);
    let next = (rank + 1) % count;
    let theirs = words.map(|word| warp::shuffle_u64(mask, word, nth(mask, next)));
    let ticket = first + u64::from(next);
    wait_for_space(ring, ticket);
    store_pair(ring, ticket, 0, theirs);
    store_pair(ring, ticket, 1, theirs);
    if fault == Some(Fault::LeaderStaysAway) && warp::lane() == leader {
        // As a leader that waits for its put's completion would.
        wait_for_space(ring, first + ring.capacity());
    }
    first + u64::from(rank)
}

/// One element of all these lanes, stored side by side.
pub fn push_together(ring: &mut Ring, lanes: u32, words: [u64; 4], fault: Option<Fault>) -> u64 {
    let ticket = begin(ring, lanes, lanes.trailing_zeros(), 1, fault);
    wait_for_space(ring, ticket);
    let rank = (lanes & ((1 << warp::lane()) - 1)).count_ones() as usize;
    if rank < 2 {
        store_pair(ring, ticket, rank, words);
    }
    ticket
}
