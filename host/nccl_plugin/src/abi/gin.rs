//! GIN plugins (NCCL 2.31 and newer): a back end to whose queues NCCL's kernels write.

use super::{
    Close, Connect, Deregister, DeviceHandle, Devices, GetProperties, Init, Listen, Name, NcclResult, QueryLastError,
    Register13, RegisterDmaBuf13,
};
use std::ffi::{c_int, c_void};

/// `ncclGinProperties_v14_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GinProperties {
    /// Whether signals that wait for all preceding puts are supported.
    pub strong_signals: bool,
    /// Whether signals at any address are supported.
    pub address_signals: bool,
}

/// `ncclGinConfig_v14_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GinConfig {
    /// Number of signals per context.
    pub signals: c_int,
    /// Number of counters per context.
    pub counters: c_int,
    /// Number of contexts.
    pub contexts: c_int,
    /// Depth of a queue; 0 if NCCL leaves the choice to the plugin.
    pub queue_depth: c_int,
    /// Traffic class; -1 for none.
    pub traffic_class: c_int,
    /// Version of the queue layout that the kernels were compiled for.
    pub backend_version: c_int,
    /// Distance between consecutive connected ranks.
    pub rank_stride: c_int,
}

/// Creates contexts, and the device handle for the kernels.
pub type CreateContext14 =
    unsafe extern "C" fn(*mut c_void, *mut GinConfig, *mut *mut c_void, *mut *mut DeviceHandle) -> NcclResult;
/// Returns which kinds of signals are supported.
pub type GetGinProperties = unsafe extern "C" fn(*mut GinProperties) -> NcclResult;

/// `ncclGin_v14_t`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "NCCL's names document it")]
pub struct Gin14 {
    pub name: Name,
    pub init: Init,
    pub devices: Devices,
    pub get_gin_properties: GetGinProperties,
    pub get_properties: GetProperties,
    pub listen: Listen,
    pub connect: Connect,
    pub create_context: CreateContext14,
    pub reg_mr_sym: Register13,
    pub reg_mr_sym_dma_buf: RegisterDmaBuf13,
    pub dereg_mr_sym: Deregister,
    pub destroy_context: Close,
    pub close_coll: Close,
    pub close_listen: Close,
    pub progress: Close,
    pub query_last_error: QueryLastError,
    pub finalize: Close,
}
