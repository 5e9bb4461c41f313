//! All interleavings (up to a number of preemptions) of producers and the proxy, explored by loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kernels --test loom --release`
//!
//! The words of the ring are those of loom: a relaxed load may return any value that the memory model permits, and two
//! unordered stores may be observed in either order indefinitely. `cuda_std::model` defines how many iterations of a
//! spin loop are explored.
//!
//! Each scenario must pass with the product and with the same protocol [by hand](by_hand). It must fail by hand with
//! each fault that it must detect.
#![cfg(loom)]

mod arrivals;
mod by_hand;
mod completion;
mod direct;
mod push;
#[path = "../scenarios/mod.rs"]
mod scenarios;
mod signal;
mod vyukov;

use by_hand::{ByHand, RingFault};
use cuda_std::memory::{WordPair, fence_acq_rel_sys};
use cuda_std::thread::nanosleep;
use kernels::command::{COMMAND_WORDS, Command, Opcode};
use kernels::put_kernel::{Put, PutChannel};
use kernels::queue::elements;
use kernels::ring::consumer::Consumer;
use kernels::ring::producer::Fence;
use kernels::ring::{DeviceWords, HostWords, LOG2_COMMAND_WORDS, Ring, Status};
use loom::sync::Arc;
use std::panic::catch_unwind;

/// Memory of a ring of one or two slots, shared by the threads of one execution.
struct Memory {
    slots: [WordPair; 4],
    host: HostWords,
    device: DeviceWords,
    log2_capacity: u32,
    timeout_ns: u64,
}

impl Memory {
    /// Creates a ring of two slots.
    fn new() -> Arc<Memory> {
        Memory::with(1, u64::MAX)
    }

    /// Creates a ring of two slots whose waits end after `timeout_ns` attempts (loom's clock counts its readings).
    fn with_timeout(timeout_ns: u64) -> Arc<Memory> {
        Memory::with(1, timeout_ns)
    }

    fn with(log2_capacity: u32, timeout_ns: u64) -> Arc<Memory> {
        let slots = std::array::from_fn(|_| WordPair::new(0, 0));
        let (host, device) = (HostWords::default(), DeviceWords::default());
        Arc::new(Memory { slots, host, device, log2_capacity, timeout_ns })
    }

    /// Returns the ring for one thread. Each copy caches the tickets that are known to have a slot.
    fn ring(&self) -> Ring {
        Ring {
            slots: self.slots.as_ptr().cast(),
            host: &self.host,
            device: &self.device,
            log2_capacity: self.log2_capacity,
            log2_slot_words: LOG2_COMMAND_WORDS,
            timeout_ns: self.timeout_ns,
            role: 0,
            of_block: 0,
            free_below: 1 << self.log2_capacity,
        }
    }
}

/// The operations that a scenario requires of the proxy.
trait Proxy {
    fn pop(&mut self) -> Option<[u64; 4]>;
    fn acquire(&self);
    fn publish_tail(&mut self);
    fn publish_watermark(&self, watermark: u64);
    /// Publishes the last watermark, followed by the reason for the end.
    fn publish_end(&self, watermark: u64, stop: Status);
}

impl Proxy for Consumer {
    fn pop(&mut self) -> Option<[u64; 4]> {
        Consumer::pop(self)
    }

    fn acquire(&self) {
        Consumer::acquire(self);
    }

    fn publish_tail(&mut self) {
        Consumer::publish_tail(self);
    }

    fn publish_watermark(&self, watermark: u64) {
        Consumer::publish_watermark(self, watermark);
    }

    fn publish_end(&self, watermark: u64, stop: Status) {
        Consumer::publish_watermark(self, watermark);
        self.publish_status(stop);
    }
}

/// Implementation that runs the scenario.
#[derive(Clone, Copy, Debug)]
enum Cast {
    /// [`Ring::push_words`] with [`Fence::None`]. (A fence would order more than the payload, and would hide chains
    /// that the ring must establish. Scenarios with a payload use [`Cast::put`].)
    Product,
    /// [`elements::push_warp`] of the queue experiment.
    Warp,
    /// [`elements::push`] of the queue experiment, with commands.
    Element,
    /// [`elements::push_released`] of the queue experiment.
    Released,
    ByHand(Option<RingFault>),
}

impl Cast {
    fn push(self, ring: &mut Ring, tag: u64) -> Result<u64, Status> {
        let words = command(tag).encode();
        let word = move |index: u32| words[index as usize];
        match self {
            Cast::Product => ring.push_words(Fence::None, words, &mut ()),
            Cast::Warp => elements::push_warp(ring, 1, Fence::None, COMMAND_WORDS, word, &mut ()),
            Cast::Element => elements::push(ring, COMMAND_WORDS, word, &mut ()),
            Cast::Released => elements::push_released(ring, COMMAND_WORDS, word, &mut ()),
            Cast::ByHand(fault) => Ok(by_hand::push(ring, &command(tag), fault)),
        }
    }

    /// Pushes a command, after ordering the payload before it.
    fn put(self, ring: &mut Ring, tag: u64) -> Result<u64, Status> {
        match self {
            Cast::Product | Cast::Warp | Cast::Element | Cast::Released => {
                let put = Put {
                    source_region: tag as u32,
                    source_offset: tag,
                    destination_region: tag as u32,
                    destination_offset: tag,
                    bytes: tag,
                    peer: tag as u32,
                };
                PutChannel::new(*ring).put_signal_nbi(&put, tag as u32)
            }
            Cast::ByHand(fault) => {
                if fault != Some(RingFault::NoFence) {
                    fence_acq_rel_sys();
                }
                self.push(ring, tag)
            }
        }
    }

    /// Number of preemptions for the largest scenarios. The implementation by hand is only a control, whose faults show
    /// with one preemption.
    fn preemptions(self) -> usize {
        match self {
            Cast::Product => 2,
            Cast::Warp | Cast::Element | Cast::Released | Cast::ByHand(_) => 1,
        }
    }

    fn wait(self, ring: &mut Ring, ticket: u64) -> Result<(), Status> {
        self.wait_as(ring, 0, ticket)
    }

    fn wait_as(self, ring: &mut Ring, role: usize, ticket: u64) -> Result<(), Status> {
        match self {
            Cast::ByHand(fault) => by_hand::wait(ring, role, ticket, fault),
            _ => {
                ring.role = role as u32;
                ring.wait(ticket).map(drop)
            }
        }
    }

    fn proxy(self, memory: &Memory) -> Box<dyn Proxy> {
        match self {
            Cast::ByHand(fault) => Box::new(ByHand::new(memory.ring(), fault)),
            // SAFETY: each scenario creates one proxy and keeps the memory until all its threads have ended.
            _ => Box::new(unsafe { Consumer::<4>::new(&memory.ring()) }),
        }
    }
}

/// Returns a command whose every word contains `tag`, so that a torn slot is detected.
fn command(tag: u64) -> Command {
    Command::put((tag as u32, tag), (tag as u32, tag), tag, tag as u32).with_signal(tag as u32)
}

/// Pops until a command has arrived. Returns its tag.
fn pop(proxy: &mut dyn Proxy) -> u64 {
    loop {
        if let Some(words) = proxy.pop() {
            let tag = words[3];
            assert_eq!(words, command(tag).encode(), "torn slot");
            return tag;
        }
        nanosleep(0);
    }
}

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 2_000;
    builder.check(model);
}

/// Checks that the scenario passes with the product and by hand.
fn passes(scenario: fn(Cast)) {
    scenario(Cast::Product);
    scenario(Cast::ByHand(None));
}

/// Checks that the scenario fails with `fault`, and that the message contains `way`.
fn fails(scenario: fn(Cast), fault: RingFault, way: &str) {
    let panic = catch_unwind(|| scenario(Cast::ByHand(Some(fault)))).expect_err("the fault passed unseen");
    let text = match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().expect("a text").to_string(),
    };
    assert!(text.contains(way), "{fault:?} failed in another way: {text}");
}

/// Loom's message for a spin loop that does not end.
const NEVER_ENDS: &str = "maximum number of branches";
