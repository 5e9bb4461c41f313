//! The memory of a ring: slots and the CPU's words in memory that GPU and CPU share, the producers' words in the GPU's.
//!
//! The protocol itself stands in [`kernels::ring`], both parties beside each other.

use cuda_std::memory::{load_acquire_host_u64, load_acquire_sys_v2_u64, store_release_host_u64};
use ginlab_cuda::{Buffer, Device, DeviceError, MappedBuffer, Place};
use kernels::ring::consumer::Consumer;
use kernels::ring::{DeviceWords, HostWords, LOG2_COMMAND_WORDS, Ring};
use std::time::Duration;

/// Slots of a ring, unless the user says otherwise: the producers' stores must outlast one tail round trip at full rate.
pub const DEFAULT_SLOTS: usize = 16384;
/// More would not fit the watermark tracker's table sensibly, and serves nothing.
pub const MAX_SLOTS: usize = 1 << 20;

/// Where the memory is that GPU and CPU share.
///
/// Of each value the first paragraph is what `--help` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RingPlace {
    /// Pinned host memory.
    Pinned,
    /// Managed memory, whose pages travel to whoever touches them.
    Managed,
    /// GPU memory that the CPU reads over PCIe (GDRCopy); the CPU's own words are pinned.
    Gdr,
}

/// Memory that GPU and CPU share, each under its own address.
#[derive(Debug)]
pub enum HostVisible {
    /// One address for both.
    Buffer(Buffer),
    /// GPU memory with a mapping for the CPU.
    Mapped(MappedBuffer),
}

impl HostVisible {
    /// Allocates zeroed memory in this place.
    ///
    /// # Errors
    /// When the place is not to be had here, or not large enough.
    pub fn new(device: &Device, place: RingPlace, bytes: usize) -> Result<HostVisible, DeviceError> {
        match place {
            RingPlace::Pinned => device.allocate(Place::Host, bytes).map(HostVisible::Buffer),
            RingPlace::Managed => device.allocate(Place::Managed, bytes).map(HostVisible::Buffer),
            RingPlace::Gdr => device.mapped(bytes).map(HostVisible::Mapped),
        }
    }

    /// Address of the first byte for kernels.
    pub fn device_pointer<T>(&self) -> *const T {
        match self {
            HostVisible::Buffer(buffer) => buffer.pointer(),
            HostVisible::Mapped(buffer) => buffer.device_address() as *const T,
        }
    }

    /// Address of the first byte for the CPU.
    pub fn host_pointer<T>(&self) -> *const T {
        match self {
            HostVisible::Buffer(buffer) => buffer.pointer(),
            HostVisible::Mapped(buffer) => buffer.host_address() as *const T,
        }
    }

    /// Whether the CPU's stores wait on their way until [`flush_stores`](ginlab_cuda::flush_stores).
    pub fn holds_stores_back(&self) -> bool {
        matches!(self, HostVisible::Mapped(_))
    }
}

/// A ring's memory, zeroed: empty, nothing complete.
#[derive(Debug)]
pub struct RingMemory {
    slots: HostVisible,
    host: Buffer,
    device: Buffer,
    log2_capacity: u32,
    log2_slot_words: u32,
    timeout: Duration,
}

/// Refuses a number of slots that is no power of two up to [`MAX_SLOTS`].
///
/// # Errors
/// [`DeviceError::Refused`] with what is allowed.
pub fn check_slots(slots: usize) -> Result<(), DeviceError> {
    if slots.is_power_of_two() && slots <= MAX_SLOTS {
        return Ok(());
    }
    Err(DeviceError::Refused(format!("{slots} ring slots refused: a power of two from 1 to {MAX_SLOTS}")))
}

impl RingMemory {
    /// Allocates a ring of commands with a power of two of slots.
    ///
    /// # Errors
    /// For any other number of slots, or when memory is short.
    pub fn new(device: &Device, slots: usize, timeout: Duration) -> Result<RingMemory, DeviceError> {
        RingMemory::of(device, RingPlace::Pinned, slots, LOG2_COMMAND_WORDS, timeout)
    }

    /// Allocates a ring with slots of this many words. They are in the place that is asked for; the few words that only
    /// the CPU writes are in pinned memory beside GDRCopy's (its mapping does not keep the CPU's stores in order), and in
    /// the same place otherwise.
    ///
    /// # Errors
    /// As [`new`](RingMemory::new), and when the place is not to be had here.
    pub fn of(
        device: &Device,
        place: RingPlace,
        slots: usize,
        log2_slot_words: u32,
        timeout: Duration,
    ) -> Result<RingMemory, DeviceError> {
        check_slots(slots)?;
        let words = if place == RingPlace::Managed { Place::Managed } else { Place::Host };
        Ok(RingMemory {
            slots: HostVisible::new(device, place, (slots * size_of::<u64>()) << log2_slot_words)?,
            host: device.allocate(words, size_of::<HostWords>())?,
            device: device.allocate(Place::Device, size_of::<DeviceWords>())?,
            log2_capacity: slots.trailing_zeros(),
            log2_slot_words,
            timeout,
        })
    }

    /// The ring as kernels see it. Valid as long as this memory.
    pub fn ring(&self) -> Ring {
        Ring {
            slots: self.slots.device_pointer(),
            host: self.host.pointer(),
            device: self.device.pointer(),
            log2_capacity: self.log2_capacity,
            log2_slot_words: self.log2_slot_words,
            timeout_ns: self.timeout.as_nanos().min(u64::MAX as u128) as u64,
            role: 0,
            of_block: 0,
            free_below: 1 << self.log2_capacity,
        }
    }

    /// Where the ring stands, in one line, for messages about waits that ended.
    pub fn state(&self) -> String {
        let mut words = [0u64; 2];
        // SAFETY: zeroed memory of this type; the proxy writes it by atomic stores.
        let host = unsafe { &*self.host.pointer::<HostWords>() };
        let tail = load_acquire_host_u64(&host.tail.0);
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

    /// The CPU's end.
    ///
    /// # Safety
    /// The slots have `WORDS` words or more. Taken once, and not used after this memory is gone.
    pub unsafe fn consumer<const WORDS: usize>(&self) -> Consumer<WORDS> {
        let ring = Ring { slots: self.slots.host_pointer(), ..self.ring() };
        // SAFETY: the caller's contract is that of `Consumer::new`.
        unsafe { Consumer::new(&ring) }
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

/// Answers a ping-pong's flag that is newer than the last one; false when there is none.
#[inline(always)]
pub(crate) fn answer_flag(words: &HostWords, answered: &mut u64) -> bool {
    let asked = load_acquire_host_u64(&words.tail.0);
    if asked == *answered {
        return false;
    }
    // Release: what the device wrote before its flag, this thread has acquired, and whoever acquires the answer has too.
    store_release_host_u64(&words.completion.0.0, asked);
    *answered = asked;
    true
}
