//! What lies between two GPUs, and how fast it is: NVML's word, loaded at run time.

use nvml_wrapper::enum_wrappers::nv_link::IntDeviceType;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON;
use nvml_wrapper::{Device, Nvml};

/// NVLinks of a GPU, at most; a link that a GPU does not have is not active.
const MOST_LINKS: u32 = 18;

/// The way between two GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// NVLinks that lead from one to the other, through a switch or not. 0: the way is PCIe.
    pub nvlinks: u32,
    /// Bits per second in one direction, all links together; `None` where NVML does not say.
    pub bits_per_second: Option<u64>,
}

impl Link {
    /// As the `fabric` of a row.
    pub fn fabric(&self) -> &'static str {
        if self.nvlinks > 0 { "nvlink" } else { "pcie" }
    }
}

/// NVML, where it is installed.
pub struct Links(Nvml);

impl Links {
    /// Loads NVML.
    ///
    /// # Errors
    /// Why it is not to be had.
    pub fn open() -> Result<Links, String> {
        // The plain name is of the development package, and missing where only the driver is installed.
        Nvml::builder()
            .lib_path("libnvidia-ml.so.1".as_ref())
            .init()
            .or_else(|_| Nvml::init())
            .map(Links)
            .map_err(|error| format!("NVML is not to be had: {error}"))
    }

    /// What lies between two GPUs, named by their PCI addresses (`0000:1b:00.0`).
    ///
    /// # Errors
    /// When NVML does not know one of them.
    pub fn between(&self, one: &str, other: &str) -> Result<Link, String> {
        let device = self.0.device_by_pci_bus_id(one).map_err(|error| format!("NVML, GPU {one}: {error}"))?;
        let nvlinks = (0..MOST_LINKS).filter(|link| leads_to(&device, *link, other)).count() as u32;
        let speed = device.field_values_for(&[FieldId(NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON)]);
        let value = speed.ok().and_then(|list| list.into_iter().next()?.ok()?.value.ok());
        let megabytes = match value {
            Some(SampleValue::U32(value)) => Some(u64::from(value)),
            Some(SampleValue::U64(value)) => Some(value),
            Some(SampleValue::I64(value)) => u64::try_from(value).ok(),
            Some(SampleValue::F64(_)) | None => None,
        };
        let each = megabytes.filter(|value| *value > 0 && nvlinks > 0).map(|value| value * 8_000_000);
        Ok(Link { nvlinks, bits_per_second: each.map(|each| each * u64::from(nvlinks)) })
    }
}

/// Whether an active link goes to that GPU, or to a switch, which reaches all GPUs.
fn leads_to(device: &Device<'_>, number: u32, other: &str) -> bool {
    let link = device.link_wrapper_for(number);
    if !link.is_active().unwrap_or(false) {
        return false;
    }
    match link.remote_device_type(number) {
        Ok(IntDeviceType::Gpu) => link.remote_pci_info().is_ok_and(|info| same_gpu(&info.bus_id, other)),
        // A guest is not always told what is behind its links; then it is a switch.
        _ => true,
    }
}

/// NVML writes the domain with eight digits, sysfs and CUDA with four.
fn same_gpu(one: &str, other: &str) -> bool {
    let parts = |text: &str| {
        let (domain, rest) = text.split_once(':')?;
        Some((u32::from_str_radix(domain, 16).ok()?, rest.to_ascii_lowercase()))
    };
    parts(one).is_some() && parts(one) == parts(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_compared_whatever_their_spelling() {
        assert!(same_gpu("00000000:1B:00.0", "0000:1b:00.0"));
        assert!(!same_gpu("00000000:1B:00.0", "0000:1c:00.0"));
        assert!(!same_gpu("00000001:1B:00.0", "0000:1b:00.0"));
        assert!(!same_gpu("", ""));
    }

    #[test]
    fn without_nvlinks_the_way_is_pcie() {
        assert_eq!(Link { nvlinks: 0, bits_per_second: None }.fabric(), "pcie");
        assert_eq!(Link { nvlinks: 18, bits_per_second: Some(1) }.fabric(), "nvlink");
    }
}
