//! Location of a heap, and the ranks that have it mapped.

use super::heap::for_rails;
use super::seat::Seat;
use super::{GinError, PePath, WorldOptions};
use ginlab_bootstrap::Bootstrap;
use ginlab_cuda::{Buffer, CardWrites, Device, DeviceError, MemoryLocation, OpenedMemory, PeerHandle};
use ginlab_fabric::RailPlan;

/// A heap, and the other ranks' heaps that could be mapped.
pub(super) struct Mapped {
    pub heap: Buffer,
    /// Kind of memory, as returned by [`World::memory`].
    pub place: &'static str,
    pub opened: Vec<Option<OpenedMemory>>,
    /// Whether another rank has this heap mapped.
    pub by_others: bool,
}

/// Allocates the heap in device memory, and maps the heaps of the ranks on this machine.
pub(super) fn map(
    ranks: &mut Bootstrap,
    device: &Device,
    bytes: u64,
    options: &WorldOptions,
    notes: &mut Vec<String>,
) -> Result<Mapped, GinError> {
    let path = options.path;
    let mut shared = device.peer_memory(bytes)?;
    let offered = if path == PePath::Rails { None } else { Some(shared.handle()?) };
    // Lent until no other rank has it mapped, even if opening the world fails.
    shared.lend(offered.is_some());
    let handles: Vec<Option<PeerHandle>> = ranks.all_gather_values(&offered, "handles of heaps")?;
    // A network namespace counts as a host, as elsewhere. Path `nvlink` also maps heaps across namespaces.
    let mut here = if path == PePath::NvLink { ranks.on_this_machine() } else { ranks.on_this_host() };
    let (me, size) = (ranks.rank(), ranks.size());
    here.retain(|rank| options.node_of(*rank) == options.node_of(me));
    let mut opened: Vec<Option<OpenedMemory>> = (0..size).map(|_| None).collect();
    let mut refused = None;
    for rank in (0..size).filter(|rank| *rank != me) {
        let handle = handles[rank].as_ref().filter(|_| here.contains(&rank));
        match handle.map(|handle| OpenedMemory::open(device, handle)) {
            Some(Ok(memory)) => opened[rank] = Some(memory),
            Some(Err(DeviceError::Missing(why))) => refused = refused.or(Some((rank, why))),
            Some(Err(error)) => return Err(error.into()),
            None if path == PePath::NvLink => refused = refused.or(Some((rank, "it is on another machine".into()))),
            None => {}
        }
    }
    if let Some((rank, why)) = refused {
        if path == PePath::NvLink {
            return Err(GinError::Usage(format!(
                "path nvlink: PE {me} cannot map the heap of PE {rank}: {why}; use path auto, which uses rails for \
                 this PE"
            )));
        }
        notes.push(format!("PE {rank} is reached by rails: {why}"));
    }
    let maps: Vec<bool> = opened.iter().map(Option::is_some).collect();
    let all: Vec<Vec<bool>> = ranks.all_gather_values(&maps, "mapped heaps")?;
    let by_others = all.iter().any(|maps| maps.get(me) == Some(&true));
    shared.lend(by_others);
    Ok(Mapped { heap: shared, place: "device", opened, by_others })
}

/// Returns a heap that the rails can reach: `mapped` itself, or a new heap in host memory that no other rank maps.
pub(super) fn reachable(
    ranks: &mut Bootstrap,
    bytes: u64,
    mut mapped: Mapped,
    seat: &mut Seat,
) -> Result<Mapped, GinError> {
    let Seat { device, rails: Some(rails), notes, .. } = seat else { return Ok(mapped) };
    let is_gpu = matches!(device, Device::Gpu(_));
    let mut why = None;
    if is_gpu {
        // SAFETY: the heap outlives the call.
        why = unsafe { rails.prove_gpu(for_rails(&mapped.heap)) }.err();
        if let (None, CardWrites::Unordered(reason)) = (&why, device.card_writes()) {
            why = Some(reason);
        }
    }
    // All ranks use the same reason, which is the first one.
    let reasons: Vec<Option<String>> = ranks.all_gather_values(&why, "rails that reach the heap")?;
    let Some(why) = reasons.into_iter().flatten().next() else {
        if is_gpu {
            notes.push(device.card_writes().note());
        }
        return Ok(mapped);
    };
    mapped.opened.iter_mut().for_each(|opened| *opened = None);
    ranks.barrier("heaps unmapped")?;
    // No other rank has it mapped now.
    mapped.heap.lend(false);
    drop(mapped);
    notes.push(format!("the heap is in pinned host memory, and all PEs are reached by rails: {why}"));
    let heap = if rails.shares_memory() {
        device.pinned_shared(bytes as usize)?
    } else {
        device.allocate(MemoryLocation::Host, bytes as usize)?
    };
    let opened = (0..ranks.size()).map(|_| None).collect();
    Ok(Mapped { heap, place: "pinned", opened, by_others: false })
}

/// Returns the heap for path `direct`. It is in GPU memory if all ranks' NICs can register it and the GPU orders their
/// writes without a flush, because only its kernels observe arrivals. Otherwise, it is in pinned host memory.
pub(super) fn by_cards(
    ranks: &mut Bootstrap,
    device: &Device,
    bytes: usize,
    rails: Option<&mut RailPlan>,
    notes: &mut Vec<String>,
) -> Result<Mapped, GinError> {
    // A job with a single PE has no NIC.
    let rails = rails.filter(|_| matches!(device, Device::Gpu(_)));
    let mut in_gpu = rails.is_some();
    let mut why = None;
    if let Some(rails) = rails {
        why = match device.card_writes() {
            CardWrites::Ordered => {
                let probe = device.allocate(MemoryLocation::Device, PROBE_BYTES)?;
                // SAFETY: the buffer outlives the call.
                unsafe { rails.prove_gpu(for_rails(&probe)) }.err()
            }
            _ => Some("this GPU does not order the writes of NICs, and there is no proxy to flush them".into()),
        };
    }
    // All ranks use the same reason, as in `reachable`.
    let reasons: Vec<Option<String>> = ranks.all_gather_values(&why, "NICs that reach the heap")?;
    if let Some(why) = reasons.into_iter().flatten().next() {
        in_gpu = false;
        notes.push(format!("the heap is in pinned host memory: {why}"));
    }
    if in_gpu {
        notes.push(device.card_writes().note());
    }
    let heap = if in_gpu { device.allocate(MemoryLocation::Device, bytes)? } else { device.pinned_shared(bytes)? };
    let opened = (0..ranks.size()).map(|_| None).collect();
    Ok(Mapped { heap, place: if in_gpu { "device" } else { "pinned" }, opened, by_others: false })
}

/// Size of the memory that is registered to test whether a NIC can register memory of this GPU: one large page.
const PROBE_BYTES: usize = 2 << 20;
