//! The exhibits of `ginlab museum` that are kernels: public bugs of order, completion and reuse, each in a broken and
//! in a fixed form (experiments/museum).
//!
//! Each file is one program for two PEs, each of which runs it as one thread. [`ExhibitArgs::is_fixed`] selects the
//! form. The two forms differ only in the lines under it. **The broken forms are wrong on purpose: do not copy them.**

mod completion;
mod generation;
mod one_counter;
mod overtaking;
mod slot;
mod source;

pub use completion::*;
pub use generation::*;
pub use one_counter::*;
pub use overtaking::*;
pub use slot::*;
pub use source::*;

use crate::gin::{Signal, Sym, WorldView};
use cuda_std::args;
use cuda_std::memory::{Word, load_relaxed_sys_u64, store_relaxed_sys_u64};

/// Number of words of a block.
pub const WORDS: u64 = 8;
/// Number of words of [`ExhibitArgs::seen`].
pub const SEEN: u64 = 4;

/// Arguments of all exhibits.
#[args]
pub struct ExhibitArgs {
    /// Sources of the puts: per round one block of [`WORDS`] words, filled with [`mark`].
    pub from: Sym<u64>,
    /// Destinations, one block per round.
    pub to: Sym<u64>,
    /// Two words that announce blocks without a signal, zeroed.
    pub flags: Sym<u64>,
    /// One signal per round, from PE 0.
    pub arrived: Signal,
    /// One signal per round, for a second announcement by PE 0 or an answer of PE 1.
    pub told: Signal,
    /// Number of rounds.
    pub rounds: u32,
    /// 0 for the broken form, 1 for the fixed form.
    pub fixed: u32,
    /// First mistake that this PE has found: whether there is one, the round, the word found, and the word expected.
    pub seen: Sym<u64>,
}

/// Returns the word that fills the block of a round. All its bytes are equal, and differ from 0 and from poison.
#[inline(always)]
pub fn mark(round: u32) -> u64 {
    u64::from(round + 1) * 0x0101_0101_0101_0101
}

impl ExhibitArgs {
    /// Returns whether this is the fixed form.
    #[inline(always)]
    pub fn is_fixed(&self) -> bool {
        self.fixed != 0
    }

    /// Returns a block of an object.
    #[inline(always)]
    fn block(&self, of: Sym<u64>, number: u32) -> Sym<u64> {
        of.slice(u64::from(number) * WORDS, WORDS)
    }

    /// Checks that a block of this PE has the content of `round`. Records the first word that differs.
    #[inline(always)]
    fn check(&self, world: &WorldView, block: Sym<u64>, round: u32) {
        let words = world.local(block).cast::<Word>();
        for word in 0..WORDS as usize {
            // SAFETY: the word is in the block. The exhibit shows the mistake of reading it while a put writes it.
            let found = load_relaxed_sys_u64(unsafe { &*words.add(word) });
            if found != mark(round) {
                return self.record(world, round, found, mark(round));
            }
        }
    }

    /// Records a mistake, unless one has been recorded already.
    #[inline(always)]
    fn record(&self, world: &WorldView, round: u32, found: u64, expected: u64) {
        let seen = world.local(self.seen);
        // SAFETY: the object has `SEEN` words, which only this thread accesses.
        unsafe {
            if seen.read() == 0 {
                seen.write(1);
                seen.add(1).write(u64::from(round));
                seen.add(2).write(found);
                seen.add(3).write(expected);
            }
        }
    }

    /// Fills a block of this PE with the content of `round`.
    #[inline(always)]
    fn fill(&self, world: &WorldView, block: Sym<u64>, round: u32) {
        let words = world.local(block).cast::<Word>();
        for word in 0..WORDS as usize {
            // SAFETY: the word is in the block. The exhibit shows the mistake of writing it while the NIC reads it.
            store_relaxed_sys_u64(unsafe { &*words.add(word) }, mark(round));
        }
    }
}
