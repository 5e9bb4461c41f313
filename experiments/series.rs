//! Measurement loop of all experiments. It comprises verified passes, warm-up, and repeats in which the cases of a
//! parameter combination alternate. It also reads the counters of the timed runs and reduces the results of all ranks
//! to rows.
//!
//! The same rules apply to every case, baselines included:
//! - Each case is verified in a separate pass before any case is timed. Timed runs compare nothing.
//! - Each case is warmed up once, unless its verified pass is as long as a timed run.
//! - Each repeat runs every case once, so that drift of clocks and load affects all cases equally. All ranks start a
//!   run together.
//! - Counters cover only the timed runs of the case.
//! - The time of a repeat is that of its slowest rank. Counts and errors are sums over all ranks. Percentiles of single
//!   operations are those of rank 0.
//! - The ratio to a baseline is the median of the repeats' ratios.

use crate::columns::{AGAIN, RAIL_BYTES};
use crate::error::Failure;
use crate::nodes::RankContribution;
use crate::runner::{Rows, added, slowest, timed};
use ginlab::bootstrap::Bootstrap;
use ginlab::rails::Counters;
use ginlab::report::Row;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Default number of repeats.
const REPEATS: u32 = 10;
/// Minimum number of repeats, after which a long series ends.
const ENOUGH: u32 = 3;
/// Duration from which a series is long.
const LONG: Duration = Duration::from_secs(5);

/// Runs the cases of a parameter combination on this rank. All ranks call the functions in the same order.
pub trait Bench {
    /// Subject of one row, such as a mode of a kernel or a baseline.
    type Case: Copy + PartialEq;

    /// Fills the destination with a wrong pattern and runs a case. Returns the number of wrong bytes that this rank
    /// found. `None` if it compared nothing.
    async fn verify(&mut self, _: Self::Case, _: &mut Bootstrap) -> Result<Option<u64>, Failure> {
        Ok(None)
    }

    /// Returns whether the verified pass was as long as a timed run, so that the case is warm.
    fn is_warm(&self, _: Self::Case) -> bool {
        false
    }

    /// Prepares this rank for a run. No rank starts the run before all ranks have prepared.
    fn prepare(&mut self, _: Self::Case) -> Result<(), Failure> {
        Ok(())
    }

    /// Runs a case for this number of iterations. Returns an empty sample on a rank that measures nothing.
    async fn run(&mut self, case: Self::Case, iterations: u64, ranks: &mut Bootstrap) -> Result<Sample, Failure>;

    /// Returns the totals of this rank's rails so far.
    fn counters(&self) -> Result<Counters, Failure> {
        Ok(Counters::default())
    }
}

/// Times of one run on one rank, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Time per iteration of the run (one value), or the time of each iteration.
    pub times: Vec<f64>,
    /// Other times of the same run, indexed by a number that the experiment defines.
    pub parts: Vec<Vec<f64>>,
}

impl Sample {
    /// Creates the sample of a run with this time per iteration.
    pub fn of(time: f64) -> Sample {
        Sample { times: vec![time], parts: Vec::new() }
    }
}

/// Results of a case on one rank, over all repeats.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RankResult {
    pub sample: Sample,
    /// Number of errors of the verified pass. `None` if nothing was compared.
    pub wrong: Option<u64>,
    /// Number of posts of the timed runs that a full provider refused (EAGAIN).
    pub again: u64,
    /// Bytes posted in the timed runs, by rail.
    pub rail_bytes: Vec<u64>,
    /// Transfers posted in the timed runs, by rail.
    pub rail_transfers: Vec<u64>,
    /// Microseconds in which each rail had transfers in flight. Empty if the rails are not timed.
    pub rail_us: Vec<f64>,
}

impl RankResult {
    fn add(&mut self, sample: Sample, before: &Counters, after: &Counters) {
        let Sample { times, parts } = &mut self.sample;
        times.extend(sample.times);
        parts.resize(sample.parts.len().max(parts.len()), Vec::new());
        parts.iter_mut().zip(sample.parts).for_each(|(all, part)| all.extend(part));
        let difference =
            |of: fn(&Counters) -> &Vec<u64>| of(after).iter().zip(of(before)).map(|(a, b)| a - b).collect();
        self.again += after.again - before.again;
        self.rail_bytes = added([&self.rail_bytes, &difference(|counters| &counters.rail_bytes)]);
        self.rail_transfers = added([&self.rail_transfers, &difference(|counters| &counters.rail_transfers)]);
        self.rail_us.resize(after.rail_busy.len().max(self.rail_us.len()), 0.0);
        for (sum, (after, before)) in self.rail_us.iter_mut().zip(after.rail_busy.iter().zip(&before.rail_busy)) {
            *sum += after.saturating_sub(*before).as_secs_f64() * 1e6;
        }
    }

    /// Returns the times of one part.
    pub fn part(&self, index: usize) -> &[f64] {
        self.sample.parts.get(index).map_or(&[], Vec::as_slice)
    }
}

/// Results of a case, by rank.
#[derive(Clone, Debug, Default)]
pub struct CaseResults(pub Vec<RankResult>);

impl CaseResults {
    /// Returns the slowest rank's time of each repeat.
    pub fn times(&self) -> Vec<f64> {
        slowest(&self.0, |found| &found.sample.times)
    }

    /// Returns the slowest rank's times of one part.
    pub fn part(&self, index: usize) -> Vec<f64> {
        slowest(&self.0, |found| found.part(index))
    }

    /// Returns the times of one part on rank 0.
    pub fn of_rank_0(&self, index: usize) -> Vec<f64> {
        self.0.first().map_or(Vec::new(), |found| found.part(index).to_vec())
    }

    /// Returns the number of ranks that have times (the senders).
    pub fn senders(&self) -> u64 {
        self.0.iter().filter(|found| !found.sample.times.is_empty()).count() as u64
    }

    /// Returns the number of errors. `None` if no rank compared anything.
    pub fn wrong(&self) -> Option<u64> {
        self.0.iter().filter_map(|found| found.wrong).reduce(|sum, wrong| sum + wrong)
    }

    /// Sets times, bandwidth, rate and number of errors. An iteration moves `bytes` in `operations`.
    pub fn fill(&self, row: &mut Row, bytes: u64, operations: u64) {
        timed(row, &self.times(), bytes, operations);
        row.verified(self.wrong());
    }

    /// Sets the columns of the rails' counters for the first `rails` rails. Leaves the bytes per rail empty if no
    /// rank posted a transfer.
    pub fn count(&self, row: &mut Row, rails: usize) {
        let mut bytes = added(self.0.iter().map(|found| &found.rail_bytes));
        bytes.truncate(rails);
        row.set(&AGAIN, self.0.iter().map(|found| found.again).sum::<u64>());
        let has_posted = self.0.iter().flat_map(|found| &found.rail_transfers).any(|transfers| *transfers > 0);
        row.set(&RAIL_BYTES, has_posted.then_some(bytes));
    }

    /// Returns each rank's part of the sums per node (`--per-node`). An iteration of a rank moves `bytes` in
    /// `operations` over the first `rails` rails.
    pub fn by_sender(&self, bytes: u64, operations: u64, rails: usize) -> Vec<RankContribution> {
        let sender = |(rank, found): (usize, &RankResult)| RankContribution {
            rank,
            times: found.sample.times.clone(),
            bytes,
            operations,
            rail_bytes: found.rail_bytes.iter().take(rails).copied().collect(),
            rail_us: found.rail_us.iter().take(rails).copied().collect(),
        };
        self.0.iter().enumerate().map(sender).collect()
    }
}

/// Results of all cases of a parameter combination.
#[derive(Clone, Debug)]
pub struct Results<C>(Vec<(C, CaseResults)>);

impl<C: Copy + PartialEq> Results<C> {
    /// Returns the results of a case; empty if it was not measured.
    pub fn of(&self, case: C) -> &CaseResults {
        const NONE: &CaseResults = &CaseResults(Vec::new());
        self.0.iter().find(|(other, _)| *other == case).map_or(NONE, |(_, measured)| measured)
    }

    /// Returns the rows of the cases that have times. `row` creates one without its ratio to a baseline. `baselines`
    /// returns the cases that a case can be compared with, in order of preference.
    pub fn rows(&self, row: impl Fn(C, &CaseResults) -> Row, baselines: impl Fn(C) -> Vec<C>) -> Rows {
        let timed = self.0.iter().map(|(case, measured)| (*case, measured, measured.times()));
        let timed = timed.filter(|(.., times)| !times.is_empty());
        let rows: Vec<_> = timed.map(|(case, measured, times)| (case, (row(case, measured), times))).collect();
        let find = |case: C| rows.iter().find(|(other, _)| *other == case).map(|(_, row)| row);
        let compared = |(case, (row, times)): &(C, (Row, Vec<f64>))| {
            let mut row = row.clone();
            if let Some((baseline, theirs)) = baselines(*case).into_iter().find_map(find) {
                row.against(baseline, times, theirs);
            }
            (row, times.clone())
        };
        rows.iter().map(compared).collect()
    }
}

/// Options of a measurement.
pub struct SeriesOptions<'a> {
    /// Number of repeats. `None` selects 10, but no further ones after 3 if the series has taken more than 5 s.
    pub repeats: Option<u32>,
    /// Whether the cases are verified.
    pub check: bool,
    /// Iterations of the warm-up, and of a timed run.
    pub warmup: u64,
    pub iterations: u64,
    /// Name of the step in messages about missing ranks.
    pub what: &'a str,
}

impl SeriesOptions<'_> {
    /// Measures `cases`, which must be equal on all ranks. Returns the results on rank 0, and `None` on other ranks.
    pub async fn measure<B: Bench>(
        &self,
        bench: &mut B,
        cases: &[B::Case],
        ranks: &mut Bootstrap,
    ) -> Result<Option<Results<B::Case>>, Failure> {
        let mut all = vec![RankResult::default(); cases.len()];
        if self.check {
            for (case, found) in cases.iter().zip(&mut all) {
                // A peer may still write to this rank's memory for the previous case.
                ranks.barrier(self.what)?;
                found.wrong = bench.verify(*case, ranks).await?;
            }
        }
        let started = Instant::now();
        // Repeat 0 is the warm-up.
        for repeat in 0..=self.repeats.unwrap_or(REPEATS) {
            if self.repeats.is_none() && repeat > ENOUGH && self.is_long(started, ranks)? {
                break;
            }
            for (case, found) in cases.iter().zip(&mut all) {
                let iterations = if repeat == 0 { self.warmup } else { self.iterations };
                if iterations == 0 || repeat == 0 && self.check && bench.is_warm(*case) {
                    continue;
                }
                bench.prepare(*case)?;
                let before = bench.counters()?;
                ranks.barrier(self.what)?;
                let sample = bench.run(*case, iterations, ranks).await?;
                let after = bench.counters()?;
                if repeat > 0 {
                    found.add(sample, &before, &after);
                }
            }
        }
        // The next parameter combination uses the same memory.
        ranks.barrier(self.what)?;
        let Some(mut all) = ranks.gather_values(&all, self.what)? else { return Ok(None) };
        // Converts lists of cases by rank to lists of ranks by case.
        let of_case = |index: usize| all.iter_mut().map(|of_rank| std::mem::take(&mut of_rank[index])).collect();
        let measured: Vec<Vec<RankResult>> = (0..cases.len()).map(of_case).collect();
        Ok(Some(Results(cases.iter().copied().zip(measured.into_iter().map(CaseResults)).collect())))
    }

    /// Returns whether the repeats have taken longer than `LONG` on rank 0's clock, so that all ranks stop together.
    fn is_long(&self, started: Instant, ranks: &mut Bootstrap) -> Result<bool, Failure> {
        let long = ranks.all_gather_values(&(started.elapsed() > LONG), self.what)?;
        Ok(long.first().is_some_and(|long| *long))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::runner::in_event_loop;

    /// Test double that records the calls and posts one byte per iteration of a run.
    #[derive(Default)]
    struct Recorder {
        calls: Vec<(char, char, u64)>,
        posted: u64,
    }

    impl Bench for Recorder {
        type Case = char;

        async fn verify(&mut self, case: char, _: &mut Bootstrap) -> Result<Option<u64>, Failure> {
            self.calls.push(('v', case, 0));
            self.posted += 1000;
            Ok((case != 'n').then_some(0))
        }

        fn is_warm(&self, case: char) -> bool {
            case == 'w'
        }

        async fn run(&mut self, case: char, iterations: u64, _: &mut Bootstrap) -> Result<Sample, Failure> {
            self.calls.push(('r', case, iterations));
            self.posted += iterations;
            let time = self.calls.len() as f64;
            Ok(match case {
                'p' => Sample { times: Vec::new(), parts: vec![vec![], vec![time, time]] },
                _ => Sample::of(time),
            })
        }

        fn counters(&self) -> Result<Counters, Failure> {
            Ok(Counters { rail_bytes: vec![self.posted, 0], rail_transfers: vec![self.posted], ..Counters::default() })
        }
    }

    fn recorded(check: bool) -> (Recorder, Results<char>) {
        let (mut bench, mut results) = (Recorder::default(), None);
        let series = SeriesOptions { repeats: Some(2), check, warmup: 3, iterations: 10, what: "a test" };
        in_event_loop(async {
            let mut ranks = Bootstrap::alone()?;
            results = series.measure(&mut bench, &['n', 'w', 'p'], &mut ranks).await?;
            Ok(())
        })
        .unwrap();
        (bench, results.unwrap())
    }

    #[test]
    fn cases_are_verified_then_warmed_then_alternate() {
        let (bench, results) = recorded(true);
        let [verify, warm, run] = [('v', 0), ('r', 3), ('r', 10)].map(|(call, n)| move |case| (call, case, n));
        let repeat = ['n', 'w', 'p'].map(run);
        let calls = [&['n', 'w', 'p'].map(verify)[..], &['n', 'p'].map(warm), &repeat, &repeat].concat();
        assert_eq!(bench.calls, calls);
        let row = |case, measured: &CaseResults| {
            let mut row = Row::new("series", case, "cpu", "none");
            measured.fill(&mut row, 1, 1);
            measured.count(&mut row, 2);
            row
        };
        let rows = results.rows(row, |case| if case == 'w' { vec!['x', 'n'] } else { Vec::new() });
        // The case without times has no row, and the baseline that was not measured is skipped.
        let text = |row: &Row| (row.case.clone(), row.wrong_bytes, row.baseline.clone(), row.repeats);
        assert_eq!(text(&rows[0].0), ("n".into(), None, None, Some(2)));
        assert_eq!(text(&rows[1].0), ("w".into(), Some(0), Some("n".into()), Some(2)));
        assert_eq!((rows.len(), &rows[0].1[..], &rows[1].1[..]), (2, &[6.0, 9.0][..], &[7.0, 10.0][..]));
        // The counters exclude verification and warm-up.
        assert_eq!(rows[0].0.own("rail_bytes").list(), Some(vec![20, 0]));
        assert_eq!(results.of('p').of_rank_0(1), [8.0, 8.0, 11.0, 11.0]);
        assert_eq!((results.of('p').senders(), results.of('x').0.len()), (0, 0));
    }

    #[test]
    fn cases_that_are_not_verified_are_warmed() {
        let (bench, _) = recorded(false);
        let calls: Vec<_> = bench.calls.iter().take(4).copied().collect();
        assert_eq!(calls, [('r', 'n', 3), ('r', 'w', 3), ('r', 'p', 3), ('r', 'n', 10)]);
    }

    #[test]
    fn slowest_rank_and_sum_of_counts_are_reported() {
        let rank = |times: &[f64], wrong, again| RankResult {
            sample: Sample { times: times.to_vec(), parts: Vec::new() },
            wrong,
            again,
            rail_bytes: vec![8, again],
            rail_transfers: vec![1],
            ..RankResult::default()
        };
        let measured =
            CaseResults(vec![rank(&[1.0, 4.0], None, 1), rank(&[], Some(3), 2), rank(&[2.0, 3.0], Some(4), 3)]);
        let mut row = Row::new("series", "write", "cpu", "none");
        measured.fill(&mut row, 7000, 2);
        measured.count(&mut row, 1);
        assert_eq!((measured.times(), measured.senders()), (vec![2.0, 4.0], 2));
        assert_eq!((row.time_us_p50, row.rate_mops, row.wrong_bytes), (Some(3.0), Some(2.0 / 3.0), Some(7)));
        assert_eq!((row.status.to_string(), row.own("eagain").number()), ("failed: wrong bytes".into(), Some(6.0)));
        assert_eq!(row.own("rail_bytes").list(), Some(vec![24]));
        CaseResults(vec![RankResult { rail_bytes: vec![0], ..RankResult::default() }]).count(&mut row, 1);
        assert_eq!(row.own("rail_bytes").list(), None);
        let senders = measured.by_sender(7, 1, 1);
        assert_eq!((senders.len(), senders[2].rank, &senders[2].rail_bytes[..]), (3, 2, &[8][..]));
    }
}
