//! Options of `ginlab ipc`.

use crate::args::RepeatArgs;
use crate::mps::MpsArgs;
use crate::values::{List, corrupt, counts, seconds};
use clap::ValueEnum;
use ginlab::cuda::DeviceChoice;
use ginlab::measure::size;
use std::path::PathBuf;
use std::time::Duration;
use strum::IntoStaticStr;

const EXAMPLES: &str = "\
Examples:
  ginlab ipc                                            measure one pair with a few grids and sizes; emulated without a GPU
  ginlab ipc -b 1G -e 1G --grid 1,8,128 --store plain,bulk --operation write,copy,read   compare operations
  ginlab ipc -b 1G -e 1G --grid auto                    find the number of blocks that saturates the link
  ginlab ipc -b 64K -e 1M -f 2 --launch stream,graph --grid 16,64   compare streams with graphs
  ginlab ipc --np 4 --pairs matrix -b 1G -e 1G --grid 128   measure every pair, one after another
  ginlab ipc --np 4 --pairs all -b 256M -e 256M --grid 32 --store plain,together   write from every rank to every other one
  ginlab ipc --direction one,both -b 1G -e 1G --grid 128   compare one direction with both";

/// Options of `ginlab ipc`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct IpcArgs {
    /// Smallest size; K, M and G are powers of two
    #[arg(short = 'b', long, default_value = "64K", value_name = "SIZE", value_parser = size::parse)]
    pub begin: u64,
    /// Largest size [default: 1G on GPUs, 4M emulated]
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = size::parse)]
    pub end: Option<u64>,
    /// Factor between consecutive sizes
    #[arg(short = 'f', long, default_value_t = 8, value_name = "N")]
    pub factor: u64,
    /// Operations: write (a pattern), copy (from local memory), read (the peer's memory); a list to sweep
    #[arg(
        short = 'o',
        long,
        default_value = "write",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub operation: Vec<IpcOperation>,
    /// Bytes per store or load of a thread: 4, 8, 16; a list to sweep
    #[arg(long, default_value = "16", value_name = "LIST", value_delimiter = ',', value_parser = width, help_heading = "Measurement")]
    pub width: Vec<u32>,
    /// Stores of kernels: plain (a fixed part per thread), parts (parts of 32 KiB that warps take dynamically; only
    /// write), together (one launch for all targets of a rank, with the grid's blocks for each; only write), bulk (TMA,
    /// compute capability 9.0); a list to sweep
    #[arg(
        long,
        default_value = "plain",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub store: Vec<Store>,
    /// Number of blocks: a list to sweep, or auto (doubled up to 256, emulated 8, and the knee is marked)
    #[arg(short = 'g', long, value_name = "LIST", value_parser = grid)]
    pub grid: Option<GridChoice>,
    /// Threads per block; a list to sweep [default: 256]
    #[arg(long, default_value = "256", hide_default_value = true, value_name = "LIST", value_parser = counts::<u32>(u32::MAX))]
    pub block: List<u32>,
    /// Submission of launches: stream (one by one), graph (recorded and launched together); a list to sweep
    #[arg(
        long,
        default_value = "stream",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub launch: Vec<SubmitMethod>,
    /// Directions: one, or both at the same time; a list to sweep
    #[arg(
        long,
        default_value = "one",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub direction: Vec<Direction>,
    /// Pairs of ranks: first (ranks 0 and 1), matrix (every pair, one after another), all (every rank to every other at
    /// the same time)
    #[arg(long, default_value = "first", value_name = "WHICH", value_enum, hide_possible_values = true)]
    pub pairs: Pairs,
    /// Number of ranks; each has its own GPU if there are enough [default: 2; all GPUs for --pairs matrix and all]
    #[arg(long, alias = "ranks", value_name = "N")]
    pub np: Option<usize>,
    #[command(flatten)]
    pub mps: MpsArgs,
    /// Cubin or PTX with the kernels of experiments/ipc/baseline, compiled by nvcc, for comparison
    #[arg(long, value_name = "FILE")]
    pub cuda_module: Option<PathBuf>,
    /// Launches per repeat, between two events; reduced if they would move more than --volume [default: 100, emulated
    /// 4]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub iterations: Option<u32>,
    /// Maximum bytes that the launches of a repeat move
    #[arg(long, default_value = "2G", value_name = "SIZE", value_parser = size::parse)]
    pub volume: u64,
    /// Untimed launches before the first repeat
    #[arg(short = 'w', long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub warmup: u32,
    #[command(flatten)]
    pub repeat: RepeatArgs,
    /// Device that runs kernels: gpu, emulated (CPU threads), or auto (the GPU if there is one)
    #[arg(short = 'd', long, value_enum, default_value_t = DeviceChoice::Auto, hide_possible_values = true)]
    pub device: DeviceChoice,
    /// Limit for every wait without progress, in seconds. Ranks wait for each other for twice this time plus 6 s
    #[arg(short = 't', long, default_value = "30", value_name = "SECONDS", value_parser = seconds())]
    pub timeout: Duration,
    /// Inject a fault: corrupt (one byte of every payload is corrupted before the check)
    #[arg(long, hide = true, alias = "spoil", value_name = "FAULT", num_args = 0..=1, default_missing_value = "corrupt", value_parser = corrupt)]
    pub fault: Option<()>,
}

/// Operation on the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, ValueEnum)]
#[strum(serialize_all = "kebab-case")]
pub enum IpcOperation {
    Write,
    Copy,
    Read,
}

impl IpcOperation {
    /// Returns the name of its cases.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Method of storing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Store {
    Plain,
    Parts,
    Together,
    Bulk,
}

/// Pairs of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pairs {
    First,
    Matrix,
    All,
}

/// Method of submitting launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SubmitMethod {
    Stream,
    Graph,
}

/// Number of directions at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Direction {
    One,
    Both,
}

/// Grids to measure.
#[derive(Clone, Debug)]
pub enum GridChoice {
    /// Doubled, and the knee is marked
    Auto,
    /// The given grids
    List(List<u32>),
}

fn grid(text: &str) -> Result<GridChoice, String> {
    if text.trim() == "auto" { Ok(GridChoice::Auto) } else { counts(u32::MAX)(text).map(GridChoice::List) }
}

fn width(text: &str) -> Result<u32, String> {
    text.trim()
        .parse()
        .ok()
        .filter(|width| [4, 8, 16].contains(width))
        .ok_or_else(|| format!("invalid width {text:?}: expected 4, 8 or 16"))
}
