//! How a thread that polls shares its core with those that want it.

use std::time::Duration;

/// It has given its core away so often in vain, one time behind the other, and nobody is about to answer: whoever is ready has had the core by
/// then.
const AWAKE: u32 = 512;
/// Short beside what a kernel or a peer takes that has let 512 turns pass; the system makes some 100 us of it.
const REST: Duration = Duration::from_micros(50);

/// Gives way once in so many polls in vain, and sleeps a little behind each once it has given way in vain for long: two ranks that waited for a
/// deadline took both cores of a machine with `sched_yield` alone (7 million calls in a test of 16 s). For machines with fewer cores than
/// busy threads; elsewhere whoever polls keeps its core.
#[derive(Debug)]
pub struct GivingWay {
    every: u32,
    vain: u32,
}

impl GivingWay {
    /// Gives way behind this many polls in vain.
    pub const fn every(polls: u32) -> GivingWay {
        GivingWay { every: polls, vain: 0 }
    }

    /// Something has happened: the next poll in vain is the first.
    #[inline]
    pub fn moved(&mut self) {
        self.vain = 0;
    }

    /// A poll in vain; whether it has given way.
    #[inline]
    pub fn in_vain(&mut self) -> bool {
        if self.vain >= AWAKE * self.every {
            std::thread::sleep(REST);
            return true;
        }
        self.vain += 1;
        let gives = self.vain.is_multiple_of(self.every);
        if gives {
            std::thread::yield_now();
        }
        gives
    }
}
