//! A queue pair whose queues are accessed directly, by the CPU or by a kernel.

use super::device::{Verbs, join};
use super::errors;
use super::view::{CompletionRing, CountedEvent, Mapping, PairOptions, PairView, WorkRing};
use crate::{FabricError, mistake, soft};
use efa_queue::rules::DEEPEST;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use verbs_sys as sys;

/// Page size of device mappings.
const PAGE: usize = 4096;
/// Number of retries to a peer without a receive: unlimited.
const RNR_RETRY: u8 = 7;

/// A queue pair with two completion queues, ready to send.
#[derive(Debug)]
pub struct QueuePair {
    verbs: Verbs,
    pair: *mut sys::ibv_qp,
    queues: [*mut sys::ibv_cq_ex; 2],
    counters: Vec<(CountedEvent, Counter)>,
    view: PairView,
    qkey: u32,
}

// SAFETY: verbs objects are not bound to a thread.
unsafe impl Send for QueuePair {}

/// A counter in a page allocated by this process.
#[derive(Debug)]
struct Counter {
    made: *mut sys::ibv_comp_cntr,
    page: NonNull<std::ffi::c_void>,
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let library = self.verbs.0.library;
        // SAFETY: the objects were created by `open` and are not used by other code. They are destroyed in the order of
        // the manual.
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
    /// Creates a queue pair that is ready to send.
    ///
    /// # Errors
    /// Returns an error if the options are invalid or a call fails.
    pub fn pair(&self, options: &PairOptions) -> Result<QueuePair, FabricError> {
        let pair = QueuePair::open(self, options)?;
        let slots = pair.view.send.entries;
        if slots <= pair.view.completions.entries {
            return Ok(pair);
        }
        // libefa rounds the number of requests up to a minimum that it does not report. A completion queue must hold as
        // many completions, and is created before the pair. Both are therefore created again with the number that is
        // known now.
        drop(pair);
        let pair = QueuePair::open(self, &PairOptions { completions: slots, ..*options })?;
        let (slots, entries) = (pair.view.send.entries, pair.view.completions.entries);
        if slots > entries {
            let text = format!(
                "a completion queue of {entries} entries is too small for {slots} requests; request more completions"
            );
            return Err(mistake(&self.0.rail, "opening a queue pair", text));
        }
        Ok(pair)
    }
}

impl QueuePair {
    pub(super) fn open(verbs: &Verbs, options: &PairOptions<'_>) -> Result<QueuePair, FabricError> {
        let device = &verbs.0;
        let most = device.attributes.max_sq_wr.min(DEEPEST);
        if options.depth == 0 || options.depth > most {
            let text =
                format!("invalid queue of {} requests: must be from 1 to {most} for this EFA device", options.depth);
            return Err(mistake(&device.rail, "opening a queue pair", text));
        }
        if options.unsolicited && !verbs.unsolicited() {
            let text = "this EFA device or libefa consumes a receive for each immediate (no UNSOLICITED_WRITE_RECV)";
            return Err(mistake(&device.rail, "opening a queue pair", text));
        }
        // Q keys with the high bit set are reserved for the system.
        let qkey = getrandom::u32()
            .map_err(|_| mistake(&device.rail, "generating a key", "the system returned no random number"))?;
        let mut pair = QueuePair {
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
        // SAFETY: the structs consist of integers and pointers, for which zero is valid.
        let (mut attributes, mut efa): (sys::ibv_cq_init_attr_ex, sys::efadv_cq_init_attr) =
            unsafe { std::mem::zeroed() };
        attributes.cqe = entries.max(1).next_power_of_two();
        // Length of the struct without external memory, which every sufficiently new libefa supports.
        let bytes = std::mem::offset_of!(sys::efadv_cq_init_attr, flags) as u32;
        // SAFETY: the context is open, and the attributes are local variables of the given length.
        let made = unsafe { (device.library.efadv_create_cq)(device.context, &mut attributes, &mut efa, bytes) };
        if made.is_null() { Err(self.fail("efadv_create_cq", None)) } else { Ok(made) }
    }

    fn create(&mut self, options: &PairOptions<'_>) -> Result<(), FabricError> {
        let device = &self.verbs.0;
        // SAFETY: the struct consists of integers and pointers, for which zero is valid.
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
        // Length of the struct without processing hints, which every libefa supports.
        let bytes = std::mem::offset_of!(sys::efadv_qp_init_attr, wr_flags) as u32;
        // SAFETY: the context is open, the queues belong to this device, and the attributes are local variables.
        self.pair = unsafe { (device.library.efadv_create_qp_ex)(device.context, &mut attributes, &mut efa, bytes) };
        if self.pair.is_null() { Err(self.fail("efadv_create_qp_ex", None)) } else { Ok(()) }
    }

    /// Creates a counter of these events and attaches it to the pair.
    fn count(&self, counted: CountedEvent) -> Result<Counter, FabricError> {
        let device = &self.verbs.0;
        let Some(calls) = device.library.counters.as_ref().filter(|_| self.verbs.counters()) else {
            let text =
                "this EFA device has no completion counters, or this libefa does not support them (rdma-core 65 does)";
            return Err(mistake(&device.rail, "efadv_create_comp_cntr", text));
        };
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let length = NonZeroUsize::new(PAGE).unwrap_or(NonZeroUsize::MIN);
        // SAFETY: an anonymous mapping at an address that the system chooses.
        let page = unsafe { mmap_anonymous(None, length, access, MapFlags::MAP_PRIVATE) }
            .map_err(|code| self.fail("a page for a counter", Some(code as i32)))?;
        // SAFETY: the struct consists of integers and pointers, for which zero is valid.
        let mut efa: sys::efadv_comp_cntr_init_attr = unsafe { std::mem::zeroed() };
        efa.flags = sys::EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM;
        efa.comp_cntr_ext_mem.ptr = page.as_ptr().cast();
        let mut attributes = sys::ibv_comp_cntr_init_attr::default();
        let bytes = size_of::<sys::efadv_comp_cntr_init_attr>() as u32;
        // SAFETY: the context is open, and the page lives as long as the counter.
        let made = unsafe { (calls.efadv_create_comp_cntr)(device.context, &mut attributes, &mut efa, bytes) };
        if made.is_null() {
            let error = self.fail("efadv_create_comp_cntr", None);
            // SAFETY: the page was mapped above, and no other code uses it.
            let _ = unsafe { munmap(page, PAGE) };
            return Err(error);
        }
        let op_mask = match counted {
            CountedEvent::Writes => sys::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE,
            CountedEvent::Reads => sys::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ,
            CountedEvent::RemoteWrites => sys::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE,
        };
        let mut attach = sys::ibv_qp_attach_comp_cntr_attr { comp_mask: 0, op_mask };
        // SAFETY: queue pair and counter exist.
        let code = unsafe { (calls.ibv_qp_attach_comp_cntr)(self.pair, made, &mut attach) };
        if code != 0 {
            let error = self.fail("ibv_qp_attach_comp_cntr", Some(code));
            // SAFETY: the counter was created above and is not attached.
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
            // SAFETY: the struct consists of integers, for which zero is valid.
            let mut change: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
            (change.qp_state, change.qkey, change.port_num, change.rnr_retry) = (state, self.qkey, 1, RNR_RETRY);
            // SAFETY: the queue pair exists.
            let code = unsafe { (self.verbs.0.library.ibv_modify_qp)(self.pair, &mut change, mask) };
            if code != 0 {
                return Err(self.fail("ibv_modify_qp", Some(code)));
            }
        }
        Ok(())
    }

    fn query(&self) -> Result<PairView, FabricError> {
        let library = self.verbs.0.library;
        // SAFETY: the structs consist of integers and pointers, for which zero is valid.
        let (mut sends, mut receives): (sys::efadv_wq_attr, sys::efadv_wq_attr) = unsafe { std::mem::zeroed() };
        // The struct has had this length since rdma-core 59.
        let bytes = size_of::<sys::efadv_wq_attr>() as u32;
        // SAFETY: the queue pair exists, and the attributes are local variables of the given length.
        let code = unsafe { (library.efadv_query_qp_wqs)(self.pair, &mut sends, &mut receives, bytes) };
        if code != 0 {
            return Err(self.fail("efadv_query_qp_wqs", Some(code)));
        }
        let ring = |of: &sys::efadv_wq_attr| WorkRing {
            slots: of.buffer,
            entry_bytes: of.entry_size,
            entries: of.num_entries,
            doorbell: of.doorbell,
            max_batch: of.max_batch,
        };
        let (send, receive) = (ring(&sends), ring(&receives));
        let queue = |which: usize| {
            // SAFETY: the struct consists of integers and pointers, for which zero is valid.
            let mut of: sys::efadv_cq_attr = unsafe { std::mem::zeroed() };
            let bytes = std::mem::offset_of!(sys::efadv_cq_attr, doorbell) as u32;
            // SAFETY: the queue exists, and the attributes are a local variable of at least the given length.
            let code = unsafe { (library.efadv_query_cq)(self.queues[which].cast(), &mut of, bytes) };
            if code != 0 {
                return Err(self.fail("efadv_query_cq", Some(code)));
            }
            Ok(CompletionRing { slots: of.buffer, entry_bytes: of.entry_size, entries: of.num_entries })
        };
        let (completions, arrivals) = (queue(0)?, queue(1)?);
        let is_sound =
            [send.entries, completions.entries, arrivals.entries].iter().all(|count| count.is_power_of_two())
                && send.entry_bytes == 64
                && receive.entry_bytes == 16
                && receive.entries.is_power_of_two()
                && [completions, arrivals].iter().all(|queue| matches!(queue.entry_bytes, 16 | 32))
                && send.max_batch > 0
                && [
                    send.slots,
                    send.doorbell.cast(),
                    receive.slots,
                    receive.doorbell.cast(),
                    completions.slots,
                    arrivals.slots,
                ]
                .iter()
                .all(|place| !place.is_null());
        // SAFETY: the queue pair exists.
        let number = u16::try_from(unsafe { (*self.pair).qp_num });
        match number {
            Ok(number) if is_sound => Ok(PairView { number, qkey: self.qkey, send, receive, completions, arrivals }),
            _ => {
                let text = format!("unknown layout of queues: {send:?}, {completions:?}, {arrivals:?}");
                Err(mistake(&self.verbs.0.rail, "efadv_query_qp_wqs", text))
            }
        }
    }

    /// Returns the description of the pair's queues.
    #[must_use]
    pub fn view(&self) -> PairView {
        self.view
    }

    /// Returns the pair's address, for the peers' [`Verbs::handle`].
    #[must_use]
    pub fn address(&self) -> Vec<u8> {
        join(&self.verbs.0.gid, self.view().number.into(), self.qkey)
    }

    /// Returns the address of a counter: 8 bytes at the start of a page. `None` if the pair was opened without it.
    #[must_use]
    pub fn counter(&self, counted: CountedEvent) -> Option<*const u64> {
        let found = self.counters.iter().find(|(known, _)| *known == counted);
        found.map(|(_, counter)| counter.page.as_ptr().cast_const().cast())
    }

    /// Returns all memory of the pair that a kernel uses, each page once: requests and their doorbell, completions,
    /// arrivals, counters. Kernels post no receives, so the receive ring and its doorbell are omitted.
    #[must_use]
    pub fn mappings(&self) -> Vec<Mapping> {
        let view = self.view();
        let is_real = soft::label().is_none();
        let pages = |start: *mut u8, bytes: usize, is_card: bool, is_read_only: bool| {
            let ahead = start.addr() % PAGE;
            let (start, bytes) = (start.wrapping_sub(ahead), (ahead + bytes).next_multiple_of(PAGE));
            Mapping { start, bytes, is_card, is_read_only }
        };
        let queue = |queue: &CompletionRing| {
            pages(queue.slots, queue.entries as usize * queue.entry_bytes as usize, false, true)
        };
        let mut all = vec![
            // Requests and doorbells of a real NIC are in its windows. The other queues are in memory of this machine.
            pages(view.send.slots, view.send.entries as usize * view.send.entry_bytes as usize, is_real, false),
            pages(view.send.doorbell.cast(), 4, is_real, false),
            queue(&view.completions),
            queue(&view.arrivals),
        ];
        all.extend(self.counters.iter().map(|(_, counter)| pages(counter.page.as_ptr().cast(), 8, false, false)));
        all.sort_by_key(|mapping| mapping.start);
        all.dedup_by_key(|mapping| mapping.start);
        all
    }
}
