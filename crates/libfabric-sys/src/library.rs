//! Loading of libfabric: its search paths, and the functions that it exports.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use crate::constants::fi_type;
use crate::info::{fi_fabric_attr, fi_info, fid_fabric};

/// Environment variable that specifies the file to load. If set, no other file is tried.
pub const VARIABLE: &str = "GINLAB_LIBFABRIC";

/// Files to try: by the loader's search rules, in the directories of AWS's installer, and by the name in development
/// packages.
const USUAL: [&str; 4] =
    ["libfabric.so.1", "/opt/amazon/efa/lib/libfabric.so.1", "/opt/amazon/efa/lib64/libfabric.so.1", "libfabric.so"];

/// Returns a version in libfabric's encoding: `FI_VERSION(major, minor)`.
#[must_use]
pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// The oldest supported version of libfabric.
pub const OLDEST: u32 = version(1, 17);

/// The first API version in which endpoints have [`FI_OPT_CUDA_API_PERMITTED`](crate::FI_OPT_CUDA_API_PERMITTED), and
/// in which providers may access GPU memory by CUDA calls unless that option forbids it.
pub const CUDA_API_OPTION: u32 = version(1, 18);

/// The newest API version that is requested: that of the headers for which the structures created here are complete.
/// Newer libraries respect it and ignore later members.
pub const NEWEST_API: u32 = version(2, 1);

/// The loaded libfabric: the functions that it exports, by their names. It is never unloaded.
///
/// # Safety
/// The functions are libfabric's own; the requirements of their manual pages must hold.
#[derive(Debug)]
pub struct LibfabricLibrary {
    /// Returns the available interfaces as a list, which [`fi_freeinfo`](Self::fi_freeinfo) frees.
    pub fi_getinfo: unsafe extern "C" fn(
        version: u32,
        node: *const c_char,
        service: *const c_char,
        flags: u64,
        hints: *const fi_info,
        info: *mut *mut fi_info,
    ) -> c_int,
    /// Frees a list.
    pub fi_freeinfo: unsafe extern "C" fn(info: *mut fi_info),
    /// Copies one entry. For null, allocates an empty entry with its attributes.
    pub fi_dupinfo: unsafe extern "C" fn(info: *const fi_info) -> *mut fi_info,
    /// Opens a fabric.
    pub fi_fabric:
        unsafe extern "C" fn(attr: *mut fi_fabric_attr, fabric: *mut *mut fid_fabric, context: *mut c_void) -> c_int,
    /// Returns the text of an error number.
    pub fi_strerror: unsafe extern "C" fn(errnum: c_int) -> *const c_char,
    /// Writes an object as text into the buffer.
    pub fi_tostr_r:
        unsafe extern "C" fn(buf: *mut c_char, len: usize, data: *const c_void, datatype: fi_type) -> *mut c_char,
    version: u32,
    path: PathBuf,
}

impl LibfabricLibrary {
    /// Returns the version of the library, in the encoding of [`version`].
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the API version to request from `fi_getinfo`: the newest that both sides support. Providers keep the
    /// behaviour of the requested version.
    #[must_use]
    pub fn api(&self) -> u32 {
        self.version.min(NEWEST_API)
    }

    /// Returns the path of the file that the loader found.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Loads one candidate. The error is a short reason.
    fn open(candidate: &OsStr) -> Result<Self, String> {
        let opened = keeping_signals(|| {
            // SAFETY: libfabric's initialization has no requirements; users are responsible for other files that they
            // specify.
            unsafe { Handle::open(Some(candidate), RTLD_NOW | RTLD_LOCAL) }
        });
        let raw = opened.map_err(|error| reason(candidate, &error))?.into_raw();
        // SAFETY: the handle was opened above, and is closed if this function fails.
        let handle = unsafe { Handle::from_raw(raw) };
        // SAFETY: the function takes no arguments and returns a number, in every version.
        let version = unsafe {
            let fi_version: unsafe extern "C" fn() -> u32 = function(raw, c"fi_version", c"FABRIC_1.0")?;
            fi_version()
        };
        if version < OLDEST {
            return Err(format!(
                "it is libfabric {}, but {} is the oldest supported version",
                Dotted(version),
                Dotted(OLDEST)
            ));
        }
        // Symbols have versions. A lookup by name only would find the newest version, whose ABI is unknown here. `info`
        // and `types` declare FABRIC_1.3, which every libfabric from 1.9 on has, in addition to newer versions whose
        // attributes have grown at their ends. Structures returned by a newer library are longer than declared; in
        // those copied by `fi_dupinfo` the additional members are zero.
        let path = path_of(symbol(raw, c"fi_getinfo", c"FABRIC_1.3")?).unwrap_or_else(|| candidate.into());
        // SAFETY: the types are those of the symbols of these versions.
        let library = unsafe {
            Self {
                fi_getinfo: function(raw, c"fi_getinfo", c"FABRIC_1.3")?,
                fi_freeinfo: function(raw, c"fi_freeinfo", c"FABRIC_1.3")?,
                fi_dupinfo: function(raw, c"fi_dupinfo", c"FABRIC_1.3")?,
                fi_fabric: function(raw, c"fi_fabric", c"FABRIC_1.1")?,
                fi_strerror: function(raw, c"fi_strerror", c"FABRIC_1.0")?,
                fi_tostr_r: function(raw, c"fi_tostr_r", c"FABRIC_1.4")?,
                version,
                path,
            }
        };
        // The library is never unloaded: its objects have pointers to its code.
        std::mem::forget(handle);
        Ok(library)
    }
}

/// Runs `load` with signals blocked, and restores every signal's action afterwards. Dependencies of libfabric (PSM of
/// Debian 12) install handlers for SIGINT, SIGTERM and others while they are loaded, which exit with code 1. A signal
/// that arrives in the meantime (0.2 s) stays pending and reaches the process's own handler.
fn keeping_signals<T>(load: impl FnOnce() -> T) -> T {
    let action_of = |signal| {
        // SAFETY: `sigaction` is plain data, for which zeros are valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: `action` is valid for writes; a null new action only queries. Invalid signal numbers are refused.
        (unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) } == 0).then_some((signal, action))
    };
    let before: Vec<_> = (1..=libc::SIGRTMAX()).filter_map(action_of).collect();
    // SAFETY: `sigset_t` is plain data, for which zeros are valid.
    let (mut all, mut mask): (libc::sigset_t, libc::sigset_t) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: both sets are valid for writes. Synchronous signals (SIGSEGV) are delivered even if they are blocked.
    let blocked =
        unsafe { libc::sigfillset(&mut all) | libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut mask) } == 0;
    let loaded = load();
    for (signal, action) in before {
        // SAFETY: the action was in effect before `load`. SIGKILL and SIGSTOP are refused, and never change.
        unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    }
    if blocked {
        // SAFETY: `mask` is the mask that `pthread_sigmask` has stored.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut()) };
    }
    loaded
}

/// Returns the address of a symbol with this version. A library built without symbol versions provides its only ABI
/// under every version.
fn symbol(handle: *mut c_void, name: &CStr, version: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the handle is open, and the names are C strings.
    #[cfg(target_env = "gnu")]
    let address = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
    // SAFETY: the handle is open, and the name is a C string. Without glibc, versions cannot be selected, and the
    // result is the library's newest ABI. That is sufficient: only libfabric creates its structures, and only members
    // common to all versions are read.
    #[cfg(not(target_env = "gnu"))]
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() {
        return Err(format!("it has no {}@{}", name.to_string_lossy(), version.to_string_lossy()));
    }
    Ok(address)
}

/// Returns a function of the library.
///
/// # Safety
/// `T` must be the function pointer type of this function.
unsafe fn function<T: Copy>(handle: *mut c_void, name: &CStr, version: &CStr) -> Result<T, String> {
    const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
    let address = symbol(handle, name, version)?;
    // SAFETY: a function pointer and an address have the same size and representation; the caller guarantees the type.
    Ok(unsafe { std::mem::transmute_copy(&address) })
}

/// Returns the path of the file that contains an address.
fn path_of(address: *mut c_void) -> Option<PathBuf> {
    // SAFETY: the type is plain data, for which zeros are valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `dladdr` accepts any address; the returned name lives as long as the library is loaded.
    let known = unsafe { libc::dladdr(address, &mut info) } != 0 && !info.dli_fname.is_null();
    // SAFETY: the text is not null, and is a C string of the loader.
    known.then(|| OsStr::from_bytes(unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes()).into())
}

/// Returns the loader's message, without the file name at its start.
fn reason(candidate: &OsStr, error: &libloading::Error) -> String {
    let text = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    let name = candidate.to_string_lossy();
    text.strip_prefix(&*name).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&text).to_owned()
}

/// Formats a version of the library or a provider as `1.17`.
#[derive(Clone, Copy, Debug)]
pub struct Dotted(pub u32);

impl fmt::Display for Dotted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> 16, self.0 & 0xffff)
    }
}

/// No libfabric could be loaded. Formats on one line which files were tried, and the errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFound {
    asked: bool,
    tried: Vec<(OsString, String)>,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The loader's message for a file that does not exist.
        const ABSENT: &str = "cannot open shared object file: No such file or directory";
        if let [(file, why)] = &self.tried[..]
            && self.asked
        {
            return write!(f, "no libfabric: {VARIABLE}={} cannot be used: {why}", file.to_string_lossy());
        }
        f.write_str("libfabric was not found; tried ")?;
        for (index, (file, why)) in self.tried.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{}", file.to_string_lossy())?;
            if why != ABSENT {
                write!(f, " ({why})")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for NotFound {}

/// Loads the first usable candidate. libfabric is loaded only here.
fn load(asked: Option<OsString>) -> Result<LibfabricLibrary, NotFound> {
    let candidates = match &asked {
        Some(file) => vec![file.clone()],
        None => USUAL.map(OsString::from).to_vec(),
    };
    let mut tried = Vec::new();
    for candidate in candidates {
        match LibfabricLibrary::open(&candidate) {
            Ok(library) => return Ok(library),
            Err(why) => tried.push((candidate, why)),
        }
    }
    Err(NotFound { asked: asked.is_some(), tried })
}

static LOADED: OnceLock<Result<LibfabricLibrary, NotFound>> = OnceLock::new();

/// Returns whether [`library`] was called. Libraries that are loaded with global scope afterwards do not take
/// precedence over libfabric's own dependencies.
#[must_use]
pub fn is_settled() -> bool {
    LOADED.get().is_some()
}

/// Returns the libfabric of this process, loaded by the first call.
pub fn library() -> Result<&'static LibfabricLibrary, &'static NotFound> {
    LOADED.get_or_init(|| load(std::env::var_os(VARIABLE).filter(|file| !file.is_empty()))).as_ref()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

    use super::*;
    use std::process::Command;

    fn refused(file: &str) -> String {
        load(Some(file.into())).unwrap_err().to_string()
    }

    #[test]
    fn named_file_is_only_candidate() {
        let text = refused("/nonexistent/libfabric.so");
        let expected = "no libfabric: GINLAB_LIBFABRIC=/nonexistent/libfabric.so cannot be used: cannot open shared object \
                        file: No such file or directory";
        assert_eq!(text, expected);
        assert_eq!(refused("/").lines().count(), 1);
    }

    #[test]
    fn missing_library_error_names_candidates_and_reasons() {
        let absent = "cannot open shared object file: No such file or directory";
        let why = ["libefa.so.1: cannot open shared object file: No such file or directory", absent, absent, absent];
        let tried = USUAL.iter().zip(why).map(|(file, why)| ((*file).into(), why.into())).collect();
        let text = NotFound { asked: false, tried }.to_string();
        assert!(text.starts_with("libfabric was not found; tried libfabric.so.1 (libefa.so.1: cannot"), "{text}");
        assert!(text.ends_with(
            "directory), /opt/amazon/efa/lib/libfabric.so.1, /opt/amazon/efa/lib64/libfabric.so.1, libfabric.so"
        ));
    }

    /// Builds a shared object from this source. Returns `None` without a C compiler.
    fn built(folder: &Path, source: &str) -> Option<String> {
        let (from, to) = (folder.join("library.c"), folder.join("library.so"));
        std::fs::write(&from, source).unwrap();
        let compiler = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&to, &from]).status();
        match compiler {
            Ok(status) => assert!(status.success(), "cc failed on {source}"),
            Err(_) => {
                eprintln!("skipped: no C compiler");
                return None;
            }
        }
        Some(to.to_str().unwrap().to_owned())
    }

    #[test]
    fn signal_during_loading_reaches_process_handler() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static OWN: AtomicU32 = AtomicU32::new(0);
        static LIBRARY: AtomicU32 = AtomicU32::new(0);
        extern "C" fn own(_: libc::c_int) {
            OWN.fetch_add(1, Ordering::Relaxed);
        }
        extern "C" fn library(_: libc::c_int) {
            LIBRARY.fetch_add(1, Ordering::Relaxed);
        }
        let handle = |handler: extern "C" fn(libc::c_int)| {
            // SAFETY: the handler only adds to an atomic, which is async-signal-safe. No other test uses SIGUSR2.
            unsafe { libc::signal(libc::SIGUSR2, handler as *const () as libc::sighandler_t) };
        };
        handle(own);
        keeping_signals(|| {
            handle(library);
            // SAFETY: the signal has a handler.
            unsafe { libc::raise(libc::SIGUSR2) };
        });
        assert_eq!((OWN.load(Ordering::Relaxed), LIBRARY.load(Ordering::Relaxed)), (1, 0));
    }

    #[test]
    fn old_library_and_other_libraries_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let Some(file) = built(folder.path(), "unsigned fi_version(void) { return 1 << 16 | 16; }") else { return };
        let text = refused(&file);
        assert!(
            text.ends_with("cannot be used: it is libfabric 1.16, but 1.17 is the oldest supported version"),
            "{text}"
        );
        let folder = tempfile::tempdir().unwrap();
        let file = built(folder.path(), "unsigned fi_version(void) { return 1 << 16 | 17; }").unwrap();
        assert!(refused(&file).ends_with("it has no fi_getinfo@FABRIC_1.3"), "{}", refused(&file));
        let folder = tempfile::tempdir().unwrap();
        let file = built(folder.path(), "int nothing;").unwrap();
        assert!(refused(&file).ends_with("it has no fi_version@FABRIC_1.0"), "{}", refused(&file));
    }

    #[test]
    fn loading_changes_no_signal() {
        let of_sigusr2 = || {
            // SAFETY: the type is plain data, for which zeros are valid.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: the call only queries, and the destination is a local variable.
            assert_eq!(unsafe { libc::sigaction(libc::SIGUSR2, std::ptr::null(), &mut action) }, 0);
            action.sa_sigaction
        };
        let folder = tempfile::tempdir().unwrap();
        let source = "#include <signal.h>\n__attribute__((constructor)) void take(void) { signal(SIGUSR2, SIG_IGN); }";
        let Some(file) = built(folder.path(), source) else { return };
        // The parent process may have ignored the signal, as perf does. SAFETY: the call installs no handler.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_DFL) };
        assert_eq!(of_sigusr2(), libc::SIG_DFL);
        assert!(refused(&file).ends_with("it has no fi_version@FABRIC_1.0"), "{}", refused(&file));
        assert_eq!(of_sigusr2(), libc::SIG_DFL);
    }

    #[test]
    fn loaded_library_reports_version_and_file() {
        let Ok(library) = library() else { return eprintln!("skipped: no libfabric") };
        assert!(library.version() >= OLDEST && library.api() <= NEWEST_API.min(library.version()));
        assert!(library.path().is_file(), "{:?}", library.path());
        // SAFETY: the function takes a number and returns a C string.
        let text = unsafe { CStr::from_ptr((library.fi_strerror)(crate::FI_EAVAIL)) };
        assert_eq!(text.to_str(), Ok("Error available"));
    }
}
