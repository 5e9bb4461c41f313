//! Export of GPU memory as a dma-buf, a file descriptor with which a NIC's driver can register it.

use super::DeviceError;
use super::driver::{failed, is_there};
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, sys};
use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

/// A dma-buf of a memory range. The file may be closed once a NIC has registered it: the registration keeps the memory.
#[derive(Debug)]
pub struct DmaBuf {
    /// The file descriptor.
    pub file: OwnedFd,
    /// Offset of the memory in the file, which consists of whole pages.
    pub offset: u64,
}

/// Exports memory of the CUDA device `ordinal` as a dma-buf, so that a NIC can register it.
///
/// # Errors
/// Returns an error if there is no such device, or its driver does not support the export.
pub fn dma_buf(ordinal: i32, address: u64, bytes: usize) -> Result<DmaBuf, DeviceError> {
    if !is_there() {
        return Err(DeviceError::Missing("no CUDA driver (libcuda.so) on this machine".into()));
    }
    let ordinal = usize::try_from(ordinal).map_err(|_| DeviceError::Missing(format!("no CUDA device {ordinal}")))?;
    // The device's primary context, which the owner of the memory also keeps open.
    let context = CudaContext::new(ordinal).map_err(failed(format!("opening GPU {ordinal}")))?;
    export(&context, address, bytes)
}

/// Like [`dma_buf`], for memory of the device of `context`.
pub(super) fn export(context: &CudaContext, address: u64, bytes: usize) -> Result<DmaBuf, DeviceError> {
    context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
    // Older drivers lack the call below.
    let offered = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
    if offered.map_err(failed("cuDeviceGetAttribute DMA_BUF_SUPPORTED"))? != 1 {
        return Err(DeviceError::Refused(
            "the NVIDIA driver does not export dma-bufs; install the open kernel modules".into(),
        ));
    }
    let (first, length) = pages(address, bytes, page_bytes());
    let mut file: c_int = -1;
    let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    // SAFETY: for this handle type, the driver writes an `int`, and the caller guarantees that the range is allocated.
    let status = unsafe { sys::cuMemGetHandleForAddressRange((&raw mut file).cast(), first, length, kind, 0) };
    status.result().map_err(failed(format!("cuMemGetHandleForAddressRange of {length} bytes")))?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(DmaBuf { file: unsafe { OwnedFd::from_raw_fd(file) }, offset: address - first })
}

/// Returns the first byte and the length of the whole pages that contain the memory. Only whole pages can be exported.
fn pages(address: u64, bytes: usize, page: u64) -> (u64, usize) {
    let first = address - address % page;
    let end = (address + bytes as u64).next_multiple_of(page);
    (first, (end - first) as usize)
}

fn page_bytes() -> u64 {
    // SAFETY: the call takes no pointers.
    let bytes = unsafe { nix::libc::sysconf(nix::libc::_SC_PAGESIZE) };
    // The usual page size, if the system does not report one.
    u64::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dma_buf_covers_whole_pages_of_memory() {
        for (address, bytes, expected) in [
            (0x7000_0000, 4096, (0x7000_0000, 4096)),
            (0x7000_0200, 64, (0x7000_0000, 4096)),
            (0x7000_0ff8, 16, (0x7000_0000, 8192)),
            (0x7000_0000, 4097, (0x7000_0000, 8192)),
        ] {
            assert_eq!(pages(address, bytes, 4096), expected, "{address:#x}");
        }
        assert!(page_bytes().is_power_of_two());
    }

    #[test]
    fn dma_buf_export_requires_driver_and_device() {
        let error = dma_buf(-1, 0x7000_0000, 4096).expect_err("no such device").to_string();
        assert!(error.contains("no CUDA d"), "{error}");
    }
}
