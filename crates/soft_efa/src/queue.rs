//! What a peer sees of a queue pair: its receives, and the box into which peers put completions.
//!
//! One page in shared memory. Its owner posts receives and empties the box; any process of any peer takes receives and fills the
//! box. Both are rings of fixed size that start as zeros.

use crate::share::Shared;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Pieces of a receive.
pub const RECEIVE_PIECES: usize = 3;
/// Room for immediates of writes beside the receives' completions.
const UNSOLICITED: usize = 4096;
/// Senders that may look at the room at once and then all take it.
const SENDERS: u64 = 64;
/// Of this form of the page.
const MAGIC: u32 = 0x5EFA_0003;

/// Which states a queue pair has for its peers.
pub const READY: u32 = 1;
/// Destroyed, or not yet ready.
pub const GONE: u32 = 2;

#[repr(C, align(64))]
struct Line(AtomicU64);

#[repr(C)]
struct Header {
    magic: u32,
    receives: u32,
    entries: u32,
    pid: i32,
    /// Number of the context among its process's.
    context: u32,
    /// 1: immediates of writes take a receive.
    solicited: u32,
    /// Number of the protection domain among its context's.
    domain: u32,
    qkey: AtomicU32,
    state: AtomicU32,
    /// Next receive to take; peers move it.
    head: Line,
    /// Next receive to post; the owner moves it.
    tail: Line,
    /// Next place of the box to fill; peers move it.
    filled: Line,
    /// Receives that peers have filled, their reads, their writes: those that are well.
    counts: [AtomicU64; 3],
}

/// A receive: name, pieces, and address and length of each.
#[repr(C)]
struct Slot([AtomicU64; 2 + 2 * RECEIVE_PIECES]);

/// A place of the box: how often it was filled and emptied, and what is in it.
#[repr(C, align(64))]
struct Place {
    turns: AtomicU64,
    words: [AtomicU64; 6],
}

/// A receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receive {
    /// The owner's name for it.
    pub wr_id: u64,
    /// Address and length of each piece.
    pub pieces: [(u64, u32); RECEIVE_PIECES],
}

impl Receive {
    /// Bytes that it has room for.
    pub fn room(&self) -> u64 {
        self.pieces.iter().map(|(_, length)| u64::from(*length)).sum()
    }
}

/// What a peer's request left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// The receive that it took; nothing for an immediate of a write.
    pub wr_id: Option<u64>,
    /// Whether it is a write's immediate, not a message.
    pub is_write: bool,
    /// EFA's status.
    pub status: u32,
    /// Bytes that arrived.
    pub bytes: u32,
    /// Immediate.
    pub immediate: Option<u32>,
    /// The sender's queue pair.
    pub source: u32,
    /// The sender's card.
    pub gid: [u8; 16],
}

/// The page of one queue pair.
#[derive(Debug)]
pub struct Page {
    memory: Shared,
}

impl Page {
    /// A page of this process, for so many receives. `solicited`: an immediate of a write takes one of them.
    pub fn new(receives: u32, context: u32, domain: u32, solicited: bool) -> io::Result<Page> {
        let receives = receives.max(1).next_power_of_two();
        let entries = (receives as usize + UNSOLICITED).next_power_of_two();
        let bytes = size_of::<Header>() + receives as usize * size_of::<Slot>() + (entries + 1) * size_of::<Place>();
        let memory = Shared::new(bytes, false)?;
        let header: *mut Header = memory.base().cast();
        // SAFETY: large enough, aligned to a page, and nobody else's while it has no name.
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
        Ok(Page { memory })
    }

    /// Gives it the queue pair's name.
    pub fn publish(&mut self, name: &str) -> io::Result<()> {
        self.memory.publish(name)
    }

    /// A peer's page.
    pub fn open(name: &str) -> io::Result<Page> {
        let page = Page { memory: Shared::open(name)? };
        let whole = page.memory.bytes() >= size_of::<Header>() && {
            let header = page.header();
            let slots = header.receives as usize * size_of::<Slot>();
            let places = (header.entries as usize + 1) * size_of::<Place>();
            let sound = header.receives.is_power_of_two() && header.entries.is_power_of_two();
            header.magic == MAGIC && sound && page.memory.bytes() >= size_of::<Header>() + slots + places
        };
        if whole { Ok(page) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    fn header(&self) -> &Header {
        // SAFETY: the memory begins with it: `new` made it so, `open` has looked. What is not atomic never changes.
        unsafe { &*self.memory.base().cast() }
    }

    fn slot(&self, number: u64) -> &Slot {
        let index = number as usize & (self.header().receives as usize - 1);
        // SAFETY: the slots follow the header, and the index is below their number.
        unsafe { &*self.memory.base().add(size_of::<Header>()).cast::<Slot>().add(index) }
    }

    fn place(&self, number: u64) -> &Place {
        let header = self.header();
        let index = number as usize & (header.entries as usize - 1);
        let start = size_of::<Header>() + header.receives as usize * size_of::<Slot>();
        // SAFETY: the places follow the slots, at the next line, and the index is below their number.
        unsafe { &*self.memory.base().add(start.next_multiple_of(align_of::<Place>())).cast::<Place>().add(index) }
    }

    /// The process whose it is.
    pub fn pid(&self) -> i32 {
        self.header().pid
    }

    /// The context whose it is.
    pub fn context(&self) -> u32 {
        self.header().context
    }

    /// Its protection domain.
    pub fn domain(&self) -> u32 {
        self.header().domain
    }

    /// Whether an immediate of a write takes a receive.
    pub fn is_solicited(&self) -> bool {
        self.header().solicited != 0
    }

    /// What a sender must name beside the number.
    pub fn qkey(&self) -> &AtomicU32 {
        &self.header().qkey
    }

    /// Receives that peers have filled, their reads, their writes, as far as they went well. Who adds does so by release, behind the bytes.
    pub fn counts(&self) -> &[AtomicU64; 3] {
        &self.header().counts
    }

    /// [`READY`] or [`GONE`].
    pub fn state(&self) -> &AtomicU32 {
        &self.header().state
    }

    /// Posts a receive. One thread of the owner at a time.
    pub fn post(&self, receive: &Receive) -> bool {
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
        // The peer that takes this receive must see its words: its acquire of `tail` in `take`.
        header.tail.0.store(tail + 1, Ordering::Release);
        true
    }

    /// Takes the oldest receive.
    pub fn take(&self) -> Option<Receive> {
        let header = self.header();
        let mut head = header.head.0.load(Ordering::Acquire);
        loop {
            if head >= header.tail.0.load(Ordering::Acquire) {
                return None;
            }
            let words = &self.slot(head).0;
            let mut receive = Receive { wr_id: words[0].load(Ordering::Relaxed), ..Receive::default() };
            for (piece, place) in receive.pieces.iter_mut().enumerate() {
                *place =
                    (words[2 + 2 * piece].load(Ordering::Relaxed), words[3 + 2 * piece].load(Ordering::Relaxed) as u32);
            }
            // The owner writes this slot again only when the head has passed it; then this fails, and what was read is dropped.
            match header.head.0.compare_exchange_weak(head, head + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(receive),
                Err(now) => head = now,
            }
        }
    }

    /// Puts an arrival into the box; `false` when there is no room. One that has taken a receive always finds room: those that have
    /// not leave enough of it, so that no message is lost behind immediates that nobody reads.
    pub fn put(&self, arrival: &Arrival) -> bool {
        let header = self.header();
        let entries = u64::from(header.entries);
        let mut number = header.filled.0.load(Ordering::Relaxed);
        let place = loop {
            if arrival.wr_id.is_none() {
                // The box is emptied in order: when this place is empty, so are those before it.
                let last = number + u64::from(header.receives) + SENDERS;
                if self.place(last).turns.load(Ordering::Acquire) < last / entries * 2 {
                    return false;
                }
            }
            let place = self.place(number);
            // Even: empty for this lap.
            let empty = number / entries * 2;
            let turns = place.turns.load(Ordering::Acquire);
            if turns < empty {
                return false;
            }
            if turns > empty {
                number = header.filled.0.load(Ordering::Relaxed);
                continue;
            }
            match header.filled.0.compare_exchange_weak(number, number + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break place,
                Err(now) => number = now,
            }
        };
        let has = [arrival.wr_id.is_some(), arrival.immediate.is_some(), arrival.is_write];
        let has = has.into_iter().rev().fold(0, |bits, bit| bits << 1 | u64::from(bit));
        let half = |part: usize| u64::from_ne_bytes(std::array::from_fn(|index| arrival.gid[8 * part + index]));
        let words = [
            arrival.wr_id.unwrap_or_default(),
            u64::from(arrival.status) | has << 32,
            u64::from(arrival.bytes) | u64::from(arrival.immediate.unwrap_or_default()) << 32,
            u64::from(arrival.source),
            half(0),
            half(1),
        ];
        for (place, word) in place.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        // Odd: filled. The owner's acquire in `get` sees the words, and the bytes that were moved before.
        place.turns.fetch_add(1, Ordering::Release);
        true
    }

    /// Takes an arrival out of the box. One thread of the owner at a time; `read` counts what it has taken.
    pub fn get(&self, read: &mut u64) -> Option<Arrival> {
        let place = self.place(*read);
        let filled = *read / u64::from(self.header().entries) * 2 + 1;
        if place.turns.load(Ordering::Acquire) != filled {
            return None;
        }
        let words: [u64; 6] = std::array::from_fn(|word| place.words[word].load(Ordering::Relaxed));
        place.turns.store(filled + 1, Ordering::Release);
        *read += 1;
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&words[4].to_ne_bytes());
        gid[8..].copy_from_slice(&words[5].to_ne_bytes());
        let has = words[1] >> 32;
        Some(Arrival {
            wr_id: (has & 1 != 0).then_some(words[0]),
            is_write: has & 4 != 0,
            status: words[1] as u32,
            bytes: words[2] as u32,
            immediate: (has & 2 != 0).then_some((words[2] >> 32) as u32),
            source: words[3] as u32,
            gid,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

    use super::*;

    #[test]
    fn receives_come_in_their_order_each_once() {
        let page = Page::new(8, 0, 0, false).unwrap();
        assert_eq!(page.take(), None);
        for lap in 0..5 {
            for number in 0..8 {
                let receive = Receive { wr_id: lap * 8 + number, pieces: [(number, 3), (9, 4), (0, 0)] };
                assert!(page.post(&receive));
            }
            assert!(!page.post(&Receive::default()), "full");
            for number in 0..8 {
                let receive = page.take().unwrap();
                assert_eq!((receive.wr_id, receive.pieces[0], receive.room()), (lap * 8 + number, (number, 3), 7));
            }
        }
    }

    #[test]
    fn arrivals_of_many_come_out_whole_and_once() {
        let page = Page::new(8, 0, 0, false).unwrap();
        let entries = u64::from(page.header().entries);
        let (each, senders) = (3 * entries, 3);
        let mut seen = vec![0u64; senders];
        std::thread::scope(|scope| {
            for sender in 0..senders {
                let page = &page;
                scope.spawn(move || {
                    for number in 0..each {
                        let arrival = Arrival {
                            wr_id: Some(number),
                            is_write: number % 3 == 0,
                            status: 0,
                            bytes: number as u32,
                            immediate: Some(!(number as u32)),
                            source: sender as u32,
                            gid: [sender as u8; 16],
                        };
                        while !page.put(&arrival) {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let (mut read, mut left) = (0, each * senders as u64);
            while left > 0 {
                let Some(arrival) = page.get(&mut read) else {
                    std::thread::yield_now();
                    continue;
                };
                let sender = arrival.source as usize;
                let number = seen[sender];
                assert_eq!((arrival.wr_id, arrival.bytes), (Some(number), number as u32));
                assert_eq!(arrival.is_write, number % 3 == 0);
                assert_eq!((arrival.immediate, arrival.gid), (Some(!(number as u32)), [sender as u8; 16]));
                seen[sender] += 1;
                left -= 1;
            }
        });
        let kept = u64::from(page.header().receives) + SENDERS;
        for _ in 0..entries - kept {
            assert!(page.put(&Arrival::default()));
        }
        assert!(!page.put(&Arrival::default()), "what is left is the receives'");
        let received = Arrival { wr_id: Some(1), ..Arrival::default() };
        assert!((0..kept).all(|_| page.put(&received)));
        assert!(!page.put(&received), "full");
    }
}
