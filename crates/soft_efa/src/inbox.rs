//! The inbox in a queue pair's page. Peers fill its slots in order, and the owner empties them in the same order.
//!
//! A slot goes from *empty* to *claimed* to *filled*, and with the owner's read to *empty* of the next lap. The claim
//! is one exchange, which names the process that fills the slot.
//!
//! A process that is killed between claim and fill therefore blocks no other. Peers advance the count of claimed slots,
//! and the owner skips the slot once its process is dead. That process's arrival is lost, and a line on stderr names
//! the process.

use crate::alive::{OWNER_BITS, Owner};
use crate::queue::{PairPage, SENDERS};
use std::cmp::Ordering as Order;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Interval at which the owner checks whether the process of a claimed slot is alive.
const ASK: Duration = Duration::from_millis(10);
/// Bits of a lap number, which wraps around: compared laps are always close to each other.
const LAP_BITS: u32 = 64 - OWNER_BITS - 2;

/// A slot of the inbox: its state and its content.
#[repr(C, align(64))]
pub(crate) struct InboxSlot {
    state: AtomicU64,
    words: [AtomicU64; 6],
}

/// Stage of a slot in a lap; later stages are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u64)]
enum Stage {
    Empty = 0,
    Claimed = 1,
    Filled = 2,
}

/// Returns the state word of a slot: lap, stage, and the process that has claimed it.
fn state(lap: u64, stage: Stage, owner: u64) -> u64 {
    lap << (OWNER_BITS + 2) | (stage as u64) << OWNER_BITS | owner
}

/// Compares the state word of a slot with a stage of a lap.
fn compare(word: u64, lap: u64, stage: Stage) -> Order {
    // Signed difference of the laps.
    let ahead = ((word >> (OWNER_BITS + 2)).wrapping_sub(lap) << (64 - LAP_BITS)) as i64;
    ahead.cmp(&0).then((word >> OWNER_BITS & 3).cmp(&(stage as u64)))
}

/// Result of a peer's request at its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// ID of the receive that was taken. `None` for an immediate of a write that takes no receive.
    pub wr_id: Option<u64>,
    /// Whether the arrival is the immediate of a write instead of a message.
    pub is_write: bool,
    /// EFA status code.
    pub status: u32,
    /// Number of bytes that arrived.
    pub bytes: u32,
    /// Immediate data, if any.
    pub immediate: Option<u32>,
    /// Number of the sender's queue pair.
    pub source: u32,
    /// Address of the sender's device.
    pub gid: [u8; 16],
}

/// Progress of the owner's reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    read: u64,
    /// Number of the claimed slot that is read next, and the time at which its process was last checked.
    asked: Option<(u64, Instant)>,
}

impl PairPage {
    /// Returns the lap of slot `number`.
    fn lap(&self, number: u64) -> u64 {
        (number / u64::from(self.header().entries)) & ((1 << LAP_BITS) - 1)
    }

    /// Puts an arrival into the inbox. Returns whether there was space. An arrival that has taken a receive always has
    /// space: the others leave enough, so that unread immediates cannot cause the loss of a message.
    pub fn put(&self, arrival: &Arrival) -> bool {
        let Some((place, claimed)) = self.claim(arrival.wr_id.is_some(), Owner::this()) else { return false };
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
        // Uses release order, which pairs with the acquire in `get`, so that the owner sees the words and the bytes
        // copied before.
        let filled = claimed + (1 << OWNER_BITS);
        // The exchange fails only if the owner considered this process dead and skipped the slot.
        let _ = place.state.compare_exchange(claimed, filled, Ordering::Release, Ordering::Relaxed);
        true
    }

    /// Claims the next slot for `owner`. Returns the slot and its state word, or `None` if there is no space.
    fn claim(&self, is_receive: bool, owner: Owner) -> Option<(&InboxSlot, u64)> {
        let header = self.header();
        let filled = &header.filled.0;
        let mut number = filled.load(Ordering::Relaxed);
        loop {
            if !is_receive {
                // The inbox is emptied in order: if this slot is empty, so are those before it.
                let last = number + u64::from(header.receives) + SENDERS;
                let word = self.place(last).state.load(Ordering::Acquire);
                if compare(word, self.lap(last), Stage::Empty) == Order::Less {
                    return None;
                }
            }
            let (place, lap) = (self.place(number), self.lap(number));
            let word = place.state.load(Ordering::Acquire);
            let next = |before: u64| filled.compare_exchange(before, before + 1, Ordering::Relaxed, Ordering::Relaxed);
            match compare(word, lap, Stage::Empty) {
                Order::Less => return None,
                Order::Equal => {
                    let claimed = state(lap, Stage::Claimed, owner.bits());
                    if place.state.compare_exchange(word, claimed, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                        // Another process may have advanced the count already.
                        let _ = next(number);
                        return Some((place, claimed));
                    }
                }
                // Claimed already: the claiming process may have been killed before it advanced the count.
                Order::Greater => number = next(number).map_or_else(|now| now, |_| number + 1),
            }
        }
    }

    /// Records that an unsolicited immediate found no space: the completion queue is overrun.
    pub fn lose(&self) {
        self.header().lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of immediates lost for lack of space since the last call. Called by the owner.
    pub fn take_lost(&self) -> u64 {
        let lost = &self.header().lost;
        if lost.load(Ordering::Relaxed) == 0 { 0 } else { lost.swap(0, Ordering::Relaxed) }
    }

    /// Returns the number of arrivals in the inbox plus the number lost. Called by the owner.
    pub fn waiting(&self, reading: &Reading) -> u64 {
        let header = self.header();
        header.filled.0.load(Ordering::Relaxed).saturating_sub(reading.read) + header.lost.load(Ordering::Relaxed)
    }

    /// Removes and returns the next arrival. Only one thread of the owner may call it at a time.
    pub fn get(&self, reading: &mut Reading) -> Option<Arrival> {
        let (place, words) = loop {
            let (place, lap) = (self.place(reading.read), self.lap(reading.read));
            let word = place.state.load(Ordering::Acquire);
            let emptied = state(lap + 1, Stage::Empty, 0);
            if compare(word, lap, Stage::Filled) == Order::Equal {
                let words: [u64; 6] = std::array::from_fn(|word| place.words[word].load(Ordering::Relaxed));
                break ((place, emptied), words);
            }
            if compare(word, lap, Stage::Claimed) != Order::Equal || !reading.is_abandoned(Owner::from_bits(word)) {
                return None;
            }
            place.state.store(emptied, Ordering::Release);
            reading.read += 1;
        };
        place.0.state.store(place.1, Ordering::Release);
        reading.read += 1;
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

impl Reading {
    /// Returns whether the process that has claimed the next slot is dead. Queries the system at most once per [`ASK`].
    fn is_abandoned(&mut self, owner: Owner) -> bool {
        match self.asked {
            Some((number, asked)) if number == self.read && asked.elapsed() < ASK => return false,
            Some((number, _)) if number == self.read => {}
            // A live process usually fills its slot before the next check.
            _ => {
                self.asked = Some((self.read, Instant::now()));
                return false;
            }
        }
        self.asked = Some((self.read, Instant::now()));
        if owner.is_alive() {
            return false;
        }
        let pid = owner.pid();
        eprintln!("soft_efa: process {pid} died while it delivered a completion here: the completion is lost");
        true
    }
}

#[cfg(test)]
pub mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use super::*;

    /// Claims a slot in a child process that is killed before it fills the slot, and not yet reaped. Returns its
    /// process ID.
    pub fn killed_in_put(page: &PairPage) -> i32 {
        // SAFETY: the child only makes system calls, reads /proc and uses atomics until it is killed.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: the function takes no arguments.
                let pid = unsafe { libc::getpid() };
                let _ = page.claim(false, Owner::of(pid));
                // SAFETY: kills this process itself.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                unreachable!("killed");
            }
            child => {
                while Owner::of(child).is_alive() {
                    std::thread::yield_now();
                }
                child
            }
        }
    }

    /// Waits for an arrival, at most 20 s.
    fn get_soon(page: &PairPage, reading: &mut Reading) -> Arrival {
        let started = Instant::now();
        loop {
            if let Some(arrival) = page.get(reading) {
                return arrival;
            }
            assert!(started.elapsed() < Duration::from_secs(20), "the place of a dead process blocks the box");
            std::thread::yield_now();
        }
    }

    #[test]
    fn process_killed_in_put_blocks_no_other() {
        let page = PairPage::new(8, 64, 0, 0, false).unwrap();
        let mut reading = Reading::default();
        let mut get = || get_soon(&page, &mut reading).bytes;
        let put = |bytes| assert!(page.put(&Arrival { bytes, ..Arrival::default() }));
        for round in 0..3 {
            put(3 * round);
            let child = killed_in_put(&page);
            put(3 * round + 1);
            put(3 * round + 2);
            assert_eq!([get(), get(), get()], [3 * round, 3 * round + 1, 3 * round + 2]);
            // SAFETY: the process is a child of this one, and the status may be null.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    }

    #[test]
    fn count_that_killed_process_left_is_moved_on() {
        let page = PairPage::new(8, 64, 0, 0, false).unwrap();
        // Claims the slot without advancing the count.
        let claimed = state(0, Stage::Claimed, Owner::of(i32::MAX).bits());
        page.place(0).state.store(claimed, Ordering::Relaxed);
        assert!(page.put(&Arrival { bytes: 5, ..Arrival::default() }));
        let mut reading = Reading::default();
        let arrival = get_soon(&page, &mut reading);
        assert_eq!((arrival.bytes, page.waiting(&reading)), (5, 0));
    }

    #[test]
    fn arrivals_of_many_come_out_whole_and_once() {
        let page = PairPage::new(8, 64, 0, 0, false).unwrap();
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
            let (mut read, mut left) = (Reading::default(), each * senders as u64);
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
