//! NCCL's types, as its headers declare them (`src/include/plugin/` of NCCL 2.30 to 2.32): held against them by `tests/headers.rs`.

use std::ffi::{c_char, c_int, c_ulong, c_void};

mod gin;

pub use gin::*;

/// `ncclResult_t`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclResult(pub c_int);

impl NcclResult {
    /// `ncclSuccess`.
    pub const SUCCESS: NcclResult = NcclResult(0);
    /// `ncclSystemError`: the rails', the system's.
    pub const SYSTEM: NcclResult = NcclResult(2);
    /// `ncclInternalError`: ours.
    pub const INTERNAL: NcclResult = NcclResult(3);
    /// `ncclInvalidArgument`.
    pub const ARGUMENT: NcclResult = NcclResult(4);
    /// `ncclInvalidUsage`: a variable says what cannot be.
    pub const USAGE: NcclResult = NcclResult(5);
    /// `ncclRemoteError`: another rank has gone or does not answer.
    pub const REMOTE: NcclResult = NcclResult(6);
}

/// `NCCL_PTR_HOST`.
pub const PTR_HOST: c_int = 1;
/// `NCCL_PTR_CUDA`.
pub const PTR_CUDA: c_int = 2;
/// `NCCL_NET_MR_FLAG_SIGNAL_NEVER_RESET`: nobody but the plugin writes the words of this region.
pub const MR_NEVER_RESET: u64 = 2;
/// `NCCL_NET_SIGNAL_OP_INC`.
pub const SIGNAL_INC: u32 = 1;
/// `NCCL_NET_SIGNAL_OP_ADD`.
pub const SIGNAL_ADD: u32 = 2;
/// `NCCL_NET_DEVICE_GIN_PROXY`.
pub const DEVICE_PROXY: c_int = 2;
/// `NCCL_NET_DEVICE_GIN_EFA_GDA`: queues of an EFA card, which kernels write.
pub const DEVICE_EFA: c_int = 5;
/// `NCCL_NET_HANDLE_MAXSIZE`.
pub const HANDLE_BYTES: usize = 128;

/// `ncclDebugLogger_t`: level, subsystems, file, line, format and what it names.
pub type Logger = Option<unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...)>;

/// `ncclNetVDeviceProps_v12_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VirtualDevice {
    /// Devices below.
    pub count: c_int,
    /// Which.
    pub devices: [c_int; 8],
}

/// `ncclNetProperties_v12_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    /// For logs.
    pub name: *const c_char,
    /// Null: the device has no place in the PCI tree.
    pub pci_path: *const c_char,
    /// Unique.
    pub guid: u64,
    /// Kinds of memory.
    pub pointers: c_int,
    /// Whether a registration serves all communicators.
    pub global_registration: c_int,
    /// Whether receives are flushed.
    pub force_flush: c_int,
    /// Mb/s.
    pub speed: c_int,
    /// Of the card.
    pub port: c_int,
    /// In microseconds.
    pub latency: f32,
    /// Communicators at most.
    pub most_communicators: c_int,
    /// Receives of a group; times 32, the slots of a queue of puts.
    pub most_receives: c_int,
    /// `ncclNetDeviceType`.
    pub device_type: c_int,
    /// Of that.
    pub device_version: c_int,
    /// Devices below.
    pub virtual_device: VirtualDevice,
    /// Bytes of a transfer.
    pub most_p2p_bytes: usize,
    /// Bytes of a collective's transfer.
    pub most_collective_bytes: usize,
    /// Requests of one.
    pub most_requests: c_int,
    /// -1: none is named.
    pub rail: i16,
    /// -1: none is named.
    pub plane: i16,
}

/// `ncclNetDeviceHandle_v11_t`: what kernels are given.
#[repr(C)]
#[derive(Debug)]
pub struct DeviceHandle {
    /// `ncclNetDeviceType`.
    pub device_type: c_int,
    /// Of that.
    pub device_version: c_int,
    /// Memory that the device reads.
    pub handle: *mut c_void,
    /// Its length; 0 where only the kernels need to know.
    pub size: usize,
    /// Whether NCCL shall call `progress`.
    pub needs_progress: c_int,
}

/// `ncclRmaConfig_v14_t`, and so of v15 and v16.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RmaConfig {
    /// Contexts.
    pub contexts: c_int,
    /// -1: none.
    pub traffic_class: c_int,
    /// From a rank to the next one that is reached.
    pub rank_stride: c_int,
}

/// `ncclGinConfig_v13_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GinConfig13 {
    /// Signals of a context.
    pub signals: c_int,
    /// Counters of a context.
    pub counters: c_int,
    /// Contexts.
    pub contexts: c_int,
    /// Of a queue.
    pub queue_depth: c_int,
    /// -1: none.
    pub traffic_class: c_int,
}

/// `ncclRmaProperties_v16_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RmaProperties {
    /// Whether any signal that arrives, of whichever peer, makes all puts visible that had arrived before.
    pub flushes_all_puts_on_any_signal: bool,
}

/// A name for C.
#[repr(transparent)]
#[derive(Debug)]
pub struct Name(pub *const c_char);

// SAFETY: constant bytes.
unsafe impl Sync for Name {}

/// Opens the plugin for a communicator.
pub type Init = unsafe extern "C" fn(*mut *mut c_void, u64, Logger) -> NcclResult;
/// Counts devices.
pub type Devices = unsafe extern "C" fn(*mut c_int) -> NcclResult;
/// Describes one.
pub type GetProperties = unsafe extern "C" fn(c_int, *mut Properties) -> NcclResult;
/// Makes a handle by which others find this rank.
pub type Listen = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> NcclResult;
/// Joins the ranks.
pub type Connect =
    unsafe extern "C" fn(*mut c_void, *mut *mut c_void, c_int, c_int, *mut c_void, *mut *mut c_void) -> NcclResult;
/// Makes contexts.
pub type CreateContext = unsafe extern "C" fn(*mut c_void, *mut RmaConfig, *mut *mut c_void) -> NcclResult;
/// As [`CreateContext`], of v13.
pub type CreateContext13 =
    unsafe extern "C" fn(*mut c_void, *mut GinConfig13, *mut *mut c_void, *mut *mut c_void) -> NcclResult;
/// Registers memory.
pub type Register = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, u64, *mut *mut c_void) -> NcclResult;
/// As [`Register`], of v13.
pub type Register13 =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, u64, *mut *mut c_void, *mut *mut c_void) -> NcclResult;
/// Registers memory by a dma-buf.
pub type RegisterDmaBuf =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, u64, c_int, u64, *mut *mut c_void) -> NcclResult;
/// As [`RegisterDmaBuf`], of v13.
pub type RegisterDmaBuf13 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    u64,
    c_int,
    u64,
    *mut *mut c_void,
    *mut *mut c_void,
) -> NcclResult;
/// Gives a registration back.
pub type Deregister = unsafe extern "C" fn(*mut c_void, *mut c_void) -> NcclResult;
/// Closes something.
pub type Close = unsafe extern "C" fn(*mut c_void) -> NcclResult;
/// A put: context, number, source offset and region, bytes, destination offset and region, rank, request.
pub type Put = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    u64,
    *mut c_void,
    usize,
    u64,
    *mut c_void,
    u32,
    *mut *mut c_void,
) -> NcclResult;
/// As [`Put`], with flags, since v15.
pub type Put15 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    u64,
    *mut c_void,
    usize,
    u64,
    *mut c_void,
    u32,
    u32,
    *mut *mut c_void,
) -> NcclResult;
/// A put with a signal of v13, which is a strong one: behind the rank the signal's offset, region, value and operation.
pub type PutSignal13 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    u64,
    *mut c_void,
    usize,
    u64,
    *mut c_void,
    u32,
    u64,
    *mut c_void,
    u64,
    u32,
    *mut *mut c_void,
) -> NcclResult;
/// As [`PutSignal13`], strong or not.
pub type PutSignal14 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    u64,
    *mut c_void,
    usize,
    u64,
    *mut c_void,
    u32,
    u64,
    *mut c_void,
    u64,
    u32,
    bool,
    *mut *mut c_void,
) -> NcclResult;
/// As [`PutSignal14`], with flags.
pub type PutSignal15 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    u64,
    *mut c_void,
    usize,
    u64,
    *mut c_void,
    u32,
    u64,
    *mut c_void,
    u64,
    u32,
    bool,
    u32,
    *mut *mut c_void,
) -> NcclResult;
/// Makes what has arrived visible.
pub type Flush = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, u32, *mut *mut c_void) -> NcclResult;
/// Asks for a request's end.
pub type Test = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int) -> NcclResult;
/// Asks for an error.
pub type QueryLastError = unsafe extern "C" fn(*mut c_void, *mut bool) -> NcclResult;
/// Describes a communicator.
pub type GetRmaProperties = unsafe extern "C" fn(*mut c_void, *mut RmaProperties) -> NcclResult;

/// `ncclRma_v13_t`, which is `ncclGin_v13_t`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "NCCL's names say it")]
pub struct Rma13 {
    pub name: Name,
    pub init: Init,
    pub devices: Devices,
    pub get_properties: GetProperties,
    pub listen: Listen,
    pub connect: Connect,
    pub create_context: CreateContext13,
    pub reg_mr_sym: Register13,
    pub reg_mr_sym_dma_buf: RegisterDmaBuf13,
    pub dereg_mr_sym: Deregister,
    pub destroy_context: Close,
    pub close_coll: Close,
    pub close_listen: Close,
    pub iput: Put,
    pub iput_signal: PutSignal13,
    pub iget: Put,
    pub iflush: Flush,
    pub test: Test,
    pub progress: Option<Close>,
    pub query_last_error: QueryLastError,
    pub finalize: Close,
}

/// `ncclRma_v14_t`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "NCCL's names say it")]
pub struct Rma14 {
    pub name: Name,
    pub init: Init,
    pub devices: Devices,
    pub get_properties: GetProperties,
    pub listen: Listen,
    pub connect: Connect,
    pub create_context: CreateContext,
    pub reg_mr_sym: Register,
    pub reg_mr_sym_dma_buf: RegisterDmaBuf,
    pub dereg_mr_sym: Deregister,
    pub destroy_context: Close,
    pub close_coll: Close,
    pub close_listen: Close,
    pub iput: Put,
    pub iput_signal: PutSignal14,
    pub iget: Put,
    pub iflush: Flush,
    pub test: Test,
    pub progress: Option<Close>,
    pub query_last_error: QueryLastError,
    pub finalize: Close,
}

/// `ncclRma_v15_t`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "NCCL's names say it")]
pub struct Rma15 {
    pub name: Name,
    pub init: Init,
    pub devices: Devices,
    pub get_properties: GetProperties,
    pub listen: Listen,
    pub connect: Connect,
    pub create_context: CreateContext,
    pub reg_mr_sym: Register,
    pub reg_mr_sym_dma_buf: RegisterDmaBuf,
    pub dereg_mr_sym: Deregister,
    pub destroy_context: Close,
    pub close_coll: Close,
    pub close_listen: Close,
    pub iput: Put15,
    pub iput_signal: PutSignal15,
    pub iget: Put15,
    pub iflush: Flush,
    pub test: Test,
    pub progress: Option<Close>,
    pub query_last_error: QueryLastError,
    pub finalize: Close,
}

/// `ncclRma_v16_t`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "NCCL's names say it")]
pub struct Rma16 {
    pub name: Name,
    pub init: Init,
    pub devices: Devices,
    pub get_rma_properties: GetRmaProperties,
    pub get_properties: GetProperties,
    pub listen: Listen,
    pub connect: Connect,
    pub create_context: CreateContext,
    pub reg_mr_sym: Register,
    pub reg_mr_sym_dma_buf: RegisterDmaBuf,
    pub dereg_mr_sym: Deregister,
    pub destroy_context: Close,
    pub close_coll: Close,
    pub close_listen: Close,
    pub iput: Put15,
    pub iput_signal: PutSignal15,
    pub iget: Put15,
    pub iflush: Flush,
    pub test: Test,
    pub progress: Option<Close>,
    pub query_last_error: QueryLastError,
    pub finalize: Close,
}
