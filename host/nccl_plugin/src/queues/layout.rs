//! What NCCL's kernels read of queues and registrations: `gin_efa_gda_dev.h` of NCCL 2.32 and `efa_cuda_dp_types.h` (API 1) of its
//! efa-dp-direct, held against them by `tests/headers.rs`. Addresses are the device's. All padding is a field, so that each has only bytes.

/// A queue of requests: `efa_cuda_wq_v0`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkQueue {
    /// Pieces of a request.
    pub max_sge: u32,
    /// Slots.
    pub max_wqes: u32,
    /// Slots less one.
    pub queue_mask: u32,
    /// Their logarithm.
    pub queue_size_shift: u32,
    /// Requests behind one doorbell at most.
    pub max_batch: u32,
    /// The kernels' own.
    pub wqes_pending: u32,
    /// The kernels' own: how far they have rung.
    pub wqes_posted: u32,
    /// The kernels' own: whose turn it is.
    pub wqes_completed: u32,
    /// The kernels' own: slots that are taken.
    pub pc: u32,
    /// The kernels' own.
    pub phase: i32,
    /// The slots.
    pub buf: u64,
    /// The doorbell.
    pub db: u64,
}

/// Where things stand in a request: `efa_cuda_wr_ctx_v0`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestPlaces {
    /// The peer's bytes.
    pub remote_mem_offset: u8,
    /// One's own.
    pub local_mem_offset: u8,
    /// Pieces of a send.
    pub sgl_offset: u8,
    /// Bytes that a send carries.
    pub send_inline_data_offset: u8,
    /// Bytes that a write carries.
    pub write_inline_data_offset: u8,
    pub(crate) pad: [u8; 3],
    /// At most so many.
    pub max_inline_data: u32,
    /// Pieces of a read or write.
    pub max_rdma_sges: u32,
    /// Bytes of a slot.
    pub wqe_size: u16,
    pub(crate) pad_two: u16,
}

/// `efa_cuda_qp_v1`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Pair {
    /// 0: no extensions.
    pub comp_mask: u64,
    /// Requests.
    pub send: WorkQueue,
    /// Their shape.
    pub places: RequestPlaces,
    pub(crate) pad: u32,
    /// Nobody receives.
    pub receive: WorkQueue,
}

/// `nccl_ofi_gin_gdaki_dev_endpoint_handle`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Poster {
    /// A [`Pair`].
    pub qp: u64,
    /// Nobody looks at it.
    pub cq: u64,
    /// Address handles (u16) by target and rank.
    pub target_address_handles: u64,
    /// Queue pairs (u16) by target and rank.
    pub target_remote_qpns: u64,
    /// Their keys (u32) by target and rank.
    pub target_qkey: u64,
    /// The kernels' own.
    pub sq_lock: u32,
    pub(crate) pad: u32,
    /// The counter of requests that are complete.
    pub local_cntr_value: u64,
    /// The kernels' own: requests that are rung.
    pub submitted_count: u64,
    /// Slots.
    pub sq_size: u32,
    /// Not used.
    pub putvalue_pad: u32,
    /// Not used: values stand in requests.
    pub putvalue_slice_base: u64,
}

/// `nccl_ofi_gin_gdaki_dev_counter_handle`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CounterHandle {
    /// Who posts what is counted; of a signal: nobody.
    pub base: Poster,
    /// The counter.
    pub cntr_value: u64,
    /// The kernels' own: what it was when they reset it.
    pub cntr_offset: u64,
}

/// `nccl_ofi_gin_gdaki_dev_handle`: a context.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ContextHandle {
    /// Puts, gets and signals.
    pub data: Poster,
    /// Values.
    pub pvdata: Poster,
    /// Pointers to [`CounterHandle`]s.
    pub counter_handles: u64,
    /// The same, of signals.
    pub signal_handles: u64,
    /// How many.
    pub counters: i32,
    /// How many.
    pub signals: i32,
    /// Ranks.
    pub nranks: i32,
    /// This one.
    pub rank: i32,
    /// 0: ginlab lays puts over rails itself.
    pub rail_id: u32,
    /// Of puts without bytes.
    pub scratch_lkey: u32,
    /// Not used.
    pub scratch_pad: u32,
    pub(crate) pad: u32,
    /// Of puts without bytes.
    pub scratch_local_addr: u64,
    /// By rank (u64).
    pub scratch_remote_addrs: u64,
    /// By rank (u32).
    pub scratch_remote_rkeys: u64,
    /// Not used: values stand in requests.
    pub putvalue_lkey: u32,
    /// Not used.
    pub putvalue_slot_size: u32,
}

/// `nccl_ofi_gin_gdaki_mr_handle`, whose peers ([`MemoryPeer`]) stand behind it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryHandle {
    /// Its local key.
    pub lkey: u32,
    /// Ranks.
    pub nranks: i32,
    /// Its first byte.
    pub local_addr: u64,
}

/// `nccl_ofi_gin_gdaki_mr_peer`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryPeer {
    /// The first byte there.
    pub remote_addr: u64,
    /// The key there.
    pub rkey: u32,
    /// Not used.
    pub pad: u32,
}

/// Bytes for the device, at the address that they will have there.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
}

/// What stands in an [`Image`].
///
/// # Safety
/// Plain numbers without padding between them.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: the types above: `repr(C)`, numbers alone, and each gap is a field (`layouts_have_no_gaps`).
unsafe impl Plain for Pair {}
// SAFETY: as above.
unsafe impl Plain for ContextHandle {}
// SAFETY: as above.
unsafe impl Plain for CounterHandle {}
// SAFETY: as above.
unsafe impl Plain for MemoryHandle {}
// SAFETY: as above.
unsafe impl Plain for MemoryPeer {}
// SAFETY: a number.
unsafe impl Plain for u16 {}
// SAFETY: a number.
unsafe impl Plain for u32 {}
// SAFETY: a number.
unsafe impl Plain for u64 {}

impl Image {
    /// Puts it `at` so many bytes from the first.
    pub(crate) fn place<T: Plain>(&mut self, at: usize, value: T) {
        // SAFETY: `Plain`: all its bytes are numbers.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const value).cast::<u8>(), size_of::<T>()) };
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_no_gaps() {
        assert_eq!(size_of::<RequestPlaces>(), 8 + 4 + 4 + 4);
        assert_eq!(size_of::<WorkQueue>(), 10 * 4 + 16);
        assert_eq!(size_of::<Pair>(), 8 + 2 * size_of::<WorkQueue>() + size_of::<RequestPlaces>() + 4);
        assert_eq!(size_of::<Poster>(), 40 + 8 + 16 + 8 + 8);
        assert_eq!(size_of::<CounterHandle>(), size_of::<Poster>() + 16);
        assert_eq!(size_of::<ContextHandle>(), 2 * size_of::<Poster>() + 16 + 16 + 16 + 24 + 8);
        assert_eq!((size_of::<MemoryHandle>(), size_of::<MemoryPeer>()), (16, 16));
    }
}
