//! Exhibit: one counter counts several puts in flight.

use super::ExhibitArgs;
use crate::gin::{Context, Program, Thread};
use crate::ring::Status;
use cuda_std::kernel;

/// PE 0 puts all blocks without waiting, each with a signal. PE 1 reads each block after its signal has arrived.
///
/// # Safety
/// The arguments must be objects of the world's heap.
#[kernel(resident)]
pub unsafe fn museum_one_counter_thread(program: Program<ExhibitArgs>) {
    let line = program.world.context(Thread);
    // A failure is recorded in the world's report.
    let _ = stream(&program, line);
}

#[inline(always)]
fn stream(program: &Program<ExhibitArgs>, mut line: Context<Thread>) -> Result<(), Status> {
    let Program { world, args } = program;
    for round in 0..args.rounds {
        let (to, from) = (args.block(args.to, round), args.block(args.from, round));
        // Broken: a sum of `round + 1` shows the number of puts that have arrived, but not which ones.
        let (signal, at_least) =
            if args.is_fixed() { (args.arrived.at(round), 1) } else { (args.arrived, u64::from(round) + 1) };
        if world.my_pe() == 0 {
            line.put_signal_nbi(to, from, signal, 1, 1)?;
        } else {
            line.signal_wait_until(signal, at_least)?;
            args.check(world, to, round);
        }
    }
    line.quiet()
}
