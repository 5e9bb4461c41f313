//! Server: one loop that accepts connections, and a task per peer.

mod joined;

use super::memory::poison;
use super::window;
use super::words::{self, Joining, ServerHello, SlotGrant};
use crate::error::Failure;
use crate::events;
use crate::rails::{self, RailRequest, Rails};
use crate::runner::{drive, in_event_loop};
use crate::visitors;
use ginlab::bootstrap::session::{Session, SessionListener};
use ginlab::bootstrap::{process_env, token_for};
use ginlab::cuda::{Buffer, Device, DeviceChoice};
use ginlab::fabric::Access;
use ginlab::fabric::any::AnyRail;
use ginlab::fabric::discover::Reach;
use ginlab::flow::{Offer, Peer, Region};
use ginlab::measure::size;
use ginlab::shm_cleanup;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

use joined::Joined;

const EXAMPLES: &str = "\
Examples:
  GINLAB_TOKEN=secret ginlab serve --listen 0.0.0.0:7002            accept writes until Ctrl-C
  GINLAB_TOKEN=secret ginlab serve --listen 127.0.0.1:0 --visits 2  listen on a free port of this machine, exit after two peers
  GINLAB_TOKEN=secret ginlab join host-a:7002 -b 1M -n 1000         join as a peer, at any time";

/// Interval at which a peer's task checks for arrivals.
const LOOK: Duration = Duration::from_millis(2);
/// Number of polls that empty the completion queues before a slot is reused. libfabric returns up to a thousand
/// completions per poll, and the worst-case network model may be unresponsive for up to 48 polls.
const POLLS: usize = 64;
/// Maximum number of connections without a slot that are served at a time.
const MOST_WAITING: usize = 64;

/// Options of `ginlab serve`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// Address to listen on; port 0 selects a free port. A loopback address serves only peers on this machine
    #[arg(long, default_value = "127.0.0.1:7002", value_name = "HOST:PORT")]
    listen: String,
    /// Maximum number of peers at a time
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Connection")]
    peers: u32,
    /// Memory per peer; K, M and G are powers of two
    #[arg(long, default_value = "16M", value_name = "SIZE", value_parser = size::parse)]
    bytes: u64,
    /// Exit after this many peers have left or died [default: run until Ctrl-C]
    #[arg(long, value_name = "N")]
    visits: Option<u64>,
    /// Number of rails
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    rails: u32,
    /// libfabric provider (efa, tcp, shm, ...), or worst (the least ordered network that EFA permits) [default: efa if
    /// available, else tcp]
    #[arg(short = 'p', long, value_name = "NAME")]
    provider: Option<String>,
    /// Domains on which to open rails, in this order [default: automatic]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    domain: Vec<String>,
    /// Maximum time without a message or write of a peer, in seconds
    #[arg(short = 't', long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400), help_heading = "Connection")]
    timeout: u64,
}

/// Memory for one peer at a time.
struct Slot {
    memory: Rc<Buffer>,
    /// Registration while a peer uses the slot. Each peer has its own registration with its own keys.
    region: Option<Region<AnyRail>>,
    /// Immediate that the peer raises with its writes. `None` if the slot is free.
    tag: Option<u32>,
    /// The peer that uses the slot, and its address on each rail. An EFA device rejects writes from a peer whose
    /// address it does not have (status 14).
    peer: Option<(Peer, Vec<Vec<u8>>)>,
    /// Time until which the slot is not reused, because its peer died and writes in flight may still arrive.
    rests_until: Option<Instant>,
}

/// State shared by the tasks of all peers.
struct Shared {
    rails: Rails,
    /// Maximum number of writes by which a peer may be ahead of those that are counted.
    window: u64,
    local: bool,
    slots: RefCell<Vec<Slot>>,
    /// Number of the last peer that joined.
    last: Cell<u32>,
    driver: RefCell<Option<JoinHandle<()>>>,
    /// Whether a peer has disconnected or was disconnected during its writes.
    torn: Cell<bool>,
    /// Number of immediates without a peer at which the next report is due.
    strays_to_tell: Cell<u64>,
    timeout: Duration,
}

/// Runs the server.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    // Check before listening: rails are opened only after that.
    let fabric = rails::check_provider(args.provider.as_deref(), &args.domain)?;
    let bytes = args.bytes;
    if !(1..=1 << 40).contains(&bytes) {
        return Err(Failure::Usage(format!("--bytes {}: must be from 1 B to 1 TiB", args.bytes)));
    }
    let need = bytes.saturating_mul(u64::from(args.peers));
    if let Some(available) = ginlab::memory::available().filter(|available| need > *available) {
        return Err(Failure::Usage(format!(
            "{} peers with {} each require more than the {available} available bytes: try a smaller --bytes or --peers",
            args.peers,
            size::human(bytes)
        )));
    }
    let token = token_for(&args.listen, &process_env)?;
    let wanted = RailRequest {
        fabric,
        rails: args.rails as usize,
        messages: false,
        timeout: Duration::from_secs(args.timeout),
        rank: 0,
    };
    let program = async {
        let entrance = SessionListener::listen(&args.listen, &token, wanted.timeout).await?;
        let address = entrance.address()?;
        let local = address.ip().is_loopback();
        let rails = wanted.open(if local { Reach::SameHost } else { Reach::Network })?;
        let window = window::share_out(rails.immediates, args.peers)?;
        // Peers on this machine also need the cores.
        rails.flow.give_way(true);
        let (device, _) = Device::open(DeviceChoice::Emulated, 0)?;
        // All memory is allocated before the first peer connects and stays valid until the end, because a provider may
        // still process writes of a dead peer. It is registered once to detect errors early.
        let memory = |_| Ok(Rc::new(device.allocate(rails.place, bytes as usize)?));
        let memories = (0..args.peers).map(memory).collect::<Result<Vec<_>, Failure>>()?;
        let tried = memories.iter().map(|memory| rails.flow.register(memory.clone(), Access::REMOTE_WRITE));
        drop(tried.collect::<Result<Vec<_>, _>>()?);
        let slot = |memory| Slot { memory, region: None, tag: None, peer: None, rests_until: None };
        let slots = memories.into_iter().map(slot).collect();
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
            window,
            local,
            slots: RefCell::new(slots),
            last: Cell::new(0),
            driver: RefCell::new(None),
            torn: Cell::new(false),
            strays_to_tell: Cell::new(1),
            timeout: wanted.timeout,
        });
        let visitor = |visit| {
            let shared = shared.clone();
            async move { shared.peer(visit).await }
        };
        let most = (args.peers as usize + MOST_WAITING, "too many clients are connecting to the server");
        let health = || shared.rails.flow.failure().map_or(Ok(()), |error| Err(error.into()));
        let result = visitors::hear(entrance, args.visits, most, visitor, health).await;
        if shared.torn.get() || shared.slots.borrow().iter().any(|slot| slot.tag.is_some()) {
            // Do not close the rails: closing an endpoint during an incoming write crashes the tcp provider of
            // libfabric 1.17, and there is no way to determine whether the provider has processed the disconnect. The
            // process exits here, and the system closes the rest.
            std::mem::forget(shared.clone());
        }
        result
    };
    in_event_loop(program)
}

impl Shared {
    /// Serves one peer from its connection to its disconnect. Returns whether it joined.
    async fn peer(&self, mut visit: Session) -> bool {
        let mut joined = match self.admit(&mut visit).await {
            Ok(joined) => joined,
            Err(failure) => {
                let why = failure.text().unwrap_or_else(|| "interrupted".to_owned());
                eprintln!("ginlab: {visit} did not join: {why}");
                return false;
            }
        };
        let (number, member) = (joined.number, visit.member());
        let who = [("peer", number.to_string()), ("host", member.host.clone()), ("pid", member.pid.to_string())];
        events::print("joined", &[&who[..], &[("from", visit.from().to_string())]].concat());
        let served = joined.serve(&mut visit, &who).await;
        joined.collect();
        let arrived = [("writes", joined.writes.to_string()), ("bytes", joined.bytes().to_string())];
        match served {
            Ok(right) => {
                joined.left = true;
                events::print("left", &[&who[..], &arrived[..], &[("verified", right.to_string())]].concat());
            }
            // The server is being stopped; the peer did not fail.
            Err(Failure::Interrupted) => {}
            Err(failure) => {
                let why = failure.text().unwrap_or_default();
                events::print("died", &[&who[..], &arrived[..], &[("why", why)]].concat());
                // Removes only files of dead processes: a peer that is merely silent may still use its files.
                shm_cleanup::remove_stale();
            }
        }
        true
    }

    /// Assigns a slot to a peer.
    async fn admit(&self, visit: &mut Session) -> Result<Joined<'_>, Failure> {
        let flow = &self.rails.flow;
        let bytes = self.slots.borrow().first().map_or(0, |slot| slot.memory.bytes() as u64);
        if self.local && !visit.same_host() {
            let why = "the server's rails reach only its own machine: start it with --listen on a network address";
            return Err(visit.refuse(why.to_owned()).await.into());
        }
        let server =
            ServerHello { provider: self.rails.provider.clone(), rails: flow.rails(), local: self.local, bytes };
        visit.say(words::SERVER, &server).await?;
        let joining: Joining = visit.hear(words::JOINING).await?;
        if !(1..=bytes).contains(&joining.write_bytes) {
            let why = format!("a write of {} B does not fit into a slot of {bytes} B", joining.write_bytes);
            return Err(visit.refuse(why).await.into());
        }
        let Some((slot, memory, tag)) = self.take_slot()? else {
            let count = self.slots.borrow().len();
            let why = format!(
                "all {count} slots are in use, or reserved after a peer's death; retry later, or start the server with \
                 more --peers"
            );
            return Err(visit.refuse(why).await.into());
        };
        let number = self.last.get().wrapping_add(1);
        self.last.set(number);
        let write_bytes = joining.write_bytes;
        // A slot whose key has not been sent is free immediately.
        let mut joined = Joined { shared: self, slot, memory, number, tag, write_bytes, writes: 0, left: true };
        let implausible = visit.check_addresses(&flow.offer(&[])?.addresses, &joining.offer.addresses);
        if let Err(why) = implausible.map_err(|error| error.to_string()).and_then(|()| self.learn(slot, joining.offer))
        {
            return Err(visit.refuse(why).await.into());
        }
        poison(&joined.memory).await?;
        // The window of a dead peer covered the completions that it left in the queues. That window now belongs to the
        // new peer.
        (0..POLLS).try_for_each(|_| flow.progress())?;
        let region = flow.register(joined.memory.clone(), Access::REMOTE_WRITE)?;
        let offer = flow.offer(&[&region])?;
        self.slots.borrow_mut()[slot].region = Some(region);
        flow.expect_immediates(joined.tag);
        // Writes of the peer may arrive from this point on.
        joined.left = false;
        self.drive(true);
        visit.say(words::PLACE, &SlotGrant { offer, number, tag: joined.tag, window: self.window }).await?;
        Ok(joined)
    }

    /// Takes a free slot, preferably one in which no peer has died. Other slots can be taken only after their delay.
    /// The tag is random and different from those of other peers, so that no peer knows another's.
    fn take_slot(&self) -> Result<Option<(usize, Rc<Buffer>, u32)>, Failure> {
        let mut slots = self.slots.borrow_mut();
        let free = |slot: &(usize, &Slot)| {
            let rested = slot.1.rests_until.is_none_or(|until| Instant::now() >= until);
            slot.1.tag.is_none() && rested
        };
        // Prefer a slot in which no peer has died.
        let found = slots.iter().enumerate().filter(free).min_by_key(|(_, slot)| slot.rests_until.is_some());
        let Some((found, _)) = found else { return Ok(None) };
        let tag = loop {
            let tag =
                getrandom::u32().map_err(|error| Failure::Run(format!("cannot generate random numbers: {error}")))?;
            if slots.iter().all(|slot| slot.tag != Some(tag)) {
                break tag;
            }
        };
        let slot = &mut slots[found];
        (slot.tag, slot.rests_until) = (Some(tag), None);
        Ok(Some((found, slot.memory.clone(), tag)))
    }

    /// Adds the addresses of the peer that receives this slot. The error is a one-line message for the peer.
    fn learn(&self, slot: usize, offer: Offer) -> Result<(), String> {
        let mut slots = self.slots.borrow_mut();
        // Removing a peer removes its addresses, so that no peer may claim an address of another one.
        let mut taken = slots.iter().filter_map(|slot| slot.peer.as_ref()).flat_map(|(_, addresses)| addresses);
        if taken.any(|address| offer.addresses.contains(address)) {
            return Err("another connected peer has this address".to_owned());
        }
        let peer = self.rails.flow.add_peer(&offer).map_err(|error| format!("invalid addresses: {error}"))?;
        slots[slot].peer = Some((peer, offer.addresses));
        Ok(())
    }

    /// Revokes the key to a slot, removes the peer's addresses, and frees the slot.
    fn revoke(&self, slot: usize, rests_until: Option<Instant>) {
        let mut slots = self.slots.borrow_mut();
        let slot = &mut slots[slot];
        if let Some((peer, _)) = slot.peer.take()
            && let Err(error) = self.rails.flow.remove_peer(peer)
        {
            eprintln!("ginlab: cannot remove the addresses of a peer that left: {error}");
        }
        match slot.region.take().map(|region| self.rails.flow.unregister(region)) {
            None | Some(Ok(_)) => (slot.tag, slot.rests_until) = (None, rests_until),
            // A local operation is in flight on the region, which this server never posts. The slot stays occupied.
            Some(Err(region)) => slot.region = Some(region),
        }
    }

    /// Reports immediates that belong to no peer, when their number reaches 1, 2, 4, 8, ...
    fn tell_strays(&self) {
        let strays = self.rails.flow.incoming().strays;
        if strays >= self.strays_to_tell.get() {
            self.strays_to_tell.set(strays.saturating_add(1).next_power_of_two());
            eprintln!(
                "ginlab: received {strays} immediates that are assigned to no connected peer: from a peer that left, \
                 or guessed by another peer"
            );
        }
    }

    /// Starts polling the rails when a peer joins, and stops when there are no peers. A server without peers uses no
    /// CPU time.
    fn drive(&self, on: bool) {
        let mut driver = self.driver.borrow_mut();
        match (on, driver.is_some()) {
            (true, false) => {
                *driver = Some(drive(&self.rails.flow));
            }
            (false, true) if self.slots.borrow().iter().all(|slot| slot.tag.is_none()) => {
                driver.take().inspect(JoinHandle::abort);
            }
            _ => {}
        }
    }
}
