//! `--trace`: timeline of sampled puts, recorded in a separate pass. The device and the proxy stamp their steps, and
//! the stamps are converted to one clock.

use super::args::TraceTo;
use super::mode::ProxyMode;
use super::rank::ProxyRank;
use super::run::{ProxyShape, put_args, run_grid, run_kernel};
use crate::error::Failure;
use crate::listing::{Field, csv, entries};
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::MemoryLocation;
use ginlab::measure::clocks::{self, Alignment};
use ginlab::measure::stats::Summary;
use ginlab::proxy::trace::{CommandTimes, Sampling};
use ginlab::report::{About, ChartStyle, Column, Header, OutputTarget, Plot, Row, WholeFile};
use kernels::put_kernel::{PUT_TRACED_KERNEL, TracedPutArgs};
use kernels::put_trace::PutStamps;
use std::fmt::Write;

/// Maximum number of sampled puts per ring.
const ENTRIES: u64 = 1024;
/// Maximum number of puts per row in the file for Perfetto.
const DRAWN: usize = 64;
/// Number of queries of the device's clock, before and after the pass.
const ROUNDS: u64 = 500;

/// Stages of a put. Each starts at the end of the preceding one.
pub const STAGES: [(&str, &str); 9] = [
    ("wait", "the producer waits until its slot is free and its block is synchronized"),
    ("fill", "the producer's threads write the payload"),
    ("ticket", "the producer takes a ticket, waits for a free slot, and fences the payload before the command"),
    ("store", "the command's stores are issued"),
    ("pop", "the proxy finds the command"),
    ("post", "the proxy checks and splits the put, and the last rail accepts its fragment"),
    ("network", "the proxy receives the last completion"),
    ("publish", "older puts complete, and the proxy writes the watermark"),
    ("quiet", "the device reads the watermark, and quiet returns"),
];

/// Declaration of the file of stages.
pub const ABOUT: About = About {
    columns: &[Column::chosen("stage", "", "Stage of a put, or `total`")],
    plots: &[
        Plot {
            name: "stages",
            title: "time of a put by stage",
            y: "p50_us",
            y_label: Some("sum of the medians of the stages (us)"),
            ..STACKED
        },
        Plot {
            name: "share",
            title: "share of each stage in the time of a put",
            y: "share_pct",
            y_label: Some("share of the time (%)"),
            ..STACKED
        },
    ],
    ..About::new("stages", "Measure the stages of a put")
};
const STACKED: Plot =
    Plot { x: &["mode", "size_bytes"], range: None, shape: ChartStyle::Stacked, log_y: Some(false), ..Plot::TIME };

/// A sampled put: the boundaries of its stages on this process's clock, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
struct SampledPut {
    ticket: u64,
    boundaries: [f64; STAGES.len() + 1],
    posted: Vec<u64>,
}

impl SampledPut {
    fn microseconds(&self, stage: usize) -> f64 {
        (self.boundaries[stage + 1] - self.boundaries[stage]) / 1000.0
    }

    fn total(&self, stages: usize) -> f64 {
        (self.boundaries[stages] - self.boundaries[0]) / 1000.0
    }
}

/// Traced puts of one row.
pub struct Lives {
    lives: Vec<SampledPut>,
    alignment: Alignment,
    /// Number of stages of these puts. With a single quiet at the end, the last stage would show the end of the grid
    /// instead of the put.
    stages: usize,
    /// Microseconds per put of the traced pass.
    traced: f64,
}

/// One line of the table and of the CSV.
struct StageRow {
    /// The row of the traced case, with times measured without tracing.
    timed: Row,
    stage: &'static str,
    summary: Summary,
    /// Share of the mean total.
    share_pct: f64,
    /// Maximum error of the two stages that start on one clock and end on the other. The two errors have opposite
    /// signs.
    clock_uncertainty_us: f64,
    /// Microseconds per put of the traced pass.
    traced_us: f64,
}

const FIELDS: [Field<StageRow>; 19] = [
    ("kind", |_| ABOUT.name.into()),
    ("case", |row| row.timed.case.clone().into()),
    ("size_bytes", |row| row.timed.size_bytes.into()),
    ("rails", |row| row.timed.rails.into()),
    ("strategy", |row| row.timed.strategy.clone().into()),
    ("mode", |row| row.timed.mode.clone().into()),
    ("grid", |row| row.timed.grid.into()),
    ("block", |row| row.timed.block.into()),
    ("device", |row| row.timed.device.clone().into()),
    ("fabric", |row| row.timed.fabric.clone().into()),
    ("stage", |row| row.stage.into()),
    ("samples", |row| row.summary.count.into()),
    ("mean_us", |row| row.summary.mean.into()),
    ("p50_us", |row| row.summary.p50.into()),
    ("p99_us", |row| row.summary.p99.into()),
    ("share_pct", |row| row.share_pct.into()),
    ("clock_uncertainty_us", |row| row.clock_uncertainty_us.into()),
    // Microseconds per put of the timed repeats.
    ("untraced_us", |row| row.timed.time_us_p50.into()),
    ("traced_us", |row| row.traced_us.into()),
];

/// Traces one mode of a parameter combination. Returns the result on rank 0, and `None` on other ranks.
pub fn trace(
    shape: &ProxyShape<'_>,
    rank: &mut ProxyRank,
    ranks: &mut Bootstrap,
    mode: ProxyMode,
) -> Result<Option<Lives>, Failure> {
    ranks.barrier("trace")?;
    if rank.target.is_none() {
        return Ok(None);
    }
    let iterations = shape.layout.iterations;
    if ranks.rank() != 0 {
        run_kernel(shape, rank, ranks, mode, iterations)?;
        return Ok(None);
    }
    let rings = rank.group.proxies().len() as u64;
    let every = (iterations * shape.layout.producers).div_ceil(rings).div_ceil(ENTRIES).max(1);
    let buffer = rank.device.allocate(MemoryLocation::Device, (rings * ENTRIES) as usize * size_of::<PutStamps>())?;
    let args = TracedPutArgs {
        put: put_args(shape, rank, ranks, mode, iterations),
        stamps: buffer.pointer(),
        every,
        entries: ENTRIES,
    };
    let before = clocks::offset(&rank.device, ROUNDS, shape.args.meet.timeout)?;
    let sampling = Sampling { every, entries: ENTRIES as usize };
    for proxy in rank.group.proxies() {
        proxy.trace(Some(sampling))?;
    }
    let elapsed = run_grid(shape, rank, ranks, &PUT_TRACED_KERNEL, args)?;
    let times = rank.group.proxies().iter().map(|proxy| proxy.trace(None)).collect::<Result<Vec<_>, _>>()?;
    let after = clocks::offset(&rank.device, ROUNDS, shape.args.meet.timeout)?;
    let alignment = Alignment { before, after };
    let mut stamps = vec![PutStamps::default(); (rings * ENTRIES) as usize];
    buffer.read(0, &mut stamps)?;
    let lives = times.iter().zip(stamps.chunks(ENTRIES as usize));
    let lives = lives.flat_map(|(times, stamps)| join(times, stamps, every, &alignment)).collect();
    let stages = if mode == ProxyMode::Nbi { STAGES.len() - 1 } else { STAGES.len() };
    Ok(Some(Lives { lives, alignment, stages, traced: elapsed.done / iterations as f64 }))
}

/// Joins the stamps of device and proxy for each put that has all of them.
fn join(times: &[CommandTimes], stamps: &[PutStamps], every: u64, alignment: &Alignment) -> Vec<SampledPut> {
    let life = |times: &CommandTimes| {
        let stamps = stamps.get((times.ticket / every % stamps.len() as u64) as usize)?;
        let posted = times.posted.iter().copied().max().unwrap_or_default();
        let host = [times.popped, posted, times.completed, times.published];
        let complete = stamps.ticket == times.ticket && stamps.returned != 0 && host.iter().all(|time| *time != 0);
        let [turned, begun, ready, ordered, stored, returned] =
            [stamps.turned, stamps.begun, stamps.ready, stamps.ordered, stamps.stored, stamps.returned]
                .map(|at| alignment.to_host(at));
        let [popped, posted, completed, published] = host.map(|time| time as f64);
        complete.then(|| SampledPut {
            ticket: times.ticket,
            boundaries: [turned, begun, ready, ordered, stored, popped, posted, completed, published, returned],
            posted: times.posted.clone(),
        })
    };
    times.iter().filter_map(life).collect()
}

/// All traced puts, for the files and the table.
#[derive(Default)]
pub struct Traces {
    rows: Vec<StageRow>,
    events: Vec<serde_json::Value>,
}

impl Traces {
    /// Adds the traced puts of a row.
    pub fn add(&mut self, row: &Row, found: &Lives) {
        let totals: Vec<f64> = found.lives.iter().map(|life| life.total(found.stages)).collect();
        let Some(total) = Summary::of(&totals) else { return };
        let of_stage = |stage: usize| {
            let times: Vec<f64> = found.lives.iter().map(|life| life.microseconds(stage)).collect();
            Summary::of(&times).map(|summary| (STAGES[stage].0, summary))
        };
        let stages = (0..found.stages).filter_map(of_stage).chain([("total", total)]);
        self.rows.extend(stages.map(|(stage, summary)| StageRow {
            timed: row.clone(),
            stage,
            share_pct: 100.0 * summary.mean / total.mean,
            summary,
            clock_uncertainty_us: found.alignment.uncertainty_ns() / 1000.0,
            traced_us: found.traced,
        }));
        self.draw(row, found);
    }

    /// Adds nested slices in Chrome's trace format, which Perfetto reads, with a track per put.
    fn draw(&mut self, row: &Row, found: &Lives) {
        let process = self.rows.len();
        let words = [
            row.mode.clone(),
            row.size_bytes.map(|bytes| format!("{bytes} B")),
            row.rails.map(|r| format!("{r} rails")),
        ];
        let name =
            words.into_iter().flatten().chain([row.fabric.clone(), row.device.clone()]).collect::<Vec<_>>().join(", ");
        self.events
            .push(serde_json::json!({ "ph": "M", "pid": process, "name": "process_name", "args": { "name": name } }));
        let Some(start) = found.lives.iter().map(|life| life.boundaries[0]).reduce(f64::min) else { return };
        for life in found.lives.iter().take(DRAWN) {
            let mut slice = |phase: &str, name: &str, at: f64| {
                self.events.push(serde_json::json!({
                    "ph": phase, "cat": "put", "id": life.ticket, "pid": process, "tid": 0, "name": name,
                    "ts": (at - start) / 1000.0,
                }));
            };
            let whole = format!("put {}", life.ticket);
            slice("b", &whole, life.boundaries[0]);
            for (stage, (name, _)) in STAGES.iter().enumerate().take(found.stages) {
                let [from, to] = [life.boundaries[stage], life.boundaries[stage + 1]];
                slice("b", name, from);
                // A stage that crosses clocks may have a negative length, within the uncertainty of the clocks.
                slice("e", name, to.max(from));
            }
            for (rail, posted) in life.posted.iter().enumerate().filter(|(_, posted)| **posted != 0) {
                slice("n", &format!("posted on rail {rail}"), *posted as f64);
            }
            slice("e", &whole, life.boundaries[found.stages]);
        }
    }

    /// Writes the files and prints the table to stdout, or to stderr if stdout is used for other data.
    pub fn finish(self, to: &TraceTo, header: &Header, stdout_is_taken: bool) -> Result<(), Failure> {
        let unwritable = |error: &dyn std::fmt::Display| Failure::Run(format!("cannot serialize the trace: {error}"));
        let target = |extension: &str| OutputTarget::File(to.with(extension));
        let csv =
            csv(&FIELDS.map(|(key, _)| key), &entries(&FIELDS, &self.rows)).map_err(|error| unwritable(&error))?;
        WholeFile::create("stages", &target("csv"))?.write(&csv)?;
        let drawing = serde_json::json!({ "displayTimeUnit": "ns", "traceEvents": self.events });
        WholeFile::create("trace", &target("json"))?.write(drawing.to_string().as_bytes())?;
        let described = serde_json::to_vec_pretty(header).map_err(|error| unwritable(&error))?;
        WholeFile::create("header", &target("header.json"))?.write(&described)?;
        let table = self.table();
        if stdout_is_taken {
            eprint!("{table}");
            return Ok(());
        }
        Ok(WholeFile::create("table", &OutputTarget::Stdout)?.write(table.as_bytes())?)
    }

    fn table(&self) -> String {
        let mut text = String::new();
        for lines in self.rows.chunk_by(|_, next| next.stage != STAGES[0].0) {
            let Some(total) = lines.last() else { continue };
            let timed = &total.timed;
            let bottleneck = lines[..lines.len() - 1].iter().max_by(|a, b| a.summary.mean.total_cmp(&b.summary.mean));
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "\nlife of a put: {} of {} B over {} rails ({}), {} x {} on {}; {} samples; the clocks are aligned to {:.2} us; \
                 {:.2} us per put traced{}",
                timed.mode.as_deref().unwrap_or_default(),
                timed.size_bytes.unwrap_or_default(),
                timed.rails.unwrap_or_default(),
                timed.fabric,
                timed.grid.unwrap_or_default(),
                timed.block.unwrap_or_default(),
                timed.device,
                total.summary.count,
                total.clock_uncertainty_us,
                total.traced_us,
                timed.time_us_p50.map(|time| format!(", {time:.2} untraced")).unwrap_or_default(),
            );
            let _ = writeln!(text, "{:<8} {:>10} {:>10} {:>10} {:>6}", "stage", "mean us", "p50 us", "p99 us", "share");
            for line in lines {
                let what = STAGES.iter().find(|(name, _)| *name == line.stage).map_or("", |(_, what)| what);
                let most = if bottleneck.is_some_and(|most| most.stage == line.stage) { "<- most; " } else { "" };
                let _ = writeln!(
                    text,
                    "{:<8} {:>10.3} {:>10.3} {:>10.3} {:>5.1}%  {most}{what}",
                    line.stage, line.summary.mean, line.summary.p50, line.summary.p99, line.share_pct
                );
            }
        }
        text
    }
}
