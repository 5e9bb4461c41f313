//! `ginlab moe`: a mixture of experts' dispatch and combine from inside a kernel, by the protocols of the field, over every path.

mod args;
#[cfg(test)]
mod arithmetic;
mod expected;
mod measure;
mod memory;
pub mod plan;
mod posted;

use crate::columns::{PROXIES, RAIL_BYTES, RULE, SCOPE, SHARING};
use crate::error::Failure;
use crate::output::OutputArgs;
use crate::program::Program;
use crate::runner::{Experiment, Plan, Rows, program};
use crate::world;
use args::{Args, Tuple};
use ginlab::bootstrap::Bootstrap;
use ginlab::gin::{Options, World};
use ginlab::report::{About, Column, Header, Headline, Plot};
use measure::Moe;

pub const PROGRAMS: &[Program] = &[program::<Moe>()];

pub const UNIT: Column = Column::follows(
    "unit",
    "",
    "What is sent as one message: a token for each `expert`, for each `rank`, or for each `node`, where a rank hands it on",
);
pub const COUNT: Column = Column::chosen(
    "count",
    "",
    "How counts travel: a `signal`, a `word` in memory, or in the first message's `immediate`",
)
.shown("count", 9);
pub const TYPE: Column =
    Column::chosen("type", "", "Numbers of a token on its way to the experts: `fp8` with scales, `bf16`")
        .shown("type", 4);
pub const BATCH: Column = Column::chosen("batch", "", "Puts behind one fence");
pub const NODES: Column =
    Column::chosen("nodes", "", "Nodes: inside a node heaps are mapped, between nodes there are rails")
        .shown("nodes", 5);
pub const TOKENS: Column = Column::chosen("tokens", "", "Tokens of a rank").shown("tokens", 6);
pub const HIDDEN: Column = Column::chosen("hidden", "", "Values of a token");
pub const EXPERTS: Column = Column::chosen("experts", "", "Experts of all ranks together");
pub const TOPK: Column = Column::chosen("topk", "", "Experts of a token");
pub const SKEW: Column = Column::chosen("skew", "", "The power by which the experts' shares fall; 0: all alike");
pub const DISPATCH: Column = Column::measured(
    "dispatch_us",
    "us",
    "Median time until all tokens are with their experts, of each round the slowest rank",
)
.shown("dispatch", 9);
pub const COMBINE: Column =
    Column::measured("combine_us", "us", "Median time until all sums are made, of each round the slowest rank")
        .shown("combine", 9);
pub const DISPATCH_RATE: Column = Column::measured(
    "dispatch_gbytes_s",
    "GB/s",
    "As DeepEP's low-latency test counts: a message for each token and expert of a rank, whatever was sent, over `dispatch_us`",
)
.shown("d GB/s", 7);
pub const COMBINE_RATE: Column =
    Column::measured("combine_gbytes_s", "GB/s", "The same of answers in bf16, over `combine_us`");
pub const MESSAGES: Column =
    Column::measured("messages", "", "Puts of a round to other ranks, answers included, of the rank that has the most");
const SIGNALS: Column =
    Column::measured("signals", "", "Signals without a put of a round to other ranks, of the rank that has the most");
pub const SENT: Column = Column::measured("sent_bytes", "B", "Bytes of those puts, of the rank that has the most");
const RAIL_TRANSFERS: Column =
    Column::measured("rail_transfers", "", "Transfers of a round that all ranks have posted, per rail, joined by `;`");
pub const WIRE_US: Column = Column::measured(
    "wire_us",
    "us",
    "The least time of a round by the line rate of a rank's rails, where the card's figures are known",
);
pub const RATE_US: Column = Column::measured(
    "rate_us",
    "us",
    "The least time by what its cards and proxies can post: every message and signal over rails, one after another",
);
pub const BOUND: Column = Column::measured(
    "bound",
    "",
    "What bounds the time: the `wire`, the rate of `messages`, or `neither` where it takes more than twice as long as both",
)
.shown("bound", 8);

impl Experiment for Moe {
    type Args = Args;
    type Tuple = Tuple;

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
        plots: &[Plot::TIME.by("unit", "a round by what is sent as one message", &["unit"])],
        ..About::new(
            "moe",
            "A mixture of experts' dispatch and combine from inside a kernel: which protocol wins, and what bounds it",
        )
    };

    fn plan(args: &mut Args) -> Result<Plan<Tuple>, Failure> {
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
                    args.repeats, args.iterations, args.warmup, args.check_rounds, !args.no_check
                ),
            ),
        ];
        let checked = args.clone();
        Ok(Plan::of_ranks(tuples, args.world.ranks(fingerprint, move |ranks| checked.check(ranks))))
    }

    async fn open(args: &Args, tuples: &mut Vec<Tuple>, ranks: &mut Bootstrap) -> Result<(Moe, Header), Failure> {
        let pes = ranks.size() as u32;
        // The most that nodes of any size need.
        let problem = args.problem(pes, pes);
        let heap_bytes = memory::heap_bytes(&problem, tuples);
        let options = Options { node_size: args.node_size, ..args.world.options(args.path, heap_bytes)? };
        let world = World::open(ranks, &options)?;
        fit(args, tuples, &world, ranks)?;
        let mut header = world::header(&world, ranks);
        header.note(
            "times by the device's own clock, around the barriers of its blocks: dispatch ends when every message is found, combine when every sum \
             is made and every put complete; GB/s count a message for each token and expert (DeepEP's low-latency test), whatever the unit; \
             an expert multiplies by a number of its own; size_bytes is a message's",
        );
        Ok((Moe::open(args, world, tuples, ranks)?, header))
    }

    async fn tuple(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        self.measure(tuple, ranks)
    }

    async fn close(self, _: &Header, _: &OutputArgs, ranks: &mut Bootstrap) -> Result<(), Failure> {
        Ok(self.world.close(ranks)?)
    }
}

/// Grids that are on the device at once, with those of the PEs that share it; the same on every rank.
fn fit(args: &Args, tuples: &mut [Tuple], world: &World, ranks: &mut Bootstrap) -> Result<(), Failure> {
    /// Blocks of the emulated device, where none are named.
    const EMULATED: u32 = 4;
    let device = world.device();
    for tuple in tuples {
        let kernel = measure::kernel(tuple.scope);
        tuple.grid = match args.grid {
            Some(grid) => grid,
            None => {
                let mine = device.resident_blocks(&kernel, args.block)?;
                let all = ranks.all_gather_values(&mine, "blocks that are on a device at once")?;
                let most = if args.world.is_emulated() { EMULATED } else { args.tokens };
                all.into_iter().min().unwrap_or(1).min(most).max(1)
            }
        };
        device.check_resident(&kernel, tuple.grid, args.block)?;
    }
    Ok(())
}
