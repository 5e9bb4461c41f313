//! GIN plugins (NCCL 2.31 and newer): a back end whose queues NCCL's kernels write themselves.

use super::{
    Close, Connect, Deregister, DeviceHandle, Devices, GetProperties, Init, Listen, Name, NcclResult, QueryLastError,
    Register13, RegisterDmaBuf13,
};
use std::ffi::{c_int, c_void};

/// `ncclGinProperties_v14_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GinProperties {
    /// Signals that wait for all puts before them.
    pub strong_signals: bool,
    /// Signals at any address.
    pub address_signals: bool,
}

/// `ncclGinConfig_v14_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GinConfig {
    /// Signals of a context.
    pub signals: c_int,
    /// Counters of a context.
    pub counters: c_int,
    /// Contexts.
    pub contexts: c_int,
    /// Of a queue; 0 where NCCL does not mind.
    pub queue_depth: c_int,
    /// -1: none.
    pub traffic_class: c_int,
    /// Which layout of queues the kernels were compiled for.
    pub backend_version: c_int,
    /// From a rank to the next one that is reached.
    pub rank_stride: c_int,
}

/// Makes contexts, and what the kernels are given.
pub type CreateContext14 =
    unsafe extern "C" fn(*mut c_void, *mut GinConfig, *mut *mut c_void, *mut *mut DeviceHandle) -> NcclResult;
/// Says which signals there are.
pub type GetGinProperties = unsafe extern "C" fn(*mut GinProperties) -> NcclResult;

/// `ncclGin_v14_t`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "NCCL's names say it")]
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
