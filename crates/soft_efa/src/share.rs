//! Memory shared by the processes of one user on one machine, found by file names in a directory below /dev/shm.
//!
//! A file belongs to the processes that hold a lock on it. It is locked and filled before it gets its name, so no
//! process finds an incomplete file. A file without a lock was left by a killed process, and the next process removes
//! it.
//!
//! A named file is one page, which is reserved before use. A container's /dev/shm has 64 MiB, and the first access to a
//! page that a full file system cannot provide raises SIGBUS. Larger memory is an anonymous file (memfd), which has no
//! file system to fill; its named page contains its location.

use crate::cause;
use std::ffi::{CString, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::ptr::NonNull;

/// Size in bytes of a named file.
const PAGE: usize = 4096;

/// Mapped shared memory.
#[derive(Debug)]
pub struct Shared {
    base: NonNull<u8>,
    bytes: usize,
    /// The lock file, which has the name or will receive it; `None` for a peer's memory.
    file: Option<File>,
    /// The anonymous file with the bytes, which peers open by its descriptor number in this process.
    _memory: Option<File>,
    /// Path of `file`, which is removed on drop.
    name: Option<PathBuf>,
}

// SAFETY: a mapping is not bound to a thread; its content is atomic, or written before it is named.
unsafe impl Send for Shared {}
// SAFETY: the content is atomic, or written before it is named.
unsafe impl Sync for Shared {}

/// Returns the directory of the files, and creates it if missing. No other user may have access to it, because that
/// user could replace files.
fn folder() -> io::Result<PathBuf> {
    // SAFETY: the function takes no arguments.
    let user = unsafe { libc::geteuid() };
    let folder = PathBuf::from(format!("/dev/shm/soft-efa-{user}"));
    match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = folder.symlink_metadata()?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        let text = format!("{} is not a directory that only this user can access", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(folder)
}

/// Returns options for reading and writing, with additional flags.
fn opening(flags: i32) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(flags);
    options
}

fn lock(file: &File, how: i32) -> io::Result<()> {
    // SAFETY: the descriptor is that of an open file.
    if unsafe { libc::flock(file.as_raw_fd(), how) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Retries `attempt` while another process removes the directory because its last file was removed.
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

/// Reserves a file's only page. Returns the system's error if there is no space.
fn reserve(file: &File) -> io::Result<()> {
    loop {
        // SAFETY: the descriptor is that of an open file.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, PAGE as libc::off_t) } {
            0 => return Ok(()),
            libc::EINTR => {}
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// Creates an unnamed file with a reserved page.
fn page() -> io::Result<File> {
    let file = while_the_folder_goes(|| opening(libc::O_TMPFILE).open(folder()?)).and_then(|file| {
        reserve(&file)?;
        Ok(file)
    });
    file.inspect_err(cause::no_shared_memory)
}

/// Returns the kernel's name of the anonymous file that belongs to the named file with this inode.
fn memory_name(inode: u64) -> String {
    format!("soft-efa-{inode}")
}

impl Shared {
    fn map(file: &File, bytes: usize) -> io::Result<Shared> {
        let (access, none) = (libc::PROT_READ | libc::PROT_WRITE, std::ptr::null_mut());
        // SAFETY: the descriptor is that of an open file; the system chooses the address.
        let base = unsafe { libc::mmap(none, bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Shared { base, bytes, file: None, _memory: None, name: None })
    }

    /// Creates zeroed memory without a name, held only by this process. It is freed when this process exits.
    pub fn new(bytes: usize) -> io::Result<Shared> {
        let file = page()?;
        lock(&file, libc::LOCK_EX)?;
        let name = CString::new(memory_name(file.metadata()?.ino()))?;
        // SAFETY: `name` is a C string; the call returns a new descriptor or an error.
        let memory = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if memory < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, which no other code owns.
        let memory = unsafe { File::from_raw_fd(memory) };
        memory.set_len(bytes as u64)?;
        file.write_all_at(format!("{} {}\n", std::process::id(), memory.as_raw_fd()).as_bytes(), 0)?;
        let mut new = Shared::map(&memory, bytes)?;
        (new.file, new._memory) = (Some(file), Some(memory));
        Ok(new)
    }

    /// Gives the memory a name by which other processes find it.
    ///
    /// # Errors
    /// Returns an error if the name is taken.
    pub fn publish(&mut self, name: &str) -> io::Result<()> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
        let path = while_the_folder_goes(|| {
            let path = folder()?.join(name);
            let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
            let to = CString::new(path.as_os_str().as_bytes())?;
            let here = libc::AT_FDCWD;
            // SAFETY: both paths are C strings.
            match unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), libc::AT_SYMLINK_FOLLOW) } {
                0 => Ok(path),
                _ => Err(io::Error::last_os_error()),
            }
        })?;
        self.name = Some(path);
        Ok(())
    }

    /// Opens another process's memory of this name, without holding it.
    pub fn open(name: &str) -> io::Result<Shared> {
        let file = opening(libc::O_NOFOLLOW).open(folder()?.join(name))?;
        let mut text = [0; 32];
        let length = file.read_at(&mut text, 0)?;
        let text = std::str::from_utf8(&text[..length]).ok().and_then(|text| text.lines().next());
        let numbers = text.and_then(|text| text.split_once(' '));
        let numbers = numbers.and_then(|(pid, number)| Some((pid.parse::<u32>().ok()?, number.parse::<u32>().ok()?)));
        let (pid, number) = numbers.ok_or(io::ErrorKind::InvalidData)?;
        let path = format!("/proc/{pid}/fd/{number}");
        let refused = |error: io::Error| {
            if error.kind() == io::ErrorKind::PermissionDenied {
                cause::no_way_in(&format!("opening {path}"), &error, true);
            }
            error
        };
        // The process may have exited, and another process may have its ID.
        let expected = format!("/memfd:{} (deleted)", memory_name(file.metadata()?.ino()));
        if std::fs::read_link(&path).map_err(refused)?.as_os_str() != expected.as_str() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let memory = opening(0).open(&path).map_err(refused)?;
        let bytes = memory.metadata()?.len() as usize;
        Shared::map(&memory, bytes)
    }

    /// Opens or creates up to a page of memory that all processes that use this name hold; the last one removes it.
    pub fn common(name: &str, bytes: usize) -> io::Result<Shared> {
        debug_assert!(bytes <= PAGE);
        loop {
            let file = page()?;
            lock(&file, libc::LOCK_SH)?;
            let mut new = Shared::map(&file, bytes)?;
            new.file = Some(file);
            match new.publish(name) {
                Ok(()) => return Ok(new),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            let (mut old, file) = match Shared::open_page(name, bytes) {
                Ok(opened) => opened,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            lock(&file, libc::LOCK_SH)?;
            // The last holder may have removed the file before the lock was taken.
            if file.metadata()?.nlink() > 0 {
                (old.file, old.name) = (Some(file), Some(folder()?.join(name)));
                return Ok(old);
            }
        }
    }

    /// Opens memory created by [`Shared::common`], without holding it.
    pub fn open_common(name: &str, bytes: usize) -> io::Result<Shared> {
        Shared::open_page(name, bytes).map(|(memory, _)| memory)
    }

    fn open_page(name: &str, bytes: usize) -> io::Result<(Shared, File)> {
        let file = opening(libc::O_NOFOLLOW).open(folder()?.join(name))?;
        if file.metadata()?.len() < bytes as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok((Shared::map(&file, bytes)?, file))
    }

    /// Returns whether a file of this name exists.
    pub fn exists(name: &str) -> bool {
        folder().is_ok_and(|folder| folder.join(name).exists())
    }

    /// Removes a name; the memory is freed with its last mapping.
    pub fn remove(name: &str) {
        let _ = folder().map(|folder| std::fs::remove_file(folder.join(name)));
    }

    /// Returns the address of the first byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some((name, file)) = self.name.as_ref().zip(self.file.as_ref())
            // The last holder removes common memory. This process's own shared lock does not prevent the exclusive one.
            && lock(file, libc::LOCK_EX | libc::LOCK_NB).is_ok()
        {
            let _ = std::fs::remove_file(name);
            // Fails, and leaves the directory in place, if it contains other files.
            let _ = folder().map(std::fs::remove_dir);
        }
        // SAFETY: the memory was mapped with this length, and no reference into it remains.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Removes files that killed processes have left.
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
    fn memory_is_found_by_name_until_owner_exits() {
        let name = name("owned");
        let mut ours = Shared::new(8192).unwrap();
        assert!(Shared::open(&name).is_err());
        // SAFETY: the offset is within the mapping.
        unsafe { ours.base().add(4096).write(7) };
        ours.publish(&name).unwrap();
        let theirs = Shared::open(&name).unwrap();
        assert_eq!(theirs.bytes(), 8192);
        // SAFETY: the offset is within the mapping.
        assert_eq!(unsafe { theirs.base().add(4096).read() }, 7);
        assert!(Shared::new(64).unwrap().publish(&name).is_err(), "the name is taken");
        // The named file is one reserved page, regardless of the size of the memory.
        let file = folder().unwrap().join(&name).metadata().unwrap();
        assert_eq!((file.len(), file.blocks() * 512), (PAGE as u64, PAGE as u64));
        drop(ours);
        assert!(!Shared::exists(&name));
    }

    #[test]
    fn common_memory_is_removed_with_last_user() {
        let name = name("common");
        let (first, second) = (Shared::common(&name, 64).unwrap(), Shared::common(&name, 64).unwrap());
        // SAFETY: the address is within the mapping.
        unsafe { first.base().write(9) };
        drop(first);
        assert!(Shared::exists(&name));
        // SAFETY: the address is within the mapping.
        assert_eq!(unsafe { second.base().read() }, 9);
        drop(second);
        assert!(!Shared::exists(&name));
    }

    #[test]
    fn unlocked_memory_is_removed() {
        let (left, held) = (name("left"), name("held"));
        std::fs::write(folder().unwrap().join(&left), "from a process that was killed").unwrap();
        let mut ours = Shared::new(64).unwrap();
        ours.publish(&held).unwrap();
        // Another thread that sweeps at the same time (a test that opens a device) may hold the lock of the file, and
        // is about to remove it.
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
