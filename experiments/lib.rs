//! Subcommands of the `ginlab` command, one per experiment.

mod affinity;
mod agreed;
mod all2all;
mod args;
mod bootstrap;
mod chart;
mod cli;
mod collectives;
mod columns;
mod compare;
mod complete;
mod direct;
mod doctor;
mod echo;
mod efa;
mod error;
mod events;
mod ipc;
mod jacobi;
mod job;
mod listing;
mod litmus;
mod model;
mod moe;
mod mps;
mod museum;
mod nccl;
mod nccl_baseline;
mod nodes;
mod output;
mod payload;
mod program;
mod proxy;
mod queue;
mod rail_rates;
mod rails;
mod random;
mod ranks;
mod replay;
mod report;
mod runner;
mod sendrecv;
mod series;
mod serve;
mod shmem;
mod soak;
mod soft_efa;
#[cfg(test)]
mod toy;
mod values;
mod versus;
mod visitors;
mod world;
mod write;

use clap::FromArgMatches;
use cli::Cli;
use cuda_std::Ptx;
use error::Failure;
use ginlab::fabric::{libfabric, soft};
use ginlab::versions::Versions;
use ginlab::{limits, shm_cleanup, signals};
use program::Group;
use std::io::Write;
use std::process::ExitCode;

/// Registers every subcommand in the order of `--help`. A new experiment needs a line here and its `mod` above.
fn register() {
    let groups: &[Group<'_>] = &[
        (
            "Measure",
            &[
                proxy::PROGRAMS,
                shmem::PROGRAMS,
                collectives::PROGRAMS,
                queue::PROGRAMS,
                direct::PROGRAMS,
                ipc::PROGRAMS,
                write::PROGRAMS,
                sendrecv::PROGRAMS,
                all2all::PROGRAMS,
            ],
        ),
        ("Run programs", &[jacobi::PROGRAMS, moe::PROGRAMS, echo::PROGRAMS, serve::PROGRAMS, nccl::PROGRAMS]),
        (
            "Check and model clusters",
            &[
                doctor::PROGRAMS,
                efa::PROGRAMS,
                affinity::PROGRAMS,
                bootstrap::PROGRAMS,
                model::PROGRAMS,
                replay::PROGRAMS,
            ],
        ),
        ("Show results", &[chart::PROGRAMS, report::PROGRAMS, compare::PROGRAMS]),
        ("Tools", &[museum::PROGRAMS, litmus::PROGRAMS, soak::PROGRAMS, soft_efa::PROGRAMS, complete::PROGRAMS]),
    ];
    program::register(groups, &[proxy::STAGES, model::JACOBI, model::MOE]);
}

/// Runs the command line. `ptx` contains the GPU kernels and is empty if only the emulated device is available.
pub fn command(ptx: &'static Ptx) -> ExitCode {
    let ended = run(ptx);
    // Remove shared-memory files of rails that could not be closed, for example after a failure, and of killed
    // processes of this or earlier runs.
    shm_cleanup::remove_own();
    shm_cleanup::remove_stale();
    match ended {
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

/// Loads the software NICs that option `--provider` of any experiment requests. Must run first, because libfabric
/// discovers them when it is loaded.
fn load_cards(matches: &clap::ArgMatches) -> Result<(), Failure> {
    // SAFETY: the process is still single-threaded.
    unsafe { soft::use_cards_within_a_machine() };
    let Some((_, matches)) = matches.subcommand() else { return Ok(()) };
    let given = |option| matches.try_get_raw(option).ok().flatten()?.next()?.to_str();
    let mut asked = ["provider", "versus"].into_iter().filter_map(given).filter(|provider| soft::is_asked(provider));
    asked.try_for_each(soft::load).map_err(|error| Failure::Usage(error.to_string()))
}

fn run(ptx: &'static Ptx) -> Result<(), Failure> {
    ginlab::cuda::set_ptx(ptx);
    if ginlab::crash_handler::run_cleanup() {
        return Ok(());
    }
    if let Some(tried) = ginlab::mps::tried() {
        return tried.map_err(Failure::Run);
    }
    register();
    limits::raise_open_files();
    // Install the handlers first: a signal may arrive at any time.
    signals::install().map_err(|error| Failure::Run(error.to_string()))?;
    let matches = cli::command_for(std::env::args_os().skip(1)).try_get_matches()?;
    let cli = Cli::from_arg_matches(&matches)?;
    load_cards(&matches)?;
    let rank = ginlab::bootstrap::process_env("GINLAB_RANK").map(|rank| format!("rank {rank}, ")).unwrap_or_default();
    ginlab::crash_handler::install(&format!("{rank}process {}", std::process::id()))
        .map_err(|error| Failure::Run(error.to_string()))?;
    cli.color.choose();
    if cli.version {
        // The writer itself records a closed pipe.
        let _ = writeln!(signals::stdout(), "ginlab {}", Versions::here());
        return Ok(());
    }
    let found = matches.subcommand().and_then(|(name, matches)| {
        program::all().iter().find(|program| program.name == name).map(|program| (program, matches))
    });
    match found {
        Some((program, matches)) => (program.run)(matches).and_then(|()| match libfabric::left_open() {
            Some(text) => Err(Failure::Run(text)),
            None => Ok(()),
        }),
        None => Err(Failure::Usage("no subcommand given; see ginlab --help".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ginlab::report::{ColumnRole, Row, width};
    use std::collections::BTreeMap;

    #[test]
    fn command_line_passes_debug_assert() {
        register();
        cli::command().debug_assert();
    }

    /// All experiments use a column of one name with the same unit and role, and the name ends with the unit.
    #[test]
    fn columns_are_declared_consistently() {
        let mut known: BTreeMap<&str, (&str, bool)> = BTreeMap::new();
        register();
        for about in program::catalog().0 {
            for column in Row::COMMON.iter().chain(about.columns) {
                let this = (column.unit, column.role == ColumnRole::Measured);
                assert_eq!(*known.entry(column.name).or_insert(this), this, "{} of {}", column.name, about.name);
                assert!(!column.meaning.is_empty(), "{}", column.name);
                let ending = [("_us", "us"), ("_gbytes_s", "GB/s"), ("_mops", "Mops"), ("_pct", "%"), ("_bytes", "B")];
                if let Some((_, unit)) = ending.iter().find(|(ending, _)| column.name.ends_with(ending)) {
                    assert_eq!(column.unit, *unit, "{}", column.name);
                }
            }
            let names: Vec<&str> = Row::COMMON.iter().chain(about.columns).map(|column| column.name).collect();
            let named =
                about.headlines.iter().map(|headline| headline.column).chain(about.plots.iter().map(|plot| plot.y));
            if about.name != "stages" {
                named.for_each(|name| assert!(names.contains(&name), "{name} is no column of {}", about.name));
                assert!(about.without.iter().all(|name| names.contains(name)), "{}", about.name);
            }
            assert!(width(about) <= 140, "a line of {} has {} characters", about.name, width(about));
        }
    }
}
