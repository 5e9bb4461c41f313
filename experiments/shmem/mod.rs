//! `ginlab shmem`: what the calls of the device API cost from inside a kernel, by size, scope, path and grid.

mod args;
mod measure;
mod nvshmem;
mod order;

use crate::columns::{PROXIES, RULE, SCOPE};
use crate::error::Failure;
use crate::output::OutputArgs;
use crate::program::Program;
use crate::runner::{Experiment, Plan, Ranks, Rows, program};
use crate::values::usage;
use args::{Args, Tuple, tuples};
use ginlab::bootstrap::{Bootstrap, Kind};
use ginlab::fabric::libfabric::Level;
use ginlab::gin::{Fabric, GinError, Options, World};
use ginlab::report::{About, Best, Column, Header, Headline, Key, Plot, Row};
use ginlab::signals;
use ginlab::versions::Versions;
use measure::Shmem;

pub const PROGRAMS: &[Program] = &[program::<Shmem>()];

const P999: Column = Column::measured("time_us_p999", "us", "99.9th percentile of the times, nearest rank").shown("p99.9", 8);

impl Experiment for Shmem {
    type Args = Args;
    type Tuple = Tuple;

    const ABOUT: About = About {
        columns: &[SCOPE, RULE, PROXIES, P999],
        headlines: &[
            Headline {
                what: "signal, one way",
                column: "time_us_p50",
                best: Best::Least,
                only: &[("case", "signal-ping-pong")],
            },
            Headline {
                what: "barrier of all PEs",
                column: "time_us_p50",
                best: Best::Least,
                only: &[("case", "barrier-all")],
            },
        ],
        plots: &[Plot::TIME, Plot::BANDWIDTH, Plot::RATIO],
        ..About::new(
            "shmem",
            "What put, get, signal, barrier and all-to-all cost from inside a kernel, to a peer over NVLink or over rails",
        )
    };

    fn output(args: &Args) -> &OutputArgs {
        &args.output
    }

    fn plan(args: &mut Args) -> Result<Plan<Tuple>, Failure> {
        let tuples = tuples(args)?;
        order::check(&tuples)?;
        let fingerprint = vec![
            ("rows".to_owned(), format!("{tuples:?}")),
            ("options".to_owned(), format!("{} x {} check {}", args.repeats, args.iterations, !args.no_check)),
        ];
        let ranks = Ranks {
            kind: args.meet.bootstrap.map(Kind::from),
            asked: args.meet.np,
            default: 2,
            check: Box::new(|ranks| match ranks {
                0 | 1 => Err(usage("--np", "a PE talks to another one: two ranks or more")),
                _ => Ok(()),
            }),
            timeout: args.timeout() * 2,
            interfaces: args.meet.bootstrap_if.clone(),
            fingerprint,
        };
        Ok(Plan::of_ranks(tuples, ranks))
    }

    async fn open(args: &Args, tuples: &mut Vec<Tuple>, ranks: &mut Bootstrap) -> Result<(Shmem, Header), Failure> {
        let pes = ranks.size() as u64;
        let options = Options {
            device: args.device.into(),
            heap_bytes: Shmem::heap_bytes(tuples, pes, args.message_limit),
            path: args.path,
            fabric: Fabric::named(args.provider.as_deref(), &args.domain, Level::Delivery),
            rails: args.rails,
            strategy: args.strategy,
            rule: args.rule,
            proxies: args.proxies,
            timeout: args.timeout(),
            ..Options::default()
        };
        let world = World::open(ranks, &options)?;
        let mut header = Versions::header();
        header.set(Key::Provider, world.fabric()).set(Key::Rails, world.rail_names()).set(Key::Memory, world.memory());
        for note in world.notes() {
            header.note(note);
        }
        header.note(format!("{} ranks by the {} bootstrap", ranks.size(), ranks.kind()));
        header.note(
            "each turn is stamped inside the kernel; time_us of the ping-pongs is one way, half of a turn, and of put-bandwidth, \
             put-signal-bandwidth and get-bandwidth the time of all bytes of a turn; size_bytes of all-to-all is what goes to each PE",
        );
        let shmem = Shmem::open(args, world, tuples, ranks)?;
        if let Some(baseline) = shmem.baseline() {
            header.note(format!("beside it in turns: {baseline}"));
        }
        Ok((shmem, header))
    }

    async fn tuple(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        self.measure(tuple, ranks)
    }

    fn what(row: &Row) -> String {
        row.case.clone()
    }

    async fn close(self, _header: &Header, ranks: &mut Bootstrap) -> Result<(), Failure> {
        Ok(self.end(ranks)?)
    }
}

impl From<GinError> for Failure {
    fn from(error: GinError) -> Failure {
        match error {
            GinError::Interrupted => Failure::Interrupted,
            GinError::Usage(text) => Failure::Usage(text),
            GinError::Ranks(error) => error.into(),
            GinError::Device(error) => error.into(),
            GinError::Fabric(error) => error.into(),
            _ if signals::interrupted() => Failure::Interrupted,
            error if error.is_timeout() => Failure::Timeout(error.to_string()),
            error => Failure::Run(error.to_string()),
        }
    }
}
