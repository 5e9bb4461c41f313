//! Memory of one rank that other ranks of the machine open: through CUDA IPC handles on GPUs, and through a memory file
//! between the processes of the emulated device.
//!
//! Opened memory must be closed before its owner frees it. The owner cannot ensure this, so a barrier is needed between
//! closing and freeing.

use super::driver::failed;
use super::{Buffer, Device, DeviceError, MemoryLocation};
use cudarc::driver::sys;
use ginlab_base::memory_file::{FileName, MemoryFile};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::num::NonZeroUsize;

/// Information that another rank needs to open a memory. Exchanged by the bootstrap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerHandle {
    /// A file descriptor of a process.
    File {
        /// Process ID of the owner.
        pid: u32,
        /// File descriptor in the owner's process.
        descriptor: i32,
        /// Number of the file in that process.
        number: u32,
        /// Length of the memory in bytes.
        bytes: u64,
    },
    /// A CUDA IPC handle.
    Cuda {
        /// The 64 bytes of the handle.
        handle: Vec<u8>,
        /// PCI address of the GPU, by which another process finds it independently of CUDA ordinals.
        gpu: String,
        /// Length of the memory in bytes.
        bytes: u64,
    },
}

/// Another rank's memory. Closed on drop.
#[derive(Debug)]
pub struct OpenedMemory {
    device: Device,
    address: u64,
    bytes: u64,
    /// `None` for GPU memory.
    _mapping: Option<MemoryFile>,
}

/// Granularity of peer memory. cuMemAlloc suballocates from blocks of this size, and an IPC handle shares the whole
/// block. An allocation of whole blocks therefore shares no other data.
const BLOCK: usize = 2 << 20;

fn length(bytes: u64) -> Result<NonZeroUsize, DeviceError> {
    usize::try_from(bytes.max(1))
        .ok()
        .and_then(|bytes| bytes.checked_next_multiple_of(BLOCK))
        .and_then(NonZeroUsize::new)
        .ok_or_else(|| {
            DeviceError::Refused(format!("cannot allocate {bytes} bytes: more than this machine can address"))
        })
}

impl Device {
    /// Allocates zeroed memory of this device that other processes of the machine can open by its
    /// [`handle`](Buffer::handle).
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub fn peer_memory(&self, bytes: u64) -> Result<Buffer, DeviceError> {
        let length = length(bytes)?;
        let refused = |error| DeviceError::Refused(format!("cannot allocate {bytes} bytes of shared memory: {error}"));
        let mut memory = match self {
            Device::Gpu(_) => self.allocate(MemoryLocation::Device, length.get())?,
            Device::Emulated => self.file(length).map_err(refused)?,
        };
        memory.bytes = bytes as usize;
        Ok(memory)
    }
}

impl Buffer {
    /// Returns the handle with which other ranks open this memory. The memory must come from [`Device::peer_memory`];
    /// with other GPU memory, they would also open adjacent allocations.
    ///
    /// # Errors
    /// Returns the driver's error if it cannot create a handle.
    pub fn handle(&self) -> Result<PeerHandle, DeviceError> {
        let bytes = self.bytes as u64;
        if let Some(file) = &self.file {
            let FileName { pid, descriptor, number } = file.name();
            return Ok(PeerHandle::File { pid, descriptor, number, bytes });
        }
        let Some(gpu) = self.device.gpu() else {
            return Err(DeviceError::Refused("no other process can open this memory".into()));
        };
        gpu.bind()?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the context is current, and the driver rejects an address that was not returned by cuMemAlloc.
        let status = unsafe { sys::cuIpcGetMemHandle(&mut handle, self.address) };
        status.result().map_err(failed("cuIpcGetMemHandle"))?;
        let handle = handle.reserved.map(|byte| byte as u8).to_vec();
        Ok(PeerHandle::Cuda { handle, gpu: gpu.pci_address().unwrap_or_default(), bytes })
    }
}

impl OpenedMemory {
    /// Opens another rank's memory, and enables peer access to its GPU if possible.
    ///
    /// # Errors
    /// Returns [`DeviceError::Missing`] with the reason if this device cannot access the memory, and another error if
    /// the handle is invalid.
    pub fn open(device: &Device, handle: &PeerHandle) -> Result<OpenedMemory, DeviceError> {
        match (device, handle) {
            (Device::Emulated, PeerHandle::File { pid, descriptor, number, bytes }) => {
                let refused =
                    |error: String| DeviceError::Missing(format!("cannot open the memory of process {pid}: {error}"));
                let name = FileName { pid: *pid, descriptor: *descriptor, number: *number };
                let mapping = MemoryFile::open(name).map_err(|error| refused(error.to_string()))?;
                if mapping.bytes() < *bytes {
                    return Err(refused(format!("it has {} bytes instead of {bytes}", mapping.bytes())));
                }
                let address = mapping.address();
                Ok(OpenedMemory { device: device.clone(), address, bytes: *bytes, _mapping: Some(mapping) })
            }
            (Device::Gpu(gpu), PeerHandle::Cuda { handle, gpu: theirs, bytes }) => {
                gpu.bind()?;
                reaches(gpu.context.cu_device(), theirs)?;
                let mut raw = sys::CUipcMemHandle { reserved: [0; 64] };
                raw.reserved.iter_mut().zip(handle).for_each(|(to, from)| *to = *from as _);
                let flags = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
                let mut address = 0;
                // SAFETY: the driver created the handle in another process of this machine, and the context is current.
                let status = unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, raw, flags) };
                status.result().map_err(failed(format!("cuIpcOpenMemHandle for memory of GPU {theirs}")))?;
                Ok(OpenedMemory { device: device.clone(), address, bytes: *bytes, _mapping: None })
            }
            _ => Err(DeviceError::Missing("the other rank's memory belongs to another kind of device".into())),
        }
    }

    /// Returns the address of the first byte for kernels and copies of this rank.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Device {
    /// Returns whether this GPU executes atomic operations natively on the memory of the GPU with PCI address `theirs`.
    /// True over NVLink and false over PCIe. `None` if the driver does not report it.
    pub fn peer_atomics(&self, theirs: &str) -> Option<bool> {
        let Device::Gpu(gpu) = self else { return None };
        gpu.bind().ok()?;
        let other = visible(theirs)?;
        if other == gpu.context.cu_device() {
            // For the same GPU, the driver reports an error for this query.
            return None;
        }
        let mut value = 0;
        let attribute = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        // SAFETY: the pointer refers to a local variable, and both devices exist in this process.
        let status = unsafe { sys::cuDeviceGetP2PAttribute(&mut value, attribute, gpu.context.cu_device(), other) };
        status.result().ok().map(|()| value != 0)
    }
}

/// Returns the GPU with this PCI address, if this process sees it.
fn visible(address: &str) -> Option<sys::CUdevice> {
    let text = CString::new(address).ok()?;
    let mut device = 0;
    // SAFETY: the pointer refers to a local variable, and the text is a C string.
    unsafe { sys::cuDeviceGetByPCIBusId(&mut device, text.as_ptr()) }.result().ok().map(|()| device)
}

/// Returns an error if kernels of GPU `own` cannot access the memory of GPU `theirs`.
fn reaches(own: sys::CUdevice, theirs: &str) -> Result<(), DeviceError> {
    let other = visible(theirs).ok_or_else(|| {
        DeviceError::Missing(format!(
            "GPU {theirs} is not visible to the other rank's process; check CUDA_VISIBLE_DEVICES"
        ))
    })?;
    let mut can = 0;
    // SAFETY: the pointer refers to a local variable, and both devices exist in this process.
    let status = unsafe { sys::cuDeviceCanAccessPeer(&mut can, own, other) };
    status.result().map_err(failed("cuDeviceCanAccessPeer"))?;
    if can == 0 && own != other {
        return Err(DeviceError::Missing(format!(
            "no peer access to GPU {theirs}: there is neither NVLink nor a PCIe path that the driver allows"
        )));
    }
    Ok(())
}

impl Drop for OpenedMemory {
    fn drop(&mut self) {
        if let Device::Gpu(gpu) = &self.device {
            let result = gpu.context.bind_to_thread().and_then(|()| {
                // SAFETY: the address was returned by cuIpcOpenMemHandle in this context, and work that used it has
                // ended.
                unsafe { sys::cuIpcCloseMemHandle(self.address) }.result()
            });
            gpu.context.record_err(result);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn opened_memory_is_owners_memory() {
        let owner = Device::Emulated.peer_memory(5000).unwrap();
        let handle = owner.handle().unwrap();
        let opened = OpenedMemory::open(&Device::Emulated, &handle).unwrap();
        assert_ne!(opened.address(), owner.address());
        assert_eq!(opened.bytes(), 5000);
        owner.write(4992, &[7u64]).unwrap();
        // SAFETY: the mapping has this length, and no code writes it concurrently.
        assert_eq!(unsafe { ((opened.address() + 4992) as *const u64).read() }, 7);
        // SAFETY: as for the read, the mapping is long enough, and no code accesses it concurrently.
        unsafe { (opened.address() as *mut u64).write(9) };
        let mut word = [0u64];
        owner.read(0, &mut word).unwrap();
        assert_eq!(word, [9]);
        assert!(owner.write(4993, &[7u64]).is_err() && owner.read(5000, &mut word).is_err());
        // No process has this ID.
        let gone = PeerHandle::File { pid: u32::MAX, descriptor: 3, number: 1, bytes: 5000 };
        let gone = OpenedMemory::open(&Device::Emulated, &gone);
        assert!(matches!(gone, Err(DeviceError::Missing(_))), "{gone:?}");
    }

    #[test]
    fn handle_of_other_device_kind_is_rejected() {
        let handle = PeerHandle::Cuda { handle: vec![0; 64], gpu: "0000:00:00.0".into(), bytes: 1 };
        assert!(OpenedMemory::open(&Device::Emulated, &handle).is_err());
    }
}
