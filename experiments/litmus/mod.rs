//! `ginlab litmus`: which orders of writes, immediates and completions the worst-case network shows.

mod programs;

use crate::error::Failure;
use crate::listing::{Column, Field, ListingArgs, entries, table};
use crate::museum::network::{self, IDLE};
use crate::museum::port::{self, Body};
use crate::program::{Program, program};
use crate::values::usage;
use ginlab::report::Header;
use ginlab::signals;
use ginlab::versions::Versions;
use serde::Serialize;
use serde_json::{Value, json};

pub const PROGRAMS: &[Program] =
    &[program!("litmus", "Show which orders of writes, immediates and completions a network permits", Args, run)];

/// Version of the columns and of the JSON document.
const SCHEMA: u32 = 1;
/// Options of the network: old and new words are distinguished without poison, and two writes of one word are the
/// subject of a test and not an error.
const OPTIONS: &str = "poison=off,watch=off";

const EXAMPLES: &str = "\
Examples:
  ginlab litmus                    run all tests with 1000 seeds
  ginlab litmus --seeds 100000 --csv litmus.csv

Each test has a weak outcome. The exit code is 1 if a forbidden one was seen.";

/// Options of `ginlab litmus`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Number of seeds
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    #[command(flatten)]
    output: ListingArgs,
}

/// A litmus test in one variant.
struct Test {
    name: &'static str,
    /// Event that precedes the second operation, or for which the reader waits.
    wait: &'static str,
    /// Reason for which the network permits or forbids the weak outcome.
    rule: &'static str,
    body: Body,
    waits: bool,
    pes: usize,
}

const fn test(name: &'static str, body: Body, wait: &'static str, waits: bool, rule: &'static str) -> Test {
    Test { name, wait, rule, body, waits, pes: 2 }
}

const NO_ORDER: &str = "two writes have no order (fi_efa(7), SRD)";
const DELIVERED: &str = "complete means at the target (FI_DELIVERY_COMPLETE)";
const OWN_BYTES: &str = "an immediate follows the bytes of its own write (fi_rma(3))";
const APART: &str = "completions and immediates have no order";

/// All tests. The variants with a wait forbid the weak outcome.
const TESTS: [Test; 14] = [
    test("message-passing", programs::message_passing, "nothing", false, NO_ORDER),
    test("message-passing", programs::message_passing, "completion of the first write", true, DELIVERED),
    test("signal-after-bytes", programs::signal_after_bytes, "nothing", false, NO_ORDER),
    test("signal-after-bytes", programs::signal_after_bytes, "immediate of the write itself", true, OWN_BYTES),
    test(
        "bytes-of-one-write",
        programs::bytes_of_one_write,
        "its last word",
        false,
        "packets have no order (fi_efa(7))",
    ),
    test("bytes-of-one-write", programs::bytes_of_one_write, "its immediate", true, OWN_BYTES),
    test("same-word", programs::same_word, "nothing", false, NO_ORDER),
    test("same-word", programs::same_word, "completion of the first write", true, DELIVERED),
    test("store-buffering", programs::store_buffering, "nothing", false, "a write that is posted has not arrived"),
    test("store-buffering", programs::store_buffering, "completion of the own write", true, DELIVERED),
    test("completion-and-notice", programs::completion_before_notice, "the second immediate", false, APART),
    test("completion-and-notice", programs::completion_before_notice, "both immediates", true, APART),
    Test { pes: 3, ..test("cumulativity", programs::cumulativity, "nothing", false, NO_ORDER) },
    Test { pes: 3, ..test("cumulativity", programs::cumulativity, "completion of the write", true, DELIVERED) },
];

/// Results of a test.
struct Row {
    test: &'static Test,
    first: u64,
    seeds: u64,
    weak: u64,
    /// First seed with the weak outcome, and the outcome.
    seen: Option<(u64, String)>,
}

#[derive(Serialize)]
struct Document<'a, T> {
    schema: u32,
    header: &'a Header,
    rows: &'a [T],
}

const FIELDS: [Field<Row>; 11] = [
    ("test", |row| json!(row.test.name)),
    ("wait", |row| json!(row.test.wait)),
    ("pes", |row| json!(row.test.pes)),
    ("device", |_| json!("emulated")),
    ("fabric", |row| json!(row.fabric())),
    ("allowed", |row| json!(!row.test.waits)),
    ("rule", |row| json!(row.test.rule)),
    ("seeds", |row| json!(row.seeds)),
    ("weak_outcomes", |row| json!(row.weak)),
    ("first_seed", |row| row.seen.as_ref().map_or(Value::Null, |(seed, _)| json!(seed))),
    ("outcome", |row| row.seen.as_ref().map_or(Value::Null, |(_, text)| json!(text))),
];

const TABLE: [Column<Row>; 7] = [
    ("test", "", |row| row.test.name.into()),
    ("waits for", "", |row| row.test.wait.into()),
    ("weak", "outcome", |row| if row.test.waits { "forbidden".into() } else { "allowed".into() }),
    ("seeds", "", |row| row.seeds.to_string()),
    ("seen", "weak", |row| row.weak.to_string()),
    ("outcome", "", |row| row.seen.as_ref().map_or(String::new(), |(_, text)| text.clone())),
    ("rule", "", |row| row.test.rule.into()),
];

impl Row {
    fn measure(test: &'static Test, args: &Args) -> Result<Row, Failure> {
        let mut row = Row { test, first: args.seed, seeds: args.seeds, weak: 0, seen: None };
        for seed in args.seed..args.seed + args.seeds {
            if signals::interrupted() {
                return Err(Failure::Interrupted);
            }
            let spec = network::spec(OPTIONS, seed).map_err(Failure::Run)?;
            if let Err(outcome) = port::run(test.body, test.waits, test.pes, &spec) {
                if outcome.starts_with(port::HANGS) {
                    return Err(Failure::Run(format!("{}, seed {seed}: {outcome}", test.name)));
                }
                row.weak += 1;
                row.seen.get_or_insert((seed, outcome));
            }
        }
        Ok(row)
    }

    /// Returns the name of the network with all seeds.
    fn fabric(&self) -> String {
        let last = self.first + self.seeds - 1;
        let seeds = if last > self.first { format!("{}..{last}", self.first) } else { last.to_string() };
        format!("worst:seed={seeds},{IDLE},{OPTIONS}")
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    args.output.check()?;
    if args.seed.checked_add(args.seeds).is_none() {
        return Err(usage("--seed", "the last seed does not fit in 64 bits"));
    }
    let mut header = Versions::header();
    header
        .note("PEs and the worst-case network run on one thread; counts depend on its delays and predict no hardware");
    let rows = TESTS.iter().map(|test| Row::measure(test, args)).collect::<Result<Vec<_>, _>>()?;
    let written = entries(&FIELDS, &rows);
    let document = Document { schema: SCHEMA, header: &header, rows: &written };
    args.output.write(&header, &FIELDS.map(|(key, _)| key), &written, &document, &table(&TABLE, &rows))?;
    match rows.iter().find(|row| row.test.waits && row.weak > 0) {
        Some(Row { test, weak, seeds, .. }) => {
            let Test { name, wait, .. } = test;
            Err(Failure::WrongData(format!("{name} ({wait}): a forbidden outcome with {weak} of {seeds} seeds")))
        }
        None => Ok(()),
    }
}
