//! One thread whose turns the caller gives.

use super::running::text;
use super::stacks::{Place, STACK_BYTES, Stacks};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::{io, ptr};

thread_local! {
    /// What gives the turn back, while a [`Stepped`] thread runs on this CPU thread.
    static RUNNING: Cell<*const Running> = const { Cell::new(ptr::null()) };
    static STACKS: RefCell<Stacks> = RefCell::default();
}

/// Where a [`Stepped`] thread has ended its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// In a spin: it has looked in vain, and looks again in its next turn.
    Spins,
    /// At a barrier of its block, which it passes in its next turn.
    Meets,
    /// It has returned.
    Ended,
}

/// The only thread of a grid of one, which runs when its owner says so, and no longer than to its next spin or block barrier. For tests
/// that choose who goes on, step by step: several of these in one CPU thread are the kernels of several devices.
pub struct Stepped {
    coroutine: Option<Coroutine<(), Turn, (), Place>>,
    running: Rc<Running>,
}

struct Running {
    yielder: Cell<*const Yielder<(), Turn>>,
    /// The stack pointer may not be below this when a turn ends.
    lowest: usize,
}

impl Stepped {
    /// The thread; it has not begun.
    ///
    /// # Errors
    /// When the system refuses memory for its stack.
    pub fn new(body: impl FnOnce() + 'static) -> io::Result<Stepped> {
        let place = STACKS.with_borrow_mut(|stacks| stacks.take(1))?.remove(0);
        let running = Rc::new(Running { yielder: Cell::new(ptr::null()), lowest: place.lowest() });
        let own = running.clone();
        let coroutine = Coroutine::with_stack(place, move |yielder: &Yielder<(), Turn>, ()| {
            own.yielder.set(yielder);
            body();
        });
        Ok(Stepped { coroutine: Some(coroutine), running })
    }

    /// One turn. [`Turn::Ended`] from its end on.
    ///
    /// # Errors
    /// The message of a panic, which has ended the thread.
    pub fn turn(&mut self) -> Result<Turn, String> {
        let Some(coroutine) = &mut self.coroutine else { return Ok(Turn::Ended) };
        let before = RUNNING.replace(Rc::as_ptr(&self.running));
        let result = catch_unwind(AssertUnwindSafe(|| coroutine.resume(())));
        RUNNING.set(before);
        let result = match result {
            Ok(CoroutineResult::Yield(turn)) => return Ok(turn),
            Ok(CoroutineResult::Return(())) => Ok(Turn::Ended),
            Err(panic) => Err(text(&*panic).to_owned()),
        };
        self.end();
        result
    }

    /// Unwinds what has not returned, and gives the stack back.
    fn end(&mut self) {
        let Some(mut coroutine) = self.coroutine.take() else { return };
        let before = RUNNING.replace(Rc::as_ptr(&self.running));
        coroutine.force_unwind();
        RUNNING.set(before);
        let place = coroutine.into_stack();
        assert!(!place.is_overrun() || std::thread::panicking(), "the stack of a stepped thread has overflown");
        STACKS.with_borrow_mut(|stacks| stacks.give_back(place));
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ends the turn of the stepped thread that runs here; false where none does.
pub fn pause(turn: Turn) -> bool {
    // SAFETY: set while its `Stepped` gives it a turn, which keeps it; whoever calls this runs in that turn.
    let Some(running) = (unsafe { RUNNING.get().as_ref() }) else { return false };
    if std::thread::panicking() {
        // Destructors of a thread that is being unwound wait for nobody.
        return true;
    }
    let here = ptr::from_ref(&turn).addr();
    assert!(here >= running.lowest, "the kernel's stack is nearly full: {STACK_BYTES} bytes are left to it");
    // SAFETY: set when the coroutine began, in which we are.
    unsafe { (*running.yielder.get()).suspend(turn) };
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread;

    #[test]
    fn a_turn_ends_at_spins_and_barriers_and_others_go_on_meanwhile() {
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
        assert_eq!((first.turn(), steps.get()), (Ok(Turn::Spins), 1));
        assert_eq!((second.turn(), steps.get()), (Ok(Turn::Spins), 101));
        assert_eq!((first.turn(), first.turn(), steps.get()), (Ok(Turn::Meets), Ok(Turn::Meets), 102));
        assert_eq!((first.turn(), first.turn(), steps.get()), (Ok(Turn::Ended), Ok(Turn::Ended), 103));
        drop(second);
        assert_eq!(Rc::strong_count(&steps), 1, "what has not returned is unwound");
    }

    #[test]
    fn a_panic_is_told_and_ends_the_thread() {
        let mut stepped = Stepped::new(|| panic!("expected by the test")).expect("a stack");
        assert_eq!(stepped.turn(), Err("expected by the test".to_owned()));
        assert_eq!(stepped.turn(), Ok(Turn::Ended));
    }
}
