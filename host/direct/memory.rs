//! The memory of a queue.

use cuda_std::memory::{Doorbell, Word};
use efa_queue::completion::Sent;
use efa_queue::{Operation, request, rules};
use ginlab_cuda::{Buffer, Device, DeviceError, Place};
use kernels::direct::{Failure, NO_TURN, Queue, QueueWords, turn_at};
use std::mem::offset_of;
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
    device: DeviceSide,
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
        words.write(0, &[u64::from(rules::doorbell(options.counter))])?;
        lap_before(&completions, options)?;
        let mine = DeviceSide::new(device, options.depth, options.counter)?;
        let host_word = |offset: usize| (words.address() + offset as u64) as *const Word;
        let queue = Queue {
            slots: slots.pointer(),
            doorbell: words.pointer::<Doorbell>(),
            completions: completions.pointer(),
            counter: if options.by_counter { host_word(PAGE) } else { std::ptr::null() },
            words: mine.words(),
            turns: mine.turns(),
            done: mine.done(),
            abort: host_word(2 * PAGE),
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
        self.device.failure()
    }
}

/// Writes the completions that a queue which goes on from its counter would have behind it. Memory that is zero has the phase of every second lap:
/// whoever polls would take it for completions of id 0.
fn lap_before(completions: &Buffer, options: QueueOptions) -> Result<(), DeviceError> {
    for number in options.counter.saturating_sub(u64::from(options.completions))..options.counter {
        let sent = Sent { id: number & 0xffff, status: 0, operation: Operation::Write, pair: 0 };
        let words = sent.words(rules::completion_phase(number, options.completions));
        let index = rules::slot(number, options.completions) as usize;
        completions.write(index * options.entry_bytes as usize, &words)?;
    }
    Ok(())
}

/// What the device's threads share of a queue, in device memory.
#[derive(Debug)]
pub struct DeviceSide {
    memory: Buffer,
    depth: usize,
}

impl DeviceSide {
    /// Of a queue of so many slots. A queue that has had so many requests goes on from there.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(device: &Device, depth: u32, begun: u64) -> Result<DeviceSide, DeviceError> {
        let depth = depth as usize;
        let memory = device.allocate(Place::Device, size_of::<QueueWords>() + 2 * depth * 8)?;
        for offset in [offset_of!(QueueWords, reserved), offset_of!(QueueWords, rung), offset_of!(QueueWords, ended)] {
            memory.write(offset, &[begun])?;
        }
        // Whoever writes the first request rings for it.
        let first = rules::slot(begun, depth as u32) as usize;
        memory.write(size_of::<QueueWords>() + first * 8, &[turn_at(begun)])?;
        Ok(DeviceSide { memory, depth })
    }

    /// For [`Queue::words`].
    pub fn words(&self) -> *const QueueWords {
        self.memory.pointer()
    }

    /// For [`Queue::turns`].
    pub fn turns(&self) -> *const Word {
        (self.memory.address() + size_of::<QueueWords>() as u64) as *const Word
    }

    /// For [`Queue::done`].
    pub fn done(&self) -> *const Word {
        (self.memory.address() + (size_of::<QueueWords>() + self.depth * 8) as u64) as *const Word
    }

    /// What went wrong first.
    ///
    /// # Errors
    /// The driver's.
    pub fn failure(&self) -> Result<Option<Failure>, DeviceError> {
        let word = self.word(offset_of!(QueueWords, ended) + 8)?;
        Ok((word != 0).then_some(Failure(word)))
    }

    /// Requests that have been rung for.
    ///
    /// # Errors
    /// The driver's.
    pub fn rung(&self) -> Result<u64, DeviceError> {
        self.word(offset_of!(QueueWords, rung))
    }

    fn word(&self, offset: usize) -> Result<u64, DeviceError> {
        let mut word = [0u64];
        self.memory.read(offset, &mut word)?;
        Ok(word[0])
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
