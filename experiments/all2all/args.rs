//! Options of `ginlab all2all`, and the parameter combinations that they select.

use super::pairs::Start;
use crate::args::SizeArgs;
use crate::error::Failure;
use crate::job::{JobArgs, USUAL_RAILS};
use crate::values::{List, counts, list, usage};
use ginlab::measure::size;
use ginlab::rails::strategy::Strategy;
use itertools::iproduct;

const EXAMPLES: &str = "\
Examples:
  ginlab all2all --np 8                                   run eight ranks on this machine: 1 and 4 rails, 4 KiB to 1 MiB per pair
  ginlab all2all --np 8 --rails 1,2,3,4,8 -b 0 -e 1M      sweep rails and sizes, starting with empty blocks
  ginlab all2all --np 4 --rails 4 --strategy round-robin,split   compare whole blocks on alternating rails with striped blocks
  mpirun -np 16 -N 8 ginlab all2all --provider efa        run one rank per GPU (build with --features mpi)
  RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 GINLAB_TOKEN=secret ginlab all2all   run one of two hosts, over TCP";

/// Options of `ginlab all2all`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("begin", |arg| arg.help("Smallest block sent from each rank to each other one; K, M and G are powers of two. 0 is followed by 1").default_value("4K")))]
#[command(mut_arg("end", |arg| arg.help("Largest block")), mut_arg("factor", |arg| arg.default_value("4")))]
pub struct All2AllArgs {
    #[command(flatten)]
    pub sizes: SizeArgs,
    /// Timed rounds, rounded up to a multiple of the rails; reduced if a rank would send more than --volume
    #[arg(short = 'n', long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub iterations: u32,
    /// Untimed rounds before the timed ones
    #[arg(short = 'w', long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub warmup: u32,
    /// Maximum bytes that a rank sends in the timed rounds of a row
    #[arg(long, default_value = "256M", value_name = "SIZE", value_parser = size::parse)]
    pub volume: u64,
    /// Number of rails per rank; a list to sweep [default: 1,4, limited to the number of NICs]
    #[arg(long, value_name = "LIST", value_parser = counts::<usize>(64))]
    pub rails: Option<List<usize>>,
    /// Distribution of blocks over rails: single (rail 0), round-robin (whole blocks on alternating rails), split
    /// (striped over all), auto (split from 256 KiB); a list to sweep
    #[arg(long, default_value = "auto", value_name = "LIST", value_parser = list::<Strategy>)]
    pub strategy: List<Strategy>,
    /// First rail and receiver of a rank's messages: spread (by the distance to the receiver), same (every rank starts
    /// at rail 0 and the lowest rank), by-rank (rank r starts at rail r); a list to sweep
    #[arg(long, default_value = "spread", value_name = "LIST", value_parser = list::<Start>)]
    pub rail_start: List<Start>,
    /// Do not verify every byte in separate rounds
    #[arg(long)]
    pub no_check: bool,
    /// Add one row per node and one for the job: totals, slowest and fastest sender and rail, percent of the
    /// node's line rate
    #[arg(long)]
    pub per_node: bool,
    #[command(flatten)]
    pub job: JobArgs,
}

/// Parameters of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct All2AllConfig {
    /// Bytes per block.
    pub bytes: u64,
    pub rails: usize,
    pub strategy: Strategy,
    /// Requested start of a rank's messages; see also [`All2AllConfig::rounds`].
    pub start: Start,
    iterations: u64,
    volume: u64,
}

impl All2AllConfig {
    /// Returns the distance between consecutive blocks, in bytes.
    pub fn stride(&self) -> u64 {
        self.bytes.next_multiple_of(64).max(64)
    }

    /// Returns the number of timed rounds with `ranks` ranks: a multiple of the rails, so that all rails carry the same
    /// number of bytes.
    pub fn rounds(&self, ranks: usize) -> u64 {
        let per_round = self.bytes * (ranks as u64 - 1);
        let most = self.volume.checked_div(per_round).unwrap_or(u64::MAX).max(1);
        self.iterations.min(most).next_multiple_of(self.rails as u64)
    }
}

/// Returns every combination of the swept options.
pub fn tuples(args: &All2AllArgs) -> Result<Vec<All2AllConfig>, Failure> {
    if args.sizes.end >= 1 << 40 {
        return Err(usage("-e", "blocks must be smaller than 1 TiB"));
    }
    let sizes = args.sizes.list()?;
    let rails = args.rails.as_deref().unwrap_or(&USUAL_RAILS);
    let (iterations, volume) = (u64::from(args.iterations), args.volume);
    let tuples = iproduct!(rails, &args.strategy, &sizes, &args.rail_start);
    let tuple =
        |(&rails, &strategy, &bytes, &start)| All2AllConfig { bytes, rails, strategy, start, iterations, volume };
    Ok(tuples.map(tuple).collect())
}

#[cfg(test)]
mod tests {
    use super::{All2AllConfig, Start, Strategy};
    use proptest::prelude::{prop_assert, proptest};

    proptest! {
        #[test]
        fn rounds_balance_rails_within_volume(
            bytes in 0u64..1 << 30, rails in 1usize..65, ranks in 2usize..300, iterations in 1u64..10_000, volume in 0u64..1 << 40,
        ) {
            let tuple = All2AllConfig { bytes, rails, strategy: Strategy::RoundRobin, start: Start::Spread, iterations, volume };
            let rounds = tuple.rounds(ranks);
            prop_assert!(rounds >= 1 && rounds.is_multiple_of(rails as u64));
            prop_assert!(rounds < iterations + rails as u64);
            let sent = (rounds - rails as u64) * bytes * (ranks as u64 - 1);
            prop_assert!(sent <= volume, "{rounds} rounds");
        }
    }
}
