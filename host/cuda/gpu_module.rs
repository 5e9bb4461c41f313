//! Kernels ready to be launched, and where they come from: ginlab's own PTX, its module for compute capability 9.0 and
//! later, or a module that somebody else has compiled.

use super::driver::failed;
use super::gpu::Gpu;
use super::loading::Module;
use super::{Device, DeviceError, Kernel, emulated};
use cudarc::driver::sys;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A kernel, found once and launched often.
pub enum Function<A> {
    /// On the emulated device.
    Native {
        /// Its name.
        name: &'static str,
        /// The kernel.
        function: unsafe fn(A),
        /// Whether all blocks of a grid must be there at once.
        resident: bool,
    },
    /// On a GPU.
    Gpu {
        /// The entry point.
        name: String,
        /// The driver's handle.
        function: Handle,
        /// Bytes of shared memory that a launch asks for.
        shared: u32,
        /// Whether all blocks of a grid must be there at once.
        resident: bool,
        /// Threads of a block, and the most blocks of so many that the device has at once, as the driver was last asked: half of the word each.
        asked: AtomicU64,
        /// Its arguments.
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
pub struct Handle(pub(super) sys::CUfunction);

/// A module compiled by somebody else: a cubin or PTX.
#[derive(Debug)]
pub struct ForeignModule {
    gpu: Arc<Gpu>,
    module: Module,
}

impl Device {
    /// One of ginlab's kernels, for blocks of this many threads.
    ///
    /// # Errors
    /// The driver's; [`DeviceError::Missing`] of kernels with bulk stores on devices that have none.
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
    /// The same, whose blocks get so many bytes of shared memory (`cuda_std::shared::Dynamic`).
    ///
    /// # Errors
    /// [`DeviceError::Refused`] for more than a block may have.
    pub fn with_shared_memory(mut self, bytes: u32) -> Result<Function<A>, DeviceError> {
        if let Function::Gpu { name, function, shared, asked, .. } = &mut self {
            allow_shared(function.0, name, bytes)?;
            *shared = bytes;
            *asked.get_mut() = 0;
        }
        Ok(self)
    }
}

/// Beyond 48 KB a function is asked first.
fn allow_shared(function: sys::CUfunction, name: &str, bytes: u32) -> Result<(), DeviceError> {
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: a function of a module that is never unloaded.
    let status = unsafe { sys::cuFuncSetAttribute(function, attribute, bytes as i32) };
    status.result().map_err(|error| {
        DeviceError::Refused(format!(
            "{bytes} bytes of shared memory for a block of {name}: {}",
            failed("the driver")(error)
        ))
    })
}

impl Device {
    /// Shared memory that a block may ask for, in bytes; on the emulated device what an H100 and an H200 have.
    ///
    /// # Errors
    /// The driver's.
    pub fn most_shared_memory(&self) -> Result<u32, DeviceError> {
        self.gpu().map_or(Ok(227 << 10), Gpu::most_shared_memory)
    }

    /// As [`resident_blocks`](Device::resident_blocks), of a function that was found before, with its shared memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn resident_blocks_of<A>(&self, function: &Function<A>, block: u32) -> Result<u32, DeviceError> {
        match (self, function) {
            (Device::Gpu(gpu), Function::Gpu { function, shared, .. }) => {
                Ok(super::share_of(gpu.resident_blocks(function.0, block, *shared)?, self.sharers()))
            }
            _ => Ok(super::emulated_blocks(block)),
        }
    }
}

/// Refuses a grid of a function whose blocks wait for one another when the device, or this PE's share of it, does not hold them all. `gpu`: the
/// function's. The driver is asked once for each size of block: launches follow one another by microseconds.
///
/// # Errors
/// [`DeviceError::Refused`] with what is allowed; the driver's.
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
            // The share is taken behind what is kept: PEs may be counted after the first launch.
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
    let (function, asked) = (Handle(function), AtomicU64::new(0));
    Function::Gpu { name: name.into(), function, shared: 0, resident, asked, args: PhantomData }
}

impl ForeignModule {
    /// Loads a cubin or PTX file.
    ///
    /// # Errors
    /// When there is no GPU, the file cannot be read, or the driver does not take it.
    pub fn load(device: &Device, path: &Path) -> Result<ForeignModule, DeviceError> {
        let Device::Gpu(gpu) = device else {
            return Err(DeviceError::Refused(format!(
                "{}: the emulated device cannot run a compiled CUDA module; leave --cuda-module out",
                path.display()
            )));
        };
        let refused = |why: String| DeviceError::Refused(format!("{}: {why}", path.display()));
        let mut bytes = std::fs::read(path).map_err(|error| refused(error.to_string()))?;
        // PTX is text that ends with a zero; behind a cubin, which knows its length, it does no harm.
        bytes.push(0);
        gpu.bind()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is complete and ends with a zero.
        let status = unsafe { sys::cuModuleLoadData(&mut module, bytes.as_ptr().cast()) };
        status.result().map_err(failed(format!("loading {}", path.display())))?;
        Ok(ForeignModule { gpu: gpu.clone(), module: Module(module) })
    }

    /// A kernel of the module.
    ///
    /// # Safety
    /// The kernel takes one argument, of type `A`.
    ///
    /// # Errors
    /// When it has none of this name.
    pub unsafe fn function<A>(&self, name: &str) -> Result<Function<A>, DeviceError> {
        self.gpu.bind()?;
        self.module.function(name).map(|function| named(name, function, false))
    }
}
