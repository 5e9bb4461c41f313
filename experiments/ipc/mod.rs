//! `ginlab ipc`: kernels that write to, copy to and read from another GPU's memory. They are compared with the copy
//! engine and the loop of ginlab's C++ predecessor, all interleaved in one run.
//!
//! Every rank has its own GPU and processes the same parameter combinations in the same order.

mod args;
mod cases;
mod columns;
mod measure;
mod plan;
mod rank;
mod receive;
mod rows;
mod verify;

use crate::columns::{POST, SHARING};
use crate::error::Failure;
use crate::mps;
use crate::output::OutputArgs;
use crate::program::CommandSpec;
use crate::ranks::Ranks;
use crate::runner::{self, Experiment, Rows, program};
use crate::values::usage;
use args::IpcArgs;
use columns::{DIRECTION, KNEE, LAUNCH, ONE_WAY, OPERATION, PAIR, RECEIVED, STORE, WIDTH};
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::ForeignModule;
use ginlab::report::{About, Header, Headline, Key, Plot, Row};
use ginlab::versions::Versions;
use measure::IpcBench;
use plan::{IpcConfig, IpcPlan};
use rank::IpcRank;
use rows::{Writer, mark_knees};
use std::collections::HashMap;

pub const PROGRAMS: &[CommandSpec] = &[program::<Ipc>()];

/// State of a rank for all parameter combinations. Fields are dropped in order: kernels must be dropped before the
/// device.
pub struct Ipc {
    plan: IpcPlan,
    cuda: Option<ForeignModule>,
    rank: IpcRank,
    /// Median times of flows that run alone, in one direction.
    alone: HashMap<String, f64>,
    /// Rows of a sweep of grids whose knee is not known yet.
    held: Rows,
    /// Number of the last parameter combination. Selects its patterns.
    number: u32,
}

impl Experiment for Ipc {
    type Args = IpcArgs;
    type Config = (usize, IpcConfig);

    const ABOUT: About = About {
        columns: &[OPERATION, STORE, WIDTH, PAIR, DIRECTION, LAUNCH, SHARING, POST, RECEIVED, ONE_WAY, KNEE],
        without: &["rails", "mode"],
        headlines: &[
            Headline::most(
                "a kernel's writes to a peer, highest bandwidth",
                "bandwidth_gbytes_s",
                &[("operation", "write"), ("direction", "one"), ("store", "plain")],
            ),
            Headline::most(
                "the copy engine, highest bandwidth",
                "bandwidth_gbytes_s",
                &[("case", "copy-engine"), ("direction", "one")],
            ),
        ],
        plots: &[
            Plot::BANDWIDTH.by("grid", "bandwidth by blocks of the grid", &["grid"]),
            Plot::BANDWIDTH,
            Plot::RATIO,
            Plot::TIME,
        ],
        ..About::new("ipc", "Measure writes to a peer's mapped memory on one host, compared with the copy engine")
    };

    fn plan(args: &mut IpcArgs) -> Result<runner::Plan<(usize, IpcConfig)>, Failure> {
        let plan = IpcPlan::new(args)?;
        let count = plan.ranks;
        let ranks = Ranks {
            kind: None,
            asked: args.np,
            default: count,
            check: Box::new(move |ranks| match ranks == count {
                true => Ok(()),
                false => Err(Failure::Usage(format!("--np: {ranks} ranks were started; specify --np {ranks}"))),
            }),
            // A rank waits while others measure a repeat, in which every wait is bounded.
            timeout: plan.timeout * 2,
            interfaces: None,
            fingerprint: plan.fingerprint(),
            mps: Some(args.mps.on(args.device)),
            partial: false,
        };
        Ok(runner::Plan::of_ranks(plan.tuples(), ranks))
    }

    async fn open(
        args: &IpcArgs,
        _: &mut Vec<(usize, IpcConfig)>,
        ranks: &mut Bootstrap,
    ) -> Result<(Ipc, Header), Failure> {
        if !ranks.same_host() {
            let text = "the ranks are on several hosts, but memory can be mapped only between GPUs of one host; use \
                        ginlab proxy for several hosts";
            return Err(Failure::Usage(text.into()));
        }
        let plan = IpcPlan::new(args)?;
        let rank = IpcRank::open(&plan, ranks)?;
        let load = |path| ForeignModule::load(&rank.device, path).map_err(|error| usage("--cuda-module", error));
        let cuda = plan.args.cuda_module.as_deref().map(load).transpose()?;
        let header = header(&plan, ranks, &rank);
        Ok((Ipc { plan, cuda, rank, alone: HashMap::new(), held: Rows::new(), number: 0 }, header))
    }

    async fn tuple(&mut self, (scene, tuple): &(usize, IpcConfig), ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let Ipc { plan, cuda, rank, alone, held, number } = self;
        let scene = &plan.scenes[*scene];
        let mut writer = Writer { scene, tuple: *tuple, plan, rank, alone };
        if let Some((flow, why)) = scene.flows.iter().find_map(|flow| Some((*flow, rank.unreachable(*flow)?))) {
            // Print the row once per operation.
            let first = [plan.sizes[0], plan.args.block[0].into(), plan.grids[0].into()];
            let is_first =
                [tuple.bytes, tuple.block.into(), tuple.grid.into()] == first && tuple.launch == plan.args.launch[0];
            return Ok(is_first.then(|| writer.unreachable(flow, why)).into_iter().collect());
        }
        *number += 1;
        let bench = IpcBench { plan, scene, tuple: *tuple, number: *number, rank, cuda: cuda.as_ref() };
        let (measured, missing) = bench.run(ranks).await?;
        held.extend(measured.iter().flat_map(|measured| writer.rows(measured)));
        held.extend(missing.map(|missing| writer.missing(missing)));
        // The knee is known after all grids have been measured.
        if plan.knee && plan.grids.last() != Some(&tuple.grid) {
            return Ok(Rows::new());
        }
        if plan.knee {
            mark_knees(held);
        }
        Ok(std::mem::take(held))
    }

    fn what(row: &Row) -> String {
        format!("{} of pair {}", row.case, row.own(PAIR.name).text().unwrap_or_default())
    }

    async fn close(self, _: &Header, _: &OutputArgs, ranks: &mut Bootstrap) -> Result<(), Failure> {
        self.rank.close(ranks)
    }
}

fn header(plan: &IpcPlan, ranks: &Bootstrap, rank: &IpcRank) -> Header {
    let mut header = Versions::header();
    header.set(Key::Gpu, rank.device.name()).set(Key::Memory, "device memory, mapped by the other ranks");
    mps::describe(&mut header, &rank.sharing);
    if let Some(link) = rank.link(plan.scenes[0].flows[0]) {
        let count = link.count.map(|count| format!(", {count} links")).unwrap_or_default();
        let rate =
            link.bits_per_second.map(|rate| format!(", {} GB/s per direction", rate as f64 / 8e9)).unwrap_or_default();
        header.set(Key::Provider, format!("{}{count}{rate}", link.fabric()));
    }
    let module = plan.args.cuda_module.as_ref();
    header.notes(module.map(|path| format!("cuda-c++: {}", path.display()))).notes(&rank.notes);
    if plan.emulated {
        header.note("emulated device over shared memory: times are not representative of a GPU");
    }
    header.note(format!("{} ranks by the {} bootstrap", ranks.size(), ranks.kind()));
    header.note(
        "time_us is the time per launch, between events before and after the launches of a repeat; for concurrent \
         flows it is that of the slowest, and their bytes are summed; cuda-c++ is compared with ginlab's kernel of the \
         same width",
    );
    header
}
