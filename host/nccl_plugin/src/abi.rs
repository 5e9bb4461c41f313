//! NCCL's types as its headers declare them (`src/include/plugin/` of NCCL 2.30 to 2.32). `tests/headers.rs` checks
//! them against these headers.

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
    /// `ncclSystemError`: an error of the rails or of the system.
    pub const SYSTEM: NcclResult = NcclResult(2);
    /// `ncclInternalError`: an error of this plugin.
    pub const INTERNAL: NcclResult = NcclResult(3);
    /// `ncclInvalidArgument`.
    pub const ARGUMENT: NcclResult = NcclResult(4);
    /// `ncclInvalidUsage`: a variable has an invalid value.
    pub const USAGE: NcclResult = NcclResult(5);
    /// `ncclRemoteError`: another rank has left or does not respond.
    pub const REMOTE: NcclResult = NcclResult(6);
}

/// `NCCL_PTR_HOST`.
pub const PTR_HOST: c_int = 1;
/// `NCCL_PTR_CUDA`.
pub const PTR_CUDA: c_int = 2;
/// `NCCL_NET_MR_FLAG_SIGNAL_NEVER_RESET`: only the plugin writes the words of this region.
pub const MR_NEVER_RESET: u64 = 2;
/// `NCCL_NET_SIGNAL_OP_INC`.
pub const SIGNAL_INC: u32 = 1;
/// `NCCL_NET_SIGNAL_OP_ADD`.
pub const SIGNAL_ADD: u32 = 2;
/// `NCCL_NET_DEVICE_GIN_PROXY`.
pub const DEVICE_PROXY: c_int = 2;
/// `NCCL_NET_DEVICE_GIN_EFA_GDA`: queues of an EFA device that kernels write.
pub const DEVICE_EFA: c_int = 5;
/// `NCCL_NET_HANDLE_MAXSIZE`.
pub const HANDLE_BYTES: usize = 128;

/// `ncclDebugLogger_t`: level, subsystems, file, line, format and its arguments.
pub type Logger = Option<unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...)>;

/// `ncclNetVDeviceProps_v12_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VirtualDevice {
    /// Number of underlying devices.
    pub count: c_int,
    /// Indexes of the underlying devices; the first `count` entries are used.
    pub devices: [c_int; 8],
}

/// `ncclNetProperties_v12_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    /// Device name, for logs.
    pub name: *const c_char,
    /// Path in sysfs; null if the device is not in the PCI tree.
    pub pci_path: *const c_char,
    /// Unique ID of the device.
    pub guid: u64,
    /// Supported kinds of memory: a mask of [`PTR_HOST`] and [`PTR_CUDA`].
    pub pointers: c_int,
    /// Whether a registration serves all communicators.
    pub global_registration: c_int,
    /// Whether receives must be flushed.
    pub force_flush: c_int,
    /// Speed in Mb/s.
    pub speed: c_int,
    /// Port number of the NIC.
    pub port: c_int,
    /// Latency in microseconds.
    pub latency: f32,
    /// Maximum number of communicators.
    pub most_communicators: c_int,
    /// Maximum number of receives in a group. A queue of puts has 32 times this number of slots.
    pub most_receives: c_int,
    /// `ncclNetDeviceType`.
    pub device_type: c_int,
    /// Version of the device type.
    pub device_version: c_int,
    /// Underlying devices.
    pub virtual_device: VirtualDevice,
    /// Maximum number of bytes of a point-to-point transfer.
    pub most_p2p_bytes: usize,
    /// Maximum number of bytes of a collective's transfer.
    pub most_collective_bytes: usize,
    /// Maximum number of requests of one multi-request operation.
    pub most_requests: c_int,
    /// Rail index; -1 for none.
    pub rail: i16,
    /// Plane index; -1 for none.
    pub plane: i16,
}

/// `ncclNetDeviceHandle_v11_t`: the handle that kernels receive.
#[repr(C)]
#[derive(Debug)]
pub struct DeviceHandle {
    /// `ncclNetDeviceType`.
    pub device_type: c_int,
    /// Version of the device type.
    pub device_version: c_int,
    /// Memory that the device reads.
    pub handle: *mut c_void,
    /// Length of that memory; 0 if only the kernels need to know it.
    pub size: usize,
    /// Whether NCCL must call `progress`.
    pub needs_progress: c_int,
}

/// `ncclRmaConfig_v14_t`, which is also used by v15 and v16.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RmaConfig {
    /// Number of contexts.
    pub contexts: c_int,
    /// Traffic class; -1 for none.
    pub traffic_class: c_int,
    /// Distance between consecutive connected ranks.
    pub rank_stride: c_int,
}

/// `ncclGinConfig_v13_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GinConfig13 {
    /// Number of signals per context.
    pub signals: c_int,
    /// Number of counters per context.
    pub counters: c_int,
    /// Number of contexts.
    pub contexts: c_int,
    /// Depth of a queue.
    pub queue_depth: c_int,
    /// Traffic class; -1 for none.
    pub traffic_class: c_int,
}

/// `ncclRmaProperties_v16_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RmaProperties {
    /// Whether every signal that arrives, from any peer, makes all puts visible that arrived before it.
    pub flushes_all_puts_on_any_signal: bool,
}

/// A string constant for C.
#[repr(transparent)]
#[derive(Debug)]
pub struct Name(pub *const c_char);

// SAFETY: the pointer refers to constant bytes.
unsafe impl Sync for Name {}

/// Opens the plugin for a communicator.
pub type Init = unsafe extern "C" fn(*mut *mut c_void, u64, Logger) -> NcclResult;
/// Returns the number of devices.
pub type Devices = unsafe extern "C" fn(*mut c_int) -> NcclResult;
/// Returns the properties of a device.
pub type GetProperties = unsafe extern "C" fn(c_int, *mut Properties) -> NcclResult;
/// Creates a listener, and the handle with which other ranks find it.
pub type Listen = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> NcclResult;
/// Connects the ranks of a communicator.
pub type Connect =
    unsafe extern "C" fn(*mut c_void, *mut *mut c_void, c_int, c_int, *mut c_void, *mut *mut c_void) -> NcclResult;
/// Creates contexts.
pub type CreateContext = unsafe extern "C" fn(*mut c_void, *mut RmaConfig, *mut *mut c_void) -> NcclResult;
/// Like [`CreateContext`], in v13.
pub type CreateContext13 =
    unsafe extern "C" fn(*mut c_void, *mut GinConfig13, *mut *mut c_void, *mut *mut c_void) -> NcclResult;
/// Registers memory.
pub type Register = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, u64, *mut *mut c_void) -> NcclResult;
/// Like [`Register`], in v13.
pub type Register13 =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, u64, *mut *mut c_void, *mut *mut c_void) -> NcclResult;
/// Registers memory that is exported as a dma-buf.
pub type RegisterDmaBuf =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, u64, c_int, u64, *mut *mut c_void) -> NcclResult;
/// Like [`RegisterDmaBuf`], in v13.
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
/// Deregisters memory.
pub type Deregister = unsafe extern "C" fn(*mut c_void, *mut c_void) -> NcclResult;
/// Closes an object.
pub type Close = unsafe extern "C" fn(*mut c_void) -> NcclResult;
/// Defines types of functions that submit a transfer. Their arguments are communicator, context number, source offset
/// and region, bytes, destination offset and region, rank, the additional arguments listed here, and the request.
macro_rules! transfers {
    ($($(#[$doc:meta])* $name:ident($($extra:ty),*);)*) => {$(
        $(#[$doc])*
        pub type $name = unsafe extern "C" fn(
            *mut c_void, c_int, u64, *mut c_void, usize, u64, *mut c_void, u32, $($extra,)* *mut *mut c_void,
        ) -> NcclResult;
    )*};
}

transfers! {
    /// A put.
    Put();
    /// Like [`Put`], with flags; since v15.
    Put15(u32);
    /// A put with a signal in v13, which is always strong. Arguments: the signal's offset, region, value and operation.
    PutSignal13(u64, *mut c_void, u64, u32);
    /// Like [`PutSignal13`]; a flag specifies whether the signal is strong.
    PutSignal14(u64, *mut c_void, u64, u32, bool);
    /// Like [`PutSignal14`], with flags.
    PutSignal15(u64, *mut c_void, u64, u32, bool, u32);
}

/// Makes data that has arrived visible.
pub type Iflush = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, u32, *mut *mut c_void) -> NcclResult;
/// Returns whether a request is complete.
pub type Test = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int) -> NcclResult;
/// Returns whether an error has occurred.
pub type QueryLastError = unsafe extern "C" fn(*mut c_void, *mut bool) -> NcclResult;
/// Returns the properties of a communicator.
pub type GetRmaProperties = unsafe extern "C" fn(*mut c_void, *mut RmaProperties) -> NcclResult;

/// Defines tables of type 2. Each lists the types that differ between versions.
macro_rules! tables {
    ($($(#[$doc:meta])* $name:ident($($new:ident: $new_type:ty)?) {
        create_context: $create:ty, reg_mr_sym: $register:ty, reg_mr_sym_dma_buf: $dma_buf:ty,
        iput: $put:ty, iput_signal: $put_signal:ty,
    })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug)]
        #[allow(missing_docs, reason = "NCCL's names document it")]
        pub struct $name {
            pub name: Name,
            pub init: Init,
            pub devices: Devices,
            $(pub $new: $new_type,)?
            pub get_properties: GetProperties,
            pub listen: Listen,
            pub connect: Connect,
            pub create_context: $create,
            pub reg_mr_sym: $register,
            pub reg_mr_sym_dma_buf: $dma_buf,
            pub dereg_mr_sym: Deregister,
            pub destroy_context: Close,
            pub close_coll: Close,
            pub close_listen: Close,
            pub iput: $put,
            pub iput_signal: $put_signal,
            pub iget: $put,
            pub iflush: Iflush,
            pub test: Test,
            pub progress: Option<Close>,
            pub query_last_error: QueryLastError,
            pub finalize: Close,
        }
    )*};
}

tables! {
    /// `ncclRma_v13_t`, which is `ncclGin_v13_t`.
    Rma13() {
        create_context: CreateContext13, reg_mr_sym: Register13, reg_mr_sym_dma_buf: RegisterDmaBuf13,
        iput: Put, iput_signal: PutSignal13,
    }
    /// `ncclRma_v14_t`.
    Rma14() {
        create_context: CreateContext, reg_mr_sym: Register, reg_mr_sym_dma_buf: RegisterDmaBuf,
        iput: Put, iput_signal: PutSignal14,
    }
    /// `ncclRma_v15_t`.
    Rma15() {
        create_context: CreateContext, reg_mr_sym: Register, reg_mr_sym_dma_buf: RegisterDmaBuf,
        iput: Put15, iput_signal: PutSignal15,
    }
    /// `ncclRma_v16_t`.
    Rma16(get_rma_properties: GetRmaProperties) {
        create_context: CreateContext, reg_mr_sym: Register, reg_mr_sym_dma_buf: RegisterDmaBuf,
        iput: Put15, iput_signal: PutSignal15,
    }
}
