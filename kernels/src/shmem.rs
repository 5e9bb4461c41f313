//! The kernels of `ginlab shmem`: they measure the calls of [`gin`](crate::gin), with the loop inside the kernel and a
//! time stamp per iteration.
//!
//! The cases are those of NVSHMEM's perftest. experiments/shmem/baseline implements the same cases with NVSHMEM.

#[cfg(feature = "shmem")]
pub mod bandwidth;
#[cfg(feature = "shmem_exchange")]
pub mod exchange;
#[cfg(feature = "shmem")]
pub mod latency;
#[cfg(feature = "shmem")]
pub mod loaded;

use crate::gin::{Context, Inbox, Plain, Program, Scope, Signal, Sym, USER_SIGNALS};
use crate::ring::Status;
use cuda_std::{args, thread};

/// Measure `put_nbi`.
pub const MOVES_PUTS: u32 = 0;
/// Measure `get_nbi`.
pub const MOVES_GETS: u32 = 1;
/// Measure `put_signal_nbi`, so that each put has a signal.
pub const MOVES_PUT_SIGNALS: u32 = 2;

/// Set signals in ping-pongs, instead of adding to them.
pub const SIGNALS_SET: u32 = 3;

/// Arguments of all kernels of this module.
#[args]
pub struct ShmemKernelArgs {
    /// Operation whose bandwidth is measured: [`MOVES_PUTS`], [`MOVES_GETS`] or [`MOVES_PUT_SIGNALS`]. For ping-pongs
    /// of puts with signals: [`SIGNALS_SET`] to set the signals, or another value to add to them.
    pub moves: u32,
    /// Number of iterations without a time stamp, which precede the timed ones.
    pub warmup: u32,
    /// Number of iterations with a time stamp.
    pub iterations: u32,
    /// Number of rounds of the inbox, or of exchanges by puts, in earlier launches.
    pub rounds: u32,
    /// Value of the signal before the launch.
    pub counted: u64,
    /// Number of slots that the iterations use in order, a power of two. Timed gets read from several slots, and a
    /// verified pass has one slot per iteration.
    pub places: u32,
    /// Distance in bytes between slots of `from`.
    pub step: u64,
    /// Distance in bytes between slots of `to`; 0 if all iterations use one slot.
    pub to_step: u64,
    /// First slot of the source: the bytes of an iteration, or for an exchange the bytes for all PEs together.
    pub from: Sym<u8>,
    /// First slot of the destination, with the length of a source slot.
    pub to: Sym<u8>,
    /// First word for values; the words of other slots follow it.
    pub word: Sym<u64>,
    /// Signal that counts the iterations of ping-pongs.
    pub signal: Signal,
    /// One signal per PE, which counts the blocks that the PE has sent in exchanges by puts.
    pub exchanged: Signal,
    /// Signal that counts the puts of [`MOVES_PUT_SIGNALS`]. No thread waits for it.
    pub streamed: Signal,
    /// Inbox for messages with the bytes of an iteration.
    pub inbox: Inbox,
    /// The other PE.
    pub peer: u32,
    /// 1 if this PE starts the ping-pongs, 0 if it answers.
    pub begins: u32,
    /// Time stamps in device memory: [`latency_words`] words, followed by a word that indicates that a load may end.
    /// For bandwidth, the start and end time of each block.
    pub times: *mut u64,
}

/// Returns `object` with its offset increased by `bytes`.
#[inline(always)]
fn moved<T: Plain>(object: Sym<T>, bytes: u64) -> Sym<T> {
    // SAFETY: the kernels' caller guarantees that the objects have all slots that the arguments name.
    unsafe { Sym::from_parts(object.offset() + bytes, object.len()) }
}

impl ShmemKernelArgs {
    /// Returns the index of the slot of an iteration.
    #[inline(always)]
    fn place(&self, turn: u32) -> u64 {
        (turn & (self.places - 1)) as u64
    }

    /// Returns the source of an iteration.
    #[inline(always)]
    fn source(&self, turn: u32) -> Sym<u8> {
        moved(self.from, self.place(turn) * self.step)
    }

    /// Returns the destination of an iteration.
    #[inline(always)]
    fn target(&self, turn: u32) -> Sym<u8> {
        moved(self.to, self.place(turn) * self.to_step)
    }

    /// Returns the word of an iteration.
    #[cfg(feature = "shmem")]
    #[inline(always)]
    fn value(&self, turn: u32) -> Sym<u64> {
        moved(self.word, self.place(turn) * 8)
    }
}

/// Returns the number of words of [`ShmemKernelArgs::times`] for a latency: the nanoseconds of all iterations, the
/// clock before the first iteration, and the clock after each iteration.
pub const fn latency_words(iterations: u32) -> usize {
    iterations as usize + 2
}

/// One iteration of a case.
type Turn<S> = fn(&ShmemKernelArgs, &mut Context<S>, u32) -> Result<(), Status>;

/// Runs all iterations, with the block's first thread, its first warp, or the whole block. Then calls `end` with their
/// number.
#[inline(always)]
fn turns<S: Scope>(program: &Program<ShmemKernelArgs>, turn: Turn<S>, end: Turn<S>) {
    let Some(scope) = S::first_of_block() else { return };
    if program.world.has_failed_for(&scope) {
        return;
    }
    match program.world.mapped() {
        Some(world) => turns_of(&program.args, world.context(scope), turn, end),
        None => turns_of(&program.args, program.world.context(scope), turn, end),
    }
}

#[inline(always)]
fn turns_of<S: Scope>(args: &ShmemKernelArgs, mut line: Context<S>, turn: Turn<S>, end: Turn<S>) {
    let scope = line.scope();
    // The host's values are valid. These checks inform the compiler, so that the calls in the loop need not check
    // again.
    if args.signal.0 >= USER_SIGNALS || args.word.len() == 0 || !line.find(args.peer) {
        return;
    }
    // Address of the next stamp. It remains that of the first stamp until the warm-up is over. SAFETY: `times` has one
    // word per stamp after the nanoseconds, which the kernel's caller guarantees.
    let mut stamp = unsafe { args.times.add(1) };
    let mut number = 0;
    while number < args.warmup + args.iterations {
        if number == args.warmup && scope.rank() == 0 {
            // SAFETY: `times` has a word for the nanoseconds and one per stamp.
            unsafe { (*args.times, *stamp) = (thread::global_timer_ns(), thread::clock()) };
        }
        if turn(args, &mut line, number).is_err() {
            return;
        }
        number += 1;
        if scope.rank() == 0 {
            // SAFETY: `times` has one word per stamp. (The pointer is incremented, because computing it anew takes as
            // long as some calls.)
            unsafe {
                stamp = stamp.add((number > args.warmup) as usize);
                *stamp = thread::clock();
            }
        }
    }
    if scope.rank() == 0 {
        // SAFETY: `times` has a word for the nanoseconds.
        unsafe { *args.times = thread::global_timer_ns() - *args.times };
    }
    // The failure, if any, is recorded in the world's report.
    let _ = end(args, &mut line, number);
}

/// Ends a loop of calls to which no PE replies.
#[inline(always)]
fn quiet<S: Scope>(_args: &ShmemKernelArgs, line: &mut Context<S>, _turns: u32) -> Result<(), Status> {
    line.quiet()
}

/// Returns the number of iterations of the other PE that must precede this PE's iteration `turn` of a ping-pong. The
/// answering PE answers each iteration. The starting PE waits before each iteration for the answer to the previous one,
/// and for the last one [after the loop](answered). Both sides thus share one loop, which contains the code of a call
/// only once. (A function instead of a closure: closures are not always inlined, and a context passed by reference is
/// kept in memory.)
#[inline(always)]
fn due(args: &ShmemKernelArgs, turn: u32) -> u32 {
    turn + 1 - args.begins
}

/// Ends a loop of ping-pongs.
#[inline(always)]
fn answered<S: Scope>(args: &ShmemKernelArgs, line: &mut Context<S>, turns: u32, wait: Turn<S>) -> Result<(), Status> {
    if args.begins != 0 && turns > 0 {
        wait(args, line, turns)?;
    }
    line.quiet()
}
