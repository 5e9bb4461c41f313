//! `ginlab soak`: repeats one command line for each of many seeds, or runs a random program per seed. All ranks are
//! threads of this process. A command that names a program, by a path, is started as a process.

mod junit;
mod outside;
mod random;

use crate::error::Failure;
use crate::program::{self, CommandSpec};
use crate::runner::{Experiment, Plan, Rows, program, timed};
use crate::values::{seconds, usage};
use clap::ArgMatches;
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::soft;
use ginlab::report::{About, Column, Header, Row, RowStatus};
use ginlab::signals;
use ginlab::versions::Versions;
use junit::SeedResult;
use random::Drawn;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub const PROGRAMS: &[CommandSpec] = &[program::<Soak>()];

/// Placeholder that is replaced by the number of the seed.
const SEED: &str = "{seed}";
/// Maximum number of failures that are printed. The others are only counted.
const MOST_TOLD: u64 = 10;

const EXAMPLES: &str = "\
Examples:
  ginlab soak --seeds 1000 -- jacobi -d emulated --exchange resident --path rails -p worst:seed={seed} --nx 64 --ny 16 -n 50 -r 1
  ginlab soak --seeds 200 --csv soak.csv -- shmem -d emulated --np 3 --path rails -p worst:seed={seed} --cases message-ping-pong -n 20
  ginlab soak --random --hours 8 --csv soak.csv      run random programs for 8 hours
  ginlab soak --random --seeds 1 --first 4711        repeat one random program
  ginlab soak --seeds 20 --junit soak.xml -- ./my-program worst:seed={seed}    run a program of your own

{seed} in any word of the command is replaced by the number of the seed. A first word with a slash is a program: it is started
for each seed, and a seed fails if its exit code is not 0.";

/// Options of `ginlab soak`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SoakArgs {
    /// Number of seeds [default: 100, or as many as fit in --hours]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Run a random program for each seed: sizes, ranks, rails, rules, scopes, networks, and a fault in one of ten
    #[arg(long, conflicts_with = "words")]
    random: bool,
    /// Start no seed after this time
    #[arg(long, value_name = "H", value_parser = hours)]
    hours: Option<Duration>,
    /// First seed
    #[arg(long, default_value_t = 1, value_name = "N")]
    first: u64,
    /// Stop at the first seed that fails
    #[arg(long, alias = "stop")]
    fail_fast: bool,
    /// Time after which a program is killed and its seed fails, in seconds. Experiments have --timeout
    #[arg(long, default_value = "600", value_name = "SECONDS", value_parser = seconds())]
    limit: Duration,
    /// Write one test case per seed as JUnit XML
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    junit: Option<PathBuf>,
    /// Command that contains {seed}: an experiment and its options, or a program
    #[arg(last = true, required_unless_present = "random", value_name = "COMMAND")]
    words: Vec<String>,
}

const SEEDS: Column = Column::measured("seeds", "", "Number of seeds that were run").shown("seeds", 8);
const FAILED: Column = Column::measured("failed_seeds", "", "Number of seeds whose run failed").shown("failed", 8);
const FIRST_FAILED: Column =
    Column::measured("first_failed_seed", "", "First seed whose run failed; empty if none did").shown("first", 8);
const COMMAND: Column =
    Column::chosen("command", "", "Command line of each seed; for random programs, the options that select the seeds");
const FAULTS: Column = Column::measured(
    "faults",
    "",
    "Number of seeds whose program had a fault: it may fail, but in time and without wrong bytes",
);

/// Duration after which a run with a fault counts as a hang. It is four times the run's deadline, because threads may
/// share cores, plus the time for the start and for the ranks' own waits.
const HANGS_AFTER: Duration = Duration::from_secs(20);

fn hours(text: &str) -> Result<Duration, String> {
    let hours = text.parse::<f64>().ok().filter(|hours| (1e-4..=1000.0).contains(hours));
    hours
        .map(|hours| Duration::from_secs_f64(hours * 3600.0))
        .ok_or(format!("invalid duration {text:?}: must be from 0.0001 to 1000 hours"))
}

/// Results of the seeds of one experiment.
#[derive(Debug, Default)]
struct Tally {
    times: Vec<f64>,
    faults: u64,
    failed: u64,
    first_failed: Option<u64>,
    /// The first row and its seed.
    shown: Option<(u64, Row)>,
}

/// One command line for many seeds.
pub struct Soak {
    args: SoakArgs,
}

impl SoakArgs {
    /// Returns the program of a seed.
    fn drawn(&self, seed: u64) -> Drawn {
        if self.random {
            return random::draw(seed);
        }
        let words = self.words.iter().map(|word| word.replace(SEED, &seed.to_string()));
        Drawn { words: words.collect(), has_fault: false }
    }

    /// Returns the experiment that a command names, and its options.
    fn parse(words: &[String]) -> Result<(&'static CommandSpec, ArgMatches), Failure> {
        let name = &words[0];
        let found = program::all().iter().find(|program| program.name == name && program.in_process.is_some());
        let Some(program) = found.filter(|program| program.name != Soak::ABOUT.name) else {
            let all = program::all().iter().filter(|program| program.in_process.is_some());
            let names: Vec<&str> = all.map(|program| program.name).filter(|name| *name != Soak::ABOUT.name).collect();
            let names = names.join(", ");
            let why =
                format!("unknown experiment {name:?}: expected one of {names}, or a program with a slash: ./{name}");
            return Err(usage("COMMAND", why));
        };
        Ok((program, program.command().try_get_matches_from(words)?))
    }

    /// Returns the last seed plus one. `None` on overflow.
    fn end(&self) -> Option<u64> {
        match (self.seeds, self.hours) {
            (None, Some(_)) => Some(u64::MAX),
            (seeds, _) => self.first.checked_add(seeds.unwrap_or(100)),
        }
    }

    fn check(&self) -> Result<(), Failure> {
        if self.end().is_none() {
            return Err(usage("--first", "the last seed does not fit in 64 bits"));
        }
        if self.random {
            return Ok(());
        }
        if !self.words.iter().any(|word| word.contains(SEED)) {
            return Err(usage("COMMAND", format!("no word contains {SEED}, so that all runs would be the same")));
        }
        if outside::is_program(&self.words) {
            return Ok(());
        }
        if self.words.iter().any(|word| soft::is_asked(word)) {
            return Err(usage(
                "COMMAND",
                "soak does not support soft-efa, which must be loaded before the process starts",
            ));
        }
        SoakArgs::parse(&self.drawn(self.first).words).map(drop)
    }

    /// Returns the value of column `command`.
    fn command(&self) -> String {
        if self.random { format!("--random --first {}", self.first) } else { self.words.join(" ") }
    }
}

/// Runs one seed. Returns its first row, or its failure.
fn run(drawn: &Drawn, limit: Duration) -> Result<Option<Row>, Failure> {
    if outside::is_program(&drawn.words) {
        return outside::run(&drawn.words, limit).map(|()| None);
    }
    let (program, matches) = SoakArgs::parse(&drawn.words)?;
    let began = Instant::now();
    // Uses a separate thread, because the experiment starts its own event loop and this thread already runs one.
    let ran = std::thread::scope(|scope| {
        let run = scope.spawn(|| program.in_process.map_or(Ok(Vec::new()), |run| run(&matches)));
        run.join().unwrap_or_else(|_| Err(Failure::WrongData("the run panicked".into())))
    });
    let took = began.elapsed();
    match ran {
        Err(Failure::Run(_) | Failure::Timeout(_)) if drawn.has_fault && took <= HANGS_AFTER => Ok(None),
        Err(failure) if drawn.has_fault && took > HANGS_AFTER => {
            let text = failure.text().unwrap_or_default();
            Err(Failure::Timeout(format!("ended after {:.0} s, exceeding all its limits: {text}", took.as_secs_f64())))
        }
        ran => ran.map(|rows| rows.into_iter().next()),
    }
}

impl Experiment for Soak {
    type Args = SoakArgs;
    type Config = ();

    const ABOUT: About = About {
        columns: &[SEEDS, FAILED, FIRST_FAILED, FAULTS, COMMAND],
        without: &[
            "size_bytes",
            "mode",
            "grid",
            "rails",
            "bandwidth_gbytes_s",
            "rate_mops",
            "line_rate_pct",
            "baseline",
            "wrong_bytes",
            "time_us_p99",
        ],
        ..About::new("soak", "Run an experiment for each of many seeds and count the failures")
    };

    fn plan(args: &mut SoakArgs) -> Result<Plan<()>, Failure> {
        args.check()?;
        // Reports a file that cannot be written before the run.
        args.write_junit(&[])?;
        Ok(Plan::alone(vec![()]))
    }

    async fn open(args: &SoakArgs, _: &mut Vec<()>, _: &mut Bootstrap) -> Result<(Soak, Header), Failure> {
        let mut header = Versions::header();
        header.note(
            "all ranks are threads of one process: times are those of whole runs and are not representative of \
                     a network",
        );
        Ok((Soak { args: args.clone() }, header))
    }

    async fn tuple(&mut self, (): &(), _: &mut Bootstrap) -> Result<Rows, Failure> {
        let args = &self.args;
        let (mut tallies, mut cases) = (BTreeMap::new(), Vec::new());
        let ended = args.run_seeds(&mut tallies, &mut cases);
        // An interrupted run also writes the seeds so far.
        args.write_junit(&cases)?;
        ended?;
        Ok(tallies.into_iter().map(|(name, tally)| args.row(&name, tally)).collect())
    }

    fn failure(row: &Row) -> Option<Failure> {
        let number = |column: &Column| row.own(column.name).number();
        let failed = number(&FAILED).filter(|failed| *failed > 0.0)?;
        let seeds = number(&SEEDS).unwrap_or_default();
        Some(Failure::WrongData(format!("{failed} of {seeds} seeds failed in {}", row.case)))
    }
}

impl SoakArgs {
    /// Runs all seeds. Counts them by experiment, and records each if a JUnit file is requested.
    fn run_seeds(&self, tallies: &mut BTreeMap<String, Tally>, cases: &mut Vec<SeedResult>) -> Result<(), Failure> {
        let (began, end) = (Instant::now(), self.end().unwrap_or(u64::MAX));
        let mut told = 0;
        for seed in self.first..end {
            if self.hours.is_some_and(|hours| began.elapsed() > hours) {
                break;
            }
            let drawn = self.drawn(seed);
            let tally = tallies.entry(drawn.words[0].clone()).or_default();
            let start = Instant::now();
            let own = if outside::is_program(&drawn.words) { "" } else { "ginlab " };
            let command = format!("{own}{}", drawn.words.join(" "));
            ginlab::cuda::set_task(&format!(": seed {seed}: {command}"));
            let ended = run(&drawn, self.limit);
            // If rails did not release their buffers, the run has disabled freeing. Enable it again; otherwise memory
            // would soon be exhausted.
            ginlab::cuda::free_buffers_again();
            let failure = match ended {
                Ok(row) => {
                    tally.shown = tally.shown.take().or(row.map(|row| (seed, row)));
                    None
                }
                Err(failure @ (Failure::Unfit(_) | Failure::Interrupted)) => return Err(failure),
                // Unsupported options are a usage error. For a random program, they are an ordinary failure.
                Err(failure @ Failure::Usage(_)) if !self.random => return Err(failure),
                Err(_) if signals::interrupted() => return Err(Failure::Interrupted),
                Err(failure) => {
                    tally.failed += 1;
                    tally.first_failed = tally.first_failed.or(Some(seed));
                    told += 1;
                    let why = failure.text().unwrap_or_default();
                    if told <= MOST_TOLD {
                        eprintln!("ginlab: seed {seed}: {why}: {command}");
                    }
                    Some(why)
                }
            };
            let (took, failed) = (start.elapsed().as_secs_f64(), failure.is_some());
            tally.faults += u64::from(drawn.has_fault);
            tally.times.push(took * 1e6);
            if self.junit.is_some() {
                cases.push(SeedResult { seed, command, seconds: took, failure });
            }
            if self.fail_fast && failed {
                break;
            }
        }
        Ok(())
    }

    /// Writes the JUnit file, if one is requested.
    fn write_junit(&self, cases: &[SeedResult]) -> Result<(), Failure> {
        let Some(file) = &self.junit else { return Ok(()) };
        std::fs::write(file, junit::document(cases))
            .map_err(|error| usage("--junit", format!("cannot write {}: {error}", file.display())))
    }
}

impl SoakArgs {
    /// Returns the fabric for the row. It is the fabric of the first row or else of the command, with all seeds instead
    /// of a single seed.
    fn fabric(&self, shown: Option<(u64, &str)>, count: u64) -> String {
        const OPTION: &str = "seed=";
        if self.random {
            // Random programs use many fabrics.
            return "random".into();
        }
        let last = self.first.saturating_add(count.saturating_sub(1));
        let seeds = if last > self.first { format!("{}..{last}", self.first) } else { self.first.to_string() };
        let template = format!("{OPTION}{SEED}");
        let asked = self.words.iter().find(|word| word.contains(&template));
        let (fabric, own) = match (shown, asked) {
            (Some((seed, fabric)), Some(_)) => (fabric, format!("{OPTION}{seed}")),
            (Some((_, fabric)), None) => return fabric.to_owned(),
            (None, Some(word)) => (&**word, template),
            (None, None) => return String::new(),
        };
        let is_end = |at: usize| !fabric[at..].starts_with(|next: char| next.is_ascii_digit());
        let found = fabric.match_indices(&own).find(|(at, own)| is_end(at + own.len()));
        let Some((at, own)) = found else { return fabric.to_owned() };
        format!("{}{OPTION}{seeds}{}", &fabric[..at], &fabric[at + own.len()..])
    }

    /// Returns the row of an experiment's seeds, with the times of their runs.
    fn row(&self, name: &str, tally: Tally) -> (Row, Vec<f64>) {
        let Tally { times, faults, failed, first_failed, shown } = tally;
        let mut row = Row::new(Soak::ABOUT.name, name, "", "");
        if let Some((_, shown)) = &shown {
            (row.device, row.ranks) = (shown.device.clone(), shown.ranks);
        }
        row.fabric = self.fabric(shown.as_ref().map(|(seed, row)| (*seed, &*row.fabric)), times.len() as u64);
        row.set(&SEEDS, times.len() as u64).set(&FIRST_FAILED, first_failed).set(&COMMAND, self.command());
        row.set(&FAULTS, faults);
        timed(&mut row, &times, 0, 1);
        row.set(&FAILED, failed);
        if failed > 0 {
            row.status = RowStatus::Failed(format!("{failed} of {} seeds", times.len()));
        }
        (row, times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_names_all_seeds_of_its_fabric() {
        let args = |words: &str| SoakArgs {
            seeds: Some(50),
            random: words.is_empty(),
            hours: None,
            first: 3,
            fail_fast: false,
            limit: Duration::from_secs(1),
            junit: None,
            words: words.split_whitespace().map(str::to_owned).collect(),
        };
        let network = args("shmem -p worst:delay=9,seed={seed}");
        assert_eq!(network.fabric(Some((4, "worst:seed=4,delay=9")), 50), "worst:seed=3..52,delay=9");
        assert_eq!(network.fabric(Some((4, "worst:seed=44")), 50), "worst:seed=44");
        assert_eq!(network.fabric(None, 50), "worst:delay=9,seed=3..52");
        assert_eq!(network.fabric(Some((3, "worst:seed=3")), 1), "worst:seed=3");
        let other = args("shmem -p worst:seed=3 -n {seed}");
        assert_eq!(
            (other.fabric(Some((3, "worst:seed=3")), 50), other.fabric(None, 50)),
            ("worst:seed=3".into(), String::new())
        );
        assert_eq!(args("").fabric(Some((3, "worst:seed=3")), 50), "random");
    }
}
