//! The kernels of `ginlab shmem`: what the calls of [`gin`](crate::gin) cost, with the loop inside the kernel and a stamp for each turn.
//!
//! The shapes are those of NVSHMEM's perftest; experiments/shmem/baseline has the same in its API.

#[cfg(feature = "shmem")]
pub mod bandwidth;
#[cfg(feature = "shmem_exchange")]
pub mod exchange;
#[cfg(feature = "shmem")]
pub mod latency;

use crate::gin::{Context, Inbox, Program, Scope, Signal, Sym};
use crate::ring::Status;
use cuda_std::{args, thread};

/// `put_nbi`.
pub const MOVES_PUTS: u32 = 0;
/// `get_nbi`.
pub const MOVES_GETS: u32 = 1;
/// `put_signal_nbi`: each put with a signal behind it.
pub const MOVES_PUT_SIGNALS: u32 = 2;

/// Arguments of all of these kernels.
#[args]
pub struct ShmemArgs {
    /// Of the bandwidth: [`MOVES_PUTS`], [`MOVES_GETS`] or [`MOVES_PUT_SIGNALS`].
    pub moves: u32,
    /// Turns without a stamp, before the others.
    pub warmup: u32,
    /// Turns with one.
    pub iterations: u32,
    /// Rounds of the inbox, or exchanges by puts, that earlier launches had.
    pub rounds: u32,
    /// What the signal has counted before.
    pub counted: u64,
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
    /// Device memory: cycles of each turn, then the whole loop's cycles and nanoseconds. Of the bandwidth: first and last moment of each
    /// block.
    pub times: *mut u64,
}

/// Words of [`ShmemArgs::times`] for a latency.
pub const fn latency_words(iterations: u32) -> usize {
    iterations as usize + 2
}

/// A turn of one case.
type Turn<S> = fn(&ShmemArgs, &mut Context<S>, u32) -> Result<(), Status>;

/// All turns, by the block's first thread, its first warp, or the block.
#[inline(always)]
fn turns<S: Scope>(program: &Program<ShmemArgs>, turn: Turn<S>) {
    let Some(scope) = S::first_of_block() else { return };
    let args = &program.args;
    let mut line = program.world.context(scope);
    // SAFETY: two words behind those of the turns, contract of the kernel.
    let whole = unsafe { args.times.add(args.iterations as usize) };
    let mut last = 0;
    for number in 0..args.warmup + args.iterations {
        if number == args.warmup {
            last = thread::clock();
            if scope.rank() == 0 {
                // To memory: what a loop keeps in registers its calls lack.
                // SAFETY: as above.
                unsafe { (*whole, *whole.add(1)) = (last, thread::global_timer_ns()) };
            }
        }
        if turn(args, &mut line, number).is_err() {
            return;
        }
        if scope.rank() == 0 && number >= args.warmup {
            let now = thread::clock();
            // SAFETY: one word for each turn, contract of the kernel.
            unsafe { *args.times.add((number - args.warmup) as usize) = now - last };
            last = now;
        }
    }
    if scope.rank() == 0 {
        // SAFETY: as above.
        unsafe { (*whole, *whole.add(1)) = (last - *whole, thread::global_timer_ns() - *whole.add(1)) };
    }
    // A failure is in the world's report.
    let _ = line.quiet();
}

/// There and back: whoever begins calls `there` before its wait, the other one behind.
#[inline(always)]
fn ping_pong<S: Scope>(
    args: &ShmemArgs,
    line: &mut Context<S>,
    there: impl Fn(&mut Context<S>) -> Result<(), Status>,
    wait: impl Fn(&mut Context<S>) -> Result<(), Status>,
) -> Result<(), Status> {
    let begins = args.begins != 0;
    if !begins {
        wait(line)?;
    }
    // One place for both sides: the code of a put stands here once.
    there(line)?;
    if begins { wait(line) } else { Ok(()) }
}
