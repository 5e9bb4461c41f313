//! `ginlab ipc`: kernels that write into, copy into and read from another GPU's memory, beside the copy engine and the loop of
//! ginlab's C++ predecessor, all in turn in one run.
//!
//! Every rank has a GPU of its own and walks through the same tuples in the same order.

mod args;
mod cases;
mod measure;
mod plan;
mod rank;
mod receive;
mod rows;
mod verify;

pub use args::Args;

use crate::error::Failure;
use crate::job;
use crate::output::Output;
use ginlab::bootstrap::{Bootstrap, Kind, Options as BootstrapOptions, is_spawned_child, process_env};
use ginlab::cuda::ForeignModule;
use ginlab::report::{Header, Key, Row};
use measure::Bench;
use plan::{Plan, Tuple};
use rank::Rank;
use rows::{Rows, Writer, mark_knees};
use std::collections::HashMap;

/// Runs the experiment on this rank.
pub fn run(args: &Args) -> Result<(), Failure> {
    let plan = Plan::new(args)?;
    let mut ranks = open_ranks(args, &plan)?;
    let result = match run_rank(args, &plan, &mut ranks) {
        Ok(wrong) => ranks.finish().map_err(Failure::from).and(wrong.map_or(Ok(()), Err)),
        Err(failure) => {
            let failure = job::with_cause(failure, &mut ranks);
            if let Some(text) = failure.text() {
                ranks.abort(&text);
            }
            Err(failure)
        }
    };
    result.map_err(|failure| if is_spawned_child() { Failure::Told(Box::new(failure)) } else { failure })
}

fn open_ranks(args: &Args, plan: &Plan) -> Result<Bootstrap, Failure> {
    let options = BootstrapOptions {
        // A rank waits here while others measure a repeat, each wait of which is bounded.
        timeout: plan.timeout * 2,
        fingerprint: plan.fingerprint(),
        ..BootstrapOptions::default()
    };
    let kind = Kind::detect(&process_env);
    let asked = if kind == Kind::Local { Some(plan.ranks) } else { args.ranks };
    let ranks = Bootstrap::open(kind, asked, options)?;
    if ranks.size() != plan.ranks {
        return Err(Failure::Usage(format!("--ranks: {} ranks were started; say --ranks {0}", ranks.size())));
    }
    if !ranks.same_host() {
        return Err(Failure::Usage(
            "the ranks are on several hosts; memory is opened between GPUs of one host (ginlab proxy goes further)"
                .into(),
        ));
    }
    Ok(ranks)
}

/// The inner result is rank 0's word on wrong bytes: every rank comes to the end of the job all the same.
fn run_rank(args: &Args, plan: &Plan, ranks: &mut Bootstrap) -> Result<Option<Failure>, Failure> {
    let rank = Rank::open(plan, ranks)?;
    let cuda = plan.cuda_module.as_deref().map(|path| ForeignModule::load(&rank.device, path)).transpose()?;
    let mut output = match ranks.rank() {
        0 => {
            let steps = plan.scenes.len() * plan.sweeps() * plan.grids.len();
            Some(Output::open(&args.output.options(), &header(plan, ranks, &rank), steps as u64)?)
        }
        _ => None,
    };
    let result = sweep(plan, ranks, &rank, cuda.as_ref(), output.as_mut());
    let wrong = match output {
        Some(output) => output.close(result),
        None => result,
    }?;
    rank.close(ranks)?;
    Ok(wrong)
}

fn sweep(
    plan: &Plan,
    ranks: &mut Bootstrap,
    rank: &Rank,
    cuda: Option<&ForeignModule>,
    mut output: Option<&mut Output>,
) -> Result<Option<Failure>, Failure> {
    let mut wrong = None;
    let mut number = 0;
    let mut writer = Writer { rank, ranks: plan.ranks, emulated: plan.emulated, alone: HashMap::new() };
    for scene in &plan.scenes {
        let unreachable = scene.flows.iter().find_map(|flow| Some((*flow, rank.unreachable(*flow)?)));
        if let Some((flow, why)) = unreachable {
            let row = |operation: &plan::Operation| writer.unreachable(operation.name(), scene, flow, why);
            let rows: Rows = plan.operations.iter().map(row).collect();
            output.as_mut().map_or(Ok(()), |output| output.rows(&rows))?;
            continue;
        }
        for tuples in sweeps(plan) {
            let mut held = Rows::new();
            for tuple in tuples {
                number += 1;
                let bench = Bench { plan, scene, tuple, number, rank, ranks: &mut *ranks, cuda };
                let (measured, missing) = bench.run()?;
                let mut rows = writer.rows(scene, &tuple, &measured);
                rows.extend(missing.iter().map(|missing| writer.missing(missing, scene, &tuple)));
                if let Some(output) = output.as_mut() {
                    wrong = wrong.or_else(|| rows.iter().find_map(|(row, _)| wrong_bytes(row)));
                    // The knee is known once all grids are.
                    if plan.knee {
                        held.extend(rows)
                    } else {
                        output.rows(&rows)?
                    }
                    output.step();
                }
            }
            if plan.knee {
                mark_knees(&mut held);
            }
            output.as_mut().map_or(Ok(()), |output| output.rows(&held))?;
        }
    }
    Ok(wrong)
}

/// The tuples, those that differ in their grid alone together.
fn sweeps(plan: &Plan) -> Vec<Vec<Tuple>> {
    let mut sweeps = Vec::new();
    for &operation in &plan.operations {
        for &bytes in &plan.sizes {
            for &launch in &plan.launches {
                for &block in &plan.blocks {
                    let tuple = |&grid: &u32| Tuple { operation, bytes, launch, block, grid };
                    sweeps.push(plan.grids.iter().map(tuple).collect());
                }
            }
        }
    }
    sweeps
}

fn wrong_bytes(row: &Row) -> Option<Failure> {
    let wrong = row.wrong.filter(|wrong| *wrong > 0)?;
    Some(Failure::WrongData(format!(
        "verification failed: {wrong} wrong bytes in {} of {} B, pair {}",
        row.case,
        row.size_bytes.unwrap_or_default(),
        row.pair.as_deref().unwrap_or_default()
    )))
}

fn header(plan: &Plan, ranks: &Bootstrap, rank: &Rank) -> Header {
    let mut header = Header::default();
    crate::versions().fill(&mut header);
    header.set(Key::Gpu, rank.device.name()).set(Key::Memory, "device memory, opened by the other ranks");
    if let Some(link) = rank.link(plan.scenes[0].flows[0]) {
        let count = link.count.map(|count| format!(", {count} links")).unwrap_or_default();
        let rate = link.bits_per_second.map(|rate| format!(", {} GB/s one way", rate as f64 / 8e9)).unwrap_or_default();
        header.set(Key::Provider, format!("{}{count}{rate}", link.fabric()));
    }
    if let Some(path) = &plan.cuda_module {
        header.note(format!("cuda-c++: {}", path.display()));
    }
    for note in &rank.notes {
        header.note(note.clone());
    }
    if plan.emulated {
        header.note("emulated device over shared memory: its times say nothing about a GPU");
    }
    header.note(format!("{} ranks by the {} bootstrap", ranks.size(), ranks.kind()));
    header.note(
        "time_us is the time per launch between two events around the launches of a repeat; of several flows at once the \
         slowest counts, and their bytes are added up; cuda-c++ is divided by ginlab's own kernel of the same width",
    );
    header
}
