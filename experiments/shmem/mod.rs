//! `ginlab shmem`: measures calls of the device API from inside a kernel, by size, scope, path and grid.

mod args;
mod data;
mod fit;
mod measure;
mod nvshmem;
mod order;
mod random;
mod verify;

use crate::columns::{ALIGNMENT, PROXIES, RULE, SCOPE, SHARING};
use crate::error::Failure;
use crate::nodes;
use crate::output::OutputArgs;
use crate::program::CommandSpec;
use crate::runner::{Experiment, Plan, Rows, program};
use crate::values::usage;
use crate::world;
use args::{ShmemArgs, ShmemConfig, tuples};
use ginlab::bootstrap::Bootstrap;
use ginlab::gin::{GinError, World};
use ginlab::report::{About, Column, Header, Headline, Plot};
use measure::Shmem;

pub const PROGRAMS: &[CommandSpec] = &[program::<Shmem>()];

const P999: Column =
    Column::measured("time_us_p999", "us", "99.9th percentile of the times, nearest rank").shown("p99.9", 8);

impl Experiment for Shmem {
    type Args = ShmemArgs;
    type Config = ShmemConfig;

    const ABOUT: About = About {
        columns: &[
            SCOPE,
            ALIGNMENT,
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
        ..About::new("shmem", "Measure puts, gets, signals and all-to-all from kernels, over NVLink or rails")
    };

    fn plan(args: &mut ShmemArgs) -> Result<Plan<ShmemConfig>, Failure> {
        let tuples = tuples(args)?;
        order::check(&tuples)?;
        let fingerprint = vec![
            ("rows".to_owned(), format!("{tuples:?}")),
            (
                "options".to_owned(),
                format!("{} x {} check {}", args.repeat.repeats, args.iterations, !args.repeat.no_check),
            ),
        ];
        let ranks = args.world.ranks(fingerprint, |ranks| match ranks {
            0 | 1 => Err(usage("--np", "requires at least 2 ranks, because PEs communicate in pairs")),
            _ => Ok(()),
        });
        Ok(Plan::of_ranks(tuples, ranks))
    }

    async fn open(
        args: &ShmemArgs,
        tuples: &mut Vec<ShmemConfig>,
        ranks: &mut Bootstrap,
    ) -> Result<(Shmem, Header), Failure> {
        let pes = ranks.size() as u64;
        let heap_bytes = Shmem::heap_bytes(tuples, pes, args.longest_message());
        let world = World::open(ranks, &args.world.options(args.path, heap_bytes)?)?;
        fit::fit(args, tuples, &world, ranks)?;
        if args.per_node {
            world.time_rails().map_err(GinError::from)?;
        }
        let mut header = world::header(&world, ranks);
        header.note(
            "each iteration is timed inside the kernel; time_us of the ping-pongs is half of an iteration, the one-way \
             time, and that of put-bandwidth, put-signal-bandwidth and get-bandwidth is the time of all bytes of an \
             iteration; size_bytes of all-to-all is the size per PE",
        );
        let shmem = Shmem::open(args, world, tuples, ranks)?;
        header.notes(shmem.baseline.as_ref().map(|baseline| format!("interleaved with: {}", baseline.version)));
        Ok((shmem, header))
    }

    async fn tuple(&mut self, tuple: &ShmemConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        self.measure(tuple, ranks).await
    }

    async fn close(self, _: &Header, _: &OutputArgs, ranks: &mut Bootstrap) -> Result<(), Failure> {
        if ranks.rank() == 0 && self.args.random.random.is_some() {
            for line in self.ratios.lines("see --nvshmem") {
                eprintln!("# {line}");
            }
        }
        drop(self.baseline);
        Ok(self.world.close(ranks)?)
    }
}
