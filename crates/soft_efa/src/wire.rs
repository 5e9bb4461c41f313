//! A card's wire: what leaves the card takes its time of it, one request after another, whichever process has asked for it.

use crate::address::{Gid, card_name};
use crate::locked;
use crate::machine::Machine;
use crate::share::Shared;
use card_model::{Nic, Picoseconds};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Length of what the processes have in common.
const BYTES: usize = 64;

/// The system's monotonic clock, which all processes share.
pub fn now() -> Picoseconds {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    (time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64) * 1000
}

/// The wire of one card of this machine.
#[derive(Debug)]
pub struct Wire {
    /// In picoseconds of the system's monotonic clock, when it is free: one for all processes.
    free: Shared,
    /// The card's arithmetic; none where cards have no times.
    nic: Option<Mutex<Nic>>,
}

/// When a request is where, by the system's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Its bytes are in memory.
    pub arrives: Picoseconds,
    /// Who asked for it knows.
    pub completes: Picoseconds,
}

impl Wire {
    /// That of a card of this process.
    pub fn common(machine: &Machine, gid: &Gid) -> io::Result<Wire> {
        Ok(Wire::over(Shared::common(&card_name(gid), BYTES)?, machine, gid))
    }

    /// That of a peer's card.
    pub fn open(machine: &Machine, gid: &Gid) -> io::Result<Wire> {
        let free = Shared::open(&card_name(gid))?;
        if free.bytes() < BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Wire::over(free, machine, gid))
    }

    fn over(free: Shared, machine: &Machine, gid: &Gid) -> Wire {
        let card = usize::from(gid[15]);
        let nic =
            machine.figures(card).map(|figures| Mutex::new(Nic::new(figures, machine.spec.seed << 16 | card as u64)));
        Wire { free, nic }
    }

    /// Whether requests take a time of their own.
    pub fn is_timed(&self) -> bool {
        self.nic.is_some()
    }

    /// When bytes that leave by this wire now arrive, and when their sender has the acknowledgement.
    pub fn sends(&self, bytes: u64) -> Option<Times> {
        let mut nic = locked(self.nic.as_ref()?);
        Some(self.takes(&mut nic, now(), bytes))
    }

    /// When bytes arrive that somebody asks for now and that leave by this wire. He has them then.
    pub fn answers(&self, bytes: u64) -> Option<Times> {
        let mut nic = locked(self.nic.as_ref()?);
        // The request comes here before the bytes go.
        let asked = now() + nic.latency();
        let times = self.takes(&mut nic, asked, bytes);
        Some(Times { completes: times.arrives, ..times })
    }

    fn takes(&self, nic: &mut Nic, from: Picoseconds, bytes: u64) -> Times {
        // SAFETY: 64 bytes that began as zeros; everybody uses them so.
        let wire = unsafe { &*self.free.base().cast::<AtomicU64>() };
        loop {
            let free = wire.load(Ordering::Relaxed);
            nic.set_free(free);
            let course = nic.post(from, bytes);
            // Others may have taken the same stretch meanwhile; no data is behind this word.
            if wire.compare_exchange(free, nic.free(), Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return Times { arrives: course.delivered, completes: course.completed };
            }
        }
    }
}
