//! Messages without bytes among other messages. Each message proves its round, so no round overwrites one that has not
//! been received.

use super::messages::{ByteSums, by_scope, check, fill, late, seed_of, seeds};
use super::*;
use kernels::gin::{Parts, WorldView};
use kernels::pattern;

/// Length of the longest message, and distance between messages.
const MOST: u64 = 208;
const ROUNDS: usize = 20;
/// Lengths of messages: none, less than a chunk, a chunk, several chunks.
const LENGTHS: [u16; 7] = [0, 0, 0, 1, 8, 13, 200];

/// The calls that exchange messages.
#[derive(Clone, Copy, Debug, PartialEq, strum::VariantArray)]
enum MessageCall {
    Receive,
    Folded,
    AllToAll,
    Exchange,
    ExchangeFolded,
}

#[derive(Clone, Copy)]
struct Lengths {
    inbox: Inbox,
    /// Sources, by round and PE.
    from: Sym<u8>,
    /// Destinations, by PE.
    to: Sym<u8>,
    /// Number of wrong bytes, by thread, with an increment for each round that its sender had not entered.
    found: Sym<u64>,
    way: MessageCall,
    scope: u32,
    lengths: [u16; ROUNDS],
    /// Rounds that the PEs have entered.
    entered: *const [AtomicU64; 4],
}

// SAFETY: the words are those of the test, which outlives the grid and accesses them atomically.
unsafe impl Send for Lengths {}
// SAFETY: the words are those of the test, which outlives the grid and accesses them atomically.
unsafe impl Sync for Lengths {}

/// Returns the bytes for PE `other` in a round.
fn given(args: &Lengths, round: u32, other: u32, pes: u32) -> Sym<u8> {
    let place = u64::from((round - 1) * pes + other);
    args.from.slice(place * MOST, args.lengths[round as usize - 1].into())
}

/// Runs a round by `Exchange`, with parts `step` bytes apart.
fn exchanged<S: Scope>(world: &WorldView, scope: S, args: &Lengths, round: u32, step: u32) -> Result<(), Status> {
    let parts = Parts {
        from: given(args, round, 0, world.pes).offset(),
        from_step: step,
        to: args.to.offset(),
        to_step: step,
        bytes: args.lengths[round as usize - 1].into(),
    };
    let exchange = world.exchanges(scope, args.inbox, false);
    let plan = exchange.plan(&parts);
    // SAFETY: all heaps are mapped, the parts are inside objects of the heap, `WHOLE` is the result of `is_whole`, and
    // the inbox has space.
    unsafe {
        match (step, parts.is_whole(), world.pes) {
            (0, true, 2) => exchange.folded::<true, true>(round, &plan, &ByteSums),
            (0, true, _) => exchange.folded::<true, false>(round, &plan, &ByteSums),
            (0, false, _) => exchange.folded::<false, false>(round, &plan, &ByteSums),
            (_, true, 2) => exchange.all_to_all::<true, true>(round, &plan),
            (_, true, _) => exchange.all_to_all::<true, false>(round, &plan),
            (_, false, _) => exchange.all_to_all::<false, false>(round, &plan),
        }
    }
}

unsafe fn rounds(program: Program<Lengths>) {
    fn run<S: Scope>(program: &Program<Lengths>, mut line: Context<S>) -> Result<(), Status> {
        let Program { world, args } = program;
        let (me, all, scope) = (world.my_pe(), world.n_pes(), line.scope());
        // SAFETY: the words outlive the grid.
        let entered = unsafe { &*args.entered };
        let sums = matches!(args.way, MessageCall::Folded | MessageCall::ExchangeFolded);
        for (number, &length) in args.lengths.iter().enumerate() {
            let (round, length) = (number as u32 + 1, u64::from(length));
            let to = |pe: u32| args.to.slice(u64::from(pe) * MOST, length);
            // An object of blocks for `all_to_all`, one source for all PEs of a sum, and otherwise one source per PE.
            let block = if args.way == MessageCall::AllToAll { length } else { MOST };
            let sources = args.from.slice(u64::from((round - 1) * all) * MOST, MOST * u64::from(all));
            for pe in 0..if sums { 1 } else { all } {
                let seed = seed_of(me, if sums { round } else { round * 8 + pe });
                fill(world, scope, sources.slice(u64::from(pe) * block, length), seed);
            }
            // Each PE in turn is late, so that the others could get ahead of it.
            for _ in 0..if round % all == me { 60 } else { 0 } {
                cuda_std::thread::relax();
            }
            scope.sync();
            entered[me as usize].store(round.into(), Ordering::Release);
            if matches!(args.way, MessageCall::Receive | MessageCall::Folded) {
                for step in 1..all {
                    let pe = (me + step) % all;
                    line.send(args.inbox, round, given(args, round, if sums { 0 } else { pe }, all), pe)?;
                }
            }
            match args.way {
                MessageCall::Receive => {
                    for step in 1..all {
                        let pe = (me + step) % all;
                        line.receive(args.inbox, round, to(pe), pe)?;
                    }
                }
                MessageCall::Folded => {
                    line.receive_folded(args.inbox, round, to(0), given(args, round, 0, all), &ByteSums)?
                }
                MessageCall::AllToAll => {
                    let whole = length * u64::from(all);
                    line.all_to_all(args.inbox, round, args.to.slice(0, whole), sources.slice(0, whole))?;
                }
                MessageCall::Exchange => exchanged(world, scope, args, round, MOST as u32)?,
                MessageCall::ExchangeFolded => exchanged(world, scope, args, round, 0)?,
            }
            // After a message of this round has been received, its sender must have entered the round.
            if scope.rank() == 0 {
                let early = (0..all).filter(|pe| entered[*pe as usize].load(Ordering::Acquire) < u64::from(round));
                // SAFETY: `found` has one word per thread.
                unsafe {
                    *world.local(args.found).add(cuda_std::thread::thread_idx_x() as usize) += early.count() as u64
                };
            }
            if sums {
                let sum = |at| (0..all).fold(0u8, |sum, pe| sum.wrapping_add(pattern::byte(seed_of(pe, round), at)));
                check(world, scope, to(0), sum, args.found);
            } else {
                for pe in (0..all).filter(|pe| *pe != me) {
                    let got = args.to.slice(u64::from(pe) * block, length);
                    let expected = |at| pattern::byte(seed_of(pe, round * 8 + me), at);
                    check(world, scope, got, expected, args.found);
                }
            }
            scope.sync();
        }
        line.quiet()
    }
    by_scope!(program, run);
}

/// Returns the number of failed checks of all PEs.
fn wrong(
    count: usize,
    (scope, block): (u32, u32),
    options: &WorldOptions,
    way: MessageCall,
    lengths: [u16; ROUNDS],
) -> u64 {
    let entered: [AtomicU64; 4] = Default::default();
    let (words, address) = (&entered, &raw const entered as usize);
    let found = pes(count, options, |world, ranks| {
        let all = u64::from(world.n_pes());
        let args = Lengths {
            inbox: world.inbox(ranks, MOST).unwrap(),
            from: world.alloc(ranks, MOST * all * ROUNDS as u64).unwrap(),
            to: world.alloc(ranks, MOST * all).unwrap(),
            found: world.alloc(ranks, 64).unwrap(),
            way,
            scope,
            lengths,
            entered: address as *const _,
        };
        // If a round is lost, a kernel waits until its deadline, and the launch fails.
        let ended = launch(world, ranks, rounds, (1, block), args);
        ended.map_or(1 << 32, |()| world.read(args.found).unwrap().iter().sum::<u64>())
    });
    assert!(words.iter().take(count).all(|word| word.load(Ordering::Relaxed) <= ROUNDS as u64));
    found.iter().sum()
}

/// Returns a sequence of lengths: a fixed start for seed 0, otherwise random.
fn sequence(seed: u64) -> [u16; ROUNDS] {
    let first = [8, 0, 8];
    std::array::from_fn(|round| match first.get(round) {
        Some(&length) if seed == 0 => length,
        _ => LENGTHS[(pattern::mixed(seed, round as u64) % LENGTHS.len() as u64) as usize],
    })
}

#[test]
fn message_without_bytes_proves_its_round() {
    const SCOPES: [(u32, u32); 3] = [(0, 1), (1, 20), (2, 33)];
    let (mut failed, mut runs) = (Vec::new(), 0);
    for (seed, &way) in (0..seeds(1)).flat_map(|seed| MessageCall::VARIANTS.iter().map(move |way| (seed, way))) {
        for (by_rails, count) in [(false, 2), (false, 3), (true, 2), (true, 3)] {
            if by_rails && matches!(way, MessageCall::Exchange | MessageCall::ExchangeFolded) {
                continue;
            }
            let options = if by_rails { late(seed, Rule::Count) } else { emulated(PePath::NvLink) };
            let options = WorldOptions { timeout: Duration::from_secs(5), ..options };
            let scope = SCOPES[runs % SCOPES.len()];
            runs += 1;
            let wrong = wrong(count, scope, &options, way, sequence(seed));
            if wrong > 0 {
                failed.push(format!("{way:?}, rails {by_rails}, {count} PEs, scope {}, seed {seed}: {wrong}", scope.0));
            }
        }
    }
    eprintln!("{} of {runs} runs failed", failed.len());
    assert!(failed.is_empty(), "{} of {runs} runs: {failed:#?}", failed.len());
}

/// Offsets of an exchange's words are 32 bits wide, so larger inboxes would overlap.
#[test]
fn exchanges_refuse_inboxes_of_1_gib() {
    pes(1, &emulated(PePath::NvLink), |world, ranks| {
        let (description, small) = (world.description(), world.inbox(ranks, 64).unwrap());
        let with = |capacity| {
            let opened = || {
                description.exchanges(Thread, Inbox { capacity, ..small }, false);
            };
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(opened)).err()?;
            // An overflow would not be detected: a release build has no check.
            Some(panic.downcast_ref::<&str>().unwrap().to_string())
        };
        assert_eq!(with(Inbox::MOST_EXCHANGED), None);
        assert_eq!(with(1 << 30).as_deref(), Some("an inbox of 1 GiB or more for exchanges"));
    });
}
