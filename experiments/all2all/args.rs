//! The options of `ginlab all2all`, and the tuples that they make.

use super::pairs::Start;
use crate::error::Failure;
use crate::job::{JobArgs, USUAL_RAILS};
use crate::values::{List, counts, list, sizes, usage};
use ginlab::measure::size;
use ginlab::rails::strategy::Strategy;
use itertools::iproduct;

const EXAMPLES: &str = "\
Examples:
  ginlab all2all --np 8                                   eight ranks on this machine, 1 and 4 rails, 4 KiB to 1 MiB per pair
  ginlab all2all --np 8 --rails 1,2,3,4,8 -b 0 -e 1M      every rank to every other one, from empty blocks upwards
  ginlab all2all --np 4 --rails 4 --strategy round-robin,split   whole blocks in turn beside blocks that are cut
  mpirun -np 16 -N 8 ginlab all2all --provider efa        one rank per GPU (build with --features mpi)
  RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 GINLAB_TOKEN=secret ginlab all2all   one of two hosts by TCP";

/// Options of `ginlab all2all`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Smallest block, from each rank to each other one [K, M, G are powers of two]; 0 is followed by 1
    #[arg(short = 'b', long, default_value = "4K", value_name = "SIZE", value_parser = size::parse)]
    pub begin: u64,
    /// Largest block
    #[arg(short = 'e', long, default_value = "1M", value_name = "SIZE", value_parser = size::parse)]
    pub end: u64,
    /// Factor from one size to the next
    #[arg(short = 'f', long, default_value_t = 4, value_name = "N")]
    pub factor: u64,
    /// Timed rounds, rounded up to a multiple of the rails; fewer where a rank would send more than --volume
    #[arg(short = 'n', long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub iterations: u32,
    /// Untimed rounds before
    #[arg(short = 'w', long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub warmup: u32,
    /// Bytes that a rank may send in the timed rounds of a row
    #[arg(long, default_value = "256M", value_name = "SIZE", value_parser = size::parse)]
    pub volume: u64,
    /// Rails per rank, a list that is swept [default: 1,4, and no more than there are cards]
    #[arg(long, value_name = "LIST", value_parser = counts::<usize>(64))]
    pub rails: Option<List<usize>>,
    /// How blocks are laid over the rails, a list that is swept: single (rail 0), round-robin (whole, each by the next rail),
    /// split (cut over all), auto (split from 256 KiB on)
    #[arg(long, default_value = "auto", value_name = "LIST", value_parser = list::<Strategy>)]
    pub strategy: List<Strategy>,
    /// Where a rank's messages begin, a list that is swept: spread (by the distance to the receiver), same (every rank at rail 0 and
    /// with the lowest rank), by-rank (rank r at rail r)
    #[arg(long, default_value = "spread", value_name = "LIST", value_parser = list::<Start>)]
    pub rail_start: List<Start>,
    /// Do not verify every byte in rounds of its own
    #[arg(long)]
    pub no_check: bool,
    /// Also a row per node and one for the job: sums, slowest and fastest sender and rail, percent of the node's line
    #[arg(long)]
    pub per_node: bool,
    #[command(flatten)]
    pub job: JobArgs,
    /// Rank 0 sends one wrong byte in the first verified round of each row
    #[arg(long, hide = true)]
    pub corrupt: bool,
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// Bytes of a block.
    pub bytes: u64,
    pub rails: usize,
    pub strategy: Strategy,
    /// Asked for; see [`Tuple::rounds`].
    pub start: Start,
    iterations: u64,
    volume: u64,
}

impl Tuple {
    /// From one block to the next.
    pub fn stride(&self) -> u64 {
        self.bytes.next_multiple_of(64).max(64)
    }

    /// Timed rounds among so many ranks: a multiple of the rails, so that each rail has carried as much as every other one.
    pub fn rounds(&self, ranks: usize) -> u64 {
        let per_round = self.bytes * (ranks as u64 - 1);
        let most = self.volume.checked_div(per_round).unwrap_or(u64::MAX).max(1);
        self.iterations.min(most).next_multiple_of(self.rails as u64)
    }
}

/// Every combination of what is swept.
pub fn tuples(args: &Args) -> Result<Vec<Tuple>, Failure> {
    if args.end >= 1 << 40 {
        return Err(usage("-e", "blocks of 1 TiB and more"));
    }
    let sizes = sizes(args.begin, args.end, args.factor)?;
    let rails = args.rails.as_deref().unwrap_or(&USUAL_RAILS);
    let (iterations, volume) = (u64::from(args.iterations), args.volume);
    let tuples = iproduct!(rails, &args.strategy, &sizes, &args.rail_start);
    let tuple = |(&rails, &strategy, &bytes, &start)| Tuple { bytes, rails, strategy, start, iterations, volume };
    Ok(tuples.map(tuple).collect())
}

#[cfg(test)]
mod tests {
    use super::{Start, Strategy, Tuple};
    use proptest::prelude::{prop_assert, proptest};

    proptest! {
        #[test]
        fn rounds_load_every_rail_alike_and_keep_to_the_volume(
            bytes in 0u64..1 << 30, rails in 1usize..65, ranks in 2usize..300, iterations in 1u64..10_000, volume in 0u64..1 << 40,
        ) {
            let tuple = Tuple { bytes, rails, strategy: Strategy::RoundRobin, start: Start::Spread, iterations, volume };
            let rounds = tuple.rounds(ranks);
            prop_assert!(rounds >= 1 && rounds.is_multiple_of(rails as u64));
            prop_assert!(rounds < iterations + rails as u64);
            let sent = (rounds - rails as u64) * bytes * (ranks as u64 - 1);
            prop_assert!(sent <= volume, "{rounds} rounds");
        }
    }
}
