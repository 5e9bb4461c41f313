//! `ginlab write`: CPU-initiated writes through the fabric layer, beside the plainest loop of `fi_write`.

mod args;
mod measure;

pub use args::Args;

use crate::error::Failure;
use crate::job::{self, Job};
use crate::output::Output;
use args::Plan;
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::Access;
use ginlab::pairing::Pairing;
use ginlab::report::{Header, Row};
use measure::Bench;

/// Runs the experiment on this rank.
pub fn run(args: &Args) -> Result<(), Failure> {
    let plan = Plan::new(args)?;
    job::run(&args.job, plan.fingerprint(args), |ranks| {
        if ranks.size() < 2 {
            return Err(Failure::Usage("--np: writes need two ranks or more".into()));
        }
        if args.targets.contains(&args::Targets::One) && !ranks.size().is_multiple_of(2) {
            return Err(Failure::Usage(format!("--np {}: --targets one pairs an even number of ranks", ranks.size())));
        }
        rank(args, &plan, ranks)
    })
}

fn rank(args: &Args, plan: &Plan, ranks: &mut Bootstrap) -> Result<(), Failure> {
    let mut job = Job::open(&args.job, plan.most_rails, false, plan.memory * 2, ranks)?;
    let source = job.register(args.job.mem, plan.memory, Access::SOURCE)?;
    let destination = job.register(args.job.mem, plan.memory, Access::REMOTE_WRITE)?;
    job.connect(&[&destination], ranks)?;
    let pairing = ranks.pairing();
    let mut output = match ranks.rank() {
        0 => {
            let header = header(args, &job, ranks, &pairing);
            Some(Output::open(&args.output.options(), &header, plan.tuples.len() as u64)?)
        }
        _ => None,
    };
    let flow = job.flow.clone();
    let mut bench = Bench { args, job: &job, source, destination, ranks, pairing: &pairing, iteration: 1 };
    let mut wrong = None;
    // One executor for all rows: its driver keeps the rails going while a rank waits for the others.
    let result = ginlab::flow::run([flow], async {
        for tuple in &plan.tuples {
            let rows = bench.tuple(tuple).await?;
            if let Some(output) = &mut output {
                output.rows(&rows)?;
                output.step();
            }
            wrong = wrong.take().or_else(|| wrong_data(&rows));
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

fn wrong_data(rows: &[(Row, Vec<f64>)]) -> Option<Failure> {
    let (row, wrong) = rows.iter().find_map(|(row, _)| Some((row, row.wrong.filter(|wrong| *wrong > 0)?)))?;
    let bytes = row.size_bytes.unwrap_or_default();
    Some(Failure::WrongData(format!(
        "verification failed: {wrong} wrong bytes in writes of {bytes} B ({})",
        row.fabric
    )))
}

fn header(args: &Args, job: &Job, ranks: &Bootstrap, pairing: &Pairing) -> Header {
    let mut header = job.header(args.job.mem, ranks);
    if let Some(note) = pairing.note().filter(|_| args.targets.contains(&args::Targets::One)) {
        header.note(note);
    }
    header.note(
        "time_us is the time per write and target until all writes of a repeat are complete; ack_us is of single writes, \
         from post to completion, in a pass of its own; rates and bandwidths count all targets and pairs of ranks",
    );
    header
}
