//! Which NCCL the program will load, as far as it can be known before it runs.

use crate::error::Failure;
use libloading::Library;
use std::path::{Path, PathBuf};

const FILE: &str = "libnccl.so.2";
/// NCCL's `ncclGetVersion` says 10000 * major + 100 * minor + patch.
const OLDEST: i32 = 23000;
/// The first whose kernels write EFA's queues in the layout that the plugin has.
const OLDEST_QUEUES: i32 = 23200;
/// The newest whose tables were seen.
const NEWEST: i32 = 23299;

/// Refuses one that is too old, in one line; notes one that is newer than what was tried, or that is not found.
pub fn check(folder: Option<&Path>, queues: bool) -> Result<(), Failure> {
    let file = folder.map_or_else(|| PathBuf::from(FILE), |folder| folder.join(FILE));
    let Some(version) = version(&file)? else {
        // torch and others bring one that is not on the loader's path.
        eprintln!(
            "# note: the loader finds no {FILE} here; if the program brings none of its own, name its folder by --nccl (pip install nvidia-nccl-cu13)"
        );
        return Ok(());
    };
    judge(&file, version, queues)
}

fn judge(file: &Path, version: i32, queues: bool) -> Result<(), Failure> {
    let text = |version: i32| format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
    let (oldest, what) = if queues { (OLDEST_QUEUES, "--type queues") } else { (OLDEST, "ginlab's plugin") };
    if version < oldest {
        return Err(Failure::Unfit(format!(
            "{} is NCCL {}, and {what} needs {} or newer: pip install nvidia-nccl-cu13, and --nccl FOLDER",
            file.display(),
            text(version),
            text(oldest)
        )));
    }
    if version > NEWEST {
        eprintln!(
            "# note: {} is NCCL {}, which is newer than {}.x, the newest that was tried: it may look for other tables",
            file.display(),
            text(version),
            text(NEWEST - NEWEST % 100).trim_end_matches(".0")
        );
    }
    Ok(())
}

/// `None` where it is not found. The library is closed again: it has done nothing but to be loaded.
fn version(file: &Path) -> Result<Option<i32>, Failure> {
    // SAFETY: NCCL's library, as the program will load it.
    let library = match unsafe { Library::new(file) } {
        Ok(library) => library,
        Err(why) if file.is_absolute() && file.is_file() => {
            return Err(Failure::Unfit(format!("{}: it cannot be loaded: {why}", file.display())));
        }
        Err(_) => return Ok(None),
    };
    let mut version = 0;
    // SAFETY: NCCL's declaration; the function writes a number and needs nothing before.
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
    fn what_is_too_old_is_one_line_that_says_what_is_wanted() {
        let judged = |version, queues| judge(Path::new("/x/libnccl.so.2"), version, queues).map_err(|f| f.text());
        let said = judged(22809, false).expect_err("too old").expect("a line");
        assert!(said.contains("NCCL 2.28.9") && said.contains("2.30.0") && said.lines().count() == 1, "{said}");
        assert!(judged(23007, true).expect_err("too old").expect("a line").contains("--type queues needs 2.32.0"));
        assert!(judged(23203, true).is_ok() && judged(23007, false).is_ok() && judged(23300, true).is_ok());
    }

    #[test]
    fn what_is_no_library_is_said() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert!(version(file.path()).is_err());
        assert!(version(Path::new("/nowhere/libnccl.so.2")).expect("no failure").is_none());
    }
}
