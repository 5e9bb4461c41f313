//! Whether a card itself takes memory of a GPU: asked of the card by libibverbs, past libfabric.
//!
//! The ways of libfabric's EFA provider, in its order: the driver of the GPU exports the memory as a dma-buf, and the card registers that;
//! or the card registers the address, which the kernel resolves by a peer-memory module (efa_nv_peermem). Where neither works there is no
//! GPUDirect on this card, whatever a provider claims.

use ginlab_cuda::{Buffer, DmaBuf};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::AsRawFd;

/// `IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ`: what EFA's provider tries with.
const ACCESS: c_int = 1 | 4;

/// libibverbs' objects are only handed back to it.
type Object = *mut c_void;

/// What is called of libibverbs. The functions are those of `infiniband/verbs.h`.
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

/// A function of a library.
///
/// # Safety
/// `T` is the type of the function of this name.
unsafe fn function<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
    // SAFETY: the caller's contract.
    unsafe { library.get::<T>(name.as_bytes()) }.map(|found| *found).map_err(|_| format!("libibverbs has no {name}"))
}

impl Verbs {
    /// Of the cards in software where this process has them, otherwise of the machine's libibverbs.
    fn load() -> Result<Verbs, String> {
        let own = Library::this();
        // SAFETY: only looked for.
        let preloaded = unsafe { function::<unsafe extern "C" fn()>(&own, "ibv_get_device_list") }.is_ok();
        let library = match preloaded {
            true => own,
            // SAFETY: libibverbs' initialisation asks nothing of the program.
            false => unsafe { Library::open(Some("libibverbs.so.1"), RTLD_NOW | RTLD_LOCAL) }
                .map_err(|error| format!("loading libibverbs: {error}"))?,
        };
        // SAFETY: these are the types that infiniband/verbs.h gives the functions of these names.
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
        // Never unloaded: its providers keep threads and handlers of their own.
        std::mem::forget(library);
        Ok(verbs)
    }

    /// Runs `look` with the open card of this name.
    fn with_card<T>(&self, card: &str, look: impl FnOnce(Object) -> Result<T, String>) -> Result<T, String> {
        // SAFETY: the list ends with null and is freed once; a device is opened while it lives, as the manual says.
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
                None => return Err(format!("libibverbs lists no {card}")),
                Some(context) if context.is_null() => return Err(format!("opening {card}: {error}")),
                Some(context) => context,
            }
        };
        let looked = look(context);
        // SAFETY: open, and nothing of it is left.
        unsafe { (self.close_device)(context) };
        looked
    }
}

/// Registers this memory of a GPU with the card of this name, and takes that back: the way by which it went.
///
/// # Errors
/// Why there is no way, in a line.
pub fn register(card: &str, memory: &Buffer) -> Result<&'static str, String> {
    let verbs = Verbs::load()?;
    let exported = memory.dma_buf();
    let (address, bytes) = (memory.address(), memory.bytes());
    verbs.with_card(card, |context| {
        // SAFETY: the card is open.
        let domain = unsafe { (verbs.alloc_pd)(context) };
        if domain.is_null() {
            return Err(format!("a protection domain of {card}: {}", std::io::Error::last_os_error()));
        }
        let by_dma_buf = |exported: &DmaBuf| {
            let (file, offset) = (exported.file.as_raw_fd(), exported.offset);
            // SAFETY: the domain is there, and the file is a dma-buf that has these bytes.
            let made = unsafe { (verbs.reg_dmabuf_mr)(domain, offset, bytes, address, file, ACCESS) };
            taken(&verbs, made)
        };
        let by_address = || {
            // SAFETY: the domain is there; the memory is the caller's, and nothing but registered.
            let made = unsafe {
                (verbs.reg_mr)(domain, std::ptr::with_exposed_provenance_mut(address as usize), bytes, ACCESS)
            };
            taken(&verbs, made)
        };
        let outcome = match exported.map_err(|error| error.to_string()).and_then(|exported| by_dma_buf(&exported)) {
            Ok(()) => Ok("by dma-buf"),
            Err(dma_buf) => by_address().map(|()| "by peer memory").map_err(|peer| {
                format!(
                    "{card} does not take GPU memory: by dma-buf: {dma_buf}; by peer memory (efa_nv_peermem): {peer}"
                )
            }),
        };
        // SAFETY: nothing of it is left.
        unsafe { (verbs.dealloc_pd)(domain) };
        outcome
    })
}

/// Takes a registration back; the system's error where there is none.
fn taken(verbs: &Verbs, made: Object) -> Result<(), String> {
    if made.is_null() {
        return Err(std::io::Error::last_os_error().to_string());
    }
    // SAFETY: made just now, and used by nobody.
    unsafe { (verbs.dereg_mr)(made) };
    Ok(())
}
