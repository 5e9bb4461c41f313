//! The options of `ginlab direct`.

use crate::error::Failure;
use crate::values::{List, Pin, counts, list, seconds, usage};
use clap::ValueEnum;
use efa_queue::Status as CardStatus;
use ginlab::cuda::{Choice, DeviceError};
use ginlab::direct::{Faults, QueueOptions};
use ginlab::measure::size;
use itertools::iproduct;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  ginlab direct                                          put and wait, puts without waiting; beside ring + proxy and the floor
  ginlab direct --mode nbi --grid 1,8,132 --block 1,8,32 --queues 1,8
  ginlab direct --case direct,ring --mode quiet --grid 1 --block 1 --repeats 50
  ginlab direct --grid 132 --fault unreachable@100       a request fails: the kernel ends by name (exit code 1)
  ginlab direct --grid 132 --fault lose@100 --timeout 2  a completion is lost: the deadline (exit code 124)
  ginlab direct --case vendor --fault flushed@3 --timeout 2   a kernel that waits for a counter alone, and its own bound";

/// Options of `ginlab direct`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where kernels run
    #[arg(short = 'd', long, default_value = "auto", value_enum, hide_possible_values = true)]
    pub device: Choice,
    /// What is measured, in turns: direct (completions by the queue), counter (by the card's counter; a queue for each block), ring (ring and
    /// proxy), vendor (a counter alone, as vendors' device code waits)
    #[arg(
        short = 'c',
        long,
        default_value = "direct,counter,ring",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub case: Vec<Case>,
    /// How a kernel waits: quiet (for each put), nbi (once at the end)
    #[arg(
        short = 'm',
        long,
        default_value = "quiet,nbi",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub mode: Vec<Mode>,
    /// Blocks of the grid
    #[arg(short = 'g', long, default_value = "1,8", value_name = "LIST", value_parser = counts::<u32>(1 << 16))]
    pub grid: List<u32>,
    /// Threads of a block: each posts requests of its own, and the lanes of a warp ring once
    #[arg(long, default_value = "1,8,32", value_name = "LIST", value_parser = counts::<u32>(1024))]
    pub block: List<u32>,
    /// Queues side by side; block b uses queue b modulo their number, and more queues than blocks are not measured
    #[arg(short = 'q', long, default_value = "1", value_name = "LIST", value_parser = counts::<u32>(256))]
    pub queues: List<u32>,
    /// Bytes of a put
    #[arg(short = 'b', long, default_value = "64", value_name = "LIST", value_parser = bytes)]
    pub bytes: List<u32>,
    /// Puts of each thread and repeat [default: 2000 on a GPU, 50 emulated]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub iterations: Option<u32>,
    /// Repeats; times are given as median, min and p99 over them
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub repeats: u32,
    /// Slots of a queue, a power of two
    #[arg(long, default_value_t = 4096, value_name = "N")]
    pub depth: u32,
    /// Requests that a card takes before it is rung
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub max_batch: u32,
    /// Requests that a queue has had before the first one: ids go round at 2^16, counters at 2^31
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u64).range(..=1 << 47))]
    pub begun: u64,
    /// Bytes of a completion
    #[arg(long, default_value_t = 16, value_name = "BYTES")]
    pub entry_bytes: u32,
    /// Threads of the card in software, and of the proxy
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,
    /// Cores of these threads: auto, none, or a list
    #[arg(long, default_value = "auto", value_name = "CORES")]
    pub pin: Pin,
    /// Do not verify
    #[arg(long)]
    pub no_check: bool,
    /// What goes wrong in every launch: NAME@REQUEST, where the name is a status (as `unreachable`), lose, twice, dead, overrun (of the
    /// completion queue) or back (the kernel's doorbell goes back); batch@N: the card takes N requests that are not rung for, fewer than the kernel
    /// was told
    #[arg(long, value_name = "LIST", value_parser = list::<FaultAt>)]
    pub fault: Option<List<FaultAt>>,
    /// Longest wait of a kernel in which nothing ends, in seconds
    #[arg(long, default_value = "30", value_name = "SECONDS", value_parser = seconds())]
    pub timeout: Duration,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// The card's queues, completions by the completion queue.
    Direct,
    /// The same, completions by the card's counter.
    Counter,
    /// Ring and proxy.
    Ring,
    /// A counter alone.
    Vendor,
}

/// How a kernel waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// For each put.
    Quiet,
    /// Once at the end.
    Nbi,
}

/// A fault of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAt {
    Status(CardStatus, u64),
    Lose(u64),
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
            let status = CardStatus::ALL.into_iter().skip(1).find(|status| status.name() == name);
            match (name, status) {
                (_, Some(status)) => Some(FaultAt::Status(status, at)),
                ("lose", _) => Some(FaultAt::Lose(at)),
                ("twice", _) => Some(FaultAt::Twice(at)),
                ("dead", _) => Some(FaultAt::Dead(at)),
                ("overrun", _) => Some(FaultAt::Overrun(at)),
                ("back", _) if at > 0 => Some(FaultAt::Back(at)),
                ("batch", _) => u32::try_from(at).ok().filter(|at| *at > 0).map(FaultAt::Batch),
                _ => None,
            }
        });
        parsed.ok_or_else(|| {
            let names: Vec<&str> = CardStatus::ALL.into_iter().skip(1).map(CardStatus::name).collect();
            format!(
                "{text:?}; NAME@REQUEST, where NAME is lose, twice, dead, overrun, back, batch, {}",
                names.join(", ")
            )
        })
    }
}

fn bytes(text: &str) -> Result<List<u32>, String> {
    let sizes = size::parse_list(text).map_err(|error| error.to_string())?;
    Ok(sizes.into_iter().collect())
}

/// One combination of variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    pub mode: Mode,
    pub queues: u32,
    pub grid: u32,
    pub block: u32,
    pub bytes: u32,
}

impl Args {
    /// All tuples.
    pub fn tuples(&self) -> Vec<Tuple> {
        let all = iproduct!(&self.mode, &self.queues[..], &self.grid[..], &self.block[..], &self.bytes[..]);
        let tuple = |(&mode, &queues, &grid, &block, &bytes)| Tuple { mode, queues, grid, block, bytes };
        all.map(tuple).filter(|tuple| tuple.queues <= tuple.grid).collect()
    }

    /// How queues are made.
    pub fn queue(&self, by_counter: bool) -> QueueOptions {
        QueueOptions {
            depth: self.depth,
            completions: self.depth,
            entry_bytes: self.entry_bytes,
            max_batch: self.max_batch,
            by_counter,
            counter: self.begun,
            timeout: self.timeout,
        }
    }

    /// Refuses what no card has, before anything is opened.
    pub fn check(&self) -> Result<(), Failure> {
        match self.queue(false).check() {
            Err(DeviceError::Refused(why)) => Err(usage("--depth, --max-batch, --entry-bytes", why)),
            checked => Ok(checked?),
        }
    }

    /// Behind which request the kernel rings back; 0: behind none.
    pub fn back_at(&self) -> u64 {
        let back = |fault: &FaultAt| if let FaultAt::Back(at) = fault { Some(*at) } else { None };
        self.fault.iter().flatten().find_map(back).unwrap_or(0)
    }

    /// What the card does wrong.
    pub fn faults(&self) -> Faults {
        let mut faults = Faults::default();
        for fault in self.fault.iter().flatten() {
            match *fault {
                FaultAt::Status(status, at) => faults.fail.push((at, status as u8)),
                FaultAt::Lose(at) => faults.lose.push(at),
                FaultAt::Twice(at) => faults.twice.push(at),
                FaultAt::Dead(at) => faults.dead = Some(at),
                FaultAt::Overrun(at) => faults.overrun = Some(at),
                FaultAt::Batch(most) => faults.batch = Some(most),
                // The kernel's.
                FaultAt::Back(_) => {}
            }
        }
        faults
    }
}
