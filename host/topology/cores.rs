//! Cores that this process may use, cores near a device, and pinning of threads.

pub mod share;

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::OnceLock;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::pci::PciAddress;

/// Cores of busy threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    /// Chosen automatically, if there are enough.
    Auto,
    /// Threads are not pinned.
    Off,
    /// Explicit list of cores, by thread.
    List(Vec<usize>),
}

impl FromStr for Pin {
    type Err = String;

    fn from_str(text: &str) -> Result<Pin, String> {
        let cores = || text.split(',').map(|core| core.trim().parse().ok()).collect::<Option<_>>();
        match text {
            "auto" => Ok(Pin::Auto),
            "off" => Ok(Pin::Off),
            _ => cores()
                .map(Pin::List)
                .ok_or_else(|| format!("invalid value {text:?}: expected one of auto, off, a list of cores")),
        }
    }
}

/// Maximum number of cores. Larger numbers in a list are invalid.
const MOST_CORES: usize = 8192;

/// Returns the cores that this process was allowed to use when it started; empty if the system does not report them.
pub fn allowed() -> &'static [usize] {
    // The set is read once, because a pinned thread would see only its own core.
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(|| {
        let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
        (0..CpuSet::count()).filter(|&core| set.is_set(core).unwrap_or(false)).collect()
    })
}

/// Returns the number of busy threads that run at full speed: the number of allowed cores, or fewer if a control group
/// has a CPU quota.
pub fn usable() -> usize {
    // This set is also read once, for the same reason.
    static QUOTA: OnceLock<usize> = OnceLock::new();
    let allowed = allowed().len();
    // The standard library reads the quotas of both versions of control groups.
    let quota = *QUOTA.get_or_init(|| std::thread::available_parallelism().map_or(usize::MAX, usize::from));
    allowed.min(quota)
}

/// Pins the calling thread to `core`. Returns `false` if the system refuses, for example because of a container's CPU
/// mask.
pub fn pin(core: usize) -> bool {
    allowed();
    let mut set = CpuSet::new();
    set.set(core).is_ok() && sched_setaffinity(Pid::from_raw(0), &set).is_ok()
}

/// Parses a list in the kernel's format (`0-47,96-143`) and sorts it. Returns `None` for other text.
pub fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST_CORES {
            return None;
        }
        cores.extend(first..=last);
    }
    cores.sort_unstable();
    cores.dedup();
    Some(cores)
}

/// Formats a list in the kernel's format. The cores must be in ascending order.
pub fn list(cores: &[usize]) -> String {
    let run = |run: &[usize]| match run {
        [first, .., last] => format!("{first}-{last}"),
        one => one.iter().map(usize::to_string).collect(),
    };
    cores.chunk_by(|one, next| next.checked_sub(1) == Some(*one)).map(run).collect::<Vec<_>>().join(",")
}

/// Returns the cores of the NUMA node of the first device for which the system reports them (`local_cpulist`), or no
/// cores if there is none. `root` is `/`, or a recorded tree.
pub fn near(root: &Path, devices: &[PciAddress]) -> Vec<usize> {
    let of_device = |device: &PciAddress| {
        let file = root.join("sys/bus/pci/devices").join(device.to_string()).join("local_cpulist");
        parse_list(&std::fs::read_to_string(file).ok()?).filter(|cores| !cores.is_empty())
    };
    devices.iter().find_map(of_device).unwrap_or_default()
}

/// Returns the physical core of each core: the lowest number among its hardware threads. Omits cores for which the
/// system does not report it. `root` is as for [`near`].
pub fn physical(root: &Path, cores: &[usize]) -> BTreeMap<usize, usize> {
    let first = |core: &usize| {
        let file = format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        let siblings = parse_list(&std::fs::read_to_string(root.join(file)).ok()?)?;
        Some((*core, *siblings.first()?))
    };
    cores.iter().filter_map(first).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lists_go_both_ways(cores in prop::collection::btree_set(0usize..600, 0..60)) {
            let cores: Vec<usize> = cores.into_iter().collect();
            prop_assert_eq!(parse_list(&list(&cores)), Some(cores));
        }

        #[test]
        fn any_text_is_taken_or_refused(text in "[0-9,\\-a]{0,24}") {
            let _ = parse_list(&text);
        }
    }

    #[test]
    fn kernel_core_lists_parse() {
        assert_eq!(parse_list("0-2,7\n"), Some(vec![0, 1, 2, 7]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        assert_eq!(list(&[0, 1, 2, 7]), "0-2,7");
        for text in ["3-1", "0-4294967295", "x", "1-", "-1", "0x3"] {
            assert_eq!(parse_list(text), None, "{text}");
        }
    }

    #[test]
    fn this_process_has_cores() {
        assert!(!allowed().is_empty());
        // Every core belongs to a physical core with the same or a lower number.
        assert!(physical(Path::new("/"), allowed()).iter().all(|(core, first)| first <= core));
    }
}
