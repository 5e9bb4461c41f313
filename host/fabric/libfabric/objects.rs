//! libfabric's objects, each closed when dropped, and the order in which a rail's objects are closed.

use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use libfabric_sys as sys;
use libfabric_sys::ops;

use super::closing::{close_in_time, left_open};
use super::contexts::Pool;
use super::errors::{self, FailedOperation};
use super::gpu::{self, GpuMemory};
use super::info::InfoList;
use super::shared_memory;
use crate::FabricError;

/// Objects that start with a `fid`, like all libfabric objects.
///
/// # Safety
/// The type must be `repr(C)` and its first member a [`sys::fid`].
pub(crate) unsafe trait Fid {
    /// Whether closing may wait for outstanding operations of the object. Its time is then limited ([`close_in_time`]),
    /// after which the object is left open.
    const WAITS: bool = false;
}

// SAFETY: the first member is `fid`, according to the headers.
unsafe impl Fid for sys::fid_fabric {}
// SAFETY: the first member is `fid`, according to the headers.
unsafe impl Fid for sys::fid_domain {}
// SAFETY: the first member is `fid`, according to the headers.
unsafe impl Fid for sys::fid_av {}
// SAFETY: the first member is `fid`, according to the headers.
unsafe impl Fid for sys::fid_cq {}
// SAFETY: the first member is `fid`, according to the headers.
unsafe impl Fid for sys::fid_ep {
    const WAITS: bool = true;
}
// SAFETY: the first member is `fid`, according to the headers.
unsafe impl Fid for sys::fid_mr {}

/// An open object, closed when dropped.
pub(crate) struct Object<T: Fid>(NonNull<T>);

pub(crate) type Fabric = Object<sys::fid_fabric>;
pub(crate) type Domain = Object<sys::fid_domain>;
pub(crate) type AddressVector = Object<sys::fid_av>;
pub(crate) type CompletionQueue = Object<sys::fid_cq>;
pub(crate) type Endpoint = Object<sys::fid_ep>;
pub(crate) type Registration = Object<sys::fid_mr>;

impl<T: Fid> Object<T> {
    /// Runs an open call. `call` receives a pointer to which it stores the object, and returns the C code.
    pub fn open(
        rail: &str,
        doing: FailedOperation,
        what: &str,
        call: impl FnOnce(*mut *mut T) -> i32,
    ) -> Result<Self, FabricError> {
        let mut object = ptr::null_mut();
        let code = call(&mut object);
        match NonNull::new(object) {
            Some(object) if code == 0 => Ok(Self(object)),
            _ => Err(errors::error(rail, doing, what, i64::from(if code == 0 { sys::FI_EIO } else { code }))),
        }
    }

    /// Wraps an object that a test has made.
    #[cfg(test)]
    pub fn scripted(object: NonNull<T>) -> Self {
        Self(object)
    }

    pub fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// Returns the object as the common first member.
    pub fn fid(&self) -> *mut sys::fid {
        self.0.as_ptr().cast()
    }
}

impl<T: Fid> Drop for Object<T> {
    fn drop(&mut self) {
        if T::WAITS {
            // SAFETY: the object is open, and only this owner uses it.
            unsafe { close_in_time(self.fid()) };
            return;
        }
        // An endpoint that was left open may still be active on its thread, and uses the addresses, queues and
        // registrations below it. Closing these would crash the process. For example, libfabric 1.17's efa retransmits
        // to a peer that was killed.
        if left_open().is_some() {
            return;
        }
        // SAFETY: the object is open, and the owners' field order ensures that objects opened from it are closed first.
        // If a provider refuses (-FI_EBUSY), the object is leaked, because there is no alternative.
        let _ = unsafe { ops::fi_close(self.fid()) };
    }
}

/// All objects of a rail except its registrations. The fields are closed in declaration order.
///
/// Regions also hold a reference (`Arc`), so that a region dropped after its rail is still closed before the domain.
pub(crate) struct Core {
    /// Closed by its rail ([`close_endpoint`](Core::close_endpoint)), or with the last region if regions are bound to
    /// it.
    pub(super) endpoint: Mutex<Option<Endpoint>>,
    pub addresses: AddressVector,
    pub queue: CompletionQueue,
    pub domain: Domain,
    pub(super) _fabric: Fabric,
    pub info: InfoList,
    /// Result of the negotiation about GPU memory.
    pub gpu_memory: GpuMemory,
    /// Contexts of posted operations. The provider may write to them until the endpoint is closed.
    pub contexts: Pool,
}

// SAFETY: the objects are not bound to a thread. They were opened with FI_THREAD_DOMAIN, so calls on them must not
// overlap. The rail's methods take `&mut self`, and the contract of `LibfabricRail::register` forbids dropping a region
// on another thread at the same time.
unsafe impl Send for Core {}
// SAFETY: a shared `Core` only returns pointers, and using them is `unsafe` with the contract of `Send` above.
unsafe impl Sync for Core {}

impl Core {
    /// Returns the endpoint, or null once it is closed.
    pub fn endpoint(&self) -> *mut sys::fid_ep {
        self.endpoint.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(ptr::null_mut(), Object::as_ptr)
    }

    /// Closes the endpoint when the rail is dropped, before its remaining regions. If a registration were closed first
    /// and a peer then wrote to it, libfabric 1.17's EFA provider would abort the process. If regions are bound to the
    /// endpoint, they must be closed first instead.
    pub fn close_endpoint(&self) {
        if self.info.first().domain().mr_mode & sys::FI_MR_ENDPOINT == 0 {
            drop(self.endpoint.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }

    /// Opens and enables all objects for the first entry of `info`. For `immediates` see
    /// [`RailOptions`](super::RailOptions).
    pub fn open(rail: &str, info: InfoList, immediates: usize) -> Result<Self, FabricError> {
        let entry = info.first();
        let outstanding = entry.transmit().size.clamp(1, super::MAX_OUTSTANDING);
        let receives =
            if entry.info().mode & sys::FI_RX_CQ_DATA != 0 { entry.receive().size.clamp(1, 1024) } else { 0 };
        let av_type = entry.domain().av_type;
        let raw = info.as_ptr();
        let none = ptr::null_mut();

        let fabric = Fabric::open(rail, FailedOperation::Opening, "fi_fabric", |place| {
            // SAFETY: the entry's fabric attributes are valid, and `place` is a valid pointer.
            unsafe { (info.library().fi_fabric)((*raw).fabric_attr, place, none) }
        })?;
        let domain = Domain::open(rail, FailedOperation::Opening, "fi_domain", |place| {
            // SAFETY: the fabric is open and belongs to this entry.
            unsafe { ops::fi_domain(fabric.as_ptr(), raw, place, none) }
        })?;
        // A full queue loses completions, so it has an entry for each of our transfers and for each immediate that
        // peers may send unpolled.
        let entries = outstanding + receives + immediates;
        let mut attr = sys::fi_cq_attr {
            size: entries,
            format: sys::FI_CQ_FORMAT_DATA,
            wait_obj: sys::FI_WAIT_NONE,
            ..Default::default()
        };
        let what = format!("fi_cq_open of {entries} entries, {immediates} of them for immediates of peers");
        let queue = CompletionQueue::open(rail, FailedOperation::Opening, &what, |place| {
            // SAFETY: the domain is open, and the attributes are valid during the call.
            unsafe { ops::fi_cq_open(domain.as_ptr(), &mut attr, place, none) }
        })?;
        let mut attr = sys::fi_av_attr { type_: av_type, ..Default::default() };
        let addresses = AddressVector::open(rail, FailedOperation::Opening, "fi_av_open", |place| {
            // SAFETY: the domain is open, and the attributes are valid during the call.
            unsafe { ops::fi_av_open(domain.as_ptr(), &mut attr, place, none) }
        })?;
        let endpoint = Endpoint::open(rail, FailedOperation::Opening, "fi_endpoint", |place| {
            // SAFETY: the domain is open and belongs to this entry.
            unsafe { ops::fi_endpoint(domain.as_ptr(), raw, place, none) }
        })?;
        let check = |what: &str, code: i32| match code {
            0 => Ok(()),
            code => Err(errors::error(rail, FailedOperation::Opening, what, i64::from(code))),
        };
        // SAFETY: endpoint and queue are open and belong to one domain. The queue serves both directions.
        check("fi_ep_bind of the completion queue", unsafe {
            ops::fi_ep_bind(endpoint.as_ptr(), queue.fid(), sys::FI_TRANSMIT | sys::FI_RECV)
        })?;
        // SAFETY: endpoint and address vector are open and belong to one domain.
        check("fi_ep_bind of the address vector", unsafe { ops::fi_ep_bind(endpoint.as_ptr(), addresses.fid(), 0) })?;
        let gpu_memory = match entry.info().caps & sys::FI_HMEM {
            0 => GpuMemory::NotOffered,
            // SAFETY: the endpoint was just opened and is not enabled yet.
            _ => unsafe { gpu::forbid_cuda_calls(rail, endpoint.as_ptr(), info.library().api()) },
        };
        let _turn = shared_memory::turn(rail, &entry.provider(), info.library().version())?;
        // SAFETY: the endpoint is open and bound.
        check("fi_enable", unsafe { ops::fi_enable(endpoint.as_ptr()) })?;
        let contexts = Pool::new(outstanding, receives);
        let endpoint = Mutex::new(Some(endpoint));
        Ok(Self { endpoint, addresses, queue, domain, _fabric: fabric, info, gpu_memory, contexts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_open_returns_error_with_reason() {
        let of = |code: i32| {
            let opened = AddressVector::open("efa:rdmap0s6", FailedOperation::Opening, "fi_av_open", |_| code);
            opened.map(|_| ()).map_err(|error| error.to_string()).expect_err("nothing was made")
        };
        let (nothing, no_memory) = (of(0), of(-sys::FI_ENOMEM));
        assert!(
            nothing.contains("Input/output error") && no_memory.contains("Cannot allocate memory"),
            "{nothing} {no_memory}"
        );
    }
}
