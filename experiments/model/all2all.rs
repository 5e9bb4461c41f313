//! `ginlab model all2all`: simulates an all-to-all.

use super::Cards;
use super::all_to_all::{self, AllToAllParameters, MOST_GPUS, WriteOrder};
use crate::columns::{BUSBW, CEILING, CEILING_PCT, IMBALANCE, PACKET, ROUTE, WINDOW};
use crate::error::Failure;
use crate::runner::{Experiment, Plan, Rows};
use crate::values::{self, List, counts, sizes, usage};
use clap::ValueEnum;
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::model::Profile;
use ginlab::measure::size;
use ginlab::report::{About, Column, Header, Headline, Plot, Row};
use ginlab::signals;
use itertools::iproduct;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  ginlab model all2all                                    model 8, 64 and 512 p5 machines, with 64 KiB to each GPU
  ginlab model all2all -p p5en --nodes 2,4,8,16 -b 4K -e 4M -f 4 --rails 1,2   sweep sizes and rails
  ginlab model all2all --nodes 2,4,8,16,32 --rails 4 --total 2G    count bytes as nccl-tests does, including those within a machine
  ginlab model all2all --nodes 32 --rails 4 --total 2G --route direct,gathered --packet 128K,1G   compare routes
  ginlab model all2all --nodes 64 --strategy round-robin,split --order rotated,same --csv scale.csv   compare orders";

/// Options of `ginlab model all2all`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ModelAll2AllArgs {
    /// Profile of the modelled cards
    #[arg(short = 'p', long, default_value = "p5", value_name = "NAME")]
    profile: String,
    /// Number of machines; a list to sweep
    #[arg(long, default_value = "8,64,512", value_name = "LIST", value_parser = counts::<u32>(u32::MAX))]
    nodes: List<u32>,
    /// GPUs per machine [default: the profile's]
    #[arg(long, value_name = "N")]
    gpus: Option<u64>,
    /// Rails per GPU; a list to sweep
    #[arg(long, default_value = "1,4", value_name = "LIST", value_parser = counts::<u32>(u32::MAX))]
    rails: List<u32>,
    /// Smallest block that each GPU writes to each GPU of the other machines; K, M and G are powers of two
    #[arg(short = 'b', long, default_value = "64K", value_name = "SIZE", value_parser = size::parse)]
    begin: u64,
    /// Instead of block sizes: total bytes that each GPU has for all GPUs, including itself and those of its machine,
    /// as defined by nccl-tests; a list to sweep
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size::parse, conflicts_with_all = ["begin", "end", "factor"])]
    total: Vec<u64>,
    /// Largest block [default: the smallest]
    #[arg(short = 'e', long, value_name = "SIZE", value_parser = size::parse)]
    end: Option<u64>,
    /// Factor between consecutive sizes
    #[arg(short = 'f', long, default_value_t = 4, value_name = "N")]
    factor: u64,
    /// Distribution of blocks over rails; a list to sweep
    #[arg(long, value_enum, value_delimiter = ',', default_value = "round-robin")]
    strategy: Vec<Strategy>,
    /// Order in which a GPU writes to the others; a list to sweep
    #[arg(long, value_enum, value_delimiter = ',', default_value = "rotated")]
    order: Vec<WriteOrder>,
    /// Route of blocks to the GPUs of another machine; a list to sweep
    #[arg(long, value_enum, value_delimiter = ',', default_value = "direct")]
    route: Vec<ModelRoute>,
    /// Maximum bytes of one write; a list to sweep [default: a whole block, or its part on a rail]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size::parse)]
    packet: Vec<u64>,
    /// Maximum number of outstanding pieces per GPU
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    window: u32,
    /// Number of runs per row, each with different latencies
    #[arg(short = 'r', long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    repeats: u64,
    /// Seed of the first run; each following run uses the next number
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Strategy {
    /// Whole blocks on alternating rails
    RoundRobin,
    /// Each block striped over all rails
    Split,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelRoute {
    /// Each GPU writes to each other GPU
    Direct,
    /// Through NVLink to the GPU at the target's position in this machine, which sends all blocks of its machine for
    /// the target in one write
    Gathered,
}

/// Returns the settings of all rows that the options select.
fn settings(args: &ModelAll2AllArgs, profile: &Profile) -> Result<Vec<Whole>, Failure> {
    let end = args.end.unwrap_or(args.begin);
    let sizes = if args.total.is_empty() { sizes(args.begin, end, args.factor)? } else { args.total.clone() };
    if args.total.iter().any(|total| *total == 0 || *total > 1 << 44) {
        return Err(usage("--total", "must be from 1 B to 16 TiB per GPU"));
    }
    if args.begin == 0 || end > 1 << 40 {
        return Err(usage("-b/-e/-f", "blocks must be from 1 B to 1 TiB"));
    }
    let gpus = args.gpus.unwrap_or(profile.gpus.value as u64);
    let most = args.nodes.iter().copied().max().map_or(0, u64::from);
    if args.nodes.iter().any(|nodes| *nodes < 2) || gpus == 0 || most.saturating_mul(gpus) > MOST_GPUS / 64 {
        let text = format!(
            "{gpus} GPUs in each of {:?} machines: requires at least 2 machines, and at most {} GPUs",
            &args.nodes[..],
            MOST_GPUS / 64
        );
        return Err(usage("--nodes", text));
    }
    let cards = profile.cards_per_gpu() as u32;
    if cards == 0 {
        let text = format!("GPUs of a {} share cards, which this simulation does not support", args.profile);
        return Err(usage("--profile", text));
    }
    if let Some(rails) = args.rails.iter().find(|rails| **rails > cards) {
        return Err(usage("--rails", format!("{rails}: a GPU of a {} has only {cards} cards", args.profile)));
    }
    if args.packet.contains(&0) {
        return Err(usage("--packet", "must be at least 1 byte"));
    }
    let packets: Vec<Option<u64>> =
        if args.packet.is_empty() { vec![None] } else { args.packet.iter().copied().map(Some).collect() };
    let ModelAll2AllArgs { order, strategy, route, rails, nodes, .. } = args;
    let setting =
        |(&order, &strategy, &route, &packet, &rails, &bytes, &nodes): (&_, &_, &_, &Option<u64>, &_, &u64, &u32)| {
            let bytes = if args.total.is_empty() { bytes } else { (bytes / (u64::from(nodes) * gpus)).max(1) };
            let setting = AllToAllParameters {
                nodes: nodes.into(),
                gpus_per_node: gpus,
                rails,
                bytes,
                split: strategy == Strategy::Split,
                packet: packet.unwrap_or(u64::MAX >> 8),
                gathering: 0,
                window: args.window,
                order,
                seed: args.seed,
            };
            Whole { setting, route, packet }
        };
    Ok(iproduct!(order, strategy, route, &packets, rails, &sizes, nodes).map(setting).collect())
}

/// Parameters of a row: an all-to-all of blocks from every GPU to every GPU.
#[derive(Clone, Debug)]
pub struct Whole {
    /// Setting in which every GPU writes directly to every other GPU.
    setting: AllToAllParameters,
    route: ModelRoute,
    packet: Option<u64>,
}

impl Whole {
    /// Returns the bytes that a GPU stores to other GPUs of its machine. They comprise the blocks for these GPUs and
    /// the blocks that they forward for this GPU.
    fn inside(&self) -> u64 {
        let AllToAllParameters { nodes, gpus_per_node, bytes, .. } = self.setting;
        let relayed = if self.route == ModelRoute::Gathered { nodes - 1 } else { 0 };
        (gpus_per_node - 1) * bytes * (1 + relayed)
    }

    /// Returns the setting to simulate. With gathered blocks, GPUs exchange blocks only with those at the same position
    /// in other machines. All positions behave identically, so only one of them is simulated.
    fn simulated(&self, profile: &Profile) -> AllToAllParameters {
        let direct = &self.setting;
        let local = direct.gpus_per_node;
        match self.route {
            ModelRoute::Direct => direct.clone(),
            ModelRoute::Gathered => {
                let stored = (local - 1) * direct.bytes;
                let gathering = (stored as f64 / profile.nvlink_gbytes_s.value * 1000.0) as u64;
                AllToAllParameters { gpus_per_node: 1, bytes: local * direct.bytes, gathering, ..direct.clone() }
            }
        }
    }
}

const PAIR: Column = Column::measured("pair_gbytes_s", "GB/s", "Bandwidth from one rank to one other").shown("pair", 7);

const TOTAL: Column = Column::measured(
    "total_bytes",
    "B",
    "Blocks of a GPU for all GPUs, its own machine's and itself included: nccl-tests' size",
);

/// Experiment that runs one simulation per row.
pub struct All2AllModel {
    args: ModelAll2AllArgs,
    cards: Cards,
}

impl Experiment for All2AllModel {
    type Args = ModelAll2AllArgs;
    type Config = Whole;

    const ABOUT: About = About {
        columns: &[
            ROUTE,
            PACKET,
            WINDOW,
            IMBALANCE.shown("imbal.", 6),
            PAIR,
            TOTAL,
            BUSBW.shown("busbw", 7),
            CEILING,
            CEILING_PCT.shown("ceil", 5),
        ],
        without: &["grid", "wrong_bytes"],
        headlines: &[Headline::most("modelled all-to-all, most bandwidth of a GPU", "bandwidth_gbytes_s", &[])],
        plots: &[
            Plot::BANDWIDTH,
            Plot::TIME,
            Plot::BANDWIDTH.by("ranks", "bandwidth of a GPU by the number of GPUs", &["ranks"]),
            Plot {
                name: "busbw",
                title: "bus bandwidth by the number of GPUs",
                x: &["ranks"],
                y: "busbw_gbytes_s",
                range: None,
                ..Plot::BANDWIDTH
            },
        ],
        ..About::new("model", "Simulate an all-to-all of many machines over modelled cards")
    };

    fn plan(args: &mut ModelAll2AllArgs) -> Result<Plan<Whole>, Failure> {
        Ok(Plan::alone(settings(args, &Cards::named(&args.profile)?.profile)?))
    }

    async fn open(
        args: &ModelAll2AllArgs,
        _: &mut Vec<Whole>,
        _: &mut Bootstrap,
    ) -> Result<(All2AllModel, Header), Failure> {
        let cards = Cards::named(&args.profile)?;
        let mut header = cards.header("");
        header.note(
            "time_us is from the first post to the last acknowledgement of all, GB/s and Mops of what one GPU sends to other machines, pair \
             of one GPU to one other; busbw is of the whole, with what stays in a machine at the profile's NVLink rate, at the same time; \
             gathered blocks are posted as NVLink brings them; not modelled: switches and congestion in the network, loss, what GPU and host can deliver",
        );
        Ok((All2AllModel { args: args.clone(), cards }, header))
    }

    async fn tuple(&mut self, whole: &Whole, _: &mut Bootstrap) -> Result<Rows, Failure> {
        Ok(vec![measure(&self.args, &self.cards, whole)?])
    }
}

fn measure(args: &ModelAll2AllArgs, cards: &Cards, whole: &Whole) -> Result<(Row, Vec<f64>), Failure> {
    let profile = &cards.profile;
    let look = |_| if signals::interrupted() { Err(Failure::Interrupted) } else { Ok(()) };
    let started = Instant::now();
    let (mut times, mut imbalance, mut events) = (Vec::new(), 0f64, 0);
    let (setting, simulated) = (&whole.setting, whole.simulated(profile));
    for repeat in 0..args.repeats {
        let seeded = AllToAllParameters { seed: simulated.seed.wrapping_add(repeat), ..simulated.clone() };
        let outcome = all_to_all::run(&seeded, profile, look)?;
        times.push(outcome.time as f64 / 1e6);
        let mean = (outcome.blocks * simulated.bytes) as f64 / f64::from(setting.rails);
        imbalance = imbalance.max(100.0 * (outcome.received.0 as f64 / mean - 1.0));
        events += outcome.events;
    }
    // Progress information for the user. Durations are never part of a row, because rows are deterministic.
    eprintln!("# {} machines: {events} events in {:.1} s", setting.nodes, started.elapsed().as_secs_f64());
    let mut row = Row::new("model", "all2all", "virtual", cards.fabric());
    let gpus = setting.nodes * setting.gpus_per_node;
    row.ranks = gpus as u32;
    row.rails = Some(setting.rails);
    row.strategy = Some(if setting.split { "split" } else { "round-robin" }.into());
    row.mode = Some(format!("nodes={},{}", setting.nodes, values::name(setting.order)));
    row.size_bytes = Some(setting.bytes);
    row.set(&ROUTE, values::name(whole.route)).set(&PACKET, whole.packet);
    row.set(&WINDOW, args.window).set(&IMBALANCE, imbalance);
    row.iterations = Some(setting.peers());
    row.times(&times).throughput(setting.bytes * setting.peers(), setting.peers());
    if let Some(time) = row.time_us_p50 {
        row.set(&PAIR, setting.bytes as f64 / time / 1000.0);
        row.line_rate(Some((profile.line_rate_gbps.value * 1e9) as u64 * u64::from(setting.rails)));
        // Blocks for the same machine are transferred over NVLink at the same time.
        let (n, local) = (gpus as f64, setting.gpus_per_node as f64);
        let inside = whole.inside() as f64 / profile.nvlink_gbytes_s.value / 1000.0;
        let busbw = (n - 1.0) * setting.bytes as f64 / time.max(inside) / 1000.0;
        let rails = profile.line_rate_gbps.value / 8.0 * f64::from(setting.rails);
        let ceiling = (rails * (n - 1.0) / (n - local)).min(profile.nvlink_gbytes_s.value * (n - 1.0) / (local - 1.0));
        row.set(&TOTAL, setting.bytes * gpus).set(&BUSBW, busbw);
        row.set(&CEILING, ceiling).set(&CEILING_PCT, 100.0 * busbw / ceiling);
    }
    Ok((row, times))
}
