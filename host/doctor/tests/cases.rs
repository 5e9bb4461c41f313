//! Problems of machines, and the finding that each must cause.

use super::*;

/// Makes CUDA show no GPU because the fabric manager has not started.
fn not_ready(fake: &mut Fake) {
    fake.asked.visible = Some(Vec::new());
    fake.asked.hidden = Some("cuInit failed: system not yet initialized (CUDA_ERROR_SYSTEM_NOT_READY)".into());
}

/// Sets the state of the fabric of every GPU.
fn fabric(fake: &mut Fake, fabric: GpuFabric) {
    let gpus = (0x20..0x28).map(|bus| GpuState { fabric: Some(fabric), ..gpu_state(bus) });
    fake.asked.gpus = Some(Ok(gpus.collect()));
}

/// Check, expected state, a substring of its result, and the change to the machine.
pub const CASES: &[(&str, CheckState, &str, FakeChange)] = &[
    ("memlock", CheckState::Fail, "64 KiB may be locked", |fake| {
        fake.write("proc/self/limits", "Max locked memory  65536  65536  bytes\nMax open files  65536  65536  files\n");
        fake.write("proc/self/status", "CapEff:\t0000000000000000\n");
    }),
    // A pod without the capability, and an enroot container, whose capabilities apply only inside the container.
    ("memlock", CheckState::Fail, "8 MiB may be locked", |fake| {
        fake.write("proc/self/limits", "Max locked memory  8388608  8388608  bytes\n");
        fake.write("proc/self/status", "CapEff:\t00000000a80425fb\n");
    }),
    ("memlock", CheckState::Fail, "8 MiB may be locked", |fake| {
        fake.write("proc/self/limits", "Max locked memory  8388608  8388608  bytes\n");
        fake.write("proc/self/uid_map", "         0       1000          1\n");
    }),
    ("memory", CheckState::Fail, "8 ranks over EFA need 32 GiB", |fake| {
        fake.write("proc/meminfo", "MemAvailable: 8388608 kB\n")
    }),
    ("memory", CheckState::Warn, "0 of 5128 huge pages", |fake| {
        fake.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0\n");
    }),
    ("shm", CheckState::Warn, "/dev/shm 64 MiB", |fake| {
        fake.write("proc/self/mountinfo", "25 20 0:22 / /dev/shm rw - tmpfs shm rw,size=65536k\n");
    }),
    ("shm", CheckState::Fail, "/dev/shm none", |fake| {
        fake.write("proc/self/mountinfo", "25 20 0:22 / /tmp rw - tmpfs x rw\n")
    }),
    ("shm", CheckState::Warn, "ptrace scope 1", |fake| {
        fake.write("proc/sys/kernel/yama/ptrace_scope", "1\n");
        fake.variable("FI_EFA_ENABLE_SHM_TRANSFER=1");
    }),
    (
        "efa-devices",
        CheckState::Fail,
        "7 of 8 EFA devices of a p6-b200.48xlarge: 0 near 0000:23:00.0, 1 near other GPUs",
        |fake| fake.lose_card(3),
    ),
    ("efa-devices", CheckState::Fail, "1 of 8 EFA devices on the PCI bus have no driver: 0000:13:00.0", |fake| {
        fs::remove_file(fake.place(0x13).join("driver")).unwrap();
    }),
    (
        "efa-devices",
        CheckState::Fail,
        "the firmware reports a p6-b200.48xlarge, but --instance is p5en.48xlarge",
        |fake| fake.wanted.instance = Some("p5en.48xlarge".into()),
    ),
    ("efa-devices", CheckState::Fail, "8 of 16", |fake| fake.wanted.cards = Some(16)),
    ("efa-devices", CheckState::Warn, "is unknown", |fake| fake.write("sys/class/dmi/id/product_name", "x9.large\n")),
    ("efa-driver", CheckState::Fail, "not loaded: ib_uverbs", |fake| fake.remove("sys/module/ib_uverbs")),
    ("efa-driver", CheckState::Fail, "no /dev/infiniband/uverbs*", |fake| fake.remove("dev/infiniband")),
    ("efa-links", CheckState::Fail, "the link of rdmap18s0 is not active", |fake| {
        fake.write("sys/class/infiniband/rdmap18s0/ports/1/state", "1: DOWN\n");
    }),
    ("efa-links", CheckState::Fail, "the port of rdmap18s0 runs at 100 Gb/s, others at 400", |fake| {
        fake.write("sys/class/infiniband/rdmap18s0/ports/1/rate", "100 Gb/sec (4X EDR)\n");
    }),
    ("efa-links", CheckState::Fail, "the ports run at 10 Gb/s, those of a p6-b200.48xlarge at 400", |fake| {
        for bus in 0x10..0x10 + fake::CARDS {
            fake.write(&format!("sys/class/infiniband/rdmap{bus}s0/ports/1/rate"), "10 Gb/sec (1X SDR)\n");
        }
    }),
    ("efa-links", CheckState::Fail, "no RDMA device", |fake| fake.remove("sys/class/infiniband")),
    ("libfabric", CheckState::Fail, "no RDM domain of efa", |fake| {
        let psm = FI_INFO.rfind("fi_info:").unwrap();
        fake.write("fi_info.yaml", &FI_INFO[psm..]);
    }),
    ("libfabric", CheckState::Fail, "no libfabric.so.1", |fake| fake.no_listing = true),
    ("libfabric", CheckState::Fail, "9 EFA devices are present", |fake| {
        fake.device(0x18, "0x020000", "0x1d0f", Some("efa"))
    }),
    ("rma", CheckState::Warn, "no RDMA write", |fake| fake.wanted.instance = Some("p4d.24xlarge".into())),
    ("rma", CheckState::Fail, "no domain of efa", |fake| {
        let psm = FI_INFO.rfind("fi_info:").unwrap();
        fake.write("fi_info.yaml", &FI_INFO[psm..]);
    }),
    (
        "gpu-direct",
        CheckState::Fail,
        "closed driver, no dma-buf; the p2p attribute of the EFA devices is empty: no provider",
        |fake| {
            fake.closed_driver();
            fake.p2p("");
            // The module is used for NICs of other vendors. The efa driver does not use it.
            fake.write("sys/module/nvidia_peermem/refcnt", "0\n");
        },
    ),
    ("gpu-direct", CheckState::Warn, "no provider; only a libfabric with dma-buf support", |fake| {
        fake.p2p("");
        fake.asked.libfabric = None;
    }),
    (
        "gpu-direct",
        CheckState::Warn,
        "no provider; libfabric 2.4 registers GPU memory only by a p2p provider",
        |fake| {
            fake.p2p("");
            fake.asked.libfabric = Some("2.4.0amzn1.0 (/opt/amazon/efa/lib/libfabric.so.1)".into());
        },
    ),
    ("gpu-direct", CheckState::Warn, "no p2p attribute; libfabric 1.17 registers", |fake| {
        (0x10..0x10 + fake::CARDS).for_each(|bus| fs::remove_file(fake.place(bus).join("p2p")).unwrap());
        fake.asked.libfabric = Some("1.17 (libfabric.so.1)".into());
    }),
    ("gpu-direct", CheckState::Fail, "the NVIDIA driver is not loaded", |fake| fake.remove("proc/driver")),
    ("gpu-async", CheckState::Warn, "EFA installer 1.43.2", |fake| {
        fake.write("opt/amazon/efa_installed_packages", "# EFA installer version: 1.43.2\n");
    }),
    ("gpu-register", CheckState::Fail, "rdmap16s0-rdm: registering 2 MiB: Bad address", |fake| {
        fake.asked.trials = Some(vec![trial(false, Ok(())), trial(true, Err("registering 2 MiB: Bad address".into()))]);
    }),
    ("gpu-register", CheckState::Fail, "rdmap16s0 cannot register GPU memory: by dma-buf", |fake| {
        let why =
            "rdmap16s0 cannot register GPU memory: by dma-buf: Operation not supported; by peer memory: Bad address";
        fake.asked.registered = Some(Err(why.into()));
    }),
    // From API 1.18 on, `efa` claims FI_HMEM with CUDA copies.
    ("gpu-register", CheckState::Fail, "FI_OPT_CUDA_API_PERMITTED", copies),
    (
        "rma",
        CheckState::Warn,
        "GPU memory (FI_HMEM) claimed, by CUDA copies of the provider: payloads in GPU memory are staged",
        copies,
    ),
    ("rma", CheckState::Warn, "GPU memory (FI_HMEM) claimed, but a write failed", |fake| {
        fake.asked.trials = Some(vec![trial(false, Ok(())), trial(true, Err("registering 2 MiB: Bad address".into()))]);
    }),
    (
        "rma",
        CheckState::Warn,
        "2 MiB in 900 us, 270 staged through the host): not faster than through the host",
        |fake| {
            let slow = Trial { paces: Some(fake::paces(900, 270)), ..trial(true, Ok(())) };
            fake.asked.trials = Some(vec![trial(false, Ok(())), slow]);
        },
    ),
    ("gpu-register", CheckState::Warn, "libfabric does not offer it", |fake| {
        fake.asked.trials = Some(vec![trial(false, Ok(()))]);
    }),
    ("gdrcopy", CheckState::Warn, "module not loaded", |fake| {
        fake.remove("sys/module/gdrdrv");
        fake.asked.gdrcopy = Some(Err("gdr_open failed".into()));
    }),
    ("gpu", CheckState::Fail, "NVML: driver/library version mismatch", |fake| {
        fake.asked.gpus = Some(Err("NVML: driver/library version mismatch".into()));
    }),
    ("gpu", CheckState::Fail, "3 uncorrected ECC errors", |fake| {
        fake.gpu(|gpu| gpu.ecc_uncorrected = Some(3));
    }),
    (
        "gpu",
        CheckState::Fail,
        "7 of 8 GPUs of a p6-b200.48xlarge are on the PCI bus: 0000:20:00.0, 0000:21:00.0",
        |fake| {
            fake.remove(&format!("sys/bus/pci/devices/{}", fake::address(0x25)));
        },
    ),
    ("gpu", CheckState::Fail, "0 of 8 GPUs of a p6-b200.48xlarge are on the PCI bus", |fake| {
        (0x20..0x28).for_each(|bus| fake.remove(&format!("sys/bus/pci/devices/{}", fake::address(bus))));
    }),
    ("gpu", CheckState::Fail, "the driver shows 7 of 8 GPUs on the PCI bus: not 0000:25:00.0", |fake| {
        if let Some(Ok(gpus)) = &mut fake.asked.gpus {
            gpus.remove(5);
        }
    }),
    ("gpu", CheckState::Fail, "0000:23:00.0: remapping of a memory row failed (0 rows remapped", |fake| {
        fake.gpu(|gpu| gpu.remapped = Some(RemappedRows { failed: true, ..RemappedRows::default() }));
    }),
    ("gpu", CheckState::Warn, "0000:23:00.0: a memory row is remapped at the next reset", |fake| {
        fake.gpu(|gpu| gpu.remapped = Some(RemappedRows { pending: true, ..RemappedRows::default() }));
    }),
    ("gpu", CheckState::Warn, "are reduced by power brake", |fake| {
        fake.gpu(|gpu| gpu.held_back = Some("power brake".into()));
    }),
    ("gpu", CheckState::Warn, "persistence mode is off", |fake| fake.gpu(|gpu| gpu.persistent = Some(false))),
    (
        "xid",
        CheckState::Fail,
        "Xid (PCI:0000:20:00): 79, GPU has fallen off the bus. (restart the machine, 2.5 h ago); 2 Xid errors in all",
        |fake| {
            fake.xids(&[
                "[   60.500000] NVRM: Xid (PCI:0000:20:00): 79, GPU has fallen off the bus.",
                "[ 8000.000000] NVRM: Xid (PCI:0000:21:00): 31, pid=7, name=kernels",
            ]);
        },
    ),
    ("xid", CheckState::Fail, "Xid (PCI:0000:20:00): 48, DBE (reset the GPU, at an unknown time)", |fake| {
        fake.xids(&["kernel: NVRM: Xid (PCI:0000:20:00): 48, DBE"]);
    }),
    ("xid", CheckState::Warn, "31, pid=7, name=kernels (a fault of a program, 90 s ago)", |fake| {
        fake.xids(&["[ 8910.500000] NVRM: Xid (PCI:0000:20:00): 31, pid=7, name=kernels"]);
    }),
    ("gpu", CheckState::Fail, "libcuda cannot be loaded", |fake| fake.asked.cuda = None),
    ("nvlink", CheckState::Fail, "0000:21:00.0 has 17 NVLinks up, others 18", |fake| {
        fake.asked.gpus = Some(Ok(vec![gpu_state(0x20), GpuState { links_up: 17, ..gpu_state(0x21) }]));
    }),
    ("nvlink", CheckState::Fail, "none is up", |fake| {
        let down = |bus| GpuState { links_up: 0, ..gpu_state(bus) };
        fake.asked.gpus = Some(Ok(vec![down(0x20), down(0x21)]));
    }),
    (
        "nvlink",
        CheckState::Warn,
        "0000:21:00.0 has counted 0 replays, 1 recoveries, 0 checksums, 0 data checksums within",
        |fake| {
            fake.asked.gpus_later =
                Some((Duration::from_secs(9), errors(LinkErrors { recoveries: 1, ..LinkErrors::default() })));
        },
    ),
    ("nvlink", CheckState::Warn, "900 checksums, 0 data checksums within 9.0 s", |fake| {
        fake.asked.gpus_later =
            Some((Duration::from_secs(9), errors(LinkErrors { checksums: 900, ..LinkErrors::default() })));
    }),
    (
        "mps",
        CheckState::Warn,
        "nvidia-cuda-mps-control is not on PATH: kernels of PEs that share a GPU are time-sliced",
        |fake| {
            fake.remove("bin/nvidia-cuda-mps-control");
        },
    ),
    ("mps", CheckState::Warn, "CUDA_MPS_PIPE_DIRECTORY is /run/mps, where no server answers", |fake| {
        fake.variable("CUDA_MPS_PIPE_DIRECTORY=/run/mps");
        fake.write("run/mps/control", "");
        fake.asked.mps = Some(false);
    }),
    ("pcie", CheckState::Warn, "0000:22:00.0 (nvidia) runs 8 of 16 lanes", |fake| {
        fs::write(fake.place(0x22).join("current_link_width"), "8\n").unwrap();
    }),
    ("pcie", CheckState::Warn, "1 IOMMUs translate", |fake| fake.write("sys/class/iommu/dmar0/name", "")),
    ("affinity", CheckState::Warn, "none of them is near 0000:20:00.0", |fake| {
        fake.write("proc/self/status", "CapEff:\t000001ffffffffff\nCpus_allowed_list:\t48-95\n");
    }),
    ("affinity", CheckState::Warn, "a proxy and its rank need one core each", |fake| {
        fake.write("proc/self/status", "Cpus_allowed_list:\t0-7\n");
    }),
    ("affinity", CheckState::Warn, "NUMA node of some devices is unknown", |fake| {
        fs::write(fake.place(0x23).join("numa_node"), "-1\n").unwrap();
    }),
    ("visible", CheckState::Fail, "CUDA shows 0 of 8 GPUs (CUDA_VISIBLE_DEVICES=9)", |fake| {
        fake.variable("CUDA_VISIBLE_DEVICES=9");
        fake.asked.visible = Some(Vec::new());
    }),
    ("visible", CheckState::Fail, "CUDA shows no GPU: cuInit failed: system not yet initialized", not_ready),
    (
        "visible",
        CheckState::Fail,
        "(CUDA_ERROR_SYSTEM_NOT_READY); the fabric of 0000:20:00.0 is not configured, as that of 8 GPUs",
        |fake| {
            not_ready(fake);
            fabric(fake, GpuFabric::NotStarted);
        },
    ),
    ("nvlink", CheckState::Fail, "the fabric of 0000:20:00.0 is not configured, as that of 8 GPUs", |fake| {
        not_ready(fake);
        fabric(fake, GpuFabric::NotStarted);
    }),
    ("nvlink", CheckState::Warn, "the fabric of 0000:23:00.0 could not be configured (NVML 999)", |fake| {
        fake.gpu(|gpu| gpu.fabric = Some(GpuFabric::Failed(999)));
    }),
    ("visible", CheckState::Warn, "CUDA shows 1 of 8 GPUs", |fake| fake.asked.visible.as_mut().unwrap().truncate(1)),
    ("environment", CheckState::Fail, "FI_PROVIDER=tcp hides efa", |fake| {
        fake.wanted.efa = true;
        fake.variable("FI_PROVIDER=tcp");
    }),
    ("environment", CheckState::Fail, "NCCL_SOCKET_IFNAME=eth names no interface", |fake| {
        fake.variable("NCCL_SOCKET_IFNAME=eth")
    }),
    ("environment", CheckState::Warn, "FI_HMEM_DISABLE_P2P=1 keeps NICs from GPU memory", |fake| {
        fake.variable("FI_HMEM_DISABLE_P2P=1")
    }),
    ("environment", CheckState::Warn, "FI_HMEM=system excludes CUDA", |fake| fake.variable("FI_HMEM=system")),
    ("environment", CheckState::Warn, "FI_EFA_IFACE=rdmap24s0 hides", |fake| fake.variable("FI_EFA_IFACE=rdmap24s0")),
    ("environment", CheckState::Warn, "FI_HMEM_CUDA_USE_DMABUF=0 prevents", |fake| {
        fake.variable("FI_HMEM_CUDA_USE_DMABUF=0")
    }),
    ("environment", CheckState::Warn, "FI_EFA_USE_DEVICE_RDMA=0 disables RDMA", |fake| {
        fake.variable("FI_EFA_USE_DEVICE_RDMA=0")
    }),
    ("launch", CheckState::Fail, "srun started 16 ranks without PMI", |fake| {
        fake.variable("SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_NTASKS=16");
    }),
    ("launch", CheckState::Fail, "built without MPI", |fake| {
        fake.asked.mpi = Some(String::new());
        fake.variable("OMPI_COMM_WORLD_SIZE=16 OMPI_COMM_WORLD_RANK=3");
    }),
    ("launch", CheckState::Fail, "its directory /var/spool/slurmd/pmix.7.0 is not in this container", |fake| {
        fake.write("proc/self/uid_map", "         0       1000          1\n");
        fake.variable(
            "SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_NTASKS=16 PMIX_RANK=3 PMIX_SERVER_TMPDIR=/var/spool/slurmd/pmix.7.0",
        );
    }),
    ("launch", CheckState::Warn, "16 tasks per node share 8 GPUs", |fake| {
        fake.variable("SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_NTASKS=32 SLURM_NTASKS_PER_NODE=16 PMIX_RANK=3");
    }),
    ("network", CheckState::Warn, "cannot be resolved", |fake| {
        fake.asked.addresses = Some(Err("Name or service not known".into()))
    }),
    ("network", CheckState::Warn, "resolves to its loopback", |fake| {
        fake.asked.addresses = Some(Ok(vec!["127.0.1.1".parse().unwrap()]))
    }),
    ("network", CheckState::Warn, "no interface to other machines", |fake| {
        fake.write("sys/class/net/ens5/operstate", "down\n")
    }),
    ("network", CheckState::Fail, "--bootstrap-if eth* matches none of ens5", |fake| {
        fake.wanted.interfaces = Some("eth*".into())
    }),
    (
        "container",
        CheckState::Warn,
        "7 of 8 EFA device nodes, IPC_LOCK granted: only a part of the node's EFA devices",
        |fake| {
            fake.write(".dockerenv", "");
            fake.remove("dev/infiniband/uverbs7");
        },
    ),
    ("container", CheckState::Fail, "7 of 8 EFA device nodes", |fake| {
        fake.wanted.cards = Some(8);
        fake.write(".dockerenv", "");
        fake.remove("dev/infiniband/uverbs7");
    }),
    ("container", CheckState::Fail, "0 of 8 EFA device nodes", |fake| {
        fake.write(".dockerenv", "");
        fake.remove("dev/infiniband");
    }),
    ("container", CheckState::Warn, "the host's whole /dev/infiniband is mounted", |fake| {
        fake.write(".dockerenv", "");
        fake.nvlink_devices();
        fake.write("proc/self/mountinfo", "31 20 0:5 /infiniband /dev/infiniband rw - devtmpfs devtmpfs rw\n");
    }),
    ("container", CheckState::Warn, "gdrdrv is not passed in", |fake| {
        fake.write(".dockerenv", "");
        fake.remove("dev/gdrdrv");
    }),
    ("toolchain", CheckState::Fail, "no PTX", |fake| fake.asked.ptx = Some(String::new())),
    ("toolchain", CheckState::Fail, "it runs no kernel on the GPUs of this machine", |fake| {
        fake.wanted.developer = false;
        fake.asked.ptx = Some(String::new());
    }),
    ("toolchain", CheckState::Warn, "not the project's", |fake| {
        fake.asked.ptx = Some("1.99.0, LLVM 24 (not the project's)".into())
    }),
    ("counters", CheckState::Warn, "up: rdmap17s0/1 rx_drops 1000 of 1000000 packets (1000.0 per million)", |fake| {
        fake.counter("rdmap17s0", "rx_drops", 1000);
    }),
    ("counters", CheckState::Warn, "up: rdmap18s0/1 impaired_remote_conn_events 900", |fake| {
        fake.counter("rdmap18s0", "unresponsive_remote_events", 40);
        fake.counter("rdmap18s0", "impaired_remote_conn_events", 900);
    }),
    ("counters", CheckState::Warn, "during the trials: rdmap17s0/1 unresponsive_remote_events 2", |fake| {
        fake.asked.counters_before = Some(ginlab_topology::environment::NicCounters::read(fake.folder.path()));
        fake.counter("rdmap17s0", "unresponsive_remote_events", 2);
    }),
    ("counters", CheckState::Warn, "during the trials: rdmap17s0/1 retrans_pkts 5 of 100 packets", |fake| {
        fake.asked.counters_before = Some(ginlab_topology::environment::NicCounters::read(fake.folder.path()));
        fake.counter("rdmap17s0", "retrans_pkts", 5);
        fake.counter("rdmap17s0", "tx_pkts", 1_000_100);
    }),
    ("smoke", CheckState::Fail, "rdmap16s0-rdm: nothing has completed", |fake| {
        fake.asked.trials = Some(vec![trial(false, Err("nothing has completed for 10s".into()))]);
    }),
];
