//! Cards in software below libfabric's own EFA provider: `-p soft-efa:p5`.
//!
//! [`load`] brings crates/soft_efa into the process, with global scope and before libfabric, so that the EFA provider finds its
//! functions in the place of libibverbs'. Where the command is linked with something that brings libibverbs (Open MPI 5 does), it stands
//! before all that is loaded later: there the command starts again with the cards preloaded. From then on `efa` has these cards and no others, and everything that a run says of
//! itself calls them [`label`]: `efa/soft:p5`. Rails of verbs have the same cards: `-p efa-verbs/soft:p5`.

use super::FabricError;
use super::model::Profile;
use card_model::Spec;
use libfabric_sys as sys;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use std::ffi::{OsStr, OsString};
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// How providers of this kind are asked for: `soft-efa`, `soft-efa:p5`, `soft-efa:fast,seed=7`.
pub const PREFIX: &str = "soft-efa";
/// How a run with such cards calls its provider.
const LABEL: &str = "efa/soft:";
/// How rails of verbs ask for them.
const VERBS: &str = "efa-verbs/soft";
/// The profile of a run that names none.
const PROFILE: &str = "p5";
/// Cards that are as fast as the machine.
const FAST: &str = "fast";
/// The profiles whose cards have completion counters: aws-ofi-nccl 1.21 switches them on for p5en, p6-b200 and p6-b300, and for no older one.
const COUNT: [&str; 2] = ["p5en", "p6-b200"];
/// Names a file to load in the place of the one beside the program.
const VARIABLE: &str = "GINLAB_SOFT_EFA";
/// Of a command that has been started again with the cards preloaded.
const STARTED_AGAIN: &str = "GINLAB_SOFT_EFA_PRELOADED";
/// Describes the cards to the library.
const SPEC: &str = "SOFT_EFA";
/// Keeps the EFA provider from moving the bytes between ranks of one machine by shared memory, past the cards.
const SHARED_MEMORY: &str = "FI_EFA_ENABLE_SHM_TRANSFER";

/// A function that such a library has and no other.
const MARK: &[u8] = b"soft_efa_move_bytes";
/// How long its cards have waited for this machine.
const BEHIND: &[u8] = b"soft_efa_behind";
/// The library's name.
const FILE: &str = "libsoft_efa.so";

static LOADED: OnceLock<Loaded> = OnceLock::new();

struct Loaded {
    label: String,
    spec: Spec,
}

/// Whether a provider's name asks for such cards, or is what a run with them calls its provider.
#[must_use]
pub fn is_asked(provider: &str) -> bool {
    description(provider).is_some()
}

/// What a run with the cards that a provider's name asks for would say its cards are: `efa/soft:p5`; `None` where it asks for none.
#[must_use]
pub fn label_of(provider: &str) -> Option<String> {
    provider
        .strip_prefix(VERBS)
        .map(|rest| format!("efa/soft{rest}"))
        .or_else(|| is_asked(provider).then(|| provider.to_owned()))
}

/// What stands behind `soft-efa:` or `efa/soft:`; empty for nothing.
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
    super::mistake(provider, "cards in software", text.to_string())
}

/// The cards that a provider's name describes: `profile`, then words of [`Spec`], separated by commas.
///
/// # Errors
/// What is wrong with it, in one line.
pub fn spec(provider: &str) -> Result<Spec, FabricError> {
    let description = description(provider).ok_or_else(|| mistake(provider, "no cards in software are asked for"))?;
    // A label may say that no bytes are moved.
    let words = description.replace("/unmoved", ",unmoved");
    let (first, rest) = words.split_once(',').unwrap_or((&words, ""));
    let is_word = first.contains('=') || ["unmoved", "no-write", "no-counters", "trace"].contains(&first);
    let (name, rest) = if first.is_empty() || is_word { (PROFILE, words.as_str()) } else { (first, rest) };
    let mut spec = Spec { name: name.to_owned(), ..Spec::default() };
    if name != FAST {
        let all = Profile::all().map_err(|text| mistake(provider, text))?;
        let profile = all.get(name).ok_or_else(|| {
            let names = all.keys().map(|name| format!("{PREFIX}:{name}")).collect::<Vec<_>>().join(", ");
            mistake(provider, format!("there is no profile {name:?}; known are {names}, {PREFIX}:{FAST}"))
        })?;
        spec.figures = Some(profile.into());
        spec.depth = profile.queue_depth.value as u32;
        spec.writes = profile.rdma_write.value > 0.0;
        spec.counters = COUNT.contains(&name);
        // Latencies decide the order.
        spec.reorder = 0;
    }
    spec.add(rest).map_err(|error| mistake(provider, error))?;
    Ok(spec)
}

/// Loads the cards that a provider's name describes. To be called first of all, while the process has one thread and libfabric
/// is not loaded.
///
/// # Errors
/// What is wrong with the description; what the loader says.
pub fn load(provider: &str) -> Result<(), FabricError> {
    let spec = spec(provider)?;
    if let Some(loaded) = LOADED.get() {
        let same = loaded.spec == spec;
        return if same { Ok(()) } else { Err(mistake(provider, format!("this process has {}", loaded.label))) };
    }
    if sys::is_settled() {
        return Err(mistake(provider, "libfabric is loaded already, and has found the machine's own cards or none"));
    }
    let fail = |error: &dyn std::fmt::Display| mistake(provider, format!("loading crates/soft_efa: {error}"));
    let find = |library: &Library, name: &[u8]| {
        // SAFETY: never called, only looked for.
        unsafe { library.get::<unsafe extern "C" fn()>(name) }.map(|_| ())
    };
    let this = Library::this();
    let preloaded = find(&this, MARK).is_ok();
    if !preloaded && find(&this, b"ibv_get_device_list").is_ok() {
        return Err(fail(&start_again(provider)?));
    }
    // SAFETY: one thread, as the documentation says; nobody reads the environment meanwhile.
    unsafe {
        std::env::set_var(SPEC, spec.to_string());
        set_default(SHARED_MEMORY, "0");
    }
    if !preloaded {
        let file = file().map_err(|error| fail(&error))?;
        // SAFETY: the library's initialisation does nothing; what a user names is theirs to answer for.
        let library = unsafe { Library::open(Some(&file), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| fail(&error))?;
        let found = find(&library, MARK);
        // Never unloaded: libfabric holds its functions.
        std::mem::forget(library);
        found.map_err(|error| fail(&error))?;
    }
    let unmoved = if spec.moves { "" } else { "/unmoved" };
    let loaded = Loaded { label: format!("{LABEL}{}{unmoved}", spec.name), spec };
    let _ = LOADED.set(loaded);
    Ok(())
}

/// As [`load`], for a library in a process of somebody else's, which may have threads and libibverbs: the cards must have been preloaded
/// there, and described ([`environment`]).
///
/// # Errors
/// They have not.
pub fn load_preloaded(provider: &str) -> Result<(), FabricError> {
    let spec = spec(provider)?;
    let text = spec.to_string();
    // SAFETY: never called, only looked for.
    let there = unsafe { Library::this().get::<unsafe extern "C" fn()>(MARK) }.is_ok();
    if !there || std::env::var_os(SPEC).is_none_or(|said| said != OsStr::new(&text)) {
        let how = format!("the cards must be loaded before the program: ginlab nccl -p {provider} -- PROGRAM does it");
        return Err(mistake(provider, how));
    }
    let unmoved = if spec.moves { "" } else { "/unmoved" };
    let _ = LOADED.set(Loaded { label: format!("{LABEL}{}{unmoved}", spec.name), spec });
    Ok(())
}

/// Becomes this very command with the cards preloaded, with the words that it was started with: its own, or those of a loader that was told
/// to run it. Returns what stood in the way.
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
            "this process has libibverbs, and the loader does not preload the cards before it (LD_PRELOAD)",
        ));
    }
    let mut command = Command::new(program);
    if let Some((first, rest)) = words.split_first() {
        command.arg0(first).args(rest);
    }
    Ok(command.envs(variables).env(STARTED_AGAIN, "1").exec())
}

/// Tells the EFA provider to use the cards between ranks of one machine, too, unless the user has said otherwise: a result of
/// `efa` must be one of the cards. libfabric reads it when it is loaded.
///
/// # Safety
/// The process has one thread.
pub unsafe fn use_cards_within_a_machine() {
    // SAFETY: the caller's contract.
    unsafe { set_default(SHARED_MEMORY, "0") }
}

/// # Safety
/// The process has one thread.
unsafe fn set_default(name: &str, value: &str) {
    if std::env::var_os(name).is_none() {
        // SAFETY: the caller's contract.
        unsafe { std::env::set_var(name, value) };
    }
}

/// The library as a file.
fn file() -> std::io::Result<OsString> {
    beside_program(FILE, VARIABLE)
}

/// A shared object of ginlab's: the one that the user names by `variable`, or the one beside the program, where `cargo build` and `make dist` leave
/// it. Of a test run it is in cargo's folder `deps`, where tests themselves are; examples are in a folder beside that.
///
/// # Errors
/// There is none.
pub fn beside_program(name: &str, variable: &str) -> std::io::Result<OsString> {
    if let Some(file) = std::env::var_os(variable).filter(|file| !file.is_empty()) {
        return Ok(file);
    }
    let program = this_program()?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    // Cargo's own first: `cargo test` leaves an older one beside the program as it is.
    let places = [folder.join("deps"), folder.to_path_buf(), folder.join("../deps"), folder.join("..")];
    let found = places.iter().map(|place| place.join(name)).find(|file| file.is_file());
    found.map(PathBuf::into_os_string).ok_or_else(|| {
        std::io::Error::other(format!(
            "there is no {name} in {}: copy it with the program (`cargo build --release` makes both), or name it by {variable}",
            folder.display()
        ))
    })
}

/// The file that has this code. Where a loader was told to run the program, that is not what `/proc/self/exe` says.
fn this_program() -> std::io::Result<PathBuf> {
    let here = this_program as fn() -> std::io::Result<PathBuf> as usize;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let of_line = |line: &str| {
        let (range, _) = line.split_once(' ')?;
        let (first, end) = range.split_once('-')?;
        let range = usize::from_str_radix(first, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        // Behind addresses, rights, offset, device and inode.
        let path = &line[line.find('/')?..];
        range.contains(&here).then(|| PathBuf::from(path))
    };
    maps.lines().find_map(of_line).map_or_else(std::env::current_exe, Ok)
}

/// As `LD_PRELOAD` takes it, which ends a name at a space or a colon: there by the number of an open file, which the program inherits.
fn preloadable(file: OsString) -> std::io::Result<OsString> {
    if !file.as_bytes().iter().any(|byte| b" :".contains(byte)) {
        return Ok(file);
    }
    let open = std::fs::File::open(file)?;
    fcntl(&open, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(format!("/proc/self/fd/{}", open.into_raw_fd()).into())
}

/// How this run calls its provider when it has such cards: `efa/soft:p5`.
#[must_use]
pub fn label() -> Option<&'static str> {
    LOADED.get().map(|loaded| loaded.label.as_str())
}

/// How long the card that has waited longest has done so for this machine, where a real one would not have: for a poll of this process, or for
/// bytes that it could not move as fast. `None` without such cards, and with those that have no times.
#[must_use]
pub fn behind() -> Option<Duration> {
    LOADED.get().filter(|loaded| loaded.spec.figures.is_some())?;
    // SAFETY: the library's own function of this type; found in whatever way it was loaded.
    let behind = unsafe { Library::this().get::<unsafe extern "C" fn() -> u64>(BEHIND) }.ok()?;
    // SAFETY: it reads numbers.
    Some(Duration::from_nanos(unsafe { behind() }))
}

/// The environment by which another program finds the cards that a provider's name describes: names with values.
///
/// # Errors
/// What is wrong with the description.
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
        assert_eq!(spec("soft-efa,seed=3").unwrap(), Spec { seed: 3, ..p5.clone() });
        assert_eq!(spec("efa/soft:p5/unmoved").unwrap(), Spec { moves: false, ..p5 });
        assert_eq!(spec("efa-verbs/soft:p5,seed=3").unwrap().seed, 3);
        assert_eq!(spec("efa-verbs/soft").unwrap().name, "p5");
        assert!(!spec("soft-efa:p4d").unwrap().writes);
        let counts = |name: &str| spec(&format!("soft-efa:{name}")).unwrap().counters;
        assert_eq!(
            ["p4d", "p5", "p5en", "p6-b200", "fast", "fast,no-counters"].map(counts),
            [false, false, true, true, true, false]
        );
        assert_eq!(spec("soft-efa:fast").unwrap(), Spec::default());
        let fast = spec("soft-efa:fast,cards=32,reorder=9").unwrap();
        assert_eq!((fast.cards, fast.reorder, fast.figures), (32, 9, None));
        for other in ["efa", "soft-efax", "tcp", "model:p5", "efa-verbs", "efa-verbs/softer"] {
            assert!(!is_asked(other), "{other}");
        }
    }

    #[test]
    fn what_cannot_be_is_one_line_that_says_what_can() {
        let said = |name: &str| spec(name).unwrap_err().to_string();
        assert!(said("soft-efa:p3").contains("known are soft-efa:p4d, soft-efa:p5, "), "{}", said("soft-efa:p3"));
        assert!(said("soft-efa:p5,cards=40").contains("\"cards=40\" says nothing about cards; there are cards=1..32"));
        assert_eq!(said("soft-efa:p5,x").lines().count(), 1);
    }
}
