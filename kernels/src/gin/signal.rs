//! Signals of puts, signals without a put, and waits for signals.

use super::context::transfer;
use super::report::{Call, Failure, NO_PE};
use super::{Context, MOST_ADDED, Plain, SIGNALS, Scope, Signal, Sym, Thread, USER_SIGNALS, WaitCondition};
use crate::command::Opcode;
use crate::ring::Status;
use crate::ring::producer::Fence;
use cuda_std::memory::{add_relaxed_sys_u64, store_relaxed_sys_u64};

/// Returns the immediate that makes a command add `add` to `signal`.
#[inline(always)]
pub(super) fn immediate(signal: Signal, add: u64) -> u32 {
    crate::command::signal_immediate(signal.0, add as u32)
}

impl<S: Scope> Context<S> {
    /// Like [`put`](Context::put), and then adds `add` to PE `pe`'s signal: a thread that observes the signal also
    /// observes the bytes. OpenSHMEM: `shmem_put_signal` with SHMEM_SIGNAL_ADD.
    ///
    /// The signal proves, under every rule, that the bytes of this put have arrived. It does not prove the arrival of
    /// other puts, not even of earlier ones to the same PE; `fence` orders those before it. [`Signal`] lists the rules.
    /// Over rails `add` must be in 1 to [`MOST_ADDED`].
    ///
    /// # Errors
    /// Returns the same errors as [`put`](Context::put), and [`Status::REFUSED`] if the signal is not below
    /// [`USER_SIGNALS`] or rails cannot carry `add`.
    #[inline(always)]
    #[track_caller]
    pub fn put_signal<T: Plain>(
        &mut self,
        to: Sym<T>,
        from: Sym<T>,
        signal: Signal,
        add: u64,
        pe: u32,
    ) -> Result<(), Status> {
        self.put_signal_nbi(to, from, signal, add, pe)?;
        self.finish(Call::PutSignal, pe, from.bytes())
    }

    /// Like [`put_signal`](Context::put_signal), but does not wait: `from` may be overwritten only after `quiet`.
    /// OpenSHMEM: `shmem_put_signal_nbi`.
    ///
    /// While another put that adds to the same signal is in flight, the sum at the target proves neither of them: it
    /// counts the puts that have arrived, but does not identify them. Use one signal for each, or
    /// [`put_round_nbi`](Context::put_round_nbi). A batched context defers the put and its signal: call `flush` to
    /// publish them immediately. Calls that wait flush.
    ///
    /// # Errors
    /// Returns the same errors as [`put_signal`](Context::put_signal). In a warp or block, a failure to push the
    /// command is reported by the next call that waits.
    #[inline(always)]
    #[track_caller]
    pub fn put_signal_nbi<T: Plain>(
        &mut self,
        to: Sym<T>,
        from: Sym<T>,
        signal: Signal,
        add: u64,
        pe: u32,
    ) -> Result<(), Status> {
        self.put_signal_by(to, from, (signal, add, false), pe)
    }

    /// Like [`put_signal_nbi`](Context::put_signal_nbi), but sets the signal to `value`, as
    /// [`signal_set`](Context::signal_set) does and under its conditions. A store arrives sooner than an add.
    /// OpenSHMEM: `shmem_put_signal_nbi` with SHMEM_SIGNAL_SET.
    ///
    /// # Errors
    /// Returns the same errors as [`put_signal`](Context::put_signal) and [`signal_set`](Context::signal_set).
    #[inline(always)]
    #[track_caller]
    pub fn put_signal_set_nbi<T: Plain>(
        &mut self,
        to: Sym<T>,
        from: Sym<T>,
        signal: Signal,
        value: u64,
        pe: u32,
    ) -> Result<(), Status> {
        self.put_signal_by(to, from, (signal, value, true), pe)
    }

    /// Implements puts with a signal. The signal is set to `value` if `sets` is true, and otherwise increased by it.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn put_signal_by<T: Plain>(
        &mut self,
        to: Sym<T>,
        from: Sym<T>,
        (signal, value, sets): (Signal, u64, bool),
        pe: u32,
    ) -> Result<(), Status> {
        let fits = to.bytes() >= from.bytes() && signal.0 < USER_SIGNALS;
        let heap = self.begin(Call::PutSignal, pe, from.bytes(), fits)?;
        self.scope.sync();
        if heap == 0 {
            if sets {
                return self.cannot_set(Call::PutSignal, pe, from.bytes());
            }
            self.check_added(Call::PutSignal, pe, value)?;
            let number = immediate(signal, value);
            let command = transfer(Opcode::PutSignal, to.offset(), from.offset(), from.bytes(), pe, number);
            return self.post_or_batch(Call::PutSignal, &command);
        }
        // SAFETY: both objects are in the heap, which is mapped at `heap`; the caller prevents other accesses to their
        // bytes.
        unsafe { self.store_to(heap, to.offset(), from.offset(), from.bytes()) };
        // The barrier follows the stores of all lanes. After it one thread fences for all of them, and only then adds
        // or stores.
        self.scope.sync();
        self.fenced();
        self.change(heap, signal, value, sets);
        self.answer()
    }

    /// Adds `add` to PE `pe`'s signal, once for the scope. The signal is not ordered after earlier puts or other
    /// accesses: call `fence` first if the signal announces them. OpenSHMEM: an atomic add to a signal; NVSHMEM:
    /// `nvshmemx_signal_op` with NVSHMEM_SIGNAL_ADD.
    ///
    /// # Errors
    /// Returns the same errors as [`put_signal_nbi`](Context::put_signal_nbi).
    #[inline(always)]
    #[track_caller]
    pub fn signal_op(&mut self, signal: Signal, add: u64, pe: u32) -> Result<(), Status> {
        self.raise(Call::Signal, signal, add, pe, signal.0 < USER_SIGNALS)
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn raise(&mut self, call: Call, signal: Signal, add: u64, pe: u32, fits: bool) -> Result<(), Status> {
        let heap = self.begin(call, pe, signal.0 as u64, fits)?;
        if heap == 0 {
            self.flush();
            self.check_added(call, pe, add)?;
            let command = transfer(Opcode::Signal, 0, 0, 0, pe, immediate(signal, add));
            return self.post(call, &command, Fence::None);
        }
        self.change(heap, signal, add, false);
        self.answer()
    }

    /// Sets PE `pe`'s signal to `value`, once for the scope. Works only for mapped heaps (NVLink), and only if no other
    /// thread adds to that signal at the same time: the store overwrites what mapped PEs have added. The signal is not
    /// ordered, like that of [`signal_op`](Context::signal_op). OpenSHMEM: `shmem_signal_set`.
    ///
    /// # Errors
    /// Returns [`Status::UNSUPPORTED`] if the PE is reached over rails: NICs only add.
    #[inline(always)]
    pub fn signal_set(&mut self, signal: Signal, value: u64, pe: u32) -> Result<(), Status> {
        let heap = self.begin(Call::Signal, pe, signal.0 as u64, signal.0 < USER_SIGNALS)?;
        if heap == 0 {
            return self.cannot_set(Call::Signal, pe, signal.0 as u64);
        }
        self.change(heap, signal, value, true);
        self.answer()
    }

    #[inline(always)]
    fn cannot_set(&mut self, call: Call, pe: u32, detail: u64) -> Result<(), Status> {
        self.fail(Status::UNSUPPORTED, Failure::of(call, pe, detail));
        Err(Status::UNSUPPORTED)
    }

    /// Waits until this PE's signal is at least `at_least`. The bytes of each put whose signal is included in that sum
    /// have then arrived and are visible to the whole scope. One thread polls, and a barrier of the scope follows.
    /// OpenSHMEM: `shmem_signal_wait_until` with SHMEM_CMP_GE (a counter that only grows needs no other comparison).
    ///
    /// The sum does not show which signals it includes. If `at_least` is the total that the senders can have added so
    /// far, it proves all their puts. If a sender can be ahead, its next put can be counted instead of one that has not
    /// arrived ([`Signal`]).
    ///
    /// # Errors
    /// Returns [`Status::DEADLINE`] if the signal has not grown for the world's timeout, the status with which the host
    /// ended the wait, or an earlier failure of this context.
    #[inline(always)]
    #[track_caller]
    pub fn signal_wait_until(&mut self, signal: Signal, at_least: u64) -> Result<(), Status> {
        self.flush();
        self.begin(Call::Wait, self.world.me, signal.0 as u64, signal.0 < SIGNALS)?;
        self.wait_signal(Call::Wait, NO_PE, signal, at_least);
        self.agreed()
    }

    /// Like `wait_wanted`, for a sum.
    #[inline(always)]
    pub(super) fn wait_signal(&mut self, call: Call, pe: u32, signal: Signal, at_least: u64) {
        self.wait_wanted(call, pe, signal, WaitCondition::at_least(at_least));
    }

    /// Waits for a signal, on one thread. A failure is kept until the scope agrees.
    #[inline(always)]
    pub(super) fn wait_wanted(&mut self, call: Call, pe: u32, signal: Signal, wanted: WaitCondition) {
        if !self.scope.is_of_first_warp() || self.failed() {
            return;
        }
        let world = self.world;
        // At first all lanes of the warp poll: a single polling lane would compete for issue slots with the others,
        // which wait for it. Signals in host memory are excluded, because the polls of 32 lanes would be 32 round trips
        // over PCIe.
        if world.planes(signal).is_near() && world.planes(signal).is_met_soon(wanted) || !self.scope.leads() {
            return;
        }
        // SAFETY: the host keeps `abort` valid while the grid runs.
        let waited = world.planes(signal).wait(wanted, world.timeout_ns, unsafe { &*world.abort });
        if let Err((stop, sum)) = waited {
            let (seen, wanted) = wanted.told(sum);
            self.fail(stop, Failure { call, pe, detail: signal.0 as u64, seen, wanted });
        }
    }

    /// Sets or adds to a signal in a mapped heap, once for the scope.
    #[inline(always)]
    fn change(&mut self, heap: u64, signal: Signal, value: u64, sets: bool) {
        if self.scope.leads() {
            // SAFETY: `heap` is a mapped heap, and heaps start with the signals.
            let word = unsafe { signal_word(heap, signal) };
            if sets { store_relaxed_sys_u64(word, value) } else { add_relaxed_sys_u64(word, value) }
        }
    }

    #[inline(always)]
    fn check_added(&mut self, call: Call, pe: u32, add: u64) -> Result<(), Status> {
        if (1..=MOST_ADDED).contains(&add) {
            return Ok(());
        }
        self.fail(Status::REFUSED, Failure::of(call, pe, add));
        Err(Status::REFUSED)
    }
}

/// Returns a signal's word in a mapped heap.
///
/// # Safety
/// A heap must be mapped at `heap` while the word is used.
#[inline(always)]
pub(crate) unsafe fn signal_word<'a>(heap: u64, signal: Signal) -> &'a cuda_std::memory::Word {
    // SAFETY: the caller guarantees that the mapping is valid, and a heap starts with one word per signal.
    unsafe { &*(heap as *const cuda_std::memory::Word).add(signal.0 as usize) }
}

impl Context<Thread> {
    /// Returns this PE's signal. Puts that preceded the signal are visible. OpenSHMEM: `shmem_signal_fetch`.
    #[inline(always)]
    pub fn signal_fetch(&self, signal: Signal) -> u64 {
        if signal.0 < SIGNALS { self.world.planes(signal).sum() } else { 0 }
    }

    /// Waits until one of `count` signals that were allocated together, from `first`, is at least `at_least`. Returns
    /// the index of the first one found. OpenSHMEM: `shmem_wait_until_any`.
    ///
    /// # Errors
    /// Returns the same errors as [`signal_wait_until`](Context::signal_wait_until), and [`Status::REFUSED`] if `count`
    /// is 0 or the signals do not exist.
    #[inline(always)]
    pub fn signal_wait_until_any(&mut self, first: Signal, count: u32, at_least: u64) -> Result<u32, Status> {
        let fits = count > 0 && first.0 < SIGNALS && count <= SIGNALS - first.0;
        self.begin(Call::Wait, self.world.me, first.0 as u64, fits)?;
        let world = self.world;
        let mut limit = super::limit::GrowthLimit::new(world.timeout_ns);
        loop {
            let mut all = 0u64;
            for index in 0..count {
                let sum = world.planes(first.at(index)).sum();
                if sum >= at_least {
                    return Ok(index);
                }
                all = all.wrapping_add(sum);
            }
            // SAFETY: the host keeps `abort` valid while the grid runs.
            if let Err(stop) = limit.look(all, unsafe { &*world.abort }) {
                let failure =
                    Failure { call: Call::Wait, pe: NO_PE, detail: first.0 as u64, seen: 0, wanted: at_least };
                self.fail(stop, failure);
                return Err(stop);
            }
            cuda_std::thread::relax();
        }
    }
}
