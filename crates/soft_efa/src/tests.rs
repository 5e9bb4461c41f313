//! Tests of the devices through the functions that libfabric calls: order, keys, depths, peers that are not ready or do
//! not exist.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

use crate::abi::*;
use crate::context::DeviceContext;
use crate::machine::SoftMachine;
use crate::*;
use card_model::MachineSpec;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

mod classic;
mod failures;
mod limits;
mod queues;
mod refused;

/// Description of untimed devices.
const FAST: &str = "name=fast seed=11 reorder=5 depth=16 receives=8";
/// Capacities requested for a queue pair.
const CAP: ibv_qp_cap =
    ibv_qp_cap { max_send_wr: 16, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 32 };
/// Description of slow devices. A MiB takes 21 ms, so the order of completions does not depend on the speed of the
/// test.
const SLOW: &str = "cards=2 line_rate_gbps=0.4 peak_share=1 rate_per_rail_mops=1 one_way_us=10 mtu_bytes=1";

/// Opens all devices of a new machine. Its host number is unique: devices with equal addresses share a wire, and tests
/// run concurrently, in one process or in several.
fn cards(description: &str) -> Vec<*mut ibv_context> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let host = u64::from(std::process::id()) << 32 | u64::from(COUNT.fetch_add(1, Ordering::Relaxed));
    let machine: &SoftMachine = Box::leak(Box::new(SoftMachine::new(&format!("host={host} {description}")).unwrap()));
    machine.devices().iter().map(|device| DeviceContext::open(machine, device, CALLS).unwrap()).collect()
}

/// Only device 0 is slower by the factor: its rates are lower, its latency is higher.
#[test]
fn slow_factor_reduces_figures() {
    let machine = SoftMachine::new(
        "cards=2 slow=4 line_rate_gbps=100 peak_share=1 rate_per_rail_mops=2 one_way_us=10 mtu_bytes=1",
    )
    .unwrap();
    let [slow, usual] = [0, 1].map(|card| machine.figures(card).unwrap());
    assert_eq!((slow.line_rate_gbps, slow.rate_per_rail_mops, slow.one_way_us), (25.0, 0.5, 40.0));
    assert_eq!((usual.line_rate_gbps, usual.rate_per_rail_mops, usual.one_way_us), (100.0, 2.0, 10.0));
    assert!(SoftMachine::new(FAST).unwrap().figures(0).is_none());
}

/// The device must not refer to a file descriptor of another owner, such as standard output. Programs poll the
/// descriptor for asynchronous events, but no such events occur.
#[test]
fn software_nic_has_no_driver_file() {
    for context in cards(FAST) {
        // SAFETY: the context is open.
        let context = unsafe { &*context };
        assert_eq!((context.cmd_fd, context.num_comp_vectors), (-1, 1));
        // SAFETY: descriptors of this process.
        unsafe {
            assert_eq!(libc::fcntl(context.async_fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
            assert_eq!(ibv_get_async_event((&raw const *context).cast_mut(), null_mut()), -1);
        }
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
    }
}

/// A queue pair with the objects that it needs.
struct Side {
    domain: *mut ibv_pd,
    queue: *mut ibv_cq_ex,
    pair: *mut ibv_qp,
    handle: *mut ibv_ah,
    qkey: u32,
}

impl Side {
    fn open(context: *mut ibv_context, qkey: u32) -> Side {
        Side::with(context, qkey, EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV)
    }

    /// Creates a side with these EFA flags.
    fn with(context: *mut ibv_context, qkey: u32, flags: u32) -> Side {
        Side::made(context, qkey, flags, |_| {})
    }

    /// Creates a side, and calls `with` on the queue pair before it is ready.
    fn before(context: *mut ibv_context, qkey: u32, with: impl FnOnce(*mut ibv_qp)) -> Side {
        Side::made(context, qkey, EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV, with)
    }

    fn made(context: *mut ibv_context, qkey: u32, flags: u32, with: impl FnOnce(*mut ibv_qp)) -> Side {
        Side::sized(context, qkey, flags, CAP, with)
    }

    fn sized(
        context: *mut ibv_context,
        qkey: u32,
        flags: u32,
        cap: ibv_qp_cap,
        with: impl FnOnce(*mut ibv_qp),
    ) -> Side {
        // SAFETY: the functions are called as libfabric calls them, here and below: their arguments were made by them,
        // or are zero.
        unsafe {
            let domain = ibv_alloc_pd(context);
            let mut attributes: ibv_cq_init_attr_ex = std::mem::zeroed();
            attributes.cqe = 64;
            let queue = efadv_create_cq(context, &mut attributes, null_mut(), 0);
            let pair = Side::pair_of(domain, queue.cast(), flags, cap);
            with(pair);
            let mut side = Side { domain, queue, pair, handle: null_mut(), qkey }.ready();
            side.faces(context);
            side
        }
    }

    /// Creates a queue pair that completes in `queue`.
    ///
    /// # Safety
    /// The domain and the queue must be valid.
    unsafe fn pair_of(domain: *mut ibv_pd, queue: *mut ibv_cq, flags: u32, cap: ibv_qp_cap) -> *mut ibv_qp {
        // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
        unsafe {
            let mut attributes: ibv_qp_init_attr_ex = std::mem::zeroed();
            (attributes.send_cq, attributes.recv_cq) = (queue, queue);
            (attributes.pd, attributes.qp_type) = (domain, IBV_QPT_DRIVER);
            attributes.cap = cap;
            let efa = &mut efadv_qp_init_attr {
                comp_mask: 0,
                driver_qp_type: EFADV_QP_DRIVER_TYPE_SRD,
                flags: flags as u16,
                sl: 0,
                reserved: 0,
                wr_flags: 0,
            };
            let bytes = size_of::<efadv_qp_init_attr>() as u32;
            let pair = efadv_create_qp_ex((*domain).context, &mut attributes, efa, bytes);
            assert!(!pair.is_null());
            pair
        }
    }

    /// Moves the queue pair to the state in which it sends.
    fn ready(self) -> Side {
        // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
        unsafe {
            for (state, mask) in [
                (IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_QKEY),
                (IBV_QPS_RTR, IBV_QP_STATE),
                (IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_RNR_RETRY),
            ] {
                let mut change: ibv_qp_attr = std::mem::zeroed();
                (change.qp_state, change.qkey, change.rnr_retry) = (state, self.qkey, 1);
                assert_eq!(ibv_modify_qp(self.pair, &mut change, mask), 0);
            }
        }
        self
    }

    /// Directs subsequent requests of this side to device `context`.
    fn faces(&mut self, context: *mut ibv_context) {
        // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
        unsafe {
            let mut address: ibv_ah_attr = std::mem::zeroed();
            assert_eq!(ibv_query_gid(context, 1, 0, &mut address.grh.dgid), 0);
            self.handle = ibv_create_ah(self.domain, &mut address);
        }
    }

    fn number(&self) -> u32 {
        // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
        unsafe { (*self.pair).qp_num }
    }

    fn register(&self, memory: &mut [u8], access: u32) -> *mut ibv_mr {
        // SAFETY: the arguments are valid, as in `Side::sized`; the memory outlives the registration in every test.
        unsafe { ibv_reg_mr(self.domain, memory.as_mut_ptr().cast(), memory.len(), access as i32) }
    }

    /// Posts writes in one session: ID, local piece, remote address and key, immediate. Returns C's error code.
    fn write(&self, to: &Side, writes: &[(u64, ibv_sge, u64, u32, Option<u32>)]) -> i32 {
        // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
        unsafe {
            let pair = ibv_qp_to_qp_ex(self.pair);
            ((*pair).wr_start.unwrap())(pair);
            for (name, piece, address, key, immediate) in writes {
                (*pair).wr_id = *name;
                match immediate {
                    Some(immediate) => ((*pair).wr_rdma_write_imm.unwrap())(pair, *key, *address, *immediate),
                    None => ((*pair).wr_rdma_write.unwrap())(pair, *key, *address),
                }
                ((*pair).wr_set_sge_list.unwrap())(pair, 1, piece);
                ((*pair).wr_set_ud_addr.unwrap())(pair, self.handle, to.number(), to.qkey);
            }
            ((*pair).wr_complete.unwrap())(pair)
        }
    }

    /// Polls until there are `count` completions: ID, EFA status, immediate.
    fn poll(&self, count: usize) -> Vec<(u64, u32, Option<u32>)> {
        let mut found = Vec::new();
        let started = std::time::Instant::now();
        while found.len() < count {
            assert!(started.elapsed().as_secs() < 20, "{found:?}");
            found.extend(self.poll_once());
        }
        found
    }

    /// Returns the available completions.
    fn poll_once(&self) -> Vec<(u64, u32, Option<u32>)> {
        let mut found = Vec::new();
        // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
        unsafe {
            let queue = self.queue;
            let mut code = ((*queue).start_poll.unwrap())(queue, &mut ibv_poll_cq_attr { comp_mask: 0 });
            let started = code == 0;
            while code == 0 {
                let has = ((*queue).read_wc_flags.unwrap())(queue) & IBV_WC_WITH_IMM != 0;
                let immediate = has.then(|| ((*queue).read_imm_data.unwrap())(queue));
                let status = ((*queue).read_vendor_err.unwrap())(queue);
                assert_eq!(status == 0, (*queue).status == IBV_WC_SUCCESS);
                found.push(((*queue).wr_id, status, immediate));
                code = ((*queue).next_poll.unwrap())(queue);
            }
            if started {
                ((*queue).end_poll.unwrap())(queue);
            }
        }
        found
    }
}

#[test]
fn device_list_accepts_null_length() {
    // SAFETY: the arguments are valid, as in `Side::sized`; librdmacm makes this call.
    unsafe {
        let list = ibv_get_device_list(null_mut());
        assert!(!(*list).is_null());
        ibv_free_device_list(list);
    }
}

#[test]
fn host_numbers_determine_nic_addresses() {
    let address = |host| SoftMachine::new(&format!("cards=1 host={host}")).unwrap().devices()[0].gid;
    let known: std::collections::HashSet<_> = (0..64).map(address).collect();
    assert_eq!(known.len(), 64);
}

#[test]
fn software_nics_behave_like_efa_devices() {
    let spec = MachineSpec::parse(FAST).unwrap();
    let context = cards(FAST)[0];
    let (here, there) = (Side::open(context, 7), Side::open(context, 9));
    let (mut source, mut target) = ((0..=255).collect::<Vec<u8>>(), vec![0u8; 256]);
    let from = here.register(&mut source, 0);
    let to = there.register(&mut target, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE);
    let mut readable = vec![0; 64];
    let unwritable = there.register(&mut readable, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    // SAFETY: the registrations made above are still valid.
    let ((lkey, local), (key, remote), refused) =
        unsafe { (((*from).lkey, (*from).addr as u64), ((*to).rkey, (*to).addr as u64), (*unwritable).rkey) };
    let piece = |offset: u64, length: u32| ibv_sge { addr: local + offset, length, lkey };

    // Order: sixteen writes of one doorbell arrive in an order that the seed determines, not in the order posted. Each
    // writes one byte.
    let writes: Vec<_> = (0..16).map(|n| (100 + n, piece(n, 1), remote + n, key, None)).collect();
    assert_eq!(here.write(&there, &writes), 0);
    let mut expected: Vec<u64> = (1..=16).collect();
    expected.sort_by_key(|serial| (spec.delay(*serial), *serial));
    let order: Vec<u64> =
        here.poll(16).iter().map(|(name, status, _)| (name - 99) + u64::from(*status) * 1000).collect();
    assert_eq!(order, expected);
    assert!(order.windows(2).any(|pair| pair[0] > pair[1]), "a later one overtakes an earlier one");
    assert_eq!(target[..16], source[..16]);

    // Keys and ranges: the peer refuses the write, and no byte is written.
    for (what, address, key, bytes) in [
        ("another key", remote, key ^ 1, 4),
        ("beyond the end", remote + 250, key, 8),
        ("before the start", remote - 1, key, 1),
        ("not registered for writes", remote, refused, 4),
    ] {
        assert_eq!(here.write(&there, &[(1, piece(100, bytes), address, key, Some(5))]), 0);
        assert_eq!(here.poll(1), [(1, 7, None)], "{what}");
    }
    let foreign = ibv_sge { addr: local, length: 4, lkey: key ^ 3 };
    assert_eq!(here.write(&there, &[(2, foreign, remote, key, None)]), 0);
    assert_eq!(here.poll(1), [(2, 5, None)], "a local key of nobody's");
    assert_eq!(target[16..], vec![0; 240], "nothing of it has arrived");

    // An immediate needs no receive, and arrives after its bytes.
    assert_eq!(here.write(&there, &[(3, piece(64, 64), remote + 64, key, Some(0xabcd))]), 0);
    assert_eq!(here.poll(1), [(3, 0, None)]);
    assert_eq!((there.poll(1), &target[64..128]), (vec![(0, 0, Some(0xabcd))], &source[64..128]));

    // A queue has a limited depth, and a session posts all of its requests or none.
    let many: Vec<_> = (0..17).map(|n| (n, piece(0, 1), remote, key, None)).collect();
    assert_eq!(here.write(&there, &many), libc::ENOMEM);
    assert_eq!(here.write(&there, &many[..16]), 0);
    assert_eq!(here.write(&there, &many[..1]), libc::ENOMEM);
    assert_eq!(here.poll(16).len(), 16);
    assert_eq!(here.write(&there, &many[..1]), 0);
    here.poll(1);

    // Sends: a send needs a receive. Without one, the peer is not ready. If the receive is too short, the send fails.
    let number = there.number();
    let send = |name: u64, bytes: u32, key: u32| {
        // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
        unsafe {
            let pair = ibv_qp_to_qp_ex(here.pair);
            ((*pair).wr_start.unwrap())(pair);
            (*pair).wr_id = name;
            ((*pair).wr_send.unwrap())(pair);
            ((*pair).wr_set_sge.unwrap())(pair, lkey, local, bytes);
            ((*pair).wr_set_ud_addr.unwrap())(pair, here.handle, number, key);
            assert_eq!(((*pair).wr_complete.unwrap())(pair), 0);
        }
    };
    send(20, 8, there.qkey);
    assert_eq!(here.poll(1), [(20, 10, None)], "not ready");
    let receive = |name: u64, length: u32| {
        // SAFETY: the arguments are valid, as in `Side::sized`; the piece lives during the call.
        unsafe {
            let mut piece = ibv_sge { addr: remote + 200, length, lkey: (*to).lkey };
            let mut request = ibv_recv_wr { wr_id: name, next: null_mut(), sg_list: &mut piece, num_sge: 1 };
            let post = (*context).ops.post_recv.unwrap();
            post(there.pair, &mut request, &mut null_mut())
        }
    };
    assert_eq!(receive(30, 16), 0);
    send(21, 8, there.qkey);
    assert_eq!((here.poll(1), there.poll(1)), (vec![(21, 0, None)], vec![(30, 0, None)]));
    assert_eq!(target[200..208], source[..8]);
    assert_eq!(receive(31, 4), 0);
    send(22, 8, there.qkey);
    assert_eq!((here.poll(1), there.poll(1)), (vec![(22, 11, None)], vec![(31, 11, None)]));
    assert_eq!(
        (0..9).map(|n| receive(n, 4)).filter(|code| *code == libc::ENOMEM).count(),
        1,
        "eight receives, no more"
    );

    // No valid peer: a wrong queue key, and a destroyed queue pair.
    send(23, 8, there.qkey + 1);
    assert_eq!(here.poll(1), [(23, 9, None)]);
    // SAFETY: the arguments are valid, as in `Side::sized`; nothing uses the objects afterwards.
    unsafe {
        assert_eq!(ibv_dereg_mr(to), 0);
        assert_eq!(here.write(&there, &[(24, piece(0, 1), remote, key, None)]), 0);
        assert_eq!(here.poll(1), [(24, 7, None)], "a registration that was taken back");
        assert_eq!(ibv_destroy_cq(there.queue.cast()), libc::EBUSY);
        assert_eq!((ibv_destroy_qp(there.pair), ibv_destroy_cq(there.queue.cast())), (0, 0));
        let pair = ibv_qp_to_qp_ex(here.pair);
        ((*pair).wr_start.unwrap())(pair);
        (*pair).wr_id = 25;
        ((*pair).wr_rdma_read.unwrap())(pair, key, remote);
        ((*pair).wr_set_sge.unwrap())(pair, lkey, local, 1);
        ((*pair).wr_set_ud_addr.unwrap())(pair, here.handle, number, there.qkey);
        assert_eq!(((*pair).wr_complete.unwrap())(pair), 0);
        // A read needs writable local memory. This memory is not, and the device checks that first.
        assert_eq!(here.poll(1), [(25, 5, None)]);
        send(26, 8, there.qkey);
    }
    assert_eq!(here.poll(1), [(26, 9, None)], "a pair that is gone");
}

/// The bytes of a read leave over the wire of the device whose memory is read; the reader's own wire stays free.
#[test]
fn read_occupies_wire_of_responder() {
    let contexts = cards(SLOW);
    let (mut here, mut there) = (Side::open(contexts[0], 7), Side::open(contexts[1], 9));
    here.faces(contexts[1]);
    there.faces(contexts[0]);
    let (mut ours, mut theirs) = (vec![0; 1 << 20], vec![7; 1 << 20]);
    let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    // SAFETY: the registrations made above are still valid.
    let [ours, theirs] = [here.register(&mut ours, access), there.register(&mut theirs, access)]
        .map(|made| unsafe { ((*made).addr as u64, (*made).lkey, (*made).rkey) });
    // SAFETY: the arguments are objects that the library returned, or zero, as in `Side::sized`.
    unsafe {
        let pair = ibv_qp_to_qp_ex(here.pair);
        ((*pair).wr_start.unwrap())(pair);
        (*pair).wr_id = 1;
        ((*pair).wr_rdma_read.unwrap())(pair, theirs.2, theirs.0);
        ((*pair).wr_set_sge.unwrap())(pair, ours.1, ours.0, 1 << 20);
        ((*pair).wr_set_ud_addr.unwrap())(pair, here.handle, there.number(), there.qkey);
        assert_eq!(((*pair).wr_complete.unwrap())(pair), 0);
    }
    let byte = |(addr, lkey, _)| ibv_sge { addr, length: 1, lkey };
    assert_eq!(here.write(&there, &[(2, byte(ours), theirs.0, theirs.2, None)]), 0);
    assert_eq!(there.write(&here, &[(3, byte(theirs), ours.0, ours.2, None)]), 0);
    // The peer's write waits for the wire after the read, so the read completes before it. This side's write does not
    // wait.
    assert_eq!(there.poll(1), [(3, 0, None)]);
    assert_eq!(here.poll_once(), [(2, 0, None), (1, 0, None)]);
}
