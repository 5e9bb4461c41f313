//! Programs that load libibverbs and libefa at run time: `dlopen` of these libraries returns this library, so that they
//! find the software NICs as linked programs do.

use crate::next;
use std::ffi::{CStr, c_char, c_int, c_void};

/// Type of `dlopen`.
type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// Returns whether a file is libibverbs or libefa, of any version.
fn is_replaced(file: &CStr) -> bool {
    let name = file.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    [&b"libibverbs.so"[..], b"libefa.so"]
        .iter()
        .any(|known| name.strip_prefix(*known).is_some_and(|rest| rest.is_empty() || rest.starts_with(b".")))
}

/// Returns the function that loads `file`.
///
/// # Safety
/// `file` must be null or a C string.
unsafe extern "C" fn choose(file: *const c_char) -> Open {
    // SAFETY: the caller guarantees that `file` is null or a C string.
    if !file.is_null() && is_replaced(unsafe { CStr::from_ptr(file) }) {
        return this_library;
    }
    // SAFETY: the next definition of this name has this type.
    unsafe { next!(c"dlopen" => Open) }.unwrap_or(fails)
}

unsafe extern "C" fn fails(_: *const c_char, _: c_int) -> *mut c_void {
    std::ptr::null_mut()
}

/// Loads this library.
///
/// # Safety
/// See [`choose`].
unsafe extern "C" fn this_library(_: *const c_char, flags: c_int) -> *mut c_void {
    // SAFETY: the type has only pointers, for which zero is a valid value.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is that of a function of this library, and the place is a local variable.
    if unsafe { libc::dladdr(this_library as *const c_void, &raw mut found) } == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the next definition of this name has this type; the loader keeps the name as long as the library.
    unsafe { next!(c"dlopen" => Open).map_or(std::ptr::null_mut(), |open| open(found.dli_fname, flags)) }
}

/// Loads a library. Jumps to the loader's function instead of calling it, because that searches in the directories of
/// its caller, which it identifies by the return address.
///
/// # Safety
/// `file` must be null or a C string.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {choose}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        choose = sym choose,
    )
}

/// Loads a library. Jumps to the loader's function instead of calling it, because that searches in the directories of
/// its caller, which it identifies by the return address.
///
/// # Safety
/// `file` must be null or a C string.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {choose}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "br x16",
        choose = sym choose,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_libraries_are_replaced_by_name() {
        for file in [c"libibverbs.so.1", c"libefa.so", c"/opt/amazon/efa/lib64/libefa.so.1.3.60.0"] {
            assert!(is_replaced(file), "{file:?}");
        }
        for file in [c"libibverbs-other.so.1", c"libc.so.6", c"", c"/libefa.so.1/libc.so.6"] {
            assert!(!is_replaced(file), "{file:?}");
        }
    }
}
