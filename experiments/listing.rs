//! What experiments share that list and do not measure: their options, and rows as table, CSV and one JSON document.

use crate::error::Failure;
pub use ginlab::report::Entry;
use ginlab::report::{Header, Key, Target, WholeFile};
use ginlab::signals;
use serde::Serialize;
use serde_json::Value;
use std::io::Write;
use std::path::Path;

/// Where the list goes.
#[derive(clap::Args, Clone, Debug)]
pub struct ListingArgs {
    /// Write rows as CSV; - is stdout
    #[arg(long, value_name = "FILE")]
    csv: Option<String>,
    /// Write header and rows as one JSON document; - is stdout
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
    /// Leave the header off stderr
    #[arg(long)]
    no_header: bool,
}

/// What CSV and JSON say of a thing: a key, and the value below it. What is not known is null in JSON and empty in CSV.
pub type Field<T> = (&'static str, fn(&T) -> Value);

/// The things with these keys.
pub fn entries<'a, T: 'a>(fields: &[Field<T>], things: impl IntoIterator<Item = &'a T>) -> Vec<Entry> {
    let entry = |thing| Entry(fields.iter().map(|(key, value)| (*key, value(thing))).collect());
    things.into_iter().map(entry).collect()
}

/// A heading in two lines, and what stands below.
pub type Column<T> = (&'static str, &'static str, fn(&T) -> String);

impl ListingArgs {
    fn targets(&self) -> (Option<Target>, Option<Target>) {
        let target = |text: &Option<String>| text.as_deref().map(Target::from);
        (target(&self.csv), target(&self.json))
    }

    /// Refuses two outputs into one place, before anything is asked.
    pub fn check(&self) -> Result<(), Failure> {
        let (csv, json) = self.targets();
        Ok(Target::check(csv.as_ref(), json.as_ref())?)
    }

    /// Writes what was asked for, all of it opened before anything is written; `table` goes to stdout unless something else
    /// does.
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
            // Nothing can be done about a closed stderr, and nothing needs to be.
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
        if ![csv_target, json_target].contains(&Some(Target::Stdout)) {
            let written = signals::stdout().write_all(table.as_bytes());
            written
                .and_then(|()| signals::stdout().flush())
                .map_err(|error| Failure::Run(format!("cannot write the table to stdout: {error}")))?;
        }
        Ok(())
    }
}

fn unwritable(error: impl std::fmt::Display) -> Failure {
    Failure::Run(format!("cannot put the listing into words: {error}"))
}

/// A line of column names and a line per row: lists joined by `;`.
pub fn csv<T: Serialize>(columns: &[&str], rows: &[T]) -> csv::Result<Vec<u8>> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    writer.write_record(columns)?;
    for row in rows {
        // A row holds numbers and texts only: there is nothing that JSON could refuse.
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

/// For a table.
pub fn yes(value: Option<bool>) -> String {
    value.map_or("", |value| if value { "yes" } else { "no" }).to_owned()
}

/// The header of what was read from a file or folder: nothing of this machine, for the figures are another one's.
pub fn recorded(from: &Path) -> Header {
    let mut header = described();
    header.note(format!("read from {}; nothing was asked of this machine", from.display()));
    header
}

/// The header of what asks nothing of this machine.
pub fn described() -> Header {
    let mut header = Header::default();
    header.set(Key::Ginlab, env!("CARGO_PKG_VERSION")).set(Key::Command, ginlab::versions::command_line());
    header
}

/// The rows for people, and only the columns in which a row has something; nothing where there is no row.
pub fn table<T>(columns: &[Column<T>], rows: &[T]) -> String {
    let cells = columns.iter().map(|(title, unit, value)| {
        let cells = rows.iter().map(value).collect();
        (title.to_string(), unit.to_string(), cells)
    });
    table_of(cells.collect())
}

/// As [`table`], from cells by column.
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
        // The two lines of the headings.
        if bold && index < 2 {
            format!("\x1b[1m{}\x1b[0m\n", text.trim_end())
        } else {
            format!("{}\n", text.trim_end())
        }
    };
    (0..rows + 2).map(line).collect()
}
