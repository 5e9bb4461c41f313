//! `ginlab model moe`: simulates dispatch and combine on many GPUs, compared with published figures.

use super::Cards;
use super::tokens::{self, TokenExchangeResult, TokenParameters};
use crate::error::Failure;
use crate::moe::plan::{ArrivalMethod, MoeProblem, Router, TokenType, Unit};
use crate::moe::{
    BOUND, COMBINE, COUNT, DISPATCH, EXPERTS, HIDDEN, MESSAGES, NODES, RATE_US, SENT, SKEW, TOKENS, TOPK, TYPE, UNIT,
    WIRE_US,
};
use crate::runner::{Experiment, Plan, Rows};
use crate::values::{List, counts, list, name, usage};
use ginlab::bootstrap::Bootstrap;
use ginlab::report::{About, ChartStyle, Column, Header, Plot, Row};
use ginlab::signals;
use ginlab::versions::Versions;
use itertools::iproduct;
use serde::Deserialize;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  ginlab model moe                                        model 8 to 1024 GPUs of three machine types, every unit; compare with published figures
  ginlab model moe -p p5en --gpus 16,64 --count signal,word,immediate --proxy-threads 1   compare the ways of sending counts
  ginlab model moe -p p5en --unit rank --gpus 32,64 --chunk 1024 --spread 1,2   compare whole writes with writes over both NICs
  ginlab model moe -p p5 --tokens 4096 --unit node,rank --gpus 16,32,64 --csv throughput.csv   model large batches; write rows to a file";

/// Options of `ginlab model moe`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ModelMoeArgs {
    /// Profiles of the modelled cards; a list to sweep
    #[arg(short = 'p', long, default_value = "p5,p5en,p6-b200", value_name = "LIST", value_parser = list::<String>)]
    profile: List<String>,
    /// Total number of GPUs; a list to sweep
    #[arg(long, default_value = "8,16,24,32,64,128,256,512,1024", value_name = "LIST", value_parser = counts::<u32>(4096))]
    gpus: List<u32>,
    /// Unit that is sent as one message; a list to sweep
    #[arg(long, value_enum, value_delimiter = ',', default_value = "expert,rank,node", value_name = "LIST")]
    unit: Vec<Unit>,
    /// Method of sending counts; a list to sweep
    #[arg(long, value_enum, value_delimiter = ',', default_value = "signal", value_name = "LIST")]
    count: Vec<ArrivalMethod>,
    /// Element type on the way to the experts (bf16 on the way back); a list to sweep
    #[arg(long = "type", value_enum, value_delimiter = ',', default_value = "fp8", value_name = "LIST")]
    kind: Vec<TokenType>,
    /// Tokens per GPU
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16384))]
    tokens: u32,
    /// Elements per token
    #[arg(long, default_value_t = 7168, value_name = "N")]
    hidden: u32,
    /// Number of experts, rounded up to a multiple of the GPUs
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    experts: u32,
    /// Experts per token
    #[arg(long, default_value_t = 8, value_name = "N")]
    topk: u32,
    /// Preference of the router for some experts: shares fall as this power of their rank (0 for equal shares)
    #[arg(long, default_value_t = 0.0, value_name = "POWER")]
    skew: f64,
    /// Seed of the router and of the latencies
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Rails per GPU [default: all cards of the GPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    rails: Option<u32>,
    /// Maximum number of messages from a GPU to another one that are sent in one write; a list to sweep
    #[arg(long, default_value = "1", value_name = "LIST", value_parser = counts::<u32>(1 << 20))]
    chunk: List<u32>,
    /// Number of NICs over which each write is split; a list to sweep
    #[arg(long, default_value = "1", value_name = "LIST", value_parser = counts::<u32>(64))]
    spread: List<u32>,
    /// Posting threads per GPU
    #[arg(long, alias = "proxies", default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    proxy_threads: u32,
}

/// Parameters of one row.
pub struct ModelMoeConfig {
    profile: String,
    gpus: u32,
    unit: Unit,
    count: ArrivalMethod,
    kind: TokenType,
    chunk: u32,
    spread: u32,
}

/// One-way time of a put with a signal over NVLink, in microseconds: 8 B by a block of 256 threads, two H200
/// (experiments/shmem).
const NEAR_US: f64 = 2.4;
/// Maximum of GPUs x tokens x choices. More take minutes.
const MOST_CHOICES: u64 = 1 << 25;

const PUBLISHED: &str = include_str!("../moe/published/efa.csv");

/// Published results for a comparable problem.
#[derive(Clone, Debug, Deserialize)]
struct Published {
    /// Name of the publication.
    case: String,
    profile: String,
    ranks: u32,
    unit: String,
    tokens: u32,
    dispatch_us: Option<f64>,
    combine_us: Option<f64>,
    dispatch_node_gbytes_s: Option<f64>,
    combine_node_gbytes_s: Option<f64>,
}

fn published() -> Result<Vec<Published>, Failure> {
    let mut reader = csv::Reader::from_reader(PUBLISHED.as_bytes());
    let rows: Result<Vec<Published>, csv::Error> = reader.deserialize().collect();
    rows.map_err(|error| Failure::Run(format!("published/efa.csv: {error}")))
}

const PROXY_THREADS: Column = crate::columns::PROXIES;
const CHUNK: Column =
    Column::chosen("chunk", "", "Maximum number of messages to one target that are sent in one write over rails");
const SPREAD: Column = Column::chosen("spread", "", "Number of NICs over which each write is split");
const NODE_RATES: [Column; 2] = [
    Column::measured(
        "dispatch_node_gbytes_s",
        "GB/s",
        "Bandwidth as defined by DeepEP's high-throughput test: a message for each token and target node, including \
         its own, divided by the time; for unit `node`",
    ),
    Column::measured("combine_node_gbytes_s", "GB/s", "The same for answers"),
];
const RATIOS: [Column; 2] = [
    Column::measured(
        "dispatch_ratio",
        "",
        "Published time divided by modelled time of dispatch; above 1 the model is faster",
    )
    .shown("d ratio", 7),
    Column::measured("combine_ratio", "", "The same for combine"),
];

/// Experiment that runs one simulation per row.
pub struct MoeModel {
    args: ModelMoeArgs,
    published: Vec<Published>,
}

impl Experiment for MoeModel {
    type Args = ModelMoeArgs;
    type Config = ModelMoeConfig;

    const ABOUT: About = About {
        columns: &[
            UNIT,
            COUNT,
            TYPE,
            NODES,
            TOKENS,
            HIDDEN,
            EXPERTS,
            TOPK,
            SKEW,
            PROXY_THREADS,
            CHUNK,
            SPREAD,
            DISPATCH,
            COMBINE,
            NODE_RATES[0],
            NODE_RATES[1],
            MESSAGES,
            SENT,
            WIRE_US,
            RATE_US,
            BOUND,
            RATIOS[0],
            RATIOS[1],
        ],
        without: &[
            "grid",
            "block",
            "mode",
            "memory",
            "strategy",
            "bandwidth_gbytes_s",
            "rate_mops",
            "line_rate_pct",
            "baseline",
            "baseline_ratio",
            "wrong_bytes",
        ],
        headlines: &[],
        plots: &[Plot {
            name: "gpus",
            title: "modelled dispatch and combine by the number of GPUs",
            x: &["ranks"],
            y: "time_us_p50",
            y_label: Some("dispatch and combine (us)"),
            range: None,
            shape: ChartStyle::Curve,
            log_y: Some(true),
            ..Plot::TIME
        }],
        ..About::new("model-moe", "Simulate dispatch and combine of many machines over modelled cards")
    };

    fn plan(args: &mut ModelMoeArgs) -> Result<Plan<ModelMoeConfig>, Failure> {
        for profile in &args.profile {
            let cards = Cards::named(profile)?.profile.cards_per_gpu() as u32;
            if cards == 0 {
                return Err(usage(
                    "--profile",
                    format!("GPUs of a {profile} share cards, which this simulation does not support"),
                ));
            }
            if let Some(spread) = args.spread.iter().find(|spread| **spread > args.rails.unwrap_or(cards)) {
                let rails = args.rails.unwrap_or(cards);
                return Err(usage("--spread", format!("{spread}: a GPU of a {profile} uses {rails} NICs here")));
            }
            if let Some(rails) = args.rails.filter(|rails| *rails > cards) {
                return Err(usage("--rails", format!("{rails}: a GPU of a {profile} has only {cards} cards")));
            }
        }
        for gpus in &args.gpus {
            args.problem(*gpus, 8.min(*gpus)).check()?;
        }
        let most = args.gpus.iter().copied().max().map_or(0, u64::from) * u64::from(args.tokens) * u64::from(args.topk);
        if most > MOST_CHOICES {
            return Err(usage("--gpus", format!("{most} choices of tokens: at most {MOST_CHOICES} can be simulated")));
        }
        let all = iproduct!(
            &args.profile,
            &args.unit,
            &args.count,
            &args.kind,
            &args.chunk[..],
            &args.spread[..],
            &args.gpus[..]
        );
        let tuple = |(profile, &unit, &count, &kind, &chunk, &spread, &gpus): (&String, _, _, _, _, _, _)| {
            ModelMoeConfig { profile: profile.clone(), gpus, unit, count, kind, chunk, spread }
        };
        Ok(Plan::alone(all.map(tuple).collect()))
    }

    async fn open(
        args: &ModelMoeArgs,
        _: &mut Vec<ModelMoeConfig>,
        _: &mut Bootstrap,
    ) -> Result<(MoeModel, Header), Failure> {
        let mut header = Versions::header();
        for profile in &args.profile {
            header.note(Cards::named(profile)?.note());
        }
        header.note(format!(
            "dispatch and combine each start at time 0 with all tokens available; {NEAR_US} us one way within a \
             machine; not modelled: work of the GPU on tokens (cast, copies, sums), costs of receivers and of other \
             threads' posts, switches, loss; rows of device `published` are published figures \
             (experiments/moe/published), and their ratios are relative to the preceding modelled row"
        ));
        Ok((MoeModel { args: args.clone(), published: published()? }, header))
    }

    async fn tuple(&mut self, tuple: &ModelMoeConfig, _: &mut Bootstrap) -> Result<Rows, Failure> {
        if signals::interrupted() {
            return Err(Failure::Interrupted);
        }
        let (args, cards) = (&self.args, Cards::named(&tuple.profile)?);
        let profile = &cards.profile;
        let problem = args.problem(tuple.gpus, (profile.gpus.value as u32).min(tuple.gpus));
        problem.check()?;
        let router = Router::of(args.seed, args.skew, None, problem.experts, problem.topk)?;
        let rails = args.rails.unwrap_or(profile.cards_per_gpu() as u32);
        let near = (NEAR_US * 1e6) as u64;
        let setting = TokenParameters {
            problem,
            unit: tuple.unit,
            count: tuple.count,
            kind: tuple.kind,
            rails,
            proxies: args.proxy_threads,
            chunk: tuple.chunk,
            spread: tuple.spread,
            near,
            seed: args.seed,
        };
        let started = Instant::now();
        let both = tokens::run(&setting, profile, &router);
        // Durations are never part of a row, because rows are deterministic.
        eprintln!(
            "# {} GPUs by {} of a {}: {:.1} s",
            tuple.gpus,
            name(tuple.unit),
            cards.name,
            started.elapsed().as_secs_f64()
        );
        let [dispatch, combine] = both.map(|outcome| outcome.time as f64 / 1e6);
        let mut row = Row::new("model-moe", name(tuple.unit), "virtual", cards.fabric());
        let whole = dispatch + combine;
        row.times(&[whole]);
        self.describe(&mut row, &problem, tuple);
        row.rails = Some(rails);
        row.iterations = Some(1);
        row.size_bytes = Some(problem.message_bytes(tuple.kind));
        row.set(&PROXY_THREADS, u64::from(args.proxy_threads)).set(&SKEW, args.skew);
        row.set(&DISPATCH, dispatch).set(&COMBINE, combine);
        let posted = |of: fn(&TokenExchangeResult) -> u64| both.iter().map(of).sum::<u64>();
        let (messages, bytes) = (posted(|outcome| outcome.posted), posted(|outcome| outcome.bytes));
        row.set(&MESSAGES, messages).set(&SENT, bytes);
        let wire = bytes as f64 * 8.0 / (profile.line_rate_gbps.value * f64::from(rails)) / 1000.0;
        let cards_rate = profile.rate_per_rail_mops.value * f64::from(rails);
        let rate = messages as f64 / cards_rate.min(f64::from(args.proxy_threads) / profile.post_us.value);
        if messages > 0 {
            let bound = match wire.max(rate) {
                most if whole > 2.0 * most => "neither",
                _ if wire > rate => "wire",
                _ => "messages",
            };
            row.set(&WIRE_US, wire).set(&RATE_US, rate).set(&BOUND, bound);
        }
        let mut node_rates = [None; 2];
        if tuple.unit == Unit::Node {
            // Sum over all GPUs, for the mean per GPU.
            let crossings = (0..problem.pes)
                .map(|pe| problem.messages(tuple.unit, pe, &router.choices(&problem, pe, 0)).len())
                .sum::<usize>();
            let each = crossings as f64 / f64::from(problem.pes) / 1000.0;
            let bytes = [problem.counted_bytes(tuple.kind), problem.answer_bytes()];
            node_rates = [Some(each * bytes[0] as f64 / dispatch), Some(each * bytes[1] as f64 / combine)];
            row.set(&NODE_RATES[0], node_rates[0]).set(&NODE_RATES[1], node_rates[1]);
        }
        let mut rows = vec![(row, vec![whole])];
        let alike = |one: &&Published| {
            one.profile == cards.name
                && one.ranks == tuple.gpus
                && one.unit == name(tuple.unit)
                && one.tokens == args.tokens
        };
        let is_usual = args.hidden == 7168 && args.topk == 8 && tuple.kind == TokenType::Fp8;
        for one in self.published.iter().filter(alike).filter(|_| is_usual) {
            let mut row = Row::new("model-moe", one.case.clone(), "published", format!("efa {}", cards.name));
            self.describe(&mut row, &problem, tuple);
            row.set(&DISPATCH, one.dispatch_us).set(&COMBINE, one.combine_us);
            row.set(&NODE_RATES[0], one.dispatch_node_gbytes_s).set(&NODE_RATES[1], one.combine_node_gbytes_s);
            let by_time = [(one.dispatch_us, dispatch), (one.combine_us, combine)];
            let by_rate = [(one.dispatch_node_gbytes_s, node_rates[0]), (one.combine_node_gbytes_s, node_rates[1])];
            for ((column, (theirs, ours)), (their_rate, our_rate)) in RATIOS.iter().zip(by_time).zip(by_rate) {
                let by_rate = our_rate.zip(their_rate).map(|(ours, theirs)| ours / theirs);
                row.set(column, theirs.map(|theirs| theirs / ours).or(by_rate));
            }
            if let (Some(dispatch), Some(combine)) = (one.dispatch_us, one.combine_us) {
                row.times(&[dispatch + combine]);
            }
            rows.push((row, Vec::new()));
        }
        Ok(rows)
    }
}

impl ModelMoeArgs {
    fn problem(&self, gpus: u32, local: u32) -> MoeProblem {
        let ModelMoeArgs { tokens, hidden, topk, .. } = *self;
        MoeProblem { tokens, hidden, experts: self.experts.next_multiple_of(gpus), topk, pes: gpus, local }
    }
}

impl MoeModel {
    fn describe(&self, row: &mut Row, problem: &MoeProblem, tuple: &ModelMoeConfig) {
        row.ranks = problem.pes;
        row.set(&UNIT, name(tuple.unit)).set(&COUNT, name(tuple.count)).set(&TYPE, name(tuple.kind));
        row.set(&NODES, u64::from(problem.nodes()))
            .set(&TOKENS, u64::from(problem.tokens))
            .set(&HIDDEN, u64::from(problem.hidden));
        row.set(&EXPERTS, u64::from(problem.experts)).set(&TOPK, u64::from(problem.topk));
        row.set(&CHUNK, u64::from(tuple.chunk)).set(&SPREAD, u64::from(tuple.spread));
    }
}
