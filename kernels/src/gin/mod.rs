//! `gin`: one-sided communication from inside a kernel, in the words of OpenSHMEM 1.5.
//!
//! A *PE* (processing element) is a rank with its device. Every PE has a *symmetric heap* of one size; a [`Sym`] names an object
//! that lies at the same offset of every heap. A kernel is launched with a [`World`] (host/gin makes it), opens a [`Context`] for
//! a [`Thread`], a [`Warp`] or a [`Block`], and calls `put`, `get`, `put_signal`, `signal_wait_until`, `quiet`, ...
//!
//! ```text
//! put to PE p:   p is this PE, or its heap is mapped here (NVLink)     the lanes of the scope copy, by loads and stores
//!                otherwise                                             a command in the ring; the proxy posts it to the rails
//! ```
//!
//! Which path a PE is reached by is decided when the world is opened, and nothing of it shows in a kernel but time.
//!
//! **Who calls.** Every thread of a context's scope makes the same calls with the same arguments, in the same order. Each call
//! begins with a barrier of the scope: what its threads wrote before is what is sent.
//!
//! **What is visible when.** As in OpenSHMEM: `put` returns when its source may be written again, and the bytes arrive in any order
//! until `quiet` (all puts of this context are at their targets) or `fence` (puts before it arrive before puts to the same PE behind
//! it). A signal behind a put ([`Context::put_signal`]) is seen after the put's bytes. Rails keep no order (EFA's SRD): `fence` waits there as
//! `quiet` does, and the order of a put and its signal is made by the proxies, by one of four rules (host/proxy/signal_order.rs).
//!
//! **How calls end.** Every wait ends: done, an error, or the deadline; and it says which ([`Status`](crate::ring::Status)). The threads of a scope all get
//! the same answer. In a group a command that could not be pushed is told by the next call that waits. Once a context has failed, its
//! later calls fail too. The first failure of a launch leaves its call and PE in the [`Report`], which the host reads.

mod arrivals;
mod atomic;
mod barrier;
mod chunk;
mod context;
pub(crate) mod copy;
mod counts;
mod exchange;
mod fold;
mod grid;
mod limit;
mod message;
mod report;
mod round;
mod rows;
mod scope;
pub(crate) mod signal;
mod value;
mod wait;
mod wanted;

pub use arrivals::{Arrivals, Count, Inlet};
pub use barrier::{TEAMS, Team, TeamKind};
pub use context::Context;
pub use counts::{BY_SIGNAL, BY_SUM, BY_VALUE, Counts, Tally};
pub use cuda_std::Plain;
pub use exchange::{Exchange, Parts};
pub use fold::Fold;
pub use grid::Grid;
pub(crate) use limit::GrowthLimit;
pub use message::Inbox;
pub use report::{Call, Report};
pub use scope::{Block, Scope, Thread, Warp};
pub use wait::{Patience, Planes};
pub use wanted::Wanted;

use crate::ring::Ring;
use core::fmt;
use core::marker::PhantomData;
use cuda_std::args;
use cuda_std::memory::{Word, load_relaxed_gpu_u64};
use cuda_std::vector::{fresh_u32, fresh_u64};

/// Signals of a world: programs' own from 0, and behind [`USER_SIGNALS`] those of barriers.
pub const SIGNALS: u32 = crate::command::SIGNALS;
/// The signals that programs may have.
pub const USER_SIGNALS: u32 = SIGNALS - BARRIER_SIGNALS;
/// Signals of all teams' barriers.
const BARRIER_SIGNALS: u32 = TEAMS as u32 * barrier::ROUNDS;
/// The most that one signal over rails adds: 14 bits of an immediate.
pub const MOST_ADDED: u64 = crate::command::MOST_ADDED as u64;
/// Bytes of a heap that belong to the library: the signals, and a word for each thread that fetches a value over rails.
pub const RESERVED_BYTES: u64 = SIGNALS as u64 * 8 + FETCHING_THREADS as u64 * 8;
/// Threads of a grid that may fetch values over rails ([`Context::g`]).
pub const FETCHING_THREADS: u32 = 1 << 16;
/// Words of [`World::sent`].
pub const SENT_WORDS: usize = 2 * USER_SIGNALS as usize;
/// The region number of the heap, on every PE and rail.
pub const HEAP: u32 = 0;

/// A symmetric object: `len` values at the same offset of every PE's heap. The host makes them (`World::alloc` of host/gin).
#[repr(C)]
pub struct Sym<T> {
    offset: u64,
    len: u64,
    values: PhantomData<fn() -> T>,
}

impl<T> Clone for Sym<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Sym<T> {}

impl<T> fmt::Debug for Sym<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sym({} values at {})", self.len, self.offset)
    }
}

impl<T: Plain> Sym<T> {
    /// The object at this offset.
    ///
    /// # Safety
    /// It lies in the part of the heap that was allocated for it, aligned for `T`.
    pub const unsafe fn from_parts(offset: u64, len: u64) -> Sym<T> {
        Sym { offset, len, values: PhantomData }
    }

    /// Bytes from the start of the heap.
    #[inline(always)]
    pub fn offset(self) -> u64 {
        self.offset
    }

    /// Values.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)] // an object is not a collection: nobody asks whether it is empty
    pub fn len(self) -> u64 {
        self.len
    }

    /// Length in bytes.
    #[inline(always)]
    pub fn bytes(self) -> u64 {
        self.len * size_of::<T>() as u64
    }

    /// `count` values from value `first` on.
    ///
    /// # Panics
    /// When they are not all of the object's. (On a GPU: the grid ends with an error.)
    #[inline(always)]
    pub fn slice(self, first: u64, count: u64) -> Sym<T> {
        assert!(first <= self.len && count <= self.len - first, "a slice beyond a symmetric object");
        Sym { offset: self.offset + first * size_of::<T>() as u64, len: count, values: PhantomData }
    }

    /// One value.
    ///
    /// # Panics
    /// As [`slice`](Sym::slice).
    #[inline(always)]
    pub fn at(self, index: u64) -> Sym<T> {
        self.slice(index, 1)
    }
}

/// A signal: a counter of 64 bits on every PE, 0 at first, that only grows.
///
/// **What it proves.** A signal proves that the put it stands behind has arrived. It proves nothing about another put, not even about an
/// earlier one to the same PE, and once two puts that add to one signal are under way, no sum proves which of them has come. So either at
/// most one is under way (the sender has waited, or has been answered), or each put has a signal of its own, or they are rounds
/// ([`Context::put_round_nbi`]).
///
/// | rule on rails | when a put's signal is counted | what else it happens to say |
/// |---|---|---|
/// | `count` | when all its transfers are at the target | nothing |
/// | `own` | after its own completion at the sender | nothing |
/// | `drain` | after the completion of all that its ring has sent to that PE | these have arrived; it says nothing of other rings |
/// | `kernel` | path direct alone: as `count`, by the kernel that waits | nothing |
/// | `sequence` | when it is its turn in the order of its ring's signalled puts to that PE | these have arrived; it says nothing of puts without a signal |
///
/// A program that relies on the last column is wrong by the other rules.
///
/// It has two planes, which have one writer's side each: a word in the heap, to which this PE and those whose heaps are mapped add
/// by system-scope atomics, and a word in host memory, to which this PE's proxies add what immediates bring. Its value is their sum.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(pub u32);

impl Signal {
    /// The `index`-th of several signals that were allocated together.
    #[inline(always)]
    pub fn at(self, index: u32) -> Signal {
        Signal(self.0 + index)
    }
}

/// What a kernel knows of one PE.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Where its heap is mapped here; 0: it is reached by rails.
    pub heap: u64,
}

/// What a kernel knows of the job. Plain data, passed by value with the kernel's arguments.
#[args]
pub struct World {
    /// This PE.
    pub me: u32,
    /// All PEs.
    pub pes: u32,
    /// [`World::BY_RAILS`], [`World::BY_MAPPING`].
    pub paths: u32,
    /// Rings of this PE, one for each proxy thread; 0 where no PE is reached by rails.
    pub ring_count: u32,
    /// This PE's heap.
    pub heap: *mut u8,
    /// Its length, the same on every PE.
    pub heap_bytes: u64,
    /// Device memory: one entry for each PE.
    pub peers: *const Peer,
    /// Device memory.
    pub rings: *const Ring,
    /// Host memory: the words of the signals to which proxies add; or device memory, to which kernels add what they read of [`Arrivals`].
    pub far: *const Word,
    /// Device memory: what waiting kernels read themselves; null: somebody else counts signals.
    pub arrivals: *const Arrivals,
    /// Device memory: the PEs of each team, behind one another.
    pub team_pes: *const u32,
    /// The teams: world, node, rail.
    pub teams: [Team; TEAMS],
    /// Device memory: barriers passed, by team.
    pub barriers: *const Word,
    /// Device memory, where PEs are reached by rails: [`SENT_WORDS`], the last put of each signal's odd and even rounds that may be under
    /// way.
    pub sent: *const Word,
    /// Device memory: the first failure of the launch.
    pub report: *const Report,
    /// Host memory: not 0 ends every wait with that [`Status`](crate::ring::Status).
    pub abort: *const Word,
    /// Longest wait of one call in nanoseconds.
    pub timeout_ns: u64,
}

/// What a kernel of a world is launched with.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Program<A> {
    /// The job.
    pub world: World,
    /// The kernel's own arguments.
    pub args: A,
}

impl World {
    /// In [`World::paths`]: some PE is reached by rails, so signals may come by proxies.
    pub const BY_RAILS: u32 = 1;
    /// In [`World::paths`]: some other PE has this heap mapped, so signals may come by its atomics.
    pub const BY_MAPPING: u32 = 2;

    /// This PE's number.
    #[inline(always)]
    pub fn my_pe(&self) -> u32 {
        self.me
    }

    /// The number of PEs.
    #[inline(always)]
    pub fn n_pes(&self) -> u32 {
        self.pes
    }

    /// A context for this scope, whose threads all call this. Puts of one context are ordered and waited for by its own
    /// `fence` and `quiet` alone.
    #[inline(always)]
    pub fn context<S: Scope>(&self, scope: S) -> Context<S> {
        Context::new(*self, scope)
    }

    /// Where all heaps are mapped: this job once more, and the compiler knows that it has no rails. A kernel that does its work in an
    /// `#[inline(always)]` function, with this one where there is one and with its own world otherwise, has the code of its calls twice, and in the
    /// first no registers are kept for what rails need. (One H200: a signal 0.44 us to 0.27, a put with one by 1024 threads 1.72 to 1.34.)
    #[inline(always)]
    pub fn mapped(&self) -> Option<World> {
        if self.ring_count != 0 {
            return None;
        }
        let (rings, far, arrivals) = (core::ptr::null(), core::ptr::null(), core::ptr::null());
        Some(World { paths: World::BY_MAPPING, ring_count: 0, rings, far, arrivals, ..*self })
    }

    /// This PE's own part of an object, to be read and written as any memory of the device.
    #[inline(always)]
    pub fn local<T: Plain>(&self, object: Sym<T>) -> *mut T {
        // SAFETY: the object lies in the heap.
        unsafe { self.heap.add(object.offset as usize).cast() }
    }

    /// An object of PE `pe` as memory of this device, to be read and written by ordinary accesses; null where the PE is reached by
    /// rails. OpenSHMEM: `shmem_ptr`.
    #[inline(always)]
    pub fn ptr<T: Plain>(&self, object: Sym<T>, pe: u32) -> *mut T {
        // SAFETY: one entry for each PE; the remainder is below.
        let heap = unsafe { (*self.peers.add((pe % self.pes) as usize)).heap };
        if heap == 0 { core::ptr::null_mut() } else { (heap + object.offset) as *mut T }
    }

    /// Whether a call has failed since the host last cleared the [`Report`], of this launch or of one before it in its stream. A kernel
    /// of a series looks before it waits: behind a failure each would wait for its whole deadline.
    #[inline(always)]
    pub fn has_failed(&self) -> bool {
        // SAFETY: contract of the launch: the report is there while the grid runs.
        load_relaxed_gpu_u64(unsafe { &(*self.report).stop }) != 0
    }

    /// Where an offset of this PE's heap is, made anew at each call (as in [`planes`](World::planes)).
    #[inline(always)]
    fn at(&self, offset: u64) -> *mut u8 {
        (self.heap as u64 + fresh_u64(offset)) as *mut u8
    }

    /// The word of this PE's heap for a signal.
    #[inline(always)]
    fn near(&self, signal: Signal) -> &Word {
        // SAFETY: the heap begins with a word for each signal, and numbers of signals were checked by the caller.
        unsafe { &*self.heap.cast::<Word>().add(signal.0 as usize) }
    }

    /// The planes of a signal, for a wait.
    #[inline(always)]
    fn planes(&self, signal: Signal) -> Planes<'_> {
        // Addresses are made here, at each wait: a loop that makes them once keeps them in local memory, and its acquires make them miss.
        let (signal, paths) = (Signal(fresh_u32(signal.0)), fresh_u32(self.paths));
        // SAFETY: as `near`; the host's memory has a word for each signal too.
        let far = (paths & World::BY_RAILS != 0).then(|| unsafe { &*self.far.add(signal.0 as usize) });
        Planes { near: self.near(signal), far, mapped: paths & World::BY_MAPPING != 0, arrivals: self.arrivals }
    }
}
