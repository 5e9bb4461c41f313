//! What the driver's management library (NVML) says: version, clocks, what holds clocks back, links and errors.

use crate::pci::PciAddress;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::InitFlags;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError};
use nvml_wrapper::enum_wrappers::nv_link::ErrorCounter;
use std::ffi::OsStr;
use std::fmt;

/// The library's package has the version in its name; the plain name comes with development files only.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// More NVLinks than any GPU has: Hopper and Blackwell have 18.
pub(super) const MOST_LINKS: u32 = 32;

/// Opens the library. While it is held the driver keeps the GPUs awake, so that nothing that is tried meanwhile waits for them.
pub fn open() -> Result<Nvml, String> {
    Nvml::builder().lib_path(OsStr::new(LIBRARY)).init().map_err(|error| format!("NVML: {error}"))
}

/// The driver's version, as `580.82.07`; `None` without a driver.
pub fn driver_version() -> Option<String> {
    // No GPU needs to be woken up for it.
    let nvml = Nvml::builder().lib_path(OsStr::new(LIBRARY)).flags(InitFlags::NO_ATTACH).init().ok()?;
    nvml.sys_driver_version().ok()
}

/// GPUs that the library sees: those that a container may use. CUDA is not initialised by it. `None` without a driver.
pub fn gpu_count() -> Option<usize> {
    Some(open().ok()?.device_count().ok()? as usize)
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

/// A GPU as somebody sees it who asks whether it is fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuState {
    /// Where it is.
    pub address: PciAddress,
    /// Whether the driver keeps it awake; `None` where it is not told.
    pub persistent: Option<bool>,
    /// What holds the clocks back beyond idleness and chosen clocks; `None` for nothing, or where it is not told.
    pub held_back: Option<String>,
    /// Uncorrected errors of its memory since the driver was loaded.
    pub ecc_uncorrected: Option<u64>,
    /// NVLinks that it has, and those that are up.
    pub links: u32,
    /// NVLinks that are up.
    pub links_up: u32,
    /// Errors that its links have counted, all links together.
    pub link_errors: LinkErrors,
}

/// What links count since the driver was loaded, or since somebody cleared it. Each of it the links have mended themselves: a unit with a
/// wrong checksum is sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkErrors {
    /// Packets that were sent again.
    pub replays: u64,
    /// Times that a link had to be trained again.
    pub recoveries: u64,
    /// Units of flow control that came with a wrong checksum: what nvidia-smi calls CRC errors.
    pub checksums: u64,
    /// Data that came with a wrong checksum. On H200s it grows on every link, idle ones too, beside as many corrections, while nvidia-smi
    /// counts no error: what the links' own error correction mends.
    pub data_checksums: u64,
}

impl LinkErrors {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.replays + self.recoveries + self.checksums + self.data_checksums
    }

    /// What has come since an earlier look.
    #[must_use]
    pub fn since(&self, earlier: &LinkErrors) -> LinkErrors {
        LinkErrors {
            replays: self.replays.saturating_sub(earlier.replays),
            recoveries: self.recoveries.saturating_sub(earlier.recoveries),
            checksums: self.checksums.saturating_sub(earlier.checksums),
            data_checksums: self.data_checksums.saturating_sub(earlier.data_checksums),
        }
    }
}

impl fmt::Display for LinkErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinkErrors { replays, recoveries, checksums, data_checksums } = self;
        write!(f, "{replays} replays, {recoveries} recoveries, {checksums} checksums, {data_checksums} data checksums")
    }
}

/// The GPUs that the library sees, as they are now.
pub fn states(nvml: &Nvml) -> Result<Vec<GpuState>, String> {
    let said = |error: nvml_wrapper::error::NvmlError| format!("NVML: {error}");
    let mut states = Vec::new();
    for index in 0..nvml.device_count().map_err(said)? {
        let device = nvml.device_by_index(index).map_err(said)?;
        let Ok(address) = device.pci_info().map_err(said)?.bus_id.parse() else { continue };
        // An error means that the GPU has no such link.
        let links: Vec<(u32, bool)> =
            (0..MOST_LINKS).filter_map(|link| Some((link, device.link_wrapper_for(link).is_active().ok()?))).collect();
        let up = || links.iter().filter(|(_, up)| *up).map(|(link, _)| device.link_wrapper_for(*link));
        let counted =
            |counter: fn() -> ErrorCounter| -> u64 { up().filter_map(|link| link.error_counter(counter()).ok()).sum() };
        states.push(GpuState {
            address,
            persistent: device.is_in_persistent_mode().ok(),
            held_back: device.current_throttle_reasons().ok().and_then(trouble),
            ecc_uncorrected: device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).ok(),
            links: links.len() as u32,
            links_up: up().count() as u32,
            link_errors: LinkErrors {
                replays: counted(|| ErrorCounter::DlReplay),
                recoveries: counted(|| ErrorCounter::DlRecovery),
                checksums: counted(|| ErrorCounter::DlCrcFlit),
                data_checksums: counted(|| ErrorCounter::DlCrcData),
            },
        });
    }
    Ok(states)
}

/// Reasons that somebody should mend: neither idleness nor clocks that were chosen.
fn trouble(reasons: ThrottleReasons) -> Option<String> {
    let chosen = ThrottleReasons::GPU_IDLE
        | ThrottleReasons::APPLICATIONS_CLOCKS_SETTING
        | ThrottleReasons::SYNC_BOOST
        | ThrottleReasons::DISPLAY_CLOCK_SETTING;
    let names = names(reasons.difference(chosen));
    (!names.is_empty()).then(|| names.join(" and "))
}

fn names(reasons: ThrottleReasons) -> Vec<&'static str> {
    NAMES.iter().filter(|(reason, _)| reasons.contains(*reason)).map(|(_, name)| *name).collect()
}

/// A clock now, and the highest it may have, in MHz.
type Megahertz = (Option<u32>, Option<u32>);

fn describe(gpu: PciAddress, sm: Megahertz, memory: Megahertz, reasons: Option<ThrottleReasons>) -> String {
    let number = |value: Option<u32>| value.map_or("?".to_owned(), |value| value.to_string());
    let clock = |(now, most): Megahertz| format!("{} of {} MHz", number(now), number(most));
    let held = match reasons {
        None => "not known".to_owned(),
        Some(reasons) => {
            let names = names(reasons);
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
    fn idleness_is_no_trouble() {
        assert_eq!(trouble(ThrottleReasons::GPU_IDLE | ThrottleReasons::APPLICATIONS_CLOCKS_SETTING), None);
        let hot = trouble(ThrottleReasons::GPU_IDLE | ThrottleReasons::HW_THERMAL_SLOWDOWN);
        assert_eq!(hot.as_deref(), Some("hardware thermal slowdown"));
    }

    #[test]
    fn without_a_driver_there_is_nothing_and_no_error() {
        // With one, lines that name a GPU.
        assert!(clocks().iter().all(|line| line.contains(": SM ")));
        assert!(driver_version().is_none_or(|version| version.starts_with(|c: char| c.is_ascii_digit())));
    }
}
