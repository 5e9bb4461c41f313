//! Processes of a server.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::existing::PIPE;

/// Name of NVIDIA's daemon and its servers in /proc, which is limited to 15 bytes.
const NAME: &[u8] = b"nvidia-cuda-mps";

/// Returns the control daemon and the servers of the directory `pipe`: processes of this user with that name that have
/// the directory in their environment, or that descend from such a process. `proc` is /proc, or a directory tree that
/// replaces it. Ranks also have the variable, but a different name.
pub fn servers_of(proc: &Path, uid: u32, pipe: &Path) -> Vec<i32> {
    let entry = [PIPE.as_bytes(), b"=", pipe.as_os_str().as_bytes()].concat();
    // Parent of each process, and whether its environment names the directory.
    let mut called: BTreeMap<i32, (i32, bool)> = BTreeMap::new();
    for found in fs::read_dir(proc).into_iter().flatten().filter_map(Result::ok) {
        let Some(pid) = found.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let of = |name: &str| fs::read(found.path().join(name)).unwrap_or_default();
        let own = found.metadata().is_ok_and(|found| found.uid() == uid);
        if own && of("comm").starts_with(NAME) && !is_dead(&of("stat")) {
            let names = of("environ").split(|byte| *byte == 0).any(|one| one == entry);
            called.insert(pid, (parent(&of("stat")), names));
        }
    }
    let mut all: Vec<i32> = called.iter().filter(|(_, (_, names))| *names).map(|(pid, _)| *pid).collect();
    let mut seen = 0;
    while seen < all.len() {
        let more = called.iter().filter(|(pid, (parent, _))| *parent == all[seen] && !all.contains(pid));
        let more: Vec<i32> = more.map(|(pid, _)| *pid).collect();
        all.extend(more);
        seen += 1;
    }
    all
}

/// Returns the fields after the name, which is in parentheses and may contain any characters: state, parent, ...
fn after_name(stat: &[u8]) -> impl Iterator<Item = &[u8]> {
    let at = stat.iter().rposition(|byte| *byte == b')').map_or(stat.len(), |at| at + 1);
    stat[at..].split(|byte| *byte == b' ').filter(|part| !part.is_empty())
}

fn parent(stat: &[u8]) -> i32 {
    after_name(stat).nth(1).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok()).unwrap_or(0)
}

/// Returns whether the process has exited: a zombie that its parent has not reaped, or dead.
fn is_dead(stat: &[u8]) -> bool {
    after_name(stat).next().is_some_and(|state| state == b"Z" || state == b"X")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_processes_of_directory_are_found() {
        let proc = tempfile::tempdir().unwrap();
        let uid = proc.path().metadata().unwrap().uid();
        let add = |pid: u32, comm: &str, state: &str, parent: u32, pipe: &str| {
            let folder = proc.path().join(pid.to_string());
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("comm"), format!("{comm}\n")).unwrap();
            fs::write(folder.join("stat"), format!("{pid} ({comm}) {state} {parent} 1 1")).unwrap();
            fs::write(folder.join("environ"), format!("A=b\0{PIPE}={pipe}\0C=d\0")).unwrap();
        };
        add(10, "nvidia-cuda-mps", "S", 1, "/t/1/pipe");
        add(11, "nvidia-cuda-mps", "S", 10, "");
        add(12, "nvidia-cuda-mps", "Z", 10, "/t/1/pipe");
        add(13, "ginlab", "S", 1, "/t/1/pipe");
        add(14, "nvidia-cuda-mps", "S", 1, "/t/1/pipe2");
        add(15, "nvidia-cuda-mps", "S", 14, "/t/2/pipe");
        add(16, "nvidia) cuda-mps", "S", 10, "/t/1/pipe");
        fs::create_dir_all(proc.path().join("self")).unwrap();
        assert_eq!(servers_of(proc.path(), uid, Path::new("/t/1/pipe")), [10, 11]);
        assert_eq!(servers_of(proc.path(), uid, Path::new("/t/3/pipe")), [0; 0]);
        assert_eq!(servers_of(proc.path(), uid + 1, Path::new("/t/1/pipe")), [0; 0], "another user's");
    }
}
