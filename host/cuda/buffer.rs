//! Memory of a device: location, copies to and from it, and freeing.

use super::{Device, DeviceError, DmaBuf, MemoryLocation, Plain, dma_buf, emulated};
use ginlab_base::memory_file::MemoryFile;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether buffers are never freed; see [`keep_buffers`].
pub(super) static KEEP: AtomicBool = AtomicBool::new(false);

/// Keeps every [`Buffer`] and [`MappedBuffer`](super::MappedBuffer) of this process allocated, even after a drop.
/// Called when a proxy thread hangs in its provider and is abandoned, because the thread or its NIC might still write
/// to any buffer.
pub fn keep_buffers() {
    KEEP.store(true, Ordering::Release);
}

/// Ends the effect of [`keep_buffers`] for buffers that are dropped later. Returns whether it was in effect. For a
/// process that runs several programs one after another: the dropped buffers of previous programs stay allocated, and
/// an abandoned thread refers only to those.
pub fn free_buffers_again() -> bool {
    KEEP.swap(false, Ordering::AcqRel)
}

/// Memory of a device. Freed on drop.
#[derive(Debug)]
pub struct Buffer {
    pub(super) device: Device,
    pub(super) place: MemoryLocation,
    pub(super) address: u64,
    pub(super) bytes: usize,
    /// File of the memory, if it is [`MemoryLocation::File`] memory.
    pub(super) file: Option<Arc<MemoryFile>>,
    /// Whether the driver has pinned this shared memory.
    pub(super) pinned: bool,
    /// Whether other processes may have the memory open; see [`Buffer::lend`].
    pub(super) lent: bool,
}

// SAFETY: the memory is plain bytes at an address that is the same for every thread. It is accessed through unsafe
// pointers, or by copies whose callers ensure that there are no concurrent writes.
unsafe impl Send for Buffer {}
// SAFETY: all accesses are through unsafe pointers or copies without concurrent writes, as for `Send`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Returns the address of the first byte for device, CPU (host and managed memory only) and NIC.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns a pointer to the first byte. The CPU may dereference it only for host and managed memory, or on the
    /// emulated device.
    pub fn pointer<T>(&self) -> *mut T {
        self.address as *mut T
    }

    /// Returns the ordinal of the CUDA device whose memory this is. `None` for host memory, managed memory and the
    /// emulated device.
    pub fn cuda_device(&self) -> Option<i32> {
        if self.place == MemoryLocation::Device { self.device.cuda_ordinal() } else { None }
    }

    /// Exports memory of a CUDA device as a dma-buf, so that a NIC can register it.
    ///
    /// # Errors
    /// Returns an error if this is not memory of a CUDA device, or the driver does not support the export.
    pub fn dma_buf(&self) -> Result<DmaBuf, DeviceError> {
        match &self.device {
            Device::Gpu(gpu) if self.place == MemoryLocation::Device => {
                dma_buf::export(&gpu.context, self.address, self.bytes)
            }
            _ => Err(DeviceError::Refused("only memory of a CUDA device is exported as a dma-buf".into())),
        }
    }

    /// Returns whether the CPU can access the memory directly.
    pub fn on_host(&self) -> bool {
        self.place != MemoryLocation::Device || matches!(self.device, Device::Emulated)
    }

    /// Copies `values` into the memory at `offset` bytes, for every kind of memory.
    ///
    /// # Errors
    /// Returns an error if the range is out of bounds or the driver fails.
    pub fn write<T: Copy>(&self, offset: usize, values: &[T]) -> Result<(), DeviceError> {
        self.check_range(offset, size_of_val(values))?;
        match &self.device {
            Device::Gpu(gpu) if self.place == MemoryLocation::Device => {
                gpu.copy_in(self.address + offset as u64, values)
            }
            _ => {
                let target = (self.address + offset as u64) as *mut u8;
                // SAFETY: the range was checked. Callers must not write while a grid or NIC uses the bytes.
                unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast(), target, size_of_val(values)) };
                Ok(())
            }
        }
    }

    /// Copies bytes at `offset` of the memory to `values`, for every kind of memory.
    ///
    /// # Errors
    /// Returns an error if the range is out of bounds or the driver fails.
    pub fn read<T: Plain>(&self, offset: usize, values: &mut [T]) -> Result<(), DeviceError> {
        self.check_range(offset, size_of_val(values))?;
        match &self.device {
            Device::Gpu(gpu) if self.place == MemoryLocation::Device => {
                gpu.copy_out(self.address + offset as u64, values)
            }
            _ => {
                let source = (self.address + offset as u64) as *const u8;
                // SAFETY: the range was checked. Callers must not read while a grid or NIC writes the bytes.
                unsafe { std::ptr::copy_nonoverlapping(source, values.as_mut_ptr().cast(), size_of_val(values)) };
                Ok(())
            }
        }
    }

    /// Returns the memory as a slice, if the CPU can access it directly.
    ///
    /// # Safety
    /// No grid, NIC or other reference may use the memory while the slice exists.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn host_bytes(&self) -> Option<&mut [u8]> {
        // SAFETY: the allocation has this length and was initialized with zeros. The caller guarantees exclusive
        // access.
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

    /// Sets whether other processes may have the memory open. If so, dropping it leaves the memory to the driver, which
    /// frees it when the process exits. The reason is that freeing GPU memory that another process has open is
    /// undefined behaviour. A memory file is always closed on drop, since other processes keep their mappings.
    pub fn lend(&mut self, lent: bool) {
        self.lent = lent;
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let lent = self.lent && self.place != MemoryLocation::File;
        if lent || KEEP.load(Ordering::Acquire) {
            // The GPU's context frees its memory, so the context is also kept.
            std::mem::forget(self.device.clone());
            std::mem::forget(self.file.clone());
            return;
        }
        match &self.device {
            Device::Gpu(gpu) if self.pinned => gpu.unpin(self.address),
            // Dropping the file removes its mapping.
            _ if self.place == MemoryLocation::File => {}
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
    fn buffers_are_kept_until_next_program() {
        let allocate = || Device::Emulated.allocate(MemoryLocation::Device, 4 << 20).unwrap();
        assert!(!free_buffers_again());
        keep_buffers();
        let buffer = allocate();
        buffer.write(0, &[7u8]).unwrap();
        let address = buffer.address() as *const u8;
        drop(buffer);
        // SAFETY: the memory was kept when the buffer was dropped.
        assert_eq!(unsafe { address.read_volatile() }, 7);
        assert!(free_buffers_again() && !free_buffers_again());
    }

    #[test]
    fn lent_memory_outlives_its_buffer() {
        let mut buffer = Device::Emulated.allocate(MemoryLocation::Device, 4 << 20).unwrap();
        buffer.write(4096, &[7u64]).unwrap();
        buffer.lend(true);
        let there = buffer.address() + 4096;
        drop(buffer);
        // SAFETY: the memory was lent when its buffer was dropped, so it still exists, and no other code writes it.
        assert_eq!(unsafe { (there as *const u64).read() }, 7);
    }

    #[test]
    fn emulated_memory_is_zeroed_host_memory() {
        for place in [MemoryLocation::Device, MemoryLocation::Host, MemoryLocation::Managed, MemoryLocation::File] {
            let buffer = Device::Emulated.allocate(place, 4096).unwrap();
            assert!(buffer.on_host(), "{place:?}");
            let mut words = [1u64; 512];
            buffer.read(0, &mut words).unwrap();
            assert_eq!(words, [0; 512], "{place:?}");

            buffer.write(8, &[7u64, 9]).unwrap();
            // SAFETY: no other code has access to the buffer.
            let bytes = unsafe { buffer.host_bytes() }.unwrap();
            assert_eq!((bytes[8], bytes[16], bytes[24]), (7, 9, 0), "{place:?}");
            assert!(buffer.read(4096, &mut words[..1]).is_err(), "{place:?}");
        }
    }
}
