//! GPU memory that the CPU reads and writes in place, by GDRCopy.

use super::buffer::KEEP;
use super::gdr::{self, Api, Connection, GPU_PAGE, Mapping};
use super::{Buffer, Device, DeviceError, Place};
use std::sync::atomic::Ordering;

/// Memory of the GPU that the CPU reaches too, through the GPU's PCIe window; each has an address of its own for it.
/// Released when dropped, and like a [`Buffer`] not before a grid or a proxy that uses it has ended.
///
/// What differs from memory of the host, for the CPU:
/// - Stores are combined on their way (x86: write-combining): they may reach the GPU late and **in any order**, a release
///   store included, until [`flush_stores`]. An aligned word of 8 bytes arrives whole.
/// - Loads are not cached: each is a round trip over PCIe.
/// - GDRCopy does not promise that a kernel which already runs sees stores in order; it must load with system scope, and a
///   protocol may rely on single words alone.
#[derive(Debug)]
pub struct MappedBuffer {
    device_address: u64,
    host_address: u64,
    bytes: usize,
    /// Taken only when it is dropped.
    mapping: Option<Mapping<Buffer>>,
}

impl Device {
    /// Allocates zeroed GPU memory that the CPU reaches in place. It takes whole pages of 64 KiB of the GPU's BAR1.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] without GDRCopy and on the emulated device; otherwise the failed call.
    pub fn mapped(&self, bytes: usize) -> Result<MappedBuffer, DeviceError> {
        let Device::Gpu(gpu) = self else {
            return Err(DeviceError::Missing("GDRCopy: the emulated device has no GPU memory to map".into()));
        };
        // First, so that a machine without GDRCopy allocates nothing.
        let connection = Connection::open(Api::load()?)?;
        let (pinned, allocated) = gdr::pinned_and_allocated(bytes)
            .ok_or_else(|| DeviceError::Refused(format!("{bytes} bytes are more than a GPU can address")))?;
        let memory = self.allocate(Place::Device, allocated)?;
        gpu.synchronize_copies_of(memory.address())?;
        let device_address = memory.address().next_multiple_of(GPU_PAGE as u64);
        let mapping = Mapping::new(connection, memory, device_address, pinned)?;
        let host_address = mapping.host_address();
        Ok(MappedBuffer { device_address, host_address, bytes, mapping: Some(mapping) })
    }
}

impl MappedBuffer {
    /// First byte, as kernels address it; a multiple of 64 KiB.
    pub fn device_address(&self) -> u64 {
        self.device_address
    }

    /// First byte, as the CPU addresses it; a multiple of the CPU's page.
    pub fn host_address(&self) -> u64 {
        self.host_address
    }

    /// Length in bytes, as it was asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Sends this thread's earlier stores to mapped GPU memory on their way, ahead of its later ones.
#[inline]
pub fn flush_stores() {
    // A fence of the language's memory model knows nothing of write-combining.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every CPU of this architecture has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

impl Drop for MappedBuffer {
    fn drop(&mut self) {
        // See `keep_buffers`: unmapping would fault whoever was left behind.
        if KEEP.load(Ordering::Acquire) {
            std::mem::forget(self.mapping.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulated_device_has_nothing_to_map() {
        let refused = Device::Emulated.mapped(4096);
        assert!(matches!(&refused, Err(DeviceError::Missing(why)) if why.starts_with("GDRCopy: the emulated device")));
    }

    #[test]
    fn a_proxy_thread_may_use_it() {
        fn shared<T: Send + Sync>() {}
        shared::<MappedBuffer>();
    }
}
