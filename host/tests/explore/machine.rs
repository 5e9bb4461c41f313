//! An execution: PEs with kernel, ring and proxy, the wire between them, and the possible events, from which the
//! explorer chooses.
//!
//! A kernel is the real device code in a [`Stepped`] thread. Ring, consumer, engine and signal rules are also the real
//! ones. Everything runs on one CPU thread, so an execution is determined by the choices.
//!
//! Actions without effects that other parties could observe are not separate events:
//!
//! - A spinning kernel polls again after each action of its proxy, and continues to its next barrier if its condition
//!   is met. This relies on words that only grow, so that a later poll would have the same result.
//!   [`ExploreProgram::looks_late`] does not rely on this.
//! - A proxy that has received a notification publishes it and posts subsequent commands immediately. Delays by the
//!   wire have the same effect as delays by the proxy.
//! - A transfer without bytes arrives when it is posted.

use super::mix;
use super::place::PeMemory;
use super::seat::{Judge, SIGNALS_USED, START, TestPe, object};
use super::wire::{ExploreWire, Flight, WireRail};
use cuda_std::emulation::{Stepped, SteppedStop};
use cuda_std::memory::load_relaxed_gpu_u64;
use ginlab::fabric::{Access, MemoryRange};
use ginlab::proxy::engine::{Engine, SignalRule};
use ginlab::proxy::signal_order::{Rule, SignalWords};
use kernels::command::Command;
use kernels::gin::{SIGNALS, USER_SIGNALS};
use kernels::ring::Status;
use kernels::ring::consumer::Consumer;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const WINDOW: usize = 64;
/// Number of steps in which a spinning kernel polls at least once everything for which it waits. The longest wait polls
/// one of its words only in every eighth poll, and each poll takes two steps.
const LOOKS: usize = 24;
/// The same number for mapped heaps, where a kernel polls all words each time.
const LOOKS_OF_MAPPED: usize = 4;
/// Number of steps before an execution counts as stuck.
const LAST_LOOKS: usize = 600;

/// Maximum number of events of an execution. These programs have a few hundred.
const MOST_EVENTS: u32 = 10_000;

/// Body of a PE's kernel.
pub type KernelBody = fn(&TestPe) -> Result<(), Status>;

/// A program for all PEs, and properties of the rails.
#[derive(Clone, Copy, Debug)]
pub struct ExploreProgram {
    pub name: &'static str,
    pub pes: usize,
    pub body: KernelBody,
    pub rule: Rule,
    /// Whether the rule's fault is injected, which counts signals too early.
    pub early: bool,
    /// Maximum bytes of a transfer. Longer puts are fragmented.
    pub longest: u64,
    /// Maximum number of transfers in flight that the rail accepts from a PE.
    pub room: usize,
    pub log2_slots: u32,
    /// Number of ranks for which the signals' accounts are dimensioned; 0 for the number of PEs. If it is large, a
    /// target has few places per rank.
    pub accounts: usize,
    /// Fault of the wire; see [`ExploreWire`].
    pub credits_early: bool,
    /// Whether polls of spinning kernels are separate events. Not supported with a ring that may be full.
    pub looks_late: bool,
    /// Number of PEs of a node. Within a node, each PE has the heaps of the others mapped.
    pub local: usize,
}

impl ExploreProgram {
    pub const fn new(name: &'static str, pes: usize, body: KernelBody) -> ExploreProgram {
        let rule = Rule::Count;
        ExploreProgram {
            name,
            pes,
            body,
            rule,
            early: false,
            longest: 1 << 20,
            room: 64,
            log2_slots: 5,
            accounts: 0,
            credits_early: false,
            looks_late: false,
            local: 1,
        }
    }
}

/// An event that can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MachineEvent {
    /// A PE's proxy drains its ring and posts.
    Drain(usize),
    /// The bytes of a transfer arrive at the target.
    Arrive(usize),
    /// The target's proxy polls the transfer's immediate.
    Tell(usize),
    /// The source's proxy polls the transfer's completion.
    Complete(usize),
    /// A PE's kernel runs to its next block barrier or spin.
    Kernel(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeState {
    /// Can continue.
    Ready,
    Spins,
    Ended,
}

struct Pe {
    // The fields are dropped in this order: the kernel first, the memory last.
    kernel: Stepped,
    engine: Engine<WireRail>,
    consumer: Consumer,
    published: u64,
    standing: PeState,
    /// Whether any event has happened at this PE since its spinning kernel last polled.
    news: bool,
    /// Number of block barriers that the kernel has passed.
    passed: u64,
    place: Box<PeMemory>,
}

/// An execution of a program.
pub struct Execution {
    pes: Vec<Pe>,
    pub wire: Rc<RefCell<ExploreWire>>,
    judge: Rc<Judge>,
    mapped: bool,
    looks_late: bool,
    happened: u32,
    failure: Option<String>,
}

impl Execution {
    pub fn new(program: &ExploreProgram) -> Execution {
        let mut places: Vec<_> = (0..program.pes).map(|_| PeMemory::new(program.log2_slots)).collect();
        let heaps: Vec<_> = places.iter_mut().map(|place| place.heap()).collect();
        let wire = ExploreWire::new(heaps.clone(), program.room, program.credits_early);
        let judge = Rc::new(Judge::default());
        let open = |(me, mut place): (usize, Box<PeMemory>)| {
            let world = place.world(program, me, &heaps);
            let (state, times) = (&raw mut place.state, place.times.as_mut_ptr());
            let (local, judge) = (program.local as u32, judge.clone());
            let seat = TestPe { world, me: me as u32, pes: program.pes as u32, local, judge, state, times };
            let body = program.body;
            let kernel = Stepped::new(move || {
                if let Err(stop) = body(&seat) {
                    seat.judge.fail(format!("PE {me}: a call failed: {}", stop.text()));
                }
            });
            // SAFETY: the ring outlives the consumer, and there is no other consumer.
            let consumer = unsafe { Consumer::new(&place.rings[0]) };
            Pe {
                kernel: kernel.expect("a stack"),
                engine: engine(program, me, &mut place, &wire),
                consumer,
                published: 0,
                standing: PeState::Ready,
                news: false,
                passed: 0,
                place,
            }
        };
        let pes = places.into_iter().enumerate().map(open).collect();
        let (mapped, looks_late) = (program.local > 1, program.looks_late);
        Execution { pes, wire, judge, mapped, looks_late, happened: 0, failure: None }
    }

    /// Lists the events that can happen next, in a deterministic order. The list is empty once the execution has
    /// failed.
    pub fn enabled(&mut self, events: &mut Vec<MachineEvent>) {
        events.clear();
        self.list(events);
        if events.is_empty() && self.failure.is_none() && !self.is_over() {
            // The kernels may not have polled often enough, because one may wait for a value that another one stores
            // after its own poll.
            for _ in 0..self.pes.len() {
                (0..self.pes.len()).for_each(|pe| self.look(pe, LAST_LOOKS));
            }
            self.list(events);
            if events.is_empty() && !self.is_over() {
                self.failure = Some(format!("nobody can go on: {}", self.standings()));
            }
        }
        if self.failure.is_some() {
            events.clear();
        }
    }

    fn list(&self, events: &mut Vec<MachineEvent>) {
        let wire = self.wire.borrow();
        let pes = || self.pes.iter().enumerate();
        events.extend(pes().filter(|(_, pe)| pe.has_commands()).map(|(pe, _)| MachineEvent::Drain(pe)));
        for (number, flight) in wire.flights.iter().enumerate() {
            if !flight.arrived {
                events.push(MachineEvent::Arrive(number));
                continue;
            }
            events.extend((!flight.told).then_some(MachineEvent::Tell(number)));
            events.extend((!flight.completed).then_some(MachineEvent::Complete(number)));
        }
        events.extend(pes().filter(|(_, pe)| pe.can_go_on()).map(|(pe, _)| MachineEvent::Kernel(pe)));
    }

    /// Returns whether all kernels have ended.
    pub fn is_over(&self) -> bool {
        self.pes.iter().all(|pe| pe.standing == PeState::Ended)
    }

    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Applies an event.
    pub fn apply(&mut self, event: MachineEvent) {
        let moved = match event {
            MachineEvent::Drain(pe) => self.drain(pe).map(|()| pe),
            MachineEvent::Arrive(number) => {
                self.wire.borrow_mut().arrive(number);
                Ok(self.wire.borrow().flights[number].target)
            }
            MachineEvent::Tell(number) => {
                let pe = self.wire.borrow_mut().tell(number);
                self.progress(pe).map(|()| pe)
            }
            MachineEvent::Complete(number) => {
                let pe = self.wire.borrow_mut().complete(number);
                self.progress(pe).map(|()| pe)
            }
            MachineEvent::Kernel(pe) => self.pes[pe].turn().map(|()| pe),
        };
        match moved {
            Err(why) => self.failure = Some(why),
            Ok(pe) if self.looks_late => match event {
                MachineEvent::Kernel(_) => self.look(pe, LOOKS),
                _ => self.pes[pe].news = true,
            },
            Ok(pe) if !self.mapped => self.look(pe, LOOKS),
            // A kernel may store to its neighbours, and a neighbour that then continues may also store.
            Ok(_) => {
                let pes = 0..self.pes.len();
                pes.clone().chain(pes).for_each(|pe| self.look(pe, LOOKS_OF_MAPPED));
            }
        }
        let found = self.wire.borrow_mut().failure.take().or_else(|| self.judge.failure.borrow_mut().take());
        self.failure = self.failure.take().or(found);
        self.happened += 1;
        if self.happened >= MOST_EVENTS && self.failure.is_none() {
            self.failure = Some(format!("no end after {MOST_EVENTS} events: {}", self.standings()));
        }
    }

    /// Performs the proxy's work on its ring in one iteration (host/proxy/serve.rs).
    fn drain(&mut self, pe: usize) -> Result<(), String> {
        let Pe { consumer, engine, .. } = &mut self.pes[pe];
        let mut batch = Vec::new();
        while batch.len() < engine.room()
            && let Some(words) = consumer.pop()
        {
            batch.push(words);
        }
        consumer.acquire();
        consumer.publish_tail();
        for words in batch {
            let command = Command::decode(words).ok_or("a command that is none")?;
            engine.submit(&command).map_err(|error| error.to_string())?;
        }
        engine.pump(&mut ()).map_err(|error| error.to_string())
    }

    /// Performs the proxy's work on its completions in one iteration, and its posts of the next.
    fn progress(&mut self, pe: usize) -> Result<(), String> {
        let Pe { consumer, engine, published, .. } = &mut self.pes[pe];
        engine.progress(&mut ()).map_err(|error| error.to_string())?;
        if engine.watermark() != *published {
            *published = engine.watermark();
            consumer.publish_watermark(*published);
        }
        engine.pump(&mut ()).map_err(|error| error.to_string())
    }

    /// Lets a spinning kernel poll again, at most `looks` times.
    fn look(&mut self, pe: usize, looks: usize) {
        self.pes[pe].news = false;
        for _ in 0..looks {
            if self.pes[pe].standing != PeState::Spins {
                return;
            }
            if let Err(why) = self.pes[pe].turn() {
                self.failure = Some(why);
            }
        }
    }

    fn standings(&self) -> String {
        let one = |(number, pe): (usize, &Pe)| {
            let (call, round) = self.judge.doing(number);
            match pe.standing {
                PeState::Ended => format!("PE {number} has ended"),
                _ => format!(
                    "PE {number} waits ({call} {round}; watermark {} of {} commands)",
                    pe.published,
                    pe.consumer.cursor()
                ),
            }
        };
        self.pes.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
    }

    /// Returns a hash of the relevant state: executions with the same hash have the same continuations.
    ///
    /// The state of a kernel is represented by the number of barriers that it has passed. Its next actions depend on no
    /// other state, and the values that it has read were checked or copied to memory. The state of a proxy is
    /// represented by its commands and the state of their transfers.
    pub fn state(&self) -> u64 {
        let mut state = 0u64;
        let wire = self.wire.borrow();
        for flight in &wire.flights {
            // The contributions are added, so that the order of posting does not matter.
            state = state.wrapping_add(mix(flight.summary(), 1));
        }
        for pe in &self.pes {
            let place = &pe.place;
            let words = [pe.passed << 2 | pe.standing as u64, pe.consumer.cursor(), pe.engine.watermark(), pe.head()];
            state = words.into_iter().fold(state, mix);
            let objects = place.heap[START as usize / 16..].iter();
            state = objects.fold(state, |state, word| mix(mix(state, *word as u64), (*word >> 64) as u64));
            for number in (0..SIGNALS_USED).chain(USER_SIGNALS as usize..SIGNALS as usize) {
                let near = (place.heap[number / 2] >> (64 * (number % 2))) as u64;
                let both = near << 32 | place.far[number];
                if both != 0 {
                    state = mix(state, both ^ (number as u64) << 16);
                }
            }
        }
        state
    }

    /// Describes an event before it happens.
    pub fn describe(&self, event: MachineEvent) -> String {
        let wire = self.wire.borrow();
        let at = |number: usize| &wire.flights[number];
        match event {
            MachineEvent::Drain(pe) => {
                let cursor = self.pes[pe].consumer.cursor();
                let commands: Vec<_> = (cursor..self.pes[pe].head()).map(|ticket| ticket.to_string()).collect();
                format!("PE {pe}'s proxy posts commands {} (puts from {} on)", commands.join(", "), wire.flights.len())
            }
            MachineEvent::Arrive(number) => {
                let Flight { source, from, target, to, bytes, .. } = at(number);
                let (from, to) = (object(*from), object(*to));
                format!("put {number} arrives: {} B from PE {source}'s {from} in PE {target}'s {to}", bytes.len())
            }
            MachineEvent::Tell(number) => {
                format!("PE {} hears of put {number}: {}", at(number).target, at(number).says())
            }
            MachineEvent::Complete(number) => format!("PE {} hears that put {number} is complete", at(number).source),
            MachineEvent::Kernel(pe) => match self.judge.doing(pe) {
                ("", _) => format!("kernel {pe} begins"),
                (call, round) => format!("kernel {pe} goes on ({call} {round})"),
            },
        }
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        self.wire.borrow_mut().closed = true;
    }
}

impl Pe {
    /// Returns the number of tickets that the kernel has taken.
    fn head(&self) -> u64 {
        load_relaxed_gpu_u64(&self.place.device.head.0)
    }

    fn can_go_on(&self) -> bool {
        self.standing == PeState::Ready || self.standing == PeState::Spins && self.news
    }

    fn has_commands(&self) -> bool {
        self.head() > self.consumer.cursor() && self.engine.room() > 0
    }

    fn turn(&mut self) -> Result<(), String> {
        self.standing = match self.kernel.turn()? {
            SteppedStop::Spins => PeState::Spins,
            SteppedStop::Meets => PeState::Ready,
            SteppedStop::Ended => PeState::Ended,
        };
        self.passed += u64::from(self.standing != PeState::Spins);
        Ok(())
    }
}

fn engine(
    program: &ExploreProgram,
    me: usize,
    place: &mut PeMemory,
    wire: &Rc<RefCell<ExploreWire>>,
) -> Engine<WireRail> {
    let mut engine = Engine::new(vec![WireRail::new(me, program.longest, wire)], WINDOW, Duration::from_secs(10));
    let rule = SignalRule {
        rule: program.rule,
        me,
        ranks: program.accounts.max(program.pes),
        early: program.early,
        // SAFETY: the place outlives the engine.
        words: unsafe { SignalWords::at(place.far()) },
    };
    engine.set_signals(rule).expect("few ranks");
    let memory = MemoryRange { address: place.heap() as u64, bytes: place.heap.len() * 16, cuda_device: None };
    // SAFETY: the place outlives the engine.
    let heap = unsafe { engine.register(memory, Access::ALL, None) }.expect("registered");
    engine.set_peers(&vec![vec![heap]; program.pes]).expect("even");
    engine
}
