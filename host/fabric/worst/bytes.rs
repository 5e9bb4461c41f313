//! Bytes that another process, a kernel or a card may touch meanwhile: copied by address, never borrowed.

use nix::libc;

/// Copies what stands there now to the end of an empty buffer.
///
/// # Safety
/// So many bytes are valid there.
pub(super) unsafe fn take(into: &mut Vec<u8>, from: u64, bytes: u64) {
    into.clear();
    into.reserve(bytes as usize);
    // SAFETY: the caller's contract for the source; the buffer has this capacity, and is of this length once they are written.
    unsafe {
        std::ptr::copy_nonoverlapping(from as *const u8, into.as_mut_ptr(), bytes as usize);
        into.set_len(bytes as usize);
    }
}

/// Stores bytes there.
///
/// # Safety
/// So many bytes are valid there.
pub(super) unsafe fn store(bytes: &[u8], to: u64) {
    // SAFETY: the caller's contract; the buffer is this process's own and nowhere else.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, bytes.len()) };
}

/// Fills so many bytes there.
///
/// # Safety
/// So many bytes are valid there.
pub(super) unsafe fn fill(to: u64, bytes: u64, with: u8) {
    // SAFETY: the caller's contract.
    unsafe { std::ptr::write_bytes(to as *mut u8, with, bytes as usize) };
}

/// Whether these bytes stand there already.
///
/// # Safety
/// So many bytes are valid there.
pub(super) unsafe fn stand(bytes: &[u8], there: u64) -> bool {
    // SAFETY: the caller's contract. By the C library: what another process writes meanwhile must not be borrowed.
    unsafe { libc::memcmp(bytes.as_ptr().cast(), there as *const libc::c_void, bytes.len()) == 0 }
}
