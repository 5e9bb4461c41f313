//! How the CPU waits for work of a device: with an end, whatever the work does.

use super::{DeviceError, emulated};
use nix::time::{ClockId, clock_gettime};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A grid of the emulated device is not given up before this process has had this part of the time on a processor, or has waited so many times as
/// long: on a machine with 20 ready threads on two cores, one that was niced had 0.2 s in 20 s, and its kernels were taken for hanging.
const SHARE: u32 = 8;

/// How long work may go on after it was asked to end: longer than a kernel's own waits do.
pub(super) const ENDING: Duration = Duration::from_secs(60);

/// Asks `done` until it says so, calling `watch` every few milliseconds. An error from `watch`, which has asked the work to end by then, is
/// returned once it has; so long after it the process ends without the work.
///
/// # Errors
/// That of `done`, or the first one from `watch`.
pub fn wait_for<E: From<DeviceError>>(
    ending: Duration,
    mut done: impl FnMut() -> Result<bool, DeviceError>,
    mut watch: impl FnMut() -> Result<(), E>,
) -> Result<(), E> {
    let mut failed = None;
    let mut pause = Duration::from_micros(20);
    while !done()? {
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
        match &failed {
            None => failed = watch().err().map(|error| (error, Instant::now(), processor_time())),
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

/// What all threads of this process have had of processors.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::MAX, Duration::from)
}

/// Waits for the end of work whose memory may be freed next. What goes wrong with it has been told, or will be by the next call. Every wait in a
/// kernel is bounded, and so is this one, for kernels that are not as they should be.
pub(super) fn wait_out(done: impl FnMut() -> Result<bool, DeviceError>) {
    let ended = || DeviceError::Refused("not wanted any more".into());
    let _ = wait_for(ENDING, done, || Err(ended()));
}

/// What the process is at, where that is not its command line.
static TASK: Mutex<String> = Mutex::new(String::new());

/// Says what the process is at, for the last line of one that has to end without a kernel: of many programs that it runs one after the other, the
/// one that does not end.
pub fn set_task(what: &str) {
    if let Ok(mut task) = TASK.lock() {
        what.clone_into(&mut task);
    }
}

/// Freeing memory or leaving by `exit` would wait for the grid as well. When the process is gone the driver ends it.
fn abandon(ending: Duration) -> ! {
    eprintln!(
        "ginlab: the kernel has not ended {} after it was asked to: is there a barrier that some of its threads do not reach, or a loop \
         without a bound? The process ends without it{}",
        humantime::format_duration(ending),
        TASK.lock().map(|task| task.clone()).unwrap_or_default()
    );
    // SAFETY: ends the process; nothing runs after it.
    unsafe { nix::libc::_exit(124) }
}
