//! Queue pairs as C sees them: made, changed, and posted to.

use crate::abi::*;
use crate::completions::Completions;
use crate::context::{Context, Handle, PAIRS, refuse};
use crate::flight::Sender;
use crate::locked;
use crate::memory::{FILLED, Range};
use crate::queue::{Arrival, GONE, Page, READY, RECEIVE_PIECES, Receive};
use crate::request::{INLINE, Request, SEND_PIECES};
use crate::session::{self, Session};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// A queue pair. What C sees comes first.
#[repr(C)]
pub struct Pair {
    verbs: UnsafeCell<ibv_qp_ex>,
    /// Its card.
    pub context: &'static Context,
    /// What peers see of it.
    pub page: Page,
    /// What it sends.
    pub sender: Mutex<Sender>,
    receiver: Mutex<Receiver>,
    /// Requests between start and completion. C lets one thread at a time be in there.
    session: UnsafeCell<Session>,
    /// Whether there is such a session.
    pub is_open: AtomicBool,
}

// SAFETY: what C sees is written before it is shared; the session is one thread's by C's contract, the rest is behind locks.
unsafe impl Sync for Pair {}

#[derive(Default)]
struct Receiver {
    depth: u32,
    /// Posted, and their completions not read.
    posted: u32,
    /// What was taken out of the box.
    read: u64,
}

impl Pair {
    /// The pair that C means.
    ///
    /// # Safety
    /// The pointer is one that [`efadv_create_qp_ex`] returned and that is not destroyed.
    pub unsafe fn of<'a>(pair: *mut ibv_qp) -> &'a Pair {
        // SAFETY: the first member of the first member.
        unsafe { &*pair.cast::<Pair>() }
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        // SAFETY: written once, before it is shared.
        unsafe { (*self.verbs.get()).qp_base.qp_num }
    }

    /// In which state C has brought it.
    pub fn state(&self) -> c_uint {
        // SAFETY: C changes it by `ibv_modify_qp` alone, and not while it posts.
        unsafe { (*self.verbs.get()).qp_base.state }
    }

    /// Where its sends complete.
    pub fn sends_to(&self) -> *mut ibv_cq {
        // SAFETY: as above.
        unsafe { (*self.verbs.get()).qp_base.send_cq }
    }

    /// Where its receives complete.
    pub fn receives_to(&self) -> *mut ibv_cq {
        // SAFETY: as above.
        unsafe { (*self.verbs.get()).qp_base.recv_cq }
    }

    /// The oldest arrival.
    pub fn arrival(&self) -> Option<Arrival> {
        let mut receiver = locked(&self.receiver);
        let arrival = self.page.get(&mut receiver.read)?;
        receiver.posted -= u32::from(arrival.wr_id.is_some());
        Some(arrival)
    }

    /// The session.
    ///
    /// # Safety
    /// One thread at a time, by C's contract for sessions.
    #[allow(clippy::mut_from_ref, reason = "C's contract stands in for the exclusive reference")]
    pub unsafe fn session(&self) -> &mut Session {
        // SAFETY: the caller's contract.
        unsafe { &mut *self.session.get() }
    }
}

/// Makes a queue pair of EFA's own kind.
///
/// # Safety
/// The context is open; the attributes are C's; `efa` is null or C's, with so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_create_qp_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
    efa: *mut efadv_qp_init_attr,
    bytes: u32,
) -> *mut ibv_qp {
    // SAFETY: the caller's contract.
    let (context, attributes) = unsafe { (Context::of(context), &*attributes) };
    let (spec, cap) = (&context.machine.spec, &attributes.cap);
    let fits = cap.max_send_wr <= spec.depth
        && cap.max_recv_wr <= spec.receives
        && cap.max_send_sge as usize <= SEND_PIECES
        && cap.max_recv_sge as usize <= RECEIVE_PIECES
        && cap.max_inline_data as usize <= INLINE;
    if attributes.qp_type != IBV_QPT_DRIVER {
        // Datagrams: nothing of ginlab's uses them.
        return refuse(libc::EOPNOTSUPP);
    }
    // SAFETY: null or one of `ibv_alloc_pd`.
    let Some(domain) = (unsafe { attributes.pd.as_ref() }) else { return refuse(libc::EINVAL) };
    if !fits || attributes.send_cq.is_null() || attributes.recv_cq.is_null() {
        return refuse(libc::EINVAL);
    }
    let flags_end = std::mem::offset_of!(efadv_qp_init_attr, flags) + size_of::<u16>();
    // SAFETY: as long as C says it is. Older headers have zeros there.
    let flags = if efa.is_null() || (bytes as usize) < flags_end { 0 } else { unsafe { (*efa).flags } };
    let solicited = u32::from(flags) & EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV == 0;
    let mut pairs = locked(&context.pairs);
    let Some(low) = pairs.iter().position(Option::is_none) else { return refuse(libc::ENOMEM) };
    let made = Page::new(cap.max_recv_wr, context.number, domain.handle, solicited).and_then(|mut page| {
        // Peers know a number of 16 bits; this process's provider finds the pair by its low ones.
        let mut last = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        for attempt in 0..512 {
            let high = context.machine.random(attempt) as u32 & 0xff;
            let number = high << PAIRS.ilog2() | low as u32;
            match page.publish(&crate::address::queue_name(&context.device.gid, number)) {
                Ok(()) => return Ok((page, number)),
                Err(error) => last = error,
            }
        }
        Err(last)
    });
    let (page, number) = match made {
        Ok(made) => made,
        Err(error) => {
            eprintln!("soft_efa: a queue pair in /dev/shm: {error}");
            return refuse(error.raw_os_error().unwrap_or(libc::ENOMEM));
        }
    };
    pairs[low] = Some(number);
    drop(pairs);
    // SAFETY: numbers, pointers and optional functions: zero is a value of each.
    let mut verbs: ibv_qp_ex = unsafe { std::mem::zeroed() };
    let base = &mut verbs.qp_base;
    (base.context, base.qp_context, base.pd) = (context.verbs(), attributes.qp_context, attributes.pd);
    (base.send_cq, base.recv_cq) = (attributes.send_cq, attributes.recv_cq);
    (base.qp_num, base.state, base.qp_type) = (number, IBV_QPS_RESET, attributes.qp_type);
    session::install(&mut verbs, spec.writes);
    let pair = Box::into_raw(Box::new(Pair {
        verbs: UnsafeCell::new(verbs),
        context,
        page,
        sender: Mutex::new(Sender::new(cap.max_send_wr.max(1))),
        receiver: Mutex::new(Receiver { depth: cap.max_recv_wr, ..Receiver::default() }),
        session: UnsafeCell::default(),
        is_open: AtomicBool::new(false),
    }));
    crate::keeper::add(pair);
    // SAFETY: the queues are C's, of the same card, and live longer than the pair.
    unsafe {
        Completions::of(attributes.send_cq).attach(pair);
        if attributes.recv_cq != attributes.send_cq {
            Completions::of(attributes.recv_cq).attach(pair);
        }
    }
    pair.cast()
}

/// Destroys it: what is on its way arrives, and nobody hears of it.
///
/// # Safety
/// Made by [`efadv_create_qp_ex`], and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        let this = Pair::of(pair);
        crate::keeper::remove(this);
        this.page.state().store(GONE, Ordering::Release);
        locked(&this.sender).flush(this);
        Completions::of(this.sends_to()).detach(pair.cast());
        if this.receives_to() != this.sends_to() {
            Completions::of(this.receives_to()).detach(pair.cast());
        }
        locked(&this.context.pairs)[this.number() as usize % PAIRS] = None;
        drop(Box::from_raw(pair.cast::<Pair>()));
    }
    0
}

/// Changes state, key and patience.
///
/// # Safety
/// The pair is one of [`efadv_create_qp_ex`], the attributes are C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(pair: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller's; nobody else changes a pair's state.
    let (this, attributes, state) = unsafe { (Pair::of(pair), &*attributes, &raw mut (*pair).state) };
    if mask & IBV_QP_QKEY != 0 {
        this.page.qkey().store(attributes.qkey, Ordering::Relaxed);
    }
    if mask & IBV_QP_RNR_RETRY != 0 {
        locked(&this.sender).rnr_retry = attributes.rnr_retry;
    }
    if mask & IBV_QP_STATE != 0 {
        // SAFETY: see above.
        let before = unsafe { *state };
        let next = attributes.qp_state;
        if !matches!(
            (before, next),
            (IBV_QPS_RESET, IBV_QPS_INIT) | (IBV_QPS_INIT, IBV_QPS_RTR) | (IBV_QPS_RTR, IBV_QPS_RTS)
        ) {
            return libc::EINVAL;
        }
        // SAFETY: see above.
        unsafe { state.write(next) };
        if next == IBV_QPS_RTR {
            this.page.state().store(READY, Ordering::Release);
        }
    }
    0
}

/// Posts receives.
///
/// # Safety
/// The pair is one of [`efadv_create_qp_ex`], the chain is C's.
pub unsafe extern "C" fn post_recv(
    pair: *mut ibv_qp,
    mut chain: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's contract.
    let this = unsafe { Pair::of(pair) };
    let mut receiver = locked(&this.receiver);
    // SAFETY: null or one of the chain.
    while let Some(request) = unsafe { chain.as_ref() } {
        let mut receive = Receive { wr_id: request.wr_id, ..Receive::default() };
        let mut code = match this.state() {
            IBV_QPS_RESET => libc::EINVAL,
            _ if receiver.posted >= receiver.depth => libc::ENOMEM,
            _ => 0,
        };
        let pieces = usize::try_from(request.num_sge).unwrap_or(usize::MAX);
        if pieces > RECEIVE_PIECES {
            code = libc::EINVAL;
        } else {
            for (index, place) in receive.pieces.iter_mut().enumerate().take(pieces) {
                // SAFETY: the list has so many.
                let piece = unsafe { *request.sg_list.add(index) };
                let (address, bytes, domain) = (piece.addr, u64::from(piece.length), this.page.domain());
                if !this.context.table.allows(piece.lkey, Range { address, bytes, access: FILLED, domain }) {
                    code = libc::EINVAL;
                }
                *place = (piece.addr, piece.length);
            }
        }
        if code == 0 && !this.page.post(&receive) {
            code = libc::ENOMEM;
        }
        if code != 0 {
            // SAFETY: C's place for it.
            unsafe { bad.write(chain) };
            return code;
        }
        receiver.posted += 1;
        chain = request.next;
    }
    0
}

/// Posts a chain of sends.
///
/// # Safety
/// The pair is one of [`efadv_create_qp_ex`], the chain is C's.
pub unsafe extern "C" fn post_send(
    pair: *mut ibv_qp,
    mut chain: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's contract.
    let this = unsafe { Pair::of(pair) };
    let mut sender = locked(&this.sender);
    // SAFETY: null or one of the chain.
    while let Some(request) = unsafe { chain.as_ref() } {
        let mut made = Request { wr_id: request.wr_id, ..Request::default() };
        let code = match request.opcode {
            _ if this.state() != IBV_QPS_RTS => libc::EINVAL,
            IBV_WR_SEND => 0,
            IBV_WR_SEND_WITH_IMM => {
                made.immediate = Some(request.imm_data);
                0
            }
            _ => libc::EINVAL,
        };
        // SAFETY: of a send; the handle is one of ours, the pieces are C's.
        let code = code.max(unsafe {
            let to = request.wr.ud;
            let handle = &*to.ah.cast::<Handle>();
            (made.gid, made.number, made.qkey) = (handle.gid, to.remote_qpn, to.remote_qkey);
            made.domain = handle.domain();
            let pieces = usize::try_from(request.num_sge).unwrap_or(usize::MAX);
            let inline = request.send_flags & IBV_SEND_INLINE != 0;
            if pieces > SEND_PIECES { libc::EINVAL } else { made.take(request.sg_list, pieces, inline) }
        });
        let code = if code == 0 { sender.post(this, std::slice::from_ref(&made)) } else { code };
        if code != 0 {
            // SAFETY: C's place for it.
            unsafe { bad.write(chain) };
            return code;
        }
        chain = request.next;
    }
    0
}
