//! Options of `ginlab moe`, and the rows that they ask for.

use super::plan::{Count, Problem, TALLIES, Type, Unit};
use crate::error::Failure;
use crate::values::{List, counts, usage};
use crate::world::{Scope, WorldArgs};
use ginlab::gin::Path;
use itertools::iproduct;
use kernels::gin::{MOST_ADDED, USER_SIGNALS};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  ginlab moe                                              the published problem between two PEs: 128 tokens, hidden 7168, top-8 of 256
  ginlab moe --np 8 --unit expert,rank,node --node-size 4 --path auto -p model:p5     two nodes of four, rails between them
  ginlab moe --np 4 --path rails -p model:p5 --unit rank --count signal,word,immediate
  ginlab moe --tokens 4096 --unit rank --type bf16        many tokens: what the wires give
  ginlab moe --hidden 64 --tokens 8 --experts 24 --topk 4 --path rails -p worst:seed=7    small, over the worst network
  ginlab moe --routing lists.txt                          a token's experts on each line";

/// Options of `ginlab moe`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Tokens of each PE
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub tokens: u32,
    /// Values of a token
    #[arg(long, default_value_t = 7168, value_name = "N")]
    pub hidden: u32,
    /// Experts, of all PEs together
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub experts: u32,
    /// Experts of each token
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub topk: u32,
    /// Numbers on their way to the experts (bf16 on the way back), a list that is swept
    #[arg(long = "type", value_enum, value_delimiter = ',', default_value = "fp8", value_name = "LIST")]
    pub kind: Vec<Type>,
    /// How much the router prefers some experts: shares fall as this power of their place; 0: all alike
    #[arg(long, default_value_t = 0.0, value_name = "POWER")]
    pub skew: f64,
    /// What the router draws
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// In place of drawing: a file with the experts of a token on each line
    #[arg(long, value_name = "FILE")]
    pub routing: Option<PathBuf>,
    /// What is sent as one message, a list that is swept
    #[arg(long, value_enum, value_delimiter = ',', default_value = "expert,rank,node", value_name = "LIST")]
    pub unit: Vec<Unit>,
    /// How counts travel, a list that is swept
    #[arg(long, value_enum, value_delimiter = ',', default_value = "signal", value_name = "LIST")]
    pub count: Vec<Count>,
    /// Who puts, a list that is swept
    #[arg(long, value_enum, value_delimiter = ',', default_value = "warp", value_name = "LIST")]
    pub scope: Vec<Scope>,
    /// Puts behind one fence, a list that is swept
    #[arg(long, default_value = "1", value_name = "LIST", value_parser = counts::<u32>(32))]
    pub batch: List<u32>,
    /// Blocks [default: as many as are on the device at once, up to one for each token; 4 on the emulated device]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub grid: Option<u32>,
    /// Threads of a block
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub block: u32,
    /// Rounds of a launch that are timed
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub iterations: u32,
    /// Rounds before them
    #[arg(short = 'w', long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub warmup: u32,
    /// Launches; 0: only check
    #[arg(short = 'r', long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub repeats: u32,
    /// Rounds of the launch that is checked, each with other tokens and other choices
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub check_rounds: u32,
    /// Do not verify
    #[arg(long)]
    pub no_check: bool,
    /// How PEs are reached: auto, nvlink, rails
    #[arg(long, default_value_t = Path::Auto, value_name = "PATH")]
    pub path: Path,
    /// So many PEs count as a node of their own: between nodes there are rails alone
    #[arg(long, value_name = "N")]
    pub node_size: Option<usize>,
    #[command(flatten)]
    pub world: WorldArgs,
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    pub unit: Unit,
    pub count: Count,
    pub kind: Type,
    pub scope: Scope,
    pub batch: u32,
    pub grid: u32,
}

impl Args {
    /// The problem among so many PEs, `local` of them on a node.
    pub fn problem(&self, pes: u32, local: u32) -> Problem {
        Problem { tokens: self.tokens, hidden: self.hidden, experts: self.experts, topk: self.topk, pes, local }
    }

    /// Every row that the options ask for; grids are found when the device is known.
    pub fn tuples(&self) -> Vec<Tuple> {
        let all = iproduct!(&self.kind, &self.unit, &self.count, &self.scope, &self.batch);
        let tuple = |(&kind, &unit, &count, &scope, &batch)| Tuple { unit, count, kind, scope, batch, grid: 0 };
        all.map(tuple).collect()
    }

    /// What so many ranks cannot do.
    pub fn check(&self, ranks: usize) -> Result<(), Failure> {
        let pes = u32::try_from(ranks).unwrap_or(u32::MAX);
        if !(2..=USER_SIGNALS / TALLIES).contains(&pes) {
            return Err(usage("--np", format!("{ranks}; 2 to {} ranks", USER_SIGNALS / TALLIES)));
        }
        self.problem(pes, self.node_size.map_or(1, |size| size as u32)).check()?;
        // Of one PE to another, by the unit that has most.
        for unit in &self.unit {
            let most = u64::from(self.tokens) * u64::from(self.problem(pes, 1).each(*unit));
            if most >= MOST_ADDED && self.count.iter().any(|count| *count != Count::Word) {
                let text = format!(
                    "up to {most} messages from a PE; a signal over rails adds up to {MOST_ADDED}: --count word has no such bound"
                );
                return Err(usage("--count", text));
            }
        }
        Ok(())
    }
}
