//! Options of `ginlab shmem`, and the rows that they ask for.

use crate::error::Failure;
use crate::values::{List, counts, sizes};
use crate::world::{Scope, WorldArgs};
use clap::ValueEnum;
use ginlab::gin::Path;
use ginlab::measure::size;
use ginlab::report::each_once;
use itertools::iproduct;

const EXAMPLES: &str = "\
Examples:
  ginlab shmem                                            two PEs on this machine, every case
  ginlab shmem --cases signal-ping-pong,put-signal-ping-pong -b 8 -e 4K
  ginlab shmem --path rails --provider tcp --rule own     the same calls over rails
  ginlab shmem --cases put-bandwidth --grid 1,8,128 --block 256 -b 512M -e 512M
  ginlab shmem --cases signal-order -n 100000 --path rails --rule drain   is a signal ever seen before its bytes?
  ginlab shmem --cases put-latency-loaded --path rails --provider model:p5 --proxies 2   small puts beside large ones
  ginlab shmem --nvshmem 'mpirun -np 2 ./nvshmem-baseline'   NVSHMEM in turns (experiments/shmem/baseline)";

/// `signal-order` draws sizes below this.
pub const ORDER_BYTES: u64 = 8192;

/// What `data-order` sends has lengths up to this.
pub const DATA_BYTES: u64 = 4096;

/// Blocks where none are named.
const USUAL_GRIDS: [u32; 3] = [1, 8, 32];

/// What is measured. The names are those of NVSHMEM's perftest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// `p` of one value and quiet, by one thread.
    PLatency,
    /// put and quiet.
    PutLatency,
    /// put of a word and quiet by one block, while another one has puts of the size under way.
    PutLatencyLoaded,
    /// get.
    GetLatency,
    /// put_nbi by every block of a grid, and quiet.
    PutBandwidth,
    /// put_signal_nbi by every block of a grid, and quiet.
    PutSignalBandwidth,
    /// get_nbi by every block of a grid, and quiet.
    GetBandwidth,
    /// A signal there and back, by one thread.
    SignalPingPong,
    /// A put with a signal there and back.
    PutSignalPingPong,
    /// As signal-ping-pong, by signals that are set, a store; NVLink alone.
    SignalSetPingPong,
    /// As put-signal-ping-pong, by signals that are set, a store; NVLink alone.
    PutSignalSetPingPong,
    /// A message (bytes and news of them in one trip) there and back.
    MessagePingPong,
    /// fetch_add, by one thread; NVLink alone.
    AtomicLatency,
    /// The barrier of all PEs.
    BarrierAll,
    /// All PEs exchange.
    AllToAll,
    /// Signalled puts of many sizes, each byte looked at as soon as its signal is seen: no time, but wrong bytes.
    SignalOrder,
    /// Messages, exchanges, gets and puts of many sizes, each byte looked at as soon as the call or a barrier says that it is there, sources
    /// written again as soon as the calls allow: no time, but wrong bytes.
    DataOrder,
}

impl Case {
    /// Whether its time is half of a turn.
    pub fn is_there_and_back(self) -> bool {
        matches!(self, Case::SignalPingPong | Case::PutSignalPingPong | Case::MessagePingPong) || self.sets()
    }

    /// Whether its signals are set, which only a mapping can.
    pub fn sets(self) -> bool {
        matches!(self, Case::SignalSetPingPong | Case::PutSignalSetPingPong)
    }

    /// Whether a grid moves bytes.
    pub fn is_bandwidth(self) -> bool {
        matches!(self, Case::PutBandwidth | Case::PutSignalBandwidth | Case::GetBandwidth)
    }

    /// Whether its bytes are summed over nodes: many PEs move them at once.
    pub fn sums(self) -> bool {
        self.is_bandwidth() || self == Case::AllToAll
    }

    /// Whether its grid is swept; the others are by one block.
    fn has_grid(self) -> bool {
        self.is_bandwidth() || self == Case::SignalOrder
    }

    /// Blocks that it takes at least, and a multiple of: half of them put and half look, or one puts beside the other.
    pub fn least_blocks(self) -> u32 {
        if matches!(self, Case::SignalOrder | Case::PutLatencyLoaded) { 2 } else { 1 }
    }

    /// Whether it has no time: what it finds is wrong bytes.
    pub fn only_checks(self) -> bool {
        matches!(self, Case::SignalOrder | Case::DataOrder)
    }

    /// Whether one thread calls, whatever the scope.
    fn is_single(self) -> bool {
        matches!(self, Case::PLatency | Case::SignalPingPong | Case::SignalSetPingPong | Case::AtomicLatency)
    }
}

/// Options of `ginlab shmem`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What is measured; a list
    #[arg(
        long,
        default_value = "p-latency,put-latency,get-latency,put-bandwidth,put-signal-bandwidth,get-bandwidth,signal-ping-pong,put-signal-ping-pong,message-ping-pong,atomic-latency,barrier-all,all-to-all",
        value_name = "LIST",
        value_delimiter = ',',
        value_enum
    )]
    pub cases: Vec<Case>,
    /// Who calls; a list
    #[arg(long, default_value = "block", value_name = "LIST", value_delimiter = ',', value_enum)]
    pub scope: Vec<Scope>,
    /// Smallest size [K, M, G are powers of two]
    #[arg(short = 'b', long, default_value = "8", value_name = "SIZE", value_parser = size::parse)]
    pub begin: u64,
    /// Largest size
    #[arg(short = 'e', long, default_value = "1M", value_name = "SIZE", value_parser = size::parse)]
    pub end: u64,
    /// Factor from one size to the next
    #[arg(short = 'f', long, default_value_t = 8, value_name = "N")]
    pub factor: u64,
    /// Blocks of the bandwidth cases and of signal-order (there an even number), a list that is swept [default: 1,8,32; fewer where PEs share a
    /// GPU that does not hold them all at once]
    #[arg(long, value_name = "LIST", value_parser = counts::<u32>(1 << 16))]
    pub grid: Option<List<u32>>,
    /// Threads of a block
    #[arg(long, default_value = "256", value_name = "LIST", value_parser = counts::<u32>(1024))]
    pub block: List<u32>,
    /// Turns of one launch; of signal-order: puts of each PE; of data-order: rounds
    #[arg(short = 'n', long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub iterations: u32,
    /// Turns before them
    #[arg(short = 'w', long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub warmup: u32,
    /// Launches
    #[arg(short = 'r', long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Bytes that one launch may move; fewer turns above it
    #[arg(long, default_value = "1G", value_name = "SIZE", value_parser = size::parse)]
    pub volume: u64,
    /// Up to this many bytes all-to-all goes by messages, and message-ping-pong is measured (default: 32K; of an all-to-all by one thread of a
    /// GPU through mapped memory 32)
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub message_limit: Option<u64>,
    /// How PEs are reached: auto, nvlink, rails, direct (the kernel drives the card: -p efa-verbs, efa-verbs/soft:p5)
    #[arg(long, default_value_t = Path::Auto, value_name = "PATH")]
    pub path: Path,
    /// A command that runs NVSHMEM's side (experiments/shmem/baseline/nvshmem.cu) on two GPUs, in turns with ours
    #[arg(long, value_name = "COMMAND")]
    pub nvshmem: Option<String>,
    /// Do not verify what arrived
    #[arg(long)]
    pub no_check: bool,
    /// Also a row per node and one for the job, of the cases that move bytes by many PEs at once: sums, slowest and fastest PE and rail
    #[arg(long)]
    pub per_node: bool,
    #[command(flatten)]
    pub world: WorldArgs,
}

impl Args {
    /// Bytes.
    pub fn longest_message(&self) -> u64 {
        self.message_limit.unwrap_or(32 << 10)
    }
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    pub case: Case,
    pub scope: Scope,
    /// Of one turn, or to each PE; 0 where nothing but a signal travels.
    pub bytes: u64,
    pub grid: u32,
    pub block: u32,
    pub iterations: u32,
    pub warmup: u32,
    /// All-to-all by messages.
    pub by_messages: bool,
}

/// Every row that the options ask for.
pub fn tuples(args: &Args) -> Result<Vec<Tuple>, Failure> {
    let sizes = sizes(args.begin, args.end, args.factor)?;
    let usual = USUAL_GRIDS.to_vec();
    let swept = args.grid.as_ref().unwrap_or(&usual);
    let mut tuples: Vec<Tuple> = Vec::new();
    for &case in &args.cases {
        let scopes = match case {
            Case::PutLatencyLoaded => vec![Scope::Block],
            _ if case.is_single() => vec![Scope::Thread],
            _ => args.scope.clone(),
        };
        let of_case: Vec<u64> = match case {
            Case::PLatency | Case::AtomicLatency | Case::SignalPingPong | Case::SignalSetPingPong => vec![8],
            Case::BarrierAll => vec![0],
            Case::SignalOrder => vec![ORDER_BYTES],
            Case::DataOrder => vec![DATA_BYTES],
            Case::MessagePingPong => sizes.iter().copied().filter(|bytes| *bytes <= args.longest_message()).collect(),
            _ => sizes.clone(),
        };
        let grids = if case.has_grid() { &swept[..] } else { &[1] };
        tuples.extend(iproduct!(&scopes, &of_case, &args.block, grids).map(|(&scope, &bytes, &threads, &grid)| {
            let block = match scope {
                // Each thread or warp of the block has puts of its own.
                _ if case == Case::SignalOrder => threads,
                Scope::Thread => 1,
                Scope::Warp => 32,
                Scope::Block => threads,
            };
            let grid = grid.next_multiple_of(case.least_blocks());
            let most = (args.volume / bytes.max(1)).clamp(1, u64::from(args.iterations)) as u32;
            let iterations = if case.only_checks() { args.iterations } else { most };
            let warmup = args.warmup.min(iterations);
            Tuple { case, scope, bytes, grid, block, iterations, warmup, by_messages: bytes <= args.longest_message() }
        }));
    }
    Ok(each_once(tuples))
}
