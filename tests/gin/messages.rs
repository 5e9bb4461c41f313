//! Messages and rows without `quiet`, over rails on which a put may arrive after its sender's next ones.

use super::*;
use kernels::gin::Fold;
use kernels::pattern;
use kernels::shmem::ShmemKernelArgs;
use kernels::shmem::exchange::SHMEM_ALL_TO_ALL_PUTS_BLOCK;

/// Returns options for the worst rails, on which a put may arrive after its sender's next puts.
pub fn late(seed: u64, rule: Rule) -> WorldOptions {
    let fabric = Fabric::Worst(WorstSpec { seed, longest: 1024, ..WorstSpec::default() });
    WorldOptions { fabric, rule: ginlab::gin::PutSignalRule::Proxies(rule), ..emulated(PePath::Rails) }
}

/// Returns the number of runs of each test, with seeds from 1. `GINLAB_SEEDS=200` is a longer run.
pub fn seeds(least: u64) -> u64 {
    std::env::var("GINLAB_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(least)
}

/// Each scope with the number of threads of its only block.
const SCOPES: [(u32, u32); 3] = [(0, 1), (1, 20), (2, 33)];

/// Runs one case for each rule, number of PEs, scope and seed. Fails if any run had wrong bytes.
fn sweep(least: u64, run: impl Fn(usize, (u32, u32), &WorldOptions) -> u64) {
    let (mut failed, mut runs) = (Vec::new(), 0);
    for &rule in Rule::VARIANTS {
        for count in [2, 3] {
            for scope in SCOPES {
                for seed in 1..=seeds(least) {
                    runs += 1;
                    let wrong = run(count, scope, &late(seed, rule));
                    if wrong > 0 {
                        failed.push(format!("{rule}, {count} PEs, scope {}, seed {seed}: {wrong} wrong", scope.0));
                    }
                }
            }
        }
    }
    eprintln!("{} of {runs} runs wrong", failed.len());
    assert!(failed.is_empty(), "{} of {runs} runs: {failed:#?}", failed.len());
}

/// Bytes of a message: several transfers.
const BYTES: u64 = 2500;
const ROUNDS: u32 = 24;

#[derive(Clone, Copy)]
struct Messages {
    inbox: Inbox,
    /// Sources, by parity of the round.
    from: Sym<u8>,
    to: Sym<u8>,
    /// Number of wrong bytes, by thread.
    found: Sym<u64>,
    acknowledged: Signal,
    scope: u32,
}

/// Runs a case in the requested scope.
macro_rules! by_scope {
    ($program:ident, $case:ident) => {{
        let first = cuda_std::thread::thread_idx_x() == 0;
        let ended = match $program.args.scope {
            0 if first => $case(&$program, $program.world.context(Thread)),
            0 => Ok(()),
            1 => $case(&$program, $program.world.context(Warp::this())),
            _ => $case(&$program, $program.world.context(Block)),
        };
        ended.unwrap();
    }};
}
pub(super) use by_scope;

/// Returns the seed of the bytes that PE `pe` sends in a round.
pub fn seed_of(pe: u32, round: u32) -> u64 {
    pattern::seed(pe, round, 0)
}

/// Fills an object. Each thread of the scope fills its share.
pub fn fill<S: Scope>(world: &kernels::gin::WorldView, scope: S, object: Sym<u8>, seed: u64) {
    let start = world.local(object);
    for at in (u64::from(scope.rank())..object.len()).step_by(scope.size() as usize) {
        // SAFETY: the byte is in the object, which no other thread accesses now.
        unsafe { start.add(at as usize).write(pattern::byte(seed, at)) };
    }
}

/// Counts wrong bytes.
pub fn check<S: Scope>(
    world: &kernels::gin::WorldView,
    scope: S,
    object: Sym<u8>,
    expected: impl Fn(u64) -> u8,
    found: Sym<u64>,
) {
    let start = world.local(object);
    let mut wrong = 0;
    for at in (u64::from(scope.rank())..object.len()).step_by(scope.size() as usize) {
        // SAFETY: the byte is in the object, which is not written now.
        wrong += u64::from(unsafe { start.add(at as usize).read() } != expected(at));
    }
    // SAFETY: `found` has one word per thread.
    unsafe { *world.local(found).add(cuda_std::thread::thread_idx_x() as usize) += wrong };
}

/// All PEs exchange in each round, by messages from a source that is overwritten two rounds later.
unsafe fn exchanged(program: Program<Messages>) {
    fn run<S: Scope>(program: &Program<Messages>, mut line: Context<S>) -> Result<(), Status> {
        let Program { world, args } = program;
        let (me, all, scope) = (world.my_pe(), world.n_pes(), line.scope());
        for round in 1..=ROUNDS {
            let from = args.from.slice(u64::from(round % 2) * BYTES, BYTES);
            for step in 1..all {
                line.reclaim(args.inbox, round, (me + step) % all)?;
            }
            fill(world, scope, from, seed_of(me, round));
            for step in 1..all {
                line.send(args.inbox, round, from, (me + step) % all)?;
            }
            for step in 1..all {
                let pe = (me + step) % all;
                line.receive(args.inbox, round, args.to.slice(0, BYTES), pe)?;
                check(world, scope, args.to.slice(0, BYTES), |at| pattern::byte(seed_of(pe, round), at), args.found);
                scope.sync();
            }
        }
        line.quiet()
    }
    by_scope!(program, run);
}

/// Sends to the next PE in one direction. Only the signals of the receiver report the received rounds. The sender is a
/// round ahead.
unsafe fn streamed(program: Program<Messages>) {
    fn run<S: Scope>(program: &Program<Messages>, mut line: Context<S>) -> Result<(), Status> {
        let Program { world, args } = program;
        let (me, all, scope) = (world.my_pe(), world.n_pes(), line.scope());
        let (next, before) = ((me + 1) % all, (me + all - 1) % all);
        for round in 1..=ROUNDS + 1 {
            if round <= ROUNDS {
                // Waits until the round before the previous one has been received.
                line.signal_wait_until(args.acknowledged.at(round % 2), u64::from(round - 1) / 2)?;
                line.reclaim(args.inbox, round, next)?;
                let from = args.from.slice(u64::from(round % 2) * BYTES, BYTES);
                fill(world, scope, from, seed_of(me, round));
                line.send(args.inbox, round, from, next)?;
            }
            if round > 1 {
                line.receive(args.inbox, round - 1, args.to.slice(0, BYTES), before)?;
                check(
                    world,
                    scope,
                    args.to.slice(0, BYTES),
                    |at| pattern::byte(seed_of(before, round - 1), at),
                    args.found,
                );
                line.fence()?;
                line.signal_op(args.acknowledged.at((round - 1) % 2), 1, before)?;
            }
        }
        line.quiet()
    }
    by_scope!(program, run);
}

/// `all_to_all`, whose source is overwritten as soon as it returns.
unsafe fn all_exchanged(program: Program<Messages>) {
    fn run<S: Scope>(program: &Program<Messages>, mut line: Context<S>) -> Result<(), Status> {
        let Program { world, args } = program;
        let (me, all, scope) = (world.my_pe(), world.n_pes(), line.scope());
        let whole = BYTES * u64::from(all);
        let (from, to) = (args.from.slice(0, whole), args.to.slice(0, whole));
        for round in 1..=ROUNDS {
            fill(world, scope, from, seed_of(me, round));
            line.all_to_all(args.inbox, round, to, from)?;
            for pe in 0..all {
                let mine = u64::from(me) * BYTES;
                let expected = |at| pattern::byte(seed_of(pe, round), mine + at);
                check(world, scope, to.slice(u64::from(pe) * BYTES, BYTES), expected, args.found);
            }
            scope.sync();
        }
        line.quiet()
    }
    by_scope!(program, run);
}

/// Adds bytes separately, without carries between them.
pub struct ByteSums;

impl Fold for ByteSums {
    type Held = u64;
    fn first(&self, bytes: u64) -> u64 {
        bytes
    }
    fn next(&self, held: u64, bytes: u64) -> u64 {
        let (held, bytes) = (held.to_ne_bytes(), bytes.to_ne_bytes());
        u64::from_ne_bytes(std::array::from_fn(|at| held[at].wrapping_add(bytes[at])))
    }
    fn last(&self, held: u64) -> u64 {
        held
    }
}

/// Sums over all PEs, in place: the result overwrites the bytes that this PE sent.
unsafe fn summed(program: Program<Messages>) {
    fn run<S: Scope>(program: &Program<Messages>, mut line: Context<S>) -> Result<(), Status> {
        let Program { world, args } = program;
        let (me, all, scope) = (world.my_pe(), world.n_pes(), line.scope());
        let own = args.from.slice(0, BYTES);
        for round in 1..=ROUNDS {
            fill(world, scope, own, seed_of(me, round));
            for step in 1..all {
                line.send(args.inbox, round, own, (me + step) % all)?;
            }
            line.receive_folded(args.inbox, round, own, own, &ByteSums)?;
            let sum = |at| (0..all).fold(0u8, |sum, pe| sum.wrapping_add(pattern::byte(seed_of(pe, round), at)));
            check(world, scope, own, sum, args.found);
            scope.sync();
        }
        line.quiet()
    }
    by_scope!(program, run);
}

/// Returns the number of wrong bytes of all PEs.
fn wrong(count: usize, (scope, block): (u32, u32), options: &WorldOptions, case: unsafe fn(Program<Messages>)) -> u64 {
    let found = pes(count, options, |world, ranks| {
        let whole = BYTES * u64::from(world.n_pes());
        let args = Messages {
            inbox: world.inbox(ranks, BYTES).unwrap(),
            from: world.alloc(ranks, whole).unwrap(),
            to: world.alloc(ranks, whole).unwrap(),
            found: world.alloc(ranks, 64).unwrap(),
            acknowledged: world.signals(ranks, 2).unwrap(),
            scope,
        };
        launch(world, ranks, case, (1, block), args).unwrap();
        world.read(args.found).unwrap().iter().sum::<u64>()
    });
    found.iter().sum()
}

#[test]
fn messages_prove_their_round() {
    sweep(3, |count, scope, options| wrong(count, scope, options, exchanged));
}

#[test]
fn sender_one_round_ahead_is_not_confused() {
    sweep(2, |count, scope, options| wrong(count, scope, options, streamed));
}

#[test]
fn all_to_all_returns_when_source_is_reusable() {
    sweep(2, |count, scope, options| wrong(count, scope, options, all_exchanged));
}

#[test]
fn sum_can_overwrite_its_source() {
    sweep(2, |count, scope, options| wrong(count, scope, options, summed));
}

/// The exchange of `ginlab shmem` by puts. After a PE's iteration, the blocks of all others have arrived, from this
/// iteration or the next. A put can be delayed by more than the duration of a launch.
#[test]
fn exchange_by_puts_contains_every_block() {
    let (block, turns) = (64u64, 8u32);
    let (mut failed, runs) = (0, seeds(8));
    for seed in 1..=runs {
        let fabric = Fabric::Worst(WorstSpec { seed, delay: 4096, longest: 1024, ..WorstSpec::default() });
        let options = WorldOptions { fabric, rails: 1, ..emulated(PePath::Rails) };
        let stale = pes(3, &options, |world, ranks| {
            let all = u64::from(world.n_pes());
            let times = Device::Emulated.allocate(MemoryLocation::Device, 64).unwrap();
            let mut args = ShmemKernelArgs {
                places: 1,
                step: 0,
                to_step: 0,
                moves: 0,
                warmup: 0,
                iterations: 1,
                rounds: 0,
                counted: 0,
                from: world.alloc(ranks, block * all).unwrap(),
                to: world.alloc(ranks, block * all).unwrap(),
                word: world.alloc(ranks, 1).unwrap(),
                signal: Signal(0),
                exchanged: world.signals(ranks, all as u32).unwrap(),
                streamed: Signal(0),
                inbox: world.inbox(ranks, 8).unwrap(),
                peer: 0,
                begins: 0,
                times: times.pointer(),
            };
            let mut stale = 0;
            for turn in 1..=turns {
                world.write(args.from, &vec![turn as u8; (block * all) as usize]).unwrap();
                args.rounds = turn - 1;
                // SAFETY: the arguments are of this world.
                unsafe { world.launch(ranks, &SHMEM_ALL_TO_ALL_PUTS_BLOCK, 1, 16, args) }.unwrap();
                // A PE that is one iteration ahead has overwritten its bytes.
                stale += world.read(args.to).unwrap().iter().filter(|byte| u32::from(**byte) < turn).count();
            }
            stale
        });
        failed += u64::from(stale.iter().sum::<usize>() > 0);
    }
    eprintln!("{failed} of {runs} runs wrong");
    assert_eq!(failed, 0, "of {runs} runs");
}

#[derive(Clone, Copy)]
struct Turns {
    from: Sym<u8>,
    to: Sym<u8>,
    found: Sym<u64>,
    signals: Signal,
    round: u32,
}

/// A round of puts to the next PE. The two blocks alternate in sending rounds, and so do their rings; each round is a
/// launch of its own.
unsafe fn one_round(program: Program<Turns>) {
    let Program { world, args } = program;
    let (me, all, round) = (world.my_pe(), world.n_pes(), args.round);
    if cuda_std::thread::block_idx_x() != round / 2 % 2 {
        return;
    }
    let (next, before) = ((me + 1) % all, (me + all - 1) % all);
    let mut line = world.context(Block);
    let mut run = || -> Result<(), Status> {
        let place = |object: Sym<u8>| object.slice(u64::from(round % 2) * BYTES, BYTES);
        // The signal has the target's number, because the rounds of one signal must go to one PE.
        let to_next = args.signals.at(next);
        line.reclaim_round(to_next, round, next)?;
        fill(&world, Block, place(args.from), seed_of(me, round));
        line.put_round_nbi(place(args.to), place(args.from), to_next, round, next)?;
        line.wait_round(args.signals.at(me), round)?;
        check(&world, Block, place(args.to), |at| pattern::byte(seed_of(before, round), at), args.found);
        Ok(())
    };
    run().unwrap();
    cuda_std::thread::sync_threads();
}

#[test]
fn rounds_continue_across_launches_and_rings() {
    // According to libfabric's documentation, a source must not change until its completion, even if the target has
    // answered.
    let slow = WorstSpec { longest: 1024, strict: true, delay: 2000, ..WorstSpec::default() };
    let strict = WorldOptions { fabric: Fabric::Worst(slow), ..late(1, Rule::Count) };
    for options in [late(1, Rule::Count), late(2, Rule::Own), strict, emulated(PePath::NvLink)] {
        let options = WorldOptions { proxies: 2, ..options };
        let found = pes(2, &options, |world, ranks| {
            let mut args = Turns {
                from: world.alloc(ranks, 2 * BYTES).unwrap(),
                to: world.alloc(ranks, 2 * BYTES).unwrap(),
                found: world.alloc(ranks, 64).unwrap(),
                signals: world.signals(ranks, 2).unwrap(),
                round: 0,
            };
            for round in 1..=ROUNDS {
                args.round = round;
                launch(world, ranks, one_round, (2, 24), args).unwrap();
            }
            world.read(args.found).unwrap().iter().sum::<u64>()
        });
        assert_eq!(found, [0, 0]);
    }
}
