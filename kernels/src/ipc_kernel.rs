//! The kernels of `ginlab ipc`: a grid writes to, copies to or reads from another GPU's memory.
//!
//! All of them process the memory in a grid-stride loop, so that the threads of a warp access one block of `32 x width`
//! bytes. Each thread has [`UNROLL`] accesses in flight. The remaining accesses take one more pass of the same size, in
//! which each access is conditional.

use crate::ipc::{IpcKernelArgs, POISON, STEP, byte, each_tail_byte, signal, word, words};
use cuda_std::memory::{fence_acq_rel_sys, fetch_add_relaxed_gpu_u64};
use cuda_std::vector::{load_words, opaque_u32, opaque_u64, store_words};
use cuda_std::{kernel, thread};

/// Number of accesses in flight per thread.
pub const UNROLL: usize = 8;

/// Position of a thread in the grid-stride loop, in vectors of `W` words.
struct ThreadPosition<const W: usize> {
    /// Index of the thread's next vector.
    index: u64,
    /// Number of vectors between two accesses of a thread: the number of threads of the grid.
    stride: u64,
    /// Total number of vectors.
    vectors: u64,
}

impl<const W: usize> ThreadPosition<W> {
    const BYTES: u64 = 4 * W as u64;

    #[inline(always)]
    fn new(bytes: u64) -> ThreadPosition<W> {
        ThreadPosition {
            index: opaque_u64(this_thread()),
            stride: opaque_u64(grid_threads()),
            vectors: bytes / Self::BYTES,
        }
    }

    /// Returns whether a whole round of [`UNROLL`] accesses is left.
    #[inline(always)]
    fn has_round(&self) -> bool {
        self.index + (UNROLL as u64 - 1) * self.stride < self.vectors
    }

    #[inline(always)]
    fn next_round(&mut self) {
        self.index += UNROLL as u64 * self.stride;
    }

    /// Returns the addresses of a round's accesses.
    #[inline(always)]
    fn addresses(&self, base: u64) -> Addresses {
        Addresses { next: base + self.index * Self::BYTES, step: self.stride * Self::BYTES }
    }

    /// Returns whether access `round` of the last round is within the memory.
    #[inline(always)]
    fn is_left(&self, round: usize) -> bool {
        self.index + round as u64 * self.stride < self.vectors
    }
}

/// Addresses with a constant distance from each other.
struct Addresses {
    next: u64,
    step: u64,
}

impl Addresses {
    #[inline(always)]
    fn take(&mut self) -> *mut u32 {
        let address = self.next;
        self.next = opaque_u64(address + self.step);
        address as *mut u32
    }
}

#[inline(always)]
fn grid_threads() -> u64 {
    thread::grid_dim_x() as u64 * thread::block_dim_x() as u64
}

/// Returns the thread's index in 64 bits: a grid may have more than 2^32 threads.
#[inline(always)]
fn this_thread() -> u64 {
    thread::block_idx_x() as u64 * thread::block_dim_x() as u64 + thread::thread_idx_x() as u64
}

/// Writes the pattern.
#[inline(always)]
unsafe fn write<const W: usize>(args: &IpcKernelArgs) {
    let mut way = ThreadPosition::<W>::new(args.bytes);
    // The word of the pattern at the thread's next vector, and its difference to the word at the following vector.
    let mut value = word(args.seed, way.index * W as u64);
    let step = opaque_u32((way.stride as u32).wrapping_mul(W as u32).wrapping_mul(STEP));
    while way.has_round() {
        let mut targets = way.addresses(args.destination as u64);
        for _ in 0..UNROLL {
            // SAFETY: the kernel's caller guarantees that `bytes` bytes are valid; a whole round is below the number of
            // vectors.
            unsafe { store_words(targets.take(), words::<W>(value)) };
            value = opaque_u32(value.wrapping_add(step));
        }
        way.next_round();
    }
    let mut targets = way.addresses(args.destination as u64);
    for round in 0..UNROLL {
        let target = targets.take();
        if way.is_left(round) {
            // SAFETY: the kernel's caller guarantees that `bytes` bytes are valid; the vector is below the number of
            // vectors.
            unsafe { store_words(target, words::<W>(value)) };
        }
        value = opaque_u32(value.wrapping_add(step));
    }
    each_tail_byte(args.bytes, ThreadPosition::<W>::BYTES, |offset| {
        // SAFETY: the kernel's caller guarantees that `bytes` bytes are valid, and `offset` is below `bytes`.
        unsafe { args.destination.add(offset as usize).write(byte(args.seed, offset)) }
    });
    // SAFETY: the kernel's caller guarantees that `counter` and `flag` are valid.
    unsafe { signal(args) };
}

/// Loads a round.
#[inline(always)]
unsafe fn load_round<const W: usize>(way: &ThreadPosition<W>, source: *const u8) -> [[u32; W]; UNROLL] {
    let mut held = [[0; W]; UNROLL];
    let mut sources = way.addresses(source as u64);
    for held in &mut held {
        // SAFETY: the kernel's caller guarantees that `bytes` bytes are valid; a whole round is below the number of
        // vectors.
        *held = unsafe { load_words(sources.take()) };
    }
    held
}

/// Loads the rest of the last round. Accesses beyond the end yield 0.
#[inline(always)]
unsafe fn load_rest<const W: usize>(way: &ThreadPosition<W>, source: *const u8) -> [[u32; W]; UNROLL] {
    let mut held = [[0; W]; UNROLL];
    let mut sources = way.addresses(source as u64);
    for (round, held) in held.iter_mut().enumerate() {
        let source = sources.take();
        if way.is_left(round) {
            // SAFETY: the kernel's caller guarantees that `bytes` bytes are valid; the vector is below the number of
            // vectors.
            *held = unsafe { load_words(source) };
        }
    }
    held
}

/// Copies `source`. All loads of a round precede its stores.
#[inline(always)]
unsafe fn copy<const W: usize>(args: &IpcKernelArgs) {
    let mut way = ThreadPosition::<W>::new(args.bytes);
    while way.has_round() {
        // SAFETY: the kernel's caller guarantees that `bytes` bytes at `source` are valid, and a whole round is left.
        let held = unsafe { load_round(&way, args.source) };
        let mut targets = way.addresses(args.destination as u64);
        for held in &held {
            // SAFETY: the kernel's caller guarantees that `bytes` bytes are valid; a whole round is below the number of
            // vectors.
            unsafe { store_words(targets.take(), *held) };
        }
        way.next_round();
    }
    // SAFETY: the kernel's caller guarantees that `bytes` bytes at `source` are valid.
    let held = unsafe { load_rest(&way, args.source) };
    let mut targets = way.addresses(args.destination as u64);
    for (round, held) in held.iter().enumerate() {
        let target = targets.take();
        if way.is_left(round) {
            // SAFETY: the kernel's caller guarantees that `bytes` bytes are valid; the vector is below the number of
            // vectors.
            unsafe { store_words(target, *held) };
        }
    }
    each_tail_byte(args.bytes, ThreadPosition::<W>::BYTES, |offset| {
        // SAFETY: the kernel's caller guarantees that `bytes` bytes are valid, and `offset` is below `bytes`.
        unsafe { args.destination.add(offset as usize).write(args.source.add(offset as usize).read()) }
    });
    // SAFETY: the kernel's caller guarantees that `counter` and `flag` are valid.
    unsafe { signal(args) };
}

/// Reads `source`. Every thread stores the sum of the values that it has read, because the compiler would otherwise
/// remove the loads.
#[inline(always)]
unsafe fn read<const W: usize>(args: &IpcKernelArgs) {
    let mut way = ThreadPosition::<W>::new(args.bytes);
    let mut sum = 0u32;
    let mut add = |held: [[u32; W]; UNROLL]| {
        for words in &held {
            sum = words.iter().fold(sum, |sum, word| sum.wrapping_add(*word));
        }
    };
    while way.has_round() {
        // SAFETY: the kernel's caller guarantees that `bytes` bytes at `source` are valid, and a whole round is left.
        add(unsafe { load_round(&way, args.source) });
        way.next_round();
    }
    // SAFETY: the kernel's caller guarantees that `bytes` bytes at `source` are valid.
    add(unsafe { load_rest(&way, args.source) });
    // Adds the remaining bytes as `ipc::sum` does: whole words after the last vector, then single bytes.
    each_tail_byte(args.bytes, ThreadPosition::<W>::BYTES, |offset| {
        // SAFETY: the kernel's caller guarantees that `bytes` bytes are valid, and `offset` is below `bytes`.
        let value = unsafe { args.source.add(offset as usize).read() } as u32;
        let in_word = offset < args.bytes / 4 * 4;
        sum = sum.wrapping_add(if in_word { value << (offset % 4 * 8) } else { value });
    });
    // SAFETY: the kernel's caller guarantees that there is one sum per thread of the grid.
    unsafe { args.sums.add(this_thread() as usize).write(sum) };
}

/// Writes the pattern, with stores of 4 bytes.
///
/// # Safety
/// The memory that the kernel reads or writes must be valid for `bytes` bytes while the grid runs. No other thread may
/// write it, or read what the kernel writes. `counter` and `flag` must meet the requirements of `ipc::signal`, and
/// `sums` must have one entry per thread of the grid.
#[kernel]
pub unsafe fn ipc_write_4(args: IpcKernelArgs) {
    // SAFETY: the caller upholds the requirements of the kernel.
    unsafe { write::<1>(&args) };
}

/// Writes the pattern, with stores of 8 bytes.
///
/// # Safety
/// The requirements of [`ipc_write_4`] must hold.
#[kernel]
pub unsafe fn ipc_write_8(args: IpcKernelArgs) {
    // SAFETY: the caller upholds the requirements of the kernel.
    unsafe { write::<2>(&args) };
}

/// Writes the pattern, with stores of 16 bytes.
///
/// # Safety
/// The requirements of [`ipc_write_4`] must hold.
#[kernel]
pub unsafe fn ipc_write_16(args: IpcKernelArgs) {
    // SAFETY: the caller upholds the requirements of the kernel.
    unsafe { write::<4>(&args) };
}

/// Copies, with loads and stores of 4 bytes.
///
/// # Safety
/// The requirements of [`ipc_write_4`] must hold.
#[kernel]
pub unsafe fn ipc_copy_4(args: IpcKernelArgs) {
    // SAFETY: the caller upholds the requirements of the kernel.
    unsafe { copy::<1>(&args) };
}

/// Copies, with loads and stores of 8 bytes.
///
/// # Safety
/// The requirements of [`ipc_write_4`] must hold.
#[kernel]
pub unsafe fn ipc_copy_8(args: IpcKernelArgs) {
    // SAFETY: the caller upholds the requirements of the kernel.
    unsafe { copy::<2>(&args) };
}

/// Copies, with loads and stores of 16 bytes.
///
/// # Safety
/// The requirements of [`ipc_write_4`] must hold.
#[kernel]
pub unsafe fn ipc_copy_16(args: IpcKernelArgs) {
    // SAFETY: the caller upholds the requirements of the kernel.
    unsafe { copy::<4>(&args) };
}

/// Reads, with loads of 4 bytes.
///
/// # Safety
/// The requirements of [`ipc_write_4`] must hold.
#[kernel]
pub unsafe fn ipc_read_4(args: IpcKernelArgs) {
    // SAFETY: the caller upholds the requirements of the kernel.
    unsafe { read::<1>(&args) };
}

/// Reads, with loads of 8 bytes.
///
/// # Safety
/// The requirements of [`ipc_write_4`] must hold.
#[kernel]
pub unsafe fn ipc_read_8(args: IpcKernelArgs) {
    // SAFETY: the caller upholds the requirements of the kernel.
    unsafe { read::<2>(&args) };
}

/// Reads, with loads of 16 bytes.
///
/// # Safety
/// The requirements of [`ipc_write_4`] must hold.
#[kernel]
pub unsafe fn ipc_read_16(args: IpcKernelArgs) {
    // SAFETY: the caller upholds the requirements of the kernel.
    unsafe { read::<4>(&args) };
}

/// Writes the pattern with the loop of ginlab's C++ predecessor (Libefaxx). The loop writes one 4-byte word at a time
/// and is not unrolled by hand. At the end every thread executes a system-scope fence.
///
/// # Safety
/// The requirements of [`ipc_write_4`] must hold.
#[kernel]
pub unsafe fn ipc_int_loop(args: IpcKernelArgs) {
    let (mut index, threads, count) = (this_thread(), grid_threads(), args.bytes / 4);
    let target = args.destination.cast::<u32>();
    while index < count {
        // SAFETY: the caller guarantees that `bytes` bytes are valid, and the word is within them.
        unsafe { store_words(target.add(index as usize), [word(args.seed, index)]) };
        index += threads;
    }
    each_tail_byte(args.bytes, 4, |offset| {
        // SAFETY: the caller guarantees that `bytes` bytes are valid, and `offset` is below `bytes`.
        unsafe { args.destination.add(offset as usize).write(byte(args.seed, offset)) }
    });
    fence_acq_rel_sys();
    // SAFETY: the caller guarantees that `counter` and `flag` are valid.
    unsafe { signal(&args) };
}

/// Fills `destination` with the pattern, each word combined with `xor`. Used to fill sources and to poison
/// destinations.
///
/// # Safety
/// The requirements of [`ipc_write_4`] must hold.
#[kernel]
pub unsafe fn ipc_fill(args: IpcKernelArgs) {
    let (mut index, threads) = (this_thread(), grid_threads());
    let target = args.destination.cast::<u32>();
    while index < args.bytes / 4 {
        // SAFETY: the caller guarantees that `bytes` bytes are valid, and the word is within them.
        unsafe { store_words(target.add(index as usize), [word(args.seed, index) ^ args.xor]) };
        index += threads;
    }
    each_tail_byte(args.bytes, 4, |offset| {
        // SAFETY: the caller guarantees that `bytes` bytes are valid, and `offset` is below `bytes`.
        unsafe { args.destination.add(offset as usize).write(byte(args.seed, offset) ^ args.xor as u8) }
    });
}

/// Adds the number of bytes of `destination` that differ from the pattern to `counter`.
///
/// # Safety
/// `destination` must be valid for `bytes` bytes, and no other thread may write it while the grid runs. `counter` must
/// be valid.
#[kernel]
pub unsafe fn ipc_check(args: IpcKernelArgs) {
    let (mut index, threads) = (this_thread(), grid_threads());
    let found = args.destination.cast::<u32>();
    let mut wrong = 0u64;
    while index < args.bytes / 4 {
        // SAFETY: the caller guarantees that `bytes` bytes are valid, and the word is within them.
        let [value] = unsafe { load_words::<1>(found.add(index as usize)) };
        let difference = value ^ word(args.seed, index);
        for byte in 0..4 {
            wrong += (difference >> (byte * 8) & 0xFF != 0) as u64;
        }
        index += threads;
    }
    each_tail_byte(args.bytes, 4, |offset| {
        // SAFETY: the caller guarantees that `bytes` bytes are valid, and `offset` is below `bytes`.
        let value = unsafe { args.destination.add(offset as usize).read() };
        wrong += (value != byte(args.seed, offset)) as u64;
    });
    if wrong > 0 {
        // SAFETY: the caller guarantees that `counter` is valid.
        fetch_add_relaxed_gpu_u64(unsafe { &*args.counter }, wrong);
    }
}

/// Poisoned memory differs from the pattern in every byte.
const _: () = assert!(POISON & 0xFF != 0 && POISON == (POISON & 0xFF) * 0x0101_0101);
