//! Options of `ginlab jacobi`, and the rows that they select.

use crate::args::RepeatArgs;
use crate::error::Failure;
use crate::random::{RandomArgs, SeededChoices};
use crate::values::{List, counts, list, name, usage};
use crate::world::WorldArgs;
use clap::ValueEnum;
use ginlab::gin::PePath;
use ginlab::report::each_once;
use itertools::iproduct;
use kernels::jacobi::resident::MOST_COLUMNS;
use kernels::jacobi::{NORM_BLOCK, NORM_NEVER, NORM_THREAD_ATOMIC};
use std::fmt;
use std::str::FromStr;

const EXAMPLES: &str = "\
Examples:
  ginlab jacobi                                           compare every exchange between two PEs on this machine
  ginlab jacobi --nx 1024,4096,16384                      sweep three square fields
  ginlab jacobi --exchange row,host-write --path rails --provider tcp   exchange rows over rails
  ginlab jacobi --random 100 --seed 7                     compute random resident fields, wide and narrow
  ginlab jacobi --exchange block --norm-when now,delayed,every=10 --sync barrier,neighbours   compare synchronization
  ginlab jacobi --np 1 --exchange row --norm thread-atomic,block --nx 16384 --iterations 10 --repeats 1   compare sums on one GPU";

/// Method of sending boundary rows to the neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HaloExchange {
    /// NCCL, after the stencil
    Nccl,
    /// NCCL, overlapped with the computation of all rows except the outermost
    NcclOverlap,
    /// Like nccl-overlap, in CUDA graphs
    NcclGraph,
    /// Like nccl-graph, with fields and received rows in memory that is registered with NCCL (ncclCommWindowRegister)
    NcclWindow,
    /// The CPU: the copy engine over NVLink, a write with a signal over rails
    HostWrite,
    /// The stencil's threads send element by element
    P,
    /// The stencil's blocks: each puts its piece of a row
    Block,
    /// The stencil's last block of a row puts the whole row
    Row,
    /// One grid for all iterations, with the field in registers and shared memory
    Resident,
}

impl HaloExchange {
    /// Returns whether NCCL sends the rows.
    pub fn by_nccl(self) -> bool {
        matches!(self, HaloExchange::Nccl | HaloExchange::NcclOverlap) || self.in_graphs()
    }

    /// Returns whether iterations are recorded in CUDA graphs.
    pub fn in_graphs(self) -> bool {
        matches!(self, HaloExchange::NcclGraph | HaloExchange::NcclWindow)
    }
}

/// Summation of the squared changes, numbered as in kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[repr(u32)]
pub enum Norm {
    /// Every point adds to one float, as in builds without a block reduction
    ThreadAtomic = NORM_THREAD_ATOMIC,
    /// Each block adds once
    Block = NORM_BLOCK,
    /// No sums
    Never = NORM_NEVER,
}

/// Time at which the CPU receives the norm of all PEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Norm before the next iteration starts.
    Now,
    /// While later iterations run, several norms at a time ([`DELAYED_NORMS`](super::run::DELAYED_NORMS)).
    Delayed,
    /// Norm after every K iterations, before the next iteration starts.
    Every(u32),
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            When::Now => f.write_str("now"),
            When::Delayed => f.write_str("delayed"),
            When::Every(count) => write!(f, "every={count}"),
        }
    }
}

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<When, String> {
        let every = || text.strip_prefix("every=")?.parse().ok().filter(|count| *count > 0).map(When::Every);
        match text {
            "now" => Ok(When::Now),
            "delayed" => Ok(When::Delayed),
            _ => every()
                .ok_or_else(|| format!("invalid time {text:?}: expected now, delayed or every=K with K of at least 1")),
        }
    }
}

/// Synchronization between consecutive iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SyncBy {
    /// A barrier of all PEs
    Barrier,
    /// Each PE waits for its two neighbours' rows
    Neighbours,
}

/// Number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockCount {
    /// Chosen by the field and the device.
    Auto,
    Blocks(u32),
}

impl FromStr for BlockCount {
    type Err = String;

    fn from_str(text: &str) -> Result<BlockCount, String> {
        match text.parse() {
            _ if text == "auto" => Ok(BlockCount::Auto),
            Ok(blocks) if (1..=1 << 20).contains(&blocks) => Ok(BlockCount::Blocks(blocks)),
            _ => Err(format!("invalid grid {text:?}: expected auto or a number of blocks")),
        }
    }
}

/// Options of `ginlab jacobi`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("repeats", |arg| arg.help("Number of runs").default_value("5")))]
#[command(mut_arg("no_check", |arg| arg.help("Do not compare the field with that of one device")))]
pub struct JacobiArgs {
    /// Method of sending boundary rows to the neighbours; a list to sweep [default: all, those of NCCL only on GPUs]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    pub exchange: Vec<HaloExchange>,
    /// Summation of the squares of the changes; a list to sweep
    #[arg(long, default_value = "block", value_name = "LIST", value_delimiter = ',', value_enum)]
    pub norm: Vec<Norm>,
    /// Time at which the CPU receives the norm: now, delayed, every=K; a list to sweep
    #[arg(long, default_value = "delayed", value_name = "LIST", value_parser = list::<When>)]
    pub norm_when: List<When>,
    /// Synchronization between two iterations; a list to sweep
    #[arg(long, default_value = "neighbours", value_name = "LIST", value_delimiter = ',', value_enum)]
    pub sync: Vec<SyncBy>,
    /// Path between PEs: auto, nvlink, rails, direct; a list to sweep
    #[arg(long, default_value = "auto", value_name = "LIST", value_parser = list::<PePath>)]
    pub path: List<PePath>,
    /// Columns of the field; a list to sweep [default: 4096; 64 on the emulated device]
    #[arg(long, value_name = "LIST", value_parser = counts::<u32>(1 << 20))]
    pub nx: Option<List<u32>>,
    /// Rows of the field; a list to sweep [default: equal to the columns]
    #[arg(long, value_name = "LIST", value_parser = counts::<u32>(1 << 20))]
    pub ny: Option<List<u32>>,
    /// Iterations per run; a list to sweep [default: 1000; 20 on the emulated device]
    #[arg(short = 'n', long, value_name = "LIST", value_parser = counts::<u32>(10_000_000))]
    pub iterations: Option<List<u32>>,
    /// Number of blocks, or auto; a list to sweep
    #[arg(long, default_value = "auto", value_name = "LIST", value_parser = list::<BlockCount>)]
    pub grid: List<BlockCount>,
    /// Threads per block, a multiple of 32; a list to sweep. resident uses as many as a row requires
    #[arg(long, default_value = "256", value_name = "LIST", value_parser = threads)]
    pub block: List<u32>,
    /// Maximum columns of a block of resident, a multiple of 128 up to 4096: wider rows are split over blocks
    #[arg(long, default_value_t = MOST_COLUMNS, value_name = "N", value_parser = columns)]
    pub piece: u32,
    /// Rows per tile of the launched kernel, or 0 to choose by the field
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub strip: u32,
    /// Command that runs NVIDIA's Jacobi program for NVSHMEM on as many GPUs, once per repeat and field, in the same
    /// run. scripts/jacobi-nvidia.sh builds the program and prints the command
    #[arg(long, value_name = "COMMAND")]
    pub nvshmem: Option<String>,
    #[command(flatten)]
    pub random: RandomArgs,
    #[command(flatten)]
    pub repeat: RepeatArgs,
    #[command(flatten)]
    pub world: WorldArgs,
}

fn threads(text: &str) -> Result<List<u32>, String> {
    let list = counts::<u32>(1024)(text)?;
    match list.iter().find(|threads| !threads.is_multiple_of(32)) {
        Some(threads) => Err(format!("{threads} threads: must be a multiple of 32, up to 1024")),
        None => Ok(list),
    }
}

/// Unit of a piece: the columns of a warp.
const PIECE: u32 = 128;
/// Largest random field.
const MOST_RANDOM: (u32, u32) = (20_000, 200);

fn columns(text: &str) -> Result<u32, String> {
    let columns =
        text.parse().ok().filter(|columns: &u32| columns.is_multiple_of(PIECE) && (1..=MOST_COLUMNS).contains(columns));
    columns.ok_or_else(|| format!("invalid columns {text:?}: expected a multiple of {PIECE}, up to {MOST_COLUMNS}"))
}

/// Parameters of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JacobiConfig {
    pub exchange: HaloExchange,
    pub norm: Norm,
    pub when: When,
    pub sync: SyncBy,
    pub path: PePath,
    pub nx: u32,
    pub ny: u32,
    pub iterations: u32,
    pub grid: BlockCount,
    /// Threads per block. 0 for as many as a row requires.
    pub block: u32,
    /// Maximum columns of a resident block.
    pub piece: u32,
}

/// Default values.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    pub nx: u32,
    pub iterations: u32,
    /// Whether NCCL's exchanges are included.
    pub nccl: bool,
}

/// Returns the parameter combinations of all rows that the options select. Parameter combinations that differ only in
/// parameters without effect are listed once.
pub fn tuples(args: &JacobiArgs, defaults: Defaults) -> Result<Vec<JacobiConfig>, Failure> {
    if let Some(random) = args.random.generators() {
        return Ok(each_once(random.map(|random| shape(args, defaults, random))));
    }
    let list_or = |given: &Option<List<u32>>, otherwise: u32| given.clone().unwrap_or_else(|| vec![otherwise]);
    let every = HaloExchange::value_variants().iter().copied().filter(|exchange| defaults.nccl || !exchange.by_nccl());
    let exchanges = if args.exchange.is_empty() { every.collect() } else { args.exchange.clone() };
    let by = |nx| list_or(&args.ny, nx).into_iter().map(move |ny| (nx, ny));
    let fields: Vec<(u32, u32)> = list_or(&args.nx, defaults.nx).into_iter().flat_map(by).collect();
    if let Some((nx, ny)) = fields.iter().find(|(nx, ny)| *nx < 3 || *ny < 3) {
        return Err(usage("--nx/--ny", format!("{nx} x {ny}: a field requires at least 3 columns and 3 rows")));
    }
    let iterations = list_or(&args.iterations, defaults.iterations);
    let JacobiArgs { path, norm, norm_when, sync, grid, block, .. } = args;
    let all = iproduct!(path, &fields, &iterations, norm, norm_when, sync, &exchanges, grid, block);
    let tuples = all.map(|(&path, &(nx, ny), &iterations, &norm, &when, &sync, &exchange, &grid, &block)| {
        let resident = exchange == HaloExchange::Resident;
        JacobiConfig {
            exchange,
            norm,
            when: if norm == Norm::Never { When::Delayed } else { when },
            sync: if resident || exchange.by_nccl() { SyncBy::Neighbours } else { sync },
            path,
            nx,
            ny,
            iterations,
            grid,
            block: if resident { 0 } else { block },
            piece: args.piece,
        }
    });
    Ok(each_once(tuples))
}

/// Returns a random shape of a resident field: up to the largest `--nx` and `--ny`, in pieces of any size.
fn shape(args: &JacobiArgs, defaults: Defaults, mut random: SeededChoices) -> JacobiConfig {
    let most = |given: &Option<List<u32>>, otherwise| {
        given.iter().flat_map(|list| list.iter()).copied().max().unwrap_or(otherwise)
    };
    let least = args.world.meet.np.unwrap_or(2).max(3) as u64;
    let (nx, ny) = (most(&args.nx, MOST_RANDOM.0), most(&args.ny, MOST_RANDOM.1));
    JacobiConfig {
        exchange: HaloExchange::Resident,
        norm: random.one(&[Norm::Block, Norm::Never]),
        when: When::Delayed,
        sync: SyncBy::Neighbours,
        path: random.one(&args.path),
        nx: random.size_within(3, nx.into()) as u32,
        ny: random.size_within(least, ny.into()) as u32,
        iterations: args.iterations.as_ref().map_or(defaults.iterations, |list| random.one(list)),
        grid: BlockCount::Auto,
        block: 0,
        piece: PIECE * random.size_within(1, u64::from(MOST_COLUMNS / PIECE)) as u32,
    }
}

impl JacobiConfig {
    /// Returns the reason why the combination is not supported. `None` if it is.
    pub fn refused(&self) -> Option<String> {
        if self.exchange.by_nccl() && matches!(self.path, PePath::Rails | PePath::Direct) {
            return Some(format!("{} does not use rails: requires --path auto or nvlink", self.case()));
        }
        if self.exchange == HaloExchange::HostWrite && self.path == PePath::Direct {
            return Some("host-write writes from the CPU, which path direct does not support: use --path rails".into());
        }
        if self.exchange != HaloExchange::Resident {
            return None;
        }
        match (self.norm, self.when) {
            (Norm::ThreadAtomic, _) => Some("resident sums on the chip: requires --norm block or never".into()),
            (Norm::Block, When::Now) => {
                Some("resident runs without the CPU between iterations: requires --norm-when delayed or every=K".into())
            }
            _ => None,
        }
    }

    /// Returns the case name shown in rows.
    pub fn case(&self) -> String {
        name(self.exchange)
    }
}
