//! Options of `ginlab collective`, and the rows that they ask for.

use super::shape::{Element, Operation, Place, Shape};
use crate::error::Failure;
use crate::values::{List, counts, sizes, usage};
use crate::world::{Scope, WorldArgs};
use clap::ValueEnum;
use ginlab::gin::Path;
use ginlab::measure::size;
use ginlab::report::each_once;
use itertools::iproduct;

const EXAMPLES: &str = "\
Examples:
  ginlab collective                                       two PEs on this machine, every collective, NCCL in turns where there is one
  ginlab collective --cases gin-all-to-all,nccl-all-to-all --launch graph,persistent -b 8 -e 512M
  ginlab collective --cases gin-all-to-all --path rails -p model:p5 --rails 4 --mode nbi,blocking --scope thread,warp,block -b 16 -e 16M
  ginlab collective --cases gin-all-gather --np 4 --node-size 2 -p tcp   as two nodes: NVLink inside, rails between
  ginlab collective --cases gin-all-to-all --np 4 --node-size 2 -p tcp --route direct,gathered -b 64K -e 16M";

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// PE i gets block i of every PE.
    GinAllToAll,
    /// Every PE gets every PE's chunk.
    GinAllGather,
    /// PE i gets the sum of all chunks i.
    GinReduceScatter,
    /// Every PE gets the sum of all.
    GinAllReduce,
    /// Every PE gets the root's bytes.
    GinBroadcast,
    /// NCCL's; before 2.28 by sends and receives.
    NcclAllToAll,
    /// NCCL's.
    NcclAllGather,
    /// NCCL's.
    NcclReduceScatter,
    /// NCCL's.
    NcclAllReduce,
    /// NCCL's.
    NcclBroadcast,
    /// NCCL's: to the next rank, and from the one before.
    NcclSendRecv,
}

impl Case {
    /// The operation, and whether it is NCCL's.
    fn parts(self) -> (Operation, bool) {
        match self {
            Case::GinAllToAll => (Operation::AllToAll, false),
            Case::GinAllGather => (Operation::AllGather, false),
            Case::GinReduceScatter => (Operation::ReduceScatter, false),
            Case::GinAllReduce => (Operation::AllReduce, false),
            Case::GinBroadcast => (Operation::Broadcast, false),
            Case::NcclAllToAll => (Operation::AllToAll, true),
            Case::NcclAllGather => (Operation::AllGather, true),
            Case::NcclReduceScatter => (Operation::ReduceScatter, true),
            Case::NcclAllReduce => (Operation::AllReduce, true),
            Case::NcclBroadcast => (Operation::Broadcast, true),
            Case::NcclSendRecv => (Operation::SendRecv, true),
        }
    }
}

/// How an operation is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Launch {
    /// A launch each, on a stream.
    Stream,
    /// Recorded, and replayed as a whole (a CUDA graph).
    Graph,
    /// One launch: the loop is in the kernel.
    Persistent,
}

/// Whether launches overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Overlap {
    /// They do.
    Yes,
    /// Each begins when the one before has ended.
    No,
}

/// Whether a kernel waits after each put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// It waits once, at the end.
    Nbi,
    /// It waits after each.
    Blocking,
}

/// How an all-to-all's chunks go to other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Route {
    /// Each rank writes to each.
    Direct,
    /// By NVLink to the rank of the node that has the target's place, which writes all of its node's chunks for that rank as one.
    Gathered,
}

/// Options of `ginlab collective`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What is measured; a list. Where both sides of an operation are named they are measured in turns
    #[arg(
        long,
        default_value = "gin-all-to-all,nccl-all-to-all,gin-all-gather,nccl-all-gather,gin-reduce-scatter,nccl-reduce-scatter,gin-all-reduce,nccl-all-reduce,gin-broadcast,nccl-broadcast,nccl-send-recv",
        value_name = "LIST",
        value_delimiter = ',',
        value_enum
    )]
    cases: Vec<Case>,
    /// Numbers; a list
    #[arg(long = "type", default_value = "f32", value_name = "LIST", value_delimiter = ',', value_enum)]
    elements: Vec<Element>,
    /// Where results go; a list
    #[arg(long, default_value = "out-of-place", value_name = "LIST", value_delimiter = ',', value_enum)]
    place: Vec<Place>,
    /// How an operation is started; a list
    #[arg(long, default_value = "graph", value_name = "LIST", value_delimiter = ',', value_enum)]
    launch: Vec<Launch>,
    /// Whether a launch begins while the one before it still runs (programmatic dependent launch, GPUs of 9.0 and later): its kernel waits
    /// for the end of that one before it touches memory; a list
    #[arg(long, default_value = "yes", value_name = "LIST", value_delimiter = ',', value_enum)]
    overlap: Vec<Overlap>,
    /// Whether a kernel waits after each put; a list
    #[arg(long, default_value = "nbi", value_name = "LIST", value_delimiter = ',', value_enum)]
    mode: Vec<Mode>,
    /// Who calls; a list
    #[arg(long, default_value = "block", value_name = "LIST", value_delimiter = ',', value_enum)]
    scope: Vec<Scope>,
    /// How an all-to-all's chunks go to other nodes; a list
    #[arg(long, default_value = "direct", value_name = "LIST", value_delimiter = ',', value_enum)]
    route: Vec<Route>,
    /// Bytes of one put at most, a list that is swept [default: a block's whole slice]
    #[arg(long, value_name = "LIST", value_parser = packets)]
    packet: Option<List<u64>>,
    /// Smallest size, as nccl-tests counts it [K, M, G are powers of two]
    #[arg(short = 'b', long, default_value = "8", value_name = "SIZE", value_parser = size::parse)]
    begin: u64,
    /// Largest size
    #[arg(short = 'e', long, default_value = "1M", value_name = "SIZE", value_parser = size::parse)]
    end: u64,
    /// Factor from one size to the next
    #[arg(short = 'f', long, default_value_t = 8, value_name = "N")]
    factor: u64,
    /// Blocks, a list that is swept [default: by size]
    #[arg(long, value_name = "LIST", value_parser = counts::<u32>(512))]
    grid: Option<List<u32>>,
    /// Threads of a block, of scope block [default: 512, on the emulated device 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub block: Option<u32>,
    /// Operations of one repeat
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub iterations: u32,
    /// Operations before them
    #[arg(short = 'w', long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub warmup: u32,
    /// Repeats
    #[arg(short = 'r', long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Bytes that the operations of one repeat may have; fewer operations above it
    #[arg(long, default_value = "16G", value_name = "SIZE", value_parser = size::parse)]
    pub volume: u64,
    /// Up to this many bytes that a rank sends to all others go by messages [default: 1M, over rails and emulated 64K]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub message_limit: Option<u64>,
    /// Within a node, chunks of this many bytes and more go by stores of small parts that warps take from a queue; what is summed goes to the PE
    /// that sums it. Shorter ones go by puts of blocks and sums by loads [default: of an all-reduce 4M, between two PEs 8M, of a reduce-scatter among
    /// three and more 128M, of others 16M]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub stores_from: Option<u64>,
    /// So many bytes of a chunk are stored at the PE that sums them, then summed; 16 pieces at most [default: a chunk, of a reduce-scatter 1/16 of it]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub piece: Option<u64>,
    /// The root of broadcasts
    #[arg(long, default_value_t = 0, value_name = "RANK")]
    pub root: u32,
    /// How PEs are reached: auto, nvlink, rails, direct (the kernel drives the card: -p efa-verbs, efa-verbs/soft:p5)
    #[arg(long, default_value_t = Path::Auto, value_name = "PATH")]
    pub path: Path,
    /// So many ranks count as a node, on one machine too: rails between them
    #[arg(long, value_name = "N")]
    pub node_size: Option<usize>,
    /// Also a row per node and one for the job: what our kernels moved to other ranks, slowest and fastest rank and rail
    #[arg(long)]
    pub per_node: bool,
    /// Do not verify results
    #[arg(long)]
    pub no_check: bool,
    #[command(flatten)]
    pub world: WorldArgs,
    /// What this rank puts never leaves it, and its signals do
    #[arg(long, hide = true, value_name = "RANK")]
    pub mute: Option<u32>,
}

/// Sizes that are swept, each at least 1.
fn packets(text: &str) -> Result<List<u64>, String> {
    let list = text.split(',').map(size::parse).collect::<Result<Vec<u64>, _>>().map_err(|error| error.to_string())?;
    if list.contains(&0) { Err("a put of 0 B moves nothing; 1 or more".into()) } else { Ok(list) }
}

/// One row of ours, of NCCL, or both in turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    pub operation: Operation,
    pub ours: bool,
    pub nccl: bool,
    pub element: Element,
    pub place: Place,
    pub launch: Launch,
    /// Never of a persistent one, which is alone.
    pub overlap: bool,
    pub mode: Mode,
    pub scope: Scope,
    /// Of an all-to-all; of others `Direct`.
    pub route: Route,
    /// Asked for.
    pub size: u64,
    /// Bytes of a put at most; 0: a whole slice.
    pub packet: u64,
    /// Blocks; 0: by size.
    pub grid: u32,
}

impl Tuple {
    pub fn shape(&self, ranks: u64) -> Shape {
        Shape::new(self.operation, ranks, self.size, self.element.bytes())
    }
}

/// Every row that the options ask for.
pub fn tuples(args: &Args) -> Result<Vec<Tuple>, Failure> {
    let sizes = sizes(args.begin, args.end, args.factor)?;
    if args.end > 1 << 40 {
        return Err(usage("--end", "1 TiB or less"));
    }
    let mut operations: Vec<(Operation, bool, bool)> = Vec::new();
    for (operation, nccl) in args.cases.iter().map(|case| case.parts()) {
        match operations.iter_mut().find(|(known, ..)| *known == operation) {
            Some((_, ours, theirs)) => *(if nccl { theirs } else { ours }) = true,
            None => operations.push((operation, !nccl, nccl)),
        }
    }
    let (all, by_size) = (vec![0], vec![0]);
    let (packets, grids) = (args.packet.as_ref().unwrap_or(&all), args.grid.as_ref().unwrap_or(&by_size));
    let Args { elements, place, launch, overlap, mode, scope, route, .. } = args;
    let all = iproduct!(&operations, elements, place, launch, &sizes, overlap, mode, scope, packets, grids, route);
    let tuples = all.filter_map(
        |(
            &(operation, ours, nccl),
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
            let first = Tuple {
                operation,
                ours,
                nccl,
                element,
                place,
                launch,
                overlap: true,
                mode: Mode::Nbi,
                scope: Scope::Block,
                route: Route::Direct,
                size,
                packet: 0,
                grid: 0,
            };
            if !ours {
                // NCCL has no loop of its own.
                return (launch != Launch::Persistent).then_some(first);
            }
            // A persistent kernel is alone: once, whatever is asked of launches.
            let overlap = overlap == Overlap::Yes || launch == Launch::Persistent;
            let route = if operation == Operation::AllToAll { route } else { Route::Direct };
            Some(Tuple { overlap, mode, scope, route, packet, grid, ..first })
        },
    );
    Ok(each_once(tuples))
}
