//! Output of every experiment: rows with common columns and the experiment's own ([`About`]), as a table, CSV and JSON.
//!
//! An experiment fills a [`Header`] once and passes each [`Row`] to a [`Report`] as soon as it is measured. Data is
//! written to stdout and messages to stderr. The header is printed to stderr as `# key: value` lines, and is part of
//! the JSON document. Next to a CSV file it is written as `<stem>.header.json`, because a CSV file contains only rows.
//!
//! Outputs are opened before the first measurement, so that a path that is not writable is detected before the run. The
//! table and the CSV are written row by row, so they contain all rows measured before an interrupt. The JSON document
//! is written as a whole at the end, even after an interrupt. Its field `complete` indicates whether the run completed.

mod about;
pub mod chart;
mod column;
pub mod compare;
mod csv;
pub mod figures;
mod header;
mod headers;
mod json;
mod newest;
pub mod page;
pub mod pages;
mod row;
pub mod run;
mod table;
#[cfg(test)]
mod tests;
mod whole;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub use self::about::{About, Best, BestValue, Catalog, ChartStyle, Headline, Plot};
pub use self::column::{Column, ColumnRole, Value};
pub use self::csv::CsvSink;
pub use self::header::{Header, Key};
pub use self::json::{JsonObject, JsonSink};
pub use self::row::{Row, RowStatus, SCHEMA};
pub use self::table::{Table, width};
pub use self::whole::WholeFile;

/// Destination of an output; `-` is stdout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputTarget {
    /// Standard output.
    Stdout,
    /// A file, which is overwritten if it exists.
    File(PathBuf),
}

impl OutputTarget {
    /// Checks that CSV and JSON have different destinations.
    pub fn check(csv: Option<&Self>, json: Option<&Self>) -> Result<(), ReportError> {
        match (csv, json) {
            (Some(Self::Stdout), Some(Self::Stdout)) => Err(ReportError::TwoOnStdout),
            (Some(Self::File(csv)), Some(Self::File(json))) if same_file(csv, json) => {
                Err(ReportError::SameFile(csv.clone()))
            }
            _ => Ok(()),
        }
    }
}

impl std::fmt::Display for OutputTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl From<&OsStr> for OutputTarget {
    fn from(text: &OsStr) -> Self {
        if text == "-" { Self::Stdout } else { Self::File(text.into()) }
    }
}

impl From<&str> for OutputTarget {
    fn from(text: &str) -> Self {
        OsStr::new(text).into()
    }
}

/// Outputs of a run. The default is the table on stdout.
#[derive(Clone, Debug, Default)]
pub struct ReportOptions {
    /// Destination of CSV, with one line per row.
    pub csv: Option<OutputTarget>,
    /// Destination of the JSON document.
    pub json: Option<OutputTarget>,
    /// Whether the table has colours.
    pub color: bool,
    /// Whether to omit the header on stderr.
    pub quiet: bool,
}

/// Outcome of a run, as reported by its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// All rows were measured.
    Complete,
    /// The run stopped before its last row.
    Interrupted,
}

/// Errors of writing a report, each a one-line message.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The reader of stdout has closed it (`ginlab ... | head`). The program then exits silently.
    #[error("stdout was closed by its reader")]
    StdoutClosed,
    /// CSV and JSON were both sent to stdout.
    #[error("CSV and JSON cannot both go to stdout; give one of them a file")]
    TwoOnStdout,
    /// CSV and JSON were sent to the same file.
    #[error("CSV and JSON cannot both be written to {}; give each its own file", .0.display())]
    SameFile(PathBuf),
    /// An output could not be created or written.
    #[error("cannot write {what} to {place}: {source}")]
    Write {
        /// Kind of output: `CSV`, `JSON`, `the table`, ...
        what: &'static str,
        /// Path of the output, or `stdout`.
        place: String,
        /// The system's error.
        source: io::Error,
    },
}

impl ReportError {
    fn write(what: &'static str, place: &OutputTarget, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        match place {
            OutputTarget::Stdout if source.kind() == io::ErrorKind::BrokenPipe => Self::StdoutClosed,
            _ => Self::Write { what, place: place.to_string(), source },
        }
    }
}

/// All outputs of one run.
#[derive(Debug)]
pub struct Report {
    table: Option<Table<io::Stdout>>,
    csv: Option<CsvSink>,
    json: Option<JsonSink>,
}

impl Report {
    /// Opens every output and writes the header. Fails before the run if an output cannot be written.
    pub fn open(options: &ReportOptions, header: &Header, about: &About) -> Result<Self, ReportError> {
        OutputTarget::check(options.csv.as_ref(), options.json.as_ref())?;
        let document = options.json.as_ref().map(|target| WholeFile::create("JSON", target)).transpose()?;
        let csv = options.csv.as_ref().map(|target| CsvSink::create(target, header, about.columns)).transpose()?;
        // Creates the sink after the CSV is open, because the sink writes a document when it is dropped. If the CSV
        // cannot be opened, an existing document must not be replaced.
        let json = document.map(|output| JsonSink::new(output, header, about.columns));
        if !options.quiet {
            // Ignore errors: a closed stderr does not matter.
            let _ = header.write_talk(&mut io::stderr().lock());
        }
        let data_on_stdout =
            [&options.csv, &options.json].into_iter().flatten().any(|target| *target == OutputTarget::Stdout);
        let table = (!data_on_stdout).then(|| Table::new(io::stdout(), options.color, about, header.is_on_gpu()));
        Ok(Self { table, csv, json })
    }

    /// Writes one row to every output. `samples` are its raw times in microseconds, for the JSON document.
    pub fn row(&mut self, row: &Row, samples: &[f64]) -> Result<(), ReportError> {
        // Files come first, so that the row is not lost if stdout is closed.
        if let Some(csv) = &mut self.csv {
            csv.row(row)?;
        }
        if let Some(json) = &mut self.json {
            json.row(row, samples);
        }
        match &mut self.table {
            Some(table) => {
                table.row(row).map_err(|source| ReportError::write("the table", &OutputTarget::Stdout, source))
            }
            None => Ok(()),
        }
    }

    /// Replaces the header in the files before they are closed, for values that are only known at the end of a run.
    pub fn amend(&mut self, header: &Header) {
        if let Some(json) = &mut self.json {
            json.amend(header);
        }
        if let Some(csv) = &mut self.csv {
            csv.amend(header);
        }
    }

    /// Closes every output. Must also be called on an interrupt. Outputs that are dropped instead are closed as
    /// interrupted.
    pub fn finish(self, ending: RunOutcome) -> Result<(), ReportError> {
        let json = self.json.map_or(Ok(()), |json| json.finish(ending));
        let csv = self.csv.map_or(Ok(()), CsvSink::finish);
        json.and(csv)
    }
}

/// Returns the distinct values, in order of their first occurrence.
pub fn each_once<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    for value in values {
        if !once.contains(&value) {
            once.push(value);
        }
    }
    once
}

/// Returns whether two paths name the same file, even if it does not exist yet.
pub fn same_file(one: &Path, two: &Path) -> bool {
    // Devices may be shared: using /dev/null for both is a valid way to discard the output.
    let device = |path: &Path| path.metadata().is_ok_and(|meta| !meta.is_file());
    // A file that does not exist yet is identified by its directory and name.
    let resolved = |path: &Path| {
        path.canonicalize().ok().or_else(|| {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            Some(folder.canonicalize().ok()?.join(path.file_name()?))
        })
    };
    match (resolved(one), resolved(two)) {
        (Some(one), Some(two)) => one == two && !device(&one),
        _ => one == two && !device(one),
    }
}

/// Writes to stdout with one write and one flush.
fn write_stdout(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}
