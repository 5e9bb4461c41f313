//! Memory that the processes of one user on one machine share: files in a folder below /dev/shm.
//!
//! A file belongs to the processes that hold a lock on it. It gets its name when it is locked and filled in, so nobody finds one
//! that is not; one that nobody has locked was left behind by a process that was killed, and whoever comes next removes it.

use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::ptr::NonNull;

/// A mapped file.
#[derive(Debug)]
pub struct Shared {
    base: NonNull<u8>,
    bytes: usize,
    file: File,
    /// Removed when dropped.
    name: Option<PathBuf>,
}

// SAFETY: a mapping is not bound to a thread; what lies in it is atomic, or written before it is named.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Where the files lie, made when it is not there: nobody else may read or write in it, or its files could be replaced.
fn folder() -> io::Result<PathBuf> {
    // SAFETY: takes nothing.
    let user = unsafe { libc::geteuid() };
    let folder = PathBuf::from(format!("/dev/shm/soft-efa-{user}"));
    match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = folder.symlink_metadata()?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        let text = format!("{} is not a folder of this user alone", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(folder)
}

/// For reading and writing, with these further flags.
fn opening(flags: i32) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(flags);
    options
}

fn lock(file: &File, how: i32) -> io::Result<()> {
    // SAFETY: an open file.
    if unsafe { libc::flock(file.as_raw_fd(), how) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Tries again while another process takes the folder away, whose last file has gone.
fn while_the_folder_goes<T>(attempt: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let mut outcome = attempt();
    for _ in 0..100 {
        match outcome {
            Err(error) if error.kind() == io::ErrorKind::NotFound => outcome = attempt(),
            settled => return settled,
        }
    }
    outcome
}

impl Shared {
    fn map(file: File, bytes: usize) -> io::Result<Shared> {
        let (access, none) = (libc::PROT_READ | libc::PROT_WRITE, std::ptr::null_mut());
        // SAFETY: an open file; the place is the system's choice.
        let base = unsafe { libc::mmap(none, bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Shared { base, bytes, file, name: None })
    }

    /// New memory, all zero, without a name, held by this process: alone, or `with_others`.
    pub fn new(bytes: usize, with_others: bool) -> io::Result<Shared> {
        let file = while_the_folder_goes(|| opening(libc::O_TMPFILE).open(folder()?))?;
        lock(&file, if with_others { libc::LOCK_SH } else { libc::LOCK_EX })?;
        file.set_len(bytes as u64)?;
        Shared::map(file, bytes)
    }

    /// Gives it a name, by which others find it; an error when the name is taken.
    pub fn publish(&mut self, name: &str) -> io::Result<()> {
        let path = while_the_folder_goes(|| {
            let path = folder()?.join(name);
            let from = CString::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
            let to = CString::new(path.as_os_str().as_bytes())?;
            let here = libc::AT_FDCWD;
            // SAFETY: both are C strings.
            match unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), libc::AT_SYMLINK_FOLLOW) } {
                0 => Ok(path),
                _ => Err(io::Error::last_os_error()),
            }
        })?;
        self.name = Some(path);
        Ok(())
    }

    /// Another process's memory of this name, without a hold on it.
    pub fn open(name: &str) -> io::Result<Shared> {
        let file = opening(libc::O_NOFOLLOW).open(folder()?.join(name))?;
        let bytes = file.metadata()?.len() as usize;
        Shared::map(file, bytes)
    }

    /// Memory that all who use this name hold together; the last one removes it.
    pub fn common(name: &str, bytes: usize) -> io::Result<Shared> {
        loop {
            let mut new = Shared::new(bytes, true)?;
            match new.publish(name) {
                Ok(()) => return Ok(new),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            let mut old = match Shared::open(name) {
                Ok(old) => old,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            lock(&old.file, libc::LOCK_SH)?;
            // The last one may have removed it since.
            if old.file.metadata()?.nlink() > 0 && old.bytes >= bytes {
                old.name = Some(folder()?.join(name));
                return Ok(old);
            }
        }
    }

    /// Whether a file of this name is there.
    pub fn exists(name: &str) -> bool {
        folder().is_ok_and(|folder| folder.join(name).exists())
    }

    /// Takes a name away; the memory goes with the last who has it.
    pub fn remove(name: &str) {
        let _ = folder().map(|folder| std::fs::remove_file(folder.join(name)));
    }

    /// First byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(name) = &self.name
            // Common memory goes with the last who holds it; our own lock is no obstacle to us.
            && lock(&self.file, libc::LOCK_EX | libc::LOCK_NB).is_ok()
        {
            let _ = std::fs::remove_file(name);
            // Where others have files it stays.
            let _ = folder().map(std::fs::remove_dir);
        }
        // SAFETY: mapped with this length; nobody has a reference into it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Removes what killed processes have left behind.
pub fn sweep() {
    let Ok(folder) = folder() else { return };
    let names: Vec<OsString> =
        std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
    for name in names {
        let path = folder.join(name);
        let Ok(file) = opening(libc::O_NOFOLLOW).open(&path) else { continue };
        if lock(&file, libc::LOCK_EX | libc::LOCK_NB).is_ok() {
            let _ = std::fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

    use super::*;

    fn name(what: &str) -> String {
        format!("test-{what}-{}", std::process::id())
    }

    #[test]
    fn memory_is_found_by_its_name_and_goes_with_its_owner() {
        let name = name("owned");
        let mut ours = Shared::new(8192, false).unwrap();
        assert!(Shared::open(&name).is_err());
        // SAFETY: within the mapping.
        unsafe { ours.base().add(4096).write(7) };
        ours.publish(&name).unwrap();
        let theirs = Shared::open(&name).unwrap();
        assert_eq!(theirs.bytes(), 8192);
        // SAFETY: within the mapping.
        assert_eq!(unsafe { theirs.base().add(4096).read() }, 7);
        assert!(Shared::new(64, false).unwrap().publish(&name).is_err(), "the name is taken");
        drop(ours);
        assert!(!Shared::exists(&name));
    }

    #[test]
    fn common_memory_goes_with_the_last() {
        let name = name("common");
        let (first, second) = (Shared::common(&name, 64).unwrap(), Shared::common(&name, 64).unwrap());
        // SAFETY: within the mapping.
        unsafe { first.base().write(9) };
        drop(first);
        assert!(Shared::exists(&name));
        // SAFETY: within the mapping.
        assert_eq!(unsafe { second.base().read() }, 9);
        drop(second);
        assert!(!Shared::exists(&name));
    }

    #[test]
    fn what_nobody_holds_is_swept_away() {
        let (left, held) = (name("left"), name("held"));
        std::fs::write(folder().unwrap().join(&left), "from a process that was killed").unwrap();
        let mut ours = Shared::new(64, false).unwrap();
        ours.publish(&held).unwrap();
        // Who sweeps at the same time (another test opens a card) may hold what is left, and is about to remove it.
        let late = std::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            sweep();
            if !Shared::exists(&left) {
                break;
            }
            assert!(std::time::Instant::now() < late, "{left} is still there");
            std::thread::yield_now();
        }
        assert!(Shared::exists(&held));
    }
}
