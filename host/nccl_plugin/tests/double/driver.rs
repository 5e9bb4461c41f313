//! Opening a communicator with a CUDA driver whose calls fail: all resources are released. The driver is
//! tests/cuda_double.c.

use crate::again::{alone, is_alone};
use crate::rank::{NcclRank, SharedRankState};
use nccl_ginlab::abi::{NcclResult, PTR_CUDA, PTR_HOST};
use nccl_ginlab::settings::{COPIES, WORDS};
use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles the driver into `folder`. Prints a line and returns `None` if there is no C compiler.
fn build(folder: &Path) -> Option<PathBuf> {
    std::fs::create_dir_all(folder).unwrap();
    let library = folder.join("libcuda.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cuda_double.c");
    let flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-o"];
    match Command::new("cc").args(flags).args([&library, &source]).output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            eprintln!("skipped: no C compiler (cc): {error}");
            return None;
        }
    }
    Some(library)
}

/// The driver's functions for tests.
struct Driver(*mut c_void);

impl Driver {
    /// Returns the driver that the plugin also loads.
    fn open() -> Driver {
        // SAFETY: the text is constant, and the library is the one that `build` created.
        let library = unsafe { libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null());
        Driver(library)
    }

    fn function(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: a library that stays loaded; the text ends with a zero.
        let function = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!function.is_null(), "{name:?}");
        function
    }

    /// Sets the number of the call that must fail, from 1. With 0, no call fails.
    fn fail(&self, call: c_int) {
        // SAFETY: its type in tests/cuda_double.c.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int)>(self.function("double_fail"))(call) };
    }

    fn calls(&self) -> c_int {
        // SAFETY: its type in tests/cuda_double.c.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(self.function("double_calls"))() }
    }

    fn left(&self) -> String {
        let function = self.function("double_left");
        // SAFETY: its type in tests/cuda_double.c; the text ends with a zero, and no other thread asks for it.
        unsafe {
            CStr::from_ptr(std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(function)())
        }
        .to_string_lossy()
        .into_owned()
    }
}

const NOTHING: &str = "streams 0 events 0 pinned 0 registered 0 device 0 wrong 0";

/// Opens a communicator of one rank, and issues puts if that succeeds.
fn open(variables: &[(&str, &str)], puts: bool) -> Result<(), NcclResult> {
    let rank = NcclRank::join(&SharedRankState::of(1), 0, variables)?;
    if !puts {
        rank.close(Vec::new());
        return Ok(());
    }
    let (mut source, target) = (rank.register(64, PTR_CUDA, 0), rank.register(64, PTR_HOST, 0));
    source.words.fill(7);
    rank.wait(rank.put((&source, 0), 64, (&target, 0), 0, None));
    rank.wait(rank.get((&target, 0), 64, (&target, 0), 0));
    assert_eq!(target.words, [7; 8]);
    rank.leave(vec![source, target]);
    Ok(())
}

/// Each driver call fails once while the communicator is opened. Pinned or registered memory, streams and events are
/// then released.
#[test]
fn failed_open_gives_everything_back() {
    let folder = std::env::temp_dir().join(format!("ginlab-cuda-double-{}", std::process::id()));
    let path = || {
        let before = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let path = std::env::join_paths(std::iter::once(folder.clone()).chain(std::env::split_paths(&before))).unwrap();
        vec![("LD_LIBRARY_PATH".to_owned(), path)] as Vec<(String, OsString)>
    };
    if !is_alone() && build(&folder).is_none() {
        return;
    }
    alone("driver::failed_open_gives_everything_back", path, || {
        let driver = Driver::open();
        for words in ["stream", "copy"] {
            let variables = [(COPIES, "engine"), (WORDS, words)];
            driver.fail(0);
            assert_eq!(open(&variables, true), Ok(()));
            assert_eq!(driver.left(), NOTHING, "no call fails");
            let mut failed = 0;
            for call in 1.. {
                driver.fail(call);
                let opened = open(&variables, false);
                assert_eq!(driver.left(), NOTHING, "call {call} fails, {words}: {opened:?}");
                failed += u32::from(opened.is_err());
                // The communicator opens and closes with fewer calls.
                if driver.calls() < call {
                    break;
                }
            }
            // Streams, marks, copies of each stream, and both zones.
            assert!(failed >= 10, "{failed} calls");
        }
    });
    let _ = std::fs::remove_dir_all(&folder);
}
