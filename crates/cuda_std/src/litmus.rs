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
pub enum Scope {
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
pub enum Pair {
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
pub enum Order {
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
    /// are ordered as in [`ReleaseAcquire`](Order::ReleaseAcquire).
    ReadBack,
}

impl Scope {
    /// Returns the scope with this number. Larger numbers are [`Scope::System`].
    #[inline(always)]
    pub fn of(number: u32) -> Scope {
        match number {
            0 => Scope::Block,
            1 => Scope::Device,
            _ => Scope::System,
        }
    }
}

impl Pair {
    /// Returns the pair with this number. Larger numbers are [`Pair::Write`].
    #[inline(always)]
    pub fn of(number: u32) -> Pair {
        match number {
            0 => Pair::WriteWrite,
            1 => Pair::WriteRead,
            2 => Pair::ReadWrite,
            3 => Pair::ReadRead,
            _ => Pair::Write,
        }
    }
}

impl Order {
    /// Returns the order with this number. Larger numbers are [`Order::ReadBack`].
    #[inline(always)]
    pub fn of(number: u32) -> Order {
        match number {
            0 => Order::Nothing,
            1 => Order::ReleaseAcquire,
            2 => Order::AcquireRelease,
            3 => Order::Sequential,
            _ => Order::ReadBack,
        }
    }
}

/// Executes a pair of accesses to two words. Stores store `values`. Returns the loaded value of each load, and 0 for
/// each store.
#[inline(always)]
pub fn pair(kind: Pair, scope: Scope, order: Order, words: [&Word; 2], values: [u64; 2]) -> [u64; 2] {
    #[cfg(target_arch = "nvptx64")]
    return match scope {
        Scope::Block => pair_as!("cta", kind, order, words, values),
        Scope::Device => pair_as!("gpu", kind, order, words, values),
        Scope::System => pair_as!("sys", kind, order, words, values),
    };
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let _ = scope;
        host::pair(kind, order, words, values)
    }
}

/// Stores to a word: `st.relaxed` of this scope.
#[inline(always)]
pub fn store_relaxed(scope: Scope, word: &Word, value: u64) {
    #[cfg(target_arch = "nvptx64")]
    match scope {
        Scope::Block => store_as!("cta", word, value),
        Scope::Device => store_as!("gpu", word, value),
        Scope::System => store_as!("sys", word, value),
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let _ = scope;
        host::store(word, value, false);
    }
}

/// Loads a word: `ld.relaxed` of this scope.
#[inline(always)]
pub fn load_relaxed(scope: Scope, word: &Word) -> u64 {
    #[cfg(target_arch = "nvptx64")]
    return match scope {
        Scope::Block => load_as!("cta", word),
        Scope::Device => load_as!("gpu", word),
        Scope::System => load_as!("sys", word),
    };
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let _ = scope;
        host::load(word, false)
    }
}
