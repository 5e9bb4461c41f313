//! Parts that experiments over the fabric share: the options of a job and its rails, and a rank of a job with its
//! [`Flow`].

use crate::columns::{COMPLETION, Cold};
use crate::error::Failure;
use crate::mps::MpsArgs;
pub use crate::payload::MemoryKind;
use crate::rail_rates::RailPlace;
use crate::rails;
use crate::ranks::Ranks;
use crate::runner::{added, drive};
use crate::values::{self, List, Pin, corruption, seconds};
use ginlab::bootstrap::{Bootstrap, BootstrapKind};
use ginlab::cuda::{Device, DeviceChoice, MemoryLocation};
use ginlab::fabric::any::AnyRail;
use ginlab::fabric::discover::{self, Domain};
use ginlab::fabric::libfabric::{Level, RailOptions};
use ginlab::fabric::{Access, RailPlan, soft};
use ginlab::flow::{Flow, FlowError, Offer, Peer, Region, Target};
use ginlab::gin::seat::{CoreWants, MemoryWants, RailWants, Seat, Wants};
use ginlab::proxy::device_timeout;
use ginlab::rails::Counters;
use ginlab::report::{Header, Key, Row};
use ginlab::versions::Versions;
use ginlab::{cores, signals};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Options for the number of ranks and their bootstrap.
#[derive(clap::Args, Clone, Debug)]
pub struct RankArgs {
    /// Number of ranks [default: 2; 1 without a network; the launcher's number under mpirun or srun]
    #[arg(long, value_name = "N")]
    pub np: Option<usize>,
    /// Connection of ranks: local (started by ginlab), mpi (mpirun, srun), or tcp (RANK, WORLD_SIZE, MASTER_ADDR)
    /// [default: detected from the environment]
    #[arg(long, value_enum, value_name = "KIND", hide_possible_values = true)]
    pub bootstrap: Option<BootstrapKind>,
    /// Interfaces on which other hosts can reach rank 0 (mpi bootstrap), e.g. eth0,ens*
    #[arg(long, value_name = "LIST")]
    pub bootstrap_if: Option<String>,
    #[command(flatten)]
    pub mps: MpsArgs,
    /// Limit for every wait without progress, in seconds; ranks wait for each other for twice this time plus 6 s
    #[arg(short = 't', long, default_value = "30", value_name = "SECONDS", value_parser = seconds())]
    pub timeout: Duration,
}

impl RankArgs {
    /// Returns the ranks of a job, two by default. Ranks wait for each other longer than a kernel may wait. As a
    /// result, the rank that detects the cause of a stall is the one that reports it.
    pub fn ranks(
        &self,
        fingerprint: Vec<(String, String)>,
        check: impl Fn(usize) -> Result<(), Failure> + 'static,
    ) -> Ranks {
        Ranks {
            kind: self.bootstrap,
            asked: self.np,
            default: 2,
            check: Box::new(check),
            timeout: device_timeout(self.timeout) * 2,
            interfaces: self.bootstrap_if.clone(),
            fingerprint,
            mps: None,
            partial: false,
        }
    }
}

/// Options of a job: its ranks and rails.
#[derive(clap::Args, Clone, Debug)]
pub struct JobArgs {
    #[command(flatten)]
    pub meet: RankArgs,
    /// libfabric provider (efa, tcp, shm, ...), or worst (the least ordered network that EFA permits) [default: efa if
    /// available, else tcp]
    #[arg(short = 'p', long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Domains on which to open rails, in this order [default: automatic, nearest to the GPU first]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub domain: Vec<String>,
    /// Completion of a transfer: delivery (data is at the target) or transmit (handed to the transport)
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = Level::Delivery, hide_possible_values = true)]
    pub completion: Level,
    /// Device that provides the memory and whose nearest rails are used: gpu, emulated (CPU threads), or auto (the GPU
    /// if there is one)
    #[arg(short = 'd', long, value_enum, default_value_t = DeviceChoice::Auto, hide_possible_values = true)]
    pub device: DeviceChoice,
    /// Memory that holds the payload: auto (GPU memory if every rank has a GPU whose NICs access it directly, otherwise
    /// pinned), pinned (pinned host memory) or device (GPU memory)
    #[arg(
        long,
        alias = "mem",
        value_enum,
        value_name = "MEM",
        default_value_t = MemoryKind::Auto,
        hide_possible_values = true
    )]
    pub memory: MemoryKind,
    /// Pin each rank to a core: auto (a separate core per rank, near its GPU or NICs), off, or a list by rank on this
    /// machine
    #[arg(long, value_name = "WHICH", default_value = "off", num_args = 0..=1, default_missing_value = "auto", help_heading = "Ranks")]
    pub pin: Pin,
    /// Inject a fault: corrupt=N (write or message N of each rank, counted from 0, is sent one byte short)
    #[arg(long = "fault", value_name = "FAULT", hide = true, value_parser = corruption)]
    pub corrupt: Option<u64>,
    /// Reason why fewer rails than usual are used by default; `None` if all of them are used.
    #[arg(skip)]
    pub why_fewer: Option<String>,
}

/// A rank's connection to another rank.
pub struct Connection {
    pub peer: Peer,
    pub offer: Offer,
}

impl Connection {
    /// Returns the peer's region of index `region`.
    pub fn target(&self, region: usize) -> Result<Target, Failure> {
        Ok(Target::new(self.peer, &self.offer, region)?)
    }
}

/// A rank with its open rails.
pub struct Job {
    pub flow: Flow<AnyRail>,
    pub device: Device,
    pub provider: String,
    chosen: RailPlan,
    /// Memory that holds the payload. Never [`MemoryKind::Auto`].
    memory: MemoryKind,
    pub notes: Vec<String>,
    /// Number of immediates that each rail's completion queue holds while it is not polled.
    pub immediates: usize,
    /// Connections indexed by rank, including this rank.
    pub connections: Vec<Connection>,
    pub timeout: Duration,
    /// Times of the first registration and of [`connect`](Job::connect).
    pub cold: Cold,
    /// Task that drives the rails while this rank waits. `None` if they are not driven.
    driver: Option<JoinHandle<()>>,
}

impl JobArgs {
    /// Returns the ranks of the job.
    ///
    /// # Errors
    /// Returns [`Failure::Usage`] if libfabric or the provider is not available.
    pub fn ranks(
        &self,
        fingerprint: Vec<(String, String)>,
        check: impl Fn(usize) -> Result<(), Failure> + 'static,
    ) -> Result<Ranks, Failure> {
        // Check before any process is spawned.
        rails::check_provider(self.provider.as_deref(), &self.domain)?;
        Ok(self.meet.ranks(fingerprint, check))
    }

    /// Returns the options of the same job over another provider.
    ///
    /// # Errors
    /// Returns [`Failure::Usage`] if the provider is not available.
    pub fn over(&self, provider: &str) -> Result<JobArgs, Failure> {
        rails::check_provider(Some(provider), &[]).map_err(|failure| match failure {
            Failure::Usage(why) => Failure::Usage(why.replacen("--provider", "--versus", 1)),
            other => other,
        })?;
        Ok(JobArgs { provider: Some(provider.to_owned()), domain: Vec::new(), ..self.clone() })
    }

    /// Replaces unspecified rails by the usual ones. See the function [`usual_rails`].
    pub fn usual_rails(&mut self, asked: &mut Option<List<usize>>) {
        self.why_fewer = usual_rails(asked, &USUAL_RAILS, self.provider.as_deref(), &self.domain);
    }
}

/// Numbers of rails to sweep by default: one NIC, and the NICs of one GPU on a p5 instance.
pub const USUAL_RAILS: [usize; 2] = [1, 4];

/// Sets the usual rails if `asked` is `None`, limited to the number of NICs: several endpoints on one NIC are not
/// separate rails. Returns a note if the limit applies.
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
    // Named domains determine the number of rails themselves.
    let cards = if domains.is_empty() { discover::cards(provider) } else { None };
    let fewer = cards.filter(|cards| *cards < most);
    let mut list: List<usize> = usual.iter().map(|rails| fewer.unwrap_or(most).min(*rails)).collect();
    list.dedup();
    *asked = Some(list);
    fewer.map(|cards| {
        format!("--rails was not given: using {cards}, the number of NICs of this machine, instead of {most}")
    })
}

/// Formats numbers of rails as the option accepts them.
pub fn rails_text(rails: &[usize]) -> String {
    rails.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Rejects a job whose immediates could overflow a completion queue that is not polled. Ranks proceed in steps, and a
/// rank that is one step ahead waits for all others. A rank that does not poll therefore receives at most the
/// immediates of two steps, `each` from every other rank in each step.
pub fn check_room(ranks: usize, each: usize, room: usize) -> Result<(), Failure> {
    let most = 2 * each * ranks.saturating_sub(1);
    if most <= room {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{ranks} ranks with {each} writes on one rail to each other can send {most} immediates to a rank that does not \
         poll, but its completion queue holds only {room}"
    )))
}

impl Job {
    /// Opens this rank's rails. `bytes` is the total size of this rank's regions, for the check of available memory.
    pub fn open(
        args: &JobArgs,
        rails: usize,
        messages: bool,
        bytes: u64,
        ranks: &mut Bootstrap,
    ) -> Result<Job, Failure> {
        let advice = "try a smaller -e, --window or --buffers";
        let wants = Wants {
            launches: false,
            memory: Some(MemoryWants { bytes, purpose: "payloads", advice }),
            notes: args.why_fewer.iter().cloned().collect(),
            ..Wants::new(args.device)
        };
        let mut seat = Seat::open(ranks, wants)?;
        if let Some(why) = seat.why_emulated.as_ref().filter(|_| args.memory == MemoryKind::Device) {
            seat.notes.push(format!("emulated device, whose memory is the host's: {why}"));
        }
        let options = RailOptions {
            level: args.completion,
            cuda_memory: args.memory == MemoryKind::Device && matches!(seat.device, Device::Gpu(_)),
            messages,
            ..RailOptions::default()
        };
        let fabric = rails::check_provider(args.provider.as_deref(), &args.domain)?;
        let mut chosen = seat.choose_rails(ranks, RailWants { fabric: &fabric, count: rails, options })?.clone();
        let memory = args.memory.choose(&seat.device, &mut chosen, &mut seat.notes, ranks)?;
        let immediates = chosen.immediates();
        check_room(ranks.size(), 1, immediates)?;
        // A rank with software NICs also has threads that execute their requests.
        let busy = ranks.local_size() * if soft::label().is_some() { 2 } else { 1 };
        seat.choose_cores(ranks, CoreWants { pin: &args.pin, threads: 1, busy })?;
        let Seat { device, cores: pinned, mut notes, .. } = seat;
        if args.pin != Pin::Off {
            notes.push(match pinned.cpus[..] {
                [core, ..] if cores::pin(core) => format!("rank {} is pinned to core {core}", ranks.rank()),
                _ => "ranks are not pinned: there are fewer cores than ranks, or the system does not permit it".into(),
            });
        }
        let timeout = args.meet.timeout;
        let flow = Flow::new(chosen.open()?, timeout);
        args.corrupt.into_iter().for_each(|number| flow.corrupt(number));
        if pinned.shared {
            flow.give_way(true);
        }
        let connections = Vec::new();
        let (provider, cold) = (chosen.name(), Cold::default());
        Ok(Job { flow, device, provider, chosen, memory, notes, immediates, connections, timeout, cold, driver: None })
    }

    /// Returns the memory that an option selects.
    fn memory(&self, asked: MemoryKind) -> MemoryKind {
        if asked == MemoryKind::Auto { self.memory } else { asked }
    }

    /// Allocates memory of this kind and registers it on every rail for the uses `access`. The time of the first
    /// registration is kept.
    pub fn register(&mut self, kind: MemoryKind, bytes: u64, access: Access) -> Result<Region<AnyRail>, Failure> {
        let place = if self.memory(kind) == MemoryKind::Device { MemoryLocation::Device } else { self.chosen.place() };
        let bytes =
            usize::try_from(bytes.max(64)).map_err(|_| Failure::Usage("exceeds the available memory".into()))?;
        let buffer = self.device.allocate(place, bytes)?;
        let started = Instant::now();
        let region = self.flow.register(buffer, access);
        self.cold.register.get_or_insert_with(|| started.elapsed());
        region.map_err(|error| match error {
            FlowError::Fabric(error) if place == MemoryLocation::Device => Failure::Usage(format!(
                "--memory device: {error}; `ginlab proxy --memory device` stages such memory through the host"
            )),
            error => error.into(),
        })
    }

    /// Exchanges addresses and regions with every rank. Returns when all ranks have them.
    pub fn connect(&mut self, regions: &[&Region<AnyRail>], ranks: &mut Bootstrap) -> Result<(), Failure> {
        let offers: Vec<Offer> = ranks.all_gather_values(&self.flow.offer(regions)?, "addresses and memory keys")?;
        ranks.check_addresses(offers.iter().map(|offer| &offer.addresses[..]))?;
        let started = Instant::now();
        for offer in offers {
            let peer = self.flow.add_peer(&offer)?;
            self.connections.push(Connection { peer, offer });
        }
        self.cold.insert = started.elapsed();
        // EFA devices reject writes from a peer whose address has not been inserted, so that no rank may write before
        // all have inserted all addresses.
        Ok(ranks.barrier("connected")?)
    }

    /// Sets whether the rails are driven while this rank waits. If a rank has opened two jobs, the rails of only one
    /// are driven at a time, so that they have the whole thread.
    pub fn drive(&mut self, driven: bool) {
        match &self.driver {
            None if driven => self.driver = Some(drive(&self.flow)),
            Some(driver) if !driven => {
                driver.abort();
                self.driver = None;
            }
            _ => {}
        }
    }

    /// Returns the header of an experiment over these rails: machine, versions, and what was opened.
    pub fn header(&self, memory: MemoryKind, ranks: &Bootstrap) -> Header {
        let mut header = Versions::header();
        header
            .set(Key::Provider, self.provider.as_str())
            .set(Key::Rails, self.rail_names())
            .set(Key::Memory, values::name(self.memory(memory)));
        if matches!(self.device, Device::Gpu(_)) {
            header.set(Key::Gpu, self.device.name());
        }
        header.notes(&self.notes).notes(ranks.notes()).note(format!(
            "{} ranks by the {} bootstrap",
            ranks.size(),
            ranks.kind()
        ));
        header
    }

    /// Creates a row of a CPU-initiated experiment over the first `rails` rails.
    pub fn row(&self, experiment: &str, case: &str, rails: usize, args: &JobArgs) -> Row {
        let mut row = Row::new(experiment, case, "cpu", &self.provider);
        row.ranks = self.connections.len() as u32;
        row.rails = Some(rails as u32);
        row.memory = Some(values::name(self.memory(args.memory)));
        row.set(&COMPLETION, values::name(args.completion));
        row
    }

    /// Returns the names of the rails.
    pub fn rail_names(&self) -> Vec<String> {
        let name = |rail| self.flow.with_rail(rail, |rail| ginlab::fabric::Rail::name(rail).to_owned());
        (0..self.flow.rails()).filter_map(name).collect()
    }

    /// Returns the identities of the rails of this rank, on the host of this name.
    pub fn rail_places(&self, host: &str) -> Vec<RailPlace> {
        let place = |(rail, name): (usize, String)| {
            let domain = self.domains().get(rail);
            RailPlace {
                host: host.to_owned(),
                gpu: self.device.pci_address(),
                domain: domain.map_or(name, |domain| domain.name.clone()),
                pci: domain.and_then(|domain| domain.pci).map(|address| address.to_string()),
                line: self.chosen.line_rate_of(rail),
            }
        };
        self.rail_names().into_iter().enumerate().map(place).collect()
    }

    /// Returns the domains of the rails.
    pub fn domains(&self) -> &[Domain] {
        self.chosen.domains()
    }

    /// Returns the line rate of the NICs of the first `rails` rails together, if it is known.
    pub fn line_rate(&self, rails: usize) -> Option<u64> {
        self.chosen.line_rate(rails)
    }

    /// Drives the rails until `count` signals of this value arrive, and checks periodically whether peers have exited.
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

/// Returns the totals of the proxy threads of a rank. Threads use a rail concurrently. The time in which a rail has
/// transfers in flight is therefore the longest of the threads' times.
pub fn of_threads<'a>(threads: impl IntoIterator<Item = &'a Counters>) -> Counters {
    let mut all = Counters::default();
    for thread in threads {
        all.rail_bytes = added([&all.rail_bytes, &thread.rail_bytes]);
        all.rail_transfers = added([&all.rail_transfers, &thread.rail_transfers]);
        all.rail_busy.resize(thread.rail_busy.len().max(all.rail_busy.len()), Duration::ZERO);
        all.rail_busy.iter_mut().zip(&thread.rail_busy).for_each(|(most, busy)| *most = (*most).max(*busy));
        all.again += thread.again;
    }
    all
}
