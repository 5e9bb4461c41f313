//! What one rank holds for the whole run: device, memory, rings, proxy threads, and the connection to its peers.

use super::args::{Args, Way};
use super::layout::{PLACEHOLDER, memory_of};
use super::machine::{MemoryPath, Needs, choose_rails, memory_path, pins};
use super::queues::Queues;
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, Device, Place};
use ginlab::fabric::null::{Counted, NullCounts};
use ginlab::fabric::same_host::Stores;
use ginlab::fabric::{Access, Chosen, Memory};
use ginlab::proxy::{Bytes, GroupOptions, GroupRegion, ProxyGroup};
use ginlab::sharing::Sharing;
use kernels::put_kernel::BlockResult;
use std::time::Duration;

/// See the module. Fields are dropped in this order: the proxies let go of the memory before it is freed.
pub struct Rank {
    pub group: ProxyGroup,
    /// Of the case `direct`: the cards' queues, or why there are none.
    pub queues: Option<Result<Queues, String>>,
    /// Source of an initiator, destination of a target: what the kernel writes or the verification reads.
    pub payload: Buffer,
    _other: Buffer,
    pub tickets: Buffer,
    pub results: Buffer,
    pub device: Device,
    pub sharing: Sharing,
    pub provider: String,
    chosen: Chosen,
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
        let (target, from) = match ranks.rank() {
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
        let mut chosen = choose_rails(args, ranks, &device, most_rails, &mut notes)?;
        let path = memory_path(args, &device, &mut chosen, &mut notes)?;
        let needs = Needs::of(args, &device)?;
        needs.check_memory(ranks, args, &device)?;

        let place = if path == MemoryPath::Device || path.is_staged() { Place::Device } else { Place::Host };
        let initiates = target.is_some();
        // Bytes arrive in host memory where the rails cannot reach the GPU's.
        let payload_place = if initiates || path == MemoryPath::Device { place } else { chosen.place() };
        let payload = device.allocate(payload_place, to_usize(needs.payload)?)?;
        let null_destination = if args.is_null() { needs.payload } else { PLACEHOLDER };
        let other = device.allocate(Place::Host, PLACEHOLDER as usize)?;
        let pins = pins(args, ranks, &device, chosen.domains(), &mut notes)?;
        if initiates {
            let started = chosen.start_movers(pins.spare / (ranks.local_size() / 2).max(1), Stores::Cached);
            started.map_err(|error| Failure::Run(format!("starting threads that copy: {error}")))?;
        }
        notes.extend(chosen.notes().iter().cloned());

        let placeholder = memory_of(&other, &device, false);
        let null = Memory { bytes: to_usize(null_destination)?, ..placeholder };
        let own = memory_of(&payload, &device, path == MemoryPath::Device);
        let (source, destination) = match (initiates, args.is_null()) {
            (true, true) => (own, null),
            (true, false) => (own, placeholder),
            (false, _) => (placeholder, own),
        };
        let staged = initiates && path.is_staged();
        // Of a peer's memory the destination alone is written, and nothing is read.
        let regions = [
            GroupRegion {
                bytes: if staged { Bytes::Staged(&payload) } else { Bytes::Here(source) },
                access: Access::SOURCE,
            },
            GroupRegion { bytes: Bytes::Here(destination), access: Access::REMOTE_WRITE },
        ];
        let options = GroupOptions {
            threads: args.proxy_threads,
            ring_place: args.ring_memory,
            ring_slots: args.ring_slots,
            timeout: args.timeout,
            fault: args.fault.filter(|_| initiates),
            cores: &pins,
            signals: None,
            // Nothing is told of what arrives here: the destination is read by kernels that are launched after the ranks have met.
            flush: &|| None,
        };
        // SAFETY: the Rank keeps the buffers behind its group.
        let group = unsafe { ProxyGroup::start::<Failure>(&device, &chosen, &regions, &options) }?;
        let queues = if args.measures(Way::Direct) {
            // SAFETY: as above.
            Some(unsafe { Queues::open(args, ranks, (&device, &chosen), (&payload, path)) }?)
        } else {
            None
        };
        let rank = Rank {
            group,
            queues,
            payload,
            _other: other,
            tickets: device.allocate(Place::Device, to_usize(needs.slots * 8)?)?,
            results: device.allocate(Place::Device, needs.blocks * size_of::<BlockResult>())?,
            device,
            sharing,
            provider: format!("{}{}", chosen.name(), if args.moves() { "" } else { "/unmoved" }),
            chosen,
            path,
            notes,
            target,
            source: from,
            next_iteration: 1,
        };
        rank.group.connect::<Failure>(ranks)?;
        Ok(rank)
    }

    /// Ends whatever kernels wait for.
    pub fn stop(&self) {
        self.group.stop();
        if let Some(Ok(queues)) = &self.queues {
            queues.stop();
        }
    }

    /// Line rate of the cards of the first `rails` rails in bit/s, where it is known.
    pub fn line_rate(&self, rails: usize) -> Option<u64> {
        self.chosen.line_rate(rails)
    }

    /// What null rails have been given so far.
    pub fn counted(&self) -> Counted {
        self.chosen.counts().map(NullCounts::sum).unwrap_or_default()
    }

    /// Whether modelled cards move bytes from now on; others do in any case.
    pub fn move_bytes(&self, moves: bool) {
        if let Some(model) = self.chosen.model() {
            model.move_bytes(moves);
        }
    }

    /// How long the modelled card that has waited longest has done so for this machine; see [`Model::behind`].
    pub fn behind(&self) -> Duration {
        self.chosen.model().and_then(|model| model.behind().into_iter().max()).unwrap_or_default()
    }

    /// How long a modelled card takes for so many writes, one after another; nothing where cards are not modelled.
    pub fn pace(&self, bytes: u64, count: u64) -> Option<Duration> {
        self.chosen.model().map(|model| model.pace(bytes, count))
    }
}

fn to_usize(bytes: u64) -> Result<usize, Failure> {
    usize::try_from(bytes).map_err(|_| Failure::Usage(format!("{bytes} bytes are more than this machine can address")))
}
