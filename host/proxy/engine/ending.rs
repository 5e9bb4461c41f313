//! Stall detection and shutdown of an engine.

use super::{Engine, EngineError, Queued};
use crate::stage::Stage;
use ginlab_cuda::DeviceError;
use ginlab_fabric::{Completion, Rail};
use ginlab_rails::{DrainStep, RailQueue, drain, leak_to_nics};
use std::time::Duration;

/// Maximum time for posted transfers to complete once no caller waits for them.
pub const DRAIN: Duration = Duration::from_secs(1);

impl<R: Rail> Engine<R> {
    /// Checks whether commands are in flight and nothing has completed within the timeout. Reads the clock, so it must
    /// not be called on every poll.
    ///
    /// # Errors
    /// Returns [`EngineError::Stalled`], with the outstanding work, if this is the case.
    pub fn check_stall(&mut self) -> Result<(), EngineError> {
        let busy = self.tracker.in_flight() > 0;
        match self.clock.stalled(busy) {
            Some(waited) => Err(EngineError::Stalled { waited, state: self.state() }),
            None => Ok(()),
        }
    }

    /// Returns the outstanding work per rail, as one line.
    pub fn state(&self) -> String {
        let of_rail = |queue: &RailQueue<R, Queued>| {
            let waiting = queue.waiting();
            // A rail that accepts nothing may be unable to reach this peer.
            let first = waiting.first().map(|first| format!(", the first for peer {}", first.peer));
            let (name, first) = (queue.rail.name(), first.unwrap_or_default());
            format!("{name} posted {} B, {} waiting to be posted{first}", queue.bytes(), waiting.len())
        };
        let rails: Vec<String> = self.queues.iter().map(of_rail).collect();
        format!(
            "{} commands in flight above watermark {}, {} transfers posted but not complete, {} in staging, {} \
             \"again\" answers; rails: {}{}",
            self.tracker.in_flight(),
            self.tracker.watermark(),
            self.posted,
            self.regions.iter().filter_map(|region| region.staged_from.as_ref()).map(Stage::pending).sum::<usize>(),
            self.counters().again,
            rails.join("; "),
            self.signals.state().map(|state| format!("; {state}")).unwrap_or_default()
        )
    }

    /// Counts the polled completions as returned by the NICs without acting on them, and returns the error.
    #[cold]
    pub(super) fn unflushed(&mut self, error: DeviceError) -> EngineError {
        let ended = |completion: &Completion| {
            matches!(completion, Completion::Done { .. } | Completion::Failed { token: Some(_), .. })
        };
        let count = self.completions.drain(..).filter(ended).count();
        self.posted = self.posted.saturating_sub(count as u64);
        EngineError::Flush(error)
    }

    /// Polls, for a bounded time, until the providers have returned all transfers. Ignores errors: only the first error
    /// of an engine is reported, and further ones are expected here.
    pub fn drain(&mut self) {
        self.drained = true;
        drain(DRAIN.min(self.clock.timeout()), || {
            if self.posted == 0 {
                return DrainStep::Empty;
            }
            if self.progress(&mut ()) == Ok(true) { DrainStep::Moved } else { DrainStep::Idle }
        });
    }
}

impl<R: Rail> Drop for Engine<R> {
    /// Waits for the transfers that the NICs still hold. If some do not complete, closing their registrations would
    /// unmap memory during a transfer. Registrations and rails then stay open, and no buffer of this process is freed.
    fn drop(&mut self) {
        // A rail that has panicked would panic again.
        if !self.drained && !std::thread::panicking() {
            self.drain();
        }
        if self.posted > 0 {
            let registered = (std::mem::take(&mut self.regions), self.values.take());
            leak_to_nics((registered, std::mem::take(&mut self.queues)));
        }
    }
}
