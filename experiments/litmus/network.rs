//! Orders of writes, immediates and completions that the worst-case network shows.

use super::{LitmusArgs, SCHEMA, check_list, keeps, programs};
use crate::error::Failure;
use crate::listing::{Field, ListingColumn, entries, table};
use crate::museum::network::{self, IDLE};
use crate::museum::port::{self, ExhibitBody};
use crate::values::usage;
use ginlab::report::Header;
use ginlab::signals;
use ginlab::versions::Versions;
use serde::Serialize;
use serde_json::{Value, json};

/// Options of the network: old and new words are distinguished without poison, and two writes of one word are the
/// subject of a test and not an error.
const OPTIONS: &str = "poison=off,watch=off";

/// A litmus test in one variant.
struct Test {
    name: &'static str,
    /// Event that precedes the second operation, or that the reader waits for.
    wait: &'static str,
    /// Reason why the network permits or forbids the weak outcome.
    rule: &'static str,
    body: ExhibitBody,
    waits: bool,
    pes: usize,
}

const fn test(name: &'static str, body: ExhibitBody, wait: &'static str, waits: bool, rule: &'static str) -> Test {
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

/// The JSON document.
#[derive(Serialize)]
pub struct LitmusDocument<'a, T> {
    pub schema: u32,
    pub header: &'a Header,
    pub rows: &'a [T],
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

const TABLE: [ListingColumn<Row>; 7] = [
    ("test", "", |row| row.test.name.into()),
    ("waits for", "", |row| row.test.wait.into()),
    ("weak", "outcome", |row| if row.test.waits { "forbidden".into() } else { "allowed".into() }),
    ("seeds", "", |row| row.seeds.to_string()),
    ("seen", "weak", |row| row.weak.to_string()),
    ("outcome", "", |row| row.seen.as_ref().map_or(String::new(), |(_, text)| text.clone())),
    ("rule", "", |row| row.test.rule.into()),
];

impl Row {
    fn measure(test: &'static Test, (first, seeds): (u64, u64)) -> Result<Row, Failure> {
        let mut row = Row { test, first, seeds, weak: 0, seen: None };
        for seed in first..first + seeds {
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

/// Returns whether the worst-case network shows the weak outcome of a test with at least one of `seeds` seeds. `waits`
/// selects the variant with a wait. Returns `None` if no such test exists.
pub fn shows(name: &str, waits: bool, seeds: u64) -> Result<Option<bool>, Failure> {
    let Some(test) = TESTS.iter().find(|test| test.name == name && test.waits == waits) else { return Ok(None) };
    for seed in 1..=seeds {
        if Row::measure(test, (seed, 1))?.weak > 0 {
            return Ok(Some(true));
        }
    }
    Ok(Some(false))
}

/// Explores the worst-case network.
pub fn run(args: &LitmusArgs) -> Result<(), Failure> {
    if args.seed.checked_add(args.seeds).is_none() {
        return Err(usage("--seed", "the last seed does not fit in 64 bits"));
    }
    for (option, list) in [
        ("--scope", &args.scope),
        ("--writer", &args.writer),
        ("--fence", &args.fence),
        ("--placement", &args.placement),
    ] {
        if !list.is_empty() {
            return Err(usage(option, "applies only to devices: specify -d or --np"));
        }
    }
    let mut names = TESTS.each_ref().map(|test| test.name).to_vec();
    names.dedup();
    check_list("--test", &args.test, &names)?;
    let mut header = Versions::header();
    header
        .note("PEs and the worst-case network run on one thread; counts depend on its delays and predict no hardware");
    let tests = TESTS.iter().filter(|test| keeps(&args.test, test.name));
    let rows = tests.map(|test| Row::measure(test, (args.seed, args.seeds))).collect::<Result<Vec<_>, _>>()?;
    let written = entries(&FIELDS, &rows);
    let document = LitmusDocument { schema: SCHEMA, header: &header, rows: &written };
    args.output.write(&header, &FIELDS.map(|(key, _)| key), &written, &document, &table(&TABLE, &rows))?;
    match rows.iter().find(|row| row.test.waits && row.weak > 0) {
        Some(Row { test, weak, seeds, .. }) => {
            let Test { name, wait, .. } = test;
            Err(Failure::WrongData(format!("{name} ({wait}): a forbidden outcome with {weak} of {seeds} seeds")))
        }
        None => Ok(()),
    }
}
