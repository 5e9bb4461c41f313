//! Messages: bytes and the news of them in one trip.
//!
//! A put with a signal over NVLink is two trips: a fence waits until the bytes have arrived, and only then the signal goes out. A message
//! is stored as words that each carry four bytes and the number of the round: whoever finds the round in a word has its bytes, and
//! nothing is fenced. It costs twice the bytes on the wire and a copy at the receiver. (Two H200, one way: 512 B 0.9 us, 8 KiB 1.4, where
//! NVSHMEM's put with a signal takes 2.1; from some ten KiB on a put is faster.)
//!
//! The words lie in an [`Inbox`], and the receiver's `receive` copies them where it wants them. That is why it is a call of its own and
//! not what `put_signal` does with few bytes: there the bytes must lie at their place for anybody who sees the signal, the host too.
//!
//! Over rails the same calls are a put with a signal into the inbox, as one of its [rounds](Context::put_round_nbi).

use super::chunk::{read_chunk, tagged, write_chunk};
use super::limit::Limit;
use super::report::{Call, Failure, NO_PE};
use super::rows::Rows;
use super::{Context, Plain, Scope, Signal, Sym, Wanted};
use crate::ring::Status;
use cuda_std::memory::{WordPair, store_relaxed_sys_v2_u64};
use cuda_std::vector::fresh_u32;

/// Rows under way at once, of many lanes and of one, whose trips overlap with nobody's.
const UNDER_WAY: usize = 4;
const ALONE_UNDER_WAY: usize = 8;

/// Room on every PE for messages of every PE. The host allocates it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Inbox {
    /// First byte in the heap, a multiple of 16.
    pub offset: u64,
    /// Bytes of a message at most, a multiple of 8, and at most [`Inbox::MOST`].
    pub capacity: u64,
    /// As many signals as PEs, for messages over rails: one for each pair that a PE is of.
    pub signals: Signal,
}

impl Inbox {
    /// Messages of one sender that have room at a time.
    pub const ROUNDS: u64 = 2;

    /// The longest message: its chunks are counted in 32 bits.
    pub const MOST: u64 = 1 << 32;

    /// Bytes of an inbox for messages of so many bytes from so many PEs.
    pub const fn bytes(capacity: u64, pes: u32) -> u64 {
        // Each word of 8 bytes carries 4.
        pes as u64 * Inbox::ROUNDS * 2 * capacity
    }

    /// The signal of what two of `pes` PEs send to each other. A PE has another one for each other PE, both as sender and as receiver, so
    /// the rounds of a signal go to one PE.
    #[inline(always)]
    fn signal(&self, one: u32, other: u32, pes: u32) -> Signal {
        let sum = one + other;
        self.signals.at(if sum >= pes { sum - pes } else { sum })
    }

    /// Where a sender's message of this round lies.
    #[inline(always)]
    pub(super) fn slot(&self, sender: u32, round: u32) -> u64 {
        // Made at each call: what a loop makes of its sender before it begins it keeps in local memory.
        let number = fresh_u32(sender) as u64 * Inbox::ROUNDS + round as u64 % Inbox::ROUNDS;
        self.offset + number * 2 * self.capacity
    }
}

impl<S: Scope> Context<S> {
    /// Sends `from` to PE `pe` as the message of this round: rounds of an inbox count up from 1, and every PE that is sent to
    /// receives each. A sender may be one round ahead of a receiver and no more: where messages go one way only, let the receiver
    /// signal.
    ///
    /// A message proves that its own round has arrived, on every path and under every rule. It proves nothing about puts, or about messages of
    /// other PEs. `from` may be written again after `quiet`, or after [`reclaim`](Context::reclaim) with this round: so a program with two
    /// sources in turn reclaims with round `r`, writes the source, and sends round `r`. Over rails the call itself waits until the message of
    /// round `r - 2` to this PE is complete at this side.
    ///
    /// # Errors
    /// [`Status::REFUSED`] for more bytes than the inbox has room for; otherwise as [`put_round_nbi`](Context::put_round_nbi).
    #[inline(always)]
    #[track_caller]
    pub fn send<T: Plain>(&mut self, inbox: Inbox, round: u32, from: Sym<T>, pe: u32) -> Result<(), Status> {
        let heap = self.begin(Call::Send, pe, from.bytes(), from.bytes() <= inbox.capacity)?;
        let slot = inbox.slot(self.world.me, round);
        if heap == 0 {
            let signal = inbox.signal(self.world.me, pe, self.world.pes);
            return self.post_round(Call::Send, (slot, from.offset(), from.bytes()), signal, round, pe);
        }
        self.scope.sync();
        // SAFETY: the object is of this PE's heap, and the slot has room for it.
        unsafe { self.store_words(self.world.at(from.offset()), heap + slot, from.bytes(), round) };
        self.answer()
    }

    /// Stores the words of a message, each lane its own.
    ///
    /// # Safety
    /// So many bytes can be read at `source`; the words at `slot` have room for them.
    #[inline(always)]
    unsafe fn store_words(&self, source: *const u8, slot: u64, bytes: u64, round: u32) {
        let store = |chunk: u32, value: u64| {
            // SAFETY: the slot has 16 bytes for each chunk, and begins on a multiple of 16.
            let pair = unsafe { &*(slot as *const WordPair).add(chunk as usize) };
            store_relaxed_sys_v2_u64(pair, tagged(value as u32, round), tagged((value >> 32) as u32, round));
        };
        let mut rows = Rows::of(&self.scope, bytes);
        if (source as u64 | bytes).is_multiple_of(8) {
            // SAFETY: the chunk is below `bytes`, whole and aligned.
            let load = |chunk: u32| unsafe { source.cast::<u64>().add(chunk as usize).read() };
            while rows.are_left() {
                // Few bytes first: they have no time for questions.
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
            return;
        }
        // SAFETY: the chunk begins inside the object, and no more is read than it has.
        let load = |chunk: u32| unsafe { read_chunk(source.add(chunk as usize * 8), bytes - chunk as u64 * 8) };
        while rows.are_left() {
            rows.copy::<1, false>(load, store);
        }
    }

    /// Receives PE `pe`'s message of this round into `to`, which is as long as what was sent. On return its bytes are visible to the
    /// scope. It waits for this round and is not misled by the next one; all rounds before have been received.
    ///
    /// # Errors
    /// [`Status::REFUSED`] for more bytes than the inbox has room for; [`Status::DEADLINE`] or the reason the host gave when no message
    /// comes.
    #[inline(always)]
    #[track_caller]
    pub fn receive<T: Plain>(&mut self, inbox: Inbox, round: u32, to: Sym<T>, pe: u32) -> Result<(), Status> {
        let heap = self.begin(Call::Receive, pe, to.bytes(), to.bytes() <= inbox.capacity)?;
        let slot = inbox.slot(pe, round);
        let (slot, target) = (self.world.at(slot), self.world.at(to.offset()));
        if heap == 0 {
            self.wait_message(inbox, round, pe);
            self.agreed()?;
            // SAFETY: as above; the message is there, and its sender does not write it again before the next round but one.
            unsafe { super::copy::copy_apart(target, slot, to.bytes(), self.scope.rank(), self.scope.size()) };
        } else {
            // SAFETY: as above.
            unsafe { self.take_words(slot.cast(), target, to.bytes(), round, pe) };
        }
        self.agreed()
    }

    /// Waits until the messages of this round's parity that this PE has sent to PE `pe` may be written again: before
    /// [`send`](Context::send) of round `r` that is the source of round `r - 2`, behind it that of round `r`. Over rails a source is read
    /// until the message is complete at this side, which is after the other PE has received it.
    ///
    /// # Errors
    /// As [`reclaim_round`](Context::reclaim_round).
    #[inline(always)]
    pub fn reclaim(&mut self, inbox: Inbox, round: u32, pe: u32) -> Result<(), Status> {
        self.reclaim_round(inbox.signal(self.world.me, pe, self.world.pes), round, pe)
    }

    /// As [`reclaim`](Context::reclaim), of what went to all other PEs; failures are kept until the scope agrees.
    #[inline(always)]
    pub(super) fn reclaim_all(&mut self, inbox: Inbox, round: u32) {
        if self.world.ring_count != 0 {
            // One signal of them is of nobody: this PE's to itself.
            self.wait_sent(inbox.signals, self.world.pes, round, NO_PE);
        }
    }

    /// One thread waits for a message over rails; a failure is kept until the scope agrees.
    #[inline(always)]
    pub(super) fn wait_message(&mut self, inbox: Inbox, round: u32, pe: u32) {
        let signal = inbox.signal(self.world.me, pe, self.world.pes);
        self.wait_wanted(Call::Receive, pe, signal, Wanted::round(round));
    }

    /// Waits for the words of a message and stores their bytes; each thread its own.
    ///
    /// # Safety
    /// The slot has room for so many bytes, and so has the target, which nobody else uses.
    #[inline(always)]
    unsafe fn take_words(&mut self, slot: *const WordPair, target: *mut u8, bytes: u64, round: u32, pe: u32) {
        let mut rows = Rows::of(&self.scope, bytes);
        let (words, abort) = ((slot, round), self.world.abort);
        let mut limit = Limit::new(self.world.timeout_ns);
        let whole = (target as u64 | bytes).is_multiple_of(8);
        while rows.are_left() {
            let end = (&mut limit, abort);
            // SAFETY: the caller's contract; the host's word is there while the grid runs; no more is written than the target has.
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
    }

    /// All PEs exchange: block `i` of `from` goes to PE `i`, and block `i` of `to` comes from it. Both have one block of equal length
    /// for each PE, of at most the inbox's capacity. Every PE calls it with the same round. On return `from` may be written again.
    /// OpenSHMEM: `shmem_alltoall`.
    ///
    /// # Errors
    /// As [`send`](Context::send) and [`receive`](Context::receive).
    #[inline(always)]
    #[track_caller]
    pub fn all_to_all<T: Plain>(&mut self, inbox: Inbox, round: u32, to: Sym<T>, from: Sym<T>) -> Result<(), Status> {
        let (pes, me) = (self.world.pes, self.world.me);
        let block = from.len() / pes as u64;
        let fits = to.len() >= block * pes as u64;
        self.begin(Call::Send, me, from.bytes(), fits)?;
        if self.world.ring_count == 0 && block * size_of::<T>() as u64 <= inbox.capacity {
            return self.all_to_all_mapped(inbox, round, to, from);
        }
        for step in 1..pes {
            let pe = (me + step) % pes;
            self.send(inbox, round, from.slice(pe as u64 * block, block), pe)?;
        }
        self.put_nbi(to.slice(me as u64 * block, block), from.slice(me as u64 * block, block), me)?;
        // Before the messages of the others, which take as long: the calls that receive them agree on how it ended.
        self.reclaim_all(inbox, round);
        for step in 1..pes {
            let pe = (me + pes - step) % pes;
            self.receive(inbox, round, to.slice(pe as u64 * block, block), pe)?;
        }
        if pes == 1 { self.agreed() } else { Ok(()) }
    }

    /// As [`all_to_all`](Context::all_to_all), where all heaps are mapped: the scope meets before and behind all PEs' messages, not at each.
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
            // SAFETY: the block is of this PE's heap, and the slot has room for it.
            unsafe { self.store_words(self.world.at(part.offset()), heap + slot, part.bytes(), round) };
        }
        let (own, own_to) = (at(from, me), at(to, me));
        if own_to.offset() != own.offset() {
            let (target, source) = (self.world.at(own_to.offset()), self.world.at(own.offset()));
            // SAFETY: both blocks are of this PE's heap, and one of another object or all the same.
            unsafe { super::copy::copy(target, source, own.bytes(), self.scope.rank(), self.scope.size()) };
        }
        let mut pe = me;
        for _ in 1..pes {
            pe = if pe == 0 { pes - 1 } else { pe - 1 };
            let part = at(to, pe);
            let (slot, target) = (self.world.at(inbox.slot(pe, round)), self.world.at(part.offset()));
            if !self.failed() {
                // SAFETY: both are of this PE's heap.
                unsafe { self.take_words(slot.cast(), target, part.bytes(), round, pe) };
            }
        }
        self.agreed()
    }
}
