//! GPU memory that the CPU accesses directly, through GDRCopy.

use super::buffer::KEEP;
use super::gdr::{self, Api, Connection, GPU_PAGE, Mapping};
use super::{Buffer, Device, DeviceError, MemoryLocation};
use std::sync::atomic::Ordering;

/// GPU memory that the CPU can also access, through the GPU's PCIe window, at a separate address. Released on drop. As
/// with a [`Buffer`], grids and proxies that use it must have ended.
///
/// For the CPU, it differs from host memory:
/// - Stores are write-combined (on x86). They may reach the GPU late and **in any order**, including release stores,
///   until [`flush_stores`]. An aligned 8-byte word arrives as a whole.
/// - Loads are not cached: each is a round trip over PCIe.
/// - GDRCopy does not guarantee that a running kernel observes stores in order. The kernel must load with system scope,
///   and a protocol may rely only on individual words.
#[derive(Debug)]
pub struct MappedBuffer {
    device_address: u64,
    host_address: u64,
    bytes: usize,
    /// `None` only during drop.
    mapping: Option<Mapping<Buffer>>,
}

impl Device {
    /// Allocates zeroed GPU memory that the CPU can access directly. It occupies whole pages of 64 KiB of the GPU's
    /// BAR1.
    ///
    /// # Errors
    /// Returns [`DeviceError::Missing`] without GDRCopy and on the emulated device, and otherwise the error of the
    /// failed call.
    pub fn mapped(&self, bytes: usize) -> Result<MappedBuffer, DeviceError> {
        let Device::Gpu(gpu) = self else {
            return Err(DeviceError::Missing("GDRCopy: the emulated device has no GPU memory to map".into()));
        };
        // Opens the connection first, so that a machine without GDRCopy allocates nothing.
        let connection = Connection::open(Api::load()?)?;
        let (pinned, allocated) = gdr::pinned_and_allocated(bytes).ok_or_else(|| {
            DeviceError::Refused(format!("cannot allocate {bytes} bytes: more than a GPU can address"))
        })?;
        let memory = self.allocate(MemoryLocation::Device, allocated)?;
        gpu.synchronize_copies_of(memory.address())?;
        let device_address = memory.address().next_multiple_of(GPU_PAGE as u64);
        let mapping = Mapping::new(connection, memory, device_address, pinned)?;
        let host_address = mapping.host_address();
        Ok(MappedBuffer { device_address, host_address, bytes, mapping: Some(mapping) })
    }
}

impl MappedBuffer {
    /// Returns the address of the first byte for kernels, a multiple of 64 KiB.
    pub fn device_address(&self) -> u64 {
        self.device_address
    }

    /// Returns the address of the first byte for the CPU, a multiple of the CPU's page size.
    pub fn host_address(&self) -> u64 {
        self.host_address
    }

    /// Returns the requested length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Pushes this thread's preceding stores to mapped GPU memory out of the write-combining buffers, before its subsequent
/// stores.
#[inline]
pub fn flush_stores() {
    // A fence of the Rust memory model does not affect write-combining stores.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every CPU of this architecture has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes neither registers nor memory.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

impl Drop for MappedBuffer {
    fn drop(&mut self) {
        // See `keep_buffers`: unmapping the memory would cause a fault in an abandoned thread.
        if KEEP.load(Ordering::Acquire) {
            std::mem::forget(self.mapping.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulated_device_has_no_memory_to_map() {
        let refused = Device::Emulated.mapped(4096);
        assert!(matches!(&refused, Err(DeviceError::Missing(why)) if why.starts_with("GDRCopy: the emulated device")));
    }

    #[test]
    fn mapping_is_usable_by_proxy_thread() {
        fn shared<T: Send + Sync>() {}
        shared::<MappedBuffer>();
    }
}
