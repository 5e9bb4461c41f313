//! Memory of this process that a device may map: whole pages, all zero, never moved.

use std::io;
use std::ptr::NonNull;

/// What pages are counted by; a device maps whole ones.
const PAGE: usize = 4096;

/// A stretch of pages.
#[derive(Debug)]
pub struct Plain {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is not bound to a thread; what lies in it is read and written by atomics.
unsafe impl Send for Plain {}
// SAFETY: as above.
unsafe impl Sync for Plain {}

impl Plain {
    /// Pages for so many bytes.
    pub fn new(bytes: usize) -> io::Result<Plain> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the place is the system's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Plain { base, bytes })
    }

    /// First byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: mapped with this length; nobody has a reference into it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
