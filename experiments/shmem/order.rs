//! `signal-order`: is a signal ever seen before its bytes? kernels/src/signal_check.rs has the question's two sides.

use super::args::{Case, Tuple};
use super::measure::Shmem;
use crate::error::Failure;
use crate::runner::Rows;
use crate::values::usage;
use crate::world::Scope;
use cuda_std::Kernel;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::Place;
use ginlab::gin::Program;
use kernels::gin::USER_SIGNALS;
use kernels::signal_check::{self, SignalCheck};

/// Puts that a producer has under way at once.
const SLOTS: u32 = 4;

/// Slots of all producers; none of other cases.
fn slots(tuple: &Tuple) -> u32 {
    match tuple.case {
        Case::SignalOrder => signal_check::producers(tuple.scope as u32, tuple.grid, tuple.block).saturating_mul(SLOTS),
        _ => 0,
    }
}

/// What a tuple needs of the heap.
pub fn heap_bytes(tuple: &Tuple) -> u64 {
    2 * u64::from(slots(tuple)) * tuple.bytes
}

/// A world's signals are given once and counted on: each row needs its own, two for each slot.
pub fn check(tuples: &[Tuple]) -> Result<(), Failure> {
    let needed: u64 = tuples.iter().map(|tuple| 2 * u64::from(slots(tuple))).sum();
    // Some are for the other cases.
    let most = u64::from(USER_SIGNALS) * 7 / 8;
    if needed > most {
        return Err(usage(
            "--grid",
            format!(
                "signal-order needs {needed} signals for these rows, and has {most} of a world's: try fewer blocks or threads, or \
                 --scope block"
            ),
        ));
    }
    Ok(())
}

/// What looks and puts.
pub fn kernel(tuple: &Tuple) -> Kernel<Program<SignalCheck>> {
    match tuple.scope {
        Scope::Thread => signal_check::SIGNAL_CHECK_THREAD,
        Scope::Warp => signal_check::SIGNAL_CHECK_WARP,
        Scope::Block => signal_check::SIGNAL_CHECK_BLOCK,
    }
}

impl Shmem {
    /// Puts by the half of the grid, looked at by the other half, in as many launches as there are repeats.
    pub(super) fn order(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let slots = slots(tuple);
        let bytes = u64::from(slots) * tuple.bytes;
        let (source, target) = (self.world.alloc(ranks, bytes)?, self.world.alloc(ranks, bytes)?);
        let (arrived, checked) = (self.world.signals(ranks, slots)?, self.world.signals(ranks, slots)?);
        let found = self.world.device().allocate(Place::Device, 16)?;
        let rounds = tuple.iterations.div_ceil(slots);
        let kernel = kernel(tuple);
        for repeat in 0..self.args.repeats {
            let check = SignalCheck {
                source,
                target,
                arrived,
                checked,
                slots: SLOTS,
                stride: tuple.bytes,
                rounds,
                first: repeat * rounds,
                seed: self.number,
                found: found.pointer(),
            };
            self.world.barrier(ranks)?;
            // SAFETY: the arguments are of this world; the grid is even.
            unsafe { self.world.launch(ranks, &kernel, tuple.grid, tuple.block, check) }?;
        }
        let mut words = [0u64; 2];
        found.read(0, &mut words)?;
        let all: Vec<[u64; 2]> = ranks.all_gather_values(&words, "wrong bytes")?;
        self.world.free(ranks, source)?;
        self.world.free(ranks, target)?;
        let mut row = self.row(tuple, (self.world.my_pe() ^ 1).min(self.world.n_pes() - 1));
        // What was looked at, by all PEs together.
        row.iterations = Some(all.iter().map(|found| found[1]).sum());
        row.repeats = Some(u64::from(self.args.repeats));
        row.verified(Some(all.iter().map(|found| found[0]).sum()));
        Ok(vec![(row, Vec::new())])
    }
}
