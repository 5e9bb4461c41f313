//! Exhibit: a signal overtakes its puts.

use super::ExhibitArgs;
use crate::gin::{Context, Program, Thread};
use crate::ring::Status;
use cuda_std::kernel;

/// Number of puts that one signal announces.
const PUTS: u32 = 4;

/// PE 0 puts several blocks and announces them with one separate signal. PE 1 reads the blocks as soon as it observes
/// the signal.
///
/// # Safety
/// The arguments must be objects of the world's heap.
#[kernel(resident)]
pub unsafe fn museum_overtaking_thread(program: Program<ExhibitArgs>) {
    let line = program.world.context(Thread);
    // A failure is recorded in the world's report.
    let _ = announce(&program, line);
}

#[inline(always)]
fn announce(program: &Program<ExhibitArgs>, mut line: Context<Thread>) -> Result<(), Status> {
    let Program { world, args } = program;
    for group in 0..args.rounds / PUTS {
        let blocks = group * PUTS..(group + 1) * PUTS;
        if world.my_pe() == 0 {
            for block in blocks {
                line.put_nbi(args.block(args.to, block), args.block(args.from, block), 1)?;
            }
            if args.is_fixed() {
                // Ensures that the puts are at their target before the signal is sent.
                line.fence()?;
            }
            line.signal_op(args.arrived.at(group), 1, 1)?;
        } else {
            line.signal_wait_until(args.arrived.at(group), 1)?;
            for block in blocks {
                args.check(world, args.block(args.to, block), block);
            }
        }
    }
    line.quiet()
}
