//! Rows per node and per job.

use super::measure::{CollectiveOutcome, Collectives};
use super::{ALGBW, HEARD, NVLINK_BYTES, OPERATION, PUT_US, PUTS};
use crate::columns::{BUSBW, CEILING, CEILING_PCT};
use crate::nodes::{self, RankContribution};
use crate::runner::Rows;
use crate::series::{CaseResults, RankResult};
use ginlab::bootstrap::Bootstrap;
use ginlab::report::{Row, RowStatus};

impl Collectives {
    /// Returns rows per node and per job: the bytes that each rank's kernels moved to other ranks over mappings and
    /// rails, in that rank's own time.
    pub fn sums(&self, row: &Row, all: &[CollectiveOutcome], measured: &CaseResults, ranks: &Bootstrap) -> Rows {
        if !self.args.per_node || row.status != RowStatus::Ok {
            return Rows::new();
        }
        let sender = |(rank, (outcome, found)): (usize, (&CollectiveOutcome, &RankResult))| RankContribution {
            rank,
            times: found.sample.times.clone(),
            bytes: outcome.mapped + outcome.rails.iter().sum::<u64>(),
            operations: 1,
            rail_bytes: outcome.rails.clone(),
            // The bytes are those of an operation of the verified pass, which is not timed.
            rail_us: Vec::new(),
        };
        let senders: Vec<RankContribution> = all.iter().zip(&measured.0).enumerate().map(sender).collect();
        // The percentage of line rate is only defined if rails carry all bytes.
        let by_rails = all.iter().all(|outcome| outcome.mapped == 0);
        let line = self.ours.world.line_rate().filter(|_| by_rails);
        let mut sums = nodes::sums(row, &senders, line, &nodes::of_ranks(ranks, self.args.node_size));
        for (sum, _) in &mut sums {
            // These columns describe an operation, not a node.
            for column in [&ALGBW, &BUSBW, &CEILING, &CEILING_PCT, &HEARD, &PUTS, &PUT_US, &NVLINK_BYTES] {
                sum.set(column, None::<f64>);
            }
            let whose = sum.case.clone();
            sum.set(&OPERATION, whose);
        }
        sums
    }
}
