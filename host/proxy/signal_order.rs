//! The order of a put and its signal over rails that keep none: four rules, and the accounts that both ends keep for them.
//!
//! EFA's datagrams arrive in any order, and so may the pieces of one put. A signal must not be counted before its bytes are there:
//!
//! - [`Rule::Count`]: the transfers of a put carry the signal themselves, as immediates. A put of one transfer carries it whole; of
//!   a put of several each says which put it belongs to, and the target counts them.
//! - [`Rule::Own`]: when all transfers of a put are complete, its signal follows by itself.
//! - [`Rule::Drain`]: the thread sends nothing else to that peer until all that it has under way there is complete, then sends the
//!   signal. What proxies do that have a fence of their NIC alone.
//! - [`Rule::Sequence`]: puts to a peer are numbered; the transfers carry the number, a transfer of its own says what is signalled,
//!   and the target counts signals in the order of the numbers. What the AWS plugin for NCCL does.
//!
//! `Own` and `Drain` rely on completions that mean "at the target".
//!
//! An immediate has 32 bits, of which the first two say what the others are:
//!
//! ```text
//! 00 | 0 4 | added - 1  14 | signal 12      a signal
//! 01 | slot 14 | transfers 6 | low 10       a transfer of a put of so many, and the low bits of what is added - 1
//! 10 | slot 14 | signal 12 | high 4         another one, with the signal and the high bits
//! 11 | rank 14 | 0 4 | count 12             that rank is done with so many slots
//! 11 | rank 14 | 1 4 | count 12             that rank asks for so many credits
//! 11 | rank 14 | 2 4 | count 12             that rank grants so many credits
//! ```
//!
//! A slot is a place in the target's account. Each rank has its share of them and uses them in turn; one is used again only after the
//! target has said that it is done with it and all before it, so no transfer is counted for another put's, however late it is polled.
//!
//! Each immediate of the first three kinds takes a credit of its target (`credits.rs`), so that a target that does not poll loses none.

mod credits;

pub use credits::unpolled;

use credits::Credits;
use cuda_std::memory::{Word as Counter, add_release_host_u64, load_acquire_host_u64};
use kernels::command::{SIGNALS, signal_of};

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::Display, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "lowercase", parse_err_ty = String, parse_err_fn = unknown)]
pub enum Rule {
    /// The transfers carry the signal, and the target counts them.
    #[default]
    Count,
    /// The signal after its own put's completion.
    Own,
    /// The signal after the completion of all puts before it.
    Drain,
    /// The target restores the order of puts.
    Sequence,
}

fn unknown(text: &str) -> String {
    format!("rule {text:?} is none of count, own, drain, sequence")
}

/// Slots of a target's account.
const SLOTS: usize = 1 << 14;
/// Ranks whose signalled puts may be of several transfers: each needs two slots.
pub(super) const MOST_RANKS: usize = SLOTS / 2;
/// Transfers that a put may have in the account.
pub(super) const MOST_PARTS: usize = 63;
/// Bits of what is added that travel with a transfer; the others come with the signal's number.
const LOW_BITS: u32 = 10;

/// An immediate, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Immediate {
    /// A signal, as [`signal_of`] reads it.
    Signal(u32),
    /// A transfer of a put.
    Part { slot: u16, parts: u8, low: u16 },
    /// A transfer that says what is signalled.
    Head { slot: u16, signal: u16, high: u8 },
    /// What that rank's account tells ours.
    Word { rank: u16, word: Word },
    /// Nothing that a rank sends.
    Unknown(u32),
}

/// What an account tells another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// "Use so many slots again."
    Done(u16),
    /// "I have used so many credits."
    Ask(u16),
    /// "You have so many credits again."
    Grant(u16),
}

impl Immediate {
    /// The 32 bits.
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

    /// What they say.
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

/// A transfer's immediate in the account of its target; `command` is the command's immediate.
pub(super) fn part(slot: u16, parts: usize, command: u32) -> u32 {
    let low = (command >> 12 & ((1 << LOW_BITS) - 1)) as u16;
    Immediate::Part { slot, parts: parts as u8, low }.encode()
}

/// As [`part`], of the one that names the signal.
pub(super) fn head(slot: u16, command: u32) -> u32 {
    let high = (command >> (12 + LOW_BITS)) as u8 & 0xf;
    Immediate::Head { slot, signal: (command & (SIGNALS - 1)) as u16, high }.encode()
}

/// Where a rank's signals are counted: host memory that the device reads too.
#[derive(Debug)]
pub struct SignalWords {
    words: *const Counter,
    _own: Option<Box<[u64]>>,
}

// SAFETY: words that are reached by atomic operations alone.
unsafe impl Send for SignalWords {}

impl Default for SignalWords {
    fn default() -> Self {
        // Zeroed by the allocator, since each engine begins with words of its own: in a debug build a loop over them takes longer than
        // all the rest of `Engine::new`. A `Counter` is a 64-bit atomic integer.
        const _: () = assert!(size_of::<Counter>() == size_of::<u64>() && align_of::<Counter>() == align_of::<u64>());
        let mut own = vec![0u64; SIGNALS as usize].into_boxed_slice();
        SignalWords { words: own.as_mut_ptr().cast(), _own: Some(own) }
    }
}

impl SignalWords {
    /// Words elsewhere.
    ///
    /// # Safety
    /// There are [`SIGNALS`] of them, and they stay valid as long as this.
    pub unsafe fn at(words: *const Counter) -> SignalWords {
        SignalWords { words, _own: None }
    }

    fn word(&self, signal: u32) -> &Counter {
        // SAFETY: contract of `at`; the mask keeps the number below.
        unsafe { &*self.words.add((signal & (SIGNALS - 1)) as usize) }
    }

    /// Counts. Release: who acquires the word sees the bytes that this thread has seen arrive in host memory. Those that cards have written
    /// into GPU memory are ordered by the device, or flushed by the engine before it counts ([`set_flush`](super::engine::Engine::set_flush)).
    #[inline]
    pub fn add(&self, signal: u32, add: u64) {
        add_release_host_u64(self.word(signal), add);
    }

    /// All signals now.
    pub fn values(&self) -> Vec<u64> {
        (0..SIGNALS).map(|signal| load_acquire_host_u64(self.word(signal))).collect()
    }
}

/// What a target knows of a put of several transfers.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    arrived: u8,
    /// 0: not known yet.
    parts: u8,
    low: u16,
    /// Signal and high bits, once they are known.
    head: Option<(u16, u8)>,
    counted: bool,
}

impl Slot {
    fn signal(&self) -> Option<(u32, u64)> {
        let (signal, high) = self.head?;
        signal_of((u32::from(high) << LOW_BITS | u32::from(self.low)) << 12 | u32::from(signal))
    }
}

/// The account of one rank's puts.
#[derive(Debug, Default)]
struct Incoming {
    slots: Box<[Slot]>,
    /// Puts that are counted, without a gap.
    done: u64,
    /// Of these, how many the sender knows of.
    told: u64,
}

/// The places that a target has for us.
#[derive(Clone, Copy, Debug, Default)]
struct Outgoing {
    taken: u64,
    freed: u64,
}

/// What a signal waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lacks {
    /// The target has not polled what was sent before.
    Credits,
    /// The target is not done with earlier puts.
    Slots,
}

/// The accounts of one proxy thread.
#[derive(Debug)]
pub(super) struct Accounts {
    in_order: bool,
    /// For a test: signals are counted before all transfers are there.
    early: bool,
    me: usize,
    window: u64,
    incoming: Vec<Incoming>,
    outgoing: Vec<Outgoing>,
    credits: Credits,
}

impl Accounts {
    /// Accounts of rank `me` with so many ranks.
    pub fn new(rule: Rule, me: usize, ranks: usize, early: bool) -> Accounts {
        let share = (SLOTS / ranks.max(1)).max(2);
        // A power of two, so that a slot's number is a remainder of a count that never wraps.
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

    /// Whether there is an account with this rank.
    #[inline]
    pub fn has(&self, rank: usize) -> bool {
        self.credits.has(rank)
    }

    /// Transfers that a put may have in the account, and immediates.
    pub fn most_parts(&self) -> usize {
        MOST_PARTS.min(self.credits.window())
    }

    /// So many immediates, at most a window, may go to this rank: it has room for them.
    #[inline]
    pub fn take(&mut self, rank: usize, immediates: usize) -> Result<(), Lacks> {
        if !self.credits.are_there(rank, immediates as u32) {
            return Err(Lacks::Credits);
        }
        self.credits.spend(rank, immediates as u32);
        Ok(())
    }

    /// As [`take`](Accounts::take), for a put that takes the next slot of ours at this rank too: all of it or nothing.
    pub fn take_slot(&mut self, rank: usize, immediates: usize) -> Result<u16, Lacks> {
        let outgoing = self.outgoing.get_mut(rank).ok_or(Lacks::Slots)?;
        if outgoing.taken - outgoing.freed >= self.window {
            return Err(Lacks::Slots);
        }
        // Below `SLOTS`: a rank has its share of them.
        let slot = (self.me as u64 * self.window + outgoing.taken % self.window) as u16;
        self.take(rank, immediates)?;
        self.outgoing[rank].taken += 1;
        Ok(slot)
    }

    /// Counts what an immediate says. Those that make no sense are passed over: they are a peer's mistake.
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

    /// Whether another rank is to be told something.
    #[inline]
    pub fn has_words(&self) -> bool {
        !self.credits.due.is_empty()
    }

    /// What other ranks are to be told: rank and immediate. It needs no credit.
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
                // The injected fault looks at the first one alone, and leaves its account in order.
                if self.in_order && self.early {
                    raise(slot);
                }
                break;
            }
            raise(slot);
            *slot = Slot::default();
            incoming.done += 1;
        }
        // At half a window: early enough that the sender need not wait, and seldom enough to cost nothing.
        let news = incoming.done - incoming.told;
        if news >= (self.window / 2).max(1) {
            incoming.told = incoming.done;
            self.credits.due.push((rank as usize, Word::Done(news as u16)));
        }
    }
}

#[cfg(test)]
mod tests;
