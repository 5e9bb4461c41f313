//! The kernels of `ginlab shmem`: what the calls of [`gin`](crate::gin) cost, with the loop inside the kernel and a stamp for each turn.
//!
//! The shapes are those of NVSHMEM's perftest; experiments/shmem/baseline has the same in its API.

use crate::gin::{Block, Context, Inbox, Program, Scope, Signal, Sym, Thread, Warp};
use crate::ring::Status;
use cuda_std::{kernel, thread, warp};

/// `put_nbi`.
pub const MOVES_PUTS: u32 = 0;
/// `get_nbi`.
pub const MOVES_GETS: u32 = 1;
/// `put_signal_nbi`: each put with a signal behind it.
pub const MOVES_PUT_SIGNALS: u32 = 2;

/// Arguments of all of these kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ShmemArgs {
    /// Of the bandwidth: [`MOVES_PUTS`], [`MOVES_GETS`] or [`MOVES_PUT_SIGNALS`].
    pub moves: u32,
    /// Turns without a stamp, before the others.
    pub warmup: u32,
    /// Turns with one.
    pub iterations: u32,
    /// Rounds of the inbox that earlier launches had.
    pub rounds: u32,
    /// What the signal has counted before.
    pub counted: u64,
    /// The bytes of a turn; of an exchange, of all PEs together.
    pub from: Sym<u8>,
    /// As long.
    pub to: Sym<u8>,
    /// One word for values.
    pub word: Sym<u64>,
    /// Counts the turns of ping-pongs and exchanges.
    pub signal: Signal,
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

// SAFETY: plain data for a launch; the pointer is the launcher's to keep valid.
unsafe impl Send for ShmemArgs {}
// SAFETY: as above.
unsafe impl Sync for ShmemArgs {}

/// Words of [`ShmemArgs::times`] for a latency.
pub const fn latency_words(iterations: u32) -> usize {
    iterations as usize + 2
}

/// A turn of one case.
type Turn<S> = fn(&ShmemArgs, &mut Context<S>, u32) -> Result<(), Status>;

/// All turns, by the threads of one scope.
#[inline(always)]
fn turns<S: Scope>(program: &Program<ShmemArgs>, scope: S, turn: Turn<S>) {
    let args = &program.args;
    let mut line = program.world.context(scope);
    let (mut began, mut began_ns) = (thread::clock(), thread::global_timer_ns());
    let mut last = began;
    for number in 0..args.warmup + args.iterations {
        if number == args.warmup {
            (began, began_ns) = (thread::clock(), thread::global_timer_ns());
            last = began;
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
        // SAFETY: two words behind those.
        unsafe {
            *args.times.add(args.iterations as usize) = last - began;
            *args.times.add(args.iterations as usize + 1) = thread::global_timer_ns() - began_ns;
        }
    }
    // A failure is in the world's report.
    let _ = line.quiet();
}

#[inline(always)]
fn p(args: &ShmemArgs, line: &mut Context<Thread>, turn: u32) -> Result<(), Status> {
    line.p(args.word, turn as u64, args.peer)?;
    line.quiet()
}

#[inline(always)]
fn atomic(args: &ShmemArgs, line: &mut Context<Thread>, _turn: u32) -> Result<(), Status> {
    match line.fetch_add(args.word, 1, args.peer)? {
        // No count comes that far. A value that nobody looks at is not waited for, and the turn would be the instruction's alone.
        u64::MAX => Err(Status::REFUSED),
        _ => Ok(()),
    }
}

#[inline(always)]
fn put<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, _turn: u32) -> Result<(), Status> {
    line.put_nbi(args.to, args.from, args.peer)?;
    line.quiet()
}

#[inline(always)]
fn get<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, _turn: u32) -> Result<(), Status> {
    line.get(args.to, args.from, args.peer)
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

#[inline(always)]
fn signal(args: &ShmemArgs, line: &mut Context<Thread>, turn: u32) -> Result<(), Status> {
    let count = args.counted + turn as u64 + 1;
    ping_pong(
        args,
        line,
        |line| line.signal_op(args.signal, 1, args.peer),
        |line| line.signal_wait_until(args.signal, count),
    )
}

#[inline(always)]
fn put_signal<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    let count = args.counted + turn as u64 + 1;
    ping_pong(
        args,
        line,
        |line| line.put_signal_nbi(args.to, args.from, args.signal, 1, args.peer),
        |line| line.signal_wait_until(args.signal, count),
    )
}

#[inline(always)]
fn message<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    let round = args.rounds + turn + 1;
    ping_pong(
        args,
        line,
        |line| line.send(args.inbox, round, args.from, args.peer),
        |line| line.receive(args.inbox, round, args.to, args.peer),
    )
}

#[inline(always)]
fn barrier<S: Scope>(_args: &ShmemArgs, line: &mut Context<S>, _turn: u32) -> Result<(), Status> {
    line.barrier_all()
}

#[inline(always)]
fn all_to_all<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    line.all_to_all(args.inbox, args.rounds + turn + 1, args.to, args.from)
}

/// The exchange of blocks that are too long for messages.
#[inline(always)]
fn all_to_all_puts<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    let (me, pes) = (line.world().me, line.world().pes);
    let block = args.from.len() / pes as u64;
    for step in 0..pes {
        let pe = (me + step) % pes;
        let (to, from) = (args.to.slice(me as u64 * block, block), args.from.slice(pe as u64 * block, block));
        line.put_signal_nbi(to, from, args.signal, 1, pe)?;
    }
    line.signal_wait_until(args.signal, args.counted + (turn as u64 + 1) * pes as u64)?;
    line.quiet()
}

/// Defines the kernels of latencies: a case and the scope that calls, each by one block.
macro_rules! latencies {
    ($($(#[$doc:meta])* $name:ident = $case:ident by $scope:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// The arguments are of the world's heap; `times` has [`latency_words`].
        #[kernel(resident)]
        pub unsafe fn $name(program: Program<ShmemArgs>) {
            latencies!($scope program $case);
        }
    )*};
    (Thread $program:ident $case:ident) => {
        if thread::thread_idx_x() == 0 {
            turns(&$program, Thread, $case);
        }
    };
    (Warp $program:ident $case:ident) => {
        if thread::thread_idx_x() < warp::SIZE {
            turns(&$program, Warp::this(), $case);
        }
    };
    (Block $program:ident $case:ident) => {
        turns(&$program, Block, $case)
    };
}

module! { "shmem" => pub mod bandwidth; latencies! {
    /// `p` of one value and `quiet`.
    shmem_p = p by Thread;
    /// `fetch_add`.
    shmem_atomic = atomic by Thread;
    /// A signal there and back.
    shmem_signal = signal by Thread;
    /// `put` and `quiet`, by one thread.
    shmem_put_thread = put by Thread;
    /// `put` and `quiet`, by one warp.
    shmem_put_warp = put by Warp;
    /// `put` and `quiet`, by one block.
    shmem_put_block = put by Block;
    /// `get`, by one thread.
    shmem_get_thread = get by Thread;
    /// `get`, by one warp.
    shmem_get_warp = get by Warp;
    /// `get`, by one block.
    shmem_get_block = get by Block;
    /// A put with a signal there and back, by one thread.
    shmem_put_signal_thread = put_signal by Thread;
    /// A put with a signal there and back, by one warp.
    shmem_put_signal_warp = put_signal by Warp;
    /// A put with a signal there and back, by one block.
    shmem_put_signal_block = put_signal by Block;
    /// The barrier of all PEs, by one thread.
    shmem_barrier_thread = barrier by Thread;
    /// The barrier of all PEs, by one warp.
    shmem_barrier_warp = barrier by Warp;
    /// The barrier of all PEs, by one block.
    shmem_barrier_block = barrier by Block;
} }

module! { "shmem_exchange" => latencies! {
    /// A message there and back, by one thread.
    shmem_message_thread = message by Thread;
    /// A message there and back, by one warp.
    shmem_message_warp = message by Warp;
    /// A message there and back, by one block.
    shmem_message_block = message by Block;
    /// All PEs exchange, by messages of one thread.
    shmem_all_to_all_thread = all_to_all by Thread;
    /// All PEs exchange, by messages of one warp.
    shmem_all_to_all_warp = all_to_all by Warp;
    /// All PEs exchange, by messages of one block.
    shmem_all_to_all_block = all_to_all by Block;
    /// All PEs exchange, by puts with signals of one block.
    shmem_all_to_all_puts_block = all_to_all_puts by Block;
} }
