//! Completion queues as C polls them: one completion at a time, whose fields it reads by functions.

mod reading;

use crate::abi::*;
use crate::channel::Channel;
use crate::context::{Context, refuse};
use crate::entries::{Entries, Entry, UNKNOWN};
use crate::lap::Lap;
use crate::locked;
use crate::pair::Pair;
use crate::request::Kind;
use crate::status::verbs_status;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of consecutive unsuccessful polls after which the thread yields.
const IDLE: u32 = 32;

/// A completion queue. The part visible to C comes first.
#[repr(C)]
pub struct Completions {
    verbs: UnsafeCell<ibv_cq_ex>,
    efa: efadv_cq,
    context: &'static Context,
    /// The completions in memory, once C has requested their address. From then on the C functions also read them
    /// there.
    entries: OnceLock<Entries>,
    /// Whether C has requested a notification by a function, and the engine has not sent it.
    is_armed: AtomicBool,
    /// Locked from the start of a poll to its end, as in libefa.
    is_locked: AtomicBool,
    inner: UnsafeCell<Inner>,
}

// SAFETY: only the holder of the lock uses the cells; C reads its part within a poll.
unsafe impl Sync for Completions {}

#[derive(Default)]
struct Inner {
    pairs: Vec<*const Pair>,
    /// Index of the pair that is polled next.
    next: usize,
    /// Number of consecutive unsuccessful polls.
    idle: u32,
    /// Number of completions in memory that have been read.
    read: u64,
    /// Set once more unread completions have arrived than the queue has entries.
    overrun: Option<Lap>,
    current: Entry,
}

/// Creates a queue.
///
/// # Safety
/// `context` must be open, and `attributes` must be valid.
pub unsafe extern "C" fn create(context: *mut ibv_context, attributes: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    // SAFETY: the caller guarantees that the context is open and the attributes are valid.
    let (context, attributes) = unsafe { (Context::of(context), &*attributes) };
    if attributes.comp_mask != 0 {
        return refuse(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller guarantees that the channel is null or valid.
    if let Some(channel) = unsafe { Channel::of(attributes.channel) } {
        channel.refer(1);
    }
    // SAFETY: the type has only numbers, pointers and optional functions, for all of which zero is a valid value.
    let mut verbs: ibv_cq_ex = unsafe { std::mem::zeroed() };
    (verbs.context, verbs.cq_context, verbs.cqe) = (context.verbs(), attributes.cq_context, attributes.cqe as c_int);
    verbs.channel = attributes.channel;
    verbs.start_poll = Some(start_poll);
    verbs.next_poll = Some(next_poll);
    verbs.end_poll = Some(end_poll);
    verbs.read_opcode = Some(read_opcode);
    verbs.read_vendor_err = Some(read_vendor_err);
    verbs.read_byte_len = Some(read_byte_len);
    verbs.read_imm_data = Some(read_imm_data);
    verbs.read_qp_num = Some(read_qp_num);
    verbs.read_src_qp = Some(read_src_qp);
    verbs.read_wc_flags = Some(read_wc_flags);
    verbs.read_slid = Some(read_slid);
    verbs.read_sl = Some(read_nothing);
    verbs.read_dlid_path_bits = Some(read_nothing);
    let efa = efadv_cq { comp_mask: 0, wc_read_sgid: Some(wc_read_sgid), wc_is_unsolicited: Some(wc_is_unsolicited) };
    let made = Completions {
        verbs: UnsafeCell::new(verbs),
        efa,
        context,
        entries: OnceLock::new(),
        is_armed: AtomicBool::new(false),
        is_locked: AtomicBool::new(false),
        inner: UnsafeCell::default(),
    };
    Box::into_raw(Box::new(made)).cast()
}

/// Returns the EFA interface of a queue.
///
/// # Safety
/// `queue` must have been returned by [`efadv_create_cq`](crate::efadv_create_cq).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_cq_from_ibv_cq_ex(queue: *mut ibv_cq_ex) -> *mut efadv_cq {
    // SAFETY: the caller guarantees that the queue is valid; the part visible to C is its first member.
    unsafe { (&raw const (*queue.cast::<Completions>()).efa).cast_mut() }
}

impl Completions {
    /// Returns the queue of a C pointer.
    ///
    /// # Safety
    /// `queue` must have been returned by [`create`] and not be destroyed.
    pub unsafe fn of<'a>(queue: *mut ibv_cq) -> &'a Completions {
        // SAFETY: the part visible to C is the first member.
        unsafe { &*queue.cast::<Completions>() }
    }

    fn lock(&self) {
        while self.is_locked.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    fn unlock(&self) {
        self.is_locked.store(false, Ordering::Release);
    }

    /// Adds a queue pair that completes here.
    pub fn attach(&self, pair: *const Pair) {
        self.lock();
        // SAFETY: the lock is held; the pair is not destroyed before it is detached.
        let pair = unsafe {
            (*self.inner.get()).pairs.push(pair);
            &*pair
        };
        if self.entries.get().is_some() && self.is(pair.receives_to()) {
            pair.origin.page.set_drained();
        }
        self.unlock();
    }

    /// Removes a queue pair before it is destroyed.
    pub fn detach(&self, pair: *const Pair) {
        self.lock();
        // SAFETY: the lock is held.
        unsafe { (*self.inner.get()).pairs.retain(|known| *known != pair) };
        self.unlock();
    }

    /// Starts a poll. Returns whether there is a completion; the lock is then held.
    fn start(&self) -> bool {
        self.lock();
        match self.entries.get() {
            Some(entries) => drop(self.fill_locked(entries)),
            None => {
                self.drive();
                self.look_for_overrun();
            }
        }
        // SAFETY: the lock is held.
        let inner = unsafe { &mut *self.inner.get() };
        inner.idle = inner.idle.wrapping_add(1);
        if self.advance() {
            inner.idle = 0;
            return true;
        }
        // The peer may need this core: NICs work without CPU cores, but this simulation does not.
        let gives_way = inner.idle.is_multiple_of(IDLE);
        self.unlock();
        if gives_way {
            std::thread::yield_now();
        }
        false
    }

    fn is(&self, queue: *mut ibv_cq) -> bool {
        std::ptr::eq(queue.cast(), self)
    }

    /// Returns the number of entries that C requested, rounded up to a power of two.
    pub fn depth(&self) -> u32 {
        // SAFETY: written once, before the queue is shared.
        (unsafe { (*self.verbs.get()).cqe } as u32).max(1).next_power_of_two()
    }

    /// Returns the first attached pair. The caller must hold the lock.
    fn first(&self) -> Option<&Pair> {
        // SAFETY: the lock is held, and attached pairs are not destroyed.
        unsafe { (*self.inner.get()).pairs.first().map(|pair| &**pair) }
    }

    /// Returns whether queue pairs complete here.
    pub fn has_pairs(&self) -> bool {
        self.lock();
        let has = self.first().is_some();
        self.unlock();
        has
    }

    /// Returns the completions in memory, and creates them on the first call. `made` is then called with the first
    /// attached pair, and must have the engine poll the queue.
    pub fn entries(&self, made: impl FnOnce(Option<&Pair>)) -> std::io::Result<&Entries> {
        self.lock();
        let entries = match self.entries.get() {
            Some(entries) => Ok(entries),
            None => Entries::new(self.depth(), &self.context.machine.spec)
                .map(|entries| self.entries.get_or_init(|| entries))
                .inspect(|_| made(self.first())),
        };
        // SAFETY: the lock is held, and attached pairs are not destroyed.
        for pair in unsafe { (*self.inner.get()).pairs.iter().map(|pair| &**pair) } {
            if self.is(pair.receives_to()) {
                pair.origin.page.set_drained();
            }
        }
        self.unlock();
        entries
    }

    /// Called by the engine: writes completions to memory. Returns whether there were any.
    pub fn fill(&self) -> bool {
        let Some(entries) = self.entries.get() else { return false };
        // If the lock is taken, a thread that polls through the C functions fills the queue itself.
        if self.is_locked.swap(true, Ordering::Acquire) {
            return false;
        }
        let moved = self.fill_locked(entries);
        self.unlock();
        moved
    }

    fn fill_locked(&self, entries: &Entries) -> bool {
        self.drive();
        let mut moved = false;
        while let Some(entry) = self.next() {
            entries.put(&entry);
            moved = true;
        }
        moved
    }

    /// Switches to an overrun queue if more completions have arrived than there are entries. The caller must hold the
    /// lock, and the queue must not be in memory.
    fn look_for_overrun(&self) {
        // SAFETY: the caller holds the lock.
        let inner = unsafe { &mut *self.inner.get() };
        // SAFETY: attached pairs are not destroyed.
        let arrives = || inner.pairs.iter().map(|pair| unsafe { &**pair }).filter(|pair| self.is(pair.receives_to()));
        if inner.overrun.is_none() {
            let waiting: u64 = arrives().map(Pair::waiting).sum();
            if waiting <= self.depth().into() {
                return;
            }
            let depth = self.depth();
            eprintln!("soft_efa: a completion queue of {depth} entries overran: {waiting} arrivals have not been read");
        }
        let lost: u64 = arrives().map(|pair| pair.origin.page.take_lost()).sum();
        let mut lap = inner.overrun.take().unwrap_or_else(|| Lap::new(self.depth()));
        while let Some(entry) = self.next() {
            lap.put(Some(entry));
        }
        (0..lost).for_each(|_| lap.put(None));
        // SAFETY: the caller holds the lock.
        unsafe { (*self.inner.get()).overrun = Some(lap) };
    }

    /// Polls the send sides that complete here. The caller must hold the lock.
    fn drive(&self) {
        // SAFETY: the caller holds the lock.
        let inner = unsafe { &mut *self.inner.get() };
        for pair in &inner.pairs {
            // SAFETY: attached pairs are not destroyed.
            let pair = unsafe { &**pair };
            // The engine polls pairs whose rings C writes.
            if self.is(pair.sends_to()) && pair.rings.get().is_none() {
                locked(&pair.sender).poll();
            }
        }
    }

    /// Writes the next completion to the part visible to C. Returns false if there is none. The caller must hold the
    /// lock.
    fn advance(&self) -> bool {
        let next = match self.entries.get() {
            // SAFETY: the caller holds the lock.
            Some(entries) => entries.get(unsafe { &mut (*self.inner.get()).read }),
            // SAFETY: the caller holds the lock.
            None => match unsafe { &mut (*self.inner.get()).overrun } {
                Some(lap) => lap.get(),
                None => self.next(),
            },
        };
        let Some(entry) = next else { return false };
        // SAFETY: the caller holds the lock.
        let (inner, verbs) = unsafe { (&mut *self.inner.get(), &mut *self.verbs.get()) };
        (verbs.wr_id, verbs.status) = (entry.wr_id, verbs_status(entry.status));
        inner.current = entry;
        true
    }

    /// Removes and returns the next completion of the pairs. The caller must hold the lock.
    fn next(&self) -> Option<Entry> {
        // SAFETY: the caller holds the lock.
        let inner = unsafe { &mut *self.inner.get() };
        for _ in 0..inner.pairs.len() {
            inner.next = (inner.next + 1) % inner.pairs.len();
            // SAFETY: attached pairs are not destroyed.
            let pair = unsafe { &*inner.pairs[inner.next] };
            if self.context.machine.spec.session_lock && self.is(pair.sends_to()) {
                reading::wait_for_session(pair);
            }
            if self.is(pair.sends_to())
                && let Some(done) = locked(&pair.sender).done()
            {
                if pair.is_open.load(Ordering::Relaxed) {
                    reading::report_session();
                }
                return Some(Entry {
                    wr_id: done.wr_id,
                    status: done.status,
                    kind: done.kind,
                    number: pair.number(),
                    source: u32::MAX,
                    handle: UNKNOWN,
                    ..Entry::default()
                });
            }
            if self.is(pair.receives_to())
                && let Some(arrival) = pair.arrival()
            {
                let handle = self.context.handles.find(&arrival.gid).unwrap_or(UNKNOWN);
                if self.context.machine.spec.trace {
                    let (from, to, bytes) = (arrival.source, pair.number(), arrival.bytes);
                    eprintln!("soft_efa: {bytes} B from {from} (handle {handle}) have arrived at {to}");
                }
                return Some(Entry {
                    wr_id: arrival.wr_id.unwrap_or_default(),
                    status: arrival.status,
                    is_arrival: true,
                    kind: if arrival.is_write { Kind::Write } else { Kind::Send },
                    bytes: arrival.bytes,
                    immediate: arrival.immediate,
                    number: pair.number(),
                    source: arrival.source,
                    gid: arrival.gid,
                    handle,
                    unsolicited: arrival.wr_id.is_none(),
                });
            }
        }
        None
    }
}

/// Returns the queue of a C pointer.
///
/// # Safety
/// `queue` must have been returned by [`create`] and not be destroyed.
unsafe fn of<'a>(queue: *mut ibv_cq_ex) -> &'a Completions {
    // SAFETY: the caller guarantees that the queue is valid.
    unsafe { Completions::of(queue.cast()) }
}

unsafe extern "C" fn start_poll(queue: *mut ibv_cq_ex, attributes: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: by C's contract, queue and attributes are valid, here and below.
    let (this, mask) = unsafe { (of(queue), (*attributes).comp_mask) };
    if mask != 0 {
        return libc::EINVAL;
    }
    if this.start() { 0 } else { libc::ENOENT }
}

unsafe extern "C" fn next_poll(queue: *mut ibv_cq_ex) -> c_int {
    // SAFETY: see `start_poll`, which has taken the lock.
    if unsafe { of(queue) }.advance() { 0 } else { libc::ENOENT }
}

unsafe extern "C" fn end_poll(queue: *mut ibv_cq_ex) {
    // SAFETY: see `start_poll`.
    unsafe { of(queue) }.unlock();
}

/// Returns the completion that C is reading.
///
/// # Safety
/// See `start_poll`; must be called within a poll.
unsafe fn current<'a>(queue: *mut ibv_cq_ex) -> &'a Entry {
    // SAFETY: the caller is within a poll, so the lock is held.
    unsafe { &(*of(queue).inner.get()).current }
}

/// Returns C's operation of a completion. libefa reports a read as a send.
pub fn opcode(entry: &Entry) -> c_uint {
    match (entry.is_arrival, entry.kind) {
        (true, Kind::Write) => IBV_WC_RECV_RDMA_WITH_IMM,
        (true, _) => IBV_WC_RECV,
        (false, Kind::Write) => IBV_WC_RDMA_WRITE,
        (false, _) => IBV_WC_SEND,
    }
}

/// Returns C's flags of a completion.
pub fn flags(entry: &Entry) -> c_uint {
    if entry.immediate.is_some() { IBV_WC_WITH_IMM } else { 0 }
}

/// Defines the functions by which C reads the fields of a completion.
macro_rules! readers {
    ($($name:ident -> $answer:ty = |$entry:ident| $part:expr;)*) => {$(
        unsafe extern "C" fn $name(queue: *mut ibv_cq_ex) -> $answer {
            // SAFETY: C's contract allows the call only within a poll.
            let $entry = unsafe { current(queue) };
            $part
        }
    )*};
}
readers! {
    read_opcode -> c_uint = |entry| opcode(entry);
    read_vendor_err -> u32 = |entry| entry.status;
    read_byte_len -> u32 = |entry| entry.bytes;
    read_imm_data -> u32 = |entry| entry.immediate.unwrap_or_default();
    read_qp_num -> u32 = |entry| entry.number;
    read_src_qp -> u32 = |entry| entry.source;
    read_wc_flags -> c_uint = |entry| flags(entry);
    read_slid -> u32 = |entry| u32::from(entry.handle);
}

unsafe extern "C" fn read_nothing(_: *mut ibv_cq_ex) -> u8 {
    0
}

/// Returns the current completion of a queue, given its EFA interface.
///
/// # Safety
/// `efa` must have been returned by [`efadv_cq_from_ibv_cq_ex`]; must be called within a poll.
unsafe fn entry_of<'a>(efa: *mut efadv_cq) -> &'a Entry {
    // SAFETY: the caller guarantees that `efa` is the member of a valid queue.
    unsafe { current(efa.byte_sub(std::mem::offset_of!(Completions, efa)).cast()) }
}

unsafe extern "C" fn wc_read_sgid(efa: *mut efadv_cq, place: *mut ibv_gid) -> c_int {
    // SAFETY: within a poll, by C's contract; `place` is valid for writes.
    unsafe {
        let entry = entry_of(efa);
        if entry.handle != UNKNOWN {
            // The address is available only if it has no handle.
            return -libc::ENOENT;
        }
        place.write(ibv_gid { raw: entry.gid });
    }
    0
}

unsafe extern "C" fn wc_is_unsolicited(efa: *mut efadv_cq) -> bool {
    // SAFETY: within a poll, by C's contract.
    unsafe { entry_of(efa) }.unsolicited
}
