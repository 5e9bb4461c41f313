//! Memory of GPUs on a rail: proven, never believed.
//!
//! From interface 1.18 on a provider may claim FI_HMEM for CUDA memory that its card does not reach: it copies the bytes by calls of
//! CUDA, and `fi_mr_regattr` succeeds without the card (efa without GPUDirect does so, tcp and shm always). Such calls run in the
//! proxy's thread beside a kernel that polls, and rows would say that the card had read GPU memory. So each endpoint that is asked
//! for such memory is told, before it is enabled, that it may make no CUDA call. A provider that agrees has its card move the bytes,
//! or fails; one that refuses cannot do without, and its rail is opened again without FI_HMEM: payloads are staged. A registration
//! whose key is wider than the domain's keys was made up by the provider, and is refused too.

use libfabric_sys as sys;
use libfabric_sys::ops;

use super::errors::{self, Doing};
use crate::FabricError;

/// What a rail says of memory of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuMemory {
    /// Nobody asked, or the provider does not claim it (FI_HMEM).
    NotOffered,
    /// The provider has agreed to make no CUDA call: whatever it moves, its card moves.
    ByCard,
    /// The provider claims it, but not without CUDA calls: the rail was opened without. The error says how it refused.
    ByCudaCalls(Box<FabricError>),
}

/// Takes CUDA calls away from an endpoint.
///
/// # Safety
/// The endpoint is open, and not enabled yet.
pub(super) unsafe fn forbid_cuda_calls(rail: &str, endpoint: *mut sys::fid_ep, api: u32) -> GpuMemory {
    let set = |name: i32, value: *const std::ffi::c_void, length: usize| {
        // SAFETY: the endpoint is open; value and length are of the option's type and live during the call.
        unsafe { ops::fi_setopt(endpoint, sys::FI_OPT_ENDPOINT, name, value, length) }
    };
    let (what, code) = if api >= sys::CUDA_API_OPTION {
        let permitted = false;
        let code = set(sys::FI_OPT_CUDA_API_PERMITTED, (&raw const permitted).cast(), size_of::<bool>());
        ("fi_setopt of FI_OPT_CUDA_API_PERMITTED to false", code)
    } else {
        // Older interfaces have no such option; this one asks for the same: no copy in between.
        let required = sys::FI_HMEM_P2P_REQUIRED;
        let code = set(sys::FI_OPT_FI_HMEM_P2P, (&raw const required).cast(), size_of::<std::ffi::c_int>());
        ("fi_setopt of FI_OPT_FI_HMEM_P2P to required", code)
    };
    match code {
        0 => GpuMemory::ByCard,
        // FI_EOPNOTSUPP by the manual; other codes come from providers that do not know the option or find no GPU. None is a promise.
        code => {
            let error = errors::error(rail, Doing::RegisteringCuda, what, i64::from(code));
            let hint = "the provider claims FI_HMEM and would copy by CUDA calls: stage through pinned host memory (`ginlab proxy` does); \
                        for GPUDirect see gpu-direct of `ginlab doctor`";
            GpuMemory::ByCudaCalls(Box::new(FabricError { hint: hint.to_owned(), ..error }))
        }
    }
}

/// Whether a provider has made up the key of a registration, which has more bits than the domain's keys have bytes for.
pub(super) fn is_made_up(key: u64, key_bytes: usize) -> bool {
    (1..8).contains(&key_bytes) && key >> (8 * key_bytes) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_does_not_fit_the_domain_is_made_up() {
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
