//! The kernel of examples/ring_shift.rs: every PE hands what it has to the next one.

use crate::gin::{Block, Program, Signal, Sym};
use cuda_std::kernel;

/// Arguments of [`ring_shift`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RingShift {
    /// What this PE has.
    pub from: Sym<u64>,
    /// Where the PE before it puts what that has.
    pub to: Sym<u64>,
    /// Says that it is there.
    pub arrived: Signal,
}

/// Puts to the next PE, and waits for the one before; by one block of any size.
///
/// # Safety
/// The arguments are of the world's heap.
#[kernel(resident)]
pub unsafe fn ring_shift(program: Program<RingShift>) {
    let Program { world, args } = program;
    let mut line = world.context(Block);
    let next = (world.my_pe() + 1) % world.n_pes();
    if line.put_signal(args.to, args.from, args.arrived, 1, next).is_ok() {
        // A failure is in the world's report, which the launch returns.
        let _ = line.signal_wait_until(args.arrived, 1);
    }
}
