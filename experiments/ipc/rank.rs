//! State of one rank for the whole run. It comprises the device, the rank's memory, which other ranks can open, and the
//! opened memories of other ranks.
//!
//! ```text
//!   the memory of a rank:  gate words | flags | source | slot for rank r+1 | slot for rank r+2 | ...
//! ```
//! Other ranks write to slots. There is only one slot if only one rank writes at a time.

use super::plan::{GpuFlow, IpcPlan};
use crate::error::Failure;
use crate::values::check_grid;
use cuda_std::emulation;
use cuda_std::memory::{Word, store_release_host_u64};
use ginlab::bootstrap::Bootstrap;
use ginlab::cores;
use ginlab::cuda::{Buffer, Device, DeviceChoice, DeviceError, MemoryLocation, OpenedMemory, PeerHandle, Stream};
use ginlab::gin::seat::{Seat, Wants};
use ginlab::pci::PciAddress;
use ginlab::sharing::{SAME_GPU, Sharing};
use ginlab::topology::nvlink::{self, Links};
use itertools::iproduct;
use kernels::ring::Status;
use std::cell::Cell;

use serde::{Deserialize, Serialize};

/// Distance in bytes between words that are written by different ranks.
const APART: u64 = 128;
/// Offset of the flags, after the gate words of 64 ranks.
const FLAGS: u64 = super::plan::MOST_RANKS as u64 * APART;
/// Offset of the source.
const HEAD: u64 = 2 * FLAGS;
/// Alignment of source and slots.
const ALIGNMENT: u64 = 4096;

/// State of one rank. Fields are dropped in order: streams wait for their work, and opened memories are closed before
/// this rank's memory is freed.
pub struct IpcRank {
    pub me: usize,
    ranks: usize,
    pub device: Device,
    pub sharing: Sharing,
    /// One stream per rank to which this rank can write at the same time, and one receiver per rank that can write to
    /// it.
    pub streams: Vec<Stream>,
    pub receivers: Vec<Stream>,
    opened: Vec<Option<OpenedMemory>>,
    memory: Buffer,
    /// Reason why the first rank cannot access the second one's memory; `None` if it can.
    unreachable: Vec<Vec<Option<String>>>,
    links: Vec<Vec<Option<GpuLink>>>,
    abort: Buffer,
    words: Buffer,
    slot_bytes: u64,
    slots: u64,
    /// Number of the last gate. All ranks assign the same numbers.
    round: Cell<u64>,
    pub notes: Vec<String>,
}

/// Connection between two ranks' GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuConnection {
    NvLink,
    Pcie,
    /// None: both ranks use the same GPU
    SameGpu,
}

/// Connection between two ranks' GPUs, and its rate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GpuLink {
    pub between: GpuConnection,
    /// Number of links between the GPUs, directly or through a switch, if NVML reports it.
    pub count: Option<u32>,
    /// Rate of all links together in one direction, if NVML reports it.
    pub bits_per_second: Option<u64>,
}

impl GpuConnection {
    fn of(nvlink: bool) -> GpuConnection {
        if nvlink { GpuConnection::NvLink } else { GpuConnection::Pcie }
    }
}

impl GpuLink {
    /// Returns the value of column `fabric`.
    pub fn fabric(&self) -> &'static str {
        match self.between {
            GpuConnection::NvLink => "nvlink",
            GpuConnection::Pcie => "pcie",
            GpuConnection::SameGpu => SAME_GPU,
        }
    }
}

/// Information that ranks exchange after opening each other's memories.
#[derive(Serialize, Deserialize)]
struct RankInfo {
    unreachable: Vec<Option<String>>,
    links: Vec<Option<GpuLink>>,
}

impl IpcRank {
    /// Allocates this rank's memory and opens that of the other ranks.
    pub fn open(plan: &IpcPlan, ranks: &mut Bootstrap) -> Result<IpcRank, Failure> {
        let choice = if plan.emulated { DeviceChoice::Emulated } else { DeviceChoice::Gpu };
        let Seat { device, sharing, mut notes, .. } = Seat::open(ranks, Wants::new(choice))?;
        // Every rank runs kernels, and no other process needs the cores.
        emulation::set_workers((cores::usable() / ranks.local_size()).max(1));
        for (&grid, &block) in iproduct!(&plan.grids, &plan.args.block[..]) {
            check_grid(&device, grid, block)?;
        }
        let most = plan.sizes.iter().copied().max().unwrap_or(1).next_multiple_of(ALIGNMENT);
        let slots = if plan.scenes.iter().any(|scene| scene.direction == "all") { ranks.size() as u64 - 1 } else { 1 };
        let memory = device.peer_memory(HEAD + most * (1 + slots))?;
        let handles: Vec<PeerHandle> = ranks.all_gather_values(&memory.handle()?, "memory handles")?;
        let me = ranks.rank();
        if sharing.is_shared() {
            notes.push(format!("{SAME_GPU}: bytes between ranks of one GPU stay in its memory and cross no link"));
        }
        let nvml = if plan.emulated { None } else { nvlink::links().map_err(|why| notes.push(why)).ok() };
        let mut opened = Vec::new();
        let mut card = RankInfo { unreachable: Vec::new(), links: Vec::new() };
        for (rank, handle) in handles.iter().enumerate() {
            let (memory, why) = if rank == me {
                (None, None)
            } else {
                // A pair without access must not prevent the measurement of others.
                OpenedMemory::open(&device, handle)
                    .map_or_else(|error| (None, Some(error.to_string())), |one| (Some(one), None))
            };
            opened.push(memory);
            card.unreachable.push(why);
            card.links.push(link(&device, nvml.as_deref(), &handles[me], handle));
        }
        let cards: Vec<RankInfo> = ranks.all_gather_values(&card, "reachable ranks")?;
        let words = device.allocate(MemoryLocation::Device, ((3 + 2 * ranks.size() as u64) * APART) as usize)?;
        let streams = || (0..slots).map(|_| Stream::new(&device)).collect::<Result<Vec<_>, _>>();
        Ok(IpcRank {
            me,
            ranks: ranks.size(),
            streams: streams()?,
            receivers: streams()?,
            opened,
            memory,
            unreachable: cards.iter().map(|card| card.unreachable.clone()).collect(),
            links: cards.into_iter().map(|card| card.links).collect(),
            abort: device.allocate(MemoryLocation::Host, 8)?,
            words,
            slot_bytes: most,
            slots,
            round: Cell::new(0),
            notes,
            device,
            sharing,
        })
    }

    /// Closes the other ranks' memories, waits until they have closed this rank's, and frees it.
    pub fn close(mut self, ranks: &mut Bootstrap) -> Result<(), Failure> {
        self.streams.clear();
        self.receivers.clear();
        self.opened.clear();
        Ok(ranks.barrier("memories closed")?)
    }

    /// Returns the reason why a flow is impossible; `None` if it is possible.
    pub fn unreachable(&self, flow: GpuFlow) -> Option<&String> {
        self.unreachable[flow.from][flow.to].as_ref()
    }

    /// Returns the connection between two ranks, if NVML reports it.
    pub fn link(&self, flow: GpuFlow) -> Option<&GpuLink> {
        self.links[flow.from][flow.to].as_ref()
    }

    fn base(&self, rank: usize) -> u64 {
        match &self.opened[rank] {
            Some(memory) => memory.address(),
            None => self.memory.address(),
        }
    }

    /// Returns the address of a rank's source in this rank's address space.
    pub fn source(&self, rank: usize) -> u64 {
        self.base(rank) + HEAD
    }

    /// Returns the address in this rank's address space at which bytes between `owner` and `other` arrive in the
    /// owner's memory.
    pub fn slot(&self, owner: usize, other: usize) -> u64 {
        self.base(owner) + self.slot_offset(owner, other)
    }

    fn slot_offset(&self, owner: usize, other: usize) -> u64 {
        let number = if self.slots > 1 { (other + self.ranks - owner - 1) % self.ranks } else { 0 };
        HEAD + self.slot_bytes * (1 + number as u64)
    }

    /// Returns the address of the flag of a flow, which is in the receiver's memory, in this rank's address space.
    pub fn flag(&self, flow: GpuFlow) -> *const Word {
        (self.base(flow.to) + FLAGS + flow.from as u64 * APART) as *const Word
    }

    /// Clears this rank's flag of an incoming flow.
    pub fn lower_flag(&self, flow: GpuFlow) -> Result<(), DeviceError> {
        self.memory.write((FLAGS + flow.from as u64 * APART) as usize, &[0u64])
    }

    /// Returns the addresses of the gate's words: the other rank's word for this rank, and this rank's word for the
    /// other.
    pub fn gate_words(&self, other: usize) -> [u64; 2] {
        let word = |rank: usize, from: usize| self.base(rank) + from as u64 * APART;
        [word(other, self.me), word(self.me, other)]
    }

    /// Returns the number of the last gate that another rank has reported.
    pub fn gates_of(&self, other: usize) -> Result<u64, DeviceError> {
        let mut word = [0u64];
        self.memory.read(other * APART as usize, &mut word)?;
        Ok(word[0])
    }

    /// Corrupts one byte of this rank's memory: of the source, or of the slot for another rank.
    pub fn spoil(&self, other: Option<usize>, offset: u64) -> Result<(), DeviceError> {
        let at = (other.map_or(HEAD, |other| self.slot_offset(self.me, other)) + offset) as usize;
        let mut byte = [0u8];
        self.memory.read(at, &mut byte)?;
        self.memory.write(at, &[!byte[0]])
    }

    /// Advances to the next gate and returns its number. Every rank counts every gate, including those in which it does
    /// not take part.
    pub fn next_round(&self) -> u64 {
        self.round.set(self.round.get() + 1);
        self.round.get()
    }

    /// Returns the host word that aborts the waits of this rank's kernels.
    pub fn abort_word(&self) -> *const Word {
        self.abort.pointer()
    }

    /// Aborts the waits of this rank's kernels.
    pub fn abort(&self) {
        // SAFETY: zeroed host memory of this size and alignment, which kernels and this thread access atomically.
        store_release_host_u64(unsafe { &*self.abort_word() }, 1);
    }

    /// Returns the device word in which a kernel stores the reason for an early end of its wait.
    pub fn stop_word(&self) -> *const Word {
        self.words.pointer()
    }

    /// Returns the reason why a kernel's wait ended early; `None` if it did not.
    pub fn stopped(&self) -> Result<Option<Status>, DeviceError> {
        Ok(Some(Status(self.word(0)?)).filter(|stop| stop.0 != 0))
    }

    /// Returns the device word that counts wrong bytes (`None`), or the finished blocks of a flow to rank `to`.
    pub fn counter(&self, to: Option<usize>) -> *const Word {
        (self.words.address() + counter_offset(to)) as *const Word
    }

    /// Sets a counter to 0.
    pub fn reset_counter(&self, to: Option<usize>) -> Result<(), DeviceError> {
        self.words.write(counter_offset(to) as usize, &[0u64])
    }

    /// Returns the device word with the number of the next part of a flow, or of all flows (`None`;
    /// `kernels::ipc_parts`).
    pub fn taken(&self, to: Option<usize>) -> *const Word {
        (self.words.address() + self.taken_offset(to)) as *const Word
    }

    /// Sets the number of the next part to 0.
    pub fn reset_taken(&self, to: Option<usize>) -> Result<(), DeviceError> {
        self.words.write(self.taken_offset(to) as usize, &[0u64])
    }

    fn taken_offset(&self, to: Option<usize>) -> u64 {
        // `words` contains pairs of a counter and the number of the next part for each flow, and the word for all flows
        // at the end.
        to.map_or(2 + 2 * self.ranks as u64, |to| 3 + 2 * to as u64) * APART
    }

    /// Returns the counted wrong bytes.
    pub fn counted(&self) -> Result<u64, DeviceError> {
        self.word(counter_offset(None))
    }

    fn word(&self, offset: u64) -> Result<u64, DeviceError> {
        let mut word = [0u64];
        self.words.read(offset as usize, &mut word)?;
        Ok(word[0])
    }
}

fn counter_offset(to: Option<usize>) -> u64 {
    to.map_or(1, |to| 2 + 2 * to as u64) * APART
}

/// Returns the connection between this rank's GPU and another rank's.
fn link(device: &Device, nvml: Option<&[Links]>, ours: &PeerHandle, theirs: &PeerHandle) -> Option<GpuLink> {
    let (PeerHandle::Cuda { gpu: ours, .. }, PeerHandle::Cuda { gpu: theirs, .. }) = (ours, theirs) else {
        return None;
    };
    if ours == theirs {
        return Some(GpuLink { between: GpuConnection::SameGpu, count: None, bits_per_second: None });
    }
    // The driver reports atomics even if NVML reports no links, for example in a guest. Atomic operations on another
    // GPU's memory require NVLink.
    let atomics = device.peer_atomics(theirs);
    let addresses: Option<(PciAddress, PciAddress)> = ours.parse().ok().zip(theirs.parse().ok());
    let Some((links, (ours, theirs))) = nvml.zip(addresses) else {
        return atomics.map(|nvlink| GpuLink {
            between: GpuConnection::of(nvlink),
            count: None,
            bits_per_second: None,
        });
    };
    let count = nvlink::between(links, ours, theirs);
    let all = links.iter().find(|links| links.gpu == ours);
    let each = all.and_then(|all| Some(all.bytes_per_second? / f64::from(all.active)));
    let bits_per_second = each.filter(|_| count > 0).map(|each| (each * 8.0 * f64::from(count)) as u64);
    Some(GpuLink {
        between: GpuConnection::of(count > 0 || atomics == Some(true)),
        count: Some(count).filter(|count| *count > 0),
        bits_per_second,
    })
}
