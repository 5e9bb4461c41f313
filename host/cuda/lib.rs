//! Devices that run kernels: the GPU through the CUDA driver, or its emulation on the CPU.
//!
//! Both take the same [`Kernel`] with the same arguments, and both give memory of these places: [`Place::Device`],
//! [`Place::Host`] (pinned, readable and writable by device, CPU and NIC under one address) and [`Place::Managed`]. On the
//! emulated device all three are plain host memory. [`Place::File`] is a memory file of the CPU's, which other processes map. A
//! [`MappedBuffer`] is GPU memory that the CPU reaches too, where GDRCopy is installed.

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
mod stream;
mod wait;

pub use buffer::{Buffer, free_buffers_again, keep_buffers};
pub use card_writes::{CardWrites, Flush};
pub use copies::{Copies, CopyQueue};
pub use dma_buf::{DmaBuf, dma_buf};
pub use driver::driver_version;
pub use features::{VisibleGpu, visible_gpus};
pub use gdr::gdrcopy_version;
pub use gpu_module::{ForeignModule, Function};
pub use mapped::{MappedBuffer, flush_stores};
pub use peer::{OpenedMemory, PeerHandle};
pub use ptx::{for_capability, ptx, set_ptx};
pub use stream::{Event, Graph, Stream};
pub use wait::{set_task, wait_for};

pub use cuda_std::{Kernel, Plain};

use ginlab_base::memory_file::{self, MemoryFile};
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// An error of a device: what was asked, what came back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// There is no such device here.
    #[error("{0}")]
    Missing(String),
    /// What was asked cannot be run on this device: a bad grid, more memory than there is.
    #[error("{0}")]
    Refused(String),
    /// A driver call failed.
    #[error("{call} failed: {text}")]
    Driver {
        /// The call, with what it was for.
        call: String,
        /// The driver's name and words for the error.
        text: String,
    },
    /// The emulated grid could not run.
    #[error("emulated device: {0}")]
    Emulated(String),
}

/// Which device a user asks for.
///
/// Of each value the first paragraph is what `--help` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Choice {
    /// The GPU.
    ///
    /// Where there is none, an error.
    Gpu,
    /// CPU threads.
    Emulated,
    /// The GPU where there is one.
    ///
    /// Without one, or in a build without PTX, CPU threads.
    Auto,
}

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The device's own.
    Device,
    /// Pinned host memory, mapped into the device under the same address.
    Host,
    /// Managed memory: one address for CPU and GPU, and the driver moves each page to whoever touches it. A GPU with which
    /// the CPU cannot share it while a kernel runs refuses it. ginlab's managed allocations are small (a ring, a few words):
    /// nothing is prefetched, and no advice is given. It is not registered with NICs.
    Managed,
    /// A memory file, which other processes of this machine map: where modelled cards of other ranks write. Not pinned, and a
    /// GPU does not reach it.
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
    /// Opens the device for the `index`-th rank of this host; several ranks share a GPU when there are fewer. The second
    /// value says why an automatic choice fell on the emulated device. The driver compiles a module of kernels when one of them is
    /// first wanted.
    ///
    /// # Errors
    /// When a GPU was asked for and there is none.
    pub fn open(choice: Choice, index: usize) -> Result<(Device, Option<String>), DeviceError> {
        if choice == Choice::Emulated {
            return Ok((Device::Emulated, None));
        }
        match gpu::Gpu::open(index) {
            Ok(gpu) => Ok((Device::Gpu(Arc::new(gpu)), None)),
            Err(DeviceError::Missing(why)) if choice == Choice::Auto => Ok((Device::Emulated, Some(why))),
            Err(error) => Err(error),
        }
    }

    fn gpu(&self) -> Option<&gpu::Gpu> {
        match self {
            Device::Emulated => None,
            Device::Gpu(gpu) => Some(gpu),
        }
    }

    /// Lets the calling thread use the device through libraries that take the thread's current CUDA context.
    pub fn bind(&self) -> Result<(), DeviceError> {
        self.gpu().map_or(Ok(()), gpu::Gpu::bind)
    }

    /// For result rows: `gpu:NVIDIA H200` or `emulated`.
    pub fn name(&self) -> String {
        self.gpu().map_or("emulated".into(), gpu::Gpu::device_name)
    }

    /// Threads that issue together.
    pub fn warp_size(&self) -> u32 {
        self.gpu().map_or(cuda_std::warp::SIZE, |_| 32)
    }

    /// CUDA ordinal, for registering device memory.
    pub fn cuda_ordinal(&self) -> Option<i32> {
        self.gpu().map(|gpu| gpu.context.ordinal() as i32)
    }

    /// PCI address of the GPU as sysfs spells it.
    pub fn pci_address(&self) -> Option<String> {
        self.gpu().and_then(gpu::Gpu::pci_address)
    }

    /// Allocates zeroed memory.
    ///
    /// # Errors
    /// When there is not enough.
    pub fn allocate(&self, place: Place, bytes: usize) -> Result<Buffer, DeviceError> {
        let length = NonZeroUsize::new(bytes).unwrap_or(NonZeroUsize::MIN);
        let bytes = length.get();
        if place == Place::File {
            let refused =
                |error| DeviceError::Refused(format!("{bytes} bytes in a memory file are not to be had: {error}"));
            return self.file(length).map_err(refused);
        }
        let address = match self {
            Device::Emulated => emulated::allocate(bytes)?,
            Device::Gpu(gpu) => gpu.allocate(place, bytes)?,
        };
        Ok(Buffer { device: self.clone(), place, address, bytes, file: None, pinned: false, lent: false })
    }

    /// Memory in a file, which rails of modelled cards find by its address.
    fn file(&self, length: NonZeroUsize) -> io::Result<Buffer> {
        let file = memory_file::share(MemoryFile::create(length)?);
        let (device, address, bytes) = (self.clone(), file.address(), length.get());
        Ok(Buffer { device, place: Place::File, address, bytes, file: Some(file), pinned: false, lent: false })
    }

    /// Host memory that other processes of this machine map and that kernels of this device reach: [`Place::File`], pinned.
    ///
    /// # Errors
    /// When there is not enough, or the driver does not take it.
    pub fn pinned_shared(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        let mut buffer = self.allocate(Place::File, bytes)?;
        if let Device::Gpu(gpu) = self {
            gpu.pin(buffer.address, buffer.bytes)?;
            buffer.pinned = true;
        }
        Ok(buffer)
    }

    /// Lets kernels of this device reach host memory that somebody else has allocated, under its own address: whole pages, each once. `is_card`:
    /// it is a window of a card (registers).
    ///
    /// # Safety
    /// The memory stays in place until what is returned is dropped, which is behind the launches that use it.
    ///
    /// # Errors
    /// What the driver says: a card's window needs `PeerMappingOverride=1` of the NVIDIA module.
    pub unsafe fn reach(&self, start: *mut u8, bytes: usize, is_card: bool) -> Result<Reached, DeviceError> {
        if let Device::Gpu(gpu) = self {
            gpu.pin_as(start as u64, bytes, is_card)?;
        }
        Ok(Reached { device: self.clone(), address: start as u64 })
    }

    /// Refuses a grid that this device cannot run, before anything is launched.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] with what is allowed.
    pub fn check_grid(&self, grid: u32, block: u32) -> Result<(), DeviceError> {
        let emulated = (i32::MAX as u32, cuda_std::emulation::MAX_BLOCK);
        let (most_blocks, most_threads) = self.gpu().map_or(emulated, gpu::Gpu::grid_limits);
        if grid == 0 || block == 0 || grid > most_blocks || block > most_threads {
            return Err(DeviceError::Refused(format!(
                "grid {grid} x {block} refused by {}: 1 to {most_blocks} blocks of 1 to {most_threads} threads",
                self.name()
            )));
        }
        Ok(())
    }

    /// The GPU's UUID as 32 hexadecimal digits, or that of the part of it that this process sees (MIG): two processes of a machine
    /// with the same one share a GPU. `None` for the emulated device.
    pub fn uuid(&self) -> Option<String> {
        self.gpu().and_then(gpu::Gpu::uuid)
    }

    /// Whether an MPS server runs this process's kernels, as the driver says it. `None` for the emulated device, and from drivers
    /// before CUDA 12.3.
    pub fn is_served_by_mps(&self) -> Option<bool> {
        self.gpu().and_then(gpu::Gpu::is_served_by_mps)
    }

    /// Says how many PEs of a job run kernels on this GPU, this process's included, or on the one that has most of them: from now on
    /// [`resident_blocks`](Device::resident_blocks) is one PE's equal share. The emulated device is each process's own.
    pub fn share_among(&self, pes: u32) {
        if let Device::Gpu(gpu) = self {
            gpu.sharers.store(pes.max(1), Ordering::Relaxed);
        }
    }

    /// See [`share_among`](Device::share_among); 1 where nobody has said so.
    pub fn sharers(&self) -> u32 {
        self.gpu().map_or(1, gpu::Gpu::sharers)
    }

    /// Most blocks of this kernel and so many threads that are on the device at once: as many as a kernel whose blocks wait for one
    /// another may have. Where several PEs share the GPU, this PE's share: their kernels wait for each other, and all blocks of all of them
    /// must be there.
    ///
    /// # Errors
    /// The driver's; as [`function`](Device::function).
    pub fn resident_blocks<A>(&self, kernel: &Kernel<A>, block: u32) -> Result<u32, DeviceError> {
        match self {
            Device::Emulated => Ok(emulated_blocks(block)),
            Device::Gpu(gpu) => {
                Ok(share_of(gpu.resident_blocks(gpu.function(kernel, block)?, block, 0)?, self.sharers()))
            }
        }
    }

    /// Multiprocessors of a GPU; the emulated device has one.
    ///
    /// # Errors
    /// The driver's.
    pub fn multiprocessors(&self) -> Result<u32, DeviceError> {
        self.gpu().map_or(Ok(1), gpu::Gpu::multiprocessors)
    }

    /// Refuses a grid of a kernel whose blocks wait for one another when the device does not hold them all; any grid of another
    /// kernel is good here.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] with what is allowed; as [`resident_blocks`](Device::resident_blocks).
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

    /// Starts a grid and returns at once.
    ///
    /// # Safety
    /// The kernel's own contract: the pointers in `args` stay valid until the launch is finished or dropped.
    ///
    /// # Errors
    /// When the device refuses the launch.
    pub unsafe fn launch<A>(&self, kernel: &Kernel<A>, grid: u32, block: u32, args: A) -> Result<Launch, DeviceError>
    where
        A: Copy + Send + Sync + 'static,
    {
        self.check_grid(grid, block)?;
        self.check_resident(kernel, grid, block)?;
        match self {
            // SAFETY: the caller's contract.
            Device::Emulated => unsafe { emulated::launch(kernel, grid, block, args) }.map(Launch::Emulated),
            // SAFETY: the caller's contract.
            Device::Gpu(gpu) => unsafe { gpu::launch(gpu, kernel, grid, block, args) }.map(Launch::Gpu),
        }
    }
}

/// Host memory of somebody else that kernels of a device reach; see [`Device::reach`].
#[derive(Debug)]
pub struct Reached {
    device: Device,
    address: u64,
}

impl Drop for Reached {
    fn drop(&mut self) {
        if let Device::Gpu(gpu) = &self.device {
            gpu.unpin(self.address);
        }
    }
}

/// A running grid. Dropping it waits for its end; every wait inside a kernel is bounded, so that ends.
#[derive(Debug)]
pub enum Launch {
    /// Threads.
    Emulated(emulated::EmulatedLaunch),
    /// An event behind the kernel.
    Gpu(gpu::GpuLaunch),
}

impl Launch {
    /// Whether the grid has ended.
    ///
    /// # Errors
    /// When it ended by an error of the device.
    pub fn is_done(&mut self) -> Result<bool, DeviceError> {
        match self {
            Launch::Emulated(launch) => launch.is_done(),
            Launch::Gpu(launch) => launch.is_done(),
        }
    }

    /// Waits for the end, calling `watch` every few milliseconds; an error from it is returned after the grid has ended, for which
    /// `watch` must have seen to (by ending the proxy). A grid that does not end then leaves nothing that could be done in order: after
    /// [`Launch::ENDING`] a line says so and the process ends, with code 124.
    ///
    /// # Errors
    /// The device's, or the first one from `watch`.
    pub fn wait<E: From<DeviceError>>(self, watch: impl FnMut() -> Result<(), E>) -> Result<(), E> {
        self.wait_ending(Launch::ENDING, watch)
    }

    /// How long a grid may go on after it was asked to end: longer than its own waits do.
    pub const ENDING: Duration = wait::ENDING;

    /// As [`wait`](Launch::wait), with another limit.
    ///
    /// # Errors
    /// As [`wait`](Launch::wait).
    pub fn wait_ending<E: From<DeviceError>>(
        mut self,
        ending: Duration,
        watch: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        wait_for(ending, || self.is_done(), watch)
    }
}

/// A PE's equal share of the blocks that a GPU has at once.
fn share_of(blocks: u32, sharers: u32) -> u32 {
    blocks / sharers.max(1)
}

/// Why a grid that waits is not launched.
fn not_resident((device, sharers): (&str, u32), kernel: &str, (grid, block): (u32, u32), most: u32) -> DeviceError {
    let whose = if sharers > 1 { format!(" for each of {sharers} PEs of a GPU") } else { String::new() };
    DeviceError::Refused(format!(
        "grid {grid} x {block} refused by {device}: the blocks of {kernel} wait for one another, and at most {most} of {block} threads \
         are on the device at once{whose}"
    ))
}

/// Blocks of so many threads that the emulated device has at once.
fn emulated_blocks(block: u32) -> u32 {
    (cuda_std::emulation::RESIDENT_THREADS / u64::from(block.max(1))) as u32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    unsafe fn nothing(_: u32) {}

    #[test]
    fn a_resident_grid_larger_than_the_device_is_refused_in_one_line() {
        const WAITS: Kernel<u32> = Kernel::new("waits", nothing).resident();
        assert_eq!(Device::Emulated.resident_blocks(&WAITS, 1024), Ok(132));
        assert_eq!(Device::Emulated.check_resident(&WAITS, 132, 1024), Ok(()));
        // SAFETY: the kernel takes no pointers.
        let refused = unsafe { Device::Emulated.launch(&WAITS, 133, 1024, 0) }.unwrap_err().to_string();
        assert!(refused.contains("of waits wait for one another, and at most 132 of 1024 threads"), "{refused}");
        assert_eq!(Device::Emulated.check_resident(&Kernel::new("goes", nothing), 1 << 20, 1024), Ok(()));
    }

    #[test]
    fn blocks_of_all_pes_of_a_gpu_fit_together_and_a_refusal_names_the_share() {
        for blocks in [0, 1, 7, 132, 264, 2112] {
            for sharers in 1..=48 {
                let share = share_of(blocks, sharers);
                assert!(share * sharers <= blocks && (share + 1) * sharers > blocks, "{blocks} {sharers}");
            }
        }
        assert_eq!(share_of(132, 0), 132);
        let text = not_resident(("gpu:G", 4), "k", (34, 512), share_of(132, 4)).to_string();
        assert!(text.ends_with("at most 33 of 512 threads are on the device at once for each of 4 PEs of a GPU"));
        assert!(!text.contains('\n'), "{text}");
        let alone = not_resident(("gpu:G", 1), "k", (133, 512), 132).to_string();
        assert!(alone.ends_with("at most 132 of 512 threads are on the device at once"), "{alone}");
        assert_eq!(Device::Emulated.sharers(), 1);
    }
}
