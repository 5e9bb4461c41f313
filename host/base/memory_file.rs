//! Memory that other processes of this machine can map: an anonymous file (memfd) without a path. The kernel frees it
//! when the last process that has it open or mapped exits, for any reason.

use nix::fcntl::{FcntlArg, SealFlag, fcntl, posix_fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::fstat;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Files of this process that were passed to [`share`], for lookup by address.
static SHARED: Mutex<Vec<Weak<MemoryFile>>> = Mutex::new(Vec::new());

/// Name by which another process opens a file. The number distinguishes a file from a later one with the same
/// descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileName {
    /// Process ID of the owner.
    pub pid: u32,
    /// File descriptor in the owner's process.
    pub descriptor: i32,
    /// Number of the file, counted per process.
    pub number: u32,
}

/// A memory file that is mapped as a whole. Unmapped on drop.
#[derive(Debug)]
pub struct MemoryFile {
    start: NonNull<c_void>,
    bytes: NonZeroUsize,
    name: FileName,
    /// Descriptor in the creating process. Other processes need none once the file is mapped.
    _file: Option<OwnedFd>,
}

// SAFETY: the memory is plain shared bytes, accessed only through unsafe pointers and by kernels.
unsafe impl Send for MemoryFile {}
// SAFETY: all accesses are through unsafe pointers and by kernels, as for `Send`.
unsafe impl Sync for MemoryFile {}

impl MemoryFile {
    /// Creates a zeroed file of `bytes` bytes.
    pub fn create(bytes: NonZeroUsize) -> io::Result<MemoryFile> {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(format!("ginlab-{number}").as_str(), flags)?;
        let length = i64::try_from(bytes.get()).map_err(|_| nix::Error::EFBIG)?;
        // Allocates all pages now: if a page could not be allocated later, its first access would end the process.
        posix_fallocate(&file, 0, length)?;
        // Seals the file, so that no process can shrink it.
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL))?;
        let name = FileName { pid: std::process::id(), descriptor: file.as_raw_fd(), number };
        Ok(MemoryFile { start: map(&file, bytes)?, bytes, name, _file: Some(file) })
    }

    /// Opens the memory of this name, which a process of the same user on this machine has created.
    pub fn open(name: FileName) -> io::Result<MemoryFile> {
        let path = format!("/proc/{}/fd/{}", name.pid, name.descriptor);
        let called = std::fs::read_link(&path)?;
        let expected = format!("/memfd:ginlab-{} (deleted)", name.number);
        if called.as_os_str() != expected.as_str() {
            let text = format!("its descriptor {} is {}, not {expected}", name.descriptor, called.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        let file = File::options().read(true).write(true).open(path)?;
        let bytes = usize::try_from(fstat(&file)?.st_size).ok().and_then(NonZeroUsize::new);
        let bytes = bytes.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is empty"))?;
        Ok(MemoryFile { start: map(&file, bytes)?, bytes, name, _file: None })
    }

    /// Returns the address of the first byte, a multiple of 4096.
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.get() as u64
    }

    /// Returns the name for other processes.
    pub fn name(&self) -> FileName {
        self.name
    }
}

/// Maps a file with all its pages, because the first access to a page is expensive.
fn map(file: &impl AsFd, bytes: NonZeroUsize) -> io::Result<NonNull<c_void>> {
    let (access, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE);
    // SAFETY: the call creates a new mapping at an address that the system chooses.
    Ok(unsafe { mmap(None, bytes, access, flags, file, 0) }?)
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        // SAFETY: the mapping has this length and is no longer used. After an error it stays in place.
        let _ = unsafe { munmap(self.start, self.bytes.get()) };
    }
}

/// Makes [`containing`] find the file as long as it exists.
pub fn share(file: MemoryFile) -> Arc<MemoryFile> {
    let file = Arc::new(file);
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.retain(|file| file.strong_count() > 0);
    shared.push(Arc::downgrade(&file));
    file
}

/// Returns the shared file that contains this memory range.
pub fn containing(address: u64, bytes: u64) -> Option<Arc<MemoryFile>> {
    let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let holds = |file: &MemoryFile| {
        address.checked_sub(file.address()).is_some_and(|at| at <= file.bytes() && bytes <= file.bytes() - at)
    };
    shared.iter().filter_map(Weak::upgrade).find(|file| holds(file))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn file(bytes: usize) -> MemoryFile {
        MemoryFile::create(NonZeroUsize::new(bytes).unwrap()).unwrap()
    }

    #[test]
    fn opened_memory_is_shared_and_outlives_owner() {
        let ours = file(10_000);
        let theirs = MemoryFile::open(ours.name()).unwrap();
        assert_eq!(theirs.bytes(), 10_000);
        assert_ne!(theirs.address(), ours.address());
        // SAFETY: both mappings are long enough, and no other code accesses them.
        unsafe { ((ours.address() + 9_992) as *mut u64).write(7) };
        drop(ours);
        // SAFETY: as for the write, the mapping is long enough, and no other code accesses it.
        assert_eq!(unsafe { ((theirs.address() + 9_992) as *const u64).read() }, 7);
    }

    #[test]
    fn other_file_with_same_descriptor_is_rejected() {
        let ours = file(4096);
        let name = ours.name();
        let error = MemoryFile::open(FileName { number: name.number + 1_000_000, ..name }).unwrap_err().to_string();
        assert!(error.contains("not /memfd:ginlab-"), "{error}");
        assert!(MemoryFile::open(FileName { pid: u32::MAX, ..name }).is_err());
        assert!(MemoryFile::open(FileName { descriptor: -1, ..name }).is_err());
    }

    #[test]
    fn range_is_found_only_within_live_file() {
        let shared = share(file(8192));
        let first = shared.address();
        assert!([(0, 8192), (8191, 1), (8192, 0)].iter().all(|&(at, bytes)| containing(first + at, bytes).is_some()));
        let number = shared.name().number;
        let is_it = |at: u64, bytes| containing(at, bytes).is_some_and(|found| found.name().number == number);
        assert!(!is_it(first - 1, 2) && !is_it(first, 8193) && !is_it(first + 1, u64::MAX));
        drop(shared);
        assert!(!is_it(first, 1));
    }
}
