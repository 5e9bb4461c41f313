//! `deploy/slurm/prolog.sh`: a node that doctor's gate refuses is drained, and one that could not be checked is not.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common::{clean, run};

fn prolog(folder: &Path, program: &Path) -> Command {
    let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/slurm/prolog.sh"));
    clean(&mut script);
    script.env("GINLAB", program).env("REPORTS", folder.join("reports")).env("SLURM_JOB_ID", "7");
    script
}

/// Writes a program that prints its arguments to stderr and runs `end`.
fn double(folder: &Path, end: &str) -> std::path::PathBuf {
    let at = folder.join("ginlab");
    std::fs::write(&at, format!("#!/bin/sh\necho note >&2\necho \"ginlab: $*\" >&2\n{end}\n")).unwrap();
    std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o755)).unwrap();
    at
}

#[test]
fn only_faulty_node_is_drained() {
    let folder = tempfile::tempdir().unwrap();
    let with = |end: &str| run(prolog(folder.path(), &double(folder.path(), end)));
    assert_eq!(with("exit 0").expect(0).stderr, "");
    let report = folder.path().join("reports/gate-7.json");
    let refused = with("exit 3").expect(1);
    let line = format!(
        "prolog.sh: the node has a fault, or the checks took too long (exit code 3, {}): ginlab: doctor --gate --json {}\n",
        report.display(),
        report.display()
    );
    assert_eq!((refused.stderr, refused.stdout), (line, String::new()));
    assert!(with("exit 124").expect(1).stderr.contains("exit code 124"));
    let unchecked = with("exit 2").expect(0);
    assert!(
        unchecked.stderr.starts_with("prolog.sh: the node was not checked (exit code 2): "),
        "{}",
        unchecked.stderr
    );
}

#[test]
fn unknown_instance_type_drains_no_node() {
    let folder = tempfile::tempdir().unwrap();
    let mut script = prolog(folder.path(), Path::new(env!("CARGO_BIN_EXE_ginlab")));
    script.env("INSTANCE", "x9.large");
    let done = run(script).expect(0);
    assert!(done.stderr.contains("not checked (exit code 2)") && done.stderr.contains("x9.large"), "{}", done.stderr);
}
