//! CPU side of the lower bound of every acknowledged push: the round trip of a flag from a kernel to the CPU and back.

use crate::ring::answer_flag;
use crate::{Proxy, ProxyError};
use ginlab_cuda::{Buffer, Device, DeviceError, Launch, MemoryLocation};
use kernels::ping_pong::{PING_PONG, PingPongArgs};
use kernels::ring::{HostWords, Status};
use std::time::Duration;

/// Number of unsuccessful polls of the flag between two checks of the launch. It is large, because a driver call takes
/// longer than a round trip and delays the answer to a flag.
const LOOK_EVERY: u32 = 1 << 20;
/// Like `LOOK_EVERY`, on the emulated device, where this thread yields between polls.
const LOOK_EVERY_EMULATED: u32 = 1 << 12;
/// Number of unsuccessful polls before this thread yields, on the emulated device.
const SPINS_BEFORE_YIELD: u32 = 1 << 8;

/// Error of a measurement kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeasureError {
    /// A device operation failed.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// The proxy thread that answers the flags failed.
    #[error("{0}")]
    Proxy(#[from] ProxyError),
    /// The named kernel ended early with this status, or did not respond.
    #[error("the {} kernel exited early: {}", .0, .1.text())]
    Ended(&'static str, Status),
}

/// Options of a round trip.
#[derive(Clone, Copy, Debug)]
pub struct Flag<'a> {
    /// Payload buffer and number of bytes (a multiple of 8) that the block writes before each flag. The kernel then
    /// uses a system fence and acquire polls, like a put and its quiet. With `None` it uses only the flag, without
    /// ordering.
    pub payload: Option<(&'a Buffer, u64)>,
    /// Nanoseconds from the flag to the first poll of the answer.
    pub first_poll_ns: u64,
}

/// Returns the duration in microseconds of one round trip from a block of `block` threads to the answering CPU thread
/// and back. With `proxy`, the proxy's thread answers, so that the bound is measured on the same thread and core as the
/// puts. Otherwise the calling thread answers.
///
/// # Errors
/// Returns a [`MeasureError`] if the device or the proxy fails, or if the kernel ends early.
pub fn round_trip(
    device: &Device,
    block: u32,
    iterations: u64,
    timeout: Duration,
    flag: Flag<'_>,
    proxy: Option<&Proxy>,
) -> Result<f64, MeasureError> {
    let flags = device.allocate(MemoryLocation::Host, size_of::<HostWords>())?;
    let results = device.allocate(MemoryLocation::Device, 16)?;
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
    // SAFETY: `flags`, `results` and the borrowed payload live until the launch has ended.
    let launch = || unsafe { device.launch(&PING_PONG, 1, block, args) };
    match proxy {
        Some(proxy) => {
            let run = || launch()?.wait(|| Ok::<(), DeviceError>(()));
            // SAFETY: on success the flags are freed after this call. After an error the thread may still use them, and
            // `keep_buffers` prevents them from being freed.
            let ran = unsafe { proxy.run_ping_pong(flags.pointer::<HostWords>(), run) };
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
    // SAFETY: the buffer is zeroed and has the size and alignment of `HostWords`; all parties use atomic accesses.
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
