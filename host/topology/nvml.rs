//! What the driver's management library (NVML) says: version, clocks, and what holds clocks back.

use crate::pci::PciAddress;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::InitFlags;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::Clock;
use std::ffi::OsStr;

/// The library's package has the version in its name; the plain name comes with development files only.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Opens the library.
pub(super) fn open() -> Result<Nvml, String> {
    Nvml::builder().lib_path(OsStr::new(LIBRARY)).init().map_err(|error| format!("NVML: {error}"))
}

/// The driver's version, as `580.82.07`; `None` without a driver.
pub fn driver_version() -> Option<String> {
    // No GPU needs to be woken up for it.
    let nvml = Nvml::builder().lib_path(OsStr::new(LIBRARY)).flags(InitFlags::NO_ATTACH).init().ok()?;
    nvml.sys_driver_version().ok()
}

/// The clocks of each GPU that the library sees, one line each, and what holds them back; empty without a driver.
pub fn clocks() -> Vec<String> {
    let Ok(nvml) = open() else { return Vec::new() };
    let count = nvml.device_count().unwrap_or(0);
    let line = |index: u32| {
        let device = nvml.device_by_index(index).ok()?;
        let address: PciAddress = device.pci_info().ok()?.bus_id.parse().ok()?;
        let clock = |clock: fn() -> Clock| (device.clock_info(clock()).ok(), device.max_clock_info(clock()).ok());
        let reasons = device.current_throttle_reasons().ok();
        Some(describe(address, clock(|| Clock::SM), clock(|| Clock::Memory), reasons))
    };
    (0..count).filter_map(line).collect()
}

/// A clock now, and the highest it may have, in MHz.
type Megahertz = (Option<u32>, Option<u32>);

fn describe(gpu: PciAddress, sm: Megahertz, memory: Megahertz, reasons: Option<ThrottleReasons>) -> String {
    let number = |value: Option<u32>| value.map_or("?".to_owned(), |value| value.to_string());
    let clock = |(now, most): Megahertz| format!("{} of {} MHz", number(now), number(most));
    let held = match reasons {
        None => "not known".to_owned(),
        Some(reasons) => {
            let names: Vec<&str> =
                NAMES.iter().filter(|(reason, _)| reasons.contains(*reason)).map(|(_, name)| *name).collect();
            if names.is_empty() { "nothing".to_owned() } else { names.join(" and ") }
        }
    };
    format!("{gpu}: SM {}, memory {}, held back by {held}", clock(sm), clock(memory))
}

/// Reasons by which clocks are below what they may be.
const NAMES: [(ThrottleReasons, &str); 9] = [
    (ThrottleReasons::GPU_IDLE, "idleness"),
    (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, "application clocks"),
    (ThrottleReasons::SW_POWER_CAP, "power cap"),
    (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
    (ThrottleReasons::SYNC_BOOST, "sync boost"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "software thermal slowdown"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hardware thermal slowdown"),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake"),
    (ThrottleReasons::DISPLAY_CLOCK_SETTING, "display clocks"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_in_words() {
        let gpu = PciAddress { domain: 0, bus: 0x53, device: 0, function: 0 };
        let (sm, memory) = ((Some(1980), Some(1980)), (Some(2619), None));
        let words = |reasons| describe(gpu, sm, memory, reasons);
        let start = "0000:53:00.0: SM 1980 of 1980 MHz, memory 2619 of ? MHz, held back by ";
        assert_eq!(words(None), format!("{start}not known"));
        assert_eq!(words(Some(ThrottleReasons::empty())), format!("{start}nothing"));
        let two = ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_THERMAL_SLOWDOWN;
        assert_eq!(words(Some(two)), format!("{start}power cap and hardware thermal slowdown"));
    }

    #[test]
    fn without_a_driver_there_is_nothing_and_no_error() {
        // With one, lines that name a GPU.
        assert!(clocks().iter().all(|line| line.contains(": SM ")));
        assert!(driver_version().is_none_or(|version| version.starts_with(|c: char| c.is_ascii_digit())));
    }
}
