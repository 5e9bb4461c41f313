//! The options of `ginlab ipc`, as typed.

use crate::output::{DeviceKind, OutputArgs};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  ginlab ipc                                            the first pair, a few grids and sizes; emulated without a GPU
  ginlab ipc -b 1G -e 1G --grid 1,8,128 --store plain,bulk --operation write,copy,read
  ginlab ipc -b 1G -e 1G --grid auto                    where more blocks do not help any more
  ginlab ipc -b 64K -e 1M -f 2 --launch stream,graph --grid 16,64
  ginlab ipc --ranks 4 --pairs matrix -b 1G -e 1G --grid 128
  ginlab ipc --ranks 4 --pairs all -b 256M -e 256M --grid 32
  ginlab ipc --direction one,both -b 1G -e 1G --grid 128";

/// Options of `ginlab ipc`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Smallest size [K, M, G are powers of two]
    #[arg(short = 'b', long, default_value = "64K", value_name = "SIZE")]
    pub begin: String,
    /// Largest size [default: 1G on GPUs, 4M emulated]
    #[arg(short = 'e', long, value_name = "SIZE")]
    pub end: Option<String>,
    /// Factor from one size to the next
    #[arg(short = 'f', long, default_value_t = 8, value_name = "N")]
    pub factor: u64,
    /// What is done: write (a pattern), copy (from local memory), read (the other's memory)
    #[arg(short = 'o', long, default_value = "write", value_name = "LIST")]
    pub operation: String,
    /// Bytes of one store or load of a thread: 4, 8, 16
    #[arg(long, default_value = "16", value_name = "LIST")]
    pub width: String,
    /// How kernels store: plain, bulk (TMA, compute capability 9.0)
    #[arg(long, default_value = "plain", value_name = "LIST")]
    pub store: String,
    /// Blocks of the grid, a list that is swept, or auto: doubled up to 256 (emulated 8), and the knee is marked
    #[arg(short = 'g', long, value_name = "LIST")]
    pub grid: Option<String>,
    /// Threads per block [default: 256 on GPUs, 4 emulated]
    #[arg(long, value_name = "LIST")]
    pub block: Option<String>,
    /// How work gets to the device: stream (a launch each), graph (recorded, launched as a whole)
    #[arg(long, default_value = "stream", value_name = "LIST")]
    pub launch: String,
    /// One way, or both ways at once
    #[arg(long, default_value = "one", value_name = "LIST")]
    pub direction: String,
    /// Who with whom: first (ranks 0 and 1), matrix (every pair in turn), all (every rank to every other at once)
    #[arg(long, default_value = "first", value_name = "WHICH")]
    pub pairs: String,
    /// Ranks, each with a GPU of its own [default: 2; all GPUs for --pairs matrix and all]
    #[arg(long, visible_alias = "np", value_name = "N")]
    pub ranks: Option<usize>,
    /// A cubin or PTX with the kernels of experiments/ipc/baseline, compiled by nvcc, to compare with
    #[arg(long, value_name = "FILE")]
    pub cuda_module: Option<PathBuf>,
    /// Launches per repeat, between two events; fewer where they would move more than --volume [default: 100, emulated 4]
    #[arg(short = 'n', long, value_name = "N")]
    pub iterations: Option<u32>,
    /// Bytes that the launches of a repeat move, at most
    #[arg(long, default_value = "2G", value_name = "SIZE")]
    pub volume: String,
    /// Untimed launches before the first repeat
    #[arg(short = 'w', long, default_value_t = 2, value_name = "N")]
    pub warmup: u32,
    /// Repeats; times are given as median, min and p99 over them
    #[arg(short = 'r', long, default_value_t = 10, value_name = "N")]
    pub repeats: u32,
    /// Do not verify
    #[arg(long)]
    pub no_check: bool,
    /// Where kernels run
    #[arg(short = 'd', long, value_enum, default_value_t = DeviceKind::Auto)]
    pub device: DeviceKind,
    /// Longest wait of any kind, in seconds
    #[arg(short = 't', long, default_value_t = 30, value_name = "SECONDS")]
    pub timeout: u64,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Spoil a byte of every payload before it is checked
    #[arg(long, hide = true)]
    pub spoil: bool,
}
