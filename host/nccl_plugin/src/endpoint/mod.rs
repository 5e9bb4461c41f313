//! The rails of one rank in one communicator, driven by one thread. It splits operations into slots, sends and receives
//! slots, and writes received bytes and signals into memory.
//!
//! ```text
//! here    operations --split--> slots (filled by memcpy or from GPU memory) --PutSignal--> rails
//! there   signal of a slot --> bytes, then NCCL's signal, in one stream --mark--> slot returned by a Signal
//! ```
//!
//! A mark is a number in a queue of copies that is passed when all copies before it are complete.
//!
//! The engine orders bytes and signals on the rails ([`signal_order`](ginlab_proxy::signal_order)): it raises the
//! signal that names a slot after the slot's bytes. Slots are processed as they arrive; [`order`] restores the order of
//! NCCL's signals.

mod answering;
mod checking;
mod filling;
mod incoming;
mod leaving;
mod order;
mod outgoing;
mod reading;
mod signals;
mod through;

use crate::coll::Coll;
use crate::copies::{Copies, CopyDirection};
use crate::operation::SubmittedOperation;
use crate::process::now_ns;
use crate::record;
use crate::settings::PluginFault;
use crate::wire::{HEADER, NAMES, SlotHeader, ZoneLayout};
use checking::Checking;
use cuda_std::memory::Word;
use ginlab_cuda::{Buffer, Device};
use ginlab_fabric::{Access, Fabric, MemoryRange, Rail, RailPlan, RemoteRegion};
use ginlab_proxy::engine::{Engine, SignalRule};
use ginlab_proxy::signal_order::SignalWords;
use ginlab_rails::StallClock;
use incoming::Incoming;
use outgoing::Outgoing;
use reading::Readers;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of the engine's commands in flight: slots sent to all peers, and slots returned to them.
const WINDOW: usize = 8192;
/// Number of iterations between two checks for a stall.
const LOOK_EVERY: u32 = 1024;
/// Number of the engine's region to which peers write slots.
const LANDING: u32 = 0;
/// Number of the engine's region from which slots are sent.
const OUTGOING: u32 = 1;

/// Data that a rank sends to the others: its addresses by rail, and the descriptors of its zones (the pinned memory of
/// its landing and of its outgoing slots) by region and rail.
pub type EndpointInfo = (Vec<Vec<u8>>, Vec<Vec<RemoteRegion>>);

/// An [`Endpoint`] of any kind of rails, as the driving thread sees it.
pub trait Driven {
    /// Makes the other ranks known to the rails.
    fn connect(&mut self, peers: &[EndpointInfo]) -> Result<(), String>;
    /// Runs one iteration. Returns whether it made progress.
    fn turn(&mut self) -> Result<bool, String>;
    /// Returns whether the endpoint may be closed: it has no work in progress, and the peers have received everything
    /// that was sent.
    fn is_settled(&self) -> bool;
    /// Returns its communicator.
    fn coll(&self) -> &Arc<Coll>;
    /// Writes the record if records are requested. `ended` indicates that no further events will be counted.
    fn record(&mut self, ended: bool);
}

/// The rails of one rank in one communicator; the module documentation describes them.
pub struct Endpoint<R: Rail> {
    coll: Arc<Coll>,
    layout: ZoneLayout,
    /// This field is dropped before the memory that it has registered.
    engine: Engine<R>,
    copies: Box<dyn Copies>,
    out: Outgoing,
    inc: Incoming,
    /// Scratch buffer for the operations accepted in an iteration.
    fresh: Vec<SubmittedOperation>,
    readers: Readers,
    /// Whether sources are read again when their puts are complete, to detect that they changed. Only over `worst`.
    watches: bool,
    checking: Checking,
    /// Operations that an injected fault delays.
    late: VecDeque<SubmittedOperation>,
    /// Number of zones that are pinned.
    pinned: usize,
    zones: [Buffer; 2],
    words: Box<[Word]>,
    clock: StallClock,
    /// Number of iterations, modulo 2^32.
    turns: u32,
    /// Number of puts and gets of this rank, for the injected fault.
    issued: u64,
    /// Whether the injected fault [`PluginFault::Dead`] has stopped this rank.
    dead: bool,
}

impl<R: Rail> Endpoint<R> {
    /// Creates an endpoint over `rails`, with zones in the memory that `chosen` requires.
    ///
    /// # Errors
    /// Returns a one-line error that names what could not be allocated, pinned or registered.
    pub fn open(
        coll: Arc<Coll>,
        rails: Vec<R>,
        chosen: &RailPlan,
        mut copies: Box<dyn Copies>,
    ) -> Result<(Endpoint<R>, EndpointInfo), String> {
        let layout = coll.layout;
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let timeout = coll.settings.timeout;
        let zone = || Device::Emulated.allocate(chosen.place(), layout.bytes()).map_err(|error| text(&error));
        let zones = [zone()?, zone()?];
        copies.bind()?;
        let mut engine = Engine::new(rails, WINDOW, timeout);
        engine.keep_losses();
        let watches = matches!(coll.settings.fabric, Fabric::Worst(_));
        // If a later step fails, `drop` of this endpoint undoes the earlier ones.
        let mut endpoint = Endpoint {
            coll,
            layout,
            engine,
            copies,
            out: Outgoing::new(layout, chosen.has_movers()),
            inc: Incoming::new(layout),
            fresh: Vec::new(),
            readers: Readers::default(),
            watches,
            checking: Checking::default(),
            late: VecDeque::new(),
            pinned: 0,
            zones,
            words: (0..2 * NAMES).map(|_| Word::new(0)).collect(),
            clock: StallClock::new(timeout),
            turns: 0,
            issued: 0,
            dead: false,
        };
        let regions = endpoint.register()?;
        let rails = endpoint.engine.rails();
        let addresses = rails.map(Rail::address).collect::<Result<_, _>>().map_err(|error| text(&error))?;
        Ok((endpoint, (addresses, regions)))
    }

    /// Pins and registers the zones, and sets the engine's rule for the order of signals. Returns the data that peers
    /// need to reach the zones.
    fn register(&mut self) -> Result<Vec<Vec<RemoteRegion>>, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        for zone in &self.zones {
            // SAFETY: the zones are freed after `drop` has unpinned them.
            unsafe { self.copies.pin(zone.address(), zone.bytes()) }?;
            self.pinned += 1;
        }
        let mut regions = Vec::new();
        for (zone, access) in self.zones.iter().zip([Access::REMOTE_WRITE | Access::SINK, Access::SOURCE]) {
            let memory = MemoryRange { address: zone.address(), bytes: zone.bytes(), cuda_device: None };
            // SAFETY: the endpoint keeps the zones longer than the engine.
            regions.push(unsafe { self.engine.register(memory, access, None) }.map_err(|error| text(&error))?);
        }
        let rule = SignalRule {
            rule: self.coll.settings.rule,
            me: self.coll.rank,
            ranks: self.coll.ranks,
            early: false,
            // SAFETY: there are as many words as signals, and the endpoint keeps them longer than the engine.
            words: unsafe { SignalWords::at(self.words.as_ptr()) },
        };
        self.engine.set_signals(rule).map_err(|error| text(&error))?;
        self.engine.configure(self.coll.settings.rails, self.coll.settings.strategy);
        Ok(regions)
    }

    /// Returns the address of a slot's header, which the slot's bytes follow: of an outgoing slot for `peer`, or of a
    /// landing slot of `peer`.
    fn slot(&self, outgoing: bool, peer: usize, slot: usize) -> *mut u8 {
        let zone = &self.zones[if outgoing { OUTGOING } else { LANDING } as usize];
        // The address is in the zone, whose length is that of `layout`.
        zone.pointer::<u8>().wrapping_add(self.layout.header(peer, slot))
    }

    /// Reads a slot's header; `None` if it is invalid.
    fn header(&self, outgoing: bool, peer: usize, slot: usize) -> Option<SlotHeader> {
        let mut bytes = [0; HEADER];
        // SAFETY: a slot of this rank; what a peer has written is complete, since its signal has been raised.
        unsafe { std::ptr::copy_nonoverlapping(self.slot(outgoing, peer, slot), bytes.as_mut_ptr(), HEADER) };
        SlotHeader::decode(&bytes)
    }

    /// Returns whether nothing is in progress.
    fn is_quiet(&self) -> bool {
        let idle = self.out.is_quiet() && self.inc.is_quiet() && self.checking.is_quiet() && self.late.is_empty();
        self.dead || (idle && self.engine.in_flight() == 0)
    }

    /// Returns whether pending work must make progress.
    fn is_busy(&self) -> bool {
        let waits = self.out.is_busy() || !self.inc.is_quiet() || !self.checking.is_quiet() || !self.late.is_empty();
        waits && !self.dead
    }

    fn check_stall(&mut self) -> Result<(), String> {
        match self.clock.stalled(self.is_busy()) {
            Some(waited) => Err(format!("no progress for {}: {}", seconds(waited), self.state())),
            None => Ok(()),
        }
    }

    /// Returns a one-line description of the work in progress.
    fn state(&self) -> String {
        let mut parts = self.out.state();
        parts.extend(self.inc.state());
        parts.extend(self.copies.state());
        parts.push(self.engine.state());
        parts.join("; ")
    }
}

/// Formats a duration for messages.
fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

impl<R: Rail> Driven for Endpoint<R> {
    fn connect(&mut self, peers: &[EndpointInfo]) -> Result<(), String> {
        let (addresses, regions): (Vec<_>, Vec<_>) = peers.iter().cloned().unzip();
        self.engine.connect(&addresses, &regions).map_err(|error| error.to_string())
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
            // With nothing pending a failed rail is not an error yet: it fails again when it is used.
            Err(_) if self.is_quiet() => false,
            Err(error) => return Err(error.to_string()),
        };
        if progress {
            moved = true;
            self.slots_returned();
            self.slots_written()?;
        }
        self.lost()?;
        moved |= self.handle()?;
        moved |= self.copied_in()?;
        moved |= self.complete()?;
        moved |= self.watched()?;
        self.publish_counters()?;
        if moved {
            self.clock.moved();
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(LOOK_EVERY) {
            self.check_stall()?;
        }
        Ok(moved)
    }

    fn is_settled(&self) -> bool {
        self.dead || (self.is_quiet() && self.out.has_all_slots())
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
    /// Waits for running copies and unpins the zones. The fields are dropped afterwards, the engine first.
    fn drop(&mut self) {
        if self.copies.bind().is_err() {
            return;
        }
        self.copies.settle();
        for zone in &self.zones[..self.pinned] {
            self.copies.unpin(zone.address());
        }
    }
}

impl<R: Rail> Endpoint<R> {
    /// Delays operations if the fault [`PluginFault::Slow`] is injected, and releases those that are due.
    fn hold_back(&mut self, fresh: &mut Vec<SubmittedOperation>) {
        let Some(PluginFault::Slow(us)) = self.coll.settings.fault else { return };
        self.late.extend(fresh.drain(..));
        let now = now_ns();
        while self.late.front().is_some_and(|operation| operation.at_ns + us * 1000 <= now) {
            fresh.extend(self.late.pop_front());
        }
    }

    /// Queues a mark after the copies into memory since the last mark, if there are any. Returns the last mark.
    fn mark_in(&mut self) -> Result<u64, String> {
        if std::mem::take(&mut self.inc.copied) {
            self.inc.last_mark = self.copies.mark(CopyDirection::In)?;
        }
        Ok(self.inc.last_mark)
    }

    /// Counts a put or get. Returns the fault that is to be injected into it.
    fn fault(&mut self) -> Option<PluginFault> {
        self.issued += 1;
        let fault = self.coll.settings.fault?;
        let due = match fault {
            PluginFault::Lost(number) | PluginFault::Error(number) => self.issued == number,
            PluginFault::Dead(number) => self.issued >= number,
            PluginFault::Slow(_) => false,
        };
        due.then_some(fault)
    }
}
