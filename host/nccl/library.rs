//! NCCL's functions, found at run time: nothing is linked, and who has no NCCL is told so.

use libloading::Library;
use std::env;
use std::ffi::{CStr, OsString, c_char, c_int, c_void};

/// Names the library, before the names that the loader knows.
pub const VARIABLE: &str = "GINLAB_NCCL";
/// The names under which it is installed: packages for use have the first alone.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// How ranks find each other, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId(pub [c_char; 128]);

pub(super) type Comm = *mut c_void;
pub(super) type CudaStream = *mut c_void;
type Answer = c_int;
/// Two buffers, a count, a type, and what else there is.
pub(super) type OneWay = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, CudaStream) -> Answer;
type Reducing = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CudaStream) -> Answer;
type PointToPoint = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Comm, CudaStream) -> Answer;

/// Declares the functions once: the table, and how it is filled.
macro_rules! functions {
    ($($name:ident = $symbol:literal: $type:ty,)*) => {
        /// NCCL's functions.
        pub(super) struct Functions {
            $(pub $name: $type,)*
            /// From 2.28 on.
            pub all_to_all: Option<OneWay>,
            /// From 2.13 on.
            last_error: Option<unsafe extern "C" fn(Comm) -> *const c_char>,
        }

        impl Functions {
            /// # Safety
            /// The library is NCCL, whose functions have had these types since 2.7; it is never unloaded.
            unsafe fn find(library: &Library) -> Result<Functions, String> {
                // SAFETY: the caller's contract.
                unsafe {
                    Ok(Functions {
                        $($name: *library.get::<$type>($symbol.to_bytes_with_nul()).map_err(|error| error.to_string())?,)*
                        all_to_all: library.get(b"ncclAlltoAll\0").ok().map(|symbol| *symbol),
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
    // The number behind the type is the root.
    broadcast = c"ncclBroadcast": Reducing,
    send = c"ncclSend": PointToPoint,
    receive = c"ncclRecv": PointToPoint,
}

impl Functions {
    /// Loads NCCL. It stays loaded: its threads may outlive whoever asked.
    pub fn load() -> Result<&'static Functions, String> {
        let chosen = env::var_os(VARIABLE).filter(|name| !name.is_empty());
        let names = chosen.map_or_else(|| NAMES.map(OsString::from).to_vec(), |name| vec![name]);
        let mut reasons = Vec::new();
        for name in &names {
            // SAFETY: the name is NCCL's, or the user's word for it; what it does when it is loaded is its own.
            match unsafe { Library::new(name) } {
                Ok(library) => {
                    let library: &'static Library = Box::leak(Box::new(library));
                    // SAFETY: as above.
                    let found = unsafe { Functions::find(library) };
                    return found
                        .map(|functions| &*Box::leak(Box::new(functions)))
                        .map_err(|error| format!("{} is no NCCL that ginlab knows: {error}", name.to_string_lossy()));
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(format!("no NCCL here ({}); {VARIABLE} may name one", reasons.join("; ")))
    }

    /// An answer as an error, with NCCL's own words.
    pub fn check(&self, call: &str, answer: Answer) -> Result<(), String> {
        if answer == 0 {
            return Ok(());
        }
        // SAFETY: any number has a text, which is static.
        let text = unsafe { words((self.error_string)(answer)) };
        // SAFETY: without a communicator it says what this thread met last.
        let last = self.last_error.map(|last| unsafe { words(last(std::ptr::null_mut())) }).unwrap_or_default();
        let last = last.trim();
        Err(format!("{call}: {text}{}{last}", if last.is_empty() { "" } else { ": " }))
    }
}

/// # Safety
/// Null, or a text that ends with a zero.
unsafe fn words(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
