//! Memory that holds the payload of transfers: options, the choice of the default, and patterns for verified passes.

use crate::error::Failure;
use clap::ValueEnum;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, Device, DeviceError, MemoryLocation};
use ginlab::fabric::{MemoryRange, RailPlan};
use ginlab::measure::pattern;

/// Size of the GPU memory that is registered to find out whether NICs can access it.
const PROBE_BYTES: usize = 2 << 20;

/// Memory that holds the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MemoryKind {
    /// GPU memory if every rank has a GPU whose NICs access it directly, otherwise pinned host memory
    Auto,
    /// Pinned host memory
    Pinned,
    /// Device memory
    Device,
}

impl MemoryKind {
    /// Chooses the memory of all ranks if this is `Auto`, and prepares the rails for it. Adds a note if a GPU is used
    /// but not its memory. For `Auto`, this is a collective call.
    ///
    /// # Errors
    /// Returns an error if the memory for the probe cannot be allocated or a rank has disconnected.
    pub fn choose(
        self,
        device: &Device,
        rails: &mut RailPlan,
        notes: &mut Vec<String>,
        ranks: &mut Bootstrap,
    ) -> Result<MemoryKind, Failure> {
        if self != MemoryKind::Auto {
            return Ok(self);
        }
        let refused = refused(device, rails)?;
        let all = ranks.all_gather_values(&refused, "memory of the ranks")?;
        let Some((rank, why)) = all.into_iter().enumerate().find_map(|(rank, why)| Some((rank, why?))) else {
            return Ok(MemoryKind::Device);
        };
        rails.use_host_memory();
        if matches!(device, Device::Gpu(_)) {
            notes.push(format!("the payload is in pinned host memory, not in GPU memory: rank {rank}: {why}"));
        }
        Ok(MemoryKind::Pinned)
    }
}

/// Returns the reason why the rails cannot access memory of this device, if they cannot. Otherwise, prepares the rails
/// for GPU memory.
///
/// # Errors
/// Returns an error if the memory for the probe cannot be allocated.
pub fn refused(device: &Device, rails: &mut RailPlan) -> Result<Option<String>, Failure> {
    if matches!(device, Device::Emulated) {
        return Ok(Some("it has no GPU".into()));
    }
    let probe = device.allocate(MemoryLocation::Device, PROBE_BYTES)?;
    let memory = MemoryRange { address: probe.address(), bytes: probe.bytes(), cuda_device: probe.cuda_device() };
    // SAFETY: the buffer outlives the call.
    Ok(unsafe { rails.prove_gpu(memory) }.err())
}

/// Slots of equal length in a buffer, for a verified pass. Each slot is specified by its offset and the seed of its
/// payload.
pub struct PayloadSlots<'a>(pub &'a Buffer, pub u64);

impl PayloadSlots<'_> {
    /// Writes the payloads.
    pub fn fill(&self, slots: impl Iterator<Item = (u64, u64)>) -> Result<(), DeviceError> {
        self.write(slots, pattern::fill)
    }

    /// Writes bytes that all differ from the payloads.
    pub fn poison(&self, slots: impl Iterator<Item = (u64, u64)>) -> Result<(), DeviceError> {
        self.write(slots, pattern::poison)
    }

    fn write(&self, slots: impl Iterator<Item = (u64, u64)>, with: fn(&mut [u8], u64)) -> Result<(), DeviceError> {
        let mut payload = vec![0u8; self.1 as usize];
        for (offset, seed) in slots {
            with(&mut payload, seed);
            self.0.write(offset as usize, &payload)?;
        }
        Ok(())
    }

    /// Returns the number of bytes that differ from the payloads.
    pub fn wrong(&self, slots: impl Iterator<Item = (u64, u64)>) -> Result<u64, DeviceError> {
        let mut payload = vec![0u8; self.1 as usize];
        let mut wrong = 0;
        for (offset, seed) in slots {
            self.0.read(offset as usize, &mut payload)?;
            wrong += pattern::check(&payload, seed) as u64;
        }
        Ok(wrong)
    }
}
