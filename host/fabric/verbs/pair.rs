//! A queue pair whose queues whoever holds it writes and reads: the CPU, or a kernel.

use super::device::{Verbs, join};
use super::errors;
use crate::{FabricError, mistake, soft};
use efa_queue::rules::DEEPEST;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use verbs_sys as sys;

/// What devices map.
const PAGE: usize = 4096;
/// Patience with a peer without a receive: for ever.
const RNR_RETRY: u8 = 7;

/// What a pair shall have.
#[derive(Clone, Copy, Debug)]
pub struct PairOptions<'a> {
    /// Requests under way at most; a power of two, or rounded up to one.
    pub depth: u32,
    /// Entries of the queue where its requests complete.
    pub completions: u32,
    /// Entries of the queue where what peers do arrives.
    pub arrivals: u32,
    /// Receives that can be posted.
    pub receives: u32,
    /// Whether a write's immediate takes no receive.
    pub unsolicited: bool,
    /// What is counted, each by a counter of its own.
    pub counted: &'a [Counted],
}

/// What a completion counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Writes of this side that are complete.
    Writes,
    /// Reads of this side that are complete.
    Reads,
    /// Writes of peers that have arrived.
    RemoteWrites,
}

/// A ring of requests or of receives, with its doorbell.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// First slot.
    pub slots: *mut u8,
    /// Bytes of a slot.
    pub entry_bytes: u32,
    /// Slots, a power of two.
    pub entries: u32,
    /// Where the count is stored.
    pub doorbell: *mut u32,
    /// Slots that may be written before the doorbell is rung.
    pub max_batch: u32,
}

/// The entries of a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct Completions {
    /// First entry.
    pub slots: *mut u8,
    /// Bytes of an entry.
    pub entry_bytes: u32,
    /// Entries, a power of two.
    pub entries: u32,
}

/// Everything of a pair that a kernel needs. The pointers are of this process and stay valid as long as the pair.
#[derive(Clone, Copy, Debug)]
pub struct PairView {
    /// Its number.
    pub number: u16,
    /// What peers must name beside the number.
    pub qkey: u32,
    /// Requests.
    pub send: Ring,
    /// Receives.
    pub receive: Ring,
    /// Where requests complete.
    pub completions: Completions,
    /// Where what peers do arrives.
    pub arrivals: Completions,
}

impl PairView {
    /// Of a pair whose queues have not been asked for.
    const UNKNOWN: PairView = {
        let null = std::ptr::null_mut();
        let ring = Ring { slots: null, entry_bytes: 0, entries: 0, doorbell: std::ptr::null_mut(), max_batch: 0 };
        let queue = Completions { slots: null, entry_bytes: 0, entries: 0 };
        PairView { number: 0, qkey: 0, send: ring, receive: ring, completions: queue, arrivals: queue }
    };
}

// SAFETY: pointers to memory that every thread, and a device, uses as words.
unsafe impl Send for PairView {}
// SAFETY: as above.
unsafe impl Sync for PairView {}

/// A stretch of whole pages that a device has to map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First byte.
    pub start: *mut u8,
    /// Length.
    pub bytes: usize,
    /// Whether it is a window of the card (registers), not memory: a GPU maps it as such (`CU_MEMHOSTREGISTER_IOMEMORY`).
    pub is_card: bool,
}

/// A queue pair with two completion queues, ready to send.
#[derive(Debug)]
pub struct Pair {
    verbs: Verbs,
    pair: *mut sys::ibv_qp,
    queues: [*mut sys::ibv_cq_ex; 2],
    counters: Vec<(Counted, Counter)>,
    view: PairView,
    qkey: u32,
}

// SAFETY: objects of verbs are not bound to a thread.
unsafe impl Send for Pair {}

/// A counter in a page of ours.
#[derive(Debug)]
struct Counter {
    made: *mut sys::ibv_comp_cntr,
    page: NonNull<std::ffi::c_void>,
}

impl Drop for Pair {
    fn drop(&mut self) {
        let library = self.verbs.0.library;
        // SAFETY: made by `open`, used by nobody any more; in the order of the manual.
        unsafe {
            if !self.pair.is_null() {
                (library.ibv_destroy_qp)(self.pair);
            }
            for queue in self.queues.into_iter().filter(|queue| !queue.is_null()) {
                (library.ibv_destroy_cq)(queue.cast());
            }
            for (_, counter) in &self.counters {
                if let Some(calls) = &library.counters {
                    (calls.ibv_destroy_comp_cntr)(counter.made);
                }
                let _ = munmap(counter.page, PAGE);
            }
        }
    }
}

impl Verbs {
    /// A queue pair that is ready to send.
    ///
    /// # Errors
    /// What the card says.
    pub fn pair(&self, options: &PairOptions) -> Result<Pair, FabricError> {
        Pair::open(self, options)
    }
}

impl Pair {
    pub(super) fn open(verbs: &Verbs, options: &PairOptions<'_>) -> Result<Pair, FabricError> {
        let device = &verbs.0;
        let most = device.attributes.max_sq_wr.min(DEEPEST);
        if options.depth == 0 || options.depth > most {
            let text = format!("a queue of {} requests: this card takes 1 to {most}", options.depth);
            return Err(mistake(&device.rail, "opening a queue pair", text));
        }
        if options.unsolicited && !verbs.unsolicited() {
            let text = "this card, or this libefa, spends a receive on each immediate (no UNSOLICITED_WRITE_RECV)";
            return Err(mistake(&device.rail, "opening a queue pair", text));
        }
        // Q keys with the high bit are the system's.
        let qkey =
            getrandom::u32().map_err(|_| mistake(&device.rail, "drawing a key", "the system has no random number"))?;
        let mut pair = Pair {
            verbs: verbs.clone(),
            pair: std::ptr::null_mut(),
            queues: [std::ptr::null_mut(); 2],
            counters: Vec::new(),
            view: PairView::UNKNOWN,
            qkey: qkey & 0x7fff_ffff,
        };
        for (place, entries) in [(0, options.completions), (1, options.arrivals)] {
            pair.queues[place] = pair.queue(entries)?;
        }
        pair.create(options)?;
        for counted in options.counted {
            let counter = pair.count(*counted)?;
            pair.counters.push((*counted, counter));
        }
        pair.bring_up()?;
        pair.view = pair.query()?;
        Ok(pair)
    }

    fn fail(&self, operation: &str, code: Option<i32>) -> FabricError {
        errors::call(&self.verbs.0.rail, operation, code)
    }

    fn queue(&self, entries: u32) -> Result<*mut sys::ibv_cq_ex, FabricError> {
        let device = &self.verbs.0;
        // SAFETY: numbers and pointers: zero is a value of each.
        let (mut attributes, mut efa): (sys::ibv_cq_init_attr_ex, sys::efadv_cq_init_attr) =
            unsafe { std::mem::zeroed() };
        attributes.cqe = entries.max(1).next_power_of_two();
        // The form of before external memory is in every libefa that is new enough.
        let bytes = std::mem::offset_of!(sys::efadv_cq_init_attr, flags) as u32;
        // SAFETY: open; the attributes are ours.
        let made = unsafe { (device.library.efadv_create_cq)(device.context, &mut attributes, &mut efa, bytes) };
        if made.is_null() { Err(self.fail("efadv_create_cq", None)) } else { Ok(made) }
    }

    fn create(&mut self, options: &PairOptions<'_>) -> Result<(), FabricError> {
        let device = &self.verbs.0;
        // SAFETY: numbers and pointers: zero is a value of each.
        let mut attributes: sys::ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
        (attributes.send_cq, attributes.recv_cq) = (self.queues[0].cast(), self.queues[1].cast());
        attributes.cap = sys::ibv_qp_cap {
            max_send_wr: options.depth,
            max_recv_wr: options.receives.max(1),
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        attributes.qp_type = sys::IBV_QPT_DRIVER;
        attributes.comp_mask = sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attributes.pd = device.domain;
        let mut operations = sys::IBV_QP_EX_WITH_SEND | sys::IBV_QP_EX_WITH_RDMA_READ;
        if self.verbs.writes() {
            operations |= sys::IBV_QP_EX_WITH_RDMA_WRITE | sys::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
        }
        attributes.send_ops_flags = operations.into();
        let flags = if options.unsolicited { sys::EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV } else { 0 };
        let mut efa = sys::efadv_qp_init_attr {
            comp_mask: 0,
            driver_qp_type: sys::EFADV_QP_DRIVER_TYPE_SRD,
            flags: flags as u16,
            sl: 0,
            reserved: 0,
            wr_flags: 0,
        };
        // The form of before processing hints: no libefa knows less.
        let bytes = std::mem::offset_of!(sys::efadv_qp_init_attr, wr_flags) as u32;
        // SAFETY: open; the queues are of this card, the attributes ours.
        self.pair = unsafe { (device.library.efadv_create_qp_ex)(device.context, &mut attributes, &mut efa, bytes) };
        if self.pair.is_null() { Err(self.fail("efadv_create_qp_ex", None)) } else { Ok(()) }
    }

    /// A counter of this, which the pair has from now on.
    fn count(&self, counted: Counted) -> Result<Counter, FabricError> {
        let device = &self.verbs.0;
        let Some(calls) = device.library.counters.as_ref().filter(|_| self.verbs.counters()) else {
            let text = "this card has no completion counters, or this libefa does not know them (rdma-core 65 does)";
            return Err(mistake(&device.rail, "efadv_create_comp_cntr", text));
        };
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let length = NonZeroUsize::new(PAGE).unwrap_or(NonZeroUsize::MIN);
        // SAFETY: the place is the system's choice.
        let page = unsafe { mmap_anonymous(None, length, access, MapFlags::MAP_PRIVATE) }
            .map_err(|code| self.fail("a page for a counter", Some(code as i32)))?;
        // SAFETY: numbers and pointers: zero is a value of each.
        let mut efa: sys::efadv_comp_cntr_init_attr = unsafe { std::mem::zeroed() };
        efa.flags = sys::EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM;
        efa.comp_cntr_ext_mem.ptr = page.as_ptr().cast();
        let mut attributes = sys::ibv_comp_cntr_init_attr::default();
        let bytes = size_of::<sys::efadv_comp_cntr_init_attr>() as u32;
        // SAFETY: open; the page stays as long as the counter.
        let made = unsafe { (calls.efadv_create_comp_cntr)(device.context, &mut attributes, &mut efa, bytes) };
        if made.is_null() {
            let error = self.fail("efadv_create_comp_cntr", None);
            // SAFETY: mapped above, in nobody's hands.
            let _ = unsafe { munmap(page, PAGE) };
            return Err(error);
        }
        let op_mask = match counted {
            Counted::Writes => sys::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE,
            Counted::Reads => sys::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ,
            Counted::RemoteWrites => sys::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE,
        };
        let mut attach = sys::ibv_qp_attach_comp_cntr_attr { comp_mask: 0, op_mask };
        // SAFETY: both are there.
        let code = unsafe { (calls.ibv_qp_attach_comp_cntr)(self.pair, made, &mut attach) };
        if code != 0 {
            let error = self.fail("ibv_qp_attach_comp_cntr", Some(code));
            // SAFETY: made above, attached to nothing.
            unsafe {
                (calls.ibv_destroy_comp_cntr)(made);
                let _ = munmap(page, PAGE);
            }
            return Err(error);
        }
        Ok(Counter { made, page })
    }

    fn bring_up(&self) -> Result<(), FabricError> {
        let init = sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_QKEY;
        let mut ready = sys::IBV_QP_STATE | sys::IBV_QP_SQ_PSN;
        if self.verbs.0.attributes.device_caps & sys::EFADV_DEVICE_ATTR_CAPS_RNR_RETRY != 0 {
            ready |= sys::IBV_QP_RNR_RETRY;
        }
        for (state, mask) in
            [(sys::IBV_QPS_INIT, init), (sys::IBV_QPS_RTR, sys::IBV_QP_STATE), (sys::IBV_QPS_RTS, ready)]
        {
            // SAFETY: numbers: zero is a value of each.
            let mut change: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
            (change.qp_state, change.qkey, change.port_num, change.rnr_retry) = (state, self.qkey, 1, RNR_RETRY);
            // SAFETY: the pair is there.
            let code = unsafe { (self.verbs.0.library.ibv_modify_qp)(self.pair, &mut change, mask) };
            if code != 0 {
                return Err(self.fail("ibv_modify_qp", Some(code)));
            }
        }
        Ok(())
    }

    fn query(&self) -> Result<PairView, FabricError> {
        let library = self.verbs.0.library;
        // SAFETY: numbers and pointers: zero is a value of each.
        let (mut sends, mut receives): (sys::efadv_wq_attr, sys::efadv_wq_attr) = unsafe { std::mem::zeroed() };
        // As long since rdma-core 59.
        let bytes = size_of::<sys::efadv_wq_attr>() as u32;
        // SAFETY: the pair is there, the places are ours.
        let code = unsafe { (library.efadv_query_qp_wqs)(self.pair, &mut sends, &mut receives, bytes) };
        if code != 0 {
            return Err(self.fail("efadv_query_qp_wqs", Some(code)));
        }
        let ring = |of: &sys::efadv_wq_attr| Ring {
            slots: of.buffer,
            entry_bytes: of.entry_size,
            entries: of.num_entries,
            doorbell: of.doorbell,
            max_batch: of.max_batch,
        };
        let (send, receive) = (ring(&sends), ring(&receives));
        let queue = |which: usize| {
            // SAFETY: numbers and pointers: zero is a value of each.
            let mut of: sys::efadv_cq_attr = unsafe { std::mem::zeroed() };
            let bytes = std::mem::offset_of!(sys::efadv_cq_attr, doorbell) as u32;
            // SAFETY: the queue is there, the place is ours.
            let code = unsafe { (library.efadv_query_cq)(self.queues[which].cast(), &mut of, bytes) };
            if code != 0 {
                return Err(self.fail("efadv_query_cq", Some(code)));
            }
            Ok(Completions { slots: of.buffer, entry_bytes: of.entry_size, entries: of.num_entries })
        };
        let (completions, arrivals) = (queue(0)?, queue(1)?);
        let is_sound =
            [send.entries, completions.entries, arrivals.entries].iter().all(|count| count.is_power_of_two())
                && send.entry_bytes == 64
                && [completions, arrivals].iter().all(|queue| matches!(queue.entry_bytes, 16 | 32))
                && send.max_batch > 0
                && [send.slots, send.doorbell.cast(), completions.slots, arrivals.slots]
                    .iter()
                    .all(|place| !place.is_null());
        // SAFETY: the pair is there.
        let number = u16::try_from(unsafe { (*self.pair).qp_num });
        match number {
            Ok(number) if is_sound => Ok(PairView { number, qkey: self.qkey, send, receive, completions, arrivals }),
            _ => {
                let text = format!("queues of a form that is not known: {send:?}, {completions:?}, {arrivals:?}");
                Err(mistake(&self.verbs.0.rail, "efadv_query_qp_wqs", text))
            }
        }
    }

    /// Its queues.
    #[must_use]
    pub fn view(&self) -> PairView {
        self.view
    }

    /// Its address, for the peers' [`Verbs::handle`].
    #[must_use]
    pub fn address(&self) -> Vec<u8> {
        join(&self.verbs.0.gid, self.view().number.into(), self.qkey)
    }

    /// Where a counter is: 8 bytes at the start of a page; `None` where the pair was opened without it.
    #[must_use]
    pub fn counter(&self, counted: Counted) -> Option<*const u64> {
        let found = self.counters.iter().find(|(known, _)| *known == counted);
        found.map(|(_, counter)| counter.page.as_ptr().cast_const().cast())
    }

    /// All that a device has to map of it, each page once.
    #[must_use]
    pub fn mappings(&self) -> Vec<Mapping> {
        let view = self.view();
        let is_real = soft::label().is_none();
        let pages = |start: *mut u8, bytes: usize, is_card: bool| {
            let ahead = start.addr() % PAGE;
            Mapping { start: start.wrapping_sub(ahead), bytes: (ahead + bytes).next_multiple_of(PAGE), is_card }
        };
        let ring = |ring: &Ring| ring.entries as usize * ring.entry_bytes as usize;
        let queue = |queue: &Completions| queue.entries as usize * queue.entry_bytes as usize;
        let mut all = vec![
            // A card's requests and doorbells are windows of it, its other queues memory of this machine.
            pages(view.send.slots, ring(&view.send), is_real),
            pages(view.send.doorbell.cast(), 4, is_real),
            pages(view.receive.slots, ring(&view.receive), false),
            pages(view.receive.doorbell.cast(), 4, is_real),
            pages(view.completions.slots, queue(&view.completions), false),
            pages(view.arrivals.slots, queue(&view.arrivals), false),
        ];
        all.extend(self.counters.iter().map(|(_, counter)| pages(counter.page.as_ptr().cast(), 8, false)));
        all.retain(|mapping| !mapping.start.is_null());
        all.sort_by_key(|mapping| mapping.start);
        // Two doorbells may have one page.
        all.dedup_by_key(|mapping| mapping.start);
        all
    }
}
