//! Tests of failed and flushed requests in directly accessed queues: each completion has the ID and the operation of
//! its request, and each failure is counted under its operation.

use super::queues::{DirectSide, counter, read, wait};
use super::*;
use crate::pair::SoftQueuePair;
use efa_queue::EfaOperation::{self, Read, Send, Write};
use efa_queue::completion::DecodedCompletion;
use efa_queue::request;

/// Bits above the low 16 of all request IDs: libfabric 2.7 uses addresses as IDs.
const HIGH: u64 = 0x7f12_3456_0000;

fn open(description: &str) -> (DirectSide, DirectSide) {
    let contexts = cards(&format!("{description} cards=2 depth=16"));
    (DirectSide::open(contexts[0], contexts[1]), DirectSide::open(contexts[1], contexts[0]))
}

fn words(here: &DirectSide, there: &DirectSide, operation: EfaOperation, id: u64) -> [u64; 8] {
    let (head, local) = (here.head(HIGH | id, there, None), here.local(0, 8));
    match operation {
        Send => request::send(&head, local),
        Write => request::write(&head, local, there.base, there.keys.1),
        Read => request::read(&head, local, there.base, there.keys.1),
    }
}

/// Writes a request, and rings the doorbell.
fn post(here: &mut DirectSide, there: &DirectSide, operation: EfaOperation, id: u64) {
    let words = words(here, there, operation, id);
    here.put(&words);
    here.ring();
}

/// Waits for the completion of a request. Returns its ID without the high bits, its status and its operation.
fn sent(here: &mut DirectSide) -> (u64, u8, EfaOperation) {
    match wait("a completion", || here.next()) {
        DecodedCompletion::Sent(sent) => (sent.id ^ HIGH, sent.status, sent.operation),
        DecodedCompletion::Arrived(arrived) => panic!("{arrived:?}"),
    }
}

#[test]
fn failed_requests_keep_id_and_operation() {
    type Misuse = fn(&mut DirectSide, &DirectSide, EfaOperation);
    let cases: [(&str, &str, Misuse, u8); 8] = [
        ("injected failure", "fail=1/7", |here, there, operation| post(here, there, operation, 7), 7),
        ("injected error state", "break=1", |here, there, operation| post(here, there, operation, 7), 2),
        (
            "flush after the error state",
            "break=1",
            |here, there, operation| {
                let first = if operation == Read { Write } else { Read };
                post(here, there, first, 1);
                assert_eq!(sent(here), (1, 2, first));
                post(here, there, operation, 7);
            },
            1,
        ),
        (
            "reserved bits",
            "",
            |here, there, operation| {
                let mut words = words(here, there, operation, 7);
                words[2] |= 1 << 40;
                here.put(&words);
                here.ring();
            },
            3,
        ),
        (
            "phase of the previous lap",
            "",
            |here, there, operation| {
                let mut words = words(here, there, operation, 7);
                words[0] ^= 1 << 24;
                here.put(&words);
                here.ring();
            },
            2,
        ),
        (
            "batch that is too large",
            "max-batch=4",
            |here, there, operation| {
                for id in 3..8 {
                    let words = words(here, there, operation, id);
                    here.put(&words);
                }
            },
            2,
        ),
        (
            "more requests than slots",
            "",
            |here, there, operation| {
                let words = words(here, there, operation, 7);
                here.put(&words);
                here.ring_at(17);
            },
            2,
        ),
        (
            "doorbell that decreases",
            "",
            |here, there, operation| {
                for _ in 0..2 {
                    post(here, there, operation, 7);
                    sent(here);
                }
                here.ring_at(1);
            },
            2,
        ),
    ];
    for (what, description, misuse, status) in cases {
        for operation in [Send, Write, Read] {
            let (mut here, there) = open(&format!("name=fast reorder=0 {description}"));
            misuse(&mut here, &there, operation);
            assert_eq!(sent(&mut here), (7, status, operation), "{what}");
        }
    }
}

/// The requests are in flight for a minute of modelled time when the doorbell decreases.
#[test]
fn flushed_flights_keep_id_and_operation() {
    let (mut here, there) =
        open("line_rate_gbps=100 peak_share=1 rate_per_rail_mops=1 one_way_us=60000000 mtu_bytes=1");
    let operations = [Write, Send, Read];
    for (id, operation) in operations.into_iter().enumerate() {
        post(&mut here, &there, operation, id as u64);
    }
    // SAFETY: `efadv_create_qp_ex` made the pair.
    let pair = unsafe { SoftQueuePair::of(here.side.pair) };
    wait("three requests in flight", || (locked(&pair.sender).under_way() == 3).then_some(()));
    here.ring_at(1);
    for (id, operation) in operations.into_iter().enumerate() {
        assert_eq!(sent(&mut here), (id as u64, if id == 0 { 2 } else { 1 }, operation));
    }
}

#[test]
fn failures_count_under_their_operation() {
    let contexts = cards("name=fast reorder=0 cards=2 break=1");
    let mut counters = Vec::new();
    let here = Side::before(contexts[0], 7, |pair| {
        let operations = [
            IBV_QP_ATTACH_COMP_CNTR_OP_SEND,
            IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE,
            IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ,
        ];
        counters = operations.map(|operation| counter(pair, operation, None)).to_vec();
    });
    let (mut here, there) = (DirectSide::of(here, contexts[1]), DirectSide::open(contexts[1], contexts[0]));
    for operation in [Read, Write, Write, Send, Send, Send] {
        post(&mut here, &there, operation, 0);
        sent(&mut here);
    }
    assert_eq!(counters.iter().map(|counter| read(*counter, true)).collect::<Vec<_>>(), [3, 2, 1]);
    assert_eq!(counters.iter().map(|counter| read(*counter, false)).collect::<Vec<_>>(), [0, 0, 0]);
}
