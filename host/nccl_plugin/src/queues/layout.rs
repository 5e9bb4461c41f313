//! Data of queues and registrations that NCCL's kernels read: `gin_efa_gda_dev.h` of NCCL 2.32 and
//! `efa_cuda_dp_types.h` (API 1) of its efa-dp-direct. `tests/headers.rs` checks these types against both. Addresses
//! are those of the device. All padding is in explicit fields, so that every byte is initialized.

/// A queue of requests: `efa_cuda_wq_v0`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkQueue {
    /// Maximum number of scatter-gather entries of a request.
    pub max_sge: u32,
    /// Number of slots, a power of two.
    pub max_wqes: u32,
    /// Number of slots minus one.
    pub queue_mask: u32,
    /// Base-2 logarithm of the number of slots.
    pub queue_size_shift: u32,
    /// Maximum number of requests per doorbell.
    pub max_batch: u32,
    /// Field that only the kernels use.
    pub wqes_pending: u32,
    /// Used only by the kernels: count that was last written to the doorbell.
    pub wqes_posted: u32,
    /// Used only by the kernels: cursor that passes the right to post from one poster to the next, in order.
    pub wqes_completed: u32,
    /// Used only by the kernels: number of slots reserved.
    pub pc: u32,
    /// Field that only the kernels use.
    pub phase: i32,
    /// Address of the slots.
    pub buf: u64,
    /// Address of the doorbell.
    pub db: u64,
}

/// Offsets of the fields of a request: `efa_cuda_wr_ctx_v0`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestPlaces {
    /// Offset of the remote memory's description.
    pub remote_mem_offset: u8,
    /// Offset of the local memory's description.
    pub local_mem_offset: u8,
    /// Offset of a send's scatter-gather list.
    pub sgl_offset: u8,
    /// Offset of a send's inline data.
    pub send_inline_data_offset: u8,
    /// Offset of a write's inline data.
    pub write_inline_data_offset: u8,
    pub(crate) pad: [u8; 3],
    /// Maximum number of bytes of inline data.
    pub max_inline_data: u32,
    /// Maximum number of scatter-gather entries of a read or write.
    pub max_rdma_sges: u32,
    /// Number of bytes of a slot.
    pub wqe_size: u16,
    pub(crate) pad_two: u16,
}

/// `efa_cuda_qp_v1`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EfaCudaQp {
    /// Mask of extensions, which is 0.
    pub comp_mask: u64,
    /// Send queue, which contains all requests.
    pub send: WorkQueue,
    /// Layout of the requests.
    pub places: RequestPlaces,
    pub(crate) pad: u32,
    /// Receive queue, which is not used.
    pub receive: WorkQueue,
}

/// `nccl_ofi_gin_gdaki_dev_endpoint_handle`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Poster {
    /// Address of a [`EfaCudaQp`].
    pub qp: u64,
    /// Completion queue, which kernels do not access.
    pub cq: u64,
    /// Address of the table of address handles (u16), by target and rank.
    pub target_address_handles: u64,
    /// Address of the table of queue pair numbers (u16), by target and rank.
    pub target_remote_qpns: u64,
    /// Address of the table of queue keys (u32), by target and rank.
    pub target_qkey: u64,
    /// Field that only the kernels use.
    pub sq_lock: u32,
    pub(crate) pad: u32,
    /// Address of the counter of completed requests.
    pub local_cntr_value: u64,
    /// Used only by the kernels: number of requests whose doorbell has been rung.
    pub submitted_count: u64,
    /// Number of slots.
    pub sq_size: u32,
    /// Unused field of the layout.
    pub putvalue_pad: u32,
    /// Unused, since requests contain values inline.
    pub putvalue_slice_base: u64,
}

/// `nccl_ofi_gin_gdaki_dev_counter_handle`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CounterHandle {
    /// Endpoint whose requests are counted; all zero for a signal.
    pub base: Poster,
    /// Address of the counter.
    pub cntr_value: u64,
    /// Used only by the kernels: value of the counter when they reset it.
    pub cntr_offset: u64,
}

/// `nccl_ofi_gin_gdaki_dev_handle`: a context.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ContextHandle {
    /// Endpoint for puts, gets and signals.
    pub data: Poster,
    /// Endpoint for puts of values.
    pub pvdata: Poster,
    /// Address of pointers to [`CounterHandle`]s of counters.
    pub counter_handles: u64,
    /// Address of pointers to [`CounterHandle`]s of signals.
    pub signal_handles: u64,
    /// Number of counters.
    pub counters: i32,
    /// Number of signals.
    pub signals: i32,
    /// Number of ranks.
    pub nranks: i32,
    /// Number of this rank.
    pub rank: i32,
    /// Index of the rail, which is 0, since ginlab distributes puts over rails itself.
    pub rail_id: u32,
    /// Local key for puts without bytes.
    pub scratch_lkey: u32,
    /// Unused field of the layout.
    pub scratch_pad: u32,
    pub(crate) pad: u32,
    /// Local address for puts without bytes.
    pub scratch_local_addr: u64,
    /// Address of the table of remote addresses (u64) for puts without bytes, by rank.
    pub scratch_remote_addrs: u64,
    /// Address of the table of remote keys (u32) for puts without bytes, by rank.
    pub scratch_remote_rkeys: u64,
    /// Unused, since requests contain values inline.
    pub putvalue_lkey: u32,
    /// Unused field of the layout.
    pub putvalue_slot_size: u32,
}

/// `nccl_ofi_gin_gdaki_mr_handle`; an array of [`MemoryPeer`] follows it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryHandle {
    /// Local key.
    pub lkey: u32,
    /// Number of ranks.
    pub nranks: i32,
    /// Local address to which offsets are added.
    pub local_addr: u64,
}

/// `nccl_ofi_gin_gdaki_mr_peer`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryPeer {
    /// Remote address to which offsets are added.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Unused field of the layout.
    pub pad: u32,
}

/// Bytes to copy to device memory at `address`.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
}

/// A type that an [`Image`] can contain.
///
/// # Safety
/// The type must consist of plain numbers without padding between them.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: `repr(C)`, only numbers, and all padding is in fields (`layouts_have_no_gaps`).
unsafe impl Plain for EfaCudaQp {}
// SAFETY: `repr(C)`, only numbers, and all padding is in fields (`layouts_have_no_gaps`).
unsafe impl Plain for ContextHandle {}
// SAFETY: `repr(C)`, only numbers, and all padding is in fields (`layouts_have_no_gaps`).
unsafe impl Plain for CounterHandle {}
// SAFETY: `repr(C)`, only numbers, and all padding is in fields (`layouts_have_no_gaps`).
unsafe impl Plain for MemoryHandle {}
// SAFETY: `repr(C)`, only numbers, and all padding is in fields (`layouts_have_no_gaps`).
unsafe impl Plain for MemoryPeer {}
// SAFETY: every bit pattern of an integer is valid.
unsafe impl Plain for u16 {}
// SAFETY: every bit pattern of an integer is valid.
unsafe impl Plain for u32 {}
// SAFETY: every bit pattern of an integer is valid.
unsafe impl Plain for u64 {}

impl Image {
    /// Writes `value` at offset `at`.
    pub(crate) fn place<T: Plain>(&mut self, at: usize, value: T) {
        // SAFETY: `Plain` guarantees that all its bytes are initialized.
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
        assert_eq!(size_of::<EfaCudaQp>(), 8 + 2 * size_of::<WorkQueue>() + size_of::<RequestPlaces>() + 4);
        assert_eq!(size_of::<Poster>(), 40 + 8 + 16 + 8 + 8);
        assert_eq!(size_of::<CounterHandle>(), size_of::<Poster>() + 16);
        assert_eq!(size_of::<ContextHandle>(), 2 * size_of::<Poster>() + 16 + 16 + 16 + 24 + 8);
        assert_eq!((size_of::<MemoryHandle>(), size_of::<MemoryPeer>()), (16, 16));
    }
}
