//! The whole command line.

use crate::output::Color;
use crate::program::{self, Program};
use clap::{Command, CommandFactory, Parser};
use std::ffi::OsString;

/// A laboratory for GPU-initiated networking: kernels in Rust push puts into a ring, a CPU proxy drains it into NIC rails.
#[derive(Parser)]
#[command(name = "ginlab", version = "", disable_version_flag = true, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 ok, 1 run failed or wrong data, 2 usage, 3 not fit (doctor), 124 timed out, 130 interrupted.\n\
                        GINLAB_LIBFABRIC=PATH loads that libfabric and no other."
)]
pub struct Cli {
    /// Print the versions of ginlab and of the libraries it found here
    #[arg(short = 'V', long, exclusive = true)]
    pub version: bool,
    /// Colour of tables
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Color::Auto, global = true)]
    pub color: Color,
}

/// All options, with every subcommand.
pub fn command() -> Command {
    Cli::command().subcommands(program::all().iter().map(Program::command))
}

/// As [`command`], where of subcommands that none of these words names there is no more than name and purpose: all the options of all of them
/// took a debug build 1 ms of the 6 of each start, and each rank starts.
pub fn command_for(words: impl Iterator<Item = OsString>) -> Command {
    let words: Vec<OsString> = words.collect();
    let subcommand = |program: &Program| {
        if words.iter().any(|word| word == program.name) { program.command() } else { program.bare() }
    };
    Cli::command().subcommands(program::all().iter().map(subcommand))
}
