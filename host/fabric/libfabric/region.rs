//! Registered memory of a libfabric rail.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;
use libfabric_sys::ops;

use super::errors::{self, FailedOperation};
use super::gpu::is_made_up;
use super::objects::{Core, Registration};
use crate::{Access, FabricError, MemoryRange, RemoteRegion, mistake};

/// Memory registered with one rail.
///
/// Keeps the rail's endpoint and domain open, so a rail and its regions may be dropped in any order. However, no
/// transfer that uses the region may be outstanding, and no other thread may be inside a call of the rail.
pub struct LibfabricRegion {
    // Closed before `core` is released: fields are dropped in declaration order.
    registration: Registration,
    core: Arc<Core>,
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// The local descriptor. Providers without FI_MR_LOCAL ignore it; the others refuse a transfer without it.
    pub(super) descriptor: *mut c_void,
}

// SAFETY: a registration is not bound to a thread. Calls must not overlap with the rail's, as the contract of
// `LibfabricRail::register` requires.
unsafe impl Send for LibfabricRegion {}

impl std::fmt::Debug for LibfabricRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LibfabricRegion").field("address", &self.address).field("bytes", &self.bytes).finish()
    }
}

impl LibfabricRegion {
    /// Registers the memory for these uses, with an unpredictable key if the provider lets the caller choose it.
    ///
    /// # Safety
    /// The contract of [`crate::Rail::register`] must hold.
    pub(super) unsafe fn register(
        rail: &str,
        core: &Arc<Core>,
        memory: MemoryRange,
        access: Access,
    ) -> Result<Self, FabricError> {
        let place = memory.cuda_device.map_or("host".to_owned(), |device| format!("CUDA device {device}"));
        let what = format!("fi_mr_regattr of {} B of {place} memory", memory.bytes);
        let doing = if memory.cuda_device.is_some() {
            FailedOperation::RegisteringCuda
        } else {
            FailedOperation::RegisteringHost
        };
        let end = memory.address.checked_add(memory.bytes as u64);
        if memory.bytes == 0 || memory.address == 0 || end.is_none() {
            return Err(mistake(rail, what, "the range is empty or wraps around"));
        }
        // An address instead of a pointer: device memory has no provenance here.
        let stretch =
            sys::iovec { iov_base: ptr::with_exposed_provenance_mut(memory.address as usize), iov_len: memory.bytes };
        let info = core.info.first();
        let uses = flags(access, info.info().caps);
        let mut attempts = ATTEMPTS;
        let registration = loop {
            let requested_key = requested_key(rail, info.domain())?;
            let mut attr = ops::mr_attr(&stretch, uses, requested_key);
            if let Some(device) = memory.cuda_device {
                attr.iface = sys::FI_HMEM_CUDA;
                attr.device.cuda = device;
            }
            let opened = Registration::open(rail, doing, &what, |place| {
                // SAFETY: the domain is open, attributes and range are valid during the call, and the caller guarantees
                // that the memory is valid.
                unsafe { ops::fi_mr_regattr(core.domain.as_ptr(), &attr, 0, place) }
            });
            attempts -= 1;
            match opened {
                // The key is in use, which can happen if keys have few bits.
                Err(error) if error.code == ENOKEY && attempts > 0 => {}
                other => break other?,
            }
        };
        if info.domain().mr_mode & sys::FI_MR_ENDPOINT != 0 {
            // SAFETY: registration and endpoint are open and belong to one domain.
            let mut code = unsafe { ops::fi_mr_bind(registration.as_ptr(), core.endpoint().cast(), 0) };
            if code == 0 {
                // SAFETY: the registration was just bound.
                code = unsafe { ops::fi_mr_enable(registration.as_ptr()) };
            }
            if code != 0 {
                let what = format!("binding to the endpoint after {what}");
                return Err(errors::error(rail, doing, what, i64::from(code)));
            }
        }
        // SAFETY: the registration is open, and its key is set because it is enabled.
        let key = unsafe { (*registration.as_ptr()).key };
        let key_bytes = info.domain().mr_key_size;
        if memory.cuda_device.is_some() && is_made_up(key, key_bytes) {
            let text = format!(
                "the key {key:#x} is wider than the device's keys of {key_bytes} B: the device has not registered this \
                 memory"
            );
            return Err(errors::refused(rail, doing, what, sys::FI_EOPNOTSUPP, text));
        }
        // SAFETY: the registration is open, and the provider has set this field.
        let descriptor = unsafe { (*registration.as_ptr()).mem_desc };
        let (address, bytes) = (memory.address, memory.bytes as u64);
        Ok(Self { registration, core: Arc::clone(core), address, bytes, descriptor })
    }

    #[inline]
    pub(super) fn belongs_to(&self, core: &Arc<Core>) -> bool {
        Arc::ptr_eq(&self.core, core)
    }

    pub(super) fn remote(&self) -> RemoteRegion {
        let virtual_address = self.core.info.first().domain().mr_mode & sys::FI_MR_VIRT_ADDR != 0;
        // SAFETY: the registration is open, and its key is set because it is enabled.
        let key = unsafe { (*self.registration.as_ptr()).key };
        RemoteRegion { key, base: if virtual_address { self.address } else { 0 }, bytes: self.bytes }
    }
}

/// Value of FI_ENOKEY: another registration uses the key.
const ENOKEY: c_int = 266;

/// Maximum number of keys to try. With 64-bit keys the first one is usually free; with 8-bit keys, the smallest size,
/// one of these usually is.
const ATTEMPTS: u32 = 64;

/// Returns a random key with the domain's key width. Providers with FI_MR_PROV_KEY choose the key and ignore this one.
fn requested_key(rail: &str, domain: &sys::fi_domain_attr) -> Result<u64, FabricError> {
    let random = getrandom::u64().map_err(|error| {
        let what = "a random memory key".to_owned();
        errors::refused(rail, FailedOperation::RegisteringHost, what, sys::FI_EIO, error.to_string())
    })?;
    Ok(random & key_mask(domain.mr_key_size))
}

/// Returns the mask for a key of `bytes` bytes. 0 means that the provider does not report the width.
fn key_mask(bytes: usize) -> u64 {
    match bytes {
        1..8 => (1 << (8 * bytes)) - 1,
        _ => u64::MAX,
    }
}

/// Returns libfabric's flags for these uses, on an endpoint with these capabilities.
fn flags(access: Access, capabilities: u64) -> u64 {
    let of = |wanted: Access, flags: u64| if access.allows(wanted) { flags } else { 0 };
    of(Access::SOURCE, sys::FI_WRITE | capabilities & sys::FI_SEND)
        | of(Access::SINK, sys::FI_READ | capabilities & sys::FI_RECV)
        | of(Access::REMOTE_READ, sys::FI_REMOTE_READ)
        // If a NIC has no RDMA write, the provider of this side reads the data of its peers' writes. libfabric 2.1
        // registers memory that is only for remote writes without read access for its own NIC, and such a read then
        // aborts the process.
        | of(Access::REMOTE_WRITE, sys::FI_REMOTE_WRITE | sys::FI_READ)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_gets_only_requested_access() {
        let rma = sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
        assert_eq!(flags(Access::ALL, 0), rma);
        assert_eq!(flags(Access::ALL, sys::FI_SEND | sys::FI_RECV), rma | sys::FI_SEND | sys::FI_RECV);
        assert_eq!(flags(Access::REMOTE_WRITE, sys::FI_SEND | sys::FI_RECV), sys::FI_REMOTE_WRITE | sys::FI_READ);
        assert_eq!(flags(Access::SOURCE, sys::FI_SEND), sys::FI_WRITE | sys::FI_SEND);
        assert_eq!(flags(Access::SINK | Access::REMOTE_READ, 0), sys::FI_READ | sys::FI_REMOTE_READ);
    }

    #[test]
    fn keys_are_random_with_width_of_domain() {
        let masks = [0, 1, 2, 4, 7, 8, 16].map(key_mask);
        assert_eq!(masks, [u64::MAX, 0xff, 0xffff, 0xffff_ffff, (1 << 56) - 1, u64::MAX, u64::MAX]);
        // SAFETY: the struct consists of numbers, flags and pointers, for which zero is valid.
        let mut domain: sys::fi_domain_attr = unsafe { std::mem::zeroed() };
        domain.mr_key_size = 8;
        let keys: std::collections::HashSet<_> = (0..64).filter_map(|_| requested_key("", &domain).ok()).collect();
        assert_eq!(keys.len(), 64);
        // The probability that one of 64 random keys is below 2^32 is 2^-26.
        assert!(keys.iter().all(|key| *key > u64::from(u32::MAX)));
    }
}
