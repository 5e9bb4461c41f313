//! JSON output: one document with schema, header, and every row with its raw samples.

use std::io::{self, Write};

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::column::rounded;
use super::{Column, Header, ReportError, Row, RunOutcome, SCHEMA, WholeFile};

/// A JSON object: its keys in this order, with their values.
#[derive(Debug)]
pub struct JsonObject(pub Vec<(&'static str, Value)>);

impl Serialize for JsonObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

/// Collects rows and writes the whole document at the end. An existing document is kept until then.
///
/// A sink that is dropped without [`finish`](JsonSink::finish), for example after an error, writes its rows and marks
/// the document as incomplete.
#[derive(Debug)]
pub struct JsonSink {
    header: String,
    rows: Vec<String>,
    output: Option<WholeFile>,
    /// Columns after the common ones.
    own: &'static [Column],
}

impl JsonSink {
    /// Creates a document without rows.
    pub fn new(output: WholeFile, header: &Header, own: &'static [Column]) -> Self {
        let mut sink = Self { header: String::new(), rows: Vec::new(), output: Some(output), own };
        sink.amend(header);
        sink
    }

    /// Replaces the header.
    pub fn amend(&mut self, header: &Header) {
        // This cannot fail: a header contains only numbers, texts and lists of these.
        if let Ok(text) = serde_json::to_string_pretty(header) {
            self.header = text.replace('\n', "\n  ");
        }
    }

    /// Adds one row, with its raw samples in microseconds.
    pub fn row(&mut self, row: &Row, samples: &[f64]) {
        // This cannot fail: a row contains only numbers and texts.
        let values = row.values(self.own).into_iter().map(|value| serde_json::to_value(value).unwrap_or_default());
        let names = Row::COMMON.iter().chain(self.own).map(|column| column.name);
        let mut entry = JsonObject(names.zip(values).collect());
        if !samples.is_empty() {
            entry.0.push(("samples_us", samples.iter().copied().map(rounded).collect()));
        }
        if let Ok(line) = serde_json::to_string(&entry) {
            self.rows.push(line);
        }
    }

    /// Writes the document.
    pub fn finish(mut self, ending: RunOutcome) -> Result<(), ReportError> {
        self.write(ending)
    }

    fn write(&mut self, ending: RunOutcome) -> Result<(), ReportError> {
        match self.output.take() {
            Some(output) => output.write(&self.document(ending)),
            None => Ok(()),
        }
    }

    /// Returns the document with one row per line, so that the file can be searched and compared by line.
    fn document(&self, ending: RunOutcome) -> Vec<u8> {
        let rows = match self.rows.join(",\n    ") {
            rows if rows.is_empty() => "[]".into(),
            rows => format!("[\n    {rows}\n  ]"),
        };
        let complete = ending == RunOutcome::Complete;
        format!(
            "{{\n  \"schema\": {SCHEMA},\n  \"complete\": {complete},\n  \"header\": {},\n  \"rows\": {rows}\n}}\n",
            self.header
        )
        .into_bytes()
    }
}

impl Drop for JsonSink {
    fn drop(&mut self) {
        if let Err(error) = self.write(RunOutcome::Interrupted)
            && !matches!(error, ReportError::StdoutClosed)
        {
            let _ = writeln!(io::stderr(), "ginlab: {error}");
        }
    }
}
