//! Registered memory of the host or of a GPU.
//!
//! There are two methods by which a NIC can access GPU memory. With the first one, the GPU's driver exports it as a
//! dma-buf, which the NIC registers. With the second one, the NIC registers the address, which the kernel resolves
//! through a peer-memory module (efa_nv_peermem). They are tried in this order, as in libfabric's EFA provider.

use super::device::Verbs;
use super::errors;
use crate::{Access, FabricError, MemoryRange, mistake, soft};
use ginlab_cuda::DmaBuf;
use std::ffi::c_int;
use std::io;
use std::os::fd::AsRawFd;
use verbs_sys as sys;

/// Registered memory. Keeps its device open.
#[derive(Debug)]
pub struct VerbsRegion {
    made: *mut sys::ibv_mr,
    pub(super) verbs: Verbs,
    /// Address of the first byte, as used by peers and requests.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Key for requests of this side, 24 bits.
    pub lkey: u32,
    /// Key for peers.
    pub rkey: u32,
}

// SAFETY: a registration is not bound to a thread.
unsafe impl Send for VerbsRegion {}
// SAFETY: the fields that are read never change.
unsafe impl Sync for VerbsRegion {}

impl Drop for VerbsRegion {
    fn drop(&mut self) {
        // SAFETY: the registration was made by `register`, whose contract requires that nothing in flight uses it.
        unsafe { (self.verbs.0.library.ibv_dereg_mr)(self.made) };
    }
}

impl Verbs {
    /// Returns whether GPU memory may be registered. A software NIC is a CPU thread, which cannot access it. For a real
    /// NIC, only a registration shows this.
    #[must_use]
    pub fn takes_gpu_memory(&self) -> bool {
        soft::label().is_none()
    }

    /// Registers memory for these uses. GPU memory is registered as a dma-buf or, if this fails, as peer memory.
    ///
    /// # Safety
    /// The memory must stay valid and must not move until the region is dropped.
    ///
    /// # Errors
    /// Returns an error for GPU memory on a software NIC, for an empty range, and if the registration fails. For GPU
    /// memory, the error contains those of both methods.
    pub unsafe fn register(&self, memory: MemoryRange, access: Access) -> Result<VerbsRegion, FabricError> {
        let MemoryRange { address, bytes, cuda_device } = memory;
        let what = match cuda_device {
            None => format!("ibv_reg_mr_iova2 of {bytes} B"),
            Some(device) => format!("registering {bytes} B of CUDA device {device}"),
        };
        if bytes == 0 || address == 0 || address.checked_add(bytes as u64).is_none() {
            return Err(mistake(&self.0.rail, what, "the range is empty or wraps around"));
        }
        let library = self.0.library;
        let card = Registrar {
            rail: &self.0.rail,
            domain: self.0.domain,
            plain: library.ibv_reg_mr_iova2,
            dma_buf: library.ibv_reg_dmabuf_mr,
            access: flags(access),
        };
        let made = match cuda_device {
            None => {
                // SAFETY: the protection domain exists, and the caller guarantees that the memory is valid.
                let made = unsafe { card.plain(memory) };
                made.map_err(|error| errors::call(card.rail, what, error.raw_os_error()))?
            }
            Some(_) if !self.takes_gpu_memory() => {
                let text = "software NICs move bytes by the CPU and cannot register a dma-buf; stage through pinned \
                            host memory";
                return Err(mistake(card.rail, what, text));
            }
            Some(device) => {
                let exported = ginlab_cuda::dma_buf(device, address, bytes).map_err(|error| error.to_string());
                // SAFETY: the protection domain exists, the caller guarantees that the memory is valid, and its driver
                // exported these bytes.
                unsafe { card.of_gpu(memory, exported) }.map_err(|refused| refused.error(card.rail, what))?
            }
        };
        // SAFETY: the registration was just made.
        let (lkey, rkey) = unsafe { ((*made).lkey, (*made).rkey) };
        Ok(VerbsRegion { made, verbs: self.clone(), address, bytes: bytes as u64, lkey, rkey })
    }
}

/// Parameters and functions of a registration.
struct Registrar<'a> {
    rail: &'a str,
    domain: *mut sys::ibv_pd,
    plain: sys::RegMrIova2,
    /// Available since rdma-core 34.
    dma_buf: Option<sys::RegDmabufMr>,
    access: u32,
}

/// Errors of both methods of registering GPU memory.
#[derive(Debug)]
struct RegistrationErrors {
    dma_buf: String,
    peer_memory: io::Error,
}

impl RegistrationErrors {
    fn error(self, rail: &str, operation: String) -> FabricError {
        let RegistrationErrors { dma_buf, peer_memory } = self;
        let text = format!("by dma-buf: {dma_buf}; by peer memory (efa_nv_peermem): {}", errors::words(&peer_memory));
        let hint =
            "stage through pinned host memory (`ginlab proxy` does); for GPUDirect see gpu-direct of `ginlab doctor`";
        let code = peer_memory.raw_os_error().unwrap_or_default();
        FabricError { rail: rail.to_owned(), operation, code, text, hint: hint.to_owned() }
    }
}

impl Registrar<'_> {
    /// Registers memory by its address.
    ///
    /// # Safety
    /// The protection domain must exist, and the memory must be valid until the registration ends.
    unsafe fn plain(&self, memory: MemoryRange) -> io::Result<*mut sys::ibv_mr> {
        let start = std::ptr::with_exposed_provenance_mut(memory.address as usize);
        // SAFETY: the caller upholds the contract of this function.
        let made = unsafe { (self.plain)(self.domain, start, memory.bytes, memory.address, self.access) };
        if made.is_null() { Err(io::Error::last_os_error()) } else { Ok(made) }
    }

    /// Registers GPU memory. `exported` is the result of exporting it as a dma-buf.
    ///
    /// # Safety
    /// The contract of [`plain`](Registrar::plain) must hold, and an exported dma-buf must have these bytes.
    unsafe fn of_gpu(
        &self,
        memory: MemoryRange,
        exported: Result<DmaBuf, String>,
    ) -> Result<*mut sys::ibv_mr, RegistrationErrors> {
        // SAFETY: the caller upholds the contract of this function.
        let by_dma_buf = exported.and_then(|exported| unsafe { self.by_dma_buf(memory, &exported) });
        by_dma_buf.or_else(|dma_buf| {
            // SAFETY: the caller upholds the contract of this function.
            unsafe { self.plain(memory) }.map_err(|peer_memory| RegistrationErrors { dma_buf, peer_memory })
        })
    }

    /// Registers GPU memory through its dma-buf.
    ///
    /// # Safety
    /// The contract of [`of_gpu`](Registrar::of_gpu) must hold.
    unsafe fn by_dma_buf(&self, memory: MemoryRange, exported: &DmaBuf) -> Result<*mut sys::ibv_mr, String> {
        let register = self.dma_buf.ok_or("this libibverbs lacks ibv_reg_dmabuf_mr (rdma-core 34 has it)")?;
        let (file, access) = (exported.file.as_raw_fd(), self.access as c_int);
        // SAFETY: the caller upholds the contract of this function. Requests use the memory's own address, as with
        // `plain`.
        let made = unsafe { register(self.domain, exported.offset, memory.bytes, memory.address, file, access) };
        if made.is_null() { Err(errors::words(&io::Error::last_os_error())) } else { Ok(made) }
    }
}

/// Returns the verbs flags for these uses.
fn flags(access: Access) -> u32 {
    let of = |wanted: Access, flags: u32| if access.allows(wanted) { flags } else { 0 };
    of(Access::SINK, sys::IBV_ACCESS_LOCAL_WRITE)
        // The NIC performs the writes of peers, so it needs local write access.
        | of(Access::REMOTE_WRITE, sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_LOCAL_WRITE)
        | of(Access::REMOTE_READ, sys::IBV_ACCESS_REMOTE_READ)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::libc::{EFAULT, EOPNOTSUPP};
    use std::cell::RefCell;
    use std::ffi::{c_uint, c_void};
    use std::os::fd::OwnedFd;

    const MEMORY: MemoryRange = MemoryRange { address: 0x7f00_0000_0200, bytes: 4096, cuda_device: Some(1) };
    const DOMAIN: usize = 0x1000;
    /// Results of the test doubles. Never dereferenced.
    const BY_DMA_BUF: usize = 0x2000;
    const PLAIN: usize = 0x3000;

    /// A call of a test double, with its arguments.
    #[derive(Clone, Debug, PartialEq)]
    enum Called {
        DmaBuf { domain: usize, offset: u64, length: usize, iova: u64, file: i32, access: i32 },
        Plain { domain: usize, address: usize, length: usize, iova: u64, access: u32 },
    }

    thread_local! {
        static CALLS: RefCell<Vec<Called>> = const { RefCell::new(Vec::new()) };
    }

    fn note(called: Called) {
        CALLS.with_borrow_mut(|calls| calls.push(called));
    }

    /// Emulates libibverbs if the system returns an error.
    fn says(error: i32) -> *mut sys::ibv_mr {
        nix::errno::Errno::from_raw(error).set();
        std::ptr::null_mut()
    }

    unsafe extern "C" fn takes_dma_buf(
        domain: *mut sys::ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        file: c_int,
        access: c_int,
    ) -> *mut sys::ibv_mr {
        note(Called::DmaBuf { domain: domain.addr(), offset, length, iova, file, access });
        std::ptr::without_provenance_mut(BY_DMA_BUF)
    }

    unsafe extern "C" fn no_dma_buf(
        domain: *mut sys::ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        file: c_int,
        access: c_int,
    ) -> *mut sys::ibv_mr {
        note(Called::DmaBuf { domain: domain.addr(), offset, length, iova, file, access });
        says(EOPNOTSUPP)
    }

    unsafe extern "C" fn takes_address(
        domain: *mut sys::ibv_pd,
        address: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut sys::ibv_mr {
        note(Called::Plain { domain: domain.addr(), address: address.addr(), length, iova, access });
        std::ptr::without_provenance_mut(PLAIN)
    }

    unsafe extern "C" fn no_address(
        domain: *mut sys::ibv_pd,
        address: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut sys::ibv_mr {
        note(Called::Plain { domain: domain.addr(), address: address.addr(), length, iova, access });
        says(EFAULT)
    }

    fn registrar(dma_buf: Option<sys::RegDmabufMr>, plain: sys::RegMrIova2) -> Registrar<'static> {
        let domain = std::ptr::without_provenance_mut(DOMAIN);
        Registrar { rail: "efa-verbs:x", domain, plain, dma_buf, access: flags(Access::ALL) }
    }

    /// Returns an open file that replaces a driver's dma-buf, and its descriptor.
    fn exported() -> (DmaBuf, i32) {
        let file = OwnedFd::from(tempfile::tempfile().expect("a file"));
        let number = file.as_raw_fd();
        (DmaBuf { file, offset: 0x200 }, number)
    }

    /// Returns the result of a registration, and the calls made.
    fn of_gpu(card: &Registrar<'_>, exported: Result<DmaBuf, String>) -> (Result<usize, String>, Vec<Called>) {
        CALLS.take();
        // SAFETY: the test doubles do not access memory.
        let made = unsafe { card.of_gpu(MEMORY, exported) };
        let made = made.map(|made| made.addr());
        (made.map_err(|why| why.error(card.rail, "registering".into()).to_string()), CALLS.take())
    }

    fn dma_buf_call(file: i32) -> Called {
        // LOCAL_WRITE, REMOTE_WRITE and REMOTE_READ; requests use the memory's own address.
        Called::DmaBuf {
            domain: DOMAIN,
            offset: 0x200,
            length: MEMORY.bytes,
            iova: MEMORY.address,
            file,
            access: 1 | 2 | 4,
        }
    }

    const PLAIN_CALL: Called = Called::Plain {
        domain: DOMAIN,
        address: MEMORY.address as usize,
        length: MEMORY.bytes,
        iova: MEMORY.address,
        access: 1 | 2 | 4,
    };

    #[test]
    fn gpu_memory_is_registered_by_dma_buf() {
        let (file, number) = exported();
        let (made, calls) = of_gpu(&registrar(Some(takes_dma_buf), no_address), Ok(file));
        assert_eq!((made, calls), (Ok(BY_DMA_BUF), vec![dma_buf_call(number)]));
    }

    #[test]
    fn gpu_memory_falls_back_to_registration_by_address() {
        let (file, number) = exported();
        let (made, calls) = of_gpu(&registrar(Some(no_dma_buf), takes_address), Ok(file));
        assert_eq!((made, calls), (Ok(PLAIN), vec![dma_buf_call(number), PLAIN_CALL]));
        // The dma-buf call is skipped if the driver exports none or libibverbs does not support it.
        let (made, calls) = of_gpu(&registrar(Some(takes_dma_buf), takes_address), Err("no".into()));
        assert_eq!((made, calls), (Ok(PLAIN), vec![PLAIN_CALL]));
        let (made, calls) = of_gpu(&registrar(None, takes_address), Ok(exported().0));
        assert_eq!((made, calls), (Ok(PLAIN), vec![PLAIN_CALL]));
    }

    #[test]
    fn failed_gpu_registration_reports_both_causes() {
        let line = |card: &Registrar<'_>, exported| of_gpu(card, exported).0.expect_err("refused");
        let both = line(&registrar(Some(no_dma_buf), no_address), Ok(exported().0));
        let expected = "rail efa-verbs:x: registering failed: by dma-buf: Operation not supported; by peer memory (efa_nv_peermem): Bad \
                        address (14); stage through pinned host memory";
        assert!(both.starts_with(expected) && !both.contains('\n'), "{both}");
        let none = line(&registrar(Some(takes_dma_buf), no_address), Err("the driver exports no dma-buf".into()));
        assert!(none.contains("by dma-buf: the driver exports no dma-buf; by peer memory"), "{none}");
        let old = line(&registrar(None, no_address), Ok(exported().0));
        assert!(old.contains("by dma-buf: this libibverbs lacks ibv_reg_dmabuf_mr"), "{old}");
    }

    #[test]
    fn region_gets_requested_access() {
        let (write, remote_write, remote_read) =
            (sys::IBV_ACCESS_LOCAL_WRITE, sys::IBV_ACCESS_REMOTE_WRITE, sys::IBV_ACCESS_REMOTE_READ);
        for (access, expected) in [
            (Access::SOURCE, 0),
            (Access::SINK, write),
            (Access::REMOTE_READ, remote_read),
            (Access::REMOTE_WRITE, remote_write | write),
            (Access::ALL, write | remote_write | remote_read),
        ] {
            assert_eq!(flags(access), expected, "{access:?}");
        }
    }
}
