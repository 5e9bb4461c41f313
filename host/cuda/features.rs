//! What the GPUs that this process sees can do for a NIC, asked without opening a context.

use super::DeviceError;
use super::driver::{failed, is_there};
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, result};
use ginlab_topology::pci::PciAddress;

/// A visible GPU: CUDA's number for it counts what CUDA_VISIBLE_DEVICES leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisibleGpu {
    /// CUDA's number.
    pub ordinal: i32,
    /// Where it is on the bus; `None` where the driver does not say.
    pub address: Option<PciAddress>,
    /// Its name.
    pub name: String,
    /// Its memory can be given to a NIC's driver as a dma-buf.
    pub dma_buf: bool,
    /// NICs may read and write its memory (GPUDirect RDMA; needs a peer memory module, or dma-buf).
    pub gpu_direct_rdma: bool,
    /// The same for memory of CUDA's virtual memory management: without it NCCL has no GIN.
    pub gpu_direct_virtual: bool,
    /// CPU and GPU may use managed memory at the same time.
    pub concurrent_managed: bool,
}

/// The GPUs that this process sees; none without a driver.
///
/// # Errors
/// The driver's.
pub fn visible_gpus() -> Result<Vec<VisibleGpu>, DeviceError> {
    if !is_there() {
        return Ok(Vec::new());
    }
    // Also "no device", which CUDA_VISIBLE_DEVICES may have made of a machine full of them.
    let Ok(count) = CudaContext::device_count() else { return Ok(Vec::new()) };
    let mut gpus = Vec::new();
    for ordinal in 0..count {
        let device = result::device::get(ordinal).map_err(failed("cuDeviceGet"))?;
        let attribute = |attribute| {
            // SAFETY: a device that `cuDeviceGet` has given.
            let value = unsafe { result::device::get_attribute(device, attribute) };
            // An attribute that the driver is too old to know is one that it does not offer.
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
