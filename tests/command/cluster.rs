//! Tests the launch files with the programs that read them. These are a real Slurm, and the commands of the MPIJob's
//! containers, on nodes that are network namespaces. The tests need slurm-wlm, openssh-server and root, and otherwise
//! report what is missing.

use std::path::Path;
use std::process::Command;

use crate::common::{all_verified, clean, rows_of, skip};

/// Runs a script of `scripts/` that creates and removes its own cluster and bounds its waits. Returns false if it
/// cannot run.
#[track_caller]
fn script(name: &str, folder: &Path) -> bool {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(name));
    clean(&mut command);
    command.arg(folder).env("GINLAB", env!("CARGO_BIN_EXE_ginlab")).env("RATE", "1gbit");
    command.env("WRITE", "-b 64K -e 64K -n 4 -r 2");
    command.env("PROXY", "-b 64K -e 64K -n 4 -w 1 -r 2 --mode nbi").env("ALL2ALL", "-b 64K -e 64K -n 4 -w 1");
    let done = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    if done.status.code() == Some(77) {
        skip(stderr.trim());
        return false;
    }
    assert!(done.status.success(), "{name}: {:?}\n{stdout}\n{stderr}", done.status);
    true
}

/// Returns the state of a check in a document written by doctor.
#[track_caller]
fn state(document: &Path, check: &str) -> String {
    let text = std::fs::read_to_string(document).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let findings = document["findings"].as_array().unwrap();
    let of_check = |finding: &&serde_json::Value| finding["check"] == check;
    findings.iter().find(of_check).unwrap()["state"].as_str().unwrap().to_owned()
}

#[test]
fn slurm_runs_batch_file() {
    let folder = tempfile::tempdir().unwrap();
    if !script("slurm-lab.sh", folder.path()) {
        return;
    }
    let slurm = folder.path().join("slurm");
    assert_eq!(state(&slurm.join("doctor.json"), "peers-rails"), "ok");
    for name in ["rails.csv", "proxy.csv", "proxy-pinned.csv", "all2all.csv"] {
        let rows = rows_of(&slurm.join(name));
        all_verified(&rows);
        assert!(rows.iter().all(|row| row.ranks == 2));
    }
}

#[test]
fn mpijob_containers_run_their_commands() {
    let folder = tempfile::tempdir().unwrap();
    if !script("k8s-lab.sh", folder.path()) {
        return;
    }
    assert_eq!(state(&folder.path().join("doctor.json"), "peers-rails"), "ok");
    for name in ["rails.json", "proxy.json", "proxy-pinned.json", "all2all.json"] {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let rows = document["rows"].as_array().unwrap();
        assert!(
            document["complete"] == true && !rows.is_empty() && rows.iter().all(|row| row["wrong_bytes"] == 0),
            "{name}"
        );
    }
}
