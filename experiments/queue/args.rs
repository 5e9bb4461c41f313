//! Options of `ginlab queue`.

use crate::args::RepeatArgs;
use crate::values::{List, Pin, counts, list, seconds, slots};
use ::kernels::queue::kernel::{self as kernels, QueueKernelArgs, SCOPE_THREAD, SCOPE_WARP};
use clap::ValueEnum;
use ginlab::cuda::{DeviceChoice, Kernel};
use ginlab::measure::size;
use ginlab::ring::RingPlace;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  ginlab queue                                          compare the ring with Vyukov's queue, blocking and nbi
  ginlab queue --algorithm ticket --mode nbi --grid 1,4,32,132 --block 1,32,256,1024   sweep grids
  ginlab queue --scope warp --mode blocking --grid 1,8,32,64,132 --block 32   push by whole warps
  ginlab queue --memory pinned,managed,gdr --payload 8,32,128,1024   compare memories
  ginlab queue --rings 1,4 --grid 132 --block 256 --mode nbi   distribute producers over several rings
  ginlab queue -d emulated --ring-slots 1,2,64 --pause 1000:200   stress a full ring, wraps and a pausing consumer
  ginlab queue --csv q.csv && ginlab chart q.csv -x grid,block -y rate_mops --series case,mode -o q.svg";

/// Options of `ginlab queue`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("no_check", |arg| arg.help("Do not check each element in a separate pass (counts and sums are always checked)")))]
pub struct QueueArgs {
    /// Queues to compare, interleaved: ticket (the ring), lanes (the ring; the lanes of a warp use all --rings),
    /// release (the ring with a release store per element), vyukov
    #[arg(
        short = 'a',
        long,
        default_value = "ticket,release,vyukov",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub algorithm: Vec<Algorithm>,
    /// Memory shared by GPU and CPU: pinned, managed, gdr (GDRCopy); a list to sweep
    #[arg(
        long,
        default_value = "pinned",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub memory: Vec<RingPlace>,
    /// Bytes per element, powers of two from 8 to 1024; a list to sweep. Each 8-byte word has 63 bits of content
    #[arg(short = 'p', long, default_value = "32", value_name = "LIST", value_parser = list::<WordCount<1024>>)]
    pub payload: List<WordCount<1024>>,
    /// Distance between the slots of a ring in bytes, a power of two [default: the element size]
    #[arg(long, value_name = "BYTES")]
    pub slot_bytes: Option<WordCount<4096>>,
    /// Waits of producers: blocking (until each push is acknowledged), nbi (once at the end); a list to sweep
    #[arg(
        short = 'm',
        long,
        default_value = "blocking,nbi",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub mode: Vec<QueueMode>,
    /// Threads that push an element: thread (each its own), warp (one together); a list to sweep
    #[arg(
        long,
        default_value = "thread",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub scope: Vec<PushScope>,
    /// Number of blocks; a list to sweep
    #[arg(short = 'g', long, default_value = "1,8,32", value_name = "LIST", value_parser = counts::<u32>(u32::MAX))]
    pub grid: List<u32>,
    /// Threads per block; a list to sweep [default: 1,32]
    #[arg(long, default_value = "1,32", hide_default_value = true, value_name = "LIST", value_parser = counts::<u32>(u32::MAX))]
    pub block: List<u32>,
    /// Emulated device: seed for the order and grouping in which lanes run [default: in lane order]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Number of rings; a list to sweep. Block b (with `lanes`: producer b) uses ring b modulo their number
    #[arg(long, default_value = "1", value_name = "LIST", value_parser = counts::<u32>(64))]
    pub rings: List<u32>,
    /// Number of consumer threads, at most one per ring [default: one per ring]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub consumers: Option<u32>,
    /// Slots per ring, powers of two; a list to sweep
    #[arg(long, default_value = "16384", value_name = "LIST", value_delimiter = ',', value_parser = slots)]
    pub ring_slots: Vec<usize>,
    /// Pushes per producer and repeat [default: as many as take about --time]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 31))]
    pub pushes: Option<u32>,
    /// Target duration of a repeat in milliseconds
    #[arg(long, default_value_t = 20, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub time: u64,
    #[command(flatten)]
    pub repeat: RepeatArgs,
    /// Library built from experiments/queue/baseline/prototype.cu: the ring in CUDA C++, interleaved with `ticket`
    /// (nbi, 32 bytes)
    #[arg(long, value_name = "PATH.so")]
    pub prototype: Option<PathBuf>,
    /// Pause the consumer for US microseconds after every ELEMENTS elements
    #[arg(long, value_name = "ELEMENTS:US", value_parser = pause)]
    pub pause: Option<(u64, Duration)>,
    /// Cores for the consumer threads: auto, off, or a list
    #[arg(long, default_value = "auto", value_name = "WHICH")]
    pub pin: Pin,
    /// Device that runs kernels: gpu, emulated (CPU threads), or auto (the GPU if there is one)
    #[arg(short = 'd', long, value_enum, default_value_t = DeviceChoice::Auto, hide_possible_values = true)]
    pub device: DeviceChoice,
    /// Limit for every wait, in seconds
    #[arg(short = 't', long, default_value = "30", value_name = "SECONDS", value_parser = seconds(), help_heading = "Measurement")]
    pub timeout: Duration,
}

/// A queue to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Algorithm {
    /// The ring
    Ticket,
    /// The ring; a warp's lanes over all rings
    Lanes,
    /// The ring with a release store per element
    Release,
    /// Vyukov's bounded queue
    Vyukov,
}

impl Algorithm {
    pub fn kernel(self, watched: bool) -> &'static Kernel<QueueKernelArgs> {
        match (self, watched) {
            (Algorithm::Ticket, false) => &kernels::QUEUE_TICKET,
            (Algorithm::Ticket, true) => &kernels::QUEUE_TICKET_WATCHED,
            (Algorithm::Lanes, false) => &kernels::QUEUE_LANES,
            (Algorithm::Lanes, true) => &kernels::QUEUE_LANES_WATCHED,
            (Algorithm::Release, false) => &kernels::QUEUE_RELEASE,
            (Algorithm::Release, true) => &kernels::QUEUE_RELEASE_WATCHED,
            (Algorithm::Vyukov, false) => &kernels::QUEUE_VYUKOV,
            (Algorithm::Vyukov, true) => &kernels::QUEUE_VYUKOV_WATCHED,
        }
    }
}

/// Waits of producers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QueueMode {
    /// Wait until each push is acknowledged
    Blocking,
    /// One wait at the end
    Nbi,
}

/// Threads that push, numbered as in kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[repr(u32)]
pub enum PushScope {
    /// Each thread pushes its own element
    Thread = SCOPE_THREAD,
    /// A warp pushes one element together
    Warp = SCOPE_WARP,
}

/// Bytes as a number of 8-byte words: a power of two, at most `MOST` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordCount<const MOST: u64>(pub u32);

impl<const MOST: u64> FromStr for WordCount<MOST> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = size::parse(text).map_err(|why| why.to_string())?;
        if !bytes.is_power_of_two() || !(8..=MOST).contains(&bytes) {
            return Err(format!("{text}: must be a power of two from 8 to {MOST}"));
        }
        Ok(WordCount((bytes / 8) as u32))
    }
}

/// Parses the number of elements between pauses of the consumer, and the length of a pause.
fn pause(text: &str) -> Result<(u64, Duration), String> {
    let parsed = text.split_once(':').and_then(|(every, micros)| {
        let every = every.parse().ok().filter(|every| *every > 0)?;
        let micros = micros.parse().ok().filter(|micros| *micros <= 1_000_000)?;
        Some((every, Duration::from_micros(micros)))
    });
    parsed.ok_or_else(|| {
        format!("invalid pause {text:?}: expected ELEMENTS:MICROSECONDS, such as 1000:50, with a pause of at most 1 s")
    })
}
