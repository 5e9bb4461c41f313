//! Kernels ready to be launched, and where they come from: ginlab's own PTX, its module for compute capability 9.0 and
//! later, or a module that somebody else has compiled.

use super::gpu::{Gpu, Module, failed};
use super::{Device, DeviceError, Kernel, emulated};
use cudarc::driver::sys;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

/// A kernel, found once and launched often.
pub enum Function<A> {
    /// On the emulated device.
    Native {
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
                emulated::native(kernel).map(|function| Function::Native { function, resident: kernel.is_resident() })
            }
            Device::Gpu(gpu) => gpu.function(kernel, block).map(|function| named(kernel.name(), function)),
        }
    }
}

impl<A> Function<A> {
    /// The same, whose blocks get so many bytes of shared memory (`cuda_std::shared::Dynamic`).
    ///
    /// # Errors
    /// [`DeviceError::Refused`] for more than a block may have.
    pub fn with_shared_memory(mut self, bytes: u32) -> Result<Function<A>, DeviceError> {
        if let Function::Gpu { name, function, shared, .. } = &mut self {
            allow_shared(function.0, name, bytes)?;
            *shared = bytes;
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
                gpu.resident_blocks(function.0, block, *shared)
            }
            _ => Ok(super::emulated_blocks(block)),
        }
    }
}

fn named<A>(name: &str, function: sys::CUfunction) -> Function<A> {
    Function::Gpu { name: name.into(), function: Handle(function), shared: 0, args: PhantomData }
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
        self.module.function(name).map(|function| named(name, function))
    }
}
