//! EFA cards as the system sees them.

use super::machine::Machine;
use super::{Checked, fail, ok, skipped, warn};
use ginlab_topology::environment::Counters;

/// The end where there is no card and none is asked for.
fn needed(machine: &Machine) -> Checked<()> {
    if machine.means_efa() { Ok(()) } else { skipped("no EFA card is here, and none is asked for (--require-efa)") }
}

pub fn devices(machine: &Machine) -> Checked {
    if machine.tree.is_none() {
        return skipped("the PCI bus was not recorded");
    }
    let found = machine.efa_cards().len();
    let instance = machine.instance();
    let expected = machine.expected_cards();
    let mend = "attach all EFA interfaces in the launch template (InterfaceType efa or efa-only on each network card), or wait for \
                late ones: `ginlab doctor --wait 60`; a part that is meant: --cards N";
    match (expected, found) {
        (Some(expected), _) if found < expected => {
            let of = instance.map_or(String::new(), |instance| format!(" of a {instance}"));
            let text = format!("{found} of {expected} EFA cards{of}");
            if machine.means_efa() || machine.wanted.cards.is_some() { fail(text, mend) } else { warn(text, mend) }
        }
        (Some(expected), _) => ok(format!("{found} EFA cards, {expected} expected")),
        (None, 0) if machine.wanted.efa => fail("no EFA card is here", mend),
        (None, 0) => skipped("no EFA card is here, and none is asked for (--require-efa)"),
        (None, _) => {
            let name = instance.unwrap_or_else(|| "this machine".to_owned());
            warn(
                format!("{found} EFA cards; how many {name} should have is not known"),
                "ginlab doctor --cards N, or --instance p5.48xlarge",
            )
        }
    }
}

pub fn driver(machine: &Machine) -> Checked {
    needed(machine)?;
    if !machine.exists("sys/module") {
        return skipped("/sys/module cannot be read");
    }
    let missing: Vec<&str> = ["efa", "ib_uverbs", "ib_core"]
        .into_iter()
        .filter(|name| !machine.exists(&format!("sys/module/{name}")))
        .collect();
    if !missing.is_empty() {
        return fail(format!("modules that are not loaded: {}", missing.join(", ")), "modprobe -a efa ib_uverbs");
    }
    let version = machine.text("sys/module/efa/version").unwrap_or_else(|| "of unknown version".to_owned());
    let (nodes, _) = machine.device_nodes();
    let found = format!("efa {version}, {} device nodes", nodes.len());
    let mend = "docker: --device /dev/infiniband/uverbs0 (one for each card); pods: vpc.amazonaws.com/efa: N in requests and limits; \
                hosts: chmod 666 /dev/infiniband/uverbs*";
    if nodes.is_empty() {
        return fail(format!("{found}: no /dev/infiniband/uverbs* is here"), mend);
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
        return if machine.exists("sys/class") {
            fail("there is no RDMA device", "modprobe -a efa ib_uverbs")
        } else {
            skipped("/sys/class/infiniband cannot be read")
        };
    }
    let efa = machine.efa_devices();
    let others = names.len() - efa.len();
    let down = efa.iter().find(|name| {
        let state = machine.text(&format!("sys/class/infiniband/{name}/ports/1/state"));
        !state.is_some_and(|state| state.contains("ACTIVE"))
    });
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
        return if machine.exists("sys/class") {
            warn("no counter of an RDMA device can be read", "mount the host's /sys into the container")
        } else {
            skipped("/sys/class/infiniband cannot be read")
        };
    }
    // Where EFA cards are, the counters of other drivers' devices say nothing about the run.
    let efa = machine.efa_devices();
    let trouble: Vec<String> = counters
        .trouble()
        .into_iter()
        .filter(|line| {
            line.split_once('/').is_some_and(|(device, _)| efa.is_empty() || efa.iter().any(|name| name == device))
        })
        .collect();
    match trouble.len() {
        0 => ok("no drop, error or retransmission since the cards came up"),
        count => warn(
            format!("{count} counters of trouble since the cards came up: {}", trouble[..count.min(3)].join(", ")),
            "compare before and after a run (header key nic_counters); a card that keeps counting: replace the instance",
        ),
    }
}
