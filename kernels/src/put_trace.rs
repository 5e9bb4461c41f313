//! Time stamps of sampled puts on the device. Without a trace, these functions compile to nothing.

use crate::ring::Observe;
use cuda_std::thread;

/// Stamps of one put, in nanoseconds of the device's clock ([`thread::global_timer_ns`]); 0 if the event has not
/// occurred.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutStamps {
    /// Ticket of the put.
    pub ticket: u64,
    /// Time at which the put's iteration started: the producer's earlier puts have been pushed.
    pub turned: u64,
    /// Time before the payload is written: the slot is free and the block has synchronized. Equal to `ready` if no
    /// payload is written.
    pub begun: u64,
    /// Time at which all threads of the producer have written the payload.
    pub ready: u64,
    /// Time at which the ticket is taken, its slot is free, and the payload is fenced.
    pub ordered: u64,
    /// Time at which the command's stores have been issued.
    pub stored: u64,
    /// Time at which a quiet that covers the put has returned.
    pub returned: u64,
    /// Index, plus 1, of the entry of the producer's previous sampled put, if no quiet of the producer has returned
    /// since; otherwise 0.
    pub before: u64,
}

// SAFETY: the struct is eight `u64` without padding.
unsafe impl cuda_std::Plain for PutStamps {}

/// Observer of the put kernel, for measurements. Other code passes `()`.
pub trait PutObserver {
    /// Observer of a push.
    type Push: Observe;
    /// Called when the producer starts the iteration of its next put.
    fn turns(&mut self) {}
    /// Called before the payload of the next put is written.
    fn begins(&mut self) {}
    /// Called when the payload is ready; `filled` indicates whether it was just written.
    fn push(&mut self, filled: bool) -> Self::Push;
    /// Called with the ticket of the put.
    fn pushed(&mut self, _ticket: u64, _push: &Self::Push) {}
    /// Called when all puts of the producer are complete.
    fn returned(&mut self) {}
}

impl PutObserver for () {
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

/// A trace of one producer.
#[derive(Debug)]
pub struct Tracer {
    stamps: *mut PutStamps,
    every: u64,
    entries: u64,
    turned: u64,
    begun: u64,
    /// Index, plus 1, of the newest entry that no quiet covers; 0 if there is none.
    newest: u64,
}

impl Tracer {
    /// Creates a trace that stores to the `entries` entries of the producer's ring at `stamps`.
    #[inline(always)]
    pub fn new(stamps: *mut PutStamps, every: u64, entries: u64) -> Tracer {
        Tracer { stamps, every, entries, turned: 0, begun: 0, newest: 0 }
    }
}

impl PutObserver for Tracer {
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
        // SAFETY: the kernel's caller guarantees that the entry belongs to the ring. Tickets are unique, and the
        // launcher ensures that a launch has no more sampled puts than entries, so no other thread uses the entry.
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
            // SAFETY: the entry belongs to the ring, and this thread has written it.
            let stamps = unsafe { &mut *self.stamps.add(self.newest as usize - 1) };
            stamps.returned = now;
            self.newest = stamps.before;
        }
    }
}
