//! Tests of long copies by several blocks, using only the kernel's rings.

#[path = "../../../../../tests/random/mod.rs"]
mod random;

use super::*;
use ::kernels::mover::{JOBS, LONG, MOST_BLOCKS};
use cuda_std::emulation::{set_seed, set_workers};
use cuda_std::memory::{Word, load_acquire_host_u64};
use random::XorShift;

/// Timeout that no test reaches.
const LONG_TIME: Duration = Duration::from_secs(30);
const LONG_BYTES: usize = LONG as usize + 1;

/// A running kernel and its rings.
struct Running {
    kernel: OnCpu,
    rings: HostRings,
    number: u64,
    marks: [u64; LANES as usize],
    /// Whether entries are published later, together with further ones.
    holds: bool,
}

impl Running {
    fn new(blocks: u32, timeout: Duration) -> Running {
        let kernel = OnCpu::new(blocks).unwrap();
        // SAFETY: the rings are in memory of the kernel, which lives as long.
        let rings = unsafe { HostRings::at(kernel.lanes()) };
        let mut running = Running { kernel, rings, number: 0, marks: [0; LANES as usize], holds: false };
        running.launch(timeout);
        running
    }

    fn launch(&mut self, timeout: Duration) {
        self.number += 1;
        let (lanes, jobs, first) = (self.kernel.lanes(), self.kernel.jobs(), self.rings.unread());
        let args = MoverArgs { lanes, jobs, first, number: self.number, timeout_ns: timeout.as_nanos() as u64 };
        // SAFETY: each test keeps the memory that its entries refer to until it has waited for them.
        unsafe { self.kernel.launch(args, true) }.unwrap();
    }

    fn ask(&mut self, queue: CopyDirection, step: Step) {
        until("room in a ring", || self.rings.has_room(queue));
        self.rings.write(queue, step);
        if !self.holds {
            self.rings.show(queue);
        }
    }

    fn copy(&mut self, queue: CopyDirection, to: u64, from: u64, bytes: usize) {
        self.ask(queue, Step::Copy { to, from, bytes: bytes as u32 });
    }

    fn mark(&mut self, queue: CopyDirection) -> u64 {
        self.marks[queue as usize] += 1;
        let mark = self.marks[queue as usize];
        self.ask(queue, Step::Mark(mark));
        mark
    }

    /// Requests a mark and waits for it. Asserts that marks pass in order.
    fn settle(&mut self, queue: CopyDirection) {
        let mark = self.mark(queue);
        let mut last = 0;
        until("a mark", || {
            let passed = self.rings.passed(queue);
            assert!(last <= passed && passed <= mark, "{last}, then {passed} of {mark}");
            last = passed;
            passed == mark
        });
    }

    /// Returns the first job that a lane's first block has given to the other blocks.
    fn first_job(&self, queue: CopyDirection) -> Option<Step> {
        // SAFETY: jobs start with the words of their entries.
        let words = unsafe { &*self.kernel.jobs().add(queue as usize).cast::<[Word; 4]>() };
        Step::decode(words.each_ref().map(load_acquire_host_u64), 0, JOBS)
    }

    /// Copies until the lane's other blocks have started.
    fn wait_for_others(&mut self, queue: CopyDirection) {
        let (from, to) = (noise(LONG_BYTES), vec![0u8; LONG_BYTES]);
        until("the other blocks", || {
            self.copy(queue, to.as_ptr() as u64, from.as_ptr() as u64, LONG_BYTES);
            self.settle(queue);
            self.first_job(queue).is_some()
        });
    }

    fn end(&mut self) {
        for queue in QUEUES {
            self.ask(queue, Step::End);
        }
        self.has_gone();
    }

    fn has_gone(&mut self) {
        until("the lanes' end", || self.rings.gone(self.number) == [true; LANES as usize]);
        until("all blocks' end", || self.kernel.has_ended());
        assert_eq!(self.rings.unread(), self.rings.written);
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let late = Instant::now() + LONG_TIME;
    while !is() {
        assert!(Instant::now() < late, "{what} has not come");
        std::thread::yield_now();
    }
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut random = XorShift(bytes as u64);
    (0..bytes).map(|_| random.below(255) as u8 + 1).collect()
}

/// Copies write exactly their bytes, for any length, alignment and number of blocks, and for successive kernels with
/// the same memory.
#[test]
fn long_copies_are_whole() {
    const ROOM: usize = 300 << 10;
    let from = noise(ROOM);
    for blocks in [1, 2, 3, 8, MOST_BLOCKS] {
        let mut running = Running::new(blocks, LONG_TIME);
        for (index, bytes) in [LONG_BYTES, 2 * LONG_BYTES - 1, 99_991, 128 << 10, 262_143].into_iter().enumerate() {
            for (shift, skew) in [(0, 0), (16, 32), (8, 0), (3, 0), (5, 12)] {
                let to = vec![0u8; ROOM];
                let queue = QUEUES[index % 2];
                running.copy(queue, to.as_ptr() as u64 + shift, from.as_ptr() as u64 + skew, bytes);
                running.settle(queue);
                let (shift, skew) = (shift as usize, skew as usize);
                // Hides from the compiler that the bytes were zero.
                let to = std::hint::black_box(to);
                assert!(to[shift..shift + bytes] == from[skew..skew + bytes], "{bytes} B by {blocks} blocks");
                assert!(to[..shift].iter().chain(&to[shift + bytes..]).all(|byte| *byte == 0));
            }
            if index == 2 {
                running.end();
                running.launch(LONG_TIME);
            }
        }
        running.end();
        for queue in QUEUES {
            let first = running.first_job(queue);
            let shared = matches!(first, Some(Step::Copy { .. }));
            assert!(shared == (blocks > 1), "{blocks} blocks: {first:?}");
        }
    }
}

/// A thread that sees a word also sees the writes of long copies before it, and a mark follows its word.
#[test]
fn word_follows_long_copies_and_precedes_mark() {
    const ROOM: usize = 4 * LONG_BYTES;
    set_workers(2);
    let mut running = Running::new(4, LONG_TIME);
    let word = Box::new(Word::new(0));
    for round in 1..60u64 {
        let (from, to) = (vec![round as u8; ROOM], vec![0u8; ROOM]);
        for part in 0..4 {
            let at = (part * LONG_BYTES) as u64;
            running.copy(CopyDirection::In, to.as_ptr() as u64 + at, from.as_ptr() as u64 + at, LONG_BYTES);
            if round.is_multiple_of(2) {
                // The block that arrives last writes this mark.
                running.mark(CopyDirection::In);
            }
        }
        running.ask(CopyDirection::In, Step::Word { to: &raw const *word as u64, value: round });
        let mark = running.mark(CopyDirection::In);
        until("the word", || {
            let passed = running.rings.passed(CopyDirection::In);
            let here = load_acquire_host_u64(&word);
            assert!(passed < mark || load_acquire_host_u64(&word) == round, "a mark before its word");
            here == round
        });
        assert!(std::hint::black_box(to).iter().all(|byte| *byte == round as u8), "a word before its bytes");
        running.settle(CopyDirection::In);
    }
    running.end();
}

/// Copies of all lengths that read and write the same bytes, words and marks, in any order, have the same effect as if
/// they ran one after another.
#[test]
fn overlapping_steps_keep_order() {
    const ROOM: usize = 256 << 10;
    let zeros = || vec![0u64; ROOM / 8];
    for seed in 0..6 {
        set_seed(Some(seed));
        set_workers(1 + seed as usize % 2);
        let mut random = XorShift(seed + 1);
        let mut running = Running::new(2 + seed as u32 % 4, LONG_TIME);
        let (mut expected, memory) = (noise(ROOM), zeros());
        // SAFETY: both have `ROOM` bytes, and the kernel has no reference to them yet.
        unsafe { std::ptr::copy_nonoverlapping(expected.as_ptr(), memory.as_ptr().cast_mut().cast::<u8>(), ROOM) };
        let base = memory.as_ptr() as u64;
        // Odd seeds have more short copies, so that several follow each other.
        let long = if seed % 2 == 0 { 6 } else { 4 };
        for round in 0..300u64 {
            running.holds = round % 100 < 99 && random.below(4) > 0;
            match random.below(8) {
                0 => {
                    let at = random.below(ROOM / 8) * 8;
                    expected[at..at + 8].copy_from_slice(&round.to_le_bytes());
                    running.ask(CopyDirection::In, Step::Word { to: base + at as u64, value: round });
                }
                1 | 2 => drop(running.mark(CopyDirection::In)),
                kind => {
                    let bytes = if kind < long { LONG_BYTES + random.below(1 << 14) } else { 1 + random.below(9000) };
                    let (to, from) = (random.below(ROOM / 2 - bytes), random.below(ROOM / 2 - bytes));
                    // Source and destination do not overlap, as the contract of a copy requires.
                    let (to, from) = if random.below(2) == 0 { (to, ROOM / 2 + from) } else { (ROOM / 2 + to, from) };
                    expected.copy_within(from..from + bytes, to);
                    running.copy(CopyDirection::In, base + to as u64, base + from as u64, bytes);
                }
            }
            if round % 100 == 99 {
                running.settle(CopyDirection::In);
                // SAFETY: the memory has `ROOM` bytes, and no copy is in flight.
                let came = unsafe { std::slice::from_raw_parts(base as *const u8, ROOM) };
                assert!(came == expected, "seed {seed}, round {round}");
            }
        }
        running.end();
    }
}

/// More long copies than the job ring can contain, and more steps than the host's rings, in both directions
/// concurrently.
#[test]
fn rings_wrap_around_both_ways() {
    let mut running = Running::new(3, LONG_TIME);
    let (mut there, here) = (noise(LONG_BYTES), [vec![0u8; 4 * LONG_BYTES], vec![0u8; 4 * LONG_BYTES]]);
    let word = Word::new(0);
    for step in 0..3 * ENTRIES {
        for queue in QUEUES {
            if step.is_multiple_of(ENTRIES / JOBS) {
                let at = (step / (ENTRIES / JOBS)) as usize % 4 * LONG_BYTES;
                running.copy(
                    queue,
                    here[queue as usize].as_ptr() as u64 + at as u64,
                    there.as_ptr() as u64,
                    LONG_BYTES,
                );
            } else if queue == CopyDirection::In && step % 3 == 1 {
                running.ask(queue, Step::Word { to: &raw const word as u64, value: step });
            } else {
                running.mark(queue);
            }
        }
    }
    for queue in QUEUES {
        running.settle(queue);
        let came = std::hint::black_box(&here[queue as usize]);
        assert!(came.chunks(LONG_BYTES).all(|part| part == there));
    }
    there.clear();
    running.end();
}

/// All steps requested before the end are executed, and then no block remains.
#[test]
fn exit_follows_all_copies_of_all_blocks() {
    const PART: usize = 1 << 20;
    set_workers(3);
    let from = noise(8 * PART);
    for blocks in [1, 2, 5] {
        for copies in [0, 1, 8] {
            let to = vec![0u8; 8 * PART];
            let mut running = Running::new(blocks, LONG_TIME);
            if blocks > 1 && copies > 0 {
                running.wait_for_others(CopyDirection::Out);
            }
            for part in 0..copies {
                let at = (part * PART) as u64;
                running.copy(CopyDirection::Out, to.as_ptr() as u64 + at, from.as_ptr() as u64 + at, PART);
            }
            running.ask(CopyDirection::Out, Step::End);
            until("the lane's end", || running.rings.gone(1)[CopyDirection::Out as usize]);
            // Checks this immediately, before the kernel has ended.
            let (came, end) = (std::hint::black_box(&to), copies * PART);
            assert!(came[..end].iter().rev().take(PART).all(|byte| *byte != 0), "{blocks} blocks, {copies} copies");
            assert!(came[..end] == from[..end] && came[end..].iter().all(|byte| *byte == 0));
            running.ask(CopyDirection::In, Step::End);
            running.has_gone();
        }
    }
}

/// The deadline ends all blocks, including those that have had jobs, and both lanes.
#[test]
fn deadline_ends_all_blocks() {
    let (from, to) = (noise(LONG_BYTES), vec![0u8; LONG_BYTES]);
    for copies in [0, 1, 20] {
        let mut running = Running::new(4, Duration::from_millis(30));
        if copies > 1 {
            running.wait_for_others(CopyDirection::In);
        }
        for _ in 0..copies {
            running.copy(CopyDirection::In, to.as_ptr() as u64, from.as_ptr() as u64, LONG_BYTES);
        }
        running.has_gone();
        assert!(copies == 0 || std::hint::black_box(&to) == &from);
    }
}
