//! The subcommands: each experiment, and what lists, draws and compares.

use crate::error::Failure;
use clap::{ArgMatches, Command};
use ginlab::report::About;

/// A subcommand.
#[derive(Clone, Copy)]
pub struct Program {
    pub name: &'static str,
    /// What it does, in a line.
    pub question: &'static str,
    /// Adds its options.
    pub augment: fn(Command) -> Command,
    pub run: fn(&ArgMatches) -> Result<(), Failure>,
    /// Of one that writes rows.
    pub about: Option<About>,
}

impl Program {
    /// The command of clap.
    pub fn command(&self) -> Command {
        (self.augment)(Command::new(self.name)).about(self.question)
    }
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
            about: None,
        }
    };
}
pub(crate) use program;
