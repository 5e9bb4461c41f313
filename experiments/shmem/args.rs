//! Options of `ginlab shmem`, and the rows that they select.

use super::random;
use crate::args::{RepeatArgs, SizeArgs};
use crate::error::Failure;
use crate::random::RandomArgs;
use crate::values::{List, counts};
use crate::world::{CallScope, WorldArgs};
use clap::ValueEnum;
use clap::builder::ArgPredicate;
use ginlab::gin::PePath;
use ginlab::measure::size;
use ginlab::report::each_once;
use itertools::iproduct;

const EXAMPLES: &str = "\
Examples:
  ginlab shmem                                            measure every case between two PEs on this machine
  ginlab shmem --cases signal-ping-pong,put-signal-ping-pong -b 8 -e 4K   measure round trips
  ginlab shmem --path rails --provider tcp --rule own     make the same calls over rails
  ginlab shmem --cases put-bandwidth --grid 1,8,128 --block 256 -b 512M -e 512M   sweep grids
  ginlab shmem --cases signal-order -n 100000 --path rails --rule drain   check that no signal is seen before its bytes
  ginlab shmem --cases put-latency-loaded --path rails --provider model:p5 --proxy-threads 2   put small sizes while large puts run
  ginlab shmem --nvshmem 'mpirun -np 2 ./nvshmem-baseline'   interleave with NVSHMEM (experiments/shmem/baseline)
  ginlab shmem --random 200 --seed 7 --nvshmem ...        measure random sizes, alignments, scopes and blocks";

/// Upper bound of the random sizes of `signal-order`.
pub const ORDER_BYTES: u64 = 8192;

/// Maximum length of the messages of `data-order`.
pub const DATA_BYTES: u64 = 4096;

/// Default numbers of blocks.
const USUAL_GRIDS: [u32; 3] = [1, 8, 32];

/// Measured case. The names are those of NVSHMEM's perftest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShmemCase {
    /// `p` of one value and quiet, by one thread
    PLatency,
    /// put and quiet
    PutLatency,
    /// put of a word and quiet by one block, while another block has puts of the given size in flight
    PutLatencyLoaded,
    /// get
    GetLatency,
    /// put_nbi by every block of a grid, and quiet
    PutBandwidth,
    /// put_signal_nbi by every block of a grid, and quiet
    PutSignalBandwidth,
    /// get_nbi by every block of a grid, and quiet
    GetBandwidth,
    /// Round trip of a signal, by one thread
    SignalPingPong,
    /// Round trip of a put with a signal
    PutSignalPingPong,
    /// Like signal-ping-pong, but signals are set by a store; only over NVLink
    SignalSetPingPong,
    /// Like put-signal-ping-pong, but signals are set by a store; only over NVLink
    PutSignalSetPingPong,
    /// Round trip of a message (data and notification in one transfer)
    MessagePingPong,
    /// fetch_add, by one thread; only over NVLink
    AtomicLatency,
    /// Barrier of all PEs
    BarrierAll,
    /// Exchange between all PEs
    AllToAll,
    /// Puts with signals of many sizes, each byte checked as soon as its signal is observed: no times, but wrong bytes
    SignalOrder,
    /// Messages, exchanges, gets and puts of many sizes: each byte is checked as soon as the call or a barrier
    /// guarantees it, and sources are rewritten as soon as the calls allow: no times, but wrong bytes
    DataOrder,
}

impl ShmemCase {
    /// Returns whether the reported time is half of an iteration.
    pub fn is_there_and_back(self) -> bool {
        matches!(self, ShmemCase::SignalPingPong | ShmemCase::PutSignalPingPong | ShmemCase::MessagePingPong)
            || self.sets()
    }

    /// Returns whether signals are set, which only a mapping supports.
    pub fn sets(self) -> bool {
        matches!(self, ShmemCase::SignalSetPingPong | ShmemCase::PutSignalSetPingPong)
    }

    /// Returns whether a grid moves bytes.
    pub fn is_bandwidth(self) -> bool {
        matches!(self, ShmemCase::PutBandwidth | ShmemCase::PutSignalBandwidth | ShmemCase::GetBandwidth)
    }

    /// Returns whether all PEs communicate with each other. In other cases pairs of PEs do.
    pub fn is_of_all(self) -> bool {
        matches!(self, ShmemCase::AllToAll | ShmemCase::BarrierAll | ShmemCase::DataOrder)
    }

    /// Returns whether bytes are summed over nodes, because many PEs move them at the same time.
    pub fn sums(self) -> bool {
        self.is_bandwidth() || self == ShmemCase::AllToAll
    }

    /// Returns whether the grid is swept. Other cases use one block.
    fn has_grid(self) -> bool {
        self.is_bandwidth() || self == ShmemCase::SignalOrder
    }

    /// Returns a number that must divide the number of blocks. The number is 2 if half of the blocks put and half
    /// check, or if two blocks put concurrently.
    pub fn least_blocks(self) -> u32 {
        if matches!(self, ShmemCase::SignalOrder | ShmemCase::PutLatencyLoaded) { 2 } else { 1 }
    }

    /// Returns whether the case has no times and only reports wrong bytes.
    pub fn only_checks(self) -> bool {
        matches!(self, ShmemCase::SignalOrder | ShmemCase::DataOrder)
    }

    /// Returns whether a single thread makes the calls, regardless of the scope.
    fn is_single(self) -> bool {
        matches!(
            self,
            ShmemCase::PLatency | ShmemCase::SignalPingPong | ShmemCase::SignalSetPingPong | ShmemCase::AtomicLatency
        )
    }
}

/// Options of `ginlab shmem`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("repeats", |arg| arg.help("Number of launches").default_value("5")))]
#[command(mut_arg("begin", |arg| arg.help("Smallest size; K, M and G are powers of two [default with --random: 1]").default_value_if("random", ArgPredicate::IsPresent, "1")))]
#[command(mut_arg("end", |arg| arg.help("Largest size [default with --random: 64M]").default_value_if("random", ArgPredicate::IsPresent, "64M")))]
#[command(mut_arg("factor", |arg| arg.conflicts_with("random")))]
pub struct ShmemArgs {
    /// Cases to measure; a list to sweep
    #[arg(
        long,
        conflicts_with = "random",
        default_value = "p-latency,put-latency,get-latency,put-bandwidth,put-signal-bandwidth,get-bandwidth,signal-ping-pong,put-signal-ping-pong,message-ping-pong,atomic-latency,barrier-all,all-to-all",
        value_name = "LIST",
        value_delimiter = ',',
        value_enum
    )]
    pub cases: Vec<ShmemCase>,
    /// Threads that make a call together; a list to sweep
    #[arg(
        long,
        conflicts_with = "random",
        default_value = "block",
        value_name = "LIST",
        value_delimiter = ',',
        value_enum
    )]
    pub scope: Vec<CallScope>,
    #[command(flatten)]
    pub sizes: SizeArgs,
    /// Number of blocks in the bandwidth cases and in signal-order (which requires an even number); a list to sweep
    /// [default: 1,8,32; fewer if PEs share a GPU on which they are not all resident]
    #[arg(long, conflicts_with = "random", value_name = "LIST", value_parser = counts::<u32>(1 << 16))]
    pub grid: Option<List<u32>>,
    /// Threads per block; a list to sweep
    #[arg(long, conflicts_with = "random", default_value = "256", value_name = "LIST", value_parser = counts::<u32>(1024))]
    pub block: List<u32>,
    /// Timed iterations per launch; for signal-order: puts per PE; for data-order: rounds
    #[arg(short = 'n', long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub iterations: u32,
    /// Untimed iterations before the timed ones
    #[arg(short = 'w', long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub warmup: u32,
    #[command(flatten)]
    pub repeat: RepeatArgs,
    /// Maximum bytes that one launch moves; larger sizes run fewer iterations
    #[arg(long, default_value = "1G", value_name = "SIZE", value_parser = size::parse)]
    pub volume: u64,
    /// Maximum bytes for which all-to-all uses messages and message-ping-pong is measured [default: 32K; 32 for an
    /// all-to-all by one thread of a GPU through mapped memory]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub message_limit: Option<u64>,
    /// Path between PEs: auto, nvlink, rails, direct (the kernel drives the NIC: -p efa-verbs, efa-verbs/soft:p5)
    #[arg(long, default_value_t = PePath::Auto, value_name = "PATH")]
    pub path: PePath,
    /// Command that runs NVSHMEM's side (experiments/shmem/baseline/nvshmem.cu) on two GPUs, interleaved with ginlab's
    #[arg(long, value_name = "COMMAND")]
    pub nvshmem: Option<String>,
    /// Add one row per node and one for the job, for cases in which many PEs move bytes at the same time:
    /// totals, slowest and fastest PE and rail
    #[arg(long)]
    pub per_node: bool,
    #[command(flatten)]
    pub random: RandomArgs,
    #[command(flatten)]
    pub world: WorldArgs,
}

impl ShmemArgs {
    /// Returns the maximum bytes of a message.
    pub fn longest_message(&self) -> u64 {
        self.message_limit.unwrap_or(32 << 10)
    }
}

/// Parameters of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmemConfig {
    pub case: ShmemCase,
    pub scope: CallScope,
    /// Bytes per iteration, or for each PE. 0 if only a signal is sent.
    pub bytes: u64,
    pub grid: u32,
    pub block: u32,
    pub iterations: u32,
    pub warmup: u32,
    /// Whether an all-to-all uses messages.
    pub by_messages: bool,
    /// Offsets of target and source from an address that is aligned to 16 bytes.
    pub to_at: u32,
    pub from_at: u32,
}

/// Returns the parameter combinations of all rows that the options select.
pub fn tuples(args: &ShmemArgs) -> Result<Vec<ShmemConfig>, Failure> {
    let sizes = args.sizes.list()?;
    if let Some(shapes) = random::tuples(args) {
        return Ok(shapes);
    }
    let usual = USUAL_GRIDS.to_vec();
    let swept = args.grid.as_ref().unwrap_or(&usual);
    let mut tuples: Vec<ShmemConfig> = Vec::new();
    for &case in &args.cases {
        let scopes = match case {
            ShmemCase::PutLatencyLoaded => vec![CallScope::Block],
            _ if case.is_single() => vec![CallScope::Thread],
            _ => args.scope.clone(),
        };
        let of_case: Vec<u64> = match case {
            ShmemCase::PLatency
            | ShmemCase::AtomicLatency
            | ShmemCase::SignalPingPong
            | ShmemCase::SignalSetPingPong => vec![8],
            ShmemCase::BarrierAll => vec![0],
            ShmemCase::SignalOrder => vec![ORDER_BYTES],
            ShmemCase::DataOrder => vec![DATA_BYTES],
            ShmemCase::MessagePingPong => {
                sizes.iter().copied().filter(|bytes| *bytes <= args.longest_message()).collect()
            }
            _ => sizes.clone(),
        };
        let grids = if case.has_grid() { &swept[..] } else { &[1] };
        tuples.extend(iproduct!(&scopes, &of_case, &args.block, grids).map(|(&scope, &bytes, &threads, &grid)| {
            let block = match scope {
                // Each thread or warp of the block has its own puts.
                _ if case == ShmemCase::SignalOrder => threads,
                CallScope::Thread => 1,
                CallScope::Warp => 32,
                CallScope::Block => threads,
            };
            let grid = grid.next_multiple_of(case.least_blocks());
            let most = (args.volume / bytes.max(1)).clamp(1, u64::from(args.iterations)) as u32;
            let iterations = if case.only_checks() { args.iterations } else { most };
            let warmup = args.warmup.min(iterations);
            let by_messages = bytes <= args.longest_message();
            ShmemConfig { case, scope, bytes, grid, block, iterations, warmup, by_messages, to_at: 0, from_at: 0 }
        }));
    }
    Ok(each_once(tuples))
}
