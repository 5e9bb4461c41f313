//! Tests of servers with a test double of NVIDIA's program: start, failure, stop and cleanup.

#![allow(clippy::unwrap_used)]

use super::processes::servers_of;
use super::server::{Limits, MpsLocation, MpsServer};
use nix::fcntl::{FlockArg, OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::geteuid;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A separate directory of runs, with a test double that behaves as `mode` specifies.
struct Runs {
    _folder: tempfile::TempDir,
    place: MpsLocation,
}

fn runs(mode: &str) -> Runs {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("runs");
    fs::create_dir(&base).unwrap();
    fs::set_permissions(&base, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(base.join("mode"), mode).unwrap();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/mps/nvidia-cuda-mps-control").into();
    // Operations that hang never return, so their limits are short. The others must tolerate a busy machine.
    let short = |word: &str| if mode.contains(word) { Duration::from_millis(200) } else { Duration::from_secs(30) };
    let limits = Limits {
        start: short(if mode.starts_with("quit") {
            "no such mode"
        } else if mode.contains("silent") {
            "silent"
        } else {
            "hangs"
        }),
        probe: short(""),
        quit: short("quit-hangs"),
        leave: if mode.contains("stubborn") { short("stubborn") } else { short("quit-hangs") },
    };
    Runs { place: MpsLocation { base, program, limits }, _folder: folder }
}

impl Runs {
    fn start(&self) -> Result<MpsServer, String> {
        self.place.start(|_| Ok(()))
    }

    /// Returns the calls that the double has recorded.
    fn record(&self) -> Vec<String> {
        let text = fs::read_to_string(self.place.base.join("record")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Returns the existing directories of runs.
    fn folders(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.place.base).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_dir()).collect()
    }
}

fn processes(pipe: &Path) -> usize {
    servers_of(Path::new("/proc"), geteuid().as_raw(), pipe).len()
}

/// Waits until both processes of the test double exist: its daemon starts the server asynchronously.
fn until_two(pipe: &Path) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !pipe.join("ready").exists() {
        assert!(Instant::now() < deadline, "the double has not started its server");
        std::thread::yield_now();
    }
}

#[test]
fn server_starts_and_ends_with_run() {
    let runs = runs("");
    let server = runs.start().unwrap();
    let pipe = server.pipe();
    until_two(&pipe);
    assert_eq!(runs.record(), ["start visible=all log=log"]);
    let modes = [pipe.as_path(), pipe.parent().unwrap(), &pipe.parent().unwrap().join("log")]
        .map(|path| path.metadata().unwrap().permissions().mode() & 0o777);
    assert_eq!(modes, [0o700; 3]);
    let [(_, named), (_, log)] = server.variables();
    assert_eq!((Path::new(&named), Path::new(&log)), (&*pipe, &*pipe.parent().unwrap().join("log")));
    drop(server);
    assert_eq!((processes(&pipe), runs.folders().len()), (0, 0));
    assert_eq!(runs.record()[1..], ["quit", "ended"]);
}

#[test]
fn failed_start_reports_cause_and_cleans_up() {
    for (mode, why) in [
        ("fails", "failed with exit status: 1: An instance of this daemon is already running"),
        ("hangs", "did not return within 200ms"),
        ("silent", "returned, but no server answers in "),
    ] {
        let runs = runs(mode);
        let said = runs.start().unwrap_err();
        assert!(said.contains(why) && !said.contains('\n'), "{mode}: {said}");
        assert!(runs.folders().is_empty(), "{mode}: {:?}", runs.folders());
    }
    let mut runs = runs("");
    let said = runs.place.start(|_| Err("a test process cannot use it: 805".into())).unwrap_err();
    assert_eq!(said, "a test process cannot use it: 805");
    assert!(runs.folders().is_empty() && runs.record().contains(&"ended".into()), "{:?}", runs.record());
    runs.place.program = "nvidia-cuda-mps-control-that-is-not-there".into();
    let said = runs.start().unwrap_err();
    assert!(said.contains("is not on PATH"), "{said}");
    // Another user could place a server in this directory.
    fs::set_permissions(&runs.place.base, fs::Permissions::from_mode(0o755)).unwrap();
    let said = runs.start().unwrap_err();
    assert!(said.contains("accessible to other users"), "{said}");
}

#[test]
fn unresponsive_server_is_killed() {
    for mode in ["quit-hangs", "quit-hangs stubborn"] {
        let runs = runs(mode);
        let server = runs.start().unwrap();
        let pipe = server.pipe();
        until_two(&pipe);
        drop(server);
        assert_eq!((processes(&pipe), runs.folders().len()), (0, 0), "{mode}");
        assert!(!runs.record().contains(&"ended".into()), "{mode}");
    }
}

#[test]
fn only_leftovers_of_dead_runs_are_removed() {
    let runs = runs("");
    let (dead, live) = (runs.start().unwrap(), runs.start().unwrap());
    let (gone, stays) = (dead.pipe(), live.pipe());
    until_two(&gone);
    until_two(&stays);
    runs.place.sweep();
    assert_eq!((processes(&gone), processes(&stays)), (2, 2), "both have owners");
    // The kernel releases the lock of a killed process in the same way.
    dead.forget();
    // A directory that does not belong to a run.
    let other = runs.place.base.join("other");
    fs::create_dir(&other).unwrap();
    runs.place.sweep();
    assert_eq!((processes(&gone), processes(&stays)), (0, 2));
    let mut left = runs.folders();
    left.sort();
    let mut expected = vec![stays.parent().unwrap().to_owned(), other];
    expected.sort();
    assert_eq!(left, expected);
    // A directory of runs that others may write to is ignored.
    fs::set_permissions(&runs.place.base, fs::Permissions::from_mode(0o777)).unwrap();
    let second = live.pipe();
    live.forget();
    runs.place.sweep();
    assert_eq!(processes(&second), 2);
    fs::set_permissions(&runs.place.base, fs::Permissions::from_mode(0o700)).unwrap();
    runs.place.sweep();
    assert_eq!(processes(&second), 0);
}

#[test]
fn daemon_does_not_inherit_lock() {
    let runs = runs("");
    let server = runs.start().unwrap();
    let owner = server.pipe().parent().unwrap().join("owner");
    until_two(&server.pipe());
    let pipe = server.pipe();
    server.forget();
    let file = fs::File::from(open(&owner, OFlag::O_RDWR, Mode::empty()).unwrap());
    let lock = nix::fcntl::Flock::lock(file, FlockArg::LockExclusiveNonblock);
    assert!(lock.is_ok(), "the daemon holds it");
    drop(lock);
    runs.place.sweep();
    assert_eq!(processes(&pipe), 0);
}
