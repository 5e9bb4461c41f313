//! The GPU, through the CUDA driver API that cudarc loads at run time: without a driver this file only reports that.

use super::ptx::{capability_of, for_capability, module_of, ptx};
use super::{DeviceError, Kernel, Place, Plain};
use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUevent_flags, CUresult, CUstream};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys};
use std::collections::VecDeque;
use std::ffi::{CString, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Threads of a block up to which the kernels get the registers of [`ROOMY`]; beyond it those of [`NARROW`]. Either way
/// a block fits into the 65536 registers of a multiprocessor.
const ROOMY_THREADS: u32 = 512;
const ROOMY: usize = 128;
const NARROW: usize = 64;
/// Every thread's accesses and every context see the allocation (portable), kernels too (device map).
const HOST_FLAGS: u32 = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;

pub(super) fn failed(call: impl Into<String>) -> impl FnOnce(DriverError) -> DeviceError {
    |error| {
        let words = |text: Result<&std::ffi::CStr, DriverError>| text.map(|text| text.to_string_lossy().into_owned());
        let name = words(error.error_name()).unwrap_or_else(|_| format!("error {}", error.0 as u32));
        let text = words(error.error_string()).unwrap_or_default();
        DeviceError::Driver { call: call.into(), text: format!("{text} ({name})") }
    }
}

pub(super) fn is_there() -> bool {
    // SAFETY: only tries to load libcuda.
    unsafe { sys::is_culib_present() }
}

/// The CUDA version that the installed driver supports, as `13.0`; `None` without a driver.
pub fn driver_version() -> Option<String> {
    if !is_there() {
        return None;
    }
    let mut version = 0;
    // SAFETY: the library is there, and the pointer is to a local.
    let status = unsafe { sys::cuDriverGetVersion(&mut version) };
    (status == CUresult::CUDA_SUCCESS).then(|| format!("{}.{}", version / 1000, version % 1000 / 10))
}

/// A CUDA device with its kernels.
#[derive(Debug)]
pub struct Gpu {
    pub(super) context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    /// Those of [`PTX`] at [`ROOMY`] registers, and at [`NARROW`], each once a kernel of it is wanted.
    modules: Vec<[OnceLock<Result<Module, DeviceError>>; 2]>,
    pub(super) name: String,
    /// Compute capability. Kept, since launches ask for it.
    capability: (u32, u32),
    /// PEs of the job whose kernels run on this GPU; 1 until somebody has counted them.
    pub(super) sharers: AtomicU32,
}

/// The loaded PTX. It is not unloaded: it ends with the context, and no launch can outlive its function.
#[derive(Debug)]
pub(super) struct Module(pub(super) sys::CUmodule);

// SAFETY: a handle that the driver accepts from any thread with the context current.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    pub(super) fn function(&self, name: &str) -> Result<sys::CUfunction, DeviceError> {
        let text = CString::new(name).map_err(|error| DeviceError::Refused(error.to_string()))?;
        // SAFETY: the module is never unloaded, and neither is the function.
        let function =
            unsafe { result::module::get_function(self.0, text) }.map_err(failed(format!("finding kernel {name}")))?;
        make_room(function).map_err(failed(format!("giving {name} its stack")))?;
        Ok(function)
    }
}

/// A kernel that wants more stack than any before has the driver wait at its first launch until the GPU is idle. Behind a kernel that waits
/// for the host to append something, as the gate of a measurement does, that takes as long as that one has patience (two H200: 30 s).
/// So the stack is there before.
fn make_room(function: sys::CUfunction) -> Result<(), cudarc::driver::DriverError> {
    let (mut bytes, mut limit) = (0, 0);
    let local = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
    let stack = sys::CUlimit::CU_LIMIT_STACK_SIZE;
    // SAFETY: both write one number; the function is of a module that is never unloaded, and its context is current.
    unsafe {
        sys::cuFuncGetAttribute(&mut bytes, local, function).result()?;
        sys::cuCtxGetLimit(&mut limit, stack).result()?;
    }
    let bytes = bytes.max(0) as usize;
    if bytes > limit {
        // SAFETY: a number for the current context.
        unsafe { sys::cuCtxSetLimit(stack, bytes.next_multiple_of(16)).result()? };
    }
    Ok(())
}

/// Compiles and loads PTX for the current device, with at most so many registers per thread. (What a push spills it must
/// load again, and an acquire has emptied the L1 cache: H200, see experiments/queue.)
fn load(context: &CudaContext, capability: (u32, u32), ptx: &str, registers: usize) -> Result<Module, DeviceError> {
    context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
    let text = CString::new(&*for_capability(ptx, capability))
        .map_err(|error| DeviceError::Refused(format!("the kernels' PTX: {error}")))?;
    let mut log = vec![0u8; 8192];
    let mut options = [
        sys::CUjit_option::CU_JIT_MAX_REGISTERS,
        sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
        sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ];
    let mut values = [registers as *mut c_void, log.as_mut_ptr().cast(), log.len() as *mut c_void];
    let mut module = std::ptr::null_mut();
    // SAFETY: options and values are of one length; the text ends with a zero; the log is as long as it is said to be.
    let status = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            text.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    let words: String = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().replace('\n', "; ");
    status.result().map_err(failed(format!("loading the kernels' PTX {words}")))?;
    Ok(Module(module))
}

/// Refuses managed memory where CPU and GPU may not use it at the same time.
fn check_concurrent(gpu: &str, concurrent: bool) -> Result<(), DeviceError> {
    if concurrent {
        return Ok(());
    }
    Err(DeviceError::Refused(format!(
        "managed memory refused on {gpu}: CONCURRENT_MANAGED_ACCESS is 0, so a CPU that polls it while a kernel runs would \
         fault; use pinned host memory"
    )))
}

impl Gpu {
    pub(super) fn open(index: usize) -> Result<Gpu, DeviceError> {
        if ptx().modules.is_empty() {
            return Err(DeviceError::Missing(
                "this program has no PTX: build it without --no-default-features, and with `ginlab::cuda::set_ptx` in its main".into(),
            ));
        }
        if !is_there() {
            return Err(DeviceError::Missing("no CUDA driver (libcuda.so) on this machine".into()));
        }
        let count = CudaContext::device_count()
            .map_err(failed("cuInit / cuDeviceGetCount"))
            .map_err(|error| DeviceError::Missing(format!("the CUDA driver gives no device: {error}")))?;
        if count < 1 {
            return Err(DeviceError::Missing("the CUDA driver sees no GPU (CUDA_VISIBLE_DEVICES?)".into()));
        }
        let ordinal = index % count as usize;
        let context = CudaContext::new(ordinal).map_err(failed(format!("opening GPU {ordinal}")))?;
        let name = context.name().map_err(failed("cuDeviceGetName"))?;
        let (major, minor) = context.compute_capability().map_err(failed("cuDeviceGetAttribute"))?;
        let stream = context.new_stream().map_err(failed("cuStreamCreate"))?;
        Ok(Gpu {
            context,
            stream,
            modules: ptx().modules.iter().map(|_| Default::default()).collect(),
            name,
            capability: (major.max(0) as u32, minor.max(0) as u32),
            sharers: AtomicU32::new(1),
        })
    }

    /// See [`Device::name`](super::Device::name).
    pub(super) fn device_name(&self) -> String {
        format!("gpu:{}", self.name)
    }

    /// See [`Device::sharers`](super::Device::sharers).
    pub(super) fn sharers(&self) -> u32 {
        self.sharers.load(Ordering::Relaxed)
    }

    /// The GPU's own number, or that of the part of it that this process sees (MIG).
    pub(super) fn uuid(&self) -> Option<String> {
        let uuid = self.context.uuid().ok()?;
        Some(uuid.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect())
    }

    /// Whether contexts on this GPU are those of an MPS server, as the driver says it. `None` from a driver that does not know the question.
    pub(super) fn is_served_by_mps(&self) -> Option<bool> {
        // CU_DEVICE_ATTRIBUTE_MPS_ENABLED of CUDA 12.3, which the bindings of 12.0 do not name.
        const MPS_ENABLED: i32 = 133;
        type Get = unsafe extern "C" fn(*mut i32, i32, sys::CUdevice) -> i32;
        // SAFETY: libcuda is loaded already, and stays loaded beside this handle.
        let library = unsafe { libloading::Library::new("libcuda.so.1") }.ok()?;
        // SAFETY: the function has this signature; its enumerations are C's int.
        let get = unsafe { library.get::<Get>(b"cuDeviceGetAttribute\0") }.ok()?;
        let mut value = 0;
        // SAFETY: a local to write to, and a device of this process; a driver refuses attributes that it does not know.
        let status = unsafe { get(&mut value, MPS_ENABLED, self.context.cu_device()) };
        (status == 0).then_some(value != 0)
    }

    pub(super) fn pci_address(&self) -> Option<String> {
        let get = |attribute| self.context.attribute(attribute).ok();
        let domain = get(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
        let bus = get(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
        let device = get(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
        Some(format!("{domain:04x}:{bus:02x}:{device:02x}.0"))
    }

    pub(super) fn grid_limits(&self) -> (u32, u32) {
        let get = |attribute, otherwise| self.context.attribute(attribute).map_or(otherwise, |value| value as u32);
        (
            get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, i32::MAX as u32),
            get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024),
        )
    }

    pub(super) fn most_shared_memory(&self) -> Result<u32, DeviceError> {
        let most = self.context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
        Ok(most.map_err(failed("cuDeviceGetAttribute"))?.max(0) as u32)
    }

    pub(super) fn resident_blocks(
        &self,
        function: sys::CUfunction,
        block: u32,
        shared: u32,
    ) -> Result<u32, DeviceError> {
        self.bind()?;
        let (block, shared) = (block as i32, shared as usize);
        // SAFETY: a function of a module that is never unloaded.
        let each = unsafe { result::occupancy::max_active_block_per_multiprocessor(function, block, shared) };
        let each = each.map_err(failed("cuOccupancyMaxActiveBlocksPerMultiprocessor"))?;
        Ok(each.max(0) as u32 * self.multiprocessors()?)
    }

    pub(super) fn multiprocessors(&self) -> Result<u32, DeviceError> {
        let count = self.context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        count.map(|count| count.max(1) as u32).map_err(failed("cuDeviceGetAttribute"))
    }

    /// The attributes that say what orders writes of cards: their order for the device's own kernels, and how they are flushed. Nothing
    /// where the driver does not know them.
    pub(super) fn card_writes(&self) -> (Option<i32>, Option<i32>) {
        let get = |attribute| self.context.attribute(attribute).ok();
        (
            get(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING),
            get(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS),
        )
    }

    /// Flushes what cards have written into this GPU's memory, for its own kernels. For drivers that offer it, as the attributes say.
    pub(super) fn flush_card_writes(&self) -> Result<(), DeviceError> {
        self.bind()?;
        let target = sys::CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        let scope = sys::CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER;
        // SAFETY: two constants; the context of this GPU is current.
        unsafe { sys::cuFlushGPUDirectRDMAWrites(target, scope) }.result().map_err(failed("cuFlushGPUDirectRDMAWrites"))
    }

    pub(super) fn bind(&self) -> Result<(), DeviceError> {
        self.context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))
    }

    pub(super) fn allocate(&self, place: Place, bytes: usize) -> Result<u64, DeviceError> {
        self.bind()?;
        match place {
            Place::Device => {
                let what = format!("allocating {bytes} bytes of GPU memory");
                // SAFETY: the context is current; the memory is zeroed before anyone sees it.
                let address = unsafe { result::malloc_sync(bytes) }.map_err(failed(what))?;
                // SAFETY: the allocation is this long.
                unsafe { result::memset_d8_sync(address, 0, bytes) }.map_err(failed("cuMemsetD8"))?;
                self.settle()?;
                Ok(address)
            }
            Place::Host => {
                let what = format!("pinning {bytes} bytes of host memory");
                // SAFETY: the context is current.
                let pointer = unsafe { result::malloc_host(bytes, HOST_FLAGS) }.map_err(failed(what))?;
                // SAFETY: the allocation is this long.
                unsafe { std::ptr::write_bytes(pointer.cast::<u8>(), 0, bytes) };
                Ok(pointer as u64)
            }
            Place::Managed => {
                let concurrent = Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
                let concurrent = self.context.attribute(concurrent).map_err(failed("cuDeviceGetAttribute"))?;
                check_concurrent(&self.name, concurrent != 0)?;
                let what = format!("allocating {bytes} bytes of managed memory");
                // Global: kernels of every stream may use it.
                let flags = sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
                // SAFETY: the context is current; the memory is zeroed before anyone sees it.
                let address = unsafe { result::malloc_managed(bytes, flags) }.map_err(failed(what))?;
                // SAFETY: the allocation is this long, and the CPU may write it at any time (asked above).
                unsafe { std::ptr::write_bytes(address as *mut u8, 0, bytes) };
                Ok(address)
            }
            Place::File => Err(DeviceError::Refused("a memory file is not the driver's to give".into())),
        }
    }

    pub(super) fn free(&self, place: Place, address: u64) {
        // Nothing can be done about an error here; the context records it for its next call.
        let result = self.context.bind_to_thread().and_then(|()| match place {
            // SAFETY: `address` came from `allocate`, and launches that used it have ended.
            Place::Device | Place::Managed => unsafe { result::free_sync(address) },
            // SAFETY: as above.
            Place::Host => unsafe { result::free_host(address as *mut c_void) },
            Place::File => Ok(()),
        });
        self.context.record_err(result);
    }

    /// Pins host memory that somebody else has allocated, for kernels under its own address.
    pub(super) fn pin(&self, address: u64, bytes: usize) -> Result<(), DeviceError> {
        self.bind()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: a mapping of this length, which outlives the registration (`unpin`).
        let status = unsafe { sys::cuMemHostRegister_v2(address as *mut c_void, bytes, flags) };
        status.result().map_err(failed(format!("cuMemHostRegister of {bytes} bytes")))
    }

    pub(super) fn unpin(&self, address: u64) {
        let result = self.context.bind_to_thread().and_then(|()| {
            // SAFETY: `pin` has been given this address, and launches that used it have ended.
            unsafe { sys::cuMemHostUnregister(address as *mut c_void) }.result()
        });
        self.context.record_err(result);
    }

    /// Makes copies and memsets of this allocation return only when they are done, as GDRCopy and everything else that reads
    /// GPU memory behind the driver's back asks for.
    pub(super) fn synchronize_copies_of(&self, address: u64) -> Result<(), DeviceError> {
        self.bind()?;
        let yes: u32 = 1;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
        // SAFETY: this attribute is an unsigned int, read during the call.
        let status = unsafe { sys::cuPointerSetAttribute((&raw const yes).cast(), attribute, address) };
        status.result().map_err(failed("cuPointerSetAttribute SYNC_MEMOPS"))
    }

    /// Exports memory of this device as a dma-buf, by which a card can register it.
    pub(super) fn dma_buf(&self, address: u64, bytes: usize) -> Result<OwnedFd, DeviceError> {
        self.bind()?;
        // An older driver does not even have the call.
        let offered = self.context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
        if offered.map_err(failed("cuDeviceGetAttribute DMA_BUF_SUPPORTED"))? != 1 {
            return Err(DeviceError::Refused(
                "the NVIDIA driver exports no dma-buf (it takes the open kernel modules)".into(),
            ));
        }
        let mut file: std::ffi::c_int = -1;
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: for this type the place is an int, and the memory is there.
        let status = unsafe { sys::cuMemGetHandleForAddressRange((&raw mut file).cast(), address, bytes, kind, 0) };
        status.result().map_err(failed(format!("cuMemGetHandleForAddressRange of {bytes} bytes")))?;
        // SAFETY: a new descriptor, and nobody else's.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    pub(super) fn copy_in<T: Copy>(&self, address: u64, values: &[T]) -> Result<(), DeviceError> {
        self.bind()?;
        // SAFETY: the caller checked the range.
        unsafe { result::memcpy_htod_sync(address, values) }.map_err(failed("cuMemcpyHtoD"))?;
        self.settle()
    }

    /// Waits until memory is as the calls before have left it. A memset, and a copy from pageable memory, may return while
    /// the GPU is still at it, on the default stream, for which our streams do not wait: a kernel could start before.
    fn settle(&self) -> Result<(), DeviceError> {
        // SAFETY: the default stream of the current context.
        unsafe { result::stream::synchronize(std::ptr::null_mut()) }.map_err(failed("cuStreamSynchronize"))
    }

    pub(super) fn copy_out<T: Plain>(&self, address: u64, values: &mut [T]) -> Result<(), DeviceError> {
        self.bind()?;
        // SAFETY: the caller checked the range.
        unsafe { result::memcpy_dtoh_sync(values, address) }.map_err(failed("cuMemcpyDtoH"))
    }

    /// The driver's function for blocks of this many threads.
    pub(super) fn function<A>(&self, kernel: &Kernel<A>, block: u32) -> Result<sys::CUfunction, DeviceError> {
        self.bind()?;
        let narrow = usize::from(block > ROOMY_THREADS);
        let name = kernel.name();
        let module = module_of(name).ok_or_else(|| {
            DeviceError::Missing(format!(
                "the kernel {name} is in no PTX module of this build: was it built with GINLAB_MODULES?"
            ))
        })?;
        self.module(module, narrow)?.function(name)
    }

    /// A module for large blocks (1) or small ones (0), compiled when it is first wanted.
    fn module(&self, module: usize, narrow: usize) -> Result<&Module, DeviceError> {
        let compiled = || {
            let (name, text) = ptx().modules[module];
            let (major, minor) = self.capability;
            if let Some(wanted) = capability_of(text).filter(|wanted| *wanted > major * 10 + minor) {
                return Err(DeviceError::Missing(format!(
                    "the kernels of {name} need compute capability {}.{}, and this GPU has {major}.{minor}",
                    wanted / 10,
                    wanted % 10
                )));
            }
            load(&self.context, self.capability, text, [ROOMY, NARROW][narrow])
        };
        self.modules[module][narrow].get_or_init(compiled).as_ref().map_err(Clone::clone)
    }

    /// Whether a grid may come onto the multiprocessors while the one before still runs.
    pub(super) fn begins_early(&self) -> bool {
        self.capability >= (9, 0)
    }

    fn new_event(&self) -> Result<CudaEvent, DeviceError> {
        self.context.new_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING)).map_err(failed("cuEventCreate"))
    }
}

/// A kernel in flight, and the event behind it.
#[derive(Debug)]
pub struct GpuLaunch {
    event: CudaEvent,
    name: String,
}

pub(super) unsafe fn launch<A: Copy>(
    gpu: &Arc<Gpu>,
    kernel: &Kernel<A>,
    grid: u32,
    block: u32,
    mut args: A,
) -> Result<GpuLaunch, DeviceError> {
    let (name, function) = (kernel.name(), gpu.function(kernel, block)?);
    let event = gpu.new_event()?;
    let parameters = &mut [(&raw mut args).cast::<c_void>()];
    // SAFETY: the kernel takes one parameter of type A by value, which the driver copies now; the rest is the caller's.
    unsafe { result::launch_kernel(function, (grid, 1, 1), (block, 1, 1), 0, gpu.stream.cu_stream(), parameters) }
        .map_err(|error| refused_or_failed(error, name, grid, block))?;
    event.record(&gpu.stream).map_err(failed("cuEventRecord"))?;
    Ok(GpuLaunch { event, name: name.into() })
}

/// Why a grid is not launched. A block that is within the device's limit and beyond this kernel's is the user's to change.
pub(super) fn refused_or_failed(error: DriverError, name: &str, grid: u32, block: u32) -> DeviceError {
    let what = format!("launching {name} as {grid} x {block}");
    match error.0 {
        CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => DeviceError::Refused(format!(
            "{what}: the kernel needs more registers than a block this large leaves; try a smaller --block"
        )),
        _ => failed(what)(error),
    }
}

impl GpuLaunch {
    pub(super) fn is_done(&mut self) -> Result<bool, DeviceError> {
        self.event.try_is_complete().map_err(failed(format!("kernel {}", self.name)))
    }
}

impl Drop for GpuLaunch {
    fn drop(&mut self) {
        // Buffers that the kernel uses may be freed next.
        super::wait_out(|| self.is_done());
    }
}

/// Copies from device to host memory that finish in the order they were started. A trait, so that tests need no GPU.
pub trait Copies: std::fmt::Debug + Send {
    /// Starts one copy.
    ///
    /// # Safety
    /// `source` is device memory and `destination` pinned host memory, both of `bytes`, valid until the copy is counted by
    /// [`finished`](Copies::finished).
    ///
    /// # Errors
    /// The driver's.
    unsafe fn start(&mut self, destination: u64, source: u64, bytes: usize) -> Result<(), DeviceError>;

    /// How many copies have finished since the last call.
    ///
    /// # Errors
    /// The driver's.
    fn finished(&mut self) -> Result<usize, DeviceError>;
}

/// Copies from GPU memory to pinned host memory, in order, many in flight: the staging of a rail that cannot read GPU
/// memory itself.
#[derive(Debug)]
pub struct CopyQueue {
    gpu: Arc<Gpu>,
    stream: Arc<CudaStream>,
    running: VecDeque<CudaEvent>,
    idle: Vec<CudaEvent>,
}

impl CopyQueue {
    /// A queue on this GPU, with a stream of its own.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(gpu: &Arc<Gpu>) -> Result<CopyQueue, DeviceError> {
        let stream = gpu.context.new_stream().map_err(failed("cuStreamCreate"))?;
        Ok(CopyQueue { gpu: gpu.clone(), stream, running: VecDeque::new(), idle: Vec::new() })
    }
}

impl Copies for CopyQueue {
    unsafe fn start(&mut self, destination: u64, source: u64, bytes: usize) -> Result<(), DeviceError> {
        self.gpu.bind()?;
        let stream: CUstream = self.stream.cu_stream();
        if bytes > 0 {
            // SAFETY: the caller's contract.
            let target = unsafe { std::slice::from_raw_parts_mut(destination as *mut u8, bytes) };
            // SAFETY: the caller's contract; the stream is of the current context.
            unsafe { result::memcpy_dtoh_async(target, source, stream) }.map_err(failed("cuMemcpyDtoHAsync"))?;
        }
        let event = match self.idle.pop() {
            Some(event) => event,
            None => self.gpu.new_event()?,
        };
        event.record(&self.stream).map_err(failed("cuEventRecord"))?;
        self.running.push_back(event);
        Ok(())
    }

    fn finished(&mut self) -> Result<usize, DeviceError> {
        let mut count = 0;
        while let Some(event) = self.running.front() {
            if !event.try_is_complete().map_err(failed("copy to pinned host memory"))? {
                break;
            }
            self.idle.extend(self.running.pop_front());
            count += 1;
        }
        Ok(count)
    }
}

impl Drop for CopyQueue {
    fn drop(&mut self) {
        let result = self.stream.synchronize();
        self.gpu.context.record_err(result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managed_memory_without_concurrent_access_is_refused_in_one_line() {
        assert_eq!(check_concurrent("Some GPU", true), Ok(()));
        let refused = check_concurrent("Some GPU", false);
        assert!(matches!(refused, Err(DeviceError::Refused(_))));
        let text = refused.map_or_else(|error| error.to_string(), |()| String::new());
        assert!(text.starts_with("managed memory refused on Some GPU: CONCURRENT_MANAGED_ACCESS is 0"), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }
}
