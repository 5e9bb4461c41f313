//! One runner for all experiments: ranks, progress, rows, wrong bytes, outputs, the end of the ranks.
//!
//! An experiment is its arguments, its tuples (combinations of variables, each measured on its own), how one tuple is
//! measured and made into rows, and its declaration ([`About`]). Everything else is here.

use crate::error::Failure;
use crate::mps::Kernels;
use crate::output::{Output, OutputArgs};
use crate::program::Program;
use clap::{ArgMatches, FromArgMatches};
use ginlab::bootstrap::{self, Bootstrap, BootstrapError, Kind, Options};
use ginlab::fabric::any::AnyRail;
use ginlab::fabric::soft;
use ginlab::flow::{self, Flow};
use ginlab::mps::Step;
use ginlab::report::{About, Column, Header, Row};
use ginlab::signals;
use std::cell::Cell;
use std::fmt::Debug;
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

/// Rows with their raw samples in microseconds.
pub type Rows = Vec<(Row, Vec<f64>)>;

/// An experiment, on one rank.
pub trait Experiment: Sized {
    /// Its options.
    type Args: clap::Args + Clone + Debug;
    /// One combination of variables.
    type Tuple;
    /// Its name, columns, headline figures and pictures.
    const ABOUT: About;

    /// Checks the options, and says what will be measured by which ranks.
    fn plan(args: &mut Self::Args) -> Result<Plan<Self::Tuple>, Failure>;

    /// Opens what this rank holds for all tuples, which it may change to what the devices here can do (the same on all ranks),
    /// and describes it.
    async fn open(
        args: &Self::Args,
        tuples: &mut Vec<Self::Tuple>,
        ranks: &mut Bootstrap,
    ) -> Result<(Self, Header), Failure>;

    /// Measures one tuple, and verifies it. All ranks do so at the same time; the rows count on rank 0.
    async fn tuple(&mut self, tuple: &Self::Tuple, ranks: &mut Bootstrap) -> Result<Rows, Failure>;

    /// What may be wrong in a row.
    const WRONG: &'static str = "bytes";

    /// In what they are: `writes`, `echoes`.
    fn what(row: &Row) -> String {
        row.case.clone()
    }

    /// The end, when all went well: what must be done while the other ranks are still here.
    async fn close(self, _header: &Header, _output: &OutputArgs, _ranks: &mut Bootstrap) -> Result<(), Failure> {
        Ok(())
    }
}

/// The options of an experiment, and where its rows go.
#[derive(clap::Args, Clone, Debug)]
pub struct WithOutput<A: clap::Args> {
    #[command(flatten)]
    pub own: A,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What will be measured, and by whom.
pub struct Plan<T> {
    /// In this order.
    pub tuples: Vec<T>,
    /// The ranks; none for an experiment of one process.
    pub ranks: Option<Ranks>,
    /// Go on after wrong data.
    pub keep_going: bool,
}

impl<T> Plan<T> {
    /// Tuples of one process.
    pub fn alone(tuples: Vec<T>) -> Plan<T> {
        Plan { tuples, ranks: None, keep_going: true }
    }

    /// Tuples of a job.
    pub fn of_ranks(tuples: Vec<T>, ranks: Ranks) -> Plan<T> {
        Plan { tuples, ranks: Some(ranks), keep_going: true }
    }
}

/// The ranks that an experiment wants.
pub struct Ranks {
    /// How they find each other; by the environment where it is not said.
    pub kind: Option<Kind>,
    /// How many were asked for.
    pub asked: Option<usize>,
    /// How many a local job has otherwise.
    pub default: usize,
    /// Refuses a number that the experiment cannot use.
    pub check: Box<dyn Fn(usize) -> Result<(), Failure>>,
    /// The longest wait of a rank for the others. A rank waits while another one measures a row, whose waits are bounded.
    pub timeout: Duration,
    /// Interfaces that other hosts may reach rank 0 by.
    pub interfaces: Option<String>,
    /// What must be the same on all ranks.
    pub fingerprint: Vec<(String, String)>,
    /// Where they run kernels, if they do: those that share a GPU are served by MPS.
    pub mps: Option<Kernels>,
}

impl Ranks {
    fn options(&self) -> Options {
        Options {
            timeout: self.timeout,
            fingerprint: self.fingerprint.clone(),
            interfaces: self.interfaces.clone(),
            ..Options::default()
        }
    }

    /// Opens them; [`Failure::Elsewhere`] where another process was the run.
    fn open(self) -> Result<Bootstrap, Failure> {
        let options = self.options();
        let kind = self.kind.unwrap_or_else(|| Kind::detect(&bootstrap::process_env));
        let asked = self.asked.or((kind == Kind::Local).then_some(self.default));
        // Before any process is started for nothing.
        asked.map_or(Ok(()), |asked| (self.check)(asked))?;
        if let (Kind::Local, Some(ranks), Some(kernels)) = (kind, asked, self.mps)
            && !bootstrap::is_spawned_child()
            && let Step::Ended(code) = kernels.before(ranks)
        {
            return Err(Failure::Elsewhere(code));
        }
        let ranks = Bootstrap::open(kind, asked, options)?;
        (self.check)(ranks.size())?;
        Ok(ranks)
    }
}

/// Runs an experiment on this rank.
pub fn run<E: Experiment>(mut args: WithOutput<E::Args>) -> Result<(), Failure> {
    let Plan { tuples, ranks, keep_going } = E::plan(&mut args.own)?;
    with_ranks(ranks, |ranks| {
        in_event_loop(async { rank::<E>(&args, true, tuples, keep_going, ranks).await.map(drop) })
    })
}

/// Runs an experiment with all ranks as threads of this process and without outputs; returns the rows of rank 0.
pub fn in_process<E: Experiment>(matches: &ArgMatches) -> Result<Vec<Row>, Failure> {
    let plan = || {
        let mut args = WithOutput::<E::Args>::from_arg_matches(matches)?;
        let plan = E::plan(&mut args.own)?;
        Ok::<_, Failure>((args, plan))
    };
    let size = match plan()?.1.ranks {
        Some(ranks) => {
            let size = ranks.asked.unwrap_or(ranks.default);
            (ranks.check)(size)?;
            size
        }
        None => 1,
    };
    let one = |open: &dyn Fn(Options) -> Result<Bootstrap, BootstrapError>| {
        let (args, plan) = plan()?;
        let mut rows = Vec::new();
        ended(open(plan.ranks.map(|ranks| ranks.options()).unwrap_or_default())?, |ranks| {
            in_event_loop(async {
                rows = rank::<E>(&args, false, plan.tuples, plan.keep_going, ranks).await?;
                Ok(())
            })
        })?;
        Ok(rows)
    };
    if size == 1 {
        return one(&|_| Bootstrap::alone());
    }
    let no_port = |error: std::io::Error| Failure::Run(format!("a port for the ranks of this process: {error}"));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(no_port)?;
    let address = listener.local_addr().map_err(no_port)?;
    let token = &bootstrap::random_token()?;
    let one = &one;
    std::thread::scope(|scope| {
        let join = |rank| move || one(&|options| Bootstrap::join(&[address], rank, size, token, options));
        let others: Vec<_> = (1..size).map(|rank| scope.spawn(join(rank))).collect();
        // Taken by the first call, which is the only one.
        let listener = Cell::new(Some(listener));
        let serve = |options| {
            let listener = listener.take().ok_or(BootstrapError::NoToken)?;
            Bootstrap::serve(listener, size, token, options)
        };
        let first = one(&serve);
        let others = others
            .into_iter()
            .map(|other| other.join().unwrap_or_else(|_| Err(Failure::Run("a rank has panicked".into()))));
        // What rank 0 says comes first: the others tell it what they have found.
        others.fold(first, |first, other| first.and_then(|rows| other.map(|_| rows)))
    })
}

/// Opens the ranks, runs this one, and sees to it that all end with one reason.
pub fn with_ranks(
    ranks: Option<Ranks>,
    rank: impl FnOnce(&mut Bootstrap) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let ranks = match ranks.map_or_else(|| Ok(Bootstrap::alone()?), Ranks::open) {
        Err(Failure::Elsewhere(0)) => return Ok(()),
        opened => opened?,
    };
    let told = |failure| if bootstrap::is_spawned_child() { Failure::Told(Box::new(failure)) } else { failure };
    ended(ranks, rank).map_err(told)
}

/// Runs this rank, and tells the others how it ended.
fn ended(mut ranks: Bootstrap, rank: impl FnOnce(&mut Bootstrap) -> Result<(), Failure>) -> Result<(), Failure> {
    match rank(&mut ranks) {
        Ok(()) => ranks.finish().map_err(Failure::from),
        Err(failure) => {
            let failure = with_cause(failure, &mut ranks);
            if let Some(text) = failure.text() {
                ranks.abort(failure.ending(), &text);
            }
            Err(failure)
        }
    }
}

/// Runs a program that waits for rails, sockets and timers at once; flows are driven by tasks of their own.
pub fn in_event_loop(program: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    flow::run(std::iter::empty::<Flow<AnyRail>>(), program)
        .unwrap_or_else(|error| Err(Failure::Run(format!("no event loop: {error}"))))
}

/// Keeps a flow's rails going, also while this rank waits for something else.
pub fn drive(flow: &Flow<AnyRail>) -> tokio::task::JoinHandle<()> {
    let flow = flow.clone();
    tokio::task::spawn_local(async move { flow.drive().await })
}

/// Rank 0 judges the rows: it writes them (`writes`) or returns them.
async fn rank<E: Experiment>(
    args: &WithOutput<E::Args>,
    writes: bool,
    mut tuples: Vec<E::Tuple>,
    keep_going: bool,
    ranks: &mut Bootstrap,
) -> Result<Vec<Row>, Failure> {
    let (mut experiment, header) = E::open(&args.own, &mut tuples, ranks).await?;
    let judges = ranks.rank() == 0;
    let mut output = match judges && writes {
        true => Some(Output::open(&args.output, &header, &E::ABOUT, tuples.len() as u64)?),
        false => None,
    };
    let mut returned = Vec::new();
    let mut wrong = None;
    let result = async {
        for tuple in &tuples {
            let before = soft::behind();
            let mut rows = experiment.tuple(tuple, ranks).await?;
            doubt_slow_cards(&mut rows, before, ranks)?;
            if !judges {
                continue;
            }
            wrong = wrong.take().or_else(|| wrong_data::<E>(&rows));
            match &mut output {
                Some(output) => {
                    output.rows(&rows)?;
                    output.step();
                }
                None => returned.extend(rows.into_iter().map(|(row, _)| row)),
            }
            if let Some(failure) = wrong.take_if(|_| !keep_going) {
                return Err(failure);
            }
        }
        Ok(())
    };
    let result = result.await;
    match output {
        Some(output) => output.close(result),
        None => result,
    }?;
    experiment.close(&header, &args.output, ranks).await?;
    wrong.map_or(Ok(returned), Err)
}

/// By so much of a card's time a figure may be longer and still pass as the card's.
pub const TOLERATED: f64 = 0.15;

/// Says in rows of cards in software that they show this machine, of which a card has waited for polls or bytes on some rank: it cannot move as
/// many as the card would.
fn doubt_slow_cards(rows: &mut Rows, before: Option<Duration>, ranks: &mut Bootstrap) -> Result<(), Failure> {
    let (Some(before), Some(after)) = (before, soft::behind()) else { return Ok(()) };
    let late = (after - before).as_secs_f64() * 1e6;
    let late = ranks.all_gather_values(&late, "how long cards have waited")?.into_iter().fold(0.0, f64::max);
    // Of what was timed: what prepares and verifies takes its time too.
    let timed = |(row, times): &(Row, Vec<f64>)| times.iter().sum::<f64>() * row.iterations.unwrap_or(1) as f64;
    let all = rows.iter().map(timed).sum::<f64>();
    if all > 0.0 && late > TOLERATED * (all - late) {
        let percent = (100.0 * late / all).min(100.0);
        let why = format!("slower than the card in software: it waited for this machine {percent:.0} % of the time");
        for (row, _) in rows {
            row.doubt(why.clone());
        }
    }
    Ok(())
}

/// The first row whose verification found something.
fn wrong_data<E: Experiment>(rows: &[(Row, Vec<f64>)]) -> Option<Failure> {
    let (row, wrong) = rows.iter().find_map(|(row, _)| Some((row, row.wrong.filter(|wrong| *wrong > 0)?)))?;
    let size = row.size_bytes.map(|bytes| format!(" of {bytes} B")).unwrap_or_default();
    let text = format!("verification failed: {wrong} wrong {} in {}{size} ({})", E::WRONG, E::what(row), row.fabric);
    Some(Failure::WrongData(text))
}

/// Ctrl-C, which a terminal sends to every rank, and a peer that has gone are why rails fail and waits time out: they are
/// what is reported. A rail often notices first; rank 0 tells the others who has gone within its next look. What a peer tells
/// keeps its kind, so that the exit code does not depend on whether this rank or that one has noticed first.
fn with_cause(failure: Failure, ranks: &mut Bootstrap) -> Failure {
    let (Failure::Run(text) | Failure::Timeout(text)) = &failure else { return failure };
    let deadline = Instant::now() + Duration::from_millis(500);
    loop {
        if signals::interrupted() {
            return if signals::stdout_closed() { Failure::StdoutClosed } else { Failure::Interrupted };
        }
        match ranks.check_peers() {
            Ok(()) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            // Unless it is what the text says already.
            Err(error @ (BootstrapError::Left { .. } | BootstrapError::Aborted { .. }))
                if !text.contains(&error.to_string()) =>
            {
                // Both may have failed for the same reason.
                let told = error.to_string();
                return Failure::of(error.ending(), if told.contains(text) { told } else { format!("{told}: {text}") });
            }
            _ => return failure,
        }
    }
}

/// Of each repeat the slowest rank's time.
pub fn slowest<T>(parts: &[T], times: impl Fn(&T) -> &[f64]) -> Vec<f64> {
    let repeats = parts.iter().map(|part| times(part).len()).max().unwrap_or_default();
    let of = |repeat: usize| parts.iter().filter_map(|part| times(part).get(repeat)).fold(0.0, |a, b| f64::max(a, *b));
    (0..repeats).map(of).collect()
}

/// Place by place the sum of all lists: bytes by rail, say.
pub fn added<'a>(lists: impl IntoIterator<Item = &'a Vec<u64>>) -> Vec<u64> {
    let mut sums = Vec::new();
    for list in lists {
        sums.resize(list.len().max(sums.len()), 0);
        sums.iter_mut().zip(list).for_each(|(sum, bytes)| *sum += bytes);
    }
    sums
}

/// A row with the times of its repeats, in each of which `operations` moved `bytes`.
pub fn timed(row: &mut Row, times: &[f64], bytes: u64, operations: u64) {
    row.times(times).throughput(bytes, operations);
}

/// Of sorted values, by nearest rank.
pub fn percentile(sorted: &[f64], per_mille: usize) -> Option<f64> {
    sorted.get((sorted.len() * per_mille).div_ceil(1000).saturating_sub(1)).copied()
}

/// Sets columns of one quantity, its 50th, 99th and 99.9th percentile, by nearest rank.
pub fn percentiles(row: &mut Row, columns: &[Column; 3], mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    for (column, per_mille) in columns.iter().zip([500, 990, 999]) {
        row.set(column, percentile(&times, per_mille));
    }
}

/// A program that runs this experiment.
pub const fn program<E: Experiment>() -> Program {
    Program {
        name: E::ABOUT.name,
        question: E::ABOUT.question,
        augment: <WithOutput<E::Args> as clap::Args>::augment_args,
        run: |matches| run::<E>(WithOutput::from_arg_matches(matches)?),
        in_process: Some(in_process::<E>),
        about: Some(E::ABOUT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two ranks one stalls and tells; how the other one ends, which was waiting for it or had failed by itself.
    fn other(first: usize, own: Option<Failure>) -> Failure {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its number");
        let rank = |mut ranks: Bootstrap| {
            if ranks.rank() == first {
                let stall = Failure::Timeout("nothing has completed for 3s".into());
                ranks.abort(stall.ending(), &stall.text().unwrap_or_default());
                return None;
            }
            Some(match &own {
                Some(failure) => with_cause(failure.clone(), &mut ranks),
                None => ranks.barrier("row 1").expect_err("the other one has stopped").into(),
            })
        };
        std::thread::scope(|scope| {
            let one =
                scope.spawn(|| rank(Bootstrap::join(&[address], 1, 2, "two", Options::default()).expect("joined")));
            let zero = rank(Bootstrap::serve(listener, 2, "two", Options::default()).expect("served"));
            one.join().expect("rank 1").or(zero).expect("one of them was not the first")
        })
    }

    #[test]
    fn a_stall_that_a_peer_tells_is_a_stall_whoever_was_first() {
        let same = Failure::Timeout("nothing has completed for 3s".into());
        let failures =
            [None, Some(Failure::Timeout("mine".into())), Some(Failure::Run("a rail has failed".into())), Some(same)];
        for first in [0, 1] {
            for own in &failures {
                let failure = other(first, own.clone());
                let text = failure.text().unwrap_or_default();
                assert!(matches!(failure, Failure::Timeout(_)), "{first} {own:?}: {failure:?}");
                let told = format!("rank {first} stopped the job: nothing has completed for 3s");
                assert!(text.starts_with(&told), "{text}");
                assert_eq!(text.matches("nothing has completed").count(), 1, "{text}");
            }
        }
    }
}
