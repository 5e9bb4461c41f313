//! The part of a queue pair that peers access: its receives, and the inbox into which peers put completions.
//!
//! This part is one page in shared memory. Its owner posts receives and empties the inbox. Peers, in any number of
//! processes, take receives and fill the inbox ([`crate::inbox`]). Both are rings of fixed size that start as zeros.

use crate::inbox::InboxSlot;
use crate::share::Shared;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Maximum number of pieces of a receive.
pub const RECEIVE_PIECES: usize = 3;
/// Minimum number of immediates of writes for which the inbox has space, in addition to the completions of receives.
const UNSOLICITED: usize = 4096;
/// Maximum number of senders that may check for space at the same time and then all use it.
pub(crate) const SENDERS: u64 = 64;
/// Version of this layout.
const MAGIC: u32 = 0x5EFA_0004;

/// State of a queue pair that is ready.
pub const READY: u32 = 1;
/// State of a queue pair that is destroyed, or not yet ready.
pub const GONE: u32 = 2;

#[repr(C, align(64))]
pub(crate) struct Line(pub AtomicU64);

#[repr(C)]
pub(crate) struct Header {
    magic: u32,
    pub receives: u32,
    pub entries: u32,
    pid: i32,
    /// Index of the context within its process.
    context: u32,
    /// 1 if immediates of writes take a receive.
    solicited: u32,
    /// Number of the protection domain within its context.
    domain: u32,
    qkey: AtomicU32,
    state: AtomicU32,
    /// Next receive to take; peers advance it.
    head: Line,
    /// Next receive to post; the owner advances it.
    tail: Line,
    /// Next slot of the inbox to fill; peers advance it.
    pub filled: Line,
    /// Number of immediates for which the inbox had no space.
    pub lost: AtomicU64,
    /// 1 if a thread of the owner empties the inbox into a completion queue in memory.
    drained: AtomicU32,
    /// Numbers of successful operations of peers: receives filled, reads, writes.
    counts: [AtomicU64; 3],
}

/// A receive in shared memory: ID, an unused word, and address and length of each piece.
#[repr(C)]
struct Slot([AtomicU64; 2 + 2 * RECEIVE_PIECES]);

/// A receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostedReceive {
    /// The owner's ID of the receive.
    pub wr_id: u64,
    /// Address and length of each piece.
    pub pieces: [(u64, u32); RECEIVE_PIECES],
}

impl PostedReceive {
    /// Returns the capacity of the receive in bytes.
    pub fn room(&self) -> u64 {
        self.pieces.iter().map(|(_, length)| u64::from(*length)).sum()
    }
}

/// The page of one queue pair.
#[derive(Debug)]
pub struct PairPage {
    memory: Shared,
}

impl PairPage {
    /// Creates a page of this process, for `receives` receives and for more unsolicited immediates than the completion
    /// queue has entries (`kept`). With `solicited`, an immediate of a write takes a receive.
    pub fn new(receives: u32, kept: u32, context: u32, domain: u32, solicited: bool) -> io::Result<PairPage> {
        let receives = receives.max(1).next_power_of_two();
        let room = UNSOLICITED.max(kept as usize + 1) + SENDERS as usize;
        let entries = (receives as usize + room).next_power_of_two();
        let bytes =
            size_of::<Header>() + receives as usize * size_of::<Slot>() + (entries + 1) * size_of::<InboxSlot>();
        let memory = Shared::new(bytes)?;
        let header: *mut Header = memory.base().cast();
        // SAFETY: the memory is large enough, aligned to a page, and inaccessible to others while it has no name.
        unsafe {
            (*header).magic = MAGIC;
            (*header).receives = receives;
            (*header).entries = entries as u32;
            (*header).pid = std::process::id() as i32;
            (*header).context = context;
            (*header).domain = domain;
            (*header).solicited = u32::from(solicited);
            (*header).state = AtomicU32::new(GONE);
        }
        Ok(PairPage { memory })
    }

    /// Publishes the page under the name of the queue pair.
    pub fn publish(&mut self, name: &str) -> io::Result<()> {
        self.memory.publish(name)
    }

    /// Opens a peer's page.
    pub fn open(name: &str) -> io::Result<PairPage> {
        let page = PairPage { memory: Shared::open(name)? };
        let whole = page.memory.bytes() >= size_of::<Header>() && {
            let header = page.header();
            let slots = header.receives as usize * size_of::<Slot>();
            let places = (header.entries as usize + 1) * size_of::<InboxSlot>();
            let sound = header.receives.is_power_of_two() && header.entries.is_power_of_two();
            header.magic == MAGIC && sound && page.memory.bytes() >= size_of::<Header>() + slots + places
        };
        if whole { Ok(page) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the memory starts with a header: `new` wrote it, or `open` has checked it. The fields that are not
        // atomic never change.
        unsafe { &*self.memory.base().cast() }
    }

    fn slot(&self, number: u64) -> &Slot {
        let index = number as usize & (self.header().receives as usize - 1);
        // SAFETY: the slots follow the header, and the index is below their number.
        unsafe { &*self.memory.base().add(size_of::<Header>()).cast::<Slot>().add(index) }
    }

    pub(crate) fn place(&self, number: u64) -> &InboxSlot {
        let header = self.header();
        let index = number as usize & (header.entries as usize - 1);
        let start = size_of::<Header>() + header.receives as usize * size_of::<Slot>();
        // SAFETY: the places follow the slots, at the next line, and the index is below their number.
        unsafe {
            &*self.memory.base().add(start.next_multiple_of(align_of::<InboxSlot>())).cast::<InboxSlot>().add(index)
        }
    }

    /// Returns the ID of the owning process.
    pub fn pid(&self) -> i32 {
        self.header().pid
    }

    /// Returns the index of the context within its process.
    pub fn context(&self) -> u32 {
        self.header().context
    }

    /// Returns the protection domain.
    pub fn domain(&self) -> u32 {
        self.header().domain
    }

    /// Returns whether an immediate of a write takes a receive.
    pub fn is_solicited(&self) -> bool {
        self.header().solicited != 0
    }

    /// Returns whether a thread of the owner empties the inbox independently of the program. A full inbox then does not
    /// mean that the program has stopped reading.
    pub fn is_drained(&self) -> bool {
        self.header().drained.load(Ordering::Relaxed) != 0
    }

    /// Records that a thread of the owner now empties the inbox.
    pub fn set_drained(&self) {
        self.header().drained.store(1, Ordering::Relaxed);
    }

    /// Returns the queue key, which a sender must specify in addition to the number.
    pub fn qkey(&self) -> &AtomicU32 {
        &self.header().qkey
    }

    /// Returns the numbers of successful operations of peers: receives filled, reads, writes. Peers increment them with
    /// release order, after the bytes.
    pub fn counts(&self) -> &[AtomicU64; 3] {
        &self.header().counts
    }

    /// Returns the state: [`READY`] or [`GONE`].
    pub fn state(&self) -> &AtomicU32 {
        &self.header().state
    }

    /// Posts a receive. Returns whether there was space. Only one thread of the owner may call it at a time.
    pub fn post(&self, receive: &PostedReceive) -> bool {
        let header = self.header();
        let tail = header.tail.0.load(Ordering::Relaxed);
        if tail - header.head.0.load(Ordering::Acquire) >= u64::from(header.receives) {
            return false;
        }
        let words = &self.slot(tail).0;
        words[0].store(receive.wr_id, Ordering::Relaxed);
        for (piece, (address, length)) in receive.pieces.iter().enumerate() {
            words[2 + 2 * piece].store(*address, Ordering::Relaxed);
            words[3 + 2 * piece].store(u64::from(*length), Ordering::Relaxed);
        }
        // Uses release order, which pairs with the acquire of `tail` in `take`, so that the peer sees the words of the
        // receive.
        header.tail.0.store(tail + 1, Ordering::Release);
        true
    }

    /// Removes and returns the oldest receive.
    pub fn take(&self) -> Option<PostedReceive> {
        let header = self.header();
        let mut head = header.head.0.load(Ordering::Acquire);
        loop {
            if head >= header.tail.0.load(Ordering::Acquire) {
                return None;
            }
            let words = &self.slot(head).0;
            let mut receive = PostedReceive { wr_id: words[0].load(Ordering::Relaxed), ..PostedReceive::default() };
            for (piece, place) in receive.pieces.iter_mut().enumerate() {
                *place =
                    (words[2 + 2 * piece].load(Ordering::Relaxed), words[3 + 2 * piece].load(Ordering::Relaxed) as u32);
            }
            // The owner reuses this slot only after the head has passed it. The exchange then fails, and the values
            // read are discarded.
            match header.head.0.compare_exchange_weak(head, head + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(receive),
                Err(now) => head = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

    use super::*;

    #[test]
    fn receives_come_in_their_order_each_once() {
        let page = PairPage::new(8, 64, 0, 0, false).unwrap();
        assert_eq!(page.take(), None);
        for lap in 0..5 {
            for number in 0..8 {
                let receive = PostedReceive { wr_id: lap * 8 + number, pieces: [(number, 3), (9, 4), (0, 0)] };
                assert!(page.post(&receive));
            }
            assert!(!page.post(&PostedReceive::default()), "full");
            for number in 0..8 {
                let receive = page.take().unwrap();
                assert_eq!((receive.wr_id, receive.pieces[0], receive.room()), (lap * 8 + number, (number, 3), 7));
            }
        }
    }
}
