//! Detection of containers: whether this process is in one, its runtime, and what it exposes of the machine.

use super::machine::Machine;
use super::{Checked, fail, ok, skipped, warn};

/// Files that a container's runtime creates, and the name of the runtime.
const FILES: [(&str, &str); 6] = [
    (".dockerenv", "Docker"),
    ("run/.containerenv", "Podman"),
    (".singularity.d", "Apptainer or Singularity"),
    ("run/host/container-manager", "systemd"),
    // Processes that sshd starts in a pod lack Kubernetes' variables.
    ("run/secrets/kubernetes.io", "Kubernetes"),
    ("var/run/secrets/kubernetes.io", "Kubernetes"),
];

/// Environment variables that a runtime sets for processes in its containers.
const VARIABLES: [(&str, &str); 5] = [
    ("APPTAINER_CONTAINER", "Apptainer"),
    ("SINGULARITY_CONTAINER", "Singularity"),
    ("KUBERNETES_SERVICE_HOST", "Kubernetes"),
    ("ENROOT_ROOTFS", "enroot"),
    ("CHARLIECLOUD_CONTAINER", "Charliecloud"),
];

/// Substrings of a control group's path, or of the root file system's source, that are specific to a runtime.
const PATHS: [(&str, &str); 9] = [
    ("kubepods", "Kubernetes"),
    ("/docker", "Docker"),
    ("libpod", "Podman"),
    ("containers/storage", "Podman"),
    ("crio", "CRI-O"),
    ("containerd", "containerd"),
    ("lxc", "LXC"),
    ("machine.slice/systemd-nspawn", "systemd-nspawn"),
    ("enroot", "enroot"),
];

/// Returns the runtime of the container that this process is in; `None` if no trace of one is found.
pub fn kind(machine: &Machine) -> Option<String> {
    let known = |(_, name): &(&str, &str)| (*name).to_owned();
    // Container interface of systemd: LXC, systemd-nspawn, Podman and others set `container` for the first process,
    // which copies it to /run/systemd/container.
    let first = || {
        let text = machine.text("proc/1/environ")?;
        text.split('\0').find_map(|one| one.strip_prefix("container=")).map(str::to_owned)
    };
    let told = || {
        machine
            .variable("container")
            .or_else(|| machine.text("run/systemd/container"))
            .or_else(first)
            .filter(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)))
    };
    FILES[..3]
        .iter()
        .find(|(file, _)| machine.exists(file))
        .map(known)
        .or_else(|| VARIABLES.iter().find(|(name, _)| machine.variable(name).is_some()).map(known))
        .or_else(told)
        .or_else(|| FILES[3..].iter().find(|(file, _)| machine.exists(file)).map(known))
        .or_else(|| by_paths(machine))
        // Apptainer, enroot and rootless Podman may leave no other trace.
        .or_else(|| machine.in_user_namespace().then(|| "a user namespace".to_owned()))
}

/// Detects a runtime by paths. Control groups show their path only outside their namespace, whereas the root mount
/// always shows the runtime's directories.
fn by_paths(machine: &Machine) -> Option<String> {
    let groups = machine.text("proc/self/cgroup").unwrap_or_default();
    let mounts = machine.text("proc/self/mountinfo").unwrap_or_default();
    // Fields: ..., root within the file system (4th), mount point (5th), ...
    let root = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/")).unwrap_or_default();
    let has = |text: &str, part: &str| {
        // A service of the host can have such a name: containerd.service does not run in a container.
        text.lines().any(|line| line.contains(part) && !line.ends_with(".service"))
    };
    let known = PATHS.iter().find(|(part, _)| has(&groups, part) || root.contains(part));
    // Fields after the separator: type of the file system, source, options.
    let layered = || root.split_once(" - ").is_some_and(|(_, rest)| rest.starts_with("overlay "));
    known.map(|(_, name)| (*name).to_owned()).or_else(|| layered().then(|| "an overlay root".to_owned()))
}

pub fn container(machine: &Machine) -> Checked {
    let Some(kind) = kind(machine) else {
        // The traces of a runtime are in one of these files.
        let seen = machine.exists("proc/self/mountinfo") || machine.exists("proc/self/cgroup");
        return if seen { ok("this is not a container") } else { skipped("cannot detect whether this is a container") };
    };
    const MEND: &str = "pods: vpc.amazonaws.com/efa: N in requests and limits; docker: --device \
                        /dev/infiniband/uverbs0, one for each EFA device";
    let devices = machine.efa_devices().len();
    let (nodes, others) = machine.device_nodes();
    // Locked memory is checked by `memlock`, which also takes the limit into account.
    let locks = match machine.locks_without_limit() {
        Some(true) => "granted",
        Some(false) => "not granted",
        None => "unknown",
    };
    let found = format!("a container ({kind}) with {} of {devices} EFA device nodes, IPC_LOCK {locks}", nodes.len());
    if !machine.exists("dev") {
        return skipped(format!("a container ({kind}) whose /dev was not recorded"));
    }
    let too_few = machine.wanted.cards.is_some_and(|wanted| nodes.len() < wanted);
    if devices > 0 && machine.means_efa() && (nodes.is_empty() || too_few) {
        return fail(found, MEND);
    }
    let mounted = machine
        .text("proc/self/mountinfo")
        .is_some_and(|mounts| mounts.lines().any(|line| line.split(' ').nth(4) == Some("/dev/infiniband")));
    let shut = others.iter().find(|name| !machine.opens(&format!("dev/infiniband/{name}")));
    if devices > 0 && (mounted || shut.is_some()) {
        // Up to libfabric 2.6, the provider lists no NIC if it cannot open an RDMA device of another driver
        // (ofiwg/libfabric #12708). A mounted directory contains the nodes of such devices, which the container may not
        // open.
        let what = match shut {
            Some(name) => format!(
                "/dev/infiniband/{name} of another driver cannot be opened, so that the efa provider may list no device"
            ),
            None => "the host's whole /dev/infiniband is mounted: nodes that cannot be opened hide EFA".to_owned(),
        };
        return warn(
            format!("{found}; {what}"),
            "remove the volume /dev/infiniband; the device plugin provides the nodes of the EFA devices",
        );
    }
    if nodes.len() < devices && machine.means_efa() && machine.wanted.cards.is_none() {
        let mend = format!("if a part of the node is intended: --cards {}; otherwise: {MEND}", nodes.len());
        return warn(format!("{found}: only a part of the node's EFA devices"), mend);
    }
    if machine.exists("sys/module/gdrdrv") && !machine.exists("dev/gdrdrv") {
        return warn(
            format!("{found}; the host's gdrdrv is not passed into the container"),
            "docker: --device /dev/gdrdrv; pods and enroot: the variable NVIDIA_GDRCOPY=enabled, set before the container starts",
        );
    }
    ok(found)
}
