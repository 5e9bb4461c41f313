//! Test of whether a NIC can register GPU memory directly, through libibverbs and without libfabric.
//!
//! The test uses the two methods of libfabric's EFA provider, in the same order. With dma-buf, the GPU's driver exports
//! the memory and the NIC registers the file descriptor. With peer memory, the NIC registers the address, which the
//! kernel resolves through a module (efa_nv_peermem). If neither works, this NIC does not support GPUDirect, whatever a
//! provider claims.

use ginlab_cuda::{Buffer, DmaBuf};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::AsRawFd;

/// `IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ`, as in the EFA provider's own test.
const ACCESS: c_int = 1 | 4;

/// An object of libibverbs, only passed back to it.
type Object = *mut c_void;

/// Functions of libibverbs, as declared in `infiniband/verbs.h`.
struct Verbs {
    get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut Object,
    free_device_list: unsafe extern "C" fn(*mut Object),
    get_device_name: unsafe extern "C" fn(Object) -> *const c_char,
    open_device: unsafe extern "C" fn(Object) -> Object,
    close_device: unsafe extern "C" fn(Object) -> c_int,
    alloc_pd: unsafe extern "C" fn(Object) -> Object,
    dealloc_pd: unsafe extern "C" fn(Object) -> c_int,
    reg_mr: unsafe extern "C" fn(Object, Object, usize, c_int) -> Object,
    reg_dmabuf_mr: unsafe extern "C" fn(Object, u64, usize, u64, c_int, c_int) -> Object,
    dereg_mr: unsafe extern "C" fn(Object) -> c_int,
}

/// Looks up a function of a library.
///
/// # Safety
/// `T` must be the type of the function `name`.
unsafe fn function<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
    // SAFETY: the caller guarantees that `T` is the type of the symbol.
    unsafe { library.get::<T>(name.as_bytes()) }.map(|found| *found).map_err(|_| format!("libibverbs lacks {name}"))
}

impl Verbs {
    /// Loads the functions of the software NICs if this process has loaded them, and otherwise those of the machine's
    /// libibverbs.
    fn load() -> Result<Verbs, String> {
        let own = Library::this();
        // SAFETY: the symbol is only looked up and not called.
        let preloaded = unsafe { function::<unsafe extern "C" fn()>(&own, "ibv_get_device_list") }.is_ok();
        let library = match preloaded {
            true => own,
            // SAFETY: the initializers of libibverbs have no requirements.
            false => unsafe { Library::open(Some("libibverbs.so.1"), RTLD_NOW | RTLD_LOCAL) }
                .map_err(|error| format!("loading libibverbs: {error}"))?,
        };
        // SAFETY: these are the types that infiniband/verbs.h declares for the functions.
        let verbs = unsafe {
            Verbs {
                get_device_list: function(&library, "ibv_get_device_list")?,
                free_device_list: function(&library, "ibv_free_device_list")?,
                get_device_name: function(&library, "ibv_get_device_name")?,
                open_device: function(&library, "ibv_open_device")?,
                close_device: function(&library, "ibv_close_device")?,
                alloc_pd: function(&library, "ibv_alloc_pd")?,
                dealloc_pd: function(&library, "ibv_dealloc_pd")?,
                reg_mr: function(&library, "ibv_reg_mr")?,
                reg_dmabuf_mr: function(&library, "ibv_reg_dmabuf_mr")?,
                dereg_mr: function(&library, "ibv_dereg_mr")?,
            }
        };
        // The library is never unloaded, because its providers keep threads and handlers.
        std::mem::forget(library);
        Ok(verbs)
    }

    /// Opens the NIC `card` and calls `look` with its context.
    fn with_card<T>(&self, card: &str, look: impl FnOnce(Object) -> Result<T, String>) -> Result<T, String> {
        // SAFETY: the list ends with null and is freed once. Devices are opened before it is freed, as the manual
        // requires.
        let context = unsafe {
            let list = (self.get_device_list)(std::ptr::null_mut());
            if list.is_null() {
                return Err(format!("listing RDMA devices: {}", std::io::Error::last_os_error()));
            }
            let devices = (0..).map(|index| *list.add(index)).take_while(|device| !device.is_null());
            let mut named =
                devices.filter(|device| CStr::from_ptr((self.get_device_name)(*device)).to_bytes() == card.as_bytes());
            let context = named.next().map(|device| (self.open_device)(device));
            let error = std::io::Error::last_os_error();
            (self.free_device_list)(list);
            match context {
                None => return Err(format!("libibverbs does not list {card}")),
                Some(context) if context.is_null() => return Err(format!("opening {card}: {error}")),
                Some(context) => context,
            }
        };
        let looked = look(context);
        // SAFETY: the context is open, and no object of it is left.
        unsafe { (self.close_device)(context) };
        looked
    }
}

/// Registers GPU memory with the NIC `card`, and deregisters it. Returns the method that worked.
///
/// # Errors
/// Returns the reason why no method works, in one line.
pub fn register(card: &str, memory: &Buffer) -> Result<&'static str, String> {
    let verbs = Verbs::load()?;
    let exported = memory.dma_buf();
    let (address, bytes) = (memory.address(), memory.bytes());
    verbs.with_card(card, |context| {
        // SAFETY: the context is open.
        let domain = unsafe { (verbs.alloc_pd)(context) };
        if domain.is_null() {
            return Err(format!("a protection domain of {card}: {}", std::io::Error::last_os_error()));
        }
        let by_dma_buf = |exported: &DmaBuf| {
            let (file, offset) = (exported.file.as_raw_fd(), exported.offset);
            // SAFETY: the protection domain exists, and the file is a dma-buf that contains these bytes.
            let made = unsafe { (verbs.reg_dmabuf_mr)(domain, offset, bytes, address, file, ACCESS) };
            taken(&verbs, made)
        };
        let by_address = || {
            // SAFETY: the protection domain exists. The memory belongs to the caller and is only registered.
            let made = unsafe {
                (verbs.reg_mr)(domain, std::ptr::with_exposed_provenance_mut(address as usize), bytes, ACCESS)
            };
            taken(&verbs, made)
        };
        let outcome = match exported.map_err(|error| error.to_string()).and_then(|exported| by_dma_buf(&exported)) {
            Ok(()) => Ok("by dma-buf"),
            Err(dma_buf) => by_address().map(|()| "by peer memory").map_err(|peer| {
                format!(
                    "{card} cannot register GPU memory: by dma-buf: {dma_buf}; by peer memory (efa_nv_peermem): {peer}"
                )
            }),
        };
        // SAFETY: no object of the protection domain is left.
        unsafe { (verbs.dealloc_pd)(domain) };
        outcome
    })
}

/// Deregisters a memory region. Returns the system's error if the registration failed.
fn taken(verbs: &Verbs, made: Object) -> Result<(), String> {
    if made.is_null() {
        return Err(std::io::Error::last_os_error().to_string());
    }
    // SAFETY: the region was just registered and is not used.
    unsafe { (verbs.dereg_mr)(made) };
    Ok(())
}
