//! Tests of limits: full or overrun queues, killed peers, operations that a call does not support, read-only memory.

use super::queues::{DirectSide, EVERYTHING};
use super::*;
use crate::inbox::tests::killed_in_put;
use crate::pair::SoftQueuePair;
use efa_queue::{ReceivePiece, request};

const UNSOLICITED: u32 = EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV;

/// Creates two sides that know each other, with registered memory. Also returns local piece, remote address and key.
fn connected(description: &str) -> (Side, Side, ibv_sge, u64, u32) {
    let contexts = cards(description);
    let (mut here, mut there) = (Side::open(contexts[0], 7), Side::open(contexts[1], 9));
    here.faces(contexts[1]);
    there.faces(contexts[0]);
    // The memory is leaked, because the registrations live as long as the process.
    let [ours, theirs] = [0, 1].map(|_| Box::leak(Box::new([0u8; 64])));
    let (from, to) = (here.register(ours, EVERYTHING), there.register(theirs, EVERYTHING));
    // SAFETY: the registrations made above are still valid.
    unsafe {
        let piece = ibv_sge { addr: (*from).addr.expose_provenance() as u64, length: 8, lkey: (*from).lkey };
        (here, there, piece, (*to).addr.expose_provenance() as u64, (*to).rkey)
    }
}

/// A process killed during a delivery to a queue pair does not block the immediates of other peers.
#[test]
fn killed_peer_blocks_no_other_peer() {
    let (here, there, piece, remote, key) = connected("name=fast cards=2 reorder=0");
    // SAFETY: `efadv_create_qp_ex` made the pair.
    let child = killed_in_put(&unsafe { SoftQueuePair::of(there.pair) }.origin.page);
    for round in 0..3 {
        assert_eq!(here.write(&there, &[(round, piece, remote, key, Some(round as u32))]), 0);
        assert_eq!(here.poll(1), [(round, 0, None)]);
        assert_eq!(there.poll(1), [(0, 0, Some(round as u32))]);
    }
    // SAFETY: the process is a child of this one, and the status may be null.
    unsafe { libc::waitpid(child, null_mut(), 0) };
}

/// A completion queue of 64 entries that is not read: writes with immediates complete, and its reader lags by a lap.
#[test]
fn unsolicited_immediates_overrun_queue_that_is_not_read() {
    for (count, found) in [(64, 0..64), (65, 0..0), (127, 0..0), (129, 128..129), (10_000, 0..0)] {
        let (here, there, piece, remote, key) = connected("name=fast cards=2 reorder=0 depth=16");
        for number in 0..count {
            assert_eq!(here.write(&there, &[(number, piece, remote, key, Some(number as u32))]), 0);
            assert_eq!(here.poll(1), [(number, 0, None)], "no write waits for its target's reader");
        }
        let mut seen = Vec::new();
        for _ in 0..100 {
            seen.extend(there.poll_once().into_iter().map(|(_, status, value)| (status, value)));
        }
        if count < 10_000 {
            assert_eq!(seen, found.map(|number| (0, Some(number))).collect::<Vec<_>>(), "{count}");
        } else {
            assert!(seen.len() <= 64, "{} of {count} are found in 64 entries", seen.len());
        }
    }
}

/// `post_send` only posts sends: the union of a write has no address handle.
#[test]
fn operation_is_checked_before_address_handle() {
    let context = cards("name=fast cards=1")[0];
    let side = Side::open(context, 7);
    for (operation, handle) in [(IBV_WR_RDMA_WRITE, 8usize), (99, 8), (IBV_WR_SEND, 0)] {
        // SAFETY: the type has only numbers and pointers, for which zero is a valid value.
        let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
        request.opcode = operation;
        request.wr.ud.ah = std::ptr::without_provenance_mut(handle);
        let mut bad = null_mut();
        // SAFETY: the pair and its context are open, and the request is a local variable.
        let code = unsafe { ((*context).ops.post_send.unwrap())(side.pair, &mut request, &mut bad) };
        assert_eq!((code, bad), (libc::EINVAL, &raw mut request), "operation {operation}");
    }
}

#[test]
fn receives_wait_in_ring_while_page_is_full() {
    let contexts = cards("name=fast cards=2 reorder=0");
    let cap = ibv_qp_cap { max_recv_sge: 3, ..CAP };
    let mut there = DirectSide::of(Side::sized(contexts[1], 9, UNSOLICITED, cap, |_| {}), contexts[0]);
    let mut here = DirectSide::open(contexts[0], contexts[1]);
    assert_eq!(there.receives.num_entries, 32, "eight receives of three pieces");
    let key = there.keys.0;
    // More receives of one piece than the page has space for. The key of the last one is not registered.
    for number in 0..20u16 {
        there.receive(&ReceivePiece::one(
            number,
            there.base + u64::from(number),
            1,
            if number == 19 { key ^ 1 } else { key },
        ));
    }
    for number in 0..19 {
        let words = request::send(&here.head(number, &there, None), here.local(0, 1));
        here.put(&words);
        here.ring();
        assert_eq!(here.complete(), (number, 0, false));
    }
    let mut seen: Vec<_> = (0..20).map(|_| there.complete()).collect();
    seen.sort_unstable();
    let all: Vec<_> = (0..20).map(|number| (number, if number == 19 { 5 } else { 0 }, true)).collect();
    assert_eq!(seen, all);
}

/// The device hands out its completion queue read-only, like a driver.
#[test]
fn completion_queue_can_only_be_read() {
    let contexts = cards("name=fast cards=2 reorder=0");
    let (mut here, there) = (DirectSide::open(contexts[0], contexts[1]), DirectSide::open(contexts[1], contexts[0]));
    let copy = |place: *mut u8, store: bool| {
        let mut byte = 0u8;
        let (local, remote) = (
            libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 },
            libc::iovec { iov_base: place.cast(), iov_len: 1 },
        );
        let pid = std::process::id() as i32;
        // SAFETY: the system checks the address; the byte is a local variable.
        let moved = unsafe {
            if store {
                libc::process_vm_writev(pid, &local, 1, &remote, 1, 0)
            } else {
                libc::process_vm_readv(pid, &local, 1, &remote, 1, 0)
            }
        };
        if moved == 1 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap() }
    };
    assert_eq!((copy(here.entries.buffer, false), copy(here.entries.buffer, true)), (0, libc::EFAULT));
    assert_eq!(copy(here.sends.buffer, true), 0, "requests are written");
    here.write(3, &there, 0, 8, None);
    here.ring();
    assert_eq!(here.complete(), (3, 0, false), "the card writes it");
}

#[test]
fn send_queue_is_rounded_up_to_least_depth() {
    let contexts = cards("name=fast cards=2 reorder=0 min-depth=40");
    let (here, there) = (DirectSide::open(contexts[0], contexts[1]), DirectSide::open(contexts[1], contexts[0]));
    assert_eq!([here.sends.num_entries, there.sends.num_entries], [64; 2]);
    assert_eq!(here.entries.num_entries, 64, "as it was asked for");
}

#[test]
fn part_number_is_that_of_profile() {
    for (description, part) in [
        ("name=p4d no-write", 0xefa0),
        ("name=p5", 0xefa1),
        ("name=fast", 0xefa1),
        ("name=p5en", 0xefa2),
        ("name=p6-b200", 0xefa3),
    ] {
        // SAFETY: the type has only numbers, for which zero is a valid value.
        let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the destination is a local variable.
        assert_eq!(unsafe { ibv_query_device(cards(description)[0], &mut attributes) }, 0);
        assert_eq!((attributes.vendor_id, attributes.vendor_part_id), (0x1d0f, part), "{description}");
    }
}

/// The engine moves arrivals to a completion queue in memory. Senders wait while the engine has no core, because a full
/// inbox then does not imply an overrun.
#[test]
fn senders_wait_for_thread_that_empties_box() {
    let (here, there, piece, remote, key) = connected("name=fast cards=2 reorder=0");
    // SAFETY: `efadv_create_qp_ex` made the pair.
    let page = &unsafe { SoftQueuePair::of(there.pair) }.origin.page;
    assert!(!page.is_drained());
    page.set_drained();
    let arrival = crate::inbox::Arrival::default();
    while page.put(&arrival) {}
    assert_eq!(here.write(&there, &[(1, piece, remote, key, Some(1))]), 0);
    for _ in 0..5 {
        // On a loaded machine the sender's bound may end the wait.
        let not_ready = efa_queue::CompletionStatus::ReceiverNotReady as u32;
        assert!(here.poll_once().iter().all(|(_, status, _)| *status == not_ready));
    }
    assert_eq!(page.take_lost(), 0);
    let contexts = cards("name=fast cards=2");
    let by_thread = DirectSide::open(contexts[0], contexts[1]);
    // SAFETY: `efadv_create_qp_ex` made the pair, which is not destroyed.
    assert!(unsafe { SoftQueuePair::of(by_thread.side.pair) }.origin.page.is_drained());
}
