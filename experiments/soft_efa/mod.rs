//! `ginlab soft-efa`: another program over the cards in software.

use crate::error::Failure;
use crate::program::{Program, program};
use ginlab::fabric::soft;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

pub const PROGRAMS: &[Program] =
    &[program!("soft-efa", "Run any program over cards in software below libfabric's own EFA provider", Args, run)];

const EXAMPLES: &str = "\
Examples:
  ginlab soft-efa -- fi_info -p efa                     four cards of a p5
  ginlab soft-efa -p soft-efa:fast -- fi_pingpong -p efa -e rdm
  ginlab soft-efa -p soft-efa:p4d,seed=7 -- ./program   any program that loads libfabric

The description of the cards: a profile (p4d, p5, p5en, p6-b200) or fast, then words, separated by commas: cards=1..32, seed=N,
reorder=POLLS, depth=N, receives=N, no-write, unmoved, slow=FACTOR, lose=N, fail=N/STATUS, dead=N, full=N, refuse=N.";

/// Options of `ginlab soft-efa`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The cards
    #[arg(short = 'p', long = "cards", value_name = "CARDS", default_value = "soft-efa:p5")]
    cards: String,
    /// The program with its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Becomes the program.
fn run(args: &Args) -> Result<(), Failure> {
    let usage = |error: ginlab::fabric::FabricError| Failure::Usage(error.to_string());
    let Some((program, rest)) = args.program.split_first() else {
        return Err(Failure::Usage("no program is named".into()));
    };
    let error = Command::new(program).args(rest).envs(soft::environment(&args.cards).map_err(usage)?).exec();
    Err(Failure::Usage(format!("{}: {error}", program.to_string_lossy())))
}
