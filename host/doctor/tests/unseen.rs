//! Tests that items which are not visible count neither as absent nor as good, and that variables are interpreted as
//! the software that reads them does.

use super::super::{CheckState, Machine, Requirements, examine};
use super::fake::{CARDS, Fake, address};
use super::said;
use std::fs;

type FakeChange = fn(&mut Fake);

/// Check, a substring of its result, and the change that hides something from it.
const HIDDEN: &[(&str, &str, FakeChange)] = &[
    ("efa-devices", "the PCI bus cannot be seen", |fake| fake.remove("sys/bus")),
    ("pcie", "the PCI bus cannot be seen", |fake| fake.remove("sys/bus")),
    ("affinity", "the PCI bus cannot be seen", |fake| fake.remove("sys/bus")),
    ("visible", "CUDA shows 8 GPUs; the PCI bus cannot be seen", |fake| fake.remove("sys/bus")),
    ("gpu", "the PCI bus cannot be seen", |fake| {
        fake.remove("sys/bus");
        fake.asked.gpus = None;
    }),
    ("pcie", "no link width can be read", |fake| {
        for bus in (0x10..0x10 + CARDS).chain(0x20..0x20 + CARDS) {
            fs::remove_file(fake.place(bus).join("current_link_width")).unwrap();
        }
    }),
    ("memlock", "cannot detect whether CAP_IPC_LOCK lifts the limit", |fake| {
        fake.write("proc/self/limits", "Max locked memory  65536  65536  bytes\nMax open files  65536  65536  files\n");
        fake.remove("proc/self/status");
    }),
    ("efa-driver", "/sys/module cannot be read", |fake| fake.remove("sys/module")),
    ("efa-driver", "/dev was not recorded", |fake| fake.remove("dev")),
    ("efa-links", "the state of the link of rdmap17s0 cannot be read", |fake| {
        fake.remove("sys/class/infiniband/rdmap17s0/ports/1/state");
    }),
    ("efa-links", "the driver of /sys/class/infiniband/rdmap16s0 cannot be read", |fake| {
        for bus in 0x10..0x10 + CARDS {
            fs::remove_file(fake.place(bus).join("driver")).unwrap();
        }
        fake.wanted.efa = true;
    }),
    ("efa-links", "/sys/class/infiniband cannot be read", |fake| {
        fake.remove("sys/bus");
        fake.remove("sys/class/infiniband");
        fake.wanted.efa = true;
    }),
    ("counters", "/sys/class/infiniband cannot be read", |fake| {
        fake.remove("sys/bus");
        fake.remove("sys/class/infiniband");
        fake.wanted.efa = true;
    }),
    ("gpu-direct", "/proc/driver/nvidia cannot be read", |fake| {
        fake.remove("proc/driver");
        fake.remove("sys/module");
    }),
    ("xid", "the kernel's log was not read: dmesg: read kernel buffer failed: Operation not permitted", |fake| {
        fake.asked.xids = Some(Err("dmesg: read kernel buffer failed: Operation not permitted".into()));
    }),
    ("xid", "a recorded machine has no kernel log", |fake| fake.asked.xids = None),
    ("gpu-async", "the version of the EFA installer cannot be read", |fake| fake.remove("opt")),
    ("gdrcopy", "/sys/module cannot be read", |fake| fake.remove("sys/module")),
    ("gdrcopy", "/dev was not recorded", |fake| fake.remove("dev")),
    ("network", "operstate cannot be read", |fake| fake.remove("sys/class/net/ens5/operstate")),
    ("container", "cannot detect whether this is a container", |fake| fake.remove("proc/self/mountinfo")),
    ("mps", "/run/mps, which was not recorded", |fake| fake.variable("CUDA_MPS_PIPE_DIRECTORY=/run/mps")),
    ("smoke", "not tested: no program", |fake| {
        fake.asked.trials = Some(Vec::new());
        fake.asked.untried = Some("no program".into());
    }),
];

#[test]
fn hidden_facts_are_skipped_and_never_absent() {
    for (name, part, hide) in HIDDEN {
        let mut fake = Fake::healthy();
        hide(&mut fake);
        let said = said(&fake, name);
        assert_eq!(said.state, CheckState::Skipped, "{name}, {part}: {said:?}");
        assert!(said.found.contains(part), "{name}, {part}: {said:?}");
    }
}

#[test]
fn hidden_bus_fails_no_check() {
    let mut fake = Fake::healthy();
    fake.remove("sys/bus");
    (fake.wanted.efa, fake.wanted.instance) = (true, Some("p5.48xlarge".into()));
    for finding in examine(&fake.machine(), &["gpu".into(), "visible".into(), "efa-devices".into(), "nvlink".into()]) {
        assert!(finding.state < CheckState::Warn && !finding.mend.contains("launch template"), "{finding:?}");
    }
    // Facts that the driver reports are still checked.
    assert_eq!(said(&fake, "gpu").state, CheckState::Ok);
    assert!(fake.machine().has_its_cards(), "there is nothing to wait for");
}

#[test]
fn unreported_facts_are_not_ok() {
    let mut fake = Fake::healthy();
    assert!(said(&fake, "gpu").found.ends_with("no ECC error, no row to remap"));
    fake.gpu(|gpu| gpu.remapped = None);
    assert!(said(&fake, "gpu").found.ends_with("no ECC error; the driver does not report remapped rows"));
    fake.gpu(|gpu| gpu.ecc_uncorrected = None);
    assert!(said(&fake, "gpu").found.ends_with("the driver does not report ECC"));
    // Runs on the emulated device need neither the GPUs nor their kernels.
    let mut emulated = Fake::healthy();
    (emulated.wanted.emulated, emulated.wanted.developer) = (true, false);
    emulated.asked.ptx = Some(String::new());
    emulated.remove(&format!("sys/bus/pci/devices/{}", address(0x25)));
    emulated.gpu(|_| {});
    assert_eq!(said(&emulated, "toolchain").state, CheckState::Skipped);
    assert!(!said(&emulated, "gpu").found.contains("on the PCI bus"));
}

#[test]
fn lists_of_modules_tell_which_are_loaded() {
    let fake = Fake::healthy();
    fake.remove("proc/driver");
    fake.remove("sys/module");
    fake.write("proc/modules", "efa 81920 0 - Live 0x0\n");
    let direct = said(&fake, "gpu-direct");
    assert_eq!((direct.state, direct.found.as_str()), (CheckState::Fail, "the NVIDIA driver is not loaded"));
    fake.write("proc/modules", "nvidia 81920 0 - Live 0x0\n");
    assert_eq!(said(&fake, "gpu-direct").state, CheckState::Skipped);
}

#[test]
fn efa_cards_are_known_by_their_id_alone() {
    let fake = Fake::healthy();
    for (bus, device) in [(0x50, "0xefa0"), (0x51, "0xefa3"), (0x52, "0xefa4"), (0x53, "0xec20")] {
        fake.device(bus, "0x020000", "0x1d0f", None);
        fs::write(fake.place(bus).join("device"), device).unwrap();
    }
    assert_eq!(fake.machine().efa_cards().len(), 8 + 3);
    // A copy without the targets of its links is rejected.
    fs::remove_dir_all(fake.place(0x50)).unwrap();
    let error = Machine::recorded(fake.folder.path(), Requirements::default()).unwrap_err();
    assert!(error.contains(&address(0x50).to_string()) && !error.contains('\n'), "{error}");
}

#[test]
fn fi_variables_are_parsed_like_libfabric() {
    for (set, state) in [
        ("FI_PROVIDER=efa", CheckState::Ok),
        ("FI_PROVIDER=EFA", CheckState::Ok),
        ("FI_PROVIDER=tcp,efa", CheckState::Ok),
        ("FI_PROVIDER=^psm3,sockets", CheckState::Ok),
        ("FI_PROVIDER=^ofi_rxm", CheckState::Ok),
        ("FI_PROVIDER=^efa", CheckState::Fail),
        ("FI_PROVIDER=^tcp,EFA", CheckState::Fail),
        ("FI_PROVIDER=tcp", CheckState::Fail),
        ("FI_PROVIDER=efa;ofi_rxm", CheckState::Fail),
        ("FI_PROVIDER=", CheckState::Fail),
        ("FI_EFA_USE_DEVICE_RDMA=off", CheckState::Warn),
        ("FI_EFA_FORK_SAFE=0", CheckState::Ok),
        ("FI_EFA_FORK_SAFE=False", CheckState::Ok),
        ("FI_EFA_FORK_SAFE=yes", CheckState::Warn),
        ("RDMAV_FORK_SAFE=0", CheckState::Warn),
        ("FI_HMEM_CUDA_USE_GDRCOPY=no", CheckState::Warn),
        ("FI_HMEM_DISABLE_P2P=0", CheckState::Ok),
        ("FI_HMEM=cuda", CheckState::Ok),
        ("FI_HMEM=system,cuda", CheckState::Ok),
        ("FI_EFA_IFACE=all", CheckState::Ok),
        ("FI_HMEM_CUDA_USE_DMABUF=1", CheckState::Ok),
        ("FI_HMEM_CUDA_USE_GDRCOPY=1", CheckState::Ok),
        ("FI_TCP_IFACE=ens", CheckState::Fail),
        ("NCCL_SOCKET_IFNAME=ens", CheckState::Ok),
    ] {
        let mut fake = Fake::healthy();
        fake.wanted.efa = true;
        fake.variable(set);
        let said = said(&fake, "environment");
        assert_eq!(said.state, state, "{set}: {said:?}");
    }
    let off = Fake::healthy();
    off.write("proc/sys/kernel/yama/ptrace_scope", "1\n");
    off.variable("FI_EFA_ENABLE_SHM_TRANSFER=off");
    assert_eq!(said(&off, "shm").state, CheckState::Ok, "an integer, of which libfabric reads 0");
}

#[test]
fn lists_of_visible_gpus_say_where_they_stop() {
    let mut fake = Fake::healthy();
    fake.asked.visible = Some(Vec::new());
    fake.variable("CUDA_VISIBLE_DEVICES=");
    let empty = said(&fake, "visible");
    assert!(empty.found.contains("it is empty, which hides every GPU"), "{empty:?}");
    assert_eq!(empty.mend, "unset CUDA_VISIBLE_DEVICES");
    fake.variable("CUDA_VISIBLE_DEVICES=NoDevFiles");
    assert!(said(&fake, "visible").found.contains("\"NoDevFiles\" names no GPU"), "{:?}", said(&fake, "visible"));
}

#[test]
fn containers_are_detected_by_runtime_traces() {
    let files: [(&str, &str, &str); 16] = [
        (".dockerenv", "", "Docker"),
        ("run/.containerenv", "", "Podman"),
        (".singularity.d/env/01-base.sh", "", "Apptainer or Singularity"),
        ("run/secrets/kubernetes.io/serviceaccount/namespace", "default", "Kubernetes"),
        ("proc/self/mountinfo", "1 0 0:42 / / rw - overlay overlay rw,lowerdir=/x/1/fs\n", "an overlay root"),
        ("proc/self/environ", "APPTAINER_CONTAINER=/x.sif", "Apptainer"),
        ("proc/self/environ", "SINGULARITY_CONTAINER=/x.sif", "Singularity"),
        ("proc/self/environ", "container=lxc", "lxc"),
        ("proc/1/environ", "TERM=linux\0container=lxc\0", "lxc"),
        ("run/systemd/container", "systemd-nspawn\n", "systemd-nspawn"),
        ("proc/self/cgroup", "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-2f.scope\n", "Kubernetes"),
        ("proc/self/cgroup", "0::/system.slice/docker-2f.scope\n12:cpu:/docker/2f\n", "Docker"),
        ("proc/self/cgroup", "1:name=systemd:/machine.slice/libpod-2f.scope\n", "Podman"),
        ("proc/self/cgroup", "3:cpu:/lxc.payload.node1\n", "LXC"),
        (
            "proc/self/mountinfo",
            "1 0 0:42 / / rw - overlay overlay rw,lowerdir=/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/1/fs\n",
            "containerd",
        ),
        ("proc/self/mountinfo", "1 0 8:1 /enroot/data/user-1000/pyxis_1 / rw - ext4 /dev/sda1 rw\n", "enroot"),
    ];
    for (path, text, kind) in files {
        let fake = Fake::healthy();
        fake.write(path, text);
        let found = said(&fake, "container").found;
        assert!(found.starts_with(&format!("a container ({kind})")), "{path}: {found}");
    }
    let host = Fake::healthy();
    host.write("proc/self/cgroup", "0::/system.slice/containerd.service\n");
    assert_eq!(said(&host, "container").found, "this is not a container");
}
