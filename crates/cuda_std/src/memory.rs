//! Words shared between device threads, host threads and NICs, and the operations on them.
//!
//! A name reads *operation, order, scope, width*: `store_relaxed_sys_v2_u64` is PTX `st.relaxed.sys.v2.u64`. Scopes are
//! those of the PTX memory model: `gpu` reaches all threads of one GPU, `sys` reaches the CPU, other GPUs and the NICs
//! too. On the host a scope means nothing, and the order becomes the C++ one of the same name.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emulation;
#[cfg(target_arch = "nvptx64")]
use core::{arch::asm, cell::UnsafeCell};
#[cfg(not(any(target_arch = "nvptx64", loom)))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A 64-bit word that several parties read and write.
#[cfg(target_arch = "nvptx64")]
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Word(UnsafeCell<u64>);

/// A 64-bit word that several parties read and write.
#[cfg(not(target_arch = "nvptx64"))]
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Word(AtomicU64);

// SAFETY: a Word is reached only through the atomic operations of this module.
#[cfg(target_arch = "nvptx64")]
unsafe impl Sync for Word {}

impl Word {
    /// A word with this value.
    pub fn new(value: u64) -> Word {
        #[cfg(target_arch = "nvptx64")]
        return Word(UnsafeCell::new(value));
        #[cfg(not(target_arch = "nvptx64"))]
        return Word(AtomicU64::new(value));
    }
}

/// A doorbell: 32 bits that device threads store and a card reads.
#[cfg(target_arch = "nvptx64")]
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Doorbell(UnsafeCell<u32>);

/// A doorbell: 32 bits that device threads store and a card reads.
#[cfg(not(target_arch = "nvptx64"))]
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Doorbell(AtomicU32);

// SAFETY: a Doorbell is reached only through the atomic operations of this module.
#[cfg(target_arch = "nvptx64")]
unsafe impl Sync for Doorbell {}

/// Two words on one 16-byte line: one 128-bit load or store reaches both.
#[repr(C, align(16))]
#[derive(Debug, Default)]
pub struct WordPair(pub Word, pub Word);

impl WordPair {
    /// A pair with these values.
    pub fn new(first: u64, second: u64) -> WordPair {
        WordPair(Word::new(first), Word::new(second))
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Word>() == 8 && size_of::<WordPair>() == 16 && align_of::<WordPair>() == 16);

/// Defines loads: PTX instruction on the device, ordering on the host.
macro_rules! loads {
    ($($(#[$doc:meta])* $name:ident = $ptx:literal, $order:ident;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(word: &Word) -> u64 {
            #[cfg(target_arch = "nvptx64")]
            // SAFETY: the reference is valid for reads, and every party uses atomic accesses of this width.
            unsafe {
                written!(reg64, concat!($ptx, " {out}, [{address}];"), address = in(reg64) word.0.get(), options(nostack))
            }
            #[cfg(not(target_arch = "nvptx64"))]
            {
                emulation::step();
                word.0.load(Ordering::$order)
            }
        }
    )*};
}

/// Defines loads of both words of a pair by one instruction, for the emulated device with a step before them or without.
macro_rules! loads_of_pairs {
    ($($(#[$doc:meta])* $name:ident = $ptx:literal, $order:ident $(behind $step:ident)?;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(pair: &WordPair) -> (u64, u64) {
            #[cfg(target_arch = "nvptx64")]
            {
                let (first, second): (u64, u64);
                // SAFETY: the reference is valid for reads and 16-byte aligned by its type.
                unsafe {
                    asm!(concat!($ptx, " {{{first}, {second}}}, [{address}];"), first = out(reg64) first,
                         second = out(reg64) second, address = in(reg64) pair.0.0.get(), options(nostack));
                }
                (first, second)
            }
            #[cfg(not(target_arch = "nvptx64"))]
            {
                $(emulation::$step();)?
                (pair.0.0.load(Ordering::$order), pair.1.0.load(Ordering::$order))
            }
        }
    )*};
}

/// Defines stores: PTX instruction on the device, ordering on the host.
macro_rules! stores {
    ($($(#[$doc:meta])* $name:ident = $ptx:literal, $order:ident;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(word: &Word, value: u64) {
            #[cfg(target_arch = "nvptx64")]
            // SAFETY: the reference is valid for writes (a Word is interior mutable), all accesses are atomic.
            unsafe {
                asm!(concat!($ptx, " [{address}], {value};"), address = in(reg64) word.0.get(),
                     value = in(reg64) value, options(nostack));
            }
            #[cfg(not(target_arch = "nvptx64"))]
            {
                emulation::step();
                emulation::stored(word, stringify!($order) == "Release");
                word.0.store(value, Ordering::$order);
            }
        }
    )*};
}

/// Defines exchanges that store `new` where the word was `expected`, and return the value before; steps as with pairs.
macro_rules! compare_exchanges {
    ($($(#[$doc:meta])* $name:ident = $ptx:literal, $order:ident $(behind $step:ident)?;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(word: &Word, expected: u64, new: u64) -> u64 {
            #[cfg(target_arch = "nvptx64")]
            // SAFETY: the reference is valid for an atomic read-modify-write.
            unsafe {
                written!(reg64, concat!($ptx, " {out}, [{address}], {expected}, {new};"), address = in(reg64) word.0.get(),
                         expected = in(reg64) expected, new = in(reg64) new, options(nostack))
            }
            #[cfg(not(target_arch = "nvptx64"))]
            {
                $(emulation::$step();)?
                let (Ok(before) | Err(before)) =
                    word.0.compare_exchange(expected, new, Ordering::$order, failing(Ordering::$order));
                before
            }
        }
    )*};
}

/// The order of a compare-exchange that has failed: a load's part of it.
#[cfg(not(target_arch = "nvptx64"))]
#[inline(always)]
fn failing(order: Ordering) -> Ordering {
    match order {
        Ordering::AcqRel => Ordering::Acquire,
        _ => Ordering::Relaxed,
    }
}

loads! {
    /// `ld.relaxed.gpu.u64`: the freshest value among this GPU's threads, no order.
    load_relaxed_gpu_u64 = "ld.relaxed.gpu.global.u64", Relaxed;
    /// `ld.acquire.gpu.u64`: what the releasing thread of this GPU did before is visible after.
    load_acquire_gpu_u64 = "ld.acquire.gpu.global.u64", Acquire;
    /// `ld.relaxed.sys.u64`: the freshest value among all parties, no order.
    load_relaxed_sys_u64 = "ld.relaxed.sys.global.u64", Relaxed;
    /// `ld.acquire.sys.u64`: what the releasing party (CPU or GPU) did before is visible after.
    load_acquire_sys_u64 = "ld.acquire.sys.global.u64", Acquire;
}

loads_of_pairs! {
    /// `ld.acquire.sys.v2.u64`: both words by one 128-bit load. As with the store, the halves are separate accesses in no
    /// particular order: one may be older than the other. The host body reads the first word first, so that there, and under
    /// loom, the first is the one that may be older.
    load_acquire_sys_v2_u64 = "ld.acquire.sys.global.v2.u64", Acquire behind step;
    /// `ld.acquire.gpu.v2.u64`: both words by one 128-bit load; order as in [`load_acquire_sys_v2_u64`].
    load_acquire_gpu_v2_u64 = "ld.acquire.gpu.global.v2.u64", Acquire behind step;
    /// `ld.relaxed.sys.v2.u64`: both words by one 128-bit load, no order; the halves are separate accesses.
    load_relaxed_sys_v2_u64 = "ld.relaxed.sys.global.v2.u64", Relaxed;
}

stores! {
    /// `st.relaxed.gpu.u64`: for threads of this GPU, no order.
    store_relaxed_gpu_u64 = "st.relaxed.gpu.global.u64", Relaxed;
    /// `st.release.gpu.u64`: all that this thread did before is visible to a thread of this GPU that acquires it.
    store_release_gpu_u64 = "st.release.gpu.global.u64", Release;
    /// `st.relaxed.sys.u64`: for all parties, no order.
    store_relaxed_sys_u64 = "st.relaxed.sys.global.u64", Relaxed;
    /// `st.release.sys.u64`: all that this thread did before is visible to a party that acquires it.
    store_release_sys_u64 = "st.release.sys.global.u64", Release;
    /// `st.mmio.relaxed.sys.b64`: as `st.relaxed.sys`, and it reaches a card's registers as it stands: once, and whole. PTX 8.2.
    store_mmio_relaxed_sys_u64 = "st.mmio.relaxed.sys.global.b64", Relaxed;
}

/// `st.mmio.relaxed.sys.b32`: a card's doorbell; no order, so a fence stands before it. PTX 8.2.
#[inline(always)]
pub fn store_mmio_relaxed_sys_u32(doorbell: &Doorbell, value: u32) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the reference is valid for writes, all accesses are atomic.
    unsafe {
        asm!("st.mmio.relaxed.sys.global.b32 [{address}], {value};", address = in(reg64) doorbell.0.get(),
             value = in(reg32) value, options(nostack));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        emulation::step();
        doorbell.0.store(value, Ordering::Relaxed);
    }
}

/// What a doorbell says, for a card in software: an acquire load by the CPU's own threads.
#[cfg(not(target_arch = "nvptx64"))]
#[inline(always)]
pub fn load_acquire_host_u32(doorbell: &Doorbell) -> u32 {
    doorbell.0.load(Ordering::Acquire)
}

compare_exchanges! {
    /// `atom.relaxed.gpu.cas.b64`: stores `new` where the word was `expected`; returns the value before. For words that the
    /// threads of one GPU alone exchange. In host memory too: at system scope most GPUs cannot do it there.
    compare_exchange_relaxed_gpu_u64 = "atom.relaxed.gpu.global.cas.b64", Relaxed behind step;
    /// `atom.acquire.gpu.cas.b64`: stores `new` where the word was `expected`; returns the value before.
    compare_exchange_acquire_gpu_u64 = "atom.acquire.gpu.global.cas.b64", Acquire behind step;
    /// `atom.acq_rel.gpu.cas.b64`: stores `new` where the word was `expected`; returns the value before.
    compare_exchange_acq_rel_gpu_u64 = "atom.acq_rel.gpu.global.cas.b64", AcqRel behind step;
    /// `atom.relaxed.sys.cas.b64`: stores `new` where the word was `expected`; returns the value before. For words of GPU memory.
    compare_exchange_relaxed_sys_u64 = "atom.relaxed.sys.global.cas.b64", Relaxed;
}

/// `st.relaxed.sys.v2.u64`: both words by one 128-bit store. The two halves are separate accesses to the memory model,
/// so a protocol must not rely on seeing both at once (the ring does not: each word carries the parity).
#[inline(always)]
pub fn store_relaxed_sys_v2_u64(pair: &WordPair, first: u64, second: u64) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the reference is valid for writes and 16-byte aligned by its type.
    unsafe {
        asm!("st.relaxed.sys.global.v2.u64 [{address}], {{{first}, {second}}};", address = in(reg64) pair.0.0.get(),
             first = in(reg64) first, second = in(reg64) second, options(nostack));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        emulation::step();
        for (word, value) in [(&pair.0, first), (&pair.1, second)] {
            emulation::stored(word, false);
            word.0.store(value, Ordering::Relaxed);
        }
    }
}

/// A release store by the CPU's own threads. As `store_release_sys_u64`, but it is no access of an emulated thread, so nobody asks for one:
/// the look for it in the proxy's loop took the ring from 630 to 370 Mops (H200's host).
#[cfg(not(target_arch = "nvptx64"))]
#[inline(always)]
pub fn store_release_host_u64(word: &Word, value: u64) {
    word.0.store(value, Ordering::Release);
}

/// An acquire load by the CPU's own threads; see [`store_release_host_u64`].
#[cfg(not(target_arch = "nvptx64"))]
#[inline(always)]
pub fn load_acquire_host_u64(word: &Word) -> u64 {
    word.0.load(Ordering::Acquire)
}

/// A relaxed load by the CPU's own threads; see [`store_release_host_u64`].
#[cfg(not(target_arch = "nvptx64"))]
#[inline(always)]
pub fn load_relaxed_host_u64(word: &Word) -> u64 {
    word.0.load(Ordering::Relaxed)
}

/// An acquire and release fence of the CPU's own threads; see [`store_release_host_u64`].
#[cfg(not(target_arch = "nvptx64"))]
#[inline(always)]
pub fn fence_acq_rel_host() {
    fence(Ordering::AcqRel);
}

/// Relaxed loads of adjacent words, for the CPU: each word exclusive-or `flip`, and whether the top bit of one of them is set
/// then. An even number of words, aligned to 16 bytes, comes by loads of 16 bytes where the CPU has these; as with the
/// device's wide accesses, each word is a load of its own, in no particular order.
#[cfg(not(target_arch = "nvptx64"))]
#[inline(always)]
pub fn load_relaxed_sys_words<const N: usize>(words: &[Word; N], flip: u64) -> ([u64; N], bool) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    if N.is_multiple_of(2) {
        use core::arch::x86_64::{
            __m128i, _mm_castsi128_pd, _mm_movemask_pd, _mm_or_si128, _mm_set1_epi64x, _mm_setzero_si128, _mm_xor_si128,
        };
        debug_assert!(words.as_ptr().addr().is_multiple_of(16), "words that are aligned to 16 bytes");
        let mut values = [0u64; N];
        // SAFETY: every x86-64 has SSE2. The pairs are within `words`, aligned as said, and within `values`. The load is inline
        // assembly, since other parties write these words.
        return unsafe {
            let flip = _mm_set1_epi64x(flip as i64);
            let mut any = _mm_setzero_si128();
            for pair in 0..N / 2 {
                let mut value: __m128i;
                core::arch::asm!("movdqa {value}, [{address}]", value = out(xmm_reg) value,
                     address = in(reg) words.as_ptr().add(2 * pair), options(nostack, preserves_flags, readonly));
                value = _mm_xor_si128(value, flip);
                any = _mm_or_si128(any, value);
                values.as_mut_ptr().add(2 * pair).cast::<__m128i>().write_unaligned(value);
            }
            (values, _mm_movemask_pd(_mm_castsi128_pd(any)) != 0)
        };
    }
    let values: [u64; N] = core::array::from_fn(|index| words[index].0.load(Ordering::Relaxed) ^ flip);
    (values, values.iter().any(|value| value >> 63 != 0))
}

/// `atom.relaxed.gpu.add.u64`: returns the value before.
#[inline(always)]
pub fn fetch_add_relaxed_gpu_u64(word: &Word, value: u64) -> u64 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the reference is valid for an atomic read-modify-write.
    unsafe {
        written!(reg64, "atom.relaxed.gpu.global.add.u64 {out}, [{address}], {value};", address = in(reg64) word.0.get(),
                 value = in(reg64) value, options(nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        emulation::step();
        word.0.fetch_add(value, Ordering::Relaxed)
    }
}

/// `atom.acq_rel.gpu.add.u64`: returns the value before. All that this thread did before is visible to a thread of this GPU whose later
/// such add (or acquire) sees it; and what those did that it sees is visible here.
#[inline(always)]
pub fn fetch_add_acq_rel_gpu_u64(word: &Word, value: u64) -> u64 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the reference is valid for an atomic read-modify-write.
    unsafe {
        written!(reg64, "atom.acq_rel.gpu.global.add.u64 {out}, [{address}], {value};", address = in(reg64) word.0.get(),
                 value = in(reg64) value, options(nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        emulation::step();
        word.0.fetch_add(value, Ordering::AcqRel)
    }
}

/// `atom.relaxed.gpu.exch.b64`: stores `new`; returns the value before. Fences of this thread before and behind it make it a release and an
/// acquire.
#[inline(always)]
pub fn exchange_relaxed_gpu_u64(word: &Word, new: u64) -> u64 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the reference is valid for an atomic read-modify-write.
    unsafe {
        written!(reg64, "atom.relaxed.gpu.global.exch.b64 {out}, [{address}], {value};", address = in(reg64) word.0.get(),
                 value = in(reg64) new, options(nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        emulation::step();
        word.0.swap(new, Ordering::Relaxed)
    }
}

/// `red.release.gpu.max.u64`: raises the word to the value; all that this thread did before is visible to a thread of this
/// GPU that acquires it (or a later value that another such raise has left).
#[inline(always)]
pub fn fetch_max_release_gpu_u64(word: &Word, value: u64) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the reference is valid for an atomic read-modify-write.
    unsafe {
        asm!("red.release.gpu.global.max.u64 [{address}], {value};", address = in(reg64) word.0.get(),
             value = in(reg64) value, options(nostack));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        emulation::step();
        word.0.fetch_max(value, Ordering::Release);
    }
}

/// `fence.acq_rel.sys`: what this thread did or observed before is ordered, for CPU, NICs and GPUs alike, before what it
/// does after. Cumulative: behind a block barrier one thread's fence covers the writes of the whole block.
#[inline(always)]
pub fn fence_acq_rel_sys() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: a fence touches no memory of ours.
    unsafe {
        asm!("fence.acq_rel.sys;", options(nostack));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        emulation::fenced();
        fence(Ordering::AcqRel);
    }
}

/// `fence.acq_rel.gpu`: as [`fence_acq_rel_sys`], for the threads of this GPU.
#[inline(always)]
pub fn fence_acq_rel_gpu() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: a fence touches no memory of ours.
    unsafe {
        asm!("fence.acq_rel.gpu;", options(nostack));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        emulation::fenced();
        fence(Ordering::AcqRel);
    }
}

/// `red.relaxed.sys.add.u64`: for words of GPU memory that other GPUs add to as well; no order.
#[inline(always)]
pub fn add_relaxed_sys_u64(word: &Word, value: u64) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the reference is valid for an atomic read-modify-write.
    unsafe {
        asm!("red.relaxed.sys.global.add.u64 [{address}], {value};", address = in(reg64) word.0.get(),
             value = in(reg64) value, options(nostack));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    word.0.fetch_add(value, Ordering::Relaxed);
}

/// `atom.relaxed.sys.add.u64`: as [`add_relaxed_sys_u64`]; returns the value before.
#[inline(always)]
pub fn fetch_add_relaxed_sys_u64(word: &Word, value: u64) -> u64 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the reference is valid for an atomic read-modify-write.
    unsafe {
        written!(reg64, "atom.relaxed.sys.global.add.u64 {out}, [{address}], {value};", address = in(reg64) word.0.get(),
                 value = in(reg64) value, options(nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    word.0.fetch_add(value, Ordering::Relaxed)
}

/// Adds to a word that this CPU's other threads add to and the device reads: what this thread did or saw before is visible to
/// who acquires the sum. For the CPU: most GPUs cannot do it in host memory.
#[cfg(not(target_arch = "nvptx64"))]
#[inline(always)]
pub fn add_release_host_u64(word: &Word, value: u64) {
    word.0.fetch_add(value, Ordering::Release);
}
