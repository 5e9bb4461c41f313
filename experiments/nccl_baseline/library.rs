//! NCCL's functions, loaded at run time, so that ginlab does not link NCCL and can report that it is missing.

use libloading::Library;
use std::env;
use std::ffi::{CStr, OsString, c_char, c_int, c_void};

/// Environment variable that names the library. If set, the default names are not tried.
const VARIABLE: &str = "GINLAB_NCCL";
/// Names of the installed library. Runtime packages contain only the first.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// `ncclUniqueId`, which ranks use to find each other. C functions take it by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId(pub [c_char; 128]);

pub(super) type Comm = *mut c_void;
pub(super) type CudaStream = *mut c_void;
type Answer = c_int;
/// Function with two buffers, a count, a type, a communicator and a stream.
pub(super) type OneWay = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, CudaStream) -> Answer;
type Reducing = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CudaStream) -> Answer;
type PointToPoint = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Comm, CudaStream) -> Answer;

/// Functions for memory that NCCL transfers from and to directly. Available from NCCL 2.27.
pub(super) struct WindowFunctions {
    /// `ncclMemAlloc`
    pub allocate: unsafe extern "C" fn(*mut *mut c_void, usize) -> Answer,
    /// `ncclMemFree`
    pub free: unsafe extern "C" fn(*mut c_void) -> Answer,
    /// `ncclCommWindowRegister`: a collective call with memory, its size, the window, and flags.
    pub register: unsafe extern "C" fn(Comm, *mut c_void, usize, *mut *mut c_void, c_int) -> Answer,
    /// `ncclCommWindowDeregister`
    pub deregister: unsafe extern "C" fn(Comm, *mut c_void) -> Answer,
}

impl WindowFunctions {
    /// Returns `None` if the library has not all of them.
    ///
    /// # Safety
    /// The requirements are those of [`Functions::find`].
    unsafe fn find(library: &Library) -> Option<WindowFunctions> {
        // SAFETY: the caller guarantees that the library is NCCL, so that the symbols have these types.
        unsafe {
            Some(WindowFunctions {
                allocate: *library.get(b"ncclMemAlloc\0").ok()?,
                free: *library.get(b"ncclMemFree\0").ok()?,
                register: *library.get(b"ncclCommWindowRegister\0").ok()?,
                deregister: *library.get(b"ncclCommWindowDeregister\0").ok()?,
            })
        }
    }
}

/// Declares each function once, for both the table and the code that fills it.
macro_rules! functions {
    ($($name:ident = $symbol:literal: $type:ty,)*) => {
        /// NCCL's functions.
        pub(super) struct Functions {
            $(pub $name: $type,)*
            /// Available from NCCL 2.28.
            pub all_to_all: Option<OneWay>,
            pub windows: Option<WindowFunctions>,
            /// Available from NCCL 2.13.
            last_error: Option<unsafe extern "C" fn(Comm) -> *const c_char>,
        }

        impl Functions {
            /// # Safety
            /// `library` must be NCCL, whose functions have had these types since version 2.7, and must never be
            /// unloaded.
            unsafe fn find(library: &Library) -> Result<Functions, String> {
                // SAFETY: the caller guarantees that the library is NCCL, so that the symbols have these types.
                unsafe {
                    Ok(Functions {
                        $($name: *library.get::<$type>($symbol.to_bytes_with_nul()).map_err(|error| error.to_string())?,)*
                        all_to_all: library.get(b"ncclAlltoAll\0").ok().map(|symbol| *symbol),
                        windows: WindowFunctions::find(library),
                        last_error: library.get(b"ncclGetLastError\0").ok().map(|symbol| *symbol),
                    })
                }
            }
        }
    };
}

functions! {
    version = c"ncclGetVersion": unsafe extern "C" fn(*mut c_int) -> Answer,
    unique_id = c"ncclGetUniqueId": unsafe extern "C" fn(*mut UniqueId) -> Answer,
    init_rank = c"ncclCommInitRank": unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> Answer,
    destroy = c"ncclCommDestroy": unsafe extern "C" fn(Comm) -> Answer,
    abort = c"ncclCommAbort": unsafe extern "C" fn(Comm) -> Answer,
    async_error = c"ncclCommGetAsyncError": unsafe extern "C" fn(Comm, *mut c_int) -> Answer,
    error_string = c"ncclGetErrorString": unsafe extern "C" fn(Answer) -> *const c_char,
    group_start = c"ncclGroupStart": unsafe extern "C" fn() -> Answer,
    group_end = c"ncclGroupEnd": unsafe extern "C" fn() -> Answer,
    all_reduce = c"ncclAllReduce": Reducing,
    all_gather = c"ncclAllGather": OneWay,
    reduce_scatter = c"ncclReduceScatter": Reducing,
    // The number after the type is the root.
    broadcast = c"ncclBroadcast": Reducing,
    send = c"ncclSend": PointToPoint,
    receive = c"ncclRecv": PointToPoint,
}

impl Functions {
    /// Loads NCCL. The library stays loaded, because its threads may outlive the caller.
    pub fn load() -> Result<&'static Functions, String> {
        let chosen = env::var_os(VARIABLE).filter(|name| !name.is_empty());
        Functions::load_first(&chosen.map_or_else(|| NAMES.map(OsString::from).to_vec(), |name| vec![name]))
    }

    /// Loads the first of the libraries `names` that can be loaded.
    pub fn load_first(names: &[OsString]) -> Result<&'static Functions, String> {
        let mut reasons = Vec::new();
        for name in names {
            // SAFETY: the library is NCCL, or one that the user has named as such. Its initializers are trusted.
            match unsafe { Library::new(name) } {
                Ok(library) => {
                    let library: &'static Library = Box::leak(Box::new(library));
                    // SAFETY: the library was loaded as NCCL and is leaked, so that it is never unloaded.
                    let found = unsafe { Functions::find(library) };
                    return found
                        .map(|functions| &*Box::leak(Box::new(functions)))
                        .map_err(|error| format!("{} is not a supported NCCL: {error}", name.to_string_lossy()));
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(format!("no NCCL found ({}); set {VARIABLE} to its path", reasons.join("; ")))
    }

    /// Converts an error code to an error with NCCL's message.
    pub fn check(&self, call: &str, answer: Answer) -> Result<(), String> {
        if answer == 0 {
            return Ok(());
        }
        // SAFETY: NCCL returns a static string for every number.
        let text = unsafe { words((self.error_string)(answer)) };
        // SAFETY: with a null communicator, NCCL returns the last error of this thread, as null or a C string.
        let last = self.last_error.map(|last| unsafe { words(last(std::ptr::null_mut())) }).unwrap_or_default();
        let last = last.trim();
        Err(format!("{call}: {text}{}{last}", if last.is_empty() { "" } else { ": " }))
    }
}

/// # Safety
/// `text` must be null or point to a C string.
unsafe fn words(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller guarantees that `text` is a C string, and it is not null.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
