//! State of one PE for the whole run: its device, the memory of all PEs, and the number of rounds so far.

use super::super::{LitmusArgs, OnDevice};
use super::cases::{Executor, LitmusCase, LitmusMemory, Placement};
use crate::error::Failure;
use cuda_std::emulation;
use cuda_std::memory::{Word, load_acquire_host_u64};
use ginlab::bootstrap::Bootstrap;
use ginlab::cores;
use ginlab::cuda::{Buffer, Device, DeviceChoice, DeviceError, MemoryLocation, OpenedMemory, PeerHandle, Stream};
use ginlab::gin::seat::{Seat, Wants};
use ginlab::sharing::Sharing;
use kernels::litmus::{APART, LANES, LITMUS_THREADS, LOCATIONS, OUTCOMES, ROLES, SETS, end_waits};
use std::cell::Cell;

/// Number of warps of a block on a GPU. Any number of roles up to 4 divides it.
pub const WARPS: u32 = 12;
/// Distance in words between locations: a cache line, which contains the payload.
pub const STRIDE: u32 = 16;
/// Number of groups that a CPU thread runs.
const GROUPS_PER_CPU: u32 = 8;
/// Number of groups that a copy engine writes.
const GROUPS_COPIED: u32 = 32;

/// Parts of a memory, as offsets in bytes.
#[derive(Clone, Copy, Debug)]
pub struct LitmusLayout {
    location: u64,
    flags: u64,
    results: u64,
    counts: u64,
    bytes: u64,
}

impl LitmusLayout {
    fn of(groups: u32) -> LitmusLayout {
        let (groups, instances) = (u64::from(groups), u64::from(groups * LANES));
        let location = instances * u64::from(SETS * STRIDE) * 8;
        let flags = LOCATIONS as u64 * location;
        let results = flags + groups * (ROLES * APART) as u64 * 8;
        let counts = results + 2 * instances * ROLES as u64 * 8;
        LitmusLayout { location, flags, results, counts, bytes: counts + instances * OUTCOMES as u64 * 4 }
    }
}

/// Addresses of the memories of a case in this PE's address space.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    pub locations: [u64; LOCATIONS],
    pub flags: u64,
    pub results: u64,
    pub counts: u64,
}

/// State of one PE. Fields are dropped in order: streams wait for their work, and opened memories are closed before
/// this PE's memory is freed.
pub struct Pe {
    pub me: usize,
    pub pes: usize,
    pub device: Device,
    pub placement: Placement,
    pub sharing: Option<Sharing>,
    pub notes: Vec<String>,
    /// Streams for the two kernels of a case, and for copies.
    pub streams: [Stream; 4],
    opened: Vec<Option<OpenedMemory>>,
    /// GPU memory of this PE, and pinned host memory if there is one PE.
    memory: Buffer,
    host: Option<Buffer>,
    /// Sources of copies, in pinned host memory.
    pub sources: Option<Buffer>,
    layout: LitmusLayout,
    /// Blocks of a grid.
    blocks: u32,
    cpus: u32,
    /// Two words of pinned host memory: `abort` and `stop`.
    words: Buffer,
    /// Number of rounds so far, the same on all PEs.
    pub round: Cell<u64>,
}

impl Pe {
    /// Opens the device and the memory of all PEs.
    pub fn open(args: &LitmusArgs, ranks: &mut Bootstrap) -> Result<Pe, Failure> {
        let (me, pes) = (ranks.rank(), ranks.size());
        let (device, sharing, notes) = match args.device {
            Some(OnDevice::Number(number)) => (numbered(number)?, None, Vec::new()),
            other => {
                let choice = if let Some(OnDevice::Kind(choice)) = other { choice } else { DeviceChoice::Auto };
                let Seat { device, sharing, notes, .. } = Seat::open(ranks, Wants::new(choice))?;
                (device, Some(sharing), notes)
            }
        };
        let emulated = matches!(device, Device::Emulated);
        if emulated {
            emulation::set_workers((cores::usable() / ranks.local_size()).max(1));
        }
        // All roles of a group must be resident, in the same number of groups on all PEs.
        let blocks = if emulated {
            4
        } else {
            device.resident_blocks(&LITMUS_THREADS, WARPS * LANES)?.min(device.multiprocessors()?)
        };
        let blocks = ranks.all_gather_values(&blocks, "resident blocks")?.into_iter().min().unwrap_or(blocks);
        let layout = LitmusLayout::of((blocks * WARPS).max(GROUPS_COPIED));
        let memory = device.peer_memory(layout.bytes)?;
        let shares = sharing.as_ref().is_some_and(Sharing::is_shared);
        let mut pe = Pe {
            me,
            pes,
            placement: match (pes, shares) {
                (1, _) => Placement::Device,
                (_, true) => Placement::SameGpu,
                _ => Placement::Peer,
            },
            streams: [Stream::new(&device)?, Stream::new(&device)?, Stream::new(&device)?, Stream::new(&device)?],
            opened: Vec::new(),
            host: (pes == 1).then(|| device.allocate(MemoryLocation::Host, layout.bytes as usize)).transpose()?,
            sources: (pes == 1)
                .then(|| device.allocate(MemoryLocation::Host, (2 * GROUPS_COPIED * LANES * STRIDE * 8) as usize))
                .transpose()?,
            memory,
            sharing,
            notes,
            layout,
            blocks,
            cpus: if emulated { 1 } else { (cores::usable() / 2).clamp(1, 4) as u32 },
            words: device.allocate(MemoryLocation::Host, 2 * APART * 8)?,
            round: Cell::new(0),
            device,
        };
        if pes > 1 {
            let handles: Vec<PeerHandle> = ranks.all_gather_values(&pe.memory.handle()?, "memory handles")?;
            for (rank, handle) in handles.iter().enumerate() {
                let opened = (rank != me).then(|| OpenedMemory::open(&pe.device, handle)).transpose()?;
                pe.opened.push(opened);
            }
        }
        Ok(pe)
    }

    /// Closes the other PEs' memories, and waits until they have closed this PE's.
    pub fn close(mut self, ranks: &mut Bootstrap) -> Result<(), Failure> {
        self.opened.clear();
        Ok(ranks.barrier("memories closed")?)
    }

    /// Returns whether kernels run on CPU threads.
    pub fn is_emulated(&self) -> bool {
        matches!(self.device, Device::Emulated)
    }

    /// Returns the number of CPU threads that run a role.
    pub fn cpus(&self) -> u32 {
        self.cpus
    }

    /// Returns the number of groups, the number of blocks, and the threads per block. The number of blocks applies to
    /// each role, or to all roles if they share blocks.
    pub fn grid(&self, case: &LitmusCase) -> (u32, u32, u32) {
        let count = case.test.count();
        let warps = match (self.is_emulated(), case.placement) {
            (false, _) => WARPS,
            (true, Placement::Block) => count,
            (true, _) => 1,
        };
        if case.placement == Placement::Block {
            let blocks = if self.is_emulated() { 1 } else { self.blocks };
            return (blocks * (warps / count), blocks, warps * LANES);
        }
        let here = (count as usize).div_ceil(self.pes) as u32;
        // The emulated device runs one block per role.
        let blocks = if self.is_emulated() { 1 } else { (self.blocks / here).max(1) };
        let most = if case.role_of(Executor::CopyEngine).is_some() {
            GROUPS_COPIED
        } else if case.role_of(Executor::Cpu).is_some() {
            self.cpus * GROUPS_PER_CPU
        } else {
            u32::MAX
        };
        let groups = (blocks * warps).min(most);
        (groups, groups.div_ceil(warps), warps * LANES)
    }

    /// Returns the addresses of the memory of a case. If a CPU participates, flags, results and counts are in memory
    /// that it can access. Otherwise, they are in the memory of PE 0.
    pub fn addresses(&self, case: &LitmusCase) -> Addresses {
        let base = |pe: usize| match self.opened.get(pe) {
            Some(Some(memory)) => memory.address(),
            _ => self.memory.address(),
        };
        let host = self.host.as_ref().map_or(0, Buffer::address);
        let (first, last) = (0, (case.test.count() as usize - 1) % self.pes);
        let of_location = |location: usize| match case.memory {
            LitmusMemory::Device | LitmusMemory::OfWriter => base(first),
            LitmusMemory::Host => host,
            LitmusMemory::OfReader => base(last),
            LitmusMemory::Split => base(if location == 0 { last } else { first }),
        };
        let by_cpu = [Executor::Cpu, Executor::CopyEngine].into_iter().any(|one| case.role_of(one).is_some());
        let meets = if by_cpu { host } else { base(0) };
        let LitmusLayout { location, flags, results, counts, .. } = self.layout;
        Addresses {
            locations: std::array::from_fn(|index| of_location(index) + index as u64 * location),
            flags: meets + flags,
            results: meets + results,
            counts: meets + counts,
        }
    }

    /// Returns PE 0's memory with the counts of a case.
    fn counting(&self, case: &LitmusCase) -> &Buffer {
        let by_cpu = [Executor::Cpu, Executor::CopyEngine].into_iter().any(|one| case.role_of(one).is_some());
        if by_cpu { self.host.as_ref().unwrap_or(&self.memory) } else { &self.memory }
    }

    /// Sets the counts of a case to 0.
    pub fn reset(&self, case: &LitmusCase, groups: u32) -> Result<(), DeviceError> {
        let zeros = vec![0u32; (groups * LANES) as usize * OUTCOMES];
        self.counting(case).write(self.layout.counts as usize, &zeros)
    }

    /// Returns the counts of a case, by outcome.
    pub fn counts(&self, case: &LitmusCase, groups: u32) -> Result<[u64; OUTCOMES], DeviceError> {
        let mut counts = vec![0u32; (groups * LANES) as usize * OUTCOMES];
        self.counting(case).read(self.layout.counts as usize, &mut counts)?;
        let mut sums = [0; OUTCOMES];
        for instance in counts.chunks(OUTCOMES) {
            sums.iter_mut().zip(instance).for_each(|(sum, count)| *sum += u64::from(*count));
        }
        Ok(sums)
    }

    /// Returns the word that ends all waits.
    pub fn abort_word(&self) -> *const Word {
        self.words.pointer()
    }

    /// Ends all waits of this PE's participants.
    pub fn abort(&self) {
        // SAFETY: zeroed host memory of this size and alignment, which is accessed only by atomic accesses.
        end_waits(unsafe { &*self.abort_word() });
    }

    /// Returns the word in which a participant stores the reason for an early end.
    pub fn stop_word(&self) -> *const Word {
        (self.words.address() + APART as u64 * 8) as *const Word
    }

    /// Returns the reason why a participant has ended early, or 0 if none has.
    pub fn stopped(&self) -> u64 {
        // SAFETY: zeroed host memory of this size and alignment, which is accessed only by atomic accesses.
        load_acquire_host_u64(unsafe { &*self.stop_word() })
    }
}

/// Opens the GPU with this number.
fn numbered(number: usize) -> Result<Device, Failure> {
    let gpus = ginlab::mps::gpu_count();
    if gpus > 0 && number >= gpus {
        return Err(Failure::Usage(format!("--device: {number}: this machine has GPUs 0 to {}", gpus - 1)));
    }
    Ok(Device::open(DeviceChoice::Gpu, number)?.0)
}
