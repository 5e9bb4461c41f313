//! One row: rounds timed, then rounds verified.

use super::args::Tuple;
use super::pairs;
use super::round::{All2all, Cut};
use super::{ALGBW, BUSBW, RAIL_START, RECEIVED};
use crate::columns::{AGAIN, IMBALANCE, RAIL_BYTES, SLOT_BYTES};
use crate::error::Failure;
use crate::job::{check_room, moved};
use crate::nodes::{self, Sender};
use crate::runner::{Rows, added, slowest, timed};
use ginlab::bootstrap::Bootstrap;
use ginlab::measure::pattern;
use ginlab::rails::strategy::Strategy;
use ginlab::report::Row;
use serde::{Deserialize, Serialize};

/// What a rank tells of its part of a row.
#[derive(Serialize, Deserialize)]
struct Part {
    sender: Sender,
    again: u64,
    wrong: Option<u64>,
}

impl All2all {
    /// A tuple's row and the times of its rounds, on rank 0.
    pub async fn measure(&mut self, tuple: &Tuple, all: &mut Bootstrap) -> Result<Rows, Failure> {
        let ranks = all.size();
        let cut = Cut::new(tuple, self.longest);
        check_room(ranks, cut.on_one_rail(), self.job.immediates)?;
        let rounds = tuple.rounds(ranks);
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
        let wrong = if self.args.no_check { None } else { Some(self.verify(tuple, &cut, all).await?) };
        let others = ranks as u64 - 1;
        let rail_bytes = moved(&before, &after, tuple.rails);
        let sender = Sender { rank: all.rank(), times, bytes: tuple.bytes * others, operations: others, rail_bytes };
        let mine = Part { sender, again: after.again - before.again, wrong };
        // Nothing is under way any more: all of this rank's writes are complete, and the completions that it owes the others
        // left with what it has received.
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
        // The slowest rank of each round is the round's time.
        let times = slowest(all, |part| &part.sender.times);
        // What a rank sends to the others; it receives as much at the same time.
        timed(&mut row, &times, tuple.bytes * (ranks - 1), ranks - 1);
        let busbw = row.bandwidth_gbytes_s;
        row.set(&BUSBW, busbw).set(&ALGBW, busbw.map(|busbw| busbw * ranks as f64 / (ranks - 1) as f64));
        row.line_rate(job.line_rate(tuple.rails));
        row.set(&IMBALANCE, all.iter().map(|part| pairs::imbalance_pct(&part.sender.rail_bytes)).reduce(f64::max));
        row.set(&RAIL_BYTES, added(all.iter().map(|part| &part.sender.rail_bytes)));
        row.set(&AGAIN, all.iter().map(|part| part.again).sum::<u64>());
        row.verified(all.iter().map(|part| part.wrong).sum());
        (row, times)
    }

    /// As many rounds as rails, so that every rail has its turn; wrong bytes that this rank has received.
    async fn verify(&mut self, tuple: &Tuple, cut: &Cut, all: &mut Bootstrap) -> Result<u64, Failure> {
        let (rank, ranks) = (all.rank() as u32, all.size());
        let (stride, bytes) = (tuple.stride() as usize, tuple.bytes as usize);
        let mut block = vec![0; bytes];
        let mut wrong = 0;
        for round in 0..tuple.rails as u64 {
            let iteration = self.iteration;
            self.iteration += 1;
            for peer in pairs::targets(rank as usize, ranks) {
                pattern::fill(&mut block, pattern::seed(rank, iteration, peer as u32));
                self.source.buffer().write(peer * stride, &block)?;
                pattern::poison(&mut block, pattern::seed(peer as u32, iteration, rank));
                self.destination.buffer().write(peer * stride, &block)?;
            }
            if self.args.corrupt && rank == 0 && round == 0 && bytes > 0 {
                // In the block to the next rank, the last byte.
                let byte = pattern::byte(pattern::seed(0, iteration, 1), tuple.bytes - 1);
                self.source.buffer().write(stride + bytes - 1, &[!byte])?;
            }
            // Poisoned everywhere, before anybody writes.
            self.gate(all).await?;
            self.round(cut, tuple.stride(), round, all).await?;
            for peer in pairs::targets(rank as usize, ranks) {
                self.destination.buffer().read(peer * stride, &mut block)?;
                wrong += pattern::check(&block, pattern::seed(peer as u32, iteration, rank)) as u64;
            }
        }
        Ok(wrong)
    }
}
