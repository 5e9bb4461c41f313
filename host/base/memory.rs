//! Memory that is available to this process, on the machine and in its control groups (cgroups).

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the number of available bytes: the minimum of the memory available on the machine and the remainder of the
/// limit of each control group up to the root. `None` if the system reports neither.
pub fn available() -> Option<u64> {
    available_in(Path::new("/"))
}

/// Like [`available`], but reads files below `root`, which is `/` or a recorded tree.
pub fn available_in(root: &Path) -> Option<u64> {
    let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let machine = available_of_machine(&text("proc/meminfo"));
    let groups = groups(root, &text("proc/self/cgroup"), &text("proc/self/mountinfo"));
    groups.into_iter().chain(machine).min()
}

/// Returns MemAvailable in bytes.
fn available_of_machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// File names of one version of cgroups.
struct Names {
    /// Files with the limits of a group, of which the smallest applies. Above `memory.high`, the kernel throttles the
    /// group severely.
    limits: &'static [&'static str],
    used: &'static str,
    /// Entry of memory.stat for file pages that the kernel reclaims before memory runs out. They count as available, as
    /// in MemAvailable; otherwise a pod that has read a large file could not start anything.
    reclaimable: &'static str,
}

const V1: Names =
    Names { limits: &["memory.limit_in_bytes"], used: "memory.usage_in_bytes", reclaimable: "total_inactive_file" };
const V2: Names =
    Names { limits: &["memory.max", "memory.high"], used: "memory.current", reclaimable: "inactive_file" };

/// Returns the remaining bytes of each group that has a limit.
fn groups(root: &Path, cgroup: &str, mountinfo: &str) -> Vec<u64> {
    let mut left = Vec::new();
    for line in cgroup.lines() {
        // Format: number:controllers:path. Version 2 has number 0 and no controllers.
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let second = number == "0" && controllers.is_empty();
        if !second && !controllers.split(',').any(|controller| controller == "memory") {
            continue;
        }
        let names = if second { V2 } else { V1 };
        let Some((mount, below)) = mountinfo.lines().find_map(|line| mounted(line, second)) else { continue };
        let mount = root.join(mount.trim_start_matches('/'));
        // In a container, the root of the mount is often its own group, but the path is that on the host.
        let path = path.strip_prefix(&below).unwrap_or(path).trim_start_matches('/');
        let mut folder: PathBuf =
            if path.split('/').any(|part| part == "..") { mount.clone() } else { mount.join(path) };
        if !folder.is_dir() {
            folder.clone_from(&mount);
        }
        loop {
            left.extend(left_in(&folder, &names));
            if folder == mount || !folder.pop() {
                break;
            }
        }
    }
    left
}

/// Parses a line of mountinfo. Returns the mount point of this version's groups, and the group that is its root.
fn mounted(line: &str, second: bool) -> Option<(String, String)> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let (below, mount) = (fields.next()?, fields.next()?);
    let mut kind = after.split(' ');
    let fits = match kind.next()? {
        "cgroup2" => second,
        "cgroup" => !second && kind.next_back()?.split(',').any(|option| option == "memory"),
        _ => false,
    };
    fits.then(|| (mount.to_owned(), below.trim_end_matches('/').to_owned()))
}

fn left_in(folder: &Path, names: &Names) -> Option<u64> {
    let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
    // `max` is not a number: no limit at this level.
    let limit = names.limits.iter().filter_map(|name| text(name)?.trim().parse::<u64>().ok()).min()?;
    let used: u64 = text(names.used)?.trim().parse().ok()?;
    let stat = text("memory.stat").unwrap_or_default();
    let entry = stat.lines().find_map(|line| line.strip_prefix(names.reclaimable)?.trim().parse().ok());
    Some(limit.saturating_sub(used.saturating_sub(entry.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const GIB: u64 = 1 << 30;
    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal: 2147483648 kB\nMemAvailable:   2000000000 kB\n");
    const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[track_caller]
    fn check(files: &[(&str, &str)], expected: Option<u64>) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert_eq!(available_in(root.path()), expected);
    }

    #[test]
    fn pod_limit_applies_on_large_host() {
        // Version 2 with its own namespace: 64 GiB, of which 10 GiB are in use, including 4 GiB of file pages.
        let files = [
            MACHINE,
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/memory.max", "68719476736\n"),
            ("sys/fs/cgroup/memory.current", "10737418240\n"),
        ];
        check(&files, Some(54 * GIB));
        let stat = ("sys/fs/cgroup/memory.stat", "anon 6442450944\ninactive_file 4294967296\nactive_file 1\n");
        check(&[&files[..], &[stat]].concat(), Some(58 * GIB));
        // The smaller of the two limits applies.
        let high = ("sys/fs/cgroup/memory.high", "32212254720\n");
        check(&[&files[..], &[high]].concat(), Some(20 * GIB));
        check(&[&files[..3], &[("sys/fs/cgroup/memory.max", "max\n"), files[4], high]].concat(), Some(20 * GIB));
    }

    #[test]
    fn smallest_limit_of_ancestors_applies() {
        let files = [
            MACHINE,
            ("proc/self/cgroup", "0::/user.slice/user-1000.slice/run-7.scope\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/user.slice/user-1000.slice/run-7.scope/memory.max", "max\n"),
            ("sys/fs/cgroup/user.slice/user-1000.slice/run-7.scope/memory.current", "5\n"),
            ("sys/fs/cgroup/user.slice/user-1000.slice/memory.max", "8589934592\n"),
            ("sys/fs/cgroup/user.slice/user-1000.slice/memory.current", "1073741824\n"),
            ("sys/fs/cgroup/user.slice/memory.max", "17179869184\n"),
            ("sys/fs/cgroup/user.slice/memory.current", "1073741824\n"),
        ];
        check(&files, Some(7 * GIB));
    }

    #[test]
    fn cgroup_v1_limit_applies_with_host_path() {
        let mount = "40 30 0:35 /docker/abc /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory\n";
        let other = "41 30 0:36 / /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n";
        let mounts = format!("{other}{mount}");
        let files = [
            MACHINE,
            ("proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/docker/abc\n"),
            ("proc/self/mountinfo", mounts.as_str()),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 536870912\n"),
        ];
        check(&files, Some(GIB + GIB / 2));
        // Without a limit, the value is the maximum of a page counter, so the machine's memory applies.
        let free = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        check(&[&files[..4], &[files[4], files[5], free]].concat(), Some(2_000_000_000 * 1024));
    }

    #[test]
    fn missing_or_invalid_limits_are_ignored() {
        check(&[MACHINE], Some(2_000_000_000 * 1024));
        check(&[], None);
        check(
            &[MACHINE, ("proc/self/cgroup", "garbage\n0::\n"), ("proc/self/mountinfo", "x - cgroup2\n")],
            Some(2_000_000_000 * 1024),
        );
        let full = [
            ("proc/self/cgroup", "0::/../other\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/memory.max", "4096\n"),
            ("sys/fs/cgroup/memory.current", "8192\n"),
        ];
        check(&full, Some(0));
    }

    #[test]
    fn this_machine_has_some() {
        assert!(available().is_some_and(|bytes| bytes > 0));
    }
}
