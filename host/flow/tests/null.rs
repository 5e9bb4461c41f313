//! Tests over null rails with injected faults.

use crate::{Flow, FlowError, Offer, Region, Target, run};
use ginlab_cuda::{Device, DeviceChoice, MemoryLocation};
use ginlab_fabric::null::NullRail;
use ginlab_fabric::testing::faulty::{FaultyRail, RailFaults};
use ginlab_fabric::{Access, Messages};
use proptest::prelude::*;
use std::rc::Rc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A flow with one region, and its offer.
struct Node<R: Messages> {
    flow: Flow<R>,
    region: Region<R>,
    offer: Offer,
}

fn node<R: Messages>(rails: Vec<R>, bytes: usize, timeout: Duration) -> Node<R> {
    let (device, _) = Device::open(DeviceChoice::Emulated, 0).unwrap();
    let flow = Flow::new(rails, timeout);
    let region = flow.register(device.allocate(MemoryLocation::Host, bytes).unwrap(), Access::ALL).unwrap();
    let offer = flow.offer(&[&region]).unwrap();
    Node { flow, region, offer }
}

fn target<R: Messages>(from: &Node<R>, to: &Node<R>) -> Target {
    Target::new(from.flow.add_peer(&to.offer).unwrap(), &to.offer, 0).unwrap()
}

fn null(faults: RailFaults, timeout: Duration) -> (Node<FaultyRail<NullRail>>, Target) {
    let node = node(vec![FaultyRail::new(NullRail::new(), faults)], 1 << 20, timeout);
    let target = target(&node, &node);
    (node, target)
}

#[test]
fn full_provider_causes_no_error() {
    let faults =
        RailFaults { again_first: 50, again_every: Some(2), delay_polls: 3, reverse: true, ..Default::default() };
    let (node, target) = null(faults, TIMEOUT);
    run([node.flow.clone()], async {
        let writes: Vec<_> = (0..3000).map(|i| node.flow.write_all(&node.region, i, &target, i, 8)).collect();
        for write in writes {
            assert_eq!(write.await, Ok(8));
        }
    })
    .unwrap();
    assert!(node.flow.counters().again > 50);
    assert_eq!(node.flow.counters().rail_transfers, [3000]);
}

#[test]
fn one_failed_transfer_is_one_error() {
    let (node, target) = null(RailFaults { fail_completions: vec![2], ..Default::default() }, TIMEOUT);
    run([node.flow.clone()], async {
        let writes: Vec<_> = (0..3).map(|i| node.flow.write_all(&node.region, i, &target, i, 8)).collect();
        let mut results = Vec::new();
        for write in writes {
            results.push(write.await.map_err(|error| error.to_string()));
        }
        assert_eq!((&results[0], &results[2]), (&Ok(8), &Ok(8)));
        assert!(results[1].as_ref().unwrap_err().contains("scripted fault"), "{results:?}");
        assert_eq!(node.flow.write_all(&node.region, 0, &target, 0, 8).await, Ok(8), "the flow goes on");
    })
    .unwrap();
}

#[test]
fn posts_waiting_for_full_provider_keep_order() {
    for (faults, held) in [(RailFaults { again_first: 3, ..Default::default() }, false), (RailFaults::default(), true)]
    {
        let (node, target) = null(faults, TIMEOUT);
        let order = Rc::new(std::cell::RefCell::new(Vec::new()));
        run([node.flow.clone()], async {
            let hold = held.then(|| node.flow.hold());
            let tasks: Vec<_> = (0..6u64)
                .map(|number| {
                    let write = node.flow.write_all(&node.region, number * 8, &target, number * 8, 8);
                    let order = order.clone();
                    tokio::task::spawn_local(async move {
                        write.await.unwrap();
                        order.borrow_mut().push(number);
                    })
                })
                .collect();
            drop(hold);
            for task in tasks {
                task.await.unwrap();
            }
        })
        .unwrap();
        assert_eq!(*order.borrow(), [0, 1, 2, 3, 4, 5], "held: {held}");
    }
}

#[test]
fn dead_rail_fails_all_operations() {
    let (node, target) = null(RailFaults { dead_from_poll: Some(1), ..Default::default() }, TIMEOUT);
    run([node.flow.clone()], async {
        let write = node.flow.write_all(&node.region, 0, &target, 0, 8);
        let immediate = node.flow.wait_immediate(1, 1);
        for error in [write.await.unwrap_err(), immediate.await.unwrap_err()] {
            assert!(matches!(error, FlowError::Fabric(_)) && error.to_string().contains("poll"), "{error}");
        }
        let late = node.flow.write_all(&node.region, 0, &target, 0, 8).await;
        assert!(late.is_err(), "what comes later ends too");
    })
    .unwrap();
}

#[test]
fn stalled_operation_times_out_with_description() {
    let faults = RailFaults { delay_polls: u64::MAX, ..Default::default() };
    let (node, target) = null(faults, Duration::from_millis(30));
    run([node.flow.clone()], async {
        let error = node.flow.write_all(&node.region, 0, &target, 0, 8).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("a write of 8 B to peer 0, rail null") && text.contains("30ms"), "{text}");
    })
    .unwrap();
    let (node, _) = null(RailFaults::default(), Duration::from_millis(30));
    run([node.flow.clone()], async {
        let text = node.flow.wait_immediate(7, 1).await.unwrap_err().to_string();
        assert!(text.contains("a wait for immediate 7 (0 of 1 arrived)"), "{text}");
    })
    .unwrap();
}

#[test]
fn failed_registration_names_rail_and_size() {
    let (good, mut bad) = (NullRail::new(), FaultyRail::new(NullRail::new(), RailFaults::default()));
    bad.set_faults(RailFaults { refuse_registration: Some(1), ..Default::default() });
    let flow = Flow::new(vec![FaultyRail::new(good, RailFaults::default()), bad], TIMEOUT);
    let (device, _) = Device::open(DeviceChoice::Emulated, 0).unwrap();
    let error =
        flow.register(device.allocate(MemoryLocation::Host, 4096).unwrap(), Access::ALL).unwrap_err().to_string();
    assert!(error.contains("rail null") && error.contains("registration of 4096 B"), "{error}");
    let region = flow.register(device.allocate(MemoryLocation::Host, 4096).unwrap(), Access::ALL).unwrap();
    let offer = flow.offer(&[&region]).unwrap();
    let target = Target::new(flow.add_peer(&offer).unwrap(), &offer, 0).unwrap();
    assert_eq!(run([flow.clone()], flow.write_all(&region, 0, &target, 0, 8)).unwrap().unwrap(), 8);
}

#[test]
fn invalid_operations_are_rejected_before_posting() {
    let (node, target) = null(RailFaults::default(), TIMEOUT);
    let (other, foreign) = null(RailFaults::default(), TIMEOUT);
    drop(other);
    run([node.flow.clone()], async {
        let end = node.region.bytes();
        for (offset, at, bytes) in [(0, 0, end + 1), (end, 0, 1), (0, end, 1), (u64::MAX, 0, 2), (1, u64::MAX, 2)] {
            let error = node.flow.write_all(&node.region, offset, &target, at, bytes).await.unwrap_err();
            assert!(matches!(error, FlowError::Refused(_)), "{error}");
        }
        assert_eq!(node.flow.write_all(&node.region, end, &target, end, 0).await, Ok(0), "nothing is nothing");
        // A target of another flow names a peer by number, which also exists here. A nonexistent region is refused.
        let _ = foreign;
        assert!(Target::new(node.flow.add_peer(&node.offer).unwrap(), &node.offer, 1).is_err());
        let two = Offer { addresses: vec![vec![], vec![]], ..node.offer.clone() };
        assert!(node.flow.add_peer(&two).unwrap_err().to_string().contains("2 rails"));
        let peer = node.flow.add_peer(&node.offer).unwrap();
        let error = node.flow.send(0, peer, &node.region, 0, 8).await.unwrap_err();
        assert!(error.to_string().contains("messages"), "{error}");
        assert_eq!(node.flow.counters().rail_transfers, [0]);
    })
    .unwrap();
}

#[test]
fn held_posts_go_out_together() {
    let (node, target) = null(RailFaults::default(), TIMEOUT);
    run([node.flow.clone()], async {
        let hold = node.flow.hold();
        let writes: Vec<_> = (0..5).map(|i| node.flow.write_all(&node.region, i, &target, i, 8)).collect();
        assert_eq!(node.flow.counters().rail_transfers, [0]);
        drop(hold);
        assert_eq!(node.flow.counters().rail_transfers, [5]);
        for write in writes {
            assert_eq!(write.await, Ok(8));
        }
    })
    .unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Operations are posted, dropped and awaited in any order, over a provider that refuses, reorders and fails. Every
    /// operation must end, and nothing may stay in flight.
    #[test]
    fn every_operation_ends_once(
        steps in prop::collection::vec((0u64..4096, 0u64..64, any::<bool>()), 1..60),
        again_every in prop::option::of(2u64..5), delay_polls in 0u64..4, reverse in any::<bool>(),
        failing in prop::collection::vec(1u64..40, 0..4),
    ) {
        let faults = RailFaults { again_every, delay_polls, reverse, fail_completions: failing.clone(), ..Default::default() };
        let (node, target) = null(faults, TIMEOUT);
        let (mut ended, mut dropped) = (0, 0);
        run([node.flow.clone()], async {
            let mut waiting = Vec::new();
            for (offset, bytes, keep) in &steps {
                let write = node.flow.write_all(&node.region, *offset, &target, *offset, *bytes);
                if *keep { waiting.push(write) } else { dropped += 1 }
            }
            for write in waiting {
                let _ = write.await;
                ended += 1;
            }
            while node.flow.in_flight() > 0 {
                node.flow.progress().unwrap();
            }
        }).unwrap();
        prop_assert_eq!(ended + dropped, steps.len());
    }
}

#[test]
fn failed_incoming_transfer_is_reported() {
    let (node, target) = null(RailFaults { incoming_failures: 3, ..Default::default() }, TIMEOUT);
    run([node.flow.clone()], async {
        for _ in 0..10 {
            assert_eq!(node.flow.write_all(&node.region, 0, &target, 0, 8).await, Ok(8));
        }
    })
    .unwrap();
    assert_eq!((node.flow.failure(), node.flow.incoming().failures), (None, 3));
    // A wait for such a transfer stalls, and its error reports the failure.
    let faults = RailFaults { incoming_failures: 1, ..Default::default() };
    let (node, _) = null(faults, Duration::from_millis(30));
    run([node.flow.clone()], async {
        let text = node.flow.wait_immediate(7, 1).await.unwrap_err().to_string();
        assert!(text.contains("1 failed incoming transfers, the last: rail null: an incoming transfer"), "{text}");
    })
    .unwrap();
}

#[test]
fn deregistration_waits_for_operations_in_flight() {
    let faults = RailFaults { delay_polls: 5, ..Default::default() };
    let (Node { flow, region, offer }, target) = null(faults, TIMEOUT);
    let write = flow.write_all(&region, 0, &target, 0, 8);
    let region = flow.unregister(region).expect_err("a write is posted from it");
    assert_eq!(run([flow.clone()], write).unwrap(), Ok(8));
    let memory = flow.unregister(region).expect("nothing uses it any more");
    drop(offer);
    assert_eq!(flow.register(memory, Access::REMOTE_WRITE).unwrap().bytes(), 1 << 20);
}
