//! Checks the version of NCCL that the program will probably load.

use crate::error::Failure;
use crate::values::usage;
use libloading::Library;
use std::path::{Path, PathBuf};

const FILE: &str = "libnccl.so.2";
/// Oldest supported version, in the encoding of `ncclGetVersion`: 10000 * major + 100 * minor + patch.
pub const OLDEST: i32 = 23000;
/// Oldest version whose kernels write EFA's queues in the layout of the plugin.
const OLDEST_QUEUES: i32 = 23200;
/// Newest version whose plugin tables have been tested.
const NEWEST: i32 = 23299;

/// Returns whether `LD_PRELOAD`, which separates paths with spaces and colons, can contain this path.
pub fn can_be_preloaded(file: &Path) -> bool {
    !file.as_os_str().as_encoded_bytes().iter().any(|byte| matches!(byte, b' ' | b':'))
}

/// Returns the library in `folder`, as an entry of `LD_PRELOAD`. A preloaded library is used even if the program has an
/// RPATH to another one. (An RPATH takes precedence over `LD_LIBRARY_PATH`.)
pub fn preloadable(folder: &Path) -> Result<PathBuf, Failure> {
    let file = folder.join(FILE);
    if !file.is_file() {
        return Err(usage("--nccl", format!("{} does not exist", file.display())));
    }
    let file = std::path::absolute(&file).map_err(|error| usage("--nccl", format!("{}: {error}", file.display())))?;
    if !can_be_preloaded(&file) {
        return Err(usage(
            "--nccl",
            format!("invalid path {file:?}: LD_PRELOAD separates paths with spaces and colons; use a symbolic link"),
        ));
    }
    Ok(file)
}

/// Returns the text of a version.
pub fn text(version: i32) -> String {
    format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)
}

/// Rejects an NCCL that is too old. Prints a note if NCCL is newer than the tested versions or is not found.
pub fn check(folder: Option<&Path>, queues: bool) -> Result<(), Failure> {
    let file = folder.map_or_else(|| PathBuf::from(FILE), |folder| folder.join(FILE));
    let Some(version) = version(&file)? else {
        // torch and other packages contain an NCCL that is not on the loader's path.
        eprintln!(
            "# note: the loader does not find {FILE}; if the program does not contain it, specify its directory with \
             --nccl (pip install nvidia-nccl-cu13)"
        );
        return Ok(());
    };
    judge(&file, version, queues)
}

fn judge(file: &Path, version: i32, queues: bool) -> Result<(), Failure> {
    let (oldest, what) = if queues { (OLDEST_QUEUES, "--type queues") } else { (OLDEST, "ginlab's plugin") };
    if version < oldest {
        return Err(Failure::Unfit(format!(
            "{} is NCCL {}, but {what} requires {} or newer: pip install nvidia-nccl-cu13, and specify its directory \
             with --nccl",
            file.display(),
            text(version),
            text(oldest)
        )));
    }
    if version > NEWEST {
        eprintln!(
            "# note: {} is NCCL {}, which is newer than {}.x, the newest tested version: it might require other plugin \
             tables",
            file.display(),
            text(version),
            text(NEWEST - NEWEST % 100).trim_end_matches(".0")
        );
    }
    Ok(())
}

/// Returns the version of a library, or `None` if it is not found. The library is unloaded again.
fn version(file: &Path) -> Result<Option<i32>, Failure> {
    // SAFETY: NCCL's library, which the program will load in the same way. Its initializers have no requirements.
    let library = match unsafe { Library::new(file) } {
        Ok(library) => library,
        Err(why) if file.is_absolute() && file.is_file() => {
            return Err(Failure::Unfit(format!("cannot load {}: {why}", file.display())));
        }
        Err(_) => return Ok(None),
    };
    let mut version = 0;
    // SAFETY: the type is NCCL's declaration. The function only writes a number and requires no initialization.
    let answer = unsafe {
        match library.get::<unsafe extern "C" fn(*mut i32) -> i32>(b"ncclGetVersion") {
            Ok(get) => get(&mut version),
            Err(_) => return Ok(None),
        }
    };
    Ok((answer == 0).then_some(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_library_is_rejected_with_required_version() {
        let judged = |version, queues| judge(Path::new("/x/libnccl.so.2"), version, queues).map_err(|f| f.text());
        let said = judged(22809, false).expect_err("too old").expect("a line");
        assert!(said.contains("NCCL 2.28.9") && said.contains("2.30.0") && said.lines().count() == 1, "{said}");
        assert!(judged(23007, true).expect_err("too old").expect("a line").contains("--type queues requires 2.32.0"));
        assert!(judged(23203, true).is_ok() && judged(23007, false).is_ok() && judged(23300, true).is_ok());
    }

    #[test]
    fn invalid_library_is_reported() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert!(version(file.path()).is_err());
        assert!(version(Path::new("/nowhere/libnccl.so.2")).expect("no failure").is_none());
    }
}
