//! File operations: locations, listings, and atomic copies.

use crate::error::Error;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// Returns the directory in which cargo lets a build script write.
pub fn out_folder() -> PathBuf {
    env::var_os("OUT_DIR").map_or_else(|| env::temp_dir().join("cuda_builder"), PathBuf::from)
}

/// Returns a directory that all profiles and features share, given the output directory target/PROFILE/build/NAME/out
/// of a package.
pub fn shared_folder(out: &Path) -> PathBuf {
    out.ancestors().nth(4).unwrap_or(out).join("kernels")
}

/// Copies a file. The copy gets its name only when it is complete, because another build may read it.
pub fn copy_file(from: &Path, to: &Path) -> Result<(), Error> {
    let part = to.with_extension(std::process::id().to_string());
    fs::copy(from, &part).map_err(|error| Error::Io(from.into(), error))?;
    fs::rename(&part, to).map_err(|error| Error::Io(to.into(), error))
}

/// Copies a directory with all timestamps, because cargo compares them to decide what to rebuild. The copy gets its
/// name only when it is complete.
pub fn copy_folder(from: &Path, to: &Path) -> Result<(), Error> {
    let part = to.with_extension(std::process::id().to_string());
    let failed = |error| Error::Io(part.clone(), error);
    let status = Command::new("cp").arg("-a").args([from, &part]).status().map_err(failed)?;
    if !status.success() {
        return Err(failed(io::Error::other(format!("cp -a {}: {status}", from.display()))));
    }
    fs::rename(&part, to).map_err(failed)
}

/// The exclusive right, among all processes, to use or create the seed: the target directory that others copy to start
/// from. Held until dropped.
pub struct SeedLock {
    /// No build compiles in this directory, so it is complete or absent.
    seed: PathBuf,
    _lock: File,
}

impl SeedLock {
    /// Waits until no other process holds the right.
    pub fn wait(shared: &Path) -> Result<SeedLock, Error> {
        let place = shared.join("nvptx-seed.lock");
        let failed = |error| Error::Io(place.clone(), error);
        fs::create_dir_all(shared).map_err(failed)?;
        let lock = File::create(&place).map_err(failed)?;
        lock.lock().map_err(failed)?;
        Ok(SeedLock { seed: shared.join("nvptx-seed"), _lock: lock })
    }

    /// Returns the seed directory, if it exists.
    pub fn seed(&self) -> Option<&Path> {
        Some(self.seed.as_path()).filter(|folder| folder.is_dir())
    }

    /// Creates the seed as a copy of `folder`.
    pub fn sow(self, folder: &Path) -> Result<(), Error> {
        copy_folder(folder, &self.seed)
    }
}

/// Adds all files in a directory, or the file itself.
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

/// Returns the PTX of the kernel crate. Cargo names it after the crate; `core` produces none.
pub fn assemblies(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).filter(|path| path.extension() == Some(OsStr::new("s"))).collect()
}
