//! `ginlab nccl` without a GPU and without NCCL: the variables that it sets, the programs that it starts, and rejected
//! options. Tests of the plugin itself: host/nccl_plugin/tests.

use crate::common::{ginlab, run};
use std::path::Path;
use std::process::Command;

/// Returns a command that runs a shell instead of an NCCL program.
fn over(args: &str, shell: &str) -> Command {
    let mut command = ginlab(&format!("nccl {args} --mps off --"));
    command.args(["sh", "-c", shell]).env_remove("NCCL_HOSTID").env_remove("LD_PRELOAD");
    command
}

#[test]
fn variables_are_printed_as_shell_commands() {
    let said = run(ginlab("nccl --print-env -p model:p5 --rails 4 --strategy split --rule own")).expect(0).stdout;
    for line in [
        "NCCL_GIN_TYPE='2'",
        "GINLAB_RAILS='model:p5'",
        "GINLAB_RAIL_COUNT='4'",
        "GINLAB_STRATEGY='split'",
        "GINLAB_RULE='own'",
    ] {
        assert!(said.lines().any(|found| found == format!("export {line}")), "{line} is not in {said}");
    }
    let plugin =
        said.lines().find_map(|line| line.strip_prefix("export NCCL_RMA_PLUGIN='")).unwrap().trim_end_matches('\'');
    assert!(std::path::Path::new(plugin).is_absolute() && std::path::Path::new(plugin).is_file(), "{plugin}");
}

#[test]
fn each_process_is_one_node() {
    let done = run(over("--np 3", "echo $RANK of $WORLD_SIZE on $NCCL_HOSTID at $NCCL_COMM_ID")).expect(0);
    let mut lines: Vec<&str> = done.stdout.lines().collect();
    lines.sort_unstable();
    let meeting = lines[0].rsplit(' ').next().unwrap();
    assert!(meeting.starts_with("127.0.0.1:"), "{meeting}");
    let expected: Vec<String> = (0..3).map(|rank| format!("{rank} of 3 on ginlab-{rank} at {meeting}")).collect();
    assert_eq!(lines, expected);
    assert!(done.stderr.contains("NCCL has not used the plugin"), "{}", done.stderr);
    // In processes that are started otherwise, the preloaded plugin sets the name. The shell is one process, and the
    // program that it starts is another one.
    let done = run(over("", "echo $$ $NCCL_HOSTID; env | grep ^NCCL_HOSTID=")).expect(0);
    let (shell, other) = done.stdout.trim().split_once('\n').unwrap();
    let (number, name) = shell.split_once(' ').unwrap();
    assert_eq!(name, format!("ginlab-process-{number}"));
    assert!(other.starts_with("NCCL_HOSTID=ginlab-process-") && !other.ends_with(&format!("-{number}")), "{other}");
}

#[test]
fn failed_rank_ends_run_with_its_code() {
    let done = run(over("--np 2", "if [ $RANK = 1 ]; then exit 7; fi")).expect(7);
    assert!(done.stderr.contains("ginlab: rank 1 failed: exit status: 7"), "{}", done.stderr);
    run(over("", "exit 3")).expect(3);
}

#[test]
fn invalid_options_print_one_line() {
    for (args, why) in [
        ("nccl", "no program given"),
        ("nccl --np 2 -p null -- true", "NCCL's kernels would wait indefinitely"),
        ("nccl --np 2 -p model:p3 -- true", "expected one of model:p4d"),
        ("nccl --np 2 --rule never -- true", "expected one of count, own, drain, sequence"),
        ("nccl --np 2 --fault late:1 -- true", "expected lost:N, error:N, dead:N or slow:US"),
        ("nccl --np 2 --nccl /nowhere -- true", "/nowhere/libnccl.so.2 does not exist"),
        ("nccl --mps off -- /no/such/program", "/no/such/program: "),
    ] {
        let said = run(ginlab(args)).expect(2);
        let line = said.complaint();
        assert!(line.contains(why), "{args}: {line}");
    }
}

/// Builds a library that only answers `ncclGetVersion`.
fn library(folder: &Path, version: u32) {
    std::fs::create_dir(folder).unwrap();
    compile(
        &folder.join("libnccl.so.2"),
        &format!("int ncclGetVersion(int *v) {{ *v = {version}; return 0; }}"),
        &["-shared", "-fPIC", "-Wl,-soname,libnccl.so.2"],
    );
}

fn compile(to: &Path, code: &str, options: &[&str]) {
    let source = to.with_extension("c");
    std::fs::write(&source, code).unwrap();
    let mut command = Command::new("cc");
    command.arg("-o").arg(to).arg(&source).args(options);
    let done = command.output().expect("a C compiler");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn named_library_precedes_rpath_and_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    library(&old, 22809);
    library(&new, 23203);
    let program = folder.path().join("program");
    let old_library = old.join("libnccl.so.2").display().to_string();
    let rpath = format!("-Wl,--disable-new-dtags,-rpath,{}", old.display());
    compile(
        &program,
        "#include <stdio.h>\nint ncclGetVersion(int *); int main() { int v; ncclGetVersion(&v); printf(\"%d\\n\", v); }",
        &[&old_library, &rpath],
    );
    let over = |options: &str| {
        let mut command = ginlab(&format!("nccl --np 2 --mps off {options} --"));
        command.arg(&program).env_remove("LD_PRELOAD");
        run(command).expect(0)
    };
    let done = over("");
    assert_eq!(done.stdout, "22809\n22809\n");
    assert!(
        done.stderr.contains(&format!("ginlab: ranks 0, 1 loaded NCCL 2.28.9 ({old_library})\n"))
            && done.stderr.contains("NCCL has not used the plugin: it requires NCCL 2.30.0 or newer"),
        "{}",
        done.stderr
    );
    let done = over(&format!("--nccl {}", new.display()));
    assert_eq!(done.stdout, "23203\n23203\n");
    let line = format!("ginlab: ranks 0, 1 loaded NCCL 2.32.3 ({})\n", new.join("libnccl.so.2").display());
    assert!(done.stderr.contains(&line) && !done.stderr.contains("2.28.9"), "{}", done.stderr);
}

#[test]
fn path_that_cannot_be_preloaded_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let with_colon = folder.path().join("a:b");
    std::fs::create_dir(&with_colon).unwrap();
    std::fs::write(with_colon.join("libnccl.so.2"), "").unwrap();
    let mut command = ginlab("nccl --print-env --nccl");
    command.arg(&with_colon);
    let said = run(command).expect(2);
    assert!(said.complaint().contains("LD_PRELOAD separates paths"), "{}", said.stderr);
}
