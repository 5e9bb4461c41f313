//! The subcommands: each experiment, and what lists, draws and compares.

use crate::error::Failure;
use clap::{ArgMatches, Command};
use ginlab::report::{About, Catalog, Row};
use std::sync::OnceLock;

/// Runs an experiment, and returns its rows.
pub type InProcess = fn(&ArgMatches) -> Result<Vec<Row>, Failure>;

/// A subcommand.
#[derive(Clone, Copy)]
pub struct Program {
    pub name: &'static str,
    /// What it does, in a line.
    pub question: &'static str,
    /// Adds its options.
    pub augment: fn(Command) -> Command,
    pub run: fn(&ArgMatches) -> Result<(), Failure>,
    /// Runs it with all ranks as threads of this process, without outputs; returns the rows. An experiment alone has it.
    pub in_process: Option<InProcess>,
    /// Of one that writes rows.
    pub about: Option<About>,
}

impl Program {
    /// The command of clap.
    pub fn command(&self) -> Command {
        (self.augment)(Command::new(self.name)).about(self.question)
    }

    /// The command without its options: enough to be listed.
    pub fn bare(&self) -> Command {
        Command::new(self.name).about(self.question)
    }
}

/// What was registered.
static ALL: OnceLock<(Vec<Program>, Vec<About>)> = OnceLock::new();

/// Names all subcommands, once, in the order of `--help`; `more` are kinds of rows that no subcommand is called by.
pub fn register(programs: &[&[Program]], more: &[About]) {
    ALL.get_or_init(|| {
        let programs = programs.concat();
        let abouts = programs.iter().filter_map(|program| program.about).chain(more.iter().copied()).collect();
        (programs, abouts)
    });
}

/// Every subcommand.
pub fn all() -> &'static [Program] {
    ALL.get().map_or(&[], |(programs, _)| programs)
}

/// What the experiments say of themselves.
pub fn catalog() -> Catalog<'static> {
    ALL.get().map_or(Catalog::default(), |(_, abouts)| Catalog(abouts))
}

/// Declares a subcommand that is no experiment, by its options and the function that takes them.
macro_rules! program {
    ($name:literal, $question:literal, $args:ty, $run:expr) => {
        $crate::program::Program {
            name: $name,
            question: $question,
            augment: <$args as clap::Args>::augment_args,
            run: |matches| {
                let args = <$args as clap::FromArgMatches>::from_arg_matches(matches)?;
                $run(&args)
            },
            in_process: None,
            about: None,
        }
    };
}
pub(crate) use program;
