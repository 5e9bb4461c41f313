//! The `ginlab` command: one subcommand per experiment.

mod affinity;
mod all2all;
mod bootstrap;
mod chart;
mod compare;
mod echo;
mod efa;
mod error;
mod events;
mod ipc;
mod job;
mod listing;
mod model;
mod output;
mod proxy;
mod queue;
mod rails;
mod report;
mod sendrecv;
mod serve;
mod write;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use error::Failure;
use ginlab::versions::{Libraries, Versions};
use ginlab::{cuda, fabric, signals, topology};
use std::io::Write;
use std::process::ExitCode;

/// A laboratory for GPU-initiated networking: kernels in Rust push puts into a ring, a CPU proxy drains it into NIC rails.
#[derive(Parser)]
#[command(name = "ginlab", version = "", disable_version_flag = true, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 ok, 1 run failed or wrong data, 2 usage, 124 timed out, 130 interrupted.\n\
                        GINLAB_LIBFABRIC=PATH loads that libfabric and no other.")]
struct Cli {
    /// Print the versions of ginlab and of the libraries it found here
    #[arg(short = 'V', long, exclusive = true)]
    version: bool,
    /// Colour of tables
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = output::Color::Auto, global = true)]
    color: output::Color,
    #[command(subcommand)]
    command: Option<Experiment>,
}

#[derive(Subcommand)]
enum Experiment {
    /// GPU-initiated puts through ring, proxy and rails: quiet against nbi, beside CPU-initiated writes
    Proxy(Box<proxy::Args>),
    /// Draw a chart, as SVG, from CSV files of earlier runs
    Chart(Box<chart::Args>),
    /// Write one HTML page of earlier runs: headers, curves, comparisons, every row
    Report(Box<report::Args>),
    /// Compare two runs row by row: ratios, and a verdict that knows about noise
    Compare(Box<compare::Args>),
    /// The queue from GPU to CPU alone: algorithms, memories and grids side by side, with the floors of the same run
    Queue(Box<queue::Args>),
    /// Two-sided messages through the fabric layer: round trips and windows
    Sendrecv(Box<sendrecv::Args>),
    /// CPU-initiated writes through the fabric layer: windows, rails, strategies, one target or many, beside the plainest loop
    Write(Box<write::Args>),
    /// Writes between GPUs of one host over NVLink: grids, widths, every pair, beside the copy engine
    Ipc(Box<ipc::Args>),
    /// CPU-initiated all-to-all: every rank writes a block to every other one, by rails that all carry the same
    All2all(Box<all2all::Args>),
    /// List what this machine (or a saved dump of one) can open rails on: providers, domains, addresses, capabilities
    Efa(efa::Args),
    /// List GPUs with the network cards and cores near them, and what connects them
    Affinity(affinity::Args),
    /// Modelled cards: their figures with sources, and an all-to-all of many machines in virtual time
    Model(model::Args),
    /// Let the ranks meet and exchange addresses and memory keys: who talks to whom over which rail, and how long it takes
    Bootstrap(Box<bootstrap::Args>),
    /// A TCP echo server and client whose messages also go over the fabric: sockets and completions in one loop
    Echo(Box<echo::Args>),
    /// A server whose memory peers write into that join while it runs, leave or die
    Serve(Box<serve::ServeArgs>),
    /// Join a running server: write into its memory, have it verified, leave
    Join(Box<serve::JoinArgs>),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match run(cli) {
        Ok(()) if signals::stdout_closed() => ExitCode::from(141),
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(text) = failure.text() {
                eprintln!("ginlab: {text}");
            }
            failure.exit_code()
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    signals::install().map_err(|error| Failure::Run(error.to_string()))?;
    cli.color.choose();
    if cli.version {
        // A closed pipe is noted by the writer itself.
        let _ = writeln!(signals::stdout(), "ginlab {}", versions());
        return Ok(());
    }
    if let Some(Experiment::Echo(_) | Experiment::Serve(_) | Experiment::Join(_)) = &cli.command {
        // They wait for each other before they open rails.
        fabric::libfabric::require_library()?;
    }
    match cli.command {
        Some(Experiment::Proxy(args)) => proxy::run(&args),
        Some(Experiment::Queue(args)) => queue::run(&args),
        Some(Experiment::Ipc(args)) => ipc::run(&args),
        Some(Experiment::Chart(args)) => chart::run(&args),
        Some(Experiment::Report(args)) => report::run(&args),
        Some(Experiment::Compare(args)) => compare::run(&args),
        Some(Experiment::Write(args)) => write::run(&args),
        Some(Experiment::Sendrecv(args)) => sendrecv::run(&args),
        Some(Experiment::All2all(args)) => all2all::run(&args),
        Some(Experiment::Efa(args)) => efa::run(&args),
        Some(Experiment::Affinity(args)) => affinity::run(&args),
        Some(Experiment::Model(args)) => model::run(&args),
        Some(Experiment::Bootstrap(args)) => bootstrap::run(&args),
        Some(Experiment::Echo(args)) => echo::run(&args),
        Some(Experiment::Serve(args)) => serve::serve(&args),
        Some(Experiment::Join(args)) => serve::join(&args),
        Some(Experiment::Completions { shell }) => {
            clap_complete::generate(shell, &mut Cli::command(), "ginlab", &mut signals::stdout());
            Ok(())
        }
        None => Err(Failure::Usage("no experiment given; see ginlab --help".into())),
    }
}

/// Versions of everything a result depends on.
fn versions() -> Versions {
    Versions::gather(Libraries {
        libfabric: fabric::libfabric::library_text(),
        cuda_driver: cuda::driver_version().map(|cuda| match topology::nvml::driver_version() {
            Some(driver) => format!("{driver} (CUDA {cuda})"),
            None => format!("supports CUDA {cuda}"),
        }),
        mpi: ginlab::bootstrap::mpi_version(),
    })
}
