//! The kernels of `ginlab shmem`: what the calls of [`gin`](crate::gin) cost, with the loop inside the kernel and a stamp for each turn.
//!
//! The shapes are those of NVSHMEM's perftest; experiments/shmem/baseline has the same in its API.

#[cfg(feature = "shmem")]
pub mod bandwidth;
#[cfg(feature = "shmem_exchange")]
pub mod exchange;
#[cfg(feature = "shmem")]
pub mod latency;
#[cfg(feature = "shmem")]
pub mod loaded;

use crate::gin::{Context, Inbox, Program, Scope, Signal, Sym, USER_SIGNALS};
use crate::ring::Status;
use cuda_std::{args, thread};

/// `put_nbi`.
pub const MOVES_PUTS: u32 = 0;
/// `get_nbi`.
pub const MOVES_GETS: u32 = 1;
/// `put_signal_nbi`: each put with a signal behind it.
pub const MOVES_PUT_SIGNALS: u32 = 2;

/// Of ping-pongs: signals are set, and not added to.
pub const SIGNALS_SET: u32 = 3;

/// Arguments of all of these kernels.
#[args]
pub struct ShmemArgs {
    /// Of the bandwidth: [`MOVES_PUTS`], [`MOVES_GETS`] or [`MOVES_PUT_SIGNALS`]; of puts with signals there and back: [`SIGNALS_SET`] or something else.
    pub moves: u32,
    /// Turns without a stamp, before the others.
    pub warmup: u32,
    /// Turns with one.
    pub iterations: u32,
    /// Rounds of the inbox, or exchanges by puts, that earlier launches had.
    pub rounds: u32,
    /// What the signal has counted before.
    pub counted: u64,
    /// Of a get: its turns take the bytes from so many places behind one another, a power of two, ...
    pub places: u32,
    /// ... each so many bytes behind the one before.
    pub step: u64,
    /// The bytes of a turn; of an exchange, of all PEs together.
    pub from: Sym<u8>,
    /// As long.
    pub to: Sym<u8>,
    /// One word for values.
    pub word: Sym<u64>,
    /// Counts the turns of ping-pongs.
    pub signal: Signal,
    /// A signal for each PE: counts its blocks of exchanges by puts.
    pub exchanged: Signal,
    /// Counts the puts of [`MOVES_PUT_SIGNALS`], for which nobody waits.
    pub streamed: Signal,
    /// For messages of a turn's bytes.
    pub inbox: Inbox,
    /// The PE on the other side.
    pub peer: u32,
    /// 1: this PE begins the ping-pongs. 0: it answers.
    pub begins: u32,
    /// Device memory: [`latency_words`], and behind them one that says that a load may end. Of the bandwidth: first and last moment of each block.
    pub times: *mut u64,
}

/// Words of [`ShmemArgs::times`] for a latency: the nanoseconds of all turns, and the clock before the first and behind each.
pub const fn latency_words(iterations: u32) -> usize {
    iterations as usize + 2
}

/// A turn of one case.
type Turn<S> = fn(&ShmemArgs, &mut Context<S>, u32) -> Result<(), Status>;

/// All turns, by the block's first thread, its first warp, or the block; `end` is called behind them, with their number.
#[inline(always)]
fn turns<S: Scope>(program: &Program<ShmemArgs>, turn: Turn<S>, end: Turn<S>) {
    let Some(scope) = S::first_of_block() else { return };
    match program.world.mapped() {
        Some(world) => turns_of(&program.args, world.context(scope), turn, end),
        None => turns_of(&program.args, program.world.context(scope), turn, end),
    }
}

#[inline(always)]
fn turns_of<S: Scope>(args: &ShmemArgs, mut line: Context<S>, turn: Turn<S>, end: Turn<S>) {
    let scope = line.scope();
    // The host's numbers are right; the compiler knows it from here on, and calls in the loop need not look.
    if args.signal.0 >= USER_SIGNALS || args.word.len() == 0 || !line.find(args.peer) {
        return;
    }
    // Of the next stamp, which stays the first one until the warm-up is over.
    // SAFETY: behind the nanoseconds there is a word for each stamp, contract of the kernel.
    let mut stamp = unsafe { args.times.add(1) };
    let mut number = 0;
    while number < args.warmup + args.iterations {
        if number == args.warmup && scope.rank() == 0 {
            // SAFETY: as above.
            unsafe { (*args.times, *stamp) = (thread::global_timer_ns(), thread::clock()) };
        }
        if turn(args, &mut line, number).is_err() {
            return;
        }
        number += 1;
        if scope.rank() == 0 {
            // SAFETY: as above. (A pointer that moves: to make it anew takes as long as some calls.)
            unsafe {
                stamp = stamp.add((number > args.warmup) as usize);
                *stamp = thread::clock();
            }
        }
    }
    if scope.rank() == 0 {
        // SAFETY: as above.
        unsafe { *args.times = thread::global_timer_ns() - *args.times };
    }
    // A failure is in the world's report.
    let _ = end(args, &mut line, number);
}

/// The end of calls that nobody answers.
#[inline(always)]
fn quiet<S: Scope>(_args: &ShmemArgs, line: &mut Context<S>, _turns: u32) -> Result<(), Status> {
    line.quiet()
}

/// Of turns there and back: how many turns of the other PE have come before this PE's. The one answers each; whoever begins waits before each turn for the
/// answer to the one before, and for the last one [behind them](answered). So both sides are one loop, with the code of a call once. (Functions and no
/// closures: these are not always inlined, and a context behind a pointer lies in memory.)
#[inline(always)]
fn due(args: &ShmemArgs, turn: u32) -> u32 {
    turn + 1 - args.begins
}

/// The end of turns there and back.
#[inline(always)]
fn answered<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, turns: u32, wait: Turn<S>) -> Result<(), Status> {
    if args.begins != 0 && turns > 0 {
        wait(args, line, turns)?;
    }
    line.quiet()
}
