//! The life of a put on the device: time stamps of sampled puts. Without a trace nothing of it is in the code.

use crate::ring::Observe;
use cuda_std::thread;

/// Stamps of one put: nanoseconds of the device's clock ([`thread::global_timer_ns`]); 0: has not happened.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutStamps {
    /// Its ticket.
    pub ticket: u64,
    /// The producer turns to this put: its earlier ones are behind it.
    pub turned: u64,
    /// Before the payload is written: the slot is free, the block together; with no payload to write, when it is ready.
    pub begun: u64,
    /// The payload is written by all threads of the producer.
    pub ready: u64,
    /// The ticket is held, its slot free, the payload fenced.
    pub ordered: u64,
    /// The command's stores have been issued.
    pub stored: u64,
    /// A quiet that covers it has returned.
    pub returned: u64,
    /// While the producer has not been quiet: the entry of its sampled put before, plus one; 0: there is none.
    pub before: u64,
}

// SAFETY: eight u64.
unsafe impl cuda_std::Plain for PutStamps {}

/// What the put kernel tells a trace. The product passes `()`.
pub trait Trace {
    /// Sees the push.
    type Push: Observe;
    /// The producer turns to its next put.
    fn turns(&mut self) {}
    /// The payload of the next put is going to be written.
    fn begins(&mut self) {}
    /// The payload is ready; it was written just now, or there was nothing to write.
    fn push(&mut self, filled: bool) -> Self::Push;
    /// The put has this ticket.
    fn pushed(&mut self, _ticket: u64, _push: &Self::Push) {}
    /// All puts of the producer are done.
    fn returned(&mut self) {}
}

impl Trace for () {
    type Push = ();
    fn push(&mut self, _filled: bool) {}
}

/// Stamps of one push.
#[derive(Clone, Copy, Debug, Default)]
pub struct PushStamps {
    ready: u64,
    ordered: u64,
    stored: u64,
}

impl Observe for PushStamps {
    #[inline(always)]
    fn ordered(&mut self) {
        self.ordered = thread::global_timer_ns();
    }

    #[inline(always)]
    fn stored(&mut self) {
        self.stored = thread::global_timer_ns();
    }
}

/// A producer's trace.
#[derive(Debug)]
pub struct Tracer {
    stamps: *mut PutStamps,
    every: u64,
    entries: u64,
    turned: u64,
    begun: u64,
    /// The newest entry without a quiet, plus one.
    newest: u64,
}

impl Tracer {
    /// Stamps go to the entries from there on, those of the producer's ring.
    #[inline(always)]
    pub fn new(stamps: *mut PutStamps, every: u64, entries: u64) -> Tracer {
        Tracer { stamps, every, entries, turned: 0, begun: 0, newest: 0 }
    }
}

impl Trace for Tracer {
    type Push = PushStamps;

    #[inline(always)]
    fn turns(&mut self) {
        self.turned = thread::global_timer_ns();
    }

    #[inline(always)]
    fn begins(&mut self) {
        self.begun = thread::global_timer_ns();
    }

    #[inline(always)]
    fn push(&mut self, filled: bool) -> PushStamps {
        let ready = thread::global_timer_ns();
        if !filled {
            self.begun = ready;
        }
        PushStamps { ready, ordered: 0, stored: 0 }
    }

    #[inline(always)]
    fn pushed(&mut self, ticket: u64, push: &PushStamps) {
        if !ticket.is_multiple_of(self.every) {
            return;
        }
        let entry = ticket / self.every % self.entries;
        let (turned, begun, before) = (self.turned, self.begun, self.newest);
        let PushStamps { ready, ordered, stored } = *push;
        // SAFETY: the entry is one of the ring's, contract of the kernel; tickets are given once, so no other thread has it
        // (the launcher sees to it that a launch has no more sampled puts than entries).
        unsafe {
            *self.stamps.add(entry as usize) =
                PutStamps { ticket, turned, begun, ready, ordered, stored, returned: 0, before };
        }
        self.newest = entry + 1;
    }

    #[inline(always)]
    fn returned(&mut self) {
        if self.newest == 0 {
            return;
        }
        let now = thread::global_timer_ns();
        while self.newest != 0 {
            // SAFETY: as in `pushed`; this thread has written the entry.
            let stamps = unsafe { &mut *self.stamps.add(self.newest as usize - 1) };
            stamps.returned = now;
            self.newest = stamps.before;
        }
    }
}
