//! Memory of a GPU as a dma-buf: a file by which a card's driver finds it.

use super::DeviceError;
use super::driver::{failed, is_there};
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, sys};
use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

/// A dma-buf with some memory in it. The file may be closed once a card has registered it: the registration keeps the memory.
#[derive(Debug)]
pub struct DmaBuf {
    /// The file.
    pub file: OwnedFd,
    /// Where in it the memory begins: the file is of whole pages.
    pub offset: u64,
}

/// Exports memory of the CUDA device of this number, by which a card can register it.
///
/// # Errors
/// There is no such device, or its driver exports none.
pub fn dma_buf(ordinal: i32, address: u64, bytes: usize) -> Result<DmaBuf, DeviceError> {
    if !is_there() {
        return Err(DeviceError::Missing("no CUDA driver (libcuda.so) on this machine".into()));
    }
    let ordinal = usize::try_from(ordinal).map_err(|_| DeviceError::Missing(format!("no CUDA device {ordinal}")))?;
    // The device's primary context, which whoever has the memory keeps open too.
    let context = CudaContext::new(ordinal).map_err(failed(format!("opening GPU {ordinal}")))?;
    export(&context, address, bytes)
}

/// As [`dma_buf`], for memory of this context's device.
pub(super) fn export(context: &CudaContext, address: u64, bytes: usize) -> Result<DmaBuf, DeviceError> {
    context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
    // An older driver does not even have the call.
    let offered = context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
    if offered.map_err(failed("cuDeviceGetAttribute DMA_BUF_SUPPORTED"))? != 1 {
        return Err(DeviceError::Refused(
            "the NVIDIA driver exports no dma-buf (it takes the open kernel modules)".into(),
        ));
    }
    let (first, length) = pages(address, bytes, page_bytes());
    let mut file: c_int = -1;
    let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    // SAFETY: for this type the place is an int, and the memory is there.
    let status = unsafe { sys::cuMemGetHandleForAddressRange((&raw mut file).cast(), first, length, kind, 0) };
    status.result().map_err(failed(format!("cuMemGetHandleForAddressRange of {length} bytes")))?;
    // SAFETY: a new descriptor, and nobody else's.
    Ok(DmaBuf { file: unsafe { OwnedFd::from_raw_fd(file) }, offset: address - first })
}

/// The whole pages that hold this memory, which are all that the driver exports: first byte and length.
fn pages(address: u64, bytes: usize, page: u64) -> (u64, usize) {
    let first = address - address % page;
    let end = (address + bytes as u64).next_multiple_of(page);
    (first, (end - first) as usize)
}

/// Bytes of a page of this machine.
fn page_bytes() -> u64 {
    // SAFETY: asks for a number.
    let bytes = unsafe { nix::libc::sysconf(nix::libc::_SC_PAGESIZE) };
    // A system that does not say has the usual ones.
    u64::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dma_buf_is_of_the_whole_pages_around_the_memory() {
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
    fn without_a_driver_or_its_device_nothing_is_exported() {
        let error = dma_buf(-1, 0x7000_0000, 4096).expect_err("no such device").to_string();
        assert!(error.contains("no CUDA d"), "{error}");
    }
}
