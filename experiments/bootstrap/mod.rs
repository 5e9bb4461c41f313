//! `ginlab bootstrap`: what every run does before it writes, alone: the ranks meet, open their rails, exchange addresses and
//! memory keys. Shows who talks to whom over which rail, and how long it took.

mod card;
mod row;

use crate::error::Failure;
use crate::listing::ListingArgs;
use crate::output::DeviceKind;
use crate::proxy::BootstrapKind;

use card::{Card, RailCard};
use ginlab::bootstrap::{self, Bootstrap, Options};
use ginlab::cuda::Device;
use ginlab::fabric::discover::{self, Domain, Reach};
use ginlab::fabric::libfabric::{LibfabricRail, RailOptions};
use ginlab::fabric::{Memory, Rail};
use ginlab::measure::stats::{Micros, Summary};
use ginlab::report::{Header, Key};
use row::{Document, Row, Times};
use serde::{Serialize, de::DeserializeOwned};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  ginlab bootstrap                          two ranks on this machine, 4 rails
  ginlab bootstrap --np 8 --rails 3         who writes to whom over which of three rails
  ginlab bootstrap --json - | jq '.pairs'   the rail of every pair
  mpirun -np 8 ginlab bootstrap             ranks from MPI (build with --features mpi)
  RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 GINLAB_TOKEN=secret ginlab bootstrap   one of two hosts by TCP";

/// Bytes of the memory that is registered: the key is what matters.
const REGISTERED: usize = 4096;

/// Options of `ginlab bootstrap`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Ranks [default: 2; the launcher's number under mpirun or srun]
    #[arg(long, value_name = "N")]
    np: Option<usize>,
    /// How ranks find each other [default: by the environment: spawned here, MPI, or TCP variables]
    #[arg(long, value_enum)]
    bootstrap: Option<BootstrapKind>,
    /// Interfaces that other hosts may reach rank 0 by (mpi bootstrap), as eth0,ens*
    #[arg(long, value_name = "LIST")]
    bootstrap_if: Option<String>,
    /// Rails per rank
    #[arg(long, default_value_t = 4, value_name = "N")]
    rails: usize,
    /// libfabric provider (efa, tcp, shm, ...) [default: efa where there is one, else tcp]
    #[arg(short = 'p', long, value_name = "NAME")]
    provider: Option<String>,
    /// Domains to open rails on, in this order [default: chosen, nearest to the GPU first]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    domain: Vec<String>,
    /// The device whose nearest rails are taken
    #[arg(short = 'd', long, value_enum, default_value_t = DeviceKind::Auto)]
    device: DeviceKind,
    /// Timed exchanges
    #[arg(short = 'r', long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeats: u32,
    /// Longest wait of any kind, in seconds
    #[arg(short = 't', long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    #[command(flatten)]
    output: ListingArgs,
}

/// Runs the experiment on this rank.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.output.check()?;
    let began = Instant::now();
    let kind = args.bootstrap.map_or_else(|| bootstrap::Kind::detect(&bootstrap::process_env), Into::into);
    let asked = args.np.or((kind == bootstrap::Kind::Local).then_some(2));
    let options = Options {
        timeout: Duration::from_secs(args.timeout),
        interfaces: args.bootstrap_if.clone(),
        fingerprint: vec![("--repeats".to_owned(), args.repeats.to_string())],
        ..Options::default()
    };
    let mut ranks = Bootstrap::open(kind, asked, options)?;
    let meet = Micros::from(began.elapsed()).0;
    let result = match exchange(args, &mut ranks, meet) {
        Ok(()) => ranks.finish().map_err(Failure::from),
        Err(failure) => {
            if let Some(text) = failure.text() {
                ranks.abort(&text);
            }
            Err(failure)
        }
    };
    result.map_err(|failure| if bootstrap::is_spawned_child() { Failure::Told(Box::new(failure)) } else { failure })
}

fn exchange(args: &Args, ranks: &mut Bootstrap, meet: f64) -> Result<(), Failure> {
    let mut header = Header::default();
    crate::versions().fill(&mut header);
    let (provider, domains) = choose(args, ranks, &mut header)?;

    let began = Instant::now();
    // The provider reads and writes none of it: no transfer is posted.
    let memory = vec![0u8; REGISTERED];
    let mut rails = Vec::new();
    for domain in &domains {
        let mut rail = LibfabricRail::open(domain, &RailOptions::default())?;
        let place =
            Memory { address: memory.as_ptr().expose_provenance() as u64, bytes: REGISTERED, cuda_device: None };
        // SAFETY: the memory outlives the rails and their regions, which are dropped before it, being declared later.
        let region = unsafe { rail.register(place) }?;
        rails.push((RailCard::of(&rail, domain, &region)?, rail, region));
    }
    let open = Micros::from(began.elapsed()).0;
    let card = Card { local_rank: ranks.local_rank(), rails: rails.iter().map(|(card, ..)| card.clone()).collect() };
    let version = card.rails.first().map(|rail| rail.provider_version.clone()).unwrap_or_default();
    ranks.compare(vec![("provider version".to_owned(), version)])?;

    let bytes = to_bytes(&card)?;
    let mut exchanges = Vec::new();
    let mut all = Vec::new();
    for _ in 0..args.repeats {
        ranks.barrier("start of an exchange")?;
        let began = Instant::now();
        all = ranks.all_gather(&bytes, "addresses and memory keys")?;
        exchanges.push(Micros::from(began.elapsed()).0);
    }
    let exchange_bytes = all.iter().map(Vec::len).sum();
    let cards: Vec<Card> = from_all(&all)?;
    if let Some(error) = card::crossed(&cards) {
        return Err(error.into());
    }
    let times: Vec<Times> =
        from_all(&ranks.all_gather(&to_bytes(&Times { meet, open, exchanges })?, "times of the exchange")?)?;
    if ranks.rank() != 0 {
        return Ok(());
    }
    header.set(Key::Provider, provider.clone());
    for note in notes(ranks, &cards, &times, exchange_bytes) {
        header.note(note);
    }
    let rows = Row::all(&provider, &cards, ranks.members(), &times, exchange_bytes);
    let document = Document::new(&header, ranks.kind().to_string(), &cards, &times, &rows);
    args.output.write(&header, &row::COLUMNS, &rows, &document, &row::table(&rows))
}

/// The domains of this rank's rails; what all ranks must agree on is compared before any is opened.
fn choose(args: &Args, ranks: &mut Bootstrap, header: &mut Header) -> Result<(String, Vec<Domain>), Failure> {
    // What cannot be opened because of how it was asked for is a usage error.
    let as_usage = |error: ginlab::fabric::FabricError| Failure::Usage(error.to_string());
    let (device, _) = Device::open(args.device.into(), ranks.local_rank())?;
    header.set(Key::Gpu, device.name());
    let choice = discover::choose_provider(args.provider.as_deref()).map_err(as_usage)?;
    let reach = if ranks.same_host() { Reach::SameHost } else { Reach::Network };
    let near = device.pci_address().and_then(|address| address.parse().ok());
    let (local_rank, local_size) = (ranks.local_rank(), ranks.local_size());
    let chosen =
        discover::select_domains(&choice.provider, args.rails, reach, &args.domain, near, local_rank, local_size)
            .map_err(as_usage)?;
    ranks.compare(vec![
        ("libfabric version".to_owned(), ginlab::fabric::libfabric::library_version()),
        ("provider".to_owned(), choice.provider.clone()),
        ("number of rails".to_owned(), chosen.domains.len().to_string()),
    ])?;
    header.note(format!("provider {}: {}", choice.provider, choice.reason));
    if let Some(note) = chosen.note {
        header.note(note);
    }
    Ok((choice.provider, chosen.domains))
}

/// What a reader wants to know first.
fn notes(ranks: &Bootstrap, cards: &[Card], times: &[Times], exchange_bytes: usize) -> Vec<String> {
    let plural = if ranks.size() == 1 { "" } else { "s" };
    let mut notes = vec![format!("{} rank{plural} by the {} bootstrap", ranks.size(), ranks.kind())];
    if let Some(mine) = times.first()
        && let Some(exchange) = Summary::of(&mine.exchanges)
    {
        notes.push(format!(
            "rank 0: all ranks had met after {:.0} us, rails were open {:.0} us later; the exchange of {exchange_bytes} B of \
             addresses and keys took {:.0} us (median of {})",
            mine.meet, mine.open, exchange.p50, exchange.count
        ));
    }
    if let Some((rail, rank, ours, theirs)) = card::routed(cards) {
        notes.push(format!(
            "rail {rail} is in {ours} on rank 0 and in {theirs} on rank {rank}: they meet only where the two are routed"
        ));
    }
    notes.push(
        "rails pair by number; writes to: where a rank's first whole messages go, further ones count on by rail; a message \
         that is split goes by all"
            .to_owned(),
    );
    notes
}

fn to_bytes(value: &impl Serialize) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(value).map_err(|error| Failure::Run(error.to_string()))
}

fn from_all<T: DeserializeOwned>(all: &[Vec<u8>]) -> Result<Vec<T>, Failure> {
    let parsed = all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<_, _>>();
    parsed.map_err(|error| Failure::Run(format!("what a rank told is not readable: {error}")))
}
