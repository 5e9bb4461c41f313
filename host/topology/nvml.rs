//! Queries of NVML: versions, clocks, reasons for reduced clocks, links and errors.

use crate::pci::PciAddress;
use nvml_wrapper::bitmasks::InitFlags;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError};
use nvml_wrapper::enum_wrappers::nv_link::ErrorCounter;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use std::ffi::OsStr;
use std::fmt;
use std::mem::MaybeUninit;

/// Name of the library in runtime packages; the name without a version exists only with development files.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Upper bound on the NVLinks of a GPU; Hopper and Blackwell have 18.
pub(super) const MOST_LINKS: u32 = 32;

/// Opens the library. While it is open, the driver keeps the GPUs initialized, so that subsequent operations do not
/// wait for them.
pub fn open() -> Result<Nvml, String> {
    Nvml::builder().lib_path(OsStr::new(LIBRARY)).init().map_err(|error| format!("NVML: {error}"))
}

/// Returns the driver's version, for example `580.82.07`. `None` without a driver.
pub fn driver_version() -> Option<String> {
    // The query does not require the GPUs to be initialized.
    let nvml = Nvml::builder().lib_path(OsStr::new(LIBRARY)).flags(InitFlags::NO_ATTACH).init().ok()?;
    nvml.sys_driver_version().ok()
}

/// Returns the number of GPUs that NVML sees. In a container, these are the GPUs that the container may use. Does not
/// initialize CUDA. `None` without a driver.
pub fn gpu_count() -> Option<usize> {
    Some(open().ok()?.device_count().ok()? as usize)
}

/// Returns one line per GPU with its clocks and the reasons for reduced clocks; empty without a driver.
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

/// Health of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuState {
    /// PCI address.
    pub address: PciAddress,
    /// Whether persistence mode is enabled; `None` if it is not reported.
    pub persistent: Option<bool>,
    /// Reasons for reduced clocks, other than idleness and clock settings; `None` if there are none or they are not
    /// reported.
    pub held_back: Option<String>,
    /// Number of uncorrected memory errors since the driver was loaded.
    pub ecc_uncorrected: Option<u64>,
    /// Rows of its memory that were replaced by spare ones; `None` if they are not reported.
    pub remapped: Option<RemappedRows>,
    /// Number of NVLinks.
    pub links: u32,
    /// Number of active NVLinks.
    pub links_up: u32,
    /// Error counters, summed over all links.
    pub link_errors: LinkErrors,
    /// State of its NVLink fabric; `None` if it belongs to none or the driver does not report it.
    pub fabric: Option<GpuFabric>,
}

/// State of the NVLink fabric of a GPU, which the fabric manager configures. Until then, CUDA fails on machines with
/// NVLink switches (error 802).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuFabric {
    /// The fabric manager has not started to configure it.
    NotStarted,
    /// The fabric manager is configuring it.
    InProgress,
    /// The GPU is ready.
    Ready,
    /// The configuration has failed, with this code of NVML.
    Failed(u32),
}

impl GpuFabric {
    /// Queries it.
    fn of(device: &Device<'_>) -> Option<GpuFabric> {
        let query = device.nvml().lib().nvmlDeviceGetGpuFabricInfo.as_ref().ok()?;
        let mut info = MaybeUninit::zeroed();
        // SAFETY: the library outlives the device, whose handle is valid, and `info` has room for the answer.
        let code = unsafe { query(device.handle(), info.as_mut_ptr()) };
        // SAFETY: all zeros are a valid value of this structure of integers, which the query may have overwritten.
        let info = unsafe { info.assume_init() };
        if code == 0 { GpuFabric::from_codes(info.state.into(), info.status) } else { None }
    }

    /// Converts NVML's state and status.
    fn from_codes(state: u32, status: u32) -> Option<GpuFabric> {
        match (state, status) {
            (1, _) => Some(GpuFabric::NotStarted),
            (2, _) => Some(GpuFabric::InProgress),
            (3, 0) => Some(GpuFabric::Ready),
            (3, code) => Some(GpuFabric::Failed(code)),
            _ => None,
        }
    }
}

impl fmt::Display for GpuFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuFabric::NotStarted => f.write_str("is not configured"),
            GpuFabric::InProgress => f.write_str("is being configured"),
            GpuFabric::Ready => f.write_str("is configured"),
            GpuFabric::Failed(code) => write!(f, "could not be configured (NVML {code})"),
        }
    }
}

/// Rows of a GPU's memory that were replaced by spare ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemappedRows {
    /// Number of rows that were remapped because of correctable errors.
    pub correctable: u64,
    /// Number of rows that were remapped because of uncorrectable errors.
    pub uncorrectable: u64,
    /// Whether a row will be remapped at the next reset of the GPU.
    pub pending: bool,
    /// Whether remapping of a row has failed.
    pub failed: bool,
}

impl RemappedRows {
    /// Queries the rows. Returns `None` if the GPU or the driver does not report them.
    fn of(device: &Device<'_>) -> Option<RemappedRows> {
        use nvml_wrapper::sys_exports::field_id as id;
        let ids = [
            id::NVML_FI_DEV_REMAPPED_COR,
            id::NVML_FI_DEV_REMAPPED_UNC,
            id::NVML_FI_DEV_REMAPPED_PENDING,
            id::NVML_FI_DEV_REMAPPED_FAILURE,
        ];
        let values = device.field_values_for(&ids.map(FieldId)).ok()?;
        let number = |value: SampleValue| match value {
            SampleValue::U32(value) => u64::from(value),
            SampleValue::U64(value) => value,
            SampleValue::I64(value) => value.max(0) as u64,
            SampleValue::F64(value) => value.max(0.0) as u64,
        };
        let numbers: Option<Vec<u64>> = values.into_iter().map(|value| Some(number(value.ok()?.value.ok()?))).collect();
        let [correctable, uncorrectable, pending, failed] = numbers?[..] else { return None };
        Some(RemappedRows { correctable, uncorrectable, pending: pending != 0, failed: failed != 0 })
    }
}

impl fmt::Display for RemappedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RemappedRows { correctable, uncorrectable, .. } = self;
        write!(f, "{correctable} rows remapped for correctable errors, {uncorrectable} for uncorrectable ones")
    }
}

/// Error counters of links since the driver was loaded or the counters were reset. The links have recovered from all
/// these errors, for example by sending a unit with a wrong checksum again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkErrors {
    /// Number of packets that were sent again.
    pub replays: u64,
    /// Number of times that a link was retrained.
    pub recoveries: u64,
    /// Number of flow control units with wrong checksums, which nvidia-smi calls CRC errors.
    pub checksums: u64,
    /// Number of data units with wrong checksums, which the links correct. On an H200 it grows on every link, even if
    /// idle, together with the number of corrections and without errors in nvidia-smi.
    pub data_checksums: u64,
}

impl LinkErrors {
    /// Returns the sum of all counters.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.replays + self.recoveries + self.checksums + self.data_checksums
    }

    /// Returns the increments since `earlier`.
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

/// Returns the state of the GPUs that NVML sees.
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
            remapped: RemappedRows::of(&device),
            links: links.len() as u32,
            links_up: up().count() as u32,
            link_errors: LinkErrors {
                replays: counted(|| ErrorCounter::DlReplay),
                recoveries: counted(|| ErrorCounter::DlRecovery),
                checksums: counted(|| ErrorCounter::DlCrcFlit),
                data_checksums: counted(|| ErrorCounter::DlCrcData),
            },
            fabric: GpuFabric::of(&device),
        });
    }
    Ok(states)
}

/// Returns the reasons that indicate a problem. Idleness and clock settings are excluded.
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

/// Current and maximum value of a clock, in MHz.
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
    format!("{gpu}: SM {}, memory {}, reduced by {held}", clock(sm), clock(memory))
}

/// Names of the reasons for reduced clocks.
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
        let start = "0000:53:00.0: SM 1980 of 1980 MHz, memory 2619 of ? MHz, reduced by ";
        assert_eq!(words(None), format!("{start}not known"));
        assert_eq!(words(Some(ThrottleReasons::empty())), format!("{start}nothing"));
        let two = ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_THERMAL_SLOWDOWN;
        assert_eq!(words(Some(two)), format!("{start}power cap and hardware thermal slowdown"));
    }

    #[test]
    fn fabric_is_ready_only_when_completed() {
        let codes = [(0, 0), (1, 0), (2, 0), (3, 0), (3, 999), (9, 0)];
        let words = codes.map(|(state, status)| GpuFabric::from_codes(state, status).map(|fabric| fabric.to_string()));
        let words = words.map(Option::unwrap_or_default);
        let failed = "could not be configured (NVML 999)";
        assert_eq!(words, ["", "is not configured", "is being configured", "is configured", failed, ""]);
    }

    #[test]
    fn idleness_is_no_trouble() {
        assert_eq!(trouble(ThrottleReasons::GPU_IDLE | ThrottleReasons::APPLICATIONS_CLOCKS_SETTING), None);
        let hot = trouble(ThrottleReasons::GPU_IDLE | ThrottleReasons::HW_THERMAL_SLOWDOWN);
        assert_eq!(hot.as_deref(), Some("hardware thermal slowdown"));
    }

    #[test]
    fn missing_driver_yields_no_gpus_and_no_error() {
        // With a driver, each line names a GPU.
        assert!(clocks().iter().all(|line| line.contains(": SM ")));
        assert!(driver_version().is_none_or(|version| version.starts_with(|c: char| c.is_ascii_digit())));
    }
}
