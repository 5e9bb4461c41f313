//! `ginlab completions`: completion scripts for shells.

use crate::cli;
use crate::error::Failure;
use crate::program::{CommandSpec, program};
use ginlab::signals;

pub const PROGRAMS: &[CommandSpec] =
    &[program!("completions", "Print a completion script for a shell", CompletionsArgs, run)];

/// Options of `ginlab completions`.
#[derive(clap::Args, Debug)]
pub struct CompletionsArgs {
    /// Shell to print the script for
    shell: clap_complete::Shell,
}

fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    clap_complete::generate(args.shell, &mut cli::command(), "ginlab", &mut signals::stdout());
    Ok(())
}
