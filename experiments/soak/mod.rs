//! `ginlab soak`: one command line, run again for each of many seeds, with all ranks as threads of this process.

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
use std::time::Instant;

pub const PROGRAMS: &[Program] = &[program::<Soak>()];

/// What is replaced by the number of the seed.
const SEED: &str = "{seed}";
/// Failures that are told one by one; the others are counted.
const MOST_TOLD: u64 = 10;

const EXAMPLES: &str = "\
Examples:
  ginlab soak --seeds 1000 -- jacobi -d emulated --exchange resident --path rails -p worst:seed={seed} --nx 64 --ny 16 -n 50 -r 1
  ginlab soak --seeds 200 --csv soak.csv -- shmem -d emulated --np 3 --path rails -p worst:seed={seed} --cases message -n 20
{seed} in any word of the command stands for the number of the seed.";

/// Options of `ginlab soak`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// How many seeds
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1, value_name = "N")]
    first: u64,
    /// Stop at the first seed that fails
    #[arg(long)]
    stop: bool,
    /// The command, with the word {seed}: an experiment and its options
    #[arg(last = true, required = true, value_name = "COMMAND")]
    words: Vec<String>,
}

const SEEDS: Column = Column::measured("seeds", "", "Seeds that were run").shown("seeds", 8);
const FIRST_FAILED: Column =
    Column::measured("first_failed_seed", "", "The first seed whose run failed; empty: none").shown("failed", 8);
const COMMAND: Column = Column::chosen("command", "", "The command line that each seed ran");

/// One command line for many seeds.
pub struct Soak {
    args: Args,
}

impl Args {
    /// The experiment that the command names, and its options for one seed.
    fn parse(&self, seed: u64) -> Result<(&'static Program, ArgMatches), Failure> {
        let words = self.words.iter().map(|word| word.replace(SEED, &seed.to_string()));
        let name = &self.words[0];
        let found = program::all().iter().find(|program| program.name == name && program.in_process.is_some());
        let Some(program) = found.filter(|program| program.name != Soak::ABOUT.name) else {
            let all = program::all().iter().filter(|program| program.in_process.is_some());
            let names: Vec<&str> = all.map(|program| program.name).filter(|name| *name != Soak::ABOUT.name).collect();
            return Err(usage("COMMAND", format!("{name:?} is no experiment; there are {}", names.join(", "))));
        };
        Ok((program, program.command().try_get_matches_from(words)?))
    }

    fn check(&self) -> Result<(), Failure> {
        if self.first.checked_add(self.seeds - 1).is_none() {
            return Err(usage("--first", "the last seed does not fit into 64 bits"));
        }
        if !self.words.iter().any(|word| word.contains(SEED)) {
            return Err(usage("COMMAND", format!("no word has {SEED}: every run would be the same")));
        }
        if self.words.iter().any(|word| soft::is_asked(word)) {
            return Err(usage("COMMAND", "cards in software are loaded before a process starts: soak cannot use them"));
        }
        self.parse(self.first).map(drop)
    }
}

impl Experiment for Soak {
    type Args = Args;
    type Tuple = ();

    const ABOUT: About = About {
        columns: &[SEEDS, FIRST_FAILED, COMMAND],
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
        let (mut times, mut shown) = (Vec::new(), None);
        let (mut failed, mut first_failed) = (0, None);
        for seed in args.first..=args.first + (args.seeds - 1) {
            let (program, matches) = args.parse(seed)?;
            let began = Instant::now();
            // A thread of its own: the experiment has an event loop, and this one's is running.
            let ran = std::thread::scope(|scope| {
                let run = scope.spawn(|| program.in_process.map_or(Ok(Vec::new()), |run| run(&matches)));
                run.join().unwrap_or_else(|_| Err(Failure::Run("the run has panicked".into())))
            });
            match ran {
                Ok(rows) => shown = shown.or_else(|| rows.into_iter().next()),
                Err(failure @ (Failure::Usage(_) | Failure::Unfit(_) | Failure::Interrupted)) => return Err(failure),
                Err(_) if signals::interrupted() => return Err(Failure::Interrupted),
                Err(failure) => {
                    failed += 1;
                    first_failed = first_failed.or(Some(seed));
                    if failed <= MOST_TOLD {
                        let command = args.words.join(" ").replace(SEED, &seed.to_string());
                        eprintln!("ginlab: seed {seed}: {}: ginlab {command}", failure.text().unwrap_or_default());
                    }
                }
            }
            times.push(began.elapsed().as_secs_f64() * 1e6);
            if args.stop && failed > 0 {
                break;
            }
        }
        let mut row = Row::new(Soak::ABOUT.name, &args.words[0], "", "");
        if let Some(shown) = &shown {
            (row.device, row.fabric, row.ranks) = (shown.device.clone(), shown.fabric.clone(), shown.ranks);
        }
        row.set(&SEEDS, times.len() as u64).set(&FIRST_FAILED, first_failed).set(&COMMAND, args.words.join(" "));
        timed(&mut row, &times, 0, 1);
        row.wrong = Some(failed);
        if failed > 0 {
            row.status = Status::Failed(format!("{failed} of {} seeds", times.len()));
        }
        Ok(vec![(row, times)])
    }
}
