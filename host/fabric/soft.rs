//! Software NICs under libfabric's own EFA provider: `-p soft-efa:p5`.
//!
//! [`load`] loads crates/soft_efa into the process, with global scope and before libfabric, so that the EFA provider
//! resolves its functions instead of those of libibverbs. If the executable is linked with a library that depends on
//! libibverbs (such as Open MPI 5), those functions precede all that are loaded later. The command then executes itself
//! again with the software NICs preloaded.
//!
//! Afterwards, `efa` has only these NICs, and all output of a run names them by [`label`]: `efa/soft:p5`. Verbs rails
//! can use the same NICs: `-p efa-verbs/soft:p5`.

use super::FabricError;
use super::model::Profile;
use card_model::MachineSpec;
use libfabric_sys as sys;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use std::ffi::{CStr, OsStr, OsString, c_char};
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// Prefix of provider names that request software NICs, such as `soft-efa`, `soft-efa:p5` and `soft-efa:fast,seed=7`.
pub const PREFIX: &str = "soft-efa";
/// Prefix of the provider name in results of a run with software NICs.
const LABEL: &str = "efa/soft:";
/// Prefix of provider names that request software NICs for verbs rails.
const VERBS: &str = "efa-verbs/soft";
/// Default profile.
const PROFILE: &str = "p5";
/// Profile of NICs that are as fast as the machine.
const FAST: &str = "fast";
/// Profiles whose NICs have completion counters. aws-ofi-nccl 1.21 enables them for p5en, p6-b200 and p6-b300, and for
/// no older instance.
const COUNT: [&str; 2] = ["p5en", "p6-b200"];
/// Variable that names a file to load instead of the one next to the executable.
const VARIABLE: &str = "GINLAB_SOFT_EFA";
/// Variable that marks a command that was executed again with the software NICs preloaded.
const STARTED_AGAIN: &str = "GINLAB_SOFT_EFA_PRELOADED";
/// Variable that describes the NICs to the library.
const SPEC: &str = "SOFT_EFA";
/// Variable that, set to 0, prevents the EFA provider from using shared memory instead of the NICs between ranks of one
/// machine.
const SHARED_MEMORY: &str = "FI_EFA_ENABLE_SHM_TRANSFER";

/// Name of a function that only this library has.
const MARK: &[u8] = b"soft_efa_move_bytes";
/// Name of the function that returns the time for which the NICs have waited for this machine.
const BEHIND: &[u8] = b"soft_efa_behind";
/// Name of the function that returns the first cause of a failure in the library.
const CAUSE: &[u8] = b"soft_efa_cause";
const FILE: &str = "libsoft_efa.so";

static LOADED: OnceLock<Loaded> = OnceLock::new();

struct Loaded {
    label: String,
    spec: MachineSpec,
}

/// Returns whether a provider's name requests software NICs, or is the provider name in results of a run with them.
#[must_use]
pub fn is_asked(provider: &str) -> bool {
    description(provider).is_some()
}

/// Returns the provider name in results of a run with the software NICs that a provider's name requests, such as
/// `efa/soft:p5`. `None` if the name requests none.
#[must_use]
pub fn label_of(provider: &str) -> Option<String> {
    provider
        .strip_prefix(VERBS)
        .map(|rest| format!("efa/soft{rest}"))
        .or_else(|| is_asked(provider).then(|| provider.to_owned()))
}

/// Returns the text after `soft-efa:` or `efa/soft:`, empty if there is none. `None` if the name does not request
/// software NICs.
fn description(provider: &str) -> Option<&str> {
    if let Some(rest) = provider.strip_prefix(VERBS) {
        let is_whole = rest.is_empty() || rest.starts_with([':', ',']);
        return is_whole.then(|| rest.trim_start_matches([':', ',']));
    }
    let plain = || provider.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(':').or(Some(rest)));
    let word = provider.strip_prefix(LABEL).or_else(plain)?;
    (provider.starts_with(LABEL)
        || provider[PREFIX.len()..].is_empty()
        || provider[PREFIX.len()..].starts_with([':', ',']))
    .then_some(word.trim_start_matches(','))
}

fn mistake(provider: &str, text: impl std::fmt::Display) -> FabricError {
    super::mistake(provider, "loading software NICs", text.to_string())
}

/// Parses the description of NICs in a provider's name: a profile, then options of [`MachineSpec`], separated by
/// commas.
///
/// # Errors
/// Returns a one-line description of an invalid name.
pub fn spec(provider: &str) -> Result<MachineSpec, FabricError> {
    let description = description(provider).ok_or_else(|| mistake(provider, "software NICs were not requested"))?;
    // A label can contain `/unmoved`, which means that no bytes are moved.
    let words = description.replace("/unmoved", ",unmoved");
    let (first, rest) = words.split_once(',').unwrap_or((&words, ""));
    let is_word = first.contains('=') || ["unmoved", "no-write", "no-counters", "trace"].contains(&first);
    let (name, rest) = if first.is_empty() || is_word { (PROFILE, words.as_str()) } else { (first, rest) };
    let mut spec = MachineSpec { name: name.to_owned(), ..MachineSpec::default() };
    if name != FAST {
        let all = Profile::all().map_err(|text| mistake(provider, text))?;
        let profile = all.get(name).ok_or_else(|| {
            let names = all.keys().map(|name| format!("{PREFIX}:{name}")).collect::<Vec<_>>().join(", ");
            mistake(provider, format!("unknown profile {name:?}: expected one of {names}, {PREFIX}:{FAST}"))
        })?;
        spec.figures = Some(profile.into());
        spec.depth = profile.queue_depth.value as u32;
        spec.writes = profile.rdma_write.value > 0.0;
        spec.counters = COUNT.contains(&name);
        // The latencies determine the order.
        spec.reorder = 0;
    }
    spec.add(rest).map_err(|error| mistake(provider, error))?;
    Ok(spec)
}

/// Loads the software NICs that a provider's name describes. Must be called first, while the process has one thread and
/// libfabric is not loaded.
///
/// # Errors
/// Returns an error if the description is invalid or the library cannot be loaded.
pub fn load(provider: &str) -> Result<(), FabricError> {
    let spec = spec(provider)?;
    if let Some(loaded) = LOADED.get() {
        let same = loaded.spec == spec;
        return if same { Ok(()) } else { Err(mistake(provider, format!("this process has {}", loaded.label))) };
    }
    if sys::is_settled() {
        return Err(mistake(
            provider,
            "libfabric is already loaded, and has found this machine's own EFA devices or none",
        ));
    }
    let fail = |error: &dyn std::fmt::Display| mistake(provider, format!("loading crates/soft_efa: {error}"));
    let find = |library: &Library, name: &[u8]| {
        // SAFETY: the symbol is only looked up and never called.
        unsafe { library.get::<unsafe extern "C" fn()>(name) }.map(|_| ())
    };
    let this = Library::this();
    let preloaded = find(&this, MARK).is_ok();
    if !preloaded && find(&this, b"ibv_get_device_list").is_ok() {
        return Err(fail(&start_again(provider)?));
    }
    // SAFETY: the process has one thread, as the documentation requires, so no other thread reads the environment.
    unsafe {
        std::env::set_var(SPEC, spec.to_string());
        set_default(SHARED_MEMORY, "0");
    }
    if !preloaded {
        let file = file().map_err(|error| fail(&error))?;
        // SAFETY: the library's initializers do nothing. The user is responsible for a library named by
        // `GINLAB_SOFT_EFA`.
        let library = unsafe { Library::open(Some(&file), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| fail(&error))?;
        let found = find(&library, MARK);
        // The library is never unloaded: libfabric keeps pointers to its functions.
        std::mem::forget(library);
        found.map_err(|error| fail(&error))?;
    }
    let unmoved = if spec.moves { "" } else { "/unmoved" };
    let loaded = Loaded { label: format!("{LABEL}{}{unmoved}", spec.name), spec };
    let _ = LOADED.set(loaded);
    if let Some(cause) = cause_of_library() {
        ginlab_base::crash_handler::blame(cause);
    }
    Ok(())
}

/// Returns the library's function that returns the first cause. `None` if this build of the library has none.
fn cause_of_library() -> Option<extern "C" fn() -> *const c_char> {
    // SAFETY: the library defines this symbol with this type, and it stays loaded.
    unsafe { Library::this().get::<extern "C" fn() -> *const c_char>(CAUSE) }.ok().map(|cause| *cause)
}

/// Returns the first cause of a failure under the software NICs, and its remedy. The cause is a system setting that
/// forbids an operation that they need. Errors that the provider reports later are consequences.
pub(super) fn first_cause() -> Option<(String, String)> {
    LOADED.get()?;
    let text = cause_of_library()?();
    if text.is_null() {
        return None;
    }
    // SAFETY: the pointer refers to a C string that the library never frees.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let (cause, remedy) = text.split_once("; ").unwrap_or((&text, ""));
    Some((cause.to_owned(), remedy.to_owned()))
}

/// Like [`load`], for a library in a foreign process, which may have threads and libibverbs. The software NICs must
/// have been preloaded and described ([`environment`]).
///
/// # Errors
/// Returns an error if they were not.
pub fn load_preloaded(provider: &str) -> Result<(), FabricError> {
    let spec = spec(provider)?;
    let text = spec.to_string();
    // SAFETY: the symbol is only looked up and never called.
    let there = unsafe { Library::this().get::<unsafe extern "C" fn()>(MARK) }.is_ok();
    if !there || std::env::var_os(SPEC).is_none_or(|said| said != OsStr::new(&text)) {
        let how = format!("software NICs must be loaded before the program; run ginlab nccl -p {provider} -- PROGRAM");
        return Err(mistake(provider, how));
    }
    let unmoved = if spec.moves { "" } else { "/unmoved" };
    let _ = LOADED.set(Loaded { label: format!("{LABEL}{}{unmoved}", spec.name), spec });
    // After this call the library does not report the cause, and its caller must do so.
    first_cause();
    Ok(())
}

/// Executes this command again with the software NICs preloaded and with the same arguments, including those of a
/// loader that runs it. Returns the error that prevented this.
fn start_again(provider: &str) -> Result<std::io::Error, FabricError> {
    let words = || -> std::io::Result<(PathBuf, Vec<OsString>)> {
        let words = std::fs::read("/proc/self/cmdline")?;
        let words = words.strip_suffix(&[0]).unwrap_or(&words).split(|byte| *byte == 0);
        Ok((std::fs::read_link("/proc/self/exe")?, words.map(|word| OsStr::from_bytes(word).to_owned()).collect()))
    };
    let (program, words) = words().map_err(|error| mistake(provider, error))?;
    let variables = environment(provider)?;
    if std::env::var_os(STARTED_AGAIN).is_some() {
        return Err(mistake(
            provider,
            "this process has libibverbs, but the loader does not preload the software NICs before it (LD_PRELOAD)",
        ));
    }
    let mut command = Command::new(program);
    if let Some((first, rest)) = words.split_first() {
        command.arg0(first).args(rest);
    }
    Ok(command.envs(variables).env(STARTED_AGAIN, "1").exec())
}

/// Makes the EFA provider use the NICs also between ranks of one machine, unless the user has chosen otherwise. A
/// result of `efa` must be a result of the NICs. libfabric reads the setting when it is loaded.
///
/// # Safety
/// The process must have only one thread.
pub unsafe fn use_cards_within_a_machine() {
    // SAFETY: the caller guarantees that the process has only one thread.
    unsafe { set_default(SHARED_MEMORY, "0") }
}

/// Sets a variable that is not set.
///
/// # Safety
/// The process must have only one thread.
unsafe fn set_default(name: &str, value: &str) {
    if std::env::var_os(name).is_none() {
        // SAFETY: the caller guarantees that the process has only one thread.
        unsafe { std::env::set_var(name, value) };
    }
}

/// Returns the file of the library.
fn file() -> std::io::Result<OsString> {
    beside_program(FILE, VARIABLE)
}

/// Returns the path of a shared object of ginlab: the file named by `variable`, or the file next to the executable,
/// where `cargo build` and `make dist` install it. In a test run it is in cargo's directory `deps`, which also contains
/// the tests; examples are in a sibling directory.
///
/// # Errors
/// Returns an error if there is no such file.
pub fn beside_program(name: &str, variable: &str) -> std::io::Result<OsString> {
    if let Some(file) = std::env::var_os(variable).filter(|file| !file.is_empty()) {
        return Ok(file);
    }
    let program = this_program()?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    // Searches cargo's directory first: `cargo test` does not update an older file next to the executable.
    let places = [folder.join("deps"), folder.to_path_buf(), folder.join("../deps"), folder.join("..")];
    let found = places.iter().map(|place| place.join(name)).find(|file| file.is_file());
    found.map(PathBuf::into_os_string).ok_or_else(|| {
        std::io::Error::other(format!(
            "no {name} in {}; copy it with the program (`cargo build --release` builds both), or set {variable} to its \
             path",
            folder.display()
        ))
    })
}

/// Returns the executable that contains this code. If a loader runs it, `/proc/self/exe` names the loader.
fn this_program() -> std::io::Result<PathBuf> {
    let here = this_program as fn() -> std::io::Result<PathBuf> as usize;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let of_line = |line: &str| {
        let (range, _) = line.split_once(' ')?;
        let (first, end) = range.split_once('-')?;
        let range = usize::from_str_radix(first, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        // The path is the last field, after addresses, permissions, offset, device and inode.
        let path = &line[line.find('/')?..];
        range.contains(&here).then(|| PathBuf::from(path))
    };
    maps.lines().find_map(of_line).map_or_else(std::env::current_exe, Ok)
}

/// Returns a form of the file name that `LD_PRELOAD` accepts, where names end at a space or a colon. A file with such a
/// name is named by the number of an open descriptor that the new process inherits.
fn preloadable(file: OsString) -> std::io::Result<OsString> {
    if !file.as_bytes().iter().any(|byte| b" :".contains(byte)) {
        return Ok(file);
    }
    let open = std::fs::File::open(file)?;
    fcntl(&open, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(format!("/proc/self/fd/{}", open.into_raw_fd()).into())
}

/// Returns the provider name in results of this run if it has software NICs: `efa/soft:p5`.
#[must_use]
pub fn label() -> Option<&'static str> {
    LOADED.get().map(|loaded| loaded.label.as_str())
}

/// Returns the longest time for which a software NIC has waited for this machine although a real NIC would not have
/// waited. It waits for polls of this process, and for bytes that could not be moved fast enough. `None` without
/// software NICs, and for profiles without timing.
#[must_use]
pub fn behind() -> Option<Duration> {
    LOADED.get().filter(|loaded| loaded.spec.figures.is_some())?;
    // SAFETY: the library defines this symbol with this type, and it stays loaded.
    let behind = unsafe { Library::this().get::<unsafe extern "C" fn() -> u64>(BEHIND) }.ok()?;
    // SAFETY: the function only reads numbers.
    Some(Duration::from_nanos(unsafe { behind() }))
}

/// Returns the environment variables by which another executable finds the software NICs that a provider's name
/// describes.
///
/// # Errors
/// Returns an error if the description is invalid or the library cannot be found.
pub fn environment(provider: &str) -> Result<Vec<(String, OsString)>, FabricError> {
    let spec = spec(provider)?;
    let file = file().and_then(preloadable).map_err(|error| mistake(provider, error))?;
    let preload = match std::env::var_os("LD_PRELOAD") {
        Some(before) if !before.is_empty() => [file, OsString::from(":"), before].into_iter().collect(),
        _ => file,
    };
    let mut variables = vec![(SPEC.to_owned(), spec.to_string().into()), ("LD_PRELOAD".to_owned(), preload)];
    if std::env::var_os(SHARED_MEMORY).is_none() {
        variables.push((SHARED_MEMORY.to_owned(), "0".into()));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

    use super::*;

    #[test]
    fn names_describe_cards() {
        let p5 = spec("soft-efa").unwrap();
        assert_eq!((p5.name.as_str(), p5.cards, p5.writes, p5.reorder), ("p5", 4, true, 0));
        assert_eq!(p5.figures.unwrap().line_rate_gbps, 100.0);
        assert_eq!(spec("soft-efa:p5").unwrap(), p5);
        assert_eq!(spec("efa/soft:p5").unwrap(), p5);
        assert_eq!(spec("soft-efa,seed=3").unwrap(), MachineSpec { seed: 3, ..p5.clone() });
        assert_eq!(spec("efa/soft:p5/unmoved").unwrap(), MachineSpec { moves: false, ..p5 });
        assert_eq!(spec("efa-verbs/soft:p5,seed=3").unwrap().seed, 3);
        assert_eq!(spec("efa-verbs/soft").unwrap().name, "p5");
        assert!(!spec("soft-efa:p4d").unwrap().writes);
        let counts = |name: &str| spec(&format!("soft-efa:{name}")).unwrap().counters;
        assert_eq!(
            ["p4d", "p5", "p5en", "p6-b200", "fast", "fast,no-counters"].map(counts),
            [false, false, true, true, true, false]
        );
        assert_eq!(spec("soft-efa:fast").unwrap(), MachineSpec::default());
        let fast = spec("soft-efa:fast,cards=32,reorder=9").unwrap();
        assert_eq!((fast.cards, fast.reorder, fast.figures), (32, 9, None));
        for other in ["efa", "soft-efax", "tcp", "model:p5", "efa-verbs", "efa-verbs/softer"] {
            assert!(!is_asked(other), "{other}");
        }
    }

    #[test]
    fn invalid_providers_are_rejected_with_valid_ones() {
        let said = |name: &str| spec(name).unwrap_err().to_string();
        assert!(said("soft-efa:p3").contains("expected one of soft-efa:p4d, soft-efa:p5, "), "{}", said("soft-efa:p3"));
        assert!(said("soft-efa:p5,cards=40").contains("invalid NIC option \"cards=40\": expected one of cards=1..32"));
        assert_eq!(said("soft-efa:p5,x").lines().count(), 1);
    }
}
