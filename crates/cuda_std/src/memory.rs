//! Words shared between device threads, host threads and NICs, and the operations on them.
//!
//! A function name reads *operation, order, scope, width*: `store_relaxed_sys_v2_u64` is PTX `st.relaxed.sys.v2.u64`.
//! Scopes are those of the PTX memory model: `gpu` covers all threads of one GPU; `sys` also covers the CPU, other GPUs
//! and the NICs. On the host the scope has no effect, and the order is the C++ order of the same name.

#[cfg(not(target_arch = "nvptx64"))]
mod host;

#[cfg(not(target_arch = "nvptx64"))]
pub use host::{
    fence_acq_rel_host, load_acquire_host_u32, load_acquire_host_u64, load_relaxed_host_u64, load_relaxed_sys_words,
    store_release_host_u64,
};

#[cfg(not(target_arch = "nvptx64"))]
use crate::emulation;
#[cfg(target_arch = "nvptx64")]
use core::{arch::asm, cell::UnsafeCell};
#[cfg(not(any(target_arch = "nvptx64", loom)))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A 64-bit word that several parties read and write.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Word(#[cfg(target_arch = "nvptx64")] UnsafeCell<u64>, #[cfg(not(target_arch = "nvptx64"))] AtomicU64);

// SAFETY: a `Word` is accessed only through the atomic operations of this module.
#[cfg(target_arch = "nvptx64")]
unsafe impl Sync for Word {}

impl Word {
    /// Creates a word with this value.
    pub fn new(value: u64) -> Word {
        #[cfg(target_arch = "nvptx64")]
        return Word(UnsafeCell::new(value));
        #[cfg(not(target_arch = "nvptx64"))]
        return Word(AtomicU64::new(value));
    }

    /// Returns the address, for accesses of [`crate::litmus`].
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    pub(crate) fn pointer(&self) -> *mut u64 {
        self.0.get()
    }

    /// Returns the word itself, for accesses of [`crate::litmus`].
    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    pub(crate) fn atomic(&self) -> &AtomicU64 {
        &self.0
    }
}

/// A doorbell: 32 bits that device threads store and a NIC reads.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Doorbell(#[cfg(target_arch = "nvptx64")] UnsafeCell<u32>, #[cfg(not(target_arch = "nvptx64"))] AtomicU32);

// SAFETY: a `Doorbell` is accessed only through the atomic operations of this module.
#[cfg(target_arch = "nvptx64")]
unsafe impl Sync for Doorbell {}

/// Two words on one 16-byte line, which one 128-bit load or store can access together.
#[repr(C, align(16))]
#[derive(Debug, Default)]
pub struct WordPair(pub Word, pub Word);

impl WordPair {
    /// Creates a pair with these values.
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
            // SAFETY: the reference is valid for reads, and all parties use atomic accesses of this width.
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

/// Defines loads of both words of a pair by one instruction. On the emulated device, `behind step` adds a step before
/// the load.
macro_rules! loads_of_pairs {
    ($($(#[$doc:meta])* $name:ident = $ptx:literal, $order:ident $(behind $step:ident)?;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(pair: &WordPair) -> (u64, u64) {
            #[cfg(target_arch = "nvptx64")]
            {
                let (first, second): (u64, u64);
                // SAFETY: the reference is valid for reads, and is 16-byte aligned by its type.
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
            // SAFETY: the reference is valid for writes (a `Word` is interior mutable), and all accesses are atomic.
            unsafe {
                asm!(concat!($ptx, " [{address}], {value};"), address = in(reg64) word.0.get(),
                     value = in(reg64) value, options(nostack));
            }
            #[cfg(not(target_arch = "nvptx64"))]
            {
                emulation::step();
                emulation::stored(word, || word.0.load(Ordering::Relaxed) != value, stringify!($order) == "Release");
                word.0.store(value, Ordering::$order);
            }
        }
    )*};
}

/// Defines exchanges that store `new` if the word was `expected` and return the previous value. `behind step` is as for
/// loads of pairs.
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

/// Returns the order of a failed compare-exchange: the load half of `order`.
#[cfg(not(target_arch = "nvptx64"))]
#[inline(always)]
fn failing(order: Ordering) -> Ordering {
    match order {
        Ordering::AcqRel => Ordering::Acquire,
        _ => Ordering::Relaxed,
    }
}

loads! {
    /// `ld.relaxed.gpu.u64`: the latest value among this GPU's threads; no order.
    load_relaxed_gpu_u64 = "ld.relaxed.gpu.global.u64", Relaxed;
    /// `ld.acquire.gpu.u64`: accesses that the releasing thread of this GPU made before are visible after.
    load_acquire_gpu_u64 = "ld.acquire.gpu.global.u64", Acquire;
    /// `ld.relaxed.sys.u64`: the latest value among all parties; no order.
    load_relaxed_sys_u64 = "ld.relaxed.sys.global.u64", Relaxed;
    /// `ld.acquire.sys.u64`: accesses that the releasing party (CPU or GPU) made before are visible after.
    load_acquire_sys_u64 = "ld.acquire.sys.global.u64", Acquire;
}

loads_of_pairs! {
    /// `ld.acquire.sys.v2.u64`: loads both words by one 128-bit load. As with the store, the halves are separate
    /// accesses in no particular order: either may be older than the other. The host body reads the first word first,
    /// so that there, and under loom, only the first can be older.
    load_acquire_sys_v2_u64 = "ld.acquire.sys.global.v2.u64", Acquire behind step;
    /// `ld.acquire.gpu.v2.u64`: loads both words by one 128-bit load; order as in [`load_acquire_sys_v2_u64`].
    load_acquire_gpu_v2_u64 = "ld.acquire.gpu.global.v2.u64", Acquire behind step;
    /// `ld.relaxed.sys.v2.u64`: loads both words by one 128-bit load; no order, and the halves are separate accesses.
    load_relaxed_sys_v2_u64 = "ld.relaxed.sys.global.v2.u64", Relaxed;
}

stores! {
    /// `st.relaxed.gpu.u64`: for threads of this GPU; no order.
    store_relaxed_gpu_u64 = "st.relaxed.gpu.global.u64", Relaxed;
    /// `st.release.gpu.u64`: all preceding accesses of this thread are visible to a thread of this GPU that acquires
    /// it.
    store_release_gpu_u64 = "st.release.gpu.global.u64", Release;
    /// `st.relaxed.sys.u64`: for all parties; no order.
    store_relaxed_sys_u64 = "st.relaxed.sys.global.u64", Relaxed;
    /// `st.release.sys.u64`: all preceding accesses of this thread are visible to a party that acquires it.
    store_release_sys_u64 = "st.release.sys.global.u64", Release;
    /// `st.mmio.relaxed.sys.b64`: like `st.relaxed.sys`, but reaches the registers of a NIC exactly once and as one
    /// access. Requires PTX 8.2.
    store_mmio_relaxed_sys_u64 = "st.mmio.relaxed.sys.global.b64", Relaxed;
}

/// `st.mmio.relaxed.sys.b32`: rings a NIC's doorbell. Has no order, so the caller must fence first. Requires PTX 8.2.
#[inline(always)]
pub fn store_mmio_relaxed_sys_u32(doorbell: &Doorbell, value: u32) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the reference is valid for writes, and all accesses are atomic.
    unsafe {
        asm!("st.mmio.relaxed.sys.global.b32 [{address}], {value};", address = in(reg64) doorbell.0.get(),
             value = in(reg32) value, options(nostack));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        emulation::modifies();
        doorbell.0.store(value, Ordering::Relaxed);
    }
}

compare_exchanges! {
    /// `atom.relaxed.gpu.cas.b64`: stores `new` if the word was `expected`, and returns the previous value. For words
    /// that only the threads of one GPU exchange. This includes words in host memory, where most GPUs do not support a
    /// system-scope exchange.
    compare_exchange_relaxed_gpu_u64 = "atom.relaxed.gpu.global.cas.b64", Relaxed behind step;
    /// `atom.acquire.gpu.cas.b64`: stores `new` if the word was `expected`, and returns the previous value.
    compare_exchange_acquire_gpu_u64 = "atom.acquire.gpu.global.cas.b64", Acquire behind step;
    /// `atom.acq_rel.gpu.cas.b64`: stores `new` if the word was `expected`, and returns the previous value.
    compare_exchange_acq_rel_gpu_u64 = "atom.acq_rel.gpu.global.cas.b64", AcqRel behind step;
    /// `atom.relaxed.sys.cas.b64`: stores `new` if the word was `expected`, and returns the previous value. For words
    /// in GPU memory.
    compare_exchange_relaxed_sys_u64 = "atom.relaxed.sys.global.cas.b64", Relaxed;
}

/// `st.relaxed.sys.v2.u64`: stores both words by one 128-bit store. The memory model treats the halves as separate
/// accesses, so a protocol must not rely on observing both together. (The ring does not: each word carries the parity.)
#[inline(always)]
pub fn store_relaxed_sys_v2_u64(pair: &WordPair, first: u64, second: u64) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the reference is valid for writes, and is 16-byte aligned by its type.
    unsafe {
        asm!("st.relaxed.sys.global.v2.u64 [{address}], {{{first}, {second}}};", address = in(reg64) pair.0.0.get(),
             first = in(reg64) first, second = in(reg64) second, options(nostack));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        emulation::step();
        for (word, value) in [(&pair.0, first), (&pair.1, second)] {
            emulation::stored(word, || word.0.load(Ordering::Relaxed) != value, false);
            word.0.store(value, Ordering::Relaxed);
        }
    }
}

/// `atom.relaxed.gpu.add.u64`: returns the previous value.
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
        emulation::modifies();
        word.0.fetch_add(value, Ordering::Relaxed)
    }
}

/// `atom.acq_rel.gpu.add.u64`: returns the previous value. All preceding accesses of this thread are visible to a
/// thread of this GPU whose later add (or acquire) observes this one. Accesses that precede the adds observed here are
/// visible to this thread.
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
        emulation::modifies();
        word.0.fetch_add(value, Ordering::AcqRel)
    }
}

/// `atom.relaxed.gpu.exch.b64`: stores `new`, and returns the previous value. A fence of this thread before it makes it
/// a release; a fence after it makes it an acquire.
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
        emulation::modifies();
        word.0.swap(new, Ordering::Relaxed)
    }
}

/// `red.release.gpu.max.u64`: raises the word to `value`, if lower. All preceding accesses of this thread are visible
/// to a thread of this GPU that acquires this value, or a larger value of a later raise.
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
        emulation::modifies();
        word.0.fetch_max(value, Ordering::Release);
    }
}

/// `fence.acq_rel.sys`: orders all accesses that this thread made or observed before it ahead of its later accesses,
/// for the CPU, NICs and GPUs. Cumulative: after a block barrier, one thread's fence covers the writes of the whole
/// block.
#[inline(always)]
pub fn fence_acq_rel_sys() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: a fence accesses no memory.
    unsafe {
        asm!("fence.acq_rel.sys;", options(nostack));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        emulation::fenced();
        fence(Ordering::AcqRel);
    }
}

/// `fence.acq_rel.gpu`: like [`fence_acq_rel_sys`], for the threads of this GPU only.
#[inline(always)]
pub fn fence_acq_rel_gpu() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: a fence accesses no memory.
    unsafe {
        asm!("fence.acq_rel.gpu;", options(nostack));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        emulation::fenced();
        fence(Ordering::AcqRel);
    }
}

/// `red.relaxed.sys.add.u64`: adds to a word in GPU memory that other GPUs also add to; no order.
#[inline(always)]
pub fn add_relaxed_sys_u64(word: &Word, value: u64) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the reference is valid for an atomic read-modify-write.
    unsafe {
        asm!("red.relaxed.sys.global.add.u64 [{address}], {value};", address = in(reg64) word.0.get(),
             value = in(reg64) value, options(nostack));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        emulation::changes();
        word.0.fetch_add(value, Ordering::Relaxed);
    }
}

/// `atom.relaxed.sys.add.u64`: like [`add_relaxed_sys_u64`], but returns the previous value.
#[inline(always)]
pub fn fetch_add_relaxed_sys_u64(word: &Word, value: u64) -> u64 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the reference is valid for an atomic read-modify-write.
    unsafe {
        written!(reg64, "atom.relaxed.sys.global.add.u64 {out}, [{address}], {value};", address = in(reg64) word.0.get(),
                 value = in(reg64) value, options(nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        emulation::changes();
        word.0.fetch_add(value, Ordering::Relaxed)
    }
}

/// Adds to a word that other CPU threads also add to and the device reads. Accesses that this thread made or observed
/// before are visible to a party that acquires the sum. Only for the CPU: most GPUs do not support this in host memory.
#[cfg(not(target_arch = "nvptx64"))]
#[inline(always)]
pub fn add_release_host_u64(word: &Word, value: u64) {
    word.0.fetch_add(value, Ordering::Release);
}
