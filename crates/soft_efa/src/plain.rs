//! Memory of this process that a GPU can map: whole pages, initially zero, never moved.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// Page size; a device maps whole pages.
const PAGE: usize = 4096;

/// A range of pages.
#[derive(Debug)]
pub struct Plain {
    base: NonNull<u8>,
    /// A second, read-only mapping of the same pages.
    view: Option<NonNull<u8>>,
    bytes: usize,
}

// SAFETY: a mapping is not bound to a thread; its content is accessed by atomics.
unsafe impl Send for Plain {}
// SAFETY: the content is accessed by atomics.
unsafe impl Sync for Plain {}

/// Maps `bytes` of `file`, or anonymous memory if `file` is -1.
fn map(file: c_int, bytes: usize, access: c_int) -> io::Result<NonNull<u8>> {
    let kind = if file < 0 { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS } else { libc::MAP_SHARED };
    // SAFETY: the system chooses the address, so no other mapping is replaced; it rejects a descriptor that is not
    // open.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, file, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

const WRITABLE: c_int = libc::PROT_READ | libc::PROT_WRITE;

impl Plain {
    /// Allocates pages for `bytes`.
    pub fn new(bytes: usize) -> io::Result<Plain> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        Ok(Plain { base: map(-1, bytes, WRITABLE)?, view: None, bytes })
    }

    /// Allocates pages for `bytes`, with a [view](Plain::view) of them.
    pub fn with_view(bytes: usize) -> io::Result<Plain> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        // SAFETY: the name is a C string.
        let file = unsafe { libc::memfd_create(c"soft-efa".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping was created above, and no other object owns it.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: the descriptor is that of an open file.
        if unsafe { libc::ftruncate(file.as_raw_fd(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut plain = Plain { base: map(file.as_raw_fd(), bytes, WRITABLE)?, view: None, bytes };
        plain.view = Some(map(file.as_raw_fd(), bytes, libc::PROT_READ)?);
        Ok(plain)
    }

    /// Returns the address of the first byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the address of the first byte for other parties: in the read-only mapping, if there is one.
    pub fn view(&self) -> *mut u8 {
        self.view.unwrap_or(self.base).as_ptr()
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        for mapped in std::iter::once(self.base).chain(self.view) {
            // SAFETY: the memory was mapped with this length, and no reference into it remains.
            unsafe { libc::munmap(mapped.as_ptr().cast(), self.bytes) };
        }
    }
}
