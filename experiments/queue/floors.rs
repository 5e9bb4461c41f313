//! Lower bounds for every queue: bare round trips, polls and stores.

use super::Tuple;
use super::args::Algorithm;
use super::measure::{Bench, MOST_ELEMENTS, by_words};
use crate::columns::{RING_SLOTS, SLOT_BYTES};
use crate::error::Failure;
use crate::runner::{Rows, timed};
use crate::values;
use ginlab::cuda::{Buffer, Device};
use ginlab::measure::ping_pong::{Flag, round_trip};
use ginlab::report::Row;
use ginlab::ring::RingPlace;
use ginlab::signals;
use kernels::queue::kernel::QUEUE_STORES;

/// Measures the bounds that do not depend on the grid: bare round trips of a flag, and the cost of polling an empty
/// ring on the CPU.
pub fn floors(bench: &Bench<'_>) -> Result<Rows, Failure> {
    by_words!(bench, measured_floors())
}

impl Bench<'_> {
    /// Measures bare stores that are not consumed, the lower bound of every push. `None` if the memory is not
    /// available.
    pub(super) fn stores(&self, results: &Buffer) -> Result<Option<(Row, Vec<f64>)>, Failure> {
        let Ok(queues) = self.queues(Algorithm::Ticket) else { return Ok(None) };
        let pushes = (MOST_ELEMENTS / 4 / self.producers()).clamp(1, 200_000) as u32;
        let args = self.args(queues.pointer(), pushes, results);
        let mut samples = Vec::new();
        for _ in 0..self.args.repeat.repeats {
            // SAFETY: the queues and the results outlive the launch, which ends in this function.
            let launch = unsafe { self.device.launch(&QUEUE_STORES, self.tuple.grid, self.tuple.block, args) }?;
            launch.wait(|| if signals::interrupted() { Err(Failure::Interrupted) } else { Ok(()) })?;
            samples.push(self.elapsed(results, &queues)?.0 / f64::from(pushes));
        }
        let mut row = self.blank("stores");
        row.iterations = Some(pushes.into());
        timed(&mut row, &samples, self.producers() * u64::from(self.tuple.words) * 8, self.producers());
        Ok(Some((row, samples)))
    }

    fn measured_floors<const WORDS: usize>(&self) -> Result<Rows, Failure> {
        let Ok(queues) = self.queues(Algorithm::Ticket) else { return Ok(Rows::new()) };
        let one = Bench { tuple: Tuple { grid: 1, rings: 1, block: 1, ..self.tuple }, ..*self };
        let mut rows = Rows::new();
        if self.tuple.place == RingPlace::Pinned {
            let iterations = if matches!(self.queue.device, Device::Emulated) { 200 } else { 5000 };
            let mut samples = [Vec::new(), Vec::new()];
            for _ in 0..self.args.repeat.repeats {
                for (late, samples) in samples.iter_mut().enumerate() {
                    let flag = Flag { payload: None, first_poll_ns: late as u64 * 250 };
                    samples.push(round_trip(&self.device, 1, iterations, self.args.timeout, flag, None)?);
                }
            }
            for (name, samples) in ["ping-pong", "ping-pong-late"].into_iter().zip(samples) {
                let mut row = one.blank(name);
                row.size_bytes = Some(8);
                row.set(&SLOT_BYTES, None::<u32>).set(&RING_SLOTS, None::<u32>);
                row.times(&samples);
                rows.push((row, samples));
            }
        }
        // SAFETY: the dispatch above selects elements of WORDS words, and the queues outlive the consumers.
        let mut consumers = unsafe { queues.consumers::<WORDS>() };
        let samples: Vec<f64> = (0..self.args.repeat.repeats).map(|_| consumers[0].empty_poll_ns() / 1000.0).collect();
        let mut row = Row::new("queue", "empty-poll", "cpu", "none");
        row.memory = Some(values::name(self.tuple.place));
        row.size_bytes = Some(WORDS as u64 * 8);
        row.times(&samples);
        rows.push((row, samples));
        Ok(rows)
    }
}
