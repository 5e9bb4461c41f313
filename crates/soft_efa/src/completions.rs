//! Completion queues as C polls them: one completion at a time, whose parts it reads by functions.

use crate::abi::*;
use crate::context::{Context, refuse};
use crate::entries::{Entries, Entry, UNKNOWN};
use crate::locked;
use crate::pair::Pair;
use crate::request::Kind;
use crate::status::verbs_status;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// After so many polls in vain the thread gives way to others.
const IDLE: u32 = 32;

/// A completion queue. What C sees comes first.
#[repr(C)]
pub struct Completions {
    verbs: UnsafeCell<ibv_cq_ex>,
    efa: efadv_cq,
    context: &'static Context,
    /// Its completions in memory, once C has asked where they are: from then on they are there, and who polls reads them there.
    entries: OnceLock<Entries>,
    /// Held from the start of a poll to its end, as libefa holds it.
    is_locked: AtomicBool,
    inner: UnsafeCell<Inner>,
}

// SAFETY: the cells are used by who holds the lock; C reads its part then, too.
unsafe impl Sync for Completions {}

#[derive(Default)]
struct Inner {
    pairs: Vec<*const Pair>,
    /// Whose turn is next.
    next: usize,
    /// Polls that found nothing, one after another.
    idle: u32,
    /// Read of the completions in memory.
    read: u64,
    current: Entry,
}

/// Makes a queue.
///
/// # Safety
/// The context is open, the attributes are C's.
pub unsafe extern "C" fn create(context: *mut ibv_context, attributes: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    // SAFETY: the caller's contract.
    let (context, attributes) = unsafe { (Context::of(context), &*attributes) };
    if attributes.comp_mask != 0 || !attributes.channel.is_null() {
        return refuse(libc::EOPNOTSUPP);
    }
    // SAFETY: numbers, pointers and optional functions: zero is a value of each.
    let mut verbs: ibv_cq_ex = unsafe { std::mem::zeroed() };
    (verbs.context, verbs.cq_context, verbs.cqe) = (context.verbs(), attributes.cq_context, attributes.cqe as c_int);
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
        is_locked: AtomicBool::new(false),
        inner: UnsafeCell::default(),
    };
    Box::into_raw(Box::new(made)).cast()
}

/// EFA's face of a queue.
///
/// # Safety
/// Made by [`efadv_create_cq`](crate::efadv_create_cq).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_cq_from_ibv_cq_ex(queue: *mut ibv_cq_ex) -> *mut efadv_cq {
    // SAFETY: the caller's contract.
    unsafe { (&raw const (*queue.cast::<Completions>()).efa).cast_mut() }
}

impl Completions {
    /// The queue that C means.
    ///
    /// # Safety
    /// The pointer is one that [`create`] returned and that is not destroyed.
    pub unsafe fn of<'a>(queue: *mut ibv_cq) -> &'a Completions {
        // SAFETY: C's part is the first member.
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

    /// A pair completes here from now on.
    pub fn attach(&self, pair: *const Pair) {
        self.lock();
        // SAFETY: locked.
        unsafe { (*self.inner.get()).pairs.push(pair) };
        self.unlock();
    }

    /// A pair is destroyed.
    pub fn detach(&self, pair: *const Pair) {
        self.lock();
        // SAFETY: locked.
        unsafe { (*self.inner.get()).pairs.retain(|known| *known != pair) };
        self.unlock();
    }

    fn is(&self, queue: *mut ibv_cq) -> bool {
        std::ptr::eq(queue.cast(), self)
    }

    /// Entries that C asked for, rounded up.
    pub fn depth(&self) -> u32 {
        // SAFETY: written once, before it is shared.
        (unsafe { (*self.verbs.get()).cqe } as u32).max(1).next_power_of_two()
    }

    /// The first pair that completes here. The caller holds the lock.
    fn first(&self) -> Option<&Pair> {
        // SAFETY: locked; attached, so not destroyed.
        unsafe { (*self.inner.get()).pairs.first().map(|pair| &**pair) }
    }

    /// Whether queue pairs complete here.
    pub fn has_pairs(&self) -> bool {
        self.lock();
        let has = self.first().is_some();
        self.unlock();
        has
    }

    /// Its completions in memory, from now on. Who makes them has the card look at the queue: `made` gets the first pair that completes here.
    pub fn entries(&self, made: impl FnOnce(Option<&Pair>)) -> std::io::Result<&Entries> {
        self.lock();
        let entries = match self.entries.get() {
            Some(entries) => Ok(entries),
            None => Entries::new(self.depth(), &self.context.machine.spec)
                .map(|entries| self.entries.get_or_init(|| entries))
                .inspect(|_| made(self.first())),
        };
        self.unlock();
        entries
    }

    /// The card's look: what is complete goes into memory. Whether there was anything.
    pub fn fill(&self) -> bool {
        let Some(entries) = self.entries.get() else { return false };
        // Who polls by C's functions fills it, too.
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

    /// Time goes on for the cards whose sends complete here.
    fn drive(&self) {
        // SAFETY: locked by the caller.
        let inner = unsafe { &mut *self.inner.get() };
        for pair in &inner.pairs {
            // SAFETY: attached, so not destroyed.
            let pair = unsafe { &**pair };
            // The thread of the card drives those whose rings C writes.
            if self.is(pair.sends_to()) && pair.rings.get().is_none() {
                locked(&pair.sender).poll();
            }
        }
    }

    /// The next completion into C's part; false when there is none. The caller holds the lock.
    fn advance(&self) -> bool {
        let next = match self.entries.get() {
            // SAFETY: locked.
            Some(entries) => entries.get(unsafe { &mut (*self.inner.get()).read }),
            None => self.next(),
        };
        let Some(entry) = next else { return false };
        // SAFETY: locked.
        let (inner, verbs) = unsafe { (&mut *self.inner.get(), &mut *self.verbs.get()) };
        (verbs.wr_id, verbs.status) = (entry.wr_id, verbs_status(entry.status));
        inner.current = entry;
        true
    }

    /// The next completion of the pairs. The caller holds the lock.
    fn next(&self) -> Option<Entry> {
        // SAFETY: locked.
        let inner = unsafe { &mut *self.inner.get() };
        for _ in 0..inner.pairs.len() {
            inner.next = (inner.next + 1) % inner.pairs.len();
            // SAFETY: attached, so not destroyed.
            let pair = unsafe { &*inner.pairs[inner.next] };
            if self.is(pair.sends_to())
                && let Some(done) = locked(&pair.sender).done()
            {
                if pair.is_open.load(Ordering::Relaxed) {
                    said_once();
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

/// Says, once, that a doorbell was held open while completions were polled for: libefa takes the queue's lock, which the open
/// session holds, and the thread waits for itself for ever.
fn said_once() {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| {
        eprintln!("soft_efa: completions of sends were polled for within an open session (FI_MORE): a real card's library hangs");
    });
}

/// The queue of a function of C's.
///
/// # Safety
/// One of [`create`].
unsafe fn of<'a>(queue: *mut ibv_cq_ex) -> &'a Completions {
    // SAFETY: the caller's contract.
    unsafe { Completions::of(queue.cast()) }
}

unsafe extern "C" fn start_poll(queue: *mut ibv_cq_ex, attributes: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: C's queue and attributes, here and below.
    let (this, mask) = unsafe { (of(queue), (*attributes).comp_mask) };
    if mask != 0 {
        return libc::EINVAL;
    }
    this.lock();
    match this.entries.get() {
        Some(entries) => drop(this.fill_locked(entries)),
        None => this.drive(),
    }
    // SAFETY: locked.
    let inner = unsafe { &mut *this.inner.get() };
    inner.idle = inner.idle.wrapping_add(1);
    if this.advance() {
        inner.idle = 0;
        return 0;
    }
    // The peer whose turn it is may want this core: cards have cores of their own, processes may not.
    let gives_way = inner.idle.is_multiple_of(IDLE);
    this.unlock();
    if gives_way {
        std::thread::yield_now();
    }
    libc::ENOENT
}

unsafe extern "C" fn next_poll(queue: *mut ibv_cq_ex) -> c_int {
    // SAFETY: see `start_poll`; the lock is held since.
    if unsafe { of(queue) }.advance() { 0 } else { libc::ENOENT }
}

unsafe extern "C" fn end_poll(queue: *mut ibv_cq_ex) {
    // SAFETY: see `start_poll`.
    unsafe { of(queue) }.unlock();
}

/// The completion that C reads now.
///
/// # Safety
/// See `start_poll`; within a poll.
unsafe fn current<'a>(queue: *mut ibv_cq_ex) -> &'a Entry {
    // SAFETY: the caller's: the lock is held.
    unsafe { &(*of(queue).inner.get()).current }
}

/// The functions by which C reads the parts of a completion.
macro_rules! readers {
    ($($name:ident -> $answer:ty = |$entry:ident| $part:expr;)*) => {$(
        unsafe extern "C" fn $name(queue: *mut ibv_cq_ex) -> $answer {
            // SAFETY: within a poll, as C's contract has it.
            let $entry = unsafe { current(queue) };
            $part
        }
    )*};
}
readers! {
    read_opcode -> c_uint = |entry| match (entry.is_arrival, entry.kind) {
        (true, Kind::Write) => IBV_WC_RECV_RDMA_WITH_IMM,
        (true, _) => IBV_WC_RECV,
        (false, Kind::Write) => IBV_WC_RDMA_WRITE,
        (false, _) => IBV_WC_SEND,
    };
    read_vendor_err -> u32 = |entry| entry.status;
    read_byte_len -> u32 = |entry| entry.bytes;
    read_imm_data -> u32 = |entry| entry.immediate.unwrap_or_default();
    read_qp_num -> u32 = |entry| entry.number;
    read_src_qp -> u32 = |entry| entry.source;
    read_wc_flags -> c_uint = |entry| if entry.immediate.is_some() { IBV_WC_WITH_IMM } else { 0 };
    read_slid -> u32 = |entry| u32::from(entry.handle);
}

unsafe extern "C" fn read_nothing(_: *mut ibv_cq_ex) -> u8 {
    0
}

/// The queue of which C holds EFA's part.
///
/// # Safety
/// One of [`efadv_cq_from_ibv_cq_ex`]; within a poll.
unsafe fn entry_of<'a>(efa: *mut efadv_cq) -> &'a Entry {
    // SAFETY: the caller's contract.
    unsafe { current(efa.byte_sub(std::mem::offset_of!(Completions, efa)).cast()) }
}

unsafe extern "C" fn wc_read_sgid(efa: *mut efadv_cq, place: *mut ibv_gid) -> c_int {
    // SAFETY: within a poll; the place is C's.
    unsafe {
        let entry = entry_of(efa);
        if entry.handle != UNKNOWN {
            // Only of those without a handle is the address there.
            return -libc::ENOENT;
        }
        place.write(ibv_gid { raw: entry.gid });
    }
    0
}

unsafe extern "C" fn wc_is_unsolicited(efa: *mut efadv_cq) -> bool {
    // SAFETY: within a poll.
    unsafe { entry_of(efa) }.unsolicited
}
