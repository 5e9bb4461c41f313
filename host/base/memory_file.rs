//! Memory that other processes of this machine map: an anonymous file of the kernel's, which lies in no folder and goes
//! with the last process that has it open or mapped, however that one ends.

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

/// Files of this process that regions may lie in, by [`share`].
static SHARED: Mutex<Vec<Weak<MemoryFile>>> = Mutex::new(Vec::new());

/// What another process needs to open a file: its process and the descriptor there. The number tells a file from a later
/// one under the same descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileName {
    /// The process.
    pub pid: u32,
    /// Its descriptor there.
    pub descriptor: i32,
    /// Counts the files of that process.
    pub number: u32,
}

/// A file of memory, mapped here from its first byte to its last. Unmapped when dropped.
#[derive(Debug)]
pub struct MemoryFile {
    start: NonNull<c_void>,
    bytes: NonZeroUsize,
    name: FileName,
    /// Of the process that made it. Others need none once it is mapped.
    _file: Option<OwnedFd>,
}

// SAFETY: plain shared bytes; access is by unsafe pointers and by kernels only.
unsafe impl Send for MemoryFile {}
// SAFETY: as above.
unsafe impl Sync for MemoryFile {}

impl MemoryFile {
    /// New zeroed memory of this length.
    pub fn create(bytes: NonZeroUsize) -> io::Result<MemoryFile> {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(format!("ginlab-{number}").as_str(), flags)?;
        let length = i64::try_from(bytes.get()).map_err(|_| nix::Error::EFBIG)?;
        // Here and now: pages that are missing later would end the process at its first touch of them.
        posix_fallocate(&file, 0, length)?;
        // And nobody takes any back.
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL))?;
        let name = FileName { pid: std::process::id(), descriptor: file.as_raw_fd(), number };
        Ok(MemoryFile { start: map(&file, bytes)?, bytes, name, _file: Some(file) })
    }

    /// The memory of this name, which a process of the same user on this machine has made.
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
        let bytes = bytes.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it has no length"))?;
        Ok(MemoryFile { start: map(&file, bytes)?, bytes, name, _file: None })
    }

    /// First byte, a multiple of 4096.
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.get() as u64
    }

    /// For other processes.
    pub fn name(&self) -> FileName {
        self.name
    }
}

/// With all its pages: a first touch costs as much as writing some KiB.
fn map(file: &impl AsFd, bytes: NonZeroUsize) -> io::Result<NonNull<c_void>> {
    let (access, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE);
    // SAFETY: a new mapping, at an address of the system's choice.
    Ok(unsafe { mmap(None, bytes, access, flags, file, 0) }?)
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        // SAFETY: the mapping is of this length and nobody uses it any more; an error would leave it in place.
        let _ = unsafe { munmap(self.start, self.bytes.get()) };
    }
}

/// From now on [`containing`] finds it, as long as it lives.
pub fn share(file: MemoryFile) -> Arc<MemoryFile> {
    let file = Arc::new(file);
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.retain(|file| file.strong_count() > 0);
    shared.push(Arc::downgrade(&file));
    file
}

/// The shared file that this stretch of memory lies in.
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
    fn what_is_opened_is_the_owners_memory_and_outlives_it() {
        let ours = file(10_000);
        let theirs = MemoryFile::open(ours.name()).unwrap();
        assert_eq!(theirs.bytes(), 10_000);
        assert_ne!(theirs.address(), ours.address());
        // SAFETY: both are this long, and nobody else knows of them.
        unsafe { ((ours.address() + 9_992) as *mut u64).write(7) };
        drop(ours);
        // SAFETY: as above.
        assert_eq!(unsafe { ((theirs.address() + 9_992) as *const u64).read() }, 7);
    }

    #[test]
    fn another_file_under_the_same_descriptor_is_not_taken_for_it() {
        let ours = file(4096);
        let name = ours.name();
        let error = MemoryFile::open(FileName { number: name.number + 1_000_000, ..name }).unwrap_err().to_string();
        assert!(error.contains("not /memfd:ginlab-"), "{error}");
        assert!(MemoryFile::open(FileName { pid: u32::MAX, ..name }).is_err());
        assert!(MemoryFile::open(FileName { descriptor: -1, ..name }).is_err());
    }

    #[test]
    fn a_stretch_is_found_while_its_file_lives_and_not_beyond_its_ends() {
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
