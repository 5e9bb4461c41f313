//! The pairs on a CPU, for the emulated device and for CPU threads: accesses of the C++ order of the same name. The
//! scope has no effect.

use super::{AccessOrder, AccessPair};
use crate::emulation;
use crate::memory::Word;
#[cfg(loom)]
use loom::sync::atomic::{Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{Ordering, fence};

/// Executes a pair.
#[inline(always)]
pub fn pair(kind: AccessPair, order: AccessOrder, words: [&Word; 2], values: [u64; 2]) -> [u64; 2] {
    let strong = matches!(order, AccessOrder::ReleaseAcquire | AccessOrder::ReadBack);
    let between = || match order {
        AccessOrder::AcquireRelease => {
            emulation::fenced();
            fence(Ordering::AcqRel);
        }
        AccessOrder::Sequential => {
            emulation::fenced();
            fence(Ordering::SeqCst);
        }
        _ => {}
    };
    match kind {
        AccessPair::WriteWrite if order == AccessOrder::ReadBack => {
            store(words[0], values[0], false);
            // The top bit is never set.
            let back = load(words[0], false) >> 63;
            store(words[1], values[1] + back, false);
            [0, 0]
        }
        AccessPair::WriteWrite => {
            store(words[0], values[0], false);
            between();
            store(words[1], values[1], strong);
            [0, 0]
        }
        AccessPair::WriteRead => {
            store(words[0], values[0], strong);
            between();
            [0, load(words[1], strong)]
        }
        AccessPair::ReadWrite => {
            let first = load(words[0], strong);
            between();
            store(words[1], values[1], strong);
            [first, 0]
        }
        AccessPair::ReadRead => {
            let first = load(words[0], strong);
            between();
            [first, load(words[1], false)]
        }
        AccessPair::Write => {
            store(words[0], values[0], strong);
            [0, 0]
        }
    }
}

/// Stores as a release or relaxed.
#[inline(always)]
pub fn store(word: &Word, value: u64, release: bool) {
    emulation::step();
    emulation::stored(word, || word.atomic().load(Ordering::Relaxed) != value, release);
    word.atomic().store(value, if release { Ordering::Release } else { Ordering::Relaxed });
}

/// Loads as an acquire or relaxed.
#[inline(always)]
pub fn load(word: &Word, acquire: bool) -> u64 {
    emulation::step();
    word.atomic().load(if acquire { Ordering::Acquire } else { Ordering::Relaxed })
}
