//! One row: rounds timed, then rounds verified.

use super::args::{Args, Tuple};
use super::round::{Circle, Cut};
use crate::error::Failure;
use crate::job::Job;
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::Rail;
use ginlab::fabric::libfabric::LibfabricRail;
use ginlab::fabric::pairs;
use ginlab::flow::Region;
use ginlab::measure::pattern;
use ginlab::measure::stats::Summary;
use ginlab::report::{Row, Status};
use serde::{Deserialize, Serialize};

pub struct Bench<'a> {
    args: &'a Args,
    circle: Circle<'a>,
    destination: Region<LibfabricRail>,
    /// What one transfer takes on every rail.
    longest: u64,
    /// Number of the next verified round: none repeats the pattern of an earlier one.
    iteration: u32,
}

/// What a rank tells of its part of a row.
#[derive(Serialize, Deserialize)]
struct Part {
    times: Vec<f64>,
    rail_bytes: Vec<u64>,
    again: u64,
    wrong: Option<u64>,
}

impl<'a> Bench<'a> {
    pub fn new(
        args: &'a Args,
        job: &'a Job,
        ranks: &'a mut Bootstrap,
        source: Region<LibfabricRail>,
        destination: Region<LibfabricRail>,
    ) -> Result<Bench<'a>, Failure> {
        let limit = |rail| job.flow.with_rail(rail, |rail| rail.limits().max_transfer_bytes);
        let longest = (0..job.flow.rails()).filter_map(limit).min().unwrap_or(u64::MAX);
        let circle = Circle::new(job, ranks, source)?;
        Ok(Bench { args, circle, destination, longest, iteration: 1 })
    }

    /// A tuple's row and the times of its rounds, on rank 0.
    pub async fn tuple(&mut self, tuple: &Tuple) -> Result<Option<(Row, Vec<f64>)>, Failure> {
        let ranks = self.circle.ranks.size();
        let cut = Cut::new(tuple, self.longest);
        let rounds = tuple.rounds(ranks);
        for round in 0..u64::from(self.args.warmup) {
            self.circle.round(&cut, tuple.stride(), round).await?;
        }
        self.circle.gate().await?;
        let before = self.circle.job.flow.counters();
        let mut times = Vec::with_capacity(rounds as usize);
        for round in 0..rounds {
            times.push(self.circle.round(&cut, tuple.stride(), round).await?);
        }
        let after = self.circle.job.flow.counters();
        let wrong = if self.args.no_check { None } else { Some(self.verify(tuple, &cut).await?) };
        let moved = after.rail_bytes.iter().zip(&before.rail_bytes).take(tuple.rails);
        let mine = Part {
            times,
            rail_bytes: moved.map(|(after, before)| after - before).collect(),
            again: after.again - before.again,
            wrong,
        };
        // Nothing is under way any more: all of this rank's writes are complete, and the completions that it owes the others
        // left with what it has received.
        let all = self.circle.ranks.gather_values(&mine, "times of a row")?;
        Ok(all.map(|all| self.row(tuple, &all)))
    }

    fn row(&self, tuple: &Tuple, all: &[Part]) -> (Row, Vec<f64>) {
        let (job, ranks) = (self.circle.job, self.circle.ranks.size() as u64);
        let mut row = Row::new("all2all", "all2all", "cpu", &job.provider);
        row.ranks = ranks as u32;
        row.rails = Some(tuple.rails as u32);
        row.strategy = Some(tuple.strategy.to_string());
        row.memory = Some(self.args.job.mem.name().into());
        row.size_bytes = Some(tuple.bytes);
        row.iterations = Some(1);
        row.slot_bytes = Some(tuple.stride());
        row.completion = Some(format!("{:?}", self.args.job.completion).to_lowercase());
        // The slowest rank of each round is the round's time.
        let rounds = all.first().map_or(0, |part| part.times.len());
        let slowest = |round: usize| all.iter().filter_map(|part| part.times.get(round)).copied().fold(0.0, f64::max);
        let times: Vec<f64> = (0..rounds).map(slowest).collect();
        if let Some(summary) = Summary::of(&times) {
            // What a rank sends to the others; it receives as much at the same time.
            row.times(&summary).throughput(tuple.bytes * (ranks - 1), ranks - 1);
        }
        row.busbw_gbytes_s = row.bandwidth_gbytes_s;
        row.algbw_gbytes_s = row.busbw_gbytes_s.map(|busbw| busbw * ranks as f64 / (ranks - 1) as f64);
        if let Some(line) = job.line_rate(tuple.rails) {
            row.line_rate(line);
        }
        row.imbalance_pct = all.iter().map(|part| pairs::imbalance_pct(&part.rail_bytes)).reduce(f64::max);
        let of_rail = |rail: usize| all.iter().filter_map(|part| part.rail_bytes.get(rail)).sum();
        row.rail_bytes = Some((0..tuple.rails).map(of_rail).collect());
        row.again = Some(all.iter().map(|part| part.again).sum());
        row.wrong = all.iter().map(|part| part.wrong).sum();
        if row.wrong.is_some_and(|wrong| wrong > 0) {
            row.status = Status::Failed("wrong bytes".into());
        }
        (row, times)
    }

    /// As many rounds as rails, so that every rail has its turn; wrong bytes that this rank has received.
    async fn verify(&mut self, tuple: &Tuple, cut: &Cut) -> Result<u64, Failure> {
        let (rank, ranks) = (self.circle.ranks.rank() as u32, self.circle.ranks.size());
        let (stride, bytes) = (tuple.stride() as usize, tuple.bytes as usize);
        let mut block = vec![0; bytes];
        let mut wrong = 0;
        for round in 0..tuple.rails as u64 {
            let iteration = self.iteration;
            self.iteration += 1;
            for peer in pairs::targets(rank as usize, ranks) {
                pattern::fill(&mut block, pattern::seed(rank, iteration, peer as u32));
                self.circle.source.buffer().write(peer * stride, &block)?;
                pattern::poison(&mut block, pattern::seed(peer as u32, iteration, rank));
                self.destination.buffer().write(peer * stride, &block)?;
            }
            if self.args.corrupt && rank == 0 && round == 0 && bytes > 0 {
                // In the block to the next rank, the last byte.
                let byte = pattern::byte(pattern::seed(0, iteration, 1), tuple.bytes - 1);
                self.circle.source.buffer().write(stride + bytes - 1, &[!byte])?;
            }
            // Poisoned everywhere, before anybody writes.
            self.circle.gate().await?;
            self.circle.round(cut, tuple.stride(), round).await?;
            for peer in pairs::targets(rank as usize, ranks) {
                self.destination.buffer().read(peer * stride, &mut block)?;
                wrong += pattern::check(&block, pattern::seed(peer as u32, iteration, rank)) as u64;
            }
        }
        Ok(wrong)
    }
}
