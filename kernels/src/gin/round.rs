//! Rounds: a series of puts whose signal shows which put has arrived, and whose sources and destinations are not reused
//! too early.
//!
//! Rails deliver in any order, so the sum of a signal is the number of puts that have arrived, and does not identify
//! them. Two rules make a series of puts that alternates between two destinations safe without a `quiet` after each:
//!
//! - *A round proves itself.* Odd rounds add 1 to the signal and even rounds add 2, so that the receiver can
//!   distinguish a round from the next one ([`WaitCondition`]).
//! - *Nothing is reused while the NIC may access it.* Until a put is complete at the sender, the NIC may read its
//!   source and write its destination again. Such a retransmission can occur even if the receiver has the data and has
//!   answered. Before a round the sender therefore waits for the completion of the round before the previous one. That
//!   put is recorded in device memory ([`WorldView::sent`](super::WorldView::sent)), because a later context, scope or
//!   launch might send the next round.

use super::context::transfer;
use super::report::{Call, Failure, NO_PE};
use super::signal::immediate;
use super::{Context, Plain, Scope, Signal, Sym, USER_SIGNALS, WaitCondition, WorldView};
use crate::command::Opcode;
use crate::outlet::Outlets;
use crate::ring::Status;
use crate::ring::producer::Fence;
use cuda_std::call::by_address;
use cuda_std::memory::{Word, load_relaxed_gpu_u64, store_relaxed_gpu_u64};

/// Number of bits of a word of [`WorldView::sent`] that hold one more than the ticket; the index of the outlet is
/// stored above them. At 10^9 puts per second tickets reach 2^52 after 52 days.
const TICKET_BITS: u32 = 52;

/// The records of the last puts and the outlets to which these were pushed. This is the part of a world that the
/// non-inlined functions need.
#[derive(Clone, Copy)]
struct Sent {
    words: *const Word,
    outlets: Outlets,
}

impl Sent {
    #[inline(always)]
    fn of(world: &WorldView) -> Sent {
        Sent { words: world.sent, outlets: world.outlets() }
    }

    /// Returns word `number`. Only the leader of the sending scope accesses it. If two scopes alternate as senders, the
    /// application orders them (with a barrier or the order of launches), as it orders their rounds.
    #[inline(always)]
    fn word(&self, number: u32) -> &Word {
        // SAFETY: `words` has two words per application signal, the callers have checked the signal, and the world has
        // rails.
        unsafe { &*self.words.add(number as usize) }
    }

    /// Records that a put is in flight.
    #[inline(always)]
    fn keep(&self, number: u32, ticket: u64) {
        store_relaxed_gpu_u64(self.word(number), (self.outlets.own() as u64) << TICKET_BITS | (ticket + 1));
    }
}

/// Returns the index of the word for rounds of this signal with the same parity as `round`.
#[inline(always)]
fn number_of(signal: Signal, round: u32) -> u32 {
    signal.0 * 2 + round % 2
}

impl<S: Scope> Context<S> {
    /// Like [`put_signal_nbi`](Context::put_signal_nbi), but as one round of a series:
    /// [`wait_round`](Context::wait_round) for the same round at the target proves that this put has arrived, even if
    /// the next round arrives first.
    ///
    /// Rounds count up from 1 over all launches. The signal must be used only for this series, with one sender and one
    /// target. `to` and `from` must each alternate between two places. The sender must be at most one round ahead: it
    /// puts round `r` only after the target has indicated, with an answer or a signal, that it has read round `r - 2`.
    /// Over rails the call waits until the put of round `r - 2` is complete at this side.
    ///
    /// `from` may be overwritten after `quiet`, or after [`reclaim_round`](Context::reclaim_round) for round `r + 2`.
    ///
    /// # Errors
    /// Returns the same errors as [`put_signal_nbi`](Context::put_signal_nbi), or the status that ended the wait for
    /// round `r - 2`.
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
        self.put_signal_nbi(to, from, signal, WaitCondition::added(round), pe)
    }

    /// Waits until the put of this round has arrived. Its bytes are then visible to the whole scope. All earlier rounds
    /// must have been waited for.
    ///
    /// # Errors
    /// Returns the same errors as [`signal_wait_until`](Context::signal_wait_until).
    #[inline(always)]
    pub fn wait_round(&mut self, signal: Signal, round: u32) -> Result<(), Status> {
        self.flush();
        self.begin(Call::WaitRound, self.world.me, signal.0 as u64, signal.0 < USER_SIGNALS)?;
        self.wait_wanted(Call::WaitRound, NO_PE, signal, WaitCondition::round(round));
        self.agreed()
    }

    /// Waits until the last put of this signal's rounds with this parity is complete at this side, so that its source
    /// may be overwritten. Before the put of round `r` this is the put of round `r - 2`, after it the put of round `r`.
    /// Does not wait if the PE's heap is mapped or no such put is in flight.
    ///
    /// # Errors
    /// Returns the status that ended the wait, or an earlier failure of this context.
    #[inline(always)]
    pub fn reclaim_round(&mut self, signal: Signal, round: u32, pe: u32) -> Result<(), Status> {
        self.flush();
        if self.begin(Call::Reclaim, pe, signal.0 as u64, signal.0 < USER_SIGNALS)? == 0 {
            self.wait_sent(signal, 1, round, pe);
        }
        // The scope also needs this barrier: over NVLink each thread has read its own share of the source.
        self.agreed()
    }

    /// Pushes a round over rails. Its command is published immediately, so that its ticket is known.
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
        // After the barrier the leader's fence covers what all threads have written to the source.
        self.scope.sync();
        if !self.scope.leads() || self.failed() {
            return self.answer();
        }
        let command = transfer(Opcode::PutSignal, to, from, bytes, pe, immediate(signal, WaitCondition::added(round)));
        let (sent, number) = (Sent::of(&self.world), number_of(signal, round));
        let (stop, known) = wait_for_last_apart(sent, number, 1, self.known);
        self.known = known;
        let pushed = if stop == 0 { self.push(Fence::Payload, &command) } else { Err(Status(stop)) };
        match pushed {
            Ok(ticket) => {
                self.last = ticket + 1;
                sent.keep(number, ticket);
            }
            Err(stop) => self.fail(stop, Failure::of(call, pe, bytes)),
        }
        self.answer()
    }

    /// Waits, on one thread, for the last puts of this parity of `count` signals from `signal`. A failure is kept until
    /// the scope agrees.
    #[inline(always)]
    pub(super) fn wait_sent(&mut self, signal: Signal, count: u32, round: u32, pe: u32) {
        if !self.scope.leads() || self.failed() {
            return;
        }
        let (sent, number) = (Sent::of(&self.world), number_of(signal, round));
        let (stop, known) = wait_for_last_apart(sent, number, count, self.known);
        self.known = known;
        if stop != 0 {
            self.fail(Status(stop), Failure::of(Call::Reclaim, pe, signal.0 as u64));
        }
    }
}

/// Calls [`wait_for_last`] through its address.
#[inline(always)]
fn wait_for_last_apart(sent: Sent, number: u32, count: u32, known: u64) -> (u64, u64) {
    by_address(wait_for_last as fn(_, _, _, _) -> _)(sent, number, count, known)
}

/// Waits until the puts in `count` words of one parity are complete, and clears the words. Their sender can be this
/// context, another one, or a preceding launch. Returns 0 or the status that ended the wait, and the newest known
/// watermark of this block's outlet. Not inlined: a kernel calls it in several places.
#[inline(never)]
fn wait_for_last(sent: Sent, number: u32, count: u32, mut known: u64) -> (u64, u64) {
    let mut index = 0;
    while index < count {
        let word = sent.word(number + 2 * index);
        let last = load_relaxed_gpu_u64(word);
        index += 1;
        if last == 0 {
            continue;
        }
        let (outlet, ticket) = ((last >> TICKET_BITS) as u32, (last & ((1 << TICKET_BITS) - 1)) - 1);
        let own = outlet == sent.outlets.own();
        if !own || ticket >= known {
            // SAFETY: `outlet` was stored for a put of this world, whose outlets do not change.
            match unsafe { sent.outlets.at(outlet) }.wait(ticket) {
                Ok(watermark) if own => known = known.max(watermark),
                Ok(_) => {}
                Err(stop) => return (stop.0, known),
            }
        }
        // The next wait for this word need not check the outlet.
        store_relaxed_gpu_u64(word, 0);
    }
    (0, known)
}
