//! Slots, phases, doorbells, batches, counters.
//!
//! A count is the number of requests (receives, completions) since the queue was created; it is never reset. Slots are
//! used in order. A depth is a power of two, at most [`DEEPEST`].
//!
//! - **Phase.** A bit that changes with each lap distinguishes a slot's new words from those of the previous lap.
//!   Requests start with 0, completions with 1.
//! - **Doorbell.** One 4-byte store of the count including the newest request: a count, not an index. It never
//!   decreases. rdma-core stores its low 16 bits, NVIDIA's device code 32 bits; the hardware reads only the low 16.
//! - **Batch.** At most `max_batch` requests may be written without ringing the doorbell: the NIC has no space for
//!   more.
//! - **In flight.** At most `depth` requests may lack their completion: a slot may be reused only when its request has
//!   completed.
//! - **Order.** The words of the request, a system-scope fence, the doorbell; then another fence before the words of
//!   the next request.
//! - **Counters.** A hardware counter has 31 bits and cannot be written, so comparisons use differences.

/// Maximum depth: half of the range of the doorbell's 16 bits.
pub const DEEPEST: u32 = 1 << 15;

/// Mask of the bits of a hardware counter.
pub const COUNTER_MASK: u64 = (1 << 31) - 1;

/// Returns the slot of request (receive, completion) `number`.
#[inline(always)]
pub const fn slot(number: u64, depth: u32) -> u32 {
    number as u32 & (depth - 1)
}

/// Returns the phase of request `number`: 0 in the first lap.
#[inline(always)]
pub const fn send_phase(number: u64, depth: u32) -> bool {
    number & depth as u64 != 0
}

/// Returns the phase of completion `number`: 1 in the first lap.
#[inline(always)]
pub const fn completion_phase(number: u64, depth: u32) -> bool {
    number & depth as u64 == 0
}

/// Returns the doorbell value for `count` requests written in total.
#[inline(always)]
pub const fn doorbell(count: u64) -> u32 {
    count as u32
}

/// Reason why a doorbell is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorbellError {
    /// The doorbell decreased; contains the difference.
    Back(u32),
    /// More than `max_batch` requests per doorbell; contains their number.
    Batch(u32),
    /// More requests in flight than the queue has slots; contains their number.
    Depth(u32),
}

/// Returns the new count of requests after a doorbell, for a device that has seen `seen` requests, of which `ended`
/// have completed.
///
/// The hardware sees each store to its doorbell. A software NIC that polls memory may see several stores as one. It
/// therefore passes `depth` as `max_batch`, and checks for requests that are written too far ahead ([`is_written`]).
///
/// # Errors
/// Returns [`DoorbellError`] if the doorbell violates a rule.
pub const fn rung(seen: u64, ended: u64, doorbell: u32, depth: u32, max_batch: u32) -> Result<u64, DoorbellError> {
    let new = (doorbell as u16).wrapping_sub(seen as u16);
    if new as i16 <= 0 && new != 0 {
        // An increment of `DEEPEST` itself looks like a decrease, but no batch is that large.
        return Err(DoorbellError::Back(new.wrapping_neg() as u32));
    }
    // With duplicate completions (injected fault), more requests may have ended than were seen.
    let flight = seen.saturating_sub(ended) as u32 + new as u32;
    if new as u32 > max_batch {
        return Err(DoorbellError::Batch(new as u32));
    }
    if flight > depth {
        return Err(DoorbellError::Depth(flight));
    }
    Ok(seen + new as u64)
}

/// Returns whether a slot's first word belongs to request `number` instead of the previous lap.
///
/// With this a software NIC enforces `max_batch`: request `count + max_batch` must not be written while the doorbell is
/// `count`. The NIC must first acquire the word and then the doorbell, because the writer of the request has previously
/// rung the doorbell.
#[inline(always)]
pub const fn is_written(first: u64, number: u64, depth: u32) -> bool {
    first >> 23 & 1 != 0 && crate::request::phase(first) == send_phase(number, depth)
}

/// Returns the maximum number of requests per doorbell for slots of `slot_bytes`. `max_tx_batch` is the device's limit
/// in 64-byte slots (0: none).
pub const fn max_batch(max_tx_batch: u32, slot_bytes: u32, depth: u32) -> u32 {
    let device = if max_tx_batch == 0 { u16::MAX as u32 } else { max_tx_batch * 64 / slot_bytes };
    if device < depth - 1 { device } else { depth - 1 }
}

/// Returns by how much a hardware counter is below a count. Valid if the difference is less than 2^31.
#[inline(always)]
pub const fn behind(count: u64, counter: u64) -> u64 {
    count.wrapping_sub(counter) & COUNTER_MASK
}
