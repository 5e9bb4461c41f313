//! The memory of a queue.

use cuda_std::memory::{Doorbell, Word};
use efa_queue::{request, rules};
use ginlab_cuda::{Buffer, Device, DeviceError, Place};
use kernels::direct::{Failure, Queue, QueueWords};
use std::time::Duration;

/// How a queue is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Slots of the send queue: a power of two.
    pub depth: u32,
    /// Entries of the completion queue: a power of two, at least the depth.
    pub completions: u32,
    /// Bytes of an entry: 16 or 32.
    pub entry_bytes: u32,
    /// Requests that may be written and not rung.
    pub max_batch: u32,
    /// Whether kernels wait by the card's counter, not by the completion queue.
    pub by_counter: bool,
    /// What the counter stands at, at first: for tests of its end.
    pub counter: u64,
    /// Longest wait of a kernel in which nothing ends.
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
    /// Refuses what no card has.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] with what is allowed.
    pub fn check(&self) -> Result<(), DeviceError> {
        let refused = |text: String| Err(DeviceError::Refused(text));
        let depth = self.depth;
        if !depth.is_power_of_two() || !(2..=rules::DEEPEST).contains(&depth) {
            return refused(format!("a queue of {depth} slots: a power of two from 2 to {}", rules::DEEPEST));
        }
        if !self.completions.is_power_of_two() || self.completions < depth || self.completions > rules::DEEPEST {
            return refused(format!(
                "{} completions for {depth} slots: a power of two from the slots to {}",
                self.completions,
                rules::DEEPEST
            ));
        }
        if !matches!(self.entry_bytes, 16 | 32) {
            return refused(format!("completions of {} bytes: 16 or 32", self.entry_bytes));
        }
        if !(1..depth).contains(&self.max_batch) {
            return refused(format!("batches of {}: 1 to {}, below the slots", self.max_batch, depth - 1));
        }
        Ok(())
    }
}

/// A queue: what the card has of it in host memory, and what the device's threads share.
#[derive(Debug)]
pub struct QueueMemory {
    slots: Buffer,
    completions: Buffer,
    /// Doorbell, counter and the host's word, each on a page of its own: the card stores one, the device another.
    words: Buffer,
    device: Buffer,
    queue: Queue,
    options: QueueOptions,
}

const PAGE: usize = 4096;

impl QueueMemory {
    /// An empty queue.
    ///
    /// # Errors
    /// For options that no card has, or when memory is short.
    pub fn new(device: &Device, options: QueueOptions) -> Result<QueueMemory, DeviceError> {
        options.check()?;
        let depth = options.depth as usize;
        let slots = device.allocate(Place::Host, depth * request::WORDS * 8)?;
        let completions = device.allocate(Place::Host, (options.completions * options.entry_bytes) as usize)?;
        let words = device.allocate(Place::Host, 3 * PAGE)?;
        words.write(PAGE, &[options.counter & rules::COUNTER_MASK])?;
        let shared = size_of::<QueueWords>();
        let mine = device.allocate(Place::Device, shared + 2 * depth * 8)?;
        // A counter that does not begin at 0 is as after so many requests: numbers go on from there.
        if options.counter != 0 {
            words.write(0, &[u64::from(rules::doorbell(options.counter))])?;
            let begun = |offset: usize| mine.write(offset, &[options.counter]);
            begun(std::mem::offset_of!(QueueWords, reserved))?;
            begun(std::mem::offset_of!(QueueWords, marks))?;
            begun(std::mem::offset_of!(QueueWords, marks) + 8)?;
            begun(std::mem::offset_of!(QueueWords, ended))?;
        }
        let device_word = |offset: usize| (mine.address() + offset as u64) as *const Word;
        let host_word = |offset: usize| (words.address() + offset as u64) as *const Word;
        let queue = Queue {
            slots: slots.pointer(),
            doorbell: words.pointer::<Doorbell>(),
            completions: completions.pointer(),
            counter: if options.by_counter { host_word(PAGE) } else { std::ptr::null() },
            words: mine.pointer(),
            written: device_word(shared),
            done: device_word(shared + depth * 8),
            abort: host_word(2 * PAGE),
            timeout_ns: options.timeout.as_nanos() as u64,
            depth: options.depth,
            max_batch: options.max_batch,
            completion_entries: options.completions,
            completion_words: options.entry_bytes / 8,
            free_below: options.counter + u64::from(options.depth),
        };
        Ok(QueueMemory { slots, completions, words, device: mine, queue, options })
    }

    /// As kernels see it.
    pub fn queue(&self) -> Queue {
        self.queue
    }

    /// How it was made.
    pub fn options(&self) -> QueueOptions {
        self.options
    }

    /// The words of a slot, for the card.
    pub(crate) fn slot(&self, number: u64) -> &[Word; request::WORDS] {
        let index = rules::slot(number, self.options.depth) as usize;
        // SAFETY: so many slots, each of so many words, which all parties use by atomic accesses.
        unsafe { &*self.slots.pointer::<[Word; request::WORDS]>().add(index) }
    }

    /// The words of a completion, for the card.
    pub(crate) fn completion(&self, number: u64) -> &[Word] {
        let words = self.options.entry_bytes as usize / 8;
        let index = rules::slot(number, self.options.completions) as usize * words;
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.completions.pointer::<Word>().add(index), words) }
    }

    /// For the card.
    pub(crate) fn doorbell(&self) -> &Doorbell {
        // SAFETY: as above.
        unsafe { &*self.words.pointer() }
    }

    /// For the card.
    pub(crate) fn counter(&self) -> &Word {
        // SAFETY: as above.
        unsafe { &*self.words.pointer::<u8>().add(PAGE).cast() }
    }

    /// Ends every wait of the kernels with this reason ([`kernels::ring::Status`]).
    ///
    /// # Errors
    /// The driver's.
    pub fn abort(&self, reason: u64) -> Result<(), DeviceError> {
        self.words.write(2 * PAGE, &[reason])
    }

    /// What went wrong first, once no kernel runs.
    ///
    /// # Errors
    /// The driver's.
    pub fn failure(&self) -> Result<Option<Failure>, DeviceError> {
        let mut word = [0u64];
        self.device.read(std::mem::offset_of!(QueueWords, ended) + 8, &mut word)?;
        Ok((word[0] != 0).then_some(Failure(word[0])))
    }

    /// Requests that were reserved, rung for, and ended, once no kernel runs.
    ///
    /// # Errors
    /// The driver's.
    pub fn counts(&self) -> Result<[u64; 3], DeviceError> {
        let word = |offset: usize| {
            let mut word = [0u64];
            self.device.read(offset, &mut word).map(|()| word[0])
        };
        Ok([
            word(std::mem::offset_of!(QueueWords, reserved))?,
            word(std::mem::offset_of!(QueueWords, marks) + 8)?,
            word(std::mem::offset_of!(QueueWords, ended))?,
        ])
    }
}

/// Queues as a kernel's argument.
#[derive(Debug)]
pub struct QueueTable(Buffer);

impl QueueTable {
    /// Puts the queues' descriptions into device memory.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(device: &Device, queues: &[QueueMemory]) -> Result<QueueTable, DeviceError> {
        let list: Vec<Queue> = queues.iter().map(QueueMemory::queue).collect();
        let table = device.allocate(Place::Device, size_of_val(&list[..]))?;
        table.write(0, &list)?;
        Ok(QueueTable(table))
    }

    /// Address of the descriptions, for kernels.
    pub fn pointer(&self) -> *const Queue {
        self.0.pointer()
    }
}
