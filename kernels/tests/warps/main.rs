//! The whole-warp paths of the ring, on the emulated device under seeded orders.
//!
//! A warp pushes, and a lane of another block acts as the proxy. Both run on one worker, so that a seed determines the
//! order. In addition to the elements, the tests check that the memory model orders each element after its payload
//! ([`Orders`]), which a run on a CPU cannot show. Every scenario passes with the product and with the same protocol
//! [by hand](by_hand), and fails with each fault that it must detect.
//!
//! The regular tests run a subset. For all 10^6 pushes of each scenario, run `cargo test --release -p kernels --test
//! warps -- --ignored --nocapture`.
#![cfg(not(any(loom, miri)))]

mod by_hand;
#[path = "../scenarios/mod.rs"]
mod scenarios;

use by_hand::WarpFault;
use cuda_std::emulation::{EmulatedGrid, Moment, Orders};
use cuda_std::memory::{Word, load_relaxed_gpu_u64, store_relaxed_gpu_u64};
use cuda_std::{thread, warp};
use kernels::command::{COMMAND_WORDS, Command};
use kernels::queue::elements;
use kernels::ring::consumer::Consumer;
use kernels::ring::producer::Fence;
use kernels::ring::{DeviceWords, HostWords, LOG2_COMMAND_WORDS, Ring, Status};
use scenarios::{Account, SCENARIOS, Scenario};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

/// Timeout of the ring's waits, longer than any of these tests takes.
const TIMEOUT_NS: u64 = 20_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Cast {
    Product,
    /// The elements of the queue experiment, with the words of a command.
    Element,
    /// The elements of the queue experiment with a release store each.
    Released,
    ByHand(Option<WarpFault>),
}

/// A slot with the alignment that a ring requires.
#[repr(C, align(32))]
struct Slot([Word; 4]);

struct Memory {
    slots: Vec<Slot>,
    host: HostWords,
    device: DeviceWords,
}

struct Play {
    scenario: Scenario,
    pushes: u64,
    cast: Cast,
    rings: Vec<Memory>,
    orders: Orders,
    /// Time at which the payload was written, by lane and push.
    written: Mutex<HashMap<(u32, u64), Moment>>,
    /// Nonzero if a producer has failed.
    over: Word,
}

/// Returns a command whose every word depends on lane and number.
fn command(lane: u32, number: u64) -> Command {
    let bytes = number + 7 * lane as u64;
    Command::put((lane, number), (lane ^ 5, number * 3), bytes, lane).with_signal(number as u32)
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
        let grid = EmulatedGrid::new(2, 32).workers(1).observed(&self.orders);
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
            if self.cast == Cast::ByHand(Some(WarpFault::LaneLeaves))
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
        // Records that the payload is written.
        self.written.lock().expect("no panic").insert((lane, number), self.orders.now());
        if self.scenario.together {
            let words = command(self.scenario.lanes.trailing_zeros(), number).encode();
            let word = move |index: u32| words[index as usize];
            return match self.cast {
                Cast::ByHand(fault) => Ok(by_hand::push_together(ring, self.scenario.lanes, words, fault)),
                // The product does not push this way. This is the push of the queue experiment.
                _ => elements::push_warp(ring, self.scenario.lanes, Fence::Payload, COMMAND_WORDS, word, &mut ()),
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
                // Frees the slots late, in batches of three.
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

    /// Checks one element: its origin, and that it is ordered after its payload.
    fn take(&self, account: &mut Account, ring: usize, ticket: u64, words: [u64; 4]) {
        let found = Command::decode(words).expect("a command");
        let (lane, number) = (found.source_region, found.source_offset);
        assert_eq!(found, command(lane, number), "a torn element");
        account.seen(ring, lane, number);
        if matches!(self.cast, Cast::Element | Cast::Released) {
            // These elements are not ordered after any payload.
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

/// Runs `pushes` pushes of this scenario, a few hundred per run.
fn play(scenario: Scenario, cast: Cast, pushes: u64) -> Result<(), String> {
    let each = 40;
    let runs = pushes.div_ceil(each * scenario.producers().count() as u64);
    Play::new(scenario, each, cast).run(None)?;
    (0..runs).try_for_each(|seed| Play::new(scenario, each, cast).run(Some(seed)))
}

#[test]
fn every_variant_carries_each_element_after_payload() {
    for scenario in SCENARIOS {
        play(scenario, Cast::Product, 2_500).unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn study_elements_arrive_once() {
    for scenario in SCENARIOS.into_iter().filter(|scenario| !scenario.together) {
        for cast in [Cast::Element, Cast::Released] {
            play(scenario, cast, 1_000).unwrap_or_else(|why| panic!("{why}"));
        }
    }
}

#[test]
#[ignore = "the full number: half a minute, optimised"]
fn million_pushes_of_every_variant() {
    for scenario in SCENARIOS {
        let started = Instant::now();
        play(scenario, Cast::Product, 1_000_000).unwrap_or_else(|why| panic!("{why}"));
        println!("{}: 1000000 pushes in {:.1} s", scenario.name, started.elapsed().as_secs_f64());
    }
}

#[test]
fn manual_protocol_passes_and_its_faults_fail() {
    for scenario in SCENARIOS {
        play(scenario, Cast::ByHand(None), 1_000).unwrap_or_else(|why| panic!("{why}"));
    }
}

/// Checks that the scenario fails with `fault` within a few seeds, and that the message contains `way`.
fn fails(scenario: Scenario, fault: WarpFault, way: &str) {
    let failed = play(scenario, Cast::ByHand(Some(fault)), 2_000).expect_err("the fault passed unseen");
    assert!(failed.contains(way), "{fault:?} failed in another way: {failed}");
}

#[test]
fn faults_are_caught() {
    let named = |name| *SCENARIOS.iter().find(|scenario| scenario.name == name).expect("a scenario");
    for name in ["full warp", "some lanes", "two rings in one warp", "one element of a full warp"] {
        fails(named(name), WarpFault::NoBarrierBeforeFence, "is not before its element");
    }
    for name in ["full warp", "some lanes"] {
        fails(named(name), WarpFault::FenceBeforeBarrier, "is not before its element");
        fails(named(name), WarpFault::LaneLeaves, "returned");
        fails(named(name), WarpFault::LeaderStaysAway, "requests a value of lane");
    }
    fails(named("two rings in one warp"), WarpFault::TicketOfAnotherRing, "on another ring");
}
