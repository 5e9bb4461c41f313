//! Registered memory.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;
use libfabric_sys::ops;

use super::errors::{self, Doing};
use super::info::ACCESS;
use super::objects::{Core, Registration};
use crate::fabric::{FabricError, Memory, RemoteRegion};

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
    /// Registers the memory.
    ///
    /// # Safety
    /// See [`crate::fabric::Rail::register`].
    pub(super) unsafe fn register(
        rail: &str,
        core: &Arc<Core>,
        memory: Memory,
        requested_key: u64,
    ) -> Result<Self, FabricError> {
        let place = memory.cuda_device.map_or("host".to_owned(), |device| format!("CUDA device {device}"));
        let what = format!("fi_mr_regattr of {} B of {place} memory", memory.bytes);
        let doing = if memory.cuda_device.is_some() { Doing::RegisteringCuda } else { Doing::RegisteringHost };
        let end = memory.address.checked_add(memory.bytes as u64);
        if memory.bytes == 0 || memory.address == 0 || end.is_none() {
            return Err(errors::refused(
                rail,
                Doing::Checking,
                what,
                sys::FI_EINVAL,
                "the stretch is empty or wraps around",
            ));
        }
        // An address, not a pointer: memory of a device has no provenance here.
        let stretch =
            sys::iovec { iov_base: ptr::with_exposed_provenance_mut(memory.address as usize), iov_len: memory.bytes };
        let messages = core.info.first().info().caps & (sys::FI_SEND | sys::FI_RECV);
        let mut attr = ops::mr_attr(&stretch, ACCESS | messages, requested_key);
        if let Some(device) = memory.cuda_device {
            attr.iface = sys::FI_HMEM_CUDA;
            attr.device.cuda = device;
        }
        let registration = Registration::open(rail, doing, &what, |place| {
            // SAFETY: the domain is open, attributes and stretch live during the call; the caller vouches for the memory.
            unsafe { ops::fi_mr_regattr(core.domain.as_ptr(), &attr, 0, place) }
        })?;
        if core.info.first().domain().mr_mode & sys::FI_MR_ENDPOINT != 0 {
            // SAFETY: registration and endpoint are open and of one domain.
            let mut code = unsafe { ops::fi_mr_bind(registration.as_ptr(), core.endpoint.fid(), 0) };
            if code == 0 {
                // SAFETY: bound just now.
                code = unsafe { ops::fi_mr_enable(registration.as_ptr()) };
            }
            if code != 0 {
                return Err(errors::error(
                    rail,
                    doing,
                    format!("binding to the endpoint after {what}"),
                    i64::from(code),
                ));
            }
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
