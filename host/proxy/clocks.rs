//! Alignment of the device's clock with this process's clock. The CPU repeatedly asks for the device's time, and reads
//! its own clock before and after each answer.

use crate::ping_pong::MeasureError;
use cuda_std::memory::{load_acquire_host_u64, store_release_host_u64};
use cuda_std::thread::global_timer_ns;
use ginlab_cuda::{Device, DeviceError, MemoryLocation};
use kernels::clock::{CLOCK_KERNEL, ClockArgs, answered};
use kernels::ring::{HostWords, Status};
use std::time::{Duration, Instant};

/// Difference between the device's clock and [`global_timer_ns`] of this process at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offset {
    /// Time of the measurement by this process's clock, in nanoseconds.
    pub at_ns: u64,
    /// Device time minus this process's time, in nanoseconds.
    pub offset_ns: f64,
    /// Maximum error of the offset in either direction, in nanoseconds.
    pub uncertainty_ns: f64,
    /// Resolution of the device's clock, in nanoseconds.
    pub step_ns: u64,
}

/// Two offsets, measured before and after a traced run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alignment {
    /// Offset before the run.
    pub before: Offset,
    /// Offset after the run.
    pub after: Offset,
}

impl Alignment {
    /// Converts a time of the device's clock to this process's clock, interpolating linearly between the two offsets.
    #[must_use]
    pub fn to_host(&self, device_ns: u64) -> f64 {
        let (before, after) = (self.before, self.after);
        let at = |offset: &Offset| offset.at_ns as f64 + offset.offset_ns;
        let span = at(&after) - at(&before);
        let part = if span > 0.0 { ((device_ns as f64 - at(&before)) / span).clamp(0.0, 1.0) } else { 0.0 };
        device_ns as f64 - (before.offset_ns + part * (after.offset_ns - before.offset_ns))
    }

    /// Returns the maximum error of a converted time in either direction, in nanoseconds.
    #[must_use]
    pub fn uncertainty_ns(&self) -> f64 {
        self.before.uncertainty_ns.max(self.after.uncertainty_ns)
    }
}

/// One request to the device and its answer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Round {
    asked: u64,
    device: u64,
    heard: u64,
}

/// Measures the offset of the device's clock in `rounds` round trips.
///
/// # Errors
/// Returns [`MeasureError::Device`] if the device fails, and [`MeasureError::Ended`] if the kernel does not answer in
/// time.
pub fn offset(device: &Device, rounds: u64, timeout: Duration) -> Result<Offset, MeasureError> {
    let flags = device.allocate(MemoryLocation::Host, size_of::<HostWords>())?;
    let results = device.allocate(MemoryLocation::Device, 16)?;
    let args = ClockArgs {
        flags: flags.pointer(),
        rounds,
        timeout_ns: timeout.as_nanos() as u64,
        step_ns: results.pointer(),
        stop: (results.address() + 8) as *mut u64,
    };
    // SAFETY: `flags` and `results` live until the launch has ended.
    let launch = unsafe { device.launch(&CLOCK_KERNEL, 1, 1, args) }?;
    // SAFETY: the buffer is zeroed and has the size and alignment of `HostWords`; both sides use atomic accesses.
    let words = unsafe { &*flags.pointer::<HostWords>() };
    let deadline = Instant::now() + timeout;
    let emulated = matches!(device, Device::Emulated);
    let mut found = Vec::with_capacity(rounds as usize);
    'rounds: for round in 1..=rounds {
        let asked = global_timer_ns();
        store_release_host_u64(&words.completion.0.0, round);
        let mut spins = 0u32;
        let device = loop {
            if let Some(time) = answered(round, load_acquire_host_u64(&words.tail.0)) {
                break time;
            }
            spins = spins.wrapping_add(1);
            if spins.is_multiple_of(1 << 10) && Instant::now() > deadline {
                break 'rounds;
            }
            if emulated {
                std::thread::yield_now();
            }
        };
        let heard = global_timer_ns();
        found.push(Round { asked, device, heard });
    }
    // After a timeout the kernel still waits for the remaining requests, so all of them are made now.
    store_release_host_u64(&words.completion.0.0, rounds);
    launch.wait(|| Ok::<(), DeviceError>(()))?;
    let mut results_found = [0u64; 2];
    results.read(0, &mut results_found)?;
    let [step, stop] = results_found;
    if stop != 0 {
        return Err(MeasureError::Ended("clock", Status(stop)));
    }
    fit(&found, step).ok_or(MeasureError::Ended("clock", Status::DEADLINE))
}

/// Intersects the bounds of all rounds. Each round bounds the offset, because the device's clock was read between
/// request and answer. Returns `None` if there are no rounds.
fn fit(rounds: &[Round], step: u64) -> Option<Offset> {
    let difference = |device: u64, host: u64| device as f64 - host as f64;
    // The true device time is between the reading and the reading plus one step.
    let least = rounds.iter().map(|round| difference(round.device, round.heard)).reduce(f64::max)?;
    let most = rounds.iter().map(|round| difference(round.device + step, round.asked)).reduce(f64::min)?;
    let at = rounds[rounds.len() / 2].asked;
    Some(Offset {
        at_ns: at,
        offset_ns: (least + most) / 2.0,
        uncertainty_ns: ((most - least).abs() / 2.0).max(step as f64 / 2.0),
        step_ns: step,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The true offset is within the reported uncertainty, for any latencies of request and answer.
        #[test]
        fn true_offset_is_within_range(
            ways in proptest::collection::vec((100u64..5000, 100u64..5000), 1..50), offset in 0u64..1 << 40, step in 1u64..64,
        ) {
            let mut now = 1 << 20;
            let rounds: Vec<Round> = ways.iter().map(|(there, back)| {
                let asked = now;
                let device = (asked + there + offset) / step * step;
                now += there + back;
                Round { asked, device, heard: now }
            }).collect();
            let fitted = fit(&rounds, step).expect("there are rounds");
            prop_assert!((fitted.offset_ns - offset as f64).abs() <= fitted.uncertainty_ns + 1.0, "{fitted:?}");
        }
    }

    #[test]
    fn drift_between_offsets_is_removed() {
        let at = |at_ns, offset_ns| Offset { at_ns, offset_ns, uncertainty_ns: 1.0, step_ns: 1 };
        let alignment = Alignment { before: at(1000, 500.0), after: at(2000, 600.0) };
        assert_eq!(alignment.to_host(1500), 1000.0);
        assert_eq!(alignment.to_host(2600), 2000.0);
        assert!((alignment.to_host(2050) - 1500.0).abs() < 1e-9);
    }

    #[test]
    fn emulated_device_uses_host_clock() {
        let device = Device::Emulated;
        let found = offset(&device, 100, Duration::from_secs(20)).expect("an offset");
        assert!(found.offset_ns.abs() <= found.uncertainty_ns, "{found:?}");
    }
}
