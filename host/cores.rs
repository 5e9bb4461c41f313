//! Cores: which this process may use, and a thread that stays on one.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::sync::OnceLock;

/// Cores that this process may use, as it was started; none where the system does not say.
pub fn allowed() -> &'static [usize] {
    // Read once: afterwards a thread that is pinned would see its own core alone.
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    ALLOWED.get_or_init(|| {
        let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
        (0..CpuSet::count()).filter(|&core| set.is_set(core).unwrap_or(false)).collect()
    })
}

/// Pins the calling thread; false when the system refuses (a container's mask, say).
pub fn pin(core: usize) -> bool {
    allowed();
    let mut set = CpuSet::new();
    set.set(core).is_ok() && sched_setaffinity(Pid::from_raw(0), &set).is_ok()
}
