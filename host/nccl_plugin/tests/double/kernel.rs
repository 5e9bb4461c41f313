//! One rank of type 5: the table of v14 as NCCL 2.32.3 calls it, and NCCL's device side of the queues executed on the
//! CPU. It performs the same reads and writes as `gin_efa_gda.h`, in the same order.

use crate::rank::{OK, RegisteredMemory, SharedRankState, until};
use efa_queue::request::{self, Head};
use efa_queue::{Local, To, rules};
use nccl_ginlab::abi::{DeviceHandle, GinConfig, GinProperties, NcclResult, PTR_CUDA, Properties};
use nccl_ginlab::queues::layout::{ContextHandle, CounterHandle, EfaCudaQp, MemoryHandle, MemoryPeer, Poster};
use nccl_ginlab::tables::ncclGinPlugin_v14;
use nccl_ginlab::testing::set_variables;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub const SIGNALS: i32 = 5;
pub const COUNTERS: i32 = 2;

/// One rank as NCCL drives it with the table of v14.
pub struct Card {
    pub meeting: Arc<SharedRankState>,
    pub me: usize,
    pub plugin: *mut c_void,
    pub coll: *mut c_void,
    pub context: *mut c_void,
    pub handle: *mut DeviceHandle,
    /// Number of requests posted to each queue, by the queue's address.
    posted: RefCell<HashMap<u64, u64>>,
    windows: RefCell<HashMap<u64, u64>>,
}

/// A queue of a context.
#[derive(Clone, Copy, Debug)]
pub enum ContextQueue {
    Data,
    Values,
    Counter(usize),
}

impl Card {
    pub fn join(meeting: &Arc<SharedRankState>, me: usize, variables: &[(&str, &str)]) -> Card {
        let table = &ncclGinPlugin_v14;
        set_variables(variables);
        let mut card = Card {
            meeting: meeting.clone(),
            me,
            plugin: null_mut(),
            coll: null_mut(),
            context: null_mut(),
            handle: null_mut(),
            posted: RefCell::default(),
            windows: RefCell::default(),
        };
        let (mut listener, mut handle) = (null_mut(), [0u8; 128]);
        // SAFETY: the calls and their arguments are those of NCCL.
        unsafe {
            assert_eq!((table.init)(&mut card.plugin, 7, None), OK);
            let mut said = GinProperties { strong_signals: true, address_signals: true };
            assert_eq!((table.get_gin_properties)(&mut said), OK);
            assert!(!said.strong_signals && !said.address_signals);
            let mut properties = std::mem::zeroed::<Properties>();
            assert_eq!((table.get_properties)(0, &mut properties), OK);
            assert_eq!(properties.device_type, 5);
            assert_eq!((table.get_properties)(1, &mut properties), NcclResult::ARGUMENT);
            assert_eq!((table.listen)(null_mut(), 0, handle.as_mut_ptr().cast(), &mut listener), OK);
            meeting.handles.lock().unwrap()[me] = handle;
            meeting.meet();
            let mut handles = meeting.handles.lock().unwrap().clone();
            let mut pointers: Vec<*mut c_void> = handles.iter_mut().map(|handle| handle.as_mut_ptr().cast()).collect();
            let (ranks, me) = (meeting.ranks as c_int, me as c_int);
            assert_eq!((table.connect)(null_mut(), pointers.as_mut_ptr(), ranks, me, listener, &mut card.coll), OK);
            assert_eq!((table.close_listen)(listener), OK);
        }
        card
    }

    /// Creates contexts as NCCL does for a device communicator.
    pub fn contexts(&mut self, mut config: GinConfig) -> NcclResult {
        // SAFETY: the call and its arguments are those of NCCL.
        unsafe { (ncclGinPlugin_v14.create_context)(self.coll, &mut config, &mut self.context, &mut self.handle) }
    }

    pub fn config() -> GinConfig {
        GinConfig {
            signals: SIGNALS,
            counters: COUNTERS,
            contexts: 2,
            queue_depth: 0,
            traffic_class: -1,
            backend_version: 2,
            rank_stride: 1,
        }
    }

    pub fn register(&self, bytes: usize) -> RegisteredMemory {
        let mut memory = RegisteredMemory { words: vec![0; bytes.div_ceil(8)], handle: null_mut() };
        let (address, length) = (memory.words.as_mut_ptr().cast(), memory.words.len() * 8);
        let mut window = null_mut();
        // SAFETY: the call and its arguments are those of NCCL; the test keeps the memory until `leave`.
        let result = unsafe {
            (ncclGinPlugin_v14.reg_mr_sym)(self.coll, address, length, PTR_CUDA, 0, &mut memory.handle, &mut window)
        };
        assert_eq!(result, OK);
        self.windows.borrow_mut().insert(memory.handle as u64, window as u64);
        memory
    }

    fn context(&self, number: usize) -> &ContextHandle {
        // SAFETY: the plugin has created an array of contexts, which is in host memory in this test.
        unsafe { &*(*self.handle).handle.cast::<ContextHandle>().add(number) }
    }

    fn counter_handle(&self, pointers: u64, index: usize) -> &CounterHandle {
        // SAFETY: `pointers` is an array of pointers that the plugin has created.
        unsafe { &**(pointers as *const *const CounterHandle).add(index) }
    }

    /// Returns this rank's description of a registration, and that of a peer.
    pub fn window(&self, memory: &RegisteredMemory, peer: usize) -> (MemoryHandle, MemoryPeer) {
        let window = self.windows.borrow()[&(memory.handle as u64)];
        // SAFETY: the plugin has created a pointer to a handle, which an entry for each peer follows.
        unsafe {
            let handle = *(window as *const *const MemoryHandle);
            (*handle, *handle.add(1).cast::<MemoryPeer>().add(peer))
        }
    }

    fn to(&self, poster: &Poster, peer: usize, signal: Option<usize>) -> To {
        let at = signal.map_or(0, |signal| 1 + signal) * self.meeting.ranks + peer;
        // SAFETY: the plugin has created the tables, with an entry for each target.
        unsafe {
            To {
                handle: *(poster.target_address_handles as *const u16).add(at),
                pair: *(poster.target_remote_qpns as *const u16).add(at),
                key: *(poster.target_qkey as *const u32).add(at),
            }
        }
    }

    /// Writes the request that `make` returns for the phase. With `rings`, rings the doorbell for it and for all
    /// requests written since the last ring.
    pub fn post(&self, poster: &Poster, rings: bool, make: impl FnOnce(bool) -> [u64; 16]) {
        // SAFETY: the plugin has created the queue pair.
        let pair = unsafe { &*(poster.qp as *const EfaCudaQp) };
        let mut posted = self.posted.borrow_mut();
        let posted = posted.entry(poster.qp).or_default();
        let counter = poster.local_cntr_value as *const AtomicU64;
        // SAFETY: the counter is a word of the plugin.
        let completed = || unsafe { (*counter).load(Ordering::Acquire) };
        until("room in a queue", || rules::behind(*posted + 1, completed()) <= u64::from(poster.sq_size));
        let words = make(rules::send_phase(*posted, pair.send.max_wqes));
        let slot = (*posted as u32 & pair.send.queue_mask) as usize;
        // SAFETY: the index is below the depth of the ring, and the slot is free.
        let at = unsafe { (pair.send.buf as *const [AtomicU64; 16]).add(slot) };
        for (index, word) in words.iter().enumerate() {
            // SAFETY: `at` is a slot of the ring, and `index` is below its words.
            unsafe { (&(*at))[index].store(*word, Ordering::Relaxed) };
        }
        *posted += 1;
        if rings {
            self.ring(pair, *posted as u32);
        }
    }

    pub fn ring(&self, pair: &EfaCudaQp, count: u32) {
        // SAFETY: the doorbell is a word of the plugin. The release order replaces the kernels' fence before the
        // doorbell.
        unsafe { (*(pair.send.db as *const AtomicU32)).store(count, Ordering::Release) };
    }

    pub fn poster(&self, context: usize, by: ContextQueue) -> Poster {
        let context = self.context(context);
        match by {
            ContextQueue::Data => context.data,
            ContextQueue::Values => context.pvdata,
            ContextQueue::Counter(index) => self.counter_handle(context.counter_handles, index).base,
        }
    }

    fn head(phase: bool, to: To) -> Head {
        Head { id: 3, phase, to, immediate: None, hints: 1 }
    }

    #[allow(clippy::too_many_arguments, reason = "as NCCL's")]
    pub fn put(
        &self,
        context: usize,
        by: ContextQueue,
        from: (&RegisteredMemory, u64),
        bytes: u32,
        to: (&RegisteredMemory, u64),
        peer: usize,
        signal: Option<usize>,
        rings: bool,
    ) {
        let poster = self.poster(context, by);
        let whom = self.to(&poster, peer, signal);
        self.post(&poster, rings, |phase| {
            if bytes == 0 {
                return request::wide(request::write(&Self::head(phase, whom), Local::default(), 0, 0));
            }
            let ((here, _), (_, there)) = (self.window(from.0, peer), self.window(to.0, peer));
            let local = Local { address: here.local_addr + from.1, length: bytes, key: here.lkey };
            request::wide(request::write(&Self::head(phase, whom), local, there.remote_addr + to.1, there.rkey))
        });
    }

    pub fn put_value(
        &self,
        context: usize,
        value: u64,
        to: (&RegisteredMemory, u64),
        peer: usize,
        signal: Option<usize>,
    ) {
        let poster = self.context(context).pvdata;
        let whom = self.to(&poster, peer, signal);
        let (_, there) = self.window(to.0, peer);
        let mut bytes = [0; 10];
        bytes[0] = value;
        self.post(&poster, true, |phase| {
            request::write_inline_128(&Self::head(phase, whom), bytes, 8, there.remote_addr + to.1, there.rkey)
        });
    }

    pub fn get(
        &self,
        context: usize,
        from: (&RegisteredMemory, u64),
        bytes: u32,
        to: (&RegisteredMemory, u64),
        peer: usize,
    ) {
        let poster = self.context(context).data;
        let whom = self.to(&poster, peer, None);
        let ((_, there), (here, _)) = (self.window(from.0, peer), self.window(to.0, peer));
        let local = Local { address: here.local_addr + to.1, length: bytes, key: here.lkey };
        self.post(&poster, true, |phase| {
            request::wide(request::read(&Self::head(phase, whom), local, there.remote_addr + from.1, there.rkey))
        });
    }

    /// Waits until all posted requests of a context are complete, like `flush` in a kernel.
    pub fn flush(&self, context: usize) {
        let handle = self.context(context);
        let mut posters = vec![handle.data, handle.pvdata];
        posters.extend((0..handle.counters as usize).map(|index| self.poster(context, ContextQueue::Counter(index))));
        posters.iter().for_each(|poster| self.wait(poster));
    }

    /// Waits until all requests posted to this queue are complete.
    pub fn wait(&self, poster: &Poster) {
        let posted = self.posted.borrow().get(&poster.qp).copied().unwrap_or_default();
        let counter = poster.local_cntr_value as *const AtomicU64;
        // SAFETY: the counter is a word of the plugin.
        until("completions", || rules::behind(posted, unsafe { (*counter).load(Ordering::Acquire) }) == 0);
    }

    fn value(handle: &CounterHandle) -> u64 {
        // SAFETY: the counter is a word of the plugin.
        unsafe { (*(handle.cntr_value as *const AtomicU64)).load(Ordering::Acquire) }
    }

    pub fn signal(&self, context: usize, index: usize) -> u64 {
        Self::value(self.counter_handle(self.context(context).signal_handles, index))
    }

    pub fn counter(&self, context: usize, index: usize) -> u64 {
        Self::value(self.counter_handle(self.context(context).counter_handles, index))
    }

    pub fn failed(&self) -> bool {
        let mut error = false;
        // SAFETY: the call and its arguments are those of NCCL.
        assert_eq!(unsafe { (ncclGinPlugin_v14.query_last_error)(self.context, &mut error) }, OK);
        error
    }

    pub fn leave(self, memories: Vec<RegisteredMemory>) {
        self.meeting.meet();
        let table = &ncclGinPlugin_v14;
        // SAFETY: the calls and their arguments are those of NCCL.
        unsafe {
            assert_eq!((table.progress)(self.context), OK);
            assert_eq!((table.destroy_context)(self.context), OK);
            for memory in &memories {
                assert_eq!((table.dereg_mr_sym)(self.coll, memory.handle), OK);
            }
            assert_eq!((table.close_coll)(self.coll), OK);
            assert_eq!((table.finalize)(self.plugin), OK);
        }
    }
}
