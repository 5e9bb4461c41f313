//! Placement of GPUs, NICs and cores.

use super::machine::Machine;
use super::{Checked, ok, skipped, warn};
use ginlab_topology::cores::parse_list;
use ginlab_topology::pci::PciKind;
use ginlab_topology::tree::PciFunction;

pub fn pcie(machine: &Machine) -> Checked {
    let Some(tree) = &machine.tree else { return skipped(machine.bus_unseen().unwrap_or_default()) };
    let width = |link: &Option<(String, String)>| link.as_ref()?.1.parse::<u32>().ok();
    let narrow = tree.functions.iter().find_map(|function| {
        let (now, best) = (width(&function.link)?, width(&function.best_link)?);
        (now > 0 && now < best).then_some((function, now, best))
    });
    if let Some((function, now, best)) = narrow {
        let text = format!("{} ({}) runs {now} of {best} lanes", function.address, function.name);
        return warn(text, "replace the instance (hosts: reseat the device)");
    }
    let known = tree.functions.iter().filter(|function| width(&function.link).is_some()).count();
    if machine.line("proc/cpuinfo", "flags").is_none_or(|flags| flags.split(' ').any(|flag| flag == "hypervisor")) {
        return skipped(format!(
            "{known} links at full width; ACS and IOMMU belong to the host and are not visible here"
        ));
    }
    if known == 0 && !tree.functions.is_empty() {
        return skipped("no link width can be read");
    }
    if machine.names("sys/class").is_empty() {
        return skipped(format!("{known} links at full width; /sys/class/iommu cannot be read"));
    }
    let translated = machine.names("sys/class/iommu").len();
    let command = machine.text("proc/cmdline").unwrap_or_default();
    let passes =
        command.split(' ').any(|word| matches!(word, "iommu=pt" | "iommu=off" | "intel_iommu=off" | "amd_iommu=off"));
    if translated > 0 && !passes {
        let text = format!(
            "{known} links at full width; {translated} IOMMUs translate: NICs and GPUs cannot reach each other directly"
        );
        return warn(text, "boot with iommu=pt, and disable ACS (setpci -v -d *:* ECAP_ACS+0x6.w=0000)");
    }
    ok(format!("{known} links at full width, no IOMMU in between"))
}

pub fn cores(machine: &Machine) -> Checked {
    let allowed = machine.line("proc/self/status", "Cpus_allowed_list").and_then(|text| parse_list(&text));
    let Some(allowed) = allowed else { return skipped("/proc/self/status cannot be read") };
    let Some(tree) = &machine.tree else { return skipped(machine.bus_unseen().unwrap_or_default()) };
    let (mine, cards) = (machine.usable_gpus(), machine.usable_card_addresses());
    let gpus: Vec<&PciFunction> = tree.of(PciKind::Gpu).filter(|gpu| mine.contains(&gpu.address)).collect();
    let is_mine = |nic: &&PciFunction| nic.rma && cards.as_ref().is_none_or(|cards| cards.contains(&nic.address));
    let devices: Vec<&PciFunction> = gpus.iter().copied().chain(tree.of(PciKind::Nic).filter(is_mine)).collect();
    let found =
        format!("{} cores for {} GPUs and {} NICs with RDMA", allowed.len(), gpus.len(), devices.len() - gpus.len());
    let mend = "srun --cpu-bind=none, mpirun --bind-to none, taskset -pc 0-N $$ (ginlab pins its own threads)";
    let away = devices.iter().find(|device| {
        let near = device.cores.as_deref().and_then(parse_list).filter(|cores| !cores.is_empty());
        near.is_some_and(|near| !near.iter().any(|core| allowed.contains(core)))
    });
    if let Some(device) = away {
        return warn(format!("{found}; none of them is near {} ({})", device.address, device.name), mend);
    }
    // One core for the rank and one for its proxy.
    if gpus.len() * 2 > allowed.len() {
        return warn(format!("{found}; a proxy and its rank need one core each"), mend);
    }
    if gpus.len() > 1 && devices.iter().any(|device| device.numa_node.is_none()) {
        return warn(
            format!(
                "{found}; the NUMA node of some devices is unknown, so nearness is determined only by the PCI tree"
            ),
            "see ginlab affinity; --domain and --pin override the choice",
        );
    }
    ok(found)
}
