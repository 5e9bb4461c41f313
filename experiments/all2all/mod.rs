//! `ginlab all2all`: every rank writes a block to every other one, by rails that all carry the same.

mod args;
mod measure;
mod round;

pub use args::Args;

use crate::error::Failure;
use crate::job::{self, Job};
use crate::output::Output;
use args::Plan;
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::Access;
use ginlab::report::{Header, Row};
use measure::Bench;

/// Runs the experiment on this rank.
pub fn run(args: &Args) -> Result<(), Failure> {
    let plan = Plan::new(args)?;
    job::run(&args.job, plan.fingerprint(args), |ranks| {
        if ranks.size() < 2 {
            return Err(Failure::Usage("--np: an all-to-all needs two ranks or more".into()));
        }
        rank(args, &plan, ranks)
    })
}

fn rank(args: &Args, plan: &Plan, ranks: &mut Bootstrap) -> Result<(), Failure> {
    let memory = plan.memory(ranks.size());
    let mut job = Job::open(&args.job, plan.most_rails, false, memory * 2, ranks)?;
    let source = job.register(args.job.mem, memory, Access::SOURCE)?;
    let destination = job.register(args.job.mem, memory, Access::REMOTE_WRITE)?;
    job.connect(&[&destination], ranks)?;
    let mut output = match ranks.rank() {
        0 => Some(Output::open(&args.output.options(), &header(args, &job, ranks), plan.tuples.len() as u64)?),
        _ => None,
    };
    let mut bench = Bench::new(args, &job, ranks, source, destination)?;
    let mut wrong = None;
    // One executor for all rows: its driver keeps the rails going while a rank waits for the others.
    let result = ginlab::flow::run([job.flow.clone()], async {
        for tuple in &plan.tuples {
            if let (Some(output), Some(row)) = (&mut output, bench.tuple(tuple).await?) {
                output.rows(std::slice::from_ref(&row))?;
                output.step();
                wrong = wrong.take().or_else(|| wrong_data(&row.0));
            }
        }
        Ok(())
    })
    .unwrap_or_else(|error| Err(Failure::Run(format!("no event loop: {error}"))));
    match output {
        Some(output) => output.close(result),
        None => result,
    }?;
    wrong.map_or(Ok(()), Err)
}

fn wrong_data(row: &Row) -> Option<Failure> {
    let wrong = row.wrong.filter(|wrong| *wrong > 0)?;
    let bytes = row.size_bytes.unwrap_or_default();
    Some(Failure::WrongData(format!(
        "verification failed: {wrong} wrong bytes in blocks of {bytes} B ({})",
        row.fabric
    )))
}

fn header(args: &Args, job: &Job, ranks: &Bootstrap) -> Header {
    let mut header = job.header(args.job.mem, ranks);
    header.note(
        "time_us is one round: from a rank's first write until it has sent and received all its blocks, the slowest rank's; \
         percentiles are over rounds; bandwidths are per rank: GB/s and busbw count what crosses the network, algbw also a \
         rank's own block, which stays where it is; rail_bytes are of all ranks together",
    );
    header
}
