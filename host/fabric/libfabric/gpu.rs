//! GPU memory on a rail: the NIC's direct access is verified, not assumed.
//!
//! From API version 1.18 on, a provider may claim FI_HMEM for CUDA memory that its NIC cannot access. It then copies
//! the bytes with CUDA calls, and `fi_mr_regattr` succeeds without the NIC. efa does this without GPUDirect, tcp and
//! shm always do it. Such calls would run in the proxy's thread while a kernel polls, and result rows would claim that
//! the NIC had read GPU memory.
//!
//! Therefore, CUDA calls are forbidden on each endpoint for which GPU memory is requested, before it is enabled. A
//! provider that agrees has its NIC move the bytes, or fails. If the provider refuses, it depends on CUDA calls. Its
//! rail is then opened again without FI_HMEM, and payloads are staged. A registration whose key is wider than the
//! domain's keys was invented by the provider, and is also refused.

use libfabric_sys as sys;
use libfabric_sys::ops;

use super::errors::{self, FailedOperation};
use crate::FabricError;

/// Support of a rail for GPU memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuMemory {
    /// GPU memory was not requested, or the provider does not claim it (FI_HMEM).
    NotOffered,
    /// The provider has agreed to make no CUDA calls: its NIC moves all bytes.
    ByCard,
    /// The provider claims support only with CUDA calls, so the rail was opened without GPU memory. Contains the error
    /// of the refusal.
    ByCudaCalls(Box<FabricError>),
}

/// Forbids CUDA calls on an endpoint. Returns the resulting support for GPU memory.
///
/// # Safety
/// The endpoint must be open, and not enabled yet.
pub(super) unsafe fn forbid_cuda_calls(rail: &str, endpoint: *mut sys::fid_ep, api: u32) -> GpuMemory {
    let set = |name: i32, value: *const std::ffi::c_void, length: usize| {
        // SAFETY: the endpoint is open. Value and length have the option's type and are valid during the call.
        unsafe { ops::fi_setopt(endpoint, sys::FI_OPT_ENDPOINT, name, value, length) }
    };
    let (what, code) = if api >= sys::CUDA_API_OPTION {
        let permitted = false;
        let code = set(sys::FI_OPT_CUDA_API_PERMITTED, (&raw const permitted).cast(), size_of::<bool>());
        ("fi_setopt of FI_OPT_CUDA_API_PERMITTED to false", code)
    } else {
        // Older API versions lack that option. This one has the same effect: no copy through host memory.
        let required = sys::FI_HMEM_P2P_REQUIRED;
        let code = set(sys::FI_OPT_FI_HMEM_P2P, (&raw const required).cast(), size_of::<std::ffi::c_int>());
        ("fi_setopt of FI_OPT_FI_HMEM_P2P to required", code)
    };
    match code {
        0 => GpuMemory::ByCard,
        // FI_EOPNOTSUPP according to the manual. Providers that do not know the option or find no GPU return other
        // codes. Only code 0 is a guarantee.
        code => {
            let error = errors::error(rail, FailedOperation::RegisteringCuda, what, i64::from(code));
            let hint = "the provider claims FI_HMEM, but would copy by CUDA calls; stage through pinned host memory \
                        (`ginlab proxy` does); for GPUDirect see gpu-direct of `ginlab doctor`";
            GpuMemory::ByCudaCalls(Box::new(FabricError { hint: hint.to_owned(), ..error }))
        }
    }
}

/// Returns whether a provider has invented the key of a registration, that is, whether the key has more bytes than the
/// domain's keys.
pub(super) fn is_made_up(key: u64, key_bytes: usize) -> bool {
    (1..8).contains(&key_bytes) && key >> (8 * key_bytes) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversized_key_is_detected_as_synthetic() {
        for (key, bytes, made_up) in [
            (0xffff_ffff, 4, false),
            (0x1_0000_0000, 4, true),
            (0x100, 1, true),
            (u64::MAX, 8, false),
            (u64::MAX, 0, false),
        ] {
            assert_eq!(is_made_up(key, bytes), made_up, "{key:#x} of {bytes} B");
        }
    }
}
