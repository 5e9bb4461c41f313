//! Cores: which this process may use, and a thread that stays on one.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Cores that this process may use; none where the system does not say.
pub fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count()).filter(|&core| set.is_set(core).unwrap_or(false)).collect()
}

/// Pins the calling thread; false when the system refuses (a container's mask, say).
pub fn pin(core: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(core).is_ok() && sched_setaffinity(Pid::from_raw(0), &set).is_ok()
}
