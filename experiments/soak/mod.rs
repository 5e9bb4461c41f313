//! `ginlab soak`: one command line, run again for each of many seeds, or a random program for each seed, with all ranks as threads of this process.

mod random;

use crate::error::Failure;
use crate::program::{self, Program};
use crate::runner::{Experiment, Plan, Rows, program, timed};
use crate::values::usage;
use clap::ArgMatches;
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::soft;
use ginlab::report::{About, Column, Header, Row, Status};
use ginlab::signals;
use ginlab::versions::Versions;
use random::Drawn;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub const PROGRAMS: &[Program] = &[program::<Soak>()];

/// What is replaced by the number of the seed.
const SEED: &str = "{seed}";
/// Failures that are told one by one; the others are counted.
const MOST_TOLD: u64 = 10;

const EXAMPLES: &str = "\
Examples:
  ginlab soak --seeds 1000 -- jacobi -d emulated --exchange resident --path rails -p worst:seed={seed} --nx 64 --ny 16 -n 50 -r 1
  ginlab soak --seeds 200 --csv soak.csv -- shmem -d emulated --np 3 --path rails -p worst:seed={seed} --cases message -n 20
  ginlab soak --random --hours 8 --csv soak.csv
  ginlab soak --random --seeds 1 --first 4711        one program again
{seed} in any word of the command stands for the number of the seed.";

/// Options of `ginlab soak`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// How many seeds [default: 100, or as many as --hours lasts]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// A random program for each seed: sizes, ranks, rails, rules, scopes, networks, and in one of ten a fault
    #[arg(long, conflicts_with = "words")]
    random: bool,
    /// Begin no seed after this time
    #[arg(long, value_name = "H", value_parser = hours)]
    hours: Option<Duration>,
    /// The first seed
    #[arg(long, default_value_t = 1, value_name = "N")]
    first: u64,
    /// Stop at the first seed that fails
    #[arg(long)]
    stop: bool,
    /// The command, with the word {seed}: an experiment and its options
    #[arg(last = true, required_unless_present = "random", value_name = "COMMAND")]
    words: Vec<String>,
}

const SEEDS: Column = Column::measured("seeds", "", "Seeds that were run").shown("seeds", 8);
const FIRST_FAILED: Column =
    Column::measured("first_failed_seed", "", "The first seed whose run failed; empty: none").shown("failed", 8);
const COMMAND: Column =
    Column::chosen("command", "", "The command line that each seed ran; of random programs the seeds' options");
const FAULTS: Column =
    Column::measured("faults", "", "Seeds whose program had a fault: it may fail, but in time and without wrong bytes");

/// A run with a fault that lasts longer than this hangs: four times its deadline where threads share cores, the start, and the ranks' own waits.
const HANGS_AFTER: Duration = Duration::from_secs(20);

fn hours(text: &str) -> Result<Duration, String> {
    let hours = text.parse::<f64>().ok().filter(|hours| (1e-4..=1000.0).contains(hours));
    hours.map(|hours| Duration::from_secs_f64(hours * 3600.0)).ok_or(format!("{text:?} is not in 0.0001 to 1000 hours"))
}

/// What has come of the seeds of one experiment.
#[derive(Debug, Default)]
struct Tally {
    times: Vec<f64>,
    faults: u64,
    failed: u64,
    first_failed: Option<u64>,
    /// The first row of all.
    shown: Option<Row>,
}

/// One command line for many seeds.
pub struct Soak {
    args: Args,
}

impl Args {
    /// The program of a seed.
    fn drawn(&self, seed: u64) -> Drawn {
        if self.random {
            return random::draw(seed);
        }
        let words = self.words.iter().map(|word| word.replace(SEED, &seed.to_string()));
        Drawn { words: words.collect(), has_fault: false }
    }

    /// The experiment that a command names, and its options.
    fn parse(words: &[String]) -> Result<(&'static Program, ArgMatches), Failure> {
        let name = &words[0];
        let found = program::all().iter().find(|program| program.name == name && program.in_process.is_some());
        let Some(program) = found.filter(|program| program.name != Soak::ABOUT.name) else {
            let all = program::all().iter().filter(|program| program.in_process.is_some());
            let names: Vec<&str> = all.map(|program| program.name).filter(|name| *name != Soak::ABOUT.name).collect();
            return Err(usage("COMMAND", format!("{name:?} is no experiment; there are {}", names.join(", "))));
        };
        Ok((program, program.command().try_get_matches_from(words)?))
    }

    /// One more than the last seed.
    fn end(&self) -> Option<u64> {
        match (self.seeds, self.hours) {
            (None, Some(_)) => Some(u64::MAX),
            (seeds, _) => self.first.checked_add(seeds.unwrap_or(100)),
        }
    }

    fn check(&self) -> Result<(), Failure> {
        if self.end().is_none() {
            return Err(usage("--first", "the last seed does not fit into 64 bits"));
        }
        if self.random {
            return Ok(());
        }
        if !self.words.iter().any(|word| word.contains(SEED)) {
            return Err(usage("COMMAND", format!("no word has {SEED}: every run would be the same")));
        }
        if self.words.iter().any(|word| soft::is_asked(word)) {
            return Err(usage("COMMAND", "cards in software are loaded before a process starts: soak cannot use them"));
        }
        Args::parse(&self.drawn(self.first).words).map(drop)
    }

    /// What the row says was run.
    fn command(&self) -> String {
        if self.random { format!("--random --first {}", self.first) } else { self.words.join(" ") }
    }
}

/// Runs one program; its first row, or why it has failed.
fn run(drawn: &Drawn) -> Result<Option<Row>, Failure> {
    let (program, matches) = Args::parse(&drawn.words)?;
    let began = Instant::now();
    // A thread of its own: the experiment has an event loop, and this one's is running.
    let ran = std::thread::scope(|scope| {
        let run = scope.spawn(|| program.in_process.map_or(Ok(Vec::new()), |run| run(&matches)));
        run.join().unwrap_or_else(|_| Err(Failure::WrongData("the run has panicked".into())))
    });
    let took = began.elapsed();
    match ran {
        Err(Failure::Run(_) | Failure::Timeout(_)) if drawn.has_fault && took <= HANGS_AFTER => Ok(None),
        Err(failure) if drawn.has_fault && took > HANGS_AFTER => {
            let text = failure.text().unwrap_or_default();
            Err(Failure::Timeout(format!("ended after {:.0} s, behind all its limits: {text}", took.as_secs_f64())))
        }
        ran => ran.map(|rows| rows.into_iter().next()),
    }
}

impl Experiment for Soak {
    type Args = Args;
    type Tuple = ();

    const ABOUT: About = About {
        columns: &[SEEDS, FIRST_FAILED, FAULTS, COMMAND],
        without: &[
            "size_bytes",
            "mode",
            "grid",
            "rails",
            "bandwidth_gbytes_s",
            "rate_mops",
            "line_rate_pct",
            "baseline",
            "time_us_p99",
        ],
        ..About::new("soak", "Run one experiment again for each of many seeds, and count those that fail")
    };

    const WRONG: &'static str = "seeds";

    fn plan(args: &mut Args) -> Result<Plan<()>, Failure> {
        args.check()?;
        Ok(Plan::alone(vec![()]))
    }

    async fn open(args: &Args, _: &mut Vec<()>, _: &mut Bootstrap) -> Result<(Soak, Header), Failure> {
        let mut header = Versions::header();
        header.note("all ranks are threads of one process: times are of whole runs and say nothing about a network");
        Ok((Soak { args: args.clone() }, header))
    }

    async fn tuple(&mut self, (): &(), _: &mut Bootstrap) -> Result<Rows, Failure> {
        let args = &self.args;
        let (began, end) = (Instant::now(), args.end().unwrap_or(u64::MAX));
        let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
        let mut told = 0;
        for seed in args.first..end {
            if args.hours.is_some_and(|hours| began.elapsed() > hours) {
                break;
            }
            let drawn = args.drawn(seed);
            let tally = tallies.entry(drawn.words[0].clone()).or_default();
            let start = Instant::now();
            ginlab::cuda::set_task(&format!(": seed {seed}: ginlab {}", drawn.words.join(" ")));
            let ended = run(&drawn);
            // Where rails did not give back what they had been given, nothing is freed any more: 24 GB in nine minutes.
            ginlab::cuda::free_buffers_again();
            let failed = match ended {
                Ok(row) => {
                    tally.shown = tally.shown.take().or(row);
                    false
                }
                Err(failure @ (Failure::Unfit(_) | Failure::Interrupted)) => return Err(failure),
                // What was asked for cannot be; of what was drawn it is a failure like any other.
                Err(failure @ Failure::Usage(_)) if !args.random => return Err(failure),
                Err(_) if signals::interrupted() => return Err(Failure::Interrupted),
                Err(failure) => {
                    tally.failed += 1;
                    tally.first_failed = tally.first_failed.or(Some(seed));
                    told += 1;
                    if told <= MOST_TOLD {
                        let command = drawn.words.join(" ");
                        eprintln!("ginlab: seed {seed}: {}: ginlab {command}", failure.text().unwrap_or_default());
                    }
                    true
                }
            };
            tally.faults += u64::from(drawn.has_fault);
            tally.times.push(start.elapsed().as_secs_f64() * 1e6);
            if args.stop && failed {
                break;
            }
        }
        Ok(tallies.into_iter().map(|(name, tally)| args.row(&name, tally)).collect())
    }
}

impl Args {
    /// The row of an experiment's seeds, with the times of their runs.
    fn row(&self, name: &str, tally: Tally) -> (Row, Vec<f64>) {
        let Tally { times, faults, failed, first_failed, shown } = tally;
        let mut row = Row::new(Soak::ABOUT.name, name, "", "");
        if let Some(shown) = &shown {
            (row.device, row.ranks) = (shown.device.clone(), shown.ranks);
            // Random programs run over many.
            row.fabric = if self.random { "random".into() } else { shown.fabric.clone() };
        }
        row.set(&SEEDS, times.len() as u64).set(&FIRST_FAILED, first_failed).set(&COMMAND, self.command());
        row.set(&FAULTS, faults);
        timed(&mut row, &times, 0, 1);
        row.wrong = Some(failed);
        if failed > 0 {
            row.status = Status::Failed(format!("{failed} of {} seeds", times.len()));
        }
        (row, times)
    }
}
