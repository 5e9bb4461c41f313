//! Signals: behind a put, by themselves, and the waits for them.

use super::context::transfer;
use super::report::{Call, Failure, NO_PE};
use super::{Context, MOST_ADDED, Plain, SIGNALS, Scope, Signal, Sym, Thread, USER_SIGNALS, Wanted};
use crate::command::Opcode;
use crate::ring::Status;
use crate::ring::producer::Behind;
use cuda_std::memory::{add_relaxed_sys_u64, store_relaxed_sys_u64};

/// A signal and what it adds, as a command carries them.
#[inline(always)]
pub(super) fn immediate(signal: Signal, add: u64) -> u32 {
    crate::command::signal_immediate(signal.0, add as u32)
}

impl<S: Scope> Context<S> {
    /// As [`put`](Context::put), then adds `add` to PE `pe`'s signal: whoever sees the signal sees the bytes. OpenSHMEM:
    /// `shmem_put_signal` with SHMEM_SIGNAL_ADD.
    ///
    /// The signal proves, under every rule, that the bytes of this put have arrived. It proves nothing about other puts, not even about
    /// earlier ones to the same PE: those are ordered before it by `fence`; [`Signal`] has what each rule does. Over rails `add` is 1 to
    /// [`MOST_ADDED`].
    ///
    /// # Errors
    /// As [`put`](Context::put), and [`Status::REFUSED`] for a signal that is not a program's or an `add` that rails cannot carry.
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

    /// As [`put_signal`](Context::put_signal), without waiting: `from` may be written again after `quiet`. OpenSHMEM:
    /// `shmem_put_signal_nbi`.
    ///
    /// While another put that adds to the same signal is under way, the sum at the target proves neither of them: it says how many have
    /// arrived, and not which. Use a signal for each, or [`put_round_nbi`](Context::put_round_nbi). A batched context holds it back with its puts, signal and all: `flush` where the other PE should have it
    /// now. Calls that wait flush.
    ///
    /// # Errors
    /// As [`put_signal`](Context::put_signal); in a group, a command that could not be pushed is an error of the next call that waits.
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

    /// As [`put_signal_nbi`](Context::put_signal_nbi), but gives the signal a value, as [`signal_set`](Context::signal_set) does and with its
    /// conditions: a store, which arrives sooner than an add (two PEs of one H200: 0.28 us one way, an add 0.44). OpenSHMEM:
    /// `shmem_put_signal_nbi` with SHMEM_SIGNAL_SET.
    ///
    /// # Errors
    /// As [`put_signal`](Context::put_signal) and [`signal_set`](Context::signal_set).
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

    /// A put with a signal that is given a value (`sets`) or added to.
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
        // SAFETY: both objects are of the heap, which is mapped at `heap`; the caller keeps others off their bytes.
        unsafe { self.store_to(heap, to.offset(), from.offset(), from.bytes()) };
        // All lanes' stores come before the barrier, behind which one thread fences for all and only then adds or stores.
        self.scope.sync();
        self.fenced();
        self.change(heap, signal, value, sets);
        self.answer()
    }

    /// Adds to PE `pe`'s signal, once for the scope. It is not ordered behind earlier puts or other accesses: call `fence` where it
    /// speaks of them. OpenSHMEM: an atomic add to a signal; NVSHMEM: `nvshmemx_signal_op` with NVSHMEM_SIGNAL_ADD.
    ///
    /// # Errors
    /// As [`put_signal_nbi`](Context::put_signal_nbi).
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
            return self.post(call, &command, Behind::Nothing);
        }
        self.change(heap, signal, add, false);
        self.answer()
    }

    /// Gives PE `pe`'s signal a value, once for the scope. Only by a mapping (NVLink), and only where nobody adds to that signal at the
    /// same time: it replaces what mapped PEs have added. OpenSHMEM: `shmem_signal_set`. Not ordered, as [`signal_op`](Context::signal_op).
    ///
    /// # Errors
    /// [`Status::UNSUPPORTED`] where the PE is reached by rails: cards only add.
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

    /// Waits until this PE's signal is at least `at_least`. The bytes of each put whose signal is in that sum have then arrived and are
    /// visible to the whole scope. The sum does not say whose signals are in it: where `at_least` is all that senders may have added so far,
    /// it proves all their puts; where one may be ahead, its next put may stand in for one that has not arrived ([`Signal`]). One thread
    /// looks, and the scope meets behind it. OpenSHMEM: `shmem_signal_wait_until` with SHMEM_CMP_GE (a counter that only
    /// grows needs no other comparison).
    ///
    /// # Errors
    /// [`Status::DEADLINE`] when the signal has not grown for the world's timeout, the reason the host gave, or an earlier failure of this context.
    #[inline(always)]
    #[track_caller]
    pub fn signal_wait_until(&mut self, signal: Signal, at_least: u64) -> Result<(), Status> {
        self.flush();
        self.begin(Call::Wait, self.world.me, signal.0 as u64, signal.0 < SIGNALS)?;
        self.wait_signal(Call::Wait, NO_PE, signal, at_least);
        self.agreed()
    }

    /// As `wait_wanted`, for a sum.
    #[inline(always)]
    pub(super) fn wait_signal(&mut self, call: Call, pe: u32, signal: Signal, at_least: u64) {
        self.wait_wanted(call, pe, signal, Wanted::at_least(at_least));
    }

    /// One thread waits; failures are kept until the scope agrees.
    #[inline(always)]
    pub(super) fn wait_wanted(&mut self, call: Call, pe: u32, signal: Signal, wanted: Wanted) {
        if !self.scope.is_of_first_warp() || self.failed() {
            return;
        }
        let world = self.world;
        // All lanes of the warp look at first: alone, one would take turns with the others, which wait for it. Not over the bus, where the looks of
        // 32 lanes are as many trips (one H100, a message over modelled cards 21.8 us, by the one lane 19.4).
        if world.planes(signal).is_near() && world.planes(signal).is_met_soon(wanted) || !self.scope.leads() {
            return;
        }
        // SAFETY: the host's word is there while the grid runs.
        let waited = world.planes(signal).wait(wanted, world.timeout_ns, unsafe { &*world.abort });
        if let Err((stop, sum)) = waited {
            let (seen, wanted) = wanted.told(sum);
            self.fail(stop, Failure { call, pe, detail: signal.0 as u64, seen, wanted });
        }
    }

    /// By a mapping, once for the scope.
    #[inline(always)]
    fn change(&mut self, heap: u64, signal: Signal, value: u64, sets: bool) {
        if self.scope.leads() {
            // SAFETY: the heap begins with the signals.
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

/// A signal's word in a mapped heap.
///
/// # Safety
/// The heap is mapped there while the word is used.
#[inline(always)]
pub(crate) unsafe fn signal_word<'a>(heap: u64, signal: Signal) -> &'a cuda_std::memory::Word {
    // SAFETY: the caller's contract; the heap begins with a word for each signal.
    unsafe { &*(heap as *const cuda_std::memory::Word).add(signal.0 as usize) }
}

impl Context<Thread> {
    /// This PE's signal now. What was put before it was signalled is visible. OpenSHMEM: `shmem_signal_fetch`.
    #[inline(always)]
    pub fn signal_fetch(&self, signal: Signal) -> u64 {
        if signal.0 < SIGNALS { self.world.planes(signal).sum() } else { 0 }
    }

    /// Waits until one of `count` signals that were allocated together, from `first` on, is at least `at_least`; returns which, the
    /// first that is found. OpenSHMEM: `shmem_wait_until_any`.
    ///
    /// # Errors
    /// As [`signal_wait_until`](Context::signal_wait_until); [`Status::REFUSED`] for no signals.
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
            // SAFETY: the host's word is there while the grid runs.
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
