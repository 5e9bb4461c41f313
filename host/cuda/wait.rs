//! Bounded waits of the CPU for a device's work.

use super::{DeviceError, emulated};
use ginlab_base::signals;
use nix::time::{ClockId, clock_gettime};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A grid of the emulated device is abandoned only after this process has had 1/SHARE of the time limit as CPU time, or
/// has waited SHARE times as long. On an overloaded machine, a process with low priority gets so little CPU time that
/// its kernels would otherwise seem to hang.
const SHARE: u32 = 8;

/// Maximum time within which work must end after it was requested to. It is longer than a kernel's own waits.
pub(super) const ENDING: Duration = Duration::from_secs(60);

/// Time after an interrupt at which kernels of the emulated device are stopped. A kernel that waits returns earlier,
/// because it checks for the request; a kernel that makes progress does not check.
const AFTER_INTERRUPT: Duration = Duration::from_millis(500);

/// Polls `done` until it returns `true`, and calls `watch` every few milliseconds. If `watch` returns an error, it must
/// also request the work to end. The error is returned once the work has ended. If the work does not end within
/// `ending`, the process exits. After an interrupt, the emulated device ends its kernels earlier.
///
/// # Errors
/// Returns the error of `done`, or the first error of `watch`.
pub fn wait_for<E: From<DeviceError>>(
    ending: Duration,
    mut done: impl FnMut() -> Result<bool, DeviceError>,
    mut watch: impl FnMut() -> Result<(), E>,
) -> Result<(), E> {
    let mut failed = None;
    let mut pause = Duration::from_micros(20);
    loop {
        match done() {
            Ok(true) => break,
            Ok(false) => {}
            // `stop_all` has stopped the grids.
            Err(_) if failed.is_some() && signals::interrupted() => break,
            Err(error) => return Err(error.into()),
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
        match &failed {
            None => failed = watch().err().map(|error| (error, Instant::now(), processor_time())),
            Some((_, since, _)) if signals::interrupted() && (AFTER_INTERRUPT..ending).contains(&since.elapsed()) => {
                emulated::stop_all();
            }
            Some((_, since, had)) if since.elapsed() > ending => {
                let starved =
                    processor_time().saturating_sub(*had) < ending / SHARE && since.elapsed() < ending * SHARE;
                if !(starved && emulated::is_running()) {
                    abandon(ending);
                }
            }
            Some(_) => {}
        }
    }
    failed.map_or(Ok(()), |(error, ..)| Err(error))
}

/// Returns the CPU time used by all threads of this process.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::MAX, Duration::from)
}

/// Waits until work whose memory may be freed next has ended. Errors are ignored: they have been reported, or the next
/// call will report them. Every wait in a kernel is bounded, but this wait has its own limit in case a kernel is
/// faulty.
pub(super) fn wait_out(done: impl FnMut() -> Result<bool, DeviceError>) {
    let ended = || DeviceError::Refused("no longer needed".into());
    let _ = wait_for(ENDING, done, || Err(ended()));
}

/// Description of the current task, for processes in which the command line does not identify it.
static TASK: Mutex<String> = Mutex::new(String::new());

/// Sets the description of the current task. It is printed if the process must exit because a kernel does not end. Used
/// by processes that run several programs one after another.
pub fn set_task(what: &str) {
    if let Ok(mut task) = TASK.lock() {
        what.clone_into(&mut task);
    }
}

/// The failure because of which kernels were requested to end.
static REASON: Mutex<String> = Mutex::new(String::new());

/// Sets the failure because of which kernels are requested to end, in one line; empty if there is none. It is printed
/// first if the process must exit because a kernel does not end.
pub fn set_reason(why: &str) {
    if let Ok(mut reason) = REASON.lock() {
        why.clone_into(&mut reason);
    }
}

/// Exits without cleanup: freeing memory or calling `exit` would wait for the grid as well. The driver ends the grid
/// when the process has exited.
fn abandon(ending: Duration) -> ! {
    let [reason, task] = [&REASON, &TASK].map(|text| text.lock().map(|text| text.clone()).unwrap_or_default());
    eprintln!("ginlab: {}{task}", abandoned(&reason, ending));
    // SAFETY: ends the process; nothing runs after it.
    unsafe { nix::libc::_exit(124) }
}

/// Returns the message about a kernel that does not end. It starts with the failure because of which the kernel was
/// aborted.
fn abandoned(reason: &str, ending: Duration) -> String {
    let end = if reason.is_empty() { "" } else { "; " };
    format!(
        "{reason}{end}the kernel has not ended {} after it was aborted; check for a barrier that some of its threads \
         do not reach, and for an unbounded loop; the process exits without waiting for it",
        humantime::format_duration(ending)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_without_end_is_reported_after_its_reason() {
        let second = Duration::from_secs(1);
        assert!(abandoned("", second).starts_with("the kernel has not ended 1s after it was aborted; "));
        let lost = abandoned("lost connection to rank 1", second);
        assert!(lost.starts_with("lost connection to rank 1; the kernel has not ended 1s "), "{lost}");
        assert_eq!(lost.lines().count(), 1);
    }
}
