//! Time and waiting under loom.
//!
//! loom explores every schedule, including unfair ones: two of three threads may spin and yield to each other
//! indefinitely while the third, which they wait for, never runs. A yield is not a preemption, so the preemption bound
//! does not end this, and no number of branches suffices. A model that spins therefore needs its own bound. The bound
//! is here, because both the kernels' waits and the tests' waits use this module.

use std::cell::Cell;

/// Number of yields of a thread in one execution after which the rest of that execution runs once, on a fair schedule,
/// and is not varied. Models therefore cannot find errors that need more unsuccessful attempts of one thread. With 4
/// instead of 3, the models of the ring find the same errors and take twice as long.
pub const MOST_YIELDS: u32 = 3;

loom::thread_local! {
    static YIELDS: Cell<u32> = Cell::new(0);
    static CLOCK: Cell<u64> = Cell::new(0);
}

/// Lets the other threads run. After a yield, loom's loads do not return outdated values that this thread has already
/// seen, so every spin ends when the protocol does.
pub fn give_way() {
    let yields = YIELDS.with(|yields| yields.replace(yields.get() + 1));
    if yields >= MOST_YIELDS {
        loom::skip_branch();
    }
    loom::thread::yield_now();
}

/// Returns a time that is one nanosecond after this thread's previous reading. Deadlines thus pass after a fixed number
/// of attempts, in every schedule.
pub fn now_ns() -> u64 {
    CLOCK.with(|clock| clock.replace(clock.get() + 1))
}
