//! [`Context`]: one-sided operations (puts, gets) and the calls that wait for their completion.

use super::copy::{Lanes, copy};
use super::report::{Call, Failure, NO_PE, note};
use super::{HEAP, Plain, Scope, Sym, WorldView};
use crate::batch::Batch;
use crate::command::{Command, Opcode};
use crate::ring::Status;
use crate::ring::producer::Fence;
use cuda_std::memory::fence_acq_rel_sys;

/// The communication context of one scope: a thread, a warp or a block.
///
/// Owned by the threads that created it. Other threads use their own contexts.
#[derive(Debug)]
pub struct Context<S> {
    pub(super) world: WorldView,
    pub(super) scope: S,
    /// All tickets below this number are known to this thread to have a free slot in this block's outlet: the ring or
    /// NIC queue that takes its commands. Unused in a world without rails. (The outlet itself stays in memory, because
    /// it would occupy registers that calls to mapped PEs need.)
    free_below: u64,
    /// Number after the last ticket for which this thread waits, or 0 if there is none.
    pub(super) last: u64,
    /// Latest watermark that this thread has read.
    pub(super) known: u64,
    /// Whether stores to other heaps have been issued since the last fence.
    pub(super) unfenced: bool,
    /// Status of the first failed call of this thread, or the status on which the scope has agreed; 0 if no call
    /// failed.
    stop: u64,
    /// The PE of the last lookup, and the address of its heap (0 if the heap is not mapped).
    peer: (u32, u64),
    batch: Batch,
}

impl<S: Scope> Context<S> {
    #[inline(always)]
    pub(super) fn new(world: WorldView, scope: S) -> Context<S> {
        let peer = (world.me, world.heap as u64);
        // SAFETY: `me` is below `pes` in every world that the host creates.
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

    /// Batches non-blocking puts over rails, with or without a signal: up to `puts` of them (at most 32, and at most
    /// one per thread of the scope) are published together after one fence. See [`Batch`] for benefits and costs. A
    /// single-thread context does not batch.
    ///
    /// A batch is published:
    /// - when it is full, and by the first put over rails more than 20 us after the batch was opened;
    /// - by `flush`;
    /// - by every call that waits: `put`, `put_signal`, `get`, `quiet`, `fence`, the barriers, the waits for signals,
    ///   rounds, values and counted messages, `reclaim`, `reclaim_round`, `receive`, `receive_folded`, `all_to_all`;
    /// - by `send`, and over rails by `get_nbi`, `signal_op` and `put_round_nbi`. If the PE's heap is mapped, these
    ///   three calls publish nothing.
    ///
    /// [`Grid::sync`](super::Grid::sync) has no context and publishes nothing: call `flush` before it, and before the
    /// kernel's end.
    #[inline(always)]
    #[must_use]
    pub fn batched(mut self, puts: u32) -> Context<S> {
        self.batch = Batch::new(puts, self.scope.size());
        self
    }

    /// Returns the world of this context.
    #[inline(always)]
    pub fn world(&self) -> &WorldView {
        &self.world
    }

    /// Returns the scope whose threads make this context's calls.
    #[inline(always)]
    pub fn scope(&self) -> S {
        self.scope
    }

    /// Returns whether the heap of PE `pe` is mapped here, so that puts to it are stores. True for this PE and for PEs
    /// reached over NVLink or shared memory; other PEs are reached over rails.
    #[inline(always)]
    pub fn is_mapped(&mut self, pe: u32) -> bool {
        pe < self.world.pes && self.heap_of(pe) != 0
    }

    /// Looks up the heap of PE `pe` in advance. Returns `false` if there is no such PE.
    ///
    /// Every call performs this lookup, and first checks the PE of the previous lookup. Calling `find` before a loop
    /// that communicates with a single PE makes that PE known to the compiler.
    #[inline(always)]
    pub fn find(&mut self, pe: u32) -> bool {
        if pe >= self.world.pes {
            return false;
        }
        // `pe` may be this PE: in a separate branch for that case the compiler would replace `pe` by `me`.
        // SAFETY: `peers` has one entry per PE, and `pe` is below `pes`.
        self.peer = (pe, unsafe { (*self.world.peers.add(pe as usize)).heap });
        true
    }

    // --- puts and gets -----------------------------------------------------------------------------------------------

    /// Copies `from` on this PE to `to` on PE `pe`. On return `from` may be overwritten. Visibility at the target is
    /// established by `quiet` or a signal. OpenSHMEM: `shmem_put`, `shmemx_put_block`.
    ///
    /// Over rails it returns only after the bytes have arrived, because providers do not report when the source has
    /// been read.
    ///
    /// # Errors
    /// Returns [`Status::REFUSED`] if there is no such PE or `to` is shorter than `from`, and otherwise the status that
    /// ended the wait.
    #[inline(always)]
    #[track_caller]
    pub fn put<T: Plain>(&mut self, to: Sym<T>, from: Sym<T>, pe: u32) -> Result<(), Status> {
        self.put_nbi(to, from, pe)?;
        self.finish(Call::Put, pe, from.bytes())
    }

    /// Like [`put`](Context::put), but does not wait: `from` may be overwritten only after `quiet`. Two puts to the
    /// same destination, and their individual bytes, may arrive in any order unless `fence` or `quiet` separates them.
    /// OpenSHMEM: `shmem_put_nbi`.
    ///
    /// # Errors
    /// Returns the same errors as [`put`](Context::put). In a warp or block, a failure to push the command is reported
    /// by the next call that waits.
    #[inline(always)]
    #[track_caller]
    pub fn put_nbi<T: Plain>(&mut self, to: Sym<T>, from: Sym<T>, pe: u32) -> Result<(), Status> {
        let heap = self.begin(Call::Put, pe, from.bytes(), to.bytes() >= from.bytes())?;
        self.scope.sync();
        if heap != 0 {
            // SAFETY: both objects are in the heap, which is mapped at `heap`; the caller prevents other accesses to
            // their bytes.
            unsafe { self.store_to(heap, to.offset(), from.offset(), from.bytes()) };
            return self.answer();
        }
        let command = transfer(Opcode::Put, to.offset(), from.offset(), from.bytes(), pe, 0);
        self.post_or_batch(Call::Put, &command)
    }

    /// Copies `from` on PE `pe` to `to` on this PE. On return the bytes are visible to the scope. OpenSHMEM:
    /// `shmem_get`.
    ///
    /// # Errors
    /// Returns the same errors as [`put`](Context::put).
    #[inline(always)]
    #[track_caller]
    pub fn get<T: Plain>(&mut self, to: Sym<T>, from: Sym<T>, pe: u32) -> Result<(), Status> {
        self.get_nbi(to, from, pe)?;
        self.finish(Call::Get, pe, from.bytes())
    }

    /// Like [`get`](Context::get), but does not wait: the bytes are visible after `quiet`. OpenSHMEM: `shmem_get_nbi`.
    ///
    /// # Errors
    /// Returns the same errors as [`put_nbi`](Context::put_nbi).
    #[inline(always)]
    #[track_caller]
    pub fn get_nbi<T: Plain>(&mut self, to: Sym<T>, from: Sym<T>, pe: u32) -> Result<(), Status> {
        let heap = self.begin(Call::Get, pe, from.bytes(), to.bytes() >= from.bytes())?;
        self.scope.sync();
        if heap != 0 {
            let source = (heap + from.offset()) as *const u8;
            // SAFETY: both objects are in the heap, which is mapped at `heap`; the caller prevents other accesses to
            // their bytes.
            unsafe { copy(self.world.at(to.offset()), source, from.bytes(), Lanes::of(&self.scope)) };
            return self.answer();
        }
        self.flush();
        let command = transfer(Opcode::Get, to.offset(), from.offset(), from.bytes(), pe, 0);
        // `Payload` orders the scope's earlier accesses to the destination before the NIC overwrites it.
        self.post(Call::Get, &command, Fence::Payload)
    }

    // --- waits -------------------------------------------------------------------------------------------------------

    /// Waits until all puts, gets and signals of this context are complete. The puts are then visible at their targets
    /// to every thread that is notified of them, and their sources may be overwritten. OpenSHMEM: `shmem_quiet`.
    /// (NCCL's `flush` guarantees only the sources.)
    ///
    /// A thread counts as notified by a later call of this context, or by another thread that fences after this call
    /// (`fence` on its context, or a release).
    ///
    /// # Errors
    /// Returns the first failure of this context, or the status that ended the wait.
    #[inline(always)]
    #[track_caller]
    pub fn quiet(&mut self) -> Result<(), Status> {
        self.settle(Call::Quiet)
    }

    /// Orders this context's earlier puts, and the scope's own memory accesses, before its later puts and signals to
    /// the same PE. OpenSHMEM: `shmem_fence`.
    ///
    /// Over NVLink this is a memory fence. Rails do not preserve order, so over rails it waits like `quiet`.
    ///
    /// # Errors
    /// Returns the same errors as [`quiet`](Context::quiet).
    #[inline(always)]
    #[track_caller]
    pub fn fence(&mut self) -> Result<(), Status> {
        self.settle(Call::Fence)
    }

    /// Publishes the puts of an incomplete batch. Does not wait.
    #[inline(always)]
    #[track_caller]
    pub fn flush(&mut self) {
        if self.batch.pending() > 0 {
            self.publish(Call::Put);
        }
    }

    /// Implements `quiet` and `fence`, between two barriers of the scope. After `fence` any thread may issue the next
    /// store or signal, so every thread fences. `quiet` waits only for earlier stores, for which one thread's fence
    /// suffices: fences are cumulative.
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

    /// Waits for this thread's tickets and makes the scope agree on the outcome.
    #[inline(always)]
    #[track_caller]
    pub(super) fn finish(&mut self, call: Call, pe: u32, detail: u64) -> Result<(), Status> {
        if self.world.outlet_count == 0 {
            // Without outlets no command is pending. A call that can fail on a single thread has already made the scope
            // agree, so no vote is needed.
            self.scope.sync();
            return self.outcome();
        }
        if self.batch.pending() > 0 {
            self.publish(call);
        }
        self.wait_for_tickets(call, pe, detail);
        self.agreed()
    }

    /// Makes the scope agree on its status. All its threads return the same result, after a barrier.
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

    /// Returns whether a call of this thread has failed.
    #[inline(always)]
    pub(super) fn failed(&self) -> bool {
        self.stop != 0
    }

    /// Records that a store to another heap is not yet fenced.
    #[inline(always)]
    pub(super) fn stored(&mut self) {
        self.unfenced = true;
    }

    #[inline(always)]
    pub(super) fn wait_for_tickets(&mut self, call: Call, pe: u32, detail: u64) {
        if self.world.outlet_count != 0 && self.last > self.known && self.stop == 0 {
            // SAFETY: there is at least one outlet (checked above), and all threads of a block use the same world.
            let waited = unsafe { self.world.outlets().wait(self.last - 1, self.free_below) };
            match waited {
                Ok(watermark) => self.known = watermark,
                Err(stop) => self.fail(stop, Failure::of(call, pe, detail)),
            }
        }
    }

    // --- shared by the calls -----------------------------------------------------------------------------------------

    /// Returns the address of the PE's heap, or 0 if the PE is reached over rails.
    #[inline(always)]
    pub(super) fn heap_of(&mut self, pe: u32) -> u64 {
        // Fast path for loops that communicate with one PE.
        if self.peer.0 == pe {
            return self.peer.1;
        }
        if pe == self.world.me {
            // Does not update `peer`: a wait on this PE between two signals must not evict the other PE.
            return self.world.heap as u64;
        }
        // SAFETY: `peers` has one entry per PE, and callers have checked `pe`.
        self.peer = (pe, unsafe { (*self.world.peers.add(pe as usize)).heap });
        self.peer.1
    }

    /// Validates arguments that are the same for all threads of the scope. Returns the address of the PE's heap, or 0
    /// if it is reached over rails. `detail` is recorded with a failure: bytes or a signal.
    ///
    /// # Errors
    /// Records a failure and returns [`Status::REFUSED`] if there is no such PE or `fits` is `false`.
    #[inline(always)]
    pub(super) fn begin(&mut self, call: Call, pe: u32, detail: u64, fits: bool) -> Result<u64, Status> {
        if pe >= self.world.pes || !fits {
            note(&self.world, Status::REFUSED, Failure::of(call, pe, detail));
            self.stop = Status::REFUSED.0;
            return Err(Status::REFUSED);
        }
        let heap = self.heap_of(pe);
        // SAFETY: in a world without outlets the host has mapped every heap.
        unsafe { core::hint::assert_unchecked(heap != 0 || self.world.outlet_count != 0) };
        Ok(heap)
    }

    /// Returns the result of a call that does not wait. A warp or block reports failures when it next agrees, so it
    /// gets `Ok` here.
    #[inline(always)]
    pub(super) fn answer(&self) -> Result<(), Status> {
        if S::ALONE && self.stop != 0 { Err(Status(self.stop)) } else { Ok(()) }
    }

    /// Pushes a command to this block's outlet, for a PE that is reached over rails.
    #[inline(always)]
    pub(super) fn push(&mut self, fence: Fence, command: &Command) -> Result<u64, Status> {
        // SAFETY: there is at least one outlet if any heap is not mapped, and all threads of a block use the same
        // world.
        unsafe { self.world.outlets().push(&mut self.free_below, fence, command) }
    }

    /// Pushes one command for the whole scope, from its leader.
    #[inline(always)]
    pub(super) fn post(&mut self, call: Call, command: &Command, fence: Fence) -> Result<(), Status> {
        if self.scope.leads() && self.stop == 0 {
            match self.push(fence, command) {
                Ok(ticket) => self.last = ticket + 1,
                Err(stop) => self.fail(stop, Failure::of(call, command.peer, command.bytes)),
            }
        }
        self.answer()
    }

    /// Pushes one command for the whole scope after fencing its payload, immediately or with the current batch.
    #[inline(always)]
    #[track_caller]
    pub(super) fn post_or_batch(&mut self, call: Call, command: &Command) -> Result<(), Status> {
        if self.batch.capacity() == 1 {
            return self.post(call, command, Fence::Payload);
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
        let published = batch.publish(|command| self.push(Fence::Payload, command), rank);
        self.batch = batch;
        match published {
            // Thread 0 waits for the batch on behalf of the scope.
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

    /// Performs a put to a mapped heap with stores by all threads of the scope.
    ///
    /// # Safety
    /// Both ranges must be in the heap, and no other thread may access their bytes.
    #[inline(always)]
    pub(super) unsafe fn store_to(&mut self, heap: u64, to: u64, from: u64, bytes: u64) {
        // SAFETY: the caller guarantees that both ranges are in the heap and that no other thread accesses them.
        unsafe { copy((heap + to) as *mut u8, self.world.at(from), bytes, Lanes::of(&self.scope)) };
        self.stored();
    }

    /// Fences on behalf of the whole scope, from its leader. Must follow a barrier of the scope: fences are cumulative.
    #[inline(always)]
    pub(super) fn fenced(&mut self) {
        self.unfenced = false;
        if self.scope.leads() {
            fence_acq_rel_sys();
        }
    }
}

/// Builds a command that moves `bytes` between this PE's heap and that of PE `peer`.
#[inline(always)]
pub(super) fn transfer(opcode: Opcode, to: u64, from: u64, bytes: u64, peer: u32, immediate: u32) -> Command {
    Command { opcode, immediate, ..Command::put((HEAP, from), (HEAP, to), bytes, peer) }
}
