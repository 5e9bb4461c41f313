//! The options of `ginlab write`.

use crate::job::JobArgs;
use crate::values::{List, counts, list};
use clap::ValueEnum;
use ginlab::measure::size;
use ginlab::pairing::Pairing;
use ginlab::rails::strategy::Strategy;

const EXAMPLES: &str = "\
Examples:
  ginlab write                                            two ranks on this machine, 1 and 4 rails, 4 KiB to 4 MiB
  ginlab write -b 64 -e 16M -f 4 --rails 1 --window 64 --buffers 1 --bare   beside the plainest loop of fi_write
  ginlab write -b 64M -e 64M --rails 1,4 --strategy single,split --window 1 --buffers 1   one large buffer over four rails
  ginlab write --np 4 --targets turn,all                  rank 0 to each other rank in turn, then to all at once
  mpirun -np 2 ginlab write --provider efa                ranks from MPI (build with --features mpi)
  RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 GINLAB_TOKEN=secret ginlab write   one of two hosts by TCP";

/// Options of `ginlab write`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Smallest write [K, M, G are powers of two]
    #[arg(short = 'b', long, default_value = "4K", value_name = "SIZE", value_parser = size::parse)]
    pub begin: u64,
    /// Largest write
    #[arg(short = 'e', long, default_value = "4M", value_name = "SIZE", value_parser = size::parse)]
    pub end: u64,
    /// Factor from one size to the next
    #[arg(short = 'f', long, default_value_t = 4, value_name = "N")]
    pub factor: u64,
    /// Timed writes per target and repeat; fewer where a repeat would move more than --volume
    #[arg(short = 'n', long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub iterations: u32,
    /// Repeats; times are given as median, min and p99 over them
    #[arg(short = 'r', long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub repeats: u32,
    /// Bytes that one repeat may move per target; fewer writes above it
    #[arg(long, default_value = "64M", value_name = "SIZE", value_parser = size::parse)]
    pub volume: u64,
    /// Writes in flight per target, a list that is swept
    #[arg(long, default_value = "16", value_name = "LIST", value_parser = counts::<u32>(4096))]
    pub window: List<u32>,
    /// Buffers that the writes of a target go round, each of one write [default: as many as the window]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub buffers: Option<u32>,
    /// Rails per rank, a list that is swept [default: 1,4, and no more than there are cards]
    #[arg(long, value_name = "LIST", value_parser = counts::<usize>(64))]
    pub rails: Option<List<usize>>,
    /// How writes are laid over the rails, a list that is swept: single, split, round-robin, auto
    #[arg(long, default_value = "auto", value_name = "LIST", value_parser = list::<Strategy>)]
    pub strategy: List<Strategy>,
    /// Who is written to: one (half of the ranks each to one of the other half, on another host where there is one), turn (rank 0 to each other rank in turn), all
    /// (rank 0 to all others at once); a list
    #[arg(long, default_value = "one", value_name = "LIST", value_delimiter = ',', value_enum)]
    pub targets: Vec<Targets>,
    /// Hold the doorbell (FI_MORE) for up to so many posts, while older writes are complete; 1: never
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub batch: u32,
    /// Also time the plainest loop of fi_write over one buffer, on rows of one rail and one target
    #[arg(long)]
    pub bare: bool,
    /// Do not verify every byte in a pass of its own
    #[arg(long)]
    pub no_check: bool,
    /// Also a row per node and one for the job: sums, slowest and fastest sender and rail, percent of the node's line
    #[arg(long)]
    pub per_node: bool,
    #[command(flatten)]
    pub job: JobArgs,
}

/// Who is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Targets {
    /// Half of the ranks writes to the other half, each to one; across hosts where there are several.
    One,
    /// Rank 0 writes to each other rank in turn.
    Turn,
    /// Rank 0 writes to all others at once.
    All,
}

impl Targets {
    /// The ranks that this rank writes to.
    pub fn of(self, rank: usize, pairing: &Pairing) -> Vec<usize> {
        match self {
            Targets::One => pairing.target(rank).into_iter().collect(),
            Targets::Turn | Targets::All if rank == 0 => (1..pairing.ranks()).collect(),
            _ => Vec::new(),
        }
    }
}
