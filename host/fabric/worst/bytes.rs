//! Access to bytes that another process, a kernel or a NIC may access concurrently. They are copied by address, never
//! borrowed.

use nix::libc;

/// Replaces the content of a buffer with the bytes at an address.
///
/// # Safety
/// `bytes` bytes must be valid at `from`.
pub(super) unsafe fn take(into: &mut Vec<u8>, from: u64, bytes: u64) {
    into.clear();
    into.reserve(bytes as usize);
    // SAFETY: the caller guarantees that the source is valid. The buffer has the capacity, and its length is set after
    // the bytes are written.
    unsafe {
        std::ptr::copy_nonoverlapping(from as *const u8, into.as_mut_ptr(), bytes as usize);
        into.set_len(bytes as usize);
    }
}

/// Stores bytes at an address.
///
/// # Safety
/// `bytes.len()` bytes must be valid at `to`.
pub(super) unsafe fn store(bytes: &[u8], to: u64) {
    // SAFETY: the caller guarantees that the destination is valid. The buffer is owned by this process and does not
    // overlap it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
}

/// Fills the bytes at an address with one value.
///
/// # Safety
/// `bytes` bytes must be valid at `to`.
pub(super) unsafe fn fill(to: u64, bytes: u64, with: u8) {
    // SAFETY: the caller guarantees that the destination is valid.
    unsafe { std::ptr::write_bytes(to as *mut u8, with, bytes as usize) };
}

/// Returns whether the bytes at an address are equal to `bytes`.
///
/// # Safety
/// `bytes.len()` bytes must be valid at `there`.
pub(super) unsafe fn stand(bytes: &[u8], there: u64) -> bool {
    // SAFETY: the caller guarantees that the bytes are valid. The C library is used, because bytes that another process
    // may write must not be borrowed.
    unsafe { libc::memcmp(bytes.as_ptr().cast(), there as *const libc::c_void, bytes.len()) == 0 }
}
