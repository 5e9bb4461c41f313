//! Rows as one JSON document: schema, header, and every row with its raw samples.

use std::io::{self, Write};

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::row::rounded;
use super::{Column, Ending, Header, ReportError, Row, SCHEMA, Target, WholeFile};

/// A row of the document.
struct Entry<'a> {
    row: &'a Row,
    own: &'static [Column],
    samples: &'a [f64],
}

impl Serialize for Entry<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (column, value) in Row::COMMON.iter().chain(self.own).zip(self.row.values(self.own)) {
            map.serialize_entry(column.name, &value)?;
        }
        if !self.samples.is_empty() {
            map.serialize_entry("samples_us", &self.samples.iter().copied().map(rounded).collect::<Vec<_>>())?;
        }
        map.end()
    }
}

/// Collects rows and writes the document at the end, whole: an older one stays until then.
///
/// A sink that is dropped unfinished, as by an error on the way, writes what it has and marks it as not complete.
#[derive(Debug)]
pub struct JsonSink {
    header: String,
    rows: Vec<String>,
    output: Option<WholeFile>,
    /// The columns behind the common ones.
    own: &'static [Column],
}

impl JsonSink {
    /// Opens the target.
    pub fn create(target: &Target, header: &Header, own: &'static [Column]) -> Result<Self, ReportError> {
        let output = WholeFile::create("JSON", target)?;
        let mut sink = Self { header: String::new(), rows: Vec::new(), output: Some(output), own };
        sink.amend(header);
        Ok(sink)
    }

    /// Replaces the header.
    pub fn amend(&mut self, header: &Header) {
        // A header holds numbers, texts and lists of them: there is nothing that JSON could refuse.
        if let Ok(text) = serde_json::to_string_pretty(header) {
            self.header = text.replace('\n', "\n  ");
        }
    }

    /// Takes one row and its raw samples in microseconds.
    pub fn row(&mut self, row: &Row, samples: &[f64]) {
        // A row holds numbers and texts only: there is nothing that JSON could refuse.
        if let Ok(line) = serde_json::to_string(&Entry { row, own: self.own, samples }) {
            self.rows.push(line);
        }
    }

    /// Writes the document.
    pub fn finish(mut self, ending: Ending) -> Result<(), ReportError> {
        self.write(ending)
    }

    /// Leaves the target as it was.
    pub fn discard(mut self) {
        if let Some(output) = self.output.take() {
            output.discard();
        }
    }

    fn write(&mut self, ending: Ending) -> Result<(), ReportError> {
        match self.output.take() {
            Some(output) => output.write(&self.document(ending)),
            None => Ok(()),
        }
    }

    /// One row per line, so that the file can be searched and compared by line.
    fn document(&self, ending: Ending) -> Vec<u8> {
        let rows = match self.rows.join(",\n    ") {
            rows if rows.is_empty() => "[]".into(),
            rows => format!("[\n    {rows}\n  ]"),
        };
        let complete = ending == Ending::Complete;
        format!(
            "{{\n  \"schema\": {SCHEMA},\n  \"complete\": {complete},\n  \"header\": {},\n  \"rows\": {rows}\n}}\n",
            self.header
        )
        .into_bytes()
    }
}

impl Drop for JsonSink {
    fn drop(&mut self) {
        if let Err(error) = self.write(Ending::Interrupted)
            && !matches!(error, ReportError::StdoutClosed)
        {
            let _ = writeln!(io::stderr(), "ginlab: {error}");
        }
    }
}
