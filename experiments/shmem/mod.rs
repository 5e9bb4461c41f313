//! `ginlab shmem`: what the calls of the device API cost from inside a kernel, by size, scope, path and grid.

mod args;
mod data;
mod measure;
mod nvshmem;
mod order;
mod payload;

use crate::columns::{PROXIES, RULE, SCOPE, SHARING};
use crate::error::Failure;
use crate::nodes;
use crate::output::OutputArgs;
use crate::program::Program;
use crate::runner::{Experiment, Plan, Rows, program};
use crate::values::usage;
use crate::world;
use args::{Args, Tuple, tuples};
use ginlab::bootstrap::Bootstrap;
use ginlab::gin::World;
use ginlab::report::{About, Column, Header, Headline, Plot};
use measure::Shmem;

pub const PROGRAMS: &[Program] = &[program::<Shmem>()];

const P999: Column =
    Column::measured("time_us_p999", "us", "99.9th percentile of the times, nearest rank").shown("p99.9", 8);

impl Experiment for Shmem {
    type Args = Args;
    type Tuple = Tuple;

    const ABOUT: About = About {
        columns: &[
            SCOPE,
            SHARING,
            RULE,
            PROXIES,
            P999,
            nodes::OF,
            nodes::NODE,
            nodes::SENDERS,
            nodes::GPU_MIN,
            nodes::GPU_MAX,
            nodes::RAIL_MIN,
            nodes::RAIL_MAX,
        ],
        headlines: &[
            Headline::least("signal, one way", "time_us_p50", &[("case", "signal-ping-pong")]),
            Headline::least("barrier of all PEs", "time_us_p50", &[("case", "barrier-all")]),
        ],
        plots: &[Plot::TIME, Plot::BANDWIDTH, Plot::RATIO],
        ..About::new(
            "shmem",
            "What put, get, signal, barrier and all-to-all cost from inside a kernel, to a peer over NVLink or over rails",
        )
    };

    fn plan(args: &mut Args) -> Result<Plan<Tuple>, Failure> {
        let tuples = tuples(args)?;
        order::check(&tuples)?;
        let fingerprint = vec![
            ("rows".to_owned(), format!("{tuples:?}")),
            ("options".to_owned(), format!("{} x {} check {}", args.repeats, args.iterations, !args.no_check)),
        ];
        let ranks = args.world.ranks(fingerprint, |ranks| match ranks {
            0 | 1 => Err(usage("--np", "a PE talks to another one: two ranks or more")),
            _ => Ok(()),
        });
        Ok(Plan::of_ranks(tuples, ranks))
    }

    async fn open(args: &Args, tuples: &mut Vec<Tuple>, ranks: &mut Bootstrap) -> Result<(Shmem, Header), Failure> {
        let pes = ranks.size() as u64;
        let heap_bytes = Shmem::heap_bytes(tuples, pes, args.longest_message());
        let world = World::open(ranks, &args.world.options(args.path, heap_bytes)?)?;
        measure::fit(args, tuples, &world, ranks)?;
        let mut header = world::header(&world, ranks);
        header.note(
            "each turn is stamped inside the kernel; time_us of the ping-pongs is one way, half of a turn, and of put-bandwidth, \
             put-signal-bandwidth and get-bandwidth the time of all bytes of a turn; size_bytes of all-to-all is what goes to each PE",
        );
        let shmem = Shmem::open(args, world, tuples, ranks)?;
        header.notes(shmem.baseline.as_ref().map(|baseline| format!("beside it in turns: {}", baseline.version)));
        Ok((shmem, header))
    }

    async fn tuple(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        self.measure(tuple, ranks)
    }

    async fn close(self, _: &Header, _: &OutputArgs, ranks: &mut Bootstrap) -> Result<(), Failure> {
        drop(self.baseline);
        Ok(self.world.close(ranks)?)
    }
}
