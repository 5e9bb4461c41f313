//! `ginlab completions`: completion scripts for shells.

use crate::cli;
use crate::error::Failure;
use crate::program::{Program, program};
use ginlab::signals;

pub const PROGRAMS: &[Program] = &[program!("completions", "Print a completion script for a shell", Args, run)];

/// Options of `ginlab completions`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Shell to print the script for
    shell: clap_complete::Shell,
}

fn run(args: &Args) -> Result<(), Failure> {
    clap_complete::generate(args.shell, &mut cli::command(), "ginlab", &mut signals::stdout());
    Ok(())
}
