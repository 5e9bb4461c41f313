//! Exhibit: a source is reused while its put is in flight.

use super::ExhibitArgs;
use crate::gin::{Context, Program, Thread};
use crate::ring::Status;
use cuda_std::kernel;

/// PE 1 requests all blocks. PE 0 answers each request: it fills its staging block and puts the block to the round's
/// own destination.
///
/// # Safety
/// The arguments must be objects of the world's heap.
#[kernel(resident)]
pub unsafe fn museum_source_thread(program: Program<ExhibitArgs>) {
    let line = program.world.context(Thread);
    // A failure is recorded in the world's report.
    let _ = stage(&program, line);
}

#[inline(always)]
fn stage(program: &Program<ExhibitArgs>, mut line: Context<Thread>) -> Result<(), Status> {
    let Program { world, args } = program;
    let staging = args.block(args.from, 0);
    if world.my_pe() == 1 {
        for _ in 0..args.rounds {
            line.signal_op(args.told, 1, 0)?;
        }
    }
    for round in 0..args.rounds {
        let to = args.block(args.to, round);
        if world.my_pe() == 0 {
            line.signal_wait_until(args.told, u64::from(round) + 1)?;
            if args.is_fixed() {
                // The NIC may read a source again, for a retransmission, until the put is complete.
                line.quiet()?;
            }
            args.fill(world, staging, round);
            line.put_signal_nbi(to, staging, args.arrived.at(round), 1, 1)?;
        } else {
            line.signal_wait_until(args.arrived.at(round), 1)?;
            args.check(world, to, round);
        }
    }
    line.quiet()
}
