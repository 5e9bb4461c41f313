//! Removes the files in shared memory that processes leave if they are killed, or exit without closing their rails.
//!
//! - libfabric's EFA provider creates a file of 16 MiB per endpoint, even if it transfers nothing through shared
//!   memory, and removes it only when the endpoint is closed. Each process records the files of its endpoints in its
//!   own record file, which it keeps locked. The system releases the lock when the process ends, for any reason and in
//!   any PID namespace.
//! - Software NICs have one directory per user, in which each file is locked by the processes that use it
//!   (`crates/soft_efa/src/share.rs`).

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, Write};
use std::net::Ipv6Addr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg};
use nix::libc;
use nix::unistd::{Uid, linkat};

const SHARED_MEMORY: &str = "/dev/shm";
/// Attempts to create a record while other processes remove the empty directory.
const ATTEMPTS: u32 = 100;

/// The record of this process.
static OWN: Mutex<Option<Record>> = Mutex::new(None);

/// The endpoint files of one process, and its lock.
struct Record {
    file: Flock<File>,
    path: PathBuf,
    names: BTreeSet<String>,
}

/// Records the endpoint files that this process has mapped, so that another process can remove them if this one is
/// killed. Must be called after an endpoint was opened. The first call also removes the files of processes that have
/// ended.
pub fn record_endpoints() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let names: BTreeSet<String> = maps.lines().filter_map(endpoint_of_mapping).map(str::to_owned).collect();
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    if names.is_empty() && own.is_none() {
        return;
    }
    if own.is_none() {
        remove_stale();
        // Without a record (no space, or a read-only file system), the files stay if this process is killed.
        *own = Record::create(Path::new(SHARED_MEMORY)).ok();
    }
    if let Some(record) = own.as_mut() {
        let _ = record.write(names);
    }
}

/// Removes the files of this process, which must be about to exit: open rails lose their files.
pub fn remove_own() {
    if let Some(record) = OWN.lock().unwrap_or_else(PoisonError::into_inner).take() {
        record.remove(Path::new(SHARED_MEMORY));
    }
}

/// Removes the files of this user's processes that have ended. Files of running processes and of other users stay.
pub fn remove_stale() {
    let shared_memory = Path::new(SHARED_MEMORY);
    remove_recorded(shared_memory);
    remove_unlocked(&shared_memory.join(format!("soft-efa-{}", Uid::effective())));
}

/// Returns whether a process of this PID namespace has ended; a zombie counts as ended.
#[must_use]
pub fn has_ended(process: u32) -> bool {
    match fs::read_to_string(format!("/proc/{process}/stat")) {
        // The state follows the name, which is in parentheses.
        Ok(stat) => stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

impl Record {
    /// Creates an empty, locked record below `shared_memory`.
    fn create(shared_memory: &Path) -> io::Result<Record> {
        let mut outcome = Self::try_create(shared_memory);
        for _ in 0..ATTEMPTS {
            match outcome {
                // The process that had the last record has removed the directory in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => outcome = Self::try_create(shared_memory),
                settled => return settled,
            }
        }
        outcome
    }

    fn try_create(shared_memory: &Path) -> io::Result<Record> {
        let directory = directory(shared_memory);
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if !is_private(&directory) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // Locked before it has a name: a record that can be locked belongs to a process that has ended.
        let mut options = File::options();
        let file = options.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(&directory)?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error)?;
        // Named after its inode number, which is unique among PID namespaces that share the file system.
        let path = directory.join(file.metadata()?.ino().to_string());
        let source = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(AT_FDCWD, source.as_str(), AT_FDCWD, &path, AtFlags::AT_SYMLINK_FOLLOW)?;
        Ok(Record { file, path, names: BTreeSet::new() })
    }

    /// Adds names to the record.
    fn write(&mut self, names: BTreeSet<String>) -> io::Result<()> {
        for name in names {
            if !self.names.contains(&name) {
                writeln!(&*self.file, "{name}")?;
                self.names.insert(name);
            }
        }
        Ok(())
    }

    /// Removes the recorded files and the record.
    fn remove(self, shared_memory: &Path) {
        for name in &self.names {
            let _ = fs::remove_file(shared_memory.join(name));
        }
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_dir(directory(shared_memory));
    }
}

/// Returns the directory of this user's records.
fn directory(shared_memory: &Path) -> PathBuf {
    shared_memory.join(format!("ginlab-{}", Uid::effective()))
}

/// Returns whether only this user can create files in the directory. This is required because files with the recorded
/// names are removed.
fn is_private(directory: &Path) -> bool {
    directory
        .symlink_metadata()
        .is_ok_and(|found| found.is_dir() && found.uid() == Uid::effective().as_raw() && found.mode() & 0o077 == 0)
}

/// Removes the files recorded by processes that have ended, and their records.
fn remove_recorded(shared_memory: &Path) {
    let directory = directory(shared_memory);
    if !is_private(&directory) {
        return;
    }
    let (mut used, mut ended) = (BTreeSet::new(), Vec::new());
    for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(mut file) = File::options().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(&path) else {
            continue;
        };
        let names = |file: &mut File| {
            let mut text = String::new();
            let _ = file.rewind().and_then(|()| file.read_to_string(&mut text));
            text.lines().filter(|name| is_endpoint(name)).map(str::to_owned).collect::<BTreeSet<_>>()
        };
        let of_it = names(&mut file);
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => ended.push(Record { file, path, names: of_it }),
            Err(_) => used.extend(of_it),
        }
    }
    for mut record in ended {
        // A process that has mapped a peer's endpoint may have recorded it as well.
        record.names.retain(|name| !used.contains(name));
        record.remove(shared_memory);
    }
    let _ = fs::remove_dir(&directory);
}

/// Removes files that no process has locked, and the directory with its last file.
fn remove_unlocked(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if let Ok(file) = File::options().write(true).custom_flags(libc::O_NOFOLLOW).open(&path)
            && Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok()
        {
            let _ = fs::remove_file(&path);
        }
    }
    let _ = fs::remove_dir(directory);
}

/// Returns the name of the endpoint file in a line of /proc/self/maps.
fn endpoint_of_mapping(line: &str) -> Option<&str> {
    let (_, path) = line.split_once(SHARED_MEMORY)?;
    path.strip_prefix('/').filter(|name| is_endpoint(name))
}

/// Returns whether a file has the name that the provider derives from an endpoint's address: GID, queue number, queue
/// key, user.
fn is_endpoint(name: &str) -> bool {
    let mut parts = name.split('_');
    let gid = parts.next().is_some_and(|gid| gid.parse::<Ipv6Addr>().is_ok());
    let numbers: Vec<&str> = parts.collect();
    gid && numbers.len() == 3 && numbers.iter().all(|number| u32::from_str_radix(number, 16).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "fe80::1254:b0ff:fe4c:4d00_6b00_1c4d4a8e_0000";
    const PEER: &str = "fe80::1254:b0ff:fe4c:4d01_6b00_1c4d4a8e_0000";

    fn record(shared_memory: &Path, names: &[&str]) -> Record {
        let mut record = Record::create(shared_memory).expect("a record");
        for name in names {
            File::create(shared_memory.join(name)).expect("made");
        }
        record.write(names.iter().map(|name| (*name).to_owned()).collect()).expect("written");
        record
    }

    #[test]
    fn only_files_of_exited_process_are_removed() {
        let shared_memory = tempfile::tempdir_in(SHARED_MEMORY).expect("a directory");
        let path = shared_memory.path();
        File::create(path.join("notes_6b00_1c4d4a8e_0000")).expect("made");
        let running = record(path, &[PEER]);
        // This process has also mapped its peer's endpoint. Dropping the record releases the lock, as the end of a
        // process does.
        drop(record(path, &[NAME, PEER]));
        // This is not an endpoint's name: other files stay even if a record contains them.
        drop(record(path, &["notes"]));
        let exist = || [NAME, PEER, "notes", "notes_6b00_1c4d4a8e_0000"].map(|name| path.join(name).exists());
        remove_recorded(path);
        assert_eq!(exist(), [false, true, true, true]);
        assert!(running.path.exists());
        drop(running);
        remove_recorded(path);
        assert_eq!(exist(), [false, false, true, true]);
        assert!(!directory(path).exists());
    }

    #[test]
    fn process_removes_its_own_record_and_files() {
        let shared_memory = tempfile::tempdir_in(SHARED_MEMORY).expect("a directory");
        record(shared_memory.path(), &[NAME]).remove(shared_memory.path());
        assert_eq!(fs::read_dir(shared_memory.path()).expect("readable").count(), 0);
    }

    #[test]
    fn records_in_directory_of_other_user_are_ignored() {
        let shared_memory = tempfile::tempdir_in(SHARED_MEMORY).expect("a directory");
        let path = shared_memory.path();
        DirBuilder::new().mode(0o777).create(directory(path)).expect("made");
        fs::set_permissions(directory(path), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("set");
        for name in [NAME, &format!("ginlab-{}/1", Uid::effective())] {
            fs::write(path.join(name), NAME).expect("written");
        }
        remove_recorded(path);
        assert!(path.join(NAME).exists());
        assert!(Record::create(path).is_err());
    }

    #[test]
    fn endpoint_names_are_found_in_mappings() {
        let line = format!("7f0000000000-7f0001000000 rw-s 00000000 00:18 12   {SHARED_MEMORY}/{NAME}");
        assert_eq!(endpoint_of_mapping(&line), Some(NAME));
        assert_eq!(endpoint_of_mapping("7f00-7f01 rw-s 00000000 00:18 12   /dev/shm/soft-efa-0/3"), None);
        assert_eq!(endpoint_of_mapping("7f00-7f01 r-xp 00000000 08:01 12   /usr/lib/libc.so.6"), None);
    }

    #[test]
    fn unlocked_files_and_empty_directory_are_removed() {
        let above = tempfile::tempdir().expect("a directory");
        let directory = above.path().join("nics");
        fs::create_dir(&directory).expect("made");
        let file = |name: &str| File::create(directory.join(name)).expect("made");
        let (held, _) = (file("held"), file("left"));
        let held = Flock::lock(held, FlockArg::LockSharedNonblock).map_err(|(_, error)| error).expect("locked");
        remove_unlocked(&directory);
        assert_eq!(["held", "left"].map(|name| directory.join(name).exists()), [true, false]);
        drop(held);
        remove_unlocked(&directory);
        assert!(!directory.exists());
    }
}
