//! `ginlab soft-efa`: runs another program over software NICs.

use crate::error::Failure;
use crate::program::{CommandSpec, program};
use ginlab::fabric::soft;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

pub const PROGRAMS: &[CommandSpec] =
    &[program!("soft-efa", "Run a program over software NICs below libfabric's EFA provider", SoftEfaArgs, run)];

const EXAMPLES: &str = "\
Examples:
  ginlab soft-efa -- fi_info -p efa                     list the four software NICs of a p5
  ginlab soft-efa -p soft-efa:fast -- fi_pingpong -p efa -e rdm   run libfabric's ping-pong over NICs without modelled time
  ginlab soft-efa -p soft-efa:p4d,seed=7 -- ./program   run any program that loads libfabric

CARDS is soft-efa: and a profile (p4d, p5, p5en, p6-b200) or fast, then settings separated by commas: cards=1..32, seed=N,
reorder=POLLS, depth=N, receives=N, no-write, unmoved, slow=FACTOR, lose=N, short=N, fail=N/STATUS, dead=N, full=N, refuse=N,
pci=0000:00:03.0 (PCI address of a device of this machine), session-lock (polls wait for chains, as with libefa).";

/// Options of `ginlab soft-efa`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SoftEfaArgs {
    /// Software NICs, in the form described below
    #[arg(short = 'p', long = "cards", value_name = "CARDS", default_value = "soft-efa:p5", help_heading = "Fabric")]
    cards: String,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Replaces this process by the program.
fn run(args: &SoftEfaArgs) -> Result<(), Failure> {
    let usage = |error: ginlab::fabric::FabricError| Failure::Usage(error.to_string());
    let Some((program, rest)) = args.program.split_first() else {
        return Err(Failure::Usage("no program given".into()));
    };
    let error = Command::new(program).args(rest).envs(soft::environment(&args.cards).map_err(usage)?).exec();
    Err(Failure::Usage(format!("{}: {error}", program.to_string_lossy())))
}
