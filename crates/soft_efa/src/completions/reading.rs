//! Reads of a completion queue by `ibv_poll_cq`, and notifications of a program that waits.

use super::SoftCompletionQueue;
use crate::channel::CompletionChannel;
use crate::entries::{CompletionEntries, CompletionEntry};
use crate::locked;
use crate::pair::SoftQueuePair;
use std::sync::Once;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maximum wait for an open session.
const SESSION: Duration = Duration::from_secs(30);

/// Reports, once, that completions were polled within an open session. With libefa this deadlocks if the poster waits
/// for the thread that polls: the poll waits for the queue's lock, which the open session holds.
pub(super) fn report_session() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        eprintln!(
            "soft_efa: completions of sends were polled for within an open session (FI_MORE): the library of a real \
             EFA device would hang"
        );
    });
}

/// Waits until the session of a queue pair that has completions of sends is complete, as libefa does.
pub(super) fn wait_for_session(pair: &SoftQueuePair) {
    if !pair.is_open.load(Ordering::Relaxed) || !locked(&pair.sender).has_done() {
        return;
    }
    report_session();
    let started = Instant::now();
    while pair.is_open.load(Ordering::Relaxed) && started.elapsed() < SESSION {
        std::thread::yield_now();
    }
}

impl SoftCompletionQueue {
    /// Returns the channel for notifications of this queue, if there is one.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        // SAFETY: written once, before the queue is shared. C must keep the channel as long as its queues.
        unsafe { CompletionChannel::of((*self.verbs.get()).channel) }
    }

    /// Requests a notification of the next completion, or of one that has not been read.
    pub fn arm(&self) {
        self.is_armed.store(true, Ordering::Release);
    }

    /// Called by the engine: sends the notification that C has requested, if there is an unread completion. Returns
    /// whether it did.
    pub fn notify(&self) -> bool {
        let Some(channel) = self.channel() else { return false };
        let asked = self.entries.get().and_then(CompletionEntries::requests_event);
        if let (Some(entries), Some(asked)) = (self.entries.get(), asked) {
            entries.set_notified(asked);
        } else if !self.is_armed.load(Ordering::Acquire) || !self.has_unread() {
            return false;
        } else {
            self.is_armed.store(false, Ordering::Relaxed);
        }
        channel.notify(std::ptr::from_ref(self).cast());
        true
    }

    /// Returns whether there is a completion that has not been read. Returns false if another thread polls.
    fn has_unread(&self) -> bool {
        if self.is_locked.swap(true, Ordering::Acquire) {
            return false;
        }
        self.drive();
        // SAFETY: the lock is held, and attached pairs are not destroyed.
        let inner = unsafe { &*self.inner.get() };
        let has = match self.entries.get() {
            Some(entries) => entries.has_unread(inner.read),
            None if inner.overrun.is_some() => true,
            None => inner.pairs.iter().any(|pair| {
                // SAFETY: attached pairs are not destroyed.
                let pair = unsafe { &**pair };
                (self.is(pair.sends_to()) && locked(&pair.sender).has_done())
                    || (self.is(pair.receives_to()) && pair.waiting() > 0)
            }),
        };
        self.unlock();
        has
    }

    /// Passes up to `count` completions to `put`, the oldest first. Returns their number.
    pub fn take(&self, count: usize, mut put: impl FnMut(&CompletionEntry)) -> usize {
        if count == 0 || !self.start() {
            return 0;
        }
        let mut taken = 0;
        loop {
            // SAFETY: the lock is held.
            put(unsafe { &(*self.inner.get()).current });
            taken += 1;
            if taken == count || !self.advance() {
                break;
            }
        }
        self.unlock();
        taken
    }
}
