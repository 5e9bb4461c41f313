//! What experiments over the fabric share: the options of a job and its rails, and a rank of such a job with its
//! [`Flow`].

use crate::columns::{AGAIN, COMPLETION, RAIL_BYTES};
use crate::error::Failure;
use crate::mps::MpsArgs;
use crate::rails;
use crate::runner::Ranks;
use crate::values::{self, List, Pin, seconds};
use clap::ValueEnum;
use ginlab::bootstrap::{Bootstrap, Kind};
use ginlab::cuda::{Choice, Device, Place};
use ginlab::fabric::any::AnyRail;
use ginlab::fabric::discover::{self, Domain};
use ginlab::fabric::libfabric::{Level, RailOptions};
use ginlab::fabric::{Access, Chosen};
use ginlab::flow::{Flow, FlowError, Offer, Peer, Region, Target};
use ginlab::proxy::{choose_cores, choose_rails, device_timeout};
use ginlab::rails::Counters;
use ginlab::report::{Header, Key, Row};
use ginlab::versions::Versions;
use ginlab::{cores, memory, signals};
use std::time::Duration;

/// Where the payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MemoryKind {
    /// Pinned host memory.
    Pinned,
    /// Device memory.
    Device,
}

/// Options of ranks: how many there are, and how they meet.
#[derive(clap::Args, Clone, Debug)]
pub struct MeetArgs {
    /// Ranks [default: 2, without a network 1; the launcher's number under mpirun or srun]
    #[arg(long, value_name = "N")]
    pub np: Option<usize>,
    /// How ranks find each other [default: by the environment: spawned here, MPI, or TCP variables]
    #[arg(long, value_enum)]
    pub bootstrap: Option<Kind>,
    /// Interfaces that other hosts may reach rank 0 by (mpi bootstrap), as eth0,ens*
    #[arg(long, value_name = "LIST")]
    pub bootstrap_if: Option<String>,
    #[command(flatten)]
    pub mps: MpsArgs,
}

impl MeetArgs {
    /// The ranks of a job whose longest wait of any other kind is this; by default two. A rank waits for the others while one of them
    /// is in a wait of its own, a kernel's at most: who knows why nothing goes on must be the one who speaks.
    pub fn ranks(
        &self,
        timeout: Duration,
        fingerprint: Vec<(String, String)>,
        check: impl Fn(usize) -> Result<(), Failure> + 'static,
    ) -> Ranks {
        Ranks {
            kind: self.bootstrap,
            asked: self.np,
            default: 2,
            check: Box::new(check),
            timeout: device_timeout(timeout) * 2,
            interfaces: self.bootstrap_if.clone(),
            fingerprint,
            mps: None,
        }
    }
}

/// Options of a job: its ranks and their rails.
#[derive(clap::Args, Clone, Debug)]
pub struct JobArgs {
    #[command(flatten)]
    pub meet: MeetArgs,
    /// libfabric provider (efa, tcp, shm, ...), or worst: the worst network that EFA may be [default: efa where there is one, else tcp]
    #[arg(short = 'p', long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Domains to open rails on, in this order [default: chosen, nearest to the GPU first]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub domain: Vec<String>,
    /// When a transfer counts as complete
    #[arg(long, value_enum, default_value_t = Level::Delivery)]
    pub completion: Level,
    /// Whose memory, and whose nearest rails
    #[arg(short = 'd', long, value_enum, default_value_t = Choice::Auto)]
    pub device: Choice,
    /// Where the payload is
    #[arg(long, value_enum, default_value_t = MemoryKind::Pinned)]
    pub mem: MemoryKind,
    /// Pin each rank to a core: auto (one of its own, near its GPU or cards), off, or a list by rank of this machine
    #[arg(long, value_name = "WHICH", default_value = "off", num_args = 0..=1, default_missing_value = "auto")]
    pub pin: Pin,
    /// Longest wait of any kind, in seconds; of ranks for one another twice that and 6 s: one may be in a wait of its own
    #[arg(short = 't', long, default_value = "30", value_name = "SECONDS", value_parser = seconds())]
    pub timeout: Duration,
    /// Why there are fewer rails than usual though nobody has asked for it.
    #[arg(skip)]
    pub why_fewer: Option<String>,
}

/// A rank's connection to another rank.
pub struct Connection {
    pub peer: Peer,
    pub offer: Offer,
}

impl Connection {
    /// The peer's region of this number.
    pub fn target(&self, region: usize) -> Result<Target, Failure> {
        Ok(Target::new(self.peer, &self.offer, region)?)
    }
}

/// A rank with its rails.
pub struct Job {
    pub flow: Flow<AnyRail>,
    pub device: Device,
    pub provider: String,
    chosen: Chosen,
    pub notes: Vec<String>,
    /// Immediates that each rail's completion queue has room for while nobody polls it.
    pub immediates: usize,
    /// By rank; this rank too.
    pub connections: Vec<Connection>,
    pub timeout: Duration,
}

impl JobArgs {
    /// The ranks of such a job.
    ///
    /// # Errors
    /// Where there is no libfabric, or no such provider.
    pub fn ranks(
        &self,
        fingerprint: Vec<(String, String)>,
        check: impl Fn(usize) -> Result<(), Failure> + 'static,
    ) -> Result<Ranks, Failure> {
        // Before any process is started for nothing.
        rails::check_provider(self.provider.as_deref(), &self.domain)?;
        Ok(self.meet.ranks(self.timeout, fingerprint, check))
    }

    /// See [`usual_rails`].
    pub fn usual_rails(&mut self, asked: &mut Option<List<usize>>) {
        self.why_fewer = usual_rails(asked, &USUAL_RAILS, self.provider.as_deref(), &self.domain);
    }
}

/// Rails of a sweep where none are named: one card, and those of a GPU on a p5.
pub const USUAL_RAILS: [usize; 2] = [1, 4];

/// Gives a run that names no rails the usual ones, and no more than there are cards, where rails are cards: several endpoints on
/// one card are no rails. Says so where that is fewer.
pub fn usual_rails(
    asked: &mut Option<List<usize>>,
    usual: &[usize],
    provider: Option<&str>,
    domains: &[String],
) -> Option<String> {
    if asked.is_some() {
        return None;
    }
    let most = usual.iter().copied().max().unwrap_or(1);
    // Named domains say themselves how many there are.
    let cards = if domains.is_empty() { discover::cards(provider) } else { None };
    let fewer = cards.filter(|cards| *cards < most);
    let mut list: List<usize> = usual.iter().map(|rails| fewer.unwrap_or(most).min(*rails)).collect();
    list.dedup();
    *asked = Some(list);
    fewer.map(|cards| format!("--rails was not given: {cards}, the cards that are here, in place of {most}"))
}

/// As the option takes them.
pub fn rails_text(rails: &[usize]) -> String {
    rails.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Refuses what a completion queue has no room for while nobody polls it. Ranks go on in steps: one that has begun its next step waits there
/// for all others, so a rank that does not poll has the immediates of two steps to bear, `each` of every other rank.
pub fn check_room(ranks: usize, each: usize, room: usize) -> Result<(), Failure> {
    let most = 2 * each * ranks.saturating_sub(1);
    if most <= room {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{ranks} ranks with {each} writes on one rail to each other would raise {most} immediates at a rank that does not poll, and its \
         completion queue has room for {room}"
    )))
}

impl Job {
    /// Opens this rank's rails. `bytes` is what all its regions will take, for the check of this machine's memory.
    pub fn open(
        args: &JobArgs,
        rails: usize,
        messages: bool,
        bytes: u64,
        ranks: &mut Bootstrap,
    ) -> Result<Job, Failure> {
        let mut notes: Vec<String> = args.why_fewer.iter().cloned().collect();
        let (device, why_emulated) = Device::open(args.device, ranks.local_rank())?;
        if let Some(why) = why_emulated.filter(|_| args.mem == MemoryKind::Device) {
            notes.push(format!("emulated device, whose memory is the host's: {why}"));
        }
        let here = bytes.saturating_mul(ranks.local_size() as u64);
        if let Some(available) = memory::available().filter(|available| here > *available) {
            return Err(Failure::Usage(format!(
                "the {} ranks on this machine need {here} bytes for payloads, and {available} are available: try a smaller -e, \
                 --window or --buffers",
                ranks.local_size()
            )));
        }
        let options = RailOptions {
            level: args.completion,
            cuda_memory: args.mem == MemoryKind::Device && matches!(device, Device::Gpu(_)),
            messages,
            ..RailOptions::default()
        };
        let fabric = rails::check_provider(args.provider.as_deref(), &args.domain)?;
        let chosen = choose_rails(&fabric, rails, options, ranks, &device)?;
        notes.extend(chosen.notes().iter().cloned());
        let immediates = chosen.immediates();
        check_room(ranks.size(), 1, immediates)?;
        let pinned = choose_cores(&args.pin, 1, ranks.local_size(), ranks, &device, chosen.domains())?;
        if args.pin != Pin::Off {
            notes.push(match pinned.cpus[..] {
                [core, ..] if cores::pin(core) => format!("rank {} is pinned to core {core}", ranks.rank()),
                _ => "ranks are not pinned: fewer cores than ranks, or the system refuses".into(),
            });
        }
        let timeout = args.timeout;
        let flow = Flow::new(chosen.open()?, timeout);
        let cores = cores::allowed().len();
        if ranks.local_size() > cores {
            flow.give_way(true);
            let text = format!("{} ranks share {cores} cores: latencies include the scheduler", ranks.local_size());
            notes.push(text);
        }
        let connections = Vec::new();
        Ok(Job { flow, device, provider: chosen.name(), chosen, notes, immediates, connections, timeout })
    }

    /// Memory of the kind that was asked for, registered on every rail for these uses.
    pub fn register(&self, kind: MemoryKind, bytes: u64, access: Access) -> Result<Region<AnyRail>, Failure> {
        let place = if kind == MemoryKind::Device { Place::Device } else { self.chosen.place() };
        let bytes = usize::try_from(bytes.max(64)).map_err(|_| Failure::Usage("more memory than there is".into()))?;
        let buffer = self.device.allocate(place, bytes)?;
        self.flow.register(buffer, access).map_err(|error| match error {
            FlowError::Fabric(error) if place == Place::Device => Failure::Usage(format!(
                "--mem device: {error}; `ginlab proxy --mem device` stages such memory through the host"
            )),
            error => error.into(),
        })
    }

    /// Exchanges addresses and regions with every rank, and ends when all ranks have them.
    pub fn connect(&mut self, regions: &[&Region<AnyRail>], ranks: &mut Bootstrap) -> Result<(), Failure> {
        for offer in ranks.all_gather_values(&self.flow.offer(regions)?, "addresses and memory keys")? {
            let peer = self.flow.add_peer(&offer)?;
            self.connections.push(Connection { peer, offer });
        }
        // A card (EFA's) refuses writes of a peer whose address it does not have, so nobody may write before all have inserted all.
        Ok(ranks.barrier("connected")?)
    }

    /// The header of an experiment over these rails: machine, versions, what was opened.
    pub fn header(&self, memory: MemoryKind, ranks: &Bootstrap) -> Header {
        let mut header = Versions::header();
        header
            .set(Key::Provider, self.provider.as_str())
            .set(Key::Rails, self.rail_names())
            .set(Key::Memory, values::name(memory));
        header.notes(&self.notes).note(format!("{} ranks by the {} bootstrap", ranks.size(), ranks.kind()));
        header
    }

    /// A row of a CPU-initiated experiment over the first `rails` rails.
    pub fn row(&self, experiment: &str, case: &str, rails: usize, args: &JobArgs) -> Row {
        let mut row = Row::new(experiment, case, "cpu", &self.provider);
        row.ranks = self.connections.len() as u32;
        row.rails = Some(rails as u32);
        row.memory = Some(values::name(args.mem));
        row.set(&COMPLETION, values::name(args.completion));
        row
    }

    /// Sets what the rails counted from one look to another.
    pub fn counted(&self, row: &mut Row, since: &Counters, until: &Counters, rails: usize) {
        row.set(&AGAIN, until.again - since.again).set(&RAIL_BYTES, moved(since, until, rails));
    }

    /// Names of the rails.
    pub fn rail_names(&self) -> Vec<String> {
        let name = |rail| self.flow.with_rail(rail, |rail| ginlab::fabric::Rail::name(rail).to_owned());
        (0..self.flow.rails()).filter_map(name).collect()
    }

    /// The domains of the rails.
    pub fn domains(&self) -> &[Domain] {
        self.chosen.domains()
    }

    /// Line rate of the cards of the first `rails` rails together, where it is known.
    pub fn line_rate(&self, rails: usize) -> Option<u64> {
        self.chosen.line_rate(rails)
    }

    /// Drives the rails until a peer's signal arrives; looks for peers that have gone meanwhile.
    pub async fn wait_signal(&self, value: u32, count: u64, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let mut signal = std::pin::pin!(self.flow.wait_immediate(value, count));
        loop {
            match tokio::time::timeout(Duration::from_millis(100), signal.as_mut()).await {
                Ok(result) => return Ok(result?),
                Err(_) if signals::interrupted() => return Err(Failure::Interrupted),
                Err(_) => ranks.check_peers()?,
            }
        }
    }
}

/// Payload bytes by rail between two looks.
pub fn moved(since: &Counters, until: &Counters, rails: usize) -> Vec<u64> {
    until.rail_bytes.iter().zip(&since.rail_bytes).take(rails).map(|(until, since)| until - since).collect()
}
