//! The options of `ginlab queue`, as typed.

use crate::output::{DeviceKind, OutputArgs};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  ginlab queue                                          ring and Vyukov's queue, blocking and nbi, a few grids
  ginlab queue --algorithm ticket --mode nbi --grid 1,4,32,132 --block 1,32,256,1024
  ginlab queue --scope warp --mode blocking --grid 1,8,32,64,132 --block 32
  ginlab queue --memory pinned,managed,gdr --payload 8,32,128,1024
  ginlab queue --rings 1,4 --grid 132 --block 256 --mode nbi
  ginlab queue -d emulated --ring-slots 1,2,64 --pause 1000:200   stress: full ring, wraps, a consumer that pauses
  ginlab queue --csv q.csv && ginlab chart q.csv -x grid,block -y rate_mops --series case,mode -o q.svg";

/// Options of `ginlab queue`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Queues to compare: ticket (the ring), lanes (the ring; a warp's lanes over all --rings), release (the ring with a
    /// release store per element), vyukov
    #[arg(short = 'a', long, default_value = "ticket,release,vyukov", value_name = "LIST")]
    pub algorithm: String,
    /// Memory that GPU and CPU share: pinned, managed, gdr (GDRCopy)
    #[arg(long, default_value = "pinned", value_name = "LIST")]
    pub memory: String,
    /// Bytes of an element, powers of two from 8 to 1024; each word of 8 has 63 bits of content
    #[arg(short = 'p', long, default_value = "32", value_name = "LIST")]
    pub payload: String,
    /// Bytes from one slot of the ring to the next, a power of two [default: those of the element]
    #[arg(long, value_name = "BYTES")]
    pub slot_bytes: Option<String>,
    /// How producers wait: blocking (each push acknowledged), nbi (once at the end)
    #[arg(short = 'm', long, default_value = "blocking,nbi", value_name = "LIST")]
    pub mode: String,
    /// Who pushes: thread (each its own element), warp (one element together); each a row
    #[arg(long, default_value = "thread", value_name = "LIST")]
    pub scope: String,
    /// Blocks of the grid
    #[arg(short = 'g', long, default_value = "1,8,32", value_name = "LIST")]
    pub grid: String,
    /// Threads per block [default: 1,32 on a GPU, 1,4 emulated]
    #[arg(long, value_name = "LIST")]
    pub block: Option<String>,
    /// Rings side by side; block b (in `lanes`: producer b) uses ring b modulo their number
    #[arg(long, default_value = "1", value_name = "LIST")]
    pub rings: String,
    /// Consumer threads, at most one per ring [default: one per ring]
    #[arg(long, value_name = "N")]
    pub consumers: Option<u32>,
    /// Slots of a ring, powers of two
    #[arg(long, default_value = "16384", value_name = "LIST")]
    pub ring_slots: String,
    /// Pushes per producer and repeat [default: as many as take about --time]
    #[arg(short = 'n', long, value_name = "N")]
    pub pushes: Option<u32>,
    /// Milliseconds that a repeat shall take
    #[arg(long, default_value_t = 20, value_name = "MS")]
    pub time: u64,
    /// Repeats; times are given as median, min and p99 over them
    #[arg(short = 'r', long, default_value_t = 10, value_name = "N")]
    pub repeats: u32,
    /// A library made of experiments/queue/baseline/prototype.cu: the ring in CUDA C++, in turns with `ticket` (nbi, 32 bytes)
    #[arg(long, value_name = "PATH.so")]
    pub prototype: Option<PathBuf>,
    /// The consumer stands still for so many microseconds after every so many elements
    #[arg(long, value_name = "ELEMENTS:US")]
    pub pause: Option<String>,
    /// Do not check each element in a pass of its own (counts and sums are checked all the same)
    #[arg(long)]
    pub no_check: bool,
    /// Do not pin the consumer threads
    #[arg(long)]
    pub no_pin: bool,
    /// Where kernels run
    #[arg(short = 'd', long, value_enum, default_value_t = DeviceKind::Auto)]
    pub device: DeviceKind,
    /// Longest wait of any kind, in seconds
    #[arg(short = 't', long, default_value_t = 30, value_name = "SECONDS")]
    pub timeout: u64,
    #[command(flatten)]
    pub output: OutputArgs,
}
