//! `ginlab write`: measures CPU-initiated writes through the fabric layer, compared with a minimal loop of `fi_write`.

mod args;
mod each_rail;
mod measure;

use crate::columns::{ACK, AGAIN, COLD, COMPLETION, RAIL_BYTES, SLOT_BYTES, WINDOW};
use crate::error::Failure;
use crate::job::{Job, JobArgs, USUAL_RAILS, rails_text};
use crate::nodes;
use crate::output::OutputArgs;
use crate::program::CommandSpec;
use crate::rail_rates::RailRate;
use crate::runner::{Experiment, Plan, Rows, program};
use crate::values::usage;
use crate::versus;
use args::{Targets, WriteArgs};
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::Access;
use ginlab::rails::strategy::Strategy;
use ginlab::report::{About, Column, Header, Headline, Plot, Row};
use itertools::iproduct;
use measure::WritingRank;

/// Rank that wrote over a rail.
const RANK: Column = Column::chosen("rank", "", "Rank that wrote over the rail of the row");
/// Host that was written to.
const PEER: Column = Column::chosen("peer", "", "Host that was written to over the rail of the row");
/// Index of a rail.
const RAIL: Column = Column::chosen("rail", "", "Index of the rail of the row among the rails of its rank");
const DOMAIN: Column = Column::follows("domain", "", "Domain of the rail of the row");
const PCI: Column = Column::follows("pci", "", "PCI address of the NIC of the rail of the row");
const GPU: Column = Column::follows("gpu", "", "PCI address of the GPU of the rank that wrote");
const MEDIAN_PCT: Column = Column::measured(
    "of_median_pct",
    "%",
    "Rate of the rail of the row in percent of the median of all rails of all hosts",
);

pub const PROGRAMS: &[CommandSpec] = &[program::<WritingRank>()];

/// Parameters of one row, or of two with the bare loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteConfig {
    bytes: u64,
    rails: usize,
    strategy: Strategy,
    window: u32,
    buffers: u32,
    targets: Targets,
    /// Writes per target and repeat.
    writes: u64,
}

impl WriteConfig {
    /// Returns the distance in bytes between consecutive buffers.
    fn stride(&self) -> u64 {
        self.bytes.next_multiple_of(64)
    }
}

/// Returns every combination of the swept options.
fn tuples(args: &WriteArgs) -> Result<Vec<WriteConfig>, Failure> {
    let sizes = args.sizes.list()?;
    let rails = args.rails.as_deref().unwrap_or(&USUAL_RAILS);
    let tuple = |(&targets, &rails, &strategy, &window, &bytes): (&_, &_, &_, &u32, &u64)| {
        let most = (args.volume / bytes).max(u64::from(window.min(4)));
        let writes = u64::from(args.iterations).min(most).max(1);
        // For --each-rail, each rail has its own buffer.
        let buffers = if args.each_rail { rails as u32 } else { args.buffers.unwrap_or(window) };
        WriteConfig { bytes, rails, strategy, window, buffers, targets, writes }
    };
    Ok(iproduct!(&args.targets, rails, &args.strategy, &args.window, &sizes).map(tuple).collect())
}

/// Returns the bytes of the source, which are those of the destination.
fn memory(tuples: &[WriteConfig]) -> Result<u64, Failure> {
    let need = tuples.iter().map(|tuple| u128::from(tuple.stride()) * u128::from(tuple.buffers)).max().unwrap_or(64);
    let memory = u64::try_from(need).ok().filter(|memory| *memory < 1 << 46);
    memory.ok_or_else(|| usage("-e", "buffers must be at most 64 TiB"))
}

impl WritingRank {
    /// Opens the rails of one provider, connects to all ranks and drives the rails, even while this rank waits.
    fn open_over(
        args: &WriteArgs,
        job: &JobArgs,
        tuples: &[WriteConfig],
        ranks: &mut Bootstrap,
    ) -> Result<WritingRank, Failure> {
        let memory = memory(tuples)?;
        let rails = tuples.iter().map(|tuple| tuple.rails).max().unwrap_or(1);
        let mut opened = Job::open(job, rails, false, memory * 2, ranks)?;
        let source = opened.register(job.memory, memory, Access::SOURCE)?;
        let destination = opened.register(job.memory, memory, Access::REMOTE_WRITE)?;
        opened.connect(&[&destination], ranks)?;
        if args.per_node || args.at_least.is_some() {
            opened.flow.time_rails();
        }
        let places = opened.rail_places(&ranks.members()[ranks.rank()].host);
        let places = ranks.all_gather_values(&places, "names of the rails")?;
        let args = WriteArgs { job: job.clone(), ..args.clone() };
        let (pairing, rates) = (ranks.pairing(), Vec::new());
        opened.drive(true);
        Ok(WritingRank {
            args,
            job: opened,
            source,
            destination,
            pairing,
            places,
            rates,
            iteration: 1,
            used_rails: 0,
            versus: None,
        })
    }
}

impl Experiment for WritingRank {
    type Args = WriteArgs;
    type Config = WriteConfig;

    const ABOUT: About = About {
        columns: &[
            WINDOW,
            COMPLETION,
            AGAIN,
            RAIL_BYTES,
            SLOT_BYTES,
            ACK[0],
            ACK[1],
            ACK[2],
            nodes::OF,
            nodes::NODE,
            nodes::SENDERS,
            nodes::GPU_MIN,
            nodes::GPU_MAX,
            nodes::RAIL_MIN,
            nodes::RAIL_MAX,
            RANK,
            PEER,
            RAIL,
            DOMAIN,
            PCI,
            GPU,
            MEDIAN_PCT,
            COLD[0],
            COLD[1],
            COLD[2],
            COLD[3],
        ],
        without: &["grid"],
        shows_memory: true,
        headlines: &[
            Headline::most("CPU-initiated writes, highest bandwidth", "bandwidth_gbytes_s", &[("case", "write")]),
            Headline::least(
                "one write of 64 B until it is complete",
                "ack_us_p50",
                &[("case", "write"), ("size_bytes", "64")],
            ),
        ],
        plots: &[Plot::BANDWIDTH, Plot::RATIO, Plot::TIME, Plot::RATE],
        ..About::new("write", "Measure CPU-initiated writes: windows, rails, strategies, one or many targets")
    };

    fn plan(args: &mut WriteArgs) -> Result<Plan<WriteConfig>, Failure> {
        if args.sizes.begin == 0 {
            return Err(usage("--begin", "must be at least 1 byte"));
        }
        args.usual_rails();
        if let Some(provider) = &args.versus {
            args.job.over(provider)?;
        }
        let tuples = tuples(args)?;
        memory(&tuples)?;
        let options = format!(
            "{}x{} batch {} bare {} check {} each rail {} at least {:?} {:?} {:?} versus {:?}",
            args.iterations,
            args.repeat.repeats,
            args.batch,
            args.bare,
            !args.repeat.no_check,
            args.each_rail,
            args.at_least,
            args.job.memory,
            args.job.completion,
            args.versus
        );
        let rails = rails_text(args.rails.as_deref().unwrap_or_default());
        let fingerprint =
            vec![("rails".into(), rails), ("rows".into(), format!("{tuples:?}")), ("options".into(), options)];
        let one = args.targets.contains(&Targets::One);
        let ranks = args.job.ranks(fingerprint, move |ranks| match ranks {
            0 | 1 => Err(usage("--np", "requires at least 2 ranks")),
            odd if one && !odd.is_multiple_of(2) => {
                Err(Failure::Usage(format!("--np {odd}: --targets one requires an even number of ranks")))
            }
            _ => Ok(()),
        })?;
        Ok(Plan::of_ranks(tuples, ranks))
    }

    async fn open(
        args: &WriteArgs,
        tuples: &mut Vec<WriteConfig>,
        ranks: &mut Bootstrap,
    ) -> Result<(WritingRank, Header), Failure> {
        let mut write = WritingRank::open_over(args, &args.job, tuples, ranks)?;
        if let Some(at_least) = args.at_least {
            at_least.check(&write.places)?;
        }
        let mut header = write.job.header(args.job.memory, ranks);
        header.notes(write.pairing.note().filter(|_| args.targets.contains(&Targets::One)));
        if let Some(provider) = &args.versus {
            let versus = WritingRank::open_over(args, &args.job.over(provider)?, tuples, ranks)?;
            versus::note(&mut header, &versus.job);
            write.versus = Some(Box::new(versus));
        }
        header.note(
            "time_us is the time per write and target until all writes of a repeat are complete; ack_us is the time of \
             single writes from post to completion, in a separate pass; rates and bandwidths count all targets and \
             pairs of ranks; first_us and second_us are single writes before anything else was written over as many rails",
        );
        if args.each_rail {
            header.note(
                "case rail: each rail of a rank separately, then all of its rails concurrently; the time of a rail is \
                 that until its own last write is complete",
            );
        }
        Ok((write, header))
    }

    async fn tuple(&mut self, tuple: &WriteConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        if self.args.each_rail { self.each_rail(tuple, ranks).await } else { self.measure(tuple, ranks).await }
    }

    async fn close(self, _: &Header, output: &OutputArgs, ranks: &mut Bootstrap) -> Result<(), Failure> {
        if self.args.each_rail && ranks.rank() == 0 {
            output.print_table(&RailRate::table(&self.rates))?;
            RailRate::slow(&self.rates).iter().for_each(|line| eprintln!("# {line}"));
        }
        let Some(at_least) = self.args.at_least else { return Ok(()) };
        // All ranks exit with the same code.
        let verdicts = ranks.all_gather_values(&at_least.verdict(&self.rates), "rates of the rails")?;
        verdicts.into_iter().flatten().next().map_or(Ok(()), |text| Err(Failure::Unfit(text)))
    }

    fn what(_: &Row) -> String {
        "writes".into()
    }
}
