//! Options of `ginlab write`.

use crate::args::{RepeatArgs, SizeArgs};
use crate::job::{JobArgs, USUAL_RAILS, usual_rails};
use crate::rail_rates::AtLeast;
use crate::values::{List, counts, list};
use clap::ValueEnum;
use ginlab::measure::size;
use ginlab::pairing::Pairing;
use ginlab::rails::strategy::Strategy;

const EXAMPLES: &str = "\
Examples:
  ginlab write                                            run two ranks on this machine: 1 and 4 rails, 4 KiB to 4 MiB
  ginlab write -b 64 -e 16M -f 4 --rails 1 --window 64 --buffers 1 --bare   compare with a minimal fi_write loop
  ginlab write -b 64M -e 64M --rails 1,4 --strategy single,split --window 1 --buffers 1   stripe one large buffer over four rails
  ginlab write --np 4 --targets turn,all                  write from rank 0 to each other rank in turn, then to all at the same time
  ginlab write -p efa --versus efa-verbs                  compare libfabric with verbs on the same NICs
  ginlab write --each-rail --at-least 85%                 name rails below 85 % of the line rate, and exit with code 3
  mpirun -np 2 ginlab write --provider efa                run ranks started by MPI (build with --features mpi)
  RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 GINLAB_TOKEN=secret ginlab write   run one of two hosts, over TCP";

/// Options of `ginlab write`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("begin", |arg| arg.default_value("4K").default_value_if("each_rail", "true", "16M")))]
#[command(mut_arg("end", |arg| arg.default_value("4M").default_value_if("each_rail", "true", "16M")))]
#[command(mut_arg("factor", |arg| arg.default_value("4")))]
pub struct WriteArgs {
    #[command(flatten)]
    pub sizes: SizeArgs,
    /// Timed writes per target and repeat, reduced if a repeat would move more than --volume
    #[arg(short = 'n', long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub iterations: u32,
    #[command(flatten)]
    pub repeat: RepeatArgs,
    /// Maximum bytes that one repeat moves per target; larger writes are repeated fewer times
    #[arg(long, default_value = "64M", value_name = "SIZE", value_parser = size::parse)]
    pub volume: u64,
    /// Writes in flight per target; a list to sweep
    #[arg(long, default_value = "16", value_name = "LIST", value_parser = counts::<u32>(4096))]
    pub window: List<u32>,
    /// Number of buffers that the writes of a target cycle through, each of one write [default: equal to the window]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub buffers: Option<u32>,
    /// Number of rails per rank; a list to sweep [default: 1,4, limited to the number of NICs]
    #[arg(long, value_name = "LIST", value_parser = counts::<usize>(64))]
    pub rails: Option<List<usize>>,
    /// Distribution of writes over rails: single, split, round-robin, auto; a list to sweep
    #[arg(long, default_value = "auto", value_name = "LIST", value_parser = list::<Strategy>)]
    pub strategy: List<Strategy>,
    /// Targets: one (half of the ranks write to one of the other half each, on another host if there is one), turn
    /// (rank 0 to each other rank, one after another), all (rank 0 to all others at the same time); a list to sweep
    #[arg(
        long,
        default_value = "one",
        value_name = "LIST",
        value_delimiter = ',',
        value_enum,
        hide_possible_values = true
    )]
    pub targets: Vec<Targets>,
    /// Defer the doorbell (FI_MORE) for up to this many posts, while older writes are complete; 1 for never
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub batch: u32,
    /// Time a minimal fi_write loop over one buffer in addition, in rows with one rail and one target
    #[arg(long)]
    pub bare: bool,
    /// Measure the same writes over this provider too, interleaved with those over --provider, with the ratio of times
    #[arg(long, value_name = "NAME")]
    pub versus: Option<String>,
    /// Add one row per node and one for the job: totals, slowest and fastest sender and rail, percent of the
    /// node's line rate
    #[arg(long)]
    pub per_node: bool,
    /// Measure each rail separately, then all rails concurrently, in both directions of each pair of ranks. Prints one
    /// row per rail with host, GPU, domain and PCI address, and names slow rails [default size: 16M; rails: 4]
    #[arg(long, conflicts_with_all = ["strategy", "targets", "buffers", "batch", "bare", "per_node", "versus"])]
    pub each_rail: bool,
    /// Minimum rate of every rail, in percent of its NIC's line rate (85%) or in Gb/s (90). Without --each-rail, of the
    /// rails of the fastest row over one rail and over several. If a rail is slower, it is named and the exit code is 3
    #[arg(long, value_name = "RATE")]
    pub at_least: Option<AtLeast>,
    #[command(flatten)]
    pub job: JobArgs,
}

impl WriteArgs {
    /// Replaces unspecified rails by the usual ones: one and those of a GPU, or with --each-rail only the latter, each
    /// of which is also measured separately.
    pub fn usual_rails(&mut self) {
        if self.each_rail {
            let JobArgs { provider, domain, .. } = &self.job;
            let usual = &USUAL_RAILS[USUAL_RAILS.len() - 1..];
            self.job.why_fewer = usual_rails(&mut self.rails, usual, provider.as_deref(), domain);
        } else {
            self.job.usual_rails(&mut self.rails);
        }
    }
}

/// Targets of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Targets {
    /// Half of the ranks write to the other half, each to one, across hosts if there are several
    One,
    /// Rank 0 writes to each other rank, one after another
    Turn,
    /// Rank 0 writes to all other ranks at the same time
    All,
}

impl Targets {
    /// Returns the ranks that this rank writes to.
    pub fn of(self, rank: usize, pairing: &Pairing) -> Vec<usize> {
        match self {
            Targets::One => pairing.target(rank).into_iter().collect(),
            Targets::Turn | Targets::All if rank == 0 => (1..pairing.ranks()).collect(),
            _ => Vec::new(),
        }
    }
}
