//! Servers of runs, by a double of NVIDIA's program: started, refused, ended, swept up.

#![allow(clippy::unwrap_used)]

use super::processes::servers_of;
use super::server::{Limits, Place, Server};
use nix::fcntl::{FlockArg, OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::geteuid;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A folder of runs of its own, whose double behaves as these words say.
struct Runs {
    _folder: tempfile::TempDir,
    place: Place,
}

fn runs(mode: &str) -> Runs {
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("runs");
    fs::create_dir(&base).unwrap();
    fs::set_permissions(&base, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(base.join("mode"), mode).unwrap();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/mps/nvidia-cuda-mps-control").into();
    // What hangs, hangs for good; what does not has as long as a busy machine takes.
    let short = |word: &str| if mode.contains(word) { Duration::from_millis(200) } else { Duration::from_secs(30) };
    let limits = Limits {
        start: if mode.contains("silent") { short("silent") } else { short("hangs") },
        probe: short(""),
        quit: short("quit-hangs"),
        leave: if mode.contains("stubborn") { short("stubborn") } else { short("quit-hangs") },
    };
    Runs { place: Place { base, program, limits }, _folder: folder }
}

impl Runs {
    fn start(&self) -> Result<Server, String> {
        self.place.start(|_| Ok(()))
    }

    /// What the double was asked.
    fn record(&self) -> Vec<String> {
        let text = fs::read_to_string(self.place.base.join("record")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Folders of runs that are there.
    fn folders(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.place.base).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_dir()).collect()
    }
}

fn processes(pipe: &Path) -> usize {
    servers_of(Path::new("/proc"), geteuid().as_raw(), pipe).len()
}

/// Waits until the double has its two processes: its daemon starts the server by itself.
fn until_two(pipe: &Path) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !pipe.join("ready").exists() {
        assert!(Instant::now() < deadline, "the double has not started its server");
        std::thread::yield_now();
    }
}

#[test]
fn a_server_is_started_for_a_run_and_ended_with_it() {
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
fn what_cannot_be_started_says_why_and_leaves_nothing() {
    for (mode, why) in [
        ("fails", "ended with exit status: 1: An instance of this daemon is already running"),
        ("hangs", "has not come back within 200ms"),
        ("silent", "came back, and nobody answers in "),
    ] {
        let runs = runs(mode);
        let said = runs.start().unwrap_err();
        assert!(said.contains(why) && !said.contains('\n'), "{mode}: {said}");
        assert!(runs.folders().is_empty(), "{mode}: {:?}", runs.folders());
    }
    let mut runs = runs("");
    let said = runs.place.start(|_| Err("a process cannot use it: 805".into())).unwrap_err();
    assert_eq!(said, "a process cannot use it: 805");
    assert!(runs.folders().is_empty() && runs.record().contains(&"ended".into()), "{:?}", runs.record());
    runs.place.program = "nvidia-cuda-mps-control-that-is-not-there".into();
    let said = runs.start().unwrap_err();
    assert!(said.contains("is not on PATH"), "{said}");
    // Somebody else could put a server into it.
    fs::set_permissions(&runs.place.base, fs::Permissions::from_mode(0o755)).unwrap();
    let said = runs.start().unwrap_err();
    assert!(said.contains("not this user's alone"), "{said}");
}

#[test]
fn a_server_that_does_not_go_is_killed() {
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
fn what_a_dead_run_has_left_is_swept_up_and_what_lives_is_not() {
    let runs = runs("");
    let (dead, live) = (runs.start().unwrap(), runs.start().unwrap());
    let (gone, stays) = (dead.pipe(), live.pipe());
    until_two(&gone);
    until_two(&stays);
    runs.place.sweep();
    assert_eq!((processes(&gone), processes(&stays)), (2, 2), "both have owners");
    // As the kernel does with the lock of a process that was killed.
    dead.forget();
    // A folder that is no run's.
    let other = runs.place.base.join("other");
    fs::create_dir(&other).unwrap();
    runs.place.sweep();
    assert_eq!((processes(&gone), processes(&stays)), (0, 2));
    let mut left = runs.folders();
    left.sort();
    let mut expected = vec![stays.parent().unwrap().to_owned(), other];
    expected.sort();
    assert_eq!(left, expected);
    // A folder of runs that others may write to is not looked into.
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
fn a_lock_is_not_handed_to_the_daemon() {
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
