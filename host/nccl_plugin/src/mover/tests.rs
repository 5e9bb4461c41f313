#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

mod blocks;

use super::*;
use crate::testing::{LateCopies, OnCpu};
use ::kernels::mover::ENTRIES;
use std::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = 512;
/// Number of blocks of the kernel per lane.
const BLOCKS_HERE: u32 = 3;

/// Memory of an imitated GPU, and pinned memory.
struct Memory {
    device: Vec<u64>,
    host: Vec<u64>,
    scratch: Vec<u64>,
}

impl Memory {
    fn new() -> Memory {
        Memory { device: vec![0; WORDS], host: vec![0; WORDS], scratch: vec![0; 4 * ENTRIES as usize] }
    }

    fn device(&self, byte: usize) -> u64 {
        self.device.as_ptr() as u64 + byte as u64
    }

    fn host(&self, byte: usize) -> u64 {
        self.host.as_ptr() as u64 + byte as u64
    }

    /// Returns a scratch word for a word write.
    fn scratch(&self, number: u64) -> *mut u64 {
        self.scratch.as_ptr().cast_mut().wrapping_add(number as usize % self.scratch.len())
    }
}

fn until(copies: &mut impl Copies, what: &str, is: impl Fn(&mut dyn Copies) -> bool) {
    let late = Instant::now() + Duration::from_secs(20);
    while !is(copies) {
        assert!(Instant::now() < late, "{what} has not come");
        copies.turn().unwrap();
    }
}

/// Requests copies until the kernel has taken over.
fn called<L: MoverLauncher>(copies: &mut ByKernel<LateCopies, L>, memory: &Memory) {
    let late = Instant::now() + Duration::from_secs(20);
    while copies.kernels == 0 {
        assert!(Instant::now() < late, "no kernel has taken over");
        // SAFETY: both ranges have the requested bytes.
        unsafe { copies.put_in(memory.device(0), memory.host(0), 8) }.unwrap();
        copies.mark(CopyDirection::In).unwrap();
        copies.passed(CopyDirection::In).unwrap();
        copies.turn().unwrap();
    }
}

/// Copies in both directions and words stay in order, whether the engines or the kernel execute them, and regardless of
/// when the kernel starts and exits.
#[test]
fn copies_are_in_order_whoever_makes_them() {
    let mut memory = Memory::new();
    memory.host.iter_mut().enumerate().for_each(|(index, word)| *word = index as u64);
    let mut copies = ByKernel::new(LateCopies::default(), OnCpu::new(BLOCKS_HERE).unwrap());
    called(&mut copies, &memory);
    for round in 1..2000u64 {
        // A value, another value from host memory at the same place, and a word with the round; then the value is
        // copied out in the same queue. SAFETY: all ranges are in the memory above, which is valid until all marks have
        // passed.
        unsafe {
            copies.put_word(memory.device(800), memory.scratch(2 * round), !0).unwrap();
            copies.put_in(memory.device(800), memory.host(8 * (round as usize % 90)), 8).unwrap();
            copies.put_in(memory.device(1601), memory.host(1), 777).unwrap();
            copies.put_word(memory.device(0), memory.scratch(2 * round + 1), round << 40 | round).unwrap();
            copies.take_out(memory.host(3200), memory.device(800), 8, true).unwrap();
        }
        let mark = copies.mark(CopyDirection::In).unwrap();
        until(&mut copies, "a mark", |copies| copies.passed(CopyDirection::In).unwrap() >= mark);
        // SAFETY: all ranges are in the memory above, and no copy that writes what is read is in flight.
        unsafe {
            let read = |address: u64| (address as *const u64).read_volatile();
            assert_eq!(read(memory.device(800)), round % 90);
            assert_eq!(read(memory.device(0)), round << 40 | round);
            assert_eq!(read(memory.host(3200)), round % 90);
            let bytes = |address: u64| std::slice::from_raw_parts(address as *const u8, 777);
            assert_eq!(bytes(memory.device(1601)), bytes(memory.host(1)));
            copies.take_out(memory.host(3208), memory.device(0), 8, false).unwrap();
        }
        let mark = copies.mark(CopyDirection::Out).unwrap();
        until(&mut copies, "a mark of the other queue", |copies| copies.passed(CopyDirection::Out).unwrap() >= mark);
        // SAFETY: the word is in the memory above, and its copy is complete.
        assert_eq!(unsafe { (memory.host(3208) as *const u64).read_volatile() }, round << 40 | round);
        if round.is_multiple_of(200) {
            // The kernel exits, and is launched again.
            copies.settle();
            assert!(matches!(copies.state, State::Copies), "settled");
            copies.kernels = 0;
            called(&mut copies, &memory);
        }
    }
}

/// Mixes short copies out of GPU memory, which have a tag, with long ones, which have a mark. A mark is passed when all
/// copies before it have arrived, even if later copies have not.
#[test]
fn copies_out_pass_marks_in_order() {
    let mut memory = Memory::new();
    memory.device.iter_mut().enumerate().for_each(|(index, word)| *word = 0x0101_0101_0101_0101 * (index as u64 % 251));
    let mut copies = ByKernel::new(LateCopies::default(), OnCpu::new(BLOCKS_HERE).unwrap());
    called(&mut copies, &memory);
    memory.device[0] = 0;
    // More requests than fit at the same time. Some rounds have two copies before a mark, a mark without copies, or an
    // exit of the kernel.
    let lengths = [1usize, 8, 3, 128, 129, 64, 1000, 7, 2, 300, 127];
    let mut asked = VecDeque::new();
    for round in 0..600usize {
        let (length, from) = (lengths[round % lengths.len()], round * 13 % 2000);
        let to = round % 3 * 1100;
        let mark = {
            // SAFETY: both ranges are in the memory, which is valid until all marks have passed. No other code uses the
            // destination until then (below).
            unsafe { copies.take_out(memory.host(to), memory.device(from), length, false) }.unwrap();
            if round % 5 == 0 {
                // SAFETY: both ranges are in the memory, which lives until everything has passed.
                unsafe { copies.take_out(memory.host(3400), memory.device(9), 5, false) }.unwrap();
            }
            copies.mark(CopyDirection::Out).unwrap()
        };
        let mark = if round % 7 == 0 { copies.mark(CopyDirection::Out).unwrap() } else { mark };
        asked.push_back((mark, to, from, length));
        while asked.len() > 2 || (round % 90 == 89 && !asked.is_empty()) {
            let (mark, to, from, length) = asked.pop_front().unwrap();
            until(&mut copies, "a mark", |copies| copies.passed(CopyDirection::Out).unwrap() >= mark);
            // SAFETY: the ranges are in the memory; the copy is complete, and the next one to this destination has not
            // been requested yet.
            let (came, there) = unsafe {
                let bytes = |address: u64| std::slice::from_raw_parts(address as *const u8, length);
                (bytes(memory.host(to)), bytes(memory.device(from)))
            };
            assert_eq!(came, there, "round {round}: {length} B");
        }
        if round % 180 == 179 {
            copies.settle();
            copies.kernels = 0;
            memory.device[0] = memory.host[0];
            called(&mut copies, &memory);
        }
    }
}

/// Requests more copies at the same time than the rings can contain.
#[test]
fn copies_beyond_ring_space_wait() {
    let memory = Memory::new();
    let mut copies = ByKernel::new(LateCopies::default(), OnCpu::new(BLOCKS_HERE).unwrap());
    called(&mut copies, &memory);
    let count = 3 * ENTRIES;
    let mut mark = 0;
    for number in 1..=count {
        // SAFETY: the word is in the memory, which lives until everything has passed.
        unsafe { copies.put_word(memory.device(8 * (number as usize % 500)), memory.scratch(number), number) }.unwrap();
        mark = copies.mark(CopyDirection::In).unwrap();
    }
    until(&mut copies, "the last mark", |copies| copies.passed(CopyDirection::In).unwrap() == mark);
    for number in count - 499..=count {
        let at = memory.device(8 * (number as usize % 500)) as *const u64;
        // SAFETY: no writes are in flight.
        assert_eq!(unsafe { at.read_volatile() }, number);
    }
}

/// A kernel that is launched and never starts, as if other kernels filled the GPU.
struct Never {
    of: OnCpu,
    launches: u64,
    /// Error of the launch, which is known only later.
    failure: Option<String>,
    left_behind: &'static AtomicU64,
}

impl MoverLauncher for Never {
    fn lanes(&self) -> *const MoverRing {
        self.of.lanes()
    }

    fn jobs(&self) -> *const Jobs {
        self.of.jobs()
    }

    unsafe fn launch(&mut self, _: MoverArgs, _: bool) -> Result<(), String> {
        self.launches += 1;
        Ok(())
    }

    fn failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    fn leave_behind(&mut self) {
        self.left_behind.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn unstarted_kernel_does_not_block_copies() {
    static LEFT: AtomicU64 = AtomicU64::new(0);
    let memory = Memory::new();
    let kernel = Never { of: OnCpu::new(BLOCKS_HERE).unwrap(), launches: 0, failure: None, left_behind: &LEFT };
    let mut copies = ByKernel::new(LateCopies::default(), kernel);
    copy_often(&mut copies, &memory);
    assert!(copies.kernel.launches == 1 && matches!(copies.state, State::Late));
    drop(copies);
    assert_eq!(LEFT.load(Ordering::Relaxed), 1);
}

#[test]
fn failed_launch_leaves_the_copies_to_the_engines() {
    static LEFT: AtomicU64 = AtomicU64::new(0);
    let memory = Memory::new();
    let (of, failure) = (OnCpu::new(BLOCKS_HERE).unwrap(), Some("no room".to_owned()));
    let mut copies = ByKernel::new(LateCopies::default(), Never { of, launches: 0, failure, left_behind: &LEFT });
    copy_often(&mut copies, &memory);
    assert!(copies.kernel.launches == 1 && matches!(copies.state, State::Copies));
    assert!(copies.name().contains("no room"), "{}", copies.name());
    drop(copies);
    assert_eq!(LEFT.load(Ordering::Relaxed), 0);
}

fn copy_often<L: MoverLauncher>(copies: &mut ByKernel<LateCopies, L>, memory: &Memory) {
    for _ in 0..100 {
        // SAFETY: both ranges have the requested bytes.
        unsafe { copies.put_in(memory.device(0), memory.host(0), 64) }.unwrap();
        let mark = copies.mark(CopyDirection::In).unwrap();
        until(copies, "a mark", |copies| copies.passed(CopyDirection::In).unwrap() >= mark);
    }
}

/// A kernel that starts only when the test starts it, as if other processes had the GPU.
struct Held {
    of: OnCpu,
    launched: Vec<(MoverArgs, bool)>,
}

impl MoverLauncher for Held {
    fn lanes(&self) -> *const MoverRing {
        self.of.lanes()
    }

    fn jobs(&self) -> *const Jobs {
        self.of.jobs()
    }

    unsafe fn launch(&mut self, args: MoverArgs, crew: bool) -> Result<(), String> {
        self.launched.push((args, crew));
        Ok(())
    }

    fn leave_behind(&mut self) {
        self.of.leave_behind();
    }
}

/// A copy into GPU memory that is started while a launched kernel waits for the GPU may never complete, so the plugin
/// launches no kernel again.
#[test]
fn kernel_that_starts_late_exits_and_stays_the_last_one() {
    let memory = Memory::new();
    let kernel = Held { of: OnCpu::new(BLOCKS_HERE).unwrap(), launched: Vec::new() };
    let mut copies = ByKernel::new(LateCopies::default(), kernel);
    let copy = |copies: &mut ByKernel<LateCopies, Held>, number: u64| {
        // SAFETY: the word is in the memory, which lives until everything has passed.
        unsafe { copies.put_word(memory.device(8), memory.scratch(number), number) }.unwrap();
        let mark = copies.mark(CopyDirection::In).unwrap();
        until(copies, "a mark", |copies| copies.passed(CopyDirection::In).unwrap() >= mark);
        // SAFETY: no writes are in flight.
        assert_eq!(unsafe { (memory.device(8) as *const u64).read_volatile() }, number);
    };
    let mut number = 0;
    while !matches!(copies.state, State::Late) {
        assert!(number < 1000, "the kernel is not late: {:?}", copies.state());
        number += 1;
        copy(&mut copies, number);
    }
    let (args, crew) = copies.kernel.launched[0];
    // SAFETY: the memory of all copies lives until the end of the test.
    unsafe { copies.kernel.of.launch(args, crew) }.unwrap();
    let late = Instant::now() + Duration::from_secs(20);
    while !matches!(copies.state, State::Copies) {
        assert!(Instant::now() < late, "the kernel has not exited: {:?}", copies.state());
        copies.turn().unwrap();
    }
    for more in 1..100 {
        copy(&mut copies, number + more);
    }
    assert_eq!(copies.kernel.launched.len(), 1);
    assert!(copies.name().contains("did not start"), "{}", copies.name());
}

/// Records which launches had blocks for long copies.
struct Watched {
    of: OnCpu,
    crews: Vec<bool>,
    /// Whether the kernel exits on its own almost immediately, regardless of its entries.
    hasty: bool,
}

impl Watched {
    fn new(hasty: bool) -> Watched {
        Watched { of: OnCpu::new(BLOCKS_HERE).unwrap(), crews: Vec::new(), hasty }
    }
}

impl MoverLauncher for Watched {
    fn lanes(&self) -> *const MoverRing {
        self.of.lanes()
    }

    fn jobs(&self) -> *const Jobs {
        self.of.jobs()
    }

    unsafe fn launch(&mut self, args: MoverArgs, crew: bool) -> Result<(), String> {
        self.crews.push(crew);
        let timeout_ns = if self.hasty { 1 } else { args.timeout_ns };
        // SAFETY: the caller upholds the contract of `launch`.
        unsafe { self.of.launch(MoverArgs { timeout_ns, ..args }, crew) }
    }

    fn leave_behind(&mut self) {
        self.of.leave_behind();
    }
}

/// This thread was delayed for longer than the kernel's deadline. The next kernel executes the entries left in the
/// rings.
#[test]
fn idle_exit_of_kernel_loses_no_copies() {
    let memory = Memory::new();
    let mut copies = ByKernel::new(LateCopies::default(), Watched::new(true));
    called(&mut copies, &memory);
    for number in 1..2000u64 {
        // SAFETY: the word is in the memory, which lives until everything has passed.
        unsafe { copies.put_word(memory.device(8), memory.scratch(number), number) }.unwrap();
        let mark = copies.mark(CopyDirection::In).unwrap();
        until(&mut copies, "a mark", |copies| copies.passed(CopyDirection::In).unwrap() >= mark);
        // SAFETY: no writes are in flight.
        assert_eq!(unsafe { (memory.device(8) as *const u64).read_volatile() }, number);
    }
    assert!(copies.number > 1, "{}", copies.name());
}

/// A kernel with many blocks would prevent other kernels that need nearly all multiprocessors from starting.
#[test]
fn only_long_copies_call_for_more_blocks() {
    const LONG_BYTES: usize = LONG as usize + 8;
    let memory = Memory::new();
    let (from, to) = (vec![7u8; LONG_BYTES], vec![0u8; LONG_BYTES]);
    let mut copies = ByKernel::new(LateCopies::default(), Watched::new(false));
    called(&mut copies, &memory);
    assert!(copies.kernel.crews.iter().all(|crew| !crew), "{:?}", copies.kernel.crews);
    let short = copies.kernel.crews.len();
    let late = Instant::now() + Duration::from_secs(20);
    while !copies.kernel.crews[short..].contains(&true) {
        assert!(Instant::now() < late, "no kernel for long copies");
        // SAFETY: both ranges have the requested bytes, and live until the mark is passed.
        unsafe { copies.put_in(to.as_ptr() as u64, from.as_ptr() as u64, LONG_BYTES) }.unwrap();
        let mark = copies.mark(CopyDirection::In).unwrap();
        until(&mut copies, "a mark", |copies| copies.passed(CopyDirection::In).unwrap() >= mark);
    }
    copies.settle();
    assert!(std::hint::black_box(&to) == &from);
}

/// Calls that wait for the whole GPU must not wait for the kernel.
#[test]
fn idle_copy_kernel_exits() {
    let memory = Memory::new();
    let mut copies = ByKernel::new(LateCopies::default(), OnCpu::new(BLOCKS_HERE).unwrap());
    called(&mut copies, &memory);
    let late = Instant::now() + Duration::from_secs(20);
    while !matches!(copies.state, State::Copies) {
        assert!(Instant::now() < late, "it has not gone");
        copies.turn().unwrap();
    }
    assert_eq!(copies.rings.gone(copies.number), [true; 2]);
}
