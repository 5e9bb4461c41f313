//! `ginlab queue`: measures only the GPU-to-CPU queue. Compares algorithms and memories with each other and with lower
//! bounds from the same run.

mod args;
mod cases;
mod measure;
mod memory;
mod prototype;

use crate::columns::{ACK, RING_SLOTS, SCOPE, SLOT_BYTES};
use crate::error::Failure;
use crate::program::CommandSpec;
use crate::runner::{Experiment, Plan, Rows, program};
use crate::values::{Pin, check_grid, usage};
use args::{Algorithm, PushScope, QueueArgs, QueueMode};
use cuda_std::emulation;
use ginlab::bootstrap::Bootstrap;
use ginlab::cores;
use ginlab::cores::share::{Want, share_out};
use ginlab::cuda::Device;
use ginlab::report::{About, ChartStyle, Column, Header, Headline, Key, Plot, Row};
use ginlab::ring::RingPlace;
use ginlab::versions::Versions;
use itertools::iproduct;
use measure::{QueueBench, measure};
use prototype::Prototype;
use std::path::Path;

pub const PROGRAMS: &[CommandSpec] = &[program::<QueueExperiment>()];

const RINGS: Column = Column::chosen("rings", "", "Number of rings that are used concurrently");
const CONSUMERS: Column = Column::chosen("consumers", "", "Number of consumer threads");
const PUSH: [Column; 3] = [
    Column::measured("push_us_p50", "us", "Median time of one push on the device's clock, without waiting"),
    Column::measured("push_us_p99", "us", "99th percentile of that time"),
    Column::measured("push_us_p999", "us", "99.9th percentile of that time"),
];
const FULL_STALLS: Column =
    Column::measured("full_stalls", "", "Number of times that a push found the queue full, in the watched pass");
const HOST_POLLS: Column =
    Column::measured("host_polls", "", "Loads by device threads from memory shared with the CPU, in the watched pass");
const LOST_EXCHANGES: Column = Column::measured(
    "lost_exchanges",
    "",
    "Compare-exchanges that failed because of another thread, in the watched pass",
);
const WATCHED: Column = Column::measured("watched", "", "Number of pushes in the watched pass");
const EMPTY_POLLS: Column =
    Column::measured("empty_polls", "", "Unsuccessful polls of the consumers, in the timed repeats");

/// Queues that are compared in charts.
const QUEUES: (&str, &[&str]) = ("case", &["ticket", "vyukov", "release"]);
const SIDE_BY_SIDE: Plot =
    Plot { shape: ChartStyle::Bars, several: Some("case"), across: Some("memory"), ..Plot::RATE };

/// A combination of parameters, measured for every algorithm and mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    place: RingPlace,
    words: u32,
    slots: usize,
    scope: PushScope,
    rings: u32,
    grid: u32,
    block: u32,
}

/// State for all parameter combinations.
pub struct QueueExperiment {
    args: QueueArgs,
    device: Device,
    /// Cores for the consumers. Empty if they share cores with other threads and must therefore yield.
    cores: Vec<usize>,
    /// The ring in CUDA C++.
    prototype: Option<Prototype>,
    /// Memory of the last parameter combination.
    place: Option<RingPlace>,
    /// Round trips of a flag, the lower bound of acknowledged pushes.
    ping_pong: Option<(Row, Vec<f64>)>,
}

/// Returns all parameter combinations. Rejects grids that the device does not support.
fn tuples(args: &QueueArgs, device: &Device) -> Result<Vec<QueueConfig>, Failure> {
    let QueueArgs { memory, payload, ring_slots, scope, rings, grid, block, .. } = args;
    iproduct!(memory, &payload[..], ring_slots, scope, &rings[..], &grid[..], &block[..])
        .map(|(&place, words, &slots, &scope, &rings, &grid, &block)| {
            check_grid(device, grid, block)?;
            if u64::from(grid) * u64::from(block) > u64::from(u32::MAX) / 2 {
                return Err(usage("--grid", format!("{grid} x {block}: must be at most 2^31 producers")));
            }
            Ok(QueueConfig { place, words: words.0, slots, scope, rings, grid, block })
        })
        .collect()
}

/// Returns cores near the GPU. Empty if the emulated grid needs them, or if there are too few.
fn consumer_cores(args: &QueueArgs, device: &Device) -> Vec<usize> {
    let threads = args.rings.iter().copied().max().unwrap_or(1) as usize;
    let allowed = cores::allowed();
    let pinned = matches!(device, Device::Gpu(_)) && threads < allowed.len();
    match &args.pin {
        Pin::List(list) => list.clone(),
        Pin::Auto if pinned => {
            let gpu: Vec<_> = device.pci_address().into_iter().filter_map(|address| address.parse().ok()).collect();
            let root = Path::new("/");
            let want = Want { threads, allowed: allowed.to_vec(), near: cores::near(root, &gpu) };
            share_out(&[want], &cores::physical(root, allowed)).concat()
        }
        _ => Vec::new(),
    }
}

impl Experiment for QueueExperiment {
    type Args = QueueArgs;
    type Config = QueueConfig;

    const ABOUT: About = About {
        columns: &[
            SCOPE,
            RINGS,
            CONSUMERS,
            SLOT_BYTES,
            RING_SLOTS,
            PUSH[0],
            PUSH[1],
            PUSH[2],
            ACK[0],
            ACK[1],
            ACK[2],
            FULL_STALLS,
            HOST_POLLS,
            LOST_EXCHANGES,
            WATCHED,
            EMPTY_POLLS,
        ],
        without: &["rails"],
        headlines: &[
            Headline::most(
                "commands through one ring, highest rate",
                "rate_mops",
                &[("case", "ticket"), ("rings", "1")],
            ),
            Headline::least("one push, acknowledged", "time_us_p50", &[("case", "ticket"), ("mode", "blocking")]),
        ],
        plots: &[
            SIDE_BY_SIDE
                .by("queues-nbi", "comparison of queues: operations per second by grid and block", &["grid", "block"])
                .only(&[QUEUES, ("mode", &["nbi"])]),
            Plot { shape: ChartStyle::Bars, several: Some("case"), across: Some("memory"), ..Plot::TIME }
                .by(
                    "queues-blocking",
                    "comparison of queues: acknowledged pushes by grid and block",
                    &["grid", "block"],
                )
                .only(&[QUEUES, ("mode", &["blocking"])]),
            Plot::RATE.by("grid", "operations per second by blocks of the grid", &["grid"]).only(&[("mode", &["nbi"])]),
            Plot::TIME.by("grid-time", "time by blocks of the grid", &["grid"]).only(&[("mode", &["blocking"])]),
            Plot::RATE,
            Plot::TIME,
        ],
        ..About::new("queue", "Measure the queue from GPU to CPU: algorithms, memories and grids")
    };

    fn plan(args: &mut QueueArgs) -> Result<Plan<QueueConfig>, Failure> {
        let large = args.payload.iter().max_by_key(|payload| payload.0).map_or(0, |payload| payload.0);
        if let Some(slot) = args.slot_bytes.filter(|slot| slot.0 < large) {
            return Err(usage("--slot-bytes", format!("{} is too small for elements of {}", slot.0 * 8, large * 8)));
        }
        let beside = args.algorithm.contains(&Algorithm::Ticket) && args.mode.contains(&QueueMode::Nbi);
        let known_to_it = args.memory == [RingPlace::Pinned]
            && args.payload.iter().all(|payload| payload.0 == 4)
            && args.scope == [PushScope::Thread]
            && args.rings[..] == [1];
        if args.prototype.is_some() && !(beside && known_to_it) {
            let allowed = "-a ticket, -m nbi, -p 32, --rings 1, --scope thread and --memory pinned";
            return Err(usage("--prototype", format!("it can be compared only with {allowed}")));
        }
        // The parameter combinations depend on the device, which limits the grids.
        Ok(Plan::alone(Vec::new()))
    }

    async fn open(
        args: &QueueArgs,
        all: &mut Vec<QueueConfig>,
        _: &mut Bootstrap,
    ) -> Result<(QueueExperiment, Header), Failure> {
        let (device, why_emulated) = Device::open(args.device, 0)?;
        emulation::set_seed(args.seed);
        *all = tuples(args, &device)?;
        if matches!(device, Device::Emulated) && args.prototype.is_some() {
            return Err(usage("--prototype", "the emulated device cannot run it; use -d gpu"));
        }
        let prototype = args.prototype.as_deref().map(Prototype::load).transpose()?;
        let cores = consumer_cores(args, &device);
        let mut header = Versions::header();
        header.set(Key::Gpu, device.name()).set(Key::Affinity, format!("consumers on cores {cores:?}"));
        header.notes(why_emulated.map(|why| format!("emulated device: {why}")));
        header.note(
            "time_us is the time per push of one producer until all elements of a repeat are consumed, on the device's \
             clock; rates count all producers; push_us and ack_us are times of single pushes in a watched pass",
        );
        Ok((QueueExperiment { args: args.clone(), device, cores, prototype, place: None, ping_pong: None }, header))
    }

    async fn tuple(&mut self, tuple: &QueueConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let rows = measure(&QueueBench { queue: self, tuple: *tuple }, ranks).await?;
        self.place = Some(tuple.place);
        self.ping_pong = rows.iter().find(|(row, _)| row.case == "ping-pong").cloned().or(self.ping_pong.take());
        Ok(rows)
    }

    fn what(row: &Row) -> String {
        format!("{} over {} memory", row.case, row.memory.as_deref().unwrap_or_default())
    }
}
