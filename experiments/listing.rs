//! Parts that listing subcommands share: their options, and the output of rows as table, CSV and JSON document.

use crate::error::Failure;
pub use ginlab::report::JsonObject;
use ginlab::report::{Header, Key, OutputTarget, WholeFile};
use ginlab::signals;
use serde::Serialize;
use serde_json::Value;
use std::io::Write;
use std::path::Path;

/// Outputs of a listing.
#[derive(clap::Args, Clone, Debug)]
pub struct ListingArgs {
    /// Write rows as CSV; - for stdout
    #[arg(long, value_name = "FILE")]
    csv: Option<String>,
    /// Write header and rows as one JSON document; - for stdout
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
    /// Do not print the header to stderr
    #[arg(long)]
    no_header: bool,
}

/// A key of CSV and JSON, and a function that returns its value. Unknown values are null in JSON and empty in CSV.
pub type Field<T> = (&'static str, fn(&T) -> Value);

/// Returns the entries of `things` for these keys.
pub fn entries<'a, T: 'a>(fields: &[Field<T>], things: impl IntoIterator<Item = &'a T>) -> Vec<JsonObject> {
    let entry = |thing| JsonObject(fields.iter().map(|(key, value)| (*key, value(thing))).collect());
    things.into_iter().map(entry).collect()
}

/// A heading of two lines, and a function that returns the cell of a row.
pub type ListingColumn<T> = (&'static str, &'static str, fn(&T) -> String);

impl ListingArgs {
    fn targets(&self) -> (Option<OutputTarget>, Option<OutputTarget>) {
        let target = |text: &Option<String>| text.as_deref().map(OutputTarget::from);
        (target(&self.csv), target(&self.json))
    }

    /// Rejects two outputs to the same target. Called before the machine is queried.
    pub fn check(&self) -> Result<(), Failure> {
        let (csv, json) = self.targets();
        Ok(OutputTarget::check(csv.as_ref(), json.as_ref())?)
    }

    /// Opens all requested outputs, then writes them. `table` is printed to stdout unless another output uses it.
    pub fn write<T: Serialize, D: Serialize>(
        &self,
        header: &Header,
        columns: &[&str],
        rows: &[T],
        document: &D,
        table: &str,
    ) -> Result<(), Failure> {
        let (csv_target, json_target) = self.targets();
        let csv_output = csv_target.as_ref().map(|target| WholeFile::create("CSV", target)).transpose()?;
        let json_output = json_target.as_ref().map(|target| WholeFile::create("JSON", target)).transpose()?;
        if !self.no_header {
            // Ignore the error: stderr may be closed.
            let _ = header.write_talk(&mut std::io::stderr().lock());
        }
        if let Some(output) = csv_output {
            output.write(&csv(columns, rows).map_err(unwritable)?)?;
        }
        if let Some(output) = json_output {
            let mut text = serde_json::to_vec_pretty(document).map_err(unwritable)?;
            text.push(b'\n');
            output.write(&text)?;
        }
        if ![csv_target, json_target].contains(&Some(OutputTarget::Stdout)) {
            let written = signals::stdout().write_all(table.as_bytes());
            written
                .and_then(|()| signals::stdout().flush())
                .map_err(|error| Failure::Run(format!("cannot write the table to stdout: {error}")))?;
        }
        Ok(())
    }
}

fn unwritable(error: impl std::fmt::Display) -> Failure {
    Failure::Run(format!("cannot serialize the listing: {error}"))
}

/// Formats a line of column names and a line per row. The elements of a list are joined by `;`.
pub fn csv<T: Serialize>(columns: &[&str], rows: &[T]) -> csv::Result<Vec<u8>> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    writer.write_record(columns)?;
    for row in rows {
        // Rows contain only numbers and strings, which always serialize.
        let value = serde_json::to_value(row).unwrap_or_default();
        writer.write_record(columns.iter().map(|column| cell(&value[*column])))?;
    }
    writer.into_inner().map_err(|error| error.into_error().into())
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(cell).collect::<Vec<_>>().join(";"),
        other => other.to_string(),
    }
}

/// Formats a value for a table.
pub fn yes(value: Option<bool>) -> String {
    value.map_or("", |value| if value { "yes" } else { "no" }).to_owned()
}

/// Returns the header for results that are read from a file or directory. The header does not describe this machine.
pub fn recorded(from: &Path) -> Header {
    let mut header = described();
    header.note(format!("read from {}; this machine was not queried", from.display()));
    header
}

/// Returns the header of a subcommand that does not query this machine.
pub fn described() -> Header {
    let mut header = Header::default();
    header.set(Key::Ginlab, env!("CARGO_PKG_VERSION")).set(Key::Command, ginlab::versions::command_line());
    header
}

/// Formats rows as a table, without columns that are empty in all rows. Returns an empty string if there are no rows.
pub fn table<T>(columns: &[ListingColumn<T>], rows: &[T]) -> String {
    let cells = columns.iter().map(|(title, unit, value)| {
        let cells = rows.iter().map(value).collect();
        (title.to_string(), unit.to_string(), cells)
    });
    table_of(cells.collect())
}

/// Like [`table`], but takes the cells by column.
pub fn table_of(columns: Vec<(String, String, Vec<String>)>) -> String {
    let rows = columns.first().map_or(0, |(_, _, cells)| cells.len());
    if rows == 0 {
        return String::new();
    }
    let columns: Vec<(Vec<String>, usize)> = columns
        .into_iter()
        .filter(|(_, _, cells)| cells.iter().any(|cell| !cell.is_empty()))
        .map(|(title, unit, cells)| {
            let cells: Vec<String> = [title, unit].into_iter().chain(cells).collect();
            let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or_default();
            (cells, width)
        })
        .collect();
    let bold = crate::output::color();
    let line = |index: usize| {
        let cells = columns.iter().map(|(cells, width)| format!("{:<width$}", cells[index]));
        let text = cells.collect::<Vec<_>>().join("  ");
        // The heading has two lines.
        if bold && index < 2 {
            format!("\x1b[1m{}\x1b[0m\n", text.trim_end())
        } else {
            format!("{}\n", text.trim_end())
        }
    };
    (0..rows + 2).map(line).collect()
}
