//! The floor under every acknowledged push: a flag to the CPU and its answer, the CPU's side.

use crate::ring::answer_flag;
use crate::{Proxy, ProxyError};
use ginlab_cuda::{Buffer, Device, DeviceError, Launch, Place};
use kernels::ping_pong::{PING_PONG, PingPongArgs};
use kernels::ring::{HostWords, Status};
use std::time::Duration;

/// Spins between two looks at the launch. Seldom: asking the driver takes longer than a round trip, and the answer would
/// wait for it.
const LOOK_EVERY: u32 = 1 << 20;
/// The same on the emulated device, where this thread gives way in between.
const LOOK_EVERY_EMULATED: u32 = 1 << 12;
/// Spins there before this thread gives way.
const SPINS_BEFORE_YIELD: u32 = 1 << 8;

/// Why a kernel has measured nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeasureError {
    /// The device's.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// The proxy's, which was to answer.
    #[error("{0}")]
    Proxy(#[from] ProxyError),
    /// This kernel gave up, or did not answer.
    #[error("the {} kernel ended early: {}", .0, .1.text())]
    Ended(&'static str, Status),
}

/// What goes with the flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag<'a> {
    /// A payload that the block writes before each flag, of this many bytes (a multiple of 8), behind a system fence and
    /// with acquiring polls, as a put and its quiet have them. `None`: the bare flag, nothing ordered.
    pub payload: Option<(&'a Buffer, u64)>,
    /// Nanoseconds from the flag to the first poll of the answer.
    pub first_poll_ns: u64,
}

/// Microseconds of one round trip from a block of this many threads to the thread that answers and back: the proxy's, so that a floor has
/// the puts' own thread, core and neighbours, or this one.
///
/// # Errors
/// See [`MeasureError`].
pub fn round_trip(
    device: &Device,
    block: u32,
    iterations: u64,
    timeout: Duration,
    flag: Flag<'_>,
    proxy: Option<&Proxy>,
) -> Result<f64, MeasureError> {
    let flags = device.allocate(Place::Host, size_of::<HostWords>())?;
    let results = device.allocate(Place::Device, 16)?;
    let args = PingPongArgs {
        flags: flags.pointer(),
        payload: flag.payload.map_or(std::ptr::null_mut(), |(payload, _)| payload.pointer()),
        bytes: flag.payload.map_or(0, |(_, bytes)| bytes),
        iterations,
        ordered: flag.payload.is_some().into(),
        first_poll_ns: flag.first_poll_ns,
        timeout_ns: timeout.as_nanos() as u64,
        elapsed_ns: results.pointer(),
        stop: (results.address() + 8) as *mut u64,
    };
    // SAFETY: flags, results and the borrowed payload live until the launch has ended.
    let launch = || unsafe { device.launch(&PING_PONG, 1, block, args) };
    match proxy {
        Some(proxy) => {
            let run = || launch()?.wait(|| Ok::<(), DeviceError>(()));
            // SAFETY: the flags are freed below, or not at all: after an error the thread may still use them.
            let ran = unsafe { proxy.answer_flags(flags.pointer::<HostWords>(), run) };
            ran.inspect_err(|_| ginlab_cuda::keep_buffers())??;
        }
        None => answer_here(launch()?, &flags, matches!(device, Device::Emulated))?,
    }
    let mut found = [0u64; 2];
    results.read(0, &mut found)?;
    match found {
        [elapsed, 0] => Ok(elapsed as f64 / 1000.0 / iterations as f64),
        [_, stop] => Err(MeasureError::Ended("ping-pong", Status(stop))),
    }
}

fn answer_here(mut launch: Launch, flags: &Buffer, emulated: bool) -> Result<(), DeviceError> {
    // SAFETY: zeroed memory of this size and alignment; all parties use atomic accesses.
    let words = unsafe { &*flags.pointer::<HostWords>() };
    let look_every = if emulated { LOOK_EVERY_EMULATED } else { LOOK_EVERY };
    let (mut answered, mut spins) = (0, 0u32);
    loop {
        if answer_flag(words, &mut answered) {
            continue;
        }
        spins = spins.wrapping_add(1);
        if spins.is_multiple_of(look_every) && launch.is_done()? {
            return Ok(());
        }
        if emulated && spins.is_multiple_of(SPINS_BEFORE_YIELD) {
            std::thread::yield_now();
        }
    }
}
