//! Input of the checks: files below a root, environment variables, and query results of a running system.

mod files;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::instances::{Instance, plain};
use super::kernel_log;
use super::took::Took;
use super::trial::Trial;
use ginlab_cuda::{self as cuda, VisibleGpu};
use ginlab_fabric::discover::Domain;
use ginlab_fabric::libfabric;
use ginlab_fabric::listing::Listing;
use ginlab_fabric::model::Profile;
use ginlab_topology::environment::{NicCounters, instance_type};
use ginlab_topology::nvml;
pub use ginlab_topology::nvml::{GpuFabric, GpuState, LinkErrors, RemappedRows};
use ginlab_topology::pci::{PciAddress, PciKind};
use ginlab_topology::tree::{PciFunction, Tree};
use nvml_wrapper::Nvml;

/// Requirements of the user for the machine and the planned runs.
#[derive(Clone, Debug, Default)]
pub struct Requirements {
    /// Whether runs will use EFA, so that checks of EFA fail where they would otherwise be skipped.
    pub efa: bool,
    /// Whether runs will use another provider, so that existing EFA devices need not work.
    pub other_provider: bool,
    /// Instance type, for example `p5.48xlarge`; `None` to detect it.
    pub instance: Option<String>,
    /// Number of EFA devices that must exist, instead of the number of the instance type.
    pub cards: Option<usize>,
    /// Whether runs will use the emulated device. GPUs then need not exist or work.
    pub emulated: bool,
    /// Whether payloads in GPU memory may be staged through the host.
    pub staged: bool,
    /// Whether to check what is needed to build kernels.
    pub developer: bool,
    /// Interfaces over which the ranks connect.
    pub interfaces: Option<String>,
}

/// Query results of a running system; a field is `None` if it was not queried.
#[derive(Clone, Debug, Default)]
pub struct SystemAnswers {
    /// Version and file of the loaded libfabric; `none` if there is none.
    pub libfabric: Option<String>,
    /// MPI library with which this executable was built; empty if there is none.
    pub mpi: Option<String>,
    /// GPUs as reported by NVML, or its error.
    pub gpus: Option<Result<Vec<GpuState>, String>>,
    /// GPUs at a second query, and the time since the first.
    pub gpus_later: Option<(Duration, Vec<GpuState>)>,
    /// Version of the driver.
    pub driver: Option<String>,
    /// Latest CUDA version that the driver supports.
    pub cuda: Option<String>,
    /// GPUs that are visible to CUDA.
    pub visible: Option<Vec<VisibleGpu>>,
    /// CUDA's error, if it hides all GPUs.
    pub hidden: Option<String>,
    /// Version of GDRCopy's library if a page of GPU memory could be mapped and read back, or the reason for the
    /// failure.
    pub gdrcopy: Option<Result<String, String>>,
    /// Addresses to which this host's name resolves.
    pub addresses: Option<Result<Vec<std::net::IpAddr>, String>>,
    /// Messages of the kernel log about Xid errors, or the reason why it was not read.
    pub xids: Option<Result<Vec<String>, String>>,
    /// Compiler of the PTX in this executable; empty without PTX.
    pub ptx: Option<String>,
    /// Whether an MPS server responds at the location where CUDA expects one.
    pub mps: Option<bool>,
    /// Method by which GPU memory was registered with the EFA devices directly, or the reason for the failure.
    pub registered: Option<Result<String, String>>,
    /// Results of trial writes.
    pub trials: Option<Vec<Trial>>,
    /// Counters of the NICs before the trials.
    pub counters_before: Option<NicCounters>,
    /// Reason why trials were not run, if this executable and not the machine is the cause.
    pub untried: Option<String>,
}

/// A machine: this one, or a recorded one.
#[derive(Debug, Default)]
pub struct Machine {
    pub(super) root: PathBuf,
    /// Host name.
    pub host: String,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) tree: Option<Tree>,
    /// Reason why there is no tree.
    pub(super) unseen: Option<String>,
    pub(super) listing: Option<Result<Listing, String>>,
    /// Requirements of the user for this machine.
    pub wanted: Requirements,
    /// Query results of the running system.
    pub asked: SystemAnswers,
    /// Durations of the queries and trials.
    pub took: Took,
    watch: Option<(Instant, Nvml)>,
}

impl Machine {
    /// Returns this machine without trials; see [`super::trial`] for those.
    #[must_use]
    pub fn here(wanted: Requirements) -> Machine {
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
        let mut took = Took::default();
        // NVML is opened first and kept open. Otherwise, the driver would suspend GPUs without users and resume them
        // for every query.
        let watch = took.of("NVML", nvml::open);
        let looked = Instant::now();
        let asked = SystemAnswers {
            gpus: Some(took.of("GPUs", || watch.as_ref().map_err(Clone::clone).and_then(nvml::states))),
            driver: nvml::driver_version(),
            cuda: cuda::driver_version(),
            visible: took.of("CUDA", || cuda::visible_gpus().ok()),
            hidden: cuda::initialization_error(),
            libfabric: Some(took.of("libfabric", libfabric::library_text)),
            mpi: Some(ginlab_bootstrap::mpi_version().unwrap_or_default()),
            addresses: Some(took.of("this host's name", || addresses(&host))),
            xids: Some(took.of("the kernel's log", kernel_log::read)),
            mps: Some(ginlab_sharing::mps::is_there()),
            ptx: Some(ginlab_cuda::ptx().rustc.unwrap_or_default().to_owned()),
            ..SystemAnswers::default()
        };
        let (tree, unseen) = seen(took.of("the PCI tree", Tree::here));
        Machine {
            root: "/".into(),
            host,
            environment: variables(),
            tree,
            unseen,
            listing: Some(took.of("domains", || Listing::here().map_err(|error| error.to_string()))),
            wanted,
            asked,
            took,
            watch: watch.ok().map(|watch| (looked, watch)),
        }
    }

    /// Reads only the PCI bus of this machine, which is fast.
    #[must_use]
    pub fn bus(wanted: Requirements) -> Machine {
        let ((tree, unseen), environment) = (seen(Tree::here()), variables());
        Machine { root: "/".into(), environment, tree, unseen, wanted, ..Machine::default() }
    }

    /// Reads the counters of the NICs, for their changes during the trials.
    pub fn read_counters(&mut self) {
        self.asked.counters_before = Some(NicCounters::read(&self.root));
    }

    /// Queries the GPUs again, for changes of their counters.
    pub fn look_again(&mut self) {
        let Some((first, watch)) = &self.watch else { return };
        let later = self.took.of("GPUs again", || nvml::states(watch));
        self.asked.gpus_later = later.ok().map(|states| (first.elapsed(), states));
    }

    /// Returns a recorded machine: a directory with files of `/proc`, `/sys`, `/dev` and `/etc`, or with the output of
    /// `lspci -tv`, `ls -l /sys/bus/pci/devices` and `fi_info -v`. Each of these may be missing.
    ///
    /// # Errors
    /// Returns an error, in one line, if the directory contains nothing that a check reads.
    pub fn recorded(folder: &Path, wanted: Requirements) -> Result<Machine, String> {
        let is_tree = folder.join("sys/bus/pci/devices").is_dir() || folder.join("lspci.txt").is_file();
        let is_listing = ["fi_info.yaml", "fi_info.txt"].iter().any(|name| folder.join(name).is_file());
        if !(is_tree || is_listing || folder.join("proc").is_dir() || folder.join("sys").is_dir()) {
            return Err(format!(
                "{} is not a recorded machine: expected a directory with proc/, sys/, lspci.txt or fi_info.yaml",
                folder.display()
            ));
        }
        let tree = is_tree.then(|| Tree::recorded(folder)).transpose()?;
        let listing =
            if is_listing { Some(Ok(Listing::from_dump(folder).map_err(|error| error.to_string())?)) } else { None };
        let host = fs::read_to_string(folder.join("proc/sys/kernel/hostname")).unwrap_or_default();
        let host = if host.trim().is_empty() { "recorded".to_owned() } else { host.trim().to_owned() };
        let text = fs::read(folder.join("proc/self/environ")).unwrap_or_default();
        let variables = text.split(|byte| *byte == 0).filter_map(|one| {
            let one = String::from_utf8_lossy(one);
            one.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
        });
        let (root, environment) = (folder.to_owned(), variables.collect());
        Ok(Machine { root, host, environment, tree, listing, wanted, ..Machine::default() })
    }

    /// Returns the EFA devices on the bus; empty if the bus is not visible.
    #[must_use]
    pub fn efa_cards(&self) -> Vec<&PciFunction> {
        self.tree.iter().flat_map(|tree| tree.of(PciKind::Nic)).filter(|nic| nic.efa).collect()
    }

    /// Returns the addresses of the EFA devices on the bus that no driver has bound; empty if drivers are unknown.
    pub(super) fn unbound_cards(&self) -> Vec<PciAddress> {
        if !self.exists("sys/bus/pci/devices") {
            return Vec::new();
        }
        self.efa_cards().iter().filter(|card| card.driver.is_none()).map(|card| card.address).collect()
    }

    /// Returns the PCI bus; `None` if it is not visible.
    #[must_use]
    pub fn tree(&self) -> Option<&Tree> {
        self.tree.as_ref()
    }

    /// Returns a short reason why the devices on the bus are unknown. `None` if the bus is visible.
    pub fn bus_unseen(&self) -> Option<String> {
        let why = self.unseen.as_ref().map_or("it was not recorded", String::as_str);
        self.tree.is_none().then(|| format!("the PCI bus cannot be seen: {why}"))
    }

    /// Returns whether a kernel module is loaded. `None` if this is unknown.
    pub(super) fn module(&self, name: &str) -> Option<bool> {
        if self.exists(&format!("sys/module/{name}")) {
            return Some(true);
        }
        let listed = self.text("proc/modules").filter(|text| !text.is_empty());
        match listed {
            Some(text) => Some(text.lines().any(|line| line.split(' ').next() == Some(name))),
            None => (!self.names("sys/module").is_empty()).then_some(false),
        }
    }

    /// Returns whether a device class that is missing from sysfs does not exist. False in sandboxes that show only
    /// parts of sysfs.
    pub(super) fn shows_classes(&self) -> bool {
        self.tree.is_some() && !self.names("sys/class").is_empty()
    }

    /// Returns the GPUs on the bus.
    #[must_use]
    pub fn gpus(&self) -> Vec<PciAddress> {
        self.tree.iter().flat_map(|tree| tree.of(PciKind::Gpu)).map(|gpu| gpu.address).collect()
    }

    /// Returns the instance type with its numbers, if it is known.
    #[must_use]
    pub fn kind(&self) -> Option<Instance> {
        Instance::named(&self.instance()?)
    }

    /// Returns whether the number of EFA devices is the one that the user or the instance type specifies. True if
    /// neither specifies a number.
    #[must_use]
    pub fn has_its_cards(&self) -> bool {
        self.tree.is_none() || self.expected_cards().is_none_or(|expected| self.efa_cards().len() >= expected)
    }

    /// Returns the number of EFA devices that should exist.
    pub(super) fn expected_cards(&self) -> Option<usize> {
        self.wanted.cards.or_else(|| Instance::named(&self.instance()?).map(|instance| instance.cards))
    }

    /// Returns the RDMA devices of the efa driver. A p6-b200 also has two `ibp*` devices of its NVLink switches, which
    /// carry no ginlab traffic.
    pub(super) fn efa_devices(&self) -> Vec<String> {
        let of_efa =
            |name: &String| self.link(&format!("sys/class/infiniband/{name}/device/driver")).as_deref() == Some("efa");
        self.names("sys/class/infiniband").into_iter().filter(of_efa).collect()
    }

    /// Returns the device nodes `uverbs*` of /dev/infiniband: those of the efa driver, and those of other drivers. A
    /// node whose driver was not recorded counts as one of efa.
    pub(super) fn device_nodes(&self) -> (Vec<String>, Vec<String>) {
        let nodes = self.names("dev/infiniband").into_iter().filter(|name| name.starts_with("uverbs"));
        nodes.partition(|name| {
            let driver = self.link(&format!("sys/class/infiniband_verbs/{name}/device/driver"));
            driver.is_none_or(|driver| driver == "efa")
        })
    }

    /// Returns whether this process is in a container.
    pub(super) fn in_container(&self) -> bool {
        super::container::kind(self).is_some()
    }

    /// Returns whether user IDs are mapped, so that capabilities apply only inside the namespace.
    pub(super) fn in_user_namespace(&self) -> bool {
        let map = self.text("proc/self/uid_map");
        map.is_some_and(|map| map.split_whitespace().ne(["0", "0", "4294967295"]))
    }

    /// Returns whether this process is exempt from the limit of locked memory. The kernel checks for CAP_IPC_LOCK (bit
    /// 14) in the initial user namespace. `None` if the capabilities cannot be read.
    pub(super) fn locks_without_limit(&self) -> Option<bool> {
        if self.in_user_namespace() {
            return Some(false);
        }
        let bits = u64::from_str_radix(&self.line("proc/self/status", "CapEff")?, 16).ok()?;
        Some(bits >> 14 & 1 == 1)
    }

    /// Returns the number of EFA devices that this process can use: in a container, those whose device nodes were
    /// passed in.
    #[must_use]
    pub fn usable_cards(&self) -> usize {
        let (cards, nodes) = (self.efa_cards().len(), self.device_nodes().0.len());
        if self.in_container() && nodes > 0 { cards.min(nodes) } else { cards }
    }

    /// Returns the PCI addresses of the NICs of the device nodes. `None` if they were not recorded, or outside of a
    /// container.
    pub(super) fn usable_card_addresses(&self) -> Option<Vec<PciAddress>> {
        let (nodes, _) = self.device_nodes();
        let place = |name: &String| self.link(&format!("sys/class/infiniband_verbs/{name}/device"))?.parse().ok();
        let places: Vec<PciAddress> = nodes.iter().filter_map(place).collect();
        (self.in_container() && !places.is_empty()).then_some(places)
    }

    /// Returns the GPUs that this process can use: those visible to CUDA, or all on the bus if CUDA was not queried.
    pub(super) fn usable_gpus(&self) -> Vec<PciAddress> {
        match &self.asked.visible {
            Some(visible) => visible.iter().filter_map(|gpu| gpu.address).collect(),
            None => self.gpus(),
        }
    }

    /// Returns the number of EFA devices that libfabric lists. Includes software NICs, which are not on the bus.
    #[must_use]
    pub fn efa_domains(&self) -> usize {
        let Some(Ok(listing)) = &self.listing else { return 0 };
        let of_efa = listing.domains.iter().filter(|listed| listed.is_efa() && listed.has_rma());
        let mut names: Vec<&str> = of_efa.map(|listed| listed.domain.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    }

    /// Returns whether the provider claims that this domain's rails support memory of CUDA devices.
    #[must_use]
    pub fn takes_gpu_memory(&self, domain: &Domain) -> bool {
        let Some(Ok(listing)) = &self.listing else { return false };
        listing.domains.iter().any(|listed| listed.domain == *domain && listed.cuda_memory == Some(true))
    }

    /// Returns whether runs use EFA. This is so if EFA is required, or if there are EFA devices and no other provider
    /// was selected.
    pub(super) fn means_efa(&self) -> bool {
        self.wanted.efa || (!self.wanted.other_provider && !self.efa_cards().is_empty())
    }

    /// Returns whether NICs are expected to access GPU memory. `None` if it is unknown for the instance type.
    pub(super) fn expects_direct(&self) -> Option<bool> {
        if self.wanted.staged { Some(false) } else { self.kind().map_or(Some(true), |kind| kind.gpu_direct) }
    }

    /// Returns the instance type, as specified by the user or by the machine's firmware.
    #[must_use]
    pub fn instance(&self) -> Option<String> {
        let asked = self.wanted.instance.as_deref().map(|name| plain(name).to_owned());
        asked.or_else(|| self.firmware_instance())
    }

    /// Returns whether the firmware identifies the machine as an EC2 instance.
    fn is_on_ec2(&self) -> bool {
        self.text("sys/class/dmi/id/sys_vendor").as_deref() == Some("Amazon EC2")
    }

    /// Returns the instance type that the machine's firmware reports.
    pub(super) fn firmware_instance(&self) -> Option<String> {
        Some(plain(&instance_type(&self.root)?).to_owned())
    }

    /// Returns the id of the EC2 instance, which its firmware reports as the tag of the board.
    #[must_use]
    pub fn instance_id(&self) -> Option<String> {
        self.is_on_ec2().then(|| self.text("sys/class/dmi/id/board_asset_tag"))?.filter(|id| id.starts_with("i-"))
    }

    /// Returns the modelled properties of the whole instance, if they are known.
    pub(super) fn profile(&self) -> Option<Profile> {
        self.kind()?.profile()
    }
}

/// Splits the result into the tree and the reason why it is not visible.
fn seen(tree: Result<Tree, String>) -> (Option<Tree>, Option<String>) {
    match tree {
        Ok(tree) => (Some(tree), None),
        Err(why) => (None, Some(why)),
    }
}

/// Returns the environment variables of this process.
fn variables() -> BTreeMap<String, String> {
    let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
    std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect()
}

/// Returns the addresses to which this host's name resolves.
fn addresses(host: &str) -> Result<Vec<std::net::IpAddr>, String> {
    use std::net::ToSocketAddrs;
    let found = (host, 0).to_socket_addrs().map_err(|error| error.to_string())?;
    Ok(found.map(|address| address.ip()).collect())
}
