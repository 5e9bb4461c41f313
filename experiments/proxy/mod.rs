//! `ginlab proxy`: measures GPU-initiated puts through ring, proxy and rails, compared with CPU-initiated writes of the
//! same buffers.
//!
//! Half of the ranks run the kernel, and each puts to one of the other half, on another host if there are several
//! ([`ginlab::pairing`]). On null rails every rank puts to itself. Every rank measures the same rows in the same order.
//! Settings that must be equal are compared before the first row.

mod args;
mod ladder;
mod layout;
mod machine;
mod measure;
mod mode;
mod queues;
mod random;
mod rank;
mod run;
mod trace;
mod verify;

use crate::columns::{AGAIN, ALIGNMENT, COLD, COMPLETION, POST, RAIL_BYTES, RING_SLOTS, SCOPE, SHARING, WINDOW};
use crate::error::Failure;
use crate::mps;
use crate::nodes;
use crate::output::OutputArgs;
use crate::program::CommandSpec;
use crate::random::Ratios;
use crate::ranks::Ranks;
use crate::runner::{Experiment, Plan, Rows, program};
use args::{ProxyArgs, ProxyConfig};
use cuda_std::emulation;
use ginlab::bootstrap::Bootstrap;
use ginlab::report::{About, Column, Header, Headline, Key, Plot, Row};
use ginlab::versions::Versions;
use rank::ProxyRank;
use trace::Traces;

pub const PROGRAMS: &[CommandSpec] = &[program::<ProxyExperiment>(), program::<ladder::Ladder>()];

pub use trace::ABOUT as STAGES;

const FILL: Column = Column::follows("fill", "", "Whether the kernel wrote the payload before each put");
const FILL_AHEAD: Column = Column::follows(
    "fill_ahead",
    "",
    "Payloads that a block wrote between two barriers, if it did not wait for each put",
);
const PROXY_THREADS: Column = Column::follows("proxy_threads", "", "Proxy threads per device");
const RING_MEMORY: Column = Column::chosen("ring_memory", "", "Memory of the rings: `pinned`, `managed`, `gdr`");
const POST_RATE: Column =
    Column::measured("post_rate_mops", "Mops", "Posting rate in 10^6 puts per second, at the median posting time");

/// Puts, and the writes they are compared with. A bare round trip has a time, but no rate.
const WRITES: (&str, &[&str]) = ("case", &["put", "direct", "cpu-write", "bare-write"]);

/// A rank with its rings and proxies.
pub struct ProxyExperiment {
    args: ProxyArgs,
    rank: ProxyRank,
    traces: Traces,
    /// Ratios of random shapes to CPU-initiated writes.
    ratios: Ratios,
}

impl Experiment for ProxyExperiment {
    type Args = ProxyArgs;
    type Config = ProxyConfig;

    const ABOUT: About = About {
        columns: &[
            POST,
            POST_RATE,
            FILL,
            FILL_AHEAD,
            SCOPE,
            ALIGNMENT,
            SHARING,
            WINDOW,
            PROXY_THREADS,
            RING_SLOTS,
            RING_MEMORY,
            COMPLETION,
            AGAIN,
            RAIL_BYTES,
            nodes::OF,
            nodes::NODE,
            nodes::SENDERS,
            nodes::GPU_MIN,
            nodes::GPU_MAX,
            nodes::RAIL_MIN,
            nodes::RAIL_MAX,
            COLD[0],
            COLD[1],
            COLD[2],
            COLD[3],
        ],
        shows_memory: true,
        headlines: &[
            Headline::least(
                "a put of 64 B until quiet returns",
                "time_us_p50",
                &[("case", "put"), ("mode", "quiet"), ("size_bytes", "64")],
            ),
            Headline::most(
                "puts of 64 B, highest rate",
                "rate_mops",
                &[("case", "put"), ("mode", "nbi"), ("size_bytes", "64")],
            ),
            Headline::most("puts, highest bandwidth", "bandwidth_gbytes_s", &[("case", "put")]),
        ],
        plots: &[
            Plot::TIME,
            Plot::BANDWIDTH.only(&[WRITES]),
            Plot::RATIO.only(&[WRITES]),
            Plot::RATE.by("grid", "operations per second by blocks of the grid", &["grid"]).only(&[WRITES]),
            Plot::RATE.only(&[WRITES]),
        ],
        ..About::new("proxy", "Measure GPU-initiated puts through ring and proxy, compared with CPU-initiated writes")
    };

    fn plan(args: &mut ProxyArgs) -> Result<Plan<ProxyConfig>, Failure> {
        args.check()?;
        if args.needs_library()
            && let Err(missing) = ginlab::fabric::libfabric::require_library()
        {
            args.do_without_library(&missing)?;
        }
        args.settle_rails();
        let tuples = args.tuples()?;
        // A rank may wait while another one measures a row, which is limited by the volume of a row and by the device's
        // timeout.
        let ranks = args.meet.ranks(args.fingerprint(&tuples), args.check_ranks());
        let kernels = args.meet.mps.on(args.device);
        let (default, kernels) = if args.is_null() { (1, kernels) } else { (2, kernels.by_half()) };
        let ranks = Ranks { default, mps: Some(kernels), ..ranks };
        Ok(Plan { keep_going: args.keep_going, ..Plan::of_ranks(tuples, ranks) })
    }

    async fn open(
        args: &ProxyArgs,
        _: &mut Vec<ProxyConfig>,
        ranks: &mut Bootstrap,
    ) -> Result<(ProxyExperiment, Header), Failure> {
        if let Some(why) = args.why_null.as_ref().filter(|_| ranks.rank() == 0) {
            eprintln!("ginlab: {why}");
        }
        emulation::set_seed(args.seed.filter(|_| args.random.is_none()));
        let rank = ProxyRank::open(args, ranks)?;
        let header = header(args, ranks, &rank);
        Ok((ProxyExperiment { args: args.clone(), rank, traces: Traces::default(), ratios: Ratios::default() }, header))
    }

    async fn tuple(&mut self, tuple: &ProxyConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let first = measure::first(&self.args, tuple, &mut self.rank, ranks)?;
        let mut rows = measure::measure(&self.args, tuple, &mut self.rank, ranks, &mut self.traces).await?;
        measure::fill_first(&mut rows, &first, &self.rank, ranks.size())?;
        let ratio = rows.iter().find(|(row, _)| row.case == "put").and_then(|(row, _)| row.baseline_ratio);
        if let (Some(drawn), Some(ratio)) = (&tuple.drawn, ratio) {
            self.ratios.add(ratio, random::told(tuple, drawn));
        }
        Ok(rows)
    }

    fn what(row: &Row) -> String {
        row.mode.clone().unwrap_or_else(|| row.case.clone())
    }

    async fn close(self, header: &Header, output: &OutputArgs, ranks: &mut Bootstrap) -> Result<(), Failure> {
        if ranks.rank() == 0 && self.args.random.is_some() {
            for line in self.ratios.lines("requires cpu-write and put in --cases") {
                eprintln!("# {line}");
            }
        }
        match self.args.trace.as_ref().filter(|_| ranks.rank() == 0) {
            Some(to) => self.traces.finish(to, header, output.takes_stdout()),
            None => Ok(()),
        }
    }
}

fn header(args: &ProxyArgs, ranks: &Bootstrap, rank: &ProxyRank) -> Header {
    let mut header = Versions::header();
    let offer = rank.group.offer();
    header
        .set(Key::Gpu, rank.device.name())
        .set(Key::Provider, rank.provider.as_str())
        .set(Key::Rails, offer.rails.clone())
        .set(Key::Completion, args.completion())
        .set(Key::Affinity, rank.group.affinity())
        .set(Key::Memory, rank.path.text());
    let plural = if ranks.size() == 1 { "" } else { "s" };
    mps::describe(&mut header, &rank.sharing);
    if matches!(rank.queues, Some(Ok(_))) {
        header.note(
            "direct: the same kernel without ring and proxy, with one queue on the NIC of each rail; block b uses the \
             NIC of rail b modulo the rails, and a put is one request",
        );
    }
    header.notes(&rank.notes).note(format!("{} rank{plural} by the {} bootstrap", ranks.size(), ranks.kind()));
    header.note(
        "time_us is the time per put (per producer) until all puts of a repeat are complete, on the device's clock \
         (CPU-initiated rows: the proxy thread's clock); percentiles are over repeats; rates and bandwidths count all \
         producers and pairs of ranks",
    );
    header
}
