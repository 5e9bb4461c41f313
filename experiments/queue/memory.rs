//! Queues between a grid and CPU threads, studied in isolation: the memory of each algorithm, and consumers that check
//! the elements instead of sending them over a network.

use crossbeam_utils::CachePadded;
use ginlab::cuda::{Buffer, Device, DeviceError, MemoryLocation, flush_stores};
use ginlab::ring::{HostVisible, RingMemory, RingPlace, check_slots};
use kernels::queue::vyukov::{Vyukov, VyukovConsumer, VyukovWords};
use kernels::queue::{CONTENT, element_word};
use kernels::ring::consumer::Consumer;
use kernels::ring::{Ring, Status};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of elements between two publications of the consumer's position.
const BATCH: u64 = 64;

/// Memory of one queue.
#[derive(Debug)]
pub enum AlgorithmMemory {
    /// A ring.
    Ring(RingMemory),
    /// A queue after Vyukov.
    Vyukov(VyukovMemory),
}

/// Memory of a queue after Vyukov. All of it is shared.
#[derive(Debug)]
pub struct VyukovMemory {
    cells: HostVisible,
    words: HostVisible,
    queue: Vyukov,
}

impl VyukovMemory {
    /// Allocates an empty queue with `slots` cells for elements of `words` words. `slots` must be a power of two and at
    /// least 2.
    ///
    /// # Errors
    /// Returns an error if `slots` is invalid, or if there is not enough memory.
    pub fn new(
        device: &Device,
        place: RingPlace,
        slots: usize,
        words: u32,
        timeout: Duration,
    ) -> Result<VyukovMemory, DeviceError> {
        check_slots(slots)?;
        if slots < 2 {
            return Err(DeviceError::Refused(
                "one slot: Vyukov's queue cannot distinguish a full cell from a free one; use at least two".into(),
            ));
        }
        let cell_words = words + 1;
        let cells = HostVisible::new(device, place, slots * cell_words as usize * size_of::<u64>())?;
        let start = cells.host_pointer::<u64>().cast_mut();
        for cell in 0..slots {
            // SAFETY: the allocation has `slots` cells of `cell_words` words, and no other code uses it yet.
            unsafe { start.add(cell * cell_words as usize).write_volatile(cell as u64) };
        }
        if cells.holds_stores_back() {
            flush_stores();
        }
        let words = HostVisible::new(device, place, size_of::<VyukovWords>())?;
        let queue = Vyukov {
            cells: cells.device_pointer(),
            words: words.device_pointer(),
            log2_capacity: slots.trailing_zeros(),
            cell_words,
            timeout_ns: timeout.as_nanos() as u64,
        };
        Ok(VyukovMemory { cells, words, queue })
    }
}

/// Queues of one kind, as a kernel argument.
#[derive(Debug)]
pub struct KernelQueues {
    memories: Vec<AlgorithmMemory>,
    table: Buffer,
}

impl KernelQueues {
    /// Copies the queues' descriptions into device memory.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn new(device: &Device, memories: Vec<AlgorithmMemory>) -> Result<KernelQueues, DeviceError> {
        let most = size_of::<Ring>().max(size_of::<Vyukov>());
        let table = device.allocate(MemoryLocation::Device, memories.len() * most)?;
        let mut rings = Vec::new();
        let mut vyukovs = Vec::new();
        for memory in &memories {
            match memory {
                AlgorithmMemory::Ring(memory) => rings.push(memory.ring()),
                AlgorithmMemory::Vyukov(memory) => vyukovs.push(memory.queue),
            }
        }
        table.write(0, &rings)?;
        table.write(0, &vyukovs)?;
        Ok(KernelQueues { memories, table })
    }

    /// Returns the address of the descriptions, for kernels.
    pub fn pointer(&self) -> *const u8 {
        self.table.pointer()
    }

    /// Returns the consumers of the queues.
    ///
    /// # Safety
    /// The elements must have `WORDS` words. Must be called at most once, and the consumers must not be used after
    /// these queues are dropped.
    pub unsafe fn consumers<const WORDS: usize>(&self) -> Vec<CachePadded<QueueConsumer<WORDS>>> {
        let end = |memory: &AlgorithmMemory| match memory {
            // SAFETY: the caller guarantees the element size, a single consumer, and that the queues outlive it.
            AlgorithmMemory::Ring(memory) => QueueConsumer::Ring(unsafe { memory.consumer() }),
            AlgorithmMemory::Vyukov(memory) => {
                let (cells, words) = (memory.cells.host_pointer(), memory.words.host_pointer());
                // SAFETY: the caller guarantees the element size, a single consumer, and that the queues outlive it.
                let consumer = unsafe { VyukovConsumer::new(&Vyukov { cells, words, ..memory.queue }) };
                QueueConsumer::Vyukov { consumer, flushes: memory.cells.holds_stores_back() }
            }
        };
        self.memories.iter().map(end).map(CachePadded::new).collect()
    }

    /// Describes the state of the queues, for messages about failed waits.
    pub fn state(&self) -> String {
        let state = |memory: &AlgorithmMemory| match memory {
            AlgorithmMemory::Ring(memory) => memory.state(),
            AlgorithmMemory::Vyukov(_) => "Vyukov's queue".into(),
        };
        self.memories.iter().map(state).collect::<Vec<_>>().join("; ")
    }
}

/// Consumer of a queue. Stored with padding, because each thread writes to its consumer with every batch.
#[derive(Debug)]
pub enum QueueConsumer<const WORDS: usize> {
    /// Consumer of a ring.
    Ring(Consumer<WORDS>),
    /// Consumer of a Vyukov queue.
    Vyukov {
        /// The consumer.
        consumer: VyukovConsumer<WORDS>,
        /// Whether freed cells are stored to write-combining memory and need a flush.
        flushes: bool,
    },
}

impl<const WORDS: usize> QueueConsumer<WORDS> {
    #[inline(always)]
    fn pop_each(&mut self, most: u64, each: impl FnMut([u64; WORDS])) -> u64 {
        match self {
            QueueConsumer::Ring(consumer) => consumer.pop_each(most, each),
            QueueConsumer::Vyukov { consumer, .. } => consumer.pop_each(most, each),
        }
    }

    /// Publishes a batch. Always publishes the watermark, because producers may wait for it. Publishes the freed slots
    /// only once there are `step` of them.
    #[inline(always)]
    fn publish(&mut self, step: u64) {
        match self {
            QueueConsumer::Ring(consumer) => {
                consumer.publish_watermark(consumer.cursor());
                if consumer.unpublished() >= step {
                    consumer.publish_tail();
                }
            }
            QueueConsumer::Vyukov { flushes: true, .. } => flush_stores(),
            QueueConsumer::Vyukov { .. } => {}
        }
    }

    /// Aborts every wait of the kernels.
    pub fn stop(&self) {
        match self {
            QueueConsumer::Ring(consumer) => consumer.publish_status(Status::STOPPED),
            QueueConsumer::Vyukov { consumer, flushes } => {
                consumer.publish_status(Status::STOPPED);
                if *flushes {
                    flush_stores();
                }
            }
        }
    }

    /// Returns the duration of a poll of an empty queue, in nanoseconds.
    pub fn empty_poll_ns(&mut self) -> f64 {
        const LOOKS: u32 = 200_000;
        let started = Instant::now();
        for _ in 0..LOOKS {
            std::hint::black_box(self.pop_each(1, drop));
        }
        started.elapsed().as_nanos() as f64 / f64::from(LOOKS)
    }
}

/// Options of a consumer.
#[derive(Clone, Debug)]
pub struct ConsumerOptions {
    /// Number of elements to expect from each queue.
    pub expected: Vec<u64>,
    /// Number of slots of a queue.
    pub slots: u64,
    /// Number of producers of the grid if each element is checked against what its producer must have pushed; `None` to
    /// compute only sums.
    pub check: Option<u32>,
    /// Number of elements after which the consumer pauses, and the duration; `None` for no pauses.
    pub pause: Option<(u64, Duration)>,
    /// Whether the consumer yields while there are no elements.
    pub yields: bool,
}

/// Observations of a consumer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Number of elements.
    pub count: u64,
    /// Sum of all words of the elements, modulo 2^63.
    pub sum: u64,
    /// Number of elements that were torn or that were not their producer's next element. 0 if elements are not checked.
    pub wrong: u64,
    /// Number of polls without elements.
    pub empty: u64,
}

/// Pops from the queues round-robin until all expected elements have arrived. If `stop` is set earlier, aborts the
/// kernels' waits and returns.
pub fn consume<const WORDS: usize>(
    consumers: &mut [CachePadded<QueueConsumer<WORDS>>],
    duty: &ConsumerOptions,
    stop: &AtomicBool,
) -> Taken {
    let mut taken = Taken::default();
    let all: u64 = duty.expected.iter().sum();
    let mut next = vec![0u32; duty.check.unwrap_or(0) as usize];
    let mut until_pause = duty.pause.map_or(u64::MAX, |(every, _)| every);
    let mut idle = false;
    while taken.count < all {
        let before = taken.count;
        for consumer in consumers.iter_mut() {
            // Keeps one sum per word to make the additions independent, because a consumer of commands saturates its
            // core.
            let mut sums = [0u64; WORDS];
            let mut add = |words: &[u64; WORDS]| {
                sums.iter_mut().zip(words).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
            };
            let batch = if duty.check.is_some() {
                consumer.pop_each(BATCH, |words| {
                    add(&words);
                    taken.wrong += u64::from(!is_next(&words, &mut next));
                })
            } else {
                consumer.pop_each(BATCH, |words| add(&words))
            };
            if batch > 0 {
                taken.sum = sums.iter().fold(taken.sum, |all, sum| all.wrapping_add(*sum)) & CONTENT;
                taken.count += batch;
                consumer.publish(BATCH.min(duty.slots / 4));
            }
        }
        if let Some((every, pause)) = duty.pause
            && taken.count >= until_pause
        {
            until_pause = taken.count + every;
            let end = Instant::now() + pause;
            while Instant::now() < end {
                std::hint::spin_loop();
            }
        }
        if taken.count == before {
            taken.empty += 1;
            if !idle {
                idle = true;
                consumers.iter_mut().for_each(|consumer| consumer.publish(0));
            }
            if stop.load(Ordering::Relaxed) {
                consumers.iter().for_each(|consumer| consumer.stop());
                break;
            }
            // A consumer with its own core executes no pause instruction, which would take as long as the processing of
            // 30 elements.
            if duty.yields {
                std::thread::yield_now();
            }
        } else {
            idle = false;
        }
    }
    taken
}

/// Returns whether the element is complete and the next of its producer.
fn is_next<const WORDS: usize>(words: &[u64; WORDS], next: &mut [u32]) -> bool {
    let (producer, number) = ((words[0] >> 32) as usize, words[0] as u32);
    let whole = (1..WORDS).all(|index| words[index] == element_word(words[0], index as u32));
    match next.get_mut(producer) {
        Some(expected) if whole && *expected == number => {
            *expected += 1;
            true
        }
        _ => false,
    }
}

/// Returns the sum, modulo 2^63, of all words that `producers` producers push in `pushes` pushes each.
pub fn expected_sum(producers: u64, pushes: u64, words: u32) -> u64 {
    let below = |count: u64| (count as u128 * (count as u128).saturating_sub(1) / 2) as u64;
    let first = (below(producers) << 32).wrapping_mul(pushes).wrapping_add(below(pushes).wrapping_mul(producers));
    let elements = producers.wrapping_mul(pushes);
    let of_word = |index: u32| {
        let constant = element_word(0, index).wrapping_mul(elements);
        first.wrapping_mul(2 * u64::from(index) + 1).wrapping_add(constant)
    };
    (0..words).fold(0u64, |sum, index| sum.wrapping_add(of_word(index))) & CONTENT
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::queue::first_word;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sum_covers_all_elements(producers in 1u32..40, pushes in 1u32..40, words in 1u32..20) {
            let elements = (0..producers).flat_map(|producer| (0..pushes).map(move |push| first_word(producer, push)));
            let sum = elements.flat_map(|first| (0..words).map(move |index| element_word(first, index)))
                .fold(0u64, u64::wrapping_add) & CONTENT;
            prop_assert_eq!(sum, expected_sum(producers.into(), pushes.into(), words));
        }
    }

    #[test]
    fn torn_early_and_foreign_elements_are_detected() {
        let element = |producer, number| {
            std::array::from_fn::<u64, 4, _>(|i| element_word(first_word(producer, number), i as u32))
        };
        let mut next = vec![0; 2];
        assert!(is_next(&element(1, 0), &mut next));
        assert!(!is_next(&element(1, 0), &mut next), "twice");
        assert!(!is_next(&element(0, 1), &mut next), "one lost");
        assert!(!is_next(&element(2, 0), &mut next), "no such producer");
        let mut torn = element(0, 0);
        torn[3] ^= 1;
        assert!(!is_next(&torn, &mut next), "torn");
    }
}
