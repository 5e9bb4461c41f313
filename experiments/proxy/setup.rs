//! What a proxy thread opens on its own core: rails, registrations, its end of the ring.

use super::layout::SOURCE;
use ginlab::fabric::discover::Domain;
use ginlab::fabric::libfabric::{LibfabricRail, RailOptions};
use ginlab::fabric::model::{Model, ModelRail};
use ginlab::fabric::near::{Movers, NearRail};
use ginlab::fabric::null::NullRail;
use ginlab::fabric::{Access, Memory, Rail};
use ginlab::proxy::engine::{Engine, EngineError, Opened};
use ginlab::proxy::stage::Stage;
use ginlab::proxy::{Fault, ProxySetup};
use kernels::ring::consumer::Consumer;
use std::sync::Arc;
use std::time::Duration;

/// Commands in flight per proxy thread.
const IN_FLIGHT: usize = 16384;

/// What both kinds of rails need.
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

pub struct LibfabricSetup {
    pub shared: Common,
    pub domains: Vec<Domain>,
    pub options: RailOptions,
}

pub struct ModelSetup {
    pub shared: Common,
    pub rails: usize,
    pub model: Model,
    pub movers: Option<Arc<Movers>>,
}

pub struct NullSetup {
    pub shared: Common,
    pub rails: usize,
}

/// The part of a setup that does not depend on the kind of rail.
macro_rules! common_setup {
    ($shared:ident) => {
        fn cpu(&self) -> Option<usize> {
            self.$shared.cpu
        }
        fn shares_core(&self) -> bool {
            self.$shared.shares_core
        }
        fn fault(&self) -> Option<Fault> {
            self.$shared.fault
        }
        fn take_consumer(&mut self) -> Option<Consumer> {
            self.$shared.consumer.take()
        }
    };
}

impl ProxySetup for LibfabricSetup {
    type Rail = LibfabricRail;
    common_setup!(shared);

    fn open(&mut self) -> Result<Opened<LibfabricRail>, EngineError> {
        let rails = self.domains.iter().map(|domain| LibfabricRail::open(domain, &self.options));
        let rails = rails.collect::<Result<_, _>>()?;
        self.shared.engine(rails)
    }
}

impl ProxySetup for ModelSetup {
    type Rail = ModelRail<NearRail>;
    common_setup!(shared);

    fn open(&mut self) -> Result<Opened<Self::Rail>, EngineError> {
        let below = (0..self.rails).map(|_| NearRail::open("shared memory", self.movers.clone()));
        let rails = self.model.rails(below.collect::<Result<Vec<_>, _>>()?);
        self.shared.engine(rails)
    }
}

impl ProxySetup for NullSetup {
    type Rail = NullRail;
    common_setup!(shared);

    fn open(&mut self) -> Result<Opened<NullRail>, EngineError> {
        let rails = (0..self.rails).map(|_| NullRail::new()).collect();
        self.shared.engine(rails)
    }
}
