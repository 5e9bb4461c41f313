//! `ginlab litmus`: reorderings of writes and signals that a network permits, and those that a machine shows.
//!
//! Without a device, the command explores the worst-case network ([`network`]). With a device, it counts outcomes on
//! hardware ([`hardware`]).

mod hardware;
mod network;
mod programs;

use crate::error::Failure;
use crate::listing::ListingArgs;
use crate::mps::MpsArgs;
use crate::program::{CommandSpec, program};
use crate::values::seconds;
use ginlab::cuda::DeviceChoice;
use ginlab::measure::size;
use std::time::Duration;

pub const PROGRAMS: &[CommandSpec] = &[program!(
    "litmus",
    "Show which reorderings of writes and signals a network permits and a GPU shows",
    LitmusArgs,
    run
)];

/// Version of the columns and of the JSON document.
const SCHEMA: u32 = 1;

const EXAMPLES: &str = "\
Examples:
  ginlab litmus                    explore the worst-case network: all tests with 1000 seeds
  ginlab litmus --seeds 100000 --csv litmus.csv
  ginlab litmus -d 0               count outcomes on GPU 0, its copy engine and the CPU
  ginlab litmus -d 0 --test message-passing,iriw --scope system --trials 1G   count more of two tests
  ginlab litmus --np 2 --csv peers.csv   count outcomes between the kernels of two GPUs
  ginlab litmus -d emulated --trials 1K   run the same kernels on the CPU, which is no evidence about a GPU

Each test has a weak outcome. The exit code is 1 if the network shows a forbidden one, and 3 if a device does.";

/// Options of `ginlab litmus`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LitmusArgs {
    /// Number of seeds
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// Tests; a list [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    test: Vec<String>,
    /// Scopes of accesses and fences on a device: block, device, system; a list [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    scope: Vec<String>,
    /// Writers: thread, bulk, copy-engine, cpu, proxy; a list [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    writer: Vec<String>,
    /// Orders between two accesses: none, release-acquire, fence-acq-rel, fence-sc, read-back, and those of bulk and
    /// copy-engine; a list [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    fence: Vec<String>,
    /// Placements of the roles: block, device, host (GPU and CPU), peer, same-gpu; a list [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    placement: Vec<String>,
    /// Trials per row [default: 10M, emulated 1K]; K, M and G are powers of two
    #[arg(long, value_name = "N", value_parser = size::parse)]
    trials: Option<u64>,
    /// Maximum time of a row in milliseconds, after which it has fewer trials
    #[arg(long, default_value_t = 1000, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    row_time: u64,
    /// Device that runs kernels: the number of a GPU, gpu, emulated (CPU threads), or auto (the GPU if there is one)
    /// [default: none; with --np auto]
    #[arg(short = 'd', long, value_name = "DEVICE", value_parser = on_device)]
    device: Option<OnDevice>,
    /// Number of PEs; each has its own GPU if there are enough [default: 1]
    #[arg(long, value_name = "N")]
    np: Option<usize>,
    #[command(flatten)]
    mps: MpsArgs,
    /// Limit for every wait without progress, in seconds
    #[arg(short = 't', long, default_value = "30", value_name = "SECONDS", value_parser = seconds())]
    timeout: Duration,
    /// Inject a fault: corrupt (a trial of every row whose weak outcome is forbidden counts as weak), absent (the last
    /// role of threads does not start)
    #[arg(long, hide = true, value_name = "FAULT", value_enum)]
    fault: Option<Fault>,
    #[command(flatten)]
    output: ListingArgs,
}

/// Value of `--fault`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Fault {
    Corrupt,
    Absent,
}

/// Value of `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnDevice {
    /// The GPU with this number.
    Number(usize),
    /// The device of each PE.
    Kind(DeviceChoice),
}

fn on_device(text: &str) -> Result<OnDevice, String> {
    match text {
        "gpu" => Ok(OnDevice::Kind(DeviceChoice::Gpu)),
        "emulated" => Ok(OnDevice::Kind(DeviceChoice::Emulated)),
        "auto" => Ok(OnDevice::Kind(DeviceChoice::Auto)),
        _ => text
            .parse()
            .map(OnDevice::Number)
            .map_err(|_| format!("invalid device {text:?}: expected the number of a GPU, gpu, emulated or auto")),
    }
}

/// Checks that each value of a list is one of `known`.
fn check_list(option: &str, given: &[String], known: &[&str]) -> Result<(), Failure> {
    match given.iter().find(|value| !known.contains(&value.as_str())) {
        Some(value) => {
            Err(Failure::Usage(format!("{option}: invalid value {value:?}: expected one of {}", known.join(", "))))
        }
        None => Ok(()),
    }
}

/// Returns whether a list of an option contains this value, or the option was not given.
fn keeps(given: &[String], value: &str) -> bool {
    given.is_empty() || given.iter().any(|known| known == value)
}

fn run(args: &LitmusArgs) -> Result<(), Failure> {
    args.output.check()?;
    if args.device.is_none() && args.np.is_none() { network::run(args) } else { hardware::run(args) }
}
