//! Queue pairs of cards that kernels drive by commands ([`kernels::direct::Channel`]): what stands in the place of rings and proxies.
//!
//! A block's commands go to a queue pair of this rank's; the peer's pair of the same number is where they arrive. Registration, address handles
//! and their exchange stay with the CPU.

use crate::memory::DeviceSide;
use cuda_std::memory::{Doorbell, Word, load_acquire_host_u64};
use efa_queue::completion;
use efa_queue::request::To;
use ginlab_bootstrap::{Bootstrap, BootstrapError};
use ginlab_cuda::{Buffer, Device, DeviceError, Place, Reached};
use ginlab_fabric::verbs::{Completions, Counted, Mapping, Pair, PairOptions, Region, Verbs};
use ginlab_fabric::{Access, FabricError, Memory};
use kernels::direct::{Channel, Failure, NO_TURN, Peer, Queue};
use kernels::ring::{Ring, TO_CARD};

/// Why there are no channels.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// What these cards cannot do, in one line.
    #[error("{0}")]
    Refused(String),
    /// The ranks'.
    #[error("{0}")]
    Ranks(#[from] BootstrapError),
    /// The device's.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// The card's.
    #[error("{0}")]
    Fabric(#[from] FabricError),
}

/// What is needed to open them. All ranks open as many.
#[derive(Clone, Copy, Debug)]
pub struct ChannelOptions<'a> {
    /// Who drives them.
    pub device: &'a Device,
    /// The card of each, by name.
    pub cards: &'a [&'a str],
    /// What is registered: memory of the host, or of a GPU whose cards' writes its kernels see in order; and behind the heap [`staging_bytes`], where
    /// values are put.
    pub memory: Memory,
    /// The heap, whose bytes commands name by offset: the first ones of the memory.
    pub heap_bytes: u64,
    /// Requests of one that are under way at most.
    pub depth: u32,
    /// What has arrived at one and nobody has read yet, at most.
    pub arrivals: u32,
    /// The first signals, so many, have a queue pair each, on the first channel's card, where the card counts them.
    pub counted_signals: u32,
    /// Not 0 there ends every wait of the kernels.
    pub abort: &'a Buffer,
    /// Longest wait of a kernel in which nothing ends.
    pub timeout_ns: u64,
}

/// Bytes behind a heap that values are sent from, for so many channels of this depth.
#[must_use]
pub fn staging_bytes(channels: usize, depth: u32) -> u64 {
    channels as u64 * u64::from(depth) * 8
}

/// See the module. Fields are dropped in this order: no device reaches a queue that is gone.
#[derive(Debug)]
pub struct Channels {
    _reached: Vec<Reached>,
    sides: Vec<DeviceSide>,
    rings: Buffer,
    _tables: [Buffer; 3],
    pairs: Vec<Pair>,
    /// Of signals that the card counts.
    signals: Vec<Pair>,
    _regions: Vec<Region>,
    verbs: Vec<Verbs>,
    /// Addresses that a card keeps a handle of, each with the card's number.
    peers: Vec<(usize, Vec<u8>)>,
}

/// What other ranks must know of this one: of each channel the pair's address and the key of the heap; the heap; the addresses of counted
/// signals' pairs.
type Told = (Vec<(Vec<u8>, u32)>, u64, Vec<Vec<u8>>);

/// Requests of a pair that is there to be written to: it posts none.
const IDLE: u32 = 16;

impl Channels {
    /// Opens them with all ranks.
    ///
    /// # Safety
    /// The memory stays valid and in place until they are dropped.
    ///
    /// # Errors
    /// What a card cannot do or says; what the driver says; a rank that has gone.
    pub unsafe fn open(ranks: &mut Bootstrap, options: &ChannelOptions<'_>) -> Result<Channels, ChannelError> {
        let ChannelOptions { device, memory, heap_bytes, .. } = *options;
        let (mut names, mut verbs, mut regions) = (Vec::new(), Vec::new(), Vec::new());
        let mut card_of = Vec::new();
        for &name in options.cards {
            let known = names.iter().position(|known| *known == name);
            let Some(card) = known else {
                let card = Verbs::open(name)?;
                if !card.writes() {
                    return Err(ChannelError::Refused(format!("{} has no RDMA write", card.name())));
                }
                // SAFETY: the caller's word.
                regions.push(unsafe { card.register(memory, Access::ALL) }?);
                card_of.push(verbs.len());
                verbs.push(card);
                names.push(name);
                continue;
            };
            card_of.push(card);
        }
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
        let pairs = card_of.iter().map(pair).collect::<Result<Vec<Pair>, _>>()?;
        let signals = counting_pairs(&verbs[0], options.counted_signals)?;
        let told = |(pair, card): (&Pair, &usize)| (pair.address(), regions[*card].rkey);
        let mine: Told = (
            pairs.iter().zip(&card_of).map(told).collect(),
            memory.address,
            signals.iter().map(Pair::address).collect(),
        );
        let all: Vec<Told> = ranks.all_gather_values(&mine, "queue pairs and heaps")?;

        let mut peers = Vec::new();
        let mut table: Vec<Peer> = Vec::new();
        for (number, &card) in card_of.iter().enumerate() {
            for (pairs, heap, _) in &all {
                let Some((address, key)) = pairs.get(number) else {
                    return Err(unlike("queue pairs"));
                };
                let to: To = verbs[card].handle(address)?;
                peers.push((card, address.clone()));
                table.push(Peer { to, key: *key, heap: *heap });
            }
        }
        let mut counted: Vec<To> = Vec::new();
        for signal in 0..signals.len() {
            for (_, _, addresses) in &all {
                let address = addresses.get(signal).ok_or_else(|| unlike("signals that cards count"))?;
                counted.push(verbs[0].handle(address)?);
                peers.push((0, address.clone()));
            }
        }
        // A card takes writes of those alone whose card it has a handle of.
        ranks.barrier("address handles of all cards")?;
        let peer_table = device.allocate(Place::Device, size_of_val(&table[..]))?;
        peer_table.write(0, &table)?;

        let counted_table = device.allocate(Place::Device, size_of_val(&counted[..]))?;
        counted_table.write(0, &counted)?;

        let mut mappings: Vec<Mapping> = pairs.iter().flat_map(Pair::mappings).collect();
        // Kernels read the counters of signals' pairs, and nothing else of these.
        let is_counter = |pair: &Pair, start: *mut u8| {
            pair.counter(Counted::RemoteWrites).is_some_and(|at| at.addr() == start.addr())
        };
        mappings.extend(
            signals
                .iter()
                .flat_map(|pair| pair.mappings().into_iter().filter(|mapping| is_counter(pair, mapping.start))),
        );
        // Doorbells of several pairs may have one page of the card.
        mappings.sort_by_key(|mapping| mapping.start);
        mappings.dedup_by_key(|mapping| mapping.start);
        let mut reached = Vec::new();
        for mapping in mappings {
            // SAFETY: its pair has it mapped, and is dropped behind this.
            reached.push(unsafe { device.reach(mapping.start, mapping.bytes, mapping.is_card) }?);
        }
        let (mut sides, mut channels) = (Vec::new(), Vec::new());
        for (number, (pair, card)) in pairs.iter().zip(&card_of).enumerate() {
            let side = DeviceSide::new(device, pair.view().send.entries, 0)?;
            channels.push(Channel {
                queue: queue(pair, &side, options)?,
                peers: peer_table.pointer::<Peer>().wrapping_add(number * all.len()),
                counted: counted_table.pointer(),
                pes: all.len() as u32,
                counted_signals: options.counted_signals,
                local_key: regions[*card].lkey,
                heap: memory.address,
                heap_bytes,
                staging: memory.address + heap_bytes + staging_bytes(number, options.depth),
            });
            sides.push(side);
        }
        let channel_table = device.allocate(Place::Device, size_of_val(&channels[..]))?;
        channel_table.write(0, &channels)?;
        let ring = |(number, channel): (usize, &Channel)| Ring {
            device: channel_table.pointer::<Channel>().wrapping_add(number).cast(),
            log2_capacity: channel.queue.depth.trailing_zeros(),
            log2_slot_words: TO_CARD,
            timeout_ns: options.timeout_ns,
            free_below: channel.queue.depth.into(),
            ..Ring::NONE
        };
        let list: Vec<Ring> = channels.iter().enumerate().map(ring).collect();
        let rings = device.allocate(Place::Device, size_of_val(&list[..]))?;
        rings.write(0, &list)?;
        Ok(Channels {
            _reached: reached,
            sides,
            rings,
            _tables: [peer_table, channel_table, counted_table],
            pairs,
            signals,
            _regions: regions,
            verbs,
            peers,
        })
    }

    /// As kernels get them.
    #[must_use]
    pub fn rings(&self) -> *const Ring {
        self.rings.pointer()
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.pairs.len() as u32
    }

    /// Where what peers do arrives, of each.
    pub fn arrivals(&self) -> impl Iterator<Item = Completions> {
        self.pairs.iter().map(|pair| pair.view().arrivals)
    }

    /// The card's counters of the first signals.
    pub fn counters(&self) -> impl Iterator<Item = *const u64> {
        self.signals.iter().filter_map(|pair| pair.counter(Counted::RemoteWrites))
    }

    /// Where what peers do arrives at the pairs of signals that the card counts: plain writes leave nothing there, and nobody reads it.
    pub fn arrivals_of_counted(&self) -> impl Iterator<Item = Completions> {
        self.signals.iter().map(|pair| pair.view().arrivals)
    }

    /// The first card.
    #[must_use]
    pub fn card(&self) -> Option<&Verbs> {
        self.verbs.first()
    }

    /// What went wrong first at each where something did: as a kernel has noted it; where none has looked, since it waited for a signal and not
    /// for its own requests, as the card says.
    ///
    /// # Errors
    /// The driver's.
    pub fn failures(&self) -> Result<Vec<String>, DeviceError> {
        let mut found = Vec::new();
        for (number, (side, pair)) in self.sides.iter().zip(&self.pairs).enumerate() {
            if let Some(failure) = side.failure()?.or_else(|| not_looked_at(&pair.view().completions)) {
                found.push(format!("queue {number}: {failure}"));
            }
        }
        Ok(found)
    }

    /// Changes when a kernel has rung.
    ///
    /// # Errors
    /// The driver's.
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

/// What ranks must have alike.
fn unlike(what: &str) -> ChannelError {
    ChannelError::Refused(format!("all ranks open as many {what}"))
}

/// A pair for each signal that the card counts: what is written to it is that signal's.
fn counting_pairs(card: &Verbs, signals: u32) -> Result<Vec<Pair>, ChannelError> {
    if signals > 0 && !card.counters() {
        let text = "has no completion counters, or this libefa does not know them (cards of p5en and p6, rdma-core 65)";
        return Err(ChannelError::Refused(format!("{} {text}", card.name())));
    }
    let options = PairOptions {
        depth: IDLE,
        completions: IDLE,
        arrivals: IDLE,
        receives: 1,
        unsolicited: true,
        counted: &[Counted::RemoteWrites],
    };
    (0..signals).map(|_| Ok(card.pair(&options)?)).collect()
}

/// A pair's queue as kernels see it.
fn queue(pair: &Pair, side: &DeviceSide, options: &ChannelOptions<'_>) -> Result<Queue, ChannelError> {
    let view = pair.view();
    if view.send.entry_bytes != 64 {
        let bytes = view.send.entry_bytes;
        return Err(ChannelError::Refused(format!("requests of {bytes} bytes; 64 are known here")));
    }
    let depth = view.send.entries;
    Ok(Queue {
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

/// A request that has ended badly, of whose completion nobody has taken notice. Its number is the low 16 bits, which are its id.
fn not_looked_at(queue: &Completions) -> Option<Failure> {
    let words = (queue.entry_bytes / 8) as usize;
    (0..queue.entries as usize).find_map(|index| {
        // SAFETY: so many entries of so many bytes, as the pair vouches for, which outlives this.
        let entry = unsafe { &*queue.slots.cast::<Word>().add(index * words) };
        // Acquire, as whoever reads what a card has stored; nothing behind it is read.
        let first = load_acquire_host_u64(entry);
        let status = completion::status(first);
        (status != 0).then(|| Failure::of(status.into(), completion::id(first).into()))
    })
}
