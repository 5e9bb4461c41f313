//! The proxy threads of a rank, each with a ring and rails of its own: what every program stands on whose kernels put.

use crate::engine::{Engine, EngineError, Opened, SignalRule};
use crate::ring::{RingMemory, RingPlace, RingTable};
use crate::stage::Stage;
use crate::{Cores, Fault, Offer, Proxy, ProxyError, Setup, Snapshot, connect, device_timeout};
use ginlab_bootstrap::{Bootstrap, BootstrapError};
use ginlab_cuda::{Buffer, CopyQueue, Device, DeviceError, Flush, Place};
use ginlab_fabric::chosen::BareWrites;
use ginlab_fabric::{Access, Chosen, FabricError, Memory, Rail, TakesRails};
use ginlab_rails::strategy::Strategy;
use kernels::ring::LOG2_COMMAND_WORDS;
use std::time::Duration;

/// Commands in flight per proxy thread.
const IN_FLIGHT: usize = 16384;

/// What the threads register, by number; the same on every rank.
#[derive(Clone, Copy, Debug)]
pub struct GroupRegion<'a> {
    /// Where the rails' bytes are.
    pub bytes: Bytes<'a>,
    /// What for.
    pub access: Access,
}

/// Where the bytes of a region are.
#[derive(Clone, Copy, Debug)]
pub enum Bytes<'a> {
    /// In memory that the rails reach.
    Here(Memory),
    /// In GPU memory that they do not reach: each thread copies it into pinned memory of its own before a write.
    Staged(&'a Buffer),
}

/// How a group is started.
pub struct GroupOptions<'a> {
    /// Proxy threads.
    pub threads: usize,
    /// Where the rings are.
    pub ring_place: RingPlace,
    /// Slots of a ring, a power of two.
    pub ring_slots: usize,
    /// Nothing may stand still for longer.
    pub timeout: Duration,
    /// A fault to inject into each thread.
    pub fault: Option<Fault>,
    /// Where the threads run.
    pub cores: &'a Cores,
    /// How signals are raised and counted, of programs that have some.
    pub signals: Option<&'a dyn Fn() -> SignalRule>,
    /// See [`Setup::flush`]; made for each thread.
    pub flush: &'a dyn Fn() -> Option<Flush>,
}

/// See the module. Fields are dropped in this order: the threads let go of the memory before it is freed.
#[derive(Debug)]
pub struct ProxyGroup {
    proxies: Vec<Proxy>,
    table: RingTable,
    rings: Vec<RingMemory>,
    _staging: Vec<Buffer>,
}

/// What a thread makes of its rails.
struct Start {
    setup: Setup,
    timeout: Duration,
    regions: Vec<(Memory, Access, Option<Stage>)>,
    signals: Option<SignalRule>,
}

impl TakesRails for Start {
    type Output = Result<Proxy, ProxyError>;

    fn take<R: Rail + 'static>(
        self,
        open: impl FnOnce() -> Result<Vec<R>, FabricError> + Send + 'static,
        bare: Option<BareWrites<R>>,
    ) -> Result<Proxy, ProxyError> {
        let Start { setup, timeout, regions, signals } = self;
        Proxy::start(setup, timeout, move || -> Result<Opened<R>, EngineError> {
            let mut engine = Engine::new(open()?, IN_FLIGHT, timeout);
            engine.set_bare_writes(bare);
            let takes_values = signals.is_some();
            if let Some(signals) = signals {
                engine.set_signals(signals)?;
            }
            // SAFETY: the memory is kept longer than the group (`ProxyGroup::start`), copies by the group itself, behind its threads.
            let register = |(memory, access, stage)| unsafe { engine.register(memory, access, stage) };
            let regions = regions.into_iter().map(register).collect::<Result<_, _>>()?;
            if takes_values {
                engine.accept_values()?;
            }
            Ok((engine, regions))
        })
    }
}

impl ProxyGroup {
    /// Starts the threads over these rails and waits until they are open.
    ///
    /// # Safety
    /// The regions' memory and the signals' words stay valid and in place as long as the group.
    ///
    /// # Errors
    /// What could not be allocated or opened.
    pub unsafe fn start<E>(
        device: &Device,
        chosen: &Chosen,
        regions: &[GroupRegion<'_>],
        options: &GroupOptions<'_>,
    ) -> Result<ProxyGroup, E>
    where
        E: From<DeviceError> + From<ProxyError>,
    {
        let (mut proxies, mut rings, mut staging) = (Vec::new(), Vec::new(), Vec::new());
        for thread in 0..options.threads.max(1) {
            let patience = device_timeout(options.timeout);
            let ring = RingMemory::of(device, options.ring_place, options.ring_slots, LOG2_COMMAND_WORDS, patience)?;
            let mut own = Vec::new();
            for region in regions {
                own.push(match region.bytes {
                    Bytes::Here(memory) => (memory, region.access, None),
                    Bytes::Staged(source) => {
                        let (copy, stage) = stage(device, chosen, source)?;
                        let memory = Memory { address: copy.address(), bytes: copy.bytes(), cuda_device: None };
                        staging.push(copy);
                        (memory, region.access, Some(stage))
                    }
                });
            }
            let setup = Setup {
                cpu: options.cores.cpus.get(thread).copied(),
                shares_core: options.cores.shared,
                fault: options.fault,
                // SAFETY: taken once per ring; the group keeps the ring behind its threads.
                consumer: Some(unsafe { ring.consumer() }),
                flush: (options.flush)(),
            };
            let start =
                Start { setup, timeout: options.timeout, regions: own, signals: options.signals.map(|rule| rule()) };
            rings.push(ring);
            proxies.push(chosen.give(thread as u16, start)?);
        }
        let table = RingTable::new(device, &rings)?;
        Ok(ProxyGroup { proxies, table, rings, _staging: staging })
    }

    /// Exchanges addresses and regions: thread `t` of every rank talks to thread `t` of the others.
    ///
    /// # Errors
    /// A rank's or a proxy's.
    pub fn connect<E>(&self, ranks: &mut Bootstrap) -> Result<(), E>
    where
        E: From<BootstrapError> + From<ProxyError>,
    {
        connect(ranks, &self.proxies)
    }

    /// Uses the first `rails` rails in this way from now on.
    ///
    /// # Errors
    /// When a thread has failed.
    pub fn configure(&self, rails: usize, strategy: Strategy) -> Result<(), ProxyError> {
        self.proxies.iter().try_for_each(|proxy| proxy.configure(rails, strategy))
    }

    /// The threads.
    pub fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    /// Their rings.
    pub fn rings(&self) -> &[RingMemory] {
        &self.rings
    }

    /// The rings as kernels get them.
    pub fn table(&self) -> &RingTable {
        &self.table
    }

    /// What the first thread opened; the others open the same.
    pub fn offer(&self) -> &Offer {
        self.proxies[0].offer()
    }

    /// Where each ring stands, for messages about waits that ended.
    pub fn ring_states(&self) -> Vec<String> {
        self.rings.iter().enumerate().map(|(index, ring)| format!("ring {index}: {}", ring.state())).collect()
    }

    /// Cores of the threads, for headers.
    pub fn affinity(&self) -> String {
        let core = |proxy: &Proxy| proxy.offer().cpu.map_or_else(|| "not pinned".into(), |cpu| format!("core {cpu}"));
        format!("proxy threads: {}", self.proxies.iter().map(core).collect::<Vec<String>>().join(", "))
    }

    /// The threads' counters.
    ///
    /// # Errors
    /// When one has failed.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>, ProxyError> {
        self.proxies.iter().map(Proxy::snapshot).collect()
    }

    /// Why threads have ended, of those that have.
    pub fn failures(&self) -> impl Iterator<Item = ProxyError> {
        self.proxies.iter().filter_map(Proxy::failure)
    }

    /// Asks the threads to end: kernels that wait get a status. Does not wait.
    pub fn stop(&self) {
        self.proxies.iter().for_each(Proxy::stop);
    }
}

/// A copy in pinned memory, and what fills it.
fn stage(device: &Device, chosen: &Chosen, source: &Buffer) -> Result<(Buffer, Stage), DeviceError> {
    let Device::Gpu(gpu) = device else {
        return Err(DeviceError::Refused("memory of the emulated device needs no staging".into()));
    };
    let copy = device.allocate(Place::Host, source.bytes())?;
    // SAFETY: the copy is as long as the source and is kept by the group behind its threads; the source by the caller of `start`.
    let stage = unsafe { Stage::new(CopyQueue::new(gpu)?, source.address(), copy.address()) };
    Ok((
        copy,
        match chosen.model() {
            // Cards that move no bytes read none.
            Some(model) => stage.only_while(model.moves()),
            None => stage,
        },
    ))
}
