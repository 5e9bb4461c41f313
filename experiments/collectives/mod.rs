//! `ginlab collective`: collectives from inside kernels, compared with NCCL. Rows show the participating ranks, the
//! bytes per path, and the upper bound given by link rates.

mod args;
mod gate;
mod measure;
mod ours;
mod pattern;
mod random;
mod shape;
mod sums;
mod theirs;

use crate::columns::{BUSBW, CEILING, CEILING_PCT, PACKET, PROXIES, RAIL_BYTES, ROUTE, RULE, SCOPE, SHARING};
use crate::error::Failure;
use crate::nodes;
use crate::output::OutputArgs;
use crate::program::CommandSpec;
use crate::random::Ratios;
use crate::runner::{Experiment, Plan, Rows, program};
use crate::values::usage;
use crate::world;
use args::{CollectiveArgs, CollectiveConfig, tuples};
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::Stream;
use ginlab::fabric::model::{PREFIX, Profile};
use ginlab::gin::{World, WorldOptions};
use ginlab::pci::PciAddress;
use ginlab::report::{About, Column, Header, Headline, Plot};
use ginlab::topology::nvlink;
use measure::Collectives;
use ours::Ours;
use shape::Wires;
use theirs::NcclWindows;

pub const PROGRAMS: &[CommandSpec] = &[program::<Collectives>()];

const OPERATION: Column =
    Column::follows("operation", "", "The collective, whether of ginlab or NCCL: `all-to-all`, `all-gather`, ...")
        .shown("operation", 14);
const ELEMENT: Column = Column::chosen("type", "", "Element type: `f32`, `bf16`, `f16`");
const REDOP: Column = Column::follows("redop", "", "Reduction of elements: `sum`");
const ROOT: Column = Column::follows("root", "", "Root of a broadcast");
const PLACE: Column = Column::chosen("place", "", "Location of results: `out-of-place`, or `in-place` over the input");
const LAUNCH: Column = Column::chosen(
    "launch",
    "",
    "Start of operations: one launch each on a `stream`, recorded in a `graph`, or the loop of a `persistent` kernel",
)
.shown("launch", 10);
const OVERLAP: Column = Column::chosen(
    "overlap",
    "",
    "Whether a launch may start while the previous one runs, and waits for its end: `yes`, `no`",
);
const PROTOCOL: Column = Column::follows(
    "protocol",
    "",
    "Method by which ginlab's kernels move bytes: `messages` (tagged words, a single one-way transfer), `puts`, \
     `stores` (small parts from one queue)",
);
const NODES: Column =
    Column::chosen("nodes", "", "Number of nodes: heaps are mapped within a node, and rails connect nodes");
const ALGBW: Column = Column::measured(
    "algbw_gbytes_s",
    "GB/s",
    "Algorithm bandwidth: the size divided by the time, as defined by nccl-tests",
);
const HEARD: Column = Column::measured(
    "heard",
    "",
    "Number of ranks, including itself, whose data is in the result of the rank with the fewest; empty if a wrong sum \
     does not determine it",
)
.shown("heard", 5);
const NVLINK_BYTES: Column = Column::measured(
    "nvlink_bytes",
    "B",
    "Bytes that the kernels of all ranks stored to or loaded from other ranks' mapped heaps, per operation",
);
const PUTS: Column = Column::measured(
    "puts",
    "",
    "Puts or messages to other ranks per operation, on the rank with the most; loads are not counted",
);
const PUT_US: Column =
    Column::measured("put_us", "us", "Time divided by that number: cost of one put or message on a rank");

impl Experiment for Collectives {
    type Args = CollectiveArgs;
    type Config = CollectiveConfig;

    const ABOUT: About = About {
        columns: &[
            OPERATION,
            ELEMENT,
            REDOP,
            ROOT,
            PLACE,
            LAUNCH,
            OVERLAP,
            SCOPE,
            PROTOCOL,
            ROUTE,
            PACKET,
            NODES,
            SHARING,
            RULE,
            PROXIES,
            ALGBW,
            BUSBW.shown("busbw", 7),
            CEILING,
            CEILING_PCT.shown("ceil", 5),
            HEARD,
            PUTS,
            PUT_US,
            NVLINK_BYTES,
            RAIL_BYTES,
            nodes::OF,
            nodes::NODE,
            nodes::SENDERS,
            nodes::GPU_MIN,
            nodes::GPU_MAX,
            nodes::RAIL_MIN,
            nodes::RAIL_MAX,
        ],
        without: &["case", "rails", "strategy", "memory", "bandwidth_gbytes_s", "rate_mops"],
        headlines: &[
            Headline::least("smallest all-to-all", "time_us_p50", &[("case", "gin-all-to-all")]),
            Headline::least("smallest all-reduce", "time_us_p50", &[("case", "gin-all-reduce")]),
            Headline::most("all-reduce, highest bus bandwidth", "busbw_gbytes_s", &[("case", "gin-all-reduce")]),
        ],
        plots: &[
            Plot::TIME,
            Plot {
                name: "busbw",
                title: "bus bandwidth by size",
                y: "busbw_gbytes_s",
                y_label: None,
                range: None,
                ..Plot::TIME
            },
            Plot::RATIO,
        ],
        ..About::new("collective", "Measure collectives from kernels over NVLink and rails, compared with NCCL")
    };

    fn plan(args: &mut CollectiveArgs) -> Result<Plan<CollectiveConfig>, Failure> {
        let tuples = tuples(args)?;
        let fingerprint = vec![
            ("rows".to_owned(), format!("{tuples:?}")),
            (
                "options".to_owned(),
                format!(
                    "{} x {} + {} check {}",
                    args.repeat.repeats, args.iterations, args.warmup, !args.repeat.no_check
                ),
            ),
            (
                "root, messages and stores".to_owned(),
                format!(
                    "{} {:?} {:?} {:?} {:?}",
                    args.root, args.message_limit, args.stores_from, args.piece, args.block
                ),
            ),
        ];
        let root = args.root as usize;
        let ranks = args.world.ranks(fingerprint, move |ranks| match ranks {
            0 | 1 => Err(usage("--np", "a collective requires at least 2 ranks")),
            _ if root >= ranks => {
                Err(usage("--root", format!("invalid root {root}: the last of {ranks} ranks is {}", ranks - 1)))
            }
            _ => Ok(()),
        });
        Ok(Plan::of_ranks(tuples, ranks))
    }

    async fn open(
        args: &CollectiveArgs,
        tuples: &mut Vec<CollectiveConfig>,
        ranks: &mut Bootstrap,
    ) -> Result<(Collectives, Header), Failure> {
        let heap_bytes = ours::heap_bytes(args, tuples, ranks);
        let options = WorldOptions { node_size: args.node_size, ..args.world.options(args.path, heap_bytes)? };
        let world = World::open(ranks, &options)?;
        let mut header = world::header(&world, ranks);
        let with_nccl = tuples.iter().any(|tuple| tuple.nccl || tuple.window);
        let nccl = if with_nccl { Some(args.world.nccl(&world, ranks)?) } else { None };
        if let Some(nccl) = &nccl {
            header.note(match nccl {
                Ok(nccl) => format!("NCCL {}, all-to-all by {}", nccl.version(), nccl.all_to_all_by()),
                Err(why) => format!("NCCL is not measured: {why}"),
            });
        }
        header.note(
            "size_bytes is defined as in nccl-tests; time_us is the time of one operation on the slowest rank, between \
             events on the stream, for persistent kernels by the GPU's clock; ginlab's sums must equal the CPU's bit \
             by bit, NCCL's within n epsilon times the sum of magnitudes",
        );
        let stream = Stream::new(world.device())?;
        let gate = gate::Gate::new(world.device(), args.world.meet.timeout)?;
        let ours = Ours::open(args, world, tuples, ranks)?;
        let windows: Vec<CollectiveConfig> = tuples.iter().filter(|tuple| tuple.window).copied().collect();
        let registered = match &nccl {
            Some(Ok(nccl)) if !windows.is_empty() => {
                Some(NcclWindows::open(nccl, &ours, &windows, args.world.meet.timeout, ranks)?)
            }
            _ => None,
        };
        let wires = wires(args, &ours);
        let overlaps = stream.begins_early();
        Ok((
            Collectives {
                args: args.clone(),
                nccl,
                registered,
                stream,
                gate,
                ours,
                wires,
                overlaps,
                run: 0,
                given: Vec::new(),
                ratios: Ratios::default(),
            },
            header,
        ))
    }

    async fn tuple(&mut self, tuple: &CollectiveConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        self.measure(tuple, ranks).await
    }

    async fn close(self, _: &Header, _: &OutputArgs, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let Collectives { nccl, registered, stream, gate, ours, ratios, args, .. } = self;
        if ranks.rank() == 0 && args.random.random.is_some() {
            for line in ratios.lines("NCCL is not measured here") {
                eprintln!("# {line}");
            }
        }
        if let Some(Ok(communicator)) = nccl {
            if let Some(Ok(registered)) = registered {
                registered.close(&communicator, args.world.meet.timeout)?;
            }
            communicator.close()?;
        }
        drop((stream, gate));
        ours.check_signals()?;
        Ok(ours.close(ranks)?)
    }
}

/// Returns the known link rates of this rank.
fn wires(args: &CollectiveArgs, ours: &Ours) -> Wires {
    let world = &ours.world;
    let gpu: Option<PciAddress> = world.device().pci_address().and_then(|address| address.parse().ok());
    // PEs that share a GPU do not communicate over a link.
    let nvlink = gpu.filter(|_| !world.sharing().is_shared()).and_then(|gpu| {
        let links = nvlink::links().ok()?;
        Some(links.iter().find(|links| links.gpu == gpu)?.bytes_per_second? / 1e9)
    });
    // Several proxies share the same NICs, so the rate per proxy is not known.
    let profile = world
        .fabric()
        .strip_prefix(PREFIX)
        .filter(|_| args.world.proxy_threads == 1)
        .and_then(|name| Profile::named(name).ok());
    let rails = profile.map(|profile| profile.line_rate_gbps.value / 8.0 * args.world.rails as f64);
    Wires { local: u64::from(ours.local), nvlink, rails }
}
