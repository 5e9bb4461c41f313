//! `ginlab proxy`: GPU-initiated puts through ring, proxy and rails, beside CPU-initiated writes of the same buffers.
//!
//! Half of the ranks runs the kernel, each putting to one of the other half, across hosts where there are several
//! ([`ginlab::pairing`]); on null rails every rank puts, and to itself. Every rank walks through the same rows in the same order; what they must agree on is compared
//! before the first one.

mod args;
mod layout;
mod machine;
mod measure;
mod plan;
mod rank;
mod setup;
mod trace;
mod verify;

pub use args::Args;

use crate::error::Failure;
use crate::job;
use crate::output::Output;
use ginlab::bootstrap;
use ginlab::bootstrap::{Bootstrap, Options as BootstrapOptions};
use ginlab::proxy::device_timeout;
use ginlab::report::{Header, Key, Row};
use plan::Plan;
use rank::Rank;
use trace::Traces;

/// Runs the experiment on this rank.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut plan = Plan::new(args)?;
    if plan.needs_library()
        && let Err(missing) = ginlab::fabric::libfabric::require_library()
    {
        plan.do_without_library(&missing)?;
    }
    let mut ranks = open_ranks(args, &plan)?;
    if let Some(why) = plan.why_null.as_ref().filter(|_| ranks.rank() == 0) {
        eprintln!("ginlab: {why}");
    }
    let result = match run_rank(args, &plan, &mut ranks) {
        Ok(()) => ranks.finish().map_err(Failure::from),
        Err(failure) => {
            let failure = job::with_cause(failure, &mut ranks);
            if let Some(text) = failure.text() {
                ranks.abort(&text);
            }
            Err(failure)
        }
    };
    result.map_err(|failure| if bootstrap::is_spawned_child() { Failure::Told(Box::new(failure)) } else { failure })
}

fn open_ranks(args: &Args, plan: &Plan) -> Result<Bootstrap, Failure> {
    let options = BootstrapOptions {
        // A rank waits here while another one measures a row, which is bounded by the volume of a row and by the
        // device's own timeout.
        timeout: device_timeout(plan.timeout) * 2,
        fingerprint: plan.fingerprint(),
        interfaces: args.bootstrap_if.clone(),
        ..BootstrapOptions::default()
    };
    let kind = plan.bootstrap.unwrap_or_else(|| bootstrap::Kind::detect(&bootstrap::process_env));
    let asked = args.np.or((kind == bootstrap::Kind::Local).then_some(plan.default_ranks()));
    // Before any process is started for nothing.
    asked.map_or(Ok(()), |asked| plan.check_ranks(asked))?;
    let ranks = Bootstrap::open(kind, asked, options)?;
    plan.check_ranks(ranks.size())?;
    Ok(ranks)
}

fn run_rank(args: &Args, plan: &Plan, ranks: &mut Bootstrap) -> Result<(), Failure> {
    let mut rank = Rank::open(plan, ranks)?;
    let mut output = match ranks.rank() {
        0 => {
            let header = header(plan, ranks, &rank);
            Some(Output::open(&args.output.options(), &header, plan.rows().count() as u64)?)
        }
        _ => None,
    };
    let mut traces = Traces::default();
    let mut first_wrong = None;
    let result = plan.rows().try_for_each(|row| {
        let rows = measure::measure(plan, &row, &mut rank, ranks, &mut traces)?;
        if let Some(output) = &mut output {
            output.rows(&rows)?;
            output.step();
        }
        first_wrong = first_wrong.take().or_else(|| wrong_data(&rows));
        match &first_wrong {
            Some(failure) if !args.keep_going => Err(failure.clone()),
            _ => Ok(()),
        }
    });
    if let Some(output) = output {
        output.close(result)?;
        if let Some(to) = &plan.trace {
            traces.finish(to, &header(plan, ranks, &rank), args.output.takes_stdout())?;
        }
    } else {
        result?;
    }
    first_wrong.map_or(Ok(()), Err)
}

/// The first row whose verification found something.
fn wrong_data(rows: &[(Row, Vec<f64>)]) -> Option<Failure> {
    let (row, wrong) = rows.iter().find_map(|(row, _)| Some((row, row.wrong.filter(|wrong| *wrong > 0)?)))?;
    Some(Failure::WrongData(format!(
        "verification failed: {wrong} wrong bytes in {} of {} B ({})",
        row.mode.as_deref().unwrap_or(&row.case),
        row.size_bytes.unwrap_or_default(),
        row.fabric
    )))
}

fn header(plan: &Plan, ranks: &Bootstrap, rank: &Rank) -> Header {
    let mut header = Header::default();
    crate::versions().fill(&mut header);
    let offer = rank.offer();
    header
        .set(Key::Gpu, rank.device().name())
        .set(Key::Provider, rank.provider())
        .set(Key::Rails, offer.rails.clone())
        .set(Key::Completion, plan.completion())
        .set(Key::Affinity, rank.affinity())
        .set(Key::Memory, rank.memory_path().text());
    for note in rank.notes() {
        header.note(note);
    }
    let plural = if ranks.size() == 1 { "" } else { "s" };
    header.note(format!("{} rank{plural} by the {} bootstrap", ranks.size(), ranks.kind()));
    header.note(
        "time_us is the time per put (per producer) until all puts of a repeat are complete, on the device's clock \
         (CPU-initiated rows: the proxy thread's clock); percentiles are over repeats; rates and bandwidths count all \
         producers and pairs of ranks",
    );
    header
}
