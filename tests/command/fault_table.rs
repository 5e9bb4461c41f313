//! Tests a bounded part of the table of faults (scripts/tables/faults.toml), and whether its runner detects failures.

use crate::common::{TOO_LONG, skip};
use nix::unistd::Uid;
use std::collections::HashMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const GINLAB: &str = env!("CARGO_BIN_EXE_ginlab");

fn table(program: &Path, folder: &Path, cells: &str, jobs: &str) -> Output {
    // A cell that fails on a busy machine is run again.
    let limit = (3 * TOO_LONG).as_secs().to_string();
    let mut command = Command::new("timeout");
    command
        .args([&*limit, concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/matrix.py"), "faults", "--ginlab"])
        .arg(program);
    // Sets deadlines that suffice on a machine that other tests use concurrently.
    command.args(["--only", cells, "--jobs", jobs, "--set", "deadline=8", "--out"]).arg(folder).output().unwrap()
}

/// Returns the rows that were run, by their cells.
fn rows(folder: &Path) -> HashMap<String, HashMap<String, String>> {
    let mut reader = csv::Reader::from_path(folder.join("faults.csv")).unwrap();
    let rows = reader.deserialize().map(|row| row.unwrap());
    let name = |row: &HashMap<String, String>| format!("{} / {} / {}", row["program"], row["fabric"], row["fault"]);
    rows.map(|row| (name(&row), row)).collect()
}

fn is_root() -> bool {
    let root = Uid::effective().is_root();
    if !root {
        skip("the table of faults makes name spaces: root is needed");
    }
    root
}

#[test]
fn sample_of_fault_table_passes() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let cells = "/(proxy nbi / tcp / proxy stopped|write / tcp / peer killed|shmem / direct / error completion 7|\
                 serve . join / tcp / peer killed|jacobi resident / memory / full disk under --csv)$";
    let done = table(Path::new(GINLAB), folder.path(), cells, "2");
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let rows = rows(folder.path());
    assert_eq!(rows.len(), 5, "{rows:?}");
    for (cell, row) in rows {
        assert!(row["status"] == "ok" && row["leftovers"].is_empty() && !row["message"].is_empty(), "{cell}: {row:?}");
    }
}

/// The program does not report the failure and leaves a process and a file. Each of these three shortfalls must be
/// detected.
#[test]
fn fault_table_detects_shortfalls() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("ginlab");
    let text = "#!/bin/sh\n\
        sleep 30 & echo x > /tmp/left; echo x > /dev/shm/left\n\
        echo 'ginlab: well' >&2; exit 7\n";
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let done = table(&program, folder.path(), "/proxy nbi / (tcp / proxy stopped|tcp / wrong token)$", "1");
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let rows = rows(folder.path());
    let status = &rows["proxy nbi / tcp / proxy stopped"]["status"];
    for part in ["failed: exit code 7", "left: ", "/dev/shm/left", "/tmp/left", "process sleep 30"] {
        assert!(status.contains(part), "{part:?} is not in: {status}");
    }
    assert!(rows["proxy nbi / tcp / wrong token"]["status"].starts_with("failed: "), "{rows:?}");
}

/// docs/faults.md must be what its command generates from the newest table.
#[test]
fn faults_page_matches_table() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders =
        root.join("data/cpu").read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let newest = folders.filter(|name| name.ends_with("-faults")).max().expect("a table of faults");
    let mut command = Command::new(root.join("scripts/faults-page.py"));
    let done = command.args([&format!("data/cpu/{newest}"), "--check"]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
