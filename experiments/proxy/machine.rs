//! Resources of a rank on this machine: domains, access to the payload, memory, cores.

use super::args::ProxyArgs;
use super::layout::{PLACEHOLDER, ProxyLayout};
use crate::error::Failure;
use crate::job::MemoryKind;
use crate::payload::refused;
use crate::values::check_grid;
use cuda_std::emulation;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::Device;
use ginlab::fabric::RailPlan;
use ginlab::fabric::libfabric::RailOptions;
use ginlab::gin::seat::{CoreWants, MemoryWants, RailWants, Seat};
use strum::IntoStaticStr;

/// Path from the rails to the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum MemoryPath {
    /// Ordinary host memory (emulated device).
    Host,
    /// Pinned host memory that the GPU writes over PCIe.
    Pinned,
    /// GPU memory that the NIC accesses directly.
    Device,
    /// GPU memory that modelled NICs access directly while they move no bytes. The proxy copies it in the verification
    /// pass.
    #[strum(serialize = "device-modelled")]
    Modelled,
    /// GPU memory that the proxy copies to pinned host memory before each write. The destination is pinned host memory.
    #[strum(serialize = "device-staged")]
    Staged,
}

impl MemoryPath {
    /// Returns whether the proxy copies the payload to pinned host memory.
    pub fn is_staged(self) -> bool {
        matches!(self, MemoryPath::Staged | MemoryPath::Modelled)
    }

    /// Returns the name for rows.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the description for the header.
    pub fn text(self) -> &'static str {
        match self {
            MemoryPath::Host => "host memory (the emulated device has no other)",
            MemoryPath::Pinned => "pinned host memory, written by the GPU over PCIe, registered with the fabric",
            MemoryPath::Device => {
                "GPU memory, registered with the NIC, which transfers it directly (libfabric: FI_HMEM, and the \
                 provider must not call CUDA; verbs: by dma-buf or peer memory)"
            }
            MemoryPath::Modelled => {
                "GPU memory; the modelled cards read it themselves (GPUDirect RDMA), and its bytes are copied through \
                 the host only in the verified pass; the destination is pinned host memory"
            }
            MemoryPath::Staged => {
                "GPU memory, copied by the proxy into pinned host memory before each write (the NIC cannot access GPU \
                 memory, or is not known to); the destination is pinned host memory"
            }
        }
    }
}

/// Maximum requirements over all parameter combinations.
pub struct Needs {
    pub payload: u64,
    pub slots: u64,
    pub blocks: usize,
}

impl Needs {
    /// Computes the requirements. Rejects grids that the device cannot run, before anything is opened.
    pub fn of(args: &ProxyArgs, device: &Device) -> Result<Needs, Failure> {
        let mut needs = Needs { payload: PLACEHOLDER, slots: 1, blocks: 1 };
        for tuple in args.tuples()? {
            check_grid(device, tuple.grid, tuple.block)?;
            // A parameter combination that does not fit becomes a skipped row.
            if let Ok(layout) = ProxyLayout::new(args, &tuple, device) {
                needs.payload = needs.payload.max(layout.bytes());
                needs.slots = needs.slots.max(layout.producers * layout.window);
            }
            needs.blocks = needs.blocks.max(tuple.grid as usize);
        }
        Ok(needs)
    }

    /// Rejects requirements that exceed this machine's memory.
    pub fn check_memory(&self, ranks: &Bootstrap, args: &ProxyArgs, device: &Device) -> Result<(), Failure> {
        let per_rank = self.payload.saturating_add((args.ring_slots * args.proxy_threads * 32) as u64);
        let copies = if args.memory == MemoryKind::Device && matches!(device, Device::Gpu(_)) { 2 } else { 1 };
        let memory = MemoryWants {
            bytes: per_rank.saturating_mul(copies),
            purpose: "payloads",
            advice: "try a smaller -e, --grid or --window, or specify a smaller --memory-limit",
        };
        if args.memory_limit.is_none() {
            memory.check(ranks)?;
        }
        Ok(())
    }
}

/// Chooses the rails with the other ranks, and adds notes about them. Returns how they access the payload.
pub fn choose_rails(args: &ProxyArgs, ranks: &mut Bootstrap, seat: &mut Seat) -> Result<MemoryPath, Failure> {
    let options = RailOptions { level: args.completion, ..RailOptions::default() };
    seat.choose_rails(ranks, RailWants { fabric: &args.fabric()?, count: args.most_rails(), options })?;
    let Seat { device, rails: Some(chosen), notes, .. } = seat else {
        return Err(Failure::Run("no rails were chosen".into()));
    };
    if args.is_model() {
        let when = if args.moves() { "" } else { " only in the verified pass" };
        notes.push(format!("bytes of the modelled cards are copied through shared memory{when}"));
    }
    notes.extend(args.why_null.iter().chain(&args.why_fewer).cloned());
    let memory = match args.memory {
        // These rails have no NICs.
        MemoryKind::Auto if args.is_null() || args.is_model() => MemoryKind::Pinned,
        asked => asked.choose(device, chosen, notes, ranks)?,
    };
    if args.memory == MemoryKind::Auto && memory == MemoryKind::Device {
        return Ok(MemoryPath::Device);
    }
    memory_path(args, memory, device, chosen, notes)
}

/// Determines how the rails access the payload. Registers a test buffer to determine whether NICs can access device
/// memory, and adds a note if they cannot.
fn memory_path(
    args: &ProxyArgs,
    memory: MemoryKind,
    device: &Device,
    chosen: &mut RailPlan,
    notes: &mut Vec<String>,
) -> Result<MemoryPath, Failure> {
    if matches!(device, Device::Emulated) {
        return Ok(MemoryPath::Host);
    }
    if memory == MemoryKind::Pinned {
        return Ok(MemoryPath::Pinned);
    }
    if args.is_null() {
        return Ok(MemoryPath::Device);
    }
    if args.is_model() {
        return Ok(if args.moves() { MemoryPath::Staged } else { MemoryPath::Modelled });
    }
    let Some(why) = refused(device, chosen)? else { return Ok(MemoryPath::Device) };
    notes.push(format!("GPU memory is staged: {why}"));
    Ok(MemoryPath::Staged)
}

/// Chooses the cores of this rank's proxy threads: one each, near the GPU or the NICs, if the machine also has one for
/// each rank's kernel and main thread. Otherwise no thread is pinned, and idle proxies yield. Sets the number of
/// workers of the emulated device.
pub fn choose_cores(args: &ProxyArgs, ranks: &mut Bootstrap, seat: &mut Seat) -> Result<(), Failure> {
    let is_emulated = matches!(seat.device, Device::Emulated);
    let busy = args.proxy_threads * ranks.local_size() + 1 + if is_emulated { ranks.local_size() } else { 0 };
    seat.choose_cores(ranks, CoreWants { pin: &args.pin, threads: args.proxy_threads, busy })?;
    if is_emulated {
        // Every rank with a kernel already has one worker. Half of the spare cores is left for threads that copy for
        // modelled NICs.
        let kernels = if args.is_null() { ranks.local_size() } else { (ranks.local_size() / 2).max(1) };
        let more = seat.cores.spare / 2 / kernels;
        seat.cores.spare -= more * kernels;
        emulation::set_workers(1 + more);
        seat.notes.push(format!("the emulated device of each rank has {} workers", 1 + more));
    }
    Ok(())
}
