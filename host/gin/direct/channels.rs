//! NIC queue pairs that kernels drive by commands ([`kernels::direct::Channel`]), as a replacement for rings and
//! proxies.
//!
//! A block's commands are posted to one of the queue pairs of this rank. They arrive at the peer's pair with the same
//! number. The CPU registers memory, creates address handles and exchanges them.

use super::memory::DeviceSide;
use cuda_std::memory::{Doorbell, Word, load_acquire_host_u64};
use efa_queue::completion;
use efa_queue::request::To;
use ginlab_bootstrap::{Bootstrap, BootstrapError};
use ginlab_cuda::{Buffer, Device, DeviceError, HostKind, MemoryLocation, Reached};
use ginlab_fabric::verbs::{CompletionRing, CountedEvent, Mapping, PairOptions, QueuePair, Verbs, VerbsRegion};
use ginlab_fabric::{Access, FabricError, MemoryRange};
use kernels::direct::{Channel, NO_TURN, NicQueue, PeerAddress, QueueFailure};

/// Errors of opening channels.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The NICs do not support the options. The text is one line.
    #[error("{0}")]
    Refused(String),
    /// Communication between the ranks failed.
    #[error("{0}")]
    Ranks(#[from] BootstrapError),
    /// A device operation failed.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// A NIC operation failed.
    #[error("{0}")]
    Fabric(#[from] FabricError),
}

/// Options for opening channels. All ranks must open the same number.
#[derive(Clone, Copy, Debug)]
pub struct ChannelOptions<'a> {
    /// Device whose kernels drive the channels.
    pub device: &'a Device,
    /// Name of the NIC of each channel.
    pub cards: &'a [&'a str],
    /// Memory to register: host memory, or memory of a GPU whose kernels observe NICs' writes in order. It consists of
    /// the heap, followed by [`staging_bytes`] bytes for kernels that put values.
    pub memory: MemoryRange,
    /// Size of the heap, the first bytes of the memory. Commands address it by offset.
    pub heap_bytes: u64,
    /// Maximum number of requests in flight per channel.
    pub depth: u32,
    /// Maximum number of unread arrivals per channel.
    pub arrivals: u32,
    /// Number of signals that the NIC counts, starting with the first signal. Each has a queue pair on the NIC of the
    /// first channel.
    pub counted_signals: u32,
    /// Word that aborts every wait of the kernels if it is not 0.
    pub abort: &'a Buffer,
    /// Maximum time, in nanoseconds, that a kernel waits while nothing completes.
    pub timeout_ns: u64,
}

/// Open NICs, the registration of the memory with each, and the index of each channel's NIC.
type OpenCards = (Vec<Verbs>, Vec<VerbsRegion>, Vec<usize>);

impl ChannelOptions<'_> {
    /// Returns an error if channels cannot be opened on these NICs.
    fn check(&self) -> Result<(), ChannelError> {
        let Some((first, others)) = self.cards.split_first() else {
            return Err(ChannelError::Refused("no EFA device is named; name at least one".into()));
        };
        // All channels share one table of the counting pairs, and an address handle is valid only for the NIC that
        // created it.
        match others.iter().find(|card| *card != first) {
            Some(other) if self.counted_signals > 0 => Err(ChannelError::Refused(format!(
                "signals that an EFA device counts (rule counter) need exactly one device, but there are several \
                 ({first}, {other}); name one device, or use another rule"
            ))),
            _ => Ok(()),
        }
    }

    /// Opens each NIC once and registers the memory with it.
    ///
    /// # Safety
    /// The memory must stay valid and in place until the regions are dropped.
    unsafe fn open_cards(&self) -> Result<OpenCards, ChannelError> {
        let (mut names, mut verbs, mut regions) = (Vec::new(), Vec::new(), Vec::new());
        let mut card_of = Vec::new();
        for &name in self.cards {
            let known = names.iter().position(|known| *known == name);
            let Some(card) = known else {
                let card = Verbs::open(name)?;
                if !card.writes() {
                    return Err(ChannelError::Refused(format!("{} has no RDMA write", card.name())));
                }
                // SAFETY: the caller guarantees that the memory outlives its regions.
                regions.push(unsafe { card.register(self.memory, Access::ALL) }?);
                card_of.push(verbs.len());
                verbs.push(card);
                names.push(name);
                continue;
            };
            card_of.push(card);
        }
        Ok((verbs, regions, card_of))
    }

    /// Returns the number of slots of the deepest queue. Returns an error if the memory has less staging space than
    /// slots, which can happen because NICs round depths up.
    fn slots(&self, pairs: &[QueuePair]) -> Result<u32, ChannelError> {
        let slots = pairs.iter().map(|pair| pair.view().send.entries).max().unwrap_or_default();
        let staging = (self.memory.bytes as u64).saturating_sub(self.heap_bytes);
        // Memory without a staging area is for kernels that put no values.
        if staging == 0 || staging >= staging_bytes(pairs.len(), slots) {
            return Ok(slots);
        }
        let depth = self.depth;
        Err(ChannelError::Refused(format!(
            "{staging} B after the heap are too few for values: the device's queues have {slots} requests each (depth \
             {depth} was requested); request depth {slots}"
        )))
    }
}

/// Returns the number of bytes after a heap from which `channels` channels of depth `depth` can send values.
#[must_use]
pub fn staging_bytes(channels: usize, depth: u32) -> u64 {
    channels as u64 * u64::from(depth) * 8
}

/// Queue pairs that kernels drive. Fields are dropped in this order, so that no device mapping refers to a closed
/// queue.
#[derive(Debug)]
pub struct Channels {
    _reached: Vec<Reached>,
    sides: Vec<DeviceSide>,
    /// The channels as kernels use them.
    table: Buffer,
    /// Tables of peers and of counted signals, to which the channels point.
    _tables: [Buffer; 2],
    pairs: Vec<QueuePair>,
    /// Pairs of the signals that the NIC counts.
    signals: Vec<QueuePair>,
    _regions: Vec<VerbsRegion>,
    verbs: Vec<Verbs>,
    /// Addresses that have an address handle, each with the index of the NIC that owns it.
    peers: Vec<(usize, Vec<u8>)>,
}

/// Information that a rank sends to the others: the address of each channel's pair with the heap's remote key, the
/// heap's address, and the addresses of the counted signals' pairs.
type ChannelAddresses = (Vec<(Vec<u8>, u32)>, u64, Vec<Vec<u8>>);

/// Queue depth of pairs that post no requests and only receive writes.
const IDLE: u32 = 16;

impl Channels {
    /// Opens channels to all ranks. This is a collective call.
    ///
    /// # Safety
    /// The memory must stay valid and must not move until the channels are dropped.
    ///
    /// # Errors
    /// Returns an error if a NIC does not support the options or fails, if the driver fails, or if a rank has exited.
    pub unsafe fn open(ranks: &mut Bootstrap, options: &ChannelOptions<'_>) -> Result<Channels, ChannelError> {
        let ChannelOptions { device, memory, heap_bytes, .. } = *options;
        options.check()?;
        // SAFETY: the caller guarantees that the memory stays valid until the regions are dropped.
        let (verbs, regions, card_of) = unsafe { options.open_cards() }?;
        let pair = |&card: &usize| {
            let verbs: &Verbs = &verbs[card];
            let options = PairOptions {
                depth: options.depth.min(verbs.max_depth()),
                completions: options.depth,
                arrivals: options.arrivals,
                receives: 1,
                unsolicited: true,
                counted: &[],
            };
            verbs.pair(&options)
        };
        let pairs = card_of.iter().map(pair).collect::<Result<Vec<QueuePair>, _>>()?;
        let slots = options.slots(&pairs)?;
        let signals = counting_pairs(&verbs[0], options.counted_signals)?;
        let told = |(pair, card): (&QueuePair, &usize)| (pair.address(), regions[*card].rkey);
        let mine: ChannelAddresses = (
            pairs.iter().zip(&card_of).map(told).collect(),
            memory.address,
            signals.iter().map(QueuePair::address).collect(),
        );
        let all: Vec<ChannelAddresses> = ranks.all_gather_values(&mine, "queue pairs and heaps")?;
        let addresses: Vec<Vec<Vec<u8>>> =
            all.iter().map(|(pairs, ..)| pairs.iter().map(|(address, _)| address.clone()).collect()).collect();
        ranks.check_addresses(addresses.iter().map(|rails| &rails[..]))?;

        let mut peers = Vec::new();
        let mut table: Vec<PeerAddress> = Vec::new();
        for (number, &card) in card_of.iter().enumerate() {
            for (pairs, heap, _) in &all {
                let Some((address, key)) = pairs.get(number) else {
                    return Err(unlike("queue pairs"));
                };
                let to: To = verbs[card].handle(address)?;
                peers.push((card, address.clone()));
                table.push(PeerAddress { to, key: *key, heap: *heap });
            }
        }
        let mut counted: Vec<To> = Vec::new();
        for signal in 0..signals.len() {
            for (_, _, addresses) in &all {
                let address = addresses.get(signal).ok_or_else(|| unlike("signals that EFA devices count"))?;
                counted.push(verbs[0].handle(address)?);
                peers.push((0, address.clone()));
            }
        }
        // A NIC accepts writes only from peers for which it has an address handle.
        ranks.barrier("address handles of all EFA devices")?;
        let peer_table = device.allocate(MemoryLocation::Device, size_of_val(&table[..]))?;
        peer_table.write(0, &table)?;

        let counted_table = device.allocate(MemoryLocation::Device, size_of_val(&counted[..]))?;
        counted_table.write(0, &counted)?;

        // SAFETY: the pairs are dropped after the mappings.
        let reached = unsafe { reach(device, &pairs, &signals) }?;
        let (mut sides, mut channels) = (Vec::new(), Vec::new());
        for (number, (pair, card)) in pairs.iter().zip(&card_of).enumerate() {
            let side = DeviceSide::new(device, pair.view().send.entries, 0)?;
            channels.push(Channel {
                queue: queue(pair, &side, options)?,
                peers: peer_table.pointer::<PeerAddress>().wrapping_add(number * all.len()),
                counted: counted_table.pointer(),
                pes: all.len() as u32,
                counted_signals: options.counted_signals,
                local_key: regions[*card].lkey,
                heap: memory.address,
                heap_bytes,
                staging: memory.address + heap_bytes + staging_bytes(number, slots),
            });
            sides.push(side);
        }
        let table = device.allocate(MemoryLocation::Device, size_of_val(&channels[..]))?;
        table.write(0, &channels)?;
        Ok(Channels {
            _reached: reached,
            sides,
            table,
            _tables: [peer_table, counted_table],
            pairs,
            signals,
            _regions: regions,
            verbs,
            peers,
        })
    }

    /// Returns the channels as kernel arguments.
    #[must_use]
    pub fn table(&self) -> *const Channel {
        self.table.pointer()
    }

    /// Returns the number of channels.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.pairs.len() as u32
    }

    /// Returns the completion queue for peers' operations of each channel.
    pub fn arrivals(&self) -> impl Iterator<Item = CompletionRing> {
        self.pairs.iter().map(|pair| pair.view().arrivals)
    }

    /// Returns the NIC's counters of the first signals.
    pub fn counters(&self) -> impl Iterator<Item = *const u64> {
        self.signals.iter().filter_map(|pair| pair.counter(CountedEvent::RemoteWrites))
    }

    /// Returns the completion queues for peers' operations of the counting pairs. Plain writes create no entries there,
    /// and no thread polls them.
    pub fn arrivals_of_counted(&self) -> impl Iterator<Item = CompletionRing> {
        self.signals.iter().map(|pair| pair.view().arrivals)
    }

    /// Returns the first NIC.
    #[must_use]
    pub fn card(&self) -> Option<&Verbs> {
        self.verbs.first()
    }

    /// Returns the first error of each channel that has failed. This is the error that a kernel has recorded. If
    /// kernels have only waited for signals and not polled their own requests, it is the error in the NIC's completion
    /// queue.
    ///
    /// # Errors
    /// Returns the driver's error if a copy fails.
    pub fn failures(&self) -> Result<Vec<String>, DeviceError> {
        let mut found = Vec::new();
        for (number, (side, pair)) in self.sides.iter().zip(&self.pairs).enumerate() {
            if let Some(failure) = side.failure()?.or_else(|| not_looked_at(&pair.view().completions)) {
                found.push(format!("queue {number}: {failure}"));
            }
        }
        Ok(found)
    }

    /// Returns a value that changes when a kernel rings a doorbell.
    ///
    /// # Errors
    /// Returns the driver's error if a copy fails.
    pub fn pulse(&self) -> Result<u64, DeviceError> {
        self.sides.iter().try_fold(0u64, |sum, side| Ok(sum.wrapping_add(side.rung()?)))
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        for (card, address) in &self.peers {
            self.verbs[*card].release(address);
        }
    }
}

/// Returns the error for ranks whose numbers of `what` differ.
fn unlike(what: &str) -> ChannelError {
    ChannelError::Refused(format!("all ranks must open the same number of {what}"))
}

/// Opens a pair for each signal that the NIC counts. Every write that arrives at the pair increments that signal.
fn counting_pairs(card: &Verbs, signals: u32) -> Result<Vec<QueuePair>, ChannelError> {
    if signals > 0 && !card.counters() {
        let text =
            "has no completion counters, or this libefa does not support them (devices of p5en and p6, rdma-core 65)";
        return Err(ChannelError::Refused(format!("{} {text}", card.name())));
    }
    let options = PairOptions {
        depth: IDLE,
        completions: IDLE,
        arrivals: IDLE,
        receives: 1,
        unsolicited: true,
        counted: &[CountedEvent::RemoteWrites],
    };
    (0..signals).map(|_| Ok(card.pair(&options)?)).collect()
}

/// Maps the parts of the pairs that kernels use into the device.
///
/// # Safety
/// The pairs must outlive the returned mappings.
unsafe fn reach(device: &Device, pairs: &[QueuePair], signals: &[QueuePair]) -> Result<Vec<Reached>, DeviceError> {
    let mut mappings: Vec<Mapping> = pairs.iter().flat_map(QueuePair::mappings).collect();
    // Kernels read only the counters of the signals' pairs.
    let is_counter = |pair: &QueuePair, start: *mut u8| {
        pair.counter(CountedEvent::RemoteWrites).is_some_and(|at| at.addr() == start.addr())
    };
    let counters = |pair| QueuePair::mappings(pair).into_iter().filter(move |mapping| is_counter(pair, mapping.start));
    mappings.extend(signals.iter().flat_map(counters));
    // Doorbells of several pairs may share a page of the NIC.
    mappings.sort_by_key(|mapping| mapping.start);
    mappings.dedup_by_key(|mapping| mapping.start);
    let reached = |mapping: &Mapping| {
        // SAFETY: the caller guarantees that the pairs outlive the returned values.
        unsafe { device.reach(mapping.start, mapping.bytes, kind_of(mapping)) }
    };
    mappings.iter().map(reached).collect()
}

/// Returns the kind of a mapping, for the device.
fn kind_of(mapping: &Mapping) -> HostKind {
    match (mapping.is_card, mapping.is_read_only) {
        (true, _) => HostKind::CardWindow,
        (false, true) => HostKind::ReadOnly,
        (false, false) => HostKind::Memory,
    }
}

/// Returns a pair's queue as the kernel argument.
fn queue(pair: &QueuePair, side: &DeviceSide, options: &ChannelOptions<'_>) -> Result<NicQueue, ChannelError> {
    let view = pair.view();
    if view.send.entry_bytes != 64 {
        let bytes = view.send.entry_bytes;
        return Err(ChannelError::Refused(format!("requests have {bytes} bytes, but only 64 are supported")));
    }
    let depth = view.send.entries;
    Ok(NicQueue {
        slots: view.send.slots.cast::<Word>(),
        doorbell: view.send.doorbell.cast::<Doorbell>(),
        completions: view.completions.slots.cast::<Word>(),
        counter: std::ptr::null(),
        words: side.words(),
        turns: side.turns(),
        done: side.done(),
        abort: options.abort.pointer(),
        timeout_ns: options.timeout_ns,
        depth,
        max_batch: view.send.max_batch,
        completion_entries: view.completions.entries,
        completion_words: view.completions.entry_bytes / 8,
        registers: pair.mappings().iter().any(|mapping| mapping.is_card).into(),
        free_below: depth.into(),
        ordered: 0,
        turn: NO_TURN,
    })
}

/// Returns a failed request whose completion no kernel has read. Only the low 16 bits of its number, which are its ID,
/// are known.
fn not_looked_at(queue: &CompletionRing) -> Option<QueueFailure> {
    let words = (queue.entry_bytes / 8) as usize;
    (0..queue.entries as usize).find_map(|index| {
        // SAFETY: the pair guarantees `entries` entries of `entry_bytes` bytes, and outlives this call.
        let entry = unsafe { &*queue.slots.cast::<Word>().add(index * words) };
        // Uses acquire order, which pairs with the NIC's store, as for every reader. Nothing is read after it.
        let first = load_acquire_host_u64(entry);
        let status = completion::status(first);
        (status != 0).then(|| QueueFailure::of(status.into(), completion::id(first).into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_reached_with_their_access() {
        let mapping =
            |is_card, is_read_only| Mapping { start: std::ptr::null_mut(), bytes: 4096, is_card, is_read_only };
        assert_eq!(kind_of(&mapping(false, false)), HostKind::Memory);
        assert_eq!(kind_of(&mapping(false, true)), HostKind::ReadOnly);
        assert_eq!(kind_of(&mapping(true, false)), HostKind::CardWindow);
    }
}
