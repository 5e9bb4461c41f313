//! One tuple of `ginlab moe`: a launch that is checked, launches that are timed, and a row.

use super::args::{Args, Tuple};
use super::expected;
use super::memory::Memory;
use super::plan::{Choice, Count, Problem, Router, Unit};
use super::posted::{Posted, Round};
use super::{
    BATCH, BOUND, COMBINE, COMBINE_RATE, COUNT, DISPATCH, DISPATCH_RATE, EXPERTS, HIDDEN, MESSAGES, NODES,
    RAIL_TRANSFERS, RATE_US, SENT, SIGNALS, SKEW, TOKENS, TOPK, TYPE, UNIT, WIRE_US,
};
use crate::columns::{PROXIES, RAIL_BYTES, SCOPE};
use crate::error::Failure;
use crate::mps;
use crate::runner::{Rows, added, percentile};
use crate::values::name;
use crate::world::{Scope, ways};
use cuda_std::Kernel;
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::model::{PREFIX, Profile};
use ginlab::gin::{GinError, Program, World};
use ginlab::report::Row;
use kernels::moe::{MOE_BLOCK, MOE_THREAD, MOE_WARP, MoeArgs};

/// What lies in destinations before.
const POISON: u8 = 0xA5;

/// A rank of the experiment.
pub struct Moe {
    args: Args,
    pub world: World,
    problem: Problem,
    memory: Memory,
    /// The choices of all PEs, by variant.
    choices: Vec<Vec<Vec<Choice>>>,
    /// Rounds so far.
    rounds: u32,
    /// What is in memory for: [`Memory::load`].
    loaded: Option<(Unit, Count)>,
}

impl Moe {
    pub fn open(args: &Args, mut world: World, tuples: &[Tuple], ranks: &mut Bootstrap) -> Result<Moe, Failure> {
        let problem = problem_of(args, &world)?;
        let router = Router::of(args.seed, args.skew, args.routing.as_ref(), args.experts, args.topk)?;
        let of_variant = |variant| (0..problem.pes).map(|pe| router.choices(&problem, pe, variant)).collect();
        let choices = (0..args.check_rounds).map(of_variant).collect();
        let memory = Memory::open(args, &problem, tuples, &mut world, ranks)?;
        Ok(Moe { args: args.clone(), world, problem, memory, choices, rounds: 0, loaded: None })
    }

    pub fn measure(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let me = self.world.my_pe();
        let wanted = (tuple.unit, tuple.count);
        if self.loaded != Some(wanted) {
            self.memory.load(&self.problem, wanted, me, &self.choices)?;
            self.loaded = Some(wanted);
        }
        let mut wrong = None;
        if !self.args.no_check {
            self.memory.poison(&self.world, POISON)?;
            let before = self.rounds;
            self.launch(tuple, self.args.check_rounds, ranks)?;
            self.world.barrier(ranks)?;
            wrong = Some(self.wrong(tuple, before)?);
        }
        let counters = |world: &World| -> Result<[Vec<u64>; 2], Failure> {
            let snapshots = world.snapshots().map_err(GinError::from)?;
            let sum = |of: fn(&ginlab::proxy::Snapshot) -> &Vec<u64>| added(snapshots.iter().map(of));
            Ok([sum(|one| &one.counters.rail_bytes), sum(|one| &one.counters.rail_transfers)])
        };
        let before = counters(&self.world)?;
        let rounds = self.args.warmup + self.args.iterations;
        let mut times: Vec<[f64; 2]> = Vec::new();
        for _ in 0..self.args.repeats {
            let all = self.launch(tuple, rounds, ranks)?;
            times.extend(&all[self.args.warmup as usize..]);
        }
        let all = u64::from(rounds * self.args.repeats).max(1);
        let after = counters(&self.world)?;
        let by_rail =
            |at: usize| after[at].iter().zip(&before[at]).map(|(after, before)| (after - before) / all).collect();
        let rails: [Vec<u64>; 2] = [by_rail(0), by_rail(1)];
        let posted = Round::of(&self.problem, (tuple.unit, tuple.count, tuple.kind), me, &self.choices[0], |pe| {
            self.world.is_mapped(pe)
        });
        let Some(all) = ranks.gather_values(&(times, wrong, posted, rails), "times")? else { return Ok(Rows::new()) };
        let mut row = self.row(tuple);
        row.verified(all.iter().filter_map(|of_rank| of_rank.1).reduce(|a, b| a + b));
        let rounds = all.iter().map(|of_rank| of_rank.0.len()).min().unwrap_or(0);
        // Of each round the slowest PE.
        let slowest = |part: fn(&[f64; 2]) -> f64| -> Vec<f64> {
            (0..rounds).map(|at| all.iter().map(|of_rank| part(&of_rank.0[at])).fold(0.0, f64::max)).collect()
        };
        let whole = slowest(|[dispatch, combine]| dispatch + combine);
        let most = |of: fn(&Round) -> Posted| {
            let parts = all.iter().map(|of_rank| of(&of_rank.2));
            parts.reduce(|a, b| Posted {
                messages: a.messages.max(b.messages),
                signals: a.signals.max(b.signals),
                bytes: a.bytes.max(b.bytes),
            })
        };
        let [rail_bytes, rail_transfers] = [0, 1].map(|at| added(all.iter().map(|of_rank| &of_rank.3[at])));
        row.set(&RAIL_BYTES, (!rail_bytes.is_empty()).then_some(rail_bytes));
        row.set(&RAIL_TRANSFERS, (!rail_transfers.is_empty()).then_some(rail_transfers));
        self.fill(
            &mut row,
            tuple,
            &whole,
            [slowest(|part| part[0]), slowest(|part| part[1])],
            most(both),
            most(|round| round.rails),
        );
        Ok(vec![(row, whole)])
    }

    fn fill(
        &self,
        row: &mut Row,
        tuple: &Tuple,
        whole: &[f64],
        parts: [Vec<f64>; 2],
        posted: Option<Posted>,
        by_rails: Option<Posted>,
    ) {
        let [dispatch, combine] = parts.map(|mut times| {
            times.sort_by(f64::total_cmp);
            percentile(&times, 500)
        });
        let selections = u64::from(self.problem.tokens) * u64::from(self.problem.topk);
        let rate = |bytes: u64, time: Option<f64>| time.map(|time| (selections * bytes) as f64 / time / 1000.0);
        row.set(&DISPATCH, dispatch).set(&COMBINE, combine);
        row.set(&DISPATCH_RATE, rate(self.problem.counted_bytes(tuple.kind), dispatch));
        row.set(&COMBINE_RATE, rate(self.problem.answer_bytes(), combine));
        let posted = posted.unwrap_or_default();
        row.times(whole).throughput(posted.bytes, posted.messages);
        row.set(&MESSAGES, posted.messages).set(&SIGNALS, posted.signals).set(&SENT, posted.bytes);
        // Cards of which the figures are known.
        let profile = self.world.fabric().strip_prefix(PREFIX).and_then(|name| Profile::named(name).ok());
        let (Some(rails), Some(profile), Some(line)) = (by_rails, profile, self.world.line_rate()) else { return };
        let wire = rails.bytes as f64 * 8e6 / line as f64;
        let cards = self.args.world.rails as f64 * profile.rate_per_rail_mops.value;
        let proxies = self.args.world.proxies as f64 / profile.post_us.value;
        let rate = (rails.messages + rails.signals) as f64 / cards.min(proxies);
        row.set(&WIRE_US, wire).set(&RATE_US, rate);
        if let Some(time) = row.time_us_p50 {
            let bound = if time > 2.0 * wire.max(rate) {
                "neither"
            } else if wire > rate {
                "wire"
            } else {
                "messages"
            };
            row.set(&BOUND, bound);
        }
    }

    fn row(&self, tuple: &Tuple) -> Row {
        let Problem { tokens, hidden, experts, topk, pes, .. } = self.problem;
        let mut row = Row::new("moe", name(tuple.unit), self.world.device().name(), ways(&self.world));
        row.ranks = pes;
        row.memory = Some(self.world.memory().into());
        mps::mark(&mut row, self.world.sharing());
        row.size_bytes = Some(self.problem.message_bytes(tuple.kind));
        (row.grid, row.block) = (Some(tuple.grid), Some(self.args.block));
        row.iterations = Some(1);
        if (0..pes).any(|pe| !self.world.is_mapped(pe)) {
            self.args.world.name_rails(&mut row);
            row.set(&PROXIES, self.args.world.proxies as u64);
        }
        row.set(&UNIT, name(tuple.unit)).set(&COUNT, name(tuple.count)).set(&TYPE, name(tuple.kind));
        row.set(&SCOPE, name(tuple.scope))
            .set(&BATCH, u64::from(tuple.batch))
            .set(&NODES, u64::from(self.problem.nodes()));
        row.set(&TOKENS, u64::from(tokens)).set(&HIDDEN, u64::from(hidden)).set(&EXPERTS, u64::from(experts));
        row.set(&TOPK, u64::from(topk)).set(&SKEW, self.args.skew);
        row
    }

    /// Runs so many rounds; microseconds of dispatch and combine of each.
    fn launch(&mut self, tuple: &Tuple, rounds: u32, ranks: &mut Bootstrap) -> Result<Vec<[f64; 2]>, Failure> {
        // What has been counted is read before anybody adds to it again.
        self.memory.prepare(&self.world)?;
        let args = MoeArgs { rounds, before: self.rounds, ..self.memory.args(&self.problem, tuple) };
        self.world.barrier(ranks)?;
        // SAFETY: the arguments are of this world, and `Memory` has made the tables for this problem, this unit and so many rounds.
        unsafe { self.world.launch(ranks, &kernel(tuple.scope), tuple.grid, self.args.block, args) }?;
        self.rounds += rounds;
        self.memory.stamps(rounds)
    }

    /// Wrong bytes after the launch that began behind so many rounds: of messages at their places, of what lies between them, of sums.
    fn wrong(&self, tuple: &Tuple, before: u32) -> Result<u64, Failure> {
        let (problem, me, kind) = (&self.problem, self.world.my_pe(), tuple.kind);
        let (tokens, topk) = (problem.tokens, problem.topk as usize);
        let chosen = |variant: u32, pe: u32, token: u32| {
            &self.choices[variant as usize][pe as usize][token as usize * topk..][..topk]
        };
        let mut wrong = 0;
        // Every round has had other tokens: all their sums are still there.
        let words = self.memory.outputs()?;
        let mut sums = words.chunks(problem.hidden as usize / 2);
        for variant in 0..self.args.check_rounds {
            for token in 0..tokens {
                let input = expected::token(problem, me, variant, token);
                let output = expected::output(problem, tuple.unit, kind, chosen(variant, me, token), &input);
                let differ =
                    sums.next().unwrap_or(&[]).iter().zip(&output).filter(|(there, wanted)| there != wanted).count();
                wrong += 4 * differ as u64;
            }
        }
        // At each place the message of the last round that had one for it, and nothing else.
        let stride = problem.message_bytes(kind) as usize;
        let of_token = problem.each(tuple.unit);
        for pe in 0..problem.pes {
            let places = self.memory.places(&self.world, pe * tokens * of_token, tokens * of_token, stride)?;
            for (number, there) in (0..).zip(places.chunks(stride)) {
                let (token, choice) = (number / of_token, (number % of_token) as usize);
                let is_for_me = |variant: &u32| {
                    let choices = chosen(*variant, pe, token);
                    match tuple.unit {
                        Unit::Expert => problem.pe_of(choices[choice].expert) == me,
                        Unit::Rank | Unit::Node => choices.iter().any(|choice| problem.pe_of(choice.expert) == me),
                    }
                };
                let wanted = (0..self.args.check_rounds).rev().find(is_for_me).map(|variant| {
                    let input = expected::token(problem, pe, variant, token);
                    expected::message(problem, kind, chosen(variant, pe, token), &input, before + variant + 1, token)
                });
                let wanted = wanted.unwrap_or_default().into_iter().chain(std::iter::repeat(POISON));
                wrong += there.iter().zip(wanted).filter(|(there, wanted)| *there != wanted).count() as u64;
            }
        }
        Ok(wrong)
    }
}

/// By rails and by mapped memory together.
fn both(round: &Round) -> Posted {
    let (a, b) = (round.rails, round.mapped);
    Posted { messages: a.messages + b.messages, signals: a.signals + b.signals, bytes: a.bytes + b.bytes }
}

/// The problem among this world's PEs.
pub fn problem_of(args: &Args, world: &World) -> Result<Problem, Failure> {
    let node = world.description().teams[kernels::gin::TeamKind::Node as usize];
    let (pes, local) = (world.n_pes(), node.pes.max(1));
    // Nodes of PEs whose numbers are no neighbours, or of which one has more: each PE is its own.
    let neighbours = pes.is_multiple_of(local) && node.me == world.my_pe() % local;
    let problem = args.problem(pes, if neighbours { local } else { 1 });
    problem.check()?;
    Ok(problem)
}

pub fn kernel(scope: Scope) -> Kernel<Program<MoeArgs>> {
    match scope {
        Scope::Thread => MOE_THREAD,
        Scope::Warp => MOE_WARP,
        Scope::Block => MOE_BLOCK,
    }
}
