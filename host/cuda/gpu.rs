//! The GPU, through the CUDA driver API, which cudarc loads at run time. If there is no driver, every call returns an
//! error.

use super::driver::{failed, is_there, refused_or_failed};
use super::loading::{Module, load};
use super::ptx::{capability_of, module_of, ptx};
use super::wait::wait_out;
use super::{DeviceError, HostKind, Kernel, MemoryLocation, Plain};
use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUevent_flags};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result, sys};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Maximum block sizes, each with the number of registers per thread for which kernels are compiled for blocks of up to
/// that size. This is the largest number with which one block fits into a multiprocessor. Each of the four parts of a
/// multiprocessor has 16384 registers for a quarter of the warps, and allocates them in units of 8 per thread. Below 88
/// registers, copies at any alignment spill.
const VARIANTS: [(u32, usize); 5] = [(512, 128), (640, 96), (768, 80), (896, 72), (u32::MAX, 64)];
/// Flags of host memory: accessible in every context (portable), and by kernels (device map).
const HOST_FLAGS: u32 = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;

/// A CUDA device with its kernels.
#[derive(Debug)]
pub struct Gpu {
    pub(super) context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    /// Modules of [`ptx`], one for each of [`VARIANTS`]. Each is compiled when one of its kernels is first used.
    modules: Vec<[OnceLock<Result<Module, DeviceError>>; VARIANTS.len()]>,
    pub(super) name: String,
    /// Compute capability, cached because launches use it.
    capability: (u32, u32),
    /// Number of PEs of the job whose kernels run on this GPU; 1 until it is set.
    pub(super) sharers: AtomicU32,
}

/// Returns an error if CPU and GPU cannot access managed memory at the same time.
fn check_concurrent(gpu: &str, concurrent: bool) -> Result<(), DeviceError> {
    if concurrent {
        return Ok(());
    }
    Err(DeviceError::Refused(format!(
        "managed memory is not supported on {gpu}: CONCURRENT_MANAGED_ACCESS is 0, so a CPU that polls it while a \
         kernel runs would fault; use pinned host memory"
    )))
}

/// Returns an error if the GPU cannot map read-only host memory.
fn check_read_only(gpu: &str, supported: bool) -> Result<(), DeviceError> {
    if supported {
        return Ok(());
    }
    Err(DeviceError::Refused(format!(
        "cannot register the completion queue of an EFA device on {gpu}: READ_ONLY_HOST_REGISTER_SUPPORTED is 0, and \
         the driver maps the queue read-only (queues in GPU memory, EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF, need no \
         registration, but are not implemented); use proxies (path `rails`)"
    )))
}

impl Gpu {
    pub(super) fn open(index: usize) -> Result<Gpu, DeviceError> {
        if ptx().modules.is_empty() {
            return Err(DeviceError::Missing(
                "this program contains no PTX; build it without --no-default-features, and call \
                 `ginlab::cuda::set_ptx` in its main"
                    .into(),
            ));
        }
        if !is_there() {
            return Err(DeviceError::Missing("no CUDA driver (libcuda.so) on this machine".into()));
        }
        let count = CudaContext::device_count()
            .map_err(failed("cuInit / cuDeviceGetCount"))
            .map_err(|error| DeviceError::Missing(format!("the CUDA driver provides no device: {error}")))?;
        if count < 1 {
            return Err(DeviceError::Missing("the CUDA driver finds no GPU; check CUDA_VISIBLE_DEVICES".into()));
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

    /// Implements [`Device::name`](super::Device::name).
    pub(super) fn device_name(&self) -> String {
        format!("gpu:{}", self.name)
    }

    /// Implements [`Device::sharers`](super::Device::sharers).
    pub(super) fn sharers(&self) -> u32 {
        self.sharers.load(Ordering::Relaxed)
    }

    /// Returns the UUID of the GPU, or of the MIG instance that this process sees.
    pub(super) fn uuid(&self) -> Option<String> {
        let uuid = self.context.uuid().ok()?;
        Some(uuid.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect())
    }

    /// Returns whether contexts on this GPU belong to an MPS server, as the driver reports it. `None` if the driver
    /// does not support the query.
    pub(super) fn is_served_by_mps(&self) -> Option<bool> {
        // CU_DEVICE_ATTRIBUTE_MPS_ENABLED of CUDA 12.3, which the bindings of 12.0 lack.
        const MPS_ENABLED: i32 = 133;
        type Get = unsafe extern "C" fn(*mut i32, i32, sys::CUdevice) -> i32;
        // SAFETY: libcuda is loaded already, and stays loaded after this handle is dropped.
        let library = unsafe { libloading::Library::new("libcuda.so.1") }.ok()?;
        // SAFETY: the function has this signature, in which enumerations are C's int.
        let get = unsafe { library.get::<Get>(b"cuDeviceGetAttribute\0") }.ok()?;
        let mut value = 0;
        // SAFETY: the pointer refers to a local variable, and the device exists. A driver rejects unknown attributes.
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
        // SAFETY: the function belongs to a module that is never unloaded.
        let each = unsafe { result::occupancy::max_active_block_per_multiprocessor(function, block, shared) };
        let each = each.map_err(failed("cuOccupancyMaxActiveBlocksPerMultiprocessor"))?;
        Ok(each.max(0) as u32 * self.multiprocessors()?)
    }

    pub(super) fn multiprocessors(&self) -> Result<u32, DeviceError> {
        let count = self.context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        count.map(|count| count.max(1) as u32).map_err(failed("cuDeviceGetAttribute"))
    }

    /// Returns the attributes that describe how writes of NICs are ordered for the device's own kernels, and how they
    /// can be flushed. `None` if the driver does not support an attribute.
    pub(super) fn card_writes(&self) -> (Option<i32>, Option<i32>) {
        let get = |attribute| self.context.attribute(attribute).ok();
        (
            get(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING),
            get(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS),
        )
    }

    /// Flushes writes of NICs to this GPU's memory, for its own kernels. Requires a driver that supports it, according
    /// to [`card_writes`](Gpu::card_writes).
    pub(super) fn flush_card_writes(&self) -> Result<(), DeviceError> {
        self.bind()?;
        let target = sys::CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        let scope = sys::CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER;
        // SAFETY: the arguments are constants, and the context of this GPU is current.
        unsafe { sys::cuFlushGPUDirectRDMAWrites(target, scope) }.result().map_err(failed("cuFlushGPUDirectRDMAWrites"))
    }

    pub(super) fn bind(&self) -> Result<(), DeviceError> {
        self.context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))
    }

    pub(super) fn allocate(&self, place: MemoryLocation, bytes: usize) -> Result<u64, DeviceError> {
        self.bind()?;
        match place {
            MemoryLocation::Device => {
                let what = format!("allocating {bytes} bytes of GPU memory");
                // SAFETY: the context is current, and the memory is zeroed before it is read.
                let address = unsafe { result::malloc_sync(bytes) }.map_err(failed(what))?;
                // SAFETY: the allocation has `bytes` bytes.
                unsafe { result::memset_d8_sync(address, 0, bytes) }.map_err(failed("cuMemsetD8"))?;
                self.settle()?;
                Ok(address)
            }
            MemoryLocation::Host => {
                let what = format!("pinning {bytes} bytes of host memory");
                // SAFETY: the context is current.
                let pointer = unsafe { result::malloc_host(bytes, HOST_FLAGS) }.map_err(failed(what))?;
                // SAFETY: the allocation has `bytes` bytes.
                unsafe { std::ptr::write_bytes(pointer.cast::<u8>(), 0, bytes) };
                Ok(pointer as u64)
            }
            MemoryLocation::Managed => {
                let concurrent = Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
                let concurrent = self.context.attribute(concurrent).map_err(failed("cuDeviceGetAttribute"))?;
                check_concurrent(&self.name, concurrent != 0)?;
                let what = format!("allocating {bytes} bytes of managed memory");
                // Global attachment, because kernels of every stream may use the memory.
                let flags = sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
                // SAFETY: the context is current, and the memory is zeroed before it is read.
                let address = unsafe { result::malloc_managed(bytes, flags) }.map_err(failed(what))?;
                // SAFETY: the allocation has `bytes` bytes, and `check_concurrent` has checked that the CPU may write
                // it at any time.
                unsafe { std::ptr::write_bytes(address as *mut u8, 0, bytes) };
                Ok(address)
            }
            MemoryLocation::File => Err(DeviceError::Refused("the CUDA driver cannot allocate a memory file".into())),
        }
    }

    pub(super) fn free(&self, place: MemoryLocation, address: u64) {
        // An error cannot be handled here; the context records it for its next call.
        let result = self.context.bind_to_thread().and_then(|()| match place {
            // SAFETY: `address` was returned by `allocate`, and launches that used it have ended.
            MemoryLocation::Device | MemoryLocation::Managed => unsafe { result::free_sync(address) },
            // SAFETY: `address` was returned by `allocate`, and launches that used it have ended, as for device memory.
            MemoryLocation::Host => unsafe { result::free_host(address as *mut c_void) },
            MemoryLocation::File => Ok(()),
        });
        self.context.record_err(result);
    }

    /// Pins host memory that was allocated elsewhere. Kernels access it under the same address.
    pub(super) fn pin(&self, address: u64, bytes: usize) -> Result<(), DeviceError> {
        self.pin_as(address, bytes, HostKind::Memory)
    }

    /// Pins memory of the given kind. [`pin`](Gpu::pin) does this for ordinary memory.
    pub(super) fn pin_as(&self, address: u64, bytes: usize, kind: HostKind) -> Result<(), DeviceError> {
        self.bind()?;
        let (kind, what) = match kind {
            HostKind::Memory => (0, ""),
            HostKind::ReadOnly => {
                let attribute = Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
                // A driver without this attribute does not support such registrations.
                check_read_only(&self.name, self.context.attribute(attribute).unwrap_or(0) != 0)?;
                (sys::CU_MEMHOSTREGISTER_READ_ONLY, " that are read-only")
            }
            HostKind::CardWindow => (sys::CU_MEMHOSTREGISTER_IOMEMORY, " of an EFA device's BAR"),
        };
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP | kind;
        // SAFETY: the caller guarantees a mapping of `bytes` bytes that stays valid until `unpin`.
        let status = unsafe { sys::cuMemHostRegister_v2(address as *mut c_void, bytes, flags) };
        status.result().map_err(failed(format!("cuMemHostRegister of {bytes} bytes{what}")))
    }

    pub(super) fn unpin(&self, address: u64) {
        let result = self.context.bind_to_thread().and_then(|()| {
            // SAFETY: the address was passed to `pin`, and launches that used it have ended.
            unsafe { sys::cuMemHostUnregister(address as *mut c_void) }.result()
        });
        self.context.record_err(result);
    }

    /// Makes copies and memsets of this allocation return only when they are complete. GDRCopy requires this, and so
    /// does every other access to GPU memory outside the driver.
    pub(super) fn synchronize_copies_of(&self, address: u64) -> Result<(), DeviceError> {
        self.bind()?;
        let yes: u32 = 1;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
        // SAFETY: the value of this attribute is an unsigned int, which is read during the call.
        let status = unsafe { sys::cuPointerSetAttribute((&raw const yes).cast(), attribute, address) };
        status.result().map_err(failed("cuPointerSetAttribute SYNC_MEMOPS"))
    }

    pub(super) fn copy_in<T: Copy>(&self, address: u64, values: &[T]) -> Result<(), DeviceError> {
        self.bind()?;
        // SAFETY: the caller has checked the range.
        unsafe { result::memcpy_htod_sync(address, values) }.map_err(failed("cuMemcpyHtoD"))?;
        self.settle()
    }

    /// Waits until preceding memsets and copies from pageable memory are complete. These may return earlier and run on
    /// the default stream. Our streams do not wait for it, so a kernel could otherwise start before them.
    fn settle(&self) -> Result<(), DeviceError> {
        // SAFETY: a null pointer denotes the default stream of the current context.
        unsafe { result::stream::synchronize(std::ptr::null_mut()) }.map_err(failed("cuStreamSynchronize"))
    }

    pub(super) fn copy_out<T: Plain>(&self, address: u64, values: &mut [T]) -> Result<(), DeviceError> {
        self.bind()?;
        // SAFETY: the caller has checked the range.
        unsafe { result::memcpy_dtoh_sync(values, address) }.map_err(failed("cuMemcpyDtoH"))
    }

    /// Returns the driver's function of a kernel for blocks of `block` threads.
    pub(super) fn function<A>(&self, kernel: &Kernel<A>, block: u32) -> Result<sys::CUfunction, DeviceError> {
        self.bind()?;
        let variant = VARIANTS.iter().position(|(most, _)| block <= *most).unwrap_or(VARIANTS.len() - 1);
        let name = kernel.name();
        let module = module_of(name).ok_or_else(|| {
            DeviceError::Missing(format!(
                "kernel {name} is not in any PTX module of this build; rebuild without GINLAB_MODULES"
            ))
        })?;
        self.module(module, variant)?.function(name)
    }

    /// Returns a module compiled for an index of [`VARIANTS`], on first use.
    fn module(&self, module: usize, variant: usize) -> Result<&Module, DeviceError> {
        let compiled = || {
            let (name, text) = ptx().modules[module];
            let (major, minor) = self.capability;
            if let Some(wanted) = capability_of(text).filter(|wanted| *wanted > major * 10 + minor) {
                return Err(DeviceError::Missing(format!(
                    "the kernels of {name} need compute capability {}.{}, but this GPU has {major}.{minor}",
                    wanted / 10,
                    wanted % 10
                )));
            }
            load(&self.context, self.capability, text, VARIANTS[variant].1)
        };
        self.modules[module][variant].get_or_init(compiled).as_ref().map_err(Clone::clone)
    }

    /// Returns whether a grid may start on the multiprocessors while the preceding one still runs.
    pub(super) fn begins_early(&self) -> bool {
        self.capability >= (9, 0)
    }

    pub(super) fn new_event(&self) -> Result<CudaEvent, DeviceError> {
        self.context.new_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING)).map_err(failed("cuEventCreate"))
    }
}

/// A kernel in flight, and the event recorded after it.
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
    // SAFETY: the kernel takes one parameter of type A by value, which the driver copies during the call. The caller
    // guarantees the validity of the pointers in it.
    unsafe { result::launch_kernel(function, (grid, 1, 1), (block, 1, 1), 0, gpu.stream.cu_stream(), parameters) }
        .map_err(|error| refused_or_failed(error, name, grid, block))?;
    event.record(&gpu.stream).map_err(failed("cuEventRecord"))?;
    Ok(GpuLaunch { event, name: name.into() })
}

impl GpuLaunch {
    pub(super) fn is_done(&mut self) -> Result<bool, DeviceError> {
        self.event.try_is_complete().map_err(failed(format!("kernel {}", self.name)))
    }
}

impl Drop for GpuLaunch {
    fn drop(&mut self) {
        // Waits, because buffers that the kernel uses may be freed next.
        wait_out(|| self.is_done());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managed_memory_requires_concurrent_access() {
        assert_eq!(check_concurrent("Some GPU", true), Ok(()));
        let refused = check_concurrent("Some GPU", false);
        assert!(matches!(refused, Err(DeviceError::Refused(_))));
        let text = refused.map_or_else(|error| error.to_string(), |()| String::new());
        assert!(
            text.starts_with("managed memory is not supported on Some GPU: CONCURRENT_MANAGED_ACCESS is 0"),
            "{text}"
        );
        assert!(!text.contains('\n'), "{text}");
    }

    #[test]
    fn read_only_memory_requires_attribute() {
        assert_eq!(check_read_only("Some GPU", true), Ok(()));
        let text = check_read_only("Some GPU", false).map_or_else(|error| error.to_string(), |()| String::new());
        assert!(text.contains("EFA device on Some GPU: READ_ONLY_HOST_REGISTER_SUPPORTED is 0"), "{text}");
        assert!(text.contains("EXT_MEM_DMABUF, need no registration, but are not implemented"), "{text}");
        assert!(!text.contains('\n') && text.ends_with("use proxies (path `rails`)"), "{text}");
    }

    #[test]
    fn block_of_each_variant_fits_into_multiprocessor() {
        for (most, registers) in VARIANTS {
            let warps = most.min(1024).div_ceil(32) as usize;
            assert!(warps.div_ceil(4) * 32 * registers <= 16384 && registers % 8 == 0, "{most} x {registers}");
        }
    }
}
