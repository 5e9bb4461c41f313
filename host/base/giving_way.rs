//! How a thread that polls shares its core with those that want it.

use std::time::Duration;

/// It has given its core away so often in vain, one time behind the other, and nobody is about to answer: whoever is ready has had the core by
/// then.
const AWAKE: u32 = 512;
/// Short beside what a kernel or a peer takes that has let 512 turns pass; the system makes some 100 us of it.
const REST: Duration = Duration::from_micros(50);
/// Rests behind which they grow by a [`REST`], where they may: some 150 of them, and 90 ms, stand before the first one of a millisecond.
const RESTS: u32 = 8;

/// Gives way once in so many polls in vain, and sleeps a little in place of it once that has been in vain for long: two ranks that waited for a
/// deadline took both cores of a machine with `sched_yield` alone (7 million calls in a test of 16 s). For machines with fewer cores than
/// busy threads; elsewhere whoever polls keeps its core.
///
/// Not behind each poll: a rank that is only written to polls in vain as well, and over tcp it is its polls that answer. (Puts of 64 KiB over one
/// rail, two ranks on two cores: 142 to 152 us by a sleep behind each poll, 31 to 55 so.)
#[derive(Debug)]
pub struct GivingWay {
    every: u32,
    vain: u32,
    longest: Duration,
}

impl GivingWay {
    /// Gives way behind this many polls in vain.
    pub const fn every(polls: u32) -> GivingWay {
        GivingWay { every: polls, vain: 0, longest: REST }
    }

    /// Rests that grow until each is so long: for whoever only looks. Not where a poll may be what answers a peer.
    #[must_use]
    pub const fn resting_up_to(self, longest: Duration) -> GivingWay {
        GivingWay { longest, ..self }
    }

    /// Something has happened: the next poll in vain is the first.
    #[inline]
    pub fn moved(&mut self) {
        self.vain = 0;
    }

    /// A poll in vain; whether it has given way.
    #[inline]
    pub fn in_vain(&mut self) -> bool {
        self.vain = self.vain.wrapping_add(1);
        if !self.vain.is_multiple_of(self.every) {
            return false;
        }
        let awake = AWAKE * self.every;
        if self.vain <= awake {
            std::thread::yield_now();
        } else {
            let rests = (self.vain - awake) / self.every;
            std::thread::sleep((REST * (1 + rests / RESTS)).min(self.longest));
        }
        true
    }
}
