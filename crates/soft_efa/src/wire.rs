//! Wire of a device. Requests of all processes that leave the device occupy the wire one after another.

use crate::address::{Gid, card_name};
use crate::locked;
use crate::machine::SoftMachine;
use crate::share::Shared;
use card_model::{Nic, Picoseconds};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Size in bytes of the shared memory.
const BYTES: usize = 64;

/// Returns the system's monotonic time, which all processes share.
pub fn now() -> Picoseconds {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the destination is a local variable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    (time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64) * 1000
}

/// The wire of one device of this machine.
#[derive(Debug)]
pub struct DeviceWire {
    /// Time at which the wire is free, in picoseconds of the system's monotonic clock; shared by all processes.
    free: Shared,
    /// Timing model of the device; `None` if devices are not timed.
    nic: Option<Mutex<Nic>>,
}

/// Times of a request, by the system's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct RequestTimes {
    /// Time at which the request's bytes are in memory.
    pub arrives: Picoseconds,
    /// Time at which the requester has the acknowledgement.
    pub completes: Picoseconds,
}

impl DeviceWire {
    /// Opens or creates the wire of a device of this process.
    pub fn common(machine: &SoftMachine, gid: &Gid) -> io::Result<DeviceWire> {
        Ok(DeviceWire::over(Shared::common(&card_name(gid), BYTES)?, machine, gid))
    }

    /// Opens the wire of a peer's device.
    pub fn open(machine: &SoftMachine, gid: &Gid) -> io::Result<DeviceWire> {
        Ok(DeviceWire::over(Shared::open_common(&card_name(gid), BYTES)?, machine, gid))
    }

    fn over(free: Shared, machine: &SoftMachine, gid: &Gid) -> DeviceWire {
        let card = usize::from(gid[15]);
        let nic =
            machine.figures(card).map(|figures| Mutex::new(Nic::new(figures, machine.spec.seed << 16 | card as u64)));
        DeviceWire { free, nic }
    }

    /// Returns whether requests are timed.
    pub fn is_timed(&self) -> bool {
        self.nic.is_some()
    }

    /// Returns when `bytes` that leave over this wire now arrive, and when their sender has the acknowledgement.
    pub fn sends(&self, bytes: u64) -> Option<RequestTimes> {
        let mut nic = locked(self.nic.as_ref()?);
        Some(self.takes(&mut nic, now(), bytes))
    }

    /// Returns when `bytes` that are requested now, and leave over this wire, arrive at the requester. They complete at
    /// the same time.
    pub fn answers(&self, bytes: u64) -> Option<RequestTimes> {
        let mut nic = locked(self.nic.as_ref()?);
        // The request arrives at this device before its bytes leave.
        let asked = now() + nic.latency();
        let times = self.takes(&mut nic, asked, bytes);
        Some(RequestTimes { completes: times.arrives, ..times })
    }

    fn takes(&self, nic: &mut Nic, from: Picoseconds, bytes: u64) -> RequestTimes {
        // SAFETY: the memory has 64 bytes, initially zero, and all processes access it as this atomic.
        let wire = unsafe { &*self.free.base().cast::<AtomicU64>() };
        loop {
            let free = wire.load(Ordering::Relaxed);
            nic.set_free(free);
            let course = nic.post(from, bytes);
            // Fails if another process has reserved the wire in the meantime. The order is relaxed, because the word
            // publishes no other data.
            if wire.compare_exchange(free, nic.free(), Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return RequestTimes { arrives: course.delivered, completes: course.completed };
            }
        }
    }
}
