//! `ginlab bootstrap`: performs only the setup that precedes every run. The ranks connect, open their rails, and
//! exchange addresses and memory keys. Prints which rail each pair of ranks uses, and the time of each step.

mod card;
mod row;

use crate::error::Failure;
use crate::job::{Job, JobArgs};
use crate::listing::{ListingArgs, table};
use crate::program::{CommandSpec, program};
use crate::ranks::with_ranks;
use crate::values::usage;
use card::BootstrapRankInfo;
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::{Access, worst};
use ginlab::measure::stats::{Micros, Summary};
use ginlab::report::Key;
use ginlab::versions::Versions;
use row::{BootstrapDocument, BootstrapRow, BootstrapTimes};
use std::time::Instant;

pub const PROGRAMS: &[CommandSpec] = &[program!(
    "bootstrap",
    "Connect ranks, exchange addresses and memory keys, and time each step",
    BootstrapArgs,
    run
)];

const EXAMPLES: &str = "\
Examples:
  ginlab bootstrap                          connect two ranks on this machine, with 4 rails
  ginlab bootstrap --np 8 --rails 3         show which of three rails each pair of ranks uses
  ginlab bootstrap --json - | jq '.pairs'   print the rail of every pair
  mpirun -np 8 ginlab bootstrap             connect ranks started by MPI (build with --features mpi)
  RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 GINLAB_TOKEN_FILE=token ginlab bootstrap   connect one of two hosts, over TCP";

/// Number of bytes of registered memory. Only its key is used, so any size suffices.
const REGISTERED: u64 = 4096;

/// Options of `ginlab bootstrap`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BootstrapArgs {
    /// Number of rails per rank
    #[arg(long, default_value_t = 4, value_name = "N")]
    rails: usize,
    /// Timed exchanges
    #[arg(short = 'r', long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeats: u32,
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    output: ListingArgs,
}

/// Runs the subcommand on this rank.
fn run(args: &BootstrapArgs) -> Result<(), Failure> {
    args.output.check()?;
    if args.job.provider.as_deref().is_some_and(worst::is_asked) {
        return Err(usage("--provider", "the worst-case network has no domains to list; specify a libfabric provider"));
    }
    let began = Instant::now();
    let fingerprint = vec![
        ("libfabric version".to_owned(), ginlab::fabric::libfabric::library_version().unwrap_or_default()),
        ("--repeats".to_owned(), args.repeats.to_string()),
    ];
    let ranks = args.job.ranks(fingerprint, |_| Ok(()))?;
    with_ranks(Some(ranks), |ranks| exchange(args, ranks, Micros::from(began.elapsed()).0))
}

fn exchange(args: &BootstrapArgs, ranks: &mut Bootstrap, meet: f64) -> Result<(), Failure> {
    let began = Instant::now();
    let mut job = Job::open(&args.job, args.rails, false, REGISTERED, ranks)?;
    let region = job.register(args.job.memory, REGISTERED, Access::ALL)?;
    let open = Micros::from(began.elapsed()).0;
    let card = BootstrapRankInfo::of(&job, &region, ranks.local_rank())?;
    let version = card.rails.first().map(|rail| rail.provider_version.clone()).unwrap_or_default();
    ranks.compare(vec![("provider version".to_owned(), version)])?;

    let bytes = serde_json::to_vec(&card).map_err(|error| Failure::Run(error.to_string()))?;
    let mut exchanges = Vec::new();
    let mut all = Vec::new();
    for _ in 0..args.repeats {
        ranks.barrier("start of an exchange")?;
        let began = Instant::now();
        all = ranks.all_gather(&bytes, "addresses and memory keys")?;
        exchanges.push(Micros::from(began.elapsed()).0);
    }
    let exchange_bytes = all.iter().map(Vec::len).sum();
    let cards: Result<Vec<BootstrapRankInfo>, _> = all.iter().map(|bytes| serde_json::from_slice(bytes)).collect();
    let cards = cards.map_err(|error| Failure::Run(format!("cannot parse the record of a rank: {error}")))?;
    if let Some(error) = card::crossed(&cards) {
        return Err(error.into());
    }
    ranks.check_addresses(cards.iter().map(|card| &card.offer.addresses[..]))?;
    let times = ranks.all_gather_values(&BootstrapTimes { meet, open, exchanges }, "times of the exchange")?;
    if ranks.rank() != 0 {
        return Ok(());
    }
    let mut header = Versions::header();
    header.set(Key::Gpu, job.device.name()).set(Key::Provider, job.provider.as_str()).set(Key::Rails, job.rail_names());
    header.notes(&job.notes).notes(notes(ranks, &cards, &times, exchange_bytes));
    let rows = BootstrapRow::all(&job.provider, &cards, ranks.members(), &times, exchange_bytes);
    let document = BootstrapDocument::new(&header, ranks.kind().to_string(), &cards, &times, &rows);
    args.output.write(&header, &row::FIELDS.map(|(key, _)| key), &document.rails, &document, &table(&row::TABLE, &rows))
}

/// Returns the notes of the header.
fn notes(
    ranks: &Bootstrap,
    cards: &[BootstrapRankInfo],
    times: &[BootstrapTimes],
    exchange_bytes: usize,
) -> Vec<String> {
    let plural = if ranks.size() == 1 { "" } else { "s" };
    let mut notes = vec![format!("{} rank{plural} by the {} bootstrap", ranks.size(), ranks.kind())];
    if let Some(mine) = times.first()
        && let Some(exchange) = Summary::of(&mine.exchanges)
    {
        notes.push(format!(
            "rank 0: all ranks were connected after {:.0} us, and its rails were open {:.0} us later; exchanging \
             {exchange_bytes} B of addresses and keys took {:.0} us (median of {})",
            mine.meet, mine.open, exchange.p50, exchange.count
        ));
    }
    notes.extend(ranks.notes().iter().cloned());
    if let Some((rail, rank, ours, theirs)) = card::routed(cards) {
        notes.push(format!(
            "rail {rail} is in {ours} on rank 0 and in {theirs} on rank {rank}: they are connected only if the two \
             networks are routed"
        ));
    }
    notes.push(
        "rails are paired by number; `writes to` is the target of a rank's first whole messages, following ones use \
         the next rails; split messages use all rails"
            .to_owned(),
    );
    notes
}
