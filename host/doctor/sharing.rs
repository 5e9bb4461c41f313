//! Several PEs on one GPU: what runs them side by side.

use super::machine::Machine;
use super::{Checked, gpu, ok, skipped, warn};
use ginlab_sharing::mps::{DEFAULT, PIPE, PROGRAM};

/// What it costs when nothing does.
const TURNS: &str = "kernels of PEs that share a GPU take turns of about 2 ms";

pub fn mps(machine: &Machine) -> Checked {
    gpu::needed(machine)?;
    let answers = |folder: &str| {
        // Whether somebody listens is asked of a running system alone.
        let there = machine.exists(&format!("{}/control", folder.trim_start_matches('/')));
        machine.asked.mps.unwrap_or(there)
    };
    if let Some(folder) = machine.variable(PIPE) {
        if answers(&folder) {
            return ok(format!("a server answers in {folder} ({PIPE}): ranks use it"));
        }
        return warn(
            format!("{PIPE} is {folder}, where nobody answers: {TURNS}"),
            format!("unset {PIPE}, or start the server there: nvidia-cuda-mps-control -d"),
        );
    }
    if answers(DEFAULT) {
        return ok(format!("a server answers in {DEFAULT}: ranks use it"));
    }
    let path = machine.variable("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let folders: Vec<&str> = path.split(':').map(|folder| folder.trim_start_matches('/')).collect();
    if !folders.iter().any(|folder| machine.exists(folder)) {
        return skipped("the folders of PATH were not recorded");
    }
    match folders.iter().find(|folder| machine.exists(&format!("{folder}/{PROGRAM}"))) {
        Some(folder) => ok(format!("/{folder}/{PROGRAM}: ginlab starts a server for ranks that share a GPU")),
        None => warn(
            format!("{PROGRAM} is not on PATH: {TURNS}"),
            "install the driver's package that has it (nvidia-compute-utils); containers: NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
    }
}
