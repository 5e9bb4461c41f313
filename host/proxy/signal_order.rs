//! The order of a put and its signal over unordered rails: four rules, and the accounts that both ends keep for them.
//!
//! EFA delivers datagrams, and therefore the pieces of one put, in any order. A signal must not be counted before its
//! bytes have arrived. Each rule ensures this:
//!
//! - [`Rule::Count`]: the transfers of a put carry the signal as immediates. A put of one transfer carries the complete
//!   signal. In a put of several, each immediate identifies the put, and the target counts them.
//! - [`Rule::Own`]: the sender sends a put's signal separately when all transfers of the put are complete.
//! - [`Rule::Drain`]: the sender stops sending to that peer until all its transfers to the peer are complete, then
//!   sends the signal. Proxies that can only order transfers with their NIC's fence use this rule.
//! - [`Rule::Sequence`]: puts to a peer are numbered and the transfers carry the number. A separate transfer names the
//!   signal, and the target counts signals in the order of the numbers. The AWS plugin for NCCL uses this rule.
//!
//! `Own` and `Drain` require that a completion means "written at the target".
//!
//! An immediate has 32 bits. The first two select the meaning of the others:
//!
//! ```text
//! 00 | 0 4 | added - 1  14 | signal 12      a signal
//! 01 | slot 14 | transfers 6 | low 10       one of `transfers` transfers of a put, and the low bits of added - 1
//! 10 | slot 14 | signal 12 | high 4         another transfer of the put, with the signal and the high bits
//! 11 | rank 14 | 0 4 | count 12             `rank` has finished with `count` slots
//! 11 | rank 14 | 1 4 | count 12             `rank` asks for `count` credits
//! 11 | rank 14 | 2 4 | count 12             `rank` grants `count` credits
//! ```
//!
//! A slot is an entry of the target's account. Each rank has its share of the slots and uses them cyclically. A slot is
//! reused only after the target has reported that it has finished with that slot and all preceding ones. No transfer is
//! therefore counted for another put, however late it is polled.
//!
//! Each immediate of the first three kinds uses a credit of its target (`credits.rs`), so that a target that does not
//! poll loses no immediates.

mod credits;

pub use credits::unpolled;

use credits::Credits;
use cuda_std::memory::{Word as Counter, add_release_host_u64, load_acquire_host_u64};
use kernels::command::{SIGNALS, signal_of};

/// Rule that orders signals after their puts. See the module documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::Display, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "lowercase", parse_err_ty = String, parse_err_fn = unknown)]
pub enum Rule {
    /// The transfers carry the signal, and the target counts the transfers.
    #[default]
    Count,
    /// A signal is sent after the completion of its own put.
    Own,
    /// A signal is sent after the completion of all previous puts to the peer.
    Drain,
    /// The target restores the order of puts.
    Sequence,
}

fn unknown(text: &str) -> String {
    format!("invalid rule {text:?}: expected one of count, own, drain, sequence")
}

/// Number of slots of a target's account, for all ranks together.
const SLOTS: usize = 1 << 14;
/// Maximum number of ranks if puts with signals consist of several transfers, because each rank needs two slots.
pub(super) const MOST_RANKS: usize = SLOTS / 2;
/// Maximum number of transfers of a put in an account.
pub(super) const MOST_PARTS: usize = 63;
/// Number of low bits of the increment minus 1 that are sent with each part. The other bits are sent with the signal's
/// number.
const LOW_BITS: u32 = 10;

/// A decoded immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Immediate {
    /// A signal in the encoding of [`signal_of`].
    Signal(u32),
    /// One transfer of a put.
    Part { slot: u16, parts: u8, low: u16 },
    /// The transfer of a put that names the signal.
    Head { slot: u16, signal: u16, high: u8 },
    /// A message from the account of `rank` to that of this rank.
    Word { rank: u16, word: Word },
    /// An immediate that no rank sends.
    Unknown(u32),
}

/// A message from one account to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Number of slots that can be used again.
    Done(u16),
    /// Number of used credits that the sender requests to be returned.
    Ask(u16),
    /// Number of credits returned to the receiver.
    Grant(u16),
}

impl Immediate {
    /// Returns the 32 bits.
    pub fn encode(self) -> u32 {
        match self {
            Immediate::Signal(immediate) => immediate & 0x3fff_ffff,
            Immediate::Part { slot, parts, low } => {
                1 << 30 | u32::from(slot) << 16 | u32::from(parts) << 10 | u32::from(low)
            }
            Immediate::Head { slot, signal, high } => {
                2 << 30 | u32::from(slot) << 16 | u32::from(signal) << 4 | u32::from(high)
            }
            Immediate::Word { rank, word } => {
                let (kind, count) = match word {
                    Word::Done(count) => (0, count),
                    Word::Ask(count) => (1, count),
                    Word::Grant(count) => (2, count),
                };
                3 << 30 | u32::from(rank) << 16 | kind << 12 | u32::from(count & 0xfff)
            }
            Immediate::Unknown(bits) => bits,
        }
    }

    /// Decodes the 32 bits.
    pub fn decode(bits: u32) -> Immediate {
        let slot = (bits >> 16 & 0x3fff) as u16;
        match bits >> 30 {
            0 => Immediate::Signal(bits),
            1 => Immediate::Part { slot, parts: (bits >> 10 & 0x3f) as u8, low: (bits & 0x3ff) as u16 },
            2 => Immediate::Head { slot, signal: (bits >> 4 & 0xfff) as u16, high: (bits & 0xf) as u8 },
            _ => {
                let (rank, count) = (slot, (bits & 0xfff) as u16);
                match bits >> 12 & 0xf {
                    0 => Immediate::Word { rank, word: Word::Done(count) },
                    1 => Immediate::Word { rank, word: Word::Ask(count) },
                    2 => Immediate::Word { rank, word: Word::Grant(count) },
                    _ => Immediate::Unknown(bits),
                }
            }
        }
    }
}

/// Returns the immediate of one transfer of a put. `command` is the command's immediate.
pub(super) fn part(slot: u16, parts: usize, command: u32) -> u32 {
    let low = (command >> 12 & ((1 << LOW_BITS) - 1)) as u16;
    Immediate::Part { slot, parts: parts as u8, low }.encode()
}

/// Like [`part`], for the transfer that names the signal.
pub(super) fn head(slot: u16, command: u32) -> u32 {
    let high = (command >> (12 + LOW_BITS)) as u8 & 0xf;
    Immediate::Head { slot, signal: (command & (SIGNALS - 1)) as u16, high }.encode()
}

/// The counters of a rank's signals, in host memory that the device can also read.
#[derive(Debug)]
pub struct SignalWords {
    words: *const Counter,
    _own: Option<Box<[u64]>>,
}

// SAFETY: the words are accessed only by atomic operations, from any thread.
unsafe impl Send for SignalWords {}

impl Default for SignalWords {
    fn default() -> Self {
        // Zeroed by the allocator: each engine starts with its own words, and a loop over them would dominate
        // `Engine::new` in a debug build. A `Counter` is a 64-bit atomic integer.
        const _: () = assert!(size_of::<Counter>() == size_of::<u64>() && align_of::<Counter>() == align_of::<u64>());
        let mut own = vec![0u64; SIGNALS as usize].into_boxed_slice();
        SignalWords { words: own.as_mut_ptr().cast(), _own: Some(own) }
    }
}

impl SignalWords {
    /// Uses the words at `words`.
    ///
    /// # Safety
    /// `words` must point to [`SIGNALS`] words that stay valid for the lifetime of this value.
    pub unsafe fn at(words: *const Counter) -> SignalWords {
        SignalWords { words, _own: None }
    }

    fn word(&self, signal: u32) -> &Counter {
        // SAFETY: the caller of `at` guarantees that there are `SIGNALS` valid words, and the mask keeps the index
        // below their number.
        unsafe { &*self.words.add((signal & (SIGNALS - 1)) as usize) }
    }

    /// Adds `add` to a signal. Uses release order: a thread that acquires the word observes all bytes whose arrival in
    /// host memory this thread has observed. Bytes that NICs wrote to GPU memory are ordered by the device, or flushed
    /// by the engine before it counts ([`set_flush`](super::engine::Engine::set_flush)).
    #[inline]
    pub fn add(&self, signal: u32, add: u64) {
        add_release_host_u64(self.word(signal), add);
    }

    /// Returns the current values of all signals.
    pub fn values(&self) -> Vec<u64> {
        (0..SIGNALS).map(|signal| load_acquire_host_u64(self.word(signal))).collect()
    }
}

/// State of a put of several transfers at its target.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    arrived: u8,
    /// Number of transfers. 0: not known yet.
    parts: u8,
    low: u16,
    /// Signal and high bits, once known.
    head: Option<(u16, u8)>,
    counted: bool,
}

impl Slot {
    fn signal(&self) -> Option<(u32, u64)> {
        let (signal, high) = self.head?;
        signal_of((u32::from(high) << LOW_BITS | u32::from(self.low)) << 12 | u32::from(signal))
    }
}

/// The account of one rank's puts at their target.
#[derive(Debug, Default)]
struct Incoming {
    slots: Box<[Slot]>,
    /// Number of completed puts before the first incomplete one.
    done: u64,
    /// Value of `done` in the last report to the sender.
    told: u64,
}

/// The slots of this rank at one target.
#[derive(Clone, Copy, Debug, Default)]
struct Outgoing {
    taken: u64,
    freed: u64,
}

/// Resource for which a signal waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lacks {
    /// Credits: the target has not polled earlier immediates.
    Credits,
    /// A slot: the target has not finished with earlier puts.
    Slots,
}

/// The accounts of one proxy thread with all ranks.
#[derive(Debug)]
pub(super) struct Accounts {
    in_order: bool,
    /// Fault for tests: signals are counted before all transfers have arrived.
    early: bool,
    me: usize,
    window: u64,
    incoming: Vec<Incoming>,
    outgoing: Vec<Outgoing>,
    credits: Credits,
}

impl Accounts {
    /// Creates the accounts of rank `me` with `ranks` ranks.
    pub fn new(rule: Rule, me: usize, ranks: usize, early: bool) -> Accounts {
        let share = (SLOTS / ranks.max(1)).max(2);
        // A power of two, so that a slot's index is the remainder of a count that never wraps.
        let window = 1u64 << (usize::BITS - 1 - share.leading_zeros());
        Accounts {
            in_order: rule == Rule::Sequence,
            early,
            me,
            window: window.min(256),
            incoming: (0..ranks).map(|_| Incoming::default()).collect(),
            outgoing: vec![Outgoing::default(); ranks],
            credits: Credits::new(ranks, credits::window(ranks)),
        }
    }

    /// Returns whether an account with `rank` exists.
    #[inline]
    pub fn has(&self, rank: usize) -> bool {
        self.credits.has(rank)
    }

    /// Returns the maximum number of transfers, and immediates, of a put in an account.
    pub fn most_parts(&self) -> usize {
        MOST_PARTS.min(self.credits.window())
    }

    /// Takes credits for `immediates` immediates to `rank`, at most a window.
    ///
    /// # Errors
    /// Returns [`Lacks::Credits`] if there are fewer credits.
    #[inline]
    pub fn take(&mut self, rank: usize, immediates: usize) -> Result<(), Lacks> {
        if !self.credits.has_credits(rank, immediates as u32) {
            return Err(Lacks::Credits);
        }
        self.credits.consume(rank, immediates as u32);
        Ok(())
    }

    /// Like [`take`](Accounts::take), but also takes and returns this rank's next slot at `rank`. Takes both or
    /// neither.
    pub fn take_slot(&mut self, rank: usize, immediates: usize) -> Result<u16, Lacks> {
        let outgoing = self.outgoing.get_mut(rank).ok_or(Lacks::Slots)?;
        if outgoing.taken - outgoing.freed >= self.window {
            return Err(Lacks::Slots);
        }
        // The slot is below `SLOTS`, because each rank stays within its share.
        let slot = (self.me as u64 * self.window + outgoing.taken % self.window) as u16;
        self.take(rank, immediates)?;
        self.outgoing[rank].taken += 1;
        Ok(slot)
    }

    /// Processes a received immediate. Invalid immediates are errors of a peer and are ignored.
    #[inline]
    pub fn arrive(&mut self, bits: u32, words: &SignalWords) {
        match Immediate::decode(bits) {
            Immediate::Signal(immediate) => {
                self.credits.polled();
                if let Some((signal, add)) = signal_of(immediate) {
                    words.add(signal, add);
                }
            }
            Immediate::Part { slot, parts, low } => {
                self.credits.polled();
                self.count(slot, words, |slot| (slot.parts, slot.low) = (parts, low));
            }
            Immediate::Head { slot, signal, high } => {
                self.credits.polled();
                self.count(slot, words, |slot| slot.head = Some((signal, high)));
            }
            Immediate::Word { rank, word: Word::Ask(count) } => self.credits.asked(rank, count),
            Immediate::Word { rank, word: Word::Grant(count) } => self.credits.granted(usize::from(rank), count),
            Immediate::Word { rank, word: Word::Done(count) } => {
                if let Some(outgoing) = self.outgoing.get_mut(usize::from(rank)) {
                    outgoing.freed = (outgoing.freed + u64::from(count)).min(outgoing.taken);
                }
            }
            Immediate::Unknown(_) => {}
        }
    }

    /// Returns whether messages to other ranks are due.
    #[inline]
    pub fn has_words(&self) -> bool {
        !self.credits.due.is_empty()
    }

    /// Removes and returns the messages due to other ranks, as rank and immediate. They need no credit.
    pub fn take_words(&mut self) -> impl Iterator<Item = (usize, u32)> + use<> {
        let me = self.me as u16;
        let due = std::mem::take(&mut self.credits.due);
        due.into_iter().map(move |(rank, word)| (rank, Immediate::Word { rank: me, word }.encode()))
    }

    fn count(&mut self, number: u16, words: &SignalWords, note: impl FnOnce(&mut Slot)) {
        let (rank, place) = (u64::from(number) / self.window, u64::from(number) % self.window);
        let Some(incoming) = self.incoming.get_mut(rank as usize) else { return };
        if incoming.slots.is_empty() {
            incoming.slots = vec![Slot::default(); self.window as usize].into();
        }
        let slot = &mut incoming.slots[place as usize];
        slot.arrived = slot.arrived.saturating_add(1);
        note(slot);
        let raise = |slot: &mut Slot| {
            if let (false, Some((signal, add))) = (slot.counted, slot.signal()) {
                slot.counted = true;
                words.add(signal, add);
            }
        };
        if !self.in_order && slot.parts > 0 && (slot.arrived >= slot.parts || self.early) {
            raise(slot);
        }
        loop {
            let slot = &mut incoming.slots[(incoming.done % self.window) as usize];
            if slot.parts == 0 || slot.arrived < slot.parts || slot.head.is_none() {
                // The injected fault raises only the first put's signal early, and leaves its account unchanged.
                if self.in_order && self.early {
                    raise(slot);
                }
                break;
            }
            raise(slot);
            *slot = Slot::default();
            incoming.done += 1;
        }
        // The count is reported after half a window. This is early enough that the sender need not wait, and rare
        // enough that the cost is negligible.
        let news = incoming.done - incoming.told;
        if news >= (self.window / 2).max(1) {
            incoming.told = incoming.done;
            self.credits.due.push((rank as usize, Word::Done(news as u16)));
        }
    }
}

#[cfg(test)]
mod tests;
