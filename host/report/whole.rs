//! Outputs that appear whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{Place, ReportError, Target, write_stdout};

/// A target that takes one document. A file is written under a temporary name that is then renamed: a reader never sees half
/// a document, and an older one stays until then.
#[derive(Debug)]
pub struct WholeFile {
    /// `JSON`, `the chart`: for errors.
    what: &'static str,
    output: Output,
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

impl WholeFile {
    /// Opens the target. What was there stays.
    pub fn create(what: &'static str, target: &Target) -> Result<Self, ReportError> {
        let output = match target {
            Target::Stdout => Output::Stdout,
            Target::File(path) => open(path).map_err(|source| ReportError::write(what, &target.into(), source))?,
        };
        Ok(Self { what, output })
    }

    /// Writes the document and closes the target.
    pub fn write(self, document: &[u8]) -> Result<(), ReportError> {
        let (place, written) = match self.output {
            Output::Stdout => (Place::Stdout, write_stdout(document)),
            Output::Stream { mut file, path } => (Place::Path(path), file.write_all(document)),
            Output::File { mut file, temporary, path } => {
                let written = file
                    .write_all(document)
                    .and_then(|()| file.sync_all())
                    .and_then(|()| std::fs::rename(&temporary, &path));
                if written.is_err() {
                    // The first error is the one to tell.
                    let _ = std::fs::remove_file(&temporary);
                }
                (Place::Path(path), written)
            }
        };
        written.map_err(|source| ReportError::write(self.what, &place, source))
    }

    /// Leaves the target as it was.
    pub fn discard(self) {
        if let Output::File { temporary, .. } = self.output {
            // It may be gone; there is nothing else to take back.
            let _ = std::fs::remove_file(temporary);
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
