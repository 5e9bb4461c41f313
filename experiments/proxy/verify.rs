//! Verification of a pass, byte by byte. The payload differs by rank, iteration, slot and offset.

use super::layout::ProxyLayout;
use super::rank::ProxyRank;
use super::run::{ProxyCase, ProxyShape, run};
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::null::{NullTotals, transfer_checksum};
use ginlab::measure::pattern;
use ginlab::progress;
use ginlab::rails::strategy::Scheduler;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of slots between two records of progress.
const SLOTS_PER_RECORD: usize = 1024;
/// Contents of the gaps between slots. A write beyond its slot changes them.
const GAP: u8 = 0x5e;

/// Returns whether the verified pass is as long as a timed one, so that it also serves as warm-up. Every slot then
/// receives one payload, and the memory contains everything that the pass wrote. With a full grid of producers, a pass
/// takes a second.
pub fn is_whole(shape: &ProxyShape<'_>, case: ProxyCase) -> bool {
    let moves = !shape.args.is_null() && shape.args.moves() && case != ProxyCase::BareWrite;
    !shape.args.no_check && moves && shape.layout.iterations == shape.layout.window
}

/// Runs a case once, before it is timed. Returns the number of errors on this rank: wrong bytes at the target, or wrong
/// puts on null rails. `None` if nothing is compared on this rank, or if the case has no payload.
///
/// The first pass goes once around the window, so that the payload of each put remains. A kernel's second pass goes
/// around twice: slots are reused, and the second payload must be found.
pub fn verify(
    shape: &ProxyShape<'_>,
    rank: &mut ProxyRank,
    ranks: &mut Bootstrap,
    case: ProxyCase,
) -> Result<Option<u64>, Failure> {
    // The bare loop writes from the staging copy, to which nothing copies the payload.
    if case == ProxyCase::PingPong || case == ProxyCase::BareWrite && rank.path.is_staged() {
        return Ok(None);
    }
    // The bare loop writes only the first slot.
    let one_slot = ProxyLayout { producers: 1, window: 1, ..shape.layout };
    let shape = &ProxyShape { layout: if case == ProxyCase::BareWrite { one_slot } else { shape.layout }, ..*shape };
    let window = shape.layout.window;
    if shape.args.is_null() {
        return verify_counts(shape, rank, ranks, case, 2 * window).map(Some);
    }
    let once = pass(shape, rank, ranks, case, window)?;
    if case.of_kernel().is_none() || is_whole(shape, case) {
        return Ok(once);
    }
    let twice = pass(shape, rank, ranks, case, 2 * window)?;
    Ok(once.map(|wrong| wrong + twice.unwrap_or(0)))
}

/// Runs a case for `iterations` iterations. Returns the number of wrong bytes if this rank is a target.
fn pass(
    shape: &ProxyShape<'_>,
    rank: &mut ProxyRank,
    ranks: &mut Bootstrap,
    case: ProxyCase,
    iterations: u64,
) -> Result<Option<u64>, Failure> {
    // Skip the iterations of timed passes, so that their payloads are not mistaken for those of this pass.
    rank.next_iteration = rank.next_iteration.wrapping_add(shape.layout.iterations as u32);
    let first = rank.next_iteration;
    let at = shape.tuple.aligned_at(rank.target.is_some());
    let expected = Expected { layout: shape.layout, bytes: shape.tuple.bytes as usize, at, iterations, first };
    // If the kernel does not write the payload, the CPU writes it to the source.
    let prepared = case.of_kernel().is_none() || !shape.args.fills();
    if prepared && rank.target.is_some() {
        expected.fill(rank, ranks.rank() as u32)?;
    }
    if let Some(source) = rank.source {
        expected.poison(rank, source as u32)?;
    }
    ranks.barrier("destination poisoned")?;
    if rank.target.is_some() {
        run(shape, rank, ranks, case, iterations)?;
    }
    rank.next_iteration = first.wrapping_add(iterations as u32);
    ranks.barrier("verified pass complete")?;
    let wrong = rank.source.map(|source| expected.count_wrong(rank, source as u32)).transpose()?;
    // The next pass overwrites what is being read here.
    ranks.barrier("destination checked")?;
    Ok(wrong)
}

/// Expected contents of a target after a pass.
struct Expected {
    layout: ProxyLayout,
    bytes: usize,
    /// Offset of the first slot in the payload.
    at: usize,
    iterations: u64,
    first: u32,
}

impl Expected {
    fn seed(&self, source: u32, slot: u64) -> u64 {
        // The window divides the pass, so that every slot has a last writer.
        let last = self.layout.last_writer(slot, self.iterations).unwrap_or_default();
        pattern::seed(source, self.first.wrapping_add(last as u32), slot as u32)
    }

    /// Writes the payloads to the source as the kernel would in such a pass.
    fn fill(&self, rank: &ProxyRank, me: u32) -> Result<(), Failure> {
        self.for_each_slot(rank, true, |slot, bytes| pattern::fill(&mut bytes[..self.bytes], self.seed(me, slot)))
    }

    fn poison(&self, rank: &ProxyRank, source: u32) -> Result<(), Failure> {
        self.for_each_slot(rank, true, |slot, bytes| {
            let (payload, gap) = bytes.split_at_mut(self.bytes);
            pattern::poison(payload, self.seed(source, slot));
            gap.fill(GAP);
        })
    }

    fn count_wrong(&self, rank: &ProxyRank, source: u32) -> Result<u64, Failure> {
        let wrong = AtomicU64::new(0);
        self.for_each_slot(rank, false, |slot, bytes| {
            let (payload, gap) = bytes.split_at(self.bytes);
            let here =
                pattern::check(payload, self.seed(source, slot)) + gap.iter().filter(|&&byte| byte != GAP).count();
            wrong.fetch_add(here as u64, Ordering::Relaxed);
        })?;
        Ok(wrong.into_inner())
    }

    /// Calls `visit` with every slot of this rank's payload, on several threads if it is in host memory.
    fn for_each_slot(
        &self,
        rank: &ProxyRank,
        write_back: bool,
        visit: impl Fn(u64, &mut [u8]) + Sync,
    ) -> Result<(), Failure> {
        let stride = self.layout.stride as usize;
        let total = self.layout.bytes() as usize;
        // SAFETY: between two barriers of a verification pass no other thread accesses the payload.
        if let Some(bytes) = unsafe { rank.payload.host_bytes() } {
            let slots = total / stride;
            let threads = std::thread::available_parallelism().map_or(1, usize::from).min(slots).max(1);
            let per_thread = slots.div_ceil(threads);
            let started = std::thread::scope(|scope| {
                bytes[self.at..][..total].chunks_mut(per_thread * stride).enumerate().try_for_each(|(index, share)| {
                    let visit = &visit;
                    let each = move || {
                        for (offset, slot) in share.chunks_mut(stride).enumerate() {
                            record(offset);
                            visit((index * per_thread + offset) as u64, slot);
                        }
                    };
                    std::thread::Builder::new().spawn_scoped(scope, each).map(drop)
                })
            });
            return started.map_err(|error| Failure::Run(format!("cannot start a verification thread: {error}")));
        }
        let mut copy = vec![0u8; stride];
        for slot in 0..total / stride {
            record(slot);
            rank.payload.read(self.at + slot * stride, &mut copy)?;
            visit(slot as u64, &mut copy);
            if write_back {
                rank.payload.write(self.at + slot * stride, &copy)?;
            }
        }
        Ok(())
    }
}

/// Records progress, because other ranks wait while this one processes its slots.
fn record(slot: usize) {
    if slot.is_multiple_of(SLOTS_PER_RECORD) {
        progress::record();
    }
}

/// Verification on null rails: every put must have arrived exactly once and unchanged. Compares the rails' counts and
/// an order-independent checksum with those of the expected puts.
fn verify_counts(
    shape: &ProxyShape<'_>,
    rank: &mut ProxyRank,
    ranks: &mut Bootstrap,
    case: ProxyCase,
    iterations: u64,
) -> Result<u64, Failure> {
    let layout = shape.layout;
    let before = rank.counted();
    run(shape, rank, ranks, case, iterations)?;
    let after = rank.counted();
    let mut scheduler = Scheduler::new(shape.tuple.strategy, shape.tuple.rails);
    let mut expected = NullTotals::default();
    for iteration in 0..iterations {
        for producer in 0..layout.producers {
            let offset = (producer * layout.window + iteration % layout.window) * layout.stride;
            record(producer as usize);
            scheduler.schedule(shape.tuple.bytes, u64::MAX, false, |piece| {
                let at = offset + piece.offset;
                expected.transfers += 1;
                expected.bytes += piece.bytes;
                expected.checksum = expected.checksum.wrapping_add(transfer_checksum(at, at, piece.bytes));
            });
        }
    }
    let found = NullTotals {
        transfers: after.transfers - before.transfers,
        bytes: after.bytes.wrapping_sub(before.bytes),
        checksum: after.checksum.wrapping_sub(before.checksum),
    };
    // A correct number of transfers with a wrong checksum implies at least one wrong transfer.
    Ok(if found == expected { 0 } else { found.transfers.abs_diff(expected.transfers).max(1) })
}
