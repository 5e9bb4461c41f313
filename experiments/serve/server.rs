//! The server: one loop that accepts, and a task per peer.

use super::memory::{checksum, poison};
use super::window::{self, Told};
use super::words::{self, Answer, Checksum, Done, Joining, Place, Server, Verdict};
use crate::error::Failure;
use crate::events;
use crate::rails::{self, Rails, Wanted};
use crate::runner::{drive, in_event_loop};
use crate::visitors;
use ginlab::bootstrap::session::{Entrance, Session};
use ginlab::bootstrap::{Ending, process_env, token_for};
use ginlab::cuda::{Buffer, Choice, Device};
use ginlab::fabric::Access;
use ginlab::fabric::any::AnyRail;
use ginlab::fabric::discover::Reach;
use ginlab::flow::{Offer, Peer, Region};
use ginlab::left_behind;
use ginlab::measure::size;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const EXAMPLES: &str = "\
Examples:
  GINLAB_TOKEN=secret ginlab serve --listen 0.0.0.0:7002            accepts writes until Ctrl-C
  GINLAB_TOKEN=secret ginlab serve --listen 127.0.0.1:0 --visits 2  on any free port of this machine, for two peers
  GINLAB_TOKEN=secret ginlab join host-a:7002 -b 1M -n 1000         a peer, at any time";

/// How often a peer's task looks for what has arrived.
const LOOK: Duration = Duration::from_millis(2);
/// Polls before a place is given away again, which empty the queues: libfabric's hand out up to a thousand at a time, and the worst network
/// takes nothing for 48 polls at most.
const POLLS: usize = 64;
/// Visitors without a place that are heard at a time.
const MOST_WAITING: usize = 64;

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
    #[arg(long, default_value = "16M", value_name = "SIZE", value_parser = size::parse)]
    bytes: u64,
    /// End after so many peers have left or died [default: with Ctrl-C]
    #[arg(long, value_name = "N")]
    visits: Option<u64>,
    /// Rails
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    rails: u32,
    /// libfabric provider (efa, tcp, shm, ...), or worst: the worst network that EFA may be [default: efa where there is one, else tcp]
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
    memory: Rc<Buffer>,
    /// Its registration, as long as a peer is there: each peer gets one of its own, with keys of its own.
    region: Option<Region<AnyRail>>,
    /// What the peer that has the place raises behind its writes; none where the place is free.
    tag: Option<u32>,
    /// The peer that has the place, and its address on each rail. A card takes no writes of a peer whose address it has not
    /// (EFA's status 14).
    peer: Option<(Peer, Vec<Vec<u8>>)>,
    /// Whoever had it died: what was under way may still come in.
    rests_until: Option<Instant>,
}

/// What all peers' tasks share.
struct Shared {
    rails: Rails,
    /// Writes that a peer may be ahead of those that are counted.
    window: u64,
    local: bool,
    slots: RefCell<Vec<Slot>>,
    /// Number of the last peer that joined.
    last: Cell<u32>,
    driver: RefCell<Option<JoinHandle<()>>>,
    /// A peer has gone in the middle of its writes, or was cut off.
    torn: Cell<bool>,
    /// Immediates of nobody are told of when there are so many.
    strays_to_tell: Cell<u64>,
    timeout: Duration,
    /// Processes of this machine that have died, or have fallen silent.
    died: RefCell<Vec<u32>>,
}

/// Listens and serves.
pub fn run(args: &Args) -> Result<(), Failure> {
    // It listens before it opens rails.
    let fabric = rails::check_provider(args.provider.as_deref(), &args.domain)?;
    let bytes = args.bytes;
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
    let token = token_for(&args.listen, &process_env)?;
    let wanted = Wanted {
        fabric,
        rails: args.rails as usize,
        messages: false,
        timeout: Duration::from_secs(args.timeout),
        rank: 0,
    };
    let program = async {
        let entrance = Entrance::listen(&args.listen, &token, wanted.timeout).await?;
        let address = entrance.address()?;
        let local = address.ip().is_loopback();
        let rails = wanted.open(if local { Reach::SameHost } else { Reach::Network })?;
        let window = window::share_out(rails.immediates, args.peers)?;
        // Peers on this machine need the cores too.
        rails.flow.give_way(true);
        let (device, _) = Device::open(Choice::Emulated, 0)?;
        // All memory is there before anybody comes, and stays until the end: a provider that still works off what a dead peer
        // has sent always finds it. It is registered once, so that what cannot be registered is known now.
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
            died: RefCell::default(),
        });
        let visitor = |visit| {
            let shared = shared.clone();
            async move { shared.peer(visit).await }
        };
        let most = (args.peers as usize + MOST_WAITING, "more visitors are here than the server hears at a time");
        let health = || shared.rails.flow.failure().map_or(Ok(()), |error| Err(error.into()));
        let result = visitors::hear(entrance, args.visits, most, visitor, health).await;
        if shared.torn.get() || shared.slots.borrow().iter().any(|slot| slot.tag.is_some()) {
            // Closing an endpoint in the middle of an incoming write crashes the tcp provider of libfabric 1.17, and whether
            // it has seen the end of the connection cannot be asked. The process ends here: the system closes what is left.
            std::mem::forget(shared.clone());
        }
        left_behind::remove_of(&shared.died.borrow());
        result
    };
    in_event_loop(program)
}

/// A peer that has joined. Dropping it frees its place, or lets it rest when the peer has not left by itself.
struct Joined<'a> {
    shared: &'a Shared,
    slot: usize,
    memory: Rc<Buffer>,
    number: u32,
    /// What it raises behind its writes.
    tag: u32,
    write_bytes: u64,
    writes: u64,
    /// It has left by itself, with all its writes complete.
    left: bool,
}

impl Shared {
    /// One peer, from its coming to its leaving; whether it had joined.
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
        let process_here = visit.same_host().then_some(member.pid);
        events::print("joined", &[&who[..], &[("from", visit.from().to_string())]].concat());
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
                // One that has only fallen silent may still use what it has.
                self.died.borrow_mut().extend(process_here);
                left_behind::remove_of(&self.died.borrow());
            }
        }
        true
    }

    /// Gives a place to a peer that can use it.
    async fn admit(&self, visit: &mut Session) -> Result<Joined<'_>, Failure> {
        let flow = &self.rails.flow;
        let bytes = self.slots.borrow().first().map_or(0, |slot| slot.memory.bytes() as u64);
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
        let Some((slot, memory, tag)) = self.take_slot()? else {
            let count = self.slots.borrow().len();
            let why = format!(
                "all {count} places are taken, or rest after a death; try again later, or give the server more --peers"
            );
            return Err(visit.refuse(why).await.into());
        };
        let number = self.last.get().wrapping_add(1);
        self.last.set(number);
        let write_bytes = joining.write_bytes;
        // A place that nobody has seen is free at once.
        let mut joined = Joined { shared: self, slot, memory, number, tag, write_bytes, writes: 0, left: true };
        if let Err(why) = self.learn(slot, joining.offer) {
            return Err(visit.refuse(why).await.into());
        }
        poison(&joined.memory).await?;
        // What one that has died here has left in the queues was its window, and now it is this one's.
        (0..POLLS).try_for_each(|_| flow.progress())?;
        let region = flow.register(joined.memory.clone(), Access::REMOTE_WRITE)?;
        let offer = flow.offer(&[&region])?;
        self.slots.borrow_mut()[slot].region = Some(region);
        flow.expect_immediates(joined.tag);
        // From here on its writes may come.
        joined.left = false;
        self.drive(true);
        visit.say(words::PLACE, &Place { offer, number, tag: joined.tag, window: self.window }).await?;
        Ok(joined)
    }

    /// A place that is free; last of all one that rests, and only when its rest is over. The tag is random and no other peer's
    /// here, so that none of them knows another's.
    fn take_slot(&self) -> Result<Option<(usize, Rc<Buffer>, u32)>, Failure> {
        let mut slots = self.slots.borrow_mut();
        let free = |slot: &(usize, &Slot)| {
            let rested = slot.1.rests_until.is_none_or(|until| Instant::now() >= until);
            slot.1.tag.is_none() && rested
        };
        // One that nobody died in comes first.
        let found = slots.iter().enumerate().filter(free).min_by_key(|(_, slot)| slot.rests_until.is_some());
        let Some((found, _)) = found else { return Ok(None) };
        let tag = loop {
            let tag = getrandom::u32().map_err(|error| Failure::Run(format!("no random numbers: {error}")))?;
            if slots.iter().all(|slot| slot.tag != Some(tag)) {
                break tag;
            }
        };
        let slot = &mut slots[found];
        (slot.tag, slot.rests_until) = (Some(tag), None);
        Ok(Some((found, slot.memory.clone(), tag)))
    }

    /// Takes in the addresses of the peer that gets this place; the error is one line for the peer.
    fn learn(&self, slot: usize, offer: Offer) -> Result<(), String> {
        let mut slots = self.slots.borrow_mut();
        // Who leaves takes its addresses along: nobody may name those of another peer.
        let mut taken = slots.iter().filter_map(|slot| slot.peer.as_ref()).flat_map(|(_, addresses)| addresses);
        if taken.any(|address| offer.addresses.contains(address)) {
            return Err("another peer that is here has this address".to_owned());
        }
        let peer = self.rails.flow.add_peer(&offer).map_err(|error| format!("its addresses: {error}"))?;
        slots[slot].peer = Some((peer, offer.addresses));
        Ok(())
    }

    /// Takes the key to a place away from whoever had it, forgets its addresses, and frees the place.
    fn revoke(&self, slot: usize, rests_until: Option<Instant>) {
        let mut slots = self.slots.borrow_mut();
        let slot = &mut slots[slot];
        if let Some((peer, _)) = slot.peer.take()
            && let Err(error) = self.rails.flow.remove_peer(peer)
        {
            eprintln!("ginlab: forgetting the addresses of a peer that has left: {error}");
        }
        match slot.region.take().map(|region| self.rails.flow.unregister(region)) {
            None | Some(Ok(_)) => (slot.tag, slot.rests_until) = (None, rests_until),
            // Something of ours is in flight on it, which this server never posts. The place stays taken.
            Some(Err(region)) => slot.region = Some(region),
        }
    }

    /// Tells of immediates that no peer was given: at 1, 2, 4, 8, ... of them.
    fn tell_strays(&self) {
        let strays = self.rails.flow.incoming().strays;
        if strays >= self.strays_to_tell.get() {
            self.strays_to_tell.set(strays.saturating_add(1).next_power_of_two());
            eprintln!(
                "ginlab: {strays} immediates have come that no peer here was given: of one that has gone, or a guess at \
                 another's"
            );
        }
    }

    /// Polls the rails as long as a peer is here; a server without peers takes no processor time.
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

impl Joined<'_> {
    fn bytes(&self) -> u64 {
        // It may raise its tag without writing.
        self.writes.saturating_mul(self.write_bytes)
    }

    /// Counts the writes that have arrived since the last look.
    fn collect(&mut self) -> bool {
        let arrived = self.shared.rails.flow.take_immediates(self.tag);
        self.writes += arrived;
        self.shared.tell_strays();
        arrived > 0
    }

    /// Waits for the end of the peer's writes and answers with their checksum; whether the peer found it right.
    async fn serve(&mut self, visit: &mut Session, who: &[(&str, String)]) -> Result<bool, Failure> {
        let done = self.until_done(visit, who).await?;
        if done.extent > self.memory.bytes() as u64 {
            let why = format!("{} B are beyond the place of {} B", done.extent, self.memory.bytes());
            return Err(visit.refuse(why).await.into());
        }
        // Its writes are complete, so they are in memory; the last immediates may still wait to be polled.
        let answer = Checksum { crc32: checksum(&self.memory, done.extent as usize).await?, writes: self.writes };
        visit.say(words::DONE, &Answer::Checksum(answer)).await?;
        let verdict: Verdict = visit.hear(words::VERDICT).await?;
        Ok(verdict.right)
    }

    /// Until the peer has said that it is done and all its writes have arrived. Neither words nor writes for the timeout are
    /// the end of it.
    async fn until_done(&mut self, visit: &mut Session, who: &[(&str, String)]) -> Result<Done, Failure> {
        let mut done: Option<Done> = None;
        let mut told = Told::new(self.shared.window);
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
                Err(_) => {}
                Ok(Err(error)) if error.ending() == Ending::TimedOut => {}
                Ok(Err(error)) => return Err(error.into()),
            }
            if done.is_none()
                && let Some(counted) = told.due(self.writes)
            {
                visit.say(words::DONE, &Answer::Counted(counted)).await?;
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
        // Dead or not: its key is worth nothing from here on, and its tag neither.
        let rest = (!self.left).then(|| Instant::now() + self.shared.timeout);
        self.shared.revoke(self.slot, rest);
        self.shared.rails.flow.forget_immediates(self.tag);
        self.shared.drive(false);
    }
}
