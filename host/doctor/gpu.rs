//! Checks of GPUs and of NICs' access to their memory.

use super::machine::Machine;
use super::trial::REGISTERING;
use super::{CheckState, Checked, fail, nvlink, ok, skipped, warn};
use ginlab_bootstrap::Launcher;
use ginlab_topology::visible as cuda_visible;

/// Weakens a problem with NICs' access to GPU memory if the instance type is not expected to have this access, or if
/// the user permits staging.
pub(super) fn if_direct_is_expected(machine: &Machine, checked: Checked) -> Checked {
    let said = match checked {
        Err(said) if said.state > CheckState::Ok => said,
        other => return other,
    };
    let kind = machine.instance().unwrap_or_default();
    match machine.expects_direct() {
        Some(true) => Err(said),
        Some(false) if machine.wanted.staged => ok(format!("{}: permitted by --staged-is-fine", said.found)),
        Some(false) => ok(format!("{}: a {kind} has no GPUDirect", said.found)),
        None => warn(format!("{}; whether a {kind} has GPUDirect is unknown", said.found), said.mend),
    }
}

/// Remedy for errors of a GPU's memory.
const REPLACE: &str = "nvidia-smi --gpu-reset, or replace the instance";

/// Skips a check if there is no GPU on the bus. If the bus is not visible, skips it if the driver reports no GPU
/// either.
pub(super) fn needed(machine: &Machine) -> Checked<()> {
    let by_driver = matches!(&machine.asked.gpus, Some(Ok(gpus)) if !gpus.is_empty());
    match machine.bus_unseen() {
        Some(_) if by_driver => Ok(()),
        Some(why) => skipped(why),
        None if machine.gpus().is_empty() => skipped("no NVIDIA GPU on the PCI bus"),
        None => Ok(()),
    }
}

/// Returns the release of the operating system's kernel as (major, minor).
fn kernel(machine: &Machine) -> Option<(u32, u32)> {
    let text = machine.text("proc/sys/kernel/osrelease")?;
    let mut parts = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

pub fn direct(machine: &Machine) -> Checked {
    needed(machine)?;
    let Some(version) = machine.text("proc/driver/nvidia/version") else {
        return if machine.module("nvidia") == Some(false) {
            fail("the NVIDIA driver is not loaded", "modprobe nvidia (containers: --gpus all)")
        } else {
            skipped("/proc/driver/nvidia cannot be read")
        };
    };
    let open = version.contains("Open Kernel Module");
    let dma_buf = open && kernel(machine).is_some_and(|release| release >= (5, 12));
    let driver = if open { "open driver" } else { "closed driver" };
    if machine.efa_cards().is_empty() {
        return direct_without_efa(machine, driver, dma_buf);
    }
    // Content of the attribute file of the efa driver: "NVIDIA peermem" with efa_nv_peermem, "NVIDIA" with the symbols
    // of NVIDIA's module, and empty without either. A driver without the attribute (the one in the Linux kernel)
    // supports only dma-buf.
    let files = machine.efa_devices();
    let ways: Vec<String> =
        files.iter().filter_map(|name| machine.text(&format!("sys/class/infiniband/{name}/device/p2p"))).collect();
    let provider = ways.iter().find(|way| !way.is_empty());
    let module = machine.exists("sys/module/efa_nv_peermem");
    let cards = match (provider, ways.is_empty()) {
        (Some(way), _) => format!("the p2p provider of the EFA devices is {way}"),
        (None, true) => "the efa driver has no p2p attribute".to_owned(),
        (None, false) => "the p2p attribute of the EFA devices is empty: no provider".to_owned(),
    };
    let found = format!("{driver}, {}; {cards}", if dma_buf { "dma-buf" } else { "no dma-buf" });
    const MEND: &str = "modprobe efa_nv_peermem (EFA installer), or NVIDIA's open kernel modules (nvidia-open) on \
                        Linux 5.12 or later; nvidia_peermem is for other NICs";
    let libfabric = libfabric_version(machine);
    let said = match (provider.is_some() || (ways.is_empty() && module), dma_buf) {
        (true, _) => ok(found),
        (false, true) if libfabric.is_some_and(|version| version >= DMA_BUF_SINCE) => {
            ok(format!("{found}; libfabric registers GPU memory by dma-buf"))
        }
        (false, true) if libfabric.is_some() => {
            let (major, minor) = libfabric.unwrap_or_default();
            warn(
                format!("{found}; libfabric {major}.{minor} registers GPU memory only by a p2p provider"),
                "modprobe efa_nv_peermem (EFA installer), or libfabric 2.5 or later (EFA installer 1.50 has 2.6)",
            )
        }
        (false, true) if ways.is_empty() => ok(found),
        (false, true) => warn(format!("{found}; only a libfabric with dma-buf support reaches GPU memory"), MEND),
        (false, false) if machine.means_efa() => fail(found, MEND),
        (false, false) => warn(found, MEND),
    };
    if_direct_is_expected(machine, said)
}

/// First version of libfabric whose EFA provider registers CUDA memory by dma-buf (commit c9e3c0c1b; older versions
/// only use `ibv_reg_mr`: ofiwg/libfabric #12019).
const DMA_BUF_SINCE: (u32, u32) = (2, 5);

/// Returns the version of the loaded libfabric; `None` if it is unknown.
fn libfabric_version(machine: &Machine) -> Option<(u32, u32)> {
    let mut parts = machine.asked.libfabric.as_ref()?.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// Checks access to GPU memory for NICs of other vendors.
fn direct_without_efa(machine: &Machine, driver: &str, dma_buf: bool) -> Checked {
    let peer = machine.exists("sys/module/nvidia_peermem");
    let way = match (dma_buf, peer) {
        (true, _) => "dma-buf",
        (false, true) => "nvidia_peermem",
        (false, false) => "neither dma-buf nor a peer-memory module",
    };
    let found = format!("{driver}, {way}; no EFA device");
    if dma_buf || peer {
        return ok(found);
    }
    let mend = "install NVIDIA's open kernel modules (nvidia-open) on Linux 5.12 or later, or modprobe nvidia_peermem";
    warn(found, mend)
}

pub fn direct_async(machine: &Machine) -> Checked {
    needed(machine)?;
    if machine.efa_cards().is_empty() {
        return skipped("only for EFA devices");
    }
    let Some(parameters) = machine.text("proc/driver/nvidia/params") else {
        return skipped("/proc/driver/nvidia/params cannot be read");
    };
    let set = parameters.contains("PeerMappingOverride=1");
    let installed = machine.text("opt/amazon/efa_installed_packages").and_then(|text| {
        let line = text.lines().find_map(|line| line.split_once("EFA installer version:"))?;
        Some(line.1.trim().to_owned())
    });
    if set && installed.is_none() {
        return skipped(
            "PeerMappingOverride 1; the version of the EFA installer cannot be read (/opt/amazon/efa_installed_packages)",
        );
    }
    let number = |text: &String| -> Option<(u32, u32)> {
        let mut parts = text.split('.').map(str::parse);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    };
    let new = installed.as_ref().and_then(number).is_some_and(|version| version >= (1, 50));
    let found = format!(
        "PeerMappingOverride {}, EFA installer {}",
        if set { "1" } else { "not set" },
        installed.as_deref().unwrap_or("not found")
    );
    match (set, new) {
        (true, true) => ok(found),
        // No node has this by default, and everything else works without it.
        (false, _) => ok(format!(
            "{found}: needed only if kernels drive the EFA device (options nvidia \
             NVreg_RegistryDwords=\"PeerMappingOverride=1;\" in /etc/modprobe.d)"
        )),
        (true, false) => warn(
            format!("{found}: kernels that drive EFA devices need 1.50 or later"),
            "install EFA installer 1.50 or later",
        ),
    }
}

pub fn register(machine: &Machine) -> Checked {
    needed(machine)?;
    let Some(trials) = &machine.asked.trials else { return skipped("not tested on a recorded machine") };
    let mend = "see gpu-direct; then `ginlab efa` (column HMEM) and the kernel's log (dmesg)";
    let trouble = |text: String| {
        if_direct_is_expected(machine, if machine.means_efa() { fail(text, mend) } else { warn(text, mend) })
    };
    // The NIC is tested first: a provider cannot offer what the NIC rejects.
    let by_card = match &machine.asked.registered {
        Some(Err(why)) => return trouble(format!("{why}: payloads are staged through the host")),
        Some(Ok(ways)) => format!("{ways}; "),
        None => String::new(),
    };
    let tried: Vec<_> = trials.iter().filter(|trial| trial.gpu).collect();
    if let Some((trial, why)) = tried.iter().find_map(|trial| Some((trial, trial.outcome.as_ref().err()?))) {
        let text = format!("{by_card}{}: {why}", trial.rail);
        // Without EFA, providers that copy are expected. A write that fails after its registration is always a fault.
        return match trial.copied {
            true => trouble(text),
            false if why.starts_with(REGISTERING) => if_direct_is_expected(machine, fail(text, mend)),
            false => fail(text, mend),
        };
    }
    match (tried.len(), by_card.is_empty()) {
        (0, true) => skipped("no rail supports GPU memory (see rma): payloads are staged through the host"),
        (0, false) => if_direct_is_expected(
            machine,
            warn(
                format!("{by_card}libfabric does not offer it (see rma): payloads are staged through the host"),
                "install the EFA installer's libfabric (built with CUDA)",
            ),
        ),
        (rails, _) => ok(format!(
            "{by_card}2 MiB registered, written to itself and read back on {rails} rails without CUDA calls of the \
             provider"
        )),
    }
}

pub fn gdrcopy(machine: &Machine) -> Checked {
    needed(machine)?;
    let Some(module) = machine.module("gdrdrv") else { return skipped("/sys/module cannot be read") };
    if !machine.exists("dev") {
        return skipped("/dev was not recorded");
    }
    let node = machine.exists("dev/gdrdrv");
    let found = format!(
        "module {}, /dev/gdrdrv {}",
        if module { "loaded" } else { "not loaded" },
        if node { "present" } else { "missing" }
    );
    let optional = "it is optional: without it, pinned memory is used";
    match &machine.asked.gdrcopy {
        Some(Ok(version)) => ok(format!("{found}; libgdrapi {version}: a page mapped and read back")),
        Some(Err(why)) => warn(
            format!("{found}; {why}; {optional}"),
            "install gdrcopy, modprobe gdrdrv, and pass /dev/gdrdrv into containers",
        ),
        None if module && node => ok(format!("{found}; nothing was mapped")),
        None => warn(format!("{found}; {optional}"), "modprobe gdrdrv, and pass /dev/gdrdrv into containers"),
    }
}

/// Returns a failure if GPUs of the instance are missing from the PCI bus.
fn all_on_the_bus(machine: &Machine) -> Checked<()> {
    let (there, expected) = (machine.gpus().len(), machine.kind().map_or(0, |instance| instance.gpus));
    if machine.bus_unseen().is_some() || machine.wanted.emulated || there >= expected {
        return Ok(());
    }
    let kind = machine.instance().unwrap_or_default();
    let shown: Vec<String> = machine.gpus().iter().map(ToString::to_string).collect();
    let shown = if shown.is_empty() { String::new() } else { format!(": {}", shown.join(", ")) };
    fail(
        format!("{there} of {expected} GPUs of a {kind} are on the PCI bus{shown}"),
        "restart the machine; replace the instance if a GPU is still missing",
    )
}

pub fn state(machine: &Machine) -> Checked {
    all_on_the_bus(machine)?;
    needed(machine)?;
    let Some(answer) = &machine.asked.gpus else { return skipped("the driver was not queried") };
    let mend = "nvidia-smi (a driver that does not match its library: reboot)";
    let gpus = answer.as_ref().or_else(|why| fail(why, mend))?;
    let versions = format!(
        "driver {}, CUDA {}, {} GPUs",
        machine.asked.driver.as_deref().unwrap_or("unknown"),
        machine.asked.cuda.as_deref().unwrap_or("unknown"),
        gpus.len()
    );
    if machine.asked.cuda.is_none() {
        return fail(
            format!("{versions}: libcuda cannot be loaded"),
            "containers: --gpus all; hosts: install the driver's libcuda",
        );
    }
    if let Some(gpu) = gpus.iter().find(|gpu| gpu.ecc_uncorrected.is_some_and(|count| count > 0)) {
        let count = gpu.ecc_uncorrected.unwrap_or_default();
        return fail(format!("{versions}; {} has {count} uncorrected ECC errors", gpu.address), REPLACE);
    }
    let rows = gpus.iter().filter_map(|gpu| Some((gpu, gpu.remapped?)));
    if let Some((gpu, rows)) = rows.into_iter().find(|(_, rows)| rows.failed) {
        return fail(format!("{versions}; {}: remapping of a memory row failed ({rows})", gpu.address), REPLACE);
    }
    let pending = gpus.iter().find(|gpu| gpu.remapped.is_some_and(|rows| rows.pending));
    if let Some(gpu) = pending {
        return warn(
            format!("{versions}; {}: a memory row is remapped at the next reset of the GPU", gpu.address),
            "drain the GPU and nvidia-smi --gpu-reset",
        );
    }
    let (shown, there) = (gpus.len(), machine.gpus().len());
    if shown < there && !launched(machine) && !machine.in_container() {
        let lost = machine.gpus().into_iter().find(|address| gpus.iter().all(|gpu| gpu.address != *address));
        let lost = lost.map_or(String::new(), |address| format!(": not {address}"));
        return fail(
            format!("{versions}: the driver shows {shown} of {there} GPUs on the PCI bus{lost}"),
            "ginlab doctor --only xid; restart the machine",
        );
    }
    if let Some((gpu, why)) = gpus.iter().find_map(|gpu| Some((gpu, gpu.held_back.as_ref()?))) {
        return warn(
            format!("{versions}; the clocks of {} are reduced by {why}", gpu.address),
            "nvidia-smi -q -d PERFORMANCE; nvidia-smi -rgc",
        );
    }
    if gpus.iter().any(|gpu| gpu.persistent == Some(false)) {
        return warn(
            format!("{versions}; persistence mode is off: the first use of a GPU takes seconds"),
            "nvidia-smi -pm 1",
        );
    }
    // Only values that were read are reported as good.
    let ecc = gpus.iter().all(|gpu| gpu.ecc_uncorrected.is_some());
    let rows = gpus.iter().all(|gpu| gpu.remapped.is_some());
    let rest = match (ecc, rows) {
        (true, true) => "no ECC error, no row to remap",
        (true, false) => "no ECC error; the driver does not report remapped rows",
        (false, _) => "the driver does not report ECC",
    };
    ok(format!("{versions}, clocks free, {rest}"))
}

/// Returns whether a launcher started this process.
fn launched(machine: &Machine) -> bool {
    Launcher::detect(&|name: &str| machine.variable(name)).is_some()
}

pub fn visible(machine: &Machine) -> Checked {
    needed(machine)?;
    let Some(visible) = &machine.asked.visible else { return skipped("CUDA was not queried") };
    if let Some(why) = machine.bus_unseen() {
        return skipped(format!("CUDA shows {} GPUs; {why}", visible.len()));
    }
    let there = machine.gpus();
    // An empty value counts as set, and hides every GPU.
    let list = machine.environment.get(cuda_visible::VARIABLE);
    let set = list.map_or(String::new(), |list| {
        let stop = cuda_visible::shown(list, there.len()).stop;
        format!(" (CUDA_VISIBLE_DEVICES={list}){}", stop.map_or(String::new(), |why| format!("; {why}")))
    });
    let found = format!("{} of {} GPUs{set}", visible.len(), there.len());
    if let (true, Some(why)) = (visible.is_empty(), &machine.asked.hidden) {
        let mend = "`systemctl status nvidia-fabricmanager` (its version must be the driver's); `nvidia-smi -q | grep \
                    -A2 Fabric`; `ginlab doctor --only xid`";
        let fabric = nvlink::unconfigured(machine).map_or(String::new(), |fabric| format!("; {fabric}"));
        return fail(format!("CUDA shows no GPU: {why}{fabric}"), mend);
    }
    if visible.is_empty() {
        return fail(
            format!("CUDA shows {found}"),
            if list.is_some() { "unset CUDA_VISIBLE_DEVICES" } else { "containers: --gpus all" },
        );
    }
    if let Some(gpu) = visible.iter().find(|gpu| gpu.address.is_none_or(|address| !there.contains(&address))) {
        return fail(
            format!("CUDA's GPU {} is not in the PCI tree: its NICs cannot be chosen by nearness", gpu.ordinal),
            "mount the host's /sys into the container",
        );
    }
    // A container may be given a subset of the GPUs; a launcher selects one GPU per rank through the variable.
    let chosen = if list.is_some() { launched(machine) } else { machine.in_container() };
    if visible.len() < there.len() && chosen {
        return ok(format!("CUDA shows {found}, selected by the launcher or the container, each at its PCI address"));
    }
    if visible.len() < there.len() {
        return warn(
            format!("CUDA shows {found}; ranks map theirs by PCI address"),
            "unset CUDA_VISIBLE_DEVICES unless the launcher sets it per rank",
        );
    }
    ok(format!("CUDA shows {found}, each at its PCI address"))
}
