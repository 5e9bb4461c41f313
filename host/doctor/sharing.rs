//! Check of GPU sharing: whether several PEs on one GPU run concurrently.

use super::machine::Machine;
use super::{Checked, gpu, ok, skipped, warn};
use ginlab_sharing::mps::{DEFAULT, PIPE, PROGRAM};

/// Effect of a missing MPS server.
const TURNS: &str = "kernels of PEs that share a GPU are time-sliced in slices of about 2 ms";

pub fn mps(machine: &Machine) -> Checked {
    gpu::needed(machine)?;
    let answers = |folder: &str| {
        // Only on a running system can a server be queried. For a recorded machine, the control file is checked
        // instead.
        let there = machine.exists(&format!("{}/control", folder.trim_start_matches('/')));
        machine.asked.mps.unwrap_or(there)
    };
    if let Some(folder) = machine.variable(PIPE) {
        let top = folder.trim_start_matches('/').split('/').next().unwrap_or_default();
        if machine.asked.mps.is_none() && !machine.exists(top) {
            return skipped(format!("{PIPE} is {folder}, which was not recorded"));
        }
        if answers(&folder) {
            return ok(format!("a server answers in {folder} ({PIPE}): ranks use it"));
        }
        return warn(
            format!("{PIPE} is {folder}, where no server answers: {TURNS}"),
            format!("unset {PIPE}, or start the server there: nvidia-cuda-mps-control -d"),
        );
    }
    if answers(DEFAULT) {
        return ok(format!("a server answers in {DEFAULT}: ranks use it"));
    }
    let path = machine.variable("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let folders: Vec<&str> = path.split(':').map(|folder| folder.trim_start_matches('/')).collect();
    if !folders.iter().any(|folder| machine.exists(folder)) {
        return skipped("the directories of PATH were not recorded");
    }
    match folders.iter().find(|folder| machine.exists(&format!("{folder}/{PROGRAM}"))) {
        Some(folder) => ok(format!("/{folder}/{PROGRAM}: ginlab starts a server for ranks that share a GPU")),
        None => warn(
            format!("{PROGRAM} is not on PATH: {TURNS}"),
            "install the driver's package that contains it (nvidia-compute-utils); containers: \
             NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
    }
}
