//! `ginlab moe`: dispatch and combine of a mixture of experts from inside a kernel, with the common protocols, over
//! every path.

mod args;
#[cfg(test)]
mod arithmetic;
mod expected;
mod measure;
mod memory;
pub mod plan;
mod posted;

use crate::agreed;
use crate::columns::{PROXIES, RAIL_BYTES, RULE, SCOPE, SHARING};
use crate::error::Failure;
use crate::output::OutputArgs;
use crate::program::CommandSpec;
use crate::runner::{Experiment, Plan, Rows, program};
use crate::world;
use args::{MoeArgs, MoeConfig};
use ginlab::bootstrap::Bootstrap;
use ginlab::gin::{World, WorldOptions};
use ginlab::report::{About, Column, Header, Headline, Plot};
use measure::Moe;

pub const PROGRAMS: &[CommandSpec] = &[program::<Moe>()];

pub const UNIT: Column = Column::follows(
    "unit",
    "",
    "Unit that is sent as one message: a token for each `expert`, for each `rank`, or for each `node`, where a rank \
     forwards it",
);
pub const COUNT: Column = Column::chosen(
    "count",
    "",
    "Method of sending counts: a `signal`, a `word` in memory, or in the first message's `immediate`",
)
.shown("count", 9);
pub const TYPE: Column =
    Column::chosen("type", "", "Element type of tokens on the way to the experts: `fp8` with scales, `bf16`")
        .shown("type", 4);
pub const BATCH: Column = Column::chosen("batch", "", "Puts per fence");
pub const NODES: Column =
    Column::chosen("nodes", "", "Number of nodes: heaps are mapped within a node, and rails connect nodes")
        .shown("nodes", 5);
pub const TOKENS: Column = Column::chosen("tokens", "", "Tokens per rank").shown("tokens", 6);
pub const HIDDEN: Column = Column::chosen("hidden", "", "Elements per token");
pub const EXPERTS: Column = Column::chosen("experts", "", "Total number of experts");
pub const TOPK: Column = Column::chosen("topk", "", "Experts per token");
pub const SKEW: Column = Column::chosen("skew", "", "Power by which the experts' shares fall; 0 for equal shares");
pub const DISPATCH: Column = Column::measured(
    "dispatch_us",
    "us",
    "Median time until all tokens have arrived at their experts, on the slowest rank of each round",
)
.shown("dispatch", 9);
pub const COMBINE: Column =
    Column::measured("combine_us", "us", "Median time until all sums are complete, on the slowest rank of each round")
        .shown("combine", 9);
pub const DISPATCH_RATE: Column = Column::measured(
    "dispatch_gbytes_s",
    "GB/s",
    "Bandwidth as defined by DeepEP's low-latency test: a message for each token and expert of a rank, regardless of \
     the unit, divided by `dispatch_us`",
)
.shown("d GB/s", 7);
pub const COMBINE_RATE: Column =
    Column::measured("combine_gbytes_s", "GB/s", "The same for answers in bf16, divided by `combine_us`");
pub const MESSAGES: Column = Column::measured(
    "messages",
    "",
    "Puts to other ranks per round, including answers: mean of the timed rounds, on the rank with the most",
);
const SIGNALS: Column =
    Column::measured("signals", "", "Signals without a put to other ranks per round, counted like `messages`");
pub const SENT: Column = Column::measured("sent_bytes", "B", "Bytes of those puts, counted like `messages`");
const RAIL_TRANSFERS: Column =
    Column::measured("rail_transfers", "", "Transfers per round posted by all ranks, per rail, joined by `;`");
pub const WIRE_US: Column = Column::measured(
    "wire_us",
    "us",
    "Lower bound of a round's time by the line rate of a rank's rails, if the NIC's figures are known",
);
pub const RATE_US: Column = Column::measured(
    "rate_us",
    "us",
    "Lower bound of a round's time by the posting rate of its NICs and proxies: every message and signal over rails, \
     one after another",
);
pub const BOUND: Column = Column::measured(
    "bound",
    "",
    "Bound of the time: the `wire`, the rate of `messages`, or `neither` if the time is more than twice either bound",
)
.shown("bound", 8);

impl Experiment for Moe {
    type Args = MoeArgs;
    type Config = MoeConfig;

    const ABOUT: About = About {
        columns: &[
            UNIT,
            COUNT,
            TYPE,
            SCOPE,
            BATCH,
            NODES,
            TOKENS,
            HIDDEN,
            EXPERTS,
            TOPK,
            SKEW,
            SHARING,
            RULE,
            PROXIES,
            DISPATCH,
            COMBINE,
            DISPATCH_RATE,
            COMBINE_RATE,
            MESSAGES,
            SIGNALS,
            SENT,
            RAIL_BYTES,
            RAIL_TRANSFERS,
            WIRE_US,
            RATE_US,
            BOUND,
        ],
        without: &[
            "mode",
            "strategy",
            "memory",
            "rails",
            "bandwidth_gbytes_s",
            "rate_mops",
            "line_rate_pct",
            "baseline",
            "baseline_ratio",
        ],
        headlines: &[Headline::least("dispatch", "dispatch_us", &[]), Headline::least("combine", "combine_us", &[])],
        plots: &[Plot::TIME.by("unit", "a round by the unit sent as one message", &["unit"])],
        ..About::new("moe", "Run dispatch and combine of a mixture of experts from kernels")
    };

    fn plan(args: &mut MoeArgs) -> Result<Plan<MoeConfig>, Failure> {
        let tuples = args.tuples();
        let fingerprint = vec![
            ("rows".to_owned(), format!("{tuples:?} {:?} x {}", args.grid, args.block)),
            (
                "problem".to_owned(),
                format!("{:?} skew {} seed {} {:?}", args.problem(0, 0), args.skew, args.seed, args.routing),
            ),
            (
                "options".to_owned(),
                format!(
                    "{} x {} + {} check {} {}",
                    args.repeat.repeats, args.iterations, args.warmup, args.check_rounds, !args.repeat.no_check
                ),
            ),
        ];
        let checked = args.clone();
        Ok(Plan::of_ranks(tuples, args.world.ranks(fingerprint, move |ranks| checked.check(ranks))))
    }

    async fn open(
        args: &MoeArgs,
        tuples: &mut Vec<MoeConfig>,
        ranks: &mut Bootstrap,
    ) -> Result<(Moe, Header), Failure> {
        let pes = ranks.size() as u32;
        // Upper bound for nodes of any size.
        let problem = args.problem(pes, pes);
        let heap_bytes = memory::heap_bytes(&problem, tuples);
        let options = WorldOptions { node_size: args.node_size, ..args.world.options(args.path, heap_bytes)? };
        let world = World::open(ranks, &options)?;
        fit(args, tuples, &world, ranks)?;
        let mut header = world::header(&world, ranks);
        header.note(
            "times are taken by the device's clock, between barriers of its blocks: dispatch ends when every message \
             has been found, combine when every sum and every put is complete; GB/s count a message for each token and \
             expert (as DeepEP's low-latency test does), regardless of the unit; each expert multiplies by a different \
             number; size_bytes is the size of a message",
        );
        Ok((Moe::open(args, world, tuples, ranks)?, header))
    }

    async fn tuple(&mut self, tuple: &MoeConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        self.measure(tuple, ranks).await
    }

    async fn close(self, _: &Header, _: &OutputArgs, ranks: &mut Bootstrap) -> Result<(), Failure> {
        Ok(self.world.close(ranks)?)
    }
}

/// Sets grids that are resident on the device, together with those of the PEs that share it. They are equal on every
/// rank.
fn fit(args: &MoeArgs, tuples: &mut [MoeConfig], world: &World, ranks: &mut Bootstrap) -> Result<(), Failure> {
    /// Default number of blocks on the emulated device.
    const EMULATED: u32 = 4;
    let device = world.device();
    for tuple in tuples {
        let kernel = measure::kernel(tuple.scope);
        tuple.grid = match args.grid {
            Some(grid) => grid,
            None => {
                let most = if args.world.is_emulated() { EMULATED } else { args.tokens };
                let mine = device.resident_blocks(&kernel, args.block)?.min(most);
                agreed::least(mine, "number of resident blocks", ranks)?.max(1)
            }
        };
        device.check_resident(&kernel, tuple.grid, args.block)?;
    }
    Ok(())
}
