//! `ginlab all2all`: every rank writes a block to every other rank, with equal load on all rails.

mod args;
mod measure;
pub mod pairs;
mod round;

use crate::columns::{AGAIN, COMPLETION, IMBALANCE, RAIL_BYTES, SLOT_BYTES};
use crate::error::Failure;
use crate::job::{Job, rails_text};
use crate::nodes;
use crate::program::CommandSpec;
use crate::runner::{Experiment, Plan, Rows, drive, program};
use crate::values::usage;
use args::{All2AllArgs, All2AllConfig, tuples};
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::{Access, Rail};
use ginlab::report::{About, Column, Header, Headline, Plot, Row};
use round::All2all;

pub const PROGRAMS: &[CommandSpec] = &[program::<All2all>()];

const ALGBW: Column = Column::measured(
    "algbw_gbytes_s",
    "GB/s",
    "Algorithm bandwidth per rank at the median, as defined by nccl-tests: a rank's whole buffer, including its own \
     block, divided by the time",
);
const BUSBW: Column = Column::measured(
    "busbw_gbytes_s",
    "GB/s",
    "Bandwidth of the bytes that cross the network: `algbw` times (ranks - 1) / ranks for all-to-all",
);

/// Rail and receiver with which ranks start.
const RAIL_START: Column = Column::chosen(
    "rail_start",
    "",
    "First rail and receiver of a rank's messages in a round: `spread`, `same`, `by-rank`",
);
/// Imbalance of receivers' rails in a round.
const RECEIVED: Column = Column::measured(
    "received_imbalance_pct",
    "%",
    "Excess of messages on a receiver's busiest rail over the mean of its rails; mean over rounds",
);

impl Experiment for All2all {
    type Args = All2AllArgs;
    type Config = All2AllConfig;

    const ABOUT: About = About {
        columns: &[
            COMPLETION,
            SLOT_BYTES,
            AGAIN,
            RAIL_BYTES,
            ALGBW,
            BUSBW,
            IMBALANCE.shown("imbal.", 6),
            RAIL_START,
            RECEIVED,
            nodes::OF,
            nodes::NODE,
            nodes::SENDERS,
            nodes::GPU_MIN,
            nodes::GPU_MAX,
            nodes::RAIL_MIN,
            nodes::RAIL_MAX,
        ],
        without: &["mode", "grid"],
        shows_memory: true,
        headlines: &[Headline::most("all-to-all, highest bandwidth of a rank", "busbw_gbytes_s", &[])],
        plots: &[Plot::BANDWIDTH, Plot::TIME],
        ..About::new("all2all", "Measure a CPU-initiated all-to-all over rails")
    };

    fn plan(args: &mut All2AllArgs) -> Result<Plan<All2AllConfig>, Failure> {
        args.job.usual_rails(&mut args.rails);
        let tuples = tuples(args)?;
        let options =
            format!("warmup {} check {} {:?} {:?}", args.warmup, !args.no_check, args.job.memory, args.job.completion);
        let rails = rails_text(args.rails.as_deref().unwrap_or_default());
        let fingerprint =
            vec![("rails".into(), rails), ("rows".into(), format!("{tuples:?}")), ("options".into(), options)];
        let ranks = args.job.ranks(fingerprint, |ranks| match ranks {
            0 | 1 => Err(usage("--np", "an all-to-all requires at least 2 ranks")),
            _ => Ok(()),
        })?;
        Ok(Plan::of_ranks(tuples, ranks))
    }

    async fn open(
        args: &All2AllArgs,
        tuples: &mut Vec<All2AllConfig>,
        ranks: &mut Bootstrap,
    ) -> Result<(All2all, Header), Failure> {
        let memory = tuples.iter().map(All2AllConfig::stride).max().unwrap_or(64) * ranks.size() as u64;
        let rails = tuples.iter().map(|tuple| tuple.rails).max().unwrap_or(1);
        let mut job = Job::open(&args.job, rails, false, memory * 2, ranks)?;
        let source = job.register(args.job.memory, memory, Access::SOURCE)?;
        let destination = job.register(args.job.memory, memory, Access::REMOTE_WRITE)?;
        job.connect(&[&destination], ranks)?;
        if args.per_node {
            job.flow.time_rails();
        }
        // Drives the rails even while a rank waits for the others.
        drive(&job.flow);
        let mut header = job.header(args.job.memory, ranks);
        header.note(
            "time_us is the time of one round on the slowest rank, from its first write until it has sent and received \
             all its blocks; percentiles are over rounds; bandwidths are per rank: GB/s and busbw count bytes that \
             cross the network, algbw also a rank's own block, which is not copied; rail_bytes is the sum over all \
             ranks",
        );
        let limit = |rail| job.flow.with_rail(rail, |rail| rail.limits().max_transfer_bytes);
        let longest = (0..job.flow.rails()).filter_map(limit).min().unwrap_or(u64::MAX);
        let targets = job.connections.iter().map(|connection| connection.target(0)).collect::<Result<_, _>>()?;
        let all2all = All2all { args: args.clone(), job, source, destination, targets, step: 0, longest, iteration: 1 };
        Ok((all2all, header))
    }

    async fn tuple(&mut self, tuple: &All2AllConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        self.measure(tuple, ranks).await
    }

    fn what(_: &Row) -> String {
        "blocks".into()
    }
}
