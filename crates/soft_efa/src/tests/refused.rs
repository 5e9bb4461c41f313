//! Tests of refused requests, which have no visible effect at the peer.

use super::*;

/// Flags of a device on which libfabric requires a receive for each immediate.
const SOLICITED: u32 = 0;

/// Two sides, each with memory registered for all uses.
struct Two {
    here: Side,
    there: Side,
    /// Address and local key of this side's memory.
    ours: (u64, u32),
    theirs: (u64, u32),
    /// Local key of the second side's memory.
    filled: u32,
    /// The registered memory of both sides.
    memory: [Vec<u8>; 2],
}

const EVERYTHING: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

impl Two {
    /// Creates both sides. Only the first has an address handle of the other one's device.
    fn open(flags: u32) -> Two {
        let contexts = cards("name=fast cards=2 reorder=0");
        let (mut here, there) = (Side::open(contexts[0], 7), Side::with(contexts[1], 9, flags));
        here.faces(contexts[1]);
        let mut memory = [vec![7; 64], vec![0; 64]];
        let [mine, its] = &mut memory;
        // SAFETY: the registrations made above are still valid.
        let [(ours, lkey, _), (theirs, filled, rkey)] =
            [here.register(mine, EVERYTHING), there.register(its, EVERYTHING)]
                .map(|made| unsafe { ((*made).addr as u64, (*made).lkey, (*made).rkey) });
        Two { here, there, ours: (ours, lkey), theirs: (theirs, rkey), filled, memory }
    }

    /// Returns the first bytes of the first side's memory.
    fn piece(&self, bytes: u32) -> ibv_sge {
        ibv_sge { addr: self.ours.0, length: bytes, lkey: self.ours.1 }
    }

    fn write(&self, key: u32, immediate: Option<u32>) -> u32 {
        assert_eq!(self.here.write(&self.there, &[(1, self.piece(8), self.theirs.0, key, immediate)]), 0);
        self.here.poll(1)[0].1
    }

    /// Posts a read or a send of 8 bytes. Returns its status.
    fn post(&self, begin: impl FnOnce(*mut ibv_qp_ex)) -> u32 {
        // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
        unsafe {
            let pair = ibv_qp_to_qp_ex(self.here.pair);
            ((*pair).wr_start.unwrap())(pair);
            (*pair).wr_id = 2;
            begin(pair);
            ((*pair).wr_set_sge.unwrap())(pair, self.ours.1, self.ours.0, 8);
            ((*pair).wr_set_ud_addr.unwrap())(pair, self.here.handle, self.there.number(), self.there.qkey);
            assert_eq!(((*pair).wr_complete.unwrap())(pair), 0);
        }
        self.here.poll(1)[0].1
    }

    fn read(&self) -> u32 {
        // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
        self.post(|pair| unsafe { ((*pair).wr_rdma_read.unwrap())(pair, self.theirs.1, self.theirs.0) })
    }

    fn send(&self, immediate: u32) -> u32 {
        // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
        self.post(|pair| unsafe { ((*pair).wr_send_imm.unwrap())(pair, immediate) })
    }

    /// Posts a receive on the second side.
    fn receive(&self, name: u64) {
        // SAFETY: the arguments are valid, as in `Side::sized`; the piece lives during the call.
        unsafe {
            let mut piece = ibv_sge { addr: self.theirs.0 + 32, length: 16, lkey: self.filled };
            let mut request = ibv_recv_wr { wr_id: name, next: null_mut(), sg_list: &mut piece, num_sge: 1 };
            let post = (*(*self.there.pair).context).ops.post_recv.unwrap();
            assert_eq!(post(self.there.pair, &mut request, &mut null_mut()), 0);
        }
    }

    /// Returns the ID and opcode of the second side's next completion.
    fn arrived(&self) -> (u64, u32) {
        // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
        unsafe {
            let queue = self.there.queue;
            assert_eq!(((*queue).start_poll.unwrap())(queue, &mut ibv_poll_cq_attr { comp_mask: 0 }), 0);
            let found = ((*queue).wr_id, ((*queue).read_opcode.unwrap())(queue));
            ((*queue).end_poll.unwrap())(queue);
            found
        }
    }
}

/// EFA status 14: a device allows reads and writes only by peers for which it has an address handle. Messages need
/// none.
#[test]
fn unknown_peer_cannot_read_or_write() {
    let mut two = Two::open(EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV);
    // SAFETY: here and below, the arguments are objects that the library returned, or zero, as in `Side::sized`.
    let first = unsafe { (*two.here.pair).context };
    assert_eq!((two.write(two.theirs.1, Some(5)), two.read()), (14, 14));
    assert!(two.there.poll_once().is_empty() && two.memory[1] == vec![0; 64], "nothing of it is seen");
    two.receive(1);
    assert_eq!(two.send(5), 0);
    assert_eq!(two.there.poll(1), [(1, 0, Some(5))]);
    two.there.faces(first);
    assert_eq!((two.write(two.theirs.1, Some(6)), two.read()), (0, 0));
    assert_eq!(two.there.poll(1), [(0, 0, Some(6))]);
    // SAFETY: nothing uses the handle afterwards.
    unsafe { ibv_destroy_ah(two.there.handle) };
    assert_eq!((two.write(two.theirs.1, None), two.read()), (14, 14), "a handle that is gone");
}

#[test]
fn rejected_write_consumes_no_receive() {
    let mut two = Two::open(SOLICITED);
    // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
    two.there.faces(unsafe { (*two.here.pair).context });
    two.receive(1);
    assert_eq!(two.write(two.theirs.1 ^ 1, Some(5)), 7);
    assert!(two.there.poll_once().is_empty(), "the receive is still there");
    assert_eq!(two.write(two.theirs.1, Some(6)), 0);
    assert_eq!(two.arrived(), (1, IBV_WC_RECV_RDMA_WITH_IMM));
    assert_eq!(two.write(two.theirs.1, Some(7)), 10, "no receive is left");
    two.receive(2);
    assert_eq!(two.send(8), 0);
    assert_eq!(two.arrived(), (2, IBV_WC_RECV), "a message is one, with an immediate too");
}

/// Requests that rdma-core's provider refuses before they reach the device.
#[test]
fn oversized_request_is_rejected_on_post() {
    let two = Two::open(EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV);
    let posted = |begin: fn(&Two, *mut ibv_qp_ex), set: fn(&Two, *mut ibv_qp_ex)| {
        // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
        unsafe {
            let pair = ibv_qp_to_qp_ex(two.here.pair);
            ((*pair).wr_start.unwrap())(pair);
            begin(&two, pair);
            set(&two, pair);
            ((*pair).wr_set_ud_addr.unwrap())(pair, two.here.handle, two.there.number(), two.there.qkey);
            ((*pair).wr_complete.unwrap())(pair)
        }
    };
    // SAFETY: the arguments are valid, as in `Side::sized`; the lists live during the calls.
    let write =
        |two: &Two, pair: *mut ibv_qp_ex| unsafe { ((*pair).wr_rdma_write.unwrap())(pair, two.theirs.1, two.theirs.0) };
    // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
    let send = |_: &Two, pair: *mut ibv_qp_ex| unsafe { ((*pair).wr_send.unwrap())(pair) };
    // SAFETY: the arguments are valid, as in `Side::sized`; the list lives during the call.
    let two_pieces = |two: &Two, pair: *mut ibv_qp_ex| unsafe {
        ((*pair).wr_set_sge_list.unwrap())(pair, 2, [two.piece(4), two.piece(4)].as_ptr())
    };
    // SAFETY: the arguments are valid, as in `Side::sized`; the bytes live during the call.
    let inline = |two: &Two, pair: *mut ibv_qp_ex| unsafe {
        ((*pair).wr_set_inline_data.unwrap())(pair, two.memory[0].as_ptr().cast_mut().cast(), 8)
    };
    assert_eq!((posted(write, two_pieces), posted(write, inline)), (libc::EINVAL, libc::EINVAL));
    assert!(two.here.poll_once().is_empty(), "nothing was posted");
    assert_eq!((posted(send, two_pieces), posted(send, inline)), (0, 0));
    assert_eq!(two.here.poll(2).len(), 2);
}

#[test]
fn queue_pair_accepts_requests_only_when_ready() {
    let two = Two::open(EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV);
    // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`. No function sets a
    // previous state, so the test does.
    unsafe { (*two.here.pair).state = IBV_QPS_RTR };
    let write = (1, two.piece(8), two.theirs.0, two.theirs.1, None);
    assert_eq!(two.here.write(&two.there, &[write]), libc::EINVAL);
    // SAFETY: the arguments are valid, as in `Side::sized`; no other thread uses the pair.
    unsafe { (*two.here.pair).state = IBV_QPS_RESET };
    // SAFETY: the arguments are valid, as in `Side::sized`; the request lives during the call.
    unsafe {
        let mut request = ibv_recv_wr { wr_id: 1, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
        let post = (*(*two.here.pair).context).ops.post_recv.unwrap();
        assert_eq!(post(two.here.pair, &mut request, &mut null_mut()), libc::EINVAL);
        (*two.here.pair).state = IBV_QPS_RTS;
    }
}

#[test]
fn keys_and_handles_are_of_one_protection_domain() {
    let mut two = Two::open(EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV);
    // SAFETY: here and below, the arguments are objects that the library returned, or zero, as in `Side::sized`.
    let (first, second) = unsafe { ((*two.here.pair).context, (*two.there.pair).context) };
    two.there.faces(first);
    assert_eq!(two.write(two.theirs.1, None), 0);
    // Other queue pairs of the same devices, each with its own domain.
    let (mut mine, its) = (Side::open(first, 7), Side::open(second, 9));
    mine.faces(second);
    let mut memory = [vec![0; 8], vec![0; 8]];
    let [ours, theirs] = &mut memory;
    // SAFETY: the registrations made above are still valid.
    let (lkey, rkey) = unsafe { ((*mine.register(ours, EVERYTHING)).lkey, (*its.register(theirs, EVERYTHING)).rkey) };
    let (from, to) = (memory[0].as_ptr().expose_provenance() as u64, memory[1].as_ptr().expose_provenance() as u64);
    assert_eq!(
        two.here.write(&two.there, &[(1, ibv_sge { addr: from, length: 8, lkey }, two.theirs.0, two.theirs.1, None)]),
        0
    );
    assert_eq!(two.here.poll(1)[0].1, 5, "a local key of another domain");
    assert_eq!(two.here.write(&two.there, &[(1, two.piece(8), to, rkey, None)]), 0);
    assert_eq!(two.here.poll(1)[0].1, 7, "a remote key of another domain");
    two.here.handle = mine.handle;
    assert_eq!(two.write(two.theirs.1, None), 4, "an address handle of another domain");
}

#[test]
fn registrations_fail_from_configured_number_on() {
    let context = cards("name=fast cards=1 refuse=2")[0];
    let memory = [0u8; 64];
    // SAFETY: an open context; the memory outlives its registrations, which are not used.
    let codes = unsafe {
        let domain = ibv_alloc_pd(context);
        [(); 3].map(|()| {
            let made = ibv_reg_mr(domain, memory.as_ptr().cast_mut().cast(), 64, EVERYTHING as i32);
            if made.is_null() { std::io::Error::last_os_error().raw_os_error() } else { None }
        })
    };
    assert_eq!(codes, [None, Some(libc::ENOMEM), Some(libc::ENOMEM)]);
}

#[test]
fn memory_outside_process_is_not_registered() {
    let two = Two::open(EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV);
    // SAFETY: the arguments are valid, as in `Side::sized`; nothing is read or written.
    let made = unsafe { ibv_reg_mr(two.here.domain, std::ptr::without_provenance_mut(4096), 4096, EVERYTHING as i32) };
    assert!(made.is_null() && std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT));
}
