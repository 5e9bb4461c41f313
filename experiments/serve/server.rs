//! The server: one loop that accepts, and a task per peer.

use super::words::{self, Checksum, Done, Joining, Place, Server, Verdict};
use crate::error::Failure;
use crate::events;
use crate::rails::{Rails, Wanted};
use ginlab::bootstrap::visit::{self, Ended, Visit, VisitError, bounded};
use ginlab::bootstrap::{process_env, token_from_env};
use ginlab::cuda::{Choice, Device, Place as Where};
use ginlab::fabric::discover::Reach;
use ginlab::fabric::libfabric::LibfabricRail;
use ginlab::flow::{self, Flow, Region};
use ginlab::measure::size;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

const EXAMPLES: &str = "\
Examples:
  GINLAB_TOKEN=secret ginlab serve --listen 0.0.0.0:7002            accepts writes until Ctrl-C
  GINLAB_TOKEN=secret ginlab serve --listen 127.0.0.1:0 --visits 2  on any free port of this machine, for two peers
  GINLAB_TOKEN=secret ginlab join host-a:7002 -b 1M -n 1000         a peer, at any time";

/// What a place holds before anybody writes there.
const POISON: u8 = 0xA5;
/// How often a peer's task looks for what has arrived.
const LOOK: Duration = Duration::from_millis(2);
/// The server itself waits for nobody in particular: no wait of its is longer than this.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Options of `ginlab serve`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where to listen; port 0 is any free one. An address of the loopback serves peers of this machine only
    #[arg(long, default_value = "127.0.0.1:7002", value_name = "HOST:PORT")]
    listen: String,
    /// Peers that may be there at a time
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    peers: u32,
    /// Memory of each [K, M, G are powers of two]
    #[arg(long, default_value = "16M", value_name = "SIZE")]
    bytes: String,
    /// End after so many peers have left or died [default: with Ctrl-C]
    #[arg(long, value_name = "N")]
    visits: Option<u64>,
    /// Rails
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    rails: u32,
    /// libfabric provider (efa, tcp, shm, ...) [default: efa where there is one, else tcp]
    #[arg(short = 'p', long, value_name = "NAME")]
    provider: Option<String>,
    /// Domains to open rails on, in this order [default: chosen]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    domain: Vec<String>,
    /// Longest silence of a peer, in seconds
    #[arg(short = 't', long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    timeout: u64,
}

/// Memory for one peer at a time.
struct Slot {
    region: Region<LibfabricRail>,
    taken: bool,
    /// Whoever had it died: what was under way may still come in.
    rests_until: Option<Instant>,
}

/// What all peers' tasks share.
struct Shared {
    rails: Rails,
    local: bool,
    slots: RefCell<Vec<Slot>>,
    /// Number of the last peer that joined; its immediates say it.
    last: Cell<u32>,
    driver: RefCell<Option<JoinHandle<()>>>,
    /// A peer has gone in the middle of its writes, or was cut off.
    torn: Cell<bool>,
    token: String,
    timeout: Duration,
}

/// Listens and serves.
pub fn run(args: &Args) -> Result<(), Failure> {
    let bytes = size::parse(&args.bytes).map_err(|error| Failure::Usage(format!("--bytes: {error}")))?;
    if !(1..=1 << 40).contains(&bytes) {
        return Err(Failure::Usage(format!("--bytes {}: allowed are 1 B to 1 TiB", args.bytes)));
    }
    let need = bytes.saturating_mul(u64::from(args.peers));
    if let Some(available) = ginlab::memory::available().filter(|available| need > *available) {
        return Err(Failure::Usage(format!(
            "{} peers with {} each need more than the {available} bytes that are available: try a smaller --bytes or --peers",
            args.peers,
            size::human(bytes)
        )));
    }
    let token = token_from_env(&process_env)?;
    let wanted = Wanted {
        provider: args.provider.clone(),
        domains: args.domain.clone(),
        rails: args.rails as usize,
        messages: false,
        timeout: Duration::from_secs(args.timeout),
    };
    let program = async {
        let listener = visit::listen(&args.listen).await?;
        let address = listener.local_addr().map_err(|error| Failure::Run(error.to_string()))?;
        let local = address.ip().is_loopback();
        let rails = wanted.open(if local { Reach::SameHost } else { Reach::Network })?;
        // Peers on this machine need the cores too.
        rails.flow.give_way(true);
        let (device, _) = Device::open(Choice::Emulated, 0)?;
        // All memory is registered before anybody comes, and stays so until the end: a network card or a provider that
        // still works off what a dead peer has sent always finds it in place.
        let slot = |_| {
            let region = rails.flow.register(device.allocate(Where::Host, bytes as usize)?)?;
            Ok(Slot { region, taken: false, rests_until: None })
        };
        let slots = (0..args.peers).map(slot).collect::<Result<Vec<_>, Failure>>()?;
        for note in &rails.notes {
            eprintln!("# note: {note}");
        }
        events::print(
            "listening",
            &[
                ("address", address.to_string()),
                ("provider", rails.provider.clone()),
                ("rails", rails.names.join(",")),
                ("bytes", bytes.to_string()),
            ],
        );
        let shared = Rc::new(Shared {
            rails,
            local,
            slots: RefCell::new(slots),
            last: Cell::new(0),
            driver: RefCell::new(None),
            torn: Cell::new(false),
            token,
            timeout: wanted.timeout,
        });
        let result = accept(&listener, &shared, args.visits).await;
        if shared.torn.get() || shared.slots.borrow().iter().any(|slot| slot.taken) {
            // Closing an endpoint in the middle of an incoming write crashes the tcp provider of libfabric 1.17, and whether
            // it has seen the end of the connection cannot be asked. The process ends here: the system closes what is left.
            std::mem::forget(shared.clone());
        }
        result
    };
    flow::run(std::iter::empty::<Flow<LibfabricRail>>(), program)
        .map_err(|error| Failure::Run(format!("cannot make an event loop: {error}")))?
}

async fn accept(listener: &TcpListener, shared: &Rc<Shared>, visits: Option<u64>) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    let mut ended = 0;
    while visits.is_none_or(|visits| ended < visits) {
        let next = async {
            tokio::select! {
                accepted = listener.accept() => Some(accepted),
                Some(visited) = tasks.join_next() => {
                    ended += u64::from(matches!(visited, Ok(true)));
                    None
                }
            }
        };
        match bounded(PATIENCE, next).await {
            Ok(Some(Ok((stream, from)))) => {
                let shared = shared.clone();
                tasks.spawn_local(async move { shared.peer(stream, from).await });
            }
            Ok(Some(Err(error))) => {
                // Too many open files, say: the peers that are here go on, and their end may help.
                eprintln!("ginlab: cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Ok(None) | Err(Ended::TimedOut) => {}
            Err(Ended::Interrupted) => return Err(Failure::Interrupted),
        }
        if let Some(error) = shared.rails.flow.failure() {
            return Err(error.into());
        }
    }
    Ok(())
}

/// A peer that has joined. Dropping it frees its place, or lets it rest when the peer has not left by itself.
struct Joined<'a> {
    shared: &'a Shared,
    slot: usize,
    number: u32,
    write_bytes: u64,
    writes: u64,
    /// It has left by itself, with all its writes complete.
    left: bool,
}

impl Shared {
    /// One peer, from its coming to its leaving; whether it had joined.
    async fn peer(&self, stream: TcpStream, from: SocketAddr) -> bool {
        let mut visit = match Visit::welcome(stream, from, &self.token, self.timeout).await {
            Ok(visit) => visit,
            Err(error) => {
                eprintln!("ginlab: turned a visitor away: {error}");
                return false;
            }
        };
        let mut joined = match self.admit(&mut visit).await {
            Ok(joined) => joined,
            Err(failure) => {
                let why = failure.text().unwrap_or_else(|| "interrupted".to_owned());
                eprintln!("ginlab: {visit} did not join: {why}");
                return false;
            }
        };
        let number = joined.number;
        let who = [
            ("peer", number.to_string()),
            ("host", visit.member().host.clone()),
            ("pid", visit.member().pid.to_string()),
        ];
        events::print("joined", &[&who[..], &[("from", from.to_string())]].concat());
        let served = joined.serve(&mut visit, &who).await;
        joined.collect();
        let arrived = [("writes", joined.writes.to_string()), ("bytes", joined.bytes().to_string())];
        match served {
            Ok(right) => {
                joined.left = true;
                events::print("left", &[&who[..], &arrived[..], &[("verified", right.to_string())]].concat());
            }
            // It is the server that ends, not the peer.
            Err(Failure::Interrupted) => {}
            Err(failure) => {
                let why = failure.text().unwrap_or_default();
                events::print("died", &[&who[..], &arrived[..], &[("why", why)]].concat());
            }
        }
        true
    }

    /// Gives a place to a peer that can use it.
    async fn admit(&self, visit: &mut Visit) -> Result<Joined<'_>, Failure> {
        let flow = &self.rails.flow;
        let bytes = self.slots.borrow().first().map_or(0, |slot| slot.region.bytes());
        if self.local && !visit.same_host() {
            let why = "the server has rails of its own machine only: let it --listen on an address of the network";
            return Err(visit.refuse(why.to_owned()).await.into());
        }
        let server = Server { provider: self.rails.provider.clone(), rails: flow.rails(), local: self.local, bytes };
        visit.say(words::SERVER, &server).await?;
        let joining: Joining = visit.hear(words::JOINING).await?;
        if !(1..=bytes).contains(&joining.write_bytes) {
            let why = format!("a write of {} B does not fit into a place of {bytes} B", joining.write_bytes);
            return Err(visit.refuse(why).await.into());
        }
        let Some(slot) = self.take_slot() else {
            let count = self.slots.borrow().len();
            let why = format!(
                "all {count} places are taken, or rest after a death; try again later, or give the server more --peers"
            );
            return Err(visit.refuse(why).await.into());
        };
        let number = self.last.get().wrapping_add(1);
        self.last.set(number);
        let joined = Joined { shared: self, slot, number, write_bytes: joining.write_bytes, writes: 0, left: false };
        // From here on its writes may come.
        self.drive(true);
        let region = self.slots.borrow()[slot].region.clone();
        region.buffer().write(0, &vec![POISON; bytes as usize])?;
        visit.say(words::PLACE, &Place { offer: flow.offer(&[&region])?, number }).await?;
        Ok(joined)
    }

    /// A place that is free; last of all one that rests, and only when its rest is over.
    fn take_slot(&self) -> Option<usize> {
        let mut slots = self.slots.borrow_mut();
        let rested = |slot: &Slot| slot.rests_until.is_none_or(|until| Instant::now() >= until);
        let fresh = slots.iter().position(|slot| !slot.taken && slot.rests_until.is_none());
        let found = fresh.or_else(|| slots.iter().position(|slot| !slot.taken && rested(slot)))?;
        (slots[found].taken, slots[found].rests_until) = (true, None);
        Some(found)
    }

    /// Polls the rails as long as a peer is here; a server without peers takes no processor time.
    fn drive(&self, on: bool) {
        let mut driver = self.driver.borrow_mut();
        match (on, driver.is_some()) {
            (true, false) => {
                let flow = self.rails.flow.clone();
                *driver = Some(tokio::task::spawn_local(async move { flow.drive().await }));
            }
            (false, true) if self.slots.borrow().iter().all(|slot| !slot.taken) => {
                driver.take().inspect(JoinHandle::abort);
            }
            _ => {}
        }
    }
}

impl Joined<'_> {
    fn bytes(&self) -> u64 {
        self.writes * self.write_bytes
    }

    /// Counts the writes that have arrived since the last look.
    fn collect(&mut self) -> bool {
        let arrived = self.shared.rails.flow.take_immediates(self.number);
        self.writes += arrived;
        arrived > 0
    }

    /// Waits for the end of the peer's writes and answers with their checksum; whether the peer found it right.
    async fn serve(&mut self, visit: &mut Visit, who: &[(&str, String)]) -> Result<bool, Failure> {
        let done = self.until_done(visit, who).await?;
        let region = self.shared.slots.borrow()[self.slot].region.clone();
        if done.extent > region.bytes() {
            let why = format!("{} B are beyond the place of {} B", done.extent, region.bytes());
            return Err(visit.refuse(why).await.into());
        }
        // Its writes are complete, so they are in memory; the last immediates may still wait to be polled.
        let mut arrived = vec![0; done.extent as usize];
        region.buffer().read(0, &mut arrived)?;
        let answer = Checksum { crc32: crc32fast::hash(&arrived), writes: self.writes };
        visit.say(words::CHECKSUM, &answer).await?;
        let verdict: Verdict = visit.hear(words::VERDICT).await?;
        Ok(verdict.right)
    }

    /// Until the peer has said that it is done and all its writes have arrived. Neither words nor writes for the timeout are
    /// the end of it.
    async fn until_done(&mut self, visit: &mut Visit, who: &[(&str, String)]) -> Result<Done, Failure> {
        let mut done: Option<Done> = None;
        let mut moved = Instant::now();
        loop {
            let word = match &done {
                Some(done) if self.writes >= done.writes => break,
                // What it says now is nothing but its end.
                Some(_) => tokio::time::timeout(LOOK, visit.hear::<Done>(words::VERDICT)).await,
                None => tokio::time::timeout(LOOK, visit.hear::<Done>(words::DONE)).await,
            };
            let first = self.writes == 0;
            if self.collect() {
                moved = Instant::now();
                if first {
                    events::print("writing", who);
                }
            }
            match word {
                Ok(Ok(word)) => (done, moved) = (Some(word), Instant::now()),
                Ok(Err(VisitError::Silent { .. })) | Err(_) => {}
                Ok(Err(error)) => return Err(error.into()),
            }
            if moved.elapsed() >= self.shared.timeout {
                let seconds = self.shared.timeout.as_secs();
                let text = format!("no word and no write for {seconds} s; {} writes have arrived", self.writes);
                return Err(Failure::Timeout(text));
            }
        }
        done.ok_or_else(|| Failure::Run("the peer's last word was lost".to_owned()))
    }
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        if !self.left {
            self.shared.torn.set(true);
        }
        {
            let mut slots = self.shared.slots.borrow_mut();
            let rest = (!self.left).then(|| Instant::now() + self.shared.timeout);
            (slots[self.slot].taken, slots[self.slot].rests_until) = (false, rest);
        }
        self.shared.drive(false);
    }
}
