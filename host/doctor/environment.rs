//! Variables, and what a container leaves of a machine.

use super::machine::Machine;
use super::{Checked, fail, ok, skipped, warn};

pub fn variables(machine: &Machine) -> Checked {
    // What is wrong with a variable, and whether that stops a run.
    let mut wrong: Vec<(String, bool)> = Vec::new();
    let interfaces = machine.names("sys/class/net");
    for (name, value) in &machine.environment {
        let text = match name.as_str() {
            "FI_PROVIDER" if machine.wanted.efa && !value.split(',').any(|one| one == "efa") => {
                wrong.push((format!("FI_PROVIDER={value} hides efa"), true));
                continue;
            }
            "FI_EFA_FORK_SAFE" | "RDMAV_FORK_SAFE" => "is not needed from Linux 5.15 on, and costs",
            "FI_EFA_USE_DEVICE_RDMA" if value != "1" => "switches RDMA off",
            "FI_EFA_USE_DEVICE_RDMA" => "is not needed from libfabric 1.18 on",
            "FI_HMEM_CUDA_USE_GDRCOPY" if value == "0" => "keeps small copies to GPU memory slow",
            _ if name.starts_with("RDMAV_") => "is rdma-core's own and should not be set",
            "NCCL_SOCKET_IFNAME" | "FI_TCP_IFACE" | "OMPI_MCA_btl_tcp_if_include"
                if !interfaces.is_empty() && !names_one(value, &interfaces) =>
            {
                wrong.push((format!("{name}={value} names no interface of this host"), true));
                continue;
            }
            _ => continue,
        };
        wrong.push((format!("{name}={value} {text}"), false));
    }
    if machine.environment.is_empty() {
        return skipped("no variable was recorded");
    }
    if wrong.is_empty() {
        let set = machine.environment.iter().map(|(name, value)| (name.into(), value.into()));
        let count = ginlab_topology::environment::variables(set).len();
        return ok(format!("{count} variables of libfabric, NCCL, CUDA and MPI are set, none in the way"));
    }
    let names: Vec<&str> = wrong.iter().filter_map(|(text, _)| text.split('=').next()).collect();
    let mend = format!("unset {}", names.join(" "));
    let text = wrong.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join("; ");
    if wrong.iter().any(|(_, stops)| *stops) { fail(text, mend) } else { warn(text, mend) }
}

/// Whether a list as NCCL and Open MPI take it (`eth0,ens`, beginnings of names; `=eth0` exactly; `^docker0` all but) leaves
/// an interface.
fn names_one(value: &str, interfaces: &[String]) -> bool {
    // Without the loopback: ranks of other hosts are not behind it.
    let mut others = interfaces.iter().filter(|name| *name != "lo");
    if let Some(excluded) = value.strip_prefix('^') {
        return others.any(|name| !excluded.split(',').any(|part| name.starts_with(part.trim_start_matches('='))));
    }
    // Networks (10.0.0.0/8) are taken at their word.
    value.split(',').any(|part| {
        part.contains('/')
            || part.strip_prefix('=').map_or_else(
                || interfaces.iter().any(|name| name.starts_with(part)),
                |exact| interfaces.iter().any(|name| name == exact),
            )
    })
}

pub fn container(machine: &Machine) -> Checked {
    if !machine.in_container() {
        return if machine.exists("proc") {
            ok("this is no container")
        } else {
            skipped("nothing tells whether this is a container")
        };
    }
    const MEND: &str = "pods: vpc.amazonaws.com/efa: N in requests and limits; docker: --device /dev/infiniband/uverbs0, one for each card";
    let devices = machine.efa_devices().len();
    let (nodes, others) = machine.device_nodes();
    // Locked memory is judged by `memlock`, which knows the limit too.
    let locks = if machine.locks_without_limit() { "granted" } else { "not granted" };
    let found = format!("a container with {} of {devices} EFA device nodes, IPC_LOCK {locks}", nodes.len());
    let too_few = machine.wanted.cards.is_some_and(|wanted| nodes.len() < wanted);
    if devices > 0 && machine.means_efa() && (nodes.is_empty() || too_few) {
        return fail(found, MEND);
    }
    let mounted = machine
        .text("proc/self/mountinfo")
        .is_some_and(|mounts| mounts.lines().any(|line| line.split(' ').nth(4) == Some("/dev/infiniband")));
    let shut = others.iter().find(|name| !machine.opens(&format!("dev/infiniband/{name}")));
    if devices > 0 && (mounted || shut.is_some()) {
        // Up to libfabric 2.6 the provider gives up all cards when one RDMA device of another driver cannot be opened
        // (ofiwg/libfabric #12708): the nodes of a mount are there, and the container may not open them.
        let what = match shut {
            Some(name) => format!(
                "/dev/infiniband/{name} of another driver cannot be opened, and the efa provider may then list no card"
            ),
            None => "all of the host's /dev/infiniband is mounted: nodes that may not be opened hide EFA".to_owned(),
        };
        return warn(
            format!("{found}; {what}"),
            "take the volume /dev/infiniband out; the device plugin passes the cards' nodes",
        );
    }
    if nodes.len() < devices && machine.means_efa() && machine.wanted.cards.is_none() {
        let mend = format!("--cards {} says that a part of the node is meant; otherwise: {MEND}", nodes.len());
        return warn(format!("{found}: a part of the node's cards"), mend);
    }
    if machine.exists("sys/module/gdrdrv") && !machine.exists("dev/gdrdrv") {
        return warn(
            format!("{found}; the host's gdrdrv is not passed in"),
            "docker: --device /dev/gdrdrv; pods and enroot: the variable NVIDIA_GDRCOPY=enabled, set before the container starts",
        );
    }
    ok(found)
}
