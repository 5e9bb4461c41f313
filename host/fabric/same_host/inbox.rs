//! Immediates between processes: an inbox of a rail in shared memory, with a queue for each rail that sends to it.
//!
//! A queue has one writer and one reader, so a sender that is killed spoils no queue but its own.

use crossbeam_utils::CachePadded;
use ginlab_base::memory_file::{FileName, MemoryFile};
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Rails that may send to one inbox.
const SENDERS: usize = 256;
/// Immediates that wait in a queue at most.
const SLOTS: usize = 256;

/// What a rail's peers write to.
#[repr(C)]
struct Page {
    /// Queues that have a sender.
    senders: AtomicU32,
    queues: [Queue; SENDERS],
}

/// The counts are of all immediates ever, and in lines of their own: one is the sender's, one the receiver's.
#[repr(C)]
struct Queue {
    sent: CachePadded<AtomicU64>,
    taken: CachePadded<AtomicU64>,
    slots: [AtomicU32; SLOTS],
}

/// The end that receives.
#[derive(Debug)]
pub(crate) struct Inbox {
    file: MemoryFile,
    /// What has been taken of each queue.
    taken: Vec<u64>,
}

/// The end that sends.
#[derive(Debug)]
pub(crate) struct Outbox {
    file: MemoryFile,
    queue: usize,
    sent: u64,
    /// What the receiver had taken when we looked last. Its count lies in a line that it writes at each look of its own.
    taken: u64,
}

/// The memory of an inbox, as both ends see it.
fn page(file: &MemoryFile) -> &Page {
    // SAFETY: the file is as long as this (made so, or checked when it was opened), at a page's start, and of zeros at first,
    // which are good for all its fields; everything in it is atomic.
    unsafe { &*(file.address() as *const Page) }
}

impl Inbox {
    pub fn new() -> io::Result<Inbox> {
        let bytes = NonZeroUsize::new(size_of::<Page>()).unwrap_or(NonZeroUsize::MIN);
        Ok(Inbox { file: MemoryFile::create(bytes)?, taken: Vec::new() })
    }

    pub fn name(&self) -> FileName {
        self.file.name()
    }

    /// Calls `take` with each immediate that has arrived. A write that was there before its immediate was sent can be read.
    #[inline]
    pub fn take(&mut self, mut take: impl FnMut(u32)) {
        let page = page(&self.file);
        let senders = (page.senders.load(Ordering::Relaxed) as usize).min(SENDERS);
        if self.taken.len() < senders {
            self.taken.resize(senders, 0);
        }
        for (queue, taken) in page.queues.iter().zip(&mut self.taken) {
            let sent = queue.sent.load(Ordering::Acquire);
            // A count that cannot be is a peer's mistake; it must not keep us here for long.
            let arrived = sent.saturating_sub(*taken).min(SLOTS as u64);
            if arrived == 0 {
                continue;
            }
            for at in *taken..*taken + arrived {
                take(queue.slots[at as usize % SLOTS].load(Ordering::Relaxed));
            }
            *taken += arrived;
            queue.taken.store(*taken, Ordering::Release);
        }
    }
}

impl Outbox {
    /// Joins an inbox; it keeps its queue for good.
    pub fn open(name: FileName) -> io::Result<Outbox> {
        let file = MemoryFile::open(name)?;
        if file.bytes() < size_of::<Page>() as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no inbox"));
        }
        let queue = page(&file).senders.fetch_add(1, Ordering::Relaxed) as usize;
        if queue >= SENDERS {
            return Err(io::Error::other(format!("{SENDERS} rails send to it already")));
        }
        Ok(Outbox { file, queue, sent: 0, taken: 0 })
    }

    /// Sends; false when the receiver has not taken enough of the earlier ones.
    #[inline]
    pub fn send(&mut self, value: u32) -> bool {
        let queue = &page(&self.file).queues[self.queue];
        if self.sent.wrapping_sub(self.taken) >= SLOTS as u64 {
            self.taken = queue.taken.load(Ordering::Acquire);
            if self.sent.wrapping_sub(self.taken) >= SLOTS as u64 {
                return false;
            }
        }
        queue.slots[self.sent as usize % SLOTS].store(value, Ordering::Relaxed);
        self.sent += 1;
        queue.sent.store(self.sent, Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn taken(inbox: &mut Inbox) -> Vec<u32> {
        let mut values = Vec::new();
        inbox.take(|value| values.push(value));
        values
    }

    proptest! {
        /// In order from each sender, none twice, none lost; a full queue says so and takes no more.
        #[test]
        fn what_was_sent_is_taken_once_and_in_order(bursts in prop::collection::vec((0usize..3, 0u32..400), 1..20)) {
            let mut inbox = Inbox::new().unwrap();
            let mut senders: Vec<_> = (0..3).map(|_| Outbox::open(inbox.name()).unwrap()).collect();
            let (mut sent, mut received) = ([0u32; 3], [0u32; 3]);
            for (sender, burst) in bursts {
                let before = sent[sender];
                let accepted = (0..burst).take_while(|_| {
                    let ok = senders[sender].send((sender as u32) << 24 | sent[sender]);
                    sent[sender] += u32::from(ok);
                    ok
                }).count();
                prop_assert_eq!(accepted, (burst as usize).min(SLOTS - (before - received[sender]) as usize));
                // Left to pile up now and then.
                if burst % 3 == 0 {
                    continue;
                }
                for value in taken(&mut inbox) {
                    let from = (value >> 24) as usize;
                    prop_assert_eq!(value & 0xff_ffff, received[from]);
                    received[from] += 1;
                }
                prop_assert_eq!(sent, received);
            }
        }
    }

    #[test]
    fn what_stands_before_an_immediate_is_there_with_it() {
        const COUNT: u32 = 20_000;
        /// Twice what can wait: the sender writes a word before it knows that there is room for its immediate.
        const WORDS: usize = 2 * SLOTS;
        let (mut inbox, data) =
            (Inbox::new().unwrap(), MemoryFile::create(NonZeroUsize::new(8 * WORDS).unwrap()).unwrap());
        let (name, to) = (inbox.name(), data.name());
        let sender = std::thread::spawn(move || {
            let (mut outbox, data) = (Outbox::open(name).unwrap(), MemoryFile::open(to).unwrap());
            for value in 0..COUNT {
                // SAFETY: inside; the receiver reads a word only after its immediate, and before it takes so many more.
                unsafe { ((data.address() as *mut u64).add(value as usize % WORDS)).write(u64::from(value) * 3) };
                while !outbox.send(value) {
                    std::thread::yield_now();
                }
            }
        });
        let (mut next, mut wrong) = (0, 0);
        let ends = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while next < COUNT && std::time::Instant::now() < ends {
            inbox.take(|value| {
                // SAFETY: as above: its writer has gone on to other slots.
                let there = unsafe { ((data.address() as *const u64).add(value as usize % WORDS)).read() };
                wrong += u32::from(value != next || there != u64::from(value) * 3);
                next += 1;
            });
            std::thread::yield_now();
        }
        assert_eq!((next, wrong), (COUNT, 0), "of {COUNT} immediates");
        sender.join().unwrap();
    }

    #[test]
    fn a_count_that_cannot_be_ends() {
        let mut inbox = Inbox::new().unwrap();
        let outbox = Outbox::open(inbox.name()).unwrap();
        page(&outbox.file).queues[0].sent.store(u64::MAX, Ordering::Release);
        page(&outbox.file).senders.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(taken(&mut inbox).len(), SLOTS);
        assert!(Outbox::open(inbox.name()).is_err(), "no queue is left");
    }
}
