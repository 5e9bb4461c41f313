//! Orders of the thread's owner. The thread executes them between two iterations of its loop.

use super::{ANSWERS_PER_RECORD, EMPTY_POLLS_BEFORE_YIELD, Halt, Orders, Server};
use crate::ring::answer_flag;
use crate::trace::{CommandTimes, ProxyTrace, Sampling};
use crate::{Snapshot, Writes};
use ginlab_base::backoff::Backoff;
use ginlab_base::progress;
use ginlab_fabric::{Rail, RemoteRegion};
use ginlab_rails::strategy::Strategy;
use kernels::command::Command;
use kernels::ring::HostWords;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl<R: Rail> Orders for Server<'_, R> {
    fn connect(&mut self, addresses: &[Vec<Vec<u8>>], regions: &[Vec<Vec<RemoteRegion>>]) -> Result<(), Halt> {
        Ok(self.engine.connect(addresses, regions)?)
    }

    fn configure(&mut self, rails: usize, strategy: Strategy) -> Result<(), Halt> {
        self.engine.configure(rails, strategy);
        Ok(())
    }

    fn time_rails(&mut self) -> Result<(), Halt> {
        self.engine.time_rails();
        Ok(())
    }

    /// Performs CPU-initiated writes: the puts of the grid in the grid's order, without a ring.
    fn write(&mut self, writes: &Writes) -> Result<Duration, Halt> {
        self.settle()?;
        let ring_tickets = self.engine.suspend();
        let started = Instant::now();
        let result = self.write_all(writes);
        let elapsed = started.elapsed();
        self.engine.resume(ring_tickets);
        result.map(|()| elapsed)
    }

    fn bare_write(&mut self, route: (u32, u32, u32), bytes: u64, count: u64) -> Result<Option<Duration>, Halt> {
        self.settle()?;
        Ok(self.engine.bare_writes(route, bytes, count)?.map(Duration::from_secs_f64))
    }

    fn put(&mut self, commands: &[Command]) -> Result<(), Halt> {
        self.settle()?;
        let ring_tickets = self.engine.suspend();
        let posted = commands.iter().try_for_each(|command| {
            while self.engine.room() == 0 {
                self.pump_and_poll()?;
            }
            let bytes = command.bytes.saturating_sub(u64::from(self.until_corrupt() == 0));
            self.initiated += 1;
            Ok(self.engine.submit(&Command { bytes, ..*command }).map(drop)?)
        });
        let settled = posted.and_then(|()| self.settle());
        self.engine.resume(ring_tickets);
        settled
    }

    fn run_ping_pong(&mut self, words: &HostWords) -> Result<(), Halt> {
        let (mut answered, mut backoff) = (0, Backoff::every(EMPTY_POLLS_BEFORE_YIELD));
        while self.shared.answering.load(Ordering::Relaxed) && !self.shared.stop.load(Ordering::Relaxed) {
            if answer_flag(words, &mut answered) {
                backoff.reset();
                if answered.is_multiple_of(ANSWERS_PER_RECORD) {
                    progress::record();
                }
            } else if self.yields {
                backoff.idle();
            }
        }
        Ok(())
    }

    fn snapshot(&mut self) -> Result<Snapshot, Halt> {
        Ok(Snapshot {
            commands: self.engine.commands(),
            counters: self.engine.counters(),
            signals: self.engine.signals(),
            fault_without_bytes: self.fault_without_bytes,
            set_up: self.engine.set_up(),
        })
    }

    fn trace(&mut self, sampling: Option<Sampling>) -> Result<Vec<CommandTimes>, Halt> {
        let rails = self.engine.rails().len();
        let begun = sampling.map(|sampling| Box::new(ProxyTrace::new(sampling, rails, self.published)));
        let ended = std::mem::replace(&mut self.trace, begun);
        Ok(ended.map(|trace| trace.finish()).unwrap_or_default())
    }
}
