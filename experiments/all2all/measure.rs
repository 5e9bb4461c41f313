//! Measurement of one row: verified rounds, then timed rounds.

use super::args::Tuple;
use super::pairs;
use super::round::{All2all, Cut};
use super::{ALGBW, BUSBW, RAIL_START, RECEIVED};
use crate::columns::{AGAIN, IMBALANCE, RAIL_BYTES, SLOT_BYTES};
use crate::error::Failure;
use crate::job::{busy_us, check_room, moved};
use crate::nodes::{self, Sender};
use crate::runner::{Rows, added, slowest, timed};
use ginlab::bootstrap::Bootstrap;
use ginlab::measure::pattern;
use ginlab::rails::strategy::Strategy;
use ginlab::report::Row;
use serde::{Deserialize, Serialize};

/// Minimum number of verified rounds. Increased to the number of rails if that is larger.
const LEAST_VERIFIED: u64 = 4;

/// Results of one rank for a row.
#[derive(Serialize, Deserialize)]
struct Part {
    sender: Sender,
    again: u64,
    wrong: Option<u64>,
}

impl All2all {
    /// Measures a tuple. Returns its row and the times of its rounds on rank 0, and no rows on other ranks.
    pub async fn measure(&mut self, tuple: &Tuple, all: &mut Bootstrap) -> Result<Rows, Failure> {
        let ranks = all.size();
        let cut = Cut::new(tuple, self.longest);
        check_room(ranks, cut.on_one_rail(), self.job.immediates)?;
        let rounds = tuple.rounds(ranks);
        let wrong = if self.args.no_check { None } else { Some(self.verify(tuple, &cut, all).await?) };
        for round in 0..u64::from(self.args.warmup) {
            self.round(&cut, tuple.stride(), round, all).await?;
        }
        self.gate(all).await?;
        let before = self.job.flow.counters();
        let mut times = Vec::with_capacity(rounds as usize);
        for round in 0..rounds {
            times.push(self.round(&cut, tuple.stride(), round, all).await?);
        }
        let after = self.job.flow.counters();
        let others = ranks as u64 - 1;
        let sender = Sender {
            rank: all.rank(),
            times,
            bytes: tuple.bytes * others,
            operations: others,
            rail_bytes: moved(&before, &after, tuple.rails),
            rail_us: busy_us(&before, &after, tuple.rails),
        };
        let mine = Part { sender, again: after.again - before.again, wrong };
        // No transfer is in flight: all writes of this rank are complete. Completions that it owed to others were sent
        // with what it received.
        let Some(parts) = all.gather_values(&mine, "times of a row")? else { return Ok(Rows::new()) };
        let mut rows = vec![self.row(tuple, &parts)];
        if self.args.per_node {
            let senders: Vec<Sender> = parts.into_iter().map(|part| part.sender).collect();
            rows.extend(nodes::sums(
                &rows[0].0,
                &senders,
                self.job.line_rate(tuple.rails),
                &nodes::of_ranks(all, None),
            ));
        }
        Ok(rows)
    }

    fn row(&self, tuple: &Tuple, all: &[Part]) -> (Row, Vec<f64>) {
        let (job, ranks) = (&self.job, all.len() as u64);
        let mut row = job.row("all2all", "all2all", tuple.rails, &self.args.job);
        row.strategy = Some(tuple.strategy.to_string());
        row.size_bytes = Some(tuple.bytes);
        row.iterations = Some(1);
        row.set(&SLOT_BYTES, tuple.stride()).set(&RAIL_START, tuple.start.to_string());
        if tuple.strategy == Strategy::RoundRobin {
            row.set(&RECEIVED, tuple.start.received_imbalance_pct(tuple.rounds(all.len()), all.len(), tuple.rails));
        }
        // The time of a round is that of its slowest rank.
        let times = slowest(all, |part| &part.sender.times);
        // Bytes that a rank sends to the others. It receives as many at the same time.
        timed(&mut row, &times, tuple.bytes * (ranks - 1), ranks - 1);
        row.tail(&times);
        let busbw = row.bandwidth_gbytes_s;
        row.set(&BUSBW, busbw).set(&ALGBW, busbw.map(|busbw| busbw * ranks as f64 / (ranks - 1) as f64));
        row.line_rate(job.line_rate(tuple.rails));
        row.set(&IMBALANCE, all.iter().map(|part| pairs::imbalance_pct(&part.sender.rail_bytes)).reduce(f64::max));
        row.set(&RAIL_BYTES, added(all.iter().map(|part| &part.sender.rail_bytes)));
        row.set(&AGAIN, all.iter().map(|part| part.again).sum::<u64>());
        row.verified(all.iter().map(|part| part.wrong).sum());
        (row, times)
    }

    /// Runs at least as many rounds as there are rails, so that every rail carries each block. Returns the number of
    /// wrong bytes that this rank received.
    async fn verify(&mut self, tuple: &Tuple, cut: &Cut, all: &mut Bootstrap) -> Result<u64, Failure> {
        let (rank, ranks) = (all.rank() as u32, all.size());
        let (stride, bytes) = (tuple.stride() as usize, tuple.bytes as usize);
        let mut block = vec![0; bytes];
        let mut wrong = 0;
        for round in 0..LEAST_VERIFIED.max(tuple.rails as u64) {
            let iteration = self.iteration;
            self.iteration += 1;
            for peer in pairs::targets(rank as usize, ranks) {
                pattern::fill(&mut block, pattern::seed(rank, iteration, peer as u32));
                self.source.buffer().write(peer * stride, &block)?;
                pattern::poison(&mut block, pattern::seed(peer as u32, iteration, rank));
                self.destination.buffer().write(peer * stride, &block)?;
            }
            // All ranks must poison their destinations before any rank writes.
            self.gate(all).await?;
            self.round(cut, tuple.stride(), round, all).await?;
            for peer in pairs::targets(rank as usize, ranks) {
                self.destination.buffer().read(peer * stride, &mut block)?;
                wrong += pattern::check(&block, pattern::seed(peer as u32, iteration, rank)) as u64;
            }
        }
        // All ranks must compare before any rank writes again.
        self.gate(all).await?;
        Ok(wrong)
    }
}
