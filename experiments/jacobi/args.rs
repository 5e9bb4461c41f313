//! Options of `ginlab jacobi`, and the rows that they ask for.

use crate::error::Failure;
use crate::values::{List, counts, list, name, usage};
use crate::world::WorldArgs;
use clap::ValueEnum;
use ginlab::gin::Path;
use ginlab::report::each_once;
use itertools::iproduct;
use kernels::jacobi::{NORM_BLOCK, NORM_NEVER, NORM_THREAD_ATOMIC};
use std::fmt;
use std::str::FromStr;

const EXAMPLES: &str = "\
Examples:
  ginlab jacobi                                           two PEs on this machine, every exchange
  ginlab jacobi --nx 1024,4096,16384                      three fields, square
  ginlab jacobi --exchange row,host-write --path rails --provider tcp
  ginlab jacobi --exchange block --norm-when now,delayed,every=10 --sync barrier,neighbours
  ginlab jacobi --np 1 --exchange row --norm thread-atomic,block --nx 16384 --iterations 10 --repeats 1";

/// How boundary rows get to the neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Exchange {
    /// NCCL, behind the stencil.
    Nccl,
    /// NCCL, while all rows but the outermost are computed.
    NcclOverlap,
    /// As nccl-overlap, in CUDA graphs.
    NcclGraph,
    /// The CPU: by the copy engine over NVLink, by a write with a signal over rails.
    HostWrite,
    /// The stencil's threads, element by element.
    P,
    /// The stencil's blocks: each puts its piece of a row.
    Block,
    /// The stencil's last block of a row: one put of the whole row.
    Row,
    /// One grid for all iterations, the field on the chip.
    Resident,
}

impl Exchange {
    /// Whether NCCL sends the rows.
    pub fn by_nccl(self) -> bool {
        matches!(self, Exchange::Nccl | Exchange::NcclOverlap | Exchange::NcclGraph)
    }
}

/// Who sums the squares of the changes, by the number that kernels take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[repr(u32)]
pub enum Norm {
    /// Each point adds to one float: the artefact of builds without a block reduction.
    ThreadAtomic = NORM_THREAD_ATOMIC,
    /// Each block adds once.
    Block = NORM_BLOCK,
    /// Nobody.
    Never = NORM_NEVER,
}

/// When the CPU sees the norm of all PEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Before the next iteration begins.
    Now,
    /// While later iterations run, some at a time ([`DELAYED_NORMS`](super::run::DELAYED_NORMS)).
    Delayed,
    /// Every so many iterations, before the next one begins.
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
            _ => every().ok_or_else(|| format!("{text:?} is none of now, delayed, every=K with K from 1")),
        }
    }
}

/// What stands between an iteration and the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SyncBy {
    /// A barrier of all PEs.
    Barrier,
    /// Each PE waits for its two neighbours' rows.
    Neighbours,
}

/// Blocks of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// By the field and the device.
    Auto,
    Blocks(u32),
}

impl FromStr for Grid {
    type Err = String;

    fn from_str(text: &str) -> Result<Grid, String> {
        match text.parse() {
            _ if text == "auto" => Ok(Grid::Auto),
            Ok(blocks) if (1..=1 << 20).contains(&blocks) => Ok(Grid::Blocks(blocks)),
            _ => Err(format!("{text:?} is neither auto nor a number of blocks")),
        }
    }
}

/// Options of `ginlab jacobi`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// How boundary rows get to the neighbours; a list [default: all; NCCL's on GPUs alone]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    pub exchange: Vec<Exchange>,
    /// Who sums the squares of the changes; a list
    #[arg(long, default_value = "block", value_name = "LIST", value_delimiter = ',', value_enum)]
    pub norm: Vec<Norm>,
    /// When the CPU sees the norm: now, delayed, every=K; a list
    #[arg(long, default_value = "delayed", value_name = "LIST", value_parser = list::<When>)]
    pub norm_when: List<When>,
    /// What stands between two iterations; a list
    #[arg(long, default_value = "neighbours", value_name = "LIST", value_delimiter = ',', value_enum)]
    pub sync: Vec<SyncBy>,
    /// How PEs are reached: auto, nvlink, rails, direct; a list
    #[arg(long, default_value = "auto", value_name = "LIST", value_parser = list::<Path>)]
    pub path: List<Path>,
    /// Columns of the field, a list [default: 4096; 64 on the emulated device]
    #[arg(long, value_name = "LIST", value_parser = counts::<u32>(1 << 20))]
    pub nx: Option<List<u32>>,
    /// Rows of the field, a list [default: as many as columns]
    #[arg(long, value_name = "LIST", value_parser = counts::<u32>(1 << 20))]
    pub ny: Option<List<u32>>,
    /// Iterations of one run, a list [default: 1000; 20 on the emulated device]
    #[arg(short = 'n', long, value_name = "LIST", value_parser = counts::<u32>(10_000_000))]
    pub iterations: Option<List<u32>>,
    /// Blocks of a grid, or auto; a list
    #[arg(long, default_value = "auto", value_name = "LIST", value_parser = list::<Grid>)]
    pub grid: List<Grid>,
    /// Threads of a block, a multiple of 32; resident takes what a row needs
    #[arg(long, default_value = "256", value_name = "LIST", value_parser = threads)]
    pub block: List<u32>,
    /// Rows of a tile of the launched kernel, 0: by the field
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub strip: u32,
    /// Runs
    #[arg(short = 'r', long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Do not compare the field with that of one device
    #[arg(long)]
    pub no_check: bool,
    #[command(flatten)]
    pub world: WorldArgs,
}

fn threads(text: &str) -> Result<List<u32>, String> {
    let list = counts::<u32>(1024)(text)?;
    match list.iter().find(|threads| !threads.is_multiple_of(32)) {
        Some(threads) => Err(format!("{threads} threads; a block is whole warps: 32, 64, ... 1024")),
        None => Ok(list),
    }
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    pub exchange: Exchange,
    pub norm: Norm,
    pub when: When,
    pub sync: SyncBy,
    pub path: Path,
    pub nx: u32,
    pub ny: u32,
    pub iterations: u32,
    pub grid: Grid,
    /// 0: what a row needs.
    pub block: u32,
}

/// What is taken where nothing is said.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    pub nx: u32,
    pub iterations: u32,
    /// NCCL's exchanges too.
    pub nccl: bool,
}

/// Every row that the options ask for. Factors that make no difference to one another are not multiplied.
pub fn tuples(args: &Args, defaults: Defaults) -> Result<Vec<Tuple>, Failure> {
    let list_or = |given: &Option<List<u32>>, otherwise: u32| given.clone().unwrap_or_else(|| vec![otherwise]);
    let every = Exchange::value_variants().iter().copied().filter(|exchange| defaults.nccl || !exchange.by_nccl());
    let exchanges = if args.exchange.is_empty() { every.collect() } else { args.exchange.clone() };
    let by = |nx| list_or(&args.ny, nx).into_iter().map(move |ny| (nx, ny));
    let fields: Vec<(u32, u32)> = list_or(&args.nx, defaults.nx).into_iter().flat_map(by).collect();
    if let Some((nx, ny)) = fields.iter().find(|(nx, ny)| *nx < 3 || *ny < 3) {
        return Err(usage("--nx/--ny", format!("{nx} x {ny}: a field has three columns and three rows or more")));
    }
    let iterations = list_or(&args.iterations, defaults.iterations);
    let Args { path, norm, norm_when, sync, grid, block, .. } = args;
    let all = iproduct!(path, &fields, &iterations, norm, norm_when, sync, &exchanges, grid, block);
    let tuples = all.map(|(&path, &(nx, ny), &iterations, &norm, &when, &sync, &exchange, &grid, &block)| {
        let resident = exchange == Exchange::Resident;
        Tuple {
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
        }
    });
    Ok(each_once(tuples))
}

impl Tuple {
    /// Why there is no such row.
    pub fn refused(&self) -> Option<String> {
        if self.exchange.by_nccl() && matches!(self.path, Path::Rails | Path::Direct) {
            return Some(format!("{} chooses its way itself: --path auto or nvlink", self.case()));
        }
        if self.exchange == Exchange::HostWrite && self.path == Path::Direct {
            return Some("host-write is the CPU's, which by path direct writes nothing: --path rails".into());
        }
        if self.exchange != Exchange::Resident {
            return None;
        }
        match (self.norm, self.when) {
            (Norm::ThreadAtomic, _) => Some("resident has its sums on the chip: --norm block or never".into()),
            (Norm::Block, When::Now) => {
                Some("resident has no CPU between two iterations: --norm-when delayed or every=K".into())
            }
            _ => None,
        }
    }

    /// For rows: the name of a value.
    pub fn case(&self) -> String {
        name(self.exchange)
    }
}
