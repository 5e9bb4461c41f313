//! What this machine gives a rank: domains, a way to the payload, memory, cores.

use super::args::Args;
use super::layout::{Layout, PLACEHOLDER, memory_of};
use crate::error::Failure;
use crate::job::MemoryKind;
use cuda_std::emulation;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Device, Place};
use ginlab::fabric::Chosen;
use ginlab::fabric::discover::Domain;
use ginlab::fabric::libfabric::RailOptions;
use ginlab::measure::size;
use ginlab::proxy::{self, Cores, choose_cores};
use ginlab::{cores, memory};
use strum::IntoStaticStr;

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
                "GPU memory, registered with the card, which moves its bytes (libfabric: FI_HMEM, and the provider may make no CUDA call; verbs: \
                 by dma-buf or peer memory)"
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

/// Chooses the rails with the other ranks, and notes what they are.
pub fn choose_rails(
    args: &Args,
    ranks: &mut Bootstrap,
    device: &Device,
    count: usize,
    notes: &mut Vec<String>,
) -> Result<Chosen, Failure> {
    let options = RailOptions { level: args.completion, ..RailOptions::default() };
    let chosen = proxy::choose_rails(&args.fabric()?, count, options, ranks, device)?;
    if args.is_model() {
        let when = if args.moves() { "" } else { " in the pass that is verified alone" };
        notes.push(format!("bytes of the modelled cards are moved through shared memory{when}"));
    }
    notes.extend(args.why_null.iter().chain(&args.why_fewer).cloned());
    Ok(chosen)
}

/// Whether the rails' cards reach device memory is proven by registering some; why they do not becomes a note.
pub fn memory_path(
    args: &Args,
    device: &Device,
    chosen: &mut Chosen,
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
    if args.is_model() {
        return Ok(if args.moves() { MemoryPath::Staged } else { MemoryPath::Modelled });
    }
    let probe = device.allocate(Place::Device, 2 << 20)?;
    // SAFETY: the buffer outlives the call.
    match unsafe { chosen.prove_gpu(memory_of(&probe, device, true)) } {
        Ok(()) => Ok(MemoryPath::Device),
        Err(why) => {
            notes.push(format!("GPU memory is staged: {why}"));
            Ok(MemoryPath::Staged)
        }
    }
}

/// Cores for this rank's proxy threads: one each, near the GPU or the cards, where this machine has them beside one for each rank's kernel
/// and main thread; otherwise none is pinned and idle polls give way.
pub fn pins(
    args: &Args,
    ranks: &mut Bootstrap,
    device: &Device,
    domains: &[Domain],
    notes: &mut Vec<String>,
) -> Result<Cores, Failure> {
    let threads = args.proxy_threads * ranks.local_size();
    let busy = match device {
        Device::Emulated => threads + ranks.local_size() + 1,
        Device::Gpu(_) => threads + 1,
    };
    let mut pins = choose_cores(&args.pin, args.proxy_threads, busy, ranks, device, domains)?;
    if pins.shared {
        notes.push(format!(
            "{busy} busy threads share {} cores: idle proxies give way, and latencies include the scheduler",
            cores::allowed().len()
        ));
    }
    if matches!(device, Device::Emulated) {
        // Every rank with a kernel has one already; half of what is left is for whoever copies for modelled cards.
        let kernels = if args.is_null() { ranks.local_size() } else { (ranks.local_size() / 2).max(1) };
        let more = pins.spare / 2 / kernels;
        pins.spare -= more * kernels;
        emulation::set_workers(1 + more);
        notes.push(format!("the emulated device of each rank has {} workers", 1 + more));
    }
    Ok(pins)
}
