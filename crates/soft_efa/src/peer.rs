//! Other queue pairs, by card and number: found by name, and kept while they are there.

use crate::address::{Gid, handles_name, queue_name, table_name};
use crate::handles::Handles;
use crate::machine::Machine;
use crate::memory::Table;
use crate::queue::{Page, READY};
use crate::wire::Wire;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A queue pair of a peer.
#[derive(Debug)]
pub struct Peer {
    /// What peers see of it.
    pub page: Page,
    /// Its process's registrations.
    pub table: Table,
    /// Its card's: what is read of its memory leaves by it.
    pub wire: Wire,
    handles: Handles,
    /// Until then it counts as alive, by the system's coarse clock in milliseconds.
    alive: AtomicU64,
    /// What was last found out about our own card: the version of its handles, twice, and 1 where it has one of ours.
    known: AtomicU64,
}

impl Peer {
    /// Whether its process is there: asked of the system at most once in ten milliseconds, where nothing that is copied tells.
    pub fn is_alive(&self, ask: impl FnOnce() -> bool) -> bool {
        let now = coarse();
        if now < self.alive.load(Ordering::Relaxed) {
            return true;
        }
        let is = ask();
        self.alive.store(if is { now + 10 } else { 0 }, Ordering::Relaxed);
        is
    }

    /// Whether it has an address handle of this card, always the same one.
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

/// Milliseconds of a clock that costs nothing to read.
fn coarse() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Those that were met.
pub struct Peers {
    machine: &'static Machine,
    known: Mutex<HashMap<(Gid, u32), Arc<Peer>>>,
}

impl Peers {
    /// Nobody yet.
    pub fn new(machine: &'static Machine) -> Peers {
        Peers { machine, known: Mutex::default() }
    }

    /// The queue pair of this number at this card; `None` where there is none.
    pub fn find(&self, gid: &Gid, number: u32) -> Option<Arc<Peer>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = known.get(&(*gid, number)) {
            if peer.page.state().load(Ordering::Acquire) == READY {
                return Some(peer.clone());
            }
            // Another one may have its number by now.
            known.remove(&(*gid, number));
        }
        let page = Page::open(&queue_name(gid, number)).ok()?;
        if page.state().load(Ordering::Acquire) != READY {
            return None;
        }
        let table = Table::open(&table_name(gid, page.pid(), page.context())).ok()?;
        let handles = Handles::open(&handles_name(gid, page.pid(), page.context())).ok()?;
        let wire = Wire::open(self.machine, gid).ok()?;
        let peer =
            Arc::new(Peer { page, table, wire, handles, known: AtomicU64::new(u64::MAX), alive: AtomicU64::new(0) });
        known.insert((*gid, number), peer.clone());
        Some(peer)
    }

    /// Its process has gone.
    pub fn forget(&self, gid: &Gid, number: u32) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&(*gid, number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coarse_clock_is_the_monotonic_one() {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let before = coarse();
        // SAFETY: the place is ours.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
        // The coarse one stands still between ticks, so it is behind and never ahead.
        assert!(before > 0 && before <= time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000);
    }
}
