//! Cases of a parameter combination: the queues, their prototype, and lower bounds of all of them.

use super::args::{Algorithm, QueueMode};
use super::measure::{MOST_ELEMENTS, QueueBench};
use super::memory::{KernelQueues, QueueConsumer};
use super::prototype::PrototypeRing;
use super::{CONSUMERS, EMPTY_POLLS, QueueConfig};
use crate::columns::{RING_SLOTS, SLOT_BYTES};
use crate::error::Failure;
use crate::series::CaseResults;
use crate::values;
use crossbeam_utils::CachePadded;
use ginlab::cuda::{Buffer, Device, DeviceError};
use ginlab::measure::ping_pong::{Flag, round_trip};
use ginlab::report::Row;
use ginlab::signals;
use kernels::queue::kernel::QUEUE_STORES;

/// Index of the unsuccessful polls of the consumers in a sample.
const EMPTY: usize = 0;

/// Work of a case.
pub enum QueueCaseKind<'a> {
    /// Round trip of a flag, polled after this time in nanoseconds.
    PingPong(u64),
    /// Poll of an empty ring on the CPU.
    EmptyPoll,
    /// Bare stores that are not consumed, the lower bound of every push.
    Stores,
    /// The ring in CUDA C++.
    Prototype(PrototypeRing<'a>),
    Queue,
}

/// A case, with its queues.
pub struct QueueCase<'a, const WORDS: usize> {
    pub kind: QueueCaseKind<'a>,
    pub algorithm: Algorithm,
    pub mode: QueueMode,
    pub consumers: Vec<CachePadded<QueueConsumer<WORDS>>>,
    pub queues: KernelQueues,
    /// Pushes of each producer.
    pub pushes: u32,
    /// Number of wrong elements of all passes. Elements are always counted and summed.
    pub wrong: u64,
}

impl<'a, const WORDS: usize> QueueCase<'a, WORDS> {
    pub fn new(
        bench: &QueueBench<'_>,
        kind: QueueCaseKind<'a>,
        algorithm: Algorithm,
        mode: QueueMode,
    ) -> Result<Self, DeviceError> {
        let queues = bench.queues(algorithm)?;
        // SAFETY: the caller selects elements of WORDS words, and the consumers are stored together with their queues.
        let consumers = unsafe { queues.consumers() };
        let most = (MOST_ELEMENTS / 4 / bench.producers()).clamp(1, 200_000) as u32;
        let pushes = if matches!(kind, QueueCaseKind::Stores) { most } else { 1 };
        Ok(QueueCase { kind, algorithm, mode, consumers, queues, pushes, wrong: 0 })
    }

    /// Returns the number of bytes of the wrong elements.
    pub fn wrong_bytes(&self) -> u64 {
        8 * WORDS as u64 * self.wrong
    }

    pub fn is_queue(&self) -> bool {
        matches!(self.kind, QueueCaseKind::Queue)
    }

    pub fn name(&self) -> String {
        match self.kind {
            QueueCaseKind::PingPong(0) => "ping-pong".into(),
            QueueCaseKind::PingPong(_) => "ping-pong-late".into(),
            QueueCaseKind::EmptyPoll => "empty-poll".into(),
            QueueCaseKind::Stores => "stores".into(),
            QueueCaseKind::Prototype(_) => "prototype".into(),
            QueueCaseKind::Queue => values::name(self.algorithm),
        }
    }

    /// Returns the names of the cases that this one can be compared with, in order of preference.
    pub fn baselines(&self) -> &'static [&'static str] {
        match (&self.kind, self.algorithm) {
            (QueueCaseKind::Queue, Algorithm::Ticket) if self.mode == QueueMode::Nbi => &["prototype", "stores"],
            (QueueCaseKind::Queue, Algorithm::Ticket) => &["ping-pong"],
            (QueueCaseKind::Queue, _) => &["ticket"],
            _ => &[],
        }
    }

    /// Runs a lower bound or the prototype. Returns microseconds.
    pub fn bound(&mut self, bench: &QueueBench<'_>, results: &Buffer) -> Result<f64, Failure> {
        let (QueueConfig { grid, block, .. }, timeout) = (bench.tuple, bench.args.timeout);
        match &mut self.kind {
            QueueCaseKind::PingPong(late) => {
                let iterations = if matches!(bench.device, Device::Emulated) { 200 } else { 5000 };
                let flag = Flag { payload: None, first_poll_ns: *late };
                Ok(round_trip(&bench.device, 1, iterations, timeout, flag, None)?)
            }
            QueueCaseKind::EmptyPoll => Ok(self.consumers[0].empty_poll_ns() / 1000.0),
            QueueCaseKind::Prototype(ring) => {
                let core = bench.cores.first().copied();
                Ok(ring.run(grid, block, self.pushes, timeout, core)? / f64::from(self.pushes))
            }
            QueueCaseKind::Stores | QueueCaseKind::Queue => {
                let args = bench.args(self.queues.pointer(), self.pushes, results);
                // SAFETY: the queues and the results outlive the launch, which ends in this function.
                let launch = unsafe { bench.device.launch(&QUEUE_STORES, grid, block, args) }?;
                launch.wait(|| if signals::interrupted() { Err(Failure::Interrupted) } else { Ok(()) })?;
                Ok(bench.elapsed(results, &self.queues)?.0 / f64::from(self.pushes))
            }
        }
    }

    pub fn row(&self, bench: &QueueBench<'_>, measured: &CaseResults) -> Row {
        let one = QueueBench { tuple: QueueConfig { grid: 1, rings: 1, block: 1, ..bench.tuple }, ..*bench };
        let mut row = match self.kind {
            QueueCaseKind::PingPong(_) => one.blank(&self.name()),
            QueueCaseKind::EmptyPoll => Row::new("queue", self.name(), "cpu", "none"),
            _ => bench.blank(&self.name()),
        };
        row.memory = Some(values::name(bench.tuple.place));
        match self.kind {
            QueueCaseKind::PingPong(_) | QueueCaseKind::EmptyPoll => {
                let bytes = if matches!(self.kind, QueueCaseKind::EmptyPoll) { WORDS as u64 * 8 } else { 8 };
                row.size_bytes = Some(bytes);
                row.set(&SLOT_BYTES, None::<u32>).set(&RING_SLOTS, None::<u32>).times(&measured.times());
                return row;
            }
            QueueCaseKind::Stores => {}
            QueueCaseKind::Prototype(_) => _ = row.set(&CONSUMERS, 1u32),
            QueueCaseKind::Queue => {
                let empty = measured.of_rank_0(EMPTY).iter().sum::<f64>() as u64;
                row.set(&CONSUMERS, bench.consumer_threads()).set(&EMPTY_POLLS, empty);
            }
        }
        row.mode = (!matches!(self.kind, QueueCaseKind::Stores)).then(|| values::name(self.mode));
        row.iterations = Some(self.pushes.into());
        measured.fill(&mut row, bench.producers() * WORDS as u64 * 8, bench.producers());
        row
    }
}
