//! Immediates between processes: the inbox of a rail in shared memory, with one queue for each rail that sends to it.
//!
//! A queue has one writer and one reader, so a sender that is killed can only corrupt its own queue.

use crossbeam_utils::CachePadded;
use ginlab_base::memory_file::{FileName, MemoryFile};
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Maximum number of rails that send to one inbox, and therefore of the ranks of a job whose rails are on one host. An
/// inbox takes 1.3 MiB.
pub const SENDERS: usize = 1024;
/// Maximum number of immediates in a queue.
const SLOTS: usize = 256;

/// Memory layout of an inbox, to which a rail's peers write.
#[repr(C)]
struct Page {
    /// Number of queues that have a sender.
    senders: AtomicU32,
    queues: [Queue; SENDERS],
}

/// A queue from one sender. Its counts include all immediates ever sent. Each count has its own cache line, because the
/// sender writes one and the receiver the other.
#[repr(C)]
struct Queue {
    sent: CachePadded<AtomicU64>,
    taken: CachePadded<AtomicU64>,
    slots: [AtomicU32; SLOTS],
}

/// Receiving end of an inbox.
#[derive(Debug)]
pub(crate) struct Inbox {
    file: MemoryFile,
    /// Number of immediates taken from each queue.
    taken: Vec<u64>,
}

/// Sending end of one queue of an inbox.
#[derive(Debug)]
pub(crate) struct Outbox {
    file: MemoryFile,
    queue: usize,
    sent: u64,
    /// The receiver's count at its last reading. Cached here, because the receiver writes its cache line whenever it
    /// takes immediates.
    taken: u64,
}

/// Returns the memory of an inbox, as both ends access it.
fn page(file: &MemoryFile) -> &Page {
    // SAFETY: the file is at least as long as `Page` (created so, or checked when opened) and starts at a page. The
    // memory is initially zero, which is valid for all fields, and all fields are atomic.
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

    /// Calls `take` with each immediate that has arrived. Bytes written before an immediate was sent are visible when
    /// it is taken.
    #[inline]
    pub fn take(&mut self, mut take: impl FnMut(u32)) {
        let page = page(&self.file);
        let senders = (page.senders.load(Ordering::Relaxed) as usize).min(SENDERS);
        if self.taken.len() < senders {
            self.taken.resize(senders, 0);
        }
        for (queue, taken) in page.queues.iter().zip(&mut self.taken) {
            let sent = queue.sent.load(Ordering::Acquire);
            // An impossible count is an error of the peer. The bound prevents it from blocking this rail for long.
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
    /// Registers as a sender of an inbox, with a queue that is never reassigned.
    pub fn open(name: FileName) -> io::Result<Outbox> {
        let file = MemoryFile::open(name)?;
        if file.bytes() < size_of::<Page>() as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not an inbox"));
        }
        let queue = page(&file).senders.fetch_add(1, Ordering::Relaxed) as usize;
        if queue >= SENDERS {
            return Err(io::Error::other(format!("{SENDERS} rails already send to it")));
        }
        Ok(Outbox { file, queue, sent: 0, taken: 0 })
    }

    /// Sends an immediate. Returns `false` if the queue is full.
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
        /// Immediates of each sender arrive in order, exactly once. A full queue reports this, and accepts no further
        /// immediates.
        #[test]
        fn sent_immediates_are_received_once_in_order(bursts in prop::collection::vec((0usize..3, 0u32..400), 1..20)) {
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
                // Lets immediates accumulate in some iterations.
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
    fn stores_before_immediate_are_visible_with_it() {
        const COUNT: u32 = 20_000;
        /// Twice the capacity of a queue: the sender writes a word before it knows that there is space for its
        /// immediate.
        const WORDS: usize = 2 * SLOTS;
        let (mut inbox, data) =
            (Inbox::new().unwrap(), MemoryFile::create(NonZeroUsize::new(8 * WORDS).unwrap()).unwrap());
        let (name, to) = (inbox.name(), data.name());
        let sender = std::thread::spawn(move || {
            let (mut outbox, data) = (Outbox::open(name).unwrap(), MemoryFile::open(to).unwrap());
            for value in 0..COUNT {
                // SAFETY: the index is in bounds. The receiver reads a word only after its immediate, and before it
                // takes `WORDS` more.
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
                // SAFETY: the index is in bounds, and the writer has continued to other words.
                let there = unsafe { ((data.address() as *const u64).add(value as usize % WORDS)).read() };
                wrong += u32::from(value != next || there != u64::from(value) * 3);
                next += 1;
            });
            std::thread::yield_now();
        }
        assert_eq!((next, wrong), (COUNT, 0), "of {COUNT} immediates");
        sender.join().unwrap();
    }

    /// Every sender up to the limit gets its own queue, and the error of the next one states the limit.
    #[test]
    fn inbox_accepts_maximum_senders() {
        let mut inbox = Inbox::new().unwrap();
        let mut senders: Vec<_> = (0..SENDERS).map(|_| Outbox::open(inbox.name()).unwrap()).collect();
        for (value, sender) in senders.iter_mut().enumerate() {
            assert!(sender.send(value as u32));
        }
        assert_eq!(taken(&mut inbox), (0..SENDERS as u32).collect::<Vec<_>>());
        let refused = Outbox::open(inbox.name()).unwrap_err().to_string();
        assert!(refused.contains("1024 rails already send to it"), "{refused}");
    }

    #[test]
    fn corrupt_counts_are_bounded() {
        let mut inbox = Inbox::new().unwrap();
        let outbox = Outbox::open(inbox.name()).unwrap();
        page(&outbox.file).queues[0].sent.store(u64::MAX, Ordering::Release);
        page(&outbox.file).senders.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(taken(&mut inbox).len(), SLOTS);
        assert!(Outbox::open(inbox.name()).is_err(), "no queue is left");
    }
}
