//! Tests that every check passes on a healthy machine, and fails or warns on a machine with the respective problem.

#![allow(clippy::unwrap_used)]

mod clusters;
mod fake;
mod gate;
mod mistakes;
mod tournament;
mod unseen;
mod xids;

use super::trial::Trial;
use super::*;
use fake::{FI_INFO, Fake, gpu_state, trial};
use std::fs;
use std::time::Duration;

pub(super) fn said(fake: &Fake, name: &str) -> Said {
    let check = CHECKS.iter().find(|check| check.name == name).unwrap();
    let (Ok(said) | Err(said)) = (check.run)(&fake.machine());
    said
}

/// Returns GPUs of which one has counted link errors.
fn errors(link_errors: LinkErrors) -> Vec<GpuState> {
    vec![gpu_state(0x20), GpuState { link_errors, ..gpu_state(0x21) }]
}

/// A change to a healthy machine.
type Harm = fn(&mut Fake);

/// Check, expected state, a substring of what it finds, and the change.
const CASES: &[(&str, State, &str, Harm)] = &[
    ("memlock", State::Fail, "64 KiB may be locked", |fake| {
        fake.write("proc/self/limits", "Max locked memory  65536  65536  bytes\nMax open files  65536  65536  files\n");
        fake.write("proc/self/status", "CapEff:\t0000000000000000\n");
    }),
    // A pod without the capability, and an enroot container, whose capabilities apply only inside.
    ("memlock", State::Fail, "8 MiB may be locked", |fake| {
        fake.write("proc/self/limits", "Max locked memory  8388608  8388608  bytes\n");
        fake.write("proc/self/status", "CapEff:\t00000000a80425fb\n");
    }),
    ("memlock", State::Fail, "8 MiB may be locked", |fake| {
        fake.write("proc/self/limits", "Max locked memory  8388608  8388608  bytes\n");
        fake.write("proc/self/uid_map", "         0       1000          1\n");
    }),
    ("memory", State::Fail, "8 ranks over EFA need 32 GiB", |fake| {
        fake.write("proc/meminfo", "MemAvailable: 8388608 kB\n")
    }),
    ("memory", State::Warn, "0 of 5128 huge pages", |fake| {
        fake.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0\n");
    }),
    ("shm", State::Warn, "/dev/shm 64 MiB", |fake| {
        fake.write("proc/self/mountinfo", "25 20 0:22 / /dev/shm rw - tmpfs shm rw,size=65536k\n");
    }),
    ("shm", State::Fail, "/dev/shm none", |fake| {
        fake.write("proc/self/mountinfo", "25 20 0:22 / /tmp rw - tmpfs x rw\n")
    }),
    ("shm", State::Warn, "ptrace scope 1", |fake| {
        fake.write("proc/sys/kernel/yama/ptrace_scope", "1\n");
        fake.variable("FI_EFA_ENABLE_SHM_TRANSFER=1");
    }),
    (
        "efa-devices",
        State::Fail,
        "7 of 8 EFA devices of a p6-b200.48xlarge: 0 near 0000:23:00.0, 1 near other GPUs",
        |fake| fake.lose_card(3),
    ),
    ("efa-devices", State::Fail, "1 of 8 EFA devices on the PCI bus have no driver: 0000:13:00.0", |fake| {
        fs::remove_file(fake.place(0x13).join("driver")).unwrap();
    }),
    ("efa-devices", State::Fail, "the firmware reports a p6-b200.48xlarge, but --instance is p5en.48xlarge", |fake| {
        fake.wanted.instance = Some("p5en.48xlarge".into())
    }),
    ("efa-devices", State::Fail, "8 of 16", |fake| fake.wanted.cards = Some(16)),
    ("efa-devices", State::Warn, "is unknown", |fake| fake.write("sys/class/dmi/id/product_name", "x9.large\n")),
    ("efa-driver", State::Fail, "not loaded: ib_uverbs", |fake| fake.remove("sys/module/ib_uverbs")),
    ("efa-driver", State::Fail, "no /dev/infiniband/uverbs*", |fake| fake.remove("dev/infiniband")),
    ("efa-links", State::Fail, "the link of rdmap18s0 is not active", |fake| {
        fake.write("sys/class/infiniband/rdmap18s0/ports/1/state", "1: DOWN\n");
    }),
    ("efa-links", State::Fail, "the port of rdmap18s0 runs at 100 Gb/s, others at 400", |fake| {
        fake.write("sys/class/infiniband/rdmap18s0/ports/1/rate", "100 Gb/sec (4X EDR)\n");
    }),
    ("efa-links", State::Fail, "the ports run at 10 Gb/s, those of a p6-b200.48xlarge at 400", |fake| {
        for bus in 0x10..0x10 + fake::CARDS {
            fake.write(&format!("sys/class/infiniband/rdmap{bus}s0/ports/1/rate"), "10 Gb/sec (1X SDR)\n");
        }
    }),
    ("efa-links", State::Fail, "no RDMA device", |fake| fake.remove("sys/class/infiniband")),
    ("libfabric", State::Fail, "no RDM domain of efa", |fake| {
        let psm = FI_INFO.rfind("fi_info:").unwrap();
        fake.write("fi_info.yaml", &FI_INFO[psm..]);
    }),
    ("libfabric", State::Fail, "no libfabric.so.1", |fake| fake.no_listing = true),
    ("libfabric", State::Fail, "9 EFA devices are present", |fake| {
        fake.device(0x18, "0x020000", "0x1d0f", Some("efa"))
    }),
    ("rma", State::Warn, "no RDMA write", |fake| fake.wanted.instance = Some("p4d.24xlarge".into())),
    ("rma", State::Fail, "no domain of efa", |fake| {
        let psm = FI_INFO.rfind("fi_info:").unwrap();
        fake.write("fi_info.yaml", &FI_INFO[psm..]);
    }),
    (
        "gpu-direct",
        State::Fail,
        "closed driver, no dma-buf; the p2p attribute of the EFA devices is empty: no provider",
        |fake| {
            fake.closed_driver();
            fake.p2p("");
            // For NICs of other vendors: the efa driver does not use it.
            fake.write("sys/module/nvidia_peermem/refcnt", "0\n");
        },
    ),
    ("gpu-direct", State::Warn, "no provider; only a libfabric with dma-buf support", |fake| {
        fake.p2p("");
        fake.asked.libfabric = None;
    }),
    ("gpu-direct", State::Warn, "no provider; libfabric 2.4 registers GPU memory only by a p2p provider", |fake| {
        fake.p2p("");
        fake.asked.libfabric = Some("2.4.0amzn1.0 (/opt/amazon/efa/lib/libfabric.so.1)".into());
    }),
    ("gpu-direct", State::Warn, "no p2p attribute; libfabric 1.17 registers", |fake| {
        (0x10..0x10 + fake::CARDS).for_each(|bus| fs::remove_file(fake.place(bus).join("p2p")).unwrap());
        fake.asked.libfabric = Some("1.17 (libfabric.so.1)".into());
    }),
    ("gpu-direct", State::Fail, "the NVIDIA driver is not loaded", |fake| fake.remove("proc/driver")),
    ("gpu-async", State::Warn, "EFA installer 1.43.2", |fake| {
        fake.write("opt/amazon/efa_installed_packages", "# EFA installer version: 1.43.2\n");
    }),
    ("gpu-register", State::Fail, "rdmap16s0-rdm: registering 2 MiB: Bad address", |fake| {
        fake.asked.trials = Some(vec![trial(false, Ok(())), trial(true, Err("registering 2 MiB: Bad address".into()))]);
    }),
    ("gpu-register", State::Fail, "rdmap16s0 cannot register GPU memory: by dma-buf", |fake| {
        let why =
            "rdmap16s0 cannot register GPU memory: by dma-buf: Operation not supported; by peer memory: Bad address";
        fake.asked.registered = Some(Err(why.into()));
    }),
    // From API 1.18 on, `efa` claims FI_HMEM with CUDA copies.
    ("gpu-register", State::Fail, "FI_OPT_CUDA_API_PERMITTED", copies),
    (
        "rma",
        State::Warn,
        "GPU memory (FI_HMEM) claimed, by CUDA copies of the provider: payloads in GPU memory are staged",
        copies,
    ),
    ("rma", State::Warn, "GPU memory (FI_HMEM) claimed, but a write failed", |fake| {
        fake.asked.trials = Some(vec![trial(false, Ok(())), trial(true, Err("registering 2 MiB: Bad address".into()))]);
    }),
    ("rma", State::Warn, "2 MiB in 900 us, 270 staged through the host): not faster than through the host", |fake| {
        let slow = Trial { paces: Some(fake::paces(900, 270)), ..trial(true, Ok(())) };
        fake.asked.trials = Some(vec![trial(false, Ok(())), slow]);
    }),
    ("gpu-register", State::Warn, "libfabric does not offer it", |fake| {
        fake.asked.trials = Some(vec![trial(false, Ok(()))]);
    }),
    ("gdrcopy", State::Warn, "module not loaded", |fake| {
        fake.remove("sys/module/gdrdrv");
        fake.asked.gdrcopy = Some(Err("gdr_open failed".into()));
    }),
    ("gpu", State::Fail, "NVML: driver/library version mismatch", |fake| {
        fake.asked.gpus = Some(Err("NVML: driver/library version mismatch".into()));
    }),
    ("gpu", State::Fail, "3 uncorrected ECC errors", |fake| {
        fake.gpu(|gpu| gpu.ecc_uncorrected = Some(3));
    }),
    ("gpu", State::Fail, "7 of 8 GPUs of a p6-b200.48xlarge are on the PCI bus: 0000:20:00.0, 0000:21:00.0", |fake| {
        fake.remove(&format!("sys/bus/pci/devices/{}", fake::address(0x25)));
    }),
    ("gpu", State::Fail, "0 of 8 GPUs of a p6-b200.48xlarge are on the PCI bus", |fake| {
        (0x20..0x28).for_each(|bus| fake.remove(&format!("sys/bus/pci/devices/{}", fake::address(bus))));
    }),
    ("gpu", State::Fail, "the driver shows 7 of 8 GPUs on the PCI bus: not 0000:25:00.0", |fake| {
        if let Some(Ok(gpus)) = &mut fake.asked.gpus {
            gpus.remove(5);
        }
    }),
    ("gpu", State::Fail, "0000:23:00.0: remapping of a memory row failed (0 rows remapped", |fake| {
        fake.gpu(|gpu| gpu.remapped = Some(RemappedRows { failed: true, ..RemappedRows::default() }));
    }),
    ("gpu", State::Warn, "0000:23:00.0: a memory row is remapped at the next reset", |fake| {
        fake.gpu(|gpu| gpu.remapped = Some(RemappedRows { pending: true, ..RemappedRows::default() }));
    }),
    ("gpu", State::Warn, "are reduced by power brake", |fake| {
        fake.gpu(|gpu| gpu.held_back = Some("power brake".into()));
    }),
    ("gpu", State::Warn, "persistence mode is off", |fake| fake.gpu(|gpu| gpu.persistent = Some(false))),
    (
        "xid",
        State::Fail,
        "Xid (PCI:0000:20:00): 79, GPU has fallen off the bus. (restart the machine, 2.5 h ago); 2 Xid errors in all",
        |fake| {
            fake.xids(&[
                "[   60.500000] NVRM: Xid (PCI:0000:20:00): 79, GPU has fallen off the bus.",
                "[ 8000.000000] NVRM: Xid (PCI:0000:21:00): 31, pid=7, name=kernels",
            ]);
        },
    ),
    ("xid", State::Fail, "Xid (PCI:0000:20:00): 48, DBE (reset the GPU, at an unknown time)", |fake| {
        fake.xids(&["kernel: NVRM: Xid (PCI:0000:20:00): 48, DBE"]);
    }),
    ("xid", State::Warn, "31, pid=7, name=kernels (a fault of a program, 90 s ago)", |fake| {
        fake.xids(&["[ 8910.500000] NVRM: Xid (PCI:0000:20:00): 31, pid=7, name=kernels"]);
    }),
    ("gpu", State::Fail, "libcuda cannot be loaded", |fake| fake.asked.cuda = None),
    ("nvlink", State::Fail, "0000:21:00.0 has 17 NVLinks up, others 18", |fake| {
        fake.asked.gpus = Some(Ok(vec![gpu_state(0x20), GpuState { links_up: 17, ..gpu_state(0x21) }]));
    }),
    ("nvlink", State::Fail, "none is up", |fake| {
        let down = |bus| GpuState { links_up: 0, ..gpu_state(bus) };
        fake.asked.gpus = Some(Ok(vec![down(0x20), down(0x21)]));
    }),
    (
        "nvlink",
        State::Warn,
        "0000:21:00.0 has counted 0 replays, 1 recoveries, 0 checksums, 0 data checksums within",
        |fake| {
            fake.asked.gpus_later =
                Some((Duration::from_secs(9), errors(LinkErrors { recoveries: 1, ..LinkErrors::default() })));
        },
    ),
    ("nvlink", State::Warn, "900 checksums, 0 data checksums within 9.0 s", |fake| {
        fake.asked.gpus_later =
            Some((Duration::from_secs(9), errors(LinkErrors { checksums: 900, ..LinkErrors::default() })));
    }),
    (
        "mps",
        State::Warn,
        "nvidia-cuda-mps-control is not on PATH: kernels of PEs that share a GPU are time-sliced",
        |fake| {
            fake.remove("bin/nvidia-cuda-mps-control");
        },
    ),
    ("mps", State::Warn, "CUDA_MPS_PIPE_DIRECTORY is /run/mps, where no server answers", |fake| {
        fake.variable("CUDA_MPS_PIPE_DIRECTORY=/run/mps");
        fake.write("run/mps/control", "");
        fake.asked.mps = Some(false);
    }),
    ("pcie", State::Warn, "0000:22:00.0 (nvidia) runs 8 of 16 lanes", |fake| {
        fs::write(fake.place(0x22).join("current_link_width"), "8\n").unwrap();
    }),
    ("pcie", State::Warn, "1 IOMMUs translate", |fake| fake.write("sys/class/iommu/dmar0/name", "")),
    ("affinity", State::Warn, "none of them is near 0000:20:00.0", |fake| {
        fake.write("proc/self/status", "CapEff:\t000001ffffffffff\nCpus_allowed_list:\t48-95\n");
    }),
    ("affinity", State::Warn, "a proxy and its rank need one core each", |fake| {
        fake.write("proc/self/status", "Cpus_allowed_list:\t0-7\n");
    }),
    ("affinity", State::Warn, "NUMA node of some devices is unknown", |fake| {
        fs::write(fake.place(0x23).join("numa_node"), "-1\n").unwrap();
    }),
    ("visible", State::Fail, "CUDA shows 0 of 8 GPUs (CUDA_VISIBLE_DEVICES=9)", |fake| {
        fake.variable("CUDA_VISIBLE_DEVICES=9");
        fake.asked.visible = Some(Vec::new());
    }),
    ("visible", State::Fail, "CUDA shows no GPU: cuInit failed: system not yet initialized", |fake| {
        fake.asked.visible = Some(Vec::new());
        fake.asked.hidden = Some("cuInit failed: system not yet initialized (CUDA_ERROR_SYSTEM_NOT_READY)".into());
    }),
    ("visible", State::Warn, "CUDA shows 1 of 8 GPUs", |fake| fake.asked.visible.as_mut().unwrap().truncate(1)),
    ("environment", State::Fail, "FI_PROVIDER=tcp hides efa", |fake| {
        fake.wanted.efa = true;
        fake.variable("FI_PROVIDER=tcp");
    }),
    ("environment", State::Fail, "NCCL_SOCKET_IFNAME=eth names no interface", |fake| {
        fake.variable("NCCL_SOCKET_IFNAME=eth")
    }),
    ("environment", State::Warn, "FI_HMEM_DISABLE_P2P=1 keeps NICs from GPU memory", |fake| {
        fake.variable("FI_HMEM_DISABLE_P2P=1")
    }),
    ("environment", State::Warn, "FI_HMEM=system excludes CUDA", |fake| fake.variable("FI_HMEM=system")),
    ("environment", State::Warn, "FI_EFA_IFACE=rdmap24s0 hides", |fake| fake.variable("FI_EFA_IFACE=rdmap24s0")),
    ("environment", State::Warn, "FI_HMEM_CUDA_USE_DMABUF=0 prevents", |fake| {
        fake.variable("FI_HMEM_CUDA_USE_DMABUF=0")
    }),
    ("environment", State::Warn, "FI_EFA_USE_DEVICE_RDMA=0 disables RDMA", |fake| {
        fake.variable("FI_EFA_USE_DEVICE_RDMA=0")
    }),
    ("launch", State::Fail, "srun started 16 ranks without PMI", |fake| {
        fake.variable("SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_NTASKS=16");
    }),
    ("launch", State::Fail, "built without MPI", |fake| {
        fake.asked.mpi = Some(String::new());
        fake.variable("OMPI_COMM_WORLD_SIZE=16 OMPI_COMM_WORLD_RANK=3");
    }),
    ("launch", State::Fail, "its directory /var/spool/slurmd/pmix.7.0 is not in this container", |fake| {
        fake.write("proc/self/uid_map", "         0       1000          1\n");
        fake.variable(
            "SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_NTASKS=16 PMIX_RANK=3 PMIX_SERVER_TMPDIR=/var/spool/slurmd/pmix.7.0",
        );
    }),
    ("launch", State::Warn, "16 tasks per node share 8 GPUs", |fake| {
        fake.variable("SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_NTASKS=32 SLURM_NTASKS_PER_NODE=16 PMIX_RANK=3");
    }),
    ("network", State::Warn, "cannot be resolved", |fake| {
        fake.asked.addresses = Some(Err("Name or service not known".into()))
    }),
    ("network", State::Warn, "resolves to its loopback", |fake| {
        fake.asked.addresses = Some(Ok(vec!["127.0.1.1".parse().unwrap()]))
    }),
    ("network", State::Warn, "no interface to other machines", |fake| {
        fake.write("sys/class/net/ens5/operstate", "down\n")
    }),
    ("network", State::Fail, "--bootstrap-if eth* matches none of ens5", |fake| {
        fake.wanted.interfaces = Some("eth*".into())
    }),
    (
        "container",
        State::Warn,
        "7 of 8 EFA device nodes, IPC_LOCK granted: only a part of the node's EFA devices",
        |fake| {
            fake.write(".dockerenv", "");
            fake.remove("dev/infiniband/uverbs7");
        },
    ),
    ("container", State::Fail, "7 of 8 EFA device nodes", |fake| {
        fake.wanted.cards = Some(8);
        fake.write(".dockerenv", "");
        fake.remove("dev/infiniband/uverbs7");
    }),
    ("container", State::Fail, "0 of 8 EFA device nodes", |fake| {
        fake.write(".dockerenv", "");
        fake.remove("dev/infiniband");
    }),
    ("container", State::Warn, "the host's whole /dev/infiniband is mounted", |fake| {
        fake.write(".dockerenv", "");
        fake.nvlink_devices();
        fake.write("proc/self/mountinfo", "31 20 0:5 /infiniband /dev/infiniband rw - devtmpfs devtmpfs rw\n");
    }),
    ("container", State::Warn, "gdrdrv is not passed in", |fake| {
        fake.write(".dockerenv", "");
        fake.remove("dev/gdrdrv");
    }),
    ("toolchain", State::Fail, "no PTX", |fake| fake.asked.ptx = Some(String::new())),
    ("toolchain", State::Fail, "it runs no kernel on the GPUs of this machine", |fake| {
        fake.wanted.developer = false;
        fake.asked.ptx = Some(String::new());
    }),
    ("toolchain", State::Warn, "not the project's", |fake| {
        fake.asked.ptx = Some("1.99.0, LLVM 24 (not the project's)".into())
    }),
    ("counters", State::Warn, "up: rdmap17s0/1 rx_drops 1000 of 1000000 packets (1000.0 per million)", |fake| {
        fake.counter("rdmap17s0", "rx_drops", 1000);
    }),
    ("counters", State::Warn, "up: rdmap18s0/1 impaired_remote_conn_events 900", |fake| {
        fake.counter("rdmap18s0", "unresponsive_remote_events", 40);
        fake.counter("rdmap18s0", "impaired_remote_conn_events", 900);
    }),
    ("counters", State::Warn, "during the trials: rdmap17s0/1 unresponsive_remote_events 2", |fake| {
        fake.asked.counters_before = Some(ginlab_topology::environment::Counters::read(fake.folder.path()));
        fake.counter("rdmap17s0", "unresponsive_remote_events", 2);
    }),
    ("counters", State::Warn, "during the trials: rdmap17s0/1 retrans_pkts 5 of 100 packets", |fake| {
        fake.asked.counters_before = Some(ginlab_topology::environment::Counters::read(fake.folder.path()));
        fake.counter("rdmap17s0", "retrans_pkts", 5);
        fake.counter("rdmap17s0", "tx_pkts", 1_000_100);
    }),
    ("smoke", State::Fail, "rdmap16s0-rdm: nothing has completed", |fake| {
        fake.asked.trials = Some(vec![trial(false, Err("nothing has completed for 10s".into()))]);
    }),
];

/// Makes the provider claim GPU memory but access it by copies.
pub fn copies(fake: &mut Fake) {
    let why =
        "rail efa:rdmap16s0-rdm: fi_setopt of FI_OPT_CUDA_API_PERMITTED to false failed: Operation not supported (95)";
    let copied = Trial { copied: true, ..trial(true, Err(why.into())) };
    fake.asked.trials = Some(vec![trial(false, Ok(())), copied]);
}

#[test]
fn healthy_machine_passes_every_check() {
    let fake = Fake::healthy();
    let findings = examine(&fake.machine(), &[]);
    for finding in &findings {
        assert_eq!(finding.state, State::Ok, "{finding:?}");
        assert!(finding.mend.is_empty() && finding.host == "node-a", "{finding:?}");
    }
    assert_eq!(findings.len(), CHECKS.len());
    assert_eq!(worst(&findings), Some(State::Ok));
}

#[test]
fn every_check_detects_its_problem() {
    for (name, state, part, harm) in CASES {
        let mut fake = Fake::healthy();
        harm(&mut fake);
        let said = said(&fake, name);
        assert_eq!(said.state, *state, "{name}, {part}: {said:?}");
        assert!(said.found.contains(part), "{name}: {said:?}");
        assert!(!said.mend.is_empty(), "{name} does not say what mends it");
    }
    for check in &CHECKS {
        assert!(CASES.iter().any(|(name, ..)| *name == check.name), "nothing shows that {} can fail", check.name);
    }
}

/// Link errors that were recovered earlier are reported, but are not a problem.
#[test]
fn constant_link_errors_are_ok() {
    let mut fake = Fake::healthy();
    let once = LinkErrors { data_checksums: 7501, ..LinkErrors::default() };
    fake.asked.gpus = Some(Ok(errors(once)));
    let said_once = said(&fake, "nvlink");
    assert_eq!(said_once.state, State::Ok);
    assert!(
        said_once
            .found
            .ends_with("0 recoveries, 0 checksums, 7501 data checksums since the driver was loaded; checked only once"),
        "{said_once:?}"
    );
    // A small rate is normal for such links.
    let later = LinkErrors { checksums: 80, data_checksums: 9990, ..once };
    fake.asked.gpus_later = Some((Duration::from_secs(9), errors(later)));
    let again = said(&fake, "nvlink");
    assert_eq!(again.state, State::Ok, "{again:?}");
}

/// A NIC far from the GPU may be slower than staging; a single faster one shows that NICs can access GPU memory.
#[test]
fn fastest_rail_determines_detected_path() {
    let mut fake = Fake::healthy();
    let far = Trial { paces: Some(fake::paces(400, 380)), ..trial(true, Ok(())) };
    fake.asked.trials = Some(vec![trial(true, Ok(())), far]);
    let said = said(&fake, "rma");
    assert_eq!(said.state, State::Ok, "{said:?}");
    let ending = "written without CUDA calls of the provider (2 MiB in 185 us, 270 staged through the host)";
    assert!(said.found.ends_with(ending), "{said:?}");
}

#[test]
fn running_mps_server_is_reported() {
    let mut fake = Fake::healthy();
    fake.write("tmp/nvidia-mps/control", "");
    assert_eq!(said(&fake, "mps").found, "a server answers in /tmp/nvidia-mps: ranks use it");
    fake.asked.mps = Some(false);
    assert!(said(&fake, "mps").found.starts_with("/bin/nvidia-cuda-mps-control: ginlab starts a server"));
    fake.variable("CUDA_MPS_PIPE_DIRECTORY=/run/mps");
    fake.asked.mps = Some(true);
    assert!(said(&fake, "mps").found.starts_with("a server answers in /run/mps (CUDA_MPS_PIPE_DIRECTORY)"));
}

#[test]
fn durations_are_sorted_longest_first() {
    let mut took = Took::default();
    assert_eq!(took.of("nothing", || 5), 5);
    assert!(took.text().starts_with("checks took 0.0 s"), "{}", took.text());
}

/// On a machine without EFA and GPUs, their checks neither fail nor pass.
#[test]
fn missing_hardware_skips_checks() {
    let fake = Fake::plain();
    for name in [
        "efa-devices",
        "efa-driver",
        "efa-links",
        "gpu-direct",
        "gpu-async",
        "gpu-register",
        "gdrcopy",
        "gpu",
        "xid",
        "nvlink",
        "mps",
        "visible",
        "counters",
    ] {
        assert_eq!(said(&fake, name).state, State::Skipped, "{name}");
    }
    let mut fake = Fake::plain();
    fake.wanted.efa = true;
    for name in ["efa-devices", "efa-links"] {
        assert_eq!(said(&fake, name).state, State::Fail, "{name} with --require-efa");
    }
}

/// The line is printed only if it is known that no GPU and no NIC can be used.
#[test]
fn fit_is_reported_only_without_gpu_and_nic() {
    let fit = |fake: &Fake| only_emulated(&fake.machine());
    assert_eq!(fit(&Fake::healthy()), None);
    let mut fake = Fake::plain();
    fake.asked.visible = None;
    let line = fit(&fake).unwrap();
    assert!(
        line.starts_with("fit only for the emulated device (no GPU, no EFA device). Run: ginlab proxy --np 2"),
        "{line}"
    );
    assert!(line.contains("ginlab write -p soft-efa:p5"), "{line}");
    fake.no_listing = true;
    assert!(fit(&fake).unwrap().contains("ginlab proxy -p model:p5"), "without libfabric");
    let blind = Fake::healthy();
    blind.remove("sys/bus");
    assert_eq!(fit(&blind), None, "the bus was not recorded");
}

/// EFA devices need not work if runs use another provider.
#[test]
fn another_provider_asks_nothing_of_efa() {
    let mut fake = Fake::healthy();
    fake.write(".dockerenv", "");
    fake.remove("dev/infiniband");
    assert_eq!(said(&fake, "container").state, State::Fail);
    fake.wanted.other_provider = true;
    for name in ["container", "efa-driver", "libfabric", "memlock"] {
        assert!(said(&fake, name).state < State::Warn, "{name}: {:?}", said(&fake, name));
    }
}

#[test]
fn one_check_by_its_name() {
    let fake = Fake::healthy();
    let findings = examine(&fake.machine(), &["memlock".into()]);
    assert_eq!(findings.iter().map(|finding| finding.check.as_str()).collect::<Vec<_>>(), ["memlock"]);
    let empty = tempfile::tempdir().unwrap();
    assert!(Machine::recorded(empty.path(), Requirements::default()).unwrap_err().contains("not a recorded machine"));
}

#[test]
fn reports_of_ranks_are_compared() {
    use super::peers::{RankInfo, compare};
    let card = |host: &str| RankInfo {
        host: host.into(),
        machine: host.into(),
        processes: format!("pid:[{host}]"),
        versions: vec![("libfabric".into(), "2.1".into()), ("driver".into(), "580".into())],
        cards: Some(32),
        gpus: Some(8),
        unopened: None,
        unreached: Vec::new(),
        rails: Some(4),
    };
    let states = |cards: &[RankInfo], clocks: &[(f64, f64)]| -> Vec<State> {
        compare(cards, clocks).iter().map(|finding| finding.state).collect()
    };
    let good = [card("a"), card("b")];
    let even = [(0.0, 0.0), (0.002, 0.001)];
    assert_eq!(states(&good, &even), [State::Ok; 5]);
    let with = |change: fn(&mut RankInfo)| {
        let mut cards = good.to_vec();
        change(&mut cards[1]);
        let found = compare(&cards, &even);
        let bad = found.into_iter().find(|finding| finding.state > State::Ok).unwrap();
        assert!(!bad.mend.is_empty());
        (bad.check, bad.state, bad.found)
    };
    let (check, state, found) = with(|card| card.versions[0].1 = "1.17".into());
    assert_eq!(
        (check.as_str(), state, found.as_str()),
        ("peers-versions", State::Fail, "libfabric is 2.1 on a and 1.17 on b")
    );
    let (check, state, _) = with(|card| card.cards = Some(31));
    assert_eq!((check.as_str(), state), ("peers-cards", State::Fail));
    let (check, state, _) = with(|card| card.machine = "a".into());
    assert_eq!((check.as_str(), state), ("peers-processes", State::Warn));
    let (check, state, found) = with(|card| card.unreached = vec!["rank 0 on rail 2: timed out".into(), "more".into()]);
    assert_eq!(
        (check.as_str(), state, found.as_str()),
        ("peers-rails", State::Fail, "b: rank 0 on rail 2: timed out (1 more)")
    );
    assert_eq!(states(&good, &[(0.0, 0.0), (-3.0, 0.5)])[2], State::Warn);
    assert_eq!(states(&good, &[(0.0, 0.0), (3.0, 2.5)])[2], State::Ok, "the message's way may be all of it");
}

/// A few retransmissions in many packets, and peers that left, are reported without a warning.
#[test]
fn rare_retransmissions_are_ok() {
    let mut fake = Fake::healthy();
    fake.counter("rdmap17s0", "retrans_pkts", 17);
    fake.counter("rdmap17s0", "unresponsive_remote_events", 40);
    let found = said(&fake, "counters");
    assert_eq!(found.state, State::Ok, "{found:?}");
    assert_eq!(
        found.found,
        "since the devices came up: rdmap17s0/1 retrans_pkts 17 of 1000000 packets (17.0 per million); rdmap17s0/1 \
         unresponsive_remote_events 40"
    );
    fake.asked.counters_before = Some(ginlab_topology::environment::Counters::read(fake.folder.path()));
    assert!(said(&fake, "counters").found.ends_with("; nothing during the trials"));
}

/// A driver that does not know the rate of a device reports 100 Gb/s.
#[test]
fn constant_rate_of_driver_is_ok() {
    let fake = Fake::healthy();
    assert!(said(&fake, "efa-links").found.contains("ports at 400 Gb/s"));
    for bus in 0x10..0x10 + fake::CARDS {
        fake.write(&format!("sys/class/infiniband/rdmap{bus}s0/ports/1/rate"), "100 Gb/sec (4X EDR)\n");
    }
    let found = said(&fake, "efa-links");
    assert!(found.state == State::Ok && found.found.contains("the driver's constant; expected 400"), "{found:?}");
}

/// A process of sshd in a pod with half of the node's EFA devices has no variable of Kubernetes.
#[test]
fn half_of_node_is_enough_with_its_number() {
    let mut fake = Fake::of("p5en.48xlarge", 8, 16);
    (8..16).for_each(|card| fake.remove(&format!("dev/infiniband/uverbs{card}")));
    fake.domains(8);
    fake.wanted.cards = Some(8);
    assert_eq!(said(&fake, "libfabric").state, State::Ok, "{:?}", said(&fake, "libfabric"));
    fake.wanted.cards = None;
    assert_eq!(said(&fake, "libfabric").state, State::Fail);
    fake.write("run/secrets/kubernetes.io/serviceaccount/namespace", "default");
    assert_eq!(said(&fake, "libfabric").state, State::Ok);
    fake.remove("run");
    fake.variable("FI_EFA_IFACE=rdmap16s0");
    assert!(said(&fake, "libfabric").mend.starts_with("unset FI_EFA_IFACE"));
}

/// Each instance type is known with and without HyperPod's prefix, and a lost GPU or NIC of it fails.
#[test]
fn every_known_instance_is_counted() {
    use super::instances::Instance;
    let names: std::collections::BTreeSet<&str> = Instance::all().map(|instance| instance.name).collect();
    assert_eq!(names.len(), Instance::all().count());
    for instance in super::instances::COUNTED {
        assert_eq!(Instance::named(&format!("ml.{}", instance.name)), Some(instance));
        let mut fake = Fake::of(&format!("ml.{}", instance.name), instance.gpus as u8, instance.cards as u8);
        for check in ["gpu", "efa-devices", "efa-links"] {
            assert_eq!(said(&fake, check).state, State::Ok, "{}: {:?}", instance.name, said(&fake, check));
        }
        fake.wanted.efa = true;
        fake.lose_card(0);
        let text = format!("{} of {} EFA devices of a {}", instance.cards - 1, instance.cards, instance.name);
        assert!(said(&fake, "efa-devices").found.starts_with(&text), "{:?}", said(&fake, "efa-devices"));
        fake.remove(&format!("sys/bus/pci/devices/{}", fake::address(0x20)));
        assert_eq!(said(&fake, "gpu").state, State::Fail, "{}", instance.name);
    }
    assert_eq!(Instance::named("p5.48xlagre"), None);
}
