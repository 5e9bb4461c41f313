//! The proxy threads of a rank, each with its own ring and rails. All programs whose kernels issue puts use this
//! module.

use crate::engine::{Engine, EngineError, OpenedEngine, SignalRule};
use crate::ring::{RingMemory, RingPlace, RingTable};
use crate::stage::Stage;
use crate::{Cores, Proxy, ProxyError, ProxyFault, ProxyOffer, ProxyThreadOptions, Snapshot, connect, device_timeout};
use ginlab_bootstrap::{Bootstrap, BootstrapError};
use ginlab_cuda::{Buffer, CopyQueue, Device, DeviceError, Flush, MemoryLocation};
use ginlab_fabric::chosen::BareWrites;
use ginlab_fabric::{Access, FabricError, MemoryRange, Rail, RailPlan, RailVisitor};
use ginlab_rails::strategy::Strategy;
use kernels::ring::{LOG2_COMMAND_WORDS, Status};
use std::time::Duration;

/// Commands in flight per proxy thread.
const IN_FLIGHT: usize = 16384;

/// A memory region that each thread registers. All ranks must have the same regions in the same order.
#[derive(Clone, Copy, Debug)]
pub struct GroupRegion<'a> {
    /// Location of the bytes.
    pub bytes: RegionMemory<'a>,
    /// Uses that the registration allows.
    pub access: Access,
}

/// Location of the bytes of a region.
#[derive(Clone, Copy, Debug)]
pub enum RegionMemory<'a> {
    /// Memory that the rails can access.
    Here(MemoryRange),
    /// GPU memory that the rails cannot access. Each thread copies the bytes to its own pinned memory before a write.
    Staged(&'a Buffer),
}

/// Options of [`ProxyGroup::start`].
pub struct GroupOptions<'a> {
    /// Number of proxy threads.
    pub threads: usize,
    /// Whether each thread opens an equal part of the rails. Otherwise each opens all of them, and threads share NICs.
    pub own_rails: bool,
    /// Memory in which the rings are allocated.
    pub ring_place: RingPlace,
    /// Number of slots per ring, a power of two.
    pub ring_slots: usize,
    /// Maximum time without progress.
    pub timeout: Duration,
    /// Fault to inject into each thread.
    pub fault: Option<ProxyFault>,
    /// Cores of the threads.
    pub cores: &'a Cores,
    /// Creates the signal rule of a thread. `None` if the program has no signals.
    pub signals: Option<&'a dyn Fn() -> SignalRule>,
    /// Creates the flush of a thread; see [`ProxyThreadOptions::flush`].
    pub flush: &'a dyn Fn() -> Option<Flush>,
}

/// A running group of proxy threads. See the module documentation. Fields are dropped in declaration order: the threads
/// end before the memory is freed.
#[derive(Debug)]
pub struct ProxyGroup {
    proxies: Vec<Proxy>,
    table: RingTable,
    rings: Vec<RingMemory>,
    _staging: Vec<Buffer>,
}

/// Parameters of a thread. The thread starts with them once its rails are selected.
struct Start {
    setup: ProxyThreadOptions,
    timeout: Duration,
    regions: Vec<(MemoryRange, Access, Option<Stage>)>,
    signals: Option<SignalRule>,
}

impl RailVisitor for Start {
    type Output = Result<Proxy, ProxyError>;

    fn take<R: Rail + 'static>(
        self,
        open: impl FnOnce() -> Result<Vec<R>, FabricError> + Send + 'static,
        bare: Option<BareWrites<R>>,
    ) -> Result<Proxy, ProxyError> {
        let Start { setup, timeout, regions, signals } = self;
        Proxy::start(setup, timeout, move || -> Result<OpenedEngine<R>, EngineError> {
            let mut engine = Engine::new(open()?, IN_FLIGHT, timeout);
            engine.set_bare_writes(bare);
            let takes_values = signals.is_some();
            if let Some(signals) = signals {
                engine.set_signals(signals)?;
            }
            // SAFETY: the caller of `ProxyGroup::start` keeps the regions' memory valid for longer than the group. The
            // group owns the staging copies and drops them after its threads.
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
    /// Starts the threads over the chosen rails and waits until these are open.
    ///
    /// # Safety
    /// The regions' memory and the signals' words must stay valid and must not move for the lifetime of the group.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated or a rail cannot be opened.
    pub unsafe fn start<E>(
        device: &Device,
        chosen: &RailPlan,
        regions: &[GroupRegion<'_>],
        options: &GroupOptions<'_>,
    ) -> Result<ProxyGroup, E>
    where
        E: From<DeviceError> + From<ProxyError>,
    {
        let (mut proxies, mut rings, mut staging) = (Vec::new(), Vec::new(), Vec::new());
        let threads = options.threads.max(1);
        for thread in 0..threads {
            let patience = device_timeout(options.timeout);
            let ring = RingMemory::of(device, options.ring_place, options.ring_slots, LOG2_COMMAND_WORDS, patience)?;
            let mut own = Vec::new();
            for region in regions {
                own.push(match region.bytes {
                    RegionMemory::Here(memory) => (memory, region.access, None),
                    RegionMemory::Staged(source) => {
                        let (copy, stage) = stage(device, chosen, source)?;
                        let memory = MemoryRange { address: copy.address(), bytes: copy.bytes(), cuda_device: None };
                        staging.push(copy);
                        (memory, region.access, Some(stage))
                    }
                });
            }
            let setup = ProxyThreadOptions {
                cpu: options.cores.cpus.get(thread).copied(),
                shares_core: options.cores.shared,
                fault: options.fault,
                // SAFETY: each ring has commands as slots and its consumer is taken only once; the group drops the ring
                // after its threads.
                consumer: Some(unsafe { ring.consumer() }),
                flush: (options.flush)(),
            };
            let start =
                Start { setup, timeout: options.timeout, regions: own, signals: options.signals.map(|rule| rule()) };
            rings.push(ring);
            let part = if options.own_rails { &chosen.part(thread, threads) } else { chosen };
            proxies.push(part.give(thread as u16, start)?);
        }
        let table = RingTable::new(device, &rings)?;
        Ok(ProxyGroup { proxies, table, rings, _staging: staging })
    }

    /// Exchanges addresses and regions. Thread `t` of a rank communicates with thread `t` of the other ranks.
    ///
    /// # Errors
    /// Returns an error if another rank has disconnected, if the ranks differ in their number of threads, or if a proxy
    /// thread fails.
    pub fn connect<E>(&self, ranks: &mut Bootstrap) -> Result<(), E>
    where
        E: From<BootstrapError> + From<ProxyError>,
    {
        connect(ranks, &self.proxies)
    }

    /// Uses the first `rails` rails with `strategy` for subsequent commands.
    ///
    /// # Errors
    /// Returns an error if a thread has failed.
    pub fn configure(&self, rails: usize, strategy: Strategy) -> Result<(), ProxyError> {
        self.proxies.iter().try_for_each(|proxy| proxy.configure(rails, strategy))
    }

    /// Starts to measure the time with transfers in flight on each rail. Must not be called while commands are in
    /// flight.
    ///
    /// # Errors
    /// Returns an error if a thread has failed.
    pub fn time_rails(&self) -> Result<(), ProxyError> {
        self.proxies.iter().try_for_each(Proxy::time_rails)
    }

    /// Returns the threads.
    pub fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    /// Returns the rings, one per thread.
    pub fn rings(&self) -> &[RingMemory] {
        &self.rings
    }

    /// Returns the rings in the form that kernels accept.
    pub fn table(&self) -> &RingTable {
        &self.table
    }

    /// Returns the offer of the first thread. The other threads open the same regions, and the same rails unless each
    /// has its own.
    pub fn offer(&self) -> &ProxyOffer {
        self.proxies[0].offer()
    }

    /// Returns a one-line state of each ring, for messages about waits that failed.
    pub fn ring_states(&self) -> Vec<String> {
        self.rings.iter().enumerate().map(|(index, ring)| format!("ring {index}: {}", ring.state())).collect()
    }

    /// Returns the cores of the threads as text, for headers.
    pub fn affinity(&self) -> String {
        let core = |proxy: &Proxy| proxy.offer().cpu.map_or_else(|| "not pinned".into(), |cpu| format!("core {cpu}"));
        format!("proxy threads: {}", self.proxies.iter().map(core).collect::<Vec<String>>().join(", "))
    }

    /// Returns the counters of all threads.
    ///
    /// # Errors
    /// Returns an error if a thread has failed.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>, ProxyError> {
        self.proxies.iter().map(Proxy::snapshot).collect()
    }

    /// Returns the errors of the threads that have failed.
    pub fn failures(&self) -> impl Iterator<Item = ProxyError> {
        self.proxies.iter().filter_map(Proxy::failure)
    }

    /// Requests the threads to stop, without waiting for them. Waiting kernels receive a status.
    pub fn stop(&self) {
        self.proxies.iter().for_each(Proxy::stop);
        // A thread that has exited without a report ends no wait.
        let served = self.proxies.iter().zip(&self.rings);
        served.filter(|(proxy, _)| proxy.has_exited()).for_each(|(_, ring)| ring.end(Status::STOPPED));
    }
}

/// Allocates a copy of `source` in pinned memory, and a queue that fills it.
fn stage(device: &Device, chosen: &RailPlan, source: &Buffer) -> Result<(Buffer, Stage), DeviceError> {
    let Device::Gpu(gpu) = device else {
        return Err(DeviceError::Refused("memory of the emulated device needs no staging".into()));
    };
    let copy = device.allocate(MemoryLocation::Host, source.bytes())?;
    // SAFETY: the copy is as long as the source, and the group drops it after its threads. The caller of `start` keeps
    // the source valid.
    let stage = unsafe { Stage::new(CopyQueue::new(gpu)?, source.address(), copy.address()) };
    Ok((
        copy,
        match chosen.model() {
            // A model that moves no bytes does not read the copy.
            Some(model) => stage.only_while(model.moves()),
            None => stage,
        },
    ))
}
