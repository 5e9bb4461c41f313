//! Measurement of one parameter combination: runs on one device and on all devices, the comparison of fields, and a
//! trace.

use super::args::{HaloExchange, JacobiConfig, Norm, SyncBy, When};
use super::check::far;
use super::rank::{Alone, How, Jacobi};
use super::{columns, fit};
use crate::agreed::Agreed;
use crate::error::Failure;
use crate::runner::{Rows, slowest};
use crate::series::{Bench, Sample};
use crate::values::name;
use ginlab::bootstrap::Bootstrap;
use ginlab::measure::stats::Summary;
use ginlab::report::{Row, RowStatus};

/// Maximum product of points and iterations of a field that is compared with a simple loop on the CPU. The loop then
/// takes less than a second.
const PLAIN_POINTS: u64 = 1 << 28;
/// Maximum number of runs on one device, which vary little because no other work disturbs them.
const MOST_ALONE: u32 = 5;
/// Part: norm of the last iteration.
const NORM: usize = 0;

impl Jacobi {
    pub async fn measure(&mut self, tuple: &JacobiConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        self.reach(tuple, ranks)?;
        let agreed = Agreed::of(&self.session()?.world, self.session()?.neighbours(), ranks)?;
        self.register(tuple, ranks)?;
        if let Some(why) = self.refused_by_any(tuple, ranks)? {
            let mut row = self.row(tuple, tuple.block, &agreed)?;
            row.status = RowStatus::Skipped(why);
            return Ok(vec![(row, Vec::new())]);
        }
        self.lay_out(tuple)?;
        self.run_alone(tuple, ranks)?;
        let beside = self.beside(tuple, ranks)?;
        // Determines the time of the norm.
        let without = JacobiConfig { norm: Norm::Never, when: When::Delayed, ..*tuple };
        let without = (tuple.norm == Norm::Block).then_some(without);
        let cases: Vec<JacobiConfig> = [Some(*tuple), beside, without].into_iter().flatten().collect();
        let results = self.args.repeat.series("a run").measure(self, &cases, ranks).await?;
        let alone = self.alone.as_ref().map(|alone| alone.times.clone()).unwrap_or_default();
        let told = (self.trace(tuple, ranks)?, alone);
        let told = ranks.gather_values(&told, "results of a row")?;
        let (Some(results), Some(told)) = (results, told) else { return Ok(Rows::new()) };
        let (measured, alone) = (results.of(*tuple), slowest(&told, |(_, alone)| alone));
        let times = measured.times();
        let grid = self.grid(tuple)?;
        let mut row = self.row(tuple, grid.1, &agreed)?;
        row.grid = Some(grid.0);
        row.times(&times).verified(measured.wrong());
        let largest = |index: usize| told.iter().filter_map(|(trace, _)| trace[index]).reduce(f64::max);
        if let Some(beside) = &beside {
            row.against(&self.row(beside, beside.block, &agreed)?, &times, &results.of(*beside).times());
        }
        row.set(&columns::KERNEL, largest(0)).set(&columns::WAIT, largest(1)).set(&columns::SEND, largest(2));
        let median = |times: &[f64]| Summary::of(times).map(|summary| summary.p50);
        if let (Some(time), Some(alone)) = (median(&times), median(&alone)) {
            columns::scaling(&mut row, tuple, time, alone);
            let without = without.and_then(|without| median(&results.of(without).times()));
            row.set(&columns::NORM_TIME, without.map(|without| time - without));
            row.set(&columns::NORM_VALUE, measured.of_rank_0(NORM).last().copied());
        }
        Ok(vec![(row, times)])
    }

    /// Returns the interleaved parameter combination with which a row is compared: NCCL in graphs, if that is also
    /// measured.
    fn beside(&self, tuple: &JacobiConfig, ranks: &mut Bootstrap) -> Result<Option<JacobiConfig>, Failure> {
        let graph = HaloExchange::NcclGraph;
        let asked = self.args.exchange.is_empty() || self.args.exchange.contains(&graph);
        if tuple.exchange == graph || !asked || !matches!(self.nccl, Some(Ok(_))) {
            return Ok(None);
        }
        let block = if tuple.block == 0 { self.args.block[0] } else { tuple.block };
        let beside = JacobiConfig { exchange: graph, sync: SyncBy::Neighbours, block, ..*tuple };
        Ok(self.refused_by_any(&beside, ranks)?.is_none().then_some(beside))
    }

    /// Returns the reason why a parameter combination cannot be measured on some rank, so that either all ranks skip it
    /// or none. `None` if all can measure it.
    fn refused_by_any(&self, tuple: &JacobiConfig, ranks: &mut Bootstrap) -> Result<Option<String>, Failure> {
        let all = ranks.all_gather_values(&self.refused(tuple)?, "list of ranks that cannot run a row")?;
        Ok(all.into_iter().flatten().next())
    }

    /// Returns the numbers of blocks and threads of a parameter combination's grid.
    fn grid(&self, tuple: &JacobiConfig) -> Result<(u32, u32), Failure> {
        let world = &self.session()?.world;
        if let (HaloExchange::Resident, Some(words)) = (tuple.exchange, &self.words) {
            return Ok((words.resident.grid, words.resident.block));
        }
        let rows = tuple.problem().rows(0, world.n_pes()).len() as u32;
        Ok((fit::launched(tuple, self.args.strip, rows).1, tuple.block))
    }

    /// Returns the parameter combination for the run on one device, which always uses the launched kernel.
    fn of_one(&self, tuple: &JacobiConfig) -> JacobiConfig {
        let block = if tuple.block == 0 { self.args.block[0] } else { tuple.block };
        let when = if tuple.exchange == HaloExchange::Resident { When::Delayed } else { tuple.when };
        JacobiConfig { exchange: HaloExchange::Row, sync: SyncBy::Neighbours, block, when, ..*tuple }
    }

    /// Runs the whole field on this rank's device, unless that has already been done. Stores the times and the field
    /// for comparisons.
    fn run_alone(&mut self, tuple: &JacobiConfig, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let tuple = self.of_one(tuple);
        if self.alone.as_ref().is_some_and(|alone| alone.tuple == tuple) {
            return Ok(());
        }
        // The first run is a warm-up.
        let mut ran = self.run_part(&tuple, How { alone: true, ..How::default() }, ranks)?;
        let mut times = Vec::new();
        for _ in 0..self.args.repeat.repeats.min(MOST_ALONE) {
            ran = self.run_part(&tuple, How { alone: true, ..How::default() }, ranks)?;
            times.push(ran.each_us);
        }
        let mut alone = Alone { tuple, times, ran, wrong: None };
        let points = u64::from(tuple.nx) * u64::from(tuple.ny) * u64::from(tuple.iterations);
        if !self.args.repeat.no_check && points <= PLAIN_POINTS {
            let problem = tuple.problem();
            let (expected, sum) = problem.plain(tuple.iterations);
            let found = self.read(&self.fields()?.whole[alone.ran.last], 0, problem.ny)?;
            let norm_is_off = tuple.norm == Norm::Block && alone.ran.norm.is_some_and(|norm| far(norm, sum.sqrt()));
            alone.wrong = Some(problem.wrong(&found, &expected) + u64::from(norm_is_off));
        }
        self.alone = Some(alone);
        Ok(())
    }

    fn row(&self, tuple: &JacobiConfig, block: u32, agreed: &Agreed) -> Result<Row, Failure> {
        let by_nccl = tuple.exchange.by_nccl();
        let mut row = agreed.row("jacobi", tuple.case(), &self.session()?.world);
        if by_nccl {
            row.fabric = "nccl".into();
        }
        row.block = Some(block);
        row.iterations = Some(u64::from(tuple.iterations));
        if !by_nccl && agreed.by_rails {
            self.args.world.name_rails(&mut row);
        }
        columns::chosen(&mut row, tuple, &name(tuple.norm), &name(tuple.sync));
        Ok(row)
    }
}

/// A case is a parameter combination: that of the row, or one to which the row refers.
impl Bench for Jacobi {
    type Case = JacobiConfig;

    /// Verifies exchanged rows, and the field after all iterations.
    async fn verify(&mut self, tuple: JacobiConfig, ranks: &mut Bootstrap) -> Result<Option<u64>, Failure> {
        let exchanged = self.wrong_rows(&tuple, ranks)?;
        let ran = Jacobi::run(self, &tuple, false, ranks)?;
        let points = self.wrong(&tuple, &ran)? + exchanged.unwrap_or(0);
        Ok(Some(points * size_of::<f32>() as u64))
    }

    fn is_warm(&self, _: JacobiConfig) -> bool {
        true
    }

    async fn run(&mut self, tuple: JacobiConfig, _: u64, ranks: &mut Bootstrap) -> Result<Sample, Failure> {
        let ran = Jacobi::run(self, &tuple, false, ranks)?;
        Ok(Sample { times: vec![ran.each_us], parts: vec![ran.norm.into_iter().collect()] })
    }
}
