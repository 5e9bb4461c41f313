//! Options of `ginlab collective`, and the rows that they select.

use super::random;
use super::shape::{CollectiveOperation, Element, ResultPlacement, Shape};
use crate::args::{RepeatArgs, SizeArgs};
use crate::error::Failure;
use crate::random::RandomArgs;
use crate::values::{List, counts, usage};
use crate::world::{CallScope, WorldArgs};
use clap::ValueEnum;
use clap::builder::ArgPredicate;
use ginlab::gin::PePath;
use ginlab::measure::size;
use ginlab::report::each_once;
use itertools::iproduct;

const EXAMPLES: &str = "\
Examples:
  ginlab collective                                       measure every collective between two PEs, interleaved with NCCL if available
  ginlab collective --cases gin-all-to-all,nccl-all-to-all --launch graph,persistent -b 8 -e 512M   compare launches
  ginlab collective --cases gin-all-to-all --path rails -p model:p5 --rails 4 --mode nbi,blocking --scope thread,warp,block -b 16 -e 16M
  ginlab collective --cases gin-all-gather --np 4 --node-size 2 -p tcp   run as two nodes: NVLink within, rails between
  ginlab collective --cases gin-all-to-all --np 4 --node-size 2 -p tcp --route direct,gathered -b 64K -e 16M   compare routes
  ginlab collective --random 100 --seed 7                 measure random operations, types and sizes";

/// Operation and implementation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CollectiveCase {
    /// PE i receives block i of every PE
    GinAllToAll,
    /// Every PE receives every PE's chunk
    GinAllGather,
    /// PE i receives the sum of all chunks i
    GinReduceScatter,
    /// Every PE receives the sum of all buffers
    GinAllReduce,
    /// Every PE receives the root's bytes
    GinBroadcast,
    /// NCCL all-to-all; before NCCL 2.28 by sends and receives
    NcclAllToAll,
    /// NCCL all-gather
    NcclAllGather,
    /// NCCL reduce-scatter
    NcclReduceScatter,
    /// NCCL all-reduce
    NcclAllReduce,
    /// NCCL broadcast
    NcclBroadcast,
    /// NCCL send to the next rank and receive from the previous one
    NcclSendRecv,
    /// NCCL all-to-all in memory that is registered with NCCL (ncclCommWindowRegister, 2.27 and later)
    NcclWindowAllToAll,
    /// NCCL all-gather in registered memory
    NcclWindowAllGather,
    /// NCCL reduce-scatter in registered memory
    NcclWindowReduceScatter,
    /// NCCL all-reduce in registered memory
    NcclWindowAllReduce,
    /// NCCL broadcast in registered memory
    NcclWindowBroadcast,
    /// NCCL send and receive in registered memory
    NcclWindowSendRecv,
}

/// Implementations that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Ours,
    Theirs,
    /// NCCL in registered memory.
    Window,
}

impl CollectiveCase {
    /// Returns the operation and the implementation.
    fn parts(self) -> (CollectiveOperation, Side) {
        match self {
            CollectiveCase::GinAllToAll => (CollectiveOperation::AllToAll, Side::Ours),
            CollectiveCase::GinAllGather => (CollectiveOperation::AllGather, Side::Ours),
            CollectiveCase::GinReduceScatter => (CollectiveOperation::ReduceScatter, Side::Ours),
            CollectiveCase::GinAllReduce => (CollectiveOperation::AllReduce, Side::Ours),
            CollectiveCase::GinBroadcast => (CollectiveOperation::Broadcast, Side::Ours),
            CollectiveCase::NcclAllToAll => (CollectiveOperation::AllToAll, Side::Theirs),
            CollectiveCase::NcclAllGather => (CollectiveOperation::AllGather, Side::Theirs),
            CollectiveCase::NcclReduceScatter => (CollectiveOperation::ReduceScatter, Side::Theirs),
            CollectiveCase::NcclAllReduce => (CollectiveOperation::AllReduce, Side::Theirs),
            CollectiveCase::NcclBroadcast => (CollectiveOperation::Broadcast, Side::Theirs),
            CollectiveCase::NcclSendRecv => (CollectiveOperation::SendRecv, Side::Theirs),
            CollectiveCase::NcclWindowAllToAll => (CollectiveOperation::AllToAll, Side::Window),
            CollectiveCase::NcclWindowAllGather => (CollectiveOperation::AllGather, Side::Window),
            CollectiveCase::NcclWindowReduceScatter => (CollectiveOperation::ReduceScatter, Side::Window),
            CollectiveCase::NcclWindowAllReduce => (CollectiveOperation::AllReduce, Side::Window),
            CollectiveCase::NcclWindowBroadcast => (CollectiveOperation::Broadcast, Side::Window),
            CollectiveCase::NcclWindowSendRecv => (CollectiveOperation::SendRecv, Side::Window),
        }
    }
}

/// Method of starting an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StartMethod {
    /// One launch per operation, on a stream
    Stream,
    /// Operations are recorded in a CUDA graph and replayed together
    Graph,
    /// One launch: the kernel contains the loop
    Persistent,
}

/// Whether consecutive launches overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Overlap {
    /// Launches overlap
    Yes,
    /// Each launch starts when the previous one has ended
    No,
}

/// Whether a kernel waits after each put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CollectiveMode {
    /// Wait once, at the end
    Nbi,
    /// Wait after each put
    Blocking,
}

/// Route of the chunks of an all-to-all to other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ChunkRoute {
    /// Each rank writes to each other rank
    Direct,
    /// Through NVLink to the rank at the target's position in this node, which sends all chunks of its node for the
    /// target in one write
    Gathered,
}

/// Options of `ginlab collective`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("begin", |arg| arg.help("Smallest size, as defined by nccl-tests; K, M and G are powers of two [default with --random: 16]").default_value_if("random", ArgPredicate::IsPresent, "16")))]
#[command(mut_arg("end", |arg| arg.help("Largest size [default with --random: 256M]").default_value_if("random", ArgPredicate::IsPresent, "256M")))]
#[command(mut_arg("factor", |arg| arg.conflicts_with("random")))]
#[command(mut_arg("repeats", |arg| arg.default_value("5")))]
pub struct CollectiveArgs {
    /// Operations to measure; a list to sweep. If an operation is named for both ginlab and NCCL, the two are
    /// interleaved
    #[arg(
        long,
        conflicts_with = "random",
        default_value = "gin-all-to-all,nccl-all-to-all,gin-all-gather,nccl-all-gather,gin-reduce-scatter,nccl-reduce-scatter,gin-all-reduce,nccl-all-reduce,gin-broadcast,nccl-broadcast,nccl-send-recv",
        value_name = "LIST",
        value_delimiter = ',',
        value_enum
    )]
    cases: Vec<CollectiveCase>,
    /// Element types; a list to sweep
    #[arg(
        long = "type",
        conflicts_with = "random",
        default_value = "f32",
        value_name = "LIST",
        value_delimiter = ',',
        value_enum
    )]
    elements: Vec<Element>,
    /// Location of results; a list to sweep
    #[arg(
        long,
        conflicts_with = "random",
        default_value = "out-of-place",
        value_name = "LIST",
        value_delimiter = ',',
        value_enum
    )]
    place: Vec<ResultPlacement>,
    /// Start of an operation; a list to sweep
    #[arg(
        long,
        conflicts_with = "random",
        default_value = "graph",
        value_name = "LIST",
        value_delimiter = ',',
        value_enum
    )]
    launch: Vec<StartMethod>,
    /// Whether a launch may start while the previous one runs (programmatic dependent launch, GPUs of compute
    /// capability 9.0 and later); a list to sweep. The kernel accesses memory only after the previous one has ended
    #[arg(
        long,
        conflicts_with = "random",
        default_value = "yes",
        value_name = "LIST",
        value_delimiter = ',',
        value_enum
    )]
    overlap: Vec<Overlap>,
    /// Whether a kernel waits after each put; a list to sweep
    #[arg(
        long,
        conflicts_with = "random",
        default_value = "nbi",
        value_name = "LIST",
        value_delimiter = ',',
        value_enum
    )]
    mode: Vec<CollectiveMode>,
    /// Threads that make the calls; a list to sweep
    #[arg(
        long,
        conflicts_with = "random",
        default_value = "block",
        value_name = "LIST",
        value_delimiter = ',',
        value_enum
    )]
    scope: Vec<CallScope>,
    /// Route of an all-to-all's chunks to other nodes; a list to sweep
    #[arg(
        long,
        conflicts_with = "random",
        default_value = "direct",
        value_name = "LIST",
        value_delimiter = ',',
        value_enum
    )]
    route: Vec<ChunkRoute>,
    /// Maximum bytes of one put; a list to sweep [default: a block's whole slice]
    #[arg(long, conflicts_with = "random", value_name = "LIST", value_parser = packets)]
    packet: Option<List<u64>>,
    #[command(flatten)]
    pub sizes: SizeArgs,
    /// Number of blocks; a list to sweep [default: by size]
    #[arg(long, conflicts_with = "random", value_name = "LIST", value_parser = counts::<u32>(512))]
    grid: Option<List<u32>>,
    /// Threads per block, for scope block [default: 512, on the emulated device 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub block: Option<u32>,
    /// Operations per repeat
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub iterations: u32,
    /// Untimed operations before the first repeat
    #[arg(short = 'w', long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub warmup: u32,
    #[command(flatten)]
    pub repeat: RepeatArgs,
    /// Maximum bytes that the operations of one repeat move; larger sizes run fewer operations
    #[arg(long, default_value = "16G", value_name = "SIZE", value_parser = size::parse)]
    pub volume: u64,
    /// Maximum bytes that a rank sends to all others as messages, at most 1G [default: 1M, over rails and emulated 64K]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub message_limit: Option<u64>,
    /// Smallest chunk that is transferred within a node by stores of small parts that warps take from a queue; sums are
    /// computed at the PE that owns them. Smaller chunks use puts of blocks, and sums use loads [default: all-reduce
    /// 4M, between two PEs 8M; reduce-scatter among three or more 128M; others 16M]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub stores_from: Option<u64>,
    /// Bytes of a chunk that are stored at the summing PE before it starts to sum them; at most 16 pieces [default: a
    /// chunk; reduce-scatter 1/16 of it]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub piece: Option<u64>,
    /// Root of broadcasts
    #[arg(long, default_value_t = 0, value_name = "RANK")]
    pub root: u32,
    /// Path between PEs: auto, nvlink, rails, direct (the kernel drives the NIC: -p efa-verbs, efa-verbs/soft:p5)
    #[arg(long, default_value_t = PePath::Auto, value_name = "PATH")]
    pub path: PePath,
    /// Number of ranks that count as a node, even on one machine; rails are used between nodes
    #[arg(long, value_name = "N")]
    pub node_size: Option<usize>,
    /// Add one row per node and one for the job: bytes that ginlab's kernels moved to other ranks, slowest and
    /// fastest rank and rail
    #[arg(long)]
    pub per_node: bool,
    #[command(flatten)]
    pub random: RandomArgs,
    #[command(flatten)]
    pub world: WorldArgs,
    /// Drop all puts of this rank, but send its signals, for tests
    #[arg(long, hide = true, value_name = "RANK")]
    pub mute: Option<u32>,
}

/// Parses sizes to sweep, each at least 1.
fn packets(text: &str) -> Result<List<u64>, String> {
    let list = text.split(',').map(size::parse).collect::<Result<Vec<u64>, _>>().map_err(|error| error.to_string())?;
    if list.contains(&0) { Err("0: must be at least 1 byte".into()) } else { Ok(list) }
}

/// Parameters of one row of ginlab, of one row of NCCL, or of both, interleaved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveConfig {
    pub operation: CollectiveOperation,
    pub ours: bool,
    pub nccl: bool,
    /// NCCL in registered memory.
    pub window: bool,
    pub element: Element,
    pub place: ResultPlacement,
    pub launch: StartMethod,
    /// Whether launches overlap. Always `true` for a persistent kernel, which has only one launch.
    pub overlap: bool,
    pub mode: CollectiveMode,
    pub scope: CallScope,
    /// Route of an all-to-all. `Direct` for other operations.
    pub route: ChunkRoute,
    /// Requested size.
    pub size: u64,
    /// Maximum number of bytes of a put. 0 selects a whole slice.
    pub packet: u64,
    /// Number of blocks. 0 selects a number based on the size.
    pub grid: u32,
}

impl CollectiveConfig {
    pub fn shape(&self, ranks: u64) -> Shape {
        Shape::new(self.operation, ranks, self.size, self.element.bytes())
    }
}

/// Maximum of `--message-limit`. Keeps inboxes below [`kernels::gin::Inbox::MOST_EXCHANGED`].
const LARGEST_MESSAGES: u64 = 1 << 30;

/// Returns the parameter combinations of all rows that the options select.
pub fn tuples(args: &CollectiveArgs) -> Result<Vec<CollectiveConfig>, Failure> {
    let sizes = args.sizes.list()?;
    if args.sizes.end > 1 << 40 {
        return Err(usage("--end", "must be at most 1 TiB"));
    }
    if args.message_limit.is_some_and(|limit| limit > LARGEST_MESSAGES) {
        return Err(usage("--message-limit", "must be at most 1G: a block's inbox is counted in 32 bits"));
    }
    if let Some(shapes) = random::tuples(args) {
        return Ok(shapes);
    }
    let mut operations: Vec<(CollectiveOperation, [bool; 3])> = Vec::new();
    for (operation, side) in args.cases.iter().map(|case| case.parts()) {
        let known = operations.iter().position(|(known, _)| *known == operation);
        let at = known.unwrap_or_else(|| {
            operations.push((operation, [false; 3]));
            operations.len() - 1
        });
        operations[at].1[side as usize] = true;
    }
    let (all, by_size) = (vec![0], vec![0]);
    let (packets, grids) = (args.packet.as_ref().unwrap_or(&all), args.grid.as_ref().unwrap_or(&by_size));
    let CollectiveArgs { elements, place, launch, overlap, mode, scope, route, .. } = args;
    let all = iproduct!(&operations, elements, place, launch, &sizes, overlap, mode, scope, packets, grids, route);
    let tuples = all.filter_map(
        |(
            &(operation, [ours, nccl, window]),
            &element,
            &place,
            &launch,
            &size,
            &overlap,
            &mode,
            &scope,
            &packet,
            &grid,
            &route,
        )| {
            let first = CollectiveConfig {
                operation,
                ours,
                nccl,
                window,
                element,
                place,
                launch,
                overlap: true,
                mode: CollectiveMode::Nbi,
                scope: CallScope::Block,
                route: ChunkRoute::Direct,
                size,
                packet: 0,
                grid: 0,
            };
            if !ours {
                // NCCL has no persistent kernel to launch.
                return (launch != StartMethod::Persistent).then_some(first);
            }
            // A persistent kernel has a single launch, so it has one parameter combination regardless of `--overlap`.
            let overlap = overlap == Overlap::Yes || launch == StartMethod::Persistent;
            let route = if operation == CollectiveOperation::AllToAll { route } else { ChunkRoute::Direct };
            Some(CollectiveConfig { overlap, mode, scope, route, packet, grid, ..first })
        },
    );
    Ok(each_once(tuples))
}
