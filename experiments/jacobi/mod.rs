//! `ginlab jacobi`: measures the cost of an exchange of boundary rows. Exchange, norm and synchronization between
//! iterations are separate parameters. One exchange keeps the field in registers and shared memory.

mod args;
mod check;
mod columns;
mod fit;
mod measure;
mod nccl;
mod nvshmem;
mod part;
mod problem;
mod rank;
mod resident;
mod run;
mod session;

use crate::error::Failure;
use crate::output::OutputArgs;
use crate::program::CommandSpec;
use crate::runner::{Experiment, Plan, Rows, program};
use crate::values::usage;
use crate::world;
use args::{Defaults, JacobiArgs, JacobiConfig, tuples};
use ginlab::bootstrap::Bootstrap;
use ginlab::report::{About, ChartStyle, Header, Headline, Plot};
use rank::Jacobi;

pub use columns::{EXPOSED, NORM_WHEN, SYNC};

pub const PROGRAMS: &[CommandSpec] = &[program::<Jacobi>()];

/// Default values for a GPU.
const ON_GPU: Defaults = Defaults { nx: 4096, iterations: 1000, nccl: true };
const ON_CPU: Defaults = Defaults { nx: 64, iterations: 20, nccl: false };

impl Experiment for Jacobi {
    type Args = JacobiArgs;
    type Config = JacobiConfig;

    const ABOUT: About = About {
        columns: columns::ALL,
        without: &["size_bytes", "mode", "bandwidth_gbytes_s", "rate_mops", "line_rate_pct"],
        headlines: &[
            Headline::least("an iteration, field on the chip", "time_us_p50", &[("case", "resident")]),
            Headline::least("exposed communication, one put of a row", "exposed_us", &[("case", "row")]),
        ],
        plots: &[
            Plot {
                name: "time",
                title: "an iteration, by the field",
                x: &["nx"],
                y: "time_us_p50",
                y_label: Some("time of an iteration (us)"),
                log_y: Some(true),
                only: &[("status", &["ok"])],
                ..Plot::TIME
            },
            Plot {
                name: "exposed",
                title: "exposed communication, by exchange",
                x: &["case"],
                y: "exposed_us",
                y_label: Some("time of an iteration - t1 / ranks (us)"),
                range: None,
                shape: ChartStyle::Bars,
                only: &[("status", &["ok"])],
                ..Plot::TIME
            },
        ],
        ..About::new("jacobi", "Run a Jacobi stencil and measure the exchange of boundary rows")
    };

    fn plan(args: &mut JacobiArgs) -> Result<Plan<JacobiConfig>, Failure> {
        // The defaults depend on the device, which is not known yet. The options are parsed now to report errors early.
        let planned = tuples(args, ON_GPU)?;
        let least = planned.iter().map(|tuple| tuple.ny).min().unwrap_or(0) as usize;
        let fingerprint = vec![
            ("rows".to_owned(), format!("{planned:?}")),
            (
                "options".to_owned(),
                format!("{} check {} strip {}", args.repeat.repeats, !args.repeat.no_check, args.strip),
            ),
        ];
        let ranks = args.world.ranks(fingerprint, move |ranks| match ranks {
            0 => Err(usage("--np", "requires at least 1 PE")),
            _ if ranks > least => Err(usage("--np", format!("{ranks} PEs are too many for a field of {least} rows"))),
            _ => Ok(()),
        });
        Ok(Plan::of_ranks(planned, ranks))
    }

    async fn open(
        args: &JacobiArgs,
        planned: &mut Vec<JacobiConfig>,
        ranks: &mut Bootstrap,
    ) -> Result<(Jacobi, Header), Failure> {
        if args.world.is_emulated() {
            *planned = tuples(args, ON_CPU)?;
        }
        let jacobi = Jacobi::open(args, planned, ranks)?;
        jacobi.check_nvshmem()?;
        let why: Vec<Option<String>> = planned.iter().map(|tuple| jacobi.refused(tuple)).collect::<Result<_, _>>()?;
        // Unsupported parameter combinations become skipped rows. If all are unsupported, the options are an error.
        if let Some(why) = why.into_iter().collect::<Option<Vec<String>>>().and_then(|why| why.into_iter().next()) {
            return Err(Failure::Usage(why));
        }
        let world = &jacobi.session()?.world;
        let mut header = world::header(world, ranks);
        header.notes(jacobi.nccl_note()).note(
            "times are per iteration: a run's wall time from a barrier of all ranks to the end of its last kernel and \
             norm, divided by its iterations; t1 is that of the launched kernel on one device",
        );
        header.note(
            "the field of a run before the timed ones is compared bit by bit with that of one device, and that one \
             with a simple loop on the CPU if points times iterations are at most 2^28",
        );
        Ok((jacobi, header))
    }

    async fn tuple(&mut self, tuple: &JacobiConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let mut rows = self.measure(tuple, ranks).await?;
        rows.extend(self.nvshmem_row(tuple, ranks)?);
        Ok(rows)
    }

    async fn close(self, _: &Header, _: &OutputArgs, ranks: &mut Bootstrap) -> Result<(), Failure> {
        if let Some(Ok(nccl)) = self.nccl {
            self.registered.map_or(Ok(()), |registered| registered.close(&nccl, self.args.world.meet.timeout))?;
            nccl.close()?;
        }
        self.session.map_or(Ok(()), |session| session.close(ranks))
    }
}
