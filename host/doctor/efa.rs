//! Checks of EFA devices, their driver and their counters.

use super::machine::Machine;
use super::{Checked, fail, ok, skipped, warn};
use ginlab_topology::PciPath;
use ginlab_topology::near;

/// Skips a check if there is no EFA device and none is required.
pub(super) fn needed(machine: &Machine) -> Checked<()> {
    match (machine.means_efa(), machine.bus_unseen()) {
        (true, _) => Ok(()),
        (false, Some(why)) => skipped(format!("{why}, and EFA is not required (--require-efa)")),
        (false, None) => skipped("no EFA device, and none is required (--require-efa)"),
    }
}

pub fn devices(machine: &Machine) -> Checked {
    if let Some(why) = machine.bus_unseen() {
        return skipped(why);
    }
    let found = machine.efa_cards().len();
    let instance = machine.instance();
    if let (Some(asked), Some(firmware)) = (&machine.wanted.instance, machine.firmware_instance())
        && super::instances::plain(asked) != firmware
    {
        return fail(
            format!("the firmware reports a {firmware}, but --instance is {asked}"),
            "omit --instance, or name the type of this machine",
        );
    }
    let unbound: Vec<String> = machine.unbound_cards().iter().map(ToString::to_string).collect();
    if !unbound.is_empty() {
        let text =
            format!("{} of {found} EFA devices on the PCI bus have no driver: {}", unbound.len(), unbound.join(", "));
        let mend = "modprobe efa; the kernel's log has the reason: dmesg | grep -i efa";
        return if machine.means_efa() { fail(text, mend) } else { warn(text, mend) };
    }
    let expected = machine.expected_cards();
    let mend = "attach all EFA interfaces in the launch template (InterfaceType efa or efa-only on each network card), \
                or wait for late ones: `ginlab doctor --wait 60`; if a part of them is intended: --cards N";
    match (expected, found) {
        (Some(expected), _) if found < expected => {
            let of = instance.map_or(String::new(), |instance| format!(" of a {instance}"));
            let text = format!("{found} of {expected} EFA devices{of}{}", fewer_near(machine));
            if machine.means_efa() || machine.wanted.cards.is_some() { fail(text, mend) } else { warn(text, mend) }
        }
        (Some(expected), _) => ok(format!("{found} EFA devices, {expected} expected")),
        (None, 0) if machine.wanted.efa => fail("no EFA device", mend),
        (None, 0) => skipped("no EFA device, and none is required (--require-efa)"),
        (None, _) => {
            let name = instance.unwrap_or_else(|| "this machine".to_owned());
            warn(
                format!("{found} EFA devices; the expected number for {name} is unknown"),
                "ginlab doctor --cards N, or --instance TYPE if the firmware does not report it",
            )
        }
    }
}

/// Returns the GPUs that have fewer EFA devices below their switch or root than others, as text. The text is empty if
/// all have the same number.
fn fewer_near(machine: &Machine) -> String {
    let Some(tree) = machine.tree() else { return String::new() };
    let counts: Vec<(String, usize)> = near(tree)
        .into_iter()
        .map(|near| {
            let own = matches!(near.way, Some(PciPath::Switch | PciPath::Root));
            (near.gpu.address.to_string(), if own { near.nics.iter().filter(|nic| nic.efa).count() } else { 0 })
        })
        .collect();
    let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(0);
    let fewer: Vec<String> =
        counts.iter().filter(|(_, count)| *count < most).map(|(gpu, count)| format!("{count} near {gpu}")).collect();
    if fewer.is_empty() { String::new() } else { format!(": {}, {most} near other GPUs", fewer.join(", ")) }
}

/// Returns the rates of the ports of the EFA devices in Gb/s, as the driver reports them.
pub(super) fn port_rates(machine: &Machine) -> Vec<(String, f64)> {
    let rate = |name: String| {
        // Format: "100 Gb/sec (4X EDR)".
        let text = machine.text(&format!("sys/class/infiniband/{name}/ports/1/rate"))?;
        let rate = text.split_once(" Gb/sec")?.0.trim().parse().ok()?;
        Some((name, rate))
    };
    machine.efa_devices().into_iter().filter_map(rate).collect()
}

/// Rate that the efa driver reports if it does not know the rate of the device (its `EFA_DEFAULT_LINK_SPEED_GBPS`).
const CONSTANT_RATE: f64 = 100.0;

/// Returns the rate of all ports for a table. Returns a failure if a port is slower than the others or than the rate of
/// the instance.
fn equal_rates(machine: &Machine) -> Checked<String> {
    let rates = port_rates(machine);
    let most = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let mend = "replace the instance, or reload: modprobe -r efa; modprobe efa";
    if let Some((name, rate)) = rates.iter().find(|(_, rate)| *rate < most) {
        return fail(format!("the port of {name} runs at {rate} Gb/s, others at {most}"), mend);
    }
    let expected = machine.kind().and_then(|instance| instance.port_gbits_s).map(f64::from);
    match expected.filter(|expected| most > 0.0 && most < *expected) {
        Some(expected) if most != CONSTANT_RATE => {
            let kind = machine.instance().unwrap_or_default();
            fail(format!("the ports run at {most} Gb/s, those of a {kind} at {expected}"), mend)
        }
        Some(expected) => Ok(format!(", ports at {most} Gb/s (the driver's constant; expected {expected})")),
        None if rates.is_empty() => Ok(String::new()),
        None => Ok(format!(", ports at {most} Gb/s")),
    }
}

pub fn driver(machine: &Machine) -> Checked {
    needed(machine)?;
    const MODULES: [&str; 3] = ["efa", "ib_uverbs", "ib_core"];
    if MODULES.into_iter().any(|name| machine.module(name).is_none()) {
        return skipped("/sys/module cannot be read");
    }
    let missing: Vec<&str> = MODULES.into_iter().filter(|name| machine.module(name) == Some(false)).collect();
    if !missing.is_empty() {
        return fail(format!("modules that are not loaded: {}", missing.join(", ")), "modprobe -a efa ib_uverbs");
    }
    let version = machine.text("sys/module/efa/version").unwrap_or_else(|| "of unknown version".to_owned());
    let (nodes, _) = machine.device_nodes();
    let found = format!("efa {version}, {} device nodes", nodes.len());
    let mend = "docker: --device /dev/infiniband/uverbs0 (one for each EFA device); pods: vpc.amazonaws.com/efa: N in \
                requests and limits; hosts: chmod 666 /dev/infiniband/uverbs*";
    if !machine.exists("dev") {
        return skipped(format!("efa {version}; /dev was not recorded"));
    }
    if nodes.is_empty() {
        return fail(format!("{found}: no /dev/infiniband/uverbs*"), mend);
    }
    match nodes.iter().find(|name| !machine.opens(&format!("dev/infiniband/{name}"))) {
        Some(name) => fail(format!("{found}: /dev/infiniband/{name} cannot be read"), mend),
        None => ok(found),
    }
}

pub fn links(machine: &Machine) -> Checked {
    needed(machine)?;
    let names = machine.names("sys/class/infiniband");
    if names.is_empty() {
        return if machine.shows_classes() {
            fail("no RDMA device", "modprobe -a efa ib_uverbs")
        } else {
            skipped("/sys/class/infiniband cannot be read")
        };
    }
    let efa = machine.efa_devices();
    // Software devices have no driver.
    let unowned = |name: &&String| machine.link(&format!("sys/class/infiniband/{name}/device/driver")).is_none();
    if let (true, Some(name)) = (efa.is_empty(), names.iter().find(unowned)) {
        return skipped(format!("the driver of /sys/class/infiniband/{name} cannot be read"));
    }
    let others = names.len() - efa.len();
    let state = |name: &String| machine.text(&format!("sys/class/infiniband/{name}/ports/1/state"));
    let down = efa.iter().find(|name| state(name).is_some_and(|state| !state.contains("ACTIVE")));
    if let (None, Some(name)) = (down, efa.iter().find(|name| state(name).is_none())) {
        return skipped(format!("the state of the link of {name} cannot be read"));
    }
    let beside = if others == 0 { String::new() } else { format!("; {others} RDMA devices of other drivers") };
    match down {
        Some(name) => fail(
            format!("the link of {name} is not active"),
            "replace the instance, or reload: modprobe -r efa; modprobe efa",
        ),
        None if efa.is_empty() => fail(format!("no RDMA device belongs to the efa driver{beside}"), "modprobe efa"),
        None => {
            let rates = equal_rates(machine)?;
            ok(format!("{} devices of the efa driver, all active{rates}{beside}", efa.len()))
        }
    }
}
