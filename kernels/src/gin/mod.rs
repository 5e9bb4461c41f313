//! `gin`: one-sided communication from inside a kernel, with the terms of OpenSHMEM 1.5.
//!
//! A *PE* (processing element) is a rank with its device. Every PE has a *symmetric heap* of the same size. A [`Sym`]
//! names an object at the same offset of every heap. A kernel is launched with a [`WorldView`], which host/gin creates.
//! It opens a [`Context`] for a [`Thread`], a [`Warp`] or a [`Block`], and calls `put`, `get`, `put_signal`,
//! `signal_wait_until`, `quiet`, ...
//!
//! ```text
//! put to PE p:  p is this PE, or its heap is mapped here (NVLink)  the lanes of the scope copy, by loads and stores
//!               otherwise                                          a command in the ring; the proxy posts it to rails
//! ```
//!
//! The path to a PE is chosen when the world is opened. A kernel notices the path only by its timing.
//!
//! **Calls.** All threads of a context's scope make the same calls with the same arguments, in the same order. Each
//! call starts with a barrier of the scope, so it sends the values that the scope's threads have written before it.
//!
//! **Completion and visibility.** As in OpenSHMEM, `put` returns when its source may be overwritten. The bytes arrive
//! in any order until `quiet` (all puts of this context are at their targets) or `fence` (earlier puts arrive before
//! later puts to the same PE). The signal of a put ([`Context::put_signal`]) is observed only after the put's bytes.
//! Rails (EFA's SRD) do not preserve order: over rails `fence` waits like `quiet`, and the proxies order a put and its
//! signal, by one of four rules (host/proxy/signal_order.rs).
//!
//! **Errors.** Every wait is bounded by the deadline and returns its outcome ([`Status`](crate::ring::Status)). All
//! threads of a scope get the same result. In a warp or block, a failure to push a command is reported by the next call
//! that waits. Once a context has failed, its later calls also fail. The call and PE of the first failure of a launch
//! are recorded in the [`FailureReport`], which the host reads.

mod arrivals;
mod atomic;
mod bare;
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

pub use arrivals::{Arrivals, CountedSignal, ReceiveQueue};
pub use barrier::{TEAMS, Team, TeamKind};
pub use context::Context;
pub use counts::{BY_SIGNAL, BY_SUM, BY_VALUE, Counts, Tally};
pub use cuda_std::Plain;
pub use exchange::{Exchange, Parts};
pub use fold::Fold;
pub use grid::Grid;
pub(crate) use limit::GrowthLimit;
pub use limit::{Control, WaitBudget};
pub use message::Inbox;
pub use report::{Call, FailureReport};
pub use scope::{Block, Scope, Thread, Warp};
pub use wait::SignalPair;
pub use wanted::WaitCondition;

use crate::direct::Channel;
use crate::outlet::Outlets;
use crate::ring::Ring;
use core::fmt;
use core::marker::PhantomData;
use cuda_std::args;
use cuda_std::memory::{Word, load_relaxed_gpu_u64};
use cuda_std::vector::{fresh_u32, fresh_u64};

/// Number of signals of a world. Those below [`USER_SIGNALS`] are for applications, the others for barriers.
pub const SIGNALS: u32 = crate::command::SIGNALS;
/// Number of signals available to applications.
pub const USER_SIGNALS: u32 = SIGNALS - BARRIER_SIGNALS;
/// Number of signals of all teams' barriers.
const BARRIER_SIGNALS: u32 = TEAMS as u32 * barrier::ROUNDS;
/// Maximum increment of one signal over rails: 14 bits of an immediate.
pub const MOST_ADDED: u64 = crate::command::MOST_ADDED as u64;
/// Bytes at the start of a heap that the library uses: the signals, and one word per thread that can fetch a value over
/// rails.
pub const RESERVED_BYTES: u64 = SIGNALS as u64 * 8 + FETCHING_THREADS as u64 * 8;
/// Number of threads of a grid that can fetch values over rails ([`Context::g`]).
pub const FETCHING_THREADS: u32 = 1 << 16;
/// Number of words of [`WorldView::sent`].
pub const SENT_WORDS: usize = 2 * USER_SIGNALS as usize;
/// Region number of the heap, on every PE and rail.
pub const HEAP: u32 = 0;

/// A symmetric object: `len` values at the same offset of every PE's heap. Created by the host (`World::alloc` of
/// host/gin).
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
    /// Creates the object at byte `offset` of the heap, with `len` values.
    ///
    /// # Safety
    /// The object must be in the part of the heap that was allocated for it, and aligned for `T`.
    pub const unsafe fn from_parts(offset: u64, len: u64) -> Sym<T> {
        Sym { offset, len, values: PhantomData }
    }

    /// Returns the offset from the start of the heap, in bytes.
    #[inline(always)]
    pub fn offset(self) -> u64 {
        self.offset
    }

    /// Returns the number of values.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)] // an object is not a collection: whether it is empty is never of interest
    pub fn len(self) -> u64 {
        self.len
    }

    /// Returns the length in bytes.
    #[inline(always)]
    pub fn bytes(self) -> u64 {
        self.len * size_of::<T>() as u64
    }

    /// Returns the `count` values from index `first`.
    ///
    /// # Panics
    /// Panics if the range is not within the object. (On a GPU the grid ends with an error.)
    #[inline(always)]
    pub fn slice(self, first: u64, count: u64) -> Sym<T> {
        assert!(first <= self.len && count <= self.len - first, "a slice beyond a symmetric object");
        Sym { offset: self.offset + first * size_of::<T>() as u64, len: count, values: PhantomData }
    }

    /// Returns the value at `index`, as an object of length 1.
    ///
    /// # Panics
    /// Panics under the same conditions as [`slice`](Sym::slice).
    #[inline(always)]
    pub fn at(self, index: u64) -> Sym<T> {
        self.slice(index, 1)
    }
}

/// A signal: a counter of 64 bits on every PE. It starts at 0 and only grows.
///
/// **Guarantees.** A signal proves that its own put has arrived. It does not prove the arrival of any other put, not
/// even of an earlier one to the same PE. While two puts that add to the same signal are in flight, no sum proves which
/// of them has arrived. Therefore one of the following must hold:
///
/// - at most one put per signal is in flight: the sender has waited for it, or has received an answer;
/// - each put has its own signal;
/// - the puts are rounds ([`Context::put_round_nbi`]).
///
/// | rule on rails | when a put's signal is counted | other puts whose arrival it implies |
/// |---|---|---|
/// | `count` | when all transfers of the put are at the target | none |
/// | `own` | after the put's completion at the sender | nothing |
/// | `drain` | when all that its ring has sent to that PE is complete | these have arrived, not those of other rings |
/// | `kernel` | path `direct` only: like `count`, by the waiting kernel | nothing |
/// | `sequence` | in the order of its ring's signalled puts to that PE | these have arrived; not unsignalled puts |
///
/// An application that relies on the last column is incorrect under the other rules.
///
/// A signal consists of two words, one per group of writers. This PE and the PEs that have its heap mapped add to a
/// word in the heap, with system-scope atomics. This PE's proxies add the values of received immediates to a word in
/// host memory. The signal's value is the sum of both.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(pub u32);

impl Signal {
    /// Returns signal `index` of several that were allocated together.
    #[inline(always)]
    pub fn at(self, index: u32) -> Signal {
        Signal(self.0 + index)
    }
}

/// A kernel's view of one PE.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PeView {
    /// Address at which the PE's heap is mapped here; 0 if the PE is reached over rails.
    pub heap: u64,
}

/// A kernel's view of the job. Plain data, passed by value with the kernel's arguments.
#[args]
pub struct WorldView {
    /// Number of this PE.
    pub me: u32,
    /// Number of PEs.
    pub pes: u32,
    /// Bit set of [`WorldView::BY_RAILS`] and [`WorldView::BY_MAPPING`].
    pub paths: u32,
    /// Number of this PE's outlets: rings, one per proxy thread, or NIC queues; 0 if no PE is reached over rails.
    pub outlet_count: u32,
    /// Address of this PE's heap.
    pub heap: *mut u8,
    /// Length of the heap in bytes, the same on every PE.
    pub heap_bytes: u64,
    /// One entry per PE, in device memory.
    pub peers: *const PeView,
    /// The outlets, if they are rings, in device memory; otherwise null.
    pub rings: *const Ring,
    /// The signals' words that are not in the heap: in host memory if proxies add to them, or in device memory if
    /// kernels add what they read from [`Arrivals`].
    pub far: *const Word,
    /// Receive queues and counters that waiting kernels read themselves, in device memory. Null if waiting kernels do
    /// not count signals.
    pub arrivals: *const Arrivals,
    /// The PEs of each team, team after team, in device memory.
    pub team_pes: *const u32,
    /// The teams, indexed by [`TeamKind`].
    pub teams: [Team; TEAMS],
    /// Number of barriers passed, per team, in device memory.
    pub barriers: *const Word,
    /// The last put of each signal's odd and even rounds that might be in flight: [`SENT_WORDS`] words in device
    /// memory, if any PE is reached over rails.
    pub sent: *const Word,
    /// The first failure of the launch, in device memory.
    pub report: *const FailureReport,
    /// Words in host memory with which the host ends waits and restarts their deadlines.
    pub abort: *const Control,
    /// Maximum time without progress in one call, in nanoseconds.
    pub timeout_ns: u64,
    /// The outlets, if they are NIC queues, in device memory; otherwise null.
    pub channels: *const Channel,
}

/// Launch arguments of a kernel that uses a world.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Program<A> {
    /// The job.
    pub world: WorldView,
    /// The kernel's own arguments.
    pub args: A,
}

impl WorldView {
    /// Bit of [`WorldView::paths`]: some PE is reached over rails, so signals can arrive through proxies.
    pub const BY_RAILS: u32 = 1;
    /// Bit of [`WorldView::paths`]: some other PE has this heap mapped, so signals can arrive as its atomics.
    pub const BY_MAPPING: u32 = 2;

    /// Returns the number of this PE.
    #[inline(always)]
    pub fn my_pe(&self) -> u32 {
        self.me
    }

    /// Returns the number of PEs.
    #[inline(always)]
    pub fn n_pes(&self) -> u32 {
        self.pes
    }

    /// Creates a context for `scope`, all of whose threads must call this. `fence` and `quiet` of a context order and
    /// await only the puts of that context.
    #[inline(always)]
    pub fn context<S: Scope>(&self, scope: S) -> Context<S> {
        Context::new(*self, scope)
    }

    /// Returns a copy of this world that the compiler knows to have no rails; `None` if there are outlets.
    ///
    /// A kernel does its work in an `#[inline(always)]` function, which it calls with the copy if there is one and with
    /// the original world otherwise. The code of its calls then exists twice, and the first version reserves no
    /// registers for rails.
    #[inline(always)]
    pub fn mapped(&self) -> Option<WorldView> {
        if self.outlet_count != 0 {
            return None;
        }
        // Without outlets no PE is reached over rails: no proxy or NIC ever adds to the far words, and the near word
        // has the signal's whole value.
        let (far, arrivals) = (core::ptr::null(), core::ptr::null());
        let (rings, channels) = (core::ptr::null(), core::ptr::null());
        Some(WorldView { paths: WorldView::BY_MAPPING, outlet_count: 0, rings, channels, far, arrivals, ..*self })
    }

    /// Returns the outlets, which receive the commands for PEs that are reached over rails.
    #[inline(always)]
    pub(crate) fn outlets(&self) -> Outlets {
        Outlets { rings: self.rings, channels: self.channels, count: self.outlet_count }
    }

    /// Returns the address of this PE's instance of an object, for ordinary accesses.
    #[inline(always)]
    pub fn local<T: Plain>(&self, object: Sym<T>) -> *mut T {
        // SAFETY: the object is in the heap.
        unsafe { self.heap.add(object.offset as usize).cast() }
    }

    /// Returns the address of PE `pe`'s instance of an object, for ordinary accesses by this device; null if the PE is
    /// reached over rails. OpenSHMEM: `shmem_ptr`.
    #[inline(always)]
    pub fn ptr<T: Plain>(&self, object: Sym<T>, pe: u32) -> *mut T {
        // SAFETY: `peers` has one entry per PE, and the remainder is below `pes`.
        let heap = unsafe { (*self.peers.add((pe % self.pes) as usize)).heap };
        if heap == 0 { core::ptr::null_mut() } else { (heap + object.offset) as *mut T }
    }

    /// Returns whether a call has failed since the host last cleared the [`FailureReport`], in this launch or in a
    /// preceding one of its stream. A kernel in a series of launches checks this before it waits. After a failure each
    /// further kernel would otherwise wait until its deadline.
    #[inline(always)]
    pub fn has_failed(&self) -> bool {
        // SAFETY: the host keeps the report valid while the grid runs.
        load_relaxed_gpu_u64(unsafe { &(*self.report).stop }) != 0
    }

    /// Like [`has_failed`](WorldView::has_failed), but all threads of `scope` call it and get the same result. A kernel
    /// that can be part of a series of launches calls this at its start, after the wait for the preceding grids, and
    /// returns if it is true: the rest of the series then ends immediately.
    #[inline(always)]
    #[track_caller]
    pub fn has_failed_for<S: Scope>(&self, scope: &S) -> bool {
        scope.any(self.has_failed())
    }

    /// Returns the address of `offset` in this PE's heap, computed anew by each call (see
    /// [`planes`](WorldView::planes)).
    #[inline(always)]
    fn at(&self, offset: u64) -> *mut u8 {
        (self.heap as u64 + fresh_u64(offset)) as *mut u8
    }

    /// Returns the word for a signal in this PE's heap.
    #[inline(always)]
    fn near(&self, signal: Signal) -> &Word {
        // SAFETY: the heap starts with one word per signal, and the caller has checked the signal's number.
        unsafe { &*self.heap.cast::<Word>().add(signal.0 as usize) }
    }

    /// Returns the two words of a signal, for a wait.
    #[inline(always)]
    fn planes(&self, signal: Signal) -> SignalPair<'_> {
        // Computes the addresses on each call: the compiler would keep addresses computed before a loop in local
        // memory, which misses L1 after each of the loop's acquires.
        let (signal, paths) = (Signal(fresh_u32(signal.0)), fresh_u32(self.paths));
        // SAFETY: `far` too has one word per signal, and the caller has checked the signal's number.
        let far = (paths & WorldView::BY_RAILS != 0).then(|| unsafe { &*self.far.add(signal.0 as usize) });
        SignalPair { near: self.near(signal), far, mapped: paths & WorldView::BY_MAPPING != 0, arrivals: self.arrivals }
    }
}
