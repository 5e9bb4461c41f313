//! Case `direct`: the same kernel posts its puts as requests to the NICs' own queues, without ring and proxy.

use super::args::ProxyArgs;
use super::layout::memory_of;
use super::machine::MemoryPath;
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, Device, MemoryLocation};
use ginlab::direct::{ChannelError, ChannelOptions, Channels};
use ginlab::fabric::RailPlan;
use ginlab::proxy::device_timeout;
use kernels::direct::Channel;
use kernels::gin::Control;
use kernels::ring::Status;

/// Maximum number of requests in flight per queue: that of a rail.
const DEPTH: u32 = 4096;
/// Number of receive entries. Puts without signals use none at their target.
const ARRIVALS: u32 = 64;

/// A queue on each rail's NIC. Block `b` uses the queue of rail `b` modulo the rails of a row.
pub struct NicQueues {
    channels: Channels,
    abort: Buffer,
}

impl NicQueues {
    /// Opens the queues on all ranks. The inner error is the reason if they cannot be used, the same on all ranks.
    ///
    /// # Safety
    /// The payload must stay valid until the queues are dropped.
    pub unsafe fn open(
        args: &ProxyArgs,
        ranks: &mut Bootstrap,
        (device, chosen): (&Device, &RailPlan),
        (payload, path): (&Buffer, MemoryPath),
    ) -> Result<Result<NicQueues, String>, Failure> {
        // A staged payload is copied by a proxy, which this case does not have.
        let is_reached = !path.is_staged();
        if ranks.all_gather_values(&is_reached, "payloads that NIC queues can access")?.contains(&false) {
            return Ok(Err(
                "the payload is in GPU memory that the NIC cannot register (see the header for the reason); \
                           use --memory pinned"
                    .into(),
            ));
        }
        let abort = device.allocate(MemoryLocation::Host, size_of::<Control>())?;
        let cards: Vec<&str> = chosen.domains().iter().take(args.most_rails()).map(|card| card.name.as_str()).collect();
        let options = ChannelOptions {
            device,
            cards: &cards,
            memory: memory_of(payload, device, path == MemoryPath::Device),
            heap_bytes: payload.bytes() as u64,
            depth: DEPTH,
            arrivals: ARRIVALS,
            counted_signals: 0,
            abort: &abort,
            timeout_ns: device_timeout(args.meet.timeout).as_nanos() as u64,
        };
        // SAFETY: the caller of `open` keeps the payload valid.
        let channels = unsafe { Channels::open(ranks, &options) }?;
        Ok(Ok(NicQueues { channels, abort }))
    }

    /// Returns the channels of the queues, as kernel arguments.
    pub fn table(&self) -> *const Channel {
        self.channels.table()
    }

    /// Returns the number of queues of the first `rails` rails.
    pub fn count(&self, rails: usize) -> u32 {
        self.channels.count().min(u32::try_from(rails).unwrap_or(u32::MAX))
    }

    /// Returns a number that changes when a kernel rings a doorbell.
    pub fn pulse(&self) -> Result<u64, Failure> {
        Ok(self.channels.pulse()?)
    }

    /// Aborts the waits of kernels.
    pub fn stop(&self) {
        // A driver that cannot write host memory has reported that before, and the kernels have a deadline.
        let _ = self.abort.write(0, &[Status::ENDED.0]);
    }

    /// Returns the failures that the NICs report.
    pub fn failures(&self) -> Vec<String> {
        self.channels.failures().unwrap_or_else(|error| vec![error.to_string()])
    }
}

impl From<ChannelError> for Failure {
    fn from(error: ChannelError) -> Failure {
        match error {
            ChannelError::Refused(text) => Failure::Usage(format!("--cases direct: {text}")),
            ChannelError::Ranks(error) => error.into(),
            ChannelError::Device(error) => error.into(),
            ChannelError::Fabric(error) => error.into(),
        }
    }
}
