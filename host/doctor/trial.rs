//! What only trying tells: a write to oneself on each rail, from host memory and from GPU memory, and a page of GPU memory that
//! the CPU reaches.
//!
//! A card that registers memory may still fail at its first write, so each trial writes, waits for delivery, and reads back.

use std::time::{Duration, Instant};

use super::verbs;
use ginlab_base::pattern;
use ginlab_cuda::{self as cuda, Device, Place};
use ginlab_fabric::Access;
use ginlab_fabric::discover::Domain;
use ginlab_fabric::libfabric::{GpuMemory, LibfabricRail, RailOptions};
use ginlab_flow::{self as flow, Flow, FlowError, Target};

/// Bytes that are registered and written.
const BYTES: usize = 2 << 20;
/// Turns of which the fastest counts.
const TURNS: usize = 8;

/// A write that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The rail, or what else was tried.
    pub rail: String,
    /// Whether the memory was a GPU's.
    pub gpu: bool,
    /// Of a GPU's memory: the provider takes it, but not without CUDA calls of its own, so ginlab stages it.
    pub copied: bool,
    /// Why it failed, in a line.
    pub outcome: Result<(), String>,
    /// Of a GPU's memory that arrived: how long it took, beside the same through the host.
    pub paces: Option<Paces>,
}

/// How long 2 MiB from GPU memory into GPU memory take: the fastest of some turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paces {
    /// By the rail, as programs write.
    pub by_rail: Duration,
    /// Staged: copied into pinned memory of the host, written from there into other such memory, copied into the GPU.
    pub staged: Duration,
}

impl Paces {
    /// Whether the rail is slower than staging, as one is whose provider copies: it makes the same copies, and more of them.
    #[must_use]
    pub fn looks_staged(&self) -> bool {
        self.by_rail >= self.staged
    }
}

impl std::fmt::Display for Paces {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        write!(out, "2 MiB in {:.0} us, {:.0} staged through the host", micros(self.by_rail), micros(self.staged))
    }
}

/// Opens a rail on the domain, registers memory of the device (of a GPU with `gpu`, otherwise the host's), writes 2 MiB to
/// itself, and compares. Bounded by the timeout.
///
/// The rail makes no CUDA call, so GPU memory that arrives was moved by the card. That is what the provider has agreed to. Calls that
/// it makes all the same cannot be counted from here, but they take their time: [`Paces`].
#[must_use]
pub fn loop_back(domain: &Domain, device: &Device, gpu: bool, timeout: Duration) -> Trial {
    let told = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
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
    let paces = outcome.as_ref().ok().copied().flatten();
    Trial { rail: domain.name.clone(), gpu, copied, outcome: outcome.map(drop), paces }
}

/// Compares what has arrived; of a GPU's memory also how long it took.
fn write_to_oneself(
    rail: LibfabricRail,
    device: &Device,
    gpu: bool,
    timeout: Duration,
) -> Result<Option<Paces>, String> {
    let told = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    let flow = Flow::new(vec![rail], timeout);
    let region = |place: Place| {
        let buffer = device.allocate(place, BYTES).map_err(|error| error.to_string())?;
        flow.register(buffer, Access::ALL).map_err(|error| told("registering 2 MiB", &error))
    };
    let place = if gpu { Place::Device } else { Place::Host };
    let (source, destination) = (region(place)?, region(place)?);
    let mut sent = vec![0u8; BYTES];
    pattern::fill(&mut sent, pattern::seed(0, 1, 0));
    source.buffer().write(0, &sent).map_err(|error| error.to_string())?;
    let staging = if gpu { Some((region(Place::Host)?, region(Place::Host)?)) } else { None };
    let connect = || -> Result<(Target, Target), FlowError> {
        let through = staging.as_ref().map_or(&destination, |(_, to)| to);
        let offer = flow.offer(&[&destination, through])?;
        let peer = flow.add_peer(&offer)?;
        Ok((Target::new(peer, &offer, 0)?, Target::new(peer, &offer, 1)?))
    };
    let (target, through) = connect().map_err(|error| told("its own address", &error))?;
    let write = |from: &_, to: &_| {
        let write = async { flow.write_all(from, 0, to, 0, BYTES as u64).await };
        let written = flow::run([flow.clone()], write).map_err(|error| told("no event loop", &error))?;
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
    let Some((from, to)) = &staging else { return Ok(None) };
    let staged = || {
        // SAFETY: pinned memory of the host of this length, here and below: the CPU reads and writes it, and no write is under way.
        let bytes = unsafe { std::slice::from_raw_parts_mut(from.buffer().pointer::<u8>(), BYTES) };
        source.buffer().read(0, bytes).map_err(|error| error.to_string())?;
        write(from, &through)?;
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(to.buffer().pointer::<u8>(), BYTES) };
        destination.buffer().write(0, bytes).map_err(|error| error.to_string())
    };
    Ok(Some(Paces { by_rail: fastest(|| write(&source, &target))?, staged: fastest(staged)? }))
}

/// How long the fastest of [`TURNS`] takes.
fn fastest(turn: impl Fn() -> Result<(), String>) -> Result<Duration, String> {
    let mut best = Duration::MAX;
    for _ in 0..TURNS {
        let started = Instant::now();
        turn()?;
        best = best.min(started.elapsed());
    }
    Ok(best)
}

/// Registers 2 MiB of a GPU with the cards of these domains of EFA, past libfabric: by which ways, or why a card does not take it.
///
/// # Errors
/// Why not, in a line.
pub fn register_with_cards<'a>(domains: impl Iterator<Item = &'a Domain>, device: &Device) -> Result<String, String> {
    let memory = device.allocate(Place::Device, BYTES).map_err(|error| error.to_string())?;
    let mut ways = Vec::new();
    for domain in domains {
        // The provider calls a domain after the card and the kind of endpoint: rdmap16s0-rdm.
        let card = domain.name.strip_suffix("-rdm").unwrap_or(&domain.name);
        ways.push(verbs::register(card, &memory)?);
    }
    let count = ways.len();
    ways.sort_unstable();
    ways.dedup();
    Ok(format!("{count} cards take GPU memory {}", ways.join(" and ")))
}

/// Maps a page of GPU memory by GDRCopy, stores a word and reads it back: the library's version, or why not.
///
/// # Errors
/// Why not, in a line.
pub fn gdrcopy(device: &Device) -> Result<String, String> {
    const WORD: u64 = 0x5157_4f52_4421_0001;
    let mapped = device.mapped(4096).map_err(|error| error.to_string())?;
    let word = mapped.host_address() as *mut u64;
    // SAFETY: the mapping is 4096 bytes at a multiple of 64 KiB, and nobody else uses it.
    unsafe { word.write_volatile(WORD) };
    cuda::flush_stores();
    // SAFETY: as above.
    let read = unsafe { word.read_volatile() };
    if read == WORD {
        Ok(cuda::gdrcopy_version().unwrap_or_default())
    } else {
        Err(format!("a word stored in mapped memory reads back as {read:#x}"))
    }
}
