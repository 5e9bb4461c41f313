//! The `ginlab` command. Its experiments are a separate library ([`experiments`]); this crate only adds the PTX of the
//! kernels.

use std::process::ExitCode;

fn main() -> ExitCode {
    experiments::command(&kernels_ptx::PTX)
}
