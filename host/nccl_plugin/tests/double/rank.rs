//! One rank as NCCL 2.32.3 drives it with the table of v16.

use ginlab_base::backoff::Backoff;
use nccl_ginlab::abi::{NcclResult, Properties, RmaConfig, RmaProperties, SIGNAL_ADD, SIGNAL_INC};
use nccl_ginlab::tables::ncclRmaPlugin_v16;
use nccl_ginlab::testing::set_variables;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const OK: NcclResult = NcclResult::SUCCESS;
/// Flags with which NCCL registers its own signals.
pub const SIGNALS: u64 = 3;

/// State that ranks share in addition to the plugin.
pub struct SharedRankState {
    pub ranks: usize,
    pub handles: Mutex<Vec<[u8; 128]>>,
    pub come: AtomicUsize,
}

impl SharedRankState {
    pub fn of(ranks: usize) -> Arc<SharedRankState> {
        Arc::new(SharedRankState { ranks, handles: Mutex::new(vec![[0; 128]; ranks]), come: AtomicUsize::new(0) })
    }

    pub fn meet(&self) {
        let mine = self.come.fetch_add(1, Ordering::AcqRel);
        let all = (mine / self.ranks + 1) * self.ranks;
        until("the other ranks", || self.come.load(Ordering::Acquire) >= all);
    }
}

/// Returns the maximum time of a wait. `GINLAB_PATIENCE` sets it in seconds: with a mutation of the plugin many waits
/// time out.
fn patience() -> Duration {
    Duration::from_secs(std::env::var("GINLAB_PATIENCE").map_or(100, |text| text.parse().unwrap()))
}

pub fn until(what: &str, mut there: impl FnMut() -> bool) {
    let late = Instant::now() + patience();
    let mut way = Backoff::every(1);
    while !there() {
        assert!(Instant::now() < late, "waited for {what}");
        way.idle();
    }
}

/// One rank as NCCL drives it with the table of v16.
pub struct NcclRank {
    pub meeting: Arc<SharedRankState>,
    pub me: usize,
    pub plugin: *mut c_void,
    pub coll: *mut c_void,
    pub context: *mut c_void,
}

/// Memory and its registration.
pub struct RegisteredMemory {
    pub words: Vec<u64>,
    pub handle: *mut c_void,
}

/// Leaks the memory of a failed test: the plugin may still write to it, and a crash would hide the cause.
impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(std::mem::take(&mut self.words));
        }
    }
}

impl RegisteredMemory {
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the vector has that many bytes; the test reads them after they have arrived.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.words.len() * 8) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the vector has that many bytes, and is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.words.len() * 8) }
    }

    pub fn word(&self, index: usize) -> u64 {
        // SAFETY: the index is in the vector; the plugin writes the word, and all accesses are atomic.
        unsafe { AtomicU64::from_ptr(self.words.as_ptr().add(index).cast_mut()) }.load(Ordering::Acquire)
    }
}

impl NcclRank {
    pub fn join(meeting: &Arc<SharedRankState>, me: usize, variables: &[(&str, &str)]) -> Result<NcclRank, NcclResult> {
        NcclRank::join_by(meeting, me, variables, |handle| {
            meeting.handles.lock().unwrap()[me] = handle;
            meeting.meet();
            meeting.handles.lock().unwrap().clone()
        })
    }

    /// Joins the communicator. `exchange` sends this rank's handle to the others and returns those of all ranks.
    pub fn join_by(
        meeting: &Arc<SharedRankState>,
        me: usize,
        variables: &[(&str, &str)],
        exchange: impl FnOnce([u8; 128]) -> Vec<[u8; 128]>,
    ) -> Result<NcclRank, NcclResult> {
        let table = &ncclRmaPlugin_v16;
        set_variables(variables);
        let mut rank =
            NcclRank { meeting: meeting.clone(), me, plugin: null_mut(), coll: null_mut(), context: null_mut() };
        let (mut listener, mut handle) = (null_mut(), [0u8; 128]);
        // SAFETY: the calls and their arguments are those of NCCL.
        unsafe {
            assert_eq!((table.init)(&mut rank.plugin, 7, None), OK);
            // NCCL's GIN makes the following calls with its own context.
            assert!(!rank.plugin.is_null());
            let mut devices = 0;
            assert_eq!(((table.devices)(&mut devices), devices), (OK, 1));
            let mut properties = std::mem::zeroed::<Properties>();
            assert_eq!((table.get_properties)(0, &mut properties), OK);
            assert_eq!((CStr::from_ptr(properties.name), properties.device_type), (c"ginlab", 2));
            assert_eq!((table.get_properties)(1, &mut properties), NcclResult::ARGUMENT);
            assert_eq!((table.listen)(null_mut(), 0, handle.as_mut_ptr().cast(), &mut listener), OK);
            let mut handles = exchange(handle);
            let mut pointers: Vec<*mut c_void> = handles.iter_mut().map(|handle| handle.as_mut_ptr().cast()).collect();
            let (ranks, me) = (meeting.ranks as c_int, me as c_int);
            let joined = (table.connect)(null_mut(), pointers.as_mut_ptr(), ranks, me, listener, &mut rank.coll);
            assert_eq!((table.close_listen)(listener), OK);
            if joined != OK {
                assert_eq!((table.finalize)(rank.plugin), OK);
                return Err(joined);
            }
            let mut said = RmaProperties { flushes_all_puts_on_any_signal: true };
            assert_eq!((table.get_rma_properties)(rank.coll, &mut said), OK);
            assert!(!said.flushes_all_puts_on_any_signal);
            let mut config = RmaConfig { contexts: 4, traffic_class: -1, rank_stride: 1 };
            assert_eq!((table.create_context)(rank.coll, &mut config, &mut rank.context), OK);
        }
        Ok(rank)
    }

    pub fn register(&self, bytes: usize, kind: c_int, flags: u64) -> RegisteredMemory {
        let mut memory = RegisteredMemory { words: vec![0; bytes.div_ceil(8)], handle: null_mut() };
        let (address, length) = (memory.words.as_mut_ptr().cast(), memory.words.len() * 8);
        // SAFETY: the call and its arguments are those of NCCL; the test keeps the memory until `leave`.
        let result =
            unsafe { (ncclRmaPlugin_v16.reg_mr_sym)(self.coll, address, length, kind, flags, &mut memory.handle) };
        assert_eq!(result, OK);
        memory
    }

    /// Submits a put in context 0. The signal is its memory, offset and value to add, and whether it is strong.
    pub fn put(
        &self,
        from: (&RegisteredMemory, u64),
        bytes: usize,
        to: (&RegisteredMemory, u64),
        peer: usize,
        signal: Option<(&RegisteredMemory, u64, u64, bool)>,
    ) -> *mut c_void {
        self.put_in(0, from, bytes, to, peer, signal)
    }

    /// Like [`put`](NcclRank::put), in a given context.
    pub fn put_in(
        &self,
        context: c_int,
        from: (&RegisteredMemory, u64),
        bytes: usize,
        to: (&RegisteredMemory, u64),
        peer: usize,
        signal: Option<(&RegisteredMemory, u64, u64, bool)>,
    ) -> *mut c_void {
        self.try_put_in(context, from, bytes, to, peer, signal).unwrap()
    }

    /// Like [`put_in`](NcclRank::put_in), if the plugin may refuse it.
    pub fn try_put_in(
        &self,
        context: c_int,
        from: (&RegisteredMemory, u64),
        bytes: usize,
        to: (&RegisteredMemory, u64),
        peer: usize,
        signal: Option<(&RegisteredMemory, u64, u64, bool)>,
    ) -> Result<*mut c_void, NcclResult> {
        let mut request = null_mut();
        let peer = peer as u32;
        // SAFETY: the calls and their arguments are those of NCCL.
        let result = unsafe {
            let table = &ncclRmaPlugin_v16;
            let (source, target) = if bytes == 0 { (null_mut(), null_mut()) } else { (from.0.handle, to.0.handle) };
            match signal {
                None => (table.iput)(self.context, context, from.1, source, bytes, to.1, target, peer, 0, &mut request),
                Some((at, offset, add, strong)) => {
                    let operation = if add == 1 { SIGNAL_INC } else { SIGNAL_ADD };
                    (table.iput_signal)(
                        self.context,
                        context,
                        from.1,
                        source,
                        bytes,
                        to.1,
                        target,
                        peer,
                        offset,
                        at.handle,
                        add,
                        operation,
                        strong,
                        0,
                        &mut request,
                    )
                }
            }
        };
        if result == OK { Ok(request) } else { Err(result) }
    }

    pub fn get(
        &self,
        from: (&RegisteredMemory, u64),
        bytes: usize,
        to: (&RegisteredMemory, u64),
        peer: usize,
    ) -> *mut c_void {
        let mut request = null_mut();
        // SAFETY: the call and its arguments are those of NCCL.
        let result = unsafe {
            (ncclRmaPlugin_v16.iget)(
                self.context,
                1,
                from.1,
                from.0.handle,
                bytes,
                to.1,
                to.0.handle,
                peer as u32,
                0,
                &mut request,
            )
        };
        assert_eq!(result, OK);
        request
    }

    /// Tests a request once. Returns the result of the call, and whether the request is complete.
    pub fn test(&self, request: *mut c_void) -> (NcclResult, bool) {
        let mut done = -1;
        // SAFETY: the call and its arguments are those of NCCL.
        let result = unsafe { (ncclRmaPlugin_v16.test)(self.coll, request, &mut done) };
        (result, done == 1)
    }

    pub fn wait(&self, request: *mut c_void) {
        until("a request", || {
            let (result, done) = self.test(request);
            assert_eq!(result, OK);
            done
        });
    }

    /// Returns whether the communicator has failed.
    pub fn failed(&self) -> bool {
        let mut error = false;
        // SAFETY: the call and its arguments are those of NCCL.
        assert_eq!(unsafe { (ncclRmaPlugin_v16.query_last_error)(self.context, &mut error) }, OK);
        error
    }

    pub fn leave(self, memories: Vec<RegisteredMemory>) {
        self.meeting.meet();
        self.close(memories);
    }

    /// Closes immediately, regardless of the other ranks.
    pub fn close(self, memories: Vec<RegisteredMemory>) {
        let table = &ncclRmaPlugin_v16;
        // SAFETY: the calls and their arguments are those of NCCL.
        unsafe {
            assert_eq!((table.destroy_context)(self.context), OK);
            for memory in &memories {
                assert_eq!((table.dereg_mr_sym)(self.coll, memory.handle), OK);
            }
            assert_eq!((table.close_coll)(self.coll), OK);
            assert_eq!((table.finalize)(self.plugin), OK);
        }
    }
}
