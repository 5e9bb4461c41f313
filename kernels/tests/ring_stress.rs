//! Tests the ring under load, as native code: an emulated grid pushes and waits, and a CPU thread acts as the proxy.
//!
//! Loom checks three threads and a few commands; this test runs many of both on the real machine. All waits are
//! bounded: the ring's timeout ends the grid, [`PATIENCE`] ends the proxy.
#![cfg(not(loom))]

#[path = "../../tests/random/mod.rs"]
mod random;

use cuda_std::memory::WordPair;
use cuda_std::{emulation, thread};
use kernels::command::{Command, MAX_OFFSET, MAX_PEER, MAX_REGION, Opcode, PARITY};
use kernels::put_kernel::{Put, PutChannel};
use kernels::ring::consumer::Consumer;
use kernels::ring::{DeviceWords, HostWords, LOG2_COMMAND_WORDS, Ring, Status};
use proptest::prelude::*;
use random::XorShift;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time limit, much longer than any of these tests takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// Number of blocks. It is smaller under Miri, which is slow. A few producers and puts perform the same accesses.
const GRID: u32 = if cfg!(miri) { 4 } else { 8 };
const BLOCK: u32 = 4;
const THREADS: usize = (GRID * BLOCK) as usize;

struct Memory {
    slots: Vec<[WordPair; 2]>,
    host: HostWords,
    device: DeviceWords,
    log2_capacity: u32,
    timeout: Duration,
}

impl Memory {
    fn new(log2_capacity: u32, timeout: Duration) -> Memory {
        let slot = || [WordPair::new(0, 0), WordPair::new(0, 0)];
        let slots = (0..1 << log2_capacity).map(|_| slot()).collect();
        Memory { slots, host: HostWords::default(), device: DeviceWords::default(), log2_capacity, timeout }
    }

    fn ring(&self) -> Ring {
        Ring {
            slots: self.slots.as_ptr().cast(),
            host: &self.host,
            device: &self.device,
            log2_capacity: self.log2_capacity,
            log2_slot_words: LOG2_COMMAND_WORDS,
            timeout_ns: self.timeout.as_nanos() as u64,
            role: 0,
            of_block: 0,
            free_below: 1 << self.log2_capacity,
        }
    }

    /// Runs `kernel` on the grid, concurrently with `proxy`.
    fn run(&self, kernel: impl Fn(&Ring) + Sync, proxy: impl FnOnce(Consumer) + Send) {
        // SAFETY: the memory outlives the scope; this is the only consumer.
        let consumer: Consumer = unsafe { Consumer::new(&self.ring()) };
        std::thread::scope(|scope| {
            let proxy = scope.spawn(|| proxy(consumer));
            emulation::run(GRID, BLOCK, || kernel(&self.ring())).expect("the grid");
            proxy.join().expect("the proxy");
        });
    }
}

/// Returns put `number` of thread `thread`. Every word of the command depends on both.
fn put(thread: u32, number: u64) -> (Put, u32) {
    let mix = (thread as u64 + 1).wrapping_mul(number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let put = Put {
        source_region: thread,
        source_offset: number,
        destination_region: (mix >> 20) as u32 & MAX_REGION,
        destination_offset: mix & MAX_OFFSET,
        bytes: (mix >> 16) & MAX_OFFSET,
        peer: (mix >> 40) as u32 & MAX_PEER,
    };
    (put, mix as u32)
}

/// Returns the thread and number encoded in the words of a popped command, after checking all its fields.
fn origin(words: [u64; 4]) -> (usize, u64) {
    let command = Command::decode(words).expect("a command");
    let (thread, number) = (command.source_region, command.source_offset);
    let (put, immediate) = put(thread, number);
    let source = (put.source_region, put.source_offset);
    let destination = (put.destination_region, put.destination_offset);
    let expected = Command::put(source, destination, put.bytes, put.peer).with_signal(immediate);
    assert_eq!(command, expected, "torn slot");
    (thread as usize, number)
}

/// Pops the next command. Panics if none arrives.
fn pop(consumer: &mut Consumer) -> [u64; 4] {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(words) = consumer.pop() {
            consumer.acquire();
            return words;
        }
        assert!(Instant::now() < deadline, "no command after {}", consumer.cursor());
        std::thread::yield_now();
    }
}

/// Stops polling the ring for `duration`, so that the producers fill it.
fn dawdle(duration: Duration) {
    let end = Instant::now() + duration;
    while Instant::now() < end {
        std::thread::yield_now();
    }
}

/// Every command arrives once, complete, and in the order of its thread. The tail is published once per batch.
fn every_command_once(log2_capacity: u32, batch: u64, puts: u64) {
    let puts = if cfg!(miri) { puts.min(4) } else { puts };
    let memory = Memory::new(log2_capacity, PATIENCE);
    memory.run(
        |ring| {
            let mut channel = PutChannel::new(*ring);
            for number in 0..puts {
                let (put, immediate) = put(thread::index(), number);
                channel.put_signal_nbi(&put, immediate).expect("pushed");
            }
        },
        |mut consumer| {
            let mut next = [0; THREADS];
            for count in 0..puts * THREADS as u64 {
                let (thread, number) = origin(pop(&mut consumer));
                assert_eq!(number, next[thread], "thread {thread} out of order");
                next[thread] += 1;
                if (count + 1) % batch == 0 {
                    consumer.publish_tail();
                }
                if count % 1024 == 1023 {
                    dawdle(Duration::from_millis(1));
                }
            }
            assert_eq!(next, [puts; THREADS]);
            assert_eq!(consumer.pop(), None, "a command too many");
        },
    );
}

#[test]
fn two_slots_carry_every_command_once() {
    every_command_once(1, 1, 300);
}

#[test]
fn ring_sized_batch_carries_every_command_once() {
    every_command_once(1, 2, 300);
    every_command_once(3, 8, 1000);
}

#[test]
fn large_ring_carries_every_command_once() {
    every_command_once(8, 16, 5000);
}

/// A batch takes the commands that have arrived, at most as many as fit, even across the ring's end.
#[test]
fn batch_pop_stops_at_gap_or_full_batch() {
    let memory = Memory::new(2, PATIENCE);
    // SAFETY: the memory outlives the consumer, which is the only one.
    let mut consumer: Consumer = unsafe { Consumer::new(&memory.ring()) };
    let push = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            let (put, immediate) = put(0, number);
            PutChannel::new(memory.ring()).put_signal_nbi(&put, immediate).expect("pushed");
        }
    };
    let mut batch = [[0; 4]; 3];
    assert_eq!(consumer.pop_batch(&mut batch), 0);
    push(0..4);
    assert_eq!(consumer.pop_batch(&mut []), 0);
    assert_eq!(consumer.pop_batch(&mut batch), 3);
    assert_eq!(batch.map(origin), [(0, 0), (0, 1), (0, 2)]);
    consumer.publish_tail();
    push(4..6);
    // One command of the first lap and two of the second.
    assert_eq!(consumer.pop_batch(&mut batch), 3);
    assert_eq!(batch.map(origin), [(0, 3), (0, 4), (0, 5)]);
    push(6..7);
    assert_eq!(consumer.pop_batch(&mut batch), 1);
    assert_eq!((origin(batch[0]), origin(batch[1])), ((0, 6), (0, 4)), "the other entries are unchanged");
    assert_eq!((consumer.pop_batch(&mut batch), consumer.cursor()), (0, 7));
}

/// Tickets complete in any order. A quiet returns only after its ticket and all preceding ones are complete.
#[test]
fn quiet_waits_for_watermark() {
    const PUTS: u64 = 300;
    let memory = Memory::new(6, PATIENCE);
    let done: Vec<AtomicBool> = (0..PUTS as usize * THREADS).map(|_| AtomicBool::new(false)).collect();
    let all_done_until = |ticket: u64| done[..=ticket as usize].iter().all(|done| done.load(Ordering::Relaxed));
    memory.run(
        |ring| {
            let mut channel = PutChannel::new(*ring);
            assert_eq!(channel.quiet(), Ok(()), "nothing to wait for");
            let mut earlier = 0;
            for number in 0..PUTS {
                let (put, immediate) = put(thread::index(), number);
                let ticket = channel.put_signal_nbi(&put, immediate).expect("pushed");
                match number % 4 {
                    // Waits for the second-to-last put, so that puts overlap.
                    1 => {
                        channel.quiet_until(earlier).expect("complete");
                        assert!(all_done_until(earlier), "quiet_until returned early");
                    }
                    3 => {
                        channel.quiet().expect("complete");
                        assert!(all_done_until(ticket), "quiet returned early");
                    }
                    _ => {}
                }
                earlier = ticket;
            }
        },
        |mut consumer| {
            let mut random = XorShift(1);
            let mut in_flight = Vec::new();
            let mut watermark = 0;
            let deadline = Instant::now() + PATIENCE;
            while watermark < done.len() {
                assert!(Instant::now() < deadline, "watermark stays at {watermark}");
                let before = consumer.cursor();
                while in_flight.len() < 24
                    && let Some(words) = consumer.pop()
                {
                    origin(words);
                    in_flight.push(consumer.cursor() as usize - 1);
                }
                consumer.publish_tail();
                if consumer.cursor() == before && in_flight.is_empty() {
                    std::thread::yield_now();
                    continue;
                }
                for _ in 0..in_flight.len().min(4) {
                    let completed = in_flight.swap_remove(random.below(in_flight.len()));
                    assert!(!done[completed].swap(true, Ordering::Relaxed));
                }
                while watermark < done.len() && done[watermark].load(Ordering::Relaxed) {
                    watermark += 1;
                }
                consumer.publish_watermark(watermark as u64);
            }
        },
    );
}

/// Returns the outcome of each thread's put and wait.
fn outcomes(memory: &Memory, proxy: impl FnOnce(Consumer) + Send) -> Vec<Result<u64, Status>> {
    let outcomes = Mutex::new(Vec::new());
    memory.run(
        |ring| {
            let mut channel = PutChannel::new(*ring);
            let (put, immediate) = put(thread::index(), 0);
            let outcome = channel.put_signal_nbi(&put, immediate);
            let outcome = outcome.and_then(|ticket| channel.quiet().map(|()| ticket));
            outcomes.lock().expect("no panic inside").push(outcome);
        },
        proxy,
    );
    outcomes.into_inner().expect("no panic inside")
}

/// The proxy ends after ten tickets, which succeed. All other waits, for space or for completion, return the status.
#[test]
fn status_ends_every_wait() {
    for _ in 0..20 {
        let memory = Memory::new(3, PATIENCE);
        let mut outcomes = outcomes(&memory, |mut consumer| {
            for _ in 0..10 {
                origin(pop(&mut consumer));
                consumer.publish_tail();
            }
            consumer.publish_watermark(10);
            consumer.publish_status(Status::FABRIC);
        });
        outcomes.sort_by_key(|outcome| outcome.unwrap_or(u64::MAX));
        let done: Vec<_> = (0..10).map(Ok).collect();
        assert_eq!(outcomes[..10], done);
        assert_eq!(outcomes[10..], [Err(Status::FABRIC); THREADS - 10]);
    }
}

/// No proxy runs: the deadline ends the waits for space and for completion.
#[test]
fn deadline_ends_every_wait() {
    let memory = Memory::new(1, Duration::from_millis(50));
    let started = Instant::now();
    assert_eq!(outcomes(&memory, drop), [Err(Status::DEADLINE); THREADS]);
    assert!(started.elapsed() >= Duration::from_millis(50), "gave up early");
    assert!(started.elapsed() < PATIENCE / 2, "gave up late: {:?}", started.elapsed());
}

/// A wait for a ticket that is already complete succeeds even on a ring whose deadline has passed.
#[test]
fn completed_ticket_returns_without_time() {
    let memory = Memory::new(1, Duration::ZERO);
    // SAFETY: the memory outlives the consumer, which is the only one.
    let consumer: Consumer = unsafe { Consumer::new(&memory.ring()) };
    consumer.publish_watermark(1);
    consumer.publish_status(Status::STOPPED);
    assert_eq!(memory.ring().wait(0), Ok(1));
    assert_eq!(memory.ring().wait(1), Err(Status::STOPPED));
}

fn any_command() -> impl Strategy<Value = Command> {
    let opcode = prop_oneof![Just(Opcode::Put), Just(Opcode::PutSignal), Just(Opcode::Get), Just(Opcode::Signal)];
    let region = 0..=MAX_REGION;
    let offset = 0..=MAX_OFFSET;
    let place = (region, offset.clone());
    (opcode, place.clone(), place, offset, 0..=MAX_PEER, any::<u32>()).prop_map(
        |(opcode, source, destination, bytes, peer, immediate)| Command {
            opcode,
            immediate,
            ..Command::put(source, destination, bytes, peer)
        },
    )
}

/// The bits of each word that belong neither to the content nor to the parity.
const RESERVED: [u64; 4] = [0, 0xf << 59, 0, (PARITY - 1) & !(u32::MAX as u64)];

proptest! {
    #[test]
    fn command_round_trips_through_words(command in any_command(), parity in any::<[bool; 4]>()) {
        let mut words = command.encode();
        for (word, reserved) in words.iter().zip(RESERVED) {
            prop_assert_eq!(word & (PARITY | reserved), 0);
        }
        for (word, set) in words.iter_mut().zip(parity) {
            *word |= if set { PARITY } else { 0 };
        }
        prop_assert_eq!(Command::decode(words), Some(command));
    }

    #[test]
    fn reserved_bit_is_rejected(command in any_command()) {
        for (word, bit) in (0..4).flat_map(|word| (0..64).map(move |bit| (word, 1u64 << bit))) {
            let mut words = command.encode();
            words[word] |= bit;
            prop_assert!(RESERVED[word] & bit == 0 || Command::decode(words).is_none(), "word {word} bit {bit:#x}");
        }
    }

    #[test]
    fn any_words_are_refused_or_encode_again(words in any::<[u64; 4]>(), small in any::<bool>()) {
        // Half of the cases use only valid bits, because nearly all others are rejected.
        let mut words = words;
        if small {
            for (word, reserved) in words.iter_mut().zip(RESERVED) {
                *word &= !reserved;
            }
        }
        let opcode = (words[0] >> 59) & 0xf;
        let reserved = words.iter().zip(RESERVED).any(|(word, reserved)| word & reserved != 0);
        match Command::decode(words) {
            Some(command) => prop_assert_eq!(command.encode(), words.map(|word| word & !PARITY)),
            None => prop_assert!(reserved || !(1..=4).contains(&opcode)),
        }
    }

    #[test]
    fn fields_too_large_are_cut(command in any_command(), high in any::<u64>()) {
        let mut large = command;
        large.source_region |= (high as u32) & !MAX_REGION;
        large.destination_region |= (high as u32) & !MAX_REGION;
        large.source_offset |= high & !MAX_OFFSET;
        large.destination_offset |= high & !MAX_OFFSET;
        large.bytes |= high & !MAX_OFFSET;
        large.peer |= (high as u32) & !MAX_PEER;
        prop_assert_eq!(large.encode(), command.encode());
    }
}
