//! `--each-rail`: writes over each rail separately, then over all rails concurrently, in both directions of each pair
//! of ranks. Every rail has its own time, so that a slow card is visible on its own row.

use super::measure::{Round, WritingRank};
use super::{DOMAIN, GPU, MEDIAN_PCT, PCI, PEER, RAIL, RANK, WriteConfig};
use crate::columns::{SLOT_BYTES, WINDOW};
use crate::error::Failure;
use crate::nodes::{NODE, RankContribution};
use crate::payload::PayloadSlots;
use crate::rail_rates::{RailRate, RailUsage};
use crate::runner::{Rows, timed};
use crate::series::{Bench, Results, Sample, SeriesOptions};
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

/// Rails that are in use at the same time: the first one and their number.
type Rails = (usize, usize);

/// Writes of one rail.
struct Stream {
    rail: usize,
    posted: u64,
    flight: VecDeque<Operation<AnyRail>>,
    /// Microseconds until the last write was complete.
    elapsed: Option<f64>,
}

impl WritingRank {
    /// Measures a parameter combination. Returns its rows on rank 0, and no rows on other ranks.
    pub async fn each_rail(&mut self, tuple: &WriteConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        // One direction after the other, because a card can be slow in only one of them.
        let (mut rows, mut rates) = (Rows::new(), Vec::new());
        for forth in [true, false] {
            let pairing = self.pairing.clone();
            let to = |rank: usize| if forth { pairing.target(rank) } else { pairing.source(rank) };
            let from = |rank: usize| if forth { pairing.source(rank) } else { pairing.target(rank) };
            let (to_mine, from_mine) = (to(ranks.rank()), from(ranks.rank()));
            let Some(results) = self.direction(tuple, to_mine, from_mine, ranks).await? else { continue };
            for (rank, to) in (0..ranks.size()).filter_map(|rank| Some((rank, to(rank)?))) {
                for rail in 0..tuple.rails {
                    let alone = results.of((rail, 1));
                    // With a single rail, both ways are the same.
                    let together = if tuple.rails == 1 { alone } else { results.of((0, tuple.rails)) };
                    for (way, measured) in [(RailUsage::Alone, alone), (RailUsage::Together, together)] {
                        let times = measured.0[rank].part(rail);
                        let rate = self.rail_rate(tuple, (rank, to, rail), way, times);
                        rows.push((self.rail_row(tuple, &rate, times, alone.0[to].wrong), times.to_vec()));
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
        tuple: &WriteConfig,
        to: Option<usize>,
        from: Option<usize>,
        ranks: &mut Bootstrap,
    ) -> Result<Option<Results<Rails>>, Failure> {
        let target = to.map(|to| self.job.connections[to].target(0)).transpose()?;
        let round = Round::new(tuple, target.into_iter().collect(), u64::from(from.is_some()));
        let mut cases: Vec<Rails> = (0..tuple.rails).map(|rail| (rail, 1)).collect();
        cases.extend((tuple.rails > 1).then_some((0, tuple.rails)));
        let (warmup, iterations) = (tuple.writes.min(tuple.window.into()), tuple.writes);
        let series = SeriesOptions { warmup, iterations, ..self.args.repeat.series("a repeat of writes over rails") };
        series.measure(&mut Streams { write: self, round, from }, &cases, ranks).await
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

    /// Keeps the rates of the rails of this row, unless an earlier row over one rail, or over several, was faster.
    /// Small writes do not reach the line rate on any rail.
    pub(super) fn keep_rates(&mut self, tuple: &WriteConfig, senders: &[RankContribution]) {
        let (places, way, bytes) = (&self.places, RailUsage::of(tuple.rails), tuple.bytes);
        let of_sender = |sender: &RankContribution| {
            let rank = sender.rank;
            let to = tuple.targets.of(rank, &self.pairing).first().and_then(|to| places[*to].first());
            let peer = to.map(|place| place.host.clone()).unwrap_or_default();
            let rate = |(rail, gbits_s): (usize, Option<f64>)| {
                let place = places[rank].get(rail)?.clone();
                Some(RailRate { rank, rail, place, peer: peer.clone(), way, bytes, gbits_s: gbits_s? })
            };
            sender.rail_rates().into_iter().enumerate().filter_map(rate).collect::<Vec<_>>()
        };
        let new: Vec<RailRate> = senders.iter().flat_map(of_sender).collect();
        let sum = |rates: &[RailRate]| rates.iter().map(|rate| rate.gbits_s).sum::<f64>();
        let (same, others): (Vec<RailRate>, Vec<RailRate>) = self.rates.drain(..).partition(|rate| rate.way == way);
        self.rates = [others, if sum(&new) > sum(&same) { new } else { same }].concat();
    }

    fn rail_rate(
        &self,
        tuple: &WriteConfig,
        (rank, to, rail): (usize, usize, usize),
        way: RailUsage,
        times: &[f64],
    ) -> RailRate {
        let gbits_s = Summary::of(times).map_or(0.0, |summary| tuple.bytes as f64 * 8.0 / 1000.0 / summary.p50);
        let peer = self.places[to].first().map(|place| place.host.clone()).unwrap_or_default();
        let place = self.places[rank].get(rail).cloned().unwrap_or_default();
        RailRate { rank, rail, place, peer, way, bytes: tuple.bytes, gbits_s }
    }

    fn rail_row(&self, tuple: &WriteConfig, rate: &RailRate, times: &[f64], wrong: Option<u64>) -> Row {
        let rails = if rate.way == RailUsage::Alone { 1 } else { tuple.rails };
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

/// The writes of one direction.
struct Streams<'a> {
    write: &'a mut WritingRank,
    round: Round<'a>,
    /// Rank that writes to this rank.
    from: Option<usize>,
}

impl Bench for Streams<'_> {
    type Case = Rails;

    /// Writes one buffer over a rail, over poison. The row of all rails together uses the rails that were verified one
    /// by one.
    async fn verify(&mut self, (rail, count): Rails, ranks: &mut Bootstrap) -> Result<Option<u64>, Failure> {
        if count > 1 {
            return Ok(None);
        }
        let Streams { write, round, from } = self;
        let iteration = write.iteration;
        write.iteration += 1;
        let offset = rail as u64 * round.tuple.stride();
        let slot_of = |rank: usize| [(offset, pattern::seed(rank as u32, iteration, rail as u32))].into_iter();
        if !round.targets.is_empty() {
            PayloadSlots(write.source.buffer(), round.tuple.bytes).fill(slot_of(ranks.rank()))?;
        }
        let received = PayloadSlots(write.destination.buffer(), round.tuple.bytes);
        if let Some(from) = *from {
            received.poison(slot_of(from))?;
        }
        ranks.barrier("start of the verified pass")?;
        round.begin();
        write.stream(round, rail..rail + 1, 1).await?;
        write.end(&round.targets, round, ranks).await?;
        Ok(from.map(|from| received.wrong(slot_of(from))).transpose()?)
    }

    async fn run(&mut self, (first, rails): Rails, count: u64, ranks: &mut Bootstrap) -> Result<Sample, Failure> {
        let Streams { write, round, .. } = self;
        round.begin();
        let times = write.stream(round, first..first + rails, count).await?;
        write.end(&round.targets, round, ranks).await?;
        let each = times.into_iter().map(|time| vec![time / count as f64]);
        Ok(Sample { times: Vec::new(), parts: (0..first).map(|_| Vec::new()).chain(each).collect() })
    }
}
