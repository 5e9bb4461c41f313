//! Tests of how operations and flows end.

use super::{AMPLE, Bench, SPACE, Woken, bench, look, result};
use crate::{FlowError, Peer, Target};
use ginlab_fabric::testing::scripted::NO_ADDRESS;
use ginlab_fabric::{Completion, FabricError, Rail};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

fn failed(token: Option<u64>, text: &str) -> Completion {
    let (rail, operation, text) = (String::new(), "it".to_owned(), text.to_owned());
    Completion::Failed { token, error: Box::new(FabricError { rail, operation, code: 5, text, hint: String::new() }) }
}

#[test]
fn only_last_completion_wakes_task() {
    let b = bench(1, AMPLE);
    let (mut first, mut second) = (b.write(1), b.write(2));
    let (mine, other) = (Arc::new(Woken::default()), Arc::new(Woken::default()));
    assert_eq!(look(&mut first, &mine), Poll::Pending);
    // A later waker replaces an earlier one.
    assert_eq!(look(&mut first, &other), Poll::Pending);
    assert_eq!(look(&mut second, &mine), Poll::Pending);
    b.done([0]);
    b.flow.progress().unwrap();
    assert_eq!((mine.times(), other.times()), (0, 1));
    assert_eq!(look(&mut first, &other), Poll::Ready(Ok(1)));
    // A completion that the future's own poll processes wakes no task.
    b.done([1]);
    assert_eq!(look(&mut second, &mine), Poll::Ready(Ok(2)));
    assert_eq!((mine.times(), b.flow.in_flight()), (0, 0));
    // A completion with an unknown token is ignored.
    b.done([77]);
    b.flow.progress().unwrap();
}

#[test]
fn poll_ends_early_for_runnable_task() {
    let b = bench(1, AMPLE);
    b.flow.poll_at_most(5);
    let (mut first, mut second) = (b.write(1), b.write(2));
    let woken = Arc::new(Woken::default());
    assert_eq!(look(&mut first, &woken), Poll::Pending);
    assert_eq!(b.rails[0].borrow().polls, 5);
    b.done([0]);
    assert_eq!(look(&mut second, &woken), Poll::Pending);
    assert_eq!((b.rails[0].borrow().polls, woken.times()), (6, 1));
    b.done([1]);
    assert_eq!(look(&mut second, &woken), Poll::Ready(Ok(2)));
    assert_eq!(look(&mut first, &woken), Poll::Ready(Ok(1)));
    assert_eq!(b.rails[0].borrow().polls, 7, "a result that is there needs no poll");
}

#[test]
fn first_error_of_operation_is_returned() {
    let b = bench(1, AMPLE);
    let write = b.flow.write_all(&b.region, 0, &b.target, 0, 3 * super::LONGEST);
    b.ready([failed(Some(0), "first"), failed(Some(0), "second")]);
    b.flow.progress().unwrap();
    assert!(!write.is_done(), "a piece is still out");
    b.done([0]);
    assert!(result(write).unwrap_err().to_string().contains("first"));
    assert_eq!(b.flow.failure(), None, "the flow goes on");
}

#[test]
fn operation_completes_with_last_fragment() {
    let b = bench(1, AMPLE);
    let woken = Arc::new(Woken::default());
    let mut write = b.flow.write_all(&b.region, 0, &b.target, 0, 2 * super::LONGEST);
    assert_eq!(look(&mut write, &woken), Poll::Pending);
    b.done([0]);
    b.flow.progress().unwrap();
    assert_eq!((woken.times(), b.flow.in_flight()), (0, 1), "a piece is still out");
    // No future waits for the write, but the NIC may still use its memory.
    drop(write);
    assert_eq!(b.flow.in_flight(), 1);
    let abandoned = b.flow.write_all(&b.region, 0, &b.target, 0, 2 * super::LONGEST);
    drop(abandoned);
    b.done([1]);
    b.flow.progress().unwrap();
    assert_eq!(b.flow.in_flight(), 2, "one piece of each is still out");
    b.done([0, 1]);
    b.flow.progress().unwrap();
    assert_eq!((woken.times(), b.flow.in_flight()), (0, 0));
}

#[test]
fn dead_rail_ends_flow_and_operations() {
    let b = bench(2, Duration::from_millis(1));
    let woken = Arc::new(Woken::default());
    let (mut write, mut wait) = (b.write(8), b.flow.wait_immediate(1, 1));
    b.rails[1].borrow_mut().full = true;
    let mut unposted = b.flow.write_on(1, &b.region, 0, &b.target, 0, 8, None);
    assert_eq!(look(&mut write, &woken), Poll::Pending);
    assert_eq!(look(&mut unposted, &woken), Poll::Pending);
    assert!(look(&mut wait, &woken).is_pending());
    b.rails[0].borrow_mut().dead = true;
    assert!(b.flow.progress().unwrap_err().to_string().contains("rail 0: poll failed"));
    assert_eq!(woken.times(), 3, "every task");
    assert!(write.is_done() && unposted.is_done());
    for operation in [write, unposted, b.write(8), b.flow.recv(0, &b.region, 0, 8)] {
        assert!(result(operation).unwrap_err().to_string().contains("rail 0: poll failed"));
    }
    assert!(result(wait).unwrap_err().to_string().contains("rail 0: poll failed"));
    assert!(b.flow.progress().is_err() && b.flow.failure().is_some());
    // A posted operation keeps its region until its completion, even though its future has ended.
    assert_eq!(b.flow.in_flight(), 1);
    assert!(b.flow.remove_peer(Peer(0)).is_ok(), "there is nothing to wait for");
}

#[test]
fn dead_rail_keeps_completions_of_other_rails() {
    let b = bench(2, Duration::from_millis(1));
    let write = b.flow.write_on(1, &b.region, 0, &b.target, 0, 8, None);
    b.rails[0].borrow_mut().dead = true;
    b.rails[1].borrow_mut().ready.push(Completion::Done { token: 0 });
    assert!(b.flow.progress().unwrap_err().to_string().contains("rail 0: poll failed"));
    assert_eq!(result(write), Ok(8));
}

#[test]
fn immediates_are_taken_by_number() {
    let b = bench(1, AMPLE);
    let woken = Arc::new(Woken::default());
    let mut two = b.flow.wait_immediate(7, 2);
    assert!(look(&mut two, &woken).is_pending());
    b.ready([7, 8].map(|value| Completion::Immediate { value }));
    b.flow.progress().unwrap();
    assert_eq!(woken.times(), 1);
    assert!(look(&mut two, &woken).is_pending(), "one of two");
    b.ready([7, 7].map(|value| Completion::Immediate { value }));
    assert_eq!(look(&mut two, &woken), Poll::Ready(Ok(())));
    assert_eq!([7, 8, 9].map(|value| b.flow.take_immediates(value)), [1, 1, 0]);
    assert_eq!(result(b.flow.wait_immediate(9, 0)), Ok(()), "none are always there");
}

#[test]
fn immediate_wakes_waiting_task() {
    let b = bench(1, AMPLE);
    b.flow.poll_at_most(5);
    let (mut wait, mut write) = (b.flow.wait_immediate(7, 1), b.write(1));
    let woken = Arc::new(Woken::default());
    assert!(look(&mut wait, &woken).is_pending());
    let before = b.rails[0].borrow().polls;
    b.ready([Completion::Immediate { value: 7 }]);
    assert!(look(&mut write, &woken).is_pending());
    assert_eq!((b.rails[0].borrow().polls, woken.times()), (before + 1, 1));
    b.done([0]);
    assert_eq!(look(&mut write, &woken), Poll::Ready(Ok(1)));
}

/// Two checks without progress between them are a stall if the timeout is zero.
#[test]
fn stall_requires_two_polls_without_progress() {
    let b = bench(2, Duration::ZERO);
    let check = || b.flow.0.borrow_mut().check_stall();
    for _ in 0..3 {
        assert_eq!(check(), Ok(()), "nothing is in flight");
    }
    // Idle time does not count towards a stall.
    let first = b.write(5);
    assert_eq!(check(), Ok(()));
    b.done([0]);
    assert_eq!(result(first), Ok(5));
    let (first, second) = (b.write(5), b.write(6));
    assert_eq!(check(), Ok(()));
    b.done(b.tokens(0).split_off(1));
    b.flow.progress().unwrap();
    assert!(first.is_done() && second.is_done());
    drop((first, second));
    let mut wait = b.flow.wait_immediate(3, 4);
    assert!(look(&mut wait, &Arc::default()).is_pending());
    assert_eq!(check(), Ok(()), "the first look at a wait");
    b.ready([Completion::Immediate { value: 1 }]);
    b.flow.progress().unwrap();
    assert!(look(&mut wait, &Arc::default()).is_pending());
    assert_eq!(check(), Ok(()), "an immediate is a move");
    let text = check().unwrap_err().to_string();
    assert_eq!(
        text,
        "no operation completed within 0ns: a wait for immediate 3 (0 of 4 arrived), rail rail 0 with 0 posts that it \
         has not accepted, rail rail 1 with 0 posts that it has not accepted"
    );
    assert!(matches!(b.flow.failure(), Some(FlowError::Stalled { .. })), "and the flow has ended");
}

#[test]
fn stalled_operation_fails_only_after_timeout() {
    let patient = bench(1, AMPLE);
    let write = patient.write(8);
    assert!((0..3).all(|_| patient.flow.0.borrow_mut().check_stall() == Ok(())));
    patient.done([0]);
    assert_eq!(result(write), Ok(8));

    let hasty = bench(1, Duration::ZERO);
    let write = hasty.write(8);
    assert_eq!(hasty.flow.0.borrow_mut().check_stall(), Ok(()));
    assert!(hasty.flow.0.borrow_mut().check_stall().is_err());
    assert!(matches!(result(write), Err(FlowError::Stalled { .. })));
}

#[test]
fn driver_checks_clock_automatically() {
    let b = bench(1, Duration::ZERO);
    b.flow.poll_at_most(u32::MAX);
    let write = b.write(8);
    b.flow.0.borrow_mut().turns(10);
    assert_eq!(b.rails[0].borrow().polls, 10);
    b.flow.0.borrow_mut().turns(3 * 256);
    assert!(matches!(result(write), Err(FlowError::Stalled { .. })));
    assert!(b.rails[0].borrow().polls <= 2 * 256, "it ends with the flow");
}

#[test]
fn driver_yields_to_woken_task() {
    let b = bench(1, AMPLE);
    b.flow.poll_at_most(20);
    let mut write = b.write(8);
    let woken = Arc::new(Woken::default());
    assert!(look(&mut write, &woken).is_pending());
    let before = b.rails[0].borrow().polls;
    b.done([0]);
    b.flow.0.borrow_mut().turns(100);
    assert_eq!((b.rails[0].borrow().polls, woken.times()), (before + 1, 1));
    b.flow.0.borrow_mut().turns(100);
    assert_eq!(b.rails[0].borrow().polls, before + 21, "no more than it may");
    assert_eq!(look(&mut write, &woken), Poll::Ready(Ok(8)));
}

#[test]
fn description_names_unreachable_peer() {
    let b = bench(1, Duration::from_millis(1));
    let describe = || b.flow.0.borrow().describe();
    b.rails[0].borrow_mut().full = true;
    // A receive has no peer that the message could name.
    let room = b.flow.recv(0, &b.region, 0, 3);
    assert!(!describe().contains("does not answer"), "{}", describe());
    drop(room);
    let write = b.write(1);
    assert!(describe().contains("peer 0 does not answer"), "{}", describe());
    b.rails[0].borrow_mut().full = false;
    b.flow.progress().unwrap();
    b.done(b.tokens(0));
    b.flow.progress().unwrap();
    assert!(describe().starts_with("nothing in flight"), "{}", describe());
    b.rails[0].borrow_mut().full = true;
    let later = b.write(1);
    assert!(!describe().contains("does not answer"), "the rail has taken something before: {}", describe());
    assert_eq!((result(write), later.is_done()), (Ok(1), false));
}

#[test]
fn messages_describe_operations_in_flight() {
    let b = bench(1, Duration::from_millis(1));
    assert_eq!(
        format!("{:?}", b.flow.0.borrow()),
        "nothing in flight, rail rail 0 with 0 posts that it has not accepted"
    );
    let write = b.flow.write_all(&b.region, 0, &b.target, 0, 2 * super::LONGEST);
    let others = (
        b.flow.read_all(&b.region, 0, &b.target, 0, 1),
        b.flow.send(0, Peer(0), &b.region, 0, 2),
        b.flow.recv(0, &b.region, 0, 3),
    );
    let four = "a write of 32768 B to peer 0 (2 fragments left), a read of 1 B from peer 0, a send of 2 B to peer 0, a \
                receive into 3 B";
    let rail = "rail rail 0 with 0 posts that it has not accepted";
    let whose = "a receive accepts the first message that arrives, even if a process outside this job sent it";
    assert_eq!(b.flow.state(), format!("{four}, {whose}, {rail}"));
    let mut waits: Vec<_> = (0..4).map(|value| b.flow.wait_immediate(value, 1)).collect();
    assert!(waits.iter_mut().all(|wait| look(wait, &Arc::default()).is_pending()));
    assert!(b.flow.0.borrow().describe().ends_with(&format!("a wait for immediate 3 (0 of 1 arrived), {rail}")));
    waits.push(b.flow.wait_immediate(4, 1));
    waits.push(b.flow.wait_immediate(5, 1));
    assert!(waits.iter_mut().all(|wait| look(wait, &Arc::default()).is_pending()));
    b.rails[0].borrow_mut().full = true;
    let more = (b.write(1), b.write(1));
    let text = b.flow.0.borrow().describe();
    assert!(text.starts_with(&format!("{four}, and 2 more, {whose}, a wait for immediate 0 ")), "{text}");
    assert!(
        text.ends_with("(0 of 1 arrived), and 2 more waits, rail rail 0 with 2 posts that it has not accepted"),
        "{text}"
    );
    drop((write, others, more));
}

#[test]
fn peer_is_removed_from_all_rails_despite_error() {
    let b = bench(3, Duration::from_millis(1));
    let peer = b.flow.add_peer(&b.offer).unwrap();
    b.rails[1].borrow_mut().keeps_peers = true;
    let removed = |rail: usize| b.rails[rail].borrow_mut().removed.split_off(0);
    let error = b.flow.remove_peer(peer).unwrap_err().to_string();
    assert!(error.contains("rail 1: remove_peer failed"), "{error}");
    assert_eq!([removed(0), removed(1), removed(2)], [vec![8], vec![8], vec![8]]);
    assert_eq!(b.flow.remove_peer(peer), Err(FlowError::Refused("no peer 1".into())));
    // A peer that the last rail refuses is removed from the others, and the refusal is reported.
    let half = crate::Offer { addresses: vec![vec![], vec![], NO_ADDRESS.to_vec()], ..b.offer.clone() };
    let error = b.flow.add_peer(&half).unwrap_err().to_string();
    assert!(error.contains("rail 2: add_peer failed: this is no address"), "{error}");
    assert_eq!([removed(0), removed(1), removed(2)], [vec![9], vec![9], vec![]]);
}

#[test]
fn peers_come_and_go() {
    let b = bench(2, Duration::from_millis(1));
    let one = crate::Offer { addresses: vec![vec![]], ..b.offer.clone() };
    assert_eq!(b.flow.add_peer(&one), Err(FlowError::Refused("the peer has 1 rails, but this flow has 2".into())));
    // A peer that one rail refuses is not added to any.
    let half = crate::Offer { addresses: vec![Vec::new(), NO_ADDRESS.to_vec()], ..b.offer.clone() };
    assert!(b.flow.add_peer(&half).unwrap_err().to_string().contains("rail 1: add_peer failed: this is no address"));
    assert_eq!(
        b.rails.iter().map(|rail| rail.borrow_mut().removed.split_off(0)).collect::<Vec<_>>(),
        [vec![8], vec![]]
    );
    b.rails[1].borrow_mut().peers += 1;
    let (second, third) = (b.flow.add_peer(&b.offer).unwrap(), b.flow.add_peer(&b.offer).unwrap());
    assert_eq!((second, third), (Peer(1), Peer(2)));
    let to = |peer| Target::new(peer, &b.offer, 0).unwrap();
    let write = b.flow.write_all(&b.region, 0, &to(second), 0, 8);
    assert_eq!(b.rails[0].borrow().written[0].peer, 9);
    assert_eq!(b.flow.remove_peer(second), Err(FlowError::Refused("peer 1 has 1 operations in flight".into())));
    b.flow.remove_peer(third).unwrap();
    assert_eq!(b.rails.iter().map(|rail| rail.borrow().removed.clone()).collect::<Vec<_>>(), [vec![10], vec![10]]);
    for gone in [third, Peer(3), Peer(usize::MAX)] {
        assert_eq!(b.flow.remove_peer(gone), Err(FlowError::Refused(format!("no peer {}", gone.0))));
    }
    assert!(matches!(result(b.flow.write_all(&b.region, 0, &to(third), 0, 8)), Err(FlowError::Refused(_))));
    b.done([0]);
    // The result has not been taken, but no operation is in flight.
    b.flow.progress().unwrap();
    b.flow.remove_peer(second).unwrap();
    assert_eq!(result(write), Ok(8));
    let refused = result(b.flow.write_all(&b.region, 0, &to(second), 0, 8)).unwrap_err().to_string();
    assert!(refused.ends_with("2 rails and 1 peers"), "{refused}");
}

#[test]
fn rail_is_handed_over_only_while_idle() {
    let b = bench(2, Duration::from_millis(1));
    let given = |target: &Target| {
        b.flow.on_idle_rail(&b.region, target, |rail, _, peer, remote| {
            Ok((Rail::name(rail).to_owned(), peer, remote.bytes))
        })
    };
    assert_eq!(given(&b.target).map(|(_, peer, bytes)| (peer, bytes)), Ok((7, SPACE)));
    let nobody = Target { peer: Peer(1), ..b.target.clone() };
    assert_eq!(given(&nobody), Err(FlowError::Refused("no peer 1".into())));
    let write = b.write(8);
    let idle = FlowError::Refused("a rail can be handed over only while nothing is in flight on it".into());
    assert_eq!(given(&b.target), Err(idle));
    b.done([0]);
    assert_eq!(result(write), Ok(8));
}

// --- dropping --------------------------------------------------------------------------------------------------------

#[test]
fn dropped_operation_keeps_region_until_completion() {
    let b = bench(1, AMPLE);
    drop(b.write(8));
    assert_eq!(b.flow.in_flight(), 1);
    b.done([0]);
    b.flow.progress().unwrap();
    assert_eq!(b.flow.in_flight(), 0);
    // A complete operation leaves no state when it is dropped.
    let write = b.write(8);
    b.done([0]);
    b.flow.progress().unwrap();
    assert_eq!(b.flow.in_flight(), 1, "its result");
    drop(write);
    assert_eq!(b.flow.in_flight(), 0);
    assert!(b.rails[0].borrow().cancelled.is_empty(), "a write is not taken back");
}

#[test]
fn dropped_receive_is_cancelled() {
    let b = bench(1, AMPLE);
    drop(b.flow.recv(0, &b.region, 0, 8));
    assert_eq!((b.rails[0].borrow().cancelled.clone(), b.flow.in_flight()), (vec![0], 1));
    b.ready([failed(Some(0), "cancelled")]);
    b.flow.progress().unwrap();
    assert_eq!(b.flow.in_flight(), 0);
    // A receive that was never posted is removed from the queue. The next one in the queue is not affected.
    b.rails[0].borrow_mut().full = true;
    let (gone, kept) = (b.flow.recv(0, &b.region, 0, 8), b.flow.recv(0, &b.region, 8, 8));
    drop(gone);
    assert_eq!((b.rails[0].borrow().cancelled.len(), b.flow.in_flight()), (1, 1));
    b.rails[0].borrow_mut().full = false;
    b.flow.progress().unwrap();
    assert_eq!(b.rails[0].borrow().received.iter().map(|message| message.offset).collect::<Vec<_>>(), [0, 8]);
    b.ready([Completion::Received { token: 1, bytes: 5 }]);
    assert_eq!(result(kept), Ok(5));
}

/// Drops the flow and its region. Returns what was closed, in order.
fn end(b: Bench) -> Vec<String> {
    let Bench { flow, region, closed, .. } = b;
    drop((region, flow));
    closed.take()
}

/// Order of closing. Peers can access the region, so it is closed after its rail.
const WHOLE: [&str; 2] = ["rail 0", "region of rail 0"];

#[test]
fn only_busy_flow_waits_on_close() {
    let b = bench(1, AMPLE);
    let script = b.rails[0].clone();
    assert_eq!(end(b), WHOLE);
    assert_eq!(script.borrow().polls, 0);

    let b = bench(1, AMPLE);
    let script = b.rails[0].clone();
    drop(b.write(8));
    script.borrow_mut().completes_after = Some(50);
    assert_eq!(end(b), WHOLE);
    assert_eq!(script.borrow().polls, 51);

    // Dropping does not wait for operations that were never posted.
    let b = bench(1, AMPLE);
    let script = b.rails[0].clone();
    script.borrow_mut().full = true;
    drop(b.write(8));
    assert_eq!(end(b), WHOLE);
    assert_eq!(script.borrow().polls, 0);
}

#[test]
fn incomplete_operations_are_leaked_to_provider() {
    let b = bench(1, Duration::from_millis(2));
    let script = b.rails[0].clone();
    drop(b.write(8));
    assert_eq!(end(b), [""; 0], "neither registration nor rail");
    assert!(script.borrow().polls > 0);
}

#[test]
fn failed_flow_waits_for_other_rails() {
    let b = bench(2, AMPLE);
    let scripts = b.rails.clone();
    drop(b.flow.write_on(1, &b.region, 0, &b.target, 0, 8, None));
    scripts[0].borrow_mut().dead = true;
    assert!(b.flow.progress().is_err());
    scripts[1].borrow_mut().completes_after = Some(10);
    let closed = end(b);
    assert_eq!(closed.len(), 4, "{closed:?}");
    assert_eq!(scripts[1].borrow().polls, 11);
}
