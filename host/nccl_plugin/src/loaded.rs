//! NCCL libraries of this process, for the summary of `ginlab nccl`. A program may load a different NCCL than the
//! command has found, for example because of an RPATH.

use crate::abi::Logger;
use crate::process::{locked, say};
use serde::Serialize;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Variables with which launchers number their ranks, in the order in which they are read.
const RANKS: [&str; 4] = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];

/// Path of the NCCL that has opened the plugin in this process.
static OPENER: Mutex<Option<String>> = Mutex::new(None);

/// An NCCL library of this process.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct NcclLibrary {
    path: String,
    /// Version as returned by `ncclGetVersion`; 0 if the library does not have the function.
    version: c_int,
}

/// Contents of the file of one process.
#[derive(Serialize)]
struct Loaded {
    rank: String,
    libraries: Vec<NcclLibrary>,
    opener: Option<String>,
}

/// Returns the paths of NCCL's libraries in the text of `/proc/self/maps`, each once.
fn paths(maps: &str) -> Vec<&str> {
    let mut found: Vec<&str> = Vec::new();
    for line in maps.lines() {
        let Some(path) = line.find('/').map(|at| &line[at..]) else { continue };
        let is_nccl = path.rsplit('/').next().is_some_and(|name| name.starts_with("libnccl.so"));
        if is_nccl && !found.contains(&path) {
            found.push(path);
        }
    }
    found
}

/// Returns the version of a library that is loaded, or 0.
fn version(path: &str) -> c_int {
    let Ok(path) = CString::new(path) else { return 0 };
    let mut version = 0;
    // SAFETY: opening a library that is already loaded runs no code. The type is NCCL's declaration of the function,
    // which only writes a number and requires no initialization. The library stays loaded until `dlclose` below.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return 0;
        }
        let function = libc::dlsym(library, c"ncclGetVersion".as_ptr());
        if !function.is_null() {
            let get = std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(function);
            get(&mut version);
        }
        libc::dlclose(library);
    }
    version
}

/// Returns the path of the library that contains the function `log`.
fn library_of(log: Logger) -> Option<String> {
    let address = log? as *const c_void;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` is a local variable to write to. If the call succeeds, `dli_fname` is null or a string of the
    // loader. The string is valid while the library that contains the function is loaded, which is the case because
    // that library is calling this plugin.
    unsafe {
        if libc::dladdr(address, info.as_mut_ptr()) == 0 {
            return None;
        }
        let name: *const c_char = (*info.as_ptr()).dli_fname;
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
    }
}

/// Records that the library that contains `log` has opened the plugin.
pub fn opened(log: Logger) {
    let Some(path) = library_of(log) else { return };
    // Maps show a path without symbolic links.
    let path = std::fs::canonicalize(&path).map_or(path, |path| path.to_string_lossy().into_owned());
    *locked(&OPENER) = Some(path);
    report();
}

/// Directory of the records, if records are requested.
fn folder() -> Option<PathBuf> {
    crate::testing::variable(crate::settings::RECORDS).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// Writes the libraries of this process, if records are requested and the process is a rank or has opened the plugin.
pub fn report() {
    let Some(folder) = folder() else { return };
    let opener = locked(&OPENER).clone();
    let number = RANKS.iter().find_map(|name| std::env::var(name).ok());
    if number.is_none() && opener.is_none() {
        return;
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let libraries: Vec<NcclLibrary> =
        paths(&maps).into_iter().map(|path| NcclLibrary { path: path.to_owned(), version: version(path) }).collect();
    if libraries.is_empty() {
        return;
    }
    let rank = number.unwrap_or_else(|| format!("process {}", std::process::id()));
    if let Err(why) = save(&folder, &Loaded { rank, libraries, opener }) {
        say(&format!("{}: {why}", folder.display()));
    }
}

fn save(folder: &Path, loaded: &Loaded) -> Result<(), String> {
    let text = serde_json::to_vec(loaded).map_err(|error| error.to_string())?;
    std::fs::write(folder.join(format!("{}.loaded", std::process::id())), text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_is_found_in_maps_once() {
        let maps = "7f0-7f1 r--p 0 08:01 5    /a b/lib/libnccl.so.2\n7f1-7f2 r-xp 0 08:01 5    /a b/lib/libnccl.so.2\n\
                    7f3-7f4 r--p 0 00:00 0 \n7f4-7f5 r--p 0 08:01 6  /lib/libnccl_ginlab.so\n\
                    7f6-7f7 r--p 0 08:01 7  /x/libnccl.so.2.28.9\n";
        assert_eq!(paths(maps), ["/a b/lib/libnccl.so.2", "/x/libnccl.so.2.28.9"]);
    }

    #[test]
    fn version_of_absent_library_is_zero() {
        assert_eq!(version("/nowhere/libnccl.so.2"), 0);
        assert_eq!(version("libc.so.6"), 0);
    }
}
