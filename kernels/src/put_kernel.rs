//! The main kernel: a grid that produces payloads and puts them, in every mode that the proxy experiment compares.
//!
//! A *producer* is a block (its threads fill one payload together and thread 0 puts it) or, with [`SCOPE_THREAD`], each
//! thread for itself. A producer owns `window` slots of `stride` bytes in the source region and writes slot `i % window`
//! to the same offset of the destination in iteration `i`. A block that fills its payloads and does not wait for each has at most
//! `window - 1` puts under way, since it fills one slot meanwhile. On the emulated device, where a barrier costs more than a small
//! payload, it fills several ([`PutArgs::ahead`]), meets once, and puts them one after another.

mod channel;

pub use crate::block::BlockResult;
pub use channel::{Channel, Put};

use crate::block::block_maximum;
use crate::pattern;
#[cfg(feature = "puts")]
use crate::put_trace::Tracer;
use crate::put_trace::{PutStamps, Trace};
use crate::ring::{Ring, Status};
use core::ops::Range;
use cuda_std::{args, kernel, thread};

/// A block is one producer.
pub const SCOPE_BLOCK: u32 = 0;
/// Each thread is a producer.
pub const SCOPE_THREAD: u32 = 1;

/// Arguments of [`put_kernel`].
#[args]
pub struct PutArgs {
    /// The rings; block `b` uses ring `b % ring_count`.
    pub rings: *const Ring,
    /// How many rings there are, at least 1.
    pub ring_count: u32,
    /// [`SCOPE_BLOCK`] or [`SCOPE_THREAD`].
    pub scope: u32,
    /// The source region's memory as the device addresses it; 16-byte aligned.
    pub source: *mut u8,
    /// Number of the source region.
    pub source_region: u32,
    /// Number of the destination region.
    pub destination_region: u32,
    /// The rank to write to.
    pub peer: u32,
    /// Our rank, for the payload's pattern.
    pub rank: u32,
    /// Bytes of one put.
    pub bytes: u64,
    /// Bytes from one slot to the next, a multiple of 16 and at least `bytes`.
    pub stride: u64,
    /// Slots per producer, at least 1.
    pub window: u32,
    /// Puts per producer.
    pub iterations: u32,
    /// Number of the first iteration, for the payload's pattern.
    pub first_iteration: u32,
    /// Quiet after every so many puts; 0: only at the end.
    pub quiet_every: u32,
    /// 1: write the payload before each put; 0: put what is there.
    pub fill: u32,
    /// Payloads that a block of the emulated device writes between two barriers, where it does not wait for each put: at least 1, at
    /// most half its window. On a GPU it is one: there a block writes the next payload while its leader puts this one.
    pub ahead: u32,
    /// Scratch in device memory: `window` tickets per producer.
    pub tickets: *mut u64,
    /// Results, one per block.
    pub results: *mut BlockResult,
}

/// Arguments of [`put_traced_kernel`].
#[args]
pub struct TracedPutArgs {
    /// The puts.
    pub put: PutArgs,
    /// Where stamps go: `entries` for each ring.
    pub stamps: *mut PutStamps,
    /// Puts with tickets that are multiples of this are sampled.
    pub every: u64,
    /// The put with ticket `t` has the entry `t / every % entries` of its ring's.
    pub entries: u64,
}

/// Runs the puts of one grid.
///
/// # Safety
/// The pointers are valid for the whole grid's run: `rings` for `ring_count`, `source` for producers x window x stride
/// bytes, `tickets` for producers x window words, `results` for one entry per block.
#[cfg(feature = "puts")]
#[kernel]
pub unsafe fn put_kernel(args: PutArgs) {
    // SAFETY: contract of the kernel.
    unsafe { put_grid(&args, &mut ()) };
}

/// As [`put_kernel`], with stamps of the device's clock for sampled puts.
///
/// # Safety
/// As [`put_kernel`]; `stamps` is valid for `ring_count` x `entries`.
#[cfg(feature = "puts")]
#[kernel]
pub unsafe fn put_traced_kernel(args: TracedPutArgs) {
    let ring = (thread::block_idx_x() % args.put.ring_count) as u64;
    // SAFETY: contract of the kernel.
    let stamps = unsafe { args.stamps.add((ring * args.entries) as usize) };
    // SAFETY: contract of the kernel.
    unsafe { put_grid(&args.put, &mut Tracer::new(stamps, args.every, args.entries)) };
}

/// As [`put_kernel`], in a module that knows cards: where a ring's other end is a card's queue, each put is a request in it.
///
/// # Safety
/// As [`put_kernel`].
#[cfg(feature = "direct")]
#[kernel]
pub unsafe fn put_by_card_kernel(args: PutArgs) {
    // SAFETY: contract of the kernel.
    unsafe { put_grid(&args, &mut ()) };
}

/// The grid's work, by every thread.
#[inline(always)]
unsafe fn put_grid(args: &PutArgs, trace: &mut impl Trace) {
    let per_thread = args.scope == SCOPE_THREAD;
    let leads = per_thread || thread::thread_idx_x() == 0;
    // A pointer and no reference: all threads of the block have it, and only the first one writes.
    // SAFETY: contract of the kernel.
    let result = unsafe { args.results.add(thread::block_idx_x() as usize) };
    if thread::thread_idx_x() == 0 {
        // SAFETY: contract of the kernel.
        unsafe { (*result).started = thread::global_timer_ns() };
    }

    // SAFETY: contract of the kernel.
    let ring = unsafe { Ring::of_block(args.rings, args.ring_count) };
    let mut channel = Channel::new(ring);
    let producer = if per_thread { thread::index() } else { thread::block_idx_x() };
    // SAFETY: the caller's contract is the loop's.
    let mut stop = unsafe { put_loop(args, &mut channel, producer, leads, trace) };

    stop = block_maximum(stop);
    if thread::thread_idx_x() == 0 {
        // SAFETY: as above.
        unsafe { (*result).posted = thread::global_timer_ns() };
    }
    if stop == 0 && leads {
        stop = code(channel.quiet());
        trace.returned();
    }
    stop = block_maximum(stop);
    if thread::thread_idx_x() == 0 {
        // SAFETY: as above.
        unsafe {
            (*result).done = thread::global_timer_ns();
            (*result).stop = stop;
        }
    }
}

/// The puts of one producer; returns 0 or the reason it ended early.
#[inline(always)]
unsafe fn put_loop(args: &PutArgs, channel: &mut Channel, producer: u32, leads: bool, trace: &mut impl Trace) -> u64 {
    let mut stop = 0;
    let fill = args.fill != 0;
    if !fill && !leads {
        return 0;
    }
    // With slots to spare the leader makes sure of the next ones while the block still fills these, and one barrier serves both
    // questions. Not where the caller wants each put quiet before the next is filled.
    let ahead = fill && args.scope == SCOPE_BLOCK && args.window > 1 && args.quiet_every == 0;
    // Known when it is compiled for a GPU: a loop around each put cost 0.5 us there (H100, 64 B, null rail: 1.72 and 2.26).
    let group = if ahead && cfg!(not(target_arch = "nvptx64")) { args.ahead } else { 1 };
    let mut first = 0;
    while first < args.iterations {
        trace.turns();
        let end = (first + group).min(args.iterations);
        if fill {
            // The source of a put that is not complete must not be rewritten.
            if !ahead {
                if leads && stop == 0 && first >= args.window && !channel.is_quiet() {
                    // SAFETY: this thread wrote it `window` iterations ago.
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
                // Not a part of each payload: where threads run one after another, so many beginnings take as long as the words (256
                // threads, 64 KiB, EPYC).
                // SAFETY: contract of the kernel.
                unsafe { write_in_teams(args, producer, first..end, team) };
            } else {
                for iteration in first..end {
                    // SAFETY: contract of the kernel.
                    unsafe { write_payload(args, producer, iteration, args.writers()) };
                }
            }
            // All payload writes happen before the leader's fence.
            if ahead {
                let last = (end + group).min(args.iterations) - 1;
                if leads && stop == 0 && last >= end && last >= args.window && !channel.is_quiet() {
                    // SAFETY: this thread wrote it: a window has two groups, so its put was before this group. Later puts of a
                    // channel have later tickets, so the other slots of the next group are free too.
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
                        // SAFETY: one word per slot, contract of the kernel.
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
    /// The number of the slot that a producer uses in this iteration.
    #[inline(always)]
    fn slot(&self, producer: u32, iteration: u32) -> u64 {
        producer as u64 * self.window as u64 + (iteration % self.window) as u64
    }

    /// Where the ticket of that slot's put is kept.
    #[inline(always)]
    pub(crate) fn ticket(&self, producer: u32, iteration: u32) -> *mut u64 {
        self.tickets.wrapping_add(self.slot(producer, iteration) as usize)
    }

    /// The put of this iteration.
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

    /// This thread's number among those that write a payload together, and how many they are.
    #[inline(always)]
    fn writers(&self) -> (u64, u64) {
        match self.scope {
            SCOPE_BLOCK => (thread::thread_idx_x() as u64, thread::block_dim_x() as u64),
            _ => (0, 1),
        }
    }
}

/// Writes the pattern of a producer's payload for this iteration: 16 bytes per step of a thread, the odd tail byte by byte. The thread
/// is the `me`-th of so many `threads` that write it.
///
/// # Safety
/// The slot lies in the source region.
#[inline(always)]
unsafe fn write_payload(args: &PutArgs, producer: u32, iteration: u32, (me, threads): (u64, u64)) {
    let slot = args.slot(producer, iteration);
    let seed = pattern::seed(args.rank, args.first_iteration.wrapping_add(iteration), slot as u32);
    // SAFETY: the slot begins inside the source region.
    let start = unsafe { args.source.add((slot * args.stride) as usize) };
    let pairs = args.bytes / 16;
    let part = thread::Part::of(me, threads, pairs);
    let mut pair = part.first;
    while pair < part.end {
        let value = Pair(pattern::word(seed, pair * 2), pattern::word(seed, pair * 2 + 1));
        // SAFETY: `pair` is below the payload's length, and the slot is 16-byte aligned.
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

/// Writes the payloads of several iterations of a block, each by a team of so many of its threads: a thread writes a part of one. There are
/// threads for all.
///
/// # Safety
/// The slots lie in the source region.
#[inline(always)]
pub(crate) unsafe fn write_in_teams(args: &PutArgs, block: u32, iterations: Range<u32>, team: u32) {
    let me = thread::thread_idx_x();
    let (payload, rank) = (me / team, me % team);
    if payload < iterations.end - iterations.start {
        // SAFETY: the caller's contract.
        unsafe { write_payload(args, block, iterations.start + payload, (rank as u64, team as u64)) };
    }
}

/// Two words that are stored as one 128-bit store.
#[repr(C, align(16))]
struct Pair(u64, u64);

#[inline(always)]
fn code(result: Result<(), Status>) -> u64 {
    match result {
        Ok(()) => 0,
        Err(reason) => reason.0,
    }
}
