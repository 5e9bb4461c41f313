//! NVLinks, queried from NVML, which is loaded at run time.

use super::nvml::MOST_LINKS;
use crate::pci::PciAddress;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;

/// The NVLinks of a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Links {
    /// Address of the GPU.
    pub gpu: PciAddress,
    /// Number of active links.
    pub active: u32,
    /// Total rate of the active links in one direction, in bytes per second; `None` if the driver does not report it.
    pub bytes_per_second: Option<f64>,
    /// Devices at the other ends of the active links, GPUs or switches, if the driver reports them.
    pub remotes: Vec<PciAddress>,
}

/// Returns the links of all GPUs that NVML sees.
///
/// # Errors
/// Returns a short reason if NVML cannot be queried.
pub fn links() -> Result<Vec<Links>, String> {
    let said = |error: nvml_wrapper::error::NvmlError| format!("NVML: {error}");
    let nvml = super::nvml::open()?;
    let mut all = Vec::new();
    for index in 0..nvml.device_count().map_err(said)? {
        let device = nvml.device_by_index(index).map_err(said)?;
        let Ok(gpu) = device.pci_info().map_err(said)?.bus_id.parse() else { continue };
        let active: Vec<u32> = (0..MOST_LINKS)
            // An error means that the GPU has no such link.
            .filter(|link| device.link_wrapper_for(*link).is_active().unwrap_or(false))
            .collect();
        let remote = |link: &u32| device.link_wrapper_for(*link).remote_pci_info().ok()?.bus_id.parse().ok();
        // The rate of a link has three fields. Which field a driver supports depends on its version and on the GPU.
        let names = [
            field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON,
            field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_L0,
            field_id::NVML_FI_DEV_NVLINK_GET_SPEED,
        ];
        let values = device.field_values_for(&names.map(FieldId)).unwrap_or_default();
        // Megabytes per second, although MBPS in the fields' names suggests megabits.
        let number = |value: SampleValue| match value {
            SampleValue::U32(rate) => f64::from(rate),
            SampleValue::U64(rate) => rate as f64,
            SampleValue::F64(rate) => rate,
            SampleValue::I64(rate) => rate as f64,
        };
        let megabytes =
            values.into_iter().find_map(|value| Some(number(value.ok()?.value.ok()?)).filter(|rate| *rate > 0.0));
        all.push(Links {
            gpu,
            active: active.len() as u32,
            bytes_per_second: megabytes.map(|rate| rate * 1e6 * active.len() as f64),
            remotes: active.iter().filter_map(remote).collect(),
        });
    }
    Ok(all)
}

/// Returns the number of links between two GPUs: direct links or, if both are connected to switches, the smaller number
/// of their links to switches.
pub fn between(links: &[Links], one: PciAddress, other: PciAddress) -> u32 {
    let find = |gpu| links.iter().find(|links| links.gpu == gpu);
    let (Some(from), Some(to)) = (find(one), find(other)) else { return 0 };
    let direct = from.remotes.iter().filter(|remote| **remote == other).count() as u32;
    let is_gpu = |remote: &PciAddress| links.iter().any(|links| links.gpu == *remote);
    let switched = |links: &Links| links.active - links.remotes.iter().filter(|remote| is_gpu(remote)).count() as u32;
    if direct > 0 { direct } else { switched(from).min(switched(to)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(bus: u8) -> PciAddress {
        PciAddress { domain: 0, bus, device: 0, function: 0 }
    }

    fn links(bus: u8, remotes: &[u8]) -> Links {
        let remotes: Vec<PciAddress> = remotes.iter().map(|bus| gpu(*bus)).collect();
        Links { gpu: gpu(bus), active: remotes.len() as u32, bytes_per_second: None, remotes }
    }

    #[test]
    fn direct_links_and_links_by_switches() {
        let pair = [links(1, &[2, 2, 2]), links(2, &[1, 1, 1]), links(3, &[])];
        assert_eq!(between(&pair, gpu(1), gpu(2)), 3);
        assert_eq!(between(&pair, gpu(1), gpu(3)), 0);
        assert_eq!(between(&pair, gpu(1), gpu(9)), 0, "unknown");
        let switched = [links(1, &[90, 91, 92]), links(2, &[90, 91, 92])];
        assert_eq!(between(&switched, gpu(1), gpu(2)), 3);
        // Two direct links to a third GPU do not count as links to switches.
        let mixed = [links(1, &[3, 3, 90]), links(2, &[90, 91, 92]), links(3, &[1, 1])];
        assert_eq!(between(&mixed, gpu(1), gpu(2)), 1);
    }
}
