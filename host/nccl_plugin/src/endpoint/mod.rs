//! The rails of one rank in one communicator, driven by one thread: operations in, slots out and in, bytes and signals into memory.
//!
//! ```text
//! here    asked --cut--> slots (bytes by memcpy, or by the GPU's copy engine) --PutSignal of ginlab's engine--> rails
//! there   signal of a slot --> bytes into memory, then NCCL's signal, in the order of one stream --mark--> the slot goes back by a Signal
//! ```
//!
//! The order of bytes and signal on the rails is the engine's ([`signal_order`](ginlab_proxy::signal_order)): a slot is named by a signal that
//! the engine raises behind its bytes. Slots are handled as they come, so a weak signal of NCCL overtakes earlier puts where the rails let it; a
//! strong one waits for all operations before its own.

mod answering;
mod checking;
mod filling;
mod incoming;
mod outgoing;
mod reading;
mod signals;
mod through;

use crate::coll::Coll;
use crate::copies::{Copies, Queue};
use crate::operation::Operation;
use crate::process::now_ns;
use crate::record;
use crate::settings::Fault;
use crate::wire::{HEADER, Header, Layout, NAMES};
use checking::Checking;
use cuda_std::memory::Word;
use ginlab_cuda::{Buffer, Device};
use ginlab_fabric::{Access, Chosen, Fabric, Memory, Rail, RemoteRegion};
use ginlab_proxy::engine::{Engine, SignalRule};
use ginlab_proxy::signal_order::SignalWords;
use ginlab_rails::StallClock;
use incoming::Incoming;
use outgoing::Outgoing;
use reading::Readers;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Commands of the engine under way: slots of all peers, and as many that give slots back.
const WINDOW: usize = 8192;
/// Turns between two looks at the clock.
const LOOK_EVERY: u32 = 1024;
/// Numbers of the engine's regions.
const LANDING: u32 = 0;
const OUTGOING: u32 = 1;

/// Addresses by rail, and zones by region and rail: what a rank tells the others.
pub type Card = (Vec<Vec<u8>>, Vec<Vec<RemoteRegion>>);

/// What the thread drives, whatever the rails.
pub trait Driven {
    /// Makes the other ranks known.
    fn connect(&mut self, cards: &[Card]) -> Result<(), String>;
    /// One turn; whether anything happened.
    fn turn(&mut self) -> Result<bool, String>;
    /// Whether nothing is under way.
    fn is_quiet(&self) -> bool;
    /// Its communicator.
    fn coll(&self) -> &Arc<Coll>;
    /// Leaves the record, where one is asked for; `ended`: nothing more will be counted.
    fn record(&mut self, ended: bool);
}

/// See the module.
pub struct Endpoint<R: Rail> {
    coll: Arc<Coll>,
    layout: Layout,
    /// Dropped before the memory that it has registered.
    engine: Engine<R>,
    copies: Box<dyn Copies>,
    out: Outgoing,
    inc: Incoming,
    fresh: Vec<Operation>,
    readers: Readers,
    /// Sources are read again when their puts are complete.
    watches: bool,
    checking: Checking,
    /// Operations that a fault holds back.
    late: VecDeque<Operation>,
    zones: [Buffer; 2],
    words: Box<[Word]>,
    clock: StallClock,
    turns: u32,
    /// Puts and gets of ours, for the injected fault.
    asked: u64,
    dead: bool,
}

impl<R: Rail> Endpoint<R> {
    /// Over these rails, with zones where `chosen` wants them.
    ///
    /// # Errors
    /// What could not be allocated, pinned or registered, in one line.
    pub fn open(
        coll: Arc<Coll>,
        rails: Vec<R>,
        chosen: &Chosen,
        mut copies: Box<dyn Copies>,
    ) -> Result<(Endpoint<R>, Card), String> {
        let layout = coll.layout;
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let timeout = coll.settings.timeout;
        let zone = || Device::Emulated.allocate(chosen.place(), layout.bytes()).map_err(|error| text(&error));
        let zones = [zone()?, zone()?];
        copies.bind()?;
        for (index, zone) in zones.iter().enumerate() {
            // SAFETY: the zones are dropped behind `unpin` of our own `drop`.
            if let Err(why) = unsafe { copies.pin(zone.address(), zone.bytes()) } {
                if index > 0 {
                    copies.unpin(zones[0].address());
                }
                return Err(why);
            }
        }
        let words: Box<[Word]> = (0..2 * NAMES).map(|_| Word::new(0)).collect();
        let mut engine = Engine::new(rails, WINDOW, timeout);
        let mut regions = Vec::new();
        for (zone, access) in zones.iter().zip([Access::REMOTE_WRITE | Access::SINK, Access::SOURCE]) {
            let memory = Memory { address: zone.address(), bytes: zone.bytes(), cuda_device: None };
            // SAFETY: the endpoint keeps the zones longer than the engine.
            regions.push(unsafe { engine.register(memory, access, None) }.map_err(|error| text(&error))?);
        }
        let rule = SignalRule {
            rule: coll.settings.rule,
            me: coll.rank,
            ranks: coll.ranks,
            early: false,
            // SAFETY: as many as there are signals; the endpoint keeps them longer than the engine.
            words: unsafe { SignalWords::at(words.as_ptr()) },
        };
        engine.set_signals(rule).map_err(|error| text(&error))?;
        engine.configure(coll.settings.rails, coll.settings.strategy);
        let addresses = engine.rails().map(Rail::address).collect::<Result<_, _>>().map_err(|error| text(&error))?;
        let (out, inc) = (Outgoing::new(layout, chosen.has_movers()), Incoming::new(layout));
        let clock = StallClock::new(timeout);
        let fresh = Vec::new();
        let watches = matches!(coll.settings.fabric, Fabric::Worst(_));
        let endpoint = Endpoint {
            coll,
            layout,
            engine,
            copies,
            out,
            inc,
            fresh,
            readers: Readers::default(),
            watches,
            checking: Checking::default(),
            late: VecDeque::new(),
            zones,
            words,
            clock,
            turns: 0,
            asked: 0,
            dead: false,
        };
        Ok((endpoint, (addresses, regions)))
    }

    /// The header of a slot, and behind it its bytes: of ours for a peer, or of a peer's for us.
    fn slot(&self, outgoing: bool, peer: usize, slot: usize) -> *mut u8 {
        let zone = &self.zones[if outgoing { OUTGOING } else { LANDING } as usize];
        // Inside the zone: `layout` made it as long.
        zone.pointer::<u8>().wrapping_add(self.layout.header(peer, slot))
    }

    /// Reads a slot's header.
    fn header(&self, outgoing: bool, peer: usize, slot: usize) -> Option<Header> {
        let mut bytes = [0; HEADER];
        // SAFETY: a slot of ours; what a peer has written is complete, since its signal has been raised.
        unsafe { std::ptr::copy_nonoverlapping(self.slot(outgoing, peer, slot), bytes.as_mut_ptr(), HEADER) };
        Header::decode(&bytes)
    }

    /// Whether something is waited for.
    fn is_busy(&self) -> bool {
        !self.is_quiet()
    }

    fn check_stall(&mut self) -> Result<(), String> {
        match self.clock.stalled(self.is_busy()) {
            Some(waited) => Err(format!("nothing has moved for {}: {}", seconds(waited), self.state())),
            None => Ok(()),
        }
    }

    /// What is under way, in one line.
    fn state(&self) -> String {
        let mut parts = self.out.state();
        parts.extend(self.inc.state());
        parts.extend(self.copies.state());
        parts.push(self.engine.state());
        parts.join("; ")
    }
}

/// A time as people read it.
fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

impl<R: Rail> Driven for Endpoint<R> {
    fn connect(&mut self, cards: &[Card]) -> Result<(), String> {
        let rails = self.engine.rails().len();
        if let Some(rank) = cards.iter().position(|(addresses, _)| addresses.len() != rails) {
            return Err(format!("rank {rank} has {} rails and this one {rails}", cards[rank].0.len()));
        }
        for (index, rail) in self.engine.rails_mut().enumerate() {
            let of_rail: Vec<Vec<u8>> = cards.iter().map(|(addresses, _)| addresses[index].clone()).collect();
            rail.insert_peers(&of_rail).map_err(|error| error.to_string())?;
        }
        let regions: Vec<_> = cards.iter().map(|(_, regions)| regions.clone()).collect();
        self.engine.set_peers(&regions).map_err(|error| error.to_string())
    }

    fn turn(&mut self) -> Result<bool, String> {
        if self.dead {
            return Ok(false);
        }
        self.copies.bind()?;
        self.copies.turn()?;
        let mut moved = self.accept()?;
        moved |= self.fill()?;
        moved |= self.copied_out()?;
        self.post()?;
        self.engine.pump(&mut ()).map_err(|error| error.to_string())?;
        let progress = match self.engine.progress(&mut ()) {
            Ok(progress) => progress,
            // A peer that has closed its rails first is no error of ours while nothing is under way; a rail that is dead says so again.
            Err(_) if self.is_quiet() => false,
            Err(error) => return Err(error.to_string()),
        };
        if progress {
            moved = true;
            self.slots_returned();
            self.slots_written()?;
        }
        moved |= self.handle()?;
        moved |= self.copied_in()?;
        moved |= self.complete()?;
        moved |= self.watched()?;
        self.tell_counters()?;
        if moved {
            self.clock.moved();
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(LOOK_EVERY) {
            self.check_stall()?;
        }
        Ok(moved)
    }

    fn is_quiet(&self) -> bool {
        let idle = self.out.is_quiet() && self.inc.is_quiet() && self.checking.is_quiet() && self.late.is_empty();
        self.dead || (idle && self.engine.in_flight() == 0)
    }

    fn coll(&self) -> &Arc<Coll> {
        &self.coll
    }

    fn record(&mut self, ended: bool) {
        let names: Vec<String> = self.engine.rails().map(|rail| rail.name().to_owned()).collect();
        record::write(&self.coll, &names, &self.engine.counters(), &self.copies.name(), ended);
    }
}

impl<R: Rail> Drop for Endpoint<R> {
    /// Copies that run end first; then the engine goes, and with it what the rails hold.
    fn drop(&mut self) {
        if self.copies.bind().is_err() {
            return;
        }
        self.copies.settle();
        for zone in &self.zones {
            self.copies.unpin(zone.address());
        }
    }
}

impl<R: Rail> Endpoint<R> {
    /// Of a rank whose rails are slow: holds operations back, and lets those go that are due.
    fn hold_back(&mut self, fresh: &mut Vec<Operation>) {
        let Some(Fault::Slow(us)) = self.coll.settings.fault else { return };
        self.late.extend(fresh.drain(..));
        let now = now_ns();
        while self.late.front().is_some_and(|operation| operation.at_ns + us * 1000 <= now) {
            fresh.extend(self.late.pop_front());
        }
    }

    /// The mark behind what has been copied in since the last one; 0 where nothing is copied.
    fn mark_in(&mut self) -> Result<u64, String> {
        if std::mem::take(&mut self.inc.copied) {
            self.inc.last_mark = self.copies.mark(Queue::In)?;
        }
        Ok(self.inc.last_mark)
    }

    /// The fault that is due with this put or get.
    fn fault(&mut self) -> Option<Fault> {
        self.asked += 1;
        let fault = self.coll.settings.fault?;
        let due = match fault {
            Fault::Lost(number) | Fault::Error(number) => self.asked == number,
            Fault::Dead(number) => self.asked >= number,
            Fault::Slow(_) => false,
        };
        due.then_some(fault)
    }
}
