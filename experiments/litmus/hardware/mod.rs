//! Counts of outcomes on hardware: threads of one or several GPUs, their copy engines, and the CPU.

mod bench;
mod cases;
mod copies;
mod pe;
mod rows;
mod tests;

use super::network::{LitmusDocument, shows};
use super::{LitmusArgs, OnDevice, SCHEMA};
use crate::error::Failure;
use crate::listing::{entries, table};
use crate::mps;
use crate::ranks::{Ranks, with_ranks};
use crate::values::usage;
use cases::{LitmusCase, cases};
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::DeviceChoice;
use ginlab::report::{Header, Key};
use ginlab::versions::Versions;
use pe::Pe;
use rows::{FIELDS, LitmusRow, TABLE};
use std::collections::BTreeMap;

/// Number of seeds with which the worst-case network is searched for a test's weak outcome.
const SEEDS: u64 = 100;
/// Maximum number of PEs. More than four have no role in most tests.
const MOST_PES: usize = 4;

/// Runs all cases, and writes the rows on PE 0.
pub fn run(args: &LitmusArgs) -> Result<(), Failure> {
    let pes = args.np.unwrap_or(1);
    if !(1..=MOST_PES).contains(&pes) {
        return Err(usage("--np", format!("{pes}: must be from 1 to {MOST_PES}")));
    }
    let choice = match args.device {
        Some(OnDevice::Number(_)) if pes > 1 => {
            return Err(usage("--device", "a number specifies one GPU: use gpu with --np, or CUDA_VISIBLE_DEVICES"));
        }
        Some(OnDevice::Number(_)) => DeviceChoice::Gpu,
        Some(OnDevice::Kind(choice)) => choice,
        None => DeviceChoice::Auto,
    };
    let ranks = Ranks {
        kind: None,
        asked: Some(pes),
        default: pes,
        check: Box::new(move |ranks| match ranks == pes {
            true => Ok(()),
            false => Err(Failure::Usage(format!("--np: {ranks} ranks were started; specify --np {ranks}"))),
        }),
        timeout: args.timeout * 2,
        interfaces: None,
        fingerprint: vec![("options".into(), format!("{args:?}"))],
        mps: Some(args.mps.on(choice)),
        partial: false,
    };
    let mut violated = None;
    with_ranks((pes > 1).then_some(ranks), |ranks| {
        let mut rows = Vec::new();
        let mut header = None;
        let measured = measure(args, ranks, &mut header, &mut rows);
        if let (0, Some(header)) = (ranks.rank(), header) {
            violated = rows.iter().find(|row| row.is_violated()).map(describe);
            // Writes the rows measured so far, even after a failure.
            write(args, &header, &rows)?;
        }
        measured
    })?;
    violated.map_or(Ok(()), |text| Err(Failure::Unfit(text)))
}

/// Runs all cases of this PE. The rows are complete on PE 0.
fn measure(
    args: &LitmusArgs,
    ranks: &mut Bootstrap,
    header: &mut Option<Header>,
    rows: &mut Vec<LitmusRow>,
) -> Result<(), Failure> {
    if !ranks.same_host() {
        return Err(usage("--np", "memory can be mapped only between GPUs of one host"));
    }
    let pe = Pe::open(args, ranks)?;
    let cases = cases(args, pe.is_emulated(), pe.pes, pe.placement)?;
    *header = Some(describe_run(&pe));
    let mut network = Network::default();
    for case in cases {
        let counted = bench::count(args, &pe, &case, ranks)?;
        if pe.me == 0 {
            rows.push(LitmusRow {
                case,
                device: pe.device.name(),
                seen_in_network: network.shows(&case)?,
                outcomes: counted.outcomes,
                seconds: counted.time.as_secs_f64(),
            });
        }
    }
    pe.close(ranks)
}

/// Results of the worst-case network so far.
#[derive(Default)]
struct Network(BTreeMap<(&'static str, bool), Option<bool>>);

impl Network {
    /// Returns whether the network shows the weak outcome of the test of the same shape.
    fn shows(&mut self, case: &LitmusCase) -> Result<Option<bool>, Failure> {
        let Some(name) = case.test.network else { return Ok(None) };
        let key = (name, !case.is_allowed());
        if let Some(known) = self.0.get(&key) {
            return Ok(*known);
        }
        let shown = shows(key.0, key.1, SEEDS)?;
        self.0.insert(key, shown);
        Ok(shown)
    }
}

fn describe_run(pe: &Pe) -> Header {
    let mut header = Versions::header();
    header.set(Key::Gpu, pe.device.name()).notes(&pe.notes);
    if let Some(sharing) = &pe.sharing {
        mps::describe(&mut header, sharing);
    }
    if pe.is_emulated() {
        header.note("emulated device: counts of a CPU, which are no evidence about a GPU");
    }
    header.note(
        "allowed: whether the PTX memory model, with that of C++ for CPU threads, permits the weak outcome; \
         seen_in_network: whether the worst-case network shows it in the test of the same shape, with a wait if it is \
         forbidden here",
    );
    header
}

fn describe(row: &LitmusRow) -> String {
    let LitmusRow { case, .. } = row;
    format!(
        "{} ({} to {}, {}, scope {}): a forbidden outcome in {} of {} trials",
        case.test.name,
        case.writer(),
        case.reader(),
        case.fence.name(),
        case.scope_name(),
        row.weak(),
        row.trials()
    )
}

fn write(args: &LitmusArgs, header: &Header, rows: &[LitmusRow]) -> Result<(), Failure> {
    let written = entries(&FIELDS, rows);
    let document = LitmusDocument { schema: SCHEMA, header, rows: &written };
    args.output.write(header, &FIELDS.map(|(key, _)| key), &written, &document, &table(&TABLE, rows))
}
