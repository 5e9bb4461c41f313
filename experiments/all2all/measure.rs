//! Measurement of one row. A run consists of all rounds of a row, which are timed individually.

use super::args::{All2AllArgs, All2AllConfig};
use super::pairs;
use super::round::{All2all, Cut};
use super::{ALGBW, BUSBW, RAIL_START, RECEIVED};
use crate::columns::{IMBALANCE, SLOT_BYTES};
use crate::error::Failure;
use crate::job::check_room;
use crate::nodes;
use crate::payload::PayloadSlots;
use crate::runner::Rows;
use crate::series::{Bench, CaseResults, Sample, SeriesOptions};
use ginlab::bootstrap::Bootstrap;
use ginlab::measure::pattern;
use ginlab::rails::Counters;
use ginlab::rails::strategy::Strategy;
use ginlab::report::Row;

/// Minimum number of verified rounds. It is raised to the number of rails if that is larger.
const LEAST_VERIFIED: u64 = 4;

impl All2all {
    /// Measures a parameter combination. Returns its rows on rank 0, and no rows on other ranks.
    pub async fn measure(&mut self, tuple: &All2AllConfig, all: &mut Bootstrap) -> Result<Rows, Failure> {
        check_room(all.size(), Cut::new(tuple, self.longest).on_one_rail(), self.job.immediates)?;
        let All2AllArgs { no_check, warmup, per_node, .. } = self.args;
        let (warmup, iterations) = (warmup.into(), tuple.rounds(all.size()));
        let series =
            SeriesOptions { repeats: Some(1), check: !no_check, warmup, iterations, what: "the rounds of a row" };
        let Some(results) = series.measure(self, &[*tuple], all).await? else { return Ok(Rows::new()) };
        let measured = results.of(*tuple);
        let row = self.row(tuple, measured);
        let mut sums = Rows::new();
        if per_node {
            let others = all.size() as u64 - 1;
            let senders = measured.by_sender(tuple.bytes * others, others, tuple.rails);
            sums = nodes::sums(&row, &senders, self.job.line_rate(tuple.rails), &nodes::of_ranks(all, None));
        }
        sums.insert(0, (row, measured.times()));
        Ok(sums)
    }

    fn row(&self, tuple: &All2AllConfig, measured: &CaseResults) -> Row {
        let (job, ranks) = (&self.job, measured.0.len());
        let others = ranks as u64 - 1;
        let mut row = job.row("all2all", "all2all", tuple.rails, &self.args.job);
        row.strategy = Some(tuple.strategy.to_string());
        row.size_bytes = Some(tuple.bytes);
        row.iterations = Some(1);
        row.set(&SLOT_BYTES, tuple.stride()).set(&RAIL_START, tuple.start.to_string());
        if tuple.strategy == Strategy::RoundRobin {
            row.set(&RECEIVED, tuple.start.received_imbalance_pct(tuple.rounds(ranks), ranks, tuple.rails));
        }
        // Number of bytes that a rank sends to the others. It receives the same number at the same time.
        measured.fill(&mut row, tuple.bytes * others, others);
        row.tail(&measured.times());
        let busbw = row.bandwidth_gbytes_s;
        row.set(&BUSBW, busbw).set(&ALGBW, busbw.map(|busbw| busbw * ranks as f64 / others as f64));
        row.line_rate(job.line_rate(tuple.rails));
        let imbalance = |bytes: &Vec<u64>| pairs::imbalance_pct(&bytes[..bytes.len().min(tuple.rails)]);
        row.set(&IMBALANCE, measured.0.iter().map(|found| imbalance(&found.rail_bytes)).reduce(f64::max));
        measured.count(&mut row, tuple.rails);
        row
    }
}

impl Bench for All2all {
    type Case = All2AllConfig;

    /// Runs at least as many rounds as there are rails, so that every rail carries each block.
    async fn verify(&mut self, tuple: All2AllConfig, all: &mut Bootstrap) -> Result<Option<u64>, Failure> {
        let (rank, ranks) = (all.rank(), all.size());
        let cut = Cut::new(&tuple, self.longest);
        let mut wrong = 0;
        for round in 0..LEAST_VERIFIED.max(tuple.rails as u64) {
            let iteration = self.iteration;
            self.iteration += 1;
            let slots = |seed: fn(u32, u32, u32) -> u64| {
                let seed = move |peer: usize| seed(rank as u32, iteration, peer as u32);
                pairs::targets(rank, ranks).map(move |peer| (peer as u64 * tuple.stride(), seed(peer)))
            };
            let received = |rank, iteration, peer| pattern::seed(peer, iteration, rank);
            PayloadSlots(self.source.buffer(), tuple.bytes).fill(slots(pattern::seed))?;
            PayloadSlots(self.destination.buffer(), tuple.bytes).poison(slots(received))?;
            // All ranks must poison their destinations before any rank writes.
            self.gate(all).await?;
            self.round(&cut, tuple.stride(), round, all).await?;
            wrong += PayloadSlots(self.destination.buffer(), tuple.bytes).wrong(slots(received))?;
        }
        // All ranks must compare before any rank writes again.
        self.gate(all).await?;
        Ok(Some(wrong))
    }

    async fn run(&mut self, tuple: All2AllConfig, rounds: u64, all: &mut Bootstrap) -> Result<Sample, Failure> {
        let cut = Cut::new(&tuple, self.longest);
        let mut times = Vec::with_capacity(rounds as usize);
        for round in 0..rounds {
            times.push(self.round(&cut, tuple.stride(), round, all).await?);
        }
        // No transfer is in flight: all writes of this rank are complete. Its pending completions for other ranks were
        // sent with the data that it received.
        Ok(Sample { times, parts: Vec::new() })
    }

    fn counters(&self) -> Result<Counters, Failure> {
        Ok(self.job.flow.counters())
    }
}
