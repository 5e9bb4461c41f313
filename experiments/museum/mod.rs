//! `ginlab museum`: public bugs of order, completion and reuse, in a broken and in a fixed form, over the worst-case
//! network.

mod exhibits;
mod kernel;
pub mod network;
pub mod port;
mod rules;

use crate::error::Failure;
use crate::listing::{Field, ListingArgs, ListingColumn, entries, table};
use crate::program::{CommandSpec, program};
use crate::values::usage;
use clap::builder::PossibleValuesParser;
use exhibits::{ALL, Exhibit};
use ginlab::report::Header;
use ginlab::signals;
use ginlab::versions::Versions;
use network::IDLE;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Instant;

pub const PROGRAMS: &[CommandSpec] =
    &[program!("museum", "Show public bugs of order and reuse that a usual network hides", MuseumArgs, run)];

/// Value of the positional argument that selects all exhibits.
const EVERY: &str = "all";
/// Version of the columns and of the JSON document.
const SCHEMA: u32 = 1;

const EXAMPLES: &str = "\
Examples:
  ginlab museum                                list the exhibits: project and issue, and the rule that is broken
  ginlab museum one-counter                    run both forms with 100 seeds
  ginlab museum one-counter --seed 7 --seeds 1 repeat one seed
  ginlab museum all --form fixed --seeds 1000  run all fixed forms
  ginlab museum all --form broken --calm       run all broken forms over a network that hides some bugs

A seed repeats its run exactly. The exit code is 1 if a fixed form fails.";

/// Options of `ginlab museum`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct MuseumArgs {
    /// Exhibit to run, or \"all\" [default: list the exhibits]
    #[arg(value_name = "NAME", value_parser = names())]
    name: Option<String>,
    /// The same as NAME
    #[arg(long, value_name = "NAME", value_parser = names())]
    exhibit: Option<String>,
    /// Form to run [default: both]
    #[arg(long, value_enum, value_name = "FORM")]
    form: Option<Form>,
    /// Number of seeds
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// First seed [default: one under which the broken form fails]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Use a network that delays and refuses as little as possible; this hides some of the bugs
    #[arg(long)]
    calm: bool,
    #[command(flatten)]
    output: ListingArgs,
}

/// Form of an exhibit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// Form with the bug
    Broken,
    /// Form without the bug
    Fixed,
}

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(ALL.iter().map(|exhibit| exhibit.name).chain([EVERY]))
}

/// Results of one form of an exhibit.
struct Row {
    exhibit: &'static Exhibit,
    form: Form,
    calm: bool,
    first: u64,
    seeds: u64,
    failed: u64,
    /// First failing seed, and what was seen.
    seen: Option<(u64, String)>,
    seconds: f64,
}

#[derive(Serialize)]
struct Document<'a, T> {
    schema: u32,
    header: &'a Header,
    rows: &'a [T],
}

const LISTED: [Field<Exhibit>; 7] = [
    ("exhibit", |exhibit| json!(exhibit.name)),
    ("issue", |exhibit| json!(exhibit.issue)),
    ("assumed", |exhibit| json!(exhibit.assumed)),
    ("rule", |exhibit| json!(exhibit.rule)),
    ("kind", |exhibit| json!(exhibit.kind())),
    ("source", |exhibit| json!(exhibit.source)),
    ("seed", |exhibit| json!(exhibit.seed)),
];

const LISTED_TABLE: [ListingColumn<Exhibit>; 3] = [
    ("exhibit", "", |exhibit| exhibit.name.into()),
    ("project and issue", "", |exhibit| exhibit.issue.into()),
    ("rule that is broken", "", |exhibit| exhibit.rule.into()),
];

const FIELDS: [Field<Row>; 9] = [
    ("exhibit", |row| json!(row.exhibit.name)),
    ("form", |row| json!(row.form.name())),
    ("device", |_| json!("emulated")),
    ("fabric", |row| json!(row.fabric())),
    ("seeds", |row| json!(row.seeds)),
    ("failed_seeds", |row| json!(row.failed)),
    ("first_failed_seed", |row| row.seen.as_ref().map_or(Value::Null, |(seed, _)| json!(seed))),
    ("seen", |row| row.seen.as_ref().map_or(Value::Null, |(_, text)| json!(text))),
    ("seconds", |row| json!((row.seconds * 1000.0).round() / 1000.0)),
];

const TABLE: [ListingColumn<Row>; 6] = [
    ("exhibit", "", |row| row.exhibit.name.into()),
    ("form", "", |row| row.form.name().into()),
    ("seeds", "", |row| row.seeds.to_string()),
    ("failed", "seeds", |row| row.failed.to_string()),
    ("first", "failed", |row| row.seen.as_ref().map_or(String::new(), |(seed, _)| seed.to_string())),
    ("seen under that seed", "", |row| row.seen.as_ref().map_or(String::new(), |(_, text)| text.clone())),
];

impl Form {
    fn name(self) -> &'static str {
        if self == Form::Fixed { "fixed" } else { "broken" }
    }
}

impl Row {
    /// Runs the seeds of one form, beginning with `first`.
    fn measure(exhibit: &'static Exhibit, form: Form, first: u64, args: &MuseumArgs) -> Result<Row, Failure> {
        let began = Instant::now();
        let (seeds, calm) = (args.seeds, args.calm);
        let mut row = Row { exhibit, form, calm, first, seeds, failed: 0, seen: None, seconds: 0.0 };
        for seed in first..first + seeds {
            if signals::interrupted() {
                return Err(Failure::Interrupted);
            }
            if let Err(text) = exhibit.run(form == Form::Fixed, calm, seed) {
                row.failed += 1;
                row.seen.get_or_insert((seed, text));
            }
        }
        row.seconds = began.elapsed().as_secs_f64();
        Ok(row)
    }

    /// Returns the name of the network with all seeds.
    fn fabric(&self) -> String {
        let last = self.first + self.seeds - 1;
        let seeds = if last > self.first { format!("{}..{last}", self.first) } else { last.to_string() };
        let options = self.exhibit.network(self.calm);
        format!("worst:seed={seeds},{IDLE}{}{options}", if options.is_empty() { "" } else { "," })
    }
}

fn run(args: &MuseumArgs) -> Result<(), Failure> {
    args.output.check()?;
    if args.name.is_some() && args.exhibit.is_some() {
        return Err(usage("--exhibit", "the exhibit is already given as NAME"));
    }
    let mut header = Versions::header();
    let Some(name) = args.name.as_ref().or(args.exhibit.as_ref()) else {
        if args.form.is_some() || args.seed.is_some() || args.calm {
            return Err(usage("NAME", "no exhibit given: name one, or \"all\""));
        }
        return list(args, &header);
    };
    header.note(
        "each run is one thread with kernels on the emulated device, proxies and the worst-case network; it shows \
         order, not speed",
    );
    let forms = args.form.map_or(vec![Form::Broken, Form::Fixed], |form| vec![form]);
    let mut rows = Vec::new();
    for exhibit in ALL.iter().filter(|exhibit| name == EVERY || exhibit.name == name) {
        let first = args.seed.unwrap_or(exhibit.seed);
        if first.checked_add(args.seeds).is_none() {
            return Err(usage("--seed", "the last seed does not fit in 64 bits"));
        }
        for form in &forms {
            rows.push(Row::measure(exhibit, *form, first, args)?);
        }
    }
    let written = entries(&FIELDS, &rows);
    let document = Document { schema: SCHEMA, header: &header, rows: &written };
    args.output.write(&header, &FIELDS.map(|(key, _)| key), &written, &document, &table(&TABLE, &rows))?;
    match rows.iter().find(|row| row.form == Form::Fixed && row.failed > 0) {
        Some(row) => {
            Err(Failure::WrongData(format!("{}: {} of {} seeds failed", row.exhibit.name, row.failed, row.seeds)))
        }
        None => Ok(()),
    }
}

/// Lists the exhibits.
fn list(args: &MuseumArgs, header: &Header) -> Result<(), Failure> {
    let written = entries(&LISTED, ALL);
    let document = Document { schema: SCHEMA, header, rows: &written };
    args.output.write(header, &LISTED.map(|(key, _)| key), &written, &document, &table(&LISTED_TABLE, ALL))
}
