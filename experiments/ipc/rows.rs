//! Conversion of all ranks' results to rows.

use super::cases::{BULK, CopyMechanism, CopyMethod, MissingCase};
use super::columns::{DIRECTION, KNEE, LAUNCH, ONE_WAY, OPERATION, PAIR, RECEIVED, STORE, WIDTH};
use super::plan::{GpuFlow, IpcConfig, IpcPlan, Scene};
use super::rank::IpcRank;
use crate::columns::POST;
use crate::mps;
use crate::runner::{Rows, slowest, timed};
use crate::series::Results;
use crate::values;
use ginlab::measure::stats::Summary;
use ginlab::report::{Row, RowStatus};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};

/// Factor of the best time within which a smaller grid is considered equally good.
const GOOD_ENOUGH: f64 = 1.02;

/// Results of one rank besides its times, each with the indices of case and flow.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct IpcResults {
    /// Microseconds between consecutive flags.
    pub received: Vec<(usize, usize, f64)>,
    /// Wrong bytes.
    pub wrong: Vec<(usize, usize, u64)>,
}

/// Results of a parameter combination.
pub struct IpcMeasurement {
    pub cases: Vec<CopyMethod>,
    pub results: Results<usize>,
    /// Other results, by rank.
    pub outcomes: Vec<IpcResults>,
    pub iterations: u64,
}

/// Creates rows, and stores the times with which later rows are compared.
pub struct Writer<'a> {
    pub scene: &'a Scene,
    pub tuple: IpcConfig,
    pub plan: &'a IpcPlan,
    pub rank: &'a IpcRank,
    /// Median times of flows that run alone, in one direction.
    pub alone: &'a mut HashMap<String, f64>,
}

impl Writer<'_> {
    fn blank(&self, name: &str, pair: String, flow: GpuFlow) -> Row {
        let fabric = match (self.plan.emulated, self.rank.link(flow)) {
            (true, _) => "shm",
            (false, Some(link)) => link.fabric(),
            (false, None) => "peer",
        };
        let mut row = Row::new("ipc", name, self.rank.device.name(), fabric);
        row.ranks = self.plan.ranks as u32;
        row.memory = Some("device".into());
        row.set(&PAIR, pair).set(&DIRECTION, self.scene.direction);
        mps::mark(&mut row, &self.rank.sharing);
        row
    }

    /// Returns the row of a scene with a pair whose ranks cannot access each other.
    pub fn unreachable(&self, flow: GpuFlow, why: &str) -> (Row, Vec<f64>) {
        let operation = self.tuple.operation.name();
        let mut row = self.blank(operation, self.scene.pair(), flow);
        row.set(&OPERATION, operation);
        row.status = RowStatus::Skipped(format!("rank {} and rank {}: {why}", flow.from, flow.to));
        (row, Vec::new())
    }

    /// Returns the row of a case that the device does not support.
    pub fn missing(&self, (name, why): MissingCase) -> (Row, Vec<f64>) {
        let mut row = self.blank(name, self.scene.pair(), self.scene.flows[0]);
        fill_variables(&mut row, &self.tuple, Some(BULK.0), Some(BULK.1), true);
        row.status = RowStatus::Skipped(why);
        (row, Vec::new())
    }

    /// Returns the rows of a parameter combination: one for all flows together if there are several, and one per flow.
    pub fn rows(&mut self, measured: &IpcMeasurement) -> Rows {
        let mut rows = Rows::new();
        let flows = self.scene.flows.len();
        let together = (flows > 1).then_some(None);
        for view in together.into_iter().chain((0..flows).map(Some)) {
            let first = rows.len();
            rows.extend((0..measured.cases.len()).map(|number| self.row(measured, number, view)));
            for (number, case) in measured.cases.iter().enumerate() {
                let Some((name, width)) = case.baseline else { continue };
                let named = |other: &CopyMethod| other.name == name && (width.is_none() || other.width == width);
                if let Some(found) = measured.cases.iter().position(named) {
                    let (baseline, theirs) = rows[first + found].clone();
                    let (row, ours) = &mut rows[first + number];
                    row.against(&baseline, ours, &theirs);
                }
            }
        }
        rows
    }

    fn row(&mut self, measured: &IpcMeasurement, number: usize, view: Option<usize>) -> (Row, Vec<f64>) {
        let (scene, tuple) = (self.scene, self.tuple);
        let (case, outcomes) = (&measured.cases[number], &measured.outcomes);
        let flows: Vec<usize> = view.map_or((0..scene.flows.len()).collect(), |flow| vec![flow]);
        let pair = view.map_or_else(|| scene.pair(), |flow| scene.flows[flow].to_string());
        let mut row = self.blank(case.name, pair, scene.flows[flows[0]]);
        fill_variables(&mut row, &tuple, case.width, case.store, !matches!(case.by, CopyMechanism::CopyEngine));
        row.iterations = Some(measured.iterations);
        // Flows that run together have finished when the last one has.
        let results = measured.results.of(number);
        let parts: Vec<_> = flows.iter().map(|flow| [0, 1].map(|part| results.part(2 * flow + part))).collect();
        let (samples, posted) = (slowest(&parts, |[times, _]| times), slowest(&parts, |[_, posts]| posts));
        timed(&mut row, &samples, tuple.bytes * flows.len() as u64, flows.len() as u64);
        row.set(&POST, Summary::of(&posted).map(|summary| summary.p50));
        // Flows from one rank to several ranks share that rank's links.
        let senders: BTreeSet<usize> = flows.iter().map(|flow| scene.flows[*flow].from).collect();
        let rate = self.rank.link(scene.flows[flows[0]]).and_then(|link| link.bits_per_second);
        row.line_rate(rate.map(|rate| rate * senders.len() as u64));
        let counts = |case: usize, flow: &usize| case == number && flows.contains(flow);
        let received = outcomes.iter().flat_map(|outcome| &outcome.received).filter(|one| counts(one.0, &one.1));
        // The slowest of several flows, as for the times.
        row.set(&RECEIVED, received.map(|one| one.2).reduce(f64::max));
        let wrong = outcomes.iter().flat_map(|outcome| &outcome.wrong).filter(|one| counts(one.0, &one.1));
        let wrong: Vec<u64> = wrong.map(|one| one.2).collect();
        row.verified((wrong.len() == flows.len()).then(|| wrong.iter().sum()));
        self.hold_against_one_way(&mut row, view);
        (row, samples)
    }

    fn hold_against_one_way(&mut self, row: &mut Row, view: Option<usize>) {
        let own = [OPERATION, PAIR, WIDTH, LAUNCH].map(|column| row.own(column.name).clone());
        let variables = (&row.case, own, row.size_bytes);
        let key = format!("{variables:?} {:?}", (row.grid, row.block));
        match (self.scene.flows.len(), row.time_us_p50, view) {
            (1, Some(time), _) => {
                self.alone.insert(key, time);
            }
            (_, Some(time), Some(_)) if time > 0.0 => {
                row.set(&ONE_WAY, self.alone.get(&key).map(|alone| alone / time));
            }
            _ => {}
        }
    }
}

fn fill_variables(row: &mut Row, tuple: &IpcConfig, width: Option<u32>, store: Option<&str>, is_kernel: bool) {
    row.size_bytes = Some(tuple.bytes);
    row.set(&OPERATION, tuple.operation.name()).set(&LAUNCH, values::name(tuple.launch));
    row.set(&WIDTH, width).set(&STORE, store);
    if is_kernel {
        row.grid = Some(tuple.grid);
        row.block = Some(tuple.block);
    }
}

/// Marks the smallest grid within 2 % of the best time, for each case.
pub fn mark_knees(rows: &mut Rows) {
    let key = |row: &Row| format!("{} {:?} {:?}", row.case, row.own(PAIR.name), row.own(WIDTH.name));
    let point = |(row, _): &(Row, _)| Some((key(row), row.grid?, row.time_us_p50?));
    let points: Vec<(String, u32, f64)> = rows.iter().filter_map(point).collect();
    for (row, _) in rows.iter_mut() {
        let own = key(row);
        let sweep = || points.iter().filter(|(key, ..)| *key == own);
        let best = sweep().map(|(.., time)| *time).fold(f64::INFINITY, f64::min);
        let good = sweep().filter(|(.., time)| *time <= best * GOOD_ENOUGH);
        let knee = good.map(|(_, grid, _)| *grid).min();
        row.set(&KNEE, knee.zip(row.grid).map(|(knee, grid)| grid == knee));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ginlab::report::Value;

    #[test]
    fn knee_is_smallest_grid_near_best() {
        let row = |grid: Option<u32>, time: f64| {
            let mut row = Row::new("ipc", "write", "d", "f");
            (row.grid, row.time_us_p50) = (grid, Some(time));
            (row, vec![])
        };
        let mut rows =
            vec![row(Some(1), 8.0), row(Some(4), 2.03), row(Some(8), 2.0), row(Some(16), 2.5), row(None, 1.0)];
        mark_knees(&mut rows);
        let marks: Vec<Value> = rows.iter().map(|(row, _)| row.own("knee").clone()).collect();
        assert_eq!(marks, [Some(false), Some(true), Some(false), Some(false), None].map(Value::from));
    }
}
