//! CSV output: one line of column names and one line per row.

use std::fs::File;
use std::io::{self, Write};

use super::whole::create;
use super::{Column, Header, OutputTarget, ReportError, Row, write_stdout};

/// Writes rows as CSV and flushes each row, so that the file is intact whenever the run ends.
#[derive(Debug)]
pub struct CsvSink {
    file: Option<File>,
    target: OutputTarget,
    /// Header, written next to the file, and again when the file is closed.
    header: Header,
    /// Columns after the common ones.
    own: &'static [Column],
}

impl CsvSink {
    /// Opens the target and writes the column names. Writes the header next to a regular file as `<stem>.header.json`.
    pub fn create(target: &OutputTarget, header: &Header, own: &'static [Column]) -> Result<Self, ReportError> {
        let file = match target {
            OutputTarget::Stdout => None,
            OutputTarget::File(path) => Some(create(path).map_err(|source| ReportError::write("CSV", target, source))?),
        };
        let mut sink = Self { file, target: target.clone(), header: header.clone(), own };
        sink.record(|line| line.write_record(Row::COMMON.iter().chain(own).map(|column| column.name)))?;
        sink.write_beside()?;
        Ok(sink)
    }

    /// Writes one row.
    pub fn row(&mut self, row: &Row) -> Result<(), ReportError> {
        let values = row.values(self.own);
        self.record(|line| line.serialize(values))
    }

    /// Replaces the header that is written when the output is closed.
    pub fn amend(&mut self, header: &Header) {
        self.header = header.clone();
    }

    /// Closes the output, and synchronizes the file with the file system.
    pub fn finish(self) -> Result<(), ReportError> {
        self.write_beside()?;
        match self.file.as_ref().map_or(Ok(()), File::sync_all) {
            // Devices and pipes cannot be synchronized (EINVAL), which is not needed.
            Err(error) if error.kind() != io::ErrorKind::InvalidInput => {
                Err(ReportError::write("CSV", &self.target, error))
            }
            _ => Ok(()),
        }
    }

    /// Builds one line in memory and writes it with one call, so that an interrupted run leaves no partial line.
    fn record(&mut self, fill: impl FnOnce(&mut LineWriter) -> ::csv::Result<()>) -> Result<(), ReportError> {
        let line = || -> io::Result<Vec<u8>> {
            let mut line = ::csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
            fill(&mut line)?;
            line.into_inner().map_err(|error| error.into_error())
        };
        let written = line().and_then(|line| match &mut self.file {
            Some(file) => file.write_all(&line),
            None => write_stdout(&line),
        });
        written.map_err(|source| ReportError::write("CSV", &self.target, source))
    }

    /// Writes the header to a separate file if the rows are in a file. A comment before the rows would break readers of
    /// CSV.
    fn write_beside(&self) -> Result<(), ReportError> {
        let OutputTarget::File(path) = &self.target else { return Ok(()) };
        if !path.is_file() {
            return Ok(());
        }
        let beside = path.with_extension("header.json");
        let text = serde_json::to_string_pretty(&self.header).map_err(io::Error::from);
        let written = text.and_then(|text| std::fs::write(&beside, text + "\n"));
        written.map_err(|source| ReportError::write("the header", &OutputTarget::File(beside), source))
    }
}

type LineWriter = ::csv::Writer<Vec<u8>>;
