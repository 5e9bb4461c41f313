//! One tuple: runs on one device and on all, the field compared, and what a trace shows.

use super::args::{Exchange, Norm, SyncBy, Tuple, When};
use super::check::far;
use super::rank::{Alone, Jacobi};
use super::{columns, fit};
use crate::error::Failure;
use crate::mps;
use crate::runner::{Rows, slowest};
use crate::values::name;
use ginlab::bootstrap::Bootstrap;
use ginlab::measure::stats::Summary;
use ginlab::report::{Row, Status};

/// A field is held against a plain loop on the CPU up to so many points times iterations: a part of a second.
const PLAIN_POINTS: u64 = 1 << 28;
/// Runs on one device at most: there is nobody that disturbs them.
const MOST_ALONE: u32 = 5;
/// Runs without a norm, for its share.
const RUNS_WITHOUT: u32 = 2;

/// What a rank tells of its part of a row.
#[derive(serde::Serialize, serde::Deserialize)]
struct Told {
    times: Vec<f64>,
    alone: Vec<f64>,
    without: Vec<f64>,
    /// Of nccl-graph, in turns.
    theirs: Vec<f64>,
    wrong: Option<u64>,
    trace: [Option<f64>; 3],
}

impl Jacobi {
    pub fn measure(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        self.reach(tuple, ranks)?;
        if let Some(why) = self.refused(tuple)? {
            let mut row = self.row(tuple, tuple.block)?;
            row.status = Status::Skipped(why);
            return Ok(vec![(row, Vec::new())]);
        }
        self.lay_out(tuple)?;
        self.run_alone(tuple, ranks)?;
        let beside = self.beside(tuple)?;
        // The first run finds everything cold.
        let mut last = self.run(tuple, false, ranks)?;
        let (mut times, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..self.args.repeats {
            if let Some(beside) = &beside {
                theirs.push(self.run(beside, false, ranks)?.each_us);
            }
            last = self.run(tuple, false, ranks)?;
            times.push(last.each_us);
        }
        let wrong = if self.args.no_check { None } else { Some(self.wrong(tuple, &last)?) };
        let mut without = Vec::new();
        if tuple.norm == Norm::Block {
            for _ in 0..RUNS_WITHOUT.min(self.args.repeats) {
                let tuple = Tuple { norm: Norm::Never, when: When::Delayed, ..*tuple };
                without.push(self.run(&tuple, false, ranks)?.each_us);
            }
        }
        let trace = self.trace(tuple, ranks)?;
        let alone = self.alone.as_ref().map(|alone| alone.times.clone()).unwrap_or_default();
        let told = Told { times, alone, without, theirs, wrong, trace };
        let Some(all) = ranks.gather_values(&told, "results of a row")? else { return Ok(Rows::new()) };
        let times = slowest(&all, |told| &told.times);
        let alone = slowest(&all, |told| &told.alone);
        let without = slowest(&all, |told| &told.without);
        let grid = self.grid(tuple)?;
        let mut row = self.row(tuple, grid.1)?;
        row.grid = Some(grid.0);
        row.times(&times).verified(all.iter().filter_map(|told| told.wrong).reduce(|a, b| a + b));
        let largest = |index: usize| all.iter().filter_map(|told| told.trace[index]).reduce(f64::max);
        if let Some(beside) = &beside {
            row.against(&self.row(beside, beside.block)?, &times, &slowest(&all, |told| &told.theirs));
        }
        row.set(&columns::KERNEL, largest(0)).set(&columns::WAIT, largest(1)).set(&columns::SEND, largest(2));
        let median = |times: &[f64]| Summary::of(times).map(|summary| summary.p50);
        if let (Some(time), Some(alone)) = (median(&times), median(&alone)) {
            columns::scaling(&mut row, tuple, time, alone);
            row.set(&columns::NORM_TIME, median(&without).map(|without| time - without));
            row.set(&columns::NORM_VALUE, last.norm);
        }
        Ok(vec![(row, times)])
    }

    /// What a row is compared with, in turns: NCCL in graphs, where that is measured too.
    fn beside(&self, tuple: &Tuple) -> Result<Option<Tuple>, Failure> {
        let graph = Exchange::NcclGraph;
        let asked = self.args.exchange.is_empty() || self.args.exchange.contains(&graph);
        if tuple.exchange == graph || !asked || !matches!(self.nccl, Some(Ok(_))) {
            return Ok(None);
        }
        let block = if tuple.block == 0 { self.args.block[0] } else { tuple.block };
        let beside = Tuple { exchange: graph, sync: SyncBy::Neighbours, block, ..*tuple };
        Ok(self.refused(&beside)?.is_none().then_some(beside))
    }

    /// Blocks and threads of a tuple's grid.
    fn grid(&self, tuple: &Tuple) -> Result<(u32, u32), Failure> {
        let world = &self.session()?.world;
        if let (Exchange::Resident, Some(words)) = (tuple.exchange, &self.words) {
            return Ok((words.resident.grid, words.resident.block));
        }
        let rows = tuple.problem().rows(0, world.n_pes()).len() as u32;
        Ok((fit::launched(tuple, self.args.strip, rows).1, tuple.block))
    }

    /// The tuple as it is run on one device: the launched kernel, whatever the exchange.
    fn of_one(&self, tuple: &Tuple) -> Tuple {
        let block = if tuple.block == 0 { self.args.block[0] } else { tuple.block };
        let when = if tuple.exchange == Exchange::Resident { When::Delayed } else { tuple.when };
        Tuple { exchange: Exchange::Row, sync: SyncBy::Neighbours, block, when, ..*tuple }
    }

    /// The whole field on this rank's device, unless that has been run: time and field to hold the parts against.
    fn run_alone(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let tuple = self.of_one(tuple);
        if self.alone.as_ref().is_some_and(|alone| alone.tuple == tuple) {
            return Ok(());
        }
        // The first run finds everything cold here, too.
        let mut ran = self.run_part(&tuple, true, false, ranks)?;
        let mut times = Vec::new();
        for _ in 0..self.args.repeats.min(MOST_ALONE) {
            ran = self.run_part(&tuple, true, false, ranks)?;
            times.push(ran.each_us);
        }
        let mut alone = Alone { tuple, times, ran, wrong: None };
        let points = u64::from(tuple.nx) * u64::from(tuple.ny) * u64::from(tuple.iterations);
        if !self.args.no_check && points <= PLAIN_POINTS {
            let problem = tuple.problem();
            let (expected, sum) = problem.plain(tuple.iterations);
            let found = self.read(&self.fields()?.whole[alone.ran.last], 0, problem.ny)?;
            let norm_is_off = tuple.norm == Norm::Block && alone.ran.norm.is_some_and(|norm| far(norm, sum.sqrt()));
            alone.wrong = Some(problem.wrong(&found, &expected) + u64::from(norm_is_off));
        }
        self.alone = Some(alone);
        Ok(())
    }

    fn row(&self, tuple: &Tuple, block: u32) -> Result<Row, Failure> {
        let session = self.session()?;
        let world = &session.world;
        let towards = session.neighbours()[1];
        let by_nccl = tuple.exchange.by_nccl();
        let path = if by_nccl { "nccl" } else { world.path_to(towards) };
        let mut row = Row::new("jacobi", tuple.case(), world.device().name(), path);
        row.ranks = world.n_pes();
        row.memory = Some(world.memory().into());
        mps::mark(&mut row, world.sharing());
        row.block = Some(block);
        row.iterations = Some(u64::from(tuple.iterations));
        if !by_nccl && !world.is_mapped(towards) {
            self.args.world.name_rails(&mut row);
        }
        columns::chosen(&mut row, tuple, &name(tuple.norm), &name(tuple.sync));
        Ok(row)
    }
}
