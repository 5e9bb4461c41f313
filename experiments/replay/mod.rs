//! `ginlab replay`: the puts of a recorded trace again, over modelled cards, in virtual time.

mod run;
mod trace;

use crate::columns::RAIL_BYTES;
use crate::error::Failure;
use crate::model::Cards;
use crate::program::Program;
use crate::runner::{Experiment, Plan, Rows, program};
use crate::values::{List, counts, list, name, usage};
use ginlab::bootstrap::Bootstrap;
use ginlab::rails::strategy::Strategy;
use ginlab::report::{About, Column, Header, Plot, Row, Status};
use itertools::iproduct;
use std::path::PathBuf;
use trace::{Depends, Trace};

pub const PROGRAMS: &[Program] = &[program::<Replay>()];

const EXAMPLES: &str = "\
Examples:
  ginlab nccl --np 2 --trace puts.jsonl -- ./gin          records
  ginlab replay puts.jsonl -p model:p5en --rails 4        over four modelled cards of a p5en each
  ginlab replay puts.jsonl -p model:p5,model:p5en --rails 1,2,4 --strategy split,round-robin --csv -
Virtual time: no rank is started, no byte moved, and each run gives the same. What a put has waited for is inferred: `arrived` takes everything
that was there before it, `paused` what came while its context stood still; the truth is between the two rows. experiments/replay/README.md.";

/// Options of `ginlab replay`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What `ginlab nccl --trace FILE.jsonl` has written
    trace: PathBuf,
    /// Modelled cards, a list: model:p4d, model:p5, model:p5en, model:p6-b200
    #[arg(short = 'p', long, default_value = "model:p5", value_name = "LIST", value_parser = list::<String>)]
    provider: List<String>,
    /// Cards of each rank, a list
    #[arg(long, default_value = "1", value_name = "LIST", value_parser = counts::<u8>(64))]
    rails: List<u8>,
    /// How puts are laid over them, a list: single, split, round-robin, auto
    #[arg(long, default_value = "round-robin", value_name = "LIST", value_parser = list::<Strategy>)]
    strategy: List<Strategy>,
    /// What a put is taken to have waited for, a list
    #[arg(long, value_enum, value_delimiter = ',', default_value = "paused,arrived")]
    depends: Vec<Depends>,
    /// Which latencies are drawn
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
}

/// One row.
pub struct Tuple {
    provider: usize,
    rails: u8,
    strategy: Strategy,
    depends: Depends,
}

const DEPENDS: Column = Column::chosen(
    "depends",
    "",
    "What a put is taken to have waited for: `arrived`, all that was there before it; `paused`, what came while its context stood still",
)
.shown("depends", 8);
const PUTS: Column = Column::follows("recorded_puts", "", "Puts and gets of the trace");
const BYTES: Column = Column::follows("bytes", "B", "Their bytes");
const RECORDED: Column = Column::measured(
    "recorded_us",
    "us",
    "The same in the recording: from the first put to the last arrival, over the rails of that run",
)
.shown("recorded", 10);
const GAPS: Column = Column::measured(
    "computing_us",
    "us",
    "Of the longest chain: what was between an arrival and the next put in the recording",
);
const POSTING: Column = Column::measured("posting_us", "us", "Of it: a thread posts, or is busy with others");
const SENDING: Column = Column::measured("sending_us", "us", "Of it: the sending card is busy with others");
const WIRE: Column = Column::measured("wire_us", "us", "Of it: the wire carries the bytes");
const LATENCY: Column = Column::measured("latency_us", "us", "Of it: the way through the network");
const RECEIVING: Column = Column::measured("receiving_us", "us", "Of it: the receiving card is busy with others");
const BOUND: Column = Column::measured("bound", "", "What most of it is").shown("bound by", 20);
const BUSIEST: Column =
    Column::measured("busiest", "", "The card that carries bytes longest").shown("busiest card", 24);
const BUSY: Column = Column::measured("busiest_pct", "%", "The share of the time in which it does").shown("busy %", 7);

/// The simulation.
pub struct Replay {
    args: Args,
    cards: Vec<Cards>,
    traces: Vec<(Depends, Trace)>,
}

impl Experiment for Replay {
    type Args = Args;
    type Tuple = Tuple;

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
            "wrong",
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
        ..About::new("replay", "Recorded puts again, over modelled cards in virtual time")
    };

    fn plan(args: &mut Args) -> Result<Plan<Tuple>, Failure> {
        let tuples = iproduct!(0..args.provider.len(), &args.rails[..], &args.strategy[..], &args.depends)
            .map(|(provider, &rails, &strategy, &depends)| Tuple { provider, rails, strategy, depends });
        Ok(Plan::alone(tuples.collect()))
    }

    async fn open(args: &Args, _: &mut Vec<Tuple>, _: &mut Bootstrap) -> Result<(Replay, Header), Failure> {
        let cards = args.provider.iter().map(|provider| Cards::named(provider)).collect::<Result<Vec<_>, _>>()?;
        let read = |depends: &Depends| Trace::read(&args.trace, *depends).map(|trace| (*depends, trace));
        let traces = args.depends.iter().map(read).collect::<Result<Vec<_>, _>>().map_err(|why| usage("TRACE", why))?;
        let mut header = cards[0].header("; each rank has cards of its own, and one thread that posts");
        for more in &cards[1..] {
            header.note(more.note());
        }
        if let Some((_, trace)) = traces.first()
            && trace.lost > 0
        {
            header.note(format!("{} puts have no arrival in the trace: what waited for them is not known", trace.lost));
        }
        Ok((Replay { args: args.clone(), cards, traces }, header))
    }

    async fn tuple(&mut self, tuple: &Tuple, _: &mut Bootstrap) -> Result<Rows, Failure> {
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
            row.status = Status::Failed(format!("{} puts came after what is not in the trace", outcome.stuck));
        }
        Ok(vec![(row, vec![time])])
    }
}
