//! `ginlab direct`: a kernel that drives a card's queues itself, beside ring and proxy.

mod args;
mod measure;

use crate::columns::POST;
use crate::error::Failure;
use crate::program::Program;
use crate::runner::{Experiment, Plan, Rows, program};
use crate::values::usage;
use args::{Args, Case, Tuple};
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, Device, Place};
use ginlab::fabric::libfabric::RailOptions;
use ginlab::fabric::{Access, Chosen, Fabric, Memory};
use ginlab::proxy::{self, Bytes, Cores, GroupOptions, GroupRegion, Proxy, ProxyGroup};
use ginlab::report::{About, Column, Header, Headline, Key, Plot, Row};
use ginlab::ring::{self, RingPlace};
use ginlab::versions::Versions;

pub const PROGRAMS: &[Program] = &[program::<Direct>()];

const QUEUES: Column = Column::chosen("queues", "", "Queues of the card side by side").shown("queues", 6);
const THREADS: Column =
    Column::chosen("card_threads", "", "CPU threads of the card in software; of the ring: its proxy threads");
const DEPTH: Column = Column::follows("queue_depth", "", "Slots of a queue of the card");
const MAX_BATCH: Column = Column::follows("max_batch", "", "Requests that the card takes before it is rung");

/// What is held for all tuples. Fields are dropped in this order: the proxies let go of the memory before it is freed.
pub struct Direct {
    args: Args,
    device: Device,
    /// Ring and proxy over null rails.
    group: Option<ProxyGroup>,
    _chosen: Option<Chosen>,
    _memory: Option<Buffer>,
    /// The proxies' first, then the card's.
    cores: Cores,
}

impl Direct {
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

impl Experiment for Direct {
    type Args = Args;
    type Tuple = Tuple;

    const ABOUT: About = About {
        columns: &[QUEUES, THREADS, DEPTH, MAX_BATCH, POST],
        without: &["rails", "strategy"],
        headlines: &[
            Headline::least("put and wait", "time_us_p50", &[("case", "direct"), ("mode", "quiet"), ("grid", "1")]),
            Headline::most("puts by a card's queues", "rate_mops", &[("case", "direct"), ("mode", "nbi")]),
        ],
        plots: &[
            Plot::RATE
                .by("grid", "puts per second by blocks of the grid", &["grid", "block"])
                .only(&[("mode", &["nbi"])]),
            Plot::TIME
                .by("grid-time", "put and wait by blocks of the grid", &["grid", "block"])
                .only(&[("mode", &["quiet"])]),
        ],
        ..About::new("direct", "What it costs a kernel to drive a card's queues itself, beside ring and proxy")
    };

    fn plan(args: &mut Args) -> Result<Plan<Tuple>, Failure> {
        args.check()?;
        let tuples = args.tuples();
        if tuples.is_empty() {
            return Err(usage("--queues", "more queues than blocks in every grid: at most as many as --grid"));
        }
        Ok(Plan::alone(tuples))
    }

    async fn open(args: &Args, tuples: &mut Vec<Tuple>, ranks: &mut Bootstrap) -> Result<(Direct, Header), Failure> {
        let (device, why_emulated) = Device::open(args.device, 0)?;
        tuples.iter().try_for_each(|tuple| device.check_grid(tuple.grid, tuple.block))?;
        let has_ring = args.case.contains(&Case::Ring);
        let threads = args.threads as usize * if has_ring { 2 } else { 1 };
        let busy = threads + if matches!(device, Device::Gpu(_)) { 1 } else { 2 };
        let cores = proxy::choose_cores(&args.pin, threads, busy, ranks, &device, &[])?;
        let mut direct =
            Direct { args: args.clone(), device, group: None, _chosen: None, _memory: None, cores: cores.clone() };
        if has_ring {
            direct.start_proxies(ranks, &cores)?;
        }
        let mut header = Versions::header();
        header.set(Key::Gpu, direct.device.name());
        header.set(Key::Affinity, format!("proxy and card threads on cores {:?}", cores.cpus));
        header.notes(why_emulated.map(|why| format!("emulated device: {why}")));
        header.note(
            "the card is in software, in this process, and has no wire: what is measured is a kernel's requests, doorbells and completions \
             over the bus, and a CPU thread's pace; bytes are moved in the pass that is verified alone",
        );
        if cores.shared {
            header.note(format!("{busy} busy threads share the cores: times include the scheduler"));
        }
        Ok((direct, header))
    }

    async fn tuple(&mut self, tuple: &Tuple, _: &mut Bootstrap) -> Result<Rows, Failure> {
        measure::measure(self, tuple)
    }

    const WRONG: &'static str = "puts";

    fn what(row: &Row) -> String {
        let (grid, block) = (row.grid.unwrap_or_default(), row.block.unwrap_or_default());
        format!("{} by {grid} x {block}", row.case)
    }
}

impl Direct {
    fn start_proxies(&mut self, ranks: &mut Bootstrap, cores: &Cores) -> Result<(), Failure> {
        let chosen = proxy::choose_rails(&Fabric::Null, 1, RailOptions::default(), ranks, &self.device)?;
        let bytes = measure::most_bytes(&self.args) as usize;
        let memory = self.device.allocate(Place::Host, 64)?;
        // Null rails move nothing: a region of theirs is a length.
        let region = Memory { address: memory.address(), bytes, cuda_device: None };
        let regions = [Access::SOURCE, Access::REMOTE_WRITE];
        let regions = regions.map(|access| GroupRegion { bytes: Bytes::Here(region), access });
        let own =
            Cores { cpus: cores.cpus.iter().take(self.args.threads as usize).copied().collect(), ..cores.clone() };
        let options = GroupOptions {
            threads: self.args.threads as usize,
            ring_place: RingPlace::Pinned,
            ring_slots: ring::DEFAULT_SLOTS,
            timeout: self.args.timeout,
            fault: None,
            cores: &own,
            signals: None,
            flush: &|| None,
        };
        // SAFETY: null rails never touch the regions.
        let group = unsafe { ProxyGroup::start::<Failure>(&self.device, &chosen, &regions, &options) }?;
        group.connect::<Failure>(ranks)?;
        (self.group, self._chosen, self._memory) = (Some(group), Some(chosen), Some(memory));
        Ok(())
    }
}
