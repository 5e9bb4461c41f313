//! Slots, phases, doorbells, batches, counters.
//!
//! A count says how many requests (receives, completions) there have been since the queue was made; it is never reset. Slots are taken in
//! turn, and a depth is a power of two, at most [`DEEPEST`].
//!
//! - **Phase.** A bit that changes with each lap tells a slot's new words from the last lap's. Requests begin with 0, completions with 1.
//! - **Doorbell.** One 4-byte store of the count behind the newest request: a count, not an index. It never goes back. rdma-core stores its low
//!   16 bits, NVIDIA's device code 32: a card looks at the low 16 alone.
//! - **Batch.** Never more than `max_batch` requests are written and not rung: the card has no room for more.
//! - **In flight.** Never more requests than the depth are without their completion: a slot is written again only when its request has ended.
//! - **Order.** The request's words, a fence for the system, the doorbell; and a fence behind it, before the next request's words.
//! - **Counters.** A hardware counter has 31 bits and cannot be written: what is compared is a difference.

/// The deepest queue: half of what the doorbell's 16 bits tell apart.
pub const DEEPEST: u32 = 1 << 15;

/// The bits of a hardware counter.
pub const COUNTER_MASK: u64 = (1 << 31) - 1;

/// The slot of the request (receive, completion) with this number.
#[inline(always)]
pub const fn slot(number: u64, depth: u32) -> u32 {
    number as u32 & (depth - 1)
}

/// The phase of the request with this number: 0 in the first lap.
#[inline(always)]
pub const fn send_phase(number: u64, depth: u32) -> bool {
    number & depth as u64 != 0
}

/// The phase of the completion with this number: 1 in the first lap.
#[inline(always)]
pub const fn completion_phase(number: u64, depth: u32) -> bool {
    number & depth as u64 == 0
}

/// What is stored at the doorbell when so many requests are written in all.
#[inline(always)]
pub const fn doorbell(count: u64) -> u32 {
    count as u32
}

/// What is stored at the doorbell of a completion queue, whose use is interrupts: completions read, the number of the last arming, whether
/// this one arms.
#[inline(always)]
pub const fn completion_doorbell(read: u64, command: u32, arms: bool) -> u32 {
    read as u32 & 0xffff | (command & 3) << 29 | (arms as u32) << 31
}

/// Why a doorbell is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It went back by so many.
    Back(u32),
    /// More than `max_batch` requests behind one doorbell: so many.
    Batch(u32),
    /// More requests in flight than the queue has slots: so many.
    Depth(u32),
}

/// The count that a doorbell says, for a card that had seen `seen` requests, of which `ended` have their completions.
pub const fn rung(seen: u64, ended: u64, doorbell: u32, depth: u32, max_batch: u32) -> Result<u64, Refused> {
    let new = (doorbell as u16).wrapping_sub(seen as u16);
    if new as i16 <= 0 && new != 0 {
        // DEEPEST itself reads as going back: no batch has as many.
        return Err(Refused::Back(new.wrapping_neg() as u32));
    }
    let flight = (seen - ended) as u32 + new as u32;
    if new as u32 > max_batch {
        return Err(Refused::Batch(new as u32));
    }
    if flight > depth {
        return Err(Refused::Depth(flight));
    }
    Ok(seen + new as u64)
}

/// The most requests behind one doorbell: the device's `max_tx_batch`, in slots of 64 bytes (0: no limit of its own), for slots of this size.
pub const fn max_batch(max_tx_batch: u32, slot_bytes: u32, depth: u32) -> u32 {
    let device = if max_tx_batch == 0 { u16::MAX as u32 } else { max_tx_batch * 64 / slot_bytes };
    if device < depth - 1 { device } else { depth - 1 }
}

/// How far a hardware counter is behind a count. Right where that is less than 2^31.
#[inline(always)]
pub const fn behind(count: u64, counter: u64) -> u64 {
    count.wrapping_sub(counter) & COUNTER_MASK
}

/// Whether a hardware counter has reached a count. Right where they are less than 2^30 apart.
#[inline(always)]
pub const fn has_reached(counter: u64, count: u64) -> bool {
    counter.wrapping_sub(count) & COUNTER_MASK < 1 << 30
}
