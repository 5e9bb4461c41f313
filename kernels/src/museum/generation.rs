//! Exhibit: two handles of a library use the same generation numbers for shared slots.

use super::ExhibitArgs;
use crate::gin::{Context, Program, Thread};
use crate::ring::Status;
use cuda_std::kernel;
use cuda_std::memory::{Word, store_relaxed_sys_u64};

/// Two handles of a library share two slots, each with a block and a flag. The PEs exchange one block per call, and the
/// calls alternate between the handles.
///
/// # Safety
/// The arguments must be objects of the world's heap.
#[kernel(resident)]
pub unsafe fn museum_generation_thread(program: Program<ExhibitArgs>) {
    let line = program.world.context(Thread);
    // A failure is recorded in the world's report.
    let _ = exchange(&program, line);
}

#[inline(always)]
fn exchange(program: &Program<ExhibitArgs>, mut line: Context<Thread>) -> Result<(), Status> {
    let Program { world, args } = program;
    let peer = 1 - world.my_pe();
    for call in 0..args.rounds {
        let calls_of_handle = call / 2;
        let (slot, generation) = if args.is_fixed() {
            // Slots and generations belong to the memory that the handles share.
            (call % 2, call / 2)
        } else {
            // Each handle alternates separately, and every flag has the same value.
            (calls_of_handle % 2, 0)
        };
        if !args.is_fixed() {
            // Clears the flag of the other slot, which the other handle may be using.
            let next = world.local(args.flags.at(u64::from(1 - slot))).cast::<Word>();
            // SAFETY: the flag is a word of this PE's heap.
            store_relaxed_sys_u64(unsafe { &*next }, 0);
        }
        let to = args.block(args.to, slot);
        line.put_nbi(to, args.block(args.from, call), peer)?;
        line.fence()?;
        line.p_round(args.flags.at(u64::from(slot)), 1, generation, peer)?;
        line.wait_value(args.flags.at(u64::from(slot)), generation)?;
        args.check(world, to, call);
    }
    line.quiet()
}
