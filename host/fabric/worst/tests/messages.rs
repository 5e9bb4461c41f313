//! Tests of messages: each message is matched with a receive, those of one sender in order, and completes at any time.

use super::mailbox::{CHUNK, SLOTS};
use super::*;
use crate::Messages as _;
use proptest::prelude::*;
use std::collections::HashSet;

fn send(node: &mut Node, peer: usize, offset: u64, bytes: u64, token: u64) -> Post {
    // SAFETY: the test studies concurrent changes of the memory.
    unsafe { node.rail.send(&node.region, peer, &Message { offset, bytes, token }) }.unwrap()
}

fn receive(node: &mut Node, offset: u64, bytes: u64, token: u64) {
    // SAFETY: the test studies concurrent changes of the memory.
    assert_eq!(unsafe { node.rail.receive(&node.region, &Message { offset, bytes, token }) }, Ok(Post::Accepted));
}

/// Posts a send until it is accepted.
fn sent(pair: &mut [Node; 2], offset: u64, bytes: u64, token: u64) {
    while send(&mut pair[0], 1, offset, bytes, token) == Post::Again {}
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// The messages of one sender are matched with receives in order, with exactly their bytes.
    #[test]
    fn messages_find_receives_in_order_whatever_their_sizes(
        seed: u64, sizes in prop::collection::vec(prop_oneof![0u64..100, CHUNK - 2..CHUNK + 2, 0..4 * CHUNK], 1..12),
    ) {
        const SLOT: u64 = 4 * CHUNK;
        let mut pair = nodes::<2>(&format!("worst:seed={seed},again=20"), 12 * SLOT as usize);
        bytes_of(&pair[0]).iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 31 + at / 251) as u8 | 1);
        for (number, bytes) in sizes.iter().enumerate() {
            let number = number as u64;
            receive(&mut pair[1], number * SLOT, SLOT, number);
            sent(&mut pair, number * SLOT, *bytes, number);
        }
        let (mut out, mut came) = (HashSet::new(), HashSet::new());
        until(&mut pair, |pair, _, completion| {
            match completion {
                Some(Completion::Done { token }) => assert!(out.insert(token), "{token} twice"),
                Some(Completion::Received { token, bytes }) => {
                    assert!(came.insert(token) && bytes == sizes[token as usize], "{token}: {bytes} B");
                    let range = (token * SLOT) as usize..(token * SLOT + bytes) as usize;
                    assert!(bytes_of(&pair[0])[range.clone()] == bytes_of(&pair[1])[range], "{token}");
                }
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            out.len() == sizes.len() && came.len() == sizes.len()
        });
    }
}

/// Returns the tokens of receives in order of completion, and the first byte of each.
fn received(spec: &str, count: u64) -> Vec<(u64, u8)> {
    let mut pair = nodes::<2>(spec, 1 << 16);
    bytes_of(&pair[0]).iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 16) as u8);
    (0..count).for_each(|number| sent(&mut pair, number * 16, 16, number));
    (0..count).for_each(|number| receive(&mut pair[1], number * 16, 16, number));
    let mut order = Vec::new();
    until(&mut pair, |pair, _, completion| {
        if let Some(Completion::Received { token, .. }) = completion {
            order.push((token, bytes_of(&pair[1])[token as usize * 16]));
        }
        order.len() as u64 == count
    });
    order
}

#[test]
fn completions_are_unordered_and_receives_ordered_on_request() {
    let ordered = received("worst:seed=3", 40);
    assert!(ordered.iter().all(|(token, first)| *token == u64::from(*first)), "{ordered:?}");
    assert!(ordered.windows(2).any(|pair| pair[0].0 > pair[1].0), "{ordered:?}");
    let any = received("worst:seed=3,messages=any", 40);
    assert!(any.iter().any(|(token, first)| *token != u64::from(*first)), "{any:?}");
    let mut all: Vec<u8> = any.iter().map(|(_, first)| *first).collect();
    all.sort_unstable();
    assert_eq!(all, (0..40).collect::<Vec<_>>());
}

#[test]
fn messages_beyond_slots_wait_for_space() {
    let mut pair = nodes::<2>("worst:again=0", 4096);
    let slots = (0..).take_while(|token| send(&mut pair[0], 1, 0, 8, *token) == Post::Accepted).count();
    assert_eq!(slots, SLOTS);
    receive(&mut pair[1], 0, 8, 0);
    assert_eq!(first_failure(&mut pair, 1), None);
    assert_eq!(send(&mut pair[0], 1, 0, 8, 99), Post::Accepted);
}

#[test]
fn message_errors_are_named() {
    let failing = |prepare: &dyn Fn(&mut [Node; 2])| {
        let mut pair = nodes::<2>("worst:seed=2", 1 << 20);
        prepare(&mut pair);
        first_failure(&mut pair, 9).expect("a failure").to_string()
    };
    let text = failing(&|pair| {
        receive(&mut pair[1], 0, 10, 4);
        sent(pair, 0, 11, 1);
    });
    assert!(text.contains("receive (ticket 4) into 10 B") && text.contains("the message has 11 B"), "{text}");
    let text = failing(&|pair| {
        receive(&mut pair[1], 0, 1 << 18, 4);
        sent(pair, 0, 1 << 18, 1);
        bytes_of(&pair[0])[1000] ^= 1;
    });
    assert!(text.contains("send (ticket 1) of 262144 B to peer 1") && text.contains("source rewritten"), "{text}");
    let text = failing(&|pair| {
        receive(&mut pair[1], 0, 10, 4);
        pair[1].rail.cancel(4).unwrap();
        pair[1].rail.cancel(5).unwrap();
    });
    assert!(text.contains("receive (ticket 4)") && text.contains("cancelled"), "{text}");
    // A sender closes its rail during a message.
    let text = failing(&|pair| {
        receive(&mut pair[1], 0, 1 << 18, 4);
        sent(pair, 0, 1 << 18, 1);
        while bytes_of(&pair[1])[..1 << 18].iter().all(|byte| *byte != 0) {
            poll(&mut pair[0]);
            poll(&mut pair[1]);
        }
        pair[0] = node(&WorstSpec::default(), 7, 64);
    });
    assert!(text.contains("receive (ticket 4)") && text.contains("closed in the middle"), "{text}");
    let mut pair = nodes::<2>("worst:again=0", 64);
    let beyond = Message { offset: 60, bytes: 5, token: 0 };
    // SAFETY: all three are refused.
    unsafe {
        assert!(pair[0].rail.send(&pair[0].region, 1, &beyond).is_err());
        assert!(pair[0].rail.send(&pair[0].region, 9, &Message { offset: 0, ..beyond }).is_err());
        assert!(pair[0].rail.receive(&pair[0].region, &beyond).is_err());
    }
    // Opens a rail without messages.
    let mut silent = WorstRail::open(&WorstSpec::default(), Who::default(), false).unwrap();
    silent.insert_peers(&[pair[1].rail.address().unwrap()]).unwrap();
    // SAFETY: the send is refused.
    assert!(unsafe { silent.send(&pair[0].region, 0, &Message { offset: 0, bytes: 8, token: 0 }) }.is_err());
}
