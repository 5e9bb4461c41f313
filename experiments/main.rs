//! The `ginlab` command: one subcommand per experiment.

mod columns;
mod error;
mod events;
mod job;
mod listing;
mod output;
mod program;
mod rails;
mod runner;
#[cfg(test)]
mod toy;
mod values;

use clap::{CommandFactory, FromArgMatches, Parser};
use error::Failure;
use ginlab::fabric::{libfabric, soft};
use ginlab::report::{About, Catalog};
use ginlab::signals;
use ginlab::versions::Versions;
use program::Program;
use std::io::Write;
use std::process::ExitCode;
use std::sync::LazyLock;

/// Registers folders and files: a subcommand each, or several.
macro_rules! register {
    ($($module:ident),* $(,)?) => {
        $(mod $module;)*
        /// Every subcommand, in the order of `--help`.
        static PROGRAMS: LazyLock<Vec<Program>> = LazyLock::new(|| [$($module::PROGRAMS),*].concat());
    };
}

register! {
    proxy, shmem, chart, report, compare, queue, sendrecv, write, ipc, all2all, efa, affinity, model, bootstrap, echo, serve, soft_efa,
    complete,
}

/// What the experiments say of themselves.
fn catalog() -> Catalog<'static> {
    static ABOUT: LazyLock<Vec<About>> =
        LazyLock::new(|| PROGRAMS.iter().filter_map(|program| program.about).chain([proxy::STAGES]).collect());
    Catalog(&ABOUT)
}

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
}

/// The whole command line.
fn command() -> clap::Command {
    Cli::command().subcommands(PROGRAMS.iter().map(Program::command))
}

fn main() -> ExitCode {
    match run() {
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

/// Cards in software come before everything else: libfabric finds them when it is loaded. Whatever the experiment, they are asked
/// for by its option `--provider`.
fn load_cards(matches: &clap::ArgMatches) -> Result<(), Failure> {
    // SAFETY: the process has one thread yet.
    unsafe { soft::use_cards_within_a_machine() };
    let given =
        matches.subcommand().and_then(|(_, matches)| matches.try_get_raw("provider").ok().flatten()?.next()?.to_str());
    match given.filter(|provider| soft::is_asked(provider)) {
        Some(provider) => soft::load(provider).map_err(|error| Failure::Usage(error.to_string())),
        None => Ok(()),
    }
}

fn run() -> Result<(), Failure> {
    let matches = command().try_get_matches()?;
    let cli = Cli::from_arg_matches(&matches)?;
    load_cards(&matches)?;
    signals::install().map_err(|error| Failure::Run(error.to_string()))?;
    cli.color.choose();
    if cli.version {
        // A closed pipe is noted by the writer itself.
        let _ = writeln!(signals::stdout(), "ginlab {}", Versions::here());
        return Ok(());
    }
    let found = matches.subcommand().and_then(|(name, matches)| {
        PROGRAMS.iter().find(|program| program.name == name).map(|program| (program, matches))
    });
    match found {
        Some((program, matches)) => (program.run)(matches).and_then(|()| match libfabric::left_open() {
            Some(text) => Err(Failure::Run(text)),
            None => Ok(()),
        }),
        None => Err(Failure::Usage("no experiment given; see ginlab --help".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ginlab::report::{Role, width};
    use std::collections::BTreeMap;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    /// A column says the same wherever it stands, and its name ends with its unit.
    #[test]
    fn columns_are_declared_alike() {
        let mut known: BTreeMap<&str, (&str, bool)> = BTreeMap::new();
        for about in catalog().0 {
            for column in about.all_columns() {
                let this = (column.unit, column.role == Role::Measured);
                assert_eq!(*known.entry(column.name).or_insert(this), this, "{} of {}", column.name, about.name);
                assert!(!column.meaning.is_empty(), "{}", column.name);
                let ending = [("_us", "us"), ("_gbytes_s", "GB/s"), ("_mops", "Mops"), ("_pct", "%"), ("_bytes", "B")];
                if let Some((_, unit)) = ending.iter().find(|(ending, _)| column.name.ends_with(ending)) {
                    assert_eq!(column.unit, *unit, "{}", column.name);
                }
            }
            let names: Vec<&str> = about.all_columns().map(|column| column.name).collect();
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
