//! `ginlab compare`: compares two runs row by row, with a verdict that takes noise into account.

use crate::error::Failure;
use crate::listing::{self, ListingArgs};
use crate::program::{CommandSpec, catalog, program};
use ginlab::report::compare::{Compared, Comparison, Verdict};
use ginlab::report::run::Runs;
use ginlab::report::{Header, Key, SCHEMA};
use serde::Serialize;
use std::path::PathBuf;

pub const PROGRAMS: &[CommandSpec] = &[program!(
    "compare",
    "Compare two runs row by row: ratios, and verdicts that take noise into account",
    CompareArgs,
    run
)];

const EXAMPLES: &str = "\
Examples:
  ginlab compare before.csv after.csv                      compare two files
  ginlab compare data/cpu/2026-11-21-loopback/vm data/cpu/2026-11-21-loopback/h200 --csv -   compare two directories, print CSV
  ginlab compare before.csv after.csv --fail-slower 5      exit with 1 if a row is slower by more than 5 % and by more than noise
  ginlab compare tcp.csv shm.csv --ignore fabric           compare two fabrics row by row";

/// Options of `ginlab compare`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CompareArgs {
    /// Earlier run: a CSV file written by ginlab, or a directory
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Later run, whose times are divided by those of A
    #[arg(value_name = "B")]
    b: PathBuf,
    /// Exit with 1 if a row of B failed, or is slower than that of A by more than this percentage and by more than the
    /// noise
    #[arg(long, value_name = "PCT", value_parser = percent)]
    fail_slower: Option<f64>,
    /// Columns that may differ between corresponding rows
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(catalog().chosen()))]
    ignore: Vec<String>,
    #[command(flatten)]
    listing: ListingArgs,
}

fn percent(text: &str) -> Result<f64, String> {
    let value = text.trim_end_matches('%').parse::<f64>().ok().filter(|value| (0.0..=1e6).contains(value));
    value.ok_or_else(|| "expected a percentage of at least 0, such as 5 or 2.5".into())
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    a: String,
    b: String,
    #[serde(flatten)]
    comparison: &'a Comparison,
}

/// Compares the runs and prints the table.
fn run(args: &CompareArgs) -> Result<(), Failure> {
    args.listing.check()?;
    let [a, b] = [&args.a, &args.b].map(|path| Runs::find(std::slice::from_ref(path)));
    let (a, b) = (a?, b?);
    let comparison = Comparison::of(&a.runs, &b.runs, catalog(), &args.ignore)?;
    let [a_name, b_name] = [&args.a, &args.b].map(|path| path.display().to_string());
    let mut header = Header::default();
    header.set(Key::Ginlab, env!("CARGO_PKG_VERSION"));
    header.note(format!("A: {a_name}; B: {b_name}; ratios are B over A"));
    for (key, one, two) in &comparison.headers_differ {
        header.note(format!("{key} differs: A {one}, B {two}"));
    }
    for (side, files) in [("A", &comparison.files_only_in_a), ("B", &comparison.files_only_in_b)] {
        if !files.is_empty() {
            header.note(format!("{} files only in {side}: {}", files.len(), files.join(", ")));
        }
    }
    let counts: Vec<String> = comparison.counts().into_iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    header.note(format!("{} rows: {}", comparison.rows.len(), counts.join(", ")));
    let table = listing::table_of(comparison.table());
    let document = Document { schema: SCHEMA, a: a_name, b: b_name, comparison: &comparison };
    args.listing.write(&header, &Compared::COLUMNS, &comparison.rows, &document, &table)?;
    match args.fail_slower {
        Some(limit) => gate(&comparison.rows, limit),
        None => Ok(()),
    }
}

/// Returns a failure if a row became slower by more than `limit` percent, or failed.
fn gate(rows: &[Compared], limit: f64) -> Result<(), Failure> {
    let bad: Vec<&Compared> = rows
        .iter()
        .filter(|row| match row.verdict {
            Verdict::Slower(percent) => percent > limit,
            Verdict::Failed(_) => true,
            _ => false,
        })
        .collect();
    match bad.first() {
        None => Ok(()),
        Some(first) => Err(Failure::Run(format!(
            "{} of {} rows failed or are slower by more than {limit} % and by more than noise; the first: {}: {}",
            bad.len(),
            rows.len(),
            first.row,
            first.verdict
        ))),
    }
}
