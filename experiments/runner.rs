//! Runner of all experiments: progress, rows, verification results, outputs.
//!
//! An experiment defines its arguments, its parameter combinations (each measured separately), the measurement of one
//! parameter combination, and its declaration ([`About`]). The runner does the rest.

use crate::error::Failure;
use crate::output::{Output, OutputArgs};
use crate::program::CommandSpec;
use crate::ranks::{Ranks, ended, with_ranks};
use clap::{ArgMatches, FromArgMatches};
use ginlab::bootstrap::{self, Bootstrap, BootstrapError, BootstrapOptions};
use ginlab::fabric::any::AnyRail;
use ginlab::fabric::soft;
use ginlab::flow::{self, Flow};
use ginlab::report::{About, Column, Header, Row};
use std::cell::Cell;
use std::fmt::Debug;
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

/// Rows with their raw samples in microseconds.
pub type Rows = Vec<(Row, Vec<f64>)>;

/// An experiment, on one rank.
pub trait Experiment: Sized {
    /// Options of the experiment.
    type Args: clap::Args + Clone + Debug;
    /// A combination of parameters.
    type Config;
    /// Name, columns, headline figures and charts.
    const ABOUT: About;

    /// Checks the options. Returns the parameter combinations to measure, and the ranks that measure them.
    fn plan(args: &mut Self::Args) -> Result<Plan<Self::Config>, Failure>;

    /// Opens the resources that this rank uses for all parameter combinations. Returns them with the header that
    /// describes them. May change `tuples` to what the devices support, in the same way on all ranks.
    async fn open(
        args: &Self::Args,
        tuples: &mut Vec<Self::Config>,
        ranks: &mut Bootstrap,
    ) -> Result<(Self, Header), Failure>;

    /// Measures and verifies one parameter combination. All ranks call it at the same time. Only the rows of rank 0 are
    /// used.
    async fn tuple(&mut self, tuple: &Self::Config, ranks: &mut Bootstrap) -> Result<Rows, Failure>;

    /// Returns a noun for the erroneous objects, for messages: `writes`, `echoes`.
    fn what(row: &Row) -> String {
        row.case.clone()
    }

    /// Returns the failure that a row shows, which ends the run with exit code 1.
    fn failure(row: &Row) -> Option<Failure> {
        wrong_data(row, Self::what)
    }

    /// Finishes a successful run. Called while the other ranks are still connected.
    async fn close(self, _header: &Header, _output: &OutputArgs, _ranks: &mut Bootstrap) -> Result<(), Failure> {
        Ok(())
    }
}

/// Options of an experiment and of its outputs.
#[derive(clap::Args, Clone, Debug)]
pub struct WithOutput<A: clap::Args> {
    #[command(flatten)]
    pub own: A,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Parameter combinations to measure, and the ranks that measure them.
pub struct Plan<T> {
    /// Parameter combinations in the order of measurement.
    pub tuples: Vec<T>,
    /// Ranks of the job. `None` for an experiment of one process.
    pub ranks: Option<Ranks>,
    /// Whether to continue after wrong data.
    pub keep_going: bool,
}

impl<T> Plan<T> {
    /// Creates a plan for one process.
    pub fn alone(tuples: Vec<T>) -> Plan<T> {
        Plan { tuples, ranks: None, keep_going: true }
    }

    /// Creates a plan for a job.
    pub fn of_ranks(tuples: Vec<T>, ranks: Ranks) -> Plan<T> {
        Plan { tuples, ranks: Some(ranks), keep_going: true }
    }
}

/// Runs an experiment on this rank.
pub fn run<E: Experiment>(mut args: WithOutput<E::Args>) -> Result<(), Failure> {
    let Plan { tuples, ranks, keep_going } = E::plan(&mut args.own)?;
    with_ranks(ranks, |ranks| {
        in_event_loop(async { rank::<E>(&args, true, tuples, keep_going, ranks).await.map(drop) })
    })
}

/// Runs an experiment with all ranks as threads of this process and without outputs. Returns the rows of rank 0.
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
    let one = |open: &dyn Fn(BootstrapOptions) -> Result<Bootstrap, BootstrapError>| {
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
    let no_port =
        |error: std::io::Error| Failure::Run(format!("cannot open a port for the ranks of this process: {error}"));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(no_port)?;
    let address = listener.local_addr().map_err(no_port)?;
    let token = &bootstrap::random_token()?;
    let one = &one;
    std::thread::scope(|scope| {
        let join = |rank| move || one(&|options| Bootstrap::join(&[address], rank, size, token, options));
        let others: Vec<_> = (1..size).map(|rank| scope.spawn(join(rank))).collect();
        // `one` calls this closure once.
        let listener = Cell::new(Some(listener));
        let serve = |options| {
            let listener = listener.take().ok_or(BootstrapError::NoToken)?;
            Bootstrap::serve(listener, size, token, options)
        };
        let first = one(&serve);
        let others = others
            .into_iter()
            .map(|other| other.join().unwrap_or_else(|_| Err(Failure::Run("a rank panicked".into()))));
        // The failure of rank 0 takes precedence: the other ranks report theirs to it.
        others.fold(first, |first, other| first.and_then(|rows| other.map(|_| rows)))
    })
}

/// Runs a program that waits for rails, sockets and timers concurrently. Flows are driven by their own tasks.
pub fn in_event_loop(program: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    flow::run(std::iter::empty::<Flow<AnyRail>>(), program)
        .unwrap_or_else(|error| Err(Failure::Run(format!("cannot start the event loop: {error}"))))
}

/// Spawns a task that drives the rails of a flow, even while this rank waits for something else.
pub fn drive(flow: &Flow<AnyRail>) -> tokio::task::JoinHandle<()> {
    let flow = flow.clone();
    tokio::task::spawn_local(async move { flow.drive().await })
}

/// Runs all parameter combinations on this rank. Rank 0 checks the rows, and writes them if `writes` or else returns
/// them.
async fn rank<E: Experiment>(
    args: &WithOutput<E::Args>,
    writes: bool,
    mut tuples: Vec<E::Config>,
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
            wrong = wrong.take().or_else(|| rows.iter().find_map(|(row, _)| E::failure(row)));
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
    let closed = experiment.close(&header, &args.output, ranks).await;
    // Wrong data is the more severe result.
    wrong.map_or(closed.map(|()| returned), Err)
}

/// Fraction of a software NIC's own time by which it may be late before its rows are marked as doubtful.
pub const TOLERATED: f64 = 0.15;

/// Marks rows as doubtful if a software NIC on any rank waited for this machine's polls or bytes. The rates then show
/// this machine instead of the modelled NIC.
fn doubt_slow_cards(rows: &mut Rows, before: Option<Duration>, ranks: &mut Bootstrap) -> Result<(), Failure> {
    let (Some(before), Some(after)) = (before, soft::behind()) else { return Ok(()) };
    let late = (after - before).as_secs_f64() * 1e6;
    let late = ranks.all_gather_values(&late, "waiting times of NICs")?.into_iter().fold(0.0, f64::max);
    // Only timed operations are counted. Preparation and verification can also make the NIC wait.
    let timed = |(row, times): &(Row, Vec<f64>)| times.iter().sum::<f64>() * row.iterations.unwrap_or(1) as f64;
    let all = rows.iter().map(timed).sum::<f64>();
    if all > 0.0 && late > TOLERATED * (all - late) {
        let percent = (100.0 * late / all).min(100.0);
        let why = format!("slower than the modelled NIC, which waited for this machine {percent:.0} % of the time");
        for (row, _) in rows {
            row.doubt(why.clone());
        }
    }
    Ok(())
}

/// Returns a failure if the row's verification found wrong bytes. `what` returns what they were found in.
pub fn wrong_data(row: &Row, what: impl Fn(&Row) -> String) -> Option<Failure> {
    let wrong = row.wrong_bytes.filter(|wrong| *wrong > 0)?;
    let size = row.size_bytes.map(|bytes| format!(" of {bytes} B")).unwrap_or_default();
    let fabric = if row.fabric.is_empty() { String::new() } else { format!(" ({})", row.fabric) };
    let text = format!("verification failed: {wrong} wrong bytes in {}{size}{fabric}", what(row));
    Some(Failure::WrongData(text))
}

/// Returns the slowest rank's time of each repeat.
pub fn slowest<T>(parts: &[T], times: impl Fn(&T) -> &[f64]) -> Vec<f64> {
    let repeats = parts.iter().map(|part| times(part).len()).max().unwrap_or_default();
    let of = |repeat: usize| parts.iter().filter_map(|part| times(part).get(repeat)).fold(0.0, |a, b| f64::max(a, *b));
    (0..repeats).map(of).collect()
}

/// Returns the element-wise sum of all lists, for example of bytes per rail.
pub fn added<'a>(lists: impl IntoIterator<Item = &'a Vec<u64>>) -> Vec<u64> {
    let mut sums = Vec::new();
    for list in lists {
        sums.resize(list.len().max(sums.len()), 0);
        sums.iter_mut().zip(list).for_each(|(sum, bytes)| *sum += bytes);
    }
    sums
}

/// Sets the times of the repeats, each of which moved `bytes` in `operations`.
pub fn timed(row: &mut Row, times: &[f64], bytes: u64, operations: u64) {
    row.times(times).throughput(bytes, operations);
}

/// Returns a percentile of sorted values, by nearest rank.
pub fn percentile(sorted: &[f64], per_mille: usize) -> Option<f64> {
    sorted.get((sorted.len() * per_mille).div_ceil(1000).saturating_sub(1)).copied()
}

/// Sets the columns for the 50th, 99th and 99.9th percentile of `times`, by nearest rank.
pub fn percentiles(row: &mut Row, columns: &[Column; 3], mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    for (column, per_mille) in columns.iter().zip([500, 990, 999]) {
        row.set(column, percentile(&times, per_mille));
    }
}

/// Returns the subcommand that runs this experiment.
pub const fn program<E: Experiment>() -> CommandSpec {
    CommandSpec {
        name: E::ABOUT.name,
        question: E::ABOUT.question,
        augment: <WithOutput<E::Args> as clap::Args>::augment_args,
        run: |matches| run::<E>(WithOutput::from_arg_matches(matches)?),
        in_process: Some(in_process::<E>),
        about: Some(E::ABOUT),
    }
}
