//! The futures returned by a flow.

use super::{Flow, FlowError};
use ginlab_fabric::Messages;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Maximum number of times that a future polls the rails before it returns pending. It stops early as soon as another
/// task can run. Returning pending earlier would be slower for a single task: tokio then polls its sockets with a
/// system call that takes as long as several polls of the rails.
const POLLS: u32 = 64;

/// A posted operation. Dropping the future does not cancel the operation, and its buffer is kept until it completes. A
/// receive is the exception: it is cancelled if possible.
#[derive(Debug)]
#[must_use = "its error, if it has one, is known only when it is awaited"]
pub struct Operation<R: Messages> {
    flow: Flow<R>,
    /// Key of the operation in the flow's state, or [`TAKEN`]. A single integer keeps the future small: it is moved
    /// several times for each write.
    key: usize,
}

/// Value of `key` once the result has been returned.
const TAKEN: usize = usize::MAX;

impl<R: Messages> Operation<R> {
    pub(super) fn new(flow: Flow<R>, key: usize) -> Self {
        Operation { flow, key }
    }

    /// Returns whether awaiting this operation returns its result immediately.
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
    /// Polls the rails for the result. Registers the task's waker and returns `None` if there is no result after
    /// [`POLLS`] polls.
    #[inline(never)]
    fn wait(&self, context: &Context<'_>) -> Option<Result<u64, FlowError>> {
        let mut state = self.flow.0.borrow_mut();
        let mut left = POLLS.min(state.most_polls);
        while left > 0 {
            // The error can be ignored here: a failed flow stores its error in every operation, including this one.
            left = if state.turn_for(Some(self.key)) { 0 } else { left - 1 };
            if let Some(result) = state.take_result(self.key) {
                return Some(result);
            }
        }
        // A future should not be polled again after its result. If it is, it stays pending forever, which is permitted.
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

/// A wait for immediates. Dropping it takes none of them.
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
        // A wait that remains from an earlier poll of this future would count as another task's wait.
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
