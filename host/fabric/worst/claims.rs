//! Claims on destinations: which puts and gets are under way to the memory of a process, in memory that all senders share.
//!
//! Whoever posts a put writes its claim into the table of the process that owns the destination, and takes it away when nothing of the
//! put can be written any more. Two claims on the same bytes are two puts at once, also of different senders, proxies and rails.

use super::Who;
use crossbeam_utils::Backoff;
use ginlab_base::left_behind::has_ended;
use ginlab_base::memory_file::{FileName, MemoryFile};
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Claims that a process's memory may bear at a time.
const ENTRIES: usize = 4096;
/// Whoever holds the lock looks through the table, which takes microseconds. A longer wait than this is a fault.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a claim is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Bytes of a put arrive here; their checksum.
    Put(u32),
    /// A get reads here.
    Source,
    /// Bytes of a get arrive here; a checksum of where they come from.
    Sink(u32),
}

/// Bytes of a file that a transfer is under way to or from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub usage: Use,
    pub who: Who,
    pub pid: u32,
    pub token: u64,
    /// The file's key and the first byte in it.
    pub file: u64,
    pub offset: u64,
    pub bytes: u64,
    /// The first byte in its region, for messages.
    pub in_region: u64,
}

/// What became of a claim.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Claimed {
    /// It stands.
    Taken {
        /// Under this number.
        number: u32,
        /// Beside another one that brings the same bytes to the same place.
        beside: bool,
    },
    /// There is no room now.
    Full,
    /// It meets another one.
    Meets(Claim),
}

/// Words of an entry: the kind (0: none), who, process and checksum, token, file, offset, bytes, offset in the region.
type Entry = [AtomicU64; 8];

#[repr(C)]
struct Table {
    /// The process that holds it; 0 when it is free. Everything below is read and written by its holder alone: taken by an acquire
    /// and given back by a release, it orders one holder's stores before the next one's loads.
    lock: AtomicU32,
    /// No claim stands from this number on.
    end: AtomicU32,
    entries: [Entry; ENTRIES],
}

impl Claim {
    fn words(&self) -> [u64; 8] {
        let (kind, sum) = match self.usage {
            Use::Put(sum) => (1, sum),
            Use::Source => (2, 0),
            Use::Sink(sum) => (3, sum),
        };
        let Who { rank, proxy, rail } = self.who;
        let who = u64::from(rank) << 32 | u64::from(proxy) << 16 | u64::from(rail);
        let process = u64::from(self.pid) << 32 | u64::from(sum);
        [kind, who, process, self.token, self.file, self.offset, self.bytes, self.in_region]
    }

    fn of(words: [u64; 8]) -> Option<Claim> {
        let [kind, who, process, token, file, offset, bytes, in_region] = words;
        let usage = match kind {
            1 => Use::Put(process as u32),
            2 => Use::Source,
            3 => Use::Sink(process as u32),
            _ => return None,
        };
        let who = Who { rank: (who >> 32) as u32, proxy: (who >> 16) as u16, rail: who as u16 };
        Some(Claim { usage, who, pid: (process >> 32) as u32, token, file, offset, bytes, in_region })
    }

    /// Whether both bring the same bytes to the same place.
    fn is_like(&self, other: &Claim) -> bool {
        let place = |claim: &Claim| (claim.file, claim.offset, claim.bytes);
        place(self) == place(other) && self.usage != Use::Source && self.usage == other.usage
    }

    /// Whether both may be under way at once: they share no byte, only read, or bring the same bytes to the same place.
    fn bears(&self, other: &Claim) -> bool {
        let apart = |one: &Claim, other: &Claim| one.offset.saturating_add(one.bytes) <= other.offset;
        self.file != other.file
            || apart(self, other)
            || apart(other, self)
            || (self.usage, other.usage) == (Use::Source, Use::Source)
            || self.is_like(other)
    }
}

/// A table of claims: this process's, or a peer's.
#[derive(Debug)]
pub(super) struct Claims(MemoryFile);

/// This process's, as long as one of its rails is open.
static OURS: Mutex<Weak<Claims>> = Mutex::new(Weak::new());

impl Claims {
    /// The claims on this process's memory.
    pub fn of_this_process() -> io::Result<Arc<Claims>> {
        let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(claims) = ours.upgrade() {
            return Ok(claims);
        }
        let bytes = NonZeroUsize::new(size_of::<Table>()).unwrap_or(NonZeroUsize::MIN);
        let claims = Arc::new(Claims(MemoryFile::create(bytes)?));
        *ours = Arc::downgrade(&claims);
        Ok(claims)
    }

    /// The claims on a peer's memory.
    pub fn open(name: FileName) -> io::Result<Claims> {
        let file = MemoryFile::open(name)?;
        if file.bytes() < size_of::<Table>() as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no table of claims"));
        }
        Ok(Claims(file))
    }

    /// For peers.
    pub fn name(&self) -> FileName {
        self.0.name()
    }

    fn table(&self) -> &Table {
        // SAFETY: the file is as long as this (made so, or checked when it was opened), at a page's start, and of zeros at first,
        // which are good for all its fields; everything in it is atomic.
        unsafe { &*(self.0.address() as *const Table) }
    }

    /// Runs it as the only process and thread. A holder that has been killed holds nothing any more.
    fn alone<T>(&self, run: impl FnOnce(&Table) -> T) -> io::Result<T> {
        let (table, me, backoff, mut since) = (self.table(), std::process::id(), Backoff::new(), None);
        let mut expected = 0;
        while let Err(holder) = table.lock.compare_exchange(expected, me, Ordering::Acquire, Ordering::Relaxed) {
            expected = 0;
            backoff.snooze();
            if !backoff.is_completed() {
                continue;
            }
            if holder != 0 && has_ended(holder) {
                expected = holder;
            }
            if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                let text = format!("process {holder} has held the claims of process {} for 10 s", self.0.name().pid);
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
        }
        let done = run(table);
        table.lock.store(0, Ordering::Release);
        Ok(done)
    }

    /// Claims bytes, unless that meets a claim of a process that still is there.
    pub fn claim(&self, claim: &Claim) -> io::Result<Claimed> {
        self.alone(|table| {
            let end = table.end.load(Ordering::Relaxed).min(ENTRIES as u32);
            let (mut free, mut beside) = ((end < ENTRIES as u32).then_some(end), false);
            for (number, entry) in table.entries[..end as usize].iter().enumerate().rev() {
                let Some(other) = load(entry) else {
                    free = Some(number as u32);
                    continue;
                };
                if !claim.bears(&other) {
                    if other.pid == claim.pid || !has_ended(other.pid) {
                        return Claimed::Meets(other);
                    }
                    store(entry, [0; 8]);
                    free = Some(number as u32);
                }
                beside |= claim.is_like(&other);
            }
            let Some(number) = free else { return Claimed::Full };
            store(&table.entries[number as usize], claim.words());
            table.end.store(end.max(number + 1), Ordering::Relaxed);
            Claimed::Taken { number, beside }
        })
    }

    /// Takes a claim away.
    pub fn release(&self, number: u32) -> io::Result<()> {
        self.alone(|table| {
            if let Some(entry) = table.entries.get(number as usize) {
                store(entry, [0; 8]);
            }
            let mut end = table.end.load(Ordering::Relaxed).min(ENTRIES as u32);
            while end > 0 && load(&table.entries[end as usize - 1]).is_none() {
                end -= 1;
            }
            table.end.store(end, Ordering::Relaxed);
        })
    }
}

fn load(entry: &Entry) -> Option<Claim> {
    // Most look-ups end here.
    if entry[0].load(Ordering::Relaxed) == 0 {
        return None;
    }
    Claim::of(entry.each_ref().map(|word| word.load(Ordering::Relaxed)))
}

fn store(entry: &Entry, words: [u64; 8]) {
    entry.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]
    use super::*;

    fn table() -> Claims {
        Claims(MemoryFile::create(NonZeroUsize::new(size_of::<Table>()).unwrap()).unwrap())
    }

    fn claim(usage: Use, offset: u64, bytes: u64) -> Claim {
        let who = Who { rank: 70_000, proxy: 3, rail: 9 };
        Claim { usage, who, pid: std::process::id(), token: u64::MAX, file: 5, offset, bytes, in_region: offset + 7 }
    }

    #[test]
    fn bytes_are_claimed_once_until_they_are_released() {
        let claims = table();
        let first = claim(Use::Put(1), 100, 50);
        let taken = |claim: &Claim| match claims.claim(claim).unwrap() {
            Claimed::Taken { number, beside } => (number, beside),
            other => panic!("{claim:?}: {other:?}"),
        };
        let (number, _) = taken(&first);
        for (offset, bytes) in [(100, 50), (149, 1), (0, 101), (120, 4), (0, 1000)] {
            assert_eq!(claims.claim(&claim(Use::Put(2), offset, bytes)).unwrap(), Claimed::Meets(first));
            assert_eq!(claims.claim(&claim(Use::Source, offset, bytes)).unwrap(), Claimed::Meets(first));
            assert_eq!(claims.claim(&claim(Use::Sink(1), offset, bytes)).unwrap(), Claimed::Meets(first));
        }
        // The same bytes to the same place, neighbours, another file.
        for other in [first, claim(Use::Put(2), 50, 50), claim(Use::Put(2), 150, 1), Claim { file: 6, ..first }] {
            let (number, beside) = taken(&other);
            assert_eq!(beside, other == first);
            claims.release(number).unwrap();
        }
        claims.release(number).unwrap();
        assert_eq!(claims.table().end.load(Ordering::Relaxed), 0);
        assert_eq!(taken(&claim(Use::Put(2), 0, 1000)), (0, false));
    }

    #[test]
    fn gets_of_the_same_bytes_go_side_by_side_and_a_full_table_says_so() {
        let claims = table();
        for number in 0..ENTRIES as u32 {
            assert_eq!(claims.claim(&claim(Use::Source, 0, 8)).unwrap(), Claimed::Taken { number, beside: false });
        }
        assert_eq!(claims.claim(&claim(Use::Source, 0, 8)).unwrap(), Claimed::Full);
        claims.release(17).unwrap();
        assert_eq!(claims.claim(&claim(Use::Source, 0, 8)).unwrap(), Claimed::Taken { number: 17, beside: false });
    }

    #[test]
    fn a_process_that_has_ended_claims_nothing_and_holds_no_lock() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let claims = table();
        claims.claim(&Claim { pid, ..claim(Use::Put(1), 0, 8) }).unwrap();
        claims.table().lock.store(pid, Ordering::Relaxed);
        assert_eq!(claims.claim(&claim(Use::Put(2), 0, 8)).unwrap(), Claimed::Taken { number: 0, beside: false });
    }
}
