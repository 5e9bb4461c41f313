//! Exhibit: a completion at the sender is mistaken for a notification of the target.

use super::ExhibitArgs;
use crate::gin::{Context, Program, Thread};
use crate::ring::Status;
use cuda_std::kernel;

/// PE 0 puts a block with a signal, waits for the completion, and announces the first signal to PE 1 with a second
/// signal. PE 1 then relies on the count of the first signal.
///
/// # Safety
/// The arguments must be objects of the world's heap.
#[kernel(resident)]
pub unsafe fn museum_completion_thread(program: Program<ExhibitArgs>) {
    let line = program.world.context(Thread);
    // A failure is recorded in the world's report.
    let _ = complete(&program, line);
}

#[inline(always)]
fn complete(program: &Program<ExhibitArgs>, mut line: Context<Thread>) -> Result<(), Status> {
    let Program { world, args } = program;
    for round in 0..args.rounds {
        let (to, from) = (args.block(args.to, round), args.block(args.from, round));
        let expected = u64::from(round) + 1;
        if world.my_pe() == 0 {
            line.put_signal_nbi(to, from, args.arrived, 1, 1)?;
            line.quiet()?;
            line.signal_op(args.told, 1, 1)?;
        } else {
            line.signal_wait_until(args.told, expected)?;
            if args.is_fixed() {
                // The sender's completion orders nothing at the target. PE 1 must wait for the signal on which it
                // relies.
                line.signal_wait_until(args.arrived, expected)?;
            }
            let count = line.signal_fetch(args.arrived);
            if count < expected {
                args.record(world, round, count, expected);
            }
        }
    }
    line.quiet()
}
