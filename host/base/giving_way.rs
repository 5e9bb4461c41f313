//! How a thread that polls shares its core with those that want it.

use std::time::Duration;

/// So many turns in vain, one behind the other, and nobody is about to answer: whoever is ready has had the core by then.
const AWAKE: u32 = 512;
/// Short beside what a kernel or a peer takes that has let 512 turns pass; the system makes some 100 us of it.
const REST: Duration = Duration::from_micros(50);

/// Gives way at each turn in vain, and sleeps a little once there have been many: two ranks that waited for a deadline took both cores of a
/// machine with `sched_yield` alone (7 million calls in a test of 16 s). For machines with fewer cores than busy threads; elsewhere
/// whoever polls keeps its core.
#[derive(Debug, Default)]
pub struct GivingWay(u32);

impl GivingWay {
    /// Something has happened: the next turn in vain is the first.
    #[inline]
    pub fn moved(&mut self) {
        self.0 = 0;
    }

    /// A turn in vain.
    pub fn turn(&mut self) {
        if self.0 < AWAKE {
            self.0 += 1;
            std::thread::yield_now();
        } else {
            std::thread::sleep(REST);
        }
    }
}
