//! Messages between processes: a mailbox of the receiving rail in shared memory, with slots that all senders share.
//!
//! A slot carries one message, one chunk at a time. The sender announces the message with its first chunk. The receiver
//! selects a buffer for it and requests the next chunk, until the message is complete. The state of the slot names the
//! side that owns the rest of the slot. This side hands the slot over with a release store of the state, which the
//! other side loads with acquire.

use ginlab_base::memory_file::{FileName, MemoryFile};
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Maximum number of messages in flight to a rail.
pub(super) const SLOTS: usize = 64;
/// Maximum size of a chunk in bytes. It is small, because each rail has a mailbox whose pages are all allocated from
/// the start.
pub(super) const CHUNK: u64 = 8 << 10;

/// State of a slot: the side that owns it, and the next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Turn {
    /// No side owns the slot: any sender may take the slot.
    Free,
    /// The sender owns the slot, which has taken the slot and announced nothing yet.
    Taken,
    /// The receiver owns the slot: a message was announced with its first chunk.
    Announced,
    /// The sender owns the slot: the next chunk was requested.
    Wanted,
    /// The receiver owns the slot: a chunk is ready.
    Filled,
    /// The sender owns the slot: the receiver has the complete message, or has no use for the rest.
    Done,
    /// The receiver owns the slot: the sender's rail was closed during the message.
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
    /// Sequence number of the message among those of its sender.
    number: AtomicU64,
    /// Size of the whole message in bytes.
    bytes: AtomicU64,
    /// Offset of the chunk in the message, and its length.
    at: AtomicU64,
    length: AtomicU64,
    /// The bytes of the chunk, which are accessed only by address.
    chunk: [u8; CHUNK as usize],
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    pub slot: usize,
    pub sender: u32,
    pub number: u64,
    pub bytes: u64,
}

/// A mailbox, of this rail or of a peer.
#[derive(Debug)]
pub(super) struct Mailbox(MemoryFile);

impl Mailbox {
    /// Creates a mailbox.
    pub fn create() -> io::Result<Mailbox> {
        Ok(Mailbox(MemoryFile::create(NonZeroUsize::new(size_of::<Page>()).unwrap_or(NonZeroUsize::MIN))?))
    }

    /// Opens a peer's mailbox. Also returns the number that identifies this sender in it.
    pub fn join(name: FileName) -> io::Result<(Mailbox, u32)> {
        let file = MemoryFile::open(name)?;
        if file.bytes() < size_of::<Page>() as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a mailbox"));
        }
        let mailbox = Mailbox(file);
        let sender = mailbox.page().senders.fetch_add(1, Ordering::Relaxed);
        Ok((mailbox, sender))
    }

    /// Returns the name of the mailbox's file, for peers.
    pub fn name(&self) -> FileName {
        self.0.name()
    }

    fn page(&self) -> &Page {
        // SAFETY: the file is at least as long as `Page` (created so, or checked when opened) and starts at a page. It
        // is initially zero, which is valid for all fields. All fields are atomic except the chunks, which are accessed
        // only by address.
        unsafe { &*(self.0.address() as *const Page) }
    }

    /// Returns the state of a slot. Uses acquire order, which pairs with the release in `hand_over`, so that the other
    /// side's earlier stores are visible.
    pub fn turn(&self, slot: usize) -> Turn {
        let turn = self.page().slots[slot].turn.load(Ordering::Acquire);
        Turn::ALL.get(turn as usize).copied().unwrap_or(Turn::Abandoned)
    }

    /// Hands a slot over. Uses release order: the other side observes all earlier stores.
    pub fn hand_over(&self, slot: usize, turn: Turn) {
        self.page().slots[slot].turn.store(turn as u32, Ordering::Release);
    }

    fn change(&self, slot: usize, from: Turn, to: Turn) -> bool {
        let turn = &self.page().slots[slot].turn;
        turn.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    // The following methods are for the sender.

    /// Takes a free slot. Returns `None` if there is none.
    pub fn take_slot(&self) -> Option<usize> {
        (0..SLOTS).find(|slot| self.change(*slot, Turn::Free, Turn::Taken))
    }

    /// Writes the description of the message to a slot that this sender has taken.
    pub fn describe(&self, message: Announced) {
        let slot = &self.page().slots[message.slot];
        slot.sender.store(message.sender, Ordering::Relaxed);
        slot.number.store(message.number, Ordering::Relaxed);
        slot.bytes.store(message.bytes, Ordering::Relaxed);
    }

    /// Writes a chunk to a slot that the sender owns, and hands the slot over.
    pub fn fill(&self, slot: usize, at: u64, chunk: &[u8], turn: Turn) {
        let (number, slot) = (slot, &self.page().slots[slot]);
        slot.at.store(at, Ordering::Relaxed);
        slot.length.store(chunk.len() as u64, Ordering::Relaxed);
        // SAFETY: the sender owns the slot, so the receiver does not access the chunk. The caller's chunks fit, and the
        // length is limited here.
        unsafe { super::bytes::store(&chunk[..chunk.len().min(CHUNK as usize)], slot.chunk.as_ptr() as u64) };
        self.hand_over(number, turn);
    }

    /// Handles the closing of the sender's rail. A message that the receiver has not started to receive is withdrawn.
    pub fn abandon(&self, slot: usize) {
        for from in [Turn::Taken, Turn::Announced, Turn::Done] {
            if self.change(slot, from, Turn::Free) {
                return;
            }
        }
        self.hand_over(slot, Turn::Abandoned);
    }

    // The following methods are for the receiver.

    /// Returns the announced messages that have no buffer yet.
    pub fn announced(&self) -> impl Iterator<Item = Announced> {
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        (0..SLOTS).filter(|slot| self.turn(*slot) == Turn::Announced).map(move |number| {
            let slot = &self.page().slots[number];
            let sender = slot.sender.load(Ordering::Relaxed);
            Announced { slot: number, sender, number: word(&slot.number), bytes: word(&slot.bytes) }
        })
    }

    /// Returns the chunk in a slot that the receiver owns: its offset in the message, its length and its address.
    pub fn chunk(&self, slot: usize) -> (u64, u64, u64) {
        let slot = &self.page().slots[slot];
        let length = slot.length.load(Ordering::Relaxed).min(CHUNK);
        (slot.at.load(Ordering::Relaxed), length, slot.chunk.as_ptr() as u64)
    }
}
