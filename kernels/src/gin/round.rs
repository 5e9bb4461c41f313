//! Rounds: puts whose signal says which of them has arrived, and whose place and source are not used again too early.
//!
//! Rails deliver in any order, so the sum of a signal says how many puts have arrived and not which. Two rules make a series of puts to two
//! places in turn safe without a `quiet` for each:
//!
//! - *A round proves itself.* Odd rounds add 1 to the signal and even rounds add 2, so that the receiver can tell a round from the one
//!   behind it ([`Wanted`]).
//! - *Nothing is used again before its use is over.* Until a put is complete at the sender, the card may read its source and write its
//!   place again (a retransmission), even when the receiver has it and has answered. So before a round the sender waits for the completion
//!   of the round before the last. Which command that was stands in device memory ([`World::sent`](super::World::sent)): a later context, scope or launch may
//!   be the one that sends.

use super::context::transfer;
use super::report::{Call, Failure, NO_PE};
use super::signal::immediate;
use super::{Context, Plain, Scope, Signal, Sym, USER_SIGNALS, Wanted, World};
use crate::command::Opcode;
use crate::ring::producer::Behind;
use crate::ring::{Ring, Status};
use cuda_std::call::by_address;
use cuda_std::memory::{Word, load_relaxed_gpu_u64, store_relaxed_gpu_u64};
use cuda_std::thread;

/// Bits of a word of [`World::sent`] that hold one more than the ticket; the number of the ring is above them. At a thousand million puts a
/// second tickets reach 2^52 after 52 days.
const TICKET_BITS: u32 = 52;

/// Where the last puts stand, and the rings that they were pushed to: what the functions out of line take of a world.
#[derive(Clone, Copy)]
struct Sent {
    words: *const Word,
    rings: *const Ring,
    ring_count: u32,
}

impl Sent {
    #[inline(always)]
    fn of(world: &World) -> Sent {
        Sent { words: world.sent, rings: world.rings, ring_count: world.ring_count }
    }

    /// The word of this number. The leader of the scope that sends loads and stores it. Two scopes that send in turns are ordered by the
    /// program (a barrier, the order of launches), as their rounds are.
    #[inline(always)]
    fn word(&self, number: u32) -> &Word {
        // SAFETY: two words for each signal of programs, which callers have checked; there are rails.
        unsafe { &*self.words.add(number as usize) }
    }

    /// A put is under way.
    #[inline(always)]
    fn keep(&self, number: u32, ticket: u64) {
        store_relaxed_gpu_u64(self.word(number), (self.own_ring() as u64) << TICKET_BITS | (ticket + 1));
    }

    /// The number of this block's ring.
    #[inline(always)]
    fn own_ring(&self) -> u32 {
        thread::block_idx_x() % self.ring_count.max(1)
    }
}

/// The number of the word for the rounds of this signal that have this one's parity.
#[inline(always)]
fn number_of(signal: Signal, round: u32) -> u32 {
    signal.0 * 2 + round % 2
}

impl<S: Scope> Context<S> {
    /// As [`put_signal_nbi`](Context::put_signal_nbi), as one round of a series: [`wait_round`](Context::wait_round) of the same number at
    /// the target proves that this put has arrived, also when the next round arrives before it.
    ///
    /// Rounds count up from 1 over all launches. The signal is for this series alone: one sender, one target. `to` and `from` take turns
    /// between two places each, and the sender is at most one round ahead: it puts round `r` after the target has told it, by an answer or
    /// a signal, that it has read round `r - 2`. Over rails the call waits until the put of round `r - 2` is complete at this side.
    ///
    /// `from` may be written again after `quiet`, or after [`reclaim_round`](Context::reclaim_round) for round `r + 2`.
    ///
    /// # Errors
    /// As [`put_signal_nbi`](Context::put_signal_nbi), and the reason that the wait for round `r - 2` ended.
    #[inline(always)]
    pub fn put_round_nbi<T: Plain>(
        &mut self,
        to: Sym<T>,
        from: Sym<T>,
        signal: Signal,
        round: u32,
        pe: u32,
    ) -> Result<(), Status> {
        let fits = to.bytes() >= from.bytes() && signal.0 < USER_SIGNALS;
        let heap = self.begin(Call::PutRound, pe, from.bytes(), fits)?;
        if heap == 0 {
            return self.post_round(Call::PutRound, (to.offset(), from.offset(), from.bytes()), signal, round, pe);
        }
        self.put_signal_nbi(to, from, signal, Wanted::added(round), pe)
    }

    /// Waits until the put of this round has arrived; its bytes are then visible to the whole scope. All rounds before it have been waited
    /// for.
    ///
    /// # Errors
    /// As [`signal_wait_until`](Context::signal_wait_until).
    #[inline(always)]
    pub fn wait_round(&mut self, signal: Signal, round: u32) -> Result<(), Status> {
        self.flush();
        self.begin(Call::WaitRound, self.world.me, signal.0 as u64, signal.0 < USER_SIGNALS)?;
        self.wait_wanted(Call::WaitRound, NO_PE, signal, Wanted::round(round));
        self.agreed()
    }

    /// Waits until the last put of this signal's rounds of this parity is complete at this side: its source may be written again. Before
    /// round `r` that is the put of round `r - 2`, behind it that of round `r`. Nothing is waited for where the PE's heap is mapped, or where
    /// no such put is under way.
    ///
    /// # Errors
    /// The reason that the wait ended, or an earlier failure of this context.
    #[inline(always)]
    pub fn reclaim_round(&mut self, signal: Signal, round: u32, pe: u32) -> Result<(), Status> {
        if self.begin(Call::Reclaim, pe, signal.0 as u64, signal.0 < USER_SIGNALS)? == 0 {
            self.wait_sent(signal, 1, round, pe);
        }
        // A barrier too: over NVLink each thread has read the source for itself.
        self.agreed()
    }

    /// A round over rails: its command goes out at once, so that its ticket is known.
    #[inline(always)]
    pub(super) fn post_round(
        &mut self,
        call: Call,
        (to, from, bytes): (u64, u64, u64),
        signal: Signal,
        round: u32,
        pe: u32,
    ) -> Result<(), Status> {
        self.flush();
        // Behind the barrier the leader speaks for what all threads have written to the source.
        self.scope.sync();
        if !self.scope.leads() || self.failed() {
            return self.answer();
        }
        let command = transfer(Opcode::PutSignal, to, from, bytes, pe, immediate(signal, Wanted::added(round)));
        let (sent, number) = (Sent::of(&self.world), number_of(signal, round));
        let (stop, known) = wait_for_last_apart(sent, number, 1, self.ring.role, self.known);
        self.known = known;
        let pushed =
            if stop == 0 { self.ring.push_apart(Behind::Payload, command.encode()) } else { Err(Status(stop)) };
        match pushed {
            Ok(ticket) => {
                self.last = ticket + 1;
                sent.keep(number, ticket);
            }
            Err(stop) => self.fail(stop, Failure::of(call, pe, bytes)),
        }
        self.answer()
    }

    /// One thread waits for the last puts of this parity by `signal` and those behind it, `count` in all; a failure is kept until the scope
    /// agrees.
    #[inline(always)]
    pub(super) fn wait_sent(&mut self, signal: Signal, count: u32, round: u32, pe: u32) {
        if !self.scope.leads() || self.failed() {
            return;
        }
        let (sent, number) = (Sent::of(&self.world), number_of(signal, round));
        let (stop, known) = wait_for_last_apart(sent, number, count, self.ring.role, self.known);
        self.known = known;
        if stop != 0 {
            self.fail(Status(stop), Failure::of(Call::Reclaim, pe, signal.0 as u64));
        }
    }
}

/// [`wait_for_last`] by address.
#[inline(always)]
fn wait_for_last_apart(sent: Sent, number: u32, count: u32, role: u32, known: u64) -> (u64, u64) {
    by_address(wait_for_last as fn(_, _, _, _, _) -> _)(sent, number, count, role, known)
}

/// Waits until the puts in `count` words of one parity are complete, and clears the words. Whoever put them: this context, another one, a
/// launch before. Returns 0 or why it failed, and the newest watermark of this block's ring that is known. Out of line: a kernel calls it in
/// several places.
#[inline(never)]
fn wait_for_last(sent: Sent, number: u32, count: u32, role: u32, mut known: u64) -> (u64, u64) {
    let mut index = 0;
    while index < count {
        let word = sent.word(number + 2 * index);
        let last = load_relaxed_gpu_u64(word);
        index += 1;
        if last == 0 {
            continue;
        }
        let (ring, ticket) = ((last >> TICKET_BITS) as u32, (last & ((1 << TICKET_BITS) - 1)) - 1);
        let own = ring == sent.own_ring();
        if !own || ticket >= known {
            // SAFETY: a number that was stored for a put of this world, whose rings stay as they are.
            let mut ring = unsafe { Ring { role, ..sent.rings.add(ring as usize).read() } };
            match ring.wait(ticket) {
                Ok(watermark) if own => known = known.max(watermark),
                Ok(_) => {}
                Err(stop) => return (stop.0, known),
            }
        }
        // The next one need not look.
        store_relaxed_gpu_u64(word, 0);
    }
    (0, known)
}
