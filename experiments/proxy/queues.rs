//! Case `direct`: the same kernel, whose puts become requests in the cards' own queues, without ring and proxy.

use super::args::Args;
use super::layout::memory_of;
use super::machine::MemoryPath;
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, Device, Place};
use ginlab::direct::{ChannelError, ChannelOptions, Channels};
use ginlab::fabric::Chosen;
use ginlab::proxy::device_timeout;
use kernels::ring::{Ring, Status};

/// Requests of a queue that are under way at most: as many as a rail has.
const DEPTH: u32 = 4096;
/// Puts raise nothing at their target.
const ARRIVALS: u32 = 64;

/// A queue on each rail's card: block `b` puts by that of rail `b` modulo the rails of a row.
pub struct Queues {
    channels: Channels,
    abort: Buffer,
}

impl Queues {
    /// Opens them with all ranks, where the case is measured; otherwise says why not, alike on all ranks.
    ///
    /// # Safety
    /// The payload stays in place until they are dropped.
    pub unsafe fn open(
        args: &Args,
        ranks: &mut Bootstrap,
        (device, chosen): (&Device, &Chosen),
        (payload, path): (&Buffer, MemoryPath),
    ) -> Result<Result<Queues, String>, Failure> {
        // A staged payload is copied by a proxy, and none has a part in this case.
        let is_reached = !path.is_staged();
        if ranks.all_gather_values(&is_reached, "payloads that cards' queues reach")?.contains(&false) {
            return Ok(Err("the payload is in GPU memory that the card does not register, for the reason in the header: --mem pinned".into()));
        }
        let abort = device.allocate(Place::Host, 8)?;
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
            timeout_ns: device_timeout(args.timeout).as_nanos() as u64,
        };
        // SAFETY: the caller's word.
        let channels = unsafe { Channels::open(ranks, &options) }?;
        Ok(Ok(Queues { channels, abort }))
    }

    /// In place of a proxy's rings.
    pub fn rings(&self) -> *const Ring {
        self.channels.rings()
    }

    /// As many as these rails have.
    pub fn count(&self, rails: usize) -> u32 {
        self.channels.count().min(u32::try_from(rails).unwrap_or(u32::MAX))
    }

    /// Ends the kernels that wait.
    pub fn stop(&self) {
        // A driver that writes no host memory has said so before, and the kernels have a deadline.
        let _ = self.abort.write(0, &[Status::ENDED.0]);
    }

    /// What the cards say.
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
