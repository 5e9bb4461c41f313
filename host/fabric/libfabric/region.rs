//! Registered memory.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;
use libfabric_sys::ops;

use super::errors::{self, Doing};
use super::gpu::is_made_up;
use super::objects::{Core, Registration};
use crate::{Access, FabricError, Memory, RemoteRegion, mistake};

/// Memory registered with one rail.
///
/// It keeps the rail's endpoint and domain open, so the order in which a rail and its regions are dropped does not matter.
/// What does matter: no transfer that uses the region is outstanding, and no other thread is inside a call of the rail.
pub struct LibfabricRegion {
    // Closed before `core` is let go: fields drop in this order.
    registration: Registration,
    core: Arc<Core>,
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// The local descriptor. Providers without FI_MR_LOCAL ignore it, the others refuse a transfer without.
    pub(super) descriptor: *mut c_void,
}

// SAFETY: a registration is not bound to a thread; calls must not overlap with the rail's, which is the contract of
// `LibfabricRail::register`.
unsafe impl Send for LibfabricRegion {}

impl std::fmt::Debug for LibfabricRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LibfabricRegion").field("address", &self.address).field("bytes", &self.bytes).finish()
    }
}

impl LibfabricRegion {
    /// Registers the memory for these uses, under a key that nobody can guess where the provider takes ours.
    ///
    /// # Safety
    /// See [`crate::Rail::register`].
    pub(super) unsafe fn register(
        rail: &str,
        core: &Arc<Core>,
        memory: Memory,
        access: Access,
    ) -> Result<Self, FabricError> {
        let place = memory.cuda_device.map_or("host".to_owned(), |device| format!("CUDA device {device}"));
        let what = format!("fi_mr_regattr of {} B of {place} memory", memory.bytes);
        let doing = if memory.cuda_device.is_some() { Doing::RegisteringCuda } else { Doing::RegisteringHost };
        let end = memory.address.checked_add(memory.bytes as u64);
        if memory.bytes == 0 || memory.address == 0 || end.is_none() {
            return Err(mistake(rail, what, "the stretch is empty or wraps around"));
        }
        // An address, not a pointer: memory of a device has no provenance here.
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
                // SAFETY: the domain is open, attributes and stretch live during the call; the caller vouches for the memory.
                unsafe { ops::fi_mr_regattr(core.domain.as_ptr(), &attr, 0, place) }
            });
            attempts -= 1;
            match opened {
                // The key is taken: of few bits that happens.
                Err(error) if error.code == ENOKEY && attempts > 0 => {}
                other => break other?,
            }
        };
        if info.domain().mr_mode & sys::FI_MR_ENDPOINT != 0 {
            // SAFETY: registration and endpoint are open and of one domain.
            let mut code = unsafe { ops::fi_mr_bind(registration.as_ptr(), core.endpoint().cast(), 0) };
            if code == 0 {
                // SAFETY: bound just now.
                code = unsafe { ops::fi_mr_enable(registration.as_ptr()) };
            }
            if code != 0 {
                let what = format!("binding to the endpoint after {what}");
                return Err(errors::error(rail, doing, what, i64::from(code)));
            }
        }
        // SAFETY: the registration is open; the key is set since it is enabled.
        let key = unsafe { (*registration.as_ptr()).key };
        let key_bytes = info.domain().mr_key_size;
        if memory.cuda_device.is_some() && is_made_up(key, key_bytes) {
            let text = format!(
                "the key {key:#x} is wider than the card's keys of {key_bytes} B: the card does not know this memory"
            );
            return Err(errors::refused(rail, doing, what, sys::FI_EOPNOTSUPP, text));
        }
        // SAFETY: the registration is open; the provider filled this in.
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
        // SAFETY: the registration is open; the key is set since it is enabled.
        let key = unsafe { (*self.registration.as_ptr()).key };
        RemoteRegion { key, base: if virtual_address { self.address } else { 0 }, bytes: self.bytes }
    }
}

/// FI_ENOKEY: the key is another registration's.
const ENOKEY: c_int = 266;

/// Keys that are tried: with 64 bits the first one is free, with the 8 of the smallest size one of so many mostly is.
const ATTEMPTS: u32 = 64;

/// A random key as wide as the domain takes. Providers with FI_MR_PROV_KEY choose their own and ignore it.
fn requested_key(rail: &str, domain: &sys::fi_domain_attr) -> Result<u64, FabricError> {
    let random = getrandom::u64().map_err(|error| {
        let what = "a random memory key".to_owned();
        errors::refused(rail, Doing::RegisteringHost, what, sys::FI_EIO, error.to_string())
    })?;
    Ok(random & key_mask(domain.mr_key_size))
}

/// The bits of a key of so many bytes; 0 stands for a provider that does not say.
fn key_mask(bytes: usize) -> u64 {
    match bytes {
        1..8 => (1 << (8 * bytes)) - 1,
        _ => u64::MAX,
    }
}

/// libfabric's flags for these uses, on an endpoint with these capabilities.
fn flags(access: Access, capabilities: u64) -> u64 {
    let of = |wanted: Access, flags: u64| if access.allows(wanted) { flags } else { 0 };
    of(Access::SOURCE, sys::FI_WRITE | capabilities & sys::FI_SEND)
        | of(Access::SINK, sys::FI_READ | capabilities & sys::FI_RECV)
        | of(Access::REMOTE_READ, sys::FI_REMOTE_READ)
        // A card without RDMA write has its peers' writes read here, by the provider of this side. That of libfabric 2.1 registers
        // memory that is for remote writes alone so that its own card may not, and ends the process when it tries.
        | of(Access::REMOTE_WRITE, sys::FI_REMOTE_WRITE | sys::FI_READ)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_gets_the_rights_it_was_asked_for_and_no_others() {
        let rma = sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
        assert_eq!(flags(Access::ALL, 0), rma);
        assert_eq!(flags(Access::ALL, sys::FI_SEND | sys::FI_RECV), rma | sys::FI_SEND | sys::FI_RECV);
        assert_eq!(flags(Access::REMOTE_WRITE, sys::FI_SEND | sys::FI_RECV), sys::FI_REMOTE_WRITE | sys::FI_READ);
        assert_eq!(flags(Access::SOURCE, sys::FI_SEND), sys::FI_WRITE | sys::FI_SEND);
        assert_eq!(flags(Access::SINK | Access::REMOTE_READ, 0), sys::FI_READ | sys::FI_REMOTE_READ);
    }

    #[test]
    fn keys_are_random_and_as_wide_as_the_domain_takes() {
        let masks = [0, 1, 2, 4, 7, 8, 16].map(key_mask);
        assert_eq!(masks, [u64::MAX, 0xff, 0xffff, 0xffff_ffff, (1 << 56) - 1, u64::MAX, u64::MAX]);
        // SAFETY: numbers, flags and pointers: zero is a value of each.
        let mut domain: sys::fi_domain_attr = unsafe { std::mem::zeroed() };
        domain.mr_key_size = 8;
        let keys: std::collections::HashSet<_> = (0..64).filter_map(|_| requested_key("", &domain).ok()).collect();
        assert_eq!(keys.len(), 64);
        // Of 64 random keys one below 2^32 comes once in 2^26 runs.
        assert!(keys.iter().all(|key| *key > u64::from(u32::MAX)));
    }
}
