//! The options of `ginlab write`, as typed, and the plan that they make.

use crate::error::Failure;
use crate::job::JobArgs;
use crate::output::OutputArgs;
use clap::ValueEnum;
use ginlab::measure::size;
use ginlab::pairing::Pairing;
use ginlab::proxy::strategy::Strategy;

const EXAMPLES: &str = "\
Examples:
  ginlab write                                            two ranks on this machine, 1 and 4 rails, 4 KiB to 4 MiB
  ginlab write -b 64 -e 16M -f 4 --rails 1 --window 64 --buffers 1 --bare   beside the plainest loop of fi_write
  ginlab write -b 64M -e 64M --rails 1,4 --strategy single,split --window 1 --buffers 1   one large buffer over four rails
  ginlab write --np 4 --targets turn,all                  rank 0 to each other rank in turn, then to all at once
  mpirun -np 2 ginlab write --provider efa                ranks from MPI (build with --features mpi)
  RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 GINLAB_TOKEN=secret ginlab write   one of two hosts by TCP";

/// Options of `ginlab write`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Smallest write [K, M, G are powers of two]
    #[arg(short = 'b', long, default_value = "4K", value_name = "SIZE")]
    pub begin: String,
    /// Largest write
    #[arg(short = 'e', long, default_value = "4M", value_name = "SIZE")]
    pub end: String,
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
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    pub volume: String,
    /// Writes in flight per target, a list that is swept
    #[arg(long, default_value = "16", value_name = "LIST")]
    pub window: String,
    /// Buffers that the writes of a target go round, each of one write [default: as many as the window]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub buffers: Option<u32>,
    /// Rails per rank, a list that is swept
    #[arg(long, default_value = "1,4", value_name = "LIST")]
    pub rails: String,
    /// How writes are laid over the rails, a list that is swept: single, split, round-robin, auto
    #[arg(long, default_value = "auto", value_name = "LIST")]
    pub strategy: String,
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
    #[command(flatten)]
    pub job: JobArgs,
    #[command(flatten)]
    pub output: OutputArgs,
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
    /// For rows.
    pub fn name(self) -> &'static str {
        match self {
            Targets::One => "one",
            Targets::Turn => "turn",
            Targets::All => "all",
        }
    }

    /// The ranks that this rank writes to.
    pub fn of(self, rank: usize, pairing: &Pairing) -> Vec<usize> {
        match self {
            Targets::One => pairing.target(rank).into_iter().collect(),
            Targets::Turn | Targets::All if rank == 0 => (1..pairing.ranks()).collect(),
            _ => Vec::new(),
        }
    }
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    pub bytes: u64,
    pub rails: usize,
    pub strategy: Strategy,
    pub window: u32,
    pub buffers: u32,
    pub targets: Targets,
    /// Writes per target and repeat.
    pub writes: u64,
}

impl Tuple {
    /// From one buffer to the next.
    pub fn stride(&self) -> u64 {
        self.bytes.next_multiple_of(64)
    }
}

/// Everything that will be run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub tuples: Vec<Tuple>,
    pub most_rails: usize,
    /// Bytes of the source, and of the destination.
    pub memory: u64,
}

fn usage(option: &str, why: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("{option}: {why}"))
}

impl Plan {
    /// Checks the options.
    pub fn new(args: &Args) -> Result<Plan, Failure> {
        let bytes = |option: &str, text: &str| size::parse(text).map_err(|error| usage(option, error));
        let (begin, end) = (bytes("--begin", &args.begin)?, bytes("--end", &args.end)?);
        let volume = bytes("--volume", &args.volume)?;
        if begin == 0 {
            return Err(usage("--begin", "a write of 0 bytes moves nothing and takes no time; from 1 on"));
        }
        let sizes = size::sweep(begin, end, args.factor).map_err(|error| usage("-b/-e/-f", error))?;
        let counts = |option: &str, text: &str, most: u32| {
            let list = size::parse_list(text).map_err(|error| usage(option, error))?;
            match list.iter().find(|count| **count == 0 || **count > most) {
                Some(count) => Err(usage(option, format!("{count}: from 1 to {most}"))),
                None => Ok(list),
            }
        };
        let rails = counts("--rails", &args.rails, 64)?;
        let windows = counts("--window", &args.window, 4096)?;
        let strategies = args
            .strategy
            .split(',')
            .map(|name| name.trim().parse::<Strategy>().map_err(|error| usage("--strategy", error)))
            .collect::<Result<Vec<_>, _>>()?;
        let mut tuples = Vec::new();
        for &targets in &args.targets {
            for &rails in &rails {
                for &strategy in &strategies {
                    for &window in &windows {
                        for &bytes in &sizes {
                            let buffers = args.buffers.unwrap_or(window);
                            let most = (volume / bytes).max(u64::from(window.min(4)));
                            let writes = u64::from(args.iterations).min(most).max(1);
                            let rails = rails as usize;
                            tuples.push(Tuple { bytes, rails, strategy, window, buffers, targets, writes });
                        }
                    }
                }
            }
        }
        let need = |tuple: &Tuple| u128::from(tuple.stride()) * u128::from(tuple.buffers);
        let memory = tuples.iter().map(need).max().unwrap_or(64);
        let memory = u64::try_from(memory).ok().filter(|memory| *memory < 1 << 46);
        let memory = memory.ok_or_else(|| usage("-e", "buffers of more than 64 TiB"))?;
        Ok(Plan { tuples, most_rails: rails.into_iter().max().unwrap_or(1) as usize, memory })
    }

    /// What must be the same on all ranks.
    pub fn fingerprint(&self, args: &Args) -> Vec<(String, String)> {
        let options = format!(
            "{}x{} batch {} bare {} check {} {:?} {:?}",
            args.iterations, args.repeats, args.batch, args.bare, !args.no_check, args.job.mem, args.job.completion
        );
        vec![("rows".into(), format!("{:?}", self.tuples)), ("options".into(), options)]
    }
}
