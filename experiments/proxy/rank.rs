//! What one rank holds for the whole run: device, memory, rings, proxy threads, and the connection to its peers.

use super::args::MemoryKind;
use super::plan::{Layout, Pin, Plan, Tuple};
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, CopyQueue, Device, Place};
use ginlab::fabric::discover::{self, Domain, Reach};
use ginlab::fabric::libfabric::{LibfabricRail, RailOptions};
use ginlab::fabric::null::NullRail;
use ginlab::fabric::{Memory, Rail, RemoteRegion};
use ginlab::measure::size;
use ginlab::proxy::engine::{Engine, EngineError, Opened};
use ginlab::proxy::stage::Stage;
use ginlab::proxy::{Fault, Offer, Proxy, ProxySetup};
use ginlab::ring::{RingMemory, RingTable};
use kernels::put_kernel::BlockResult;
use kernels::ring::consumer::Consumer;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Region numbers, the same on every rank.
pub const SOURCE: u32 = 0;
pub const DESTINATION: u32 = 1;
/// What a rank registers where it has nothing to give: regions keep their numbers.
const PLACEHOLDER: u64 = 4096;
/// Commands in flight per proxy thread.
const IN_FLIGHT: usize = 16384;

/// How the rails reach the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPath {
    /// Plain host memory (emulated device).
    Host,
    /// Pinned host memory that the GPU writes over PCIe.
    Pinned,
    /// GPU memory that the NIC reads and writes itself.
    Device,
    /// GPU memory that the proxy copies into pinned host memory before the write; it arrives in pinned host memory.
    Staged,
}

impl MemoryPath {
    /// For rows.
    pub fn name(self) -> &'static str {
        match self {
            MemoryPath::Host => "host",
            MemoryPath::Pinned => "pinned",
            MemoryPath::Device => "device",
            MemoryPath::Staged => "device-staged",
        }
    }

    /// For the header.
    pub fn text(self) -> &'static str {
        match self {
            MemoryPath::Host => "host memory (the emulated device has no other)",
            MemoryPath::Pinned => "pinned host memory, written by the GPU over PCIe, registered with the fabric",
            MemoryPath::Device => "GPU memory, registered with the fabric (FI_HMEM)",
            MemoryPath::Staged => {
                "GPU memory, copied by the proxy into pinned host memory before each write (the provider has no FI_HMEM \
                 for CUDA here); the destination is pinned host memory"
            }
        }
    }
}

/// See the module. Fields are dropped in this order: the proxies let go of the memory before it is freed.
pub struct Rank {
    proxies: Vec<Proxy>,
    pub table: RingTable,
    rings: Vec<RingMemory>,
    /// Source of an initiator, destination of a target: what the kernel writes or the verification reads.
    pub payload: Buffer,
    _other: Buffer,
    _staging: Vec<Buffer>,
    pub tickets: Buffer,
    pub results: Buffer,
    device: Device,
    provider: String,
    domains: Vec<Domain>,
    path: MemoryPath,
    notes: Vec<String>,
    /// The rank we put to, when we are one that puts.
    pub target: Option<usize>,
    /// The rank that puts to us.
    pub source: Option<usize>,
    /// Number of the next verified iteration: no pass repeats the pattern of an earlier one.
    pub next_iteration: u32,
}

/// What ranks tell each other about one proxy thread.
#[derive(Serialize, Deserialize)]
struct Card {
    addresses: Vec<Vec<u8>>,
    /// Key, base and length by region and rail.
    regions: Vec<Vec<(u64, u64, u64)>>,
}

impl Rank {
    /// Opens everything and connects to all ranks.
    pub fn open(plan: &Plan, ranks: &mut Bootstrap) -> Result<Rank, Failure> {
        let half = ranks.size() / 2;
        let (target, source) = match ranks.rank() {
            rank if ranks.size() == 1 => (Some(rank), None),
            rank if rank < half => (Some(rank + half), None),
            rank => (None, Some(rank - half)),
        };
        let mut notes = Vec::new();
        let (device, why_emulated) = Device::open(plan.device, ranks.local_rank())?;
        if let Some(why) = why_emulated {
            notes.push(format!("emulated device, whose times say nothing about a GPU: {why}"));
        }
        let most_rails = plan.rails.iter().copied().max().unwrap_or(1);
        let (provider, domains) = choose_domains(plan, ranks, &device, most_rails, &mut notes)?;
        let path = memory_path(plan, &device, &domains)?;
        let needs = Needs::of(plan, &device)?;
        needs.check_memory(ranks, plan, &device)?;

        let place = if matches!(path, MemoryPath::Device | MemoryPath::Staged) { Place::Device } else { Place::Host };
        let initiates = target.is_some();
        // Bytes arrive in host memory where the rails cannot reach the GPU's.
        let payload_place = if initiates || path == MemoryPath::Device { place } else { Place::Host };
        let payload = device.allocate(payload_place, to_usize(needs.payload)?)?;
        let null_destination = if plan.is_null() { needs.payload } else { PLACEHOLDER };
        let other = device.allocate(Place::Host, PLACEHOLDER as usize)?;
        let mut rings = Vec::new();
        let mut staging = Vec::new();
        let mut setups = Vec::new();
        let pins = pins(plan, ranks, &device, &mut notes);
        for thread in 0..plan.proxy_threads {
            let ring = RingMemory::new(&device, plan.ring_slots, plan.timeout)?;
            let mut stage = None;
            let mut source = memory_of(&payload, &device, path == MemoryPath::Device);
            if path == MemoryPath::Staged && initiates {
                let Device::Gpu(gpu) = &device else {
                    return Err(Failure::Run("staging without a GPU".into()));
                };
                let copy = device.allocate(Place::Host, to_usize(needs.payload)?)?;
                source = memory_of(&copy, &device, false);
                // SAFETY: both buffers are as long as the region and are kept by the Rank behind its proxies.
                stage = Some(unsafe { Stage::new(CopyQueue::new(gpu)?, payload.address(), copy.address()) });
                staging.push(copy);
            }
            let placeholder = memory_of(&other, &device, false);
            let null = Memory { bytes: to_usize(null_destination)?, ..placeholder };
            let memories = match (initiates, plan.is_null()) {
                (true, true) => [source, null],
                (true, false) => [source, placeholder],
                (false, _) => [placeholder, source],
            };
            let shared = Common {
                memories,
                stage,
                // SAFETY: taken once per ring; the Rank keeps the ring behind its proxies.
                consumer: Some(unsafe { ring.consumer() }),
                cpu: pins.cpus.get(thread).copied(),
                shares_core: pins.shared,
                timeout: plan.timeout,
                fault: plan.fault.filter(|_| initiates),
            };
            rings.push(ring);
            setups.push(shared);
        }
        let mut proxies = Vec::new();
        for shared in setups {
            let proxy = if plan.is_null() {
                Proxy::start(NullSetup { shared, rails: most_rails }, plan.timeout)
            } else {
                let options =
                    RailOptions { level: plan.level, cuda_memory: path == MemoryPath::Device, max_outstanding: None };
                Proxy::start(LibfabricSetup { shared, domains: domains.clone(), options }, plan.timeout)
            };
            proxies.push(proxy?);
        }
        let table = RingTable::new(&device, &rings)?;
        let rank = Rank {
            table,
            proxies,
            rings,
            payload,
            _other: other,
            _staging: staging,
            tickets: device.allocate(Place::Device, to_usize(needs.slots * 8)?)?,
            results: device.allocate(Place::Device, needs.blocks * size_of::<BlockResult>())?,
            device,
            provider,
            domains,
            path,
            notes,
            target,
            source,
            next_iteration: 1,
        };
        rank.connect(ranks)?;
        Ok(rank)
    }

    /// Exchanges addresses and regions: thread `t` of every rank talks to thread `t` of the others.
    fn connect(&self, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let cards: Vec<Card> = self.proxies.iter().map(|proxy| Card::of(proxy.offer())).collect();
        let text = serde_json::to_vec(&cards).map_err(|error| Failure::Run(error.to_string()))?;
        let all: Vec<Vec<Card>> = ranks
            .all_gather(&text, "addresses and memory keys")?
            .iter()
            .map(|bytes| serde_json::from_slice(bytes))
            .collect::<Result<_, _>>()
            .map_err(|error| Failure::Run(format!("a rank's addresses are not readable: {error}")))?;
        for (thread, proxy) in self.proxies.iter().enumerate() {
            let of_thread: Vec<&Card> = all.iter().filter_map(|cards| cards.get(thread)).collect();
            if of_thread.len() != ranks.size() {
                return Err(Failure::Run("ranks differ in their number of proxy threads".into()));
            }
            proxy.connect(
                of_thread.iter().map(|card| card.addresses.clone()).collect(),
                of_thread.iter().map(|card| card.regions()).collect(),
            )?;
        }
        Ok(ranks.barrier("connected")?)
    }

    pub fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What the first proxy thread opened; the others open the same.
    pub fn offer(&self) -> &Offer {
        self.proxies[0].offer()
    }

    pub fn provider(&self) -> &str {
        &self.provider
    }

    pub fn memory_path(&self) -> MemoryPath {
        self.path
    }

    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Where each ring stands, for messages about waits that ended.
    pub fn ring_states(&self) -> Vec<String> {
        self.rings.iter().enumerate().map(|(index, ring)| format!("ring {index}: {}", ring.state())).collect()
    }

    /// Cores of the proxy threads, for the header.
    pub fn affinity(&self) -> String {
        let cores: Vec<String> = self
            .proxies
            .iter()
            .map(|proxy| proxy.offer().cpu.map_or_else(|| "not pinned".into(), |cpu| format!("core {cpu}")))
            .collect();
        format!("proxy threads: {}", cores.join(", "))
    }

    /// Line rate of the first `rails` rails in bit/s, each domain counted once, where the provider tells it.
    pub fn line_rate(&self, rails: usize) -> Option<u64> {
        let used = self.domains.get(..rails)?;
        let mut distinct: Vec<&Domain> = Vec::new();
        for domain in used {
            if !distinct.contains(&domain) {
                distinct.push(domain);
            }
        }
        // The loopback's and a virtual interface's rate is a number without a meaning.
        distinct.iter().map(|domain| domain.pci.and(domain.link_bits_per_second)).sum()
    }

    /// Threads per block of a tuple.
    pub fn block(&self, tuple: &Tuple) -> u32 {
        tuple.block.unwrap_or_else(|| default_block(&self.device))
    }
}

/// A block of 256 on a GPU; on the emulated device each thread is a CPU thread, and a few show the same.
fn default_block(device: &Device) -> u32 {
    match device {
        Device::Emulated => 4,
        Device::Gpu(_) => 256,
    }
}

impl Card {
    fn of(offer: &Offer) -> Card {
        let plain = |region: &RemoteRegion| (region.key, region.base, region.bytes);
        Card {
            addresses: offer.addresses.clone(),
            regions: offer.regions.iter().map(|rails| rails.iter().map(plain).collect()).collect(),
        }
    }

    fn regions(&self) -> Vec<Vec<RemoteRegion>> {
        let region = |&(key, base, bytes): &(u64, u64, u64)| RemoteRegion { key, base, bytes };
        self.regions.iter().map(|rails| rails.iter().map(region).collect()).collect()
    }
}

fn to_usize(bytes: u64) -> Result<usize, Failure> {
    usize::try_from(bytes).map_err(|_| Failure::Usage(format!("{bytes} bytes are more than this machine can address")))
}

fn memory_of(buffer: &Buffer, device: &Device, in_device: bool) -> Memory {
    Memory {
        address: buffer.address(),
        bytes: buffer.bytes(),
        cuda_device: if in_device { device.cuda_ordinal() } else { None },
    }
}

/// The largest of each over all tuples.
struct Needs {
    payload: u64,
    slots: u64,
    blocks: usize,
}

impl Needs {
    /// Refuses grids that the device cannot run, before anything is opened.
    fn of(plan: &Plan, device: &Device) -> Result<Needs, Failure> {
        let mut needs = Needs { payload: PLACEHOLDER, slots: 1, blocks: 1 };
        for tuple in plan.rows() {
            let block = tuple.block.unwrap_or_else(|| default_block(device));
            device.check_grid(tuple.grid, block)?;
            // A tuple that does not fit becomes a skipped row.
            if let Ok(layout) = Layout::new(plan, &tuple, block) {
                needs.payload = needs.payload.max(layout.bytes());
                needs.slots = needs.slots.max(layout.producers * layout.window);
            }
            needs.blocks = needs.blocks.max(tuple.grid as usize);
        }
        Ok(needs)
    }

    /// Refuses what this machine's memory cannot hold: an allocation succeeds lazily and kills the process later.
    fn check_memory(&self, ranks: &Bootstrap, plan: &Plan, device: &Device) -> Result<(), Failure> {
        let per_rank = self.payload.saturating_add((plan.ring_slots * plan.proxy_threads * 32) as u64);
        let copies = if plan.memory == MemoryKind::Device && matches!(device, Device::Gpu(_)) { 2 } else { 1 };
        let here = per_rank.saturating_mul(ranks.local_size() as u64).saturating_mul(copies);
        let Some(available) = available_memory().filter(|_| !plan.memory_is_promised) else { return Ok(()) };
        if here > available {
            return Err(Failure::Usage(format!(
                "the {} ranks on this machine need {} for payloads, and {} is available: try a smaller -e, --grid, \
                 --window, or name a --memory-limit that this machine can give",
                ranks.local_size(),
                size::human(here),
                size::human(available)
            )));
        }
        Ok(())
    }
}

/// MemAvailable of /proc/meminfo, in bytes.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn choose_domains(
    plan: &Plan,
    ranks: &mut Bootstrap,
    device: &Device,
    count: usize,
    notes: &mut Vec<String>,
) -> Result<(String, Vec<Domain>), Failure> {
    if plan.is_null() {
        notes.push(
            "null rails: the proxy completes each put at once, nothing is moved; puts are counted, not bytes checked"
                .into(),
        );
        return Ok((super::plan::NULL.into(), Vec::new()));
    }
    // What cannot be opened because of how it was asked for is a usage error.
    let as_usage = |error: ginlab::fabric::FabricError| Failure::Usage(error.to_string());
    let choice = discover::choose_provider(plan.provider.as_deref()).map_err(as_usage)?;
    let reach = if ranks.same_host() { Reach::SameHost } else { Reach::Network };
    let near = device.pci_address().and_then(|address| address.parse().ok());
    let chosen = discover::select_domains(
        &choice.provider,
        count,
        reach,
        &plan.domains,
        near,
        ranks.local_rank(),
        ranks.local_size(),
    )
    .map_err(as_usage)?;
    notes.push(format!("provider {}: {}", choice.provider, choice.reason));
    notes.extend(chosen.note.clone());
    // Rails pair by number: a list of another length or kind on another rank would write into the wrong place.
    let list = |name: &str, value: String| (name.to_owned(), value);
    ranks.compare(vec![
        list("provider", choice.provider.clone()),
        list("number of rails", chosen.domains.len().to_string()),
    ])?;
    if chosen.domains.len() < count {
        return Err(Failure::Usage(format!("--rails {count}: only {} domains were named", chosen.domains.len())));
    }
    Ok((choice.provider, chosen.domains))
}

/// Whether the rails can reach device memory is asked by registering some.
fn memory_path(plan: &Plan, device: &Device, domains: &[Domain]) -> Result<MemoryPath, Failure> {
    if matches!(device, Device::Emulated) {
        return Ok(MemoryPath::Host);
    }
    if plan.memory == MemoryKind::Pinned {
        return Ok(MemoryPath::Pinned);
    }
    if plan.is_null() {
        return Ok(MemoryPath::Device);
    }
    let Some(domain) = domains.first() else { return Ok(MemoryPath::Staged) };
    let probe = device.allocate(Place::Device, 2 << 20)?;
    let options = RailOptions { level: plan.level, cuda_memory: true, max_outstanding: None };
    let reachable = LibfabricRail::open(domain, &options).ok().is_some_and(|mut rail| {
        // SAFETY: the buffer outlives the region, which ends in this expression.
        rail.limits().cuda_memory && unsafe { rail.register(memory_of(&probe, device, true)) }.is_ok()
    });
    Ok(if reachable { MemoryPath::Device } else { MemoryPath::Staged })
}

/// Cores for this rank's proxy threads.
struct Pins {
    cpus: Vec<usize>,
    shared: bool,
}

/// One core per proxy thread where this machine has them beside one for each rank's kernel and main thread; otherwise
/// none is pinned and idle polls give way.
fn pins(plan: &Plan, ranks: &Bootstrap, device: &Device, notes: &mut Vec<String>) -> Pins {
    let allowed = allowed_cpus();
    let threads = plan.proxy_threads * ranks.local_size();
    let busy = match device {
        Device::Emulated => threads + ranks.local_size() + 1,
        Device::Gpu(_) => threads + 1,
    };
    let shared = busy > allowed.len();
    let first = ranks.local_rank() * plan.proxy_threads;
    let cpus = match &plan.pin {
        Pin::Off => Vec::new(),
        Pin::List(cpus) => (first..first + plan.proxy_threads).filter_map(|index| cpus.get(index).copied()).collect(),
        // From the end: the first core is where the system does its own work.
        Pin::Auto if !shared => allowed.iter().rev().skip(first).take(plan.proxy_threads).copied().collect(),
        Pin::Auto => Vec::new(),
    };
    if shared {
        notes.push(format!(
            "{busy} busy threads share {} cores: idle proxies give way, and latencies include the scheduler",
            allowed.len()
        ));
    }
    Pins { cpus, shared }
}

fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)) else { return Vec::new() };
    (0..nix::sched::CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect()
}

/// What both kinds of rails need.
struct Common {
    memories: [Memory; 2],
    stage: Option<Stage>,
    consumer: Option<Consumer>,
    cpu: Option<usize>,
    shares_core: bool,
    timeout: Duration,
    fault: Option<Fault>,
}

impl Common {
    fn engine<R: Rail>(&mut self, rails: Vec<R>) -> Result<Opened<R>, EngineError> {
        let mut engine = Engine::new(rails, IN_FLIGHT, self.timeout);
        let mut regions = Vec::new();
        for (number, memory) in self.memories.into_iter().enumerate() {
            let stage = if number == SOURCE as usize { self.stage.take() } else { None };
            // SAFETY: the buffers belong to the Rank, which drops its proxies first.
            regions.push(unsafe { engine.register(memory, stage) }?);
        }
        Ok((engine, regions))
    }
}

struct LibfabricSetup {
    shared: Common,
    domains: Vec<Domain>,
    options: RailOptions,
}

struct NullSetup {
    shared: Common,
    rails: usize,
}

/// The part of a setup that does not depend on the kind of rail.
macro_rules! common_setup {
    () => {
        fn cpu(&self) -> Option<usize> {
            self.shared.cpu
        }
        fn shares_core(&self) -> bool {
            self.shared.shares_core
        }
        fn fault(&self) -> Option<Fault> {
            self.shared.fault
        }
        fn take_consumer(&mut self) -> Option<Consumer> {
            self.shared.consumer.take()
        }
    };
}

impl ProxySetup for LibfabricSetup {
    type Rail = LibfabricRail;
    common_setup!();

    fn open(&mut self) -> Result<Opened<LibfabricRail>, EngineError> {
        let rails =
            self.domains.iter().map(|domain| LibfabricRail::open(domain, &self.options)).collect::<Result<_, _>>()?;
        self.shared.engine(rails)
    }
}

impl ProxySetup for NullSetup {
    type Rail = NullRail;
    common_setup!();

    fn open(&mut self) -> Result<Opened<NullRail>, EngineError> {
        let rails = (0..self.rails).map(|_| NullRail::new()).collect();
        self.shared.engine(rails)
    }
}
