//! Devices that run kernels: the GPU through the CUDA driver, or its emulation on the CPU.
//!
//! Both take the same [`Kernel`] with the same arguments, and both give memory of these places: [`Place::Device`],
//! [`Place::Host`] (pinned, readable and writable by device, CPU and NIC under one address) and [`Place::Managed`]. On the
//! emulated device all three are plain host memory. [`Place::File`] is a memory file of the CPU's, which other processes map. A
//! [`MappedBuffer`] is GPU memory that the CPU reaches too, where GDRCopy is installed.

mod card_writes;
mod emulated;
mod emulated_stream;
mod features;
mod gdr;
mod gpu;
mod gpu_module;
mod mapped;
mod peer;
mod ptx;
mod stream;

pub use card_writes::{CardWrites, Flush};
pub use features::{VisibleGpu, visible_gpus};
pub use gdr::gdrcopy_version;
pub use gpu::{Copies, CopyQueue, driver_version};
pub use gpu_module::{ForeignModule, Function};
pub use mapped::{MappedBuffer, flush_stores};
pub use peer::{OpenedMemory, PeerHandle};
pub use ptx::{for_capability, ptx, set_ptx};
pub use stream::{Event, Graph, Stream};

pub use cuda_std::{Kernel, Plain};

use ginlab_base::memory_file::{self, MemoryFile};
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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

    /// Says how many PEs of a job run kernels on this GPU, this process's included: from now on
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
    pub const ENDING: Duration = Duration::from_secs(60);

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

/// Asks `done` until it says so, calling `watch` every few milliseconds. An error from `watch`, which has asked the work to end by then, is
/// returned once it has; so long after it the process ends without the work.
///
/// # Errors
/// That of `done`, or the first one from `watch`.
pub fn wait_for<E: From<DeviceError>>(
    ending: Duration,
    mut done: impl FnMut() -> Result<bool, DeviceError>,
    mut watch: impl FnMut() -> Result<(), E>,
) -> Result<(), E> {
    let mut failed = None;
    let mut pause = Duration::from_micros(20);
    while !done()? {
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
        match &failed {
            None => failed = watch().err().map(|error| (error, Instant::now())),
            Some((_, since)) if since.elapsed() > ending => abandon(ending),
            Some(_) => {}
        }
    }
    failed.map_or(Ok(()), |(error, _)| Err(error))
}

/// Waits for the end of work whose memory may be freed next. What goes wrong with it has been told, or will be by the next call. Every wait in a
/// kernel is bounded, and so is this one, for kernels that are not as they should be.
fn wait_out(done: impl FnMut() -> Result<bool, DeviceError>) {
    let ended = || DeviceError::Refused("not wanted any more".into());
    let _ = wait_for(Launch::ENDING, done, || Err(ended()));
}

/// Freeing memory or leaving by `exit` would wait for the grid as well. When the process is gone the driver ends it.
fn abandon(ending: Duration) -> ! {
    eprintln!(
        "ginlab: the kernel has not ended {} after it was asked to: is there a barrier that some of its threads do not reach, or a loop \
         without a bound? The process ends without it",
        humantime::format_duration(ending)
    );
    // SAFETY: ends the process; nothing runs after it.
    unsafe { nix::libc::_exit(124) }
}

/// See [`keep_buffers`].
static KEEP: AtomicBool = AtomicBool::new(false);

/// From now on no [`Buffer`] and no [`MappedBuffer`] of this process is freed. For a proxy thread that hangs in its provider and had to be left
/// behind: it, or its NIC, may yet write to any of them.
pub fn keep_buffers() {
    KEEP.store(true, Ordering::Release);
}

/// Memory of a device; freed when dropped.
#[derive(Debug)]
pub struct Buffer {
    device: Device,
    place: Place,
    address: u64,
    bytes: usize,
    /// Of [`Place::File`].
    file: Option<Arc<MemoryFile>>,
    /// Shared memory that the driver has pinned.
    pinned: bool,
    /// See [`Buffer::lend`].
    lent: bool,
}

// SAFETY: the memory is plain bytes behind an address that is the same for every thread; access is by unsafe pointers or
// by copies whose callers see to it that nobody else writes.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// First byte, as device, CPU (host and managed memory only) and NIC address it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// First byte as a pointer. Only host and managed memory (or any memory of the emulated device) may be dereferenced by
    /// the CPU.
    pub fn pointer<T>(&self) -> *mut T {
        self.address as *mut T
    }

    /// The CUDA device that it is memory of; `None` for memory of the host, managed memory and the emulated device.
    pub fn cuda_device(&self) -> Option<i32> {
        if self.place == Place::Device { self.device.cuda_ordinal() } else { None }
    }

    /// Exports memory of a CUDA device as a dma-buf, by which a card can register it. Address and length are multiples of a page.
    ///
    /// # Errors
    /// It is no such memory, or the driver exports none.
    pub fn dma_buf(&self) -> Result<std::os::fd::OwnedFd, DeviceError> {
        match &self.device {
            Device::Gpu(gpu) if self.place == Place::Device => gpu.dma_buf(self.address, self.bytes),
            _ => Err(DeviceError::Refused("only memory of a CUDA device is exported as a dma-buf".into())),
        }
    }

    /// Whether the CPU can read and write it in place.
    pub fn on_host(&self) -> bool {
        self.place != Place::Device || matches!(self.device, Device::Emulated)
    }

    /// Copies values in, wherever the memory is; the offset is in bytes.
    ///
    /// # Errors
    /// When the range is outside, or the driver fails.
    pub fn write<T: Copy>(&self, offset: usize, values: &[T]) -> Result<(), DeviceError> {
        self.check_range(offset, size_of_val(values))?;
        match &self.device {
            Device::Gpu(gpu) if self.place == Place::Device => gpu.copy_in(self.address + offset as u64, values),
            _ => {
                let target = (self.address + offset as u64) as *mut u8;
                // SAFETY: the range was checked; callers do not write while a grid or NIC uses the bytes.
                unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast(), target, size_of_val(values)) };
                Ok(())
            }
        }
    }

    /// Copies values out, wherever the memory is; the offset is in bytes.
    ///
    /// # Errors
    /// When the range is outside, or the driver fails.
    pub fn read<T: Plain>(&self, offset: usize, values: &mut [T]) -> Result<(), DeviceError> {
        self.check_range(offset, size_of_val(values))?;
        match &self.device {
            Device::Gpu(gpu) if self.place == Place::Device => gpu.copy_out(self.address + offset as u64, values),
            _ => {
                let source = (self.address + offset as u64) as *const u8;
                // SAFETY: the range was checked; callers do not read while a grid or NIC writes the bytes.
                unsafe { std::ptr::copy_nonoverlapping(source, values.as_mut_ptr().cast(), size_of_val(values)) };
                Ok(())
            }
        }
    }

    /// The bytes in place, where the CPU can see them.
    ///
    /// # Safety
    /// No grid, NIC or other reference uses the memory meanwhile.
    #[allow(clippy::mut_from_ref)] // exclusivity is the caller's contract: the memory is shared with devices by nature
    pub unsafe fn host_bytes(&self) -> Option<&mut [u8]> {
        // SAFETY: the allocation is this long and initialised (zeroed); exclusivity is the caller's contract.
        self.on_host().then(|| unsafe { std::slice::from_raw_parts_mut(self.pointer::<u8>(), self.bytes) })
    }

    fn check_range(&self, offset: usize, bytes: usize) -> Result<(), DeviceError> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(DeviceError::Refused(format!(
                "{bytes} bytes at {offset} lie outside a buffer of {}",
                self.bytes
            )));
        }
        Ok(())
    }
}

impl Buffer {
    /// While this is set other processes may have the memory open: dropping it then leaves it to the driver, which frees it when the
    /// process ends. Freeing a GPU's memory that another process has open is undefined. (A memory file stays with whoever has it mapped,
    /// and is closed here as ever.)
    pub fn lend(&mut self, lent: bool) {
        self.lent = lent;
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let lent = self.lent && self.place != Place::File;
        if lent || KEEP.load(Ordering::Acquire) {
            // The GPU's context takes its memory with it: keep that too.
            std::mem::forget(self.device.clone());
            std::mem::forget(self.file.clone());
            return;
        }
        match &self.device {
            Device::Gpu(gpu) if self.pinned => gpu.unpin(self.address),
            // Unmapped by its file.
            _ if self.place == Place::File => {}
            Device::Emulated => emulated::free(self.address, self.bytes),
            Device::Gpu(gpu) => gpu.free(self.place, self.address),
        }
    }
}

/// A PE's equal share of the blocks that a GPU has at once.
fn share_of(blocks: u32, sharers: u32) -> u32 {
    blocks / sharers.max(1)
}

/// Why a grid that waits is not launched.
fn not_resident((device, sharers): (&str, u32), kernel: &str, (grid, block): (u32, u32), most: u32) -> DeviceError {
    let whose = if sharers > 1 { format!(" for each of the {sharers} PEs that share it") } else { String::new() };
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
        assert!(
            text.ends_with("at most 33 of 512 threads are on the device at once for each of the 4 PEs that share it")
        );
        assert!(!text.contains('\n'), "{text}");
        let alone = not_resident(("gpu:G", 1), "k", (133, 512), 132).to_string();
        assert!(alone.ends_with("at most 132 of 512 threads are on the device at once"), "{alone}");
        assert_eq!(Device::Emulated.sharers(), 1);
    }

    #[test]
    fn lent_memory_outlives_its_buffer() {
        let mut buffer = Device::Emulated.allocate(Place::Device, 4 << 20).unwrap();
        buffer.write(4096, &[7u64]).unwrap();
        buffer.lend(true);
        let there = buffer.address() + 4096;
        drop(buffer);
        // SAFETY: it was lent when its buffer was dropped, so it is still there; nobody writes it.
        assert_eq!(unsafe { (there as *const u64).read() }, 7);
    }

    #[test]
    fn every_place_of_the_emulated_device_is_zeroed_host_memory() {
        for place in [Place::Device, Place::Host, Place::Managed, Place::File] {
            let buffer = Device::Emulated.allocate(place, 4096).unwrap();
            assert!(buffer.on_host(), "{place:?}");
            let mut words = [1u64; 512];
            buffer.read(0, &mut words).unwrap();
            assert_eq!(words, [0; 512], "{place:?}");

            buffer.write(8, &[7u64, 9]).unwrap();
            // SAFETY: nobody else knows of the buffer.
            let bytes = unsafe { buffer.host_bytes() }.unwrap();
            assert_eq!((bytes[8], bytes[16], bytes[24]), (7, 9, 0), "{place:?}");
            assert!(buffer.read(4096, &mut words[..1]).is_err(), "{place:?}");
        }
    }
}
