//! Claims on destinations: the puts and gets in flight to the memory of a process, recorded in memory that all senders
//! share.
//!
//! A rail that posts a put writes its claim to the table of the process that owns the destination. It removes the claim
//! when no more bytes of the put can be written. Two claims on the same bytes indicate two concurrent puts, even from
//! different senders, proxies and rails.
//!
//! Released claims are logged, so that a changed source can be traced to the put that landed in it. A counter of the
//! table orders claims, releases, and the posts and signals of its process.

use super::Who;
use super::traffic::Traffic;
use crossbeam_utils::Backoff;
use ginlab_base::memory_file::{FileName, MemoryFile};
use ginlab_base::shm_cleanup::has_ended;
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Maximum number of concurrent claims on a process's memory.
const ENTRIES: usize = 4096;
/// Number of released claims that are kept in the log.
const LOGGED: usize = 4096;
/// Maximum wait for the lock. Its holder searches the table, which takes microseconds, so a longer wait is an error.
const PATIENCE: Duration = Duration::from_secs(10);

/// Kind of access that a claim reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Bytes of a put arrive here. Contains their checksum.
    Put(u32),
    /// A get reads here.
    Source,
    /// Bytes of a get arrive here. Contains a checksum of their source.
    Sink(u32),
}

/// A range of a file that a transfer in flight reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub usage: Use,
    /// Whether an immediate follows the bytes.
    pub signals: bool,
    pub who: Who,
    /// Rank at the other end. In addition, `number` is the number of the put or get among those of `who.rank` with that
    /// rank, from 1.
    pub other: u32,
    pub number: u32,
    /// Key of the sender's first region. Distinguishes ranks with the same number in one process, if jobs share it.
    pub home: u64,
    pub pid: u32,
    /// Key of the file, and offset of the first byte in it.
    pub file: u64,
    pub offset: u64,
    pub bytes: u64,
    /// Offset of the first byte in its region, for messages.
    pub in_region: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Claimed {
    /// The claim was entered.
    Taken {
        number: u32,
        /// Whether another claim writes the same bytes to the same place.
        beside: bool,
    },
    /// The table is full.
    Full,
    /// The claim conflicts with this one.
    Meets(Claim),
}

/// A claim with the table's count at its start and at its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Logged {
    pub claim: Claim,
    pub begun: u64,
    /// `u64::MAX` until the release.
    pub ended: u64,
}

/// Number of words of a claim.
const WORDS: usize = 9;
/// Bit of the kind that indicates an immediate.
const SIGNALS: u64 = 4;

/// Words of an entry: those of the claim, followed by start and release. The words of the claim are: kind (0 if there
/// is no claim); who; process and checksum; other rank and number; file; offset; bytes; offset in the region; home.
type Entry = [AtomicU64; WORDS + 2];

#[repr(C)]
struct Table {
    /// PID of the holder of the lock. 0 if it is free. The fields below, except `clock`, are accessed only by the
    /// holder. The lock is taken by an acquire and returned by a release, which orders one holder's stores before the
    /// next holder's loads.
    lock: AtomicU32,
    /// All entries from this number on are free.
    end: AtomicU32,
    /// Number of claims, releases, posts and signals so far. Posts and signals increment it without the lock.
    clock: AtomicU64,
    /// Number of claims that have been logged. Claim `n` is at `n % LOGGED`.
    logged: AtomicU64,
    entries: [Entry; ENTRIES],
    log: [Entry; LOGGED],
}

impl Claim {
    fn words(&self) -> [u64; WORDS] {
        let (kind, sum) = match self.usage {
            Use::Put(sum) => (1, sum),
            Use::Source => (2, 0),
            Use::Sink(sum) => (3, sum),
        };
        let Who { rank, proxy, rail } = self.who;
        let who = u64::from(rank) << 32 | u64::from(proxy) << 16 | u64::from(rail);
        let process = u64::from(self.pid) << 32 | u64::from(sum);
        let kind = if self.signals { kind | SIGNALS } else { kind };
        let ends = u64::from(self.other) << 32 | u64::from(self.number);
        [kind, who, process, ends, self.file, self.offset, self.bytes, self.in_region, self.home]
    }

    fn of(words: [u64; WORDS]) -> Option<Claim> {
        let [kind, who, process, ends, file, offset, bytes, in_region, home] = words;
        let usage = match kind & !SIGNALS {
            1 => Use::Put(process as u32),
            2 => Use::Source,
            3 => Use::Sink(process as u32),
            _ => return None,
        };
        let who = Who { rank: (who >> 32) as u32, proxy: (who >> 16) as u16, rail: who as u16 };
        let (signals, pid) = (kind & SIGNALS != 0, (process >> 32) as u32);
        let (other, number) = ((ends >> 32) as u32, ends as u32);
        Some(Claim { usage, signals, who, other, number, home, pid, file, offset, bytes, in_region })
    }

    /// Returns whether the claim contains any of these bytes.
    fn meets(&self, file: u64, offset: u64, bytes: u64) -> bool {
        self.file == file
            && self.offset < offset.saturating_add(bytes)
            && offset < self.offset.saturating_add(self.bytes)
    }

    /// Returns whether both claims write the same bytes to the same place.
    fn is_like(&self, other: &Claim) -> bool {
        let place = |claim: &Claim| (claim.file, claim.offset, claim.bytes);
        place(self) == place(other) && self.usage != Use::Source && self.usage == other.usage
    }

    /// Returns whether both claims may be in flight concurrently: they share no byte, only read, or write the same
    /// bytes to the same place.
    fn bears(&self, other: &Claim) -> bool {
        !self.meets(other.file, other.offset, other.bytes)
            || (self.usage, other.usage) == (Use::Source, Use::Source)
            || self.is_like(other)
    }
}

/// A table of claims, of this process or of a peer.
#[derive(Debug)]
pub(super) struct Claims {
    file: MemoryFile,
    /// Traffic of the ranks of this process, if the table belongs to this process.
    pub traffic: Traffic,
}

/// The table of this process, which exists while one of its rails is open.
static OURS: Mutex<Weak<Claims>> = Mutex::new(Weak::new());

impl Claims {
    /// Returns the claims on this process's memory.
    pub fn of_this_process() -> io::Result<Arc<Claims>> {
        let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(claims) = ours.upgrade() {
            return Ok(claims);
        }
        let bytes = NonZeroUsize::new(size_of::<Table>()).unwrap_or(NonZeroUsize::MIN);
        let claims = Arc::new(Claims::over(MemoryFile::create(bytes)?));
        *ours = Arc::downgrade(&claims);
        Ok(claims)
    }

    fn over(file: MemoryFile) -> Claims {
        Claims { file, traffic: Traffic::default() }
    }

    /// Opens the claims on a peer's memory.
    pub fn open(name: FileName) -> io::Result<Claims> {
        let file = MemoryFile::open(name)?;
        if file.bytes() < size_of::<Table>() as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a table of claims"));
        }
        Ok(Claims::over(file))
    }

    /// Returns the name of the table's file, for peers.
    pub fn name(&self) -> FileName {
        self.file.name()
    }

    fn table(&self) -> &Table {
        // SAFETY: the file is at least as long as `Table` (created so, or checked when opened) and starts at a page. It
        // is initially zero, which is valid for all fields, and all fields are atomic.
        unsafe { &*(self.file.address() as *const Table) }
    }

    /// Runs a function while holding the lock. Takes the lock over from a holder whose process has exited.
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
                let text =
                    format!("process {holder} has locked the claims of process {} for 10 s", self.file.name().pid);
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
        }
        let done = run(table);
        table.lock.store(0, Ordering::Release);
        Ok(done)
    }

    /// Claims bytes, unless the claim conflicts with one of a live process.
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
                    table.log(entry);
                    free = Some(number as u32);
                }
                beside |= claim.is_like(&other);
            }
            let Some(number) = free else { return Claimed::Full };
            store(&table.entries[number as usize], claim.words(), [table.tick(), u64::MAX]);
            table.end.store(end.max(number + 1), Ordering::Relaxed);
            Claimed::Taken { number, beside }
        })
    }

    /// Releases a claim.
    pub fn release(&self, number: u32) -> io::Result<()> {
        self.alone(|table| {
            if let Some(entry) = table.entries.get(number as usize) {
                table.log(entry);
            }
            let mut end = table.end.load(Ordering::Relaxed).min(ENTRIES as u32);
            while end > 0 && load(&table.entries[end as usize - 1]).is_none() {
                end -= 1;
            }
            table.end.store(end, Ordering::Relaxed);
        })
    }

    /// Counts a post or a signal of this process. Returns its place in the order of the table's events.
    pub fn tick(&self) -> u64 {
        self.table().tick()
    }

    /// Returns the claims, in flight or logged, that write to any of these bytes.
    pub fn writers(&self, (file, offset, bytes): (u64, u64, u64)) -> io::Result<Vec<Logged>> {
        self.alone(|table| {
            let end = table.end.load(Ordering::Relaxed).min(ENTRIES as u32);
            let all = table.entries[..end as usize].iter().chain(&table.log).filter_map(logged);
            all.filter(|one| one.claim.usage != Use::Source && one.claim.meets(file, offset, bytes)).collect()
        })
    }
}

impl Table {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    /// Moves an entry to the log. The caller must hold the lock.
    fn log(&self, entry: &Entry) {
        if let Some(claim) = load(entry) {
            let number = self.logged.fetch_add(1, Ordering::Relaxed);
            let begun = entry[WORDS].load(Ordering::Relaxed);
            store(&self.log[number as usize % LOGGED], claim.words(), [begun, self.tick()]);
        }
        store(entry, [0; WORDS], [0; 2]);
    }
}

fn logged(entry: &Entry) -> Option<Logged> {
    let claim = load(entry)?;
    let [begun, ended] = [WORDS, WORDS + 1].map(|at| entry[at].load(Ordering::Relaxed));
    Some(Logged { claim, begun, ended })
}

fn load(entry: &Entry) -> Option<Claim> {
    // Fast path: most entries are free.
    if entry[0].load(Ordering::Relaxed) == 0 {
        return None;
    }
    Claim::of(std::array::from_fn(|at| entry[at].load(Ordering::Relaxed)))
}

fn store(entry: &Entry, words: [u64; WORDS], times: [u64; 2]) {
    entry.iter().zip(words.into_iter().chain(times)).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]
    use super::*;

    fn table() -> Claims {
        Claims::over(MemoryFile::create(NonZeroUsize::new(size_of::<Table>()).unwrap()).unwrap())
    }

    fn claim(usage: Use, offset: u64, bytes: u64) -> Claim {
        let who = Who { rank: 70_000, proxy: 3, rail: 9 };
        let (pid, other, number) = (std::process::id(), u32::MAX, u32::MAX - 1);
        Claim { usage, signals: true, who, other, number, home: 3, pid, file: 5, offset, bytes, in_region: offset + 7 }
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
        // The same bytes to the same place, adjacent ranges, and another file are permitted.
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
    fn released_claims_are_found_until_log_is_full() {
        let claims = table();
        let first = claim(Use::Put(1), 100, 50);
        let Claimed::Taken { number, .. } = claims.claim(&first).unwrap() else { panic!("a claim meets itself") };
        let found = |claims: &Claims| claims.writers((5, 149, 1)).unwrap();
        assert_eq!(found(&claims), [Logged { claim: first, begun: 0, ended: u64::MAX }]);
        assert_eq!(claims.tick(), 1);
        claims.release(number).unwrap();
        assert_eq!(found(&claims), [Logged { claim: first, begun: 0, ended: 2 }]);
        assert_eq!(claims.writers((5, 150, 1)).unwrap().len() + claims.writers((6, 149, 1)).unwrap().len(), 0);
        for round in 0..LOGGED {
            // A get only reads its source, so `writers` does not return it.
            claims.claim(&claim(Use::Source, 100, 50)).unwrap();
            claims.release(0).unwrap();
            if round + 2 >= LOGGED {
                assert_eq!(found(&claims).len(), LOGGED - round - 1);
            }
        }
    }

    #[test]
    fn concurrent_gets_are_allowed_and_full_table_reported() {
        let claims = table();
        for number in 0..ENTRIES as u32 {
            assert_eq!(claims.claim(&claim(Use::Source, 0, 8)).unwrap(), Claimed::Taken { number, beside: false });
        }
        assert_eq!(claims.claim(&claim(Use::Source, 0, 8)).unwrap(), Claimed::Full);
        claims.release(17).unwrap();
        assert_eq!(claims.claim(&claim(Use::Source, 0, 8)).unwrap(), Claimed::Taken { number: 17, beside: false });
    }

    #[test]
    fn exited_process_holds_no_claims_or_lock() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let claims = table();
        claims.claim(&Claim { pid, ..claim(Use::Put(1), 0, 8) }).unwrap();
        claims.table().lock.store(pid, Ordering::Relaxed);
        assert_eq!(claims.claim(&claim(Use::Put(2), 0, 8)).unwrap(), Claimed::Taken { number: 0, beside: false });
    }
}
