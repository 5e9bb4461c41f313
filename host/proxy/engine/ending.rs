//! How an engine ends: by a stall, and by being dropped.

use super::{Engine, EngineError, Queued};
use crate::stage::Stage;
use ginlab_cuda::DeviceError;
use ginlab_fabric::{Completion, Rail};
use ginlab_rails::{Lane, Turn, drain, leave_to_nics};
use std::time::Duration;

/// How long what is posted may take to complete once nobody waits for it any more.
pub const DRAIN: Duration = Duration::from_secs(1);

impl<R: Rail> Engine<R> {
    /// Whether something is in flight and nothing has moved within the timeout. Reads the clock: not for every poll.
    ///
    /// # Errors
    /// [`EngineError::Stalled`] with what is outstanding.
    pub fn check_stall(&mut self) -> Result<(), EngineError> {
        let busy = self.tracker.in_flight() > 0;
        match self.clock.stalled(busy) {
            Some(waited) => Err(EngineError::Stalled { waited, state: self.state() }),
            None => Ok(()),
        }
    }

    /// What is outstanding where, in one line.
    pub fn state(&self) -> String {
        let of_rail = |lane: &Lane<R, Queued>| {
            let waiting = lane.waiting();
            // A rail that takes nothing may be one that never reaches this peer.
            let first = waiting.first().map(|first| format!(", the first for peer {}", first.peer));
            let (name, first) = (lane.rail.name(), first.unwrap_or_default());
            format!("{name} posted {} B, {} waiting to be posted{first}", lane.bytes(), waiting.len())
        };
        let rails: Vec<String> = self.lanes.iter().map(of_rail).collect();
        format!(
            "{} commands in flight above watermark {}, {} transfers posted and not complete, {} in staging, {} \"again\" \
             answers; rails: {}{}",
            self.tracker.in_flight(),
            self.tracker.watermark(),
            self.posted,
            self.regions.iter().filter_map(|region| region.staged_from.as_ref()).map(Stage::pending).sum::<usize>(),
            self.counters().again,
            rails.join("; "),
            self.signals.state().map(|state| format!("; {state}")).unwrap_or_default()
        )
    }

    /// What has completed is not told, but the NICs have given it back.
    #[cold]
    pub(super) fn unflushed(&mut self, error: DeviceError) -> EngineError {
        let ended = |completion: &Completion| {
            matches!(completion, Completion::Done { .. } | Completion::Failed { token: Some(_), .. })
        };
        let count = self.completions.drain(..).filter(ended).count();
        self.posted = self.posted.saturating_sub(count as u64);
        EngineError::Flush(error)
    }

    /// Polls until the providers have given back what they were given, within a bound. The first error of an engine is the
    /// one that is reported; further ones are expected here.
    pub fn drain(&mut self) {
        self.drained = true;
        drain(DRAIN.min(self.clock.timeout()), || {
            if self.posted == 0 {
                return Turn::Empty;
            }
            if self.progress(&mut ()) == Ok(true) { Turn::Moved } else { Turn::Idle }
        });
    }
}

impl<R: Rail> Drop for Engine<R> {
    /// Waits for what the NICs still hold. What they do not give back is left to them: closing a registration would pull its
    /// memory from under a transfer, so registrations and rails stay open, and no buffer of this process is freed.
    fn drop(&mut self) {
        // A rail that has panicked would do so again.
        if !self.drained && !std::thread::panicking() {
            self.drain();
        }
        if self.posted > 0 {
            let registered = (std::mem::take(&mut self.regions), self.values.take());
            leave_to_nics((registered, std::mem::take(&mut self.lanes)));
        }
    }
}
