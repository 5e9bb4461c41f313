//! Rows as one JSON document: schema, header, and every row with its raw samples.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::row::rounded;
use super::{Ending, Header, Place, ReportError, Row, SCHEMA, Target, write_stdout};

/// A row of the document.
#[derive(Serialize)]
struct Entry<'a> {
    #[serde(flatten)]
    row: &'a Row,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    samples_us: Vec<Option<f64>>,
}

/// Collects rows and writes the document at the end, under a temporary name that is then renamed: a reader never sees half
/// a document, and an older one stays until then.
///
/// A sink that is dropped unfinished, as by an error on the way, writes what it has and marks it as not complete.
#[derive(Debug)]
pub struct JsonSink {
    header: String,
    rows: Vec<String>,
    output: Option<Output>,
}

#[derive(Debug)]
enum Output {
    Stdout,
    /// A pipe or device: there is nothing to rename.
    Stream {
        file: File,
        path: PathBuf,
    },
    File {
        file: File,
        temporary: PathBuf,
        path: PathBuf,
    },
}

impl JsonSink {
    /// Opens the target.
    pub fn create(target: &Target, header: &Header) -> Result<Self, ReportError> {
        let (place, opened) = match target {
            Target::Stdout => (Place::Stdout, Ok(Output::Stdout)),
            Target::File(path) => (Place::Path(path.clone()), open(path)),
        };
        let text = serde_json::to_string_pretty(header).map_err(io::Error::from);
        opened
            .and_then(|output| {
                let header = text?.replace('\n', "\n  ");
                Ok(Self { header, rows: Vec::new(), output: Some(output) })
            })
            .map_err(|source| ReportError::write("JSON", &place, source))
    }

    /// Takes one row and its raw samples in microseconds.
    pub fn row(&mut self, row: &Row, samples: &[f64]) {
        let samples_us = samples.iter().copied().map(rounded).collect();
        // A row holds numbers and texts only: there is nothing that JSON could refuse.
        if let Ok(line) = serde_json::to_string(&Entry { row, samples_us }) {
            self.rows.push(line);
        }
    }

    /// Writes the document.
    pub fn finish(mut self, ending: Ending) -> Result<(), ReportError> {
        self.write(ending)
    }

    /// Leaves the target as it was.
    pub fn discard(mut self) {
        if let Some(Output::File { temporary, .. }) = self.output.take() {
            // It may be gone; there is nothing else to take back.
            let _ = std::fs::remove_file(temporary);
        }
    }

    fn write(&mut self, ending: Ending) -> Result<(), ReportError> {
        let Some(output) = self.output.take() else { return Ok(()) };
        let document = self.document(ending);
        let (place, written) = match output {
            Output::Stdout => (Place::Stdout, write_stdout(&document)),
            Output::Stream { mut file, path } => (Place::Path(path), file.write_all(&document)),
            Output::File { mut file, temporary, path } => {
                let written = file
                    .write_all(&document)
                    .and_then(|()| file.sync_all())
                    .and_then(|()| std::fs::rename(&temporary, &path));
                if written.is_err() {
                    // The first error is the one to tell.
                    let _ = std::fs::remove_file(&temporary);
                }
                (Place::Path(path), written)
            }
        };
        written.map_err(|source| ReportError::write("JSON", &place, source))
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

fn open(path: &Path) -> io::Result<Output> {
    // The link stays a link: what it points to is replaced.
    let path = path.canonicalize().unwrap_or_else(|_| path.into());
    match path.metadata() {
        Ok(meta) if !meta.is_file() => {
            let file = OpenOptions::new().write(true).open(&path)?;
            return Ok(Output::Stream { file, path });
        }
        // The rename would succeed on a file that its owner has made read-only.
        Ok(_) => drop(OpenOptions::new().write(true).open(&path)?),
        Err(_) => {}
    }
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(hidden);
    let file = File::create(&temporary)?;
    Ok(Output::File { file, temporary, path })
}
