//! `signal-order`: checks that a signal is never observed before its bytes. kernels/src/signal_check.rs documents both
//! sides.

use super::args::{Case, Tuple};
use crate::error::Failure;
use crate::values::usage;
use crate::world::Scope;
use cuda_std::Kernel;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::Place;
use ginlab::gin::{Program, World};
use kernels::gin::USER_SIGNALS;
use kernels::signal_check::{self, SignalCheck};

/// Number of puts that a producer has in flight.
const SLOTS: u32 = 4;

/// Returns the number of slots of all producers, or 0 for other cases.
fn slots(tuple: &Tuple) -> u32 {
    match tuple.case {
        Case::SignalOrder => signal_check::producers(tuple.scope as u32, tuple.grid, tuple.block).saturating_mul(SLOTS),
        _ => 0,
    }
}

/// Returns the bytes of heap that a parameter combination needs.
pub fn heap_bytes(tuple: &Tuple) -> u64 {
    2 * u64::from(slots(tuple)) * tuple.bytes
}

/// Checks that the world has enough signals. Signals are never freed. Each row therefore needs its own, two per slot.
pub fn check(tuples: &[Tuple]) -> Result<(), Failure> {
    let needed: u64 = tuples.iter().map(|tuple| 2 * u64::from(slots(tuple))).sum();
    // Other cases use the remaining signals.
    let most = u64::from(USER_SIGNALS) * 7 / 8;
    if needed > most {
        return Err(usage(
            "--grid",
            format!(
                "signal-order requires {needed} signals for these rows, but only {most} are available: try fewer \
                 blocks or threads, or --scope block"
            ),
        ));
    }
    Ok(())
}

/// Returns the kernel that puts and checks.
pub fn kernel(tuple: &Tuple) -> Kernel<Program<SignalCheck>> {
    match tuple.scope {
        Scope::Thread => signal_check::SIGNAL_CHECK_THREAD,
        Scope::Warp => signal_check::SIGNAL_CHECK_WARP,
        Scope::Block => signal_check::SIGNAL_CHECK_BLOCK,
    }
}

/// Runs `repeats` launches, in which half of the grid puts and the other half checks. Returns for each PE the number of
/// wrong bytes and of checked bytes.
pub fn look(
    tuple: &Tuple,
    repeats: u32,
    seed: u32,
    world: &mut World,
    ranks: &mut Bootstrap,
) -> Result<Vec<[u64; 2]>, Failure> {
    let slots = slots(tuple);
    let bytes = u64::from(slots) * tuple.bytes;
    let (source, target) = (world.alloc(ranks, bytes)?, world.alloc(ranks, bytes)?);
    let (arrived, checked) = (world.signals(ranks, slots)?, world.signals(ranks, slots)?);
    let found = world.device().allocate(Place::Device, 16)?;
    let rounds = tuple.iterations.div_ceil(slots);
    let kernel = kernel(tuple);
    for repeat in 0..repeats {
        let check = SignalCheck {
            source,
            target,
            arrived,
            checked,
            slots: SLOTS,
            stride: tuple.bytes,
            rounds,
            first: repeat * rounds,
            seed,
            found: found.pointer(),
        };
        world.barrier(ranks)?;
        // SAFETY: the arguments belong to this world, and the grid is even.
        unsafe { world.launch(ranks, &kernel, tuple.grid, tuple.block, check) }?;
    }
    let mut words = [0u64; 2];
    found.read(0, &mut words)?;
    let all: Vec<[u64; 2]> = ranks.all_gather_values(&words, "wrong bytes")?;
    world.free(ranks, source)?;
    world.free(ranks, target)?;
    Ok(all)
}
