//! A single emulated thread that the caller steps.

use super::running::text;
use super::stacks::{LaneStack, STACK_BYTES, Stacks};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::{io, ptr};

thread_local! {
    /// The [`Stepped`] thread that runs on this CPU thread.
    static RUNNING: Cell<*const Running> = const { Cell::new(ptr::null()) };
    static STACKS: RefCell<Stacks> = RefCell::default();
}

/// Reason why a [`Stepped`] thread returned control to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteppedStop {
    /// The thread spins: its condition does not hold, and is polled again on the next call of [`Stepped::turn`].
    Spins,
    /// The thread is at a block barrier, which it passes on the next call of [`Stepped::turn`].
    Meets,
    /// The thread has returned.
    Ended,
}

/// The only thread of a grid of one, which its owner runs until the next spin or block barrier. Tests use it to control
/// the interleaving step by step: several such threads on one CPU thread represent the kernels of several devices.
pub struct Stepped {
    coroutine: Option<Coroutine<(), SteppedStop, (), LaneStack>>,
    running: Rc<Running>,
}

struct Running {
    yielder: Cell<*const Yielder<(), SteppedStop>>,
    /// Lowest permitted stack pointer when control returns to the owner.
    lowest: usize,
}

impl Stepped {
    /// Creates a thread that has not started.
    ///
    /// # Errors
    /// Returns an error if the system refuses memory for its stack.
    pub fn new(body: impl FnOnce() + 'static) -> io::Result<Stepped> {
        let place = STACKS.with_borrow_mut(|stacks| stacks.take(1))?.remove(0);
        let running = Rc::new(Running { yielder: Cell::new(ptr::null()), lowest: place.lowest() });
        let own = running.clone();
        let coroutine = Coroutine::with_stack(place, move |yielder: &Yielder<(), SteppedStop>, ()| {
            own.yielder.set(yielder);
            body();
        });
        Ok(Stepped { coroutine: Some(coroutine), running })
    }

    /// Runs the thread until its next spin or block barrier. Returns [`SteppedStop::Ended`] once the thread has
    /// returned.
    ///
    /// # Errors
    /// Returns the message of a panic, which has ended the thread.
    pub fn turn(&mut self) -> Result<SteppedStop, String> {
        let Some(coroutine) = &mut self.coroutine else { return Ok(SteppedStop::Ended) };
        let before = RUNNING.replace(Rc::as_ptr(&self.running));
        let result = catch_unwind(AssertUnwindSafe(|| coroutine.resume(())));
        RUNNING.set(before);
        let result = match result {
            Ok(CoroutineResult::Yield(turn)) => return Ok(turn),
            Ok(CoroutineResult::Return(())) => Ok(SteppedStop::Ended),
            Err(panic) => Err(text(&*panic).to_owned()),
        };
        self.end();
        result
    }

    /// Unwinds the thread if it has not returned, and returns its stack.
    fn end(&mut self) {
        let Some(mut coroutine) = self.coroutine.take() else { return };
        let before = RUNNING.replace(Rc::as_ptr(&self.running));
        coroutine.force_unwind();
        RUNNING.set(before);
        let place = coroutine.into_stack();
        assert!(!place.is_overrun() || std::thread::panicking(), "the stack of a stepped thread has overflowed");
        STACKS.with_borrow_mut(|stacks| stacks.give_back(place));
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns control from the stepped thread that runs here to its owner. Returns false if there is none.
pub fn pause(turn: SteppedStop) -> bool {
    // SAFETY: the pointer was set during `Stepped::turn`, which keeps its target alive. The caller runs within that
    // call.
    let Some(running) = (unsafe { RUNNING.get().as_ref() }) else { return false };
    if std::thread::panicking() {
        // Destructors of a thread that is being unwound must not wait.
        return true;
    }
    let here = ptr::from_ref(&turn).addr();
    assert!(here >= running.lowest, "the kernel's stack of {STACK_BYTES} bytes is nearly full");
    // SAFETY: the pointer was set when this coroutine started, and this code runs in it.
    unsafe { (*running.yielder.get()).suspend(turn) };
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread;

    #[test]
    fn stepped_thread_stops_at_spins_and_barriers() {
        let steps = Rc::new(Cell::new(0));
        let make = |by: u32| {
            let steps = steps.clone();
            Stepped::new(move || {
                steps.set(steps.get() + by);
                thread::relax();
                steps.set(steps.get() + by);
                assert!(!thread::sync_threads_or(false) && thread::sync_threads_or(true));
                steps.set(steps.get() + by);
            })
            .expect("a stack")
        };
        let (mut first, mut second) = (make(1), make(100));
        assert_eq!((first.turn(), steps.get()), (Ok(SteppedStop::Spins), 1));
        assert_eq!((second.turn(), steps.get()), (Ok(SteppedStop::Spins), 101));
        assert_eq!((first.turn(), first.turn(), steps.get()), (Ok(SteppedStop::Meets), Ok(SteppedStop::Meets), 102));
        assert_eq!((first.turn(), first.turn(), steps.get()), (Ok(SteppedStop::Ended), Ok(SteppedStop::Ended), 103));
        drop(second);
        assert_eq!(Rc::strong_count(&steps), 1, "what has not returned is unwound");
    }

    #[test]
    fn panic_is_reported_and_ends_thread() {
        let mut stepped = Stepped::new(|| panic!("expected by the test")).expect("a stack");
        assert_eq!(stepped.turn(), Err("expected by the test".to_owned()));
        assert_eq!(stepped.turn(), Ok(SteppedStop::Ended));
    }
}
