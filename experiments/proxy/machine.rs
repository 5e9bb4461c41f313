//! What this machine gives a rank: domains, a way to the payload, memory, cores.

use super::args::{Args, NULL, Provider};
use super::layout::{Layout, PLACEHOLDER, memory_of};
use crate::error::Failure;
use crate::job::{self, MemoryKind};
use crate::values::Pin;
use cuda_std::emulation;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Device, Place};
use ginlab::fabric::discover::Domain;
use ginlab::fabric::libfabric::{LibfabricRail, RailOptions};
use ginlab::fabric::model;
use ginlab::fabric::same_host::Movers;
use ginlab::measure::size;
use ginlab::{cores, memory};
use std::sync::Arc;
use strum::IntoStaticStr;

/// More threads than this copy no faster: the memory is the limit.
const MOST_MOVERS: usize = 8;

/// How the rails reach the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum MemoryPath {
    /// Plain host memory (emulated device).
    Host,
    /// Pinned host memory that the GPU writes over PCIe.
    Pinned,
    /// GPU memory that the NIC reads and writes itself.
    Device,
    /// GPU memory that modelled cards read themselves while no bytes are moved; copied by the proxy in the pass that is verified.
    #[strum(serialize = "device-modelled")]
    Modelled,
    /// GPU memory that the proxy copies into pinned host memory before the write; it arrives in pinned host memory.
    #[strum(serialize = "device-staged")]
    Staged,
}

impl MemoryPath {
    /// Whether the proxy copies the payload into pinned host memory.
    pub fn is_staged(self) -> bool {
        matches!(self, MemoryPath::Staged | MemoryPath::Modelled)
    }

    /// For rows.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// For the header.
    pub fn text(self) -> &'static str {
        match self {
            MemoryPath::Host => "host memory (the emulated device has no other)",
            MemoryPath::Pinned => "pinned host memory, written by the GPU over PCIe, registered with the fabric",
            MemoryPath::Device => {
                "GPU memory, registered with the card (FI_HMEM), which moves its bytes: the provider may make no CUDA call"
            }
            MemoryPath::Modelled => {
                "GPU memory; the modelled cards read it themselves (GPUDirect RDMA), and its bytes are copied through the host \
                 only in the pass that is verified; the destination is pinned host memory"
            }
            MemoryPath::Staged => {
                "GPU memory, copied by the proxy into pinned host memory before each write (the card does not reach GPU \
                 memory here, or is not known to); the destination is pinned host memory"
            }
        }
    }
}

/// The largest of each over all tuples.
pub struct Needs {
    pub payload: u64,
    pub slots: u64,
    pub blocks: usize,
}

impl Needs {
    /// Refuses grids that the device cannot run, before anything is opened.
    pub fn of(args: &Args, device: &Device) -> Result<Needs, Failure> {
        let mut needs = Needs { payload: PLACEHOLDER, slots: 1, blocks: 1 };
        for tuple in args.tuples()? {
            device.check_grid(tuple.grid, tuple.block)?;
            // A tuple that does not fit becomes a skipped row.
            if let Ok(layout) = Layout::new(args, &tuple, device) {
                needs.payload = needs.payload.max(layout.bytes());
                needs.slots = needs.slots.max(layout.producers * layout.window);
            }
            needs.blocks = needs.blocks.max(tuple.grid as usize);
        }
        Ok(needs)
    }

    /// Refuses what this machine's memory cannot hold: an allocation succeeds lazily and kills the process later.
    pub fn check_memory(&self, ranks: &Bootstrap, args: &Args, device: &Device) -> Result<(), Failure> {
        let per_rank = self.payload.saturating_add((args.ring_slots * args.proxy_threads * 32) as u64);
        let copies = if args.mem == MemoryKind::Device && matches!(device, Device::Gpu(_)) { 2 } else { 1 };
        let here = per_rank.saturating_mul(ranks.local_size() as u64).saturating_mul(copies);
        let Some(available) = memory::available().filter(|_| args.memory_limit.is_none()) else { return Ok(()) };
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

pub fn choose_domains(
    args: &Args,
    ranks: &mut Bootstrap,
    device: &Device,
    count: usize,
    notes: &mut Vec<String>,
) -> Result<(String, Vec<Domain>), Failure> {
    if args.is_null() {
        notes.push(
            "null rails: the proxy completes each put at once, nothing is moved; puts are counted, not bytes checked"
                .into(),
        );
        notes.extend(args.why_null.clone());
        return Ok((NULL.into(), Vec::new()));
    }
    if let Some((name, profile)) = args.model() {
        if !ranks.same_host() {
            return Err(Failure::Usage(format!(
                "--provider {}{name}: modelled cards need all ranks on one host",
                model::PREFIX
            )));
        }
        let moved = if args.moves() {
            "bytes are moved through shared memory"
        } else {
            "bytes are moved only in the pass that is verified"
        };
        notes.push(format!(
            "MODELLED cards of a {name}: {} Gb/s each, {} us one way; {moved}; assumed, not published: {}",
            profile.line_rate_gbps.value,
            profile.one_way_us.value,
            profile.assumed().collect::<Vec<_>>().join(", ")
        ));
        let unmoved = if args.moves() { "" } else { "/unmoved" };
        return Ok((format!("{}{name}{unmoved}", model::PREFIX), Vec::new()));
    }
    if let Some(spec) = args.worst() {
        if ranks.on_this_machine().len() != ranks.size() {
            return Err(Failure::Usage(format!("--provider {spec}: all ranks must be on one machine")));
        }
        notes.push(spec.note());
        return Ok((spec.to_string(), Vec::new()));
    }
    let provider = match &args.provider {
        Some(Provider::Fabric(name)) => Some(name.as_str()),
        _ => None,
    };
    notes.extend(args.why_fewer.clone());
    job::choose_domains(provider, &args.domain, count, ranks, device, notes)
}

/// Whether the rails' cards reach device memory is proven by registering some; why they do not becomes a note.
pub fn memory_path(
    args: &Args,
    device: &Device,
    domains: &[Domain],
    notes: &mut Vec<String>,
) -> Result<MemoryPath, Failure> {
    if matches!(device, Device::Emulated) {
        return Ok(MemoryPath::Host);
    }
    if args.mem == MemoryKind::Pinned {
        return Ok(MemoryPath::Pinned);
    }
    if args.is_null() {
        return Ok(MemoryPath::Device);
    }
    if args.model().is_some() {
        return Ok(if args.moves() { MemoryPath::Staged } else { MemoryPath::Modelled });
    }
    let Some(domain) = domains.first() else { return Ok(MemoryPath::Staged) };
    let probe = device.allocate(Place::Device, 2 << 20)?;
    let options = RailOptions { level: args.completion, ..RailOptions::default() };
    // SAFETY: the buffer outlives the call.
    match unsafe { LibfabricRail::prove_gpu(domain, &options, memory_of(&probe, device, true)) } {
        Ok(()) => Ok(MemoryPath::Device),
        Err(why) => {
            notes.push(format!("GPU memory is staged: {why}"));
            Ok(MemoryPath::Staged)
        }
    }
}

/// Cores for this rank's proxy threads.
pub struct Pins {
    pub cpus: Vec<usize>,
    pub shared: bool,
    /// Cores of this machine that nobody is busy on.
    pub spare: usize,
}

/// One core per proxy thread, near the GPU or the cards, where this machine has them beside one for each rank's kernel and main
/// thread; otherwise none is pinned and idle polls give way.
pub fn pins(
    args: &Args,
    ranks: &mut Bootstrap,
    device: &Device,
    domains: &[Domain],
    notes: &mut Vec<String>,
) -> Result<Pins, Failure> {
    let allowed = cores::allowed();
    let threads = args.proxy_threads * ranks.local_size();
    let busy = match device {
        Device::Emulated => threads + ranks.local_size() + 1,
        Device::Gpu(_) => threads + 1,
    };
    let shared = busy > allowed.len();
    let first = ranks.local_rank() * args.proxy_threads;
    let wanted = if args.pin == Pin::Auto && !shared { args.proxy_threads } else { 0 };
    let chosen = job::choose_cores(wanted, device, domains, ranks)?;
    let cpus = match &args.pin {
        Pin::List(cpus) => (first..first + args.proxy_threads).filter_map(|index| cpus.get(index).copied()).collect(),
        Pin::Off | Pin::Auto => chosen,
    };
    if shared {
        notes.push(format!(
            "{busy} busy threads share {} cores: idle proxies give way, and latencies include the scheduler",
            allowed.len()
        ));
    }
    let mut spare = allowed.len().saturating_sub(busy);
    if matches!(device, Device::Emulated) {
        // Every rank with a kernel has one already; half of what is left is for whoever copies for modelled cards.
        let kernels = if args.is_null() { ranks.local_size() } else { (ranks.local_size() / 2).max(1) };
        let more = spare / 2 / kernels;
        spare -= more * kernels;
        emulation::set_workers(1 + more);
        notes.push(format!("the emulated device of each rank has {} workers", 1 + more));
    }
    Ok(Pins { cpus, shared, spare })
}

/// Threads that copy for the modelled cards of a rank that puts, as many as this machine has cores for. Without any the proxy
/// copies itself.
pub fn movers(pins: &Pins, ranks: &Bootstrap, notes: &mut Vec<String>) -> Result<Option<Arc<Movers>>, Failure> {
    let threads = (pins.spare / (ranks.local_size() / 2).max(1)).min(MOST_MOVERS);
    if threads == 0 {
        notes.push("no core is left for copying: the proxies copy the bytes of the modelled cards themselves".into());
        return Ok(None);
    }
    notes.push(format!("{threads} threads copy the bytes of the modelled cards of each rank that puts"));
    let started = Movers::start(threads);
    started.map(|movers| Some(Arc::new(movers))).map_err(|error| Failure::Run(format!("starting movers: {error}")))
}
