//! Keys of requests: they identify a signal of a block, or the memory of a registration.

use super::QueueBlock;
use super::layout::{Image, MemoryHandle, MemoryPeer};
use crate::coll::Coll;
use crate::operation::RemoteLocation;
use crate::process::locked;
use std::sync::Arc;

/// Number of bits of a key for the context in its block. The other bits are the block's region.
pub(super) const CONTEXT_BITS: u32 = 12;

/// Returns the key of a block's context.
pub(super) fn key(region: u32, context: usize) -> u32 {
    region << CONTEXT_BITS | context as u32
}

/// Returns the word of the signal that a request names; `None` if there is no such signal.
pub fn signal_at(coll: &Coll, blocks: &[Arc<QueueBlock>], pair: u16, key: u32) -> Option<RemoteLocation> {
    let (region, context) = (key >> CONTEXT_BITS, key as usize & ((1 << CONTEXT_BITS) - 1));
    let block = blocks.iter().find(|block| block.region == region)?;
    let signal = usize::from(pair).checked_sub(1)?;
    (context < block.contexts && signal < block.signals && coll.region(region).is_some())
        .then_some(RemoteLocation { region, offset: ((context * block.signals + signal) * 8) as u64 })
}

/// Writes the description of a registration for the kernels: a pointer to a [`MemoryHandle`] that a [`MemoryPeer`] for
/// each rank follows. Returns the address of the pointer.
///
/// # Errors
/// Returns the driver's error.
pub fn describe(coll: &Coll, region: u32) -> Result<u64, String> {
    if region > efa_queue::KEY_MASK {
        return Err(format!("region {region}: a local key has 24 bits"));
    }
    let mut arena = locked(&coll.arena);
    let first = size_of::<u64>() * 2;
    let bytes = first + size_of::<MemoryHandle>() + coll.ranks * size_of::<MemoryPeer>();
    let address = arena.device(bytes)?;
    let mut image = Image { address, bytes: vec![0; bytes] };
    image.place(0, address + first as u64);
    image.place(first, MemoryHandle { lkey: region, nranks: coll.ranks as i32, local_addr: 0 });
    for rank in 0..coll.ranks {
        let at = first + size_of::<MemoryHandle>() + rank * size_of::<MemoryPeer>();
        image.place(at, MemoryPeer { rkey: region, ..MemoryPeer::default() });
    }
    // SAFETY: memory of that length, which no kernel uses yet.
    unsafe { arena.write(image.address, &image.bytes) }?;
    Ok(address)
}
