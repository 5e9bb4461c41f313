//! Time and waiting under loom.
//!
//! loom explores every schedule, also unfair ones: with three threads, two that spin may hand over to each other for ever
//! while the third, which they wait for, never runs. Handing over by a yield is no preemption, so the preemption bound
//! does not end this, and no number of branches suffices. A model that spins therefore needs a bound of its own: it is
//! here, where the kernels' waits and the tests' both come by.

use std::cell::Cell;

/// When a thread gives way more often than this in one execution, the rest of that execution runs once, on a fair
/// schedule, and is not varied any more. What a model does not show is thus a mistake that needs a thread to try in vain
/// more often than this before it. With 4 instead of 3 the models of the ring find the same and take twice as long.
pub const MOST_YIELDS: u32 = 3;

loom::thread_local! {
    static YIELDS: Cell<u32> = Cell::new(0);
    static CLOCK: Cell<u64> = Cell::new(0);
}

/// Lets the other threads run. After a yield, loom's loads return no value that this thread saw before and that is
/// outdated: every spin ends when the protocol does.
pub fn give_way() {
    let yields = YIELDS.with(|yields| yields.replace(yields.get() + 1));
    if yields >= MOST_YIELDS {
        loom::skip_branch();
    }
    loom::thread::yield_now();
}

/// Each reading of the clock is one nanosecond after the last one of this thread: deadlines pass after a fixed number of
/// attempts, in every schedule.
pub fn now_ns() -> u64 {
    CLOCK.with(|clock| clock.replace(clock.get() + 1))
}
