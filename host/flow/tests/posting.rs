//! Tests of how operations become transfers.

use super::{Bench, LONGEST, SOON, SPACE, bench, result};
use crate::{FlowError, Peer, Target};
use ginlab_fabric::{Completion, Transfer};
use ginlab_rails::strategy::Strategy;

fn shape(t: &Transfer) -> (u64, u64, u64, usize, Option<u32>) {
    (t.local_offset, t.remote_offset, t.bytes, t.peer, t.immediate)
}

#[test]
fn transfer_matches_operation() {
    let b = bench(2, SOON);
    let write = b.flow.write_all(&b.region, 10, &b.target, 20, 30);
    let raised = b.flow.write_with_immediate(&b.region, 1, &b.target, 2, 3, 4);
    let on = b.flow.write_on(1, &b.region, 5, &b.target, 6, 7, Some(8));
    let read = b.flow.read_all(&b.region, 11, &b.target, 12, 13);
    assert_eq!(b.flow.in_flight(), 4);
    let writes: Vec<_> = b.rails[0].borrow().written.iter().map(shape).collect();
    assert_eq!(writes, [(10, 20, 30, 7, None), (1, 2, 3, 7, Some(4))]);
    assert_eq!(b.rails[1].borrow().written.iter().map(shape).collect::<Vec<_>>(), [(5, 6, 7, 7, Some(8))]);
    assert_eq!(b.rails[0].borrow().read.iter().map(shape).collect::<Vec<_>>(), [(11, 12, 13, 7, None)]);
    let counters = b.flow.counters();
    assert_eq!((counters.rail_bytes, counters.rail_transfers, counters.again), (vec![46, 7], vec![3, 1], 0));
    b.done([0, 1, 2, 3]);
    assert_eq!([result(write), result(raised), result(on), result(read)], [Ok(30), Ok(3), Ok(7), Ok(13)]);
    assert_eq!(b.flow.in_flight(), 0);
}

#[test]
fn empty_operation_posts_no_transfer() {
    for strategy in [Strategy::Single, Strategy::Split, Strategy::RoundRobin, Strategy::Auto { threshold: 0 }] {
        for rails in 1..4 {
            let b = bench(rails, SOON);
            b.flow.use_rails(rails, strategy);
            let empty = [
                b.flow.write_all(&b.region, SPACE, &b.target, SPACE, 0),
                b.flow.write_on(rails - 1, &b.region, 0, &b.target, 0, 0, None),
                b.flow.read_all(&b.region, 0, &b.target, 0, 0),
            ];
            assert!(empty.iter().all(|operation| operation.is_done()));
            assert_eq!(empty.map(result), [Ok(0), Ok(0), Ok(0)], "{strategy} {rails}");
            // A write with an immediate is sent even if it is empty.
            let raised = b.flow.write_with_immediate(&b.region, 0, &b.target, 0, 0, 9);
            assert_eq!(b.flow.counters().rail_transfers.iter().sum::<u64>(), 1);
            b.rails.iter().for_each(|rail| rail.borrow_mut().completes_after = Some(0));
            assert_eq!(result(raised), Ok(0));
            assert!(matches!(
                result(b.flow.write_all(&b.region, SPACE + 1, &b.target, 0, 0)),
                Err(FlowError::Refused(_))
            ));
        }
    }
}

#[test]
fn strategy_selects_rails() {
    let b = bench(3, SOON);
    let written = |rails: usize, strategy: Strategy, writes: usize, bytes: u64| {
        b.rails.iter().for_each(|rail| rail.borrow_mut().written.clear());
        b.flow.use_rails(rails, strategy);
        (0..writes).for_each(|_| drop(b.write(bytes)));
        b.written()
    };
    assert_eq!(written(3, Strategy::Single, 2, 8), [vec![8, 8], vec![], vec![]]);
    assert_eq!(written(3, Strategy::RoundRobin, 4, 8), [vec![8, 8], vec![8], vec![8]]);
    assert_eq!(written(2, Strategy::RoundRobin, 4, 8), [vec![8, 8], vec![8, 8], vec![]]);
    assert_eq!(written(2, Strategy::Split, 1, 8192), [vec![4096], vec![4096], vec![]]);
    assert_eq!(written(9, Strategy::Split, 1, 12288), [vec![4096], vec![4096], vec![4096]], "as many as there are");
    assert_eq!(written(0, Strategy::Split, 1, 8192), [vec![8192], vec![], vec![]], "one at least");
    // A write longer than the provider's longest transfer is fragmented.
    assert_eq!(written(3, Strategy::Single, 1, 2 * LONGEST + 1), [vec![LONGEST, LONGEST, 1], vec![], vec![]]);
    assert_eq!(b.flow.rails(), 3);
}

#[test]
fn pieces_add_up_and_are_complete_together() {
    for read in [false, true] {
        let b = bench(2, SOON);
        b.flow.use_rails(2, Strategy::Split);
        let operation = match read {
            false => b.flow.write_all(&b.region, 100, &b.target, 200, 12288),
            true => b.flow.read_all(&b.region, 100, &b.target, 200, 12288),
        };
        let posted: Vec<_> = b
            .rails
            .iter()
            .flat_map(|rail| {
                let rail = rail.borrow();
                if read { &rail.read } else { &rail.written }.iter().map(shape).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(posted, [(100, 200, 8192, 7, None), (8292, 8392, 4096, 7, None)], "read: {read}");
        b.done([0]);
        b.flow.progress().unwrap();
        assert!(!operation.is_done());
        b.done([0]);
        assert_eq!(result(operation), Ok(12288));
    }
}

#[test]
fn oversized_single_transfer_is_rejected() {
    let b = bench(2, SOON);
    b.flow.use_rails(2, Strategy::Split);
    let refused = |operation| match result(operation) {
        Err(FlowError::Refused(text)) => text,
        other => panic!("{other:?}"),
    };
    let text = "16385 B in one transfer: at most 16384 B are supported";
    assert_eq!(refused(b.flow.write_with_immediate(&b.region, 0, &b.target, 0, LONGEST + 1, 1)), text);
    assert_eq!(refused(b.flow.write_on(1, &b.region, 0, &b.target, 0, LONGEST + 1, None)), text);
    assert_eq!(refused(b.flow.write_on(2, &b.region, 0, &b.target, 0, 8, None)), "no rail 2: this flow has 2");
    let whole = b.flow.write_with_immediate(&b.region, 0, &b.target, 0, LONGEST, 1);
    let on = b.flow.write_on(1, &b.region, 0, &b.target, 0, LONGEST, None);
    assert_eq!(b.written(), [vec![LONGEST], vec![LONGEST]], "an immediate is not cut");
    b.done(b.tokens(0).into_iter().chain(b.tokens(1)));
    assert_eq!((result(whole), result(on)), (Ok(LONGEST), Ok(LONGEST)));
}

#[test]
fn missing_peers_and_rails_are_rejected() {
    let b = bench(2, SOON);
    let refused =
        |target: &Target, offset, at, bytes| match result(b.flow.write_all(&b.region, offset, target, at, bytes)) {
            Err(FlowError::Refused(text)) => text,
            other => panic!("{other:?}"),
        };
    let text = refused(&b.target, SPACE - 7, 3, 8);
    let expected = "8 B from offset 65529 of 65536 B to offset 3 of peer 0's 65536 B on 2 rails: this flow has 2 rails and \
                    1 peers";
    assert_eq!(text, expected);
    refused(&b.target, 0, SPACE - 7, 8);
    refused(&b.target, u64::MAX, 0, 8);
    refused(&b.target, 0, u64::MAX, 8);
    refused(&Target { peer: Peer(1), ..b.target.clone() }, 0, 0, 8);
    refused(&Target { on_rail: b.target.on_rail[..1].into(), ..b.target.clone() }, 0, 0, 8);
    assert!(b.written().iter().all(Vec::is_empty));
    // A range that ends at the last byte is accepted.
    drop(b.flow.write_all(&b.region, SPACE - 8, &b.target, SPACE - 8, 8));
    assert_eq!(b.written(), [vec![8], vec![]]);
    assert_eq!(b.target.bytes(), SPACE);
    assert!(Target::new(Peer(0), &b.offer, 1).is_err());
}

#[test]
fn posts_after_full_rail_keep_order() {
    let b = bench(1, SOON);
    b.rails[0].borrow_mut().full = true;
    let mut writes: Vec<_> = (1..=3).map(|bytes| b.write(bytes)).collect();
    writes.push(b.flow.read_all(&b.region, 0, &b.target, 0, 4));
    assert!(b.tokens(0).is_empty());
    // Only the first write was offered to the full rail. The others are queued after it.
    assert_eq!(b.flow.counters().again, 1);
    b.flow.progress().unwrap();
    assert_eq!((b.flow.counters().again, b.flow.counters().rail_transfers[0]), (2, 0));
    b.rails[0].borrow_mut().full = false;
    b.flow.progress().unwrap();
    assert_eq!((b.tokens(0), b.rails[0].borrow().read[0].token), (vec![0, 1, 2], 3));
    let counters = b.flow.counters();
    assert_eq!((counters.rail_bytes[0], counters.rail_transfers[0]), (10, 4));
    b.done(0..4);
    assert_eq!(writes.into_iter().map(result).collect::<Vec<_>>(), [Ok(1), Ok(2), Ok(3), Ok(4)]);
}

#[test]
fn held_posts_share_doorbell_per_sixteen() {
    let b = bench(1, SOON);
    let hold = b.flow.hold();
    let inner = b.flow.hold();
    (0..20).for_each(|_| drop(b.write(8)));
    drop(inner);
    b.flow.progress().unwrap();
    assert!(b.tokens(0).is_empty(), "still held");
    drop(hold);
    let rung: Vec<_> =
        b.rails[0].borrow().written.iter().enumerate().filter(|(_, t)| !t.more).map(|(at, _)| at).collect();
    assert_eq!((b.tokens(0).len(), rung), (20, vec![15, 19]));
    let hold = b.flow.hold();
    (0..20).for_each(|_| drop(b.flow.read_all(&b.region, 0, &b.target, 0, 8)));
    drop(hold);
    let rung: Vec<_> = b.rails[0].borrow().read.iter().enumerate().filter(|(_, t)| !t.more).map(|(at, _)| at).collect();
    assert_eq!(rung, [15, 19]);
}

#[test]
fn failed_post_fails_its_operation() {
    let b = bench(1, SOON);
    b.rails[0].borrow_mut().breaks_after = Some(1);
    let good = b.write(8);
    let bad = b.write(8);
    assert!(bad.is_done());
    assert!(result(bad).unwrap_err().to_string().contains("rail 0: post failed"));
    // A queued write fails in the same way, and the pieces queued after it are still posted.
    let hold = b.flow.hold();
    let (bad, send) = (b.write(8), b.flow.send(0, Peer(0), &b.region, 0, 8));
    drop(hold);
    assert!(result(bad).unwrap_err().to_string().contains("post failed"));
    assert_eq!(b.rails[0].borrow().sent.len(), 1);
    let token = b.rails[0].borrow().sent[0].1.token;
    b.done([0, token]);
    assert_eq!((result(good), result(send)), (Ok(8), Ok(8)));
    assert_eq!(b.flow.failure(), None);
}

#[test]
fn messages_name_rail_and_peer() {
    let b = bench(2, SOON);
    let second = b.flow.add_peer(&b.offer).unwrap();
    let send = b.flow.send(1, second, &b.region, 10, 20);
    let room = b.flow.recv(0, &b.region, 30, 40);
    let sent: Vec<_> = b.rails[1].borrow().sent.iter().map(|(peer, m)| (*peer, m.offset, m.bytes, m.token)).collect();
    assert_eq!(sent, [(8, 10, 20, 0)]);
    let received: Vec<_> = b.rails[0].borrow().received.iter().map(|m| (m.offset, m.bytes, m.token)).collect();
    assert_eq!(received, [(30, 40, 1)]);
    // A receive does not count as bytes sent.
    assert_eq!((b.flow.counters().rail_bytes, b.flow.counters().rail_transfers), (vec![0, 20], vec![1, 1]));
    b.ready([Completion::Done { token: 0 }, Completion::Received { token: 1, bytes: 33 }]);
    assert_eq!((result(send), result(room)), (Ok(20), Ok(33)));
    assert_eq!(
        result(b.flow.send(2, second, &b.region, 0, 1)),
        Err(FlowError::Refused("no rail 2: this flow has 2".into()))
    );
    assert_eq!(result(b.flow.recv(2, &b.region, 0, 1)), Err(FlowError::Refused("no rail 2: this flow has 2".into())));
    assert_eq!(result(b.flow.send(0, Peer(2), &b.region, 0, 1)), Err(FlowError::Refused("no peer 2".into())));
    // Messages are held like writes.
    let hold = b.flow.hold();
    let (_send, _room) = (b.flow.send(1, second, &b.region, 10, 20), b.flow.recv(0, &b.region, 30, 40));
    assert_eq!((b.rails[1].borrow().sent.len(), b.rails[0].borrow().received.len()), (1, 1));
    drop(hold);
    assert_eq!((b.rails[1].borrow().sent.len(), b.rails[0].borrow().received.len()), (2, 2));
    finish(&b);
}

/// Completes all posted operations, so that dropping the flow does not wait for them.
fn finish(b: &Bench) {
    let tokens: Vec<u64> = (0..8).collect();
    b.done(tokens);
    b.flow.progress().unwrap();
}
