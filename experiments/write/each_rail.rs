//! `--each-rail`: writes over each rail separately, then over all rails concurrently, in both directions of each pair
//! of ranks. Every rail has its own time, so that a slow card is visible on its own row.

use super::measure::{Round, Write};
use super::{DOMAIN, GPU, MEDIAN_PCT, PCI, PEER, RAIL, RANK, Tuple};
use crate::columns::{SLOT_BYTES, WINDOW};
use crate::error::Failure;
use crate::nodes::NODE;
use crate::rail_rates::{RailRate, Way};
use crate::runner::{Rows, timed};
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::any::AnyRail;
use ginlab::flow::Operation;
use ginlab::measure::pattern;
use ginlab::measure::stats::Summary;
use ginlab::report::Row;
use ginlab::signals;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

/// Results of one rank in one direction. Times are in microseconds per write, by rail and repeat.
#[derive(Clone, Default, serde::Serialize, serde::Deserialize)]
struct Part {
    /// Rank that this rank wrote to. `None` if it did not write in this direction.
    to: Option<usize>,
    alone: Vec<Vec<f64>>,
    together: Vec<Vec<f64>>,
    /// Number of wrong bytes received, by rail. Empty if nothing was verified.
    wrong: Vec<u64>,
}

/// Writes of one rail.
struct Stream {
    rail: usize,
    posted: u64,
    flight: VecDeque<Operation<AnyRail>>,
    /// Microseconds until the last write was complete.
    elapsed: Option<f64>,
}

impl Write {
    /// Measures a tuple and returns its rows, which are complete on rank 0.
    pub async fn each_rail(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let rank = ranks.rank();
        let (target, source) = (self.pairing.target(rank), self.pairing.source(rank));
        // One direction after the other, because a card can be slow in only one of them.
        let mine =
            [self.direction(tuple, target, source, ranks).await?, self.direction(tuple, source, target, ranks).await?];
        let Some(all) = ranks.gather_values(&mine, "results of each rail")? else { return Ok(Rows::new()) };
        let mut rows = Rows::new();
        let mut rates = Vec::new();
        for direction in 0..2 {
            for (rank, parts) in all.iter().enumerate() {
                let part = &parts[direction];
                let Some(to) = part.to else { continue };
                for rail in 0..tuple.rails {
                    let wrong = all[to][direction].wrong.get(rail).copied();
                    for (way, times) in [(Way::Alone, &part.alone[rail]), (Way::Together, &part.together[rail])] {
                        let rate = self.rail_rate(tuple, (rank, to, rail), way, times);
                        rows.push((self.rail_row(tuple, &rate, times, wrong), times.clone()));
                        rates.push(rate);
                    }
                }
            }
        }
        for ((row, _), pct) in rows.iter_mut().zip(RailRate::of_median_pct(&rates)) {
            row.set(&MEDIAN_PCT, pct);
        }
        self.rates.extend(rates);
        Ok(rows)
    }

    /// Measures one direction: this rank writes to `to` while `from` writes to this rank.
    async fn direction(
        &mut self,
        tuple: &Tuple,
        to: Option<usize>,
        from: Option<usize>,
        ranks: &mut Bootstrap,
    ) -> Result<Part, Failure> {
        let target = to.map(|to| self.job.connections[to].target(0)).transpose()?;
        let round = Round::new(tuple, target.into_iter().collect(), u64::from(from.is_some()));
        let wrong = match self.args.repeat.no_check {
            true => Vec::new(),
            false => self.verify_rails(&round, from, ranks).await?,
        };
        let none = vec![Vec::new(); tuple.rails];
        let mut part = Part { to, alone: none.clone(), together: none, wrong };
        // With a single rail, both phases are the same.
        let mut phases: Vec<Range<usize>> = (0..tuple.rails).map(|rail| rail..rail + 1).collect();
        phases.extend((tuple.rails > 1).then_some(0..tuple.rails));
        // Repeat 0 is the warm-up. Phases are interleaved, so that drift affects all of them alike.
        for repeat in 0..=self.args.repeat.repeats {
            let count = if repeat == 0 { tuple.writes.min(tuple.window.into()) } else { tuple.writes };
            for rails in phases.iter().cloned() {
                let is_alone = rails.len() == 1;
                round.begin(ranks, "start of a repeat")?;
                let times = self.stream(&round, rails.clone(), count).await?;
                self.end(&round.targets, &round, ranks).await?;
                if repeat == 0 || round.targets.is_empty() {
                    continue;
                }
                for (rail, time) in rails.zip(times) {
                    let per_write = time / count as f64;
                    if is_alone {
                        part.alone[rail].push(per_write);
                    }
                    if !is_alone || tuple.rails == 1 {
                        part.together[rail].push(per_write);
                    }
                }
            }
        }
        Ok(part)
    }

    /// Writes `count` times over each of `rails` concurrently, with a window of writes in flight on each. Returns, per
    /// rail, the microseconds until its last write was complete. A slow rail does not delay the others.
    async fn stream(&self, round: &Round<'_>, rails: Range<usize>, count: u64) -> Result<Vec<f64>, Failure> {
        let [target] = &round.targets[..] else { return Ok(Vec::new()) };
        let (tuple, flow) = (round.tuple, &self.job.flow);
        let stream = |rail| Stream { rail, posted: 0, flight: VecDeque::new(), elapsed: None };
        let mut streams: Vec<Stream> = rails.map(stream).collect();
        let started = Instant::now();
        while streams.iter().any(|stream| stream.elapsed.is_none()) {
            for stream in streams.iter_mut().filter(|stream| stream.elapsed.is_none()) {
                while stream.flight.front().is_some_and(Operation::is_done) {
                    if let Some(oldest) = stream.flight.pop_front() {
                        oldest.await?;
                    }
                }
                let offset = stream.rail as u64 * tuple.stride();
                while stream.posted < count && stream.flight.len() < tuple.window as usize {
                    stream.flight.push_back(flow.write_on(
                        stream.rail,
                        &self.source,
                        offset,
                        target,
                        offset,
                        tuple.bytes,
                        None,
                    ));
                    stream.posted += 1;
                }
                if stream.flight.is_empty() {
                    stream.elapsed = Some(started.elapsed().as_secs_f64() * 1e6);
                }
            }
            if signals::interrupted() {
                return Err(Failure::Interrupted);
            }
            if self.is_late(round) {
                self.goes_on(round).await?;
            }
            // Lets the driver poll the rails and detect stalls.
            tokio::task::yield_now().await;
        }
        Ok(streams.into_iter().filter_map(|stream| stream.elapsed).collect())
    }

    /// Writes one buffer over each rail, over poison. Returns the number of wrong bytes that this rank received, by
    /// rail.
    async fn verify_rails(
        &mut self,
        round: &Round<'_>,
        from: Option<usize>,
        ranks: &mut Bootstrap,
    ) -> Result<Vec<u64>, Failure> {
        let (tuple, rank, iteration) = (round.tuple, ranks.rank(), self.iteration);
        self.iteration += 1;
        let mut payload = vec![0u8; tuple.bytes as usize];
        let seed = |rank: usize, rail: usize| pattern::seed(rank as u32, iteration, rail as u32);
        for rail in 0..tuple.rails {
            let offset = rail * tuple.stride() as usize;
            if !round.targets.is_empty() {
                pattern::fill(&mut payload, seed(rank, rail));
                self.source.buffer().write(offset, &payload)?;
            }
            if let Some(from) = from {
                pattern::poison(&mut payload, seed(from, rail));
                self.destination.buffer().write(offset, &payload)?;
            }
        }
        round.begin(ranks, "start of the verified pass")?;
        self.stream(round, 0..tuple.rails, 1).await?;
        self.end(&round.targets, round, ranks).await?;
        let Some(from) = from else { return Ok(Vec::new()) };
        let mut wrong = Vec::new();
        for rail in 0..tuple.rails {
            self.destination.buffer().read(rail * tuple.stride() as usize, &mut payload)?;
            wrong.push(pattern::check(&payload, seed(from, rail)) as u64);
        }
        Ok(wrong)
    }

    fn rail_rate(&self, tuple: &Tuple, (rank, to, rail): (usize, usize, usize), way: Way, times: &[f64]) -> RailRate {
        let gbits_s = Summary::of(times).map_or(0.0, |summary| tuple.bytes as f64 * 8.0 / 1000.0 / summary.p50);
        let peer = self.places[to].first().map(|place| place.host.clone()).unwrap_or_default();
        let place = self.places[rank].get(rail).cloned().unwrap_or_default();
        RailRate { rank, rail, place, peer, way, bytes: tuple.bytes, gbits_s }
    }

    fn rail_row(&self, tuple: &Tuple, rate: &RailRate, times: &[f64], wrong: Option<u64>) -> Row {
        let rails = if rate.way == Way::Alone { 1 } else { tuple.rails };
        let mut row = self.job.row("write", "rail", rails, &self.args.job);
        row.mode = Some(rate.way.to_string());
        row.size_bytes = Some(tuple.bytes);
        row.iterations = Some(tuple.writes);
        let place = &rate.place;
        row.set(&WINDOW, tuple.window).set(&SLOT_BYTES, tuple.stride());
        row.set(&NODE, place.host.as_str()).set(&PEER, rate.peer.as_str()).set(&RANK, rate.rank).set(&RAIL, rate.rail);
        row.set(&DOMAIN, place.domain.as_str()).set(&PCI, place.pci.clone()).set(&GPU, place.gpu.clone());
        timed(&mut row, times, tuple.bytes, 1);
        row.line_rate(place.line).verified(wrong);
        row
    }
}
