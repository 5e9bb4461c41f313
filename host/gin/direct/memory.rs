//! Memory of a queue, in host and device memory.

use cuda_std::memory::{Doorbell, Word, load_acquire_host_u32, load_acquire_host_u64};
use efa_queue::completion::Sent;
use efa_queue::intake::SendQueue;
use efa_queue::{EfaOperation, request, rules};
use ginlab_cuda::{Buffer, Device, DeviceError, MemoryLocation};
use kernels::direct::{NO_TURN, NicQueue, NicQueueWords, QueueFailure, turn_at};
use std::mem::offset_of;
use std::time::Duration;

/// Options of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Number of slots of the send queue: a power of two.
    pub depth: u32,
    /// Number of entries of the completion queue: a power of two that is not less than the depth.
    pub completions: u32,
    /// Size of a completion entry in bytes: 16 or 32.
    pub entry_bytes: u32,
    /// Maximum number of requests that may be written before the doorbell is rung.
    pub max_batch: u32,
    /// Whether kernels wait for the NIC's counter instead of the completion queue.
    pub by_counter: bool,
    /// Initial value of the counter, for tests of its overflow.
    pub counter: u64,
    /// Maximum time that a kernel waits while nothing completes.
    pub timeout: Duration,
}

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions {
            depth: 4096,
            completions: 4096,
            entry_bytes: 16,
            max_batch: 64,
            by_counter: false,
            counter: 0,
            timeout: Duration::from_secs(30),
        }
    }
}

impl QueueOptions {
    /// Checks that a NIC could provide a queue with these options.
    ///
    /// # Errors
    /// Returns [`DeviceError::Refused`] with the limits if it could not.
    pub fn check(&self) -> Result<(), DeviceError> {
        let refused = |text: String| Err(DeviceError::Refused(text));
        let depth = self.depth;
        if !depth.is_power_of_two() || !(2..=rules::DEEPEST).contains(&depth) {
            return refused(format!(
                "invalid queue depth {depth}: must be a power of two from 2 to {}",
                rules::DEEPEST
            ));
        }
        if !self.completions.is_power_of_two() || self.completions < depth || self.completions > rules::DEEPEST {
            return refused(format!(
                "invalid number of completions {} for {depth} slots: must be a power of two from the number of slots \
                 to {}",
                self.completions,
                rules::DEEPEST
            ));
        }
        if !matches!(self.entry_bytes, 16 | 32) {
            return refused(format!("invalid completion size {}: must be 16 or 32 bytes", self.entry_bytes));
        }
        if !(1..depth).contains(&self.max_batch) {
            return refused(format!(
                "invalid batch size {}: must be from 1 to {}, below the number of slots",
                self.max_batch,
                depth - 1
            ));
        }
        Ok(())
    }
}

/// A queue: the NIC's part in host memory, and the state that the device's threads share.
#[derive(Debug)]
pub struct QueueMemory {
    slots: Buffer,
    completions: Buffer,
    /// Doorbell, counter and abort word, each on a separate page because they have different writers.
    words: Buffer,
    device: DeviceSide,
    queue: NicQueue,
    options: QueueOptions,
}

const PAGE: usize = 4096;

impl QueueMemory {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// Returns an error if the options are invalid, or if there is not enough memory.
    pub fn new(device: &Device, options: QueueOptions) -> Result<QueueMemory, DeviceError> {
        options.check()?;
        let depth = options.depth as usize;
        let slots = device.allocate(MemoryLocation::Host, depth * request::WORDS * 8)?;
        let completions =
            device.allocate(MemoryLocation::Host, (options.completions * options.entry_bytes) as usize)?;
        let words = device.allocate(MemoryLocation::Host, 3 * PAGE)?;
        words.write(PAGE, &[options.counter & rules::COUNTER_MASK])?;
        words.write(0, &[u64::from(rules::doorbell(options.counter))])?;
        lap_before(&completions, options)?;
        let mine = DeviceSide::new(device, options.depth, options.counter)?;
        let host_word = |offset: usize| (words.address() + offset as u64) as *const Word;
        let queue = NicQueue {
            slots: slots.pointer(),
            doorbell: words.pointer::<Doorbell>(),
            completions: completions.pointer(),
            counter: if options.by_counter { host_word(PAGE) } else { std::ptr::null() },
            words: mine.words(),
            turns: mine.turns(),
            done: mine.done(),
            abort: host_word(2 * PAGE).cast(),
            timeout_ns: options.timeout.as_nanos() as u64,
            depth: options.depth,
            max_batch: options.max_batch,
            completion_entries: options.completions,
            completion_words: options.entry_bytes / 8,
            registers: 0,
            free_below: options.counter + u64::from(options.depth),
            ordered: options.counter,
            turn: NO_TURN,
        };
        Ok(QueueMemory { slots, completions, words, device: mine, queue, options })
    }

    /// Returns the queue as the kernel argument.
    pub fn queue(&self) -> NicQueue {
        self.queue
    }

    /// Returns the options with which the queue was created.
    pub fn options(&self) -> QueueOptions {
        self.options
    }

    /// Returns the words of the slot of request `number`, for the NIC.
    pub(crate) fn slot(&self, number: u64) -> &[Word; request::WORDS] {
        let index = rules::slot(number, self.options.depth) as usize;
        // SAFETY: the buffer has `depth` slots of this type, and all parties access them only atomically.
        unsafe { &*self.slots.pointer::<[Word; request::WORDS]>().add(index) }
    }

    /// Returns the words of the entry of completion `number`, for the NIC.
    pub(crate) fn completion(&self, number: u64) -> &[Word] {
        let words = self.options.entry_bytes as usize / 8;
        let index = rules::slot(number, self.options.completions) as usize * words;
        // SAFETY: the buffer has `completions` entries of `words` words, and all parties access them only atomically.
        unsafe { std::slice::from_raw_parts(self.completions.pointer::<Word>().add(index), words) }
    }

    /// Returns the counter, for the NIC.
    pub(crate) fn counter(&self) -> &Word {
        // SAFETY: the counter is at the start of the second page, and all parties access it only atomically.
        unsafe { &*self.words.pointer::<u8>().add(PAGE).cast() }
    }

    /// Aborts every wait of the kernels with this reason ([`kernels::ring::Status`]).
    ///
    /// # Errors
    /// Returns the driver's error if the copy fails.
    pub fn abort(&self, reason: u64) -> Result<(), DeviceError> {
        self.words.write(2 * PAGE, &[reason])
    }

    /// Returns the first error of the queue. No kernel may be running.
    ///
    /// # Errors
    /// Returns the driver's error if the copy fails.
    pub fn failure(&self) -> Result<Option<QueueFailure>, DeviceError> {
        self.device.failure()
    }
}

impl SendQueue for QueueMemory {
    #[inline]
    fn doorbell(&self) -> u32 {
        // SAFETY: the buffer starts with the doorbell, and all parties access it only atomically.
        load_acquire_host_u32(unsafe { &*self.words.pointer::<Doorbell>() })
    }

    #[inline]
    fn first_word(&self, number: u64) -> u64 {
        load_acquire_host_u64(&self.slot(number)[0])
    }
}

/// Writes the completions of the previous lap for a queue that does not start at 0. Zeroed memory has the phase of
/// every second lap, so that kernels would mistake it for completions with ID 0.
fn lap_before(completions: &Buffer, options: QueueOptions) -> Result<(), DeviceError> {
    for number in options.counter.saturating_sub(u64::from(options.completions))..options.counter {
        let sent = Sent { id: number & 0xffff, status: 0, operation: EfaOperation::Write, pair: 0 };
        let words = sent.words(rules::completion_phase(number, options.completions));
        let index = rules::slot(number, options.completions) as usize;
        completions.write(index * options.entry_bytes as usize, &words)?;
    }
    Ok(())
}

/// State of a queue that the device's threads share, in device memory.
#[derive(Debug)]
pub struct DeviceSide {
    memory: Buffer,
    depth: usize,
}

impl DeviceSide {
    /// Creates the state of a queue of `depth` slots that has already processed `begun` requests.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn new(device: &Device, depth: u32, begun: u64) -> Result<DeviceSide, DeviceError> {
        let depth = depth as usize;
        let memory = device.allocate(MemoryLocation::Device, size_of::<NicQueueWords>() + 2 * depth * 8)?;
        for offset in
            [offset_of!(NicQueueWords, reserved), offset_of!(NicQueueWords, rung), offset_of!(NicQueueWords, ended)]
        {
            memory.write(offset, &[begun])?;
        }
        // The thread that writes the first request rings the doorbell for it.
        let first = rules::slot(begun, depth as u32) as usize;
        memory.write(size_of::<NicQueueWords>() + first * 8, &[turn_at(begun)])?;
        Ok(DeviceSide { memory, depth })
    }

    /// Returns the value of [`NicQueue::words`].
    pub fn words(&self) -> *const NicQueueWords {
        self.memory.pointer()
    }

    /// Returns the value of [`NicQueue::turns`].
    pub fn turns(&self) -> *const Word {
        (self.memory.address() + size_of::<NicQueueWords>() as u64) as *const Word
    }

    /// Returns the value of [`NicQueue::done`].
    pub fn done(&self) -> *const Word {
        (self.memory.address() + (size_of::<NicQueueWords>() + self.depth * 8) as u64) as *const Word
    }

    /// Returns the first error of the queue.
    ///
    /// # Errors
    /// Returns the driver's error if the copy fails.
    pub fn failure(&self) -> Result<Option<QueueFailure>, DeviceError> {
        let word = self.word(offset_of!(NicQueueWords, ended) + 8)?;
        Ok((word != 0).then_some(QueueFailure(word)))
    }

    /// Returns the number of requests for which the doorbell was rung.
    ///
    /// # Errors
    /// Returns the driver's error if the copy fails.
    pub fn rung(&self) -> Result<u64, DeviceError> {
        self.word(offset_of!(NicQueueWords, rung))
    }

    fn word(&self, offset: usize) -> Result<u64, DeviceError> {
        let mut word = [0u64];
        self.memory.read(offset, &mut word)?;
        Ok(word[0])
    }
}

/// A table of queues, as a kernel argument.
#[derive(Debug)]
pub struct QueueTable(Buffer);

impl QueueTable {
    /// Copies the queues' descriptions into device memory.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn new(device: &Device, queues: &[QueueMemory]) -> Result<QueueTable, DeviceError> {
        let list: Vec<NicQueue> = queues.iter().map(QueueMemory::queue).collect();
        let table = device.allocate(MemoryLocation::Device, size_of_val(&list[..]))?;
        table.write(0, &list)?;
        Ok(QueueTable(table))
    }

    /// Returns the address of the descriptions, for kernels.
    pub fn pointer(&self) -> *const NicQueue {
        self.0.pointer()
    }
}
