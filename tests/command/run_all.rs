//! `deploy/run-all.sh`: all measurements of the first hour by one command, on two nodes that are network namespaces.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common::lab::{Lab, command};
use crate::common::{JobOutput, ProcessGroup, all_verified, clean, rows_of, run};

/// Writes a remote shell: runs a line on the node that the host's name ends with.
fn remote_shell(lab: &Lab, at: &Path) {
    let namespace = lab.namespace(0);
    let prefix = namespace.strip_suffix('0').unwrap();
    std::fs::write(at, format!("#!/bin/bash\nexec ip netns exec {prefix}\"${{1##*-}}\" bash -c \"$2\"\n")).unwrap();
    std::fs::set_permissions(at, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn run_all(lab: &Lab, folder: &Path, out: &str) -> JobOutput {
    let shell = folder.join("rsh");
    remote_shell(lab, &shell);
    let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/run-all.sh"));
    script.args(["node-0", "node-1"]).current_dir(folder);
    clean(&mut script);
    script
        .env("RSH", shell)
        .env("GINLAB", env!("CARGO_BIN_EXE_ginlab"))
        .env("OUT", out)
        .env("MASTER_ADDR", "10.99.0.1");
    script.envs([("PROVIDER", "tcp"), ("DEVICE", "emulated"), ("GPUS", "1"), ("RAILS", "2")]);
    script
        .env("WRITE", "-b 64K -e 64K -n 8 -r 2 --at-least 0.04")
        .env("PROXY", "-b 64K -e 64K -n 4 -w 1 -r 2 --mode nbi");
    ProcessGroup::start(script).runs(4).finish()
}

#[test]
fn one_command_measures_reports_and_judges() {
    let Some(lab) = Lab::up("--rails 2 --rate 80mbit") else { return };
    let folder = tempfile::tempdir().unwrap();
    let done = run_all(&lab, folder.path(), "good").expect(0);
    assert!(done.stdout.ends_with("verdict: 2 hosts and their rails are as expected\n"), "{}", done.stdout);
    for name in ["rails.csv", "node.csv", "node-pinned.csv"] {
        let rows = rows_of(&folder.path().join("good").join(name));
        assert!(rows.iter().all(|row| row.ranks == 2), "{name}");
        if name == "rails.csv" {
            all_verified(&rows);
        }
    }
    let report = std::fs::read_to_string(folder.path().join("good/report.html")).unwrap();
    assert!(report.contains("node-pinned"), "the report has both memories");

    let slow =
        format!("tc -n {} qdisc change dev rail1 root tbf rate 20mbit burst 128kb latency 400ms", lab.namespace(1));
    command(&slow).unwrap();
    let done = run_all(&lab, folder.path(), "slow").expect(3);
    assert!(done.stdout.ends_with("verdict: rails: not as expected\n"), "{}", done.stdout);
    assert!(done.stdout.contains("node-0: ginlab: 1 of 4 rails is below 0.04 Gb/s: "), "{}", done.stdout);
    assert!(folder.path().join("slow/node.csv").is_file(), "the other experiments ran");
    let verdict = std::fs::read_to_string(folder.path().join("slow/verdict.txt")).unwrap();
    assert_eq!(verdict, "verdict: rails: not as expected\n");
}

#[test]
fn one_command_needs_two_hosts() {
    let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/run-all.sh"));
    script.arg("node-0");
    assert!(run(script).expect(2).complaint().contains("expected at least two hosts"));
}
