//! Capabilities of the visible GPUs with respect to NICs, queried without a context.

use super::DeviceError;
use super::driver::{failed, is_there};
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::sys::CUresult as Status;
use cudarc::driver::{CudaContext, result};
use ginlab_topology::pci::PciAddress;

/// A visible GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisibleGpu {
    /// CUDA ordinal, which counts only the GPUs in CUDA_VISIBLE_DEVICES.
    pub ordinal: i32,
    /// PCI address; `None` if the driver does not report it.
    pub address: Option<PciAddress>,
    /// Name of the GPU.
    pub name: String,
    /// Whether the device's memory can be exported as a dma-buf, for a NIC's driver to register.
    pub dma_buf: bool,
    /// Whether NICs can access the device's memory (GPUDirect RDMA; requires a peer memory module or dma-buf).
    pub gpu_direct_rdma: bool,
    /// Whether NICs can access memory of CUDA's virtual memory management. NCCL's GIN requires it.
    pub gpu_direct_virtual: bool,
    /// Whether CPU and GPU can access managed memory at the same time.
    pub concurrent_managed: bool,
}

/// Returns the error of the driver's initialization, for example 802 while the fabric manager is not ready. Returns
/// `None` if it succeeds, if there is no driver, and if the driver reports that there is no device.
/// CUDA_VISIBLE_DEVICES can cause the last case on a machine with GPUs.
#[must_use]
pub fn initialization_error() -> Option<String> {
    if !is_there() {
        return None;
    }
    let error = CudaContext::device_count().err()?;
    (error.0 != Status::CUDA_ERROR_NO_DEVICE).then(|| failed("cuInit")(error).to_string())
}

/// Returns the GPUs that this process sees; empty without a driver.
///
/// # Errors
/// Returns the driver's error if a query fails.
pub fn visible_gpus() -> Result<Vec<VisibleGpu>, DeviceError> {
    if !is_there() {
        return Ok(Vec::new());
    }
    // This includes the error "no device", which CUDA_VISIBLE_DEVICES can cause on a machine with GPUs.
    let Ok(count) = CudaContext::device_count() else { return Ok(Vec::new()) };
    let mut gpus = Vec::new();
    for ordinal in 0..count {
        let device = result::device::get(ordinal).map_err(failed("cuDeviceGet"))?;
        let attribute = |attribute| {
            // SAFETY: the device was returned by `cuDeviceGet`.
            let value = unsafe { result::device::get_attribute(device, attribute) };
            // If the driver does not know an attribute, the capability is missing.
            value.ok()
        };
        let number = |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok());
        let address = || {
            Some(PciAddress {
                domain: number(attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID))?,
                bus: number(attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID))? as u8,
                device: number(attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID))? as u8,
                function: 0,
            })
        };
        gpus.push(VisibleGpu {
            ordinal,
            address: address(),
            name: result::device::get_name(device).map_err(failed("cuDeviceGetName"))?,
            dma_buf: attribute(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) == Some(1),
            gpu_direct_rdma: attribute(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) == Some(1),
            gpu_direct_virtual: attribute(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)
                == Some(1),
            concurrent_managed: attribute(Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) == Some(1),
        });
    }
    Ok(gpus)
}
