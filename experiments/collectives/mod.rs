//! `ginlab collective`: collectives from inside kernels, beside NCCL's, with who took part, which bytes went which way, and what the wires allow.

mod args;
mod gate;
mod measure;
mod ours;
mod pattern;
mod shape;
mod sums;
mod theirs;
mod thresholds;

use crate::columns::{BUSBW, CEILING, CEILING_PCT, PACKET, PROXIES, RAIL_BYTES, ROUTE, RULE, SCOPE, SHARING};
use crate::error::Failure;
use crate::nodes;
use crate::output::OutputArgs;
use crate::program::Program;
use crate::runner::{Experiment, Plan, Rows, program};
use crate::values::usage;
use crate::world;
use args::{Args, Tuple, tuples};
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::Stream;
use ginlab::fabric::model::{PREFIX, Profile};
use ginlab::gin::{Options, World};
use ginlab::pci::PciAddress;
use ginlab::report::{About, Column, Header, Headline, Plot};
use ginlab::topology::nvlink;
use measure::Collectives;
use ours::Ours;
use shape::Wires;

pub const PROGRAMS: &[Program] = &[program::<Collectives>()];

const OPERATION: Column =
    Column::follows("operation", "", "What of the case is not whose it is: `all-to-all`, `all-gather`, ...")
        .shown("operation", 14);
const ELEMENT: Column = Column::chosen("type", "", "Numbers: `f32`, `bf16`, `f16`");
const REDOP: Column = Column::follows("redop", "", "How numbers are made one: `sum`");
const ROOT: Column = Column::follows("root", "", "The rank that broadcasts");
const PLACE: Column = Column::chosen("place", "", "Where results go: `out-of-place`, or over the input `in-place`");
const LAUNCH: Column = Column::chosen(
    "launch",
    "",
    "How an operation is started: a launch each on a `stream`, recorded in a `graph`, or in the loop of a `persistent` kernel",
)
.shown("launch", 10);
const OVERLAP: Column = Column::chosen(
    "overlap",
    "",
    "Whether a grid comes onto the GPU while the one before still runs, and waits there for its end: `yes`, `no`",
);
const PROTOCOL: Column = Column::follows(
    "protocol",
    "",
    "How our kernels move bytes: `messages` (tagged words, one trip), `puts`, `stores` (small parts from one queue)",
);
const NODES: Column =
    Column::chosen("nodes", "", "Nodes: inside a node heaps are mapped, between nodes there are rails");
const ALGBW: Column = Column::measured("algbw_gbytes_s", "GB/s", "The size over the time, as nccl-tests has it");
const HEARD: Column = Column::measured(
    "heard",
    "",
    "Ranks whose data is in the result, of the rank that has the fewest, itself counted; empty where a wrong sum does not say",
)
.shown("heard", 5);
const NVLINK_BYTES: Column = Column::measured(
    "nvlink_bytes",
    "B",
    "Bytes of one operation that all ranks' kernels stored to or loaded from other ranks' mapped heaps",
);
const PUTS: Column = Column::measured(
    "puts",
    "",
    "Puts or messages to other ranks of one operation, of the rank that has the most; of loads none",
);
const PUT_US: Column =
    Column::measured("put_us", "us", "The time over that number: what one put or message costs a rank");

impl Experiment for Collectives {
    type Args = Args;
    type Tuple = Tuple;

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
            Headline::most("all-reduce, most bus bandwidth", "busbw_gbytes_s", &[("case", "gin-all-reduce")]),
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
        ..About::new(
            "collective",
            "Collectives from inside kernels over NVLink and rails, beside NCCL: who took part, by which way, and what the wires allow",
        )
    };

    const WRONG: &'static str = "numbers";

    fn plan(args: &mut Args) -> Result<Plan<Tuple>, Failure> {
        let tuples = tuples(args)?;
        let fingerprint = vec![
            ("rows".to_owned(), format!("{tuples:?}")),
            (
                "options".to_owned(),
                format!("{} x {} + {} check {}", args.repeats, args.iterations, args.warmup, !args.no_check),
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
            0 | 1 => Err(usage("--np", "a collective is of two ranks or more; a world of one measures its own memory")),
            _ if root >= ranks => Err(usage("--root", format!("{root}; the last of {ranks} ranks is {}", ranks - 1))),
            _ => Ok(()),
        });
        Ok(Plan::of_ranks(tuples, ranks))
    }

    async fn open(
        args: &Args,
        tuples: &mut Vec<Tuple>,
        ranks: &mut Bootstrap,
    ) -> Result<(Collectives, Header), Failure> {
        let heap_bytes = ours::heap_bytes(args, tuples, ranks);
        let options = Options { node_size: args.node_size, ..args.world.options(args.path, heap_bytes)? };
        let world = World::open(ranks, &options)?;
        let mut header = world::header(&world, ranks);
        let with_nccl = tuples.iter().any(|tuple| tuple.nccl);
        let nccl = if with_nccl { Some(args.world.nccl(&world, ranks)?) } else { None };
        if let Some(nccl) = &nccl {
            header.note(match nccl {
                Ok(nccl) => format!("NCCL {}, all-to-all by {}", nccl.version(), nccl.all_to_all_by()),
                Err(why) => format!("without NCCL: {why}"),
            });
        }
        header.note(
            "size_bytes as nccl-tests counts it; time_us of one operation, the slowest rank's, by events on the stream, of persistent kernels by \
             the GPU's own clock; sums of ours are held against the CPU's to the bit, those of NCCL to n epsilon times the sum of magnitudes",
        );
        let stream = Stream::new(world.device())?;
        let gate = gate::Gate::new(world.device(), args.world.timeout)?;
        let ours = Ours::open(args, world, tuples, ranks)?;
        let wires = wires(args, &ours);
        let overlaps = stream.begins_early();
        Ok((
            Collectives { args: args.clone(), nccl, stream, gate, ours, wires, overlaps, run: 0, given: Vec::new() },
            header,
        ))
    }

    async fn tuple(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        self.measure(tuple, ranks)
    }

    async fn close(self, _: &Header, _: &OutputArgs, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let Collectives { nccl, stream, gate, ours, .. } = self;
        if let Some(Ok(communicator)) = nccl {
            communicator.close()?;
        }
        drop((stream, gate));
        ours.check_signals()?;
        Ok(ours.close(ranks)?)
    }
}

/// What is known of this rank's wires.
fn wires(args: &Args, ours: &Ours) -> Wires {
    let world = &ours.world;
    let gpu: Option<PciAddress> = world.device().pci_address().and_then(|address| address.parse().ok());
    // Between PEs of one GPU no link is crossed.
    let nvlink = gpu.filter(|_| !world.sharing().is_shared()).and_then(|gpu| {
        let links = nvlink::links().ok()?;
        Some(links.iter().find(|links| links.gpu == gpu)?.bytes_per_second? / 1e9)
    });
    // The cards of several proxies are the same ones.
    let profile = world
        .fabric()
        .strip_prefix(PREFIX)
        .filter(|_| args.world.proxies == 1)
        .and_then(|name| Profile::named(name).ok());
    let rails = profile.map(|profile| profile.line_rate_gbps.value / 8.0 * args.world.rails as f64);
    Wires { local: u64::from(ours.local), nvlink, rails }
}
