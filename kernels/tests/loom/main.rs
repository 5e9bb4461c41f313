//! Every interleaving (up to a number of preemptions) of producers and the proxy, by loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kernels --test loom --release`
//!
//! The words of the ring are loom's here: a relaxed load may see any value that the memory model allows, and two stores
//! that nothing orders may stand in either order for ever. How long a spin is followed says `cuda_std::model`.
//!
//! Each scenario runs three times: with the product, which must pass; with the same protocol [by hand](by_hand), which
//! must pass; and by hand with each fault that the scenario is there to catch, which must fail.
#![cfg(loom)]

mod by_hand;

use by_hand::{ByHand, Fault};
use cuda_std::memory::{Word, WordPair, fence_acq_rel_sys, load_relaxed_sys_u64, store_relaxed_sys_u64};
use cuda_std::thread::nanosleep;
use kernels::command::{Command, Opcode};
use kernels::put::{Channel, Put};
use kernels::ring::consumer::Consumer;
use kernels::ring::{DeviceWords, HostWords, LOG2_COMMAND_WORDS, Ring, Stop};
use loom::sync::Arc;
use loom::thread;
use std::panic::catch_unwind;

/// A ring's memory, two slots; shared by the threads of one execution.
struct Memory {
    slots: [WordPair; 4],
    host: HostWords,
    device: DeviceWords,
    timeout_ns: u64,
}

impl Memory {
    fn new() -> Arc<Memory> {
        Memory::with_timeout(u64::MAX)
    }

    /// A wait gives up after this many attempts (loom's clock counts its readings).
    fn with_timeout(timeout_ns: u64) -> Arc<Memory> {
        let slots = std::array::from_fn(|_| WordPair::new(0, 0));
        Arc::new(Memory { slots, host: HostWords::default(), device: DeviceWords::default(), timeout_ns })
    }

    fn ring(&self) -> Ring {
        Ring {
            slots: self.slots.as_ptr().cast(),
            host: &self.host,
            device: &self.device,
            log2_capacity: 1,
            log2_slot_words: LOG2_COMMAND_WORDS,
            timeout_ns: self.timeout_ns,
            free_below: 2,
        }
    }
}

/// What a scenario asks of the proxy.
trait Proxy {
    fn pop(&mut self) -> Option<[u64; 4]>;
    fn acquire(&self);
    fn publish_tail(&mut self);
    fn publish_watermark(&self, watermark: u64);
    /// The last watermark and the reason of the end.
    fn publish_end(&self, watermark: u64, stop: Stop);
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

    fn publish_end(&self, watermark: u64, stop: Stop) {
        Consumer::publish_watermark(self, watermark);
        self.publish_stop(stop);
    }
}

/// Who plays the scenario.
#[derive(Clone, Copy, Debug)]
enum Cast {
    Product,
    ByHand(Option<Fault>),
}

impl Cast {
    fn push(self, ring: &Ring, tag: u64) -> Result<u64, Stop> {
        match self {
            Cast::Product => { *ring }.push(&command(tag)),
            Cast::ByHand(fault) => Ok(by_hand::push(ring, &command(tag), fault)),
        }
    }

    /// A push that orders the payload before the command. This fence, and the proxy's, order more than the payload and
    /// would hide chains that the ring must build by itself: scenarios without a payload do without both.
    fn put(self, ring: &Ring, tag: u64) -> Result<u64, Stop> {
        match self {
            Cast::Product => {
                let put = Put {
                    source_region: tag as u32,
                    source_offset: tag,
                    destination_region: tag as u32,
                    destination_offset: tag,
                    bytes: tag,
                    peer: tag as u32,
                };
                Channel::new(*ring).put_signal_nbi(&put, tag as u32)
            }
            Cast::ByHand(fault) => {
                if fault != Some(Fault::NoFence) {
                    fence_acq_rel_sys();
                }
                self.push(ring, tag)
            }
        }
    }

    /// For the largest scenarios: what is done by hand is only a control, and its faults show with one preemption.
    fn preemptions(self) -> usize {
        match self {
            Cast::Product => 2,
            Cast::ByHand(_) => 1,
        }
    }

    fn wait(self, ring: &Ring, ticket: u64) -> Result<(), Stop> {
        match self {
            Cast::Product => { *ring }.wait(ticket).map(drop),
            Cast::ByHand(fault) => by_hand::wait(ring, ticket, fault),
        }
    }

    fn proxy(self, memory: &Memory) -> Box<dyn Proxy> {
        match self {
            // SAFETY: each scenario makes one proxy and keeps the memory until all its threads have ended.
            Cast::Product => Box::new(unsafe { Consumer::new(&memory.ring()) }),
            Cast::ByHand(fault) => Box::new(ByHand::new(memory.ring(), fault)),
        }
    }
}

/// A command whose every word names it: a torn slot is seen.
fn command(tag: u64) -> Command {
    Command {
        opcode: Opcode::PutSignal,
        source_region: tag as u32,
        source_offset: tag,
        destination_region: tag as u32,
        destination_offset: tag,
        bytes: tag,
        peer: tag as u32,
        immediate: tag as u32,
    }
}

/// Pops until a command is there, and returns its tag.
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

/// The scenario passes with the product, and by hand.
fn passes(scenario: fn(Cast)) {
    scenario(Cast::Product);
    scenario(Cast::ByHand(None));
}

/// The scenario fails with this fault, in this way.
fn fails(scenario: fn(Cast), fault: Fault, way: &str) {
    let panic = catch_unwind(|| scenario(Cast::ByHand(Some(fault)))).expect_err("the fault passed unseen");
    let text = match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().expect("a text").to_string(),
    };
    assert!(text.contains(way), "{fault:?} failed in another way: {text}");
}

/// How loom says that a spin does not end.
const NEVER_ENDS: &str = "maximum number of branches";

/// Two producers and three commands on two slots: the ring is full, the third command wraps, tickets in every order.
fn wrap_around(cast: Cast) {
    explore(2, move || {
        let memory = Memory::new();
        let producers = [&[10, 11][..], &[20]].map(|tags| {
            let memory = memory.clone();
            thread::spawn(move || {
                for tag in tags {
                    cast.push(&memory.ring(), *tag).expect("pushed");
                }
            })
        });
        let mut proxy = cast.proxy(&memory);
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(pop(&mut *proxy));
            proxy.publish_tail();
        }
        for producer in producers {
            producer.join().expect("producer");
        }
        // None lost, none twice, each producer's in order.
        assert!([[10, 11, 20], [10, 20, 11], [20, 10, 11]].contains(&[seen[0], seen[1], seen[2]]), "order {seen:?}");
        assert_eq!(proxy.pop(), None, "a command too many");
    });
}

/// One producer wraps and brings the tail to the device; the other may act on that copy alone, and takes a slot that it
/// knows nothing else about.
fn relayed_tail(cast: Cast) {
    explore(cast.preemptions(), move || {
        let memory = Memory::new();
        let producers = [&[10, 11, 12][..], &[20]].map(|tags| {
            let memory = memory.clone();
            thread::spawn(move || {
                for tag in tags {
                    cast.push(&memory.ring(), *tag).expect("pushed");
                }
            })
        });
        let mut proxy = cast.proxy(&memory);
        let mut seen = Vec::new();
        for _ in 0..2 {
            seen.extend([pop(&mut *proxy), pop(&mut *proxy)]);
            proxy.publish_tail();
        }
        for producer in producers {
            producer.join().expect("producer");
        }
        seen.sort();
        assert_eq!(seen, [10, 11, 12, 20]);
    });
}

/// A full ring and two producers that wait for space: one polls for both, and leaves the role to the other.
fn full_ring(cast: Cast) {
    explore(cast.preemptions(), move || {
        let memory = Memory::new();
        for tag in [1, 2] {
            cast.push(&memory.ring(), tag).expect("a free slot");
        }
        let producers = [3, 4].map(|tag| {
            let memory = memory.clone();
            thread::spawn(move || cast.push(&memory.ring(), tag).expect("pushed"))
        });
        let mut proxy = cast.proxy(&memory);
        for tag in [1, 2] {
            assert_eq!(pop(&mut *proxy), tag);
            proxy.publish_tail();
        }
        let mut seen = [pop(&mut *proxy), pop(&mut *proxy)];
        seen.sort();
        assert_eq!(seen, [3, 4]);
        for producer in producers {
            producer.join().expect("producer");
        }
    });
}

/// One producer round and round: three laps on two slots, the tail published late.
fn laps(cast: Cast) {
    explore(3, move || {
        let memory = Memory::new();
        let producer = {
            let memory = memory.clone();
            thread::spawn(move || {
                for number in 0..6 {
                    assert_eq!(cast.push(&memory.ring(), number + 1), Ok(number));
                }
            })
        };
        let mut proxy = cast.proxy(&memory);
        for batch in 0..3 {
            assert_eq!([pop(&mut *proxy), pop(&mut *proxy)], [batch * 2 + 1, batch * 2 + 2], "order");
            proxy.publish_tail();
        }
        producer.join().expect("producer");
    });
}

/// The payload is visible behind the command: the producer's fence and the proxy's pair through the slot's words.
fn payload(cast: Cast) {
    explore(3, move || {
        let memory = Memory::new();
        let payload = Arc::new(Word::new(0));
        let producer = {
            let (memory, payload) = (memory.clone(), payload.clone());
            thread::spawn(move || {
                store_relaxed_sys_u64(&payload, 77);
                cast.put(&memory.ring(), 1).expect("a free slot");
            })
        };
        let mut proxy = cast.proxy(&memory);
        pop(&mut *proxy);
        proxy.acquire();
        assert_eq!(load_relaxed_sys_u64(&payload), 77, "payload");
        producer.join().expect("producer");
    });
}

/// Two threads wait for two tickets. Both end, whoever polls for the other, and each sees what was delivered before its
/// ticket was done.
fn completion(cast: Cast) {
    explore(2, move || {
        let memory = Memory::new();
        let delivered = Arc::new([Word::new(0), Word::new(0)]);
        let waiters = [0, 1].map(|ticket| {
            let (memory, delivered) = (memory.clone(), delivered.clone());
            thread::spawn(move || {
                cast.wait(&memory.ring(), ticket).expect("complete");
                assert_eq!(load_relaxed_sys_u64(&delivered[ticket as usize]), 77, "delivered");
            })
        });
        let proxy = cast.proxy(&memory);
        for ticket in [0, 1] {
            store_relaxed_sys_u64(&delivered[ticket as usize], 77);
            proxy.publish_watermark(ticket + 1);
        }
        for waiter in waiters {
            waiter.join().expect("waiter");
        }
    });
}

/// Push, pop, watermark, wait, all at once.
fn put_and_quiet(cast: Cast) {
    explore(2, move || {
        let memory = Memory::new();
        let producers = [1, 2].map(|tag| {
            let memory = memory.clone();
            thread::spawn(move || {
                let ring = memory.ring();
                let ticket = cast.put(&ring, tag).expect("pushed");
                cast.wait(&ring, ticket).expect("complete");
            })
        });
        let mut proxy = cast.proxy(&memory);
        pop(&mut *proxy);
        proxy.publish_watermark(1);
        pop(&mut *proxy);
        proxy.publish_watermark(2);
        for producer in producers {
            producer.join().expect("producer");
        }
    });
}

/// The proxy ends by an error after the first ticket: the wait for it succeeds, the wait for the second gets the status.
fn error_and_watermark(cast: Cast) {
    explore(2, move || {
        let memory = Memory::new();
        let waiters = [0, 1].map(|ticket| {
            let memory = memory.clone();
            thread::spawn(move || cast.wait(&memory.ring(), ticket))
        });
        cast.proxy(&memory).publish_end(1, Stop::FABRIC);
        let [first, second] = waiters.map(|waiter| waiter.join().expect("waiter"));
        assert_eq!(first, Ok(()), "a ticket below the watermark is done whatever the status");
        assert_eq!(second, Err(Stop::FABRIC));
    });
}

#[test]
fn wrap_around_passes() {
    passes(wrap_around);
}

#[test]
fn relayed_tail_passes() {
    passes(relayed_tail);
}

#[test]
fn full_ring_passes() {
    passes(full_ring);
}

#[test]
fn laps_pass() {
    passes(laps);
}

#[test]
fn payload_passes() {
    passes(payload);
}

#[test]
fn completion_passes() {
    passes(completion);
}

#[test]
fn put_and_quiet_pass() {
    put_and_quiet(Cast::Product);
}

#[test]
fn error_and_watermark_pass() {
    passes(error_and_watermark);
}

/// A full ring, and the proxy ends: every push that waits for space gets the status.
#[test]
fn an_error_ends_every_push() {
    explore(2, || {
        let memory = Memory::new();
        for tag in [1, 2] {
            Cast::Product.push(&memory.ring(), tag).expect("a free slot");
        }
        let producers = [3, 4].map(|tag| {
            let memory = memory.clone();
            thread::spawn(move || assert_eq!(Cast::Product.push(&memory.ring(), tag), Err(Stop::REFUSED)))
        });
        Cast::Product.proxy(&memory).publish_end(0, Stop::REFUSED);
        for producer in producers {
            producer.join().expect("producer");
        }
    });
}

/// No proxy at all: a push into the full ring and a wait both end by the deadline, whichever comes to it first.
#[test]
fn the_deadline_ends_push_and_wait() {
    explore(2, || {
        let memory = Memory::with_timeout(1);
        for tag in [1, 2] {
            Cast::Product.push(&memory.ring(), tag).expect("a free slot");
        }
        let pusher = {
            let memory = memory.clone();
            thread::spawn(move || memory.ring().push(&command(3)).map(|_| ()))
        };
        let waiters = [0, 1].map(|ticket| {
            let memory = memory.clone();
            thread::spawn(move || memory.ring().wait(ticket).map(drop))
        });
        for thread in waiters.into_iter().chain([pusher]) {
            assert_eq!(thread.join().expect("thread"), Err(Stop::DEADLINE));
        }
    });
}

/// A full ring and no proxy: the producer whose time is up first ends the other, which would wait for ever.
#[test]
fn the_deadline_of_one_push_ends_all() {
    explore(2, || {
        let memory = Memory::new();
        for tag in [1, 2] {
            Cast::Product.push(&memory.ring(), tag).expect("a free slot");
        }
        let producers = [1, u64::MAX].map(|timeout_ns| {
            let memory = memory.clone();
            thread::spawn(move || {
                let mut ring = Ring { timeout_ns, ..memory.ring() };
                assert_eq!(ring.push(&command(3)), Err(Stop::DEADLINE));
            })
        });
        for producer in producers {
            producer.join().expect("producer");
        }
    });
}

/// A deadline that comes close to the completion: done or late, nothing else, and a thread that is late ends the other
/// unless that one is done.
#[test]
fn the_deadline_races_with_the_completion() {
    explore(2, || {
        let memory = Memory::with_timeout(1);
        let waiters = [0, 1].map(|ticket| {
            let memory = memory.clone();
            thread::spawn(move || memory.ring().wait(ticket).map(drop))
        });
        Cast::Product.proxy(&memory).publish_watermark(1);
        let [first, second] = waiters.map(|waiter| waiter.join().expect("waiter"));
        assert!(first == Ok(()) || first == Err(Stop::DEADLINE), "{first:?}");
        assert_eq!(second, Err(Stop::DEADLINE));
    });
}

#[test]
fn faults_of_the_producer_are_caught() {
    fails(payload, Fault::NoFence, "payload");
    fails(wrap_around, Fault::NoSpaceCheck, NEVER_ENDS);
    fails(laps, Fault::WordWithoutParity, NEVER_ENDS);
    fails(relayed_tail, Fault::TailCacheRelaxed, NEVER_ENDS);
    fails(relayed_tail, Fault::TailRelayRelaxed, NEVER_ENDS);
    fails(full_ring, Fault::RoleKept, NEVER_ENDS);
}

#[test]
fn faults_of_the_proxy_are_caught() {
    fails(payload, Fault::NoAcquire, "payload");
    fails(wrap_around, Fault::LastWordUnchecked, "torn slot");
    fails(wrap_around, Fault::LapForgotten, "order");
    fails(wrap_around, Fault::TailBeforeRead, "torn slot");
    fails(wrap_around, Fault::TailRelaxed, NEVER_ENDS);
}

#[test]
fn faults_of_the_completion_are_caught() {
    fails(completion, Fault::WatermarkRelaxed, "delivered");
    fails(completion, Fault::WatermarkRelayRelaxed, "delivered");
    fails(completion, Fault::RoleKept, NEVER_ENDS);
    fails(error_and_watermark, Fault::StatusBeforeWatermark, "whatever the status");
    fails(error_and_watermark, Fault::StatusRelayRelaxed, "whatever the status");
    fails(error_and_watermark, Fault::NoSecondLook, "whatever the status");
}
