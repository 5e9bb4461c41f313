//! `ginlab direct`: a kernel that drives a NIC's queues, compared with ring and proxy.

mod args;
mod measure;

use crate::columns::POST;
use crate::error::Failure;
use crate::program::CommandSpec;
use crate::runner::{Experiment, Plan, Rows, program};
use crate::values::{check_grid, usage};
use args::{DirectArgs, DirectCase, DirectConfig};
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, Device, MemoryLocation};
use ginlab::fabric::libfabric::RailOptions;
use ginlab::fabric::{Access, Fabric, MemoryRange, RailPlan};
use ginlab::gin::seat::{CoreWants, RailWants, Seat, Wants};
use ginlab::proxy::{Cores, GroupOptions, GroupRegion, Proxy, ProxyGroup, RegionMemory};
use ginlab::report::{About, Column, Header, Headline, Key, Plot, Row};
use ginlab::ring::{self, RingPlace};
use ginlab::versions::Versions;

pub const PROGRAMS: &[CommandSpec] = &[program::<DirectExperiment>()];

const QUEUES: Column =
    Column::chosen("queues", "", "Number of the NIC's queues that are used concurrently").shown("queues", 6);
const THREADS: Column =
    Column::chosen("card_threads", "", "CPU threads of the software NIC; for the ring, proxy threads");
const DEPTH: Column = Column::follows("queue_depth", "", "Slots of a queue of the NIC");
const MAX_BATCH: Column =
    Column::follows("max_batch", "", "Maximum number of requests that the NIC accepts before a doorbell");

/// State for all parameter combinations. Fields are dropped in order: the proxies must release the memory before it is
/// freed.
pub struct DirectExperiment {
    args: DirectArgs,
    device: Device,
    /// Ring and proxy over null rails.
    group: Option<ProxyGroup>,
    _chosen: Option<RailPlan>,
    _memory: Option<Buffer>,
    /// Cores of the proxies, followed by those of the software NIC.
    cores: Cores,
}

impl DirectExperiment {
    fn is_gpu(&self) -> bool {
        matches!(self.device, Device::Gpu(_))
    }

    fn proxy(&self) -> Option<&Proxy> {
        self.group.as_ref().and_then(|group| group.proxies().first())
    }

    fn card_cores(&self) -> Vec<usize> {
        let proxies = if self.group.is_some() { self.args.threads as usize } else { 0 };
        self.cores.cpus.iter().skip(proxies).copied().collect()
    }
}

impl Experiment for DirectExperiment {
    type Args = DirectArgs;
    type Config = DirectConfig;

    const ABOUT: About = About {
        columns: &[QUEUES, THREADS, DEPTH, MAX_BATCH, POST],
        without: &["rails", "strategy"],
        headlines: &[
            Headline::least("put and wait", "time_us_p50", &[("case", "direct"), ("mode", "quiet"), ("grid", "1")]),
            Headline::most("puts by a NIC's queues", "rate_mops", &[("case", "direct"), ("mode", "nbi")]),
        ],
        plots: &[
            Plot::RATE
                .by("grid", "puts per second by blocks of the grid", &["grid", "block"])
                .only(&[("mode", &["nbi"])]),
            Plot::TIME
                .by("grid-time", "put and wait by blocks of the grid", &["grid", "block"])
                .only(&[("mode", &["quiet"])]),
        ],
        ..About::new("direct", "Measure kernels that write a NIC's queues themselves, compared with ring and proxy")
    };

    fn plan(args: &mut DirectArgs) -> Result<Plan<DirectConfig>, Failure> {
        args.check()?;
        let tuples = args.tuples();
        if tuples.is_empty() {
            return Err(usage("--queues", "more queues than blocks in every grid; specify at most as many as --grid"));
        }
        Ok(Plan::alone(tuples))
    }

    async fn open(
        args: &DirectArgs,
        tuples: &mut Vec<DirectConfig>,
        ranks: &mut Bootstrap,
    ) -> Result<(DirectExperiment, Header), Failure> {
        let has_ring = args.cases.contains(&DirectCase::Ring);
        let rails = RailWants { fabric: &Fabric::Null, count: 1, options: RailOptions::default() };
        let mut seat = Seat::open(ranks, Wants { rails: has_ring.then_some(rails), ..Wants::new(args.device) })?;
        tuples.iter().try_for_each(|tuple| check_grid(&seat.device, tuple.grid, tuple.block))?;
        let threads = args.threads as usize * if has_ring { 2 } else { 1 };
        let busy = threads + if matches!(seat.device, Device::Gpu(_)) { 1 } else { 2 };
        seat.choose_cores(ranks, CoreWants { pin: &args.pin, threads, busy })?;
        let Seat { device, rails, cores, notes, .. } = seat;
        let mut direct =
            DirectExperiment { args: args.clone(), device, group: None, _chosen: None, _memory: None, cores };
        if let Some(chosen) = rails {
            direct.start_proxies(ranks, chosen)?;
        }
        let mut header = Versions::header();
        header.set(Key::Gpu, direct.device.name());
        header.set(Key::Affinity, format!("threads of proxy and software NIC on cores {:?}", direct.cores.cpus));
        header.notes(notes);
        header.note(
            "the NIC is software in this process and has no wire: times include a kernel's requests, doorbells and \
             completions over the bus, and a CPU thread's processing; bytes are moved only in the verified pass",
        );
        Ok((direct, header))
    }

    async fn tuple(&mut self, tuple: &DirectConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        measure::measure(self, tuple, ranks).await
    }

    fn what(row: &Row) -> String {
        let (grid, block) = (row.grid.unwrap_or_default(), row.block.unwrap_or_default());
        format!("{} by {grid} x {block}", row.case)
    }
}

impl DirectExperiment {
    fn start_proxies(&mut self, ranks: &mut Bootstrap, chosen: RailPlan) -> Result<(), Failure> {
        let bytes = measure::most_bytes(&self.args) as usize;
        let memory = self.device.allocate(MemoryLocation::Host, 64)?;
        // Null rails move no bytes, so only the length of their regions matters.
        let region = MemoryRange { address: memory.address(), bytes, cuda_device: None };
        let regions = [Access::SOURCE, Access::REMOTE_WRITE];
        let regions = regions.map(|access| GroupRegion { bytes: RegionMemory::Here(region), access });
        let cpus = self.cores.cpus.iter().take(self.args.threads as usize).copied().collect();
        let own = Cores { cpus, ..self.cores.clone() };
        let options = GroupOptions {
            threads: self.args.threads as usize,
            own_rails: false,
            ring_place: RingPlace::Pinned,
            ring_slots: ring::DEFAULT_SLOTS,
            timeout: self.args.timeout,
            fault: None,
            cores: &own,
            signals: None,
            flush: &|| None,
        };
        // SAFETY: null rails never access the regions.
        let group = unsafe { ProxyGroup::start::<Failure>(&self.device, &chosen, &regions, &options) }?;
        group.connect::<Failure>(ranks)?;
        (self.group, self._chosen, self._memory) = (Some(group), Some(chosen), Some(memory));
        Ok(())
    }
}
