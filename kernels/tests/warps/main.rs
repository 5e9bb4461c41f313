//! The whole-warp ways of the ring, on the emulated device under seeded orders.
//!
//! A warp pushes, a lane of another block plays the proxy; both on one worker, so that a seed gives one order. Beside the elements
//! themselves it is checked that each stands behind its payload by the rules of the memory model ([`Orders`]), which no CPU would
//! show. Every scenario passes with the product and with the same protocol [by hand](by_hand), and fails with each fault that it is
//! there to catch.
//!
//! The normal tests run a share; all of it, 10^6 pushes of each scenario, by
//! `cargo test --release -p kernels --test warps -- --ignored --nocapture`.
#![cfg(not(any(loom, miri)))]

mod by_hand;
#[path = "../scenarios/mod.rs"]
mod scenarios;

use by_hand::Fault;
use cuda_std::emulation::{Grid, Moment, Orders};
use cuda_std::memory::{Word, load_relaxed_gpu_u64, store_relaxed_gpu_u64};
use cuda_std::{thread, warp};
use kernels::command::{COMMAND_WORDS, Command, Opcode};
use kernels::queue::elements;
use kernels::ring::consumer::Consumer;
use kernels::ring::producer::Behind;
use kernels::ring::{DeviceWords, HostWords, LOG2_COMMAND_WORDS, Ring, Status};
use scenarios::{Account, SCENARIOS, Scenario};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

/// Longer than any of this takes: a ring's waits end by themselves.
const TIMEOUT_NS: u64 = 20_000_000_000;

/// Who pushes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cast {
    Product,
    /// The study's elements, of a command's words.
    Element,
    /// The study's elements with a release store each.
    Released,
    ByHand(Option<Fault>),
}

/// Aligned as a ring wants it.
#[repr(C, align(32))]
struct Slot([Word; 4]);

struct Memory {
    slots: Vec<Slot>,
    host: HostWords,
    device: DeviceWords,
}

/// One run of a scenario.
struct Play {
    scenario: Scenario,
    pushes: u64,
    cast: Cast,
    rings: Vec<Memory>,
    orders: Orders,
    /// By lane and push: when the payload was written.
    written: Mutex<HashMap<(u32, u64), Moment>>,
    /// The producers have ended early.
    over: Word,
}

/// Every word depends on lane and number.
fn command(lane: u32, number: u64) -> Command {
    Command {
        opcode: Opcode::PutSignal,
        source_region: lane,
        source_offset: number,
        destination_region: lane ^ 5,
        destination_offset: number * 3,
        bytes: number + 7 * lane as u64,
        peer: lane,
        immediate: number as u32,
    }
}

impl Play {
    fn new(scenario: Scenario, pushes: u64, cast: Cast) -> Play {
        let memory = |_| Memory {
            slots: (0..1 << scenario.log2_capacity).map(|_| Slot([0; 4].map(Word::new))).collect(),
            host: HostWords::default(),
            device: DeviceWords::default(),
        };
        let rings = (0..scenario.rings).map(memory).collect();
        let (orders, written) = (Orders::default(), Mutex::default());
        Play { scenario, pushes, cast, rings, orders, written, over: Word::new(0) }
    }

    fn ring(&self, number: usize) -> Ring {
        let Memory { slots, host, device } = &self.rings[number];
        Ring {
            slots: slots.as_ptr().cast(),
            host,
            device,
            log2_capacity: self.scenario.log2_capacity,
            log2_slot_words: LOG2_COMMAND_WORDS,
            timeout_ns: TIMEOUT_NS,
            role: 0,
            of_block: (self.scenario.rings == 1).into(),
            free_below: 1 << self.scenario.log2_capacity,
        }
    }

    fn run(&self, seed: Option<u64>) -> Result<(), String> {
        // Block 0 is the proxy, block 1 the warp.
        let grid = Grid::new(2, 32).workers(1).observed(&self.orders);
        let grid = seed.map_or(grid.clone(), |seed| grid.seeded(seed));
        let body = || match thread::block_idx_x() {
            0 if thread::thread_idx_x() == 0 => self.proxy(),
            0 => {}
            _ => self.produce(),
        };
        grid.run(body).map_err(|error| format!("{}, {:?}, seed {seed:?}: {error}", self.scenario.name, self.cast))
    }

    fn produce(&self) {
        let lane = warp::lane();
        if self.scenario.lanes >> lane & 1 == 0 {
            return;
        }
        let mut ring = self.ring(self.scenario.ring(lane));
        for number in 0..self.pushes {
            if self.cast == Cast::ByHand(Some(Fault::LaneLeaves))
                && lane == 31 - self.scenario.lanes.leading_zeros()
                && number == 3
            {
                return;
            }
            if let Err(status) = self.push(&mut ring, lane, number) {
                store_relaxed_gpu_u64(&self.over, 1);
                panic!("a push ended: {}", status.text());
            }
        }
    }

    fn push(&self, ring: &mut Ring, lane: u32, number: u64) -> Result<u64, Status> {
        // The payload is written.
        self.written.lock().expect("no panic").insert((lane, number), self.orders.now());
        if self.scenario.together {
            let words = command(self.scenario.lanes.trailing_zeros(), number).encode();
            let word = move |index: u32| words[index as usize];
            return match self.cast {
                Cast::ByHand(fault) => Ok(by_hand::push_together(ring, self.scenario.lanes, words, fault)),
                // No product pushes so: it is the study's.
                _ => elements::push_warp(ring, self.scenario.lanes, Behind::Payload, COMMAND_WORDS, word, &mut ()),
            };
        }
        let command = command(lane, number);
        let words = command.encode();
        let word = move |index: u32| words[index as usize];
        match self.cast {
            Cast::Product => ring.push(&command),
            Cast::Element => elements::push(ring, COMMAND_WORDS, word, &mut ()),
            Cast::Released => elements::push_released(ring, COMMAND_WORDS, word, &mut ()),
            Cast::ByHand(fault) => Ok(by_hand::push(ring, self.scenario.lanes, words, fault)),
        }
    }

    fn proxy(&self) {
        let rings: Vec<Ring> = (0..self.rings.len()).map(|ring| self.ring(ring)).collect();
        // SAFETY: the memory outlives the grid, and each ring has this one consumer.
        let mut consumers: Vec<Consumer> = rings.iter().map(|ring| unsafe { Consumer::new(ring) }).collect();
        let mut account = Account::new(self.scenario, self.scenario.producers().collect());
        let started = thread::global_timer_ns();
        while !account.is_complete(self.pushes) {
            let waited = thread::global_timer_ns() - started;
            assert!(waited < TIMEOUT_NS && load_relaxed_gpu_u64(&self.over) == 0, "elements are missing");
            for (number, consumer) in consumers.iter_mut().enumerate() {
                let ticket = consumer.cursor();
                let Some(words) = consumer.pop() else { continue };
                consumer.acquire();
                self.take(&mut account, number, ticket, words);
                assert!(consumer.unpublished() <= rings[number].capacity(), "more slots are kept than there are");
                // In batches of three: slots come back late.
                if ticket % 3 == 2 || consumer.unpublished() == rings[number].capacity() {
                    consumer.publish_tail();
                }
            }
            thread::relax();
            if consumers.iter().all(|consumer| consumer.unpublished() > 0) {
                consumers.iter_mut().for_each(Consumer::publish_tail);
            }
        }
        assert!(consumers.iter_mut().all(|consumer| consumer.pop().is_none()), "an element too many");
    }

    /// One element: whose it is, and that it stands behind its payload.
    fn take(&self, account: &mut Account, ring: usize, ticket: u64, words: [u64; 4]) {
        let found = Command::decode(words).expect("a command");
        let (lane, number) = (found.source_region, found.source_offset);
        assert_eq!(found, command(lane, number), "a torn element");
        account.seen(ring, lane, number);
        if matches!(self.cast, Cast::Element | Cast::Released) {
            // They go out behind nothing.
            return;
        }
        let payloads = if self.scenario.together { self.scenario.lanes } else { 1 << lane };
        let slot = (ticket & ((1 << self.scenario.log2_capacity) - 1)) as usize;
        let Slot(stored) = &self.rings[ring].slots[slot];
        for lane in (0..u32::BITS).filter(|lane| payloads >> lane & 1 == 1) {
            let moment = self.written.lock().expect("no panic").remove(&(lane, number)).expect("written once");
            for word in stored {
                assert!(self.orders.releases(word, moment), "the payload of lane {lane} is not before its element");
            }
        }
    }
}

/// So many pushes of this scenario, a few hundred in one run.
fn play(scenario: Scenario, cast: Cast, pushes: u64) -> Result<(), String> {
    let each = 40;
    let runs = pushes.div_ceil(each * scenario.producers().count() as u64);
    Play::new(scenario, each, cast).run(None)?;
    (0..runs).try_for_each(|seed| Play::new(scenario, each, cast).run(Some(seed)))
}

#[test]
fn every_way_of_a_warp_carries_each_element_once_behind_its_payload() {
    for scenario in SCENARIOS {
        play(scenario, Cast::Product, 2_500).unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn the_studys_elements_arrive_once() {
    for scenario in SCENARIOS.into_iter().filter(|scenario| !scenario.together) {
        for cast in [Cast::Element, Cast::Released] {
            play(scenario, cast, 1_000).unwrap_or_else(|why| panic!("{why}"));
        }
    }
}

#[test]
#[ignore = "the full number: half a minute, optimised"]
fn a_million_pushes_of_every_way() {
    for scenario in SCENARIOS {
        let started = Instant::now();
        play(scenario, Cast::Product, 1_000_000).unwrap_or_else(|why| panic!("{why}"));
        println!("{}: 1000000 pushes in {:.1} s", scenario.name, started.elapsed().as_secs_f64());
    }
}

#[test]
fn the_protocol_by_hand_passes_what_its_faults_fail() {
    for scenario in SCENARIOS {
        play(scenario, Cast::ByHand(None), 1_000).unwrap_or_else(|why| panic!("{why}"));
    }
}

/// The scenario fails with this fault within a few seeds, in this way.
fn fails(scenario: Scenario, fault: Fault, way: &str) {
    let failed = play(scenario, Cast::ByHand(Some(fault)), 2_000).expect_err("the fault passed unseen");
    assert!(failed.contains(way), "{fault:?} failed in another way: {failed}");
}

#[test]
fn faults_are_caught() {
    let named = |name| *SCENARIOS.iter().find(|scenario| scenario.name == name).expect("a scenario");
    for name in ["full warp", "some lanes", "two rings in one warp", "one element of a full warp"] {
        fails(named(name), Fault::NoBarrierBeforeFence, "is not before its element");
    }
    for name in ["full warp", "some lanes"] {
        fails(named(name), Fault::FenceBeforeBarrier, "is not before its element");
        fails(named(name), Fault::LaneLeaves, "returned");
        fails(named(name), Fault::LeaderStaysAway, "wants a value of lane");
    }
    fails(named("two rings in one warp"), Fault::TicketOfAnotherRing, "on another ring");
}
