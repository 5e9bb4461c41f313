//! Queue pairs of peers, by device and number: found by name, and cached while they exist.

use crate::address::{Gid, handles_name, queue_name, table_name};
use crate::handles::Handles;
use crate::machine::SoftMachine;
use crate::memory::KeyTable;
use crate::queue::{PairPage, READY};
use crate::wire::DeviceWire;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A queue pair of a peer.
#[derive(Debug)]
pub struct PeerQueuePair {
    /// The peer's page in shared memory.
    pub page: PairPage,
    /// Registrations of the peer's process.
    pub table: KeyTable,
    /// Wire of the peer's device; bytes read from its memory leave over it.
    pub wire: DeviceWire,
    handles: Handles,
    /// Time until which the process counts as alive, in milliseconds of the system's coarse clock.
    alive: AtomicU64,
    /// Cached result of `knows`: twice the version of the peer's handles, plus 1 if the peer has a handle of this
    /// device.
    known: AtomicU64,
}

impl PeerQueuePair {
    /// Returns whether the peer's process is alive. Calls `ask` at most once per 10 ms. Used for requests that copy no
    /// bytes, because a copy would detect an exit.
    pub fn is_alive(&self, ask: impl FnOnce() -> bool) -> bool {
        let now = coarse();
        if now < self.alive.load(Ordering::Relaxed) {
            return true;
        }
        let is = ask();
        self.alive.store(if is { now + 10 } else { 0 }, Ordering::Relaxed);
        is
    }

    /// Returns whether the peer has an address handle of device `gid`, which must be the same on each call.
    pub fn knows(&self, gid: &Gid) -> bool {
        let version = self.handles.version();
        let known = self.known.load(Ordering::Relaxed);
        if known >> 1 == version {
            return known & 1 != 0;
        }
        let found = self.handles.find(gid).is_some();
        self.known.store(version << 1 | u64::from(found), Ordering::Relaxed);
        found
    }
}

/// Returns the time in milliseconds by a clock that is cheap to read.
fn coarse() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the destination is a local variable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Cache of the peers' queue pairs.
pub struct Peers {
    machine: &'static SoftMachine,
    known: Mutex<HashMap<(Gid, u32), Arc<PeerQueuePair>>>,
}

impl Peers {
    /// Creates an empty cache.
    pub fn new(machine: &'static SoftMachine) -> Peers {
        Peers { machine, known: Mutex::default() }
    }

    /// Returns queue pair `number` of device `gid`, or `None` if it does not exist.
    pub fn find(&self, gid: &Gid, number: u32) -> Option<Arc<PeerQueuePair>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = known.get(&(*gid, number)) {
            if peer.page.state().load(Ordering::Acquire) == READY {
                return Some(peer.clone());
            }
            // A new queue pair may have the number by now.
            known.remove(&(*gid, number));
        }
        let page = PairPage::open(&queue_name(gid, number)).ok()?;
        if page.state().load(Ordering::Acquire) != READY {
            return None;
        }
        let table = KeyTable::open(&table_name(gid, page.pid(), page.context())).ok()?;
        let handles = Handles::open(&handles_name(gid, page.pid(), page.context())).ok()?;
        let wire = DeviceWire::open(self.machine, gid).ok()?;
        let peer = Arc::new(PeerQueuePair {
            page,
            table,
            wire,
            handles,
            known: AtomicU64::new(u64::MAX),
            alive: AtomicU64::new(0),
        });
        known.insert((*gid, number), peer.clone());
        Some(peer)
    }

    /// Removes a queue pair whose process has exited.
    pub fn forget(&self, gid: &Gid, number: u32) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&(*gid, number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coarse_clock_follows_monotonic_clock() {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let before = coarse();
        // SAFETY: the destination is a local variable.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
        // The coarse clock stops between ticks, so it never runs ahead.
        assert!(before > 0 && before <= time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000);
    }
}
