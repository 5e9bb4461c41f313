//! Host memory allocated by other libraries, made accessible to kernels of a device.

use super::{Device, DeviceError};

/// Kind of host memory that [`Device::reach`] maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// Memory that this process can write.
    Memory,
    /// Memory that this process can only read, such as the completion queue of a NIC's driver.
    ReadOnly,
    /// Registers of a NIC (a PCIe BAR).
    CardWindow,
}

impl Device {
    /// Maps whole pages of host memory that another library has allocated into this device, at the same address. A page
    /// can be mapped only once.
    ///
    /// # Safety
    /// The memory must not be unmapped or moved until the returned value is dropped. Launches that use it must end
    /// before that.
    ///
    /// # Errors
    /// Returns the driver's error; mapping a NIC's registers requires `PeerMappingOverride=1` of the NVIDIA module.
    /// Returns [`DeviceError::Refused`] if the device cannot map read-only memory.
    pub unsafe fn reach(&self, start: *mut u8, bytes: usize, kind: HostKind) -> Result<Reached, DeviceError> {
        if let Device::Gpu(gpu) = self {
            gpu.pin_as(start as u64, bytes, kind)?;
        }
        Ok(Reached { device: self.clone(), address: start as u64 })
    }
}

/// A mapping of host memory into a device; see [`Device::reach`].
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
