//! State of one rank for the whole run: device, memory, rings, proxy threads, and connections to peers.

use super::args::{ProxyArgs, ProxyConfig, WritePath};
use super::layout::{PLACEHOLDER, memory_of};
use super::machine::{MemoryPath, Needs, choose_cores, choose_rails};
use super::queues::NicQueues;
use super::random::ALIGNMENTS;
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, Device, MemoryLocation};
use ginlab::fabric::null::{NullCounts, NullTotals};
use ginlab::fabric::{Access, MemoryRange, RailPlan};
use ginlab::gin::seat::{Seat, Wants};
use ginlab::proxy::{GroupOptions, GroupRegion, ProxyGroup, RegionMemory};
use ginlab::sharing::Sharing;
use kernels::put_kernel::BlockResult;
use std::time::Duration;

/// State of one rank. Fields are dropped in order: the proxies must release the memory before it is freed.
pub struct ProxyRank {
    pub group: ProxyGroup,
    /// Queues of the case `direct`, or the reason why they cannot be used; `None` if the case is not measured.
    pub queues: Option<Result<NicQueues, String>>,
    /// Source of an initiator or destination of a target: memory that the kernel writes or the verification reads.
    pub payload: Buffer,
    _other: Buffer,
    pub tickets: Buffer,
    pub results: Buffer,
    pub device: Device,
    pub sharing: Sharing,
    pub provider: String,
    chosen: RailPlan,
    pub path: MemoryPath,
    pub notes: Vec<String>,
    /// Rank that this rank puts to; `None` if this rank does not put.
    pub target: Option<usize>,
    /// Rank that puts to this rank, if any.
    pub source: Option<usize>,
    /// Number of the next verified iteration, so that every pass has a different pattern.
    pub next_iteration: u32,
    /// Maximum number of rails of the parameter combinations so far.
    pub used_rails: usize,
}

impl ProxyRank {
    /// Opens all resources and connects to all ranks.
    pub fn open(args: &ProxyArgs, ranks: &mut Bootstrap) -> Result<ProxyRank, Failure> {
        let pairing = ranks.pairing();
        let (target, from, notes) = match ranks.rank() {
            // Null rails send nothing, so every rank puts to itself.
            rank if args.is_null() => (Some(rank), None, None),
            rank => (pairing.target(rank), pairing.source(rank), pairing.note()),
        };
        let launches = target.is_some();
        let wants = Wants { launches, notes: notes.into_iter().collect(), ..Wants::new(args.device) };
        let mut seat = Seat::open(ranks, wants)?;
        let path = choose_rails(args, ranks, &mut seat)?;
        let needs = Needs::of(args, &seat.device)?;
        needs.check_memory(ranks, args, &seat.device)?;
        choose_cores(args, ranks, &mut seat)?;
        if launches {
            seat.start_movers(seat.cores.spare / (ranks.local_size() / 2).max(1))?;
        }
        let Seat { device, sharing, rails: Some(chosen), cores, notes, .. } = seat else {
            return Err(Failure::Run("no rails were chosen".into()));
        };

        let alignments = if args.random.is_some() { ALIGNMENTS } else { 1 };
        let place =
            if path == MemoryPath::Device || path.is_staged() { MemoryLocation::Device } else { MemoryLocation::Host };
        // The destination is in host memory if the rails cannot access GPU memory.
        let payload_place = if launches || path == MemoryPath::Device { place } else { chosen.place() };
        let payload = device.allocate(payload_place, to_usize(needs.payload)? + (alignments - 1) as usize)?;
        let null_destination = if args.is_null() { needs.payload } else { PLACEHOLDER };
        let other = device.allocate(MemoryLocation::Host, PLACEHOLDER as usize)?;

        let placeholder = memory_of(&other, &device, false);
        let null = MemoryRange { bytes: to_usize(null_destination)?, ..placeholder };
        let own = memory_of(&payload, &device, path == MemoryPath::Device);
        let staged = launches && path.is_staged();
        if staged && args.random.is_some() {
            return Err(Failure::Usage("--random: staged GPU memory has no alignments: use --memory pinned".into()));
        }
        let mut regions = Vec::new();
        for at in 0..alignments {
            let own = MemoryRange { address: own.address + u64::from(at), bytes: own.bytes - at as usize, ..own };
            let (source, destination) = match (launches, args.is_null()) {
                (true, true) => (own, null),
                (true, false) => (own, placeholder),
                (false, _) => (placeholder, own),
            };
            let source = if staged { RegionMemory::Staged(&payload) } else { RegionMemory::Here(source) };
            // Peers' destinations are only written, and no peer memory is read.
            regions.push(GroupRegion { bytes: source, access: Access::SOURCE });
            regions.push(GroupRegion { bytes: RegionMemory::Here(destination), access: Access::REMOTE_WRITE });
        }
        let options = GroupOptions {
            threads: args.proxy_threads,
            own_rails: args.own_rails,
            ring_place: args.ring_memory,
            ring_slots: args.ring_slots,
            timeout: args.meet.timeout,
            fault: args.fault.filter(|_| launches),
            cores: &cores,
            signals: None,
            // Arrivals are not reported: kernels that read the destination are launched after a barrier of the ranks.
            flush: &|| None,
        };
        // SAFETY: the rank drops its buffers after its group.
        let group = unsafe { ProxyGroup::start::<Failure>(&device, &chosen, &regions, &options) }?;
        let queues = if args.measures(WritePath::Direct) {
            // SAFETY: the rank drops the payload after its queues.
            Some(unsafe { NicQueues::open(args, ranks, (&device, &chosen), (&payload, path)) }?)
        } else {
            None
        };
        let rank = ProxyRank {
            group,
            queues,
            payload,
            _other: other,
            tickets: device.allocate(MemoryLocation::Device, to_usize(needs.slots * 8)?)?,
            results: device.allocate(MemoryLocation::Device, needs.blocks * size_of::<BlockResult>())?,
            device,
            sharing,
            provider: format!("{}{}", chosen.name(), if args.moves() { "" } else { "/unmoved" }),
            chosen,
            path,
            notes,
            target,
            source: from,
            next_iteration: 1,
            used_rails: 0,
        };
        rank.group.connect::<Failure>(ranks)?;
        if args.per_node {
            rank.group.time_rails()?;
        }
        Ok(rank)
    }

    /// Aborts all waits of kernels.
    pub fn stop(&self) {
        self.group.stop();
        if let Some(Ok(queues)) = &self.queues {
            queues.stop();
        }
    }

    /// Returns the line rate of the NICs of the first `rails` rails in bits per second, if it is known.
    pub fn line_rate(&self, rails: usize) -> Option<u64> {
        self.chosen.line_rate(rails)
    }

    /// Returns the totals that null rails have received so far.
    pub fn counted(&self) -> NullTotals {
        self.chosen.counts().map(NullCounts::sum).unwrap_or_default()
    }

    /// Selects the rails of a parameter combination. Proxies of a rank that only receives poll without yielding.
    pub fn select_rails(&self, tuple: &ProxyConfig) -> Result<(), Failure> {
        self.group.configure(tuple.rails, tuple.strategy)?;
        let only_receives = self.source.is_some() && self.target.is_none();
        self.group.proxies().iter().for_each(|proxy| proxy.set_busy_poll(only_receives));
        Ok(())
    }

    /// Sets whether modelled NICs move the bytes of subsequent writes. Has no effect on other rails.
    pub fn move_bytes(&self, moves: bool) {
        if let Some(model) = self.chosen.model() {
            model.move_bytes(moves);
        }
    }

    /// Returns the longest time that a modelled NIC has waited for this machine; see [`ModelledNics::behind`].
    pub fn behind(&self) -> Duration {
        self.chosen.model().and_then(|model| model.behind().into_iter().max()).unwrap_or_default()
    }

    /// Returns the time that a modelled NIC takes for `count` consecutive writes. `None` if the NICs are not modelled.
    pub fn pace(&self, bytes: u64, count: u64) -> Option<Duration> {
        self.chosen.model().map(|model| model.pace(bytes, count))
    }
}

fn to_usize(bytes: u64) -> Result<usize, Failure> {
    usize::try_from(bytes)
        .map_err(|_| Failure::Usage(format!("{bytes} bytes exceed the address space of this machine")))
}
