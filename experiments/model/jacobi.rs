//! `ginlab model jacobi`: simulates Jacobi iterations.

use super::Cards;
use super::halo::{self, HaloParameters, HaloSync};
use crate::error::Failure;
use crate::runner::{Experiment, Plan, Rows};
use crate::values::{List, counts, name, usage};
use clap::ValueEnum;
use ginlab::bootstrap::Bootstrap;
use ginlab::report::{About, ChartStyle, Column, Header, Plot, Row};
use itertools::iproduct;

/// Options of `ginlab model jacobi`.
#[derive(clap::Args, Clone, Debug)]
pub struct ModelJacobiArgs {
    /// Profile of the modelled cards
    #[arg(short = 'p', long, default_value = "p5", value_name = "NAME")]
    profile: String,
    /// Number of machines; a list to sweep
    #[arg(long, default_value = "2,4,8,16", value_name = "LIST", value_parser = counts::<u32>(4096))]
    nodes: List<u32>,
    /// Rails per GPU
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    rails: u32,
    /// Columns and rows of the field
    #[arg(long, default_value_t = 16384, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    n: u32,
    /// Memory bandwidth of a GPU available to the stencil, in GB/s [assumed: 85 % of an H100's 3350]
    #[arg(long, default_value_t = 2850.0, value_name = "GB/S")]
    memory: f64,
    /// Method of sending boundary rows; a list to sweep
    #[arg(long, value_enum, value_delimiter = ',', default_value = "p,block,row")]
    exchange: Vec<Exchange>,
    /// Synchronization between two iterations; a list to sweep
    #[arg(long, value_enum, value_delimiter = ',', default_value = "barrier,neighbours")]
    sync: Vec<Sync>,
    /// Time at which the norm is available; a list to sweep
    #[arg(long, value_enum, value_delimiter = ',', default_value = "now,delayed")]
    norm_when: Vec<When>,
    /// Number of iterations
    #[arg(short = 'n', long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    iterations: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Exchange {
    /// Element by element
    P,
    /// Pieces of 4 KiB
    Block,
    /// One piece
    Row,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sync {
    /// A barrier of all GPUs
    Barrier,
    /// A wait for both neighbours
    Neighbours,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum When {
    /// Before the next iteration
    Now,
    /// While the next iteration runs
    Delayed,
}

/// Parameters of one row.
pub struct ModelJacobiConfig {
    nodes: u32,
    exchange: Exchange,
    sync: Sync,
    when: When,
}

/// One-way time of a put with a signal over NVLink, in microseconds: 8 B by a block of 256 threads, two H200
/// (experiments/shmem).
const NEAR_US: f64 = 2.4;
/// Number of rows in the boundary tiles of a GPU.
const BOUNDARY_ROWS: f64 = 64.0;
/// Points of a piece with exchange `block`.
const PIECE: u64 = 1024;

/// Exposed time of an iteration on 16, 32, 64 and 128 GPUs of p5 machines, 16384 x 16384, in microseconds. Derived: the
/// published times minus the atomic additions that they contain (experiments/jacobi).
const PUBLISHED: [(&str, [f64; 4]); 3] = [
    ("p", [12_930.0, 13_590.0, 18_720.0, 20_720.0]),
    ("block", [151.0, 254.0, 336.0, 542.0]),
    ("block, norm delayed, neighbours", [13.0, 36.0, 58.0, 61.0]),
];

const EXPOSED: Column = crate::jacobi::EXPOSED;
const SYNC: Column = crate::jacobi::SYNC;
const NORM_WHEN: Column = crate::jacobi::NORM_WHEN;
const COMPUTE: Column =
    Column::measured("compute_us", "us", "Time in which a GPU computes its part, by its memory bandwidth")
        .shown("compute", 9);
const RESIDUAL: Column = Column::measured(
    "published_us",
    "us",
    "Exposed time of the corresponding published variant, derived: published time minus its atomic additions",
)
.shown("publ.", 8);

/// Experiment that runs one simulation per row.
pub struct JacobiModel {
    args: ModelJacobiArgs,
    cards: Cards,
}

impl Experiment for JacobiModel {
    type Args = ModelJacobiArgs;
    type Config = ModelJacobiConfig;

    const ABOUT: About = About {
        columns: &[SYNC, NORM_WHEN, COMPUTE, EXPOSED, RESIDUAL],
        without: &[
            "grid",
            "block",
            "mode",
            "memory",
            "bandwidth_gbytes_s",
            "line_rate_pct",
            "baseline",
            "baseline_ratio",
            "wrong_bytes",
        ],
        headlines: &[],
        plots: &[Plot {
            name: "exposed",
            title: "modelled: exposed communication, by the number of GPUs",
            x: &["ranks"],
            y: "exposed_us",
            y_label: Some("exposed time of an iteration (us)"),
            range: None,
            shape: ChartStyle::Curve,
            log_y: Some(true),
            ..Plot::TIME
        }],
        ..About::new("model-jacobi", "Simulate Jacobi iterations of many machines over modelled cards")
    };

    fn plan(args: &mut ModelJacobiArgs) -> Result<Plan<ModelJacobiConfig>, Failure> {
        if args.nodes.contains(&1) {
            return Err(usage("--nodes", "requires at least 2 machines"));
        }
        let tuples = iproduct!(&args.exchange, &args.sync, &args.norm_when, &args.nodes[..])
            .map(|(&exchange, &sync, &when, &nodes)| ModelJacobiConfig { nodes, exchange, sync, when });
        Ok(Plan::alone(tuples.collect()))
    }

    async fn open(
        args: &ModelJacobiArgs,
        _: &mut Vec<ModelJacobiConfig>,
        _: &mut Bootstrap,
    ) -> Result<(JacobiModel, Header), Failure> {
        let cards = Cards::named(&args.profile)?;
        let mut header = cards.header(&format!(
            "; {} GB/s of memory bandwidth for the stencil, {NEAR_US} us one way within a machine, no time between \
             kernels",
            args.memory
        ));
        header.note(
            "published_us is derived: published times of one series of runs minus the atomic additions that they \
             contain",
        );
        Ok((JacobiModel { args: args.clone(), cards }, header))
    }

    async fn tuple(&mut self, tuple: &ModelJacobiConfig, _: &mut Bootstrap) -> Result<Rows, Failure> {
        let gpus = self.cards.profile.gpus.value as u64;
        let all = u64::from(tuple.nodes) * gpus;
        let n = f64::from(self.args.n);
        let compute_us = 2.0 * 4.0 * n * n / all as f64 / self.args.memory / 1000.0;
        let picoseconds = |microseconds: f64| (microseconds * 1e6).round() as u64;
        let points = u64::from(self.args.n);
        let (pieces, bytes) = match tuple.exchange {
            Exchange::P => (points, 4),
            Exchange::Block => (points.div_ceil(PIECE), 4 * PIECE),
            Exchange::Row => (1, 4 * points),
        };
        let setting = HaloParameters {
            nodes: tuple.nodes.into(),
            gpus_per_node: gpus,
            rails: self.args.rails,
            pieces,
            bytes,
            compute: picoseconds(compute_us),
            boundary: picoseconds(compute_us * (BOUNDARY_ROWS / (n / all as f64)).min(1.0)),
            between: if tuple.sync == Sync::Barrier { HaloSync::Barrier } else { HaloSync::Neighbours },
            norm_now: tuple.when == When::Now,
            near: picoseconds(NEAR_US),
            iterations: self.args.iterations,
            seed: 1,
        };
        let time = halo::run(&setting, &self.cards.profile) as f64 / 1e6;
        let case = format!("jacobi-{}", name(tuple.exchange));
        let mut row = Row::new("model-jacobi", case, "virtual", self.cards.fabric());
        row.ranks = all as u32;
        row.rails = Some(self.args.rails);
        row.size_bytes = Some(bytes);
        row.iterations = Some(u64::from(self.args.iterations));
        row.times(&[time]).set(&SYNC, name(tuple.sync)).set(&NORM_WHEN, name(tuple.when));
        row.set(&COMPUTE, compute_us).set(&EXPOSED, time - compute_us);
        row.set(&RESIDUAL, published(tuple, all, &self.cards.name, self.args.n));
        Ok(vec![(row, vec![time])])
    }
}

/// Returns the published time of the variant that corresponds to this parameter combination. `None` if there is none.
fn published(tuple: &ModelJacobiConfig, gpus: u64, profile: &str, n: u32) -> Option<f64> {
    let like = match (tuple.exchange, tuple.sync, tuple.when) {
        (Exchange::P, Sync::Barrier, When::Now) => 0,
        (Exchange::Block, Sync::Barrier, When::Now) => 1,
        (Exchange::Block, Sync::Neighbours, When::Delayed) => 2,
        _ => return None,
    };
    let place = [16, 32, 64, 128].iter().position(|count| *count == gpus)?;
    (profile == "p5" && n == 16_384).then(|| PUBLISHED[like].1[place])
}
