//! What experiments that list things share: a few records, known all at once, as a table, as CSV and as one JSON document.
//! Their columns are their own; rows that are measured go through [`crate::output`].

use crate::error::Failure;
use ginlab::report::{Header, Target, WholeFile};
use ginlab::signals;
use serde::Serialize;
use std::io::Write;

/// Where records go.
#[derive(clap::Args, Clone, Debug)]
pub struct RecordArgs {
    /// Write rows as CSV; - is stdout
    #[arg(long, value_name = "FILE")]
    csv: Option<String>,
    /// Write everything as one JSON document; - is stdout
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
    /// Leave the header off stderr
    #[arg(long)]
    no_header: bool,
}

impl RecordArgs {
    fn targets(&self) -> (Option<Target>, Option<Target>) {
        let target = |text: &Option<String>| text.as_deref().map(Target::from);
        (target(&self.csv), target(&self.json))
    }

    /// Refuses two outputs in one place.
    pub fn check(&self) -> Result<(), Failure> {
        let (csv, json) = self.targets();
        Ok(Target::check(csv.as_ref(), json.as_ref())?)
    }

    /// Writes the header to stderr and the records to all that was asked for; the table unless stdout is taken.
    pub fn write(
        &self,
        header: &Header,
        columns: &[&str],
        records: &[impl Serialize],
        document: &impl Serialize,
        table: &str,
    ) -> Result<(), Failure> {
        let (csv, json) = self.targets();
        // All are opened before anything is written.
        let csv_output = csv.as_ref().map(|target| WholeFile::create("CSV", target)).transpose()?;
        let json_output = match json.as_ref().map(|target| WholeFile::create("JSON", target)).transpose() {
            Ok(output) => output,
            Err(error) => {
                csv_output.into_iter().for_each(WholeFile::discard);
                return Err(error.into());
            }
        };
        if !self.no_header {
            // Nothing can be done about a closed stderr, and nothing needs to be.
            let _ = header.write_talk(&mut std::io::stderr().lock());
        }
        if let Some(output) = csv_output {
            output.write(&csv_text(columns, records).map_err(unwritable)?)?;
        }
        if let Some(output) = json_output {
            let mut text = serde_json::to_vec_pretty(document).map_err(unwritable)?;
            text.push(b'\n');
            output.write(&text)?;
        }
        if ![csv, json].contains(&Some(Target::Stdout)) {
            let written = signals::stdout().write_all(table.as_bytes());
            written
                .and_then(|()| signals::stdout().flush())
                .map_err(|error| Failure::Run(format!("cannot write the table to stdout: {error}")))?;
        }
        Ok(())
    }
}

fn unwritable(error: impl std::fmt::Display) -> Failure {
    Failure::Run(format!("cannot put the records into words: {error}"))
}

/// A line of column names and a line per record: lists joined by `;`.
fn csv_text(columns: &[&str], records: &[impl Serialize]) -> csv::Result<Vec<u8>> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    writer.write_record(columns)?;
    for record in records {
        // A record holds numbers and texts only: there is nothing that JSON could refuse.
        let value = serde_json::to_value(record).unwrap_or_default();
        writer.write_record(columns.iter().map(|column| cell(&value[*column])))?;
    }
    writer.into_inner().map_err(|error| error.into_error().into())
}

fn cell(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Null => String::new(),
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(list) => list.iter().map(cell).collect::<Vec<_>>().join(";"),
        other => other.to_string(),
    }
}

/// A heading in two lines, and what stands below.
pub type Column<R> = (&'static str, &'static str, fn(&R) -> String);

/// A table for people: one line per record, and only the columns in which a record has something. Nothing where there is
/// no record.
pub fn table<R>(columns: &[Column<R>], records: &[R]) -> String {
    if records.is_empty() {
        return String::new();
    }
    let columns = columns.iter().filter_map(|(title, unit, value)| {
        let cells: Vec<String> = records.iter().map(value).collect();
        let filled = cells.iter().any(|cell| !cell.is_empty());
        let cells: Vec<String> = [(*title).to_owned(), (*unit).to_owned()].into_iter().chain(cells).collect();
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or_default();
        filled.then_some((cells, width))
    });
    let columns: Vec<_> = columns.collect();
    let line = |index: usize| {
        let cells = columns.iter().map(|(cells, width)| format!("{:<width$}", cells[index]));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    (0..records.len() + 2).map(line).collect()
}
