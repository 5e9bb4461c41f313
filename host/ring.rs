//! The memory of a ring: slots and the proxy's words in pinned host memory, the producers' words in device memory.
//!
//! The protocol itself stands in [`kernels::ring`], both parties beside each other.

use crate::cuda::{Buffer, Device, DeviceError, Place};
use cuda_std::memory::{load_acquire_sys_u64, load_acquire_sys_v2_u64};
use kernels::ring::consumer::Consumer;
use kernels::ring::{DeviceWords, HostWords, Ring, Slot};
use std::time::Duration;

/// Slots of a ring, unless the user says otherwise: the producers' stores must outlast one tail round trip at full rate.
pub const DEFAULT_SLOTS: usize = 16384;
/// More would not fit the watermark tracker's table sensibly, and serves nothing.
pub const MAX_SLOTS: usize = 1 << 20;

/// A ring's memory, zeroed: empty, nothing complete.
#[derive(Debug)]
pub struct RingMemory {
    slots: Buffer,
    host: Buffer,
    device: Buffer,
    log2_capacity: u32,
    timeout: Duration,
}

impl RingMemory {
    /// Allocates a ring with a power of two of slots, at least 2.
    ///
    /// # Errors
    /// For any other number of slots, or when memory is short.
    pub fn new(device: &Device, slots: usize, timeout: Duration) -> Result<RingMemory, DeviceError> {
        if !slots.is_power_of_two() || !(2..=MAX_SLOTS).contains(&slots) {
            return Err(DeviceError::Refused(format!(
                "{slots} ring slots refused: a power of two from 2 to {MAX_SLOTS}"
            )));
        }
        Ok(RingMemory {
            slots: device.allocate(Place::Host, slots * size_of::<Slot>())?,
            host: device.allocate(Place::Host, size_of::<HostWords>())?,
            device: device.allocate(Place::Device, size_of::<DeviceWords>())?,
            log2_capacity: slots.trailing_zeros(),
            timeout,
        })
    }

    /// The ring as kernels see it. Valid as long as this memory.
    pub fn ring(&self) -> Ring {
        Ring {
            slots: self.slots.pointer(),
            host: self.host.pointer(),
            device: self.device.pointer(),
            log2_capacity: self.log2_capacity,
            timeout_ns: self.timeout.as_nanos().min(u64::MAX as u128) as u64,
        }
    }

    /// Where the ring stands, in one line, for messages about waits that ended.
    pub fn state(&self) -> String {
        let mut words = [0u64; 2];
        // SAFETY: zeroed memory of this type; the proxy writes it by atomic stores.
        let host = unsafe { &*self.host.pointer::<HostWords>() };
        let tail = load_acquire_sys_u64(&host.tail.0);
        let (watermark, status) = load_acquire_sys_v2_u64(&host.completion.0);
        let head = match self.device.read(std::mem::offset_of!(DeviceWords, head), &mut words[..1]) {
            Ok(()) => words[0].to_string(),
            Err(error) => format!("unknown ({error})"),
        };
        let slots = 1u64 << self.log2_capacity;
        format!(
            "{head} tickets given, {tail} taken by the proxy, watermark {watermark}, status {status}, {slots} slots"
        )
    }

    /// The proxy's end.
    ///
    /// # Safety
    /// Taken once, and not used after this memory is gone.
    pub unsafe fn consumer(&self) -> Consumer {
        // SAFETY: the caller's contract is that of `Consumer::new`.
        unsafe { Consumer::new(&self.ring()) }
    }
}

/// Several rings as the kernels' argument: an array in device memory.
#[derive(Debug)]
pub struct RingTable {
    table: Buffer,
    count: u32,
}

impl RingTable {
    /// Puts the rings' descriptions into device memory.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(device: &Device, rings: &[RingMemory]) -> Result<RingTable, DeviceError> {
        let descriptions: Vec<Ring> = rings.iter().map(RingMemory::ring).collect();
        let table = device.allocate(Place::Device, size_of_val(descriptions.as_slice()))?;
        table.write(0, &descriptions)?;
        Ok(RingTable { table, count: descriptions.len() as u32 })
    }

    /// Address of the first ring's description, for kernels.
    pub fn pointer(&self) -> *const Ring {
        self.table.pointer()
    }

    /// How many rings.
    pub fn count(&self) -> u32 {
        self.count
    }
}
