//! The kernels of the tutorial: docs/tutorial/README.md, examples/01_ring.rs to examples/05_your_kernel.rs.

use crate::command::Command;
use crate::gin::{Block, Context, Program, Scope, Signal, Sym};
use crate::ring::{Ring, Status};
use cuda_std::{args, kernel, thread};

// --- 01: the ring ----------------------------------------------------------------------------------------------------

/// Arguments of [`tutorial_push`].
#[args]
pub struct PushArgs {
    /// Ring to which all threads push.
    pub ring: Ring,
    /// Number of commands per thread, at least 1.
    pub pushes: u32,
}

/// Pushes `pushes` commands per thread, and waits until the CPU has completed the thread's last command. The source
/// offset of a command is the index of its thread, the destination offset is the number of the command.
///
/// # Safety
/// The memory of the ring must be valid while the grid runs.
#[kernel]
pub unsafe fn tutorial_push(args: PushArgs) {
    let mut ring = args.ring;
    let mut last = 0;
    for number in 0..args.pushes {
        let command = Command::put((0, u64::from(thread::index())), (0, u64::from(number)), 64, 1);
        let Ok(ticket) = ring.push(&command) else { return };
        last = ticket;
    }
    // If the wait fails, the CPU has stopped popping and reports that.
    let _ = ring.wait(last);
}

// --- 02 and 04: put and quiet ----------------------------------------------------------------------------------------

/// Arguments of [`tutorial_puts`].
#[args]
pub struct PutsArgs {
    /// Source: `puts` blocks of equal size.
    pub from: Sym<u8>,
    /// Destination, twice the size of the source.
    pub to: Sym<u8>,
    /// Number of puts per pass.
    pub puts: u64,
    /// Durations of the two passes on this PE, in nanoseconds.
    pub times: Sym<u64>,
}

/// Puts every block of the source to the next PE twice: with a `quiet` after each put in the first pass, and with a
/// single `quiet` at the end of the second pass. Runs as one block of any size.
///
/// # Safety
/// The arguments must be objects of the world's heap.
#[kernel]
pub unsafe fn tutorial_puts(program: Program<PutsArgs>) {
    let line = program.world.context(Block);
    // A failure is recorded in the world's report, which the launch returns.
    let _ = put_twice(&program, line);
}

#[inline(always)]
fn put_twice(program: &Program<PutsArgs>, mut line: Context<Block>) -> Result<(), Status> {
    let Program { world, args } = program;
    let next = (world.my_pe() + 1) % world.n_pes();
    let bytes = args.from.len() / args.puts;

    let started = thread::global_timer_ns();
    for put in 0..args.puts {
        line.put_nbi(args.to.slice(put * bytes, bytes), args.from.slice(put * bytes, bytes), next)?;
        line.quiet()?;
    }
    let middle = thread::global_timer_ns();
    let second = args.to.slice(args.from.len(), args.from.len());
    for put in 0..args.puts {
        line.put_nbi(second.slice(put * bytes, bytes), args.from.slice(put * bytes, bytes), next)?;
    }
    line.quiet()?;
    let ended = thread::global_timer_ns();

    if line.scope().leads() {
        let times = world.local(args.times);
        // SAFETY: the object has two values, and only this thread accesses them.
        unsafe {
            times.write(middle - started);
            times.add(1).write(ended - middle);
        }
    }
    Ok(())
}

// --- 03: signals -----------------------------------------------------------------------------------------------------

/// Arguments of [`tutorial_signal`].
#[args]
pub struct SignalArgs {
    /// Source: `messages` messages of equal size, filled with [`mark`].
    pub from: Sym<u8>,
    /// Destination, with the same size as the source.
    pub to: Sym<u8>,
    /// One signal per message.
    pub arrived: Signal,
    /// Number of messages.
    pub messages: u32,
    /// Number of wrong bytes that each thread of the block has found.
    pub wrong: Sym<u64>,
}

/// Returns the byte that fills message `message` of PE `pe`.
#[inline(always)]
pub fn mark(pe: u32, message: u32) -> u8 {
    (pe * 16 + message + 1) as u8
}

/// Puts messages with signals to the next PE. Checks the messages of the previous PE, each as soon as its signal has
/// arrived. Runs as one block of any size.
///
/// # Safety
/// The arguments must be objects of the world's heap; `wrong` must have one value per thread.
#[kernel(resident)]
pub unsafe fn tutorial_signal(program: Program<SignalArgs>) {
    let line = program.world.context(Block);
    // A failure is recorded in the world's report, which the launch returns.
    let _ = send_and_check(&program, line);
}

#[inline(always)]
fn send_and_check(program: &Program<SignalArgs>, mut line: Context<Block>) -> Result<(), Status> {
    let Program { world, args } = program;
    let (me, pes) = (world.my_pe(), world.n_pes());
    let (next, previous) = ((me + 1) % pes, (me + pes - 1) % pes);
    let bytes = args.from.len() / u64::from(args.messages);

    for message in 0..args.messages {
        let first = u64::from(message) * bytes;
        let (to, from) = (args.to.slice(first, bytes), args.from.slice(first, bytes));
        line.put_signal_nbi(to, from, args.arrived.at(message), 1, next)?;
    }

    let mut wrong = 0;
    for message in 0..args.messages {
        line.signal_wait_until(args.arrived.at(message), 1)?;
        let received = world.local(args.to.slice(u64::from(message) * bytes, bytes));
        let mut at = u64::from(thread::thread_idx_x());
        while at < bytes {
            // SAFETY: `at` is inside the message, and no put writes the message after its signal.
            let byte = unsafe { received.add(at as usize).read() };
            wrong += u64::from(byte != mark(previous, message));
            at += u64::from(thread::block_dim_x());
        }
    }
    // SAFETY: the object has one value per thread, and only this thread accesses its own.
    unsafe { world.local(args.wrong).add(thread::thread_idx_x() as usize).write(wrong) };
    line.quiet()
}

// --- 05: your kernel -------------------------------------------------------------------------------------------------

/// Arguments of [`tutorial_all_gather`].
#[args]
pub struct AllGatherArgs {
    /// One block of equal size per PE. Each PE has filled its own.
    pub all: Sym<u64>,
    /// One signal per step.
    pub arrived: Signal,
}

/// Gathers the blocks of all PEs on every PE. In each step a PE forwards the most recently received block to the next
/// PE. Runs as one block of any size.
///
/// # Safety
/// The arguments must be objects of the world's heap.
#[kernel(resident)]
pub unsafe fn tutorial_all_gather(program: Program<AllGatherArgs>) {
    let Program { world, args } = program;
    let mut line = world.context(Block);
    let (me, pes) = (world.my_pe(), world.n_pes());
    let next = (me + 1) % pes;
    let values = args.all.len() / u64::from(pes);
    for step in 0..pes - 1 {
        let owner = (me + pes - step) % pes;
        let block = args.all.slice(u64::from(owner) * values, values);
        let arrived = args.arrived.at(step);
        // All threads of the block get the same result, so they leave together.
        if line.put_signal(block, block, arrived, 1, next).is_err() || line.signal_wait_until(arrived, 1).is_err() {
            return;
        }
    }
}
