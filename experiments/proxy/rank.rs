//! What one rank holds for the whole run: device, memory, rings, proxy threads, and the connection to its peers.

use super::args::Args;
use super::layout::{PLACEHOLDER, memory_of};
use super::machine::{MemoryPath, Needs, choose_domains, memory_path, movers, pins};
use super::setup;
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, CopyQueue, Device, Place};
use ginlab::fabric::discover::Domain;
use ginlab::fabric::libfabric::{LibfabricRail, RailOptions};
use ginlab::fabric::model::Model;
use ginlab::fabric::null::NullRail;
use ginlab::fabric::same_host::SameHostRail;
use ginlab::fabric::worst::{Who, WorstRail};
use ginlab::fabric::{Memory, card};
use ginlab::proxy::stage::Stage;
use ginlab::proxy::{Offer, Proxy, Setup, connect, device_timeout};
use ginlab::ring::{RingMemory, RingTable};
use ginlab::sharing::Sharing;
use kernels::put_kernel::BlockResult;
use kernels::ring::LOG2_COMMAND_WORDS;
use std::time::Duration;

/// See the module. Fields are dropped in this order: the proxies let go of the memory before it is freed.
pub struct Rank {
    pub proxies: Vec<Proxy>,
    pub table: RingTable,
    rings: Vec<RingMemory>,
    /// Source of an initiator, destination of a target: what the kernel writes or the verification reads.
    pub payload: Buffer,
    _other: Buffer,
    _staging: Vec<Buffer>,
    pub tickets: Buffer,
    pub results: Buffer,
    pub device: Device,
    pub sharing: Sharing,
    pub provider: String,
    domains: Vec<Domain>,
    model: Option<Model>,
    pub path: MemoryPath,
    pub notes: Vec<String>,
    /// The rank we put to, when we are one that puts.
    pub target: Option<usize>,
    /// The rank that puts to us.
    pub source: Option<usize>,
    /// Number of the next verified iteration: no pass repeats the pattern of an earlier one.
    pub next_iteration: u32,
}

impl Rank {
    /// Opens everything and connects to all ranks.
    pub fn open(args: &Args, ranks: &mut Bootstrap) -> Result<Rank, Failure> {
        let pairing = ranks.pairing();
        let mut notes = Vec::new();
        let (target, source) = match ranks.rank() {
            // Nothing leaves the proxy: every rank puts, and is its own target.
            rank if args.is_null() => (Some(rank), None),
            rank => {
                notes.extend(pairing.note());
                (pairing.target(rank), pairing.source(rank))
            }
        };
        let (device, why_emulated) = Device::open(args.device, ranks.local_rank())?;
        if let Some(why) = why_emulated {
            notes.push(format!("emulated device, whose times say nothing about a GPU: {why}"));
        }
        let sharing = Sharing::find(&device, target.is_some(), ranks)?;
        notes.extend(sharing.notes().iter().cloned());
        let most_rails = args.most_rails();
        let (provider, domains) = choose_domains(args, ranks, &device, most_rails, &mut notes)?;
        let path = memory_path(args, &device, &domains, &mut notes)?;
        let needs = Needs::of(args, &device)?;
        needs.check_memory(ranks, args, &device)?;

        let place = if path == MemoryPath::Device || path.is_staged() { Place::Device } else { Place::Host };
        let initiates = target.is_some();
        // Bytes arrive in host memory where the rails cannot reach the GPU's.
        let payload_place = if initiates || path == MemoryPath::Device {
            place
        } else if args.shares_memory() {
            Place::File
        } else {
            Place::Host
        };
        let payload = device.allocate(payload_place, to_usize(needs.payload)?)?;
        let null_destination = if args.is_null() { needs.payload } else { PLACEHOLDER };
        let other = device.allocate(Place::Host, PLACEHOLDER as usize)?;
        let mut rings = Vec::new();
        let mut staging = Vec::new();
        let mut setups = Vec::new();
        let seed = ranks.rank() as u64;
        let model = args.model().map(|(name, profile)| Model::new(name, profile.clone(), most_rails, seed));
        let pins = pins(args, ranks, &device, &domains, &mut notes)?;
        let movers = match &model {
            Some(_) if initiates => movers(&pins, ranks, &mut notes)?,
            _ => None,
        };
        for thread in 0..args.proxy_threads {
            let patience = device_timeout(args.timeout);
            let ring = RingMemory::of(&device, args.ring_memory, args.ring_slots, LOG2_COMMAND_WORDS, patience)?;
            let mut stage = None;
            let mut source = memory_of(&payload, &device, path == MemoryPath::Device);
            if path.is_staged() && initiates {
                let Device::Gpu(gpu) = &device else {
                    return Err(Failure::Run("staging without a GPU".into()));
                };
                let copy = device.allocate(Place::Host, to_usize(needs.payload)?)?;
                source = memory_of(&copy, &device, false);
                // SAFETY: both buffers are as long as the region and are kept by the Rank behind its proxies.
                let copied = unsafe { Stage::new(CopyQueue::new(gpu)?, payload.address(), copy.address()) };
                stage = Some(match &model {
                    Some(model) => copied.only_while(model.moves()),
                    None => copied,
                });
                staging.push(copy);
            }
            let placeholder = memory_of(&other, &device, false);
            let null = Memory { bytes: to_usize(null_destination)?, ..placeholder };
            let memories = match (initiates, args.is_null()) {
                (true, true) => [source, null],
                (true, false) => [source, placeholder],
                (false, _) => [placeholder, source],
            };
            let setup = Setup {
                cpu: pins.cpus.get(thread).copied(),
                shares_core: pins.shared,
                fault: args.fault.filter(|_| initiates),
                // SAFETY: taken once per ring; the Rank keeps the ring behind its proxies.
                consumer: Some(unsafe { ring.consumer() }),
                // Nothing is told of what arrives here: the destination is read by kernels that are launched after the ranks have met.
                flush: None,
            };
            rings.push(ring);
            setups.push((setup, memories, stage));
        }
        let options =
            RailOptions { level: args.completion, cuda_memory: path == MemoryPath::Device, ..RailOptions::default() };
        let rank = ranks.rank() as u32;
        let start = |(thread, (own, memories, stage))| {
            if args.is_null() {
                let open = move || Ok((0..most_rails).map(|_| NullRail::new()).collect());
                return setup::start(own, memories, stage, args.timeout, open);
            }
            if let Some(model) = model.clone() {
                let movers = movers.clone();
                let open = move || {
                    let below = (0..most_rails).map(|_| SameHostRail::open("shared memory", movers.clone()));
                    Ok(model.rails(below.collect::<Result<Vec<_>, _>>()?))
                };
                return setup::start(own, memories, stage, args.timeout, open);
            }
            if let Some(spec) = args.worst() {
                let who = move |rail: usize| Who { rank, proxy: thread as u16, rail: rail as u16 };
                let open = move || (0..most_rails).map(|rail| WorstRail::open(&spec, who(rail), false)).collect();
                return setup::start(own, memories, stage, args.timeout, open);
            }
            let (domains, options) = (domains.clone(), options.clone());
            let open = move || domains.iter().map(|domain| LibfabricRail::open(domain, &options)).collect();
            setup::start(own, memories, stage, args.timeout, open)
        };
        let proxies = setups.into_iter().enumerate().map(start).collect::<Result<Vec<_>, _>>()?;
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
            sharing,
            provider,
            domains,
            model,
            path,
            notes,
            target,
            source,
            next_iteration: 1,
        };
        connect::<Failure>(ranks, &rank.proxies)?;
        Ok(rank)
    }

    /// What the first proxy thread opened; the others open the same.
    pub fn offer(&self) -> &Offer {
        self.proxies[0].offer()
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

    /// Line rate of the cards of the first `rails` rails in bit/s, where it is known.
    pub fn line_rate(&self, rails: usize) -> Option<u64> {
        if let Some(model) = &self.model {
            return Some(model.line_rate() * rails as u64);
        }
        card::line_rate(self.domains.get(..rails)?)
    }

    /// Whether modelled cards move bytes from now on; others do in any case.
    pub fn move_bytes(&self, moves: bool) {
        if let Some(model) = &self.model {
            model.move_bytes(moves);
        }
    }

    /// How long the modelled card that has waited longest has done so for this machine; see [`Model::behind`].
    pub fn behind(&self) -> Duration {
        self.model.as_ref().and_then(|model| model.behind().into_iter().max()).unwrap_or_default()
    }

    /// How long a modelled card takes for so many writes, one after another; nothing where cards are not modelled.
    pub fn pace(&self, bytes: u64, count: u64) -> Option<Duration> {
        self.model.as_ref().map(|model| model.pace(bytes, count))
    }
}

fn to_usize(bytes: u64) -> Result<usize, Failure> {
    usize::try_from(bytes).map_err(|_| Failure::Usage(format!("{bytes} bytes are more than this machine can address")))
}
