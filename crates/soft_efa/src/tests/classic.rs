//! Tests of the functions that programs without EFA's extensions call: polled queues, notifications, queries.

use super::*;
use std::ffi::{CStr, c_void};
use std::time::{Duration, Instant};

/// A completion queue of `ibv_create_cq`, and the queue pairs of a sender and a receiver that complete there.
struct Classic {
    context: *mut ibv_context,
    queue: *mut ibv_cq,
    sides: [Side; 2],
}

impl Classic {
    fn open(channel: *mut ibv_comp_channel) -> Classic {
        let context = cards(FAST)[0];
        // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
        let queue = unsafe { ibv_create_cq(context, 64, 7 as *mut c_void, channel, 0) };
        assert!(!queue.is_null());
        let sides = [7, 9].map(|qkey| {
            let side = Side::open(context, qkey);
            // SAFETY: the arguments are valid, as in `Side::sized`; the pair has no requests, so its queue can be
            // exchanged.
            unsafe {
                let pair = Side::pair_of(side.domain, queue, EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV, CAP);
                assert_eq!(ibv_destroy_qp(side.pair), 0);
                Side { pair, queue: queue.cast(), ..side }.ready()
            }
        });
        Classic { context, queue, sides }
    }

    /// Sends the bytes of `memory` from the first pair to the second.
    fn send(&self, memory: &mut [u8]) {
        let [from, to] = &self.sides;
        let registered = from.register(memory, IBV_ACCESS_LOCAL_WRITE);
        // SAFETY: the arguments are valid, as in `Side::sized`; the pieces live during the calls.
        unsafe {
            let (addr, lkey, length) = ((*registered).addr as u64, (*registered).lkey, memory.len() as u32);
            let place = to.register(memory, IBV_ACCESS_LOCAL_WRITE);
            let mut piece = ibv_sge { addr, length, lkey: (*place).lkey };
            let mut receive = ibv_recv_wr { wr_id: 30, next: null_mut(), sg_list: &mut piece, num_sge: 1 };
            assert_eq!(((*self.context).ops.post_recv.unwrap())(to.pair, &mut receive, &mut null_mut()), 0);
            let pair = ibv_qp_to_qp_ex(from.pair);
            ((*pair).wr_start.unwrap())(pair);
            (*pair).wr_id = 20;
            ((*pair).wr_send_imm.unwrap())(pair, 0xabcd);
            ((*pair).wr_set_sge.unwrap())(pair, lkey, addr, length);
            ((*pair).wr_set_ud_addr.unwrap())(pair, from.handle, to.number(), to.qkey);
            assert_eq!(((*pair).wr_complete.unwrap())(pair), 0);
        }
    }

    /// Polls until there are `count` completions, at most one per call.
    fn poll(&self, count: usize) -> Vec<ibv_wc> {
        let (mut found, started) = (Vec::new(), Instant::now());
        while found.len() < count {
            assert!(started.elapsed().as_secs() < 20, "{}", found.len());
            // SAFETY: the queue is valid; the type has only numbers.
            unsafe {
                let mut place: ibv_wc = std::mem::zeroed();
                if ((*self.context).ops.poll_cq.unwrap())(self.queue, 1, &mut place) == 1 {
                    found.push(place);
                }
            }
        }
        found
    }
}

/// Returns whether a descriptor becomes readable within the time.
fn is_readable(descriptor: i32, within: Duration) -> bool {
    let mut wait = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: a local variable, and its number.
    unsafe { libc::poll(&raw mut wait, 1, within.as_millis() as i32) == 1 }
}

#[test]
fn classic_queue_returns_completions() {
    let classic = Classic::open(null_mut());
    classic.send(&mut [5; 24]);
    let mut found = classic.poll(2);
    found.sort_by_key(|wc| wc.wr_id);
    let [sent, arrived] = &found[..] else { unreachable!("two completions") };
    assert_eq!((sent.wr_id, sent.status, sent.opcode, sent.wc_flags), (20, IBV_WC_SUCCESS, IBV_WC_SEND, 0));
    assert_eq!((arrived.wr_id, arrived.status, arrived.opcode), (30, IBV_WC_SUCCESS, IBV_WC_RECV));
    assert_eq!((arrived.wc_flags, arrived.imm_data, arrived.byte_len), (IBV_WC_WITH_IMM, 0xabcd, 24));
    assert_eq!((arrived.src_qp, arrived.qp_num), (classic.sides[0].number(), classic.sides[1].number()));
    // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
    unsafe {
        for (entries, vector) in [(0, 0), (64, 1), (64, -1)] {
            assert!(ibv_create_cq(classic.context, entries, null_mut(), null_mut(), vector).is_null());
        }
    }
}

#[test]
fn channel_reports_requested_completion() {
    let context = cards(FAST)[0];
    // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
    unsafe {
        let channel = ibv_create_comp_channel(context);
        let classic = Classic::open(channel);
        let (short, long) = (Duration::from_millis(50), Duration::from_secs(20));
        classic.send(&mut [5; 24]);
        assert!(!is_readable((*channel).fd, short), "no notification was requested");
        classic.poll(2);
        let arm = (*classic.context).ops.req_notify_cq.unwrap();
        assert_eq!((arm(classic.queue, 1), arm(classic.queue, 0)), (libc::EOPNOTSUPP, 0));
        assert!(!is_readable((*channel).fd, short), "nothing has completed");
        for _ in 0..2 {
            classic.send(&mut [5; 24]);
            assert!(is_readable((*channel).fd, long));
            let (mut queue, mut value) = (null_mut(), null_mut());
            assert_eq!(ibv_get_cq_event(channel, &mut queue, &mut value), 0);
            assert_eq!((queue, value), (classic.queue, 7 as *mut c_void));
            ibv_ack_cq_events(queue, 1);
            classic.poll(2);
            assert!(!is_readable((*channel).fd, short), "one notification per request");
            assert_eq!(arm(classic.queue, 0), 0);
        }
        assert_eq!(ibv_destroy_comp_channel(channel), libc::EBUSY);
        for side in &classic.sides {
            assert_eq!(ibv_destroy_qp(side.pair), 0);
        }
        assert_eq!((ibv_destroy_cq(classic.queue), ibv_destroy_comp_channel(channel)), (0, 0));
    }
}

/// The doorbell of a queue in memory also requests a notification: a sequence number, the request, and the number of
/// completions read.
#[test]
fn doorbell_of_queue_in_memory_requests_notification() {
    let context = cards(FAST)[0];
    // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
    unsafe {
        let channel = ibv_create_comp_channel(context);
        let classic = Classic::open(channel);
        let mut memory: efadv_cq_attr = std::mem::zeroed();
        assert_eq!(efadv_query_cq(classic.queue, &mut memory, size_of::<efadv_cq_attr>() as u32), 0);
        let doorbell = &*memory.doorbell.cast::<std::sync::atomic::AtomicU32>();
        let (short, long) = (Duration::from_millis(50), Duration::from_secs(20));
        let (mut queue, mut value) = (null_mut(), null_mut());
        for round in 0..3u32 {
            let request = 1 << 31 | (round & 3) << 29 | (2 * round);
            doorbell.store(request, std::sync::atomic::Ordering::Relaxed);
            assert!(!is_readable((*channel).fd, short), "nothing has completed");
            classic.send(&mut [5; 24]);
            assert!(is_readable((*channel).fd, long));
            assert_eq!(ibv_get_cq_event(channel, &mut queue, &mut value), 0);
            classic.poll(2);
        }
        engine::forget_queue(classic.queue.cast());
    }
}

/// The address of an empty piece is null in UCX.
#[test]
fn inline_send_accepts_empty_piece() {
    let (context, mut memory) = (cards(FAST)[0], [5u8; 8]);
    let (here, there) = (Side::open(context, 7), Side::open(context, 9));
    let place = there.register(&mut memory, IBV_ACCESS_LOCAL_WRITE);
    let data = [6u8; 4];
    let mut pieces = [(std::ptr::null(), 0), (data.as_ptr(), 4)].map(|(from, length)| ibv_sge {
        addr: from.expose_provenance() as u64,
        length,
        lkey: 0,
    });
    // SAFETY: the arguments are valid, as in `Side::sized`; the pieces live during the calls.
    unsafe {
        let mut piece = ibv_sge { addr: (*place).addr as u64, length: 8, lkey: (*place).lkey };
        let mut receive = ibv_recv_wr { wr_id: 30, next: null_mut(), sg_list: &mut piece, num_sge: 1 };
        assert_eq!(((*context).ops.post_recv.unwrap())(there.pair, &mut receive, &mut null_mut()), 0);
        let mut send: ibv_send_wr = std::mem::zeroed();
        (send.sg_list, send.num_sge, send.opcode) = (pieces.as_mut_ptr(), 2, IBV_WR_SEND);
        send.send_flags = IBV_SEND_INLINE;
        send.wr.ud = ibv_send_wr_ud { ah: here.handle, remote_qpn: there.number(), remote_qkey: there.qkey };
        assert_eq!(((*context).ops.post_send.unwrap())(here.pair, &mut send, &mut null_mut()), 0);
    }
    assert_eq!((here.poll(1)[0].1, there.poll(1)[0].1), (0, 0));
    assert_eq!(memory, [6, 6, 6, 6, 5, 5, 5, 5]);
}

/// libefa holds the lock of a queue from the first request of a session to its completion, and takes it to poll for
/// completions of sends.
#[test]
fn session_lock_delays_polls_of_other_threads() {
    let context = cards("name=fast reorder=0 depth=16 receives=8 session-lock")[0];
    let (here, there) = (Side::open(context, 7), Side::open(context, 9));
    let mut memory = [5; 64];
    let region = here.register(&mut memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    // SAFETY: the registrations made above are still valid.
    let (addr, lkey, rkey) = unsafe { ((*region).addr as u64, (*region).lkey, (*region).rkey) };
    assert_eq!(here.write(&there, &[(1, ibv_sge { addr, length: 8, lkey }, addr, rkey, None)]), 0);
    let (queue, context) = (here.queue.expose_provenance(), context.expose_provenance());
    // SAFETY: the arguments are valid, as in `Side::sized`; the poller uses the queue, and this thread the session.
    unsafe {
        let pair = ibv_qp_to_qp_ex(here.pair);
        ((*pair).wr_start.unwrap())(pair);
        let poller = std::thread::spawn(move || {
            let context = std::ptr::with_exposed_provenance::<ibv_context>(context);
            let (mut place, started): (ibv_wc, _) = (std::mem::zeroed(), Instant::now());
            let queue = std::ptr::with_exposed_provenance_mut(queue);
            while ((*context).ops.poll_cq.unwrap())(queue, 1, &mut place) == 0 {}
            started.elapsed()
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!poller.is_finished());
        ((*pair).wr_abort.unwrap())(pair);
        assert!(poller.join().unwrap() < Duration::from_secs(20));
    }
}

#[test]
fn queue_pair_reports_state_and_capacities() {
    let side = Side::open(cards(FAST)[0], 11);
    // SAFETY: the arguments are valid, as in `Side::sized`; the types have only numbers and pointers.
    unsafe {
        let (mut now, mut first): (ibv_qp_attr, ibv_qp_init_attr) = (std::mem::zeroed(), std::mem::zeroed());
        assert_eq!(ibv_query_qp(side.pair, &mut now, IBV_QP_STATE, &mut first), 0);
        assert_eq!((now.qp_state, now.qkey, now.rnr_retry), (IBV_QPS_RTS, 11, 1));
        assert_eq!((now.cap.max_send_wr, first.cap.max_recv_wr), (CAP.max_send_wr, CAP.max_recv_wr));
        assert_eq!((first.send_cq, first.qp_type), (side.queue.cast(), IBV_QPT_DRIVER));
    }
}

#[test]
fn processing_hints_are_accepted() {
    let side = Side::open(cards(FAST)[0], 11);
    // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
    unsafe {
        let efa = efadv_qp_from_ibv_qp_ex(ibv_qp_to_qp_ex(side.pair));
        ((*efa).wr_set_processing_hints.unwrap())(efa, 1);
    }
}

#[test]
fn paths_of_software_nics_are_replaced() {
    let is_character_device = |path: &CStr| {
        // SAFETY: the path is a C string, and the place is a local variable.
        unsafe {
            let mut found: libc::stat = std::mem::zeroed();
            paths::stat(path.as_ptr(), (&raw mut found).cast()) == 0 && found.st_mode & libc::S_IFMT == libc::S_IFCHR
        }
    };
    assert!(is_character_device(c"/dev/infiniband/uverbs3") && is_character_device(c"/dev/null"));
    assert!(!is_character_device(c"/dev/infiniband/uverbs4") && !is_character_device(c"/dev/infiniband/uverbsx"));
    // SAFETY: the arguments are valid, as in `Side::sized`; the paths are C strings.
    unsafe {
        assert_eq!(paths::access(c"/dev/infiniband/uverbs0".as_ptr(), libc::R_OK | libc::W_OK), 0);
        let list = ibv_get_device_list(null_mut());
        let path = c"/sys/class/infiniband/rdmap79s0/../..".as_ptr();
        let mut place = [0; libc::PATH_MAX as usize];
        assert_eq!(paths::__realpath_chk(path, place.as_mut_ptr(), place.len()), place.as_mut_ptr());
        assert!(CStr::from_ptr(place.as_ptr()).to_bytes().ends_with(b"/0000:4f:00.0"));
        let found = paths::realpath(path, null_mut());
        assert!(CStr::from_ptr(found).to_bytes().ends_with(b"/0000:4f:00.0"));
        libc::free(found.cast());
        ibv_free_device_list(list);
    }
}
