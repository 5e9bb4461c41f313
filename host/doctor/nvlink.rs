//! Check of the links between GPUs, and of the fabric that connects them.

use super::gpu::needed;
use super::machine::{GpuFabric, GpuState, Machine};
use super::{Checked, fail, ok, skipped, warn};

/// Rate of checksum errors of a GPU's links from which they matter. DCGM's limit, which its authors received from
/// NVIDIA's driver developers.
pub(super) const CHECKSUMS_PER_SECOND: f64 = 100.0;

/// Returns the GPUs that the fabric manager has not made ready. `None` if there are none, or if the driver does not
/// report it.
pub(super) fn unconfigured(machine: &Machine) -> Option<String> {
    let Some(Ok(gpus)) = &machine.asked.gpus else { return None };
    let waits = |gpu: &&GpuState| gpu.fabric.is_some_and(|fabric| fabric != GpuFabric::Ready);
    let waiting: Vec<&GpuState> = gpus.iter().filter(waits).collect();
    let first = waiting.first()?;
    let fabric = first.fabric?;
    let number = if waiting.len() == 1 { String::new() } else { format!(", as that of {} GPUs", waiting.len()) };
    Some(format!("the fabric of {} {fabric}{number}", first.address))
}

pub fn nvlink(machine: &Machine) -> Checked {
    needed(machine)?;
    let Some(Ok(gpus)) = &machine.asked.gpus else { return skipped("the driver was not queried, or does not answer") };
    let mend = "systemctl restart nvidia-fabricmanager; nvidia-smi nvlink --status";
    if let Some(fabric) = unconfigured(machine) {
        // CUDA initializes GPUs that need no fabric, such as those of a virtual machine with direct links.
        let hidden = machine.asked.visible.as_ref().is_some_and(Vec::is_empty);
        return if hidden { fail(fabric, mend) } else { warn(fabric, mend) };
    }
    if gpus.len() < 2 {
        return skipped("one GPU: no links needed");
    }
    let links: Vec<u32> = gpus.iter().map(|gpu| gpu.links_up).collect();
    let most = links.iter().copied().max().unwrap_or(0);
    if most == 0 {
        return if gpus.iter().any(|gpu| gpu.links > 0) {
            fail("the GPUs have NVLinks, but none is up", mend)
        } else {
            ok("the driver reports no NVLink")
        };
    }
    if let Some(gpu) = gpus.iter().find(|gpu| gpu.links_up < most) {
        return fail(format!("{} has {} NVLinks up, others {most}", gpu.address, gpu.links_up), mend);
    }
    let found = format!("{most} NVLinks up on each of {} GPUs", gpus.len());
    // The counters have been running since the driver was loaded, including link training, and links recover from the
    // errors that they count. Therefore, only growth matters.
    let later = machine.asked.gpus_later.as_ref();
    let growing = later.and_then(|(apart, states)| {
        let came = |state: &GpuState| {
            let before = gpus.iter().find(|gpu| gpu.address == state.address)?;
            let came = state.link_errors.since(&before.link_errors);
            let often = came.checksums as f64 >= CHECKSUMS_PER_SECOND * apart.as_secs_f64().max(1.0);
            (came.replays > 0 || came.recoveries > 0 || often).then_some((state.address, came))
        };
        let (gpu, came) = states.iter().find_map(came)?;
        Some(format!("{gpu} has counted {came} within {:.1} s", apart.as_secs_f64()))
    });
    if let Some(growing) = growing {
        return warn(
            format!("{found}; {growing}"),
            "nvidia-smi nvlink --errorcounters; replace the instance if the errors continue",
        );
    }
    match (gpus.iter().find(|gpu| gpu.link_errors.total() > 0), later) {
        (None, _) => ok(format!("{found}, no errors")),
        (Some(gpu), Some((apart, _))) => ok(format!(
            "{found}; {} has counted {} since the driver was loaded, but almost none in the last {:.1} s",
            gpu.address,
            gpu.link_errors,
            apart.as_secs_f64()
        )),
        (Some(gpu), None) => ok(format!(
            "{found}; {} has counted {} since the driver was loaded; checked only once",
            gpu.address, gpu.link_errors
        )),
    }
}
