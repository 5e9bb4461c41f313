//! Exhibit: a slot is rewritten before its reader has read it.

use super::ExhibitArgs;
use crate::gin::{Context, Program, Thread};
use crate::ring::Status;
use cuda_std::kernel;

/// PE 0 puts the blocks of all rounds into one slot, one after another. PE 1 reads the slot after each signal.
///
/// # Safety
/// The arguments must be objects of the world's heap.
#[kernel(resident)]
pub unsafe fn museum_slot_thread(program: Program<ExhibitArgs>) {
    let line = program.world.context(Thread);
    // A failure is recorded in the world's report.
    let _ = reuse(&program, line);
}

#[inline(always)]
fn reuse(program: &Program<ExhibitArgs>, mut line: Context<Thread>) -> Result<(), Status> {
    let Program { world, args } = program;
    let slot = args.block(args.to, 0);
    for round in 0..args.rounds {
        if world.my_pe() == 0 {
            if args.is_fixed() {
                // Waits until the reader has returned the slot after each earlier round.
                line.signal_wait_until(args.told, u64::from(round))?;
            }
            // Returns when the bytes are at the target, whether or not the reader has read the earlier bytes.
            line.put_signal(slot, args.block(args.from, round), args.arrived, 1, 1)?;
        } else {
            line.signal_wait_until(args.arrived, u64::from(round) + 1)?;
            args.check(world, slot, round);
            line.signal_op(args.told, 1, 0)?;
        }
    }
    line.quiet()
}
