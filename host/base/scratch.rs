//! Location of temporary files. A container may have a read-only root and no writable /tmp.

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{AccessFlags, access};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Returns the directory for temporary files: the first of the system's (TMPDIR), /dev/shm and XDG_RUNTIME_DIR to which
/// this process can write. Returns the system's if it can write to none of them.
#[must_use]
pub fn folder() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    first_writable([Some(std::env::temp_dir()), Some("/dev/shm".into()), runtime].into_iter().flatten())
        .unwrap_or_else(std::env::temp_dir)
}

fn first_writable(mut folders: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let writable = |folder: &Path| access(folder, AccessFlags::W_OK | AccessFlags::X_OK).is_ok();
    folders.find(|folder| folder.is_dir() && writable(folder))
}

/// Returns a new file in memory without a path, for output of a child process.
///
/// # Errors
/// Returns the system's error if there is no memory or no file descriptor left.
pub fn file() -> io::Result<File> {
    Ok(memfd_create("ginlab-scratch", MFdFlags::MFD_CLOEXEC)?.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    #[test]
    fn first_writable_folder_is_chosen() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().to_owned();
        let folders = ["/nonexistent".into(), here.join("missing"), "/dev/null".into(), here.clone()];
        assert_eq!(first_writable(folders.into_iter()), Some(here));
        assert_eq!(first_writable(["/nonexistent".into()].into_iter()), None);
    }

    #[test]
    fn scratch_file_needs_no_folder() {
        let mut file = file().unwrap();
        file.write_all(b"ginlab: why").unwrap();
        let mut text = [0; 11];
        file.read_exact_at(&mut text, 0).unwrap();
        assert_eq!(&text, b"ginlab: why");
    }
}
