//! Memory of a ring. Slots, and the words written by the CPU, are in memory shared by GPU and CPU. The producers' words
//! are in GPU memory.
//!
//! The protocol is documented in [`kernels::ring`], which contains both producer and consumer.

use cuda_std::memory::{load_acquire_host_u64, load_acquire_sys_v2_u64, store_release_host_u64};
use ginlab_cuda::{Buffer, Device, DeviceError, MappedBuffer, MemoryLocation};
use kernels::ring::consumer::Consumer;
use kernels::ring::{DeviceWords, HostWords, LOG2_COMMAND_WORDS, Ring, Status};
use std::time::Duration;

/// Default number of slots of a ring. It suffices for the commands that producers push at full rate during one round
/// trip of the tail.
pub const DEFAULT_SLOTS: usize = 16384;
/// Maximum number of slots of a ring. More slots have no benefit, because each proxy thread limits the commands in
/// flight.
pub const MAX_SLOTS: usize = 1 << 20;

/// Kind of memory that GPU and CPU share.
///
/// The first paragraph of each variant's documentation is its `--help` text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RingPlace {
    /// Pinned host memory
    Pinned,
    /// Managed memory, whose pages migrate to the processor that accesses them
    Managed,
    /// GPU memory that the CPU reads over PCIe (GDRCopy); the words written by the CPU are pinned
    Gdr,
}

/// Memory that GPU and CPU share, possibly at different addresses.
#[derive(Debug)]
pub enum HostVisible {
    /// Memory with the same address for both.
    Buffer(Buffer),
    /// GPU memory with a mapping for the CPU.
    Mapped(MappedBuffer),
}

impl HostVisible {
    /// Allocates zeroed memory of the kind `place`.
    ///
    /// # Errors
    /// Returns an error if this kind of memory is not available here, or not large enough.
    pub fn new(device: &Device, place: RingPlace, bytes: usize) -> Result<HostVisible, DeviceError> {
        match place {
            RingPlace::Pinned => device.allocate(MemoryLocation::Host, bytes).map(HostVisible::Buffer),
            RingPlace::Managed => device.allocate(MemoryLocation::Managed, bytes).map(HostVisible::Buffer),
            RingPlace::Gdr => device.mapped(bytes).map(HostVisible::Mapped),
        }
    }

    /// Returns the address of the first byte for kernels.
    pub fn device_pointer<T>(&self) -> *const T {
        match self {
            HostVisible::Buffer(buffer) => buffer.pointer(),
            HostVisible::Mapped(buffer) => buffer.device_address() as *const T,
        }
    }

    /// Returns the address of the first byte for the CPU.
    pub fn host_pointer<T>(&self) -> *const T {
        match self {
            HostVisible::Buffer(buffer) => buffer.pointer(),
            HostVisible::Mapped(buffer) => buffer.host_address() as *const T,
        }
    }

    /// Returns whether the CPU's stores may be delayed until [`flush_stores`](ginlab_cuda::flush_stores).
    pub fn holds_stores_back(&self) -> bool {
        matches!(self, HostVisible::Mapped(_))
    }
}

/// Memory of a ring. Initially, it is zeroed, which represents an empty ring with watermark 0.
#[derive(Debug)]
pub struct RingMemory {
    slots: HostVisible,
    host: Buffer,
    device: Buffer,
    log2_capacity: u32,
    log2_slot_words: u32,
    timeout: Duration,
}

/// Checks that `slots` is a power of two of at most [`MAX_SLOTS`].
///
/// # Errors
/// Returns [`DeviceError::Refused`] otherwise, with the permitted range.
pub fn check_slots(slots: usize) -> Result<(), DeviceError> {
    if slots.is_power_of_two() && slots <= MAX_SLOTS {
        return Ok(());
    }
    Err(DeviceError::Refused(format!(
        "invalid number of ring slots {slots}: must be a power of two from 1 to {MAX_SLOTS}"
    )))
}

impl RingMemory {
    /// Allocates a ring of commands in pinned memory. `slots` must be a power of two.
    ///
    /// # Errors
    /// Returns an error for an invalid number of slots, or if there is not enough memory.
    pub fn new(device: &Device, slots: usize, timeout: Duration) -> Result<RingMemory, DeviceError> {
        RingMemory::of(device, RingPlace::Pinned, slots, LOG2_COMMAND_WORDS, timeout)
    }

    /// Allocates a ring whose slots have 2^`log2_slot_words` words, in memory of the kind `place`. The few words that
    /// only the CPU writes are in managed memory for [`RingPlace::Managed`] and pinned otherwise: the mapping of
    /// GDRCopy does not keep the CPU's stores in order.
    ///
    /// # Errors
    /// Returns the same errors as [`new`](RingMemory::new), and an error if this kind of memory is not available here.
    pub fn of(
        device: &Device,
        place: RingPlace,
        slots: usize,
        log2_slot_words: u32,
        timeout: Duration,
    ) -> Result<RingMemory, DeviceError> {
        check_slots(slots)?;
        let words = if place == RingPlace::Managed { MemoryLocation::Managed } else { MemoryLocation::Host };
        Ok(RingMemory {
            slots: HostVisible::new(device, place, (slots * size_of::<u64>()) << log2_slot_words)?,
            host: device.allocate(words, size_of::<HostWords>())?,
            device: device.allocate(MemoryLocation::Device, size_of::<DeviceWords>())?,
            log2_capacity: slots.trailing_zeros(),
            log2_slot_words,
            timeout,
        })
    }

    /// Returns the ring as passed to kernels, valid for the lifetime of this memory.
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

    /// Returns the state of the ring as one line, for messages about waits that failed.
    pub fn state(&self) -> String {
        let mut words = [0u64; 2];
        // SAFETY: the buffer is zeroed and has the size and alignment of `HostWords`; the proxy writes it only by
        // atomic stores.
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

    /// Ends every wait of the kernels with this status, unless there is one already. The thread that served the ring
    /// must have exited.
    pub(super) fn end(&self, stop: Status) {
        // SAFETY: the buffer has the size and alignment of `HostWords`, which is accessed only by atomic operations.
        let host = unsafe { &*self.host.pointer::<HostWords>() };
        if load_acquire_sys_v2_u64(&host.completion.0).1 == 0 {
            // Release: pairs with the acquire of a kernel that waits, as in `Consumer::publish_status`.
            store_release_host_u64(&host.completion.0.1, stop.0);
        }
    }

    /// Returns the consumer of the ring, for the CPU.
    ///
    /// # Safety
    /// The slots must have at least `WORDS` words. The consumer must be taken only once, and must not be used after
    /// this memory is freed.
    pub unsafe fn consumer<const WORDS: usize>(&self) -> Consumer<WORDS> {
        let ring = Ring { slots: self.slots.host_pointer(), ..self.ring() };
        // SAFETY: the caller upholds the contract of `Consumer::new`, which is that of this function.
        unsafe { Consumer::new(&ring) }
    }
}

/// Several rings as a kernel argument: an array in device memory.
#[derive(Debug)]
pub struct RingTable {
    table: Buffer,
    count: u32,
}

impl RingTable {
    /// Copies the descriptions of `rings` to device memory.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn new(device: &Device, rings: &[RingMemory]) -> Result<RingTable, DeviceError> {
        let descriptions: Vec<Ring> = rings.iter().map(RingMemory::ring).collect();
        let table = device.allocate(MemoryLocation::Device, size_of_val(descriptions.as_slice()))?;
        table.write(0, &descriptions)?;
        Ok(RingTable { table, count: descriptions.len() as u32 })
    }

    /// Returns the address of the first ring's description, for kernels.
    pub fn pointer(&self) -> *const Ring {
        self.table.pointer()
    }

    /// Returns the number of rings.
    pub fn count(&self) -> u32 {
        self.count
    }
}

/// Answers the flag of a ping-pong if it is newer than the last answer. Returns whether it has answered.
#[inline(always)]
pub(crate) fn answer_flag(words: &HostWords, answered: &mut u64) -> bool {
    let asked = load_acquire_host_u64(&words.tail.0);
    if asked == *answered {
        return false;
    }
    // Uses release order, which pairs with the acquire of the answer. A thread that acquires the answer observes all
    // device writes that precede its flag, because this thread acquired the flag.
    store_release_host_u64(&words.completion.0.0, asked);
    *answered = asked;
    true
}
