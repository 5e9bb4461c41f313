//! Options of a queue pair, and its description for the code that drives it.

/// Options of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct PairOptions<'a> {
    /// Maximum number of requests in flight. Rounded up to a power of two.
    pub depth: u32,
    /// Minimum number of entries of the queue in which its requests complete. The queue has at least as many entries as
    /// there are slots for requests.
    pub completions: u32,
    /// Number of entries of the queue where peers' operations arrive.
    pub arrivals: u32,
    /// Maximum number of posted receives.
    pub receives: u32,
    /// Whether a write's immediate consumes no receive.
    pub unsolicited: bool,
    /// Events to count, each with its own counter.
    pub counted: &'a [CountedEvent],
}

/// Event that a completion counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedEvent {
    /// Completed writes of this side.
    Writes,
    /// Completed reads of this side.
    Reads,
    /// Arrived writes of peers.
    RemoteWrites,
}

/// A ring of requests or of receives, with its doorbell.
#[derive(Clone, Copy, Debug)]
pub struct WorkRing {
    /// Address of the first slot.
    pub slots: *mut u8,
    /// Size of a slot in bytes.
    pub entry_bytes: u32,
    /// Number of slots, a power of two.
    pub entries: u32,
    /// Address of the doorbell, to which the count is stored.
    pub doorbell: *mut u32,
    /// Maximum number of slots that may be written before the doorbell is rung.
    pub max_batch: u32,
}

/// The entries of a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct CompletionRing {
    /// Address of the first entry.
    pub slots: *mut u8,
    /// Size of an entry in bytes.
    pub entry_bytes: u32,
    /// Number of entries, a power of two.
    pub entries: u32,
}

/// Description of a pair for a kernel. The pointers are addresses of this process and stay valid for the lifetime of
/// the pair.
#[derive(Clone, Copy, Debug)]
pub struct PairView {
    /// Queue pair number.
    pub number: u16,
    /// Key that peers must specify in addition to the number.
    pub qkey: u32,
    /// Ring of requests.
    pub send: WorkRing,
    /// Ring of receives.
    pub receive: WorkRing,
    /// Queue in which requests complete.
    pub completions: CompletionRing,
    /// Queue in which operations of peers arrive.
    pub arrivals: CompletionRing,
}

impl PairView {
    /// View of a pair whose queues have not been queried yet.
    pub(super) const UNKNOWN: PairView = {
        let null = std::ptr::null_mut();
        let ring = WorkRing { slots: null, entry_bytes: 0, entries: 0, doorbell: std::ptr::null_mut(), max_batch: 0 };
        let queue = CompletionRing { slots: null, entry_bytes: 0, entries: 0 };
        PairView { number: 0, qkey: 0, send: ring, receive: ring, completions: queue, arrivals: queue }
    };
}

// SAFETY: the pointers refer to memory that all threads, and a device, access as words.
unsafe impl Send for PairView {}
// SAFETY: the pointers refer to memory that all threads, and a device, access as words.
unsafe impl Sync for PairView {}

/// A range of whole pages that a device must map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Address of the first byte.
    pub start: *mut u8,
    /// Length in bytes.
    pub bytes: usize,
    /// Whether the range is a window of the NIC (registers) instead of memory. A GPU maps it with
    /// `CU_MEMHOSTREGISTER_IOMEMORY`.
    pub is_card: bool,
    /// Whether the range is mapped read-only, as libefa maps completion queues. A GPU maps it with
    /// `CU_MEMHOSTREGISTER_READ_ONLY`.
    pub is_read_only: bool,
}
