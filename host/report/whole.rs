//! Outputs that are written completely or not at all.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ginlab_base::signals;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tempfile::NamedTempFile;

use super::{OutputTarget, ReportError, write_stdout};

/// Interval at which a pipe without a reader is opened again.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Opens a target that is not a regular file. Waits for the reader of a pipe until a signal requests a stop.
fn open_stream(path: &Path) -> io::Result<File> {
    if !path.metadata()?.file_type().is_fifo() {
        return OpenOptions::new().write(true).open(path);
    }
    loop {
        // A blocking open would be restarted after the signal.
        match OpenOptions::new().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path) {
            Err(error) if error.raw_os_error() == Some(Errno::ENXIO as i32) => {
                if signals::interrupted() {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                std::thread::sleep(LOOK_EVERY);
            }
            Err(error) => return Err(error),
            Ok(file) => {
                fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
                return Ok(file);
            }
        }
    }
}

/// Opens a file for writing, and truncates it if it is a regular one.
pub(super) fn create(path: &Path) -> io::Result<File> {
    match path.metadata() {
        Ok(meta) if !meta.is_file() => open_stream(path),
        _ => File::create(path),
    }
}

/// A target for one document. A file is written under an unpredictable temporary name and then renamed. Therefore
/// readers never see a partial document, an existing document is kept until then, and a link that another user has
/// created at the temporary name is not followed. If the target is dropped before the rename, the file is unchanged.
#[derive(Debug)]
pub struct WholeFile {
    /// Kind of output for errors, for example `JSON` or `the chart`.
    what: &'static str,
    output: Output,
}

#[derive(Debug)]
enum Output {
    Stdout,
    /// A pipe or device, which cannot be renamed.
    Stream {
        file: File,
        path: PathBuf,
    },
    File {
        temporary: NamedTempFile,
        path: PathBuf,
    },
}

impl WholeFile {
    /// Opens the target. Existing content is kept.
    pub fn create(what: &'static str, target: &OutputTarget) -> Result<Self, ReportError> {
        let output = match target {
            OutputTarget::Stdout => Output::Stdout,
            OutputTarget::File(path) => open(path).map_err(|source| ReportError::write(what, target, source))?,
        };
        Ok(Self { what, output })
    }

    /// Writes the document and closes the target.
    pub fn write(self, document: &[u8]) -> Result<(), ReportError> {
        let (place, written) = match self.output {
            Output::Stdout => (OutputTarget::Stdout, write_stdout(document)),
            Output::Stream { mut file, path } => (OutputTarget::File(path), file.write_all(document)),
            Output::File { mut temporary, path } => {
                let file = temporary.as_file_mut();
                let written = file.write_all(document).and_then(|()| file.sync_all());
                // If the temporary file is not renamed, it is removed when it is dropped.
                let renamed = written.and_then(|()| Ok(temporary.persist(&path).map(drop)?));
                (OutputTarget::File(path), renamed)
            }
        };
        written.map_err(|source| ReportError::write(self.what, &place, source))
    }
}

fn open(path: &Path) -> io::Result<Output> {
    // Keeps a link: the file to which it points is replaced.
    let path = path.canonicalize().unwrap_or_else(|_| path.into());
    match path.metadata() {
        Ok(meta) if !meta.is_file() => {
            let file = open_stream(&path)?;
            return Ok(Output::Stream { file, path });
        }
        // Checks write access, because the rename would succeed even if the owner has made the file read-only.
        Ok(_) => drop(OpenOptions::new().write(true).open(&path)?),
        Err(_) => {}
    }
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(".");
    // The document has the permissions of an ordinary file, according to the umask.
    let (mut builder, mode) = (tempfile::Builder::new(), Permissions::from_mode(0o666));
    let builder = builder.prefix(&hidden).permissions(mode);
    // A path without a directory is in the current directory.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Checks the directory first, since an error of `tempfile_in` would name the temporary file.
    folder.metadata()?;
    Ok(Output::File { temporary: builder.tempfile_in(folder)?, path })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::os::unix::fs::symlink;

    fn target(path: &Path) -> WholeFile {
        WholeFile::create("the chart", &OutputTarget::File(path.into())).unwrap()
    }

    #[test]
    fn symlinks_at_temporary_names_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("chart.svg"), folder.path().join("victim"));
        std::fs::write(&victim, "kept").unwrap();
        // The predictable temporary name that an implementation with the process ID would use, in a directory that
        // others may write to.
        symlink(&victim, folder.path().join(format!(".chart.svg.{}", std::process::id()))).unwrap();
        target(&path).write(b"new").unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"kept");
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert!(path.symlink_metadata().unwrap().is_file());
    }

    #[test]
    fn file_has_default_mode_and_no_leftovers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chart.svg");
        target(&path).write(b"new").unwrap();
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&plain));
        drop(target(&path));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }
}
