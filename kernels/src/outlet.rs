//! Outlets: destinations of a block's commands.
//!
//! An outlet is a [ring](crate::ring), whose proxy posts the commands to rails, or a [channel](crate::direct), in which
//! each command becomes a request of a NIC queue. A ring stores encoded commands; a channel needs no encoding.
//!
//! Programs choose their outlet at run time, once per call: the host opens either rings or channels. The kind is known
//! at compile time in the put kernels.

use crate::command::{Command, Opcode};
use crate::direct::{Channel, ChannelHandle};
use crate::ring::producer::Fence;
use crate::ring::{Observe, Ring, Status};
use cuda_std::call::by_address;
use cuda_std::thread;

/// The outlets of a PE: a table of rings or of channels, in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Outlets {
    /// The `count` rings; null if the outlets are channels.
    pub rings: *const Ring,
    /// The `count` channels; null if the outlets are rings.
    pub channels: *const Channel,
    /// Number of outlets; 0 if no PE is reached over rails.
    pub count: u32,
}

// SAFETY: the tables are never written while a kernel uses them, and the memory to which they point is shared by
// design.
unsafe impl Send for Outlets {}
// SAFETY: the tables are never written while a kernel uses them, and the memory to which they point is shared by
// design.
unsafe impl Sync for Outlets {}

/// An outlet, as held by one thread.
#[derive(Clone, Copy, Debug)]
pub enum Outlet {
    /// A ring, whose proxy posts the commands to rails.
    Ring(Ring),
    /// A NIC queue: each command becomes a request.
    Channel(ChannelHandle),
}

impl From<Ring> for Outlet {
    #[inline(always)]
    fn from(ring: Ring) -> Outlet {
        Outlet::Ring(ring)
    }
}

impl From<ChannelHandle> for Outlet {
    #[inline(always)]
    fn from(channel: ChannelHandle) -> Outlet {
        Outlet::Channel(channel)
    }
}

impl Outlets {
    /// No outlets: no PE is reached over rails.
    pub const NONE: Outlets = Outlets::of_rings(core::ptr::null(), 0);

    /// Creates outlets that are rings.
    #[inline(always)]
    pub const fn of_rings(rings: *const Ring, count: u32) -> Outlets {
        Outlets { rings, channels: core::ptr::null(), count }
    }

    /// Creates outlets that are channels.
    ///
    /// # Safety
    /// `channels` must not be null.
    #[inline(always)]
    pub const unsafe fn of_channels(channels: *const Channel, count: u32) -> Outlets {
        // SAFETY: the caller guarantees that `channels` is not null. A kernel whose outlets are always channels then
        // has no code for rings.
        unsafe { core::hint::assert_unchecked(!channels.is_null()) };
        Outlets { rings: core::ptr::null(), channels, count }
    }

    /// Returns the index of this block's outlet. Blocks are assigned to the outlets round-robin.
    #[inline(always)]
    pub(crate) fn own(&self) -> u32 {
        thread::block_idx_x() % self.count.max(1)
    }

    /// Returns this block's outlet.
    ///
    /// # Safety
    /// There must be an outlet, and the tables must be valid. All threads of a block must use the same outlets: threads
    /// that push together must push to the same ring.
    #[inline(always)]
    pub unsafe fn of_block(&self) -> Outlet {
        if self.channels.is_null() {
            // SAFETY: without channels there are `count` rings, at least one, the same for all threads of the block.
            return Outlet::Ring(unsafe { Ring::of_block(self.rings, self.count) });
        }
        // SAFETY: the caller guarantees that there are `count` channels, at least one, and `own` is below `count`.
        Outlet::Channel(unsafe { ChannelHandle::new(self.channels.add(self.own() as usize)) })
    }

    /// Returns the outlet with this index, to wait for a ticket of any block.
    ///
    /// # Safety
    /// There must be such an outlet, and the tables must be valid.
    #[inline(always)]
    pub(crate) unsafe fn at(&self, index: u32) -> Outlet {
        let index = index as usize;
        if self.channels.is_null() {
            // SAFETY: without channels there are `count` rings, and the caller guarantees that `index` is below
            // `count`.
            return Outlet::Ring(Ring { role: Ring::role(self.count), ..unsafe { self.rings.add(index).read() } });
        }
        // SAFETY: the caller guarantees that `index` is below the number of channels.
        Outlet::Channel(unsafe { ChannelHandle::new(self.channels.add(index)) })
    }

    /// Pushes one command per active lane to this block's outlet and returns the lane's ticket. Not inlined, and the
    /// outlet is read from memory on each call, for kernels that push rarely and cannot spare registers. The caller
    /// keeps `free_below`, initially 0.
    ///
    /// # Safety
    /// The requirements of [`of_block`](Outlets::of_block) must hold.
    ///
    /// # Errors
    /// Returns the same errors as [`Outlet::push`].
    #[inline(always)]
    pub(crate) unsafe fn push(&self, free_below: &mut u64, fence: Fence, command: &Command) -> Result<u64, Status> {
        // The fields are separate parameters, because a struct of this size would be passed in local memory.
        #[inline(never)]
        #[allow(clippy::too_many_arguments, reason = "structs are passed in memory")]
        unsafe fn push(
            rings: *const Ring,
            channels: *const Channel,
            count: u32,
            free_below: u64,
            fence: Fence,
            opcode: Opcode,
            source: (u32, u64),
            destination: (u32, u64),
            bytes: u64,
            peer: u32,
            immediate: u32,
        ) -> (Result<u64, Status>, u64) {
            let command = Command { opcode, immediate, ..Command::put(source, destination, bytes, peer) };
            // SAFETY: the caller of `Outlets::push` upholds the requirements of `of_block`.
            let mut outlet = unsafe { Outlets { rings, channels, count }.of_block() }.with_bound(free_below);
            (outlet.push(fence, &command, &mut ()), outlet.free_below())
        }
        let push = by_address(push as unsafe fn(_, _, _, _, _, _, _, _, _, _, _) -> _);
        let source = (command.source_region, command.source_offset);
        let destination = (command.destination_region, command.destination_offset);
        let Command { opcode, bytes, peer, immediate, .. } = *command;
        let (rings, channels, count, known) = (self.rings, self.channels, self.count, *free_below);
        // SAFETY: the inner function has the requirements of this function.
        let (pushed, known) =
            unsafe { push(rings, channels, count, known, fence, opcode, source, destination, bytes, peer, immediate) };
        *free_below = known;
        pushed
    }

    /// Waits for a ticket of this block's outlet and all preceding tickets. Not inlined, like [`push`](Outlets::push).
    ///
    /// # Safety
    /// The requirements of [`of_block`](Outlets::of_block) must hold.
    ///
    /// # Errors
    /// Returns the same errors as [`Outlet::wait`].
    #[inline(always)]
    pub(crate) unsafe fn wait(&self, ticket: u64, free_below: u64) -> Result<u64, Status> {
        #[inline(never)]
        unsafe fn wait(
            rings: *const Ring,
            channels: *const Channel,
            count: u32,
            ticket: u64,
            free_below: u64,
        ) -> Result<u64, Status> {
            // SAFETY: the caller of `Outlets::wait` upholds the requirements of `of_block`.
            unsafe { Outlets { rings, channels, count }.of_block() }.with_bound(free_below).wait(ticket)
        }
        let wait = by_address(wait as unsafe fn(_, _, _, _, _) -> _);
        // SAFETY: the inner function has the requirements of this function.
        unsafe { wait(self.rings, self.channels, self.count, ticket, free_below) }
    }
}

impl Outlet {
    /// Pushes one command per active lane and returns the lane's ticket. `fence` orders the payload before a ring's
    /// command; a channel always fences before its doorbell. `observe` is called at each stage of a ring, for
    /// measurements; a channel does not have these stages.
    ///
    /// # Errors
    /// Returns the same errors as [`Ring::push_words`], or the first failure of the channel's queue.
    #[inline(always)]
    pub fn push(&mut self, fence: Fence, command: &Command, observe: &mut impl Observe) -> Result<u64, Status> {
        match self {
            Outlet::Ring(ring) => ring.push_words(fence, command.encode(), observe),
            Outlet::Channel(channel) => channel.post(command),
        }
    }

    /// Like [`push`](Outlet::push) with [`Fence::Payload`], but not inlined ([`Ring::push_outlined`]).
    #[inline(always)]
    pub(crate) fn push_outlined(&mut self, command: &Command) -> Result<u64, Status> {
        match self {
            Outlet::Ring(ring) => ring.push_outlined(Fence::Payload, command.encode()),
            Outlet::Channel(channel) => channel.post(command),
        }
    }

    /// Waits until this ticket and all earlier ones are complete. Returns a watermark above the ticket.
    ///
    /// # Errors
    /// Returns the same errors as [`Ring::wait`], or the first failure of the channel's queue.
    #[inline(always)]
    pub fn wait(&mut self, ticket: u64) -> Result<u64, Status> {
        match self {
            Outlet::Ring(ring) => ring.wait(ticket),
            Outlet::Channel(channel) => channel.wait(ticket),
        }
    }

    /// Adds the state that the thread has kept from an earlier copy of this outlet, as returned by
    /// [`free_below`](Outlet::free_below).
    #[inline(always)]
    fn with_bound(mut self, free_below: u64) -> Outlet {
        let known = match &mut self {
            Outlet::Ring(ring) => &mut ring.free_below,
            Outlet::Channel(channel) => &mut channel.kept,
        };
        *known = free_below.max(*known);
        self
    }

    /// Returns the state to keep for the next copy: of a ring the number below which tickets are known to have a free
    /// slot, of a channel [`ChannelHandle::kept`]. 0 is the state before the first push.
    #[inline(always)]
    fn free_below(&self) -> u64 {
        match self {
            Outlet::Ring(ring) => ring.free_below,
            Outlet::Channel(channel) => channel.kept,
        }
    }
}
