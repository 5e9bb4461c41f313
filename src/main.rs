//! The `ginlab` command. Its experiments are a library of their own ([`experiments`]), so that this one only brings them the PTX of the kernels.

use std::process::ExitCode;

fn main() -> ExitCode {
    experiments::command(&kernels_ptx::PTX)
}
