//! Completion queues as C polls them: one completion at a time. C reads its fields by calling functions.

mod poll;
mod reading;

pub use poll::{flags, opcode};

use crate::abi::*;
use crate::channel::CompletionChannel;
use crate::context::{DeviceContext, refuse};
use crate::entries::{CompletionEntries, CompletionEntry, UNKNOWN};
use crate::lap::Lap;
use crate::locked;
use crate::pair::SoftQueuePair;
use crate::request::RequestKind;
use crate::status::verbs_status;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of consecutive unsuccessful polls after which the thread yields.
const IDLE: u32 = 32;

/// A completion queue. The part visible to C comes first.
#[repr(C)]
pub struct SoftCompletionQueue {
    verbs: UnsafeCell<ibv_cq_ex>,
    efa: efadv_cq,
    context: &'static DeviceContext,
    /// The completions in memory, once C has requested their address. From then on the C functions also read them
    /// there.
    entries: OnceLock<CompletionEntries>,
    /// Whether C has requested a notification by a function, and the engine has not sent it.
    is_armed: AtomicBool,
    /// Locked from the start of a poll to its end, as in libefa.
    is_locked: AtomicBool,
    inner: UnsafeCell<Inner>,
}

// SAFETY: only the holder of the lock uses the cells; C reads its part within a poll.
unsafe impl Sync for SoftCompletionQueue {}

#[derive(Default)]
struct Inner {
    pairs: Vec<*const SoftQueuePair>,
    /// Index of the pair that is polled next.
    next: usize,
    /// Number of consecutive unsuccessful polls.
    idle: u32,
    /// Number of completions in memory that have been read.
    read: u64,
    /// Set once more unread completions have arrived than the queue has entries.
    overrun: Option<Lap>,
    current: CompletionEntry,
}

/// Creates a queue.
///
/// # Safety
/// `context` must be open, and `attributes` must be valid.
pub unsafe extern "C" fn create(context: *mut ibv_context, attributes: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    // SAFETY: the caller guarantees that the context is open and the attributes are valid.
    let (context, attributes) = unsafe { (DeviceContext::of(context), &*attributes) };
    if attributes.comp_mask != 0 {
        return refuse(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller guarantees that the channel is null or valid.
    if let Some(channel) = unsafe { CompletionChannel::of(attributes.channel) } {
        channel.refer(1);
    }
    // SAFETY: the type has only numbers, pointers and optional functions, for all of which zero is a valid value.
    let mut verbs: ibv_cq_ex = unsafe { std::mem::zeroed() };
    (verbs.context, verbs.cq_context, verbs.cqe) = (context.verbs(), attributes.cq_context, attributes.cqe as c_int);
    verbs.channel = attributes.channel;
    poll::set_functions(&mut verbs);
    let made = SoftCompletionQueue {
        verbs: UnsafeCell::new(verbs),
        efa: poll::EFA,
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
    unsafe { (&raw const (*queue.cast::<SoftCompletionQueue>()).efa).cast_mut() }
}

impl SoftCompletionQueue {
    /// Returns the queue of a C pointer.
    ///
    /// # Safety
    /// `queue` must have been returned by [`create`] and not be destroyed.
    pub unsafe fn of<'a>(queue: *mut ibv_cq) -> &'a SoftCompletionQueue {
        // SAFETY: the part visible to C is the first member.
        unsafe { &*queue.cast::<SoftCompletionQueue>() }
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
    pub fn attach(&self, pair: *const SoftQueuePair) {
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
    pub fn detach(&self, pair: *const SoftQueuePair) {
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
    fn first(&self) -> Option<&SoftQueuePair> {
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
    pub fn entries(&self, made: impl FnOnce(Option<&SoftQueuePair>)) -> std::io::Result<&CompletionEntries> {
        self.lock();
        let entries = match self.entries.get() {
            Some(entries) => Ok(entries),
            None => CompletionEntries::new(self.depth(), &self.context.machine.spec)
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

    fn fill_locked(&self, entries: &CompletionEntries) -> bool {
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
            let waiting: u64 = arrives().map(SoftQueuePair::waiting).sum();
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
    fn next(&self) -> Option<CompletionEntry> {
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
                return Some(CompletionEntry {
                    wr_id: done.wr_id,
                    status: done.status,
                    kind: done.kind,
                    number: pair.number(),
                    source: u32::MAX,
                    handle: UNKNOWN,
                    ..CompletionEntry::default()
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
                return Some(CompletionEntry {
                    wr_id: arrival.wr_id.unwrap_or_default(),
                    status: arrival.status,
                    is_arrival: true,
                    kind: if arrival.is_write { RequestKind::Write } else { RequestKind::Send },
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
