//! Registered memory: of the host, or of a GPU.
//!
//! A card reaches memory of a GPU in one of two ways. The GPU's driver exports it as a dma-buf, and the card registers that; or the card registers
//! the address, which the kernel resolves by a peer-memory module (efa_nv_peermem). They are tried in this order, as libfabric's EFA provider does.

use super::device::Verbs;
use super::errors;
use crate::{Access, FabricError, Memory, mistake, soft};
use ginlab_cuda::DmaBuf;
use std::ffi::c_int;
use std::io;
use std::os::fd::AsRawFd;
use verbs_sys as sys;

/// Registered memory. It keeps its card open.
#[derive(Debug)]
pub struct Region {
    made: *mut sys::ibv_mr,
    pub(super) verbs: Verbs,
    /// First byte, as peers and requests name it.
    pub address: u64,
    /// Length.
    pub bytes: u64,
    /// For requests of this side: 24 bits.
    pub lkey: u32,
    /// For peers.
    pub rkey: u32,
}

// SAFETY: a registration is not bound to a thread.
unsafe impl Send for Region {}
// SAFETY: what is read of it never changes.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: made by `register`; nothing that uses it is under way, by the contract there.
        unsafe { (self.verbs.0.library.ibv_dereg_mr)(self.made) };
    }
}

impl Verbs {
    /// Whether memory of a GPU may be registered: a card in software is a CPU, which does not reach it. Whether a card does is known when it has
    /// registered some.
    #[must_use]
    pub fn takes_gpu_memory(&self) -> bool {
        soft::label().is_none()
    }

    /// Registers memory for these uses; of a GPU by dma-buf, or else by peer memory.
    ///
    /// # Safety
    /// The memory must stay valid and in place until the region is dropped.
    ///
    /// # Errors
    /// Memory of a GPU over cards in software; an empty stretch; what the card says, for memory of a GPU to both ways.
    pub unsafe fn register(&self, memory: Memory, access: Access) -> Result<Region, FabricError> {
        let Memory { address, bytes, cuda_device } = memory;
        let what = match cuda_device {
            None => format!("ibv_reg_mr_iova2 of {bytes} B"),
            Some(device) => format!("registering {bytes} B of CUDA device {device}"),
        };
        if bytes == 0 || address == 0 || address.checked_add(bytes as u64).is_none() {
            return Err(mistake(&self.0.rail, what, "the stretch is empty or wraps around"));
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
                // SAFETY: the domain is there; the caller vouches for the memory.
                let made = unsafe { card.plain(memory) };
                made.map_err(|error| errors::call(card.rail, what, error.raw_os_error()))?
            }
            Some(_) if !self.takes_gpu_memory() => {
                let text =
                    "cards in software move bytes by the CPU and register no dma-buf: stage through pinned host memory";
                return Err(mistake(card.rail, what, text));
            }
            Some(device) => {
                let exported = ginlab_cuda::dma_buf(device, address, bytes).map_err(|error| error.to_string());
                // SAFETY: as above.
                unsafe { card.of_gpu(memory, exported) }.map_err(|refused| refused.error(card.rail, what))?
            }
        };
        // SAFETY: made just now.
        let (lkey, rkey) = unsafe { ((*made).lkey, (*made).rkey) };
        Ok(Region { made, verbs: self.clone(), address, bytes: bytes as u64, lkey, rkey })
    }
}

/// What memory is registered by.
struct Registrar<'a> {
    rail: &'a str,
    domain: *mut sys::ibv_pd,
    plain: sys::RegMrIova2,
    /// Since rdma-core 34.
    dma_buf: Option<sys::RegDmabufMr>,
    access: u32,
}

/// Why a card has memory of a GPU by neither way.
#[derive(Debug)]
struct Refused {
    dma_buf: String,
    peer_memory: io::Error,
}

impl Refused {
    fn error(self, rail: &str, operation: String) -> FabricError {
        let Refused { dma_buf, peer_memory } = self;
        let text = format!("by dma-buf: {dma_buf}; by peer memory (efa_nv_peermem): {}", errors::words(&peer_memory));
        let hint =
            "stage through pinned host memory (`ginlab proxy` does); for GPUDirect see gpu-direct of `ginlab doctor`";
        let code = peer_memory.raw_os_error().unwrap_or_default();
        FabricError { rail: rail.to_owned(), operation, code, text, hint: hint.to_owned() }
    }
}

impl Registrar<'_> {
    /// By its address.
    ///
    /// # Safety
    /// The domain is there, and the memory until the registration ends.
    unsafe fn plain(&self, memory: Memory) -> io::Result<*mut sys::ibv_mr> {
        let start = std::ptr::with_exposed_provenance_mut(memory.address as usize);
        // SAFETY: the caller's contract.
        let made = unsafe { (self.plain)(self.domain, start, memory.bytes, memory.address, self.access) };
        if made.is_null() { Err(io::Error::last_os_error()) } else { Ok(made) }
    }

    /// Memory of a GPU, which its driver has exported or not.
    ///
    /// # Safety
    /// As for [`plain`](Registrar::plain); what was exported has these bytes.
    unsafe fn of_gpu(&self, memory: Memory, exported: Result<DmaBuf, String>) -> Result<*mut sys::ibv_mr, Refused> {
        // SAFETY: the caller's contract.
        let by_dma_buf = exported.and_then(|exported| unsafe { self.by_dma_buf(memory, &exported) });
        by_dma_buf.or_else(|dma_buf| {
            // SAFETY: the caller's contract.
            unsafe { self.plain(memory) }.map_err(|peer_memory| Refused { dma_buf, peer_memory })
        })
    }

    /// # Safety
    /// As for [`of_gpu`](Registrar::of_gpu).
    unsafe fn by_dma_buf(&self, memory: Memory, exported: &DmaBuf) -> Result<*mut sys::ibv_mr, String> {
        let register = self.dma_buf.ok_or("this libibverbs has no ibv_reg_dmabuf_mr (rdma-core 34 has)")?;
        let (file, access) = (exported.file.as_raw_fd(), self.access as c_int);
        // SAFETY: the caller's contract. Requests name the memory by its own address, as by the other way.
        let made = unsafe { register(self.domain, exported.offset, memory.bytes, memory.address, file, access) };
        if made.is_null() { Err(errors::words(&io::Error::last_os_error())) } else { Ok(made) }
    }
}

/// Verbs' flags for these uses.
fn flags(access: Access) -> u32 {
    let of = |wanted: Access, flags: u32| if access.allows(wanted) { flags } else { 0 };
    of(Access::SINK, sys::IBV_ACCESS_LOCAL_WRITE)
        // What peers write, the card writes.
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

    const MEMORY: Memory = Memory { address: 0x7f00_0000_0200, bytes: 4096, cuda_device: Some(1) };
    const DOMAIN: usize = 0x1000;
    /// What the doubles give back: never read.
    const BY_DMA_BUF: usize = 0x2000;
    const PLAIN: usize = 0x3000;

    /// A call of a double's, with all that it was given.
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

    /// What libibverbs does when the system says no.
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

    /// An open file in the place of a driver's, and its number.
    fn exported() -> (DmaBuf, i32) {
        let file = OwnedFd::from(tempfile::tempfile().expect("a file"));
        let number = file.as_raw_fd();
        (DmaBuf { file, offset: 0x200 }, number)
    }

    /// What came of it, and which calls were made.
    fn of_gpu(card: &Registrar<'_>, exported: Result<DmaBuf, String>) -> (Result<usize, String>, Vec<Called>) {
        CALLS.take();
        // SAFETY: the doubles look at nothing.
        let made = unsafe { card.of_gpu(MEMORY, exported) };
        let made = made.map(|made| made.addr());
        (made.map_err(|why| why.error(card.rail, "registering".into()).to_string()), CALLS.take())
    }

    fn dma_buf_call(file: i32) -> Called {
        // LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, and requests name the memory by its own address.
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
    fn memory_of_a_gpu_is_registered_by_its_dma_buf() {
        let (file, number) = exported();
        let (made, calls) = of_gpu(&registrar(Some(takes_dma_buf), no_address), Ok(file));
        assert_eq!((made, calls), (Ok(BY_DMA_BUF), vec![dma_buf_call(number)]));
    }

    #[test]
    fn where_that_fails_it_is_registered_by_its_address() {
        let (file, number) = exported();
        let (made, calls) = of_gpu(&registrar(Some(no_dma_buf), takes_address), Ok(file));
        assert_eq!((made, calls), (Ok(PLAIN), vec![dma_buf_call(number), PLAIN_CALL]));
        // A driver that exports none, and a libibverbs that knows none, are not asked.
        let (made, calls) = of_gpu(&registrar(Some(takes_dma_buf), takes_address), Err("no".into()));
        assert_eq!((made, calls), (Ok(PLAIN), vec![PLAIN_CALL]));
        let (made, calls) = of_gpu(&registrar(None, takes_address), Ok(exported().0));
        assert_eq!((made, calls), (Ok(PLAIN), vec![PLAIN_CALL]));
    }

    #[test]
    fn where_both_fail_one_line_says_why_each_did() {
        let line = |card: &Registrar<'_>, exported| of_gpu(card, exported).0.expect_err("refused");
        let both = line(&registrar(Some(no_dma_buf), no_address), Ok(exported().0));
        let expected = "rail efa-verbs:x: registering failed: by dma-buf: Operation not supported; by peer memory (efa_nv_peermem): Bad \
                        address (14); stage through pinned host memory";
        assert!(both.starts_with(expected) && !both.contains('\n'), "{both}");
        let none = line(&registrar(Some(takes_dma_buf), no_address), Err("the driver exports no dma-buf".into()));
        assert!(none.contains("by dma-buf: the driver exports no dma-buf; by peer memory"), "{none}");
        let old = line(&registrar(None, no_address), Ok(exported().0));
        assert!(old.contains("by dma-buf: this libibverbs has no ibv_reg_dmabuf_mr"), "{old}");
    }

    #[test]
    fn a_region_gets_the_rights_it_was_asked_for() {
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
