//! What processes that were killed, or had to end without closing their rails, leave in shared memory.
//!
//! - libfabric's EFA provider makes a file of 16 MiB for each endpoint, also where it moves nothing by shared memory, and removes it when the
//!   endpoint is closed; else it stays until the machine starts again.
//! - Cards in software have a folder of the user, in which each file is locked by those who use it (`crates/soft_efa/src/share.rs`).

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::Ipv6Addr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Uid;

const FOLDER: &str = "/dev/shm";

/// Removes endpoints of these processes of this machine, unless they are alive and use them; of this process always: it is about to end. And
/// files of cards in software that nobody uses. Nothing else is touched, and nothing is said: there may be none, or they may be somebody else's.
pub fn remove_of(processes: &[u32]) {
    let folder = Path::new(FOLDER);
    remove_in(folder, processes);
    remove_unlocked(&folder.join(format!("soft-efa-{}", Uid::effective())));
}

/// Whether a process of this machine has ended; one that nobody has waited for has, too.
#[must_use]
pub fn has_ended(process: u32) -> bool {
    match fs::read_to_string(format!("/proc/{process}/stat")) {
        // The state stands behind the name, which is in parentheses.
        Ok(stat) => stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Removes files that nobody has locked, and the folder with its last file.
fn remove_unlocked(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if let Ok(file) = File::options().write(true).custom_flags(nix::libc::O_NOFOLLOW).open(&path)
            && Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok()
        {
            let _ = fs::remove_file(&path);
        }
    }
    let _ = fs::remove_dir(folder);
}

fn remove_in(folder: &Path, processes: &[u32]) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(is_endpoint) || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let path = entry.path();
        let Some(owner) = owner(&path).filter(|owner| processes.contains(owner)) else { continue };
        if owner == std::process::id() || !is_mapped(&path, owner) {
            // It may have gone by itself meanwhile.
            let _ = fs::remove_file(&path);
        }
    }
}

/// Whether a file has the name that the provider makes of an endpoint's address: GID, queue number, queue key, user.
fn is_endpoint(name: &str) -> bool {
    let mut parts = name.split('_');
    let gid = parts.next().is_some_and(|gid| gid.parse::<Ipv6Addr>().is_ok());
    let numbers: Vec<&str> = parts.collect();
    gid && numbers.len() == 3 && numbers.iter().all(|number| u32::from_str_radix(number, 16).is_ok())
}

/// The process that has made it: behind the version and flags in the header of such a region (libfabric 1.17 to 2.1).
fn owner(path: &Path) -> Option<u32> {
    let mut header = [0; 8];
    File::open(path).ok()?.read_exact(&mut header).ok()?;
    let [.., a, b, c, d] = header;
    Some(u32::from_ne_bytes([a, b, c, d]))
}

/// Whether a process has it in its memory. One that has ended has no memory, also while its parent has not looked at it.
fn is_mapped(path: &Path, process: u32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    path.to_str().is_some_and(|path| maps.lines().any(|line| line.ends_with(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn files_of_ended_processes_go_and_all_others_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut ended = Command::new("true").spawn().expect("a process");
        let header = |process: u32| [&[4, 0, 1, 0][..], &process.to_ne_bytes(), &[0; 8]].concat();
        let (id, mine) = (ended.id(), std::process::id());
        let files = [
            ("fe80::1254:b0ff:fe4c:4d00_6b00_1c4d4a8e_0000", header(id)),
            ("fe80::1254:b0ff:fe4c:4d01_6b00_1c4d4a8e_0000", header(mine)),
            ("fe80::1254:b0ff:fe4c:4d02_6b00_1c4d4a8e_0000", header(1)),
            ("fe80::1254:b0ff:fe4c:4d03_6b00_1c4d4a8e_0000", vec![4, 0]),
            ("fe80::1254:b0ff:fe4c:4d04_6b00_1c4d4a8e", header(id)),
            ("notes_6b00_1c4d4a8e_0000", header(id)),
        ];
        for (name, text) in &files {
            std::fs::write(folder.path().join(name), text).expect("written");
        }
        ended.wait().expect("it ends");
        remove_in(folder.path(), &[id, mine]);
        let left = files.map(|(name, _)| folder.path().join(name).exists());
        assert_eq!(left, [false, false, true, true, true, true]);
    }

    #[test]
    fn files_that_nobody_has_locked_go_and_their_folder_with_the_last() {
        let above = tempfile::tempdir().expect("a folder");
        let folder = above.path().join("cards");
        std::fs::create_dir(&folder).expect("made");
        let file = |name: &str| File::create(folder.join(name)).expect("made");
        let (held, _) = (file("held"), file("left"));
        let held = Flock::lock(held, FlockArg::LockSharedNonblock).map_err(|(_, error)| error).expect("locked");
        remove_unlocked(&folder);
        assert_eq!(["held", "left"].map(|name| folder.join(name).exists()), [true, false]);
        drop(held);
        remove_unlocked(&folder);
        assert!(!folder.exists());
    }

    #[test]
    fn a_file_that_its_process_uses_stays() {
        // This program's own file is in its memory; no other one's.
        let own = std::env::current_exe().expect("this file");
        assert!(is_mapped(&own, std::process::id()));
        assert!(!is_mapped(Path::new("/dev/shm/none"), std::process::id()));
        assert!(!is_mapped(&own, u32::MAX));
    }
}
