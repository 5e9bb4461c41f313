//! Every call that waits first publishes the batch of its context, because it may wait for the answer to a put of that
//! batch.

use super::messages::ByteSums;
use super::*;
use kernels::gin::{BY_SUM, Counts, Tally};

/// The calls of a context that wait, and those that publish without waiting.
#[derive(Clone, Copy, Debug, PartialEq, strum::VariantArray)]
enum Call {
    Put,
    PutSignal,
    Get,
    Quiet,
    Fence,
    Flush,
    BarrierAll,
    Barrier,
    SignalWaitUntil,
    WaitRound,
    ReclaimRound,
    WaitValue,
    WaitMore,
    WaitCounted,
    Send,
    Reclaim,
    Receive,
    ReceiveFolded,
    AllToAll,
    /// These publish only over rails.
    GetNbi,
    SignalOp,
    PutRound,
}

impl Call {
    /// Returns whether the call publishes if the heap of its PE is mapped.
    fn publishes_by_mapping(self) -> bool {
        !matches!(self, Call::GetNbi | Call::SignalOp | Call::PutRound)
    }

    /// Returns whether all PEs make the call.
    fn is_collective(self) -> bool {
        matches!(self, Call::BarrierAll | Call::Barrier | Call::ReceiveFolded | Call::AllToAll)
    }
}

#[derive(Clone, Copy)]
struct Batched {
    call: Call,
    inbox: Inbox,
    /// Target of the batched put. Other calls use 16 bytes for each PE of `from` and `to`.
    put: Sym<u64>,
    from: Sym<u8>,
    to: Sym<u8>,
    counts: Counts,
    /// Signals of the batched put, of the PE that has observed this put, and of the answer.
    told: Signal,
    heard: Signal,
    answer: Signal,
}

// SAFETY: the word that `counts` points to is only read and written atomically, and lives until the launch has ended.
unsafe impl Send for Batched {}
// SAFETY: the word that `counts` points to is only accessed atomically, and lives until the launch has ended.
unsafe impl Sync for Batched {}

/// PE 0 puts with a signal to the last PE, in a batch that is not full, and makes the call. PE 1 answers only after the
/// signal has arrived at the last PE.
unsafe fn one_call(program: Program<Batched>) {
    let Program { world, args } = program;
    let (me, last) = (world.my_pe(), world.n_pes() - 1);
    let mut line = world.context(Block);
    let run = |line: &mut Context<Block>| -> Result<(), Status> {
        if me == last {
            line.signal_wait_until(args.told, 1)?;
            line.signal_op(args.heard, 1, 1)?;
        }
        if me == 1 {
            line.signal_wait_until(args.heard, 1)?;
        }
        if args.call.is_collective() {
            return asked(line, &args);
        }
        if me == 1 { answered(line, &args) } else { Ok(()) }
    };
    if me != 0 {
        run(&mut line).unwrap();
        return;
    }
    let mut line = world.context(Block).batched(8);
    line.put_signal_nbi(args.put, args.put, args.told, 1, last).and_then(|()| asked(&mut line, &args)).unwrap();
}

/// Runs `call` in its own stack frame. Calls are always inlined. In an unoptimized build, a single frame with all of
/// them would be larger than a lane's stack.
#[inline(never)]
fn in_frame<T>(call: impl FnOnce() -> T) -> T {
    call()
}

/// Makes the call, which requests something from PE 1.
fn asked(line: &mut Context<Block>, args: &Batched) -> Result<(), Status> {
    let pes = u64::from(line.world().n_pes());
    let (to, from) = (args.to.slice(0, 16), args.from.slice(0, 16));
    match args.call {
        Call::Put => in_frame(|| line.put(to, from, 1)),
        Call::PutSignal => in_frame(|| line.put_signal(to, from, args.answer, 1, 1)),
        Call::Get => in_frame(|| line.get(to, from, 1)),
        Call::Quiet => in_frame(|| line.quiet()),
        Call::Fence => in_frame(|| line.fence()),
        Call::Flush => in_frame(|| {
            line.flush();
            Ok(())
        }),
        Call::BarrierAll => in_frame(|| line.barrier_all()),
        Call::Barrier => in_frame(|| line.barrier(TeamKind::World)),
        Call::SignalWaitUntil => in_frame(|| line.signal_wait_until(args.answer, 1)),
        Call::WaitRound => in_frame(|| line.wait_round(args.answer, 1)),
        Call::ReclaimRound => in_frame(|| line.reclaim_round(args.answer, 1, 1)),
        Call::WaitValue => in_frame(|| line.wait_value(args.counts.values, 1).map(drop)),
        Call::WaitMore => in_frame(|| line.wait_more(&args.counts.arrived, 1, 1)),
        Call::WaitCounted => in_frame(|| line.wait_counted(&args.counts, 1, 1)),
        Call::Send => in_frame(|| line.send(args.inbox, 1, from, 1)),
        Call::Reclaim => in_frame(|| line.reclaim(args.inbox, 1, 1)),
        Call::Receive => in_frame(|| line.receive(args.inbox, 1, to, 1)),
        Call::ReceiveFolded => in_frame(|| {
            let me = line.world().my_pe();
            for pe in (0..pes as u32).filter(|pe| *pe != me && me != 0) {
                line.send(args.inbox, 1, from, pe)?;
            }
            if me == 0 { line.receive_folded(args.inbox, 1, to, from, &ByteSums) } else { Ok(()) }
        }),
        Call::AllToAll => {
            in_frame(|| line.all_to_all(args.inbox, 1, args.to.slice(0, 16 * pes), args.from.slice(0, 16 * pes)))
        }
        Call::GetNbi => in_frame(|| line.get_nbi(to, from, 1)),
        Call::SignalOp => in_frame(|| line.signal_op(args.answer, 1, 1)),
        Call::PutRound => in_frame(|| line.put_round_nbi(to, from, args.answer, 1, 1)),
    }
}

/// Sends PE 1's answer, for which PE 0 waits.
fn answered(line: &mut Context<Block>, args: &Batched) -> Result<(), Status> {
    let (to, from) = (args.to.slice(0, 16), args.from.slice(0, 16));
    let mut alone = line.world().context(Thread);
    let is_first = cuda_std::thread::thread_idx_x() == 0;
    match args.call {
        Call::SignalWaitUntil => in_frame(|| line.signal_op(args.answer, 1, 0))?,
        Call::WaitRound => in_frame(|| line.put_round_nbi(to, from, args.answer, 1, 0))?,
        Call::WaitValue if is_first => in_frame(|| alone.p_round(args.counts.values, 7, 1, 0))?,
        Call::WaitMore => in_frame(|| line.signal_op(args.counts.arrived.signals.at(1), 1, 0))?,
        Call::WaitCounted if is_first => in_frame(|| alone.announce(&args.counts, 0, 1, 0))?,
        Call::Receive => in_frame(|| line.send(args.inbox, 1, from, 0))?,
        Call::Send => in_frame(|| line.receive(args.inbox, 1, to, 0))?,
        _ => {}
    }
    if is_first {
        alone.quiet()?;
    }
    line.quiet()
}

#[test]
fn waiting_calls_publish_batches() {
    let short = WorldOptions { timeout: Duration::from_secs(2), ..emulated(PePath::Rails) };
    // PE 1 is reached over rails, or its heap is mapped and another PE is reached over rails.
    let mixed = WorldOptions { path: PePath::Auto, node_size: Some(2), ..short.clone() };
    for (count, options) in [(2, short), (4, mixed)] {
        for &call in Call::VARIANTS {
            if count == 4 && !call.publishes_by_mapping() {
                continue;
            }
            eprintln!("{call:?}, {count} PEs");
            pes(count, &options, |world, ranks| {
                let all = world.n_pes();
                let seen = Device::Emulated.allocate(MemoryLocation::Device, 8 * all as usize).unwrap();
                let arrived = Tally { signals: world.signals(ranks, all).unwrap(), seen: seen.pointer() };
                let args = Batched {
                    call,
                    inbox: world.inbox(ranks, 16).unwrap(),
                    put: world.alloc(ranks, 2).unwrap(),
                    from: world.alloc(ranks, 16 * u64::from(all)).unwrap(),
                    to: world.alloc(ranks, 16 * u64::from(all)).unwrap(),
                    counts: Counts {
                        way: BY_SUM,
                        most: 1,
                        arrived,
                        signalled: arrived,
                        values: world.alloc(ranks, 1).unwrap(),
                    },
                    told: world.signals(ranks, 1).unwrap(),
                    heard: world.signals(ranks, 1).unwrap(),
                    answer: world.signals(ranks, 1).unwrap(),
                };
                launch(world, ranks, one_call, (1, 20), args).unwrap();
            });
        }
    }
}
