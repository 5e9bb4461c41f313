//! Options of `ginlab moe`, and the rows that they select.

use super::plan::{ArrivalMethod, MoeProblem, TALLIES, TokenType, Unit};
use crate::args::RepeatArgs;
use crate::error::Failure;
use crate::values::{List, counts, usage};
use crate::world::{CallScope, WorldArgs};
use ginlab::gin::PePath;
use itertools::iproduct;
use kernels::gin::{MOST_ADDED, USER_SIGNALS};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  ginlab moe                                              run the published problem between two PEs: 128 tokens, hidden 7168, top-8 of 256
  ginlab moe --np 8 --unit expert,rank,node --node-size 4 --path auto -p model:p5     run two nodes of four, with rails between them
  ginlab moe --np 4 --path rails -p model:p5 --unit rank --count signal,word,immediate   compare the ways of sending counts
  ginlab moe --tokens 4096 --unit rank --type bf16        send many tokens, limited by bandwidth
  ginlab moe --path direct -p efa-verbs/soft:p5 --unit rank     let the kernels drive a simulated NIC
  ginlab moe --hidden 64 --tokens 8 --experts 24 --topk 4 --path rails -p worst:seed=7    test a small problem over the worst-case network
  ginlab moe --routing lists.txt                          read the experts of each token from a file";

/// Options of `ginlab moe`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("repeats", |arg| arg.help("Number of launches; 0 to verify only").default_value("3").value_parser(clap::value_parser!(u32).range(0..=1000))))]
pub struct MoeArgs {
    /// Tokens per PE
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub tokens: u32,
    /// Elements per token
    #[arg(long, default_value_t = 7168, value_name = "N")]
    pub hidden: u32,
    /// Number of experts of all PEs together
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub experts: u32,
    /// Experts per token
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub topk: u32,
    /// Element type on the way to the experts (bf16 on the way back); a list to sweep
    #[arg(long = "type", value_enum, value_delimiter = ',', default_value = "fp8", value_name = "LIST")]
    pub kind: Vec<TokenType>,
    /// Preference of the router for some experts: shares fall as this power of their rank (0 for equal shares)
    #[arg(long, default_value_t = 0.0, value_name = "POWER")]
    pub skew: f64,
    /// Seed of the router
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// File with the experts of one token per line, instead of random experts
    #[arg(long, value_name = "FILE")]
    pub routing: Option<PathBuf>,
    /// Unit that is sent as one message; a list to sweep
    #[arg(long, value_enum, value_delimiter = ',', default_value = "expert,rank,node", value_name = "LIST")]
    pub unit: Vec<Unit>,
    /// Method of sending counts; a list to sweep
    #[arg(long, value_enum, value_delimiter = ',', default_value = "signal", value_name = "LIST")]
    pub count: Vec<ArrivalMethod>,
    /// Threads that put; a list to sweep
    #[arg(long, value_enum, value_delimiter = ',', default_value = "warp", value_name = "LIST")]
    pub scope: Vec<CallScope>,
    /// Puts per fence; a list to sweep
    #[arg(long, default_value = "1", value_name = "LIST", value_parser = counts::<u32>(32))]
    pub batch: List<u32>,
    /// Number of blocks [default: as many as are resident on the device, at most one per token; 4 on the emulated
    /// device]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub grid: Option<u32>,
    /// Threads per block
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub block: u32,
    /// Timed rounds per launch
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub iterations: u32,
    /// Untimed rounds before the timed ones
    #[arg(short = 'w', long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub warmup: u32,
    #[command(flatten)]
    pub repeat: RepeatArgs,
    /// Rounds of the verified launch, each with different tokens and choices
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub check_rounds: u32,
    /// Path between PEs: auto, nvlink, rails, direct (the kernel drives the NIC: -p efa-verbs, efa-verbs/soft:p5)
    #[arg(long, default_value_t = PePath::Auto, value_name = "PATH")]
    pub path: PePath,
    /// Number of PEs that count as a node, with only rails between nodes
    #[arg(long, value_name = "N")]
    pub node_size: Option<usize>,
    #[command(flatten)]
    pub world: WorldArgs,
}

/// Parameters of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeConfig {
    pub unit: Unit,
    pub count: ArrivalMethod,
    pub kind: TokenType,
    pub scope: CallScope,
    pub batch: u32,
    pub grid: u32,
}

impl MoeArgs {
    /// Returns the problem among `pes` PEs, `local` of them per node.
    pub fn problem(&self, pes: u32, local: u32) -> MoeProblem {
        MoeProblem { tokens: self.tokens, hidden: self.hidden, experts: self.experts, topk: self.topk, pes, local }
    }

    /// Returns the parameter combinations of all rows that the options select. Grids are chosen when the device is
    /// known.
    pub fn tuples(&self) -> Vec<MoeConfig> {
        let all = iproduct!(&self.kind, &self.unit, &self.count, &self.scope, &self.batch);
        let tuple = |(&kind, &unit, &count, &scope, &batch)| MoeConfig { unit, count, kind, scope, batch, grid: 0 };
        all.map(tuple).collect()
    }

    /// Rejects options that are impossible with `ranks` ranks.
    pub fn check(&self, ranks: usize) -> Result<(), Failure> {
        let pes = u32::try_from(ranks).unwrap_or(u32::MAX);
        if !(2..=USER_SIGNALS / TALLIES).contains(&pes) {
            return Err(usage("--np", format!("{ranks} ranks: must be from 2 to {}", USER_SIGNALS / TALLIES)));
        }
        self.problem(pes, self.node_size.map_or(1, |size| size as u32)).check()?;
        // Maximum messages from one PE to another.
        for unit in &self.unit {
            let most = u64::from(self.tokens) * u64::from(self.problem(pes, 1).each(*unit));
            if most >= MOST_ADDED && self.count.iter().any(|count| *count != ArrivalMethod::Word) {
                let text = format!(
                    "up to {most} messages from a PE, but a signal over rails adds at most {MOST_ADDED}: use --count \
                     word"
                );
                return Err(usage("--count", text));
            }
        }
        Ok(())
    }
}
