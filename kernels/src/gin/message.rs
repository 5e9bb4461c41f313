//! Messages: bytes and the notification of their arrival in a single one-way transfer.
//!
//! A put with a signal over NVLink takes two transfers: a fence waits until the bytes have arrived, and only then is
//! the signal sent. A message is stored as words that each carry four bytes and the number of the round. A receiver
//! that finds the round in a word also has the word's bytes, so no fence is needed. Messages send twice the number of
//! bytes, and the receiver copies them. Above some ten KiB a put is faster.
//!
//! The words are stored in an [`Inbox`], and `receive` copies the bytes to their destination. Therefore `put_signal`
//! does not use messages for few bytes: its bytes must be at their destination for every observer of the signal,
//! including the host.
//!
//! Over rails the same calls put the bytes into the inbox with a signal, as one of its
//! [rounds](Context::put_round_nbi).

use super::chunk::{read_chunk, tagged, write_chunk};
use super::limit::Limit;
use super::report::{Call, Failure, NO_PE};
use super::rows::Rows;
use super::{Context, Plain, Scope, Signal, Sym, WaitCondition};
use crate::ring::Status;
use cuda_std::memory::{WordPair, store_relaxed_sys_v2_u64};
use cuda_std::vector::fresh_u32;

/// Number of rows in flight, for scopes of many lanes and for a single thread, whose accesses do not overlap with those
/// of other lanes.
const UNDER_WAY: usize = 4;
const ALONE_UNDER_WAY: usize = 8;

/// Space on every PE for messages from every PE, allocated by the host.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Inbox {
    /// Offset in the heap in bytes, a multiple of 16.
    pub offset: u64,
    /// Maximum length of a message in bytes: a multiple of 8, and at most [`Inbox::MOST`].
    pub capacity: u64,
    /// First of `pes` signals for messages over rails: each PE uses a different one for each PE with which it exchanges
    /// messages.
    pub signals: Signal,
}

impl Inbox {
    /// Number of messages of one sender that an inbox holds at the same time.
    pub const ROUNDS: u64 = 2;

    /// Maximum length of a message in bytes: its chunks are counted in 32 bits.
    pub const MOST: u64 = 1 << 32;

    /// Maximum capacity for [exchanges](super::Exchange), which count the bytes of one sender's words (four times the
    /// capacity) in 32 bits.
    pub const MOST_EXCHANGED: u64 = (1 << 30) - 8;

    /// Returns the size in bytes of an inbox for messages of up to `capacity` bytes from `pes` PEs.
    pub const fn bytes(capacity: u64, pes: u32) -> u64 {
        // Each word of 8 bytes carries 4.
        pes as u64 * Inbox::ROUNDS * 2 * capacity
    }

    /// Returns the signal for messages between PEs `one` and `other` of `pes`, in both directions. A PE uses a
    /// different signal for each other PE, so all rounds of a signal that it sends go to the same PE.
    #[inline(always)]
    fn signal(&self, one: u32, other: u32, pes: u32) -> Signal {
        let sum = one + other;
        self.signals.at(if sum >= pes { sum - pes } else { sum })
    }

    /// Returns the heap offset of the slot for a sender's message of this round.
    #[inline(always)]
    pub(super) fn slot(&self, sender: u32, round: u32) -> u64 {
        // The offset is computed on each call. The compiler would keep an offset that is computed before a loop in
        // local memory.
        let number = fresh_u32(sender) as u64 * Inbox::ROUNDS + round as u64 % Inbox::ROUNDS;
        self.offset + number * 2 * self.capacity
    }
}

impl<S: Scope> Context<S> {
    /// Sends `from` to PE `pe` as the message of this round. Rounds of an inbox count up from 1, and a PE must receive
    /// every message that is sent to it. A sender must be at most one round ahead of a receiver: if messages are sent
    /// in one direction only, the receiver must signal its progress.
    ///
    /// A message proves that its own round has arrived, on every path and under every rule, even if it has no bytes. It
    /// does not prove the arrival of puts or of messages of other PEs.
    ///
    /// `from` may be overwritten after `quiet`, or after [`reclaim`](Context::reclaim) with this round. A kernel that
    /// alternates between two sources therefore reclaims with round `r`, writes the source, and sends round `r`. Over
    /// rails the call itself waits until the message of round `r - 2` to this PE is complete at this side.
    ///
    /// # Errors
    /// Returns [`Status::REFUSED`] if `from` is longer than the inbox's capacity, and otherwise the same errors as
    /// [`put_round_nbi`](Context::put_round_nbi).
    #[inline(always)]
    #[track_caller]
    pub fn send<T: Plain>(&mut self, inbox: Inbox, round: u32, from: Sym<T>, pe: u32) -> Result<(), Status> {
        let heap = self.begin(Call::Send, pe, from.bytes(), from.bytes() <= inbox.capacity)?;
        let slot = inbox.slot(self.world.me, round);
        if heap == 0 {
            let signal = inbox.signal(self.world.me, pe, self.world.pes);
            return self.post_round(Call::Send, (slot, from.offset(), from.bytes()), signal, round, pe);
        }
        self.flush();
        self.scope.sync();
        // SAFETY: the object is in this PE's heap, and the slot has space for it.
        unsafe { self.store_words(self.world.at(from.offset()), heap + slot, from.bytes(), round) };
        self.answer()
    }

    /// Stores the words of a message; each lane stores its own.
    ///
    /// # Safety
    /// `source` must be valid for reads of `bytes` bytes, and `slot` must have space for their words.
    #[inline(always)]
    unsafe fn store_words(&self, source: *const u8, slot: u64, bytes: u64, round: u32) {
        let store = |chunk: u32, value: u64| {
            // SAFETY: the slot has 16 bytes per chunk, and starts at a multiple of 16.
            let pair = unsafe { &*(slot as *const WordPair).add(chunk as usize) };
            store_relaxed_sys_v2_u64(pair, tagged(value as u32, round), tagged((value >> 32) as u32, round));
        };
        let mut rows = Rows::of(&self.scope, bytes);
        if (source as u64 | bytes).is_multiple_of(8) {
            // SAFETY: the chunk is within `bytes`, whole and aligned.
            let load = |chunk: u32| unsafe { source.cast::<u64>().add(chunk as usize).read() };
            while rows.are_left() {
                // Short messages are handled first, because each further condition would take a large share of their
                // time.
                if !rows.are_full(2) {
                    rows.copy::<1, false>(load, store);
                } else if S::ALONE && rows.are_full(ALONE_UNDER_WAY) {
                    rows.copy::<ALONE_UNDER_WAY, true>(load, store);
                } else if !S::ALONE && rows.are_full(UNDER_WAY) {
                    rows.copy::<UNDER_WAY, true>(load, store);
                } else {
                    rows.copy::<2, true>(load, store);
                }
            }
        } else {
            // SAFETY: the chunk starts inside the object, and no byte after its end is read.
            let load = |chunk: u32| unsafe { read_chunk(source.add(chunk as usize * 8), bytes - chunk as u64 * 8) };
            while rows.are_left() {
                rows.copy::<1, false>(load, store);
            }
        }
        // Tested last, so that the test does not delay the stores of other messages.
        if bytes == 0 {
            // SAFETY: the caller guarantees that the slot is valid.
            unsafe { self.store_bare(slot, round) };
        }
    }

    /// Receives PE `pe`'s message of this round into `to`, which must be as long as the sent object. On return its
    /// bytes are visible to the scope. Waits for this round even if the next one has already arrived. All earlier
    /// rounds must have been received.
    ///
    /// # Errors
    /// Returns [`Status::REFUSED`] if `to` is longer than the inbox's capacity, [`Status::DEADLINE`] if no message
    /// arrives, or the status with which the host ended the wait.
    #[inline(always)]
    #[track_caller]
    pub fn receive<T: Plain>(&mut self, inbox: Inbox, round: u32, to: Sym<T>, pe: u32) -> Result<(), Status> {
        self.flush();
        let heap = self.begin(Call::Receive, pe, to.bytes(), to.bytes() <= inbox.capacity)?;
        let slot = inbox.slot(pe, round);
        let (slot, target) = (self.world.at(slot), self.world.at(to.offset()));
        if heap == 0 {
            self.wait_message(inbox, round, pe);
            self.agreed()?;
            // SAFETY: `begin` has checked that `to` fits in a slot. The message has arrived, and its sender does not
            // overwrite it before round `round + 2`.
            unsafe { super::copy::copy_apart(target, slot, to.bytes(), self.scope.rank(), self.scope.size()) };
        } else {
            // SAFETY: `begin` has checked that `to` fits in a slot; slot and target are in this PE's heap.
            unsafe { self.take_words(slot.cast(), target, to.bytes(), round, pe) };
        }
        self.agreed()
    }

    /// Waits until the source of this PE's last message of this round's parity to PE `pe` may be overwritten: before
    /// [`send`](Context::send) of round `r` that is the message of round `r - 2`, after it that of round `r`. Over
    /// rails a source is read until the message is complete at this side, which is after the other PE has received it.
    ///
    /// # Errors
    /// Returns the same errors as [`reclaim_round`](Context::reclaim_round).
    #[inline(always)]
    pub fn reclaim(&mut self, inbox: Inbox, round: u32, pe: u32) -> Result<(), Status> {
        self.reclaim_round(inbox.signal(self.world.me, pe, self.world.pes), round, pe)
    }

    /// Like [`reclaim`](Context::reclaim), for the messages to all other PEs. A failure is kept until the scope agrees.
    #[inline(always)]
    pub(super) fn reclaim_all(&mut self, inbox: Inbox, round: u32) {
        if self.world.outlet_count != 0 {
            // Includes one unused signal, for messages of this PE to itself.
            self.wait_sent(inbox.signals, self.world.pes, round, NO_PE);
        }
    }

    /// Waits for a message over rails, on one thread. A failure is kept until the scope agrees.
    #[inline(always)]
    pub(super) fn wait_message(&mut self, inbox: Inbox, round: u32, pe: u32) {
        let signal = inbox.signal(self.world.me, pe, self.world.pes);
        self.wait_wanted(Call::Receive, pe, signal, WaitCondition::round(round));
    }

    /// Waits for the words of a message and stores their bytes; each lane handles its own.
    ///
    /// # Safety
    /// `slot` must have space for the words of `bytes` bytes. `target` must be valid for writes of `bytes` bytes, which
    /// no other thread may access.
    #[inline(always)]
    unsafe fn take_words(&mut self, slot: *const WordPair, target: *mut u8, bytes: u64, round: u32, pe: u32) {
        let mut rows = Rows::of(&self.scope, bytes);
        let (words, abort) = ((slot, round), self.world.abort);
        let mut limit = Limit::new(self.world.timeout_ns);
        let whole = (target as u64 | bytes).is_multiple_of(8);
        while rows.are_left() {
            let end = (&mut limit, abort);
            // SAFETY: the caller guarantees slot and target; the host keeps `abort` valid while the grid runs; no byte
            // after the target's end is written.
            let taken = unsafe {
                if whole {
                    let write = |chunk: u32, value| target.cast::<u64>().add(chunk as usize).write(value);
                    if !rows.are_full(2) {
                        rows.take::<1, false>(words, end, write)
                    } else if S::ALONE && rows.are_full(ALONE_UNDER_WAY) {
                        rows.take::<ALONE_UNDER_WAY, true>(words, end, write)
                    } else if !S::ALONE && rows.are_full(UNDER_WAY) {
                        rows.take::<UNDER_WAY, true>(words, end, write)
                    } else {
                        rows.take::<2, true>(words, end, write)
                    }
                } else {
                    let left = |chunk: u32| bytes - chunk as u64 * 8;
                    let write = |chunk: u32, value| write_chunk(target.add(chunk as usize * 8), value, left(chunk));
                    rows.take::<1, false>(words, end, write)
                }
            };
            if let Err((stop, seen)) = taken {
                let failure = Failure { call: Call::Receive, pe, detail: bytes, seen, wanted: round as u64 };
                return self.fail(stop, failure);
            }
        }
        if bytes == 0 {
            // SAFETY: the caller guarantees that the slot is valid.
            unsafe { self.take_bare(slot as u64, round, pe) };
        }
    }

    /// Exchanges between all PEs: block `i` of `from` is sent to PE `i`, and block `i` of `to` is received from it.
    /// Both must have one block of equal length per PE, of at most the inbox's capacity. Every PE must call it with the
    /// same round. On return `from` may be overwritten. OpenSHMEM: `shmem_alltoall`.
    ///
    /// # Errors
    /// Returns the same errors as [`send`](Context::send) and [`receive`](Context::receive).
    #[inline(always)]
    #[track_caller]
    pub fn all_to_all<T: Plain>(&mut self, inbox: Inbox, round: u32, to: Sym<T>, from: Sym<T>) -> Result<(), Status> {
        self.flush();
        let (pes, me) = (self.world.pes, self.world.me);
        let block = from.len() / pes as u64;
        let fits = to.len() >= block * pes as u64;
        self.begin(Call::Send, me, from.bytes(), fits)?;
        if self.world.outlet_count == 0 && block * size_of::<T>() as u64 <= inbox.capacity {
            return self.all_to_all_mapped(inbox, round, to, from);
        }
        for step in 1..pes {
            let pe = (me + step) % pes;
            self.send(inbox, round, from.slice(pe as u64 * block, block), pe)?;
        }
        self.put_nbi(to.slice(me as u64 * block, block), from.slice(me as u64 * block, block), me)?;
        // The messages to this PE take as long as this wait, so it precedes their receipt. `receive` then makes the
        // scope agree on the outcome.
        self.reclaim_all(inbox, round);
        for step in 1..pes {
            let pe = (me + pes - step) % pes;
            self.receive(inbox, round, to.slice(pe as u64 * block, block), pe)?;
        }
        if pes == 1 { self.agreed() } else { Ok(()) }
    }

    /// Like [`all_to_all`](Context::all_to_all), if all heaps are mapped. It needs one barrier of the scope before and
    /// one after the messages of all PEs, instead of one per message.
    #[inline(always)]
    #[track_caller]
    fn all_to_all_mapped<T: Plain>(
        &mut self,
        inbox: Inbox,
        round: u32,
        to: Sym<T>,
        from: Sym<T>,
    ) -> Result<(), Status> {
        let (pes, me) = (self.world.pes, self.world.me);
        let block = from.len() / pes as u64;
        let at = |sym: Sym<T>, pe: u32| sym.slice(pe as u64 * block, block);
        self.scope.sync();
        let slot = inbox.slot(me, round);
        let mut pe = me;
        for _ in 1..pes {
            pe = if pe + 1 == pes { 0 } else { pe + 1 };
            let (heap, part) = (self.heap_of(pe), at(from, pe));
            // SAFETY: the block is in this PE's heap, and the slot has space for it.
            unsafe { self.store_words(self.world.at(part.offset()), heap + slot, part.bytes(), round) };
        }
        let (own, own_to) = (at(from, me), at(to, me));
        if own_to.offset() != own.offset() {
            let (target, source) = (self.world.at(own_to.offset()), self.world.at(own.offset()));
            // SAFETY: both blocks are in this PE's heap, and they do not overlap: in a single object their offsets
            // would be equal.
            unsafe { super::copy::copy(target, source, own.bytes(), super::copy::Lanes::of(&self.scope)) };
        }
        let mut pe = me;
        for _ in 1..pes {
            pe = if pe == 0 { pes - 1 } else { pe - 1 };
            let part = at(to, pe);
            let (slot, target) = (self.world.at(inbox.slot(pe, round)), self.world.at(part.offset()));
            if !self.failed() {
                // SAFETY: slot and block are in this PE's heap.
                unsafe { self.take_words(slot.cast(), target, part.bytes(), round, pe) };
            }
        }
        self.agreed()
    }
}
