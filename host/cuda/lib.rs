//! Devices that run kernels: GPUs through the CUDA driver, or an emulation on the CPU.
//!
//! Both accept the same [`Kernel`] with the same arguments, and both provide three kinds of device memory:
//! [`MemoryLocation::Device`], [`MemoryLocation::Host`] (pinned, accessible to device, CPU and NIC under the same
//! address) and [`MemoryLocation::Managed`]. On the emulated device, all three are ordinary host memory.
//! [`MemoryLocation::File`] is a memory file (memfd) that other processes can map. A [`MappedBuffer`] is GPU memory
//! that the CPU can also access, if GDRCopy is installed.

mod buffer;
mod card_writes;
mod copies;
mod dma_buf;
mod driver;
mod emulated;
mod emulated_stream;
mod features;
mod gdr;
mod gpu;
mod gpu_module;
mod loading;
mod mapped;
mod peer;
mod ptx;
mod reach;
mod stream;
mod wait;

pub use buffer::{Buffer, free_buffers_again, keep_buffers};
pub use card_writes::{CardWrites, Flush};
pub use copies::{CopyQueue, OrderedCopies};
pub use dma_buf::{DmaBuf, dma_buf};
pub use driver::driver_version;
pub use features::{VisibleGpu, initialization_error, visible_gpus};
pub use gdr::gdrcopy_version;
pub use gpu_module::{ForeignModule, Function};
pub use mapped::{MappedBuffer, flush_stores};
pub use peer::{OpenedMemory, PeerHandle};
pub use ptx::{for_capability, ptx, set_ptx};
pub use reach::{HostKind, Reached};
pub use stream::{Event, Graph, Stream};
pub use wait::{set_reason, set_task, wait_for};

pub use cuda_std::{Kernel, Plain};

use ginlab_base::memory_file::{self, MemoryFile};
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Errors of device operations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The device does not exist on this machine.
    #[error("{0}")]
    Missing(String),
    /// This device cannot fulfil the request, for example an invalid grid or too much memory.
    #[error("{0}")]
    Refused(String),
    /// A driver call failed.
    #[error("{call} failed: {text}")]
    Driver {
        /// The call and its purpose.
        call: String,
        /// The driver's name and description of the error.
        text: String,
    },
    /// The emulated device could not run the grid.
    #[error("emulated device: {0}")]
    Emulated(String),
}

/// Device requested by the user.
///
/// The first paragraph of each variant is its `--help` text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceChoice {
    /// The GPU
    ///
    /// Opening fails if there is none.
    Gpu,
    /// CPU threads
    Emulated,
    /// The GPU if there is one, otherwise CPU threads
    ///
    /// CPU threads are also used in a build without PTX.
    Auto,
}

/// Location of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLocation {
    /// Memory of the device.
    Device,
    /// Pinned host memory, mapped into the device under the same address.
    Host,
    /// Managed memory: one address for CPU and GPU; the driver migrates pages to the processor that accesses them.
    /// Rejected on GPUs that cannot share it with the CPU while a kernel runs. Managed allocations of ginlab are small
    /// (a ring, a few words), so they are neither prefetched nor advised. They are not registered with NICs.
    Managed,
    /// A memory file (memfd) that other processes of this machine can map, so that modelled cards of other ranks can
    /// write to it. Not pinned, and not accessible to a GPU.
    File,
}

/// A device that runs kernels.
#[derive(Clone, Debug)]
pub enum Device {
    /// CPU threads.
    Emulated,
    /// A CUDA device.
    Gpu(Arc<gpu::Gpu>),
}

impl Device {
    /// Opens the device for rank number `index` of this host. Ranks share GPUs if there are fewer GPUs than ranks. Also
    /// returns the reason if [`DeviceChoice::Auto`] selected the emulated device. The driver compiles a module of
    /// kernels when one of its kernels is first used.
    ///
    /// # Errors
    /// Returns [`DeviceError::Missing`] if `choice` requires a GPU and there is none.
    pub fn open(choice: DeviceChoice, index: usize) -> Result<(Device, Option<String>), DeviceError> {
        if choice == DeviceChoice::Emulated {
            return Ok((Device::Emulated, None));
        }
        match gpu::Gpu::open(index) {
            Ok(gpu) => Ok((Device::Gpu(Arc::new(gpu)), None)),
            Err(DeviceError::Missing(why)) if choice == DeviceChoice::Auto => Ok((Device::Emulated, Some(why))),
            Err(error) => Err(error),
        }
    }

    fn gpu(&self) -> Option<&gpu::Gpu> {
        match self {
            Device::Emulated => None,
            Device::Gpu(gpu) => Some(gpu),
        }
    }

    /// Makes the device current on the calling thread, for libraries that use the thread's current CUDA context.
    pub fn bind(&self) -> Result<(), DeviceError> {
        self.gpu().map_or(Ok(()), gpu::Gpu::bind)
    }

    /// Returns the name shown in result rows: for example `gpu:NVIDIA H200`, or `emulated`.
    pub fn name(&self) -> String {
        self.gpu().map_or("emulated".into(), gpu::Gpu::device_name)
    }

    /// Returns the number of threads of a warp.
    pub fn warp_size(&self) -> u32 {
        self.gpu().map_or(cuda_std::warp::SIZE, |_| 32)
    }

    /// Returns the CUDA ordinal, for registering device memory.
    pub fn cuda_ordinal(&self) -> Option<i32> {
        self.gpu().map(|gpu| gpu.context.ordinal() as i32)
    }

    /// Returns the PCI address of the GPU in the format of sysfs.
    pub fn pci_address(&self) -> Option<String> {
        self.gpu().and_then(gpu::Gpu::pci_address)
    }

    /// Allocates zeroed memory.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn allocate(&self, place: MemoryLocation, bytes: usize) -> Result<Buffer, DeviceError> {
        let length = NonZeroUsize::new(bytes).unwrap_or(NonZeroUsize::MIN);
        let bytes = length.get();
        if place == MemoryLocation::File {
            let refused =
                |error| DeviceError::Refused(format!("cannot allocate {bytes} bytes in a memory file: {error}"));
            return self.file(length).map_err(refused);
        }
        let address = match self {
            Device::Emulated => emulated::allocate(bytes)?,
            Device::Gpu(gpu) => gpu.allocate(place, bytes)?,
        };
        Ok(Buffer { device: self.clone(), place, address, bytes, file: None, pinned: false, lent: false })
    }

    /// Allocates a memory file. It is shared within this process, so that rails of modelled cards find it by its
    /// address.
    fn file(&self, length: NonZeroUsize) -> io::Result<Buffer> {
        let file = memory_file::share(MemoryFile::create(length)?);
        let (device, address, bytes) = (self.clone(), file.address(), length.get());
        Ok(Buffer { device, place: MemoryLocation::File, address, bytes, file: Some(file), pinned: false, lent: false })
    }

    /// Allocates pinned [`MemoryLocation::File`] memory, which other processes of this machine can map and kernels of
    /// this device can access.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory, or if the driver cannot pin it.
    pub fn pinned_shared(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        let mut buffer = self.allocate(MemoryLocation::File, bytes)?;
        if let Device::Gpu(gpu) = self {
            gpu.pin(buffer.address, buffer.bytes)?;
            buffer.pinned = true;
        }
        Ok(buffer)
    }

    /// Checks that this device can run a grid, before any launch.
    ///
    /// # Errors
    /// Returns [`DeviceError::Refused`] with the limits if it cannot.
    pub fn check_grid(&self, grid: u32, block: u32) -> Result<(), DeviceError> {
        let emulated = (i32::MAX as u32, cuda_std::emulation::MAX_BLOCK);
        let (most_blocks, most_threads) = self.gpu().map_or(emulated, gpu::Gpu::grid_limits);
        if grid == 0 || block == 0 || grid > most_blocks || block > most_threads {
            return Err(DeviceError::Refused(format!(
                "invalid grid {grid} x {block} on {}: must have 1 to {most_blocks} blocks of 1 to {most_threads} \
                 threads",
                self.name()
            )));
        }
        Ok(())
    }

    /// Returns the UUID of the GPU as 32 hexadecimal digits, or of the MIG instance that this process sees. Two
    /// processes on a machine with the same UUID share a GPU. `None` for the emulated device.
    pub fn uuid(&self) -> Option<String> {
        self.gpu().and_then(gpu::Gpu::uuid)
    }

    /// Returns whether an MPS server runs this process's kernels, as the driver reports it. `None` for the emulated
    /// device, and with drivers before CUDA 12.3.
    pub fn is_served_by_mps(&self) -> Option<bool> {
        self.gpu().and_then(gpu::Gpu::is_served_by_mps)
    }

    /// Sets the number of PEs of a job that run kernels on this GPU, including this process, or the maximum of this
    /// number over all GPUs. Afterwards, [`resident_blocks`](Device::resident_blocks) returns the equal share of one
    /// PE. Has no effect on the emulated device, which is not shared between processes.
    pub fn share_among(&self, pes: u32) {
        if let Device::Gpu(gpu) = self {
            gpu.sharers.store(pes.max(1), Ordering::Relaxed);
        }
    }

    /// Returns the number set with [`share_among`](Device::share_among); 1 by default.
    pub fn sharers(&self) -> u32 {
        self.gpu().map_or(1, gpu::Gpu::sharers)
    }

    /// Returns the maximum number of blocks of `block` threads of this kernel that are resident at the same time. A
    /// kernel whose blocks wait for one another must not have more. If several PEs share the GPU, returns this PE's
    /// share, because their kernels wait for each other and all their blocks must be resident.
    ///
    /// # Errors
    /// Returns the driver's error, and the same errors as [`function`](Device::function).
    pub fn resident_blocks<A>(&self, kernel: &Kernel<A>, block: u32) -> Result<u32, DeviceError> {
        match self {
            Device::Emulated => Ok(emulated_blocks(block)),
            Device::Gpu(gpu) => {
                Ok(share_of(gpu.resident_blocks(gpu.function(kernel, block)?, block, 0)?, self.sharers()))
            }
        }
    }

    /// Returns the number of multiprocessors of the GPU; 1 for the emulated device.
    ///
    /// # Errors
    /// Returns the driver's error if the query fails.
    pub fn multiprocessors(&self) -> Result<u32, DeviceError> {
        self.gpu().map_or(Ok(1), gpu::Gpu::multiprocessors)
    }

    /// Checks that all blocks of a grid can be resident at the same time, if the kernel's blocks wait for one another.
    /// Accepts any grid of other kernels.
    ///
    /// # Errors
    /// Returns [`DeviceError::Refused`] with the limit if they cannot, and the same errors as
    /// [`resident_blocks`](Device::resident_blocks).
    pub fn check_resident<A>(&self, kernel: &Kernel<A>, grid: u32, block: u32) -> Result<(), DeviceError> {
        if !kernel.is_resident() {
            return Ok(());
        }
        let most = self.resident_blocks(kernel, block)?;
        if grid <= most {
            return Ok(());
        }
        Err(not_resident((&self.name(), self.sharers()), kernel.name(), (grid, block), most))
    }

    /// Launches a grid and returns immediately.
    ///
    /// # Safety
    /// The caller must uphold the kernel's contract. The pointers in `args` must stay valid until the launch is
    /// finished or dropped.
    ///
    /// # Errors
    /// Returns the device's error if it refuses the launch.
    pub unsafe fn launch<A>(&self, kernel: &Kernel<A>, grid: u32, block: u32, args: A) -> Result<Launch, DeviceError>
    where
        A: Copy + Send + Sync + 'static,
    {
        self.check_grid(grid, block)?;
        self.check_resident(kernel, grid, block)?;
        match self {
            // SAFETY: the caller upholds the kernel's contract.
            Device::Emulated => unsafe { emulated::launch(kernel, grid, block, args) }.map(Launch::Emulated),
            // SAFETY: the caller upholds the kernel's contract.
            Device::Gpu(gpu) => unsafe { gpu::launch(gpu, kernel, grid, block, args) }.map(Launch::Gpu),
        }
    }
}

/// A running grid. Dropping it waits until the grid ends, which it does because every wait inside a kernel is bounded.
#[derive(Debug)]
pub enum Launch {
    /// Threads of the emulated device.
    Emulated(emulated::EmulatedLaunch),
    /// An event recorded after the kernel.
    Gpu(gpu::GpuLaunch),
}

impl Launch {
    /// Returns whether the grid has ended.
    ///
    /// # Errors
    /// Returns the device's error if the grid failed.
    pub fn is_done(&mut self) -> Result<bool, DeviceError> {
        match self {
            Launch::Emulated(launch) => launch.is_done(),
            Launch::Gpu(launch) => launch.is_done(),
        }
    }

    /// Waits until the grid ends and calls `watch` every few milliseconds. If `watch` returns an error, it must also
    /// cause the grid to end, for example by stopping the proxy. The error is returned after the grid has ended. A grid
    /// that does not end within [`Launch::ENDING`] cannot be cleaned up: a message is printed and the process exits
    /// with code 124.
    ///
    /// # Errors
    /// Returns the device's error, or the first error of `watch`.
    pub fn wait<E: From<DeviceError>>(self, watch: impl FnMut() -> Result<(), E>) -> Result<(), E> {
        self.wait_ending(Launch::ENDING, watch)
    }

    /// Maximum time within which a grid must end after it was requested to. It is longer than the grid's own waits.
    pub const ENDING: Duration = wait::ENDING;

    /// Like [`wait`](Launch::wait), with the limit `ending`.
    ///
    /// # Errors
    /// Returns the same errors as [`wait`](Launch::wait).
    pub fn wait_ending<E: From<DeviceError>>(
        mut self,
        ending: Duration,
        watch: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        wait_for(ending, || self.is_done(), watch)
    }
}

/// Returns a PE's equal share of the resident blocks of a GPU.
fn share_of(blocks: u32, sharers: u32) -> u32 {
    blocks / sharers.max(1)
}

/// Returns the error for a grid that cannot be resident.
fn not_resident((device, sharers): (&str, u32), kernel: &str, (grid, block): (u32, u32), most: u32) -> DeviceError {
    let whose = if sharers > 1 { format!(", for each of the {sharers} PEs on the GPU") } else { String::new() };
    DeviceError::Refused(format!(
        "grid {grid} x {block} does not fit on {device}: all blocks of {kernel} must be resident, and at most {most} \
         blocks of {block} threads are{whose}"
    ))
}

/// Returns the number of blocks of `block` threads that are resident on the emulated device.
fn emulated_blocks(block: u32) -> u32 {
    (cuda_std::emulation::RESIDENT_THREADS / u64::from(block.max(1))) as u32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    unsafe fn nothing(_: u32) {}

    #[test]
    fn oversized_resident_grid_is_rejected_in_one_line() {
        const WAITS: Kernel<u32> = Kernel::new("waits", nothing).resident();
        assert_eq!(Device::Emulated.resident_blocks(&WAITS, 1024), Ok(132));
        assert_eq!(Device::Emulated.check_resident(&WAITS, 132, 1024), Ok(()));
        // SAFETY: the kernel takes no pointers.
        let refused = unsafe { Device::Emulated.launch(&WAITS, 133, 1024, 0) }.unwrap_err().to_string();
        assert!(refused.contains("of waits must be resident, and at most 132 blocks of 1024 threads"), "{refused}");
        assert_eq!(Device::Emulated.check_resident(&Kernel::new("goes", nothing), 1 << 20, 1024), Ok(()));
    }

    #[test]
    fn pes_share_resident_blocks_of_gpu_equally() {
        for blocks in [0, 1, 7, 132, 264, 2112] {
            for sharers in 1..=48 {
                let share = share_of(blocks, sharers);
                assert!(share * sharers <= blocks && (share + 1) * sharers > blocks, "{blocks} {sharers}");
            }
        }
        assert_eq!(share_of(132, 0), 132);
        let text = not_resident(("gpu:G", 4), "k", (34, 512), share_of(132, 4)).to_string();
        assert!(text.ends_with("at most 33 blocks of 512 threads are, for each of the 4 PEs on the GPU"));
        assert!(!text.contains('\n'), "{text}");
        let alone = not_resident(("gpu:G", 1), "k", (133, 512), 132).to_string();
        assert!(alone.ends_with("at most 132 blocks of 512 threads are"), "{alone}");
        assert_eq!(Device::Emulated.sharers(), 1);
    }
}
