//! Tests of direct queue access: requests written into the ring, completions read from memory, counters, and misuse.

use super::*;
use efa_queue::completion::{self, DecodedCompletion};
use efa_queue::request::{self, Head, To};
use efa_queue::{Local, ReceivePiece, rules};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

pub const EVERYTHING: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

/// A side whose queues the test writes and reads directly.
pub struct DirectSide {
    pub side: Side,
    pub sends: efadv_wq_attr,
    pub receives: efadv_wq_attr,
    pub entries: efadv_cq_attr,
    pub posted: u64,
    pub received: u64,
    pub read: u64,
    pub handle: u16,
    pub memory: Vec<u8>,
    pub base: u64,
    pub keys: (u32, u32),
}

/// Waits until `look` returns a value, at most 20 s.
pub fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::yield_now();
    }
}

impl DirectSide {
    pub fn open(context: *mut ibv_context, peer: *mut ibv_context) -> DirectSide {
        DirectSide::of(Side::open(context, 7), peer)
    }

    pub fn of(mut side: Side, peer: *mut ibv_context) -> DirectSide {
        side.faces(peer);
        let mut memory = vec![0; 4096];
        let made = side.register(&mut memory, EVERYTHING);
        // SAFETY: the functions are called as a program calls them, here and below; their arguments were made by them,
        // or are local.
        unsafe {
            let mut ah = efadv_ah_attr { comp_mask: 0, ahn: 0, reserved: [0; 6] };
            assert_eq!(efadv_query_ah(side.handle, &mut ah, size_of::<efadv_ah_attr>() as u32), 0);
            let (mut sends, mut receives): (efadv_wq_attr, efadv_wq_attr) = std::mem::zeroed();
            let bytes = size_of::<efadv_wq_attr>() as u32;
            assert_eq!(efadv_query_qp_wqs(side.pair, &mut sends, &mut receives, bytes), 0);
            let mut entries: efadv_cq_attr = std::mem::zeroed();
            assert_eq!(efadv_query_cq(side.queue.cast(), &mut entries, size_of::<efadv_cq_attr>() as u32), 0);
            let (base, keys) = ((*made).addr.expose_provenance() as u64, ((*made).lkey, (*made).rkey));
            let (posted, received, read) = (0, 0, 0);
            DirectSide { side, sends, receives, entries, posted, received, read, handle: ah.ahn, memory, base, keys }
        }
    }

    pub fn head(&self, id: u64, to: &DirectSide, immediate: Option<u32>) -> Head {
        let to = To { handle: self.handle, pair: to.side.number() as u16, key: to.side.qkey };
        Head { id, phase: rules::send_phase(self.posted, self.sends.num_entries), to, immediate, hints: 0 }
    }

    pub fn local(&self, offset: u64, length: u32) -> Local {
        Local { address: self.base + offset, length, key: self.keys.0 }
    }

    /// Writes a request into the next slot, without ringing the doorbell.
    pub fn put(&mut self, words: &[u64]) {
        assert_eq!(words.len() * 8, self.sends.entry_size as usize);
        let slot = rules::slot(self.posted, self.sends.num_entries) as usize;
        // SAFETY: the slot is within the ring.
        let place = unsafe { self.sends.buffer.add(slot * words.len() * 8).cast::<AtomicU64>() };
        // The first word is last, and makes the others visible: the engine reads a request that is not rung for.
        for (index, word) in words.iter().enumerate().rev() {
            // SAFETY: the word is within the slot.
            unsafe { &*place.add(index) }.store(*word, Ordering::Release);
        }
        self.posted += 1;
    }

    pub fn ring_at(&self, count: u64) {
        // SAFETY: the doorbell is valid. Uses release order, which pairs with the acquire of the engine.
        unsafe { &*self.sends.doorbell.cast::<AtomicU32>() }.store(rules::doorbell(count), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    pub fn ring(&self) {
        self.ring_at(self.posted);
    }

    pub fn write(&mut self, id: u64, to: &DirectSide, at: u64, length: u32, immediate: Option<u32>) {
        let words = request::write(&self.head(id, to, immediate), self.local(at, length), to.base + at, to.keys.1);
        self.put(&words);
    }

    pub fn receive(&mut self, receive: &ReceivePiece) {
        let slot = rules::slot(self.received, self.receives.num_entries) as usize;
        for (index, word) in receive.words().into_iter().enumerate() {
            // SAFETY: the slot is within the ring.
            unsafe { &*self.receives.buffer.add(slot * 16 + index * 8).cast::<AtomicU64>() }
                .store(word, Ordering::Relaxed);
        }
        self.received += 1;
        // SAFETY: the doorbell is valid. Uses release order, as in `ring_at`.
        unsafe { &*self.receives.doorbell.cast::<AtomicU32>() }.store(self.received as u32, Ordering::Release);
    }

    pub fn next(&mut self) -> Option<DecodedCompletion> {
        let slot = rules::slot(self.read, self.entries.num_entries) as usize;
        // SAFETY: the slot is within the queue.
        let place = unsafe { &*self.entries.buffer.add(slot * 32).cast::<[AtomicU64; 4]>() };
        let first = place[0].load(Ordering::Acquire);
        if completion::phase(first) != rules::completion_phase(self.read, self.entries.num_entries) {
            return None;
        }
        self.read += 1;
        DecodedCompletion::decode(&std::array::from_fn::<_, 4, _>(|word| place[word].load(Ordering::Relaxed)))
    }

    /// Waits for the next completion. Returns its ID and status, and whether it is an arrival.
    pub fn complete(&mut self) -> (u64, u8, bool) {
        match wait("a completion", || self.next()) {
            DecodedCompletion::Sent(sent) => (sent.id, sent.status, false),
            DecodedCompletion::Arrived(arrived) => (arrived.id.into(), arrived.status, true),
        }
    }
}

fn two(description: &str) -> (DirectSide, DirectSide) {
    let contexts = cards(&format!("{description} cards=2"));
    let (here, there) = (DirectSide::open(contexts[0], contexts[1]), DirectSide::open(contexts[1], contexts[0]));
    (here, there)
}

/// Attaches a counter for these operations, either in its own memory or in `place`.
pub fn counter(pair: *mut ibv_qp, operations: u32, place: Option<&AtomicU64>) -> *mut ibv_comp_cntr {
    // SAFETY: the arguments are local variables, or objects that the library returned.
    unsafe {
        let mut efa: efadv_comp_cntr_init_attr = std::mem::zeroed();
        if let Some(place) = place {
            efa.flags = EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM;
            efa.comp_cntr_ext_mem.ptr = place.as_ptr().cast();
        }
        let bytes = size_of::<efadv_comp_cntr_init_attr>() as u32;
        let made = efadv_create_comp_cntr((*pair).context, &mut ibv_comp_cntr_init_attr::default(), &mut efa, bytes);
        let mut attach = ibv_qp_attach_comp_cntr_attr { comp_mask: 0, op_mask: operations };
        assert_eq!(ibv_qp_attach_comp_cntr(pair, made, &mut attach), 0);
        made
    }
}

pub fn read(counter: *mut ibv_comp_cntr, failed: bool) -> u64 {
    let mut value = 0;
    // SAFETY: the arguments are local variables, or objects that the library returned.
    let code = unsafe {
        if failed { ibv_read_err_comp_cntr(counter, &mut value) } else { ibv_read_comp_cntr(counter, &mut value) }
    };
    assert_eq!(code, 0);
    value
}

#[test]
fn requests_of_many_laps_are_processed_once() {
    let (mut here, mut there) = two("name=fast seed=3 reorder=4 depth=16 receives=8");
    assert_eq!((here.sends.entry_size, here.sends.num_entries, here.sends.max_batch), (64, 16, 15));
    assert_eq!((here.entries.entry_size, here.entries.num_entries), (32, 64));
    for address in [here.sends.buffer.addr(), here.sends.doorbell.addr(), here.entries.buffer.addr()] {
        assert!(address.is_multiple_of(4096), "a device maps whole pages");
    }
    here.memory[..16].copy_from_slice(&std::array::from_fn::<u8, 16, _>(|byte| byte as u8 + 1));
    let mut overtaken = false;
    for lap in 0..7u64 {
        for at in 0..15 {
            here.write(lap * 100 + at, &there, at, 1, (at == 3).then_some(lap as u32));
        }
        here.ring();
        let mut ids: Vec<u64> =
            (0..15).map(|_| here.complete()).map(|(id, status, _)| id + u64::from(status) * 10_000).collect();
        overtaken |= !ids.is_sorted();
        ids.sort_unstable();
        assert_eq!(ids, (0..15).map(|at| lap * 100 + at).collect::<Vec<_>>());
        let arrived = wait("an immediate", || there.next());
        let DecodedCompletion::Arrived(arrived) = arrived else { panic!("{arrived:?}") };
        assert_eq!((arrived.immediate, arrived.length, arrived.unsolicited), (Some(lap as u32), 1, true));
        assert_eq!((u32::from(arrived.source), u32::from(arrived.pair)), (here.side.number(), there.side.number()));
        assert_eq!(arrived.handle, there.handle);
    }
    assert!(overtaken, "nothing is in order");
    assert_eq!(there.memory[..15], here.memory[..15]);
    // A read. A caller that polls through the C functions finds its completion in the same memory.
    let words = request::read(&here.head(1 << 40 | 9, &there, None), here.local(100, 8), there.base, there.keys.1);
    here.put(&words);
    here.ring();
    assert_eq!(here.complete(), (1 << 40 | 9, 0, false));
    assert_eq!(here.memory[100..108], there.memory[..8]);
}

#[test]
fn polling_functions_return_completions_in_memory() {
    let (mut here, there) = two("name=fast reorder=0");
    for id in 0..3 {
        here.write(id, &there, id, 1, Some(id as u32));
    }
    here.ring();
    // C's immediates are in network byte order.
    let by_name = |side: &Side| {
        side.poll(3).iter().map(|(name, status, value)| (*name, *status, value.map(u32::from_be))).collect::<Vec<_>>()
    };
    assert_eq!(by_name(&here.side), [(0, 0, None), (1, 0, None), (2, 0, None)]);
    assert_eq!(by_name(&there.side), [(0, 0, Some(0)), (0, 0, Some(1)), (0, 0, Some(2))]);
    assert_eq!(here.complete(), (0, 0, false), "they stay where they are");
}

#[test]
fn messages_arrive_in_posted_receives() {
    let (mut here, mut there) = two("name=fast reorder=0");
    here.memory[..8].copy_from_slice(b"abcdefgh");
    let at = there.base;
    let key = there.keys.0;
    there.receive(&ReceivePiece::one(77, at + 64, 16, key));
    // A send of two pieces: their number is in the first word.
    let (first, second) = (here.local(0, 3), here.local(5, 3));
    let mut words = request::send(&here.head(1, &there, Some(5)), first);
    words[0] = words[0] & !(0xffff << 48) | 2 << 48;
    (words[6], words[7]) = (u64::from(second.length) | u64::from(second.key) << 32, second.address);
    here.put(&words);
    here.ring();
    assert_eq!(here.complete(), (1, 0, false));
    let DecodedCompletion::Arrived(arrived) = wait("a message", || there.next()) else { panic!("no arrival") };
    assert_eq!((arrived.id, arrived.status, arrived.length, arrived.immediate), (77, 0, 6, Some(5)));
    assert_eq!(&there.memory[64..70], b"abcfgh");
    // A key that does not cover the receive completes it with status 5.
    there.receive(&ReceivePiece::one(78, at + 4090, 16, key));
    assert_eq!(there.complete(), (78, 5, true));
}

#[test]
fn wide_request_carries_inline_data() {
    let contexts = cards("name=fast reorder=0 cards=2 depth=32");
    let there = DirectSide::open(contexts[1], contexts[0]);
    let wide = Side::with(contexts[0], 7, EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV | EFADV_QP_FLAGS_INLINE_WRITE);
    let mut here = DirectSide::of(wide, contexts[1]);
    assert_eq!(here.sends.entry_size, 128);
    let bytes: [u64; 10] = std::array::from_fn(|word| word as u64 + 1);
    let words = request::write_inline_128(&here.head(4, &there, None), bytes, 80, there.base, there.keys.1);
    here.put(&words);
    here.ring();
    assert_eq!(here.complete(), (4, 0, false));
    assert_eq!(there.memory[..80], bytes.map(u64::to_le_bytes).concat());
}

#[test]
fn every_status_appears_in_completion_queue() {
    for status in (1..=15).chain([18]) {
        let (mut here, there) = two(&format!("name=fast reorder=0 fail=2/{status}"));
        for id in 0..3 {
            here.write(id, &there, id, 1, None);
        }
        here.ring();
        let mut seen: Vec<_> = (0..3).map(|_| here.complete()).collect();
        seen.sort_unstable();
        assert_eq!(seen, [(0, 0, false), (1, status, false), (2, 0, false)]);
    }
}

#[test]
fn invalid_requests_complete_with_error_status() {
    let (mut here, there) = two("name=fast reorder=0");
    let head = here.head(1, &there, None);
    let good = here.local(0, 8);
    for (what, words, status) in [
        (
            "a local key of nobody's",
            request::write(&head, Local { key: good.key ^ 1, ..good }, there.base, there.keys.1),
            5,
        ),
        ("a remote key of nobody's", request::write(&head, good, there.base, there.keys.1 ^ 1), 7),
        (
            "a handle of nobody's",
            request::write(&Head { to: To { handle: 99, ..head.to }, ..head }, good, there.base, there.keys.1),
            4,
        ),
        (
            "a pair of nobody's",
            request::write(
                &Head { to: To { pair: head.to.pair ^ 1, ..head.to }, ..head },
                good,
                there.base,
                there.keys.1,
            ),
            9,
        ),
    ] {
        let mut words = words;
        words[0] = words[0] & !(1 << 24) | u64::from(rules::send_phase(here.posted, here.sends.num_entries)) << 24;
        here.put(&words);
        here.ring();
        assert_eq!(here.complete(), (1, status, false), "{what}");
    }
    let mut words = request::write(&here.head(2, &there, None), good, there.base, there.keys.1);
    words[6] |= 1 << 56;
    here.put(&words);
    here.ring();
    assert_eq!(here.complete(), (2, 5, false), "a local key of more than 24 bits");
    let mut words = request::write(&here.head(3, &there, None), good, there.base, there.keys.1);
    words[0] |= 7 << 16;
    here.put(&words);
    here.ring();
    assert_eq!(here.complete(), (3, 3, false), "an operation that there is not");
}

/// Asserts that there is no completion for 2000 polls, long enough for any request in flight in these tests.
fn nothing_comes(of: &mut DirectSide) {
    for _ in 0..2000 {
        assert_eq!(of.next(), None);
        std::thread::yield_now();
    }
}

#[test]
fn lost_completion_dead_and_full_device_are_simulated() {
    let (mut here, there) = two("name=fast reorder=0 lose=2");
    for id in 0..3 {
        here.write(id, &there, id, 1, None);
    }
    here.ring();
    assert_eq!(here.complete().0 + here.complete().0, 2);
    nothing_comes(&mut here);
    for fault in ["dead=2", "full=2"] {
        let (mut here, there) = two(&format!("name=fast reorder=0 {fault}"));
        for id in 0..3 {
            here.write(id, &there, id, 1, None);
            here.ring();
            if id == 0 {
                assert_eq!(here.complete(), (0, 0, false));
            }
        }
        nothing_comes(&mut here);
    }
}

#[test]
fn dead_device_drops_requests_of_all_its_queues() {
    let contexts = cards("name=fast reorder=0 dead=2 cards=2");
    let open = |here: usize, there: usize| DirectSide::open(contexts[here], contexts[there]);
    let [mut here, mut other, mut there] = [open(0, 1), open(0, 1), open(1, 0)];
    for id in 0..2 {
        here.write(id, &there, id, 1, None);
    }
    here.ring();
    assert_eq!(here.complete(), (0, 0, false));
    nothing_comes(&mut here);
    other.write(5, &there, 0, 1, None);
    other.ring();
    nothing_comes(&mut other);
    // The other device of the machine is alive.
    there.write(6, &here, 0, 1, None);
    there.ring();
    assert_eq!(there.complete(), (6, 0, false));
}

#[test]
fn misused_queue_pair_enters_error_state() {
    type Misuse = fn(&mut DirectSide, &DirectSide);
    let cases: [(&str, &str, Misuse, u64); 5] = [
        ("a doorbell that goes back", "", |here, _| here.ring_at(1), 0),
        (
            "a phase of the lap before",
            "",
            |here, there| {
                let mut words = request::write(&here.head(7, there, None), here.local(0, 1), there.base, there.keys.1);
                words[0] ^= 1 << 24;
                here.put(&words);
                here.ring();
            },
            7,
        ),
        (
            "no request",
            "",
            |here, _| {
                here.put(&[0; 8]);
                here.ring();
            },
            0,
        ),
        ("more than the queue has slots", "", |here, _| here.ring_at(here.posted + 17), 0),
        (
            "more than max_batch that are not rung for",
            "max-batch=4",
            |here, there| {
                for id in 10..15 {
                    here.write(id, there, 0, 1, None);
                }
            },
            14,
        ),
    ];
    for (what, words, misuse, expected) in cases {
        let (mut here, there) = two(&format!("name=fast reorder=0 {words}"));
        for id in 0..3 {
            here.write(id, &there, id, 1, None);
        }
        here.ring();
        assert_eq!((0..3).map(|_| here.complete()).map(|(_, status, _)| status).sum::<u8>(), 0);
        misuse(&mut here, &there);
        assert_eq!(here.complete(), (expected, 2, false), "{what}");
    }
}

#[test]
fn requests_on_errored_queue_pair_are_flushed() {
    let (mut here, there) = two("name=fast reorder=0 break=3");
    for id in 0..5 {
        here.write(id, &there, id, 1, None);
    }
    here.ring();
    let mut seen: Vec<_> = (0..5).map(|_| here.complete()).collect();
    seen.sort_unstable();
    // The first two may have completed before the engine read the third one.
    assert!(seen[..2].iter().all(|(_, status, _)| *status <= 1), "{seen:?}");
    assert_eq!(seen[2..], [(2, 2, false), (3, 1, false), (4, 1, false)]);
}

#[test]
fn unread_completion_queue_is_overwritten() {
    // The description injects the overrun, so no further completion has the right phase.
    let (mut here, there) = two("name=fast reorder=0 overrun=3");
    for id in 0..4 {
        here.write(id, &there, id, 1, None);
    }
    here.ring();
    assert_eq!((here.complete().0, here.complete().0), (0, 1));
    nothing_comes(&mut here);
    // An overrun without injection: the queue has 64 entries, and 65 completions are not read.
    let (mut here, there) = two("name=fast reorder=0");
    for id in 0..65 {
        here.write(id, &there, 0, 1, None);
        here.ring();
        let last = rules::slot(id, 64) as usize;
        wait("a completion that nobody reads", || {
            // SAFETY: the slot is within the queue.
            let first = unsafe { &*here.entries.buffer.add(last * 32).cast::<AtomicU64>() }.load(Ordering::Acquire);
            (completion::phase(first) == rules::completion_phase(id, 64)).then_some(())
        });
    }
    assert_eq!(here.next(), None, "the entry has the phase of the next lap");
}

#[test]
fn counters_count_per_side_and_wrap() {
    let begun = (1u64 << 31) - 2;
    let contexts = cards(&format!("name=fast reorder=0 cards=2 counted={begun} fail=4/7"));
    let place = AtomicU64::new(99);
    let mut counters = Vec::new();
    let mut ours = Vec::new();
    let here = Side::before(contexts[0], 7, |pair| {
        ours.push(counter(pair, IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE, Some(&place)));
        ours.push(counter(pair, IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ, None));
    });
    let there = Side::before(contexts[1], 7, |pair| {
        counters.push(counter(pair, IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE, None));
        counters.push(counter(pair, IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ, None));
    });
    let (mut here, there) = (DirectSide::of(here, contexts[1]), DirectSide::of(there, contexts[0]));
    for id in 0..5 {
        here.write(id, &there, id, 1, None);
    }
    let words = request::read(&here.head(5, &there, None), here.local(64, 8), there.base, there.keys.1);
    here.put(&words);
    here.ring();
    for _ in 0..6 {
        here.complete();
    }
    // Four of five writes succeed: two more than the counter's range allows, so it wraps.
    wait("the writer's counter", || (place.load(Ordering::Acquire) == 2).then_some(()));
    assert_eq!((read(ours[0], false), read(ours[0], true)), (2, 1));
    assert_eq!(read(ours[1], false), begun + 1);
    wait("the target's counter", || (read(counters[0], false) == 2).then_some(()));
    wait("the target's counter of reads", || (read(counters[1], false) == begun + 1).then_some(()));
    // SAFETY: the arguments are local variables, or objects that the library returned.
    unsafe {
        assert_eq!(ibv_set_comp_cntr(ours[0], 0), libc::EOPNOTSUPP);
        assert_eq!(ibv_destroy_comp_cntr(ours[0]), libc::EBUSY);
        let mut attach = ibv_qp_attach_comp_cntr_attr { comp_mask: 0, op_mask: 1 };
        assert_eq!(ibv_qp_attach_comp_cntr(here.side.pair, ours[0], &mut attach), libc::EINVAL, "the pair is ready");
        assert_eq!(ibv_destroy_qp(here.side.pair), 0);
        assert_eq!(ibv_destroy_comp_cntr(ours[0]), 0);
    }
}

#[test]
fn invalid_requests_are_rejected() {
    let context = cards("name=fast cards=1 depth=64 receives=32")[0];
    // SAFETY: the arguments are local variables, or objects that the library returned.
    unsafe {
        let bytes = size_of::<efadv_sq_depth_attr>() as u32;
        let depth = |flags, max_inline_data, max_rdma_sge| {
            let mut asked = efadv_sq_depth_attr { flags, max_inline_data, max_rdma_sge, ..Default::default() };
            efadv_get_max_sq_depth(context, &mut asked, bytes)
        };
        assert_eq!([depth(0, 32, 1), depth(0, 33, 1), depth(1, 0, 1)], [64, 32, 32]);
        assert_eq!([depth(0, 81, 1), depth(0, 0, 2)], [-libc::EINVAL; 2]);
        let mut asked = efadv_rq_depth_attr { comp_mask: 0, max_recv_sge: 2 };
        assert_eq!(efadv_get_max_rq_depth(context, &mut asked, size_of::<efadv_rq_depth_attr>() as u32), 16);
        let mut attributes: ibv_cq_init_attr_ex = std::mem::zeroed();
        attributes.cqe = 64;
        let mut efa: efadv_cq_init_attr = std::mem::zeroed();
        efa.flags = EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF.into();
        let made = efadv_create_cq(context, &mut attributes, &mut efa, size_of::<efadv_cq_init_attr>() as u32);
        assert!(made.is_null() && std::io::Error::last_os_error().raw_os_error() == Some(libc::EOPNOTSUPP));
        let mut efa: efadv_comp_cntr_init_attr = std::mem::zeroed();
        efa.flags = EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM;
        efa.comp_cntr_ext_mem.r#type = 1;
        let bytes = size_of::<efadv_comp_cntr_init_attr>() as u32;
        let made = efadv_create_comp_cntr(context, &mut ibv_comp_cntr_init_attr::default(), &mut efa, bytes);
        assert!(made.is_null() && std::io::Error::last_os_error().raw_os_error() == Some(libc::EOPNOTSUPP));
        let mut caps = ibv_comp_cntr_caps::default();
        assert_eq!(_ibv_query_comp_cntr_caps(context, &mut caps, size_of::<ibv_comp_cntr_caps>()), 0);
        assert_eq!((caps.max_value, caps.supported_qp_attach_ops), ((1 << 31) - 1, 63));
    }
}

/// Measures the engine's cost per request in instructions, with a profiler: `valgrind --tool=callgrind TEST measure
/// --ignored`, then `callgrind_annotate --inclusive=yes` for the functions of the engine.
#[test]
#[ignore = "a measurement, for a tool that counts"]
fn measure_cost_of_request() {
    let (mut here, there) = two("name=fast reorder=0");
    let (laps, batch) = (2000, 15);
    let started = Instant::now();
    for _ in 0..laps {
        for id in 0..batch {
            here.write(id, &there, id * 8, 8, None);
        }
        here.ring();
        for _ in 0..batch {
            assert_eq!(here.complete().1, 0);
        }
    }
    let nanoseconds = started.elapsed().as_secs_f64() * 1e9 / (laps * batch) as f64;
    eprintln!("{nanoseconds:.0} ns per request, by batches of {batch}");
}
