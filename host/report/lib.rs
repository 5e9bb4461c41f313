//! What every experiment prints: rows with common columns and its own ([`About`]), as a table, as CSV and as JSON.
//!
//! An experiment fills a [`Header`] once and hands each [`Row`] to a [`Report`] as soon as it is measured. stdout carries
//! data, stderr carries talk: the header goes to stderr as `# key: value` lines, into the JSON document, and beside a CSV
//! file as `<stem>.header.json`, because a CSV file holds rows and nothing else.
//!
//! Outputs are opened before anything is measured, so that a path that cannot be written costs no run. The table and the
//! CSV are written row by row: after Ctrl-C they hold what was measured. The JSON document appears whole at the end, also
//! after an interruption, and says in `complete` which of the two it was.

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
mod row;
pub mod run;
mod table;
#[cfg(test)]
mod tests;
mod whole;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub use self::about::{About, Best, Catalog, Finding, Headline, Plot, Shape};
pub use self::column::{Column, Role, Value};
pub use self::csv::CsvSink;
pub use self::header::{Header, Key};
pub use self::json::{Entry, JsonSink};
pub use self::row::{Row, SCHEMA, Status};
pub use self::table::{Table, width};
pub use self::whole::WholeFile;

/// Where an output goes: `-` is stdout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// A file, overwritten if it is there.
    File(PathBuf),
}

impl Target {
    /// Refuses CSV and JSON that would go to the same place.
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

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl From<&OsStr> for Target {
    fn from(text: &OsStr) -> Self {
        if text == "-" { Self::Stdout } else { Self::File(text.into()) }
    }
}

impl From<&str> for Target {
    fn from(text: &str) -> Self {
        OsStr::new(text).into()
    }
}

/// Which outputs a run has. The default is the table on stdout.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// CSV, one line per row.
    pub csv: Option<Target>,
    /// One JSON document.
    pub json: Option<Target>,
    /// Whether the table has colours.
    pub color: bool,
    /// Leave out the header on stderr.
    pub quiet: bool,
}

/// How a run ended, as far as the report can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Every row was measured.
    Complete,
    /// The run stopped before its last row.
    Interrupted,
}

/// Why a report could not be written, in one line for people.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The reader of stdout has gone (`ginlab ... | head`): nobody to tell, so the program ends without a word.
    #[error("stdout was closed by its reader")]
    StdoutClosed,
    /// CSV and JSON were both sent to stdout.
    #[error("--csv and --json cannot both go to stdout; give one of them a file")]
    TwoOnStdout,
    /// CSV and JSON were sent to the same file.
    #[error("--csv and --json both name {}; give each its own file", .0.display())]
    SameFile(PathBuf),
    /// An output could not be created or written.
    #[error("cannot write {what} to {place}: {source}")]
    Write {
        /// `CSV`, `JSON`, `the table`, ...
        what: &'static str,
        /// The path, or `stdout`.
        place: String,
        /// What the system said.
        source: io::Error,
    },
}

impl ReportError {
    fn write(what: &'static str, place: &Target, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        match place {
            Target::Stdout if source.kind() == io::ErrorKind::BrokenPipe => Self::StdoutClosed,
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
    /// Opens every output and writes the header. Fails here, before the run, when one of them cannot be written.
    pub fn open(options: &Options, header: &Header, about: &About) -> Result<Self, ReportError> {
        Target::check(options.csv.as_ref(), options.json.as_ref())?;
        let document = options.json.as_ref().map(|target| WholeFile::create("JSON", target)).transpose()?;
        let csv = options.csv.as_ref().map(|target| CsvSink::create(target, header, about.columns)).transpose()?;
        // A sink writes when it is dropped: had the CSV not opened, an older document would not stay.
        let json = document.map(|output| JsonSink::new(output, header, about.columns));
        if !options.quiet {
            // Nothing can be done about a closed stderr, and nothing needs to be.
            let _ = header.write_talk(&mut io::stderr().lock());
        }
        let data_on_stdout =
            [&options.csv, &options.json].into_iter().flatten().any(|target| *target == Target::Stdout);
        let table = (!data_on_stdout).then(|| Table::new(io::stdout(), options.color, about));
        Ok(Self { table, csv, json })
    }

    /// Writes one row to every output; `samples` are its raw times in microseconds, for the JSON document.
    pub fn row(&mut self, row: &Row, samples: &[f64]) -> Result<(), ReportError> {
        // Files first: a reader of stdout that has gone must not cost a row.
        if let Some(csv) = &mut self.csv {
            csv.row(row)?;
        }
        if let Some(json) = &mut self.json {
            json.row(row, samples);
        }
        match &mut self.table {
            Some(table) => table.row(row).map_err(|source| ReportError::write("the table", &Target::Stdout, source)),
            None => Ok(()),
        }
    }

    /// Replaces the header in the files, before they are closed: what only the end of a run can tell.
    pub fn amend(&mut self, header: &Header) {
        if let Some(json) = &mut self.json {
            json.amend(header);
        }
        if let Some(csv) = &mut self.csv {
            csv.amend(header);
        }
    }

    /// Closes every output. Call it on an interruption as well; what is dropped instead is closed as interrupted.
    pub fn finish(self, ending: Ending) -> Result<(), ReportError> {
        let json = self.json.map_or(Ok(()), |json| json.finish(ending));
        let csv = self.csv.map_or(Ok(()), CsvSink::finish);
        json.and(csv)
    }
}

/// The values, each once, in their order.
pub fn each_once<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    for value in values {
        if !once.contains(&value) {
            once.push(value);
        }
    }
    once
}

/// Whether two paths name one file, also when neither is there yet.
pub fn same_file(one: &Path, two: &Path) -> bool {
    // Devices may be shared: /dev/null twice is a fair way to say "no output".
    let device = |path: &Path| path.metadata().is_ok_and(|meta| !meta.is_file());
    // A file that is not there yet is known by its folder.
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

/// Writes to stdout without the line buffer's second copy of the error path: one write, one flush.
fn write_stdout(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}
