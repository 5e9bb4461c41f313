//! What a proxy thread opens on its own core: rails, registrations, its end of the ring.

use super::layout::SOURCE;
use ginlab::fabric::{Access, FabricError, Memory, Rail};
use ginlab::proxy::engine::{Engine, EngineError, Opened};
use ginlab::proxy::stage::Stage;
use ginlab::proxy::{Fault, ProxySetup};
use kernels::ring::consumer::Consumer;
use std::time::Duration;

/// Commands in flight per proxy thread.
const IN_FLIGHT: usize = 16384;

/// What all kinds of rails need.
pub struct Common {
    pub memories: [Memory; 2],
    pub stage: Option<Stage>,
    pub consumer: Option<Consumer>,
    pub cpu: Option<usize>,
    pub shares_core: bool,
    pub timeout: Duration,
    pub fault: Option<Fault>,
}

impl Common {
    fn engine<R: Rail>(&mut self, rails: Vec<R>) -> Result<Opened<R>, EngineError> {
        let mut engine = Engine::new(rails, IN_FLIGHT, self.timeout);
        let mut regions = Vec::new();
        for (number, memory) in self.memories.into_iter().enumerate() {
            let is_source = number == SOURCE as usize;
            let stage = if is_source { self.stage.take() } else { None };
            // Of a peer's memory the destination alone is written, and nothing is read.
            let access = if is_source { Access::SOURCE } else { Access::REMOTE_WRITE };
            // SAFETY: the buffers belong to the Rank, which drops its proxies first.
            regions.push(unsafe { engine.register(memory, access, stage) }?);
        }
        Ok((engine, regions))
    }
}

/// How a proxy thread opens its rails, and what all kinds of rails need.
pub struct Setup<F> {
    shared: Common,
    open: F,
}

impl<F> Setup<F> {
    pub fn new<R>(shared: Common, open: F) -> Setup<F>
    where
        F: FnMut() -> Result<Vec<R>, FabricError>,
    {
        Setup { shared, open }
    }
}

impl<R: Rail, F: FnMut() -> Result<Vec<R>, FabricError> + Send + 'static> ProxySetup for Setup<F> {
    type Rail = R;

    fn cpu(&self) -> Option<usize> {
        self.shared.cpu
    }

    fn shares_core(&self) -> bool {
        self.shared.shares_core
    }

    fn fault(&self) -> Option<Fault> {
        self.shared.fault
    }

    fn take_consumer(&mut self) -> Option<Consumer> {
        self.shared.consumer.take()
    }

    fn open(&mut self) -> Result<Opened<R>, EngineError> {
        let rails = (self.open)()?;
        self.shared.engine(rails)
    }
}
