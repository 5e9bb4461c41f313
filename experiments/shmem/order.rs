//! `signal-order`: checks that a signal is never observed before its bytes. kernels/src/signal_check.rs documents both
//! sides.

use super::args::{ShmemCase, ShmemConfig};
use crate::error::Failure;
use crate::values::usage;
use crate::world::CallScope;
use cuda_std::Kernel;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::MemoryLocation;
use ginlab::gin::{Program, World};
use kernels::gin::USER_SIGNALS;
use kernels::signal_check::{self, SignalCheck};

/// Number of puts that a producer has in flight.
const SLOTS: u32 = 4;

/// Returns the number of slots of all producers, or 0 for other cases.
fn slots(tuple: &ShmemConfig) -> u32 {
    match tuple.case {
        ShmemCase::SignalOrder => {
            signal_check::producers(tuple.scope as u32, tuple.grid, tuple.block).saturating_mul(SLOTS)
        }
        _ => 0,
    }
}

/// Returns the bytes of heap that a parameter combination needs.
pub fn heap_bytes(tuple: &ShmemConfig) -> u64 {
    2 * u64::from(slots(tuple)) * tuple.bytes
}

/// Checks that the world has enough signals. Signals are never freed. Each row therefore needs its own, two per slot.
pub fn check(tuples: &[ShmemConfig]) -> Result<(), Failure> {
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
pub fn kernel(tuple: &ShmemConfig) -> Kernel<Program<SignalCheck>> {
    match tuple.scope {
        CallScope::Thread => signal_check::SIGNAL_CHECK_THREAD,
        CallScope::Warp => signal_check::SIGNAL_CHECK_WARP,
        CallScope::Block => signal_check::SIGNAL_CHECK_BLOCK,
    }
}

/// Runs `repeats` launches, in which half of the grid puts and the other half checks. Returns for each PE the number of
/// wrong bytes and of checked bytes.
pub fn look(
    tuple: &ShmemConfig,
    repeats: u32,
    seed: u32,
    world: &mut World,
    ranks: &mut Bootstrap,
) -> Result<Vec<[u64; 2]>, Failure> {
    let slots = slots(tuple);
    let bytes = u64::from(slots) * tuple.bytes;
    let (source, target) = (world.alloc(ranks, bytes)?, world.alloc(ranks, bytes)?);
    let (arrived, checked) = (world.signals(ranks, slots)?, world.signals(ranks, slots)?);
    let found = world.device().allocate(MemoryLocation::Device, 16)?;
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
