//! `deploy/slurm/prolog.sh` and `deploy/k8s/gate`: a node that doctor's gate refuses is drained, or its pod is not ready.

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

/// Runs the unchanged command of the DaemonSet's gate.
#[test]
fn pod_is_ready_only_on_node_without_fault() {
    let folder = tempfile::tempdir().unwrap();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/k8s/gate/daemonset.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let (_, block) = text.split_once("            - |\n").unwrap();
    let lines: Vec<&str> = block.lines().map_while(|line| line.strip_prefix("              ")).collect();
    let gate = |end: &str| {
        double(folder.path(), end);
        let mut shell = Command::new("bash");
        clean(&mut shell);
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        shell.args(["-euo", "pipefail", "-c", &lines.join("\n")]).env("PATH", path);
        shell.env("INSTANCE", "p5.48xlarge").env("LIMIT", "20").env("REPORTS", folder.path());
        run(shell)
    };
    let passed = gate("echo figures >${0%/*}/gate.json").expect(0);
    assert_eq!(passed.stdout, "figures\n");
    let report = folder.path().join("gate.json");
    let line = format!("ginlab: doctor --gate --instance p5.48xlarge --json {}\n", report.display());
    assert!(passed.stderr.ends_with(&line), "{}", passed.stderr);
    assert_eq!(gate("exit 3").expect(3).stdout, "figures\n");
    std::fs::remove_file(report).unwrap();
    assert_eq!(gate("exit 2").expect(2).stdout, "");
}
