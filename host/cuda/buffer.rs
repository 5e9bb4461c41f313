//! Memory of a device: where it is, copies in and out, and when it is freed.

use super::{Device, DeviceError, DmaBuf, Place, Plain, dma_buf, emulated};
use ginlab_base::memory_file::MemoryFile;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See [`keep_buffers`].
pub(super) static KEEP: AtomicBool = AtomicBool::new(false);

/// From now on no [`Buffer`] and no [`MappedBuffer`](super::MappedBuffer) of this process is freed. For a proxy thread that hangs in its provider and had to be left
/// behind: it, or its NIC, may yet write to any of them.
pub fn keep_buffers() {
    KEEP.store(true, Ordering::Release);
}

/// Ends that for buffers that are dropped from now on; whether it was so. For a process that runs one program behind the other: those of the program
/// before have all been dropped, and stay; who was left behind knows no others.
pub fn free_buffers_again() -> bool {
    KEEP.swap(false, Ordering::AcqRel)
}

/// Memory of a device; freed when dropped.
#[derive(Debug)]
pub struct Buffer {
    pub(super) device: Device,
    pub(super) place: Place,
    pub(super) address: u64,
    pub(super) bytes: usize,
    /// Of [`Place::File`].
    pub(super) file: Option<Arc<MemoryFile>>,
    /// Shared memory that the driver has pinned.
    pub(super) pinned: bool,
    /// See [`Buffer::lend`].
    pub(super) lent: bool,
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

    /// Exports memory of a CUDA device as a dma-buf, by which a card can register it.
    ///
    /// # Errors
    /// It is no such memory, or the driver exports none.
    pub fn dma_buf(&self) -> Result<DmaBuf, DeviceError> {
        match &self.device {
            Device::Gpu(gpu) if self.place == Place::Device => dma_buf::export(&gpu.context, self.address, self.bytes),
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn buffers_are_kept_until_the_next_program() {
        let allocate = || Device::Emulated.allocate(Place::Device, 4 << 20).unwrap();
        assert!(!free_buffers_again());
        keep_buffers();
        let buffer = allocate();
        buffer.write(0, &[7u8]).unwrap();
        let address = buffer.address() as *const u8;
        drop(buffer);
        // SAFETY: kept.
        assert_eq!(unsafe { address.read_volatile() }, 7);
        assert!(free_buffers_again() && !free_buffers_again());
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
