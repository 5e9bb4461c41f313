//! The options of `ginlab ipc`.

use crate::mps::MpsArgs;
use crate::values::{List, counts, seconds};
use clap::ValueEnum;
use ginlab::cuda::Choice;
use ginlab::measure::size;
use std::path::PathBuf;
use std::time::Duration;
use strum::IntoStaticStr;

const EXAMPLES: &str = "\
Examples:
  ginlab ipc                                            the first pair, a few grids and sizes; emulated without a GPU
  ginlab ipc -b 1G -e 1G --grid 1,8,128 --store plain,bulk --operation write,copy,read
  ginlab ipc -b 1G -e 1G --grid auto                    where more blocks do not help any more
  ginlab ipc -b 64K -e 1M -f 2 --launch stream,graph --grid 16,64
  ginlab ipc --np 4 --pairs matrix -b 1G -e 1G --grid 128
  ginlab ipc --np 4 --pairs all -b 256M -e 256M --grid 32 --store plain,together
  ginlab ipc --direction one,both -b 1G -e 1G --grid 128";

/// Options of `ginlab ipc`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Smallest size [K, M, G are powers of two]
    #[arg(short = 'b', long, default_value = "64K", value_name = "SIZE", value_parser = size::parse)]
    pub begin: u64,
    /// Largest size [default: 1G on GPUs, 4M emulated]
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = size::parse)]
    pub end: Option<u64>,
    /// Factor from one size to the next
    #[arg(short = 'f', long, default_value_t = 8, value_name = "N")]
    pub factor: u64,
    /// What is done: write (a pattern), copy (from local memory), read (the other's memory)
    #[arg(
        short = 'o',
        long,
        default_value = "write",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub operation: Vec<Operation>,
    /// Bytes of one store or load of a thread: 4, 8, 16
    #[arg(long, default_value = "16", value_name = "LIST", value_delimiter = ',', value_parser = width)]
    pub width: Vec<u32>,
    /// How kernels store: plain (a fixed part for each thread), parts (of 32 KiB, which warps take one after another; write alone), together (one
    /// launch for all targets of a rank, of the grid's blocks for each; write alone), bulk (TMA, compute capability 9.0)
    #[arg(
        long,
        default_value = "plain",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub store: Vec<Store>,
    /// Blocks of the grid, a list that is swept, or auto: doubled up to 256 (emulated 8), and the knee is marked
    #[arg(short = 'g', long, value_name = "LIST", value_parser = grid)]
    pub grid: Option<Grid>,
    /// Threads per block [default: 256]
    #[arg(long, default_value = "256", hide_default_value = true, value_name = "LIST", value_parser = counts::<u32>(u32::MAX))]
    pub block: List<u32>,
    /// How work gets to the device: stream (a launch each), graph (recorded, launched as a whole)
    #[arg(
        long,
        default_value = "stream",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub launch: Vec<Launch>,
    /// One way, or both ways at once
    #[arg(
        long,
        default_value = "one",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub direction: Vec<Direction>,
    /// Who with whom: first (ranks 0 and 1), matrix (every pair in turn), all (every rank to every other at once)
    #[arg(long, default_value = "first", value_name = "WHICH", value_enum, hide_possible_values = true)]
    pub pairs: Pairs,
    /// Ranks; each has a GPU of its own where there are enough [default: 2; all GPUs for --pairs matrix and all]
    #[arg(long, alias = "ranks", value_name = "N")]
    pub np: Option<usize>,
    #[command(flatten)]
    pub mps: MpsArgs,
    /// A cubin or PTX with the kernels of experiments/ipc/baseline, compiled by nvcc, to compare with
    #[arg(long, value_name = "FILE")]
    pub cuda_module: Option<PathBuf>,
    /// Launches per repeat, between two events; fewer where they would move more than --volume [default: 100, emulated 4]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub iterations: Option<u32>,
    /// Bytes that the launches of a repeat move, at most
    #[arg(long, default_value = "2G", value_name = "SIZE", value_parser = size::parse)]
    pub volume: u64,
    /// Untimed launches before the first repeat
    #[arg(short = 'w', long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub warmup: u32,
    /// Repeats; times are given as median, min and p99 over them
    #[arg(short = 'r', long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub repeats: u32,
    /// Do not verify
    #[arg(long)]
    pub no_check: bool,
    /// Where kernels run
    #[arg(short = 'd', long, value_enum, default_value_t = Choice::Auto)]
    pub device: Choice,
    /// Longest wait of any kind, in seconds; of ranks for one another twice that and 6 s: one may be in a wait of its own
    #[arg(short = 't', long, default_value = "30", value_name = "SECONDS", value_parser = seconds())]
    pub timeout: Duration,
    /// Spoil a byte of every payload before it is checked
    #[arg(long, hide = true)]
    pub spoil: bool,
}

/// What is done with the other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, ValueEnum)]
#[strum(serialize_all = "kebab-case")]
pub enum Operation {
    Write,
    Copy,
    Read,
}

impl Operation {
    /// The name of its cases.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// How kernels store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Store {
    Plain,
    Parts,
    Together,
    Bulk,
}

/// Which pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pairs {
    First,
    Matrix,
    All,
}

/// How work gets to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Launch {
    Stream,
    Graph,
}

/// How many ways at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Direction {
    One,
    Both,
}

/// Grids.
#[derive(Clone, Debug)]
pub enum Grid {
    /// Doubled, and the knee is marked.
    Auto,
    /// These.
    List(List<u32>),
}

fn grid(text: &str) -> Result<Grid, String> {
    if text.trim() == "auto" { Ok(Grid::Auto) } else { counts(u32::MAX)(text).map(Grid::List) }
}

fn width(text: &str) -> Result<u32, String> {
    text.trim()
        .parse()
        .ok()
        .filter(|width| [4, 8, 16].contains(width))
        .ok_or_else(|| format!("{text:?} is none of 4, 8, 16"))
}
