//! A context: puts and gets, and the calls that wait for them.

use super::copy::copy;
use super::report::{Call, Failure, NO_PE, note};
use super::{HEAP, Plain, Scope, Sym, World};
use crate::batch::Batch;
use crate::command::{Command, Opcode};
use crate::ring::producer::{Behind, Words};
use crate::ring::{Ring, Status};
use cuda_std::memory::fence_acq_rel_sys;

/// One scope's line to all PEs. It belongs to the threads that made it; others have contexts of their own.
#[derive(Debug)]
pub struct Context<S> {
    pub(super) world: World,
    pub(super) scope: S,
    /// What is known of free slots in this block's ring, where the world has rings. (The ring itself lies in memory: it would take the registers
    /// that calls to mapped PEs need.)
    free_below: u64,
    /// One more than the last ticket of this thread; 0: none.
    pub(super) last: u64,
    /// The newest watermark that this thread has seen.
    pub(super) known: u64,
    /// Stores to other heaps that no fence stands behind.
    pub(super) unfenced: bool,
    /// The first reason that a call of this thread failed, or that the scope has agreed on.
    stop: u64,
    /// The PE that was asked for last, and where its heap is mapped.
    peer: (u32, u64),
    batch: Batch,
}

impl<S: Scope> Context<S> {
    #[inline(always)]
    pub(super) fn new(world: World, scope: S) -> Context<S> {
        let peer = (world.me, world.heap as u64);
        // SAFETY: contract of the world.
        unsafe { core::hint::assert_unchecked(world.me < world.pes) };
        Context {
            world,
            scope,
            free_below: 0,
            last: 0,
            known: 0,
            unfenced: false,
            stop: 0,
            peer,
            batch: Batch::new(1, scope.size()),
        }
    }

    /// Lets up to `puts` (at most 32, and the scope's threads) non-blocking puts over rails, with a signal or without, wait for each
    /// other, to be published behind one fence; see [`Batch`] for what that buys and costs. A batch is published when it is full, by
    /// `quiet`, `fence`, `flush`, `signal_op`, a get, a wait for a signal, and by the first put after 20 us. A context of one thread has
    /// none.
    #[inline(always)]
    #[must_use]
    pub fn batched(mut self, puts: u32) -> Context<S> {
        self.batch = Batch::new(puts, self.scope.size());
        self
    }

    /// The job.
    #[inline(always)]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Who makes this context's calls.
    #[inline(always)]
    pub fn scope(&self) -> S {
        self.scope
    }

    /// Whether this PE's heap is mapped here, so that puts to it are stores: this PE, or over NVLink. Otherwise: rails.
    #[inline(always)]
    pub fn is_mapped(&mut self, pe: u32) -> bool {
        pe < self.world.pes && self.heap_of(pe) != 0
    }

    /// Finds where PE `pe`'s heap is; false where there is no such PE. Calls do so themselves, and find the PE that was asked for last first; before
    /// a loop that talks to one PE it lets the compiler know which that is.
    #[inline(always)]
    pub fn find(&mut self, pe: u32) -> bool {
        if pe >= self.world.pes {
            return false;
        }
        // Of this PE too, without asking: on a way of its own the compiler takes one number for the other.
        // SAFETY: one entry for each PE.
        self.peer = (pe, unsafe { (*self.world.peers.add(pe as usize)).heap });
        true
    }

    // --- puts and gets -----------------------------------------------------------------------------------------------

    /// Copies `from` of this PE to `to` of PE `pe`. On return `from` may be written again; when the bytes are visible there is said
    /// by `quiet` or a signal. OpenSHMEM: `shmem_put`, `shmemx_put_block`.
    ///
    /// Over rails it returns when the bytes have arrived: providers say nothing earlier about a source.
    ///
    /// # Errors
    /// [`Status::REFUSED`] where there is no such PE or `to` is shorter than `from`; the reason that a wait ended otherwise.
    #[inline(always)]
    #[track_caller]
    pub fn put<T: Plain>(&mut self, to: Sym<T>, from: Sym<T>, pe: u32) -> Result<(), Status> {
        self.put_nbi(to, from, pe)?;
        self.finish(Call::Put, pe, from.bytes())
    }

    /// As [`put`](Context::put), without waiting: `from` may be written again after `quiet`. Two puts to one place may arrive in any order,
    /// and so may their bytes: `fence` or `quiet` stands between them. OpenSHMEM: `shmem_put_nbi`.
    ///
    /// # Errors
    /// As [`put`](Context::put); in a group, a command that could not be pushed is an error of the next call that waits.
    #[inline(always)]
    #[track_caller]
    pub fn put_nbi<T: Plain>(&mut self, to: Sym<T>, from: Sym<T>, pe: u32) -> Result<(), Status> {
        let heap = self.begin(Call::Put, pe, from.bytes(), to.bytes() >= from.bytes())?;
        self.scope.sync();
        if heap != 0 {
            // SAFETY: both objects are of the heap, which is mapped at `heap`; the caller keeps others off their bytes.
            unsafe { self.store_to(heap, to.offset(), from.offset(), from.bytes()) };
            return self.answer();
        }
        let command = transfer(Opcode::Put, to.offset(), from.offset(), from.bytes(), pe, 0);
        self.post_or_batch(Call::Put, &command)
    }

    /// Copies `from` of PE `pe` to `to` of this PE; on return the bytes are visible to the scope. OpenSHMEM: `shmem_get`.
    ///
    /// # Errors
    /// As [`put`](Context::put).
    #[inline(always)]
    #[track_caller]
    pub fn get<T: Plain>(&mut self, to: Sym<T>, from: Sym<T>, pe: u32) -> Result<(), Status> {
        self.get_nbi(to, from, pe)?;
        self.finish(Call::Get, pe, from.bytes())
    }

    /// As [`get`](Context::get), without waiting: the bytes are visible after `quiet`. OpenSHMEM: `shmem_get_nbi`.
    ///
    /// # Errors
    /// As [`put_nbi`](Context::put_nbi).
    #[inline(always)]
    #[track_caller]
    pub fn get_nbi<T: Plain>(&mut self, to: Sym<T>, from: Sym<T>, pe: u32) -> Result<(), Status> {
        let heap = self.begin(Call::Get, pe, from.bytes(), to.bytes() >= from.bytes())?;
        self.scope.sync();
        if heap != 0 {
            let (rank, lanes) = (self.scope.rank(), self.scope.size());
            // SAFETY: as for `put_nbi`.
            unsafe {
                let source = (heap + from.offset()) as *const u8;
                copy(self.world.at(to.offset()), source, from.bytes(), rank, lanes);
            }
            return self.answer();
        }
        self.flush();
        let command = transfer(Opcode::Get, to.offset(), from.offset(), from.bytes(), pe, 0);
        // Behind its fence: the threads' accesses to the bytes that will be overwritten come before.
        self.post(Call::Get, &command, Behind::Payload)
    }

    // --- waits -------------------------------------------------------------------------------------------------------

    /// Returns when all that this context has put, got and signalled is done: puts are visible at their targets to whoever is told
    /// of it, and their sources may be written again. It is told by calls of this context, or by another thread behind a fence of its own
    /// (`fence` of its context, a release). OpenSHMEM: `shmem_quiet`. (NCCL's `flush` promises the sources alone.)
    ///
    /// # Errors
    /// The first failure of this context, or the reason that the wait ended.
    #[inline(always)]
    #[track_caller]
    pub fn quiet(&mut self) -> Result<(), Status> {
        self.settle(Call::Quiet)
    }

    /// Puts of this context before it are delivered to each PE before puts and signals to that PE behind it; so are the scope's own
    /// accesses to memory, which a signal behind it may speak of. OpenSHMEM: `shmem_fence`. Over NVLink it is a fence. Rails keep no
    /// order, so there it waits as `quiet` does.
    ///
    /// # Errors
    /// As [`quiet`](Context::quiet).
    #[inline(always)]
    #[track_caller]
    pub fn fence(&mut self) -> Result<(), Status> {
        self.settle(Call::Fence)
    }

    /// Publishes puts that wait for others of their batch. Waits for nothing.
    #[inline(always)]
    #[track_caller]
    pub fn flush(&mut self) {
        if self.batch.pending() > 0 {
            self.publish(Call::Put);
        }
    }

    /// A barrier of the scope stands before and behind. Behind `fence` each thread may be the one that stores or signals next, so each
    /// fences; `quiet` waits for the stores, which the fence of one does for all: fences are cumulative.
    #[inline(always)]
    #[track_caller]
    fn settle(&mut self, call: Call) -> Result<(), Status> {
        self.flush();
        self.scope.sync();
        if call == Call::Fence {
            self.unfenced = false;
            fence_acq_rel_sys();
        } else if self.unfenced {
            self.fenced();
        }
        self.finish(call, NO_PE, 0)
    }

    /// Waits for this thread's tickets, and lets the scope agree on how that ended.
    #[inline(always)]
    #[track_caller]
    pub(super) fn finish(&mut self, call: Call, pe: u32, detail: u64) -> Result<(), Status> {
        if self.world.ring_count == 0 {
            // Nothing is waited for, and what a thread failed by alone its scope has agreed on in that call: there is no vote.
            self.scope.sync();
            return self.outcome();
        }
        if self.batch.pending() > 0 {
            self.publish(call);
        }
        self.wait_for_tickets(call, pe, detail);
        self.agreed()
    }

    /// What the scope has come to: the same answer for all its threads, behind a barrier of theirs.
    #[inline(always)]
    #[track_caller]
    pub(super) fn agreed(&mut self) -> Result<(), Status> {
        self.stop = self.scope.agree(self.stop);
        self.outcome()
    }

    #[inline(always)]
    fn outcome(&self) -> Result<(), Status> {
        if self.stop == 0 { Ok(()) } else { Err(Status(self.stop)) }
    }

    /// Whether a call of this thread has failed.
    #[inline(always)]
    pub(super) fn failed(&self) -> bool {
        self.stop != 0
    }

    /// There is a store to another heap that no fence stands behind.
    #[inline(always)]
    pub(super) fn stored(&mut self) {
        self.unfenced = true;
    }

    #[inline(always)]
    pub(super) fn wait_for_tickets(&mut self, call: Call, pe: u32, detail: u64) {
        if self.world.ring_count != 0 && self.last > self.known && self.stop == 0 {
            // SAFETY: there are rings, as many as the host says, and all threads of a block have one world.
            let waited = unsafe { Ring::wait_of_block(self.rings(), self.last - 1, self.free_below) };
            match waited {
                Ok(watermark) => self.known = watermark,
                Err(stop) => self.fail(stop, Failure::of(call, pe, detail)),
            }
        }
    }

    // --- what the calls share ----------------------------------------------------------------------------------------

    /// Where the PE's heap is mapped; 0: it is reached by rails.
    #[inline(always)]
    pub(super) fn heap_of(&mut self, pe: u32) -> u64 {
        // Whom a loop talks to is found first.
        if self.peer.0 == pe {
            return self.peer.1;
        }
        if pe == self.world.me {
            // Without a look at the table: a wait between two signals must not forget the other PE.
            return self.world.heap as u64;
        }
        // SAFETY: one entry for each PE.
        self.peer = (pe, unsafe { (*self.world.peers.add(pe as usize)).heap });
        self.peer.1
    }

    /// Checks what all threads of the scope can see alike; where the PE's heap is mapped.
    #[inline(always)]
    pub(super) fn begin(&mut self, call: Call, pe: u32, detail: u64, fits: bool) -> Result<u64, Status> {
        if pe >= self.world.pes || !fits {
            note(&self.world, Status::REFUSED, Failure::of(call, pe, detail));
            self.stop = Status::REFUSED.0;
            return Err(Status::REFUSED);
        }
        let heap = self.heap_of(pe);
        // SAFETY: contract of the world: without rings every heap is mapped.
        unsafe { core::hint::assert_unchecked(heap != 0 || self.world.ring_count != 0) };
        Ok(heap)
    }

    /// The answer of a call that does not wait: one thread's own failures; a group's are told when it next agrees.
    #[inline(always)]
    pub(super) fn answer(&self) -> Result<(), Status> {
        if S::ALONE && self.stop != 0 { Err(Status(self.stop)) } else { Ok(()) }
    }

    #[inline(always)]
    fn rings(&self) -> (*const Ring, u32) {
        (self.world.rings, self.world.ring_count)
    }

    /// Pushes to this block's ring, where a PE is reached by rails.
    #[inline(always)]
    pub(super) fn push(&mut self, behind: Behind, words: Words) -> Result<u64, Status> {
        // SAFETY: the host uploads as many rings as it says, at least one where a heap is not mapped, and all threads of a block have one world.
        unsafe { Ring::push_of_block(self.rings(), &mut self.free_below, behind, words) }
    }

    /// Pushes a command, once for the scope.
    #[inline(always)]
    pub(super) fn post(&mut self, call: Call, command: &Command, behind: Behind) -> Result<(), Status> {
        if self.scope.leads() && self.stop == 0 {
            match self.push(behind, command.encode()) {
                Ok(ticket) => self.last = ticket + 1,
                Err(stop) => self.fail(stop, Failure::of(call, command.peer, command.bytes)),
            }
        }
        self.answer()
    }

    /// Pushes a command behind its payload, once for the scope, now or with its batch.
    #[inline(always)]
    #[track_caller]
    pub(super) fn post_or_batch(&mut self, call: Call, command: &Command) -> Result<(), Status> {
        if self.batch.capacity() == 1 {
            return self.post(call, command, Behind::Payload);
        }
        if self.batch.add(self.scope.rank(), command) {
            self.publish(call);
        }
        self.answer()
    }

    #[inline(always)]
    #[track_caller]
    fn publish(&mut self, call: Call) {
        let (mut batch, rank) = (self.batch, self.scope.rank());
        let published = batch.publish(|words| self.push(Behind::Payload, words), rank);
        self.batch = batch;
        match published {
            // One thread of the scope waits for all.
            Ok(end) if self.scope.rank() == 0 => self.last = self.last.max(end),
            Ok(_) => {}
            Err(stop) => self.fail(stop, Failure::of(call, NO_PE, 0)),
        }
    }

    #[inline(always)]
    pub(super) fn fail(&mut self, stop: Status, failure: Failure) {
        if self.stop == 0 {
            self.stop = stop.0;
        }
        note(&self.world, stop, failure);
    }

    /// The stores of a put, by the lanes of the scope.
    ///
    /// # Safety
    /// Both stretches are of the heap, and nobody else uses their bytes.
    #[inline(always)]
    pub(super) unsafe fn store_to(&mut self, heap: u64, to: u64, from: u64, bytes: u64) {
        // SAFETY: the caller's contract.
        unsafe {
            copy((heap + to) as *mut u8, self.world.at(from), bytes, self.scope.rank(), self.scope.size());
        }
        self.stored();
    }

    /// A fence for all threads of the scope by its first one, behind a barrier: fences are cumulative.
    #[inline(always)]
    pub(super) fn fenced(&mut self) {
        self.unfenced = false;
        if self.scope.leads() {
            fence_acq_rel_sys();
        }
    }
}

/// A command between this PE's heap and another's.
#[inline(always)]
pub(super) fn transfer(opcode: Opcode, to: u64, from: u64, bytes: u64, peer: u32, immediate: u32) -> Command {
    Command {
        opcode,
        source_region: HEAP,
        source_offset: from,
        destination_region: HEAP,
        destination_offset: to,
        bytes,
        peer,
        immediate,
    }
}
