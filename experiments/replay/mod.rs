//! `ginlab replay`: simulates the puts of a recorded trace over modelled NICs, in virtual time.

mod run;
mod trace;

use crate::columns::RAIL_BYTES;
use crate::error::Failure;
use crate::model::Cards;
use crate::program::CommandSpec;
use crate::runner::{Experiment, Plan, Rows, program};
use crate::values::{List, counts, list, name, usage};
use ginlab::bootstrap::Bootstrap;
use ginlab::rails::strategy::Strategy;
use ginlab::report::{About, Column, Header, Plot, Row, RowStatus};
use itertools::iproduct;
use std::path::PathBuf;
use trace::{Depends, ReplayTrace};

pub const PROGRAMS: &[CommandSpec] = &[program::<Replay>()];

const EXAMPLES: &str = "\
Examples:
  ginlab nccl --np 2 --trace puts.jsonl -- ./gin          record a trace
  ginlab replay puts.jsonl -p model:p5en --rails 4        replay it over four modelled p5en cards per rank
  ginlab replay puts.jsonl -p model:p5,model:p5en --rails 1,2,4 --strategy split,round-robin --csv -   sweep cards and rails

Time is virtual: no rank is started, no byte is moved, and every run gives the same result. The arrivals that a put waited for are inferred:
`arrived` assumes all preceding arrivals, `paused` those during a pause of its context. The actual time is between the two rows.
See experiments/replay/README.md.";

/// Options of `ginlab replay`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ReplayArgs {
    /// Trace written by `ginlab nccl --trace FILE.jsonl`
    trace: PathBuf,
    /// Modelled cards: model:p4d, model:p5, model:p5en, model:p6-b200; a list to sweep
    #[arg(short = 'p', long, default_value = "model:p5", value_name = "LIST", value_parser = list::<String>)]
    provider: List<String>,
    /// Number of rails per rank; a list to sweep
    #[arg(long, default_value = "1", value_name = "LIST", value_parser = counts::<u8>(64))]
    rails: List<u8>,
    /// Distribution of puts over rails: single, split, round-robin, auto; a list to sweep
    #[arg(long, default_value = "round-robin", value_name = "LIST", value_parser = list::<Strategy>)]
    strategy: List<Strategy>,
    /// Arrivals that a put is assumed to have waited for; a list to sweep
    #[arg(long, value_enum, value_delimiter = ',', default_value = "paused,arrived")]
    depends: Vec<Depends>,
    /// Seed of the latencies
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
}

/// Parameters of one row.
pub struct ReplayConfig {
    provider: usize,
    rails: u8,
    strategy: Strategy,
    depends: Depends,
}

const DEPENDS: Column = Column::chosen(
    "depends",
    "",
    "Arrivals that a put is assumed to have waited for: `arrived`, all preceding ones; `paused`, those during a pause \
     of its context",
)
.shown("depends", 8);
const PUTS: Column = Column::follows("recorded_puts", "", "Number of puts and gets in the trace");
const BYTES: Column = Column::follows("bytes", "B", "Bytes of the puts and gets");
const RECORDED: Column = Column::measured(
    "recorded_us",
    "us",
    "Recorded time from the first put to the last arrival, over the rails of that run",
)
.shown("recorded", 10);
const GAPS: Column =
    Column::measured("computing_us", "us", "Critical path: recorded time between an arrival and the next put");
const POSTING: Column =
    Column::measured("posting_us", "us", "Critical path: a thread posts, or is busy with other puts");
const SENDING: Column = Column::measured("sending_us", "us", "Critical path: the sending card is busy with other puts");
const WIRE: Column = Column::measured("wire_us", "us", "Critical path: the wire carries the bytes");
const LATENCY: Column = Column::measured("latency_us", "us", "Critical path: latency of the network");
const RECEIVING: Column =
    Column::measured("receiving_us", "us", "Critical path: the receiving card is busy with other puts");
const BOUND: Column = Column::measured("bound", "", "Largest part of the critical path").shown("bound by", 20);
const BUSIEST: Column =
    Column::measured("busiest", "", "NIC that carries bytes for the longest time").shown("busiest card", 24);
const BUSY: Column =
    Column::measured("busiest_pct", "%", "Share of the time in which that card carries bytes").shown("busy %", 7);

/// Experiment that runs one simulation per row.
pub struct Replay {
    args: ReplayArgs,
    cards: Vec<Cards>,
    traces: Vec<(Depends, ReplayTrace)>,
}

impl Experiment for Replay {
    type Args = ReplayArgs;
    type Config = ReplayConfig;

    const ABOUT: About = About {
        columns: &[
            DEPENDS, PUTS, BYTES, RECORDED, GAPS, POSTING, SENDING, WIRE, LATENCY, RECEIVING, BOUND, BUSIEST, BUSY,
            RAIL_BYTES,
        ],
        without: &[
            "grid",
            "block",
            "mode",
            "memory",
            "size_bytes",
            "iterations",
            "bandwidth_gbytes_s",
            "rate_mops",
            "line_rate_pct",
            "baseline",
            "baseline_ratio",
            "wrong_bytes",
        ],
        headlines: &[],
        plots: &[Plot {
            name: "replay",
            title: "modelled: a recorded exchange over other cards, by the number of rails",
            x: &["rails"],
            y: "time_us_p50",
            y_label: Some("from the first put to the last arrival (us)"),
            range: None,
            ..Plot::TIME
        }],
        ..About::new("replay", "Replay recorded puts over modelled cards in virtual time")
    };

    fn plan(args: &mut ReplayArgs) -> Result<Plan<ReplayConfig>, Failure> {
        let tuples = iproduct!(0..args.provider.len(), &args.rails[..], &args.strategy[..], &args.depends)
            .map(|(provider, &rails, &strategy, &depends)| ReplayConfig { provider, rails, strategy, depends });
        Ok(Plan::alone(tuples.collect()))
    }

    async fn open(
        args: &ReplayArgs,
        _: &mut Vec<ReplayConfig>,
        _: &mut Bootstrap,
    ) -> Result<(Replay, Header), Failure> {
        let cards = args.provider.iter().map(|provider| Cards::named(provider)).collect::<Result<Vec<_>, _>>()?;
        let read = |depends: &Depends| ReplayTrace::read(&args.trace, *depends).map(|trace| (*depends, trace));
        let traces = args.depends.iter().map(read).collect::<Result<Vec<_>, _>>().map_err(|why| usage("TRACE", why))?;
        let mut header = cards[0].header("; each rank has its own cards and one posting thread");
        for more in &cards[1..] {
            header.note(more.note());
        }
        if let Some((_, trace)) = traces.first()
            && trace.lost > 0
        {
            header.note(format!("{} puts have no arrival in the trace: dependencies on them are unknown", trace.lost));
        }
        Ok((Replay { args: args.clone(), cards, traces }, header))
    }

    async fn tuple(&mut self, tuple: &ReplayConfig, _: &mut Bootstrap) -> Result<Rows, Failure> {
        let cards = &self.cards[tuple.provider];
        let Some((_, trace)) = self.traces.iter().find(|(depends, _)| *depends == tuple.depends) else {
            return Ok(Vec::new());
        };
        let rails = usize::from(tuple.rails);
        let outcome = run::run(trace, &cards.profile, rails, tuple.strategy, self.args.seed);
        let us = |time: u64| time as f64 / 1e6;
        let time = us(outcome.time);
        let mut row = Row::new("replay", "replay", "virtual", cards.fabric());
        row.ranks = trace.ranks as u32;
        row.rails = Some(tuple.rails.into());
        row.strategy = Some(tuple.strategy.to_string());
        row.times(&[time]).set(&DEPENDS, name(tuple.depends));
        row.set(&PUTS, trace.puts.len() as u64).set(&BYTES, trace.puts.iter().map(|put| put.bytes).sum::<u64>());
        row.set(&RECORDED, trace.recorded as f64 / 1e3);
        let path = outcome.path;
        for (column, part) in [
            (&GAPS, path.gaps),
            (&POSTING, path.posting),
            (&SENDING, path.sending),
            (&WIRE, path.wire),
            (&LATENCY, path.latency),
            (&RECEIVING, path.receiving),
        ] {
            row.set(column, us(part));
        }
        row.set(&BOUND, path.parts()[0].0.to_owned());
        let busiest = outcome.busiest;
        let way = if busiest.receives { "receives" } else { "sends" };
        row.set(&BUSIEST, format!("rank {}, rail {}, {way}", busiest.rank, busiest.rail));
        row.set(&BUSY, if time > 0.0 { 100.0 * us(busiest.busy) / time } else { 0.0 });
        row.set(&RAIL_BYTES, outcome.rail_bytes.iter().map(u64::to_string).collect::<Vec<_>>().join(";"));
        if outcome.stuck > 0 {
            row.status =
                RowStatus::Failed(format!("{} puts depend on arrivals that are not in the trace", outcome.stuck));
        }
        Ok(vec![(row, vec![time])])
    }
}
