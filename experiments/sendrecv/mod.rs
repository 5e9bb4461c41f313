//! `ginlab sendrecv`: measures two-sided messages through the fabric layer, as round trips and windows.

mod passes;

use crate::args::{RepeatArgs, SizeArgs};
use crate::columns::{ACK, AGAIN, COMPLETION, RAIL_BYTES, WINDOW};
use crate::error::Failure;
use crate::job::{Job, JobArgs, USUAL_RAILS, rails_text};
use crate::program::CommandSpec;
use crate::runner::{Experiment, Plan, Rows, percentiles, program};
use crate::series::{Bench, CaseResults, Sample};
use crate::values::{self, List, counts, usage};
use crate::versus;
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::Access;
use ginlab::fabric::any::AnyRail;
use ginlab::flow::{Peer, Region};
use ginlab::measure::size;
use ginlab::rails::Counters;
use ginlab::report::{About, Header, Headline, Plot, Row, RowStatus};
use itertools::iproduct;

pub const PROGRAMS: &[CommandSpec] = &[program::<Sendrecv>()];

const EXAMPLES: &str = "\
Examples:
  ginlab sendrecv                                     run two ranks on this machine: round trips and windows of 16
  ginlab sendrecv -b 8 -e 1M -f 8 --rails 1,4 --window 64   sweep sizes and rails
  ginlab sendrecv --mode roundtrip -b 8 -e 8 -n 10000 measure the latency of a small message, p50 and p99
  ginlab sendrecv -p efa --versus efa-verbs           compare libfabric with verbs on the same NICs
  mpirun -np 2 ginlab sendrecv --provider efa         run ranks started by MPI (build with --features mpi)
  RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 GINLAB_TOKEN=secret ginlab sendrecv   run one of two hosts, over TCP";

/// Index of the part with half of the time of each round trip, and the maximum number of such times per run.
const SINGLES: usize = 0;
const MOST_SINGLES: usize = 100_000;

/// Requirement for the number of ranks.
const EVEN: &str = "must be even, because half of the ranks send to the other half";

/// Options of `ginlab sendrecv`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SendrecvArgs {
    #[command(flatten)]
    sizes: SizeArgs,
    /// Round trips, or messages in window mode, per repeat; reduced if a repeat would move more than --volume
    #[arg(short = 'n', long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    iterations: u32,
    #[command(flatten)]
    repeat: RepeatArgs,
    /// Maximum bytes that one repeat moves; larger messages are sent fewer times
    #[arg(long, default_value = "64M", value_name = "SIZE", value_parser = size::parse)]
    volume: u64,
    /// Modes to measure: roundtrip (one message at a time; time_us is half of a round trip), window (one direction,
    /// with --window messages in flight)
    #[arg(
        short = 'm',
        long,
        default_value = "roundtrip,window",
        value_name = "LIST",
        value_delimiter = ',',
        value_enum,
        hide_possible_values = true
    )]
    mode: Vec<Mode>,
    /// Messages in flight in window mode
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    window: u32,
    /// Number of rails per rank; a list to sweep. Messages use the rails round-robin [default: 1,4, limited to the
    /// number of NICs]
    #[arg(long, value_name = "LIST", value_parser = counts::<usize>(64))]
    rails: Option<List<usize>>,
    /// Measure the same messages over this provider too, interleaved with those over --provider, with the ratio of
    /// times
    #[arg(long, value_name = "NAME")]
    versus: Option<String>,
    #[command(flatten)]
    job: JobArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// Round trips of one message at a time; time_us is half of a round trip
    Roundtrip,
    /// One direction, with a window of messages in flight
    Window,
}

/// Parameters of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SendrecvConfig {
    mode: Mode,
    bytes: u64,
    rails: usize,
    /// Messages in flight: 1 for round trips.
    window: u64,
    messages: u64,
}

impl SendrecvConfig {
    fn stride(&self) -> u64 {
        self.bytes.next_multiple_of(64).max(64)
    }
}

fn tuples(args: &SendrecvArgs) -> Result<Vec<SendrecvConfig>, Failure> {
    if args.sizes.end > 1 << 40 {
        return Err(usage("-e", "messages must be at most 1 TiB"));
    }
    let sizes = args.sizes.list()?;
    let rails = args.rails.as_deref().unwrap_or(&USUAL_RAILS);
    let tuple = |(&mode, &rails, &bytes): (&Mode, &_, &u64)| {
        let window = if mode == Mode::Roundtrip { 1 } else { u64::from(args.window) };
        let most = args.volume.checked_div(bytes).unwrap_or(u64::MAX).max(window.min(4));
        let messages = u64::from(args.iterations).min(most).max(1);
        SendrecvConfig { mode, bytes, rails, window, messages }
    };
    Ok(iproduct!(&args.mode, rails, &sizes).map(tuple).collect())
}

/// A rank that sends or receives.
pub struct Sendrecv {
    args: SendrecvArgs,
    job: Job,
    out: Region<AnyRail>,
    into: Region<AnyRail>,
    peer: Peer,
    other: usize,
    /// Whether this rank sends first.
    begins: bool,
    iteration: u32,
    /// The same rank over the provider of --versus, or the reason why that provider has no messages.
    versus: Option<Result<Box<Sendrecv>, String>>,
}

impl Experiment for Sendrecv {
    type Args = SendrecvArgs;
    type Config = SendrecvConfig;

    const ABOUT: About = About {
        columns: &[WINDOW, COMPLETION, AGAIN, RAIL_BYTES, ACK[0], ACK[1], ACK[2]],
        without: &["grid"],
        shows_memory: true,
        headlines: &[Headline::least(
            "half a round trip of 8 B",
            "time_us_p50",
            &[("mode", "roundtrip"), ("size_bytes", "8")],
        )],
        plots: &[Plot::TIME, Plot::BANDWIDTH, Plot::RATE],
        ..About::new("sendrecv", "Measure two-sided messages: round trips and windows")
    };

    fn plan(args: &mut SendrecvArgs) -> Result<Plan<SendrecvConfig>, Failure> {
        args.job.usual_rails(&mut args.rails);
        if let Some(provider) = &args.versus {
            args.job.over(provider)?;
        }
        let tuples = tuples(args)?;
        let fingerprint = vec![
            ("rails".to_owned(), rails_text(args.rails.as_deref().unwrap_or_default())),
            ("rows".to_owned(), format!("{tuples:?}")),
            (
                "options".to_owned(),
                format!("{} check {} versus {:?}", args.repeat.repeats, !args.repeat.no_check, args.versus),
            ),
        ];
        let ranks = args.job.ranks(fingerprint, |ranks| match ranks {
            0 | 1 => Err(usage("--np", EVEN)),
            odd if !odd.is_multiple_of(2) => Err(usage(&format!("--np {odd}"), EVEN)),
            _ => Ok(()),
        })?;
        Ok(Plan::of_ranks(tuples, ranks))
    }

    async fn open(
        args: &SendrecvArgs,
        tuples: &mut Vec<SendrecvConfig>,
        ranks: &mut Bootstrap,
    ) -> Result<(Sendrecv, Header), Failure> {
        let mut sendrecv = Sendrecv::open_over(args, &args.job, tuples, ranks)?;
        let mut header = sendrecv.job.header(args.job.memory, ranks);
        header.notes(ranks.pairing().note()).note(
            "time_us is the time per message and pair; in mode roundtrip it is half of a round trip, and ack_us has \
             percentiles of half of single round trips",
        );
        if let Some(provider) = &args.versus {
            // A provider without messages refuses on all ranks, before it opens anything.
            let versus = match Sendrecv::open_over(args, &args.job.over(provider)?, tuples, ranks) {
                Ok(versus) => Ok(Box::new(versus)),
                Err(Failure::Usage(why)) => Err(why),
                Err(other) => return Err(other),
            };
            if let Ok(Sendrecv { job, .. }) = versus.as_deref() {
                versus::note(&mut header, job);
            }
            sendrecv.versus = Some(versus);
        }
        Ok((sendrecv, header))
    }

    async fn tuple(&mut self, tuple: &SendrecvConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let mut versus = self.versus.take();
        let skipped = versus.as_ref().and_then(|versus| versus.as_ref().err()).map(|why| self.skipped(tuple, why));
        let second = versus.as_mut().and_then(|versus| versus.as_deref_mut().ok());
        let rows = self.measure(second, tuple, ranks).await;
        self.versus = versus;
        let mut rows = rows?;
        if ranks.rank() == 0 {
            rows.extend(skipped.map(|row| (row, Vec::new())));
        }
        Ok(rows)
    }

    fn what(_: &Row) -> String {
        "messages".into()
    }
}

impl Sendrecv {
    /// Opens the rails of one provider, and connects to all ranks.
    fn open_over(
        args: &SendrecvArgs,
        over: &JobArgs,
        tuples: &[SendrecvConfig],
        ranks: &mut Bootstrap,
    ) -> Result<Sendrecv, Failure> {
        let memory = tuples.iter().map(|tuple| tuple.stride() * tuple.window).max().unwrap_or(64);
        let rails = tuples.iter().map(|tuple| tuple.rails).max().unwrap_or(1);
        let mut job = Job::open(over, rails, true, memory * 2, ranks)?;
        let out = job.register(over.memory, memory, Access::SOURCE)?;
        let into = job.register(over.memory, memory, Access::SINK)?;
        job.connect(&[], ranks)?;
        job.drive(true);
        let pairing = ranks.pairing();
        // The number of ranks is even, so that every rank has a partner.
        let other = pairing.partner(ranks.rank()).unwrap_or_default();
        let begins = pairing.target(ranks.rank()).is_some();
        let peer = job.connections[other].peer;
        let args = SendrecvArgs { job: over.clone(), ..args.clone() };
        Ok(Sendrecv { args, job, out, into, peer, other, begins, iteration: 1, versus: None })
    }

    /// Measures a parameter combination, interleaved over both providers if there are two.
    async fn measure(
        &mut self,
        versus: Option<&mut Sendrecv>,
        tuple: &SendrecvConfig,
        ranks: &mut Bootstrap,
    ) -> Result<Rows, Failure> {
        let repeat = self.args.repeat;
        let mut sides = Sides { sides: std::iter::once(self).chain(versus).collect(), tuple: *tuple, active: 0 };
        let cases: Vec<usize> = (0..sides.sides.len()).collect();
        let results = repeat.series("a repeat of messages").measure(&mut sides, &cases, ranks).await?;
        sides.sides.iter_mut().for_each(|side| side.job.drive(true));
        let Some(results) = results else { return Ok(Rows::new()) };
        let row = |side: usize, measured: &CaseResults| {
            let pairs = measured.senders();
            let mut row = sides.sides[side].row(tuple);
            measured.fill(&mut row, tuple.bytes * pairs, pairs);
            row.line_rate(sides.sides[side].job.line_rate(tuple.rails).map(|line| line * pairs));
            measured.count(&mut row, tuple.rails);
            percentiles(&mut row, &ACK, measured.of_rank_0(SINGLES));
            row
        };
        let mut rows = results.rows(row, |side| (0..side).collect());
        versus::name_baseline(&mut rows, "sendrecv");
        Ok(rows)
    }

    /// Returns a row without results.
    fn row(&self, tuple: &SendrecvConfig) -> Row {
        let mut row = self.job.row("sendrecv", "sendrecv", tuple.rails, &self.args.job);
        row.mode = Some(values::name(tuple.mode));
        row.size_bytes = Some(tuple.bytes);
        row.iterations = Some(tuple.messages);
        row.set(&WINDOW, tuple.window);
        row
    }

    /// Returns the row of a provider that has no messages.
    fn skipped(&self, tuple: &SendrecvConfig, why: &str) -> Row {
        let mut row = self.row(tuple);
        row.fabric = self.args.versus.clone().unwrap_or_default();
        row.iterations = None;
        row.status = RowStatus::Skipped(why.to_owned());
        row
    }
}

/// One parameter combination over one or two providers.
struct Sides<'a> {
    sides: Vec<&'a mut Sendrecv>,
    tuple: SendrecvConfig,
    /// Index of the provider whose rails are driven.
    active: usize,
}

impl Bench for Sides<'_> {
    /// Index of the provider: 0 for --provider, 1 for --versus.
    type Case = usize;

    async fn verify(&mut self, side: usize, ranks: &mut Bootstrap) -> Result<Option<u64>, Failure> {
        self.prepare(side)?;
        self.sides[side].verify(self.tuple, ranks).await
    }

    fn prepare(&mut self, active: usize) -> Result<(), Failure> {
        self.active = active;
        versus::drive_only(self.sides.iter_mut().map(|side| &mut side.job), active);
        Ok(())
    }

    async fn run(&mut self, side: usize, _: u64, ranks: &mut Bootstrap) -> Result<Sample, Failure> {
        self.sides[side].run(self.tuple, ranks).await
    }

    fn counters(&self) -> Result<Counters, Failure> {
        Ok(self.sides[self.active].job.flow.counters())
    }
}
