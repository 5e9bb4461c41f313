//! Checks by trial: a loopback write on each rail, from host memory and from GPU memory, and a mapping of a page of GPU
//! memory for the CPU.
//!
//! A NIC that registers memory may still fail at its first write, so each trial writes, waits for delivery, and reads
//! back.

use std::time::{Duration, Instant};

use super::verbs;
use ginlab_base::pattern;
use ginlab_cuda::{self as cuda, Device, MemoryLocation};
use ginlab_fabric::discover::Domain;
use ginlab_fabric::libfabric::{GpuMemory, LibfabricRail, RailOptions};
use ginlab_fabric::verbs::VerbsRail;
use ginlab_fabric::{Access, Messages};
use ginlab_flow::{self as flow, Flow, FlowError, Target};
use ginlab_topology::pci::PciAddress;

/// Number of bytes that are registered and written.
pub(super) const BYTES: usize = 2 << 20;
/// Start of the reason for which memory could not be registered.
pub(super) const REGISTERING: &str = "registering 2 MiB";
/// Number of repetitions, of which the fastest counts.
const TURNS: usize = 8;

/// Result of a trial write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Name of the rail, or of the trial.
    pub rail: String,
    /// Whether the memory was GPU memory.
    pub gpu: bool,
    /// PCI address of the GPU whose memory was used, if it is known.
    pub device: Option<PciAddress>,
    /// Whether the provider supports GPU memory only with its own CUDA calls, so that ginlab stages it.
    pub copied: bool,
    /// Reason for the failure, in one line.
    pub outcome: Result<(), String>,
    /// Times for GPU memory whose data arrived, for the rail and for staging through the host.
    pub paces: Option<TransferTimes>,
    /// Minimum time of the write, whether from GPU memory or from host memory.
    pub fastest: Option<Duration>,
}

impl Trial {
    /// Creates the result of a trial without times and without GPU memory.
    #[must_use]
    pub fn named(rail: impl Into<String>, outcome: Result<(), String>) -> Trial {
        Trial { rail: rail.into(), gpu: false, device: None, copied: false, outcome, paces: None, fastest: None }
    }

    /// Creates the result of a trial with times.
    fn timed(domain: &Domain, gpu: Option<&Device>, copied: bool, outcome: Result<Timed, String>) -> Trial {
        let address = gpu.and_then(Device::pci_address).and_then(|text| text.parse().ok());
        let times = outcome.as_ref().ok();
        Trial {
            rail: domain.name.clone(),
            gpu: gpu.is_some(),
            device: address,
            copied,
            paces: times.and_then(|times| times.paces),
            fastest: times.map(|times| times.fastest),
            outcome: outcome.map(drop),
        }
    }
}

/// Times of a trial whose data arrived.
#[derive(Clone, Copy)]
struct Timed {
    fastest: Duration,
    paces: Option<TransferTimes>,
}

/// Minimum times for 2 MiB from GPU memory to GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferTimes {
    /// Time of a write by the rail.
    pub by_rail: Duration,
    /// Time of a staged write: copy to pinned host memory, write from there to other pinned memory, and copy to the
    /// GPU.
    pub staged: Duration,
}

impl TransferTimes {
    /// Returns whether the rail is no faster than staging, which indicates that the provider makes the same copies.
    #[must_use]
    pub fn looks_staged(&self) -> bool {
        self.by_rail >= self.staged
    }
}

impl std::fmt::Display for TransferTimes {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        write!(out, "2 MiB in {:.0} us, {:.0} staged through the host", micros(self.by_rail), micros(self.staged))
    }
}

/// Opens a rail on the domain, registers memory (GPU memory with `gpu`, host memory otherwise), writes 2 MiB to itself,
/// and compares the data. All waits are bounded by `timeout`.
///
/// The provider must agree not to make CUDA calls on this rail, so GPU memory that arrives was transferred by the NIC.
/// Calls that a provider makes nevertheless are not observable here, but they increase the times ([`TransferTimes`]).
#[must_use]
pub fn loop_back(domain: &Domain, device: &Device, gpu: bool, timeout: Duration) -> Trial {
    let told = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    if ginlab_fabric::verbs::is_asked(&domain.provider) {
        let opened = VerbsRail::open(&domain.name, 64, None).map_err(|error| told("opening the rail", &error));
        let outcome = opened.and_then(|rail| write_to_oneself(rail, device, gpu, timeout));
        return Trial::timed(domain, gpu.then_some(device), false, outcome);
    }
    let options = RailOptions { cuda_memory: gpu, ..RailOptions::default() };
    let (mut copied, opened) = (false, LibfabricRail::open(domain, &options));
    let outcome = match opened.map_err(|error| told("opening the rail", &error)) {
        Err(why) => Err(why),
        Ok(rail) => match rail.gpu_memory().clone() {
            GpuMemory::ByCudaCalls(refused) if gpu => {
                copied = true;
                Err(refused.to_string())
            }
            _ => write_to_oneself(rail, device, gpu, timeout),
        },
    };
    Trial::timed(domain, gpu.then_some(device), copied, outcome)
}

/// Writes and compares the data, and measures the times.
fn write_to_oneself<R: Messages + 'static>(
    rail: R,
    device: &Device,
    gpu: bool,
    timeout: Duration,
) -> Result<Timed, String> {
    let told = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    let flow = Flow::new(vec![rail], timeout);
    let region = |place: MemoryLocation| {
        let buffer = device.allocate(place, BYTES).map_err(|error| error.to_string())?;
        flow.register(buffer, Access::ALL).map_err(|error| told(REGISTERING, &error))
    };
    let place = if gpu { MemoryLocation::Device } else { MemoryLocation::Host };
    let (source, destination) = (region(place)?, region(place)?);
    let mut sent = vec![0u8; BYTES];
    pattern::fill(&mut sent, pattern::seed(0, 1, 0));
    source.buffer().write(0, &sent).map_err(|error| error.to_string())?;
    let staging = if gpu { Some((region(MemoryLocation::Host)?, region(MemoryLocation::Host)?)) } else { None };
    let connect = || -> Result<(Target, Target), FlowError> {
        let through = staging.as_ref().map_or(&destination, |(_, to)| to);
        let offer = flow.offer(&[&destination, through])?;
        let peer = flow.add_peer(&offer)?;
        Ok((Target::new(peer, &offer, 0)?, Target::new(peer, &offer, 1)?))
    };
    let (target, through) = connect().map_err(|error| told("its own address", &error))?;
    let write = |from: &_, to: &_| {
        let write = async { flow.write_all(from, 0, to, 0, BYTES as u64).await };
        let written = flow::run([flow.clone()], write).map_err(|error| told("cannot create an event loop", &error))?;
        written.map(drop).map_err(|error| told("writing 2 MiB to itself", &error))
    };
    write(&source, &target)?;
    let mut arrived = vec![0u8; BYTES];
    destination.buffer().read(0, &mut arrived).map_err(|error| error.to_string())?;
    match sent.iter().zip(&arrived).filter(|(sent, arrived)| sent != arrived).count() {
        0 => {}
        wrong => {
            return Err(format!("{wrong} of {BYTES} bytes are wrong after a write that was reported as delivered"));
        }
    }
    let by_rail = fastest(|| write(&source, &target))?;
    let Some((from, to)) = &staging else { return Ok(Timed { fastest: by_rail, paces: None }) };
    let staged = || {
        // SAFETY: here and below, the buffer is pinned host memory of this length, and no write is in flight while the
        // CPU accesses it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(from.buffer().pointer::<u8>(), BYTES) };
        source.buffer().read(0, bytes).map_err(|error| error.to_string())?;
        write(from, &through)?;
        // SAFETY: as for the source, the buffer is pinned host memory of this length, and no write is in flight.
        let bytes = unsafe { std::slice::from_raw_parts(to.buffer().pointer::<u8>(), BYTES) };
        destination.buffer().write(0, bytes).map_err(|error| error.to_string())
    };
    Ok(Timed { fastest: by_rail, paces: Some(TransferTimes { by_rail, staged: fastest(staged)? }) })
}

/// Returns the minimum duration of [`TURNS`] repetitions.
fn fastest(turn: impl Fn() -> Result<(), String>) -> Result<Duration, String> {
    let mut best = Duration::MAX;
    for _ in 0..TURNS {
        let started = Instant::now();
        turn()?;
        best = best.min(started.elapsed());
    }
    Ok(best)
}

/// Registers 2 MiB of GPU memory per pair directly with the NICs of these EFA domains, bypassing libfabric. Returns a
/// description of the methods that worked.
///
/// # Errors
/// Returns the reason why a NIC rejects the memory, in one line.
pub fn register_with_cards<'a>(pairs: impl Iterator<Item = (&'a Domain, &'a Device)>) -> Result<String, String> {
    let mut ways = Vec::new();
    for (domain, device) in pairs {
        let memory = device.allocate(MemoryLocation::Device, BYTES).map_err(|error| error.to_string())?;
        // The provider names a domain after the NIC and the endpoint type: rdmap16s0-rdm.
        let card = domain.name.strip_suffix("-rdm").unwrap_or(&domain.name);
        ways.push(verbs::register(card, &memory)?);
    }
    let count = ways.len();
    ways.sort_unstable();
    ways.dedup();
    Ok(format!("{count} EFA devices can register GPU memory {}", ways.join(" and ")))
}

/// Maps a page of GPU memory with GDRCopy, stores a word and reads it back. Returns the version of GDRCopy's library.
///
/// # Errors
/// Returns the reason for the failure, in one line.
pub fn gdrcopy(device: &Device) -> Result<String, String> {
    const WORD: u64 = 0x5157_4f52_4421_0001;
    let mapped = device.mapped(4096).map_err(|error| error.to_string())?;
    let word = mapped.host_address() as *mut u64;
    // SAFETY: the mapping has 4096 bytes at a multiple of 64 KiB, and no other code uses it.
    unsafe { word.write_volatile(WORD) };
    cuda::flush_stores();
    // SAFETY: as for the store, the mapping is long enough and no other code uses it.
    let read = unsafe { word.read_volatile() };
    if read == WORD {
        Ok(cuda::gdrcopy_version().unwrap_or_default())
    } else {
        Err(format!("a word stored in mapped memory reads back as {read:#x}"))
    }
}
