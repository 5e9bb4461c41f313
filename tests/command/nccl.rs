//! `ginlab nccl` without a GPU and without NCCL: the variables that it sets, the programs that it starts, and rejected
//! options. Tests of the plugin itself: host/nccl_plugin/tests.

use crate::common::{ginlab, run};

/// Returns a command that runs a shell instead of an NCCL program.
fn over(args: &str, shell: &str) -> std::process::Command {
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
    // Processes started otherwise name themselves, by the preloaded plugin: the shell is one process, and the program
    // that it starts another one.
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
