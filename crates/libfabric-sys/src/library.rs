//! Loading libfabric: where it is looked for, and the functions that it exports.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use crate::constants::fi_type;
use crate::info::{fi_fabric_attr, fi_info, fid_fabric};

/// The environment variable that names the file to load; nothing else is tried then.
pub const VARIABLE: &str = "GINLAB_LIBFABRIC";

/// Where libfabric is looked for: by the loader's own rules, then where AWS's installer puts it, then by the name that
/// development packages have.
const USUAL: [&str; 4] =
    ["libfabric.so.1", "/opt/amazon/efa/lib/libfabric.so.1", "/opt/amazon/efa/lib64/libfabric.so.1", "libfabric.so"];

/// A version as libfabric writes it: `FI_VERSION(major, minor)`.
#[must_use]
pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// The oldest libfabric that is taken.
pub const OLDEST: u32 = version(1, 17);

/// The first interface in which endpoints have [`FI_OPT_CUDA_API_PERMITTED`](crate::FI_OPT_CUDA_API_PERMITTED), and in which
/// providers may reach memory of GPUs by CUDA calls unless it is taken away.
pub const CUDA_API_OPTION: u32 = version(1, 18);

/// The newest interface that is asked for: that of the headers which the structs made here are whole for. Newer libraries
/// heed it and leave later members alone.
pub const NEWEST_API: u32 = version(2, 1);

/// The loaded libfabric: the functions that it exports, by their names. It stays loaded.
///
/// # Safety
/// The functions are libfabric's own; what the manual says of each must hold.
#[derive(Debug)]
pub struct Library {
    /// What there is: a list for [`fi_freeinfo`](Self::fi_freeinfo).
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
    /// Copies one entry; for null makes an empty one, with its attributes.
    pub fi_dupinfo: unsafe extern "C" fn(info: *const fi_info) -> *mut fi_info,
    /// Opens a fabric.
    pub fi_fabric:
        unsafe extern "C" fn(attr: *mut fi_fabric_attr, fabric: *mut *mut fid_fabric, context: *mut c_void) -> c_int,
    /// The text for an error number.
    pub fi_strerror: unsafe extern "C" fn(errnum: c_int) -> *const c_char,
    /// Writes an object as text into the buffer.
    pub fi_tostr_r:
        unsafe extern "C" fn(buf: *mut c_char, len: usize, data: *const c_void, datatype: fi_type) -> *mut c_char,
    version: u32,
    path: PathBuf,
}

impl Library {
    /// Its version, as [`version`] writes it.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The interface to ask `fi_getinfo` for: providers keep their behaviour for programs of that version, so it is the newest
    /// that both sides know.
    #[must_use]
    pub fn api(&self) -> u32 {
        self.version.min(NEWEST_API)
    }

    /// The file, as the loader found it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Loads one candidate; the error is the reason, in a few words.
    fn open(candidate: &OsStr) -> Result<Self, String> {
        let opened = keeping_signals(|| {
            // SAFETY: libfabric's initialisation asks nothing of the program; what else a user names is theirs to answer for.
            unsafe { Handle::open(Some(candidate), RTLD_NOW | RTLD_LOCAL) }
        });
        let raw = opened.map_err(|error| reason(candidate, &error))?.into_raw();
        // SAFETY: just opened; closed when this function fails.
        let handle = unsafe { Handle::from_raw(raw) };
        // SAFETY: takes nothing and returns a number, in every version.
        let version = unsafe {
            let fi_version: unsafe extern "C" fn() -> u32 = function(raw, c"fi_version", c"FABRIC_1.0")?;
            fi_version()
        };
        if version < OLDEST {
            return Err(format!(
                "it is libfabric {}, and {} is the oldest that will do",
                Dotted(version),
                Dotted(OLDEST)
            ));
        }
        // Symbols have versions, and by name alone the newest would be found, of an ABI that nobody here has seen. `types`
        // and `types` declare FABRIC_1.3: every libfabric from 1.9 on has it, beside newer ones whose attributes have grown at their
        // ends. What such a library returns is longer than declared; what it copies by fi_dupinfo is zero there.
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
        // Never unloaded: its objects hold pointers to its code.
        std::mem::forget(handle);
        Ok(library)
    }
}

/// Runs `load`, and afterwards gives every signal the action that it had. Libraries below libfabric (PSM of Debian 12) take
/// SIGINT, SIGTERM and others when they are loaded, and end the process on them.
fn keeping_signals<T>(load: impl FnOnce() -> T) -> T {
    let action_of = |signal| {
        // SAFETY: plain data, which may be zero.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: asks only, and the place is ours. Numbers that are no signals are refused.
        (unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) } == 0).then_some((signal, action))
    };
    let before: Vec<_> = (1..=libc::SIGRTMAX()).filter_map(action_of).collect();
    let loaded = load();
    for (signal, action) in before {
        // SAFETY: the action was the process's own a moment ago. SIGKILL and SIGSTOP are refused, and never change.
        unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    }
    loaded
}

/// The address of a symbol of this version. A library that was built without versions has its one ABI under every version.
fn symbol(handle: *mut c_void, name: &CStr, version: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the handle is open, the names are C strings.
    #[cfg(target_env = "gnu")]
    let address = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
    // SAFETY: as above. Without glibc there are no versions to choose from, and the one ABI is the library's newest. That does
    // too: structs of libfabric's are made by libfabric alone, and read only as far as all versions agree.
    #[cfg(not(target_env = "gnu"))]
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() {
        return Err(format!("it has no {}@{}", name.to_string_lossy(), version.to_string_lossy()));
    }
    Ok(address)
}

/// A function of the library.
///
/// # Safety
/// `T` is the type of a function pointer, and that of this function.
unsafe fn function<T: Copy>(handle: *mut c_void, name: &CStr, version: &CStr) -> Result<T, String> {
    const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
    let address = symbol(handle, name, version)?;
    // SAFETY: a function pointer and an address have the same size and form; the caller vouches for the type.
    Ok(unsafe { std::mem::transmute_copy(&address) })
}

/// The file that an address is loaded from.
fn path_of(address: *mut c_void) -> Option<PathBuf> {
    // SAFETY: plain data, which may be zero.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr takes any address; the name it gives lives as long as the library is loaded.
    let known = unsafe { libc::dladdr(address, &mut info) } != 0 && !info.dli_fname.is_null();
    // SAFETY: not null, a C string of the loader.
    known.then(|| OsStr::from_bytes(unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes()).into())
}

/// The loader's words, without the file's name in front.
fn reason(candidate: &OsStr, error: &libloading::Error) -> String {
    let text = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    let name = candidate.to_string_lossy();
    text.strip_prefix(&*name).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&text).to_owned()
}

/// Writes a version, of the library or of a provider, as `1.17`.
#[derive(Clone, Copy, Debug)]
pub struct Dotted(pub u32);

impl fmt::Display for Dotted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> 16, self.0 & 0xffff)
    }
}

/// No libfabric could be loaded: what was tried, and what came of it. One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFound {
    asked: bool,
    tried: Vec<(OsString, String)>,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// What the loader says of a file that is not there.
        const ABSENT: &str = "cannot open shared object file: No such file or directory";
        if let [(file, why)] = &self.tried[..]
            && self.asked
        {
            return write!(f, "no libfabric: {VARIABLE}={} cannot be used: {why}", file.to_string_lossy());
        }
        f.write_str("libfabric was not found; looked for ")?;
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

/// Loads the first candidate that will do. The only place where libfabric is loaded.
fn load(asked: Option<OsString>) -> Result<Library, NotFound> {
    let candidates = match &asked {
        Some(file) => vec![file.clone()],
        None => USUAL.map(OsString::from).to_vec(),
    };
    let mut tried = Vec::new();
    for candidate in candidates {
        match Library::open(&candidate) {
            Ok(library) => return Ok(library),
            Err(why) => tried.push((candidate, why)),
        }
    }
    Err(NotFound { asked: asked.is_some(), tried })
}

static LOADED: OnceLock<Result<Library, NotFound>> = OnceLock::new();

/// Whether [`library`] was called: what is loaded from now on with global scope comes too late to be found before libfabric's
/// own dependencies.
#[must_use]
pub fn is_settled() -> bool {
    LOADED.get().is_some()
}

/// The libfabric of this process, loaded by the first call.
pub fn library() -> Result<&'static Library, &'static NotFound> {
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
    fn a_file_that_is_named_is_the_only_one_that_is_tried() {
        let text = refused("/nonexistent/libfabric.so");
        let expected = "no libfabric: GINLAB_LIBFABRIC=/nonexistent/libfabric.so cannot be used: cannot open shared object \
                        file: No such file or directory";
        assert_eq!(text, expected);
        assert_eq!(refused("/").lines().count(), 1);
    }

    #[test]
    fn without_any_all_places_are_named_and_the_reasons_that_tell_something() {
        let absent = "cannot open shared object file: No such file or directory";
        let why = ["libefa.so.1: cannot open shared object file: No such file or directory", absent, absent, absent];
        let tried = USUAL.iter().zip(why).map(|(file, why)| ((*file).into(), why.into())).collect();
        let text = NotFound { asked: false, tried }.to_string();
        assert!(text.starts_with("libfabric was not found; looked for libfabric.so.1 (libefa.so.1: cannot"), "{text}");
        assert!(text.ends_with(
            "directory), /opt/amazon/efa/lib/libfabric.so.1, /opt/amazon/efa/lib64/libfabric.so.1, libfabric.so"
        ));
    }

    /// A shared object with these contents.
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
    fn an_older_library_and_what_is_no_libfabric_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let Some(file) = built(folder.path(), "unsigned fi_version(void) { return 1 << 16 | 16; }") else { return };
        let text = refused(&file);
        assert!(text.ends_with("cannot be used: it is libfabric 1.16, and 1.17 is the oldest that will do"), "{text}");
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
            // SAFETY: plain data, which may be zero.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: asks only, and the place is ours.
            assert_eq!(unsafe { libc::sigaction(libc::SIGUSR2, std::ptr::null(), &mut action) }, 0);
            action.sa_sigaction
        };
        let folder = tempfile::tempdir().unwrap();
        let source = "#include <signal.h>\n__attribute__((constructor)) void take(void) { signal(SIGUSR2, SIG_IGN); }";
        let Some(file) = built(folder.path(), source) else { return };
        // Whoever started this process may have it ignored, as perf has.
        // SAFETY: no handler of ours.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_DFL) };
        assert_eq!(of_sigusr2(), libc::SIG_DFL);
        assert!(refused(&file).ends_with("it has no fi_version@FABRIC_1.0"), "{}", refused(&file));
        assert_eq!(of_sigusr2(), libc::SIG_DFL);
    }

    #[test]
    fn what_is_loaded_tells_its_version_and_its_file() {
        let Ok(library) = library() else { return eprintln!("skipped: no libfabric") };
        assert!(library.version() >= OLDEST && library.api() <= NEWEST_API.min(library.version()));
        assert!(library.path().is_file(), "{:?}", library.path());
        // SAFETY: takes a number, returns a C string.
        let text = unsafe { CStr::from_ptr((library.fi_strerror)(crate::FI_EAVAIL)) };
        assert_eq!(text.to_str(), Ok("Error available"));
    }
}
