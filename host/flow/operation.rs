//! The futures.

use super::{Flow, FlowError};
use ginlab_fabric::Messages;
use std::pin::Pin;
use std::task::{Context, Poll};

/// How often a future polls the rails, at most, before it lets other tasks run. It stops at once when another task has
/// something to do; alone it stays here, since tokio asks the system for sockets in between, which takes as long as several
/// polls.
const POLLS: u32 = 64;

/// An operation that has been posted. Dropping it does not undo it: its buffer stays until it is complete. (A receive is
/// taken back if it still can be.)
#[derive(Debug)]
#[must_use = "its error, if it has one, is known only when it is awaited"]
pub struct Operation<R: Messages> {
    flow: Flow<R>,
    /// Nothing once the result is out. (Two words in all: operations are moved about for each write.)
    key: usize,
}

/// In place of a key, once the result is out.
const TAKEN: usize = usize::MAX;

impl<R: Messages> Operation<R> {
    pub(super) fn new(flow: Flow<R>, key: usize) -> Self {
        Operation { flow, key }
    }

    /// Whether awaiting it gives its result at once.
    pub fn is_done(&self) -> bool {
        self.flow.0.borrow().is_done(self.key)
    }
}

impl<R: Messages> Future for Operation<R> {
    type Output = Result<u64, FlowError>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = self.flow.0.borrow_mut().take_result(self.key);
        let Some(result) = result.or_else(|| self.wait(context)) else { return Poll::Pending };
        self.key = TAKEN;
        Poll::Ready(result)
    }
}

impl<R: Messages> Operation<R> {
    /// Polls the rails for the result; without it at last, the task is woken later.
    #[inline(never)]
    fn wait(&self, context: &Context<'_>) -> Option<Result<u64, FlowError>> {
        let mut state = self.flow.0.borrow_mut();
        let mut left = POLLS.min(state.most_polls);
        while left > 0 {
            // An error of the flow goes to every operation, this one too.
            left = if state.turn_for(Some(self.key)) { 0 } else { left - 1 };
            if let Some(result) = state.take_result(self.key) {
                return Some(result);
            }
        }
        // A future is not polled again after its result; if somebody does, it never ends, which is what futures may do.
        state.wake_later(self.key, context.waker());
        None
    }
}

impl<R: Messages> Drop for Operation<R> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.key != TAKEN {
            self.flow.0.borrow_mut().abandon(self.key);
        }
    }
}

/// A wait for immediates. Dropping it takes none.
#[derive(Debug)]
#[must_use = "nothing is waited for until it is awaited"]
pub struct Immediate<R: Messages> {
    flow: Flow<R>,
    value: u32,
    count: u64,
    waiter: Option<u64>,
}

impl<R: Messages> Immediate<R> {
    pub(super) fn new(flow: Flow<R>, value: u32, count: u64) -> Self {
        Immediate { flow, value, count, waiter: None }
    }
}

impl<R: Messages> Future for Immediate<R> {
    type Output = Result<(), FlowError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (value, count, known) = (self.value, self.count, self.waiter);
        let mut state = self.flow.0.borrow_mut();
        // Its own wait, from an earlier poll, would count as another task's.
        known.into_iter().for_each(|number| state.immediates.forget(number));
        let mut left = POLLS.min(state.most_polls);
        loop {
            if state.immediates.take(value, count) {
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = state.failure() {
                return Poll::Ready(Err(error));
            }
            if left == 0 {
                break;
            }
            left = if state.turn_for(None) { 0 } else { left - 1 };
        }
        let number = state.wait_for_immediate(known, value, count, context.waker());
        drop(state);
        self.waiter = Some(number);
        Poll::Pending
    }
}

impl<R: Messages> Drop for Immediate<R> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            self.flow.0.borrow_mut().immediates.forget(waiter);
        }
    }
}
