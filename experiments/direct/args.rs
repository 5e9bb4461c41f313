//! Options of `ginlab direct`.

use crate::args::RepeatArgs;
use crate::error::Failure;
use crate::values::{List, Pin, counts, list, seconds, usage};
use clap::ValueEnum;
use efa_queue::CompletionStatus;
use ginlab::cuda::{DeviceChoice, DeviceError};
use ginlab::direct::{QueueFaults, QueueOptions};
use ginlab::measure::size;
use itertools::iproduct;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  ginlab direct                                          measure puts with and without waiting; compare with ring and proxy
  ginlab direct --mode nbi --grid 1,8,132 --block 1,8,32 --queues 1,8   sweep grids and queues
  ginlab direct --cases direct,ring --mode quiet --grid 1 --block 1 --repeats 50   measure the latency of one thread
  ginlab direct --grid 132 --fault unreachable@100       fail a request: the kernel reports it (exit code 1)
  ginlab direct --grid 132 --fault lose@100 --timeout 2  lose a completion: the kernel times out (exit code 124)
  ginlab direct --cases vendor --fault flushed@3 --timeout 2   fail a request of a kernel that waits only for a counter";

/// Options of `ginlab direct`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DirectArgs {
    /// Device that runs kernels: gpu, emulated (CPU threads), or auto (the GPU if there is one)
    #[arg(short = 'd', long, default_value = "auto", value_enum, hide_possible_values = true)]
    pub device: DeviceChoice,
    /// Cases to measure, interleaved: direct (completions from the queue), counter (completions from the NIC's counter;
    /// one queue per block), ring (ring and proxy), vendor (only a counter, as vendors' device code waits)
    #[arg(
        short = 'c',
        long,
        alias = "case",
        default_value = "direct,counter,ring",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub cases: Vec<DirectCase>,
    /// Waits of the kernel: quiet (after each put), nbi (only at the end)
    #[arg(
        short = 'm',
        long,
        default_value = "quiet,nbi",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub mode: Vec<DirectMode>,
    /// Number of blocks; a list to sweep
    #[arg(short = 'g', long, default_value = "1,8", value_name = "LIST", value_parser = counts::<u32>(1 << 16))]
    pub grid: List<u32>,
    /// Threads per block; each posts its own requests, and the lanes of a warp share a doorbell; a list to sweep
    #[arg(long, default_value = "1,8,32", value_name = "LIST", value_parser = counts::<u32>(1024))]
    pub block: List<u32>,
    /// Number of queues; a list to sweep. Block b uses queue b modulo their number; combinations with more queues than
    /// blocks are skipped
    #[arg(short = 'q', long, default_value = "1", value_name = "LIST", value_parser = counts::<u32>(256))]
    pub queues: List<u32>,
    /// Bytes per put; a list to sweep
    #[arg(short = 'b', long, default_value = "64", value_name = "LIST", value_parser = bytes)]
    pub bytes: List<u32>,
    /// Puts per thread and repeat [default: 2000 on a GPU, 50 emulated]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub iterations: Option<u32>,
    #[command(flatten)]
    pub repeat: RepeatArgs,
    /// Slots per queue, a power of two
    #[arg(long, default_value_t = 4096, value_name = "N")]
    pub depth: u32,
    /// Maximum number of requests between two doorbells
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub max_batch: u32,
    /// Number of the first request, to start near the wrap of ids (2^16) or counters (2^31)
    #[arg(long, alias = "begun", default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u64).range(..=1 << 47))]
    pub first_request: u64,
    /// Bytes per completion entry
    #[arg(long, default_value_t = 16, value_name = "BYTES")]
    pub entry_bytes: u32,
    /// Threads of the software NIC, and of the proxy
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,
    /// Cores of these threads: auto, none, or a list
    #[arg(long, default_value = "auto", value_name = "CORES")]
    pub pin: Pin,
    /// Faults to inject into every launch: NAME@REQUEST, where NAME is a status (e.g. `unreachable`), lose, short (the
    /// last byte is missing), twice, dead, overrun (of the completion queue) or back (the kernel writes an earlier
    /// value to the doorbell); batch@N: the NIC accepts only N requests before a doorbell, fewer than the kernel
    /// assumes
    #[arg(long, value_name = "LIST", value_parser = list::<FaultAt>)]
    pub fault: Option<List<FaultAt>>,
    /// Maximum time that a kernel waits without a completion, in seconds
    #[arg(short = 't', long, default_value = "30", value_name = "SECONDS", value_parser = seconds(), help_heading = "Measurement")]
    pub timeout: Duration,
}

/// Measured case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DirectCase {
    /// Queues of the NIC, completions from the completion queue
    Direct,
    /// Queues of the NIC, completions from the NIC's counter
    Counter,
    /// Ring and proxy
    Ring,
    /// Queues of the NIC, waits only for a counter
    Vendor,
}

/// Waits of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DirectMode {
    /// Wait after each put
    Quiet,
    /// One wait at the end
    Nbi,
}

/// A fault of the NIC, and the number of the request at which it occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAt {
    Status(CompletionStatus, u64),
    Lose(u64),
    Short(u64),
    Twice(u64),
    Dead(u64),
    Overrun(u64),
    Back(u64),
    Batch(u32),
}

impl std::str::FromStr for FaultAt {
    type Err = String;

    fn from_str(text: &str) -> Result<FaultAt, String> {
        let parsed = text.split_once('@').and_then(|(name, at)| {
            let at = at.parse().ok()?;
            let status = CompletionStatus::ALL.into_iter().skip(1).find(|status| status.name() == name);
            match (name, status) {
                (_, Some(status)) => Some(FaultAt::Status(status, at)),
                ("lose", _) => Some(FaultAt::Lose(at)),
                ("short", _) => Some(FaultAt::Short(at)),
                ("twice", _) => Some(FaultAt::Twice(at)),
                ("dead", _) => Some(FaultAt::Dead(at)),
                ("overrun", _) => Some(FaultAt::Overrun(at)),
                ("back", _) if at > 0 => Some(FaultAt::Back(at)),
                ("batch", _) => u32::try_from(at).ok().filter(|at| *at > 0).map(FaultAt::Batch),
                _ => None,
            }
        });
        parsed.ok_or_else(|| {
            let names: Vec<&str> = CompletionStatus::ALL.into_iter().skip(1).map(CompletionStatus::name).collect();
            format!(
                "invalid fault {text:?}: expected NAME@REQUEST, where NAME is lose, short, twice, dead, overrun, back, \
                 batch, {}",
                names.join(", ")
            )
        })
    }
}

fn bytes(text: &str) -> Result<List<u32>, String> {
    let sizes = size::parse_list(text).map_err(|error| error.to_string())?;
    Ok(sizes.into_iter().collect())
}

/// A combination of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectConfig {
    pub mode: DirectMode,
    pub queues: u32,
    pub grid: u32,
    pub block: u32,
    pub bytes: u32,
}

impl DirectArgs {
    /// Returns all parameter combinations.
    pub fn tuples(&self) -> Vec<DirectConfig> {
        let all = iproduct!(&self.mode, &self.queues[..], &self.grid[..], &self.block[..], &self.bytes[..]);
        let tuple = |(&mode, &queues, &grid, &block, &bytes)| DirectConfig { mode, queues, grid, block, bytes };
        all.map(tuple).filter(|tuple| tuple.queues <= tuple.grid).collect()
    }

    /// Returns the options of a queue.
    pub fn queue(&self, by_counter: bool) -> QueueOptions {
        QueueOptions {
            depth: self.depth,
            completions: self.depth,
            entry_bytes: self.entry_bytes,
            max_batch: self.max_batch,
            by_counter,
            counter: self.first_request,
            timeout: self.timeout,
        }
    }

    /// Rejects queue options that no NIC supports, before anything is opened.
    pub fn check(&self) -> Result<(), Failure> {
        match self.queue(false).check() {
            Err(DeviceError::Refused(why)) => Err(usage("--depth, --max-batch, --entry-bytes", why)),
            checked => Ok(checked?),
        }
    }

    /// Returns the number of the request after which the kernel writes an earlier doorbell value. 0 disables this
    /// fault.
    pub fn back_at(&self) -> u64 {
        let back = |fault: &FaultAt| if let FaultAt::Back(at) = fault { Some(*at) } else { None };
        self.fault.iter().flatten().find_map(back).unwrap_or(0)
    }

    /// Returns the faults of the NIC.
    pub fn faults(&self) -> QueueFaults {
        let mut faults = QueueFaults::default();
        for fault in self.fault.iter().flatten() {
            match *fault {
                FaultAt::Status(status, at) => faults.fail.push((at, status as u8)),
                FaultAt::Lose(at) => faults.lose.push(at),
                FaultAt::Short(at) => faults.short.push(at),
                FaultAt::Twice(at) => faults.twice.push(at),
                FaultAt::Dead(at) => faults.dead = Some(at),
                FaultAt::Overrun(at) => faults.overrun = Some(at),
                FaultAt::Batch(most) => faults.batch = Some(most),
                // The kernel injects this fault.
                FaultAt::Back(_) => {}
            }
        }
        faults
    }
}
