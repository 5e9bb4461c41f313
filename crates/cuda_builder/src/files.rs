//! Files: where they lie, listed, and copied whole or not at all.

use crate::error::Error;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// Where cargo lets a build script write.
pub fn out_folder() -> PathBuf {
    env::var_os("OUT_DIR").map_or_else(|| env::temp_dir().join("cuda_builder"), PathBuf::from)
}

/// Of a package's build folder target/PROFILE/build/NAME/out: the same for all profiles and features.
pub fn shared_folder(out: &Path) -> PathBuf {
    out.ancestors().nth(4).unwrap_or(out).join("kernels")
}

/// Under its name only when it is whole: another build may look for it.
pub fn copy_file(from: &Path, to: &Path) -> Result<(), Error> {
    let part = to.with_extension(std::process::id().to_string());
    fs::copy(from, &part).map_err(|error| Error::Io(from.into(), error))?;
    fs::rename(&part, to).map_err(|error| Error::Io(to.into(), error))
}

/// With all times, by which cargo knows what is fresh. Under its name only when it is whole.
pub fn copy_folder(from: &Path, to: &Path) -> Result<(), Error> {
    let part = to.with_extension(std::process::id().to_string());
    let failed = |error| Error::Io(part.clone(), error);
    let status = Command::new("cp").arg("-a").args([from, &part]).status().map_err(failed)?;
    if !status.success() {
        return Err(failed(io::Error::other(format!("cp -a {}: {status}", from.display()))));
    }
    fs::rename(&part, to).map_err(failed)
}

/// The turn to look for the target folder that others begin as copies of, or to make it; of all processes one has it, until it is dropped.
pub struct Turn {
    /// Nobody compiles there, so it is whole or not there.
    seed: PathBuf,
    _lock: File,
}

impl Turn {
    /// Waits for whoever makes it.
    pub fn wait(shared: &Path) -> Result<Turn, Error> {
        let place = shared.join("nvptx-seed.lock");
        let failed = |error| Error::Io(place.clone(), error);
        fs::create_dir_all(shared).map_err(failed)?;
        let lock = File::create(&place).map_err(failed)?;
        lock.lock().map_err(failed)?;
        Ok(Turn { seed: shared.join("nvptx-seed"), _lock: lock })
    }

    /// The folder, where there is one.
    pub fn seed(&self) -> Option<&Path> {
        Some(self.seed.as_path()).filter(|folder| folder.is_dir())
    }

    /// Makes it, as a copy.
    pub fn sow(self, folder: &Path) -> Result<(), Error> {
        copy_folder(folder, &self.seed)
    }
}

/// All files below a folder, or the file itself.
pub fn list_files(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), Error> {
    if !path.is_dir() {
        files.push(path.into());
        return Ok(());
    }
    for entry in fs::read_dir(path).map_err(|error| Error::Io(path.into(), error))?.flatten() {
        list_files(&entry.path(), files)?;
    }
    Ok(())
}

/// The kernel crate's PTX: cargo names it after the crate, `core` leaves none.
pub fn assemblies(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).filter(|path| path.extension() == Some(OsStr::new("s"))).collect()
}
