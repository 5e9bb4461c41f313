//! Checks of EFA devices, their driver and their counters.

use super::machine::Machine;
use super::{Checked, fail, ok, skipped, warn};
use ginlab_topology::environment::Counters;

/// Skips a check if there is no EFA device and none is required.
fn needed(machine: &Machine) -> Checked<()> {
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
    let expected = machine.expected_cards();
    let mend = "attach all EFA interfaces in the launch template (InterfaceType efa or efa-only on each network card), \
                or wait for late ones: `ginlab doctor --wait 60`; if a part of them is intended: --cards N";
    match (expected, found) {
        (Some(expected), _) if found < expected => {
            let of = instance.map_or(String::new(), |instance| format!(" of a {instance}"));
            let text = format!("{found} of {expected} EFA devices{of}");
            if machine.means_efa() || machine.wanted.cards.is_some() { fail(text, mend) } else { warn(text, mend) }
        }
        (Some(expected), _) => ok(format!("{found} EFA devices, {expected} expected")),
        (None, 0) if machine.wanted.efa => fail("no EFA device", mend),
        (None, 0) => skipped("no EFA device, and none is required (--require-efa)"),
        (None, _) => {
            let name = instance.unwrap_or_else(|| "this machine".to_owned());
            warn(
                format!("{found} EFA devices; the expected number for {name} is unknown"),
                "ginlab doctor --cards N, or --instance p5.48xlarge",
            )
        }
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
        None => ok(format!("{} devices of the efa driver, all active{beside}", efa.len())),
    }
}

pub fn counters(machine: &Machine) -> Checked {
    let counters = Counters::read(&machine.root);
    if counters.devices().filter(|device| device.contains('/')).count() == 0 {
        needed(machine)?;
        return if machine.shows_classes() && !machine.names("sys/class/infiniband").is_empty() {
            warn("no counter of an RDMA device can be read", "mount the host's /sys into the container")
        } else {
            skipped("/sys/class/infiniband cannot be read")
        };
    }
    // If there are EFA devices, the counters of other drivers' devices are irrelevant.
    let efa = machine.efa_devices();
    let trouble: Vec<String> = counters
        .trouble()
        .into_iter()
        .filter(|line| {
            line.split_once('/').is_some_and(|(device, _)| efa.is_empty() || efa.iter().any(|name| name == device))
        })
        .collect();
    match trouble.len() {
        0 => ok("no drops, errors or retransmissions since the devices came up"),
        count => warn(
            format!(
                "{count} error counters increased since the devices came up: {}",
                trouble[..count.min(3)].join(", ")
            ),
            "compare before and after a run (header key nic_counters); if a device keeps counting, replace the \
             instance",
        ),
    }
}
