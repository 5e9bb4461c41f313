//! What a pass has written, checked byte by byte: the payload differs by rank, iteration, slot and offset.

use super::layout::Layout;
use super::rank::Rank;
use super::run::{Case, Sample, Shape, run};
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::null::{Counted, transfer_checksum};
use ginlab::measure::pattern;
use ginlab::rails::strategy::Scheduler;
use std::sync::atomic::{AtomicU64, Ordering};

/// What lies between the slots; a write beyond its slot changes it.
const GAP: u8 = 0x5e;

/// Whether a timed pass is the one that is verified: every slot gets one payload, so what the pass leaves is all that it wrote.
/// With a full grid of producers a pass takes a second, and another one would show nothing else.
pub fn is_timed(shape: &Shape<'_>, case: Case) -> bool {
    let moves = !shape.args.is_null() && shape.args.moves() && case != Case::BareWrite;
    !shape.args.no_check && moves && shape.layout.iterations == shape.layout.window
}

/// A pass of its own. Twice around the window: slots are reused, and what must be found is the second payload. Once for what the
/// CPU puts, whose payload stays.
pub fn verify(shape: &Shape<'_>, rank: &mut Rank, ranks: &mut Bootstrap, case: Case) -> Result<Option<u64>, Failure> {
    let rounds = if case.of_kernel().is_some() { 2 } else { 1 };
    Ok(verified(shape, rank, ranks, case, shape.layout.window * rounds)?.1)
}

/// Runs a case once; returns its times, on a rank that puts, and what is wrong on this rank: bytes at the target, puts on null
/// rails. `None` where there is nothing to verify on this rank, or for a case that moves nothing.
pub fn verified(
    shape: &Shape<'_>,
    rank: &mut Rank,
    ranks: &mut Bootstrap,
    case: Case,
    iterations: u64,
) -> Result<(Option<Sample>, Option<u64>), Failure> {
    if matches!(case, Case::PingPong | Case::BareWrite) {
        return Ok((None, None));
    }
    if shape.args.is_null() {
        return verify_counts(shape, rank, ranks, case, iterations).map(|wrong| (None, Some(wrong)));
    }
    // A target is here as soon as the last timed pass has begun: what it writes now would meet that pass's puts, and take its time.
    ranks.barrier("earlier passes complete")?;
    // Behind the iterations of timed passes: what one of them left is not what must be found.
    rank.next_iteration = rank.next_iteration.wrapping_add(shape.layout.iterations as u32);
    let first = rank.next_iteration;
    let expected = Expected { layout: shape.layout, bytes: shape.tuple.bytes as usize, iterations, first };
    // Who does not write the payload itself puts what is in the source.
    let prepared = case.of_kernel().is_none() || shape.args.no_fill;
    if prepared && rank.target.is_some() {
        expected.fill(rank, ranks.rank() as u32)?;
    }
    if let Some(source) = rank.source {
        expected.poison(rank, source as u32)?;
    }
    ranks.barrier("destination poisoned")?;
    let sample = if rank.target.is_some() { Some(run(shape, rank, ranks, case, iterations)?) } else { None };
    rank.next_iteration = first.wrapping_add(iterations as u32);
    ranks.barrier("verified pass complete")?;
    let wrong = rank.source.map(|source| expected.count_wrong(rank, source as u32)).transpose()?;
    // The next pass writes into what is being read here.
    ranks.barrier("destination checked")?;
    Ok((sample, wrong))
}

/// What a target must find after a pass.
struct Expected {
    layout: Layout,
    bytes: usize,
    iterations: u64,
    first: u32,
}

impl Expected {
    fn seed(&self, source: u32, slot: u64) -> u64 {
        // The window divides the pass, so every slot has a last writer.
        let last = self.layout.last_writer(slot, self.iterations).unwrap_or_default();
        pattern::seed(source, self.first.wrapping_add(last as u32), slot as u32)
    }

    /// Writes the source's payloads, as the kernel would in such a pass.
    fn fill(&self, rank: &Rank, me: u32) -> Result<(), Failure> {
        self.for_each_slot(rank, true, |slot, bytes| pattern::fill(&mut bytes[..self.bytes], self.seed(me, slot)))
    }

    fn poison(&self, rank: &Rank, source: u32) -> Result<(), Failure> {
        self.for_each_slot(rank, true, |slot, bytes| {
            let (payload, gap) = bytes.split_at_mut(self.bytes);
            pattern::poison(payload, self.seed(source, slot));
            gap.fill(GAP);
        })
    }

    fn count_wrong(&self, rank: &Rank, source: u32) -> Result<u64, Failure> {
        let wrong = AtomicU64::new(0);
        self.for_each_slot(rank, false, |slot, bytes| {
            let (payload, gap) = bytes.split_at(self.bytes);
            let here =
                pattern::check(payload, self.seed(source, slot)) + gap.iter().filter(|&&byte| byte != GAP).count();
            wrong.fetch_add(here as u64, Ordering::Relaxed);
        })?;
        Ok(wrong.into_inner())
    }

    /// Calls `visit` with every slot of this rank's payload, on several threads where the memory is the host's.
    fn for_each_slot(
        &self,
        rank: &Rank,
        write_back: bool,
        visit: impl Fn(u64, &mut [u8]) + Sync,
    ) -> Result<(), Failure> {
        let stride = self.layout.stride as usize;
        let total = self.layout.bytes() as usize;
        // SAFETY: between two barriers of a verification pass nobody else touches the payload.
        if let Some(bytes) = unsafe { rank.payload.host_bytes() } {
            let slots = total / stride;
            let threads = std::thread::available_parallelism().map_or(1, usize::from).min(slots).max(1);
            let per_thread = slots.div_ceil(threads);
            let started = std::thread::scope(|scope| {
                bytes[..total].chunks_mut(per_thread * stride).enumerate().try_for_each(|(index, share)| {
                    let visit = &visit;
                    let each = move || {
                        for (offset, slot) in share.chunks_mut(stride).enumerate() {
                            visit((index * per_thread + offset) as u64, slot);
                        }
                    };
                    std::thread::Builder::new().spawn_scoped(scope, each).map(drop)
                })
            });
            return started.map_err(|error| Failure::Run(format!("starting a thread that checks bytes: {error}")));
        }
        let mut copy = vec![0u8; stride];
        for slot in 0..total / stride {
            rank.payload.read(slot * stride, &mut copy)?;
            visit(slot as u64, &mut copy);
            if write_back {
                rank.payload.write(slot * stride, &copy)?;
            }
        }
        Ok(())
    }
}

/// On null rails: every put must have arrived once, none twice, none changed. The rails' counts and an order-independent
/// checksum are compared with those of the puts that the grid had to make.
fn verify_counts(
    shape: &Shape<'_>,
    rank: &mut Rank,
    ranks: &mut Bootstrap,
    case: Case,
    iterations: u64,
) -> Result<u64, Failure> {
    let layout = shape.layout;
    let before = rank.counted();
    run(shape, rank, ranks, case, iterations)?;
    let after = rank.counted();
    let mut scheduler = Scheduler::new(shape.tuple.strategy, shape.tuple.rails);
    let mut expected = Counted::default();
    for iteration in 0..iterations {
        for producer in 0..layout.producers {
            let offset = (producer * layout.window + iteration % layout.window) * layout.stride;
            scheduler.schedule(shape.tuple.bytes, u64::MAX, false, |piece| {
                let at = offset + piece.offset;
                expected.transfers += 1;
                expected.bytes += piece.bytes;
                expected.checksum = expected.checksum.wrapping_add(transfer_checksum(at, at, piece.bytes));
            });
        }
    }
    let found = Counted {
        transfers: after.transfers - before.transfers,
        bytes: after.bytes.wrapping_sub(before.bytes),
        checksum: after.checksum.wrapping_sub(before.checksum),
    };
    // A right number of transfers with a wrong sum means that at least one was wrong.
    Ok(if found == expected { 0 } else { found.transfers.abs_diff(expected.transfers).max(1) })
}
