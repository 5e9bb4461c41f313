//! libibverbs and libefa, loaded at run time: the functions for programs that write requests directly into the device's
//! queues.

use super::*;
use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// Files to load, by the loader's search rules: rdma-core's packages and AWS's installer put both in its search path.
const FILES: [&str; 2] = ["libibverbs.so.1", "libefa.so.1"];

/// `ibv_reg_mr_iova2`.
pub type RegMrIova2 = unsafe extern "C" fn(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr;

/// `ibv_reg_dmabuf_mr`.
pub type RegDmabufMr = unsafe extern "C" fn(
    domain: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr;

/// The functions, by their names. The libraries are never unloaded.
///
/// # Safety
/// The functions are rdma-core's own (or those of software EFA devices), and the requirements of their manual pages
/// apply.
#[derive(Debug)]
pub struct VerbsLibrary {
    pub ibv_get_device_list: unsafe extern "C" fn(count: *mut c_int) -> *mut *mut ibv_device,
    pub ibv_free_device_list: unsafe extern "C" fn(list: *mut *mut ibv_device),
    pub ibv_get_device_name: unsafe extern "C" fn(device: *mut ibv_device) -> *const c_char,
    pub ibv_open_device: unsafe extern "C" fn(device: *mut ibv_device) -> *mut ibv_context,
    pub ibv_close_device: unsafe extern "C" fn(context: *mut ibv_context) -> c_int,
    pub ibv_query_device: unsafe extern "C" fn(context: *mut ibv_context, attributes: *mut ibv_device_attr) -> c_int,
    pub ibv_query_port:
        unsafe extern "C" fn(context: *mut ibv_context, port: u8, attributes: *mut ibv_port_attr) -> c_int,
    pub ibv_query_gid:
        unsafe extern "C" fn(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int,
    pub ibv_alloc_pd: unsafe extern "C" fn(context: *mut ibv_context) -> *mut ibv_pd,
    pub ibv_dealloc_pd: unsafe extern "C" fn(domain: *mut ibv_pd) -> c_int,
    pub ibv_reg_mr_iova2: RegMrIova2,
    pub ibv_dereg_mr: unsafe extern "C" fn(registration: *mut ibv_mr) -> c_int,
    pub ibv_create_ah: unsafe extern "C" fn(domain: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah,
    pub ibv_destroy_ah: unsafe extern "C" fn(handle: *mut ibv_ah) -> c_int,
    pub ibv_modify_qp: unsafe extern "C" fn(pair: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int,
    pub ibv_destroy_qp: unsafe extern "C" fn(pair: *mut ibv_qp) -> c_int,
    pub ibv_destroy_cq: unsafe extern "C" fn(queue: *mut ibv_cq) -> c_int,
    pub efadv_query_device:
        unsafe extern "C" fn(context: *mut ibv_context, attributes: *mut efadv_device_attr, bytes: u32) -> c_int,
    pub efadv_query_ah: unsafe extern "C" fn(handle: *mut ibv_ah, attributes: *mut efadv_ah_attr, bytes: u32) -> c_int,
    pub efadv_create_cq: unsafe extern "C" fn(
        context: *mut ibv_context,
        attributes: *mut ibv_cq_init_attr_ex,
        efa: *mut efadv_cq_init_attr,
        bytes: u32,
    ) -> *mut ibv_cq_ex,
    pub efadv_create_qp_ex: unsafe extern "C" fn(
        context: *mut ibv_context,
        attributes: *mut ibv_qp_init_attr_ex,
        efa: *mut efadv_qp_init_attr,
        bytes: u32,
    ) -> *mut ibv_qp,
    pub efadv_query_qp_wqs: unsafe extern "C" fn(
        pair: *mut ibv_qp,
        sends: *mut efadv_wq_attr,
        receives: *mut efadv_wq_attr,
        bytes: u32,
    ) -> c_int,
    pub efadv_query_cq: unsafe extern "C" fn(queue: *mut ibv_cq, attributes: *mut efadv_cq_attr, bytes: u32) -> c_int,
    /// Registers device memory by a dma-buf; in rdma-core since 34.
    pub ibv_reg_dmabuf_mr: Option<RegDmabufMr>,
    /// Functions of completion counters, if available; in rdma-core since 65.
    pub counters: Option<CounterFunctions>,
}

/// Functions of completion counters.
///
/// # Safety
/// The requirements of [`VerbsLibrary`] apply.
#[derive(Debug)]
pub struct CounterFunctions {
    pub efadv_create_comp_cntr: unsafe extern "C" fn(
        context: *mut ibv_context,
        attributes: *mut ibv_comp_cntr_init_attr,
        efa: *mut efadv_comp_cntr_init_attr,
        bytes: u32,
    ) -> *mut ibv_comp_cntr,
    pub ibv_destroy_comp_cntr: unsafe extern "C" fn(counter: *mut ibv_comp_cntr) -> c_int,
    pub ibv_qp_attach_comp_cntr: unsafe extern "C" fn(
        pair: *mut ibv_qp,
        counter: *mut ibv_comp_cntr,
        attributes: *mut ibv_qp_attach_comp_cntr_attr,
    ) -> c_int,
}

/// Libraries to search for functions.
struct Places(Vec<Handle>);

impl Places {
    /// Returns the function of this name.
    ///
    /// # Safety
    /// `T` must be the type of the function.
    unsafe fn get<T: Copy>(&self, name: &str) -> Result<T, String> {
        // SAFETY: the caller guarantees that the function has this type.
        let found = self.0.iter().find_map(|place| unsafe { place.get::<T>(name.as_bytes()) }.ok().map(|found| *found));
        found.ok_or_else(|| format!("libibverbs and libefa lack {name}"))
    }
}

impl VerbsLibrary {
    /// Loads the functions, unless the process already has them with global scope, as with software EFA devices.
    ///
    /// # Errors
    /// Returns a short text if a library or function is missing.
    pub fn load() -> Result<VerbsLibrary, String> {
        let this = Handle::this();
        // SAFETY: the symbol is only looked up, and never called.
        let has_all = unsafe { this.get::<unsafe extern "C" fn()>(b"efadv_query_cq") }.is_ok();
        let mut places = Vec::new();
        if has_all {
            places.push(this);
        } else {
            for file in FILES {
                // SAFETY: rdma-core's initialization has no requirements.
                let opened = unsafe { Handle::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
                places.push(opened.map_err(|error| format!("loading {file}: {error}"))?);
            }
        }
        let places = Places(places);
        // SAFETY: the types are those of rdma-core's headers; a test compares them.
        let library = unsafe {
            VerbsLibrary {
                ibv_get_device_list: places.get("ibv_get_device_list")?,
                ibv_free_device_list: places.get("ibv_free_device_list")?,
                ibv_get_device_name: places.get("ibv_get_device_name")?,
                ibv_open_device: places.get("ibv_open_device")?,
                ibv_close_device: places.get("ibv_close_device")?,
                ibv_query_device: places.get("ibv_query_device")?,
                ibv_query_port: places.get("ibv_query_port")?,
                ibv_query_gid: places.get("ibv_query_gid")?,
                ibv_alloc_pd: places.get("ibv_alloc_pd")?,
                ibv_dealloc_pd: places.get("ibv_dealloc_pd")?,
                ibv_reg_mr_iova2: places.get("ibv_reg_mr_iova2")?,
                ibv_dereg_mr: places.get("ibv_dereg_mr")?,
                ibv_create_ah: places.get("ibv_create_ah")?,
                ibv_destroy_ah: places.get("ibv_destroy_ah")?,
                ibv_modify_qp: places.get("ibv_modify_qp")?,
                ibv_destroy_qp: places.get("ibv_destroy_qp")?,
                ibv_destroy_cq: places.get("ibv_destroy_cq")?,
                efadv_query_device: places.get("efadv_query_device")?,
                efadv_query_ah: places.get("efadv_query_ah")?,
                efadv_create_cq: places.get("efadv_create_cq")?,
                efadv_create_qp_ex: places.get("efadv_create_qp_ex")?,
                efadv_query_qp_wqs: places.get("efadv_query_qp_wqs")?,
                efadv_query_cq: places.get("efadv_query_cq")?,
                ibv_reg_dmabuf_mr: places.get("ibv_reg_dmabuf_mr").ok(),
                counters: CounterFunctions::of(&places).ok(),
            }
        };
        // The functions stay in use, so the libraries must not be unloaded.
        places.0.into_iter().for_each(std::mem::forget);
        Ok(library)
    }
}

impl CounterFunctions {
    /// # Safety
    /// The function types must be those of the library, as in [`VerbsLibrary::load`].
    unsafe fn of(places: &Places) -> Result<CounterFunctions, String> {
        // SAFETY: the caller guarantees that the functions have these types.
        unsafe {
            Ok(CounterFunctions {
                efadv_create_comp_cntr: places.get("efadv_create_comp_cntr")?,
                ibv_destroy_comp_cntr: places.get("ibv_destroy_comp_cntr")?,
                ibv_qp_attach_comp_cntr: places.get("ibv_qp_attach_comp_cntr")?,
            })
        }
    }
}
