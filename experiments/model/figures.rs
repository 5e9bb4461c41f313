//! `ginlab model figures`: lists the figures of profiles.

use crate::error::Failure;
use crate::listing::{ListingArgs, ListingColumn, described, table};
use ginlab::fabric::model::{PREFIX, Profile};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  ginlab model figures                  list the figures of all profiles
  ginlab model figures p5 --json -      print those of one profile as JSON";

/// Options of `ginlab model figures`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ModelFiguresArgs {
    /// Show only this profile (p4d, p5, p5en, p6-b200)
    profile: Option<String>,
    #[command(flatten)]
    output: ListingArgs,
}

#[derive(Debug, Serialize)]
struct Row {
    profile: String,
    figure: &'static str,
    value: f64,
    source: Option<String>,
    assumption: Option<String>,
}

const COLUMNS: [ListingColumn<Row>; 4] = [
    ("profile", "", |row| format!("{PREFIX}{}", row.profile)),
    ("figure", "", |row| row.figure.to_owned()),
    ("value", "", |row| row.value.to_string()),
    ("source or assumption", "", |row| match (&row.source, &row.assumption) {
        (Some(source), _) => source.clone(),
        (None, assumption) => format!("ASSUMED: {}", assumption.as_deref().unwrap_or_default()),
    }),
];

pub fn run(args: &ModelFiguresArgs) -> Result<(), Failure> {
    args.output.check()?;
    let profiles = match &args.profile {
        Some(name) => {
            let name = name.strip_prefix(PREFIX).unwrap_or(name);
            vec![(name.to_owned(), Profile::named(name).map_err(Failure::Usage)?)]
        }
        None => Profile::all().map_err(Failure::Run)?.into_iter().collect(),
    };
    let mut rows = Vec::new();
    for (name, profile) in &profiles {
        rows.extend(profile.figures().map(|(figure, known)| Row {
            profile: name.clone(),
            figure,
            value: known.value,
            source: known.source.clone(),
            assumption: known.assumption.clone(),
        }));
    }
    let document = serde_json::json!({ "figures": rows });
    args.output.write(
        &described(),
        &["profile", "figure", "value", "source", "assumption"],
        &rows,
        &document,
        &table(&COLUMNS, &rows),
    )
}
