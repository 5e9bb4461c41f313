//! What only trying tells: a write to oneself on each rail, from host memory and from GPU memory, and a page of GPU memory that
//! the CPU reaches.
//!
//! A card that registers memory may still fail at its first write, so each trial writes, waits for delivery, and reads back.

use std::time::Duration;

use super::verbs;
use ginlab_base::pattern;
use ginlab_cuda::{self as cuda, Device, Place};
use ginlab_fabric::discover::Domain;
use ginlab_fabric::libfabric::{GpuMemory, LibfabricRail, RailOptions};
use ginlab_fabric::verbs::VerbsRail;
use ginlab_fabric::{Access, Messages};
use ginlab_flow::{self as flow, Flow, FlowError, Target};

/// Bytes that are registered and written.
const BYTES: usize = 2 << 20;

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
}

/// Opens a rail on the domain, registers memory of the device (of a GPU with `gpu`, otherwise the host's), writes 2 MiB to
/// itself, and compares. Bounded by the timeout.
///
/// The rail makes no CUDA call, so GPU memory that arrives was moved by the card. That is what the provider has agreed to: calls that
/// it makes cannot be counted from here.
#[must_use]
pub fn loop_back(domain: &Domain, device: &Device, gpu: bool, timeout: Duration) -> Trial {
    let told = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    if ginlab_fabric::verbs::is_asked(&domain.provider) {
        let opened = VerbsRail::open(&domain.name, 64, None).map_err(|error| told("opening the rail", &error));
        let outcome = opened.and_then(|rail| write_to_oneself(rail, device, gpu, timeout));
        return Trial { rail: domain.name.clone(), gpu, copied: false, outcome };
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
    Trial { rail: domain.name.clone(), gpu, copied, outcome }
}

fn write_to_oneself<R: Messages + 'static>(
    rail: R,
    device: &Device,
    gpu: bool,
    timeout: Duration,
) -> Result<(), String> {
    let told = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    let flow = Flow::new(vec![rail], timeout);
    let place = if gpu { Place::Device } else { Place::Host };
    let region = || {
        let buffer = device.allocate(place, BYTES).map_err(|error| error.to_string())?;
        flow.register(buffer, Access::ALL).map_err(|error| told("registering 2 MiB", &error))
    };
    let (source, destination) = (region()?, region()?);
    let mut sent = vec![0u8; BYTES];
    pattern::fill(&mut sent, pattern::seed(0, 1, 0));
    source.buffer().write(0, &sent).map_err(|error| error.to_string())?;
    let connect = || -> Result<Target, FlowError> {
        let offer = flow.offer(&[&destination])?;
        Target::new(flow.add_peer(&offer)?, &offer, 0)
    };
    let target = connect().map_err(|error| told("its own address", &error))?;
    let write = async { flow.write_all(&source, 0, &target, 0, BYTES as u64).await };
    let written = flow::run([flow.clone()], write).map_err(|error| told("no event loop", &error))?;
    written.map_err(|error| told("writing 2 MiB to itself", &error))?;
    let mut arrived = vec![0u8; BYTES];
    destination.buffer().read(0, &mut arrived).map_err(|error| error.to_string())?;
    match sent.iter().zip(&arrived).filter(|(sent, arrived)| sent != arrived).count() {
        0 => Ok(()),
        wrong => Err(format!("{wrong} of {BYTES} bytes are wrong after a write that was reported as delivered")),
    }
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
