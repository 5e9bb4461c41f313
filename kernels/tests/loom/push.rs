//! Pushes: full ring, wrap-around, space, payload.

use super::by_hand::{self, RingFault};
use super::scenarios::{Account, SCENARIOS, Scenario};
use super::{Cast, Memory, NEVER_ENDS, command, explore, fails, passes, pop};
use cuda_std::memory::{Word, load_relaxed_sys_u64, store_relaxed_sys_u64};
use kernels::command::PARITY;
use kernels::ring::{Ring, Status};
use loom::sync::Arc;
use loom::thread;

/// Smallest form of a scenario of the seeded orders: one push by each of its first two lanes, each of which is a
/// thread.
fn lanes_of_a_warp(cast: Cast, scenario: Scenario) {
    explore(2, move || {
        let memories: Vec<_> =
            (0..scenario.rings).map(|_| Memory::with(scenario.log2_capacity.min(1), u64::MAX)).collect();
        let lanes: Vec<u32> = scenario.producers().take(2).collect();
        let producers: Vec<_> = lanes
            .iter()
            .map(|&lane| {
                let memory = memories[scenario.ring(lane)].clone();
                thread::spawn(move || cast.push(&mut memory.ring(), u64::from(lane) + 1).expect("pushed"))
            })
            .collect();
        let mut account = Account::new(scenario, lanes.clone());
        for (number, memory) in memories.iter().enumerate() {
            let mut proxy = cast.proxy(memory);
            for _ in lanes.iter().filter(|lane| scenario.ring(**lane) == number) {
                account.seen(number, pop(&mut *proxy) as u32 - 1, 0);
                proxy.publish_tail();
            }
            assert_eq!(proxy.pop(), None, "{}: a command too many", scenario.name);
        }
        for producer in producers {
            producer.join().expect("producer");
        }
        assert!(account.is_complete(1), "{}", scenario.name);
    });
}

#[test]
fn lanes_of_warp_pass() {
    for scenario in SCENARIOS {
        lanes_of_a_warp(Cast::Product, scenario);
    }
}

/// Two producers and three commands on two slots: the ring is full, the third command wraps around, and tickets are
/// taken in every order.
fn wrap_around(cast: Cast) {
    explore(2, move || {
        let memory = Memory::new();
        let producers = [&[10, 11][..], &[20]].map(|tags| {
            let memory = memory.clone();
            thread::spawn(move || {
                let mut ring = memory.ring();
                for tag in tags {
                    cast.push(&mut ring, *tag).expect("pushed");
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
        // No command is lost or duplicated, and the commands of each producer are in order.
        assert!([[10, 11, 20], [10, 20, 11], [20, 10, 11]].contains(&[seen[0], seen[1], seen[2]]), "order {seen:?}");
        assert_eq!(proxy.pop(), None, "a command too many");
    });
}

/// One producer wraps around and relays the tail to the device. The other may use only that copy, and takes a slot
/// about which it has no other information.
fn relayed_tail(cast: Cast) {
    explore(cast.preemptions(), move || {
        let memory = Memory::new();
        let producers = [&[10, 11, 12][..], &[20]].map(|tags| {
            let memory = memory.clone();
            thread::spawn(move || {
                let mut ring = memory.ring();
                for tag in tags {
                    cast.push(&mut ring, *tag).expect("pushed");
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

/// Two producers wait for space in a full ring: one polls for both, then hands the role to the other.
fn full_ring(cast: Cast) {
    explore(cast.preemptions(), move || {
        let memory = Memory::new();
        for tag in [1, 2] {
            cast.push(&mut memory.ring(), tag).expect("a free slot");
        }
        let producers = [3, 4].map(|tag| {
            let memory = memory.clone();
            thread::spawn(move || cast.push(&mut memory.ring(), tag).expect("pushed"))
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

/// One producer runs three laps on two slots, and the tail is published late.
fn laps(cast: Cast) {
    explore(3, move || {
        let memory = Memory::new();
        let producer = {
            let memory = memory.clone();
            thread::spawn(move || {
                let mut ring = memory.ring();
                for number in 0..6 {
                    assert_eq!(cast.push(&mut ring, number + 1), Ok(number));
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

/// The payload is visible after the command, because the fences of the producer and the proxy synchronize through the
/// slot's words.
fn payload(cast: Cast) {
    explore(3, move || {
        let memory = Memory::new();
        let payload = Arc::new(Word::new(0));
        let producer = {
            let (memory, payload) = (memory.clone(), payload.clone());
            thread::spawn(move || {
                store_relaxed_sys_u64(&payload, 77);
                cast.put(&mut memory.ring(), 1).expect("a free slot");
            })
        };
        let mut proxy = cast.proxy(&memory);
        pop(&mut *proxy);
        proxy.acquire();
        assert_eq!(load_relaxed_sys_u64(&payload), 77, "payload");
        producer.join().expect("producer");
    });
}

/// Emulates the push of a full warp with two lanes. Each lane stores the other's command, and the payload of each is
/// visible after its command. (The product's code cannot run here, because a warp is a single lane under loom.
/// tests/ptx.rs checks the barrier in its PTX.)
fn payload_of_another_lane(cast: Cast) {
    let Cast::ByHand(fault) = cast else { return };
    explore(2, move || {
        let memory = Memory::new();
        let words: Arc<[[Word; 2]; 2]> = Arc::new(std::array::from_fn(|_| [Word::new(0), Word::new(0)]));
        let lanes = [0usize, 1].map(|lane| {
            let (memory, words) = (memory.clone(), words.clone());
            thread::spawn(move || {
                let [payload, here] = &words[lane];
                store_relaxed_sys_u64(payload, 77);
                by_hand::push_for_other(&memory.ring(), 1 - lane as u64, here, &words[1 - lane][1], fault);
            })
        });
        let mut proxy = cast.proxy(&memory);
        pop(&mut *proxy);
        proxy.acquire();
        assert_eq!(load_relaxed_sys_u64(&words[0][0]), 77, "payload");
        for lane in lanes {
            lane.join().expect("lane");
        }
    });
}

/// The memory returns an older word once more, as write-combining memory may. The proxy takes the words that it has
/// checked, and does not read them again.
#[test]
fn consumed_command_is_checked_command() {
    explore(3, || {
        let memory = Memory::new();
        let writer = {
            let memory = memory.clone();
            thread::spawn(move || {
                let words = command(7).encode().map(|word| word | PARITY);
                let slot = &memory.slots[..2];
                let last = &slot[1].1;
                for (word, value) in [&slot[0].0, &slot[0].1, &slot[1].0, last].into_iter().zip(words) {
                    store_relaxed_sys_u64(word, value);
                }
                store_relaxed_sys_u64(last, 0);
                store_relaxed_sys_u64(last, words[3]);
            })
        };
        let mut proxy = Cast::Product.proxy(&memory);
        assert_eq!(pop(&mut *proxy), 7);
        writer.join().expect("writer");
    });
}

/// The ring has one slot, so every push waits for the preceding push of either producer.
fn one_slot(cast: Cast) {
    explore(cast.preemptions(), move || {
        let memory = Memory::with(0, u64::MAX);
        let producers = [&[10, 11][..], &[20]].map(|tags| {
            let memory = memory.clone();
            thread::spawn(move || {
                let mut ring = memory.ring();
                for tag in tags {
                    cast.push(&mut ring, *tag).expect("pushed");
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
        assert!([[10, 11, 20], [10, 20, 11], [20, 10, 11]].contains(&[seen[0], seen[1], seen[2]]), "order {seen:?}");
    });
}

/// The watermark also implies free slots. A producer that has waited for its ticket takes the other producer's slot
/// without loading the tail, which the proxy never publishes here.
fn watermark_shows_space(cast: Cast) {
    explore(2, move || {
        let memory = Memory::new();
        let other = {
            let memory = memory.clone();
            thread::spawn(move || cast.push(&mut memory.ring(), 10).expect("a free slot"))
        };
        let producer = {
            let memory = memory.clone();
            thread::spawn(move || {
                let mut ring = memory.ring();
                cast.push(&mut ring, 20).expect("a free slot");
                cast.wait(&mut ring, 1).expect("complete");
                assert_eq!(cast.push(&mut ring, 21), Ok(2), "a free slot");
            })
        };
        let mut proxy = cast.proxy(&memory);
        let mut seen = [pop(&mut *proxy), pop(&mut *proxy)];
        proxy.publish_watermark(2);
        seen.sort();
        assert_eq!((seen, pop(&mut *proxy)), ([10, 20], 21));
        for thread in [other.join().map(drop), producer.join()] {
            thread.expect("producer");
        }
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
fn payload_of_another_lane_passes() {
    payload_of_another_lane(Cast::ByHand(None));
}

#[test]
fn one_slot_passes() {
    passes(one_slot);
}

#[test]
fn watermark_shows_space_passes() {
    passes(watermark_shows_space);
}

#[test]
fn every_variant_of_study_passes() {
    for cast in [Cast::Warp, Cast::Element, Cast::Released] {
        for scenario in [relayed_tail, full_ring, laps, one_slot] {
            scenario(cast);
        }
    }
}

/// The ring is full, and the proxy ends: every push that waits for space returns the status.
#[test]
fn error_ends_every_push() {
    explore(2, || {
        let memory = Memory::new();
        for tag in [1, 2] {
            Cast::Product.push(&mut memory.ring(), tag).expect("a free slot");
        }
        let producers = [3, 4].map(|tag| {
            let memory = memory.clone();
            thread::spawn(move || assert_eq!(Cast::Product.push(&mut memory.ring(), tag), Err(Status::REFUSED)))
        });
        Cast::Product.proxy(&memory).publish_end(0, Status::REFUSED);
        for producer in producers {
            producer.join().expect("producer");
        }
    });
}

/// A full ring has no proxy. The producer that times out first also ends the wait of the other, which would otherwise
/// be unlimited.
#[test]
fn deadline_of_one_push_ends_all() {
    explore(2, || {
        let memory = Memory::new();
        for tag in [1, 2] {
            Cast::Product.push(&mut memory.ring(), tag).expect("a free slot");
        }
        let producers = [1, u64::MAX].map(|timeout_ns| {
            let memory = memory.clone();
            thread::spawn(move || {
                let mut ring = Ring { timeout_ns, ..memory.ring() };
                assert_eq!(ring.push(&command(3)), Err(Status::DEADLINE));
            })
        });
        for producer in producers {
            producer.join().expect("producer");
        }
    });
}

#[test]
fn producer_faults_are_detected() {
    fails(payload, RingFault::NoFence, "payload");
    fails(payload_of_another_lane, RingFault::NoWarpBarrier, "payload");
    fails(wrap_around, RingFault::NoSpaceCheck, NEVER_ENDS);
    fails(laps, RingFault::WordWithoutParity, NEVER_ENDS);
    fails(relayed_tail, RingFault::TailCacheRelaxed, NEVER_ENDS);
    fails(relayed_tail, RingFault::TailRelayRelaxed, NEVER_ENDS);
    fails(full_ring, RingFault::RoleKept, NEVER_ENDS);
    fails(one_slot, RingFault::NoSpaceCheck, NEVER_ENDS);
    fails(one_slot, RingFault::SpaceCountedTwice, NEVER_ENDS);
    fails(laps, RingFault::SpaceCountedTwice, NEVER_ENDS);
}

#[test]
fn proxy_faults_are_detected() {
    fails(payload, RingFault::NoAcquire, "payload");
    fails(wrap_around, RingFault::LastWordUnchecked, "torn slot");
    fails(wrap_around, RingFault::LapForgotten, "order");
    fails(wrap_around, RingFault::TailBeforeRead, "torn slot");
    fails(wrap_around, RingFault::TailRelaxed, NEVER_ENDS);
    fails(watermark_shows_space, RingFault::WatermarkRelaxed, NEVER_ENDS);
}
