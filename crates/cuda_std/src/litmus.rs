//! Pairs of accesses for litmus tests: two accesses of one thread to two words, and the order between them.
//!
//! On the device, each combination of accesses, scope and order is one inline-PTX statement, so that the compiler
//! inserts nothing between the accesses and reorders nothing. `tests/ptx.rs` checks the instructions of each
//! combination. Protocols must not use this module. They use [`crate::memory`], whose names state order and scope.

use crate::memory::Word;

#[cfg(target_arch = "nvptx64")]
#[macro_use]
mod device;
#[cfg(not(target_arch = "nvptx64"))]
mod host;

/// Scope of the accesses and of the fence of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MemoryScope {
    /// `cta`: the threads of a block.
    Block,
    /// `gpu`: the threads of a device.
    Device,
    /// `sys`: all threads of the system, including those of the CPU and of other devices.
    System,
}

/// Kinds of the two accesses of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AccessPair {
    /// Two stores.
    WriteWrite,
    /// A store, then a load.
    WriteRead,
    /// A load, then a store.
    ReadWrite,
    /// Two loads.
    ReadRead,
    /// One store, to the first word.
    Write,
}

/// Order between the accesses of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AccessOrder {
    /// None: relaxed accesses.
    Nothing,
    /// A preceding load is an acquire, and a following store is a release. (If a store precedes a load, the store is a
    /// release and the load is an acquire.)
    ReleaseAcquire,
    /// `fence.acq_rel` between relaxed accesses.
    AcquireRelease,
    /// `fence.sc` between relaxed accesses.
    Sequential,
    /// Loads the first word between two stores. The value of the second store depends on the loaded value. Other pairs
    /// are ordered as in [`ReleaseAcquire`](AccessOrder::ReleaseAcquire).
    ReadBack,
}

impl MemoryScope {
    /// Returns the scope with this number. Larger numbers are [`MemoryScope::System`].
    #[inline(always)]
    pub fn of(number: u32) -> MemoryScope {
        match number {
            0 => MemoryScope::Block,
            1 => MemoryScope::Device,
            _ => MemoryScope::System,
        }
    }
}

impl AccessPair {
    /// Returns the pair with this number. Larger numbers are [`AccessPair::Write`].
    #[inline(always)]
    pub fn of(number: u32) -> AccessPair {
        match number {
            0 => AccessPair::WriteWrite,
            1 => AccessPair::WriteRead,
            2 => AccessPair::ReadWrite,
            3 => AccessPair::ReadRead,
            _ => AccessPair::Write,
        }
    }
}

impl AccessOrder {
    /// Returns the order with this number. Larger numbers are [`AccessOrder::ReadBack`].
    #[inline(always)]
    pub fn of(number: u32) -> AccessOrder {
        match number {
            0 => AccessOrder::Nothing,
            1 => AccessOrder::ReleaseAcquire,
            2 => AccessOrder::AcquireRelease,
            3 => AccessOrder::Sequential,
            _ => AccessOrder::ReadBack,
        }
    }
}

/// Executes a pair of accesses to two words. Stores store `values`. Returns the loaded value of each load, and 0 for
/// each store.
#[inline(always)]
pub fn pair(kind: AccessPair, scope: MemoryScope, order: AccessOrder, words: [&Word; 2], values: [u64; 2]) -> [u64; 2] {
    #[cfg(target_arch = "nvptx64")]
    return match scope {
        MemoryScope::Block => pair_as!("cta", kind, order, words, values),
        MemoryScope::Device => pair_as!("gpu", kind, order, words, values),
        MemoryScope::System => pair_as!("sys", kind, order, words, values),
    };
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let _ = scope;
        host::pair(kind, order, words, values)
    }
}

/// Stores to a word: `st.relaxed` of this scope.
#[inline(always)]
pub fn store_relaxed(scope: MemoryScope, word: &Word, value: u64) {
    #[cfg(target_arch = "nvptx64")]
    match scope {
        MemoryScope::Block => store_as!("cta", word, value),
        MemoryScope::Device => store_as!("gpu", word, value),
        MemoryScope::System => store_as!("sys", word, value),
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let _ = scope;
        host::store(word, value, false);
    }
}

/// Loads a word: `ld.relaxed` of this scope.
#[inline(always)]
pub fn load_relaxed(scope: MemoryScope, word: &Word) -> u64 {
    #[cfg(target_arch = "nvptx64")]
    return match scope {
        MemoryScope::Block => load_as!("cta", word),
        MemoryScope::Device => load_as!("gpu", word),
        MemoryScope::System => load_as!("sys", word),
    };
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let _ = scope;
        host::load(word, false)
    }
}
