//! `ginlab ladder`: CPU-initiated writes, from one NIC with one buffer to all NICs of a node. Each step changes one
//! thing of the preceding step.
//!
//! A step is a configuration of the case `cpu-write` of `ginlab proxy`. Each step opens its rails and proxy threads, so
//! steps are measured one after another.

mod steps;

use super::args::ProxyArgs;
use super::measure::measure;
use super::rank::ProxyRank;
use super::trace::Traces;
use super::{PROXY_THREADS, header};
use crate::args::{RepeatArgs, SizeArgs};
use crate::columns::{AGAIN, COMPLETION, WINDOW};
use crate::error::Failure;
use crate::job::{MemoryKind, RankArgs};
use crate::ranks::Ranks;
use crate::runner::{Experiment, Plan, Rows};
use crate::values::{FAULT_HELP, Pin, fault, usage};
use clap::Parser;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::DeviceChoice;
use ginlab::fabric::libfabric::{Level, require_library};
use ginlab::fabric::{Fabric, discover};
use ginlab::measure::size;
use ginlab::proxy::ProxyFault;
use ginlab::rails::strategy::Strategy;
use ginlab::report::{About, ChartStyle, Column, Header, Headline, Plot, Row};
use steps::{LadderStep, Most, Rung, rungs};

const CHANGE: Column =
    Column::follows("change", "", "Change of the step compared with the preceding one").shown("change", 40);
const STEP_RATIO: Column =
    Column::measured("step_ratio", "", "Bandwidth divided by that of the preceding step").shown("ratio", 6);

/// Number of NICs if the machine or its profile does not determine it.
const USUAL_RAILS: usize = 4;
/// Default limit of the number of threads: one per GPU of a node.
const MOST_THREADS: usize = 8;
/// Maximum number of times that the rails are opened to measure a cold step.
const OPENINGS: u32 = 3;

const EXAMPLES: &str = "\
Examples:
  ginlab ladder -p model:p5 --no-copy                climb from one to 32 modelled cards of 100 Gb/s
  ginlab ladder -p tcp                               climb over the loopback, with four endpoints
  ginlab ladder -p soft-efa -b 1M                    use libfabric's EFA provider over four software NICs
  ginlab ladder -p efa --memory device               climb on an EFA machine, from GPU memory
  ginlab ladder --steps one,queue,nics --rails 2     measure some of the steps";

/// Options of `ginlab ladder`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LadderArgs {
    /// Steps to measure, in the order of the ladder: one, queue, nics, warm, threads, pin, shard, batch, lazy
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, hide_possible_values = true, default_values_t = LadderStep::ALL, hide_default_value = true)]
    steps: Vec<LadderStep>,
    /// Bytes per write
    #[arg(short = 'b', long, default_value = "64K", value_name = "SIZE", value_parser = size::parse)]
    bytes: u64,
    /// Timed writes per NIC and repeat
    #[arg(short = 'n', long, default_value_t = 200, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    iterations: u32,
    #[command(flatten)]
    repeat: RepeatArgs,
    /// Number of NICs from step `nics` on [default: those of the modelled or of this machine; 4 without NICs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    rails: Option<u32>,
    /// Number of threads from step `threads` on; must divide the number of NICs [default: at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Option<u32>,
    /// libfabric provider (efa, tcp, shm, ...), shared, null, modelled cards (model:p5), software NICs (soft-efa,
    /// efa-verbs/soft:p5), or worst [default: efa if available, else tcp]
    #[arg(short = 'p', long, value_name = "NAME")]
    provider: Option<Fabric>,
    /// Domains on which to open rails, in this order [default: automatic, nearest to the GPU first]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    domain: Vec<String>,
    /// Modelled cards copy data only in the verification pass (for rates above memory bandwidth)
    #[arg(long, alias = "no-move")]
    no_copy: bool,
    /// Completion of a write: delivery (data is at the target) or transmit (handed to the transport)
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = Level::Delivery, hide_possible_values = true)]
    completion: Level,
    /// Device that provides the memory and whose nearest NICs are used: gpu, emulated (CPU threads), or auto (the GPU
    /// if there is one)
    #[arg(short = 'd', long, value_enum, default_value_t = DeviceChoice::Auto, hide_possible_values = true)]
    device: DeviceChoice,
    /// Memory that holds the payload: auto, pinned (pinned host memory) or device (GPU memory)
    #[arg(long, value_enum, value_name = "MEM", default_value_t = MemoryKind::Auto, hide_possible_values = true)]
    memory: MemoryKind,
    /// Fault to inject
    #[arg(long, value_name = "FAULT", hide = true, help = FAULT_HELP, value_parser = fault)]
    fault: Option<ProxyFault>,
    #[command(flatten)]
    meet: RankArgs,
}

/// Parses the defaults of `ginlab proxy`.
#[derive(Parser)]
struct Defaults {
    #[command(flatten)]
    args: ProxyArgs,
}

impl LadderArgs {
    /// Returns the options of `ginlab proxy` that measure a step.
    fn of(&self, rung: &Rung) -> Result<ProxyArgs, Failure> {
        let Defaults { args } = Defaults::try_parse_from(["ladder"])?;
        let batch = rung.batch();
        Ok(ProxyArgs {
            sizes: SizeArgs { begin: self.bytes, end: self.bytes, factor: 2 },
            // A thread is a producer, and writes over its share of the NICs.
            iterations: (self.iterations * rung.rails as u32).div_ceil(rung.threads as u32),
            warmup: batch,
            repeats: Some(self.repeat.repeats),
            no_check: self.repeat.no_check,
            cases: if rung.waits { Vec::new() } else { vec![super::args::WritePath::CpuWrite] },
            cpu_batch: rung.waits.then(|| vec![batch]),
            grid: vec![rung.threads as u32],
            block: vec![1],
            window: Some(batch),
            rails: Some(vec![rung.rails]),
            strategy: vec![Strategy::RoundRobin],
            provider: self.provider.clone(),
            domain: self.domain.clone(),
            no_copy: self.no_copy,
            completion: self.completion,
            device: self.device,
            memory: self.memory,
            proxy_threads: rung.threads,
            own_rails: rung.own_rails,
            pin: if rung.is_pinned { Pin::Auto } else { Pin::Off },
            volume: u64::MAX,
            fault: self.fault,
            meet: self.meet.clone(),
            ..args
        })
    }

    /// Returns the numbers of NICs and threads that the ladder leads to.
    fn most(&self) -> Result<Most, Failure> {
        let fabric = self.provider.clone().unwrap_or_default();
        let found = || match (&fabric, fabric.counted_as()) {
            (Fabric::Model { profile, .. }, _) => profile.cards.value as usize,
            (_, Some(name)) if self.domain.is_empty() => discover::cards(name).unwrap_or(USUAL_RAILS),
            _ if self.domain.is_empty() => USUAL_RAILS,
            _ => self.domain.len(),
        };
        let rails = self.rails.map_or_else(found, |rails| rails as usize);
        let divides = |threads: &usize| rails.is_multiple_of(*threads);
        let threads = match self.threads.map(|threads| threads as usize) {
            Some(threads) if !divides(&threads) => {
                let text = format!("{threads}: must divide the number of NICs, {rails}, into equal parts");
                return Err(usage("--threads", text));
            }
            Some(threads) => threads,
            None => (1..=MOST_THREADS).rev().find(divides).unwrap_or(1),
        };
        let is_cold_first = !matches!(fabric, Fabric::Model { .. } | Fabric::Null);
        Ok(Most { rails, threads, is_cold_first })
    }
}

/// The ladder on one rank.
pub struct Ladder {
    args: LadderArgs,
    /// Bandwidth of the preceding step in Gb/s.
    last: Option<f64>,
}

impl Experiment for Ladder {
    type Args = LadderArgs;
    type Config = Rung;

    const ABOUT: About = About {
        columns: &[CHANGE, STEP_RATIO, PROXY_THREADS, WINDOW, COMPLETION, AGAIN],
        without: &["grid", "device", "time_us_p50", "time_us_p99", "baseline_ratio"],
        shows_line: true,
        headlines: &[Headline::most("CPU-initiated writes over all NICs", "bandwidth_gbytes_s", &[])],
        plots: &[Plot {
            x: &["case"],
            y: "bandwidth_gbits_s",
            title: "bandwidth by step",
            shape: ChartStyle::Bars,
            ..Plot::BANDWIDTH
        }],
        ..About::new("ladder", "Measure CPU-initiated writes from one NIC to all NICs, one change per step")
    };

    fn plan(args: &mut LadderArgs) -> Result<Plan<Rung>, Failure> {
        if args.bytes == 0 {
            return Err(usage("--bytes", "must be at least 1 byte"));
        }
        let (rungs, _) = rungs(&args.steps, &args.most()?);
        let (mut fingerprint, mut check) = (Vec::new(), None);
        for rung in &rungs {
            let of_rung = args.of(rung)?;
            of_rung.check()?;
            if of_rung.needs_library() {
                require_library()?;
            }
            fingerprint.extend(
                of_rung
                    .fingerprint(&of_rung.tuples()?)
                    .into_iter()
                    .map(|(name, value)| (format!("{name} of step {}", rung.name()), value)),
            );
            check = Some(of_rung.check_ranks());
        }
        let Some(check) = check else { return Err(usage("--steps", "none of these steps has a meaning here")) };
        let default = if matches!(args.provider, Some(Fabric::Null)) { 1 } else { 2 };
        let ranks = Ranks { default, ..args.meet.ranks(fingerprint, check) };
        Ok(Plan::of_ranks(rungs, ranks))
    }

    async fn open(
        args: &LadderArgs,
        rungs: &mut Vec<Rung>,
        ranks: &mut Bootstrap,
    ) -> Result<(Ladder, Header), Failure> {
        let (_, absent) = steps::rungs(&args.steps, &args.most()?);
        if ranks.rank() == 0 {
            absent.iter().for_each(|(step, why)| tell_absent(*step, why));
        }
        // The header describes the last step, which opens all NICs and threads.
        let last = rungs.last().map_or_else(|| args.of(&Rung::first()), |rung| args.of(rung))?;
        let rank = ProxyRank::open(&last, ranks)?;
        let mut header = header(&last, ranks, &rank);
        header.note(
            "a step opens its own rails; steps before `warm` are timed from their first write on, without a pass before \
             it, and verified afterwards",
        );
        Ok((Ladder { args: args.clone(), last: None }, header))
    }

    async fn tuple(&mut self, rung: &Rung, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let args = self.args.of(rung)?;
        let mut rows =
            if rung.is_cold { self.cold(rung, &args, ranks).await? } else { warm(rung, &args, ranks).await? };
        for (row, _) in &mut rows {
            row.experiment = Self::ABOUT.name.to_owned();
            row.case = rung.name();
            row.set(&CHANGE, rung.change.as_str());
            let gbits_s = row.bandwidth_gbits_s;
            row.set(&STEP_RATIO, self.last.zip(gbits_s).map(|(last, this)| this / last));
            self.last = gbits_s.or(self.last);
        }
        Ok(rows)
    }

    fn what(row: &Row) -> String {
        format!("writes of step {}", row.case)
    }
}

impl Ladder {
    /// Measures a step without a warm-up: opens the rails for each repeat, and times their first writes. The writes are
    /// verified after the last repeat.
    async fn cold(&self, rung: &Rung, args: &ProxyArgs, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let tuple = args.tuples()?[0];
        let once = ProxyArgs { warmup: 0, repeats: Some(1), ..args.clone() };
        let first = ProxyArgs { no_check: true, ..once.clone() };
        let (mut rows, mut wrong, mut line) = (Rows::new(), None, None);
        let openings = self.args.repeat.repeats.min(OPENINGS);
        for opening in 1..=openings {
            let mut rank = ProxyRank::open(args, ranks)?;
            line = rank.line_rate(rung.rails);
            rows.extend(measure(&first, &tuple, &mut rank, ranks, &mut Traces::default()).await?);
            if opening == openings && !args.no_check {
                let verified = measure(&once, &tuple, &mut rank, ranks, &mut Traces::default()).await?;
                wrong = verified.first().and_then(|(row, _)| row.wrong_bytes);
            }
        }
        let times: Vec<f64> = rows.iter().flat_map(|(_, times)| times.iter().copied()).collect();
        let Some((mut row, _)) = rows.into_iter().next() else { return Ok(Rows::new()) };
        if !times.is_empty() {
            let writers = if args.is_null() { ranks.size() } else { ranks.size() / 2 } as u64;
            let writes = writers * rung.threads as u64;
            row.times(&times).throughput(writes * tuple.bytes, writes).line_rate(line.map(|line| line * writers));
            row.verified(wrong);
        }
        Ok(vec![(row, times)])
    }
}

/// Measures a step after a verified pass. Returns no row if the step pins threads and this machine has too few cores.
async fn warm(rung: &Rung, args: &ProxyArgs, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
    let mut rank = ProxyRank::open(args, ranks)?;
    if rung.step == LadderStep::Pin {
        let is_pinned = rank.group.proxies().iter().all(|proxy| proxy.offer().cpu.is_some());
        if !ranks.all_gather_values(&is_pinned, "pinned threads")?.into_iter().all(|pinned| pinned) {
            if ranks.rank() == 0 {
                tell_absent(LadderStep::Pin, "this machine has too few cores for the threads of all ranks");
            }
            return Ok(Rows::new());
        }
    }
    measure(args, &args.tuples()?[0], &mut rank, ranks, &mut Traces::default()).await
}

/// Reports a step that has no row.
fn tell_absent(step: LadderStep, why: &str) {
    eprintln!("ginlab: step {} is absent: {why}", step.name());
}
