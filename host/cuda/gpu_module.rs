//! Kernels that are ready to be launched. They are part of ginlab's PTX, of its module for compute capability 9.0 and
//! later, or of a separately compiled module.

use super::driver::failed;
use super::gpu::Gpu;
use super::loading::Module;
use super::{Device, DeviceError, Kernel, emulated};
use cudarc::driver::sys;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A kernel that was looked up once and can be launched repeatedly.
pub enum Function<A> {
    /// A kernel of the emulated device.
    Native {
        /// Name of the kernel.
        name: &'static str,
        /// The native function.
        function: unsafe fn(A),
        /// Whether all blocks of a grid must be resident at the same time.
        resident: bool,
    },
    /// A kernel that runs on a GPU.
    Gpu {
        /// Name of the entry point.
        name: String,
        /// The driver's handle.
        function: ForeignFunction,
        /// Dynamic shared memory of a launch, in bytes.
        shared: u32,
        /// Whether all blocks of a grid must be resident at the same time.
        resident: bool,
        /// Cache of the last query of the driver: the block size in the upper half, the maximum number of resident
        /// blocks of this size in the lower half.
        asked: AtomicU64,
        /// Type of the argument.
        args: PhantomData<fn(A)>,
    },
}

impl<A> std::fmt::Debug for Function<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Function::Native { .. } => f.write_str("Function(native)"),
            Function::Gpu { name, .. } => write!(f, "Function({name})"),
        }
    }
}

/// A function of a loaded module. Modules are never unloaded.
#[derive(Clone, Copy, Debug)]
pub struct ForeignFunction(pub(super) sys::CUfunction);

/// A separately compiled module: a cubin or PTX file.
#[derive(Debug)]
pub struct ForeignModule {
    gpu: Arc<Gpu>,
    module: Module,
}

impl Device {
    /// Returns one of ginlab's kernels, for blocks of `block` threads.
    ///
    /// # Errors
    /// Returns the driver's error, or [`DeviceError::Missing`] for kernels with bulk stores on devices that lack them.
    pub fn function<A>(&self, kernel: &Kernel<A>, block: u32) -> Result<Function<A>, DeviceError> {
        match self {
            Device::Emulated => {
                let (name, resident) = (kernel.name(), kernel.is_resident());
                emulated::native(kernel).map(|function| Function::Native { name, function, resident })
            }
            Device::Gpu(gpu) => {
                gpu.function(kernel, block).map(|function| named(kernel.name(), function, kernel.is_resident()))
            }
        }
    }
}

impl<A> Function<A> {
    /// Returns the function with `bytes` bytes of dynamic shared memory per block (`cuda_std::shared::Dynamic`).
    ///
    /// # Errors
    /// Returns [`DeviceError::Refused`] if this exceeds the maximum of a block.
    pub fn with_shared_memory(mut self, bytes: u32) -> Result<Function<A>, DeviceError> {
        if let Function::Gpu { name, function, shared, asked, .. } = &mut self {
            allow_shared(function.0, name, bytes)?;
            *shared = bytes;
            *asked.get_mut() = 0;
        }
        Ok(self)
    }
}

/// Allows a function to use more than 48 KiB of dynamic shared memory, which must be requested explicitly.
fn allow_shared(function: sys::CUfunction, name: &str, bytes: u32) -> Result<(), DeviceError> {
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function belongs to a module that is never unloaded.
    let status = unsafe { sys::cuFuncSetAttribute(function, attribute, bytes as i32) };
    status.result().map_err(|error| {
        DeviceError::Refused(format!(
            "cannot use {bytes} bytes of shared memory for a block of {name}: {}",
            failed("the driver")(error)
        ))
    })
}

impl Device {
    /// Returns the maximum shared memory of a block, in bytes. The emulated device has as much as an H100 or H200.
    ///
    /// # Errors
    /// Returns the driver's error if the query fails.
    pub fn most_shared_memory(&self) -> Result<u32, DeviceError> {
        self.gpu().map_or(Ok(227 << 10), Gpu::most_shared_memory)
    }

    /// Like [`resident_blocks`](Device::resident_blocks), for a function that was looked up already, with its shared
    /// memory.
    ///
    /// # Errors
    /// Returns the driver's error if the query fails.
    pub fn resident_blocks_of<A>(&self, function: &Function<A>, block: u32) -> Result<u32, DeviceError> {
        match (self, function) {
            (Device::Gpu(gpu), Function::Gpu { function, shared, .. }) => {
                Ok(super::share_of(gpu.resident_blocks(function.0, block, *shared)?, self.sharers()))
            }
            _ => Ok(super::emulated_blocks(block)),
        }
    }
}

/// If the blocks of a kernel wait for one another, checks that all blocks of a grid fit on the device, or into this
/// PE's share of it. `gpu` must be the GPU of the function. The driver is queried once per block size, because launches
/// may be microseconds apart.
///
/// # Errors
/// Returns [`DeviceError::Refused`] with the limit if they do not fit, and otherwise the driver's error.
pub(super) fn check_resident<A>(
    gpu: Option<&Gpu>,
    function: &Function<A>,
    grid: u32,
    block: u32,
) -> Result<(), DeviceError> {
    let (name, most) = match function {
        Function::Native { name, resident: true, .. } => (*name, super::emulated_blocks(block)),
        Function::Gpu { name, function, shared, resident: true, asked, .. } => {
            let known = asked.load(Ordering::Relaxed);
            let most = match gpu {
                Some(gpu) if known >> 32 != u64::from(block) => {
                    let most = gpu.resident_blocks(function.0, block, *shared)?;
                    asked.store(u64::from(block) << 32 | u64::from(most), Ordering::Relaxed);
                    most
                }
                _ => known as u32,
            };
            // The share is not cached, because PEs may be counted after the first launch.
            (name.as_str(), super::share_of(most, gpu.map_or(1, Gpu::sharers)))
        }
        _ => return Ok(()),
    };
    if grid <= most {
        return Ok(());
    }
    let device = gpu.map_or((Device::Emulated.name(), 1), |gpu| (gpu.device_name(), gpu.sharers()));
    Err(super::not_resident((&device.0, device.1), name, (grid, block), most))
}

fn named<A>(name: &str, function: sys::CUfunction, resident: bool) -> Function<A> {
    let (function, asked) = (ForeignFunction(function), AtomicU64::new(0));
    Function::Gpu { name: name.into(), function, shared: 0, resident, asked, args: PhantomData }
}

impl ForeignModule {
    /// Loads a cubin or PTX file.
    ///
    /// # Errors
    /// Returns an error if there is no GPU, the file cannot be read, or the driver rejects it.
    pub fn load(device: &Device, path: &Path) -> Result<ForeignModule, DeviceError> {
        let Device::Gpu(gpu) = device else {
            return Err(DeviceError::Refused(format!(
                "{}: the emulated device cannot run a compiled CUDA module",
                path.display()
            )));
        };
        let refused = |why: String| DeviceError::Refused(format!("{}: {why}", path.display()));
        let mut bytes = std::fs::read(path).map_err(|error| refused(error.to_string()))?;
        // PTX must be a C string. A cubin contains its length, so the additional zero is harmless.
        bytes.push(0);
        gpu.bind()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is complete and ends with a zero.
        let status = unsafe { sys::cuModuleLoadData(&mut module, bytes.as_ptr().cast()) };
        status.result().map_err(failed(format!("loading {}", path.display())))?;
        Ok(ForeignModule { gpu: gpu.clone(), module: Module(module) })
    }

    /// Returns a kernel of the module.
    ///
    /// # Safety
    /// The kernel must take one argument, of type `A`.
    ///
    /// # Errors
    /// Returns the driver's error if there is no kernel of this name.
    pub unsafe fn function<A>(&self, name: &str) -> Result<Function<A>, DeviceError> {
        self.gpu.bind()?;
        self.module.function(name).map(|function| named(name, function, false))
    }
}
