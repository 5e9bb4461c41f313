//! What a proxy thread opens on its own core: rails, registrations, its end of the ring.

use super::layout::SOURCE;
use ginlab::fabric::{Access, FabricError, Memory, Rail};
use ginlab::proxy::engine::Engine;
use ginlab::proxy::stage::Stage;
use ginlab::proxy::{Proxy, ProxyError, Setup};
use std::time::Duration;

/// Commands in flight per proxy thread.
const IN_FLIGHT: usize = 16384;

/// Starts a proxy thread over the rails that `open` opens, with both regions.
pub fn start<R: Rail + 'static>(
    setup: Setup,
    memories: [Memory; 2],
    mut stage: Option<Stage>,
    timeout: Duration,
    open: impl FnOnce() -> Result<Vec<R>, FabricError> + Send + 'static,
) -> Result<Proxy, ProxyError> {
    Proxy::start(setup, timeout, move || {
        let mut engine = Engine::new(open()?, IN_FLIGHT, timeout);
        let mut regions = Vec::new();
        for (number, memory) in memories.into_iter().enumerate() {
            let is_source = number == SOURCE as usize;
            let stage = if is_source { stage.take() } else { None };
            // Of a peer's memory the destination alone is written, and nothing is read.
            let access = if is_source { Access::SOURCE } else { Access::REMOTE_WRITE };
            // SAFETY: the buffers belong to the Rank, which drops its proxies first.
            regions.push(unsafe { engine.register(memory, access, stage) }?);
        }
        Ok((engine, regions))
    })
}
