//! Variants of the ring with elements that production code does not push. Their number of words is any power of two,
//! they are pushed by a whole warp together, or each has a release store.
//!
//! Tickets, space and parity are those of the ring, and so are the happens-before chains of [`Ring::push_words`]. A
//! lane's element is pushed without a fence, since it does not refer to a payload.

use crate::command::COMMAND_WORDS;
use crate::ring::producer::{Fence, exchange};
use crate::ring::{Observe, Ring, Status, parity};
use cuda_std::memory::{Word, WordPair, store_relaxed_sys_u64, store_relaxed_sys_v2_u64, store_release_sys_u64};
use cuda_std::warp;

/// Pushes one element per active lane and returns the lane's ticket. `word(i)`, which must be below 2^63, is word `i`
/// of `words`. `words` must be a power of two and the same in every lane.
///
/// # Errors
/// Returns the same errors as [`Ring::push_words`].
#[inline(always)]
pub fn push(
    ring: &mut Ring,
    words: u32,
    word: impl Fn(u32) -> u64 + Copy,
    observe: &mut impl Observe,
) -> Result<u64, Status> {
    in_turn(ring, observe, move |ring, ticket| {
        store_long(ring.address(ticket, 0), parity(ticket, ring.log2_capacity), words, word, 0, 1);
    })
}

/// Like [`push`], but stores the last word with a release: an element is complete once its last word is visible. The
/// release waits until the element's other words have arrived over PCIe.
///
/// # Errors
/// Returns the same errors as [`Ring::push_words`].
#[inline(always)]
pub fn push_released(
    ring: &mut Ring,
    words: u32,
    word: impl Fn(u32) -> u64 + Copy,
    observe: &mut impl Observe,
) -> Result<u64, Status> {
    in_turn(ring, observe, move |ring, ticket| {
        let lap = parity(ticket, ring.log2_capacity);
        // SAFETY: the slot is in the ring and has `words` words.
        let slot = |index| unsafe { &*ring.address(ticket, index) };
        for index in 0..words - 1 {
            store_relaxed_sys_u64(slot(index), word(index) | lap);
        }
        store_release_sys_u64(slot(words - 1), word(words - 1) | lap);
    })
}

/// Pushes one element for the whole warp. All lanes of `mask` must call it together with the same words and the same
/// ring. One ticket is taken, and the lanes store adjacent parts of the element. A command is then one write of 32
/// bytes over PCIe instead of two of 16, and large elements are sent as full lines.
///
/// With [`Fence::Payload`], the warp's barrier before the fences orders the payloads of lanes that store nothing before
/// the stores of the other lanes.
///
/// # Errors
/// Returns the same errors as [`Ring::push_words`].
#[inline(always)]
pub fn push_warp(
    ring: &mut Ring,
    mask: u32,
    fence: Fence,
    words: u32,
    word: impl Fn(u32) -> u64 + Copy,
    observe: &mut impl Observe,
) -> Result<u64, Status> {
    if mask == u32::MAX {
        let share = || share_of(words, word, warp::lane());
        let (ticket, share) = lead(ring, u32::MAX, 0, 1, fence, observe, share)?;
        store_share(ring, ticket, words, word, warp::lane(), u32::BITS, share);
        return Ok(ticket);
    }
    let rank = (mask & ((1u32 << warp::lane()) - 1)).count_ones();
    let share = || share_of(words, word, rank);
    let (ticket, share) = lead(ring, mask, mask.trailing_zeros(), 1, fence, observe, share)?;
    store_share(ring, ticket, words, word, rank, mask.count_ones(), share);
    Ok(ticket)
}

/// Performs only the stores of a push, of a lane's own element or of the lane's share of its warp's element.
#[inline(always)]
pub(super) fn store_bare(
    ring: &Ring,
    ticket: u64,
    words: u32,
    word: impl Fn(u32) -> u64 + Copy,
    rank: u32,
    lanes: u32,
) {
    if lanes > 1 || words != COMMAND_WORDS {
        return store_share(ring, ticket, words, word, rank, lanes, share_of(words, word, rank));
    }
    // Groups the words as a production push does.
    let halves = [[word(0), word(1)], [word(2), word(3)]];
    if warp::SIZE == 32 && warp::active_mask() == u32::MAX {
        ring.store_coalesced(ticket, exchange(halves));
    } else {
        ring.store(ticket, halves);
    }
}

/// Takes a ticket for each active lane. Calls `store` to fill the lane's slot once it is free. Uses the same paths as
/// [`Ring::push_words`] without a fence, so that rates can be compared.
#[inline(always)]
fn in_turn(ring: &mut Ring, observe: &mut impl Observe, store: impl FnOnce(&Ring, u64)) -> Result<u64, Status> {
    let mut mask = warp::active_mask();
    if ring.of_block == 0 && mask.count_ones() > 1 {
        mask = warp::match_any_u64(mask, ring.device as u64);
    }
    if mask == u32::MAX && ring.capacity() >= u32::BITS as u64 {
        let (first, ()) = lead(ring, u32::MAX, 0, u32::BITS, Fence::None, observe, || ())?;
        let ticket = first + warp::lane() as u64;
        observe.ordered();
        store(ring, ticket);
        observe.stored();
        return Ok(ticket);
    }
    if mask.count_ones() == 1 {
        let ticket = ring.add_to_head(1);
        ring.refresh_free_below(ticket + 1);
        ring.wait_for_space(ticket + 1, observe)?;
        observe.ordered();
        store(ring, ticket);
        observe.stored();
        return Ok(ticket);
    }
    let (ticket, free_below) = in_groups(*ring, mask, observe, store);
    ring.free_below = free_below;
    ticket
}

/// Implements [`in_turn`] for a partial warp, or for a ring with fewer slots than lanes. Also returns the updated
/// `free_below`. Not inlined, and on a copy of the ring, as in production code.
#[inline(never)]
fn in_groups(
    mut ring: Ring,
    mask: u32,
    observe: &mut impl Observe,
    store: impl FnOnce(&Ring, u64),
) -> (Result<u64, Status>, u64) {
    let leader = mask.trailing_zeros();
    let rank = (mask & ((1u32 << warp::lane()) - 1)).count_ones() as u64;
    let count = mask.count_ones() as u64;
    let is_leader = warp::lane() == leader;
    let mut base = 0;
    if is_leader {
        base = ring.add_to_head(count);
        ring.refresh_free_below(base + count);
    }
    let base = warp::broadcast_u64(mask, base, leader);
    let mut store = Some(store);
    let mut stop = 0;
    let mut first = 0;
    while first < count && stop == 0 {
        let last = count.min(first + ring.capacity());
        if is_leader && let Err(reason) = ring.wait_for_space(base + last, observe) {
            stop = reason.0;
        }
        stop = warp::broadcast_u64(mask, stop, leader);
        // The barrier extends the leader's acquire to all lanes.
        warp::synchronize(mask);
        if stop == 0
            && rank >= first
            && rank < last
            && let Some(store) = store.take()
        {
            observe.ordered();
            store(&ring, base + rank);
            observe.stored();
        }
        first = last;
    }
    (if stop == 0 { Ok(base + rank) } else { Err(Status(stop)) }, ring.free_below)
}

/// Takes `count` adjacent tickets for the lanes of `mask`. The leader takes them and waits until all have a slot.
/// Returns the first ticket and the result of `prepare`, in every lane.
#[inline(always)]
fn lead<P>(
    ring: &mut Ring,
    mask: u32,
    leader: u32,
    count: u32,
    fence: Fence,
    observe: &mut impl Observe,
    prepare: impl FnOnce() -> P,
) -> Result<(u64, P), Status> {
    /// Flag in the leader's answer, which states that the other bits contain a status instead of a ticket. Tickets
    /// never reach 2^63.
    const STOPPED: u64 = 1 << 63;
    let is_leader = warp::lane() == leader;
    let mut answer = 0;
    if is_leader {
        answer = ring.add_to_head(count as u64);
    }
    let prepared = prepare();
    if fence == Fence::Payload {
        // Orders the payloads of all lanes before the fences of the lanes that store.
        warp::synchronize(mask);
    }
    let end = answer + count as u64;
    if is_leader {
        ring.refresh_free_below(end);
    }
    fence.fence();
    if is_leader && let Err(Status(reason)) = ring.wait_for_space(end, observe) {
        answer = reason | STOPPED;
    }
    answer = warp::broadcast_u64(mask, answer, leader);
    // The barrier extends the leader's acquire to all lanes; a shuffle does not order memory.
    warp::synchronize(mask);
    if answer & STOPPED == 0 { Ok((answer, prepared)) } else { Err(Status(answer & !STOPPED)) }
}

/// Returns the pair of words of a command that the lane of this rank stores. Returns zeros for other elements and
/// lanes.
#[inline(always)]
fn share_of(words: u32, word: impl Fn(u32) -> u64 + Copy, rank: u32) -> [u64; 2] {
    if words == COMMAND_WORDS && rank < COMMAND_WORDS / 2 { [word(2 * rank), word(2 * rank + 1)] } else { [0; 2] }
}

/// Stores this lane's share of its warp's element: every `lanes`-th pair of words, starting with pair `rank`.
#[inline(always)]
fn store_share(
    ring: &Ring,
    ticket: u64,
    words: u32,
    word: impl Fn(u32) -> u64 + Copy,
    rank: u32,
    lanes: u32,
    share: [u64; 2],
) {
    if words != COMMAND_WORDS || lanes < COMMAND_WORDS / 2 {
        store_long(ring.address(ticket, 0), parity(ticket, ring.log2_capacity), words, word, rank, lanes);
    } else if rank < COMMAND_WORDS / 2 {
        ring.store_pair(ticket, 2 * rank, share);
    }
}

/// Stores a lane's share of an element of any width, which `lanes` lanes store together. Not inlined, so that its loop
/// takes no registers from the path of a warp's command.
#[inline(never)]
fn store_long(slot: *const Word, lap: u64, words: u32, word: impl Fn(u32) -> u64 + Copy, rank: u32, lanes: u32) {
    if words == 1 {
        if rank == 0 {
            // SAFETY: the caller passes a slot of a ring whose slots have `words` words.
            store_relaxed_sys_u64(unsafe { &*slot }, word(0) | lap);
        }
        return;
    }
    let mut index = 2 * rank;
    while index < words {
        // SAFETY: the slot has `words` words and is aligned to 16 bytes, and `index` is even.
        let pair = unsafe { &*slot.add(index as usize).cast::<WordPair>() };
        store_relaxed_sys_v2_u64(pair, word(index) | lap, word(index + 1) | lap);
        index += 2 * lanes;
    }
}
