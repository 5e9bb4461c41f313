//! Every interleaving (up to a number of preemptions) of producers and the consumer, by loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p kernels --test loom --release`
//!
//! The words of the ring are loom's here: a relaxed load may see any value that the memory model allows. What loom does
//! not model is a store made visible before an earlier load of the same thread; no CPU or GPU we run on does that across
//! a dependency, which is what the slot reuse relies on (see `Ring::push`).
#![cfg(loom)]

use cuda_std::memory::WordPair;
use kernels::command::{Command, Opcode};
use kernels::ring::consumer::Consumer;
use kernels::ring::{DeviceWords, HostWords, Ring, Slot, Stop};
use loom::sync::Arc;
use loom::thread;

/// A ring's memory; shared by the threads of one execution.
struct Memory {
    slots: Vec<Slot>,
    host: HostWords,
    device: DeviceWords,
    log2_capacity: u32,
}

impl Memory {
    fn new(log2_capacity: u32) -> Arc<Memory> {
        let slot = || Slot(WordPair::new(0, 0), WordPair::new(0, 0));
        Arc::new(Memory {
            slots: (0..1 << log2_capacity).map(|_| slot()).collect(),
            host: HostWords::default(),
            device: DeviceWords::default(),
            log2_capacity,
        })
    }

    fn ring(&self) -> Ring {
        Ring {
            slots: self.slots.as_ptr(),
            host: &self.host,
            device: &self.device,
            log2_capacity: self.log2_capacity,
            timeout_ns: u64::MAX,
        }
    }
}

/// A command whose every word names its producer and number: a torn slot is seen.
fn command(producer: u64, number: u64) -> Command {
    let tag = producer * 16 + number + 1;
    Command {
        opcode: Opcode::Put,
        source_region: tag as u32,
        source_offset: tag,
        destination_region: tag as u32,
        destination_offset: tag,
        bytes: tag,
        peer: tag as u32,
        immediate: tag as u32,
    }
}

fn check(words: [u64; 4]) -> u64 {
    let found = Command::decode(words).expect("a command");
    let tag = found.bytes - 1;
    assert_eq!(found, command(tag / 16, tag % 16), "torn slot");
    tag
}

/// Pops until a command is there.
fn pop(consumer: &mut Consumer) -> u64 {
    loop {
        if let Some(words) = consumer.pop() {
            consumer.acquire();
            return check(words);
        }
        thread::yield_now();
    }
}

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 5_000;
    builder.check(model);
}

/// Two producers and three tickets on two slots: the ring is full, the third ticket wraps, tickets in every order.
#[test]
fn full_ring_and_wrap_around() {
    explore(2, || {
        let memory = Memory::new(1);
        let producers: Vec<_> = [2, 1]
            .into_iter()
            .enumerate()
            .map(|(producer, count)| {
                let memory = memory.clone();
                thread::spawn(move || {
                    for number in 0..count {
                        memory.ring().push(&command(producer as u64, number)).expect("pushed");
                    }
                })
            })
            .collect();
        // SAFETY: the memory outlives the consumer; it is the only one.
        let mut consumer = unsafe { Consumer::new(&memory.ring()) };
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(pop(&mut consumer));
            consumer.publish_tail();
        }
        for producer in producers {
            producer.join().expect("producer");
        }
        // None lost, none twice, each producer's in order.
        let of = |producer: u64| -> Vec<u64> { seen.iter().copied().filter(|tag| tag / 16 == producer).collect() };
        assert_eq!((of(0), of(1)), (vec![0, 1], vec![16]));
    });
}

/// One producer round and round: three laps on two slots, the tail published late.
#[test]
fn three_laps() {
    explore(3, || {
        let memory = Memory::new(1);
        let producer = {
            let memory = memory.clone();
            thread::spawn(move || {
                for number in 0..6 {
                    assert_eq!(memory.ring().push(&command(0, number)), Ok(number));
                }
            })
        };
        // SAFETY: the memory outlives the consumer; it is the only one.
        let mut consumer = unsafe { Consumer::new(&memory.ring()) };
        for batch in 0..3 {
            assert_eq!(pop(&mut consumer), batch * 2);
            assert_eq!(pop(&mut consumer), batch * 2 + 1);
            consumer.publish_tail();
        }
        producer.join().expect("producer");
    });
}

/// Two threads push and wait; the proxy completes in one go. Both must end, whoever polls for the other.
#[test]
fn quiet_is_relayed_to_all() {
    explore(2, || {
        let memory = Memory::new(1);
        let producers: Vec<_> = (0..2)
            .map(|producer| {
                let memory = memory.clone();
                thread::spawn(move || {
                    let ticket = memory.ring().push(&command(producer, 0)).expect("pushed");
                    memory.ring().wait(ticket).expect("complete");
                })
            })
            .collect();
        // SAFETY: the memory outlives the consumer; it is the only one.
        let mut consumer = unsafe { Consumer::new(&memory.ring()) };
        pop(&mut consumer);
        consumer.publish_watermark(1);
        pop(&mut consumer);
        consumer.publish_tail();
        consumer.publish_watermark(2);
        for producer in producers {
            producer.join().expect("producer");
        }
    });
}

/// The proxy ends by an error after the first ticket: the wait for it succeeds, the wait for the second gets the status,
/// and so does a push that finds the ring full.
#[test]
fn an_error_ends_every_wait() {
    explore(2, || {
        let memory = Memory::new(1);
        let producer = {
            let memory = memory.clone();
            thread::spawn(move || {
                let ring = memory.ring();
                let first = ring.push(&command(0, 0)).expect("a free slot");
                let second = ring.push(&command(0, 1)).expect("a free slot");
                assert_eq!(ring.wait(first), Ok(()), "a ticket below the watermark is done whatever the status");
                assert_eq!(ring.wait(second), Err(Stop::FABRIC));
                assert_eq!(ring.push(&command(0, 2)), Err(Stop::FABRIC), "full, and nobody frees a slot");
            })
        };
        // SAFETY: the memory outlives the consumer; it is the only one.
        let mut consumer = unsafe { Consumer::new(&memory.ring()) };
        pop(&mut consumer);
        consumer.publish_watermark(1);
        consumer.publish_stop(Stop::FABRIC);
        producer.join().expect("producer");
    });
}

/// The payload is visible behind the command: the producer's fence and the proxy's acquire pair through the slot's words.
#[test]
fn payload_before_command() {
    use cuda_std::memory::{Word, load_relaxed_sys_u64, store_relaxed_sys_u64};
    use kernels::put::{Channel, Put};
    explore(3, || {
        let memory = Memory::new(1);
        let payload = Arc::new(Word::new(0));
        let producer = {
            let (memory, payload) = (memory.clone(), payload.clone());
            thread::spawn(move || {
                store_relaxed_sys_u64(&payload, 77);
                let put = Put {
                    source_region: 1,
                    source_offset: 1,
                    destination_region: 1,
                    destination_offset: 1,
                    bytes: 1,
                    peer: 1,
                };
                let ring = memory.ring();
                Channel::new(&ring).put_nbi(&put).expect("a free slot");
            })
        };
        // SAFETY: the memory outlives the consumer; it is the only one.
        let mut consumer = unsafe { Consumer::new(&memory.ring()) };
        while consumer.pop().is_none() {
            thread::yield_now();
        }
        consumer.acquire();
        assert_eq!(load_relaxed_sys_u64(&payload), 77);
        producer.join().expect("producer");
    });
}
