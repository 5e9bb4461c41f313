//! The main kernel: a grid produces payloads and puts them, in every mode that the proxy experiment compares.
//!
//! A *producer* is a block (its threads fill one payload together and thread 0 puts it) or, with [`SCOPE_THREAD`], a
//! single thread. A producer owns `window` slots of `stride` bytes in the source region. In iteration `i` it puts slot
//! `i % window` to the same offset of the destination.
//!
//! A block that fills its payloads and does not wait for each put has at most `window - 1` puts in flight, since it is
//! filling one slot at that time. On the emulated device, where a barrier costs more than a small payload, a block
//! fills several payloads ([`PutArgs::ahead`]) between two barriers and puts them one after another.

mod channel;

pub use crate::block::BlockResult;
pub use channel::{Put, PutChannel};

use crate::block::block_maximum;
use crate::direct;
use crate::outlet::Outlets;
use crate::pattern;
#[cfg(feature = "puts")]
use crate::put_trace::Tracer;
use crate::put_trace::{PutObserver, PutStamps};
use crate::ring::{Ring, Status};
use core::ops::Range;
use cuda_std::{args, kernel, thread};

/// Each block is a producer.
pub const SCOPE_BLOCK: u32 = 0;
/// Each thread is a producer.
pub const SCOPE_THREAD: u32 = 1;

/// Arguments of [`put_kernel`].
#[args]
pub struct PutArgs {
    /// The rings; block `b` uses ring `b % ring_count`.
    pub rings: *const Ring,
    /// Number of rings, at least 1.
    pub ring_count: u32,
    /// [`SCOPE_BLOCK`] or [`SCOPE_THREAD`].
    pub scope: u32,
    /// Address of the source region on the device, aligned to 16 bytes.
    pub source: *mut u8,
    /// Index of the source region.
    pub source_region: u32,
    /// Index of the destination region.
    pub destination_region: u32,
    /// Index of the peer to write to.
    pub peer: u32,
    /// This rank, which determines the payload's pattern.
    pub rank: u32,
    /// Number of bytes of one put.
    pub bytes: u64,
    /// Distance in bytes between slots, a multiple of 16 and at least `bytes`.
    pub stride: u64,
    /// Number of slots per producer, at least 1.
    pub window: u32,
    /// Number of puts per producer.
    pub iterations: u32,
    /// Number of the first iteration, for the payload's pattern.
    pub first_iteration: u32,
    /// Number of puts between two calls of `quiet`. 0 selects a single call at the end.
    pub quiet_every: u32,
    /// 1 to write the payload before each put, or 0 to put the existing bytes.
    pub fill: u32,
    /// Number of payloads that a block of the emulated device writes between two barriers, if it does not wait for each
    /// put. The value is 1 to half the window, and always 1 on a GPU, where a block writes the next payload while its
    /// leader puts the current one.
    pub ahead: u32,
    /// Scratch space for `window` tickets per producer, in device memory.
    pub tickets: *mut u64,
    /// Results, one per block.
    pub results: *mut BlockResult,
}

/// Arguments of [`put_traced_kernel`].
#[args]
pub struct TracedPutArgs {
    /// The puts.
    pub put: PutArgs,
    /// The stamps: `entries` per ring.
    pub stamps: *mut PutStamps,
    /// Sampling interval: puts whose tickets are multiples of this value are sampled.
    pub every: u64,
    /// Number of entries per ring: the put with ticket `t` uses entry `t / every % entries` of its ring.
    pub entries: u64,
}

/// Performs the puts of one grid.
///
/// # Safety
/// The pointers must be valid while the grid runs: `rings` for `ring_count` rings, `source` for producers x window x
/// stride bytes, `tickets` for producers x window words, `results` for one entry per block.
#[cfg(feature = "puts")]
#[kernel]
pub unsafe fn put_kernel(args: PutArgs) {
    // SAFETY: the caller guarantees that the pointers of `args` are valid.
    unsafe { put_grid(&args, Outlets::of_rings(args.rings, args.ring_count), &mut ()) };
}

/// Like [`put_kernel`], with stamps of the device's clock for sampled puts.
///
/// # Safety
/// The requirements of [`put_kernel`] must hold, and `stamps` must be valid for `ring_count` x `entries` entries.
#[cfg(feature = "puts")]
#[kernel]
pub unsafe fn put_traced_kernel(args: TracedPutArgs) {
    let ring = (thread::block_idx_x() % args.put.ring_count) as u64;
    // SAFETY: the caller guarantees that there are `entries` stamps per ring, and `ring` is below `ring_count`.
    let stamps = unsafe { args.stamps.add((ring * args.entries) as usize) };
    let outlets = Outlets::of_rings(args.put.rings, args.put.ring_count);
    // SAFETY: the caller guarantees that the pointers of `args.put` are valid.
    unsafe { put_grid(&args.put, outlets, &mut Tracer::new(stamps, args.every, args.entries)) };
}

/// Arguments of [`put_by_card_kernel`].
#[args]
pub struct CardPutArgs {
    /// The puts. The rings are ignored.
    pub put: PutArgs,
    /// The channels; block `b` uses channel `b % channel_count`.
    pub channels: *const direct::Channel,
    /// Number of channels, at least 1.
    pub channel_count: u32,
}

/// Like [`put_kernel`], but each put becomes a request in a NIC queue.
///
/// # Safety
/// The requirements of [`put_kernel`] must hold, and `channels` must be valid for `channel_count` channels.
#[cfg(feature = "direct")]
#[kernel]
pub unsafe fn put_by_card_kernel(args: CardPutArgs) {
    // SAFETY: the caller guarantees that the pointers of `args` are valid, so that `channels` is not null.
    unsafe { put_grid(&args.put, Outlets::of_channels(args.channels, args.channel_count), &mut ()) };
}

/// Performs the grid's work; called by every thread.
#[inline(always)]
unsafe fn put_grid(args: &PutArgs, outlets: Outlets, trace: &mut impl PutObserver) {
    let per_thread = args.scope == SCOPE_THREAD;
    let leads = per_thread || thread::thread_idx_x() == 0;
    // A raw pointer instead of a reference: all threads of the block hold it, and only the first one writes. SAFETY:
    // the caller guarantees that there is one result per block.
    let result = unsafe { args.results.add(thread::block_idx_x() as usize) };
    if thread::thread_idx_x() == 0 {
        // SAFETY: the caller guarantees that there is one result per block.
        unsafe { (*result).started = thread::global_timer_ns() };
    }

    // SAFETY: the caller guarantees that the outlets are valid and the same for all threads.
    let mut channel = PutChannel::new(unsafe { outlets.of_block() });
    let producer = if per_thread { thread::index() } else { thread::block_idx_x() };
    // SAFETY: the caller guarantees that the pointers of `args` are valid.
    let mut stop = unsafe { put_loop(args, &mut channel, producer, leads, trace) };

    stop = block_maximum(stop);
    if thread::thread_idx_x() == 0 {
        // SAFETY: the caller guarantees that there is one result per block, and only this thread writes it.
        unsafe { (*result).posted = thread::global_timer_ns() };
    }
    if stop == 0 && leads {
        stop = code(channel.quiet());
        trace.returned();
    }
    stop = block_maximum(stop);
    if thread::thread_idx_x() == 0 {
        // SAFETY: the caller guarantees that there is one result per block, and only this thread writes it.
        unsafe {
            (*result).done = thread::global_timer_ns();
            (*result).stop = stop;
        }
    }
}

/// Performs the puts of one producer. Returns 0, or the reason for its early end.
#[inline(always)]
unsafe fn put_loop(
    args: &PutArgs,
    channel: &mut PutChannel,
    producer: u32,
    leads: bool,
    trace: &mut impl PutObserver,
) -> u64 {
    let mut stop = 0;
    let fill = args.fill != 0;
    if !fill && !leads {
        return 0;
    }
    // If there are more slots than puts in flight, the leader waits for the next slots while the block still fills the
    // current ones, and one barrier serves both. This does not apply if each put must be quiet before the next payload
    // is written.
    let ahead = fill && args.scope == SCOPE_BLOCK && args.window > 1 && args.quiet_every == 0;
    // Constant when compiled for a GPU. A loop around each put would cost 0.5 us there: 2.26 us instead of 1.72 us for
    // 64 B.
    let group = if ahead && cfg!(not(target_arch = "nvptx64")) { args.ahead } else { 1 };
    let mut first = 0;
    while first < args.iterations {
        trace.turns();
        let end = (first + group).min(args.iterations);
        if fill {
            // The source of a put that is not complete must not be overwritten.
            if !ahead {
                if leads && stop == 0 && first >= args.window && !channel.is_quiet() {
                    // SAFETY: this thread wrote the ticket `window` iterations ago.
                    stop = code(channel.quiet_until(unsafe { *args.ticket(producer, first) }));
                }
                if args.scope == SCOPE_BLOCK {
                    if thread::sync_threads_or(stop != 0) {
                        break;
                    }
                } else if stop != 0 {
                    break;
                }
            }
            trace.begins();
            let team = thread::block_dim_x() / group;
            if group > 1 && team > 0 {
                // Each team writes a whole payload instead of a part of each payload. If threads run one after another,
                // the set-up of that many parts takes as long as writing the words. SAFETY: the caller guarantees that
                // the slots are in the source region.
                unsafe { write_in_teams(args, producer, first..end, team) };
            } else {
                for iteration in first..end {
                    // SAFETY: the caller guarantees that the slots are in the source region.
                    unsafe { write_payload(args, producer, iteration, args.writers()) };
                }
            }
            // All payload writes happen before the leader's fence.
            if ahead {
                let last = (end + group).min(args.iterations) - 1;
                if leads && stop == 0 && last >= end && last >= args.window && !channel.is_quiet() {
                    // SAFETY: this thread wrote the ticket: a window has space for two groups, so the put preceded this
                    // group. Later puts of a channel have later tickets, so the other slots of the next group are also
                    // free.
                    stop = code(channel.quiet_until(unsafe { *args.ticket(producer, last) }));
                }
                if thread::sync_threads_or(stop != 0) {
                    break;
                }
            } else if args.scope == SCOPE_BLOCK {
                thread::sync_threads();
            }
        }
        if leads {
            let mut iteration = first;
            while iteration < end && stop == 0 {
                let mut push = trace.push(fill);
                match channel.put_nbi_observed(&args.put(producer, iteration), &mut push) {
                    Ok(given) => {
                        // SAFETY: the caller guarantees that there is one ticket per slot.
                        unsafe { *args.ticket(producer, iteration) = given };
                        trace.pushed(given, &push);
                    }
                    Err(reason) => stop = reason.0,
                }
                iteration += 1;
            }
            if stop == 0 && args.quiet_every != 0 && end % args.quiet_every == 0 {
                stop = code(channel.quiet());
                trace.returned();
            }
            if stop != 0 && !fill {
                break;
            }
        }
        first = end;
    }
    stop
}

impl PutArgs {
    /// Returns the index of the slot that a producer uses in this iteration.
    #[inline(always)]
    fn slot(&self, producer: u32, iteration: u32) -> u64 {
        producer as u64 * self.window as u64 + (iteration % self.window) as u64
    }

    /// Returns the address of the ticket for the put of that slot.
    #[inline(always)]
    pub(crate) fn ticket(&self, producer: u32, iteration: u32) -> *mut u64 {
        self.tickets.wrapping_add(self.slot(producer, iteration) as usize)
    }

    /// Returns the put of this iteration.
    #[inline(always)]
    pub(crate) fn put(&self, producer: u32, iteration: u32) -> Put {
        let offset = self.slot(producer, iteration) * self.stride;
        Put {
            source_region: self.source_region,
            source_offset: offset,
            destination_region: self.destination_region,
            destination_offset: offset,
            bytes: self.bytes,
            peer: self.peer,
        }
    }

    /// Returns the index of this thread among the threads that write a payload together, and their number.
    #[inline(always)]
    fn writers(&self) -> (u64, u64) {
        match self.scope {
            SCOPE_BLOCK => (thread::thread_idx_x() as u64, thread::block_dim_x() as u64),
            _ => (0, 1),
        }
    }
}

/// Writes the pattern of a producer's payload for this iteration: each step of a thread writes 16 bytes, and the
/// remaining bytes are written individually. This thread has index `me` among the `threads` threads that write it.
///
/// # Safety
/// The slot must be in the source region.
#[inline(always)]
unsafe fn write_payload(args: &PutArgs, producer: u32, iteration: u32, (me, threads): (u64, u64)) {
    let slot = args.slot(producer, iteration);
    let seed = pattern::seed(args.rank, args.first_iteration.wrapping_add(iteration), slot as u32);
    // SAFETY: the caller guarantees that the slot is in the source region.
    let start = unsafe { args.source.add((slot * args.stride) as usize) };
    let pairs = args.bytes / 16;
    let part = thread::Part::of(me, threads, pairs);
    let mut pair = part.first;
    while pair < part.end {
        let value = Pair(pattern::word(seed, pair * 2), pattern::word(seed, pair * 2 + 1));
        // SAFETY: `pair` is below the payload's length, and the slot is aligned to 16 bytes.
        unsafe { start.cast::<Pair>().add(pair as usize).write(value) };
        pair += part.step;
    }
    let mut byte = pairs * 16 + me;
    while byte < args.bytes {
        // SAFETY: `byte` is below the payload's length.
        unsafe { start.add(byte as usize).write(pattern::byte(seed, byte)) };
        byte += threads;
    }
}

/// Writes the payloads of several iterations of a block. Each is written by a team of `team` threads of the block,
/// which must have enough threads for all payloads.
///
/// # Safety
/// The slots must be in the source region.
#[inline(always)]
pub(crate) unsafe fn write_in_teams(args: &PutArgs, block: u32, iterations: Range<u32>, team: u32) {
    let me = thread::thread_idx_x();
    let (payload, rank) = (me / team, me % team);
    if payload < iterations.end - iterations.start {
        // SAFETY: the caller guarantees that the slots are in the source region.
        unsafe { write_payload(args, block, iterations.start + payload, (rank as u64, team as u64)) };
    }
}

/// Two words that are written by one 128-bit store.
#[repr(C, align(16))]
struct Pair(u64, u64);

#[inline(always)]
fn code(result: Result<(), Status>) -> u64 {
    match result {
        Ok(()) => 0,
        Err(reason) => reason.0,
    }
}
