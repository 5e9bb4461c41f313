//! Messages between processes: a mailbox of the receiving rail in shared memory, with slots that all senders take.
//!
//! A slot carries one message, a chunk at a time: the sender announces it with its first chunk, the receiver finds room for it and asks for
//! the next one, until all is there. Whoever's turn it is owns all of the slot but its state: a store of the state by release
//! hands the rest over, and the other side's load by acquire takes it.

use ginlab_base::memory_file::{FileName, MemoryFile};
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Messages that are under way to a rail at most.
pub(super) const SLOTS: usize = 64;
/// Bytes of a chunk at most. Few: each rail has a mailbox, whose pages are all there from the first.
pub(super) const CHUNK: u64 = 8 << 10;

/// Whose turn it is, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Turn {
    /// Nobody's: any sender may take it.
    Free,
    /// The sender's, which has announced nothing yet.
    Taken,
    /// The receiver's: a message, with its first chunk.
    Announced,
    /// The sender's: the next chunk is wanted.
    Wanted,
    /// The receiver's: a chunk.
    Filled,
    /// The sender's: the receiver has all, or wants no more.
    Done,
    /// The receiver's: the sender's rail was closed in the middle.
    Abandoned,
}

impl Turn {
    const ALL: [Turn; 7] =
        [Turn::Free, Turn::Taken, Turn::Announced, Turn::Wanted, Turn::Filled, Turn::Done, Turn::Abandoned];
}

#[repr(C)]
struct Page {
    senders: AtomicU32,
    slots: [Slot; SLOTS],
}

#[repr(C)]
struct Slot {
    turn: AtomicU32,
    sender: AtomicU32,
    /// The how manyth of its sender's messages it is.
    number: AtomicU64,
    /// Of the whole message.
    bytes: AtomicU64,
    /// Where the chunk begins, and its length.
    at: AtomicU64,
    length: AtomicU64,
    /// Only by address.
    chunk: [u8; CHUNK as usize],
}

/// What a slot tells of its message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    pub slot: usize,
    pub sender: u32,
    pub number: u64,
    pub bytes: u64,
}

/// A mailbox: this rail's own, or a peer's.
#[derive(Debug)]
pub(super) struct Mailbox(MemoryFile);

impl Mailbox {
    /// A new one.
    pub fn create() -> io::Result<Mailbox> {
        Ok(Mailbox(MemoryFile::create(NonZeroUsize::new(size_of::<Page>()).unwrap_or(NonZeroUsize::MIN))?))
    }

    /// A peer's, and the number under which this sender is known there.
    pub fn join(name: FileName) -> io::Result<(Mailbox, u32)> {
        let file = MemoryFile::open(name)?;
        if file.bytes() < size_of::<Page>() as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no mailbox"));
        }
        let mailbox = Mailbox(file);
        let sender = mailbox.page().senders.fetch_add(1, Ordering::Relaxed);
        Ok((mailbox, sender))
    }

    /// For peers.
    pub fn name(&self) -> FileName {
        self.0.name()
    }

    fn page(&self) -> &Page {
        // SAFETY: the file is as long as this (made so, or checked when it was opened), at a page's start, and of zeros at first,
        // which are good for all its fields; everything in it is atomic but the chunks, which are touched by address alone.
        unsafe { &*(self.0.address() as *const Page) }
    }

    /// Whose turn a slot is. By acquire: what the other side has stored before it is seen.
    pub fn turn(&self, slot: usize) -> Turn {
        let turn = self.page().slots[slot].turn.load(Ordering::Acquire);
        Turn::ALL.get(turn as usize).copied().unwrap_or(Turn::Abandoned)
    }

    /// Hands a slot over. By release: the other side sees what was stored before.
    pub fn hand_over(&self, slot: usize, turn: Turn) {
        self.page().slots[slot].turn.store(turn as u32, Ordering::Release);
    }

    fn change(&self, slot: usize, from: Turn, to: Turn) -> bool {
        let turn = &self.page().slots[slot].turn;
        turn.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    // --- the sender ----------------------------------------------------------------------------------------------------

    /// Takes a slot; none when all are taken.
    pub fn take_slot(&self) -> Option<usize> {
        (0..SLOTS).find(|slot| self.change(*slot, Turn::Free, Turn::Taken))
    }

    /// Writes what the message is into a slot that this sender has taken.
    pub fn describe(&self, message: Announced) {
        let slot = &self.page().slots[message.slot];
        slot.sender.store(message.sender, Ordering::Relaxed);
        slot.number.store(message.number, Ordering::Relaxed);
        slot.bytes.store(message.bytes, Ordering::Relaxed);
    }

    /// Writes a chunk into a slot whose turn is the sender's, and hands it over.
    pub fn fill(&self, slot: usize, at: u64, chunk: &[u8], turn: Turn) {
        let (number, slot) = (slot, &self.page().slots[slot]);
        slot.at.store(at, Ordering::Relaxed);
        slot.length.store(chunk.len() as u64, Ordering::Relaxed);
        // SAFETY: the slot is the sender's, so nobody else touches its chunk; no longer than it by the caller's cut, and by this.
        unsafe { super::bytes::store(&chunk[..chunk.len().min(CHUNK as usize)], slot.chunk.as_ptr() as u64) };
        self.hand_over(number, turn);
    }

    /// The sender's rail is closed: what nobody has begun to receive was never sent.
    pub fn abandon(&self, slot: usize) {
        for from in [Turn::Taken, Turn::Announced, Turn::Done] {
            if self.change(slot, from, Turn::Free) {
                return;
            }
        }
        self.hand_over(slot, Turn::Abandoned);
    }

    // --- the receiver --------------------------------------------------------------------------------------------------

    /// Messages that have been announced and not been given room.
    pub fn announced(&self) -> impl Iterator<Item = Announced> {
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        (0..SLOTS).filter(|slot| self.turn(*slot) == Turn::Announced).map(move |number| {
            let slot = &self.page().slots[number];
            let sender = slot.sender.load(Ordering::Relaxed);
            Announced { slot: number, sender, number: word(&slot.number), bytes: word(&slot.bytes) }
        })
    }

    /// The chunk in a slot whose turn is the receiver's: where it begins in the message, its length, and its address.
    pub fn chunk(&self, slot: usize) -> (u64, u64, u64) {
        let slot = &self.page().slots[slot];
        let length = slot.length.load(Ordering::Relaxed).min(CHUNK);
        (slot.at.load(Ordering::Relaxed), length, slot.chunk.as_ptr() as u64)
    }
}
