//! `ginlab sendrecv`: two-sided messages, round trips and windows, through the fabric layer.

use crate::error::Failure;
use crate::job::{self, Job, JobArgs};
use crate::output::{Output, OutputArgs};
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::Access;
use ginlab::fabric::libfabric::LibfabricRail;
use ginlab::flow::{Peer, Region};
use ginlab::measure::stats::Summary;
use ginlab::measure::{pattern, size};
use ginlab::pairing::Pairing;
use ginlab::report::{Header, Row, Status};
use std::collections::VecDeque;
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  ginlab sendrecv                                     two ranks on this machine: round trips and windows of 16
  ginlab sendrecv -b 8 -e 1M -f 8 --rails 1,4 --window 64
  ginlab sendrecv --mode roundtrip -b 8 -e 8 -n 10000 latency of a small message, p50 and p99
  mpirun -np 2 ginlab sendrecv --provider efa         ranks from MPI (build with --features mpi)
  RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 GINLAB_TOKEN=secret ginlab sendrecv   one of two hosts by TCP";

/// Options of `ginlab sendrecv`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Smallest message [K, M, G are powers of two]
    #[arg(short = 'b', long, default_value = "8", value_name = "SIZE")]
    begin: String,
    /// Largest message
    #[arg(short = 'e', long, default_value = "1M", value_name = "SIZE")]
    end: String,
    /// Factor from one size to the next
    #[arg(short = 'f', long, default_value_t = 8, value_name = "N")]
    factor: u64,
    /// Round trips, or messages of a window, per repeat; fewer where a repeat would move more than --volume
    #[arg(short = 'n', long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    iterations: u32,
    /// Repeats; times are given as median, min and p99 over them
    #[arg(short = 'r', long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    repeats: u32,
    /// Bytes that one repeat may move; fewer messages above it
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    volume: String,
    /// What is measured; a list
    #[arg(
        short = 'm',
        long,
        default_value = "roundtrip,window",
        value_name = "LIST",
        value_delimiter = ',',
        value_enum
    )]
    mode: Vec<Mode>,
    /// Messages in flight, in window mode
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    window: u32,
    /// Rails per rank, a list that is swept; messages take turns
    #[arg(long, default_value = "1,4", value_name = "LIST")]
    rails: String,
    /// Do not verify every byte in a pass of its own
    #[arg(long)]
    no_check: bool,
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// There and back, one message at a time; time_us is half of it.
    Roundtrip,
    /// One way, a window of messages in flight.
    Window,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Roundtrip => "roundtrip",
            Mode::Window => "window",
        }
    }
}

/// One row.
#[derive(Clone, Copy, Debug)]
struct Tuple {
    mode: Mode,
    bytes: u64,
    rails: usize,
    /// In flight: 1 in a round trip.
    window: u64,
    messages: u64,
}

impl Tuple {
    fn stride(&self) -> u64 {
        self.bytes.next_multiple_of(64).max(64)
    }
}

fn plan(args: &Args) -> Result<Vec<Tuple>, Failure> {
    let usage = |option: &str, why: String| Failure::Usage(format!("{option}: {why}"));
    let bytes = |option: &str, text: &str| size::parse(text).map_err(|error| usage(option, error.to_string()));
    let (begin, end) = (bytes("--begin", &args.begin)?, bytes("--end", &args.end)?);
    let volume = bytes("--volume", &args.volume)?;
    let sweep = |begin| size::sweep(begin, end, args.factor).map_err(|error| usage("-b/-e/-f", error.to_string()));
    let sizes = match (begin, end) {
        (0, 0) => vec![0],
        (0, _) => [vec![0], sweep(1)?].concat(),
        _ => sweep(begin)?,
    };
    if end > 1 << 40 {
        return Err(usage("-e", "messages of more than 1 TiB".into()));
    }
    let rails = size::parse_list(&args.rails).map_err(|error| usage("--rails", error.to_string()))?;
    if let Some(rails) = rails.iter().find(|rails| **rails == 0 || **rails > 64) {
        return Err(usage("--rails", format!("{rails}: from 1 to 64")));
    }
    let mut tuples = Vec::new();
    for &mode in &args.mode {
        for &rails in &rails {
            for &bytes in &sizes {
                let window = if mode == Mode::Roundtrip { 1 } else { u64::from(args.window) };
                let most = volume.checked_div(bytes).unwrap_or(u64::MAX).max(window.min(4));
                let messages = u64::from(args.iterations).min(most).max(1);
                tuples.push(Tuple { mode, bytes, rails: rails as usize, window, messages });
            }
        }
    }
    Ok(tuples)
}

/// Runs the experiment on this rank.
pub fn run(args: &Args) -> Result<(), Failure> {
    let tuples = plan(args)?;
    let fingerprint = vec![
        ("rows".to_owned(), format!("{tuples:?}")),
        ("options".to_owned(), format!("{} check {}", args.repeats, !args.no_check)),
    ];
    job::run(&args.job, fingerprint, |ranks| {
        if ranks.size() < 2 || !ranks.size().is_multiple_of(2) {
            let text = format!("--np {}: half of the ranks talks to the other half: an even number", ranks.size());
            return Err(Failure::Usage(text));
        }
        rank(args, &tuples, ranks)
    })
}

fn rank(args: &Args, tuples: &[Tuple], ranks: &mut Bootstrap) -> Result<(), Failure> {
    let memory = tuples.iter().map(|tuple| tuple.stride() * tuple.window).max().unwrap_or(64);
    let rails = tuples.iter().map(|tuple| tuple.rails).max().unwrap_or(1);
    let mut job = Job::open(&args.job, rails, true, memory * 2, ranks)?;
    let out = job.register(args.job.mem, memory, Access::SOURCE)?;
    let into = job.register(args.job.mem, memory, Access::SINK)?;
    job.connect(&[], ranks)?;
    let pairing = ranks.pairing();
    // The number of ranks is even: everybody has a partner.
    let other = pairing.partner(ranks.rank()).unwrap_or_default();
    let begins = pairing.target(ranks.rank()).is_some();
    let header = header(args, &job, ranks, &pairing);
    let mut output = match ranks.rank() {
        0 => Some(Output::open(&args.output.options(), &header, tuples.len() as u64)?),
        _ => None,
    };
    let flow = job.flow.clone();
    let peer = job.connections[other].peer;
    let mut bench = Bench { args, job: &job, out, into, peer, other, begins, ranks, iteration: 1 };
    let mut wrong = None;
    let result = ginlab::flow::run([flow], async {
        for tuple in tuples {
            let row = bench.tuple(tuple).await?;
            if let (Some(output), Some((row, samples))) = (&mut output, row) {
                if row.wrong.is_some_and(|wrong| wrong > 0) {
                    let text = format!("verification failed: wrong bytes in messages of {} B", tuple.bytes);
                    wrong = wrong.take().or(Some(Failure::WrongData(text)));
                }
                output.rows(&[(row, samples)])?;
                output.step();
            }
        }
        Ok(())
    })
    .unwrap_or_else(|error| Err(Failure::Run(format!("no event loop: {error}"))));
    match output {
        Some(output) => output.close(result),
        None => result,
    }?;
    wrong.map_or(Ok(()), Err)
}

struct Bench<'a> {
    args: &'a Args,
    job: &'a Job,
    out: Region<LibfabricRail>,
    into: Region<LibfabricRail>,
    peer: Peer,
    other: usize,
    /// Whether this rank begins.
    begins: bool,
    ranks: &'a mut Bootstrap,
    iteration: u32,
}

impl Bench<'_> {
    async fn tuple(&mut self, tuple: &Tuple) -> Result<Option<(Row, Vec<f64>)>, Failure> {
        let mut times = Vec::new();
        let mut singles = Vec::new();
        self.repeat(tuple, &mut Vec::new()).await?;
        let before = self.job.flow.counters();
        for _ in 0..self.args.repeats {
            times.push(self.repeat(tuple, &mut singles).await?);
        }
        let after = self.job.flow.counters();
        let wrong = if self.args.no_check { None } else { Some(self.verify(tuple).await?) };
        let all = self.ranks.gather_values(&(times, wrong), "results of a row")?;
        let Some(all) = all else { return Ok(None) };
        let pairs = self.ranks.size() as u64 / 2;
        let slowest = |i: usize| all.iter().filter_map(|(times, _)| times.get(i)).fold(0.0, |a, b| f64::max(a, *b));
        let repeats = all.first().map_or(0, |(times, _)| times.len());
        let times: Vec<f64> = (0..repeats).map(slowest).collect();
        let mut row = Row::new("sendrecv", "sendrecv", "cpu", &self.job.provider);
        row.ranks = self.ranks.size() as u32;
        row.rails = Some(tuple.rails as u32);
        row.mode = Some(tuple.mode.name().into());
        row.memory = Some(self.args.job.mem.name().into());
        row.size_bytes = Some(tuple.bytes);
        row.iterations = Some(tuple.messages);
        row.window = Some(tuple.window as u32);
        row.completion = Some(format!("{:?}", self.args.job.completion).to_lowercase());
        if let Some(summary) = Summary::of(&times) {
            row.times(&summary).throughput(tuple.bytes * pairs, pairs);
        }
        if let Some(line) = self.job.line_rate(tuple.rails) {
            row.line_rate(line * pairs);
        }
        row.again = Some(after.again - before.again);
        let sent =
            after.rail_bytes.iter().zip(&before.rail_bytes).take(tuple.rails).map(|(after, before)| after - before);
        row.rail_bytes = Some(sent.collect());
        singles.sort_by(f64::total_cmp);
        let rank_of =
            |per_mille: usize| singles.get((singles.len() * per_mille).div_ceil(1000).saturating_sub(1)).copied();
        (row.ack_us_p50, row.ack_us_p99, row.ack_us_p999) = (rank_of(500), rank_of(990), rank_of(999));
        row.wrong = all.iter().filter_map(|(_, wrong)| *wrong).reduce(|a, b| a + b);
        if row.wrong.is_some_and(|wrong| wrong > 0) {
            row.status = Status::Failed("wrong bytes".into());
        }
        Ok(Some((row, times)))
    }

    /// One repeat: microseconds per message of the rank that begins; single round trips go to `singles`.
    async fn repeat(&mut self, tuple: &Tuple, singles: &mut Vec<f64>) -> Result<f64, Failure> {
        self.ranks.barrier("start of a repeat")?;
        let started = Instant::now();
        match tuple.mode {
            Mode::Roundtrip => self.round_trips(tuple, singles).await?,
            Mode::Window if self.begins => self.stream_out(tuple, tuple.messages).await?,
            Mode::Window => self.stream_in(tuple, tuple.messages).await?,
        }
        let elapsed = started.elapsed().as_secs_f64() * 1e6;
        if !self.begins {
            return Ok(0.0);
        }
        let ways = if tuple.mode == Mode::Roundtrip { 2 } else { 1 };
        Ok(elapsed / (tuple.messages * ways) as f64)
    }

    async fn round_trips(&mut self, tuple: &Tuple, singles: &mut Vec<f64>) -> Result<(), Failure> {
        let flow = &self.job.flow;
        let begins = self.begins;
        for number in 0..tuple.messages {
            let rail = (number % tuple.rails as u64) as usize;
            // Room first: a message that finds none is the provider's to keep.
            let room = flow.recv(rail, &self.into, 0, tuple.bytes);
            if begins {
                let started = Instant::now();
                let send = flow.send(rail, self.peer, &self.out, 0, tuple.bytes);
                self.expect(tuple, room.await?)?;
                if singles.len() < 100_000 {
                    singles.push(started.elapsed().as_secs_f64() * 1e6 / 2.0);
                }
                send.await?;
            } else {
                self.expect(tuple, room.await?)?;
                flow.send(rail, self.peer, &self.out, 0, tuple.bytes).await?;
            }
        }
        Ok(())
    }

    fn expect(&self, tuple: &Tuple, bytes: u64) -> Result<(), Failure> {
        if bytes == tuple.bytes {
            return Ok(());
        }
        Err(Failure::Run(format!("a message of {bytes} B from rank {} instead of {} B", self.other, tuple.bytes)))
    }

    async fn stream_out(&self, tuple: &Tuple, messages: u64) -> Result<(), Failure> {
        let flow = &self.job.flow;
        // The receiver's word that its first room is posted, and at the end that all has arrived.
        let credit = flow.recv(0, &self.into, 0, 1);
        credit.await?;
        let all = flow.recv(0, &self.into, 0, 1);
        let mut flight = VecDeque::with_capacity(tuple.window as usize);
        for number in 0..messages {
            if flight.len() as u64 == tuple.window
                && let Some(oldest) = flight.pop_front()
            {
                let oldest: ginlab::flow::Operation<LibfabricRail> = oldest;
                oldest.await?;
            }
            let rail = (number % tuple.rails as u64) as usize;
            let offset = number % tuple.window * tuple.stride();
            flight.push_back(flow.send(rail, self.peer, &self.out, offset, tuple.bytes));
        }
        for send in flight {
            send.await?;
        }
        all.await?;
        Ok(())
    }

    async fn stream_in(&self, tuple: &Tuple, messages: u64) -> Result<(), Failure> {
        let flow = &self.job.flow;
        let room = |number: u64| {
            let rail = (number % tuple.rails as u64) as usize;
            flow.recv(rail, &self.into, number % tuple.window * tuple.stride(), tuple.bytes)
        };
        let mut posted = 0;
        let mut rooms = VecDeque::with_capacity(tuple.window as usize);
        while posted < messages.min(tuple.window) {
            rooms.push_back(room(posted));
            posted += 1;
        }
        flow.send(0, self.peer, &self.out, 0, 1).await?;
        while let Some(oldest) = rooms.pop_front() {
            self.expect(tuple, oldest.await?)?;
            if posted < messages {
                rooms.push_back(room(posted));
                posted += 1;
            }
        }
        flow.send(0, self.peer, &self.out, 0, 1).await?;
        Ok(())
    }

    /// A window of messages over poison, of the rank that begins; the wrong bytes that this rank has found.
    async fn verify(&mut self, tuple: &Tuple) -> Result<u64, Failure> {
        let iteration = self.iteration;
        self.iteration += 1;
        let slots = || (0..tuple.window).map(|slot| ((slot * tuple.stride()) as usize, slot as u32));
        let mut payload = vec![0u8; tuple.bytes as usize];
        let rank = self.ranks.rank() as u32;
        for (offset, slot) in slots() {
            pattern::fill(&mut payload, pattern::seed(rank, iteration, slot));
            self.out.buffer().write(offset, &payload)?;
            pattern::poison(&mut payload, pattern::seed(self.other as u32, iteration, slot));
            self.into.buffer().write(offset, &payload)?;
        }
        self.ranks.barrier("start of the verified pass")?;
        if self.begins {
            self.stream_out(tuple, tuple.window).await?;
            return Ok(0);
        }
        self.stream_in(tuple, tuple.window).await?;
        let mut wrong = 0;
        for (offset, slot) in slots() {
            self.into.buffer().read(offset, &mut payload)?;
            wrong += pattern::check(&payload, pattern::seed(self.other as u32, iteration, slot)) as u64;
        }
        Ok(wrong)
    }
}

fn header(args: &Args, job: &Job, ranks: &Bootstrap, pairing: &Pairing) -> Header {
    let mut header = job.header(args.job.mem, ranks);
    if let Some(note) = pairing.note() {
        header.note(note);
    }
    header.note(
        "time_us is the time per message and pair; in mode roundtrip half of a round trip, and ack_us are percentiles of single \
         ones (half of each)",
    );
    header
}
