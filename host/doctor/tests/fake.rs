//! A fake machine for tests: a directory tree, and the query results of the running system.

use super::super::instances::Instance;
use super::super::trial::{TransferTimes, Trial};
use super::super::{GpuFabric, GpuState, LinkErrors, Machine, RemappedRows, Requirements, SystemAnswers};
use ginlab_cuda::VisibleGpu;
use ginlab_topology::pci::PciAddress;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const FI_INFO: &str = include_str!("../../../tests/fixtures/p5/fi_info.yaml");
pub const CARDS: u8 = 8;

/// Returns the bus number of a NIC. The first sixteen are below the GPUs, whose numbers start at 0x20, and the others
/// above.
pub fn card_bus(card: u8) -> u8 {
    if card < 16 { 0x10 + card } else { 0x40 + card }
}

/// A fake machine for tests: its files, and the query results of the running system.
pub struct Fake {
    pub folder: tempfile::TempDir,
    pub wanted: Requirements,
    pub asked: SystemAnswers,
    pub no_listing: bool,
    /// Whether libfabric was built without CUDA, which a recorded listing cannot show.
    pub no_gpu_memory: bool,
}

pub fn address(bus: u8) -> PciAddress {
    PciAddress { domain: 0, bus, device: 0, function: 0 }
}

pub fn gpu_state(bus: u8) -> GpuState {
    GpuState {
        address: address(bus),
        persistent: Some(true),
        held_back: None,
        ecc_uncorrected: Some(0),
        remapped: Some(RemappedRows::default()),
        links: 18,
        links_up: 18,
        link_errors: LinkErrors::default(),
        fabric: Some(GpuFabric::Ready),
    }
}

pub fn trial(gpu: bool, outcome: Result<(), String>) -> Trial {
    // 185 us for a write by the NIC, as at 12 GB/s. Staging needs two more copies.
    let paces = (gpu && outcome.is_ok()).then_some(paces(185, 270));
    let fastest = outcome.is_ok().then_some(Duration::from_micros(185));
    Trial { gpu, paces, fastest, device: gpu.then_some(address(0x20)), ..Trial::named("rdmap16s0-rdm", outcome) }
}

pub fn paces(by_rail: u64, staged: u64) -> TransferTimes {
    TransferTimes { by_rail: Duration::from_micros(by_rail), staged: Duration::from_micros(staged) }
}

impl Fake {
    /// Returns a p6-b200.48xlarge: eight GPUs, eight NICs.
    pub fn healthy() -> Fake {
        Fake::of("p6-b200.48xlarge", 8, CARDS)
    }

    /// Returns a whole instance on which every check passes.
    pub fn of(instance: &str, gpus: u8, cards: u8) -> Fake {
        // The tree has several thousand small files, so it is stored in memory if possible.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let gpus = 0x20..0x20 + gpus;
        let asked = SystemAnswers {
            libfabric: Some("2.6.0amzn1.0 (/opt/amazon/efa/lib/libfabric.so.1)".into()),
            mpi: Some("Open MPI v4.1.4".into()),
            gpus: Some(Ok(gpus.clone().map(gpu_state).collect())),
            gpus_later: None,
            driver: Some("580.82.07".into()),
            cuda: Some("13.0".into()),
            visible: Some(
                gpus.clone()
                    .enumerate()
                    .map(|(ordinal, bus)| VisibleGpu {
                        ordinal: ordinal as i32,
                        address: Some(address(bus)),
                        name: "NVIDIA B200".into(),
                        dma_buf: true,
                        gpu_direct_rdma: true,
                        gpu_direct_virtual: true,
                        concurrent_managed: true,
                    })
                    .collect(),
            ),
            gdrcopy: Some(Ok("2.5".into())),
            addresses: Some(Ok(vec!["10.0.0.7".parse().unwrap()])),
            hidden: None,
            xids: Some(Ok(Vec::new())),
            mps: None,
            ptx: Some("1.96.0, LLVM 22".into()),
            registered: Some(Ok(format!("{cards} EFA devices can register GPU memory by dma-buf"))),
            trials: Some(vec![trial(false, Ok(())), trial(true, Ok(()))]),
            counters_before: None,
            untried: None,
        };
        let wanted = Requirements { developer: true, ..Requirements::default() };
        let fake = Fake { folder, wanted, asked, no_listing: false, no_gpu_memory: false };
        for (path, text) in [
            (
                "proc/self/limits",
                "Limit  Soft  Hard  Units\nMax locked memory  unlimited  unlimited  bytes\nMax open files  65536  65536  files\n",
            ),
            ("proc/uptime", "9000.50 8000.00\n"),
            ("proc/meminfo", "MemTotal: 2000000000 kB\nMemAvailable: 1900000000 kB\n"),
            ("proc/self/mountinfo", "25 20 0:22 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=8388608k\n"),
            ("proc/sys/kernel/yama/ptrace_scope", "0\n"),
            ("proc/sys/kernel/osrelease", "6.8.0-1021-aws\n"),
            ("proc/sys/kernel/hostname", "node-a\n"),
            ("proc/self/status", "CapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-95\n"),
            ("proc/self/environ", "PATH=/bin\0FI_PROVIDER=efa\0"),
            ("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu sse\n"),
            ("proc/cmdline", "quiet\n"),
            ("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07\n"),
            ("proc/driver/nvidia/params", "RegistryDwords: \"PeerMappingOverride=1;\"\n"),
            ("opt/amazon/efa_installed_packages", "# EFA installer version: 1.50.0\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "5128\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "5128\n"),
            ("sys/class/dmi/id/sys_vendor", "Amazon EC2\n"),
            ("sys/class/dmi/id/product_name", instance),
            ("proc/self/uid_map", "         0          0 4294967295\n"),
            ("sys/class/net/lo/operstate", "unknown\n"),
            ("sys/class/net/ens5/operstate", "up\n"),
            ("sys/module/efa/version", "3.3.0g\n"),
            ("sys/module/ib_uverbs/refcnt", "1\n"),
            ("sys/module/ib_core/refcnt", "1\n"),
            ("sys/module/gdrdrv/refcnt", "1\n"),
            ("dev/gdrdrv", ""),
            ("bin/nvidia-cuda-mps-control", ""),
        ] {
            fake.write(path, text);
        }
        fake.domains(usize::from(cards));
        for bus in gpus {
            fake.device(bus, "0x030200", "0x10de", Some("nvidia"));
        }
        for card in 0..cards {
            let bus = card_bus(card);
            fake.device(bus, "0x020000", "0x1d0f", Some("efa"));
            fs::write(fake.place(bus).join("p2p"), "NVIDIA\n").unwrap();
            fake.rdma(&format!("rdmap{bus}s0"), &format!("uverbs{card}"), bus);
            let rate = Instance::named(instance).and_then(|instance| instance.port_gbits_s).unwrap_or(100);
            fake.write(&format!("sys/class/infiniband/rdmap{bus}s0/ports/1/rate"), &format!("{rate} Gb/sec (4X)\n"));
        }
        fake
    }

    /// Sets a counter of a NIC's port.
    pub fn counter(&self, card: &str, name: &str, value: u64) {
        self.write(&format!("sys/class/infiniband/{card}/ports/1/hw_counters/{name}"), &format!("{value}\n"));
    }

    /// Makes libfabric list `count` domains of efa. A container may have fewer than the host.
    pub fn domains(&self, count: usize) {
        let end = FI_INFO.match_indices("fi_info:").nth(count).unwrap().0;
        self.write("fi_info.yaml", FI_INFO[..end].trim_end().trim_end_matches("---"));
    }

    /// Adds an RDMA device with its device node, for the PCI function at bus `bus`.
    pub fn rdma(&self, name: &str, node: &str, bus: u8) {
        let place = self.place(bus);
        fs::create_dir_all(place.join("infiniband").join(name)).unwrap();
        for (file, text) in [
            ("state", "4: ACTIVE\n"),
            ("hw_counters/rx_drops", "0\n"),
            ("hw_counters/retrans_pkts", "0\n"),
            ("hw_counters/tx_pkts", "1000000\n"),
            ("hw_counters/rx_pkts", "1000000\n"),
        ] {
            self.write(&format!("sys/class/infiniband/{name}/ports/1/{file}"), text);
        }
        symlink(&place, self.path("sys/class/infiniband").join(name).join("device")).unwrap();
        fs::create_dir_all(self.path("sys/class/infiniband_verbs").join(node)).unwrap();
        symlink(&place, self.path("sys/class/infiniband_verbs").join(node).join("device")).unwrap();
        self.write(&format!("dev/infiniband/{node}"), "");
    }

    /// Adds the two RDMA devices of a p6-b200's NVLink switches, which belong to no EFA device.
    pub fn nvlink_devices(&self) {
        for (bus, node) in [(0x73, "uverbs40"), (0x74, "uverbs41")] {
            self.device(bus, "0x020700", "0x15b3", Some("mlx5_core"));
            self.rdma(&format!("ibp{bus}s0f0"), node, bus);
        }
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }

    pub fn place(&self, bus: u8) -> PathBuf {
        self.path(&format!("sys/devices/pci0000:{:02x}/{}", bus & 0xf, address(bus)))
    }

    pub fn device(&self, bus: u8, class: &str, vendor: &str, driver: Option<&str>) {
        let place = self.place(bus);
        fs::create_dir_all(&place).unwrap();
        for (name, text) in [
            ("class", class),
            ("vendor", vendor),
            ("numa_node", "0"),
            ("local_cpulist", "0-47"),
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("current_link_width", "16"),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("max_link_width", "16"),
        ] {
            fs::write(place.join(name), text).unwrap();
        }
        if driver == Some("efa") {
            fs::write(place.join("device"), "0xefa1").unwrap();
        }
        if let Some(driver) = driver {
            symlink(Path::new("/sys/bus/pci/drivers").join(driver), place.join("driver")).unwrap();
        }
        fs::create_dir_all(self.path("sys/bus/pci/devices")).unwrap();
        symlink(place, self.path("sys/bus/pci/devices").join(address(bus).to_string())).unwrap();
    }

    /// Sets the NICs' p2p attribute.
    pub fn p2p(&self, text: &str) {
        for name in fs::read_dir(self.path("sys/class/infiniband")).unwrap() {
            let file = name.unwrap().path().join("device/p2p");
            if file.exists() {
                fs::write(file, format!("{text}\n")).unwrap();
            }
        }
    }

    /// Changes the state of one GPU, as NVML reports it.
    pub fn gpu(&mut self, change: impl FnOnce(&mut GpuState)) {
        if let Some(Ok(gpus)) = &mut self.asked.gpus {
            change(&mut gpus[3]);
        }
    }

    /// Sets the lines of the kernel log about Xid errors.
    pub fn xids(&mut self, lines: &[&str]) {
        self.asked.xids = Some(Ok(lines.iter().map(|line| (*line).to_owned()).collect()));
    }

    pub fn closed_driver(&self) {
        self.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07\n");
    }

    pub fn variable(&self, variables: &str) {
        self.write("proc/self/environ", &variables.replace(' ', "\0"));
    }

    pub fn machine(&self) -> Machine {
        let mut machine = Machine::recorded(self.folder.path(), self.wanted.clone()).unwrap();
        machine.asked = self.asked.clone();
        if self.no_listing {
            machine.listing = Some(Err("libfabric: no libfabric.so.1".into()));
        }
        if let (true, Some(Ok(listing))) = (self.no_gpu_memory, &mut machine.listing) {
            listing.domains.iter_mut().for_each(|domain| domain.cuda_memory = Some(false));
        }
        machine
    }

    /// Removes a NIC from the bus, as on an instance that started with too few NICs.
    pub fn lose_card(&self, card: u8) {
        self.remove(&format!("sys/bus/pci/devices/{}", address(card_bus(card))));
    }

    /// Returns a machine without EFA devices and GPUs.
    pub fn plain() -> Fake {
        let fake = Fake::healthy();
        for bus in (0x10..0x10 + CARDS).chain(0x20..0x20 + CARDS) {
            fake.remove(&format!("sys/bus/pci/devices/{}", address(bus)));
        }
        fake.remove("sys/class/infiniband");
        fake.remove("sys/class/dmi");
        fake
    }
}
