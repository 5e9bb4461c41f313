//! Measurement of one parameter combination of `ginlab moe`: launches of several rounds, each of which is timed, and a
//! row.

use super::args::{MoeArgs, MoeConfig};
use super::expected;
use super::memory::MoeMemory;
use super::plan::{ArrivalMethod, MoeProblem, Router, RouterChoice, Unit};
use super::posted::{Posted, Round};
use super::{
    BATCH, BOUND, COMBINE, COMBINE_RATE, COUNT, DISPATCH, DISPATCH_RATE, EXPERTS, HIDDEN, MESSAGES, NODES,
    RAIL_TRANSFERS, RATE_US, SENT, SIGNALS, SKEW, TOKENS, TOPK, TYPE, UNIT, WIRE_US,
};
use crate::agreed::{self, Agreed};
use crate::columns::{PROXIES, RAIL_BYTES, SCOPE};
use crate::error::Failure;
use crate::nodes;
use crate::runner::{Rows, added};
use crate::series::{Bench, CaseResults, RankResult, Sample};
use crate::values::name;
use crate::world::{self, CallScope};
use cuda_std::Kernel;
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::model::{PREFIX, Profile};
use ginlab::gin::{Program, World};
use ginlab::measure::stats::Summary;
use ginlab::rails::Counters;
use ginlab::report::Row;
use kernels::moe::{MOE_BLOCK, MOE_THREAD, MOE_WARP, MoeKernelArgs};

/// Parts: times of dispatch and combine.
const DISPATCHED: usize = 0;
const COMBINED: usize = 1;

/// Contents of destinations before a round.
const POISON: u8 = 0xA5;

/// State of one rank.
pub struct Moe {
    args: MoeArgs,
    pub world: World,
    agreed: Agreed,
    problem: MoeProblem,
    memory: MoeMemory,
    /// Choices indexed by variant and PE.
    choices: Vec<Vec<Vec<RouterChoice>>>,
    /// Number of rounds so far.
    rounds: u32,
    /// Unit and count of the tables in memory; see [`MoeMemory::load`].
    loaded: Option<(Unit, ArrivalMethod)>,
}

impl Moe {
    pub fn open(args: &MoeArgs, mut world: World, tuples: &[MoeConfig], ranks: &mut Bootstrap) -> Result<Moe, Failure> {
        let problem = problem_of(args, &world, ranks)?;
        let agreed = Agreed::of_all(&world, ranks)?;
        let router = Router::of(args.seed, args.skew, args.routing.as_ref(), args.experts, args.topk)?;
        let of_variant = |variant| (0..problem.pes).map(|pe| router.choices(&problem, pe, variant)).collect();
        let choices = (0..args.check_rounds).map(of_variant).collect();
        let memory = MoeMemory::open(args, &problem, tuples, &mut world, ranks)?;
        Ok(Moe { args: args.clone(), world, agreed, problem, memory, choices, rounds: 0, loaded: None })
    }

    pub async fn measure(&mut self, tuple: &MoeConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let wanted = (tuple.unit, tuple.count);
        if self.loaded != Some(wanted) {
            self.memory.load(&self.problem, wanted, self.world.my_pe(), &self.choices)?;
            self.loaded = Some(wanted);
        }
        let results = self.args.repeat.series("a launch").measure(self, &[*tuple], ranks).await?;
        let posted = ranks.gather_values(&self.posted(tuple), "messages by plan")?;
        let (Some(results), Some(posted)) = (results, posted) else { return Ok(Rows::new()) };
        let measured = results.of(*tuple);
        let most = |of: fn(&Round) -> Posted| {
            posted.iter().map(of).reduce(|a, b| Posted {
                messages: a.messages.max(b.messages),
                signals: a.signals.max(b.signals),
                bytes: a.bytes.max(b.bytes),
            })
        };
        let mut row = self.row(tuple);
        // Divides by all rounds, including those that are not timed.
        let rounds = u64::from((self.args.warmup + self.args.iterations) * self.args.repeat.repeats).max(1);
        let by_rail = |of: fn(&RankResult) -> &Vec<u64>| {
            let rails: Vec<u64> = added(measured.0.iter().map(of)).into_iter().map(|count| count / rounds).collect();
            (!rails.is_empty()).then_some(rails)
        };
        row.set(&RAIL_BYTES, by_rail(|found| &found.rail_bytes));
        row.set(&RAIL_TRANSFERS, by_rail(|found| &found.rail_transfers));
        self.fill(&mut row, tuple, measured, [most(both), most(|round| round.rails)]);
        Ok(vec![(row, measured.times())])
    }

    /// Returns the operations that this PE posts in a timed round according to the plan: the mean over the choices of
    /// these rounds.
    fn posted(&self, tuple: &MoeConfig) -> Round {
        let (me, kind) = (self.world.my_pe(), (tuple.unit, tuple.count, tuple.kind));
        let MoeArgs { warmup, iterations, .. } = self.args;
        let of_variant = |(variant, choices): (usize, &Vec<Vec<RouterChoice>>)| {
            let is_of = |round: &u32| *round as usize % self.choices.len() == variant;
            let count = (warmup..warmup + iterations).filter(is_of).count() as u64;
            (count, Round::of(&self.problem, kind, me, choices, |pe| self.world.is_mapped(pe)))
        };
        Round::mean(&self.choices.iter().enumerate().map(of_variant).collect::<Vec<_>>())
    }

    fn fill(&self, row: &mut Row, tuple: &MoeConfig, measured: &CaseResults, [posted, by_rails]: [Option<Posted>; 2]) {
        let median = |part| Summary::of(&measured.part(part)).map(|summary| summary.p50);
        let (dispatch, combine) = (median(DISPATCHED), median(COMBINED));
        let selections = u64::from(self.problem.tokens) * u64::from(self.problem.topk);
        let rate = |bytes: u64, time: Option<f64>| time.map(|time| (selections * bytes) as f64 / time / 1000.0);
        row.set(&DISPATCH, dispatch).set(&COMBINE, combine);
        row.set(&DISPATCH_RATE, rate(self.problem.counted_bytes(tuple.kind), dispatch));
        row.set(&COMBINE_RATE, rate(self.problem.answer_bytes(), combine));
        let posted = posted.unwrap_or_default();
        measured.fill(row, posted.bytes, posted.messages);
        row.tail(&measured.times());
        row.set(&MESSAGES, posted.messages).set(&SIGNALS, posted.signals).set(&SENT, posted.bytes);
        // Uses only NICs with known figures.
        let profile = self.world.fabric().strip_prefix(PREFIX).and_then(|name| Profile::named(name).ok());
        let (Some(rails), Some(profile), Some(line)) = (by_rails, profile, self.agreed.line_rate) else { return };
        let wire = rails.bytes as f64 * 8e6 / line as f64;
        let cards = self.args.world.rails as f64 * profile.rate_per_rail_mops.value;
        let proxies = self.args.world.proxy_threads as f64 / profile.post_us.value;
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

    fn row(&self, tuple: &MoeConfig) -> Row {
        let MoeProblem { tokens, hidden, experts, topk, .. } = self.problem;
        let mut row = self.agreed.row("moe", name(tuple.unit), &self.world);
        row.size_bytes = Some(self.problem.message_bytes(tuple.kind));
        (row.grid, row.block) = (Some(tuple.grid), Some(self.args.block));
        row.iterations = Some(1);
        if self.agreed.by_rails {
            self.args.world.name_rails(&mut row);
            row.set(&PROXIES, self.args.world.proxy_threads as u64);
        }
        row.set(&UNIT, name(tuple.unit)).set(&COUNT, name(tuple.count)).set(&TYPE, name(tuple.kind));
        row.set(&SCOPE, name(tuple.scope))
            .set(&BATCH, u64::from(tuple.batch))
            .set(&NODES, u64::from(self.problem.nodes()));
        row.set(&TOKENS, u64::from(tokens)).set(&HIDDEN, u64::from(hidden)).set(&EXPERTS, u64::from(experts));
        row.set(&TOPK, u64::from(topk)).set(&SKEW, self.args.skew);
        row
    }

    /// Runs `rounds` rounds after [`MoeMemory::prepare`].
    fn launch(&mut self, tuple: &MoeConfig, rounds: u32, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let args = MoeKernelArgs { rounds, before: self.rounds, ..self.memory.args(&self.problem, tuple) };
        // SAFETY: the arguments belong to this world, and `MoeMemory` has tables for this problem, this unit and this
        // number of rounds.
        unsafe { self.world.launch(ranks, &kernel(tuple.scope), tuple.grid, self.args.block, args) }?;
        self.rounds += rounds;
        Ok(())
    }

    /// Runs `rounds` rounds over poisoned memory. Returns the number of wrong bytes.
    fn check(&mut self, tuple: &MoeConfig, rounds: u32, ranks: &mut Bootstrap) -> Result<u64, Failure> {
        self.memory.poison(&self.world, POISON)?;
        self.memory.prepare(&self.world)?;
        self.world.barrier(ranks)?;
        let before = self.rounds;
        self.launch(tuple, rounds, ranks)?;
        self.world.barrier(ranks)?;
        let wrong = self.wrong(tuple, before, rounds)?;
        // All PEs must compare before any PE poisons or writes again.
        self.world.barrier(ranks)?;
        Ok(wrong)
    }

    /// Returns the number of wrong bytes after a launch of `rounds` rounds that followed `before` others: in messages,
    /// between messages, and in sums.
    fn wrong(&self, tuple: &MoeConfig, before: u32, rounds: u32) -> Result<u64, Failure> {
        let (problem, me, kind) = (&self.problem, self.world.my_pe(), tuple.kind);
        let (tokens, topk) = (problem.tokens, problem.topk as usize);
        let chosen = |variant: u32, pe: u32, token: u32| {
            &self.choices[variant as usize][pe as usize][token as usize * topk..][..topk]
        };
        let mut wrong = 0;
        // Each round used different tokens, so the sums of all rounds are in memory.
        let words = self.memory.outputs()?;
        let mut sums = words.chunks(problem.hidden as usize / 2);
        for variant in 0..rounds {
            for token in 0..tokens {
                ginlab::progress::record();
                let input = expected::token(problem, me, variant, token);
                let output = expected::output(problem, tuple.unit, kind, chosen(variant, me, token), &input);
                let differ =
                    sums.next().unwrap_or(&[]).iter().zip(&output).filter(|(there, wanted)| there != wanted).count();
                wrong += 4 * differ as u64;
            }
        }
        // Each position must contain the message of the last round that had one for it, and otherwise poison.
        let stride = problem.message_bytes(kind) as usize;
        let of_token = problem.each(tuple.unit);
        for pe in 0..problem.pes {
            let places = self.memory.places(&self.world, pe * tokens * of_token, tokens * of_token, stride)?;
            for (number, there) in (0..).zip(places.chunks(stride)) {
                ginlab::progress::record();
                let (token, choice) = (number / of_token, (number % of_token) as usize);
                let is_for_me = |variant: &u32| {
                    let choices = chosen(*variant, pe, token);
                    match tuple.unit {
                        Unit::Expert => problem.pe_of(choices[choice].expert) == me,
                        Unit::Rank | Unit::Node => choices.iter().any(|choice| problem.pe_of(choice.expert) == me),
                    }
                };
                let wanted = (0..rounds).rev().find(is_for_me).map(|variant| {
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

impl Bench for Moe {
    type Case = MoeConfig;

    /// Runs a single round, after which all messages are in memory, then several rounds in one launch, whose messages
    /// overwrite each other.
    async fn verify(&mut self, tuple: MoeConfig, ranks: &mut Bootstrap) -> Result<Option<u64>, Failure> {
        let mut wrong = self.check(&tuple, 1, ranks)?;
        if self.args.check_rounds > 1 {
            wrong += self.check(&tuple, self.args.check_rounds, ranks)?;
        }
        Ok(Some(wrong))
    }

    /// Reads the signals' counts before any PE adds to them again.
    fn prepare(&mut self, _: MoeConfig) -> Result<(), Failure> {
        self.memory.prepare(&self.world)
    }

    async fn run(&mut self, tuple: MoeConfig, _: u64, ranks: &mut Bootstrap) -> Result<Sample, Failure> {
        let rounds = self.args.warmup + self.args.iterations;
        self.launch(&tuple, rounds, ranks)?;
        let stamps = self.memory.stamps(rounds)?;
        let (dispatch, combine): (Vec<f64>, Vec<f64>) =
            stamps[self.args.warmup as usize..].iter().map(|[dispatch, combine]| (*dispatch, *combine)).unzip();
        let times = dispatch.iter().zip(&combine).map(|(dispatch, combine)| dispatch + combine).collect();
        Ok(Sample { times, parts: vec![dispatch, combine] })
    }

    fn counters(&self) -> Result<Counters, Failure> {
        world::rail_counters(&self.world)
    }
}

/// Returns the sum over rails and mapped memory.
fn both(round: &Round) -> Posted {
    let (a, b) = (round.rails, round.mapped);
    Posted { messages: a.messages + b.messages, signals: a.signals + b.signals, bytes: a.bytes + b.bytes }
}

/// Returns the problem among the PEs of `world`, with nodes that all ranks agree on.
fn problem_of(args: &MoeArgs, world: &World, ranks: &mut Bootstrap) -> Result<MoeProblem, Failure> {
    let hosts = nodes::of_ranks(ranks, args.node_size);
    let mine: Vec<u32> =
        (0..).zip(&hosts).filter(|(_, host)| **host == hosts[ranks.rank()]).map(|(pe, _)| pe).collect();
    let problem = args.problem(world.n_pes(), agreed::node_size(&mine, ranks)?);
    problem.check()?;
    Ok(problem)
}

pub fn kernel(scope: CallScope) -> Kernel<Program<MoeKernelArgs>> {
    match scope {
        CallScope::Thread => MOE_THREAD,
        CallScope::Warp => MOE_WARP,
        CallScope::Block => MOE_BLOCK,
    }
}
