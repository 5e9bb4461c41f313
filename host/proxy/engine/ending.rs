//! How an engine ends: by a stall, and by being dropped.

use super::{Engine, EngineError};
use crate::fabric::Rail;
use crate::proxy::stage::Stage;
use std::time::{Duration, Instant};

/// How long what is posted may take to complete once nobody waits for it any more.
pub const DRAIN: Duration = Duration::from_secs(1);

impl<R: Rail> Engine<R> {
    /// Whether something is in flight and nothing has moved within the timeout. Reads the clock: not for every poll.
    ///
    /// # Errors
    /// [`EngineError::Stalled`] with what is outstanding.
    pub fn check_stall(&mut self) -> Result<(), EngineError> {
        let (moved, since) = self.seen;
        if self.tracker.in_flight() == 0 || moved != self.moved {
            self.seen = (self.moved, Instant::now());
            return Ok(());
        }
        let waited = since.elapsed();
        if waited > self.timeout {
            return Err(EngineError::Stalled { waited, state: self.state() });
        }
        Ok(())
    }

    /// What is outstanding where, in one line.
    pub fn state(&self) -> String {
        let rails: Vec<String> = (0..self.rails.len())
            .map(|rail| {
                let (bytes, waiting) = (self.counters.rail_bytes[rail], self.queues[rail].waiting());
                // A rail that takes nothing may be one that never reaches this peer.
                let first = waiting.first().map(|first| format!(", the first for peer {}", first.peer));
                format!(
                    "{} posted {bytes} B, {} waiting to be posted{}",
                    self.rails[rail].name(),
                    waiting.len(),
                    first.unwrap_or_default()
                )
            })
            .collect();
        format!(
            "{} commands in flight above watermark {}, {} transfers posted and not complete, {} in staging, {} \"again\" \
             answers; rails: {}{}",
            self.tracker.in_flight(),
            self.tracker.watermark(),
            self.posted,
            self.regions.iter().filter_map(|region| region.staged_from.as_ref()).map(Stage::pending).sum::<usize>(),
            self.counters.again,
            rails.join("; "),
            self.signals.state().map(|state| format!("; {state}")).unwrap_or_default()
        )
    }

    /// Polls until the providers have given back what they were given, within a bound. The first error of an engine is the
    /// one that is reported; further ones are expected here.
    pub fn drain(&mut self) {
        self.drained = true;
        let deadline = Instant::now() + DRAIN.min(self.timeout);
        while self.posted > 0 && Instant::now() < deadline {
            if self.progress(&mut ()) != Ok(true) {
                // Whoever must answer may need this core.
                std::thread::yield_now();
            }
        }
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
            crate::cuda::keep_buffers();
            std::mem::forget(std::mem::take(&mut self.regions));
            std::mem::forget(self.values.take());
            std::mem::forget(std::mem::take(&mut self.rails));
        }
    }
}
