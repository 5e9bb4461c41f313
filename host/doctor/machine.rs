//! What the checks look at: files below a root, variables, and what only a running system answers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::instances::Instance;
use super::trial::Trial;
use ginlab_cuda::{self as cuda, VisibleGpu};
use ginlab_fabric::discover::Domain;
use ginlab_fabric::libfabric;
use ginlab_fabric::listing::Listing;
use ginlab_fabric::model::Profile;
use ginlab_topology::nvml;
pub use ginlab_topology::nvml::{GpuState, LinkErrors};
use ginlab_topology::pci::{Kind, PciAddress};
use ginlab_topology::tree::{Function, Tree};
use nvml_wrapper::Nvml;

/// What the user says about the machine and the run that is planned.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The run is to go over EFA: what only EFA needs fails where it would otherwise be skipped.
    pub efa: bool,
    /// The run is to go over another provider: EFA cards that are here need not work.
    pub other_provider: bool,
    /// The instance's type, where the machine does not tell it: `p5.48xlarge`.
    pub instance: Option<String>,
    /// EFA cards that must be there, in place of the instance's number.
    pub cards: Option<usize>,
    /// Look at what an edit of a kernel needs.
    pub developer: bool,
    /// Interfaces that the ranks are to meet by.
    pub interfaces: Option<String>,
}

/// Answers of a running system; `None` where it was not asked.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The loaded libfabric: version and file; `none` where there is none.
    pub libfabric: Option<String>,
    /// The MPI that this program was built with; an empty text for none.
    pub mpi: Option<String>,
    /// GPUs as the management library sees them; the error is its own.
    pub gpus: Option<Result<Vec<GpuState>, String>>,
    /// The GPUs at a second look, and how long it was after the first.
    pub gpus_later: Option<(Duration, Vec<GpuState>)>,
    /// The driver's version.
    pub driver: Option<String>,
    /// The newest CUDA that the driver takes.
    pub cuda: Option<String>,
    /// GPUs that CUDA shows.
    pub visible: Option<Vec<VisibleGpu>>,
    /// A page of GPU memory mapped by GDRCopy and read back: its library's version, or why not.
    pub gdrcopy: Option<Result<String, String>>,
    /// What this host's name leads to.
    pub addresses: Option<Result<Vec<std::net::IpAddr>, String>>,
    /// The kernel's messages about Xid errors.
    pub xids: Option<Vec<String>>,
    /// The compiler of the PTX in this program; an empty text without PTX.
    pub ptx: Option<String>,
    /// Whether an MPS server answers where CUDA looks for one.
    pub mps: Option<bool>,
    /// GPU memory registered with the EFA cards themselves: by which way, or why not.
    pub registered: Option<Result<String, String>>,
    /// Writes that were tried.
    pub trials: Option<Vec<Trial>>,
}

/// A machine: this one, or a recorded one.
#[derive(Debug, Default)]
pub struct Machine {
    pub(super) root: PathBuf,
    pub(super) host: String,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) tree: Option<Tree>,
    pub(super) listing: Option<Result<Listing, String>>,
    /// What the user says.
    pub wanted: Wanted,
    /// What was asked.
    pub asked: Asked,
    /// How long each thing took that was asked or tried.
    pub took: Took,
    watch: Option<(Instant, Nvml)>,
}

/// How long things took, by name.
#[derive(Clone, Debug, Default)]
pub struct Took(Vec<(String, Duration)>);

impl Took {
    /// Does it, and keeps the time.
    pub fn of<T>(&mut self, what: &str, ask: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let answer = ask();
        self.0.push((what.to_owned(), started.elapsed()));
        answer
    }

    /// All together, and what took longest, in a line.
    #[must_use]
    pub fn text(&self) -> String {
        let seconds = |duration: &Duration| format!("{:.1} s", duration.as_secs_f64());
        let mut longest: Vec<&(String, Duration)> =
            self.0.iter().filter(|(_, took)| *took >= Duration::from_millis(50)).collect();
        longest.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        let parts: Vec<String> = longest.iter().map(|(what, took)| format!("{what} {}", seconds(took))).collect();
        let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
        format!("looking took {}{parts}", seconds(&self.0.iter().map(|(_, took)| took).sum()))
    }
}

impl Machine {
    /// This machine. Nothing is tried yet; see [`super::trial`].
    #[must_use]
    pub fn here(wanted: Wanted) -> Machine {
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
        let mut took = Took::default();
        // First, and held: the driver puts GPUs to sleep that nobody uses, and wakes them up anew for each who asks.
        let watch = took.of("NVML", nvml::open);
        let looked = Instant::now();
        let asked = Asked {
            gpus: Some(took.of("GPUs", || watch.as_ref().map_err(Clone::clone).and_then(nvml::states))),
            driver: nvml::driver_version(),
            cuda: cuda::driver_version(),
            visible: took.of("CUDA", || cuda::visible_gpus().ok()),
            libfabric: Some(took.of("libfabric", libfabric::library_text)),
            mpi: Some(ginlab_bootstrap::mpi_version().unwrap_or_default()),
            addresses: Some(took.of("this host's name", || addresses(&host))),
            xids: took.of("the kernel's log", xids),
            mps: Some(ginlab_sharing::mps::is_there()),
            ptx: Some(ginlab_cuda::ptx().rustc.unwrap_or_default().to_owned()),
            ..Asked::default()
        };
        Machine {
            root: "/".into(),
            host,
            environment: variables(),
            tree: Some(took.of("the PCI tree", Tree::here)),
            listing: Some(took.of("domains", || Listing::here().map_err(|error| error.to_string()))),
            wanted,
            asked,
            took,
            watch: watch.ok().map(|watch| (looked, watch)),
        }
    }

    /// This machine's PCI bus alone: what is asked of it takes no time.
    #[must_use]
    pub fn bus(wanted: Wanted) -> Machine {
        let (tree, environment) = (Some(Tree::here()), variables());
        Machine { root: "/".into(), environment, tree, wanted, ..Machine::default() }
    }

    /// Looks at the GPUs again, for what they have counted meanwhile.
    pub fn look_again(&mut self) {
        let Some((first, watch)) = &self.watch else { return };
        let later = self.took.of("GPUs again", || nvml::states(watch));
        self.asked.gpus_later = later.ok().map(|states| (first.elapsed(), states));
    }

    /// A recorded one: a folder with files of `/proc`, `/sys`, `/dev` and `/etc` in their places, or with the listings of
    /// `lspci -tv`, `ls -l /sys/bus/pci/devices` and `fi_info -v`, as many of them as were kept.
    ///
    /// # Errors
    /// When there is nothing that a check could read, in one line.
    pub fn recorded(folder: &Path, wanted: Wanted) -> Result<Machine, String> {
        let is_tree = folder.join("sys/bus/pci/devices").is_dir() || folder.join("lspci.txt").is_file();
        let is_listing = ["fi_info.yaml", "fi_info.txt"].iter().any(|name| folder.join(name).is_file());
        if !(is_tree || is_listing || folder.join("proc").is_dir() || folder.join("sys").is_dir()) {
            return Err(format!(
                "{}: no recorded machine: a folder with proc/, sys/, lspci.txt or fi_info.yaml",
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

    /// A file's text without blanks around it; `None` where it cannot be read.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.root.join(path)).ok()?.trim().to_owned())
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Whether a device node can be opened for reading.
    pub(super) fn opens(&self, path: &str) -> bool {
        fs::File::open(self.root.join(path)).is_ok()
    }

    /// Names in a folder, in order; none where there is no such folder.
    pub(super) fn names(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.root.join(folder)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
        names.sort();
        names
    }

    /// The last part of what a link leads to.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let to = fs::read_link(self.root.join(path)).ok()?;
        Some(to.file_name()?.to_string_lossy().into_owned())
    }

    /// A variable that is set to something.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        self.environment.get(name).filter(|value| !value.is_empty()).cloned()
    }

    /// A line `Name: value` of a file of /proc.
    pub(super) fn line(&self, path: &str, name: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
        Some(line.trim().to_owned())
    }

    /// EFA cards on the bus; none where nobody recorded the bus.
    #[must_use]
    pub fn efa_cards(&self) -> Vec<&Function> {
        let is_efa = |nic: &&Function| match &nic.driver {
            Some(driver) => driver == "efa",
            // A card without a driver, and a listing, which names none.
            None => nic.name.contains("EFA") || (nic.rma && nic.name.starts_with("rdmap")),
        };
        self.tree.iter().flat_map(|tree| tree.of(Kind::Nic)).filter(is_efa).collect()
    }

    /// GPUs on the bus.
    #[must_use]
    pub fn gpus(&self) -> Vec<PciAddress> {
        self.tree.iter().flat_map(|tree| tree.of(Kind::Gpu)).map(|gpu| gpu.address).collect()
    }

    /// Whether as many EFA cards are here as the user or the instance says, as far as either does.
    #[must_use]
    pub fn has_its_cards(&self) -> bool {
        self.expected_cards().is_none_or(|expected| self.efa_cards().len() >= expected)
    }

    /// EFA cards that should be here.
    pub(super) fn expected_cards(&self) -> Option<usize> {
        self.wanted.cards.or_else(|| Instance::named(&self.instance()?).map(|instance| instance.cards))
    }

    /// RDMA devices that the efa driver owns. A p6-b200 also shows two `ibp*` of its NVLink switches, which carry no traffic of ours.
    pub(super) fn efa_devices(&self) -> Vec<String> {
        let of_efa =
            |name: &String| self.link(&format!("sys/class/infiniband/{name}/device/driver")).as_deref() == Some("efa");
        self.names("sys/class/infiniband").into_iter().filter(of_efa).collect()
    }

    /// The device nodes `uverbs*` of /dev/infiniband: those of the efa driver, and those of others. A node whose driver was not
    /// recorded counts as one of efa.
    pub(super) fn device_nodes(&self) -> (Vec<String>, Vec<String>) {
        let nodes = self.names("dev/infiniband").into_iter().filter(|name| name.starts_with("uverbs"));
        nodes.partition(|name| {
            let driver = self.link(&format!("sys/class/infiniband_verbs/{name}/device/driver"));
            driver.is_none_or(|driver| driver == "efa")
        })
    }

    /// Whether this process is in a container: Docker's and Podman's files, Kubernetes' variable, or a user namespace of its own
    /// (enroot leaves no other trace).
    pub(super) fn in_container(&self) -> bool {
        self.exists(".dockerenv")
            || self.exists("run/.containerenv")
            || self.variable("KUBERNETES_SERVICE_HOST").is_some()
            || self.in_user_namespace()
    }

    /// Whether user ids are mapped, so that capabilities count inside the namespace alone.
    fn in_user_namespace(&self) -> bool {
        let map = self.text("proc/self/uid_map");
        map.is_some_and(|map| map.split_whitespace().ne(["0", "0", "4294967295"]))
    }

    /// Whether the limit of locked memory does not apply. The kernel asks for CAP_IPC_LOCK (bit 14) in the initial user namespace.
    pub(super) fn locks_without_limit(&self) -> bool {
        let bits = self.line("proc/self/status", "CapEff").and_then(|text| u64::from_str_radix(&text, 16).ok());
        bits.is_some_and(|bits| bits >> 14 & 1 == 1) && !self.in_user_namespace()
    }

    /// EFA cards that this process may use: of a container those whose device nodes were passed in.
    #[must_use]
    pub fn usable_cards(&self) -> usize {
        let (cards, nodes) = (self.efa_cards().len(), self.device_nodes().0.len());
        if self.in_container() && nodes > 0 { cards.min(nodes) } else { cards }
    }

    /// Where the cards of the device nodes are on the bus; `None` where that was not recorded, or outside a container.
    pub(super) fn usable_card_addresses(&self) -> Option<Vec<PciAddress>> {
        let (nodes, _) = self.device_nodes();
        let place = |name: &String| self.link(&format!("sys/class/infiniband_verbs/{name}/device"))?.parse().ok();
        let places: Vec<PciAddress> = nodes.iter().filter_map(place).collect();
        (self.in_container() && !places.is_empty()).then_some(places)
    }

    /// GPUs that this process may use: those that CUDA shows, or all of the bus where it was not asked.
    pub(super) fn usable_gpus(&self) -> Vec<PciAddress> {
        match &self.asked.visible {
            Some(visible) => visible.iter().filter_map(|gpu| gpu.address).collect(),
            None => self.gpus(),
        }
    }

    /// EFA devices that libfabric lists: cards in software are not on the bus.
    #[must_use]
    pub fn efa_domains(&self) -> usize {
        let Some(Ok(listing)) = &self.listing else { return 0 };
        let of_efa = listing.domains.iter().filter(|listed| listed.is_efa() && listed.has_rma());
        let mut names: Vec<&str> = of_efa.map(|listed| listed.domain.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    }

    /// Whether the provider says that this domain's rails take memory of CUDA devices.
    #[must_use]
    pub fn takes_gpu_memory(&self, domain: &Domain) -> bool {
        let Some(Ok(listing)) = &self.listing else { return false };
        listing.domains.iter().any(|listed| listed.domain == *domain && listed.cuda_memory == Some(true))
    }

    /// Whether the run goes over EFA: asked for, or cards are here and no other provider was named.
    pub(super) fn means_efa(&self) -> bool {
        self.wanted.efa || (!self.wanted.other_provider && !self.efa_cards().is_empty())
    }

    /// The instance's type: as the user says it, or as the machine's firmware does.
    pub(super) fn instance(&self) -> Option<String> {
        let firmware = || {
            let vendor = self.text("sys/class/dmi/id/sys_vendor")?;
            (vendor == "Amazon EC2").then(|| self.text("sys/class/dmi/id/product_name"))?
        };
        self.wanted.instance.clone().or_else(firmware)
    }

    /// The figures of the whole instance, where they are known.
    pub(super) fn profile(&self) -> Option<Profile> {
        let instance = self.instance()?;
        // Other sizes of a family have fewer cards.
        let name = match instance.as_str() {
            "p4d.24xlarge" | "p4de.24xlarge" => "p4d",
            "p5.48xlarge" | "p5e.48xlarge" => "p5",
            "p5en.48xlarge" => "p5en",
            "p6-b200.48xlarge" => "p6-b200",
            _ => return None,
        };
        Profile::named(name).ok()
    }
}

/// The variables of this process.
fn variables() -> BTreeMap<String, String> {
    let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
    std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect()
}

/// What the name of this host leads to.
fn addresses(host: &str) -> Result<Vec<std::net::IpAddr>, String> {
    use std::net::ToSocketAddrs;
    let found = (host, 0).to_socket_addrs().map_err(|error| error.to_string())?;
    Ok(found.map(|address| address.ip()).collect())
}

/// Lines of the kernel's log about Xid errors of GPUs; `None` where this process may not read it.
fn xids() -> Option<Vec<String>> {
    let said = std::process::Command::new("dmesg").output().ok().filter(|said| said.status.success())?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    Some(text.lines().filter(|line| line.contains("NVRM: Xid")).map(str::to_owned).collect())
}
