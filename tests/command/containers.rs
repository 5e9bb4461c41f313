//! Restrictions of containers: shared memory and system calls. The message must name the root cause.

use crate::common::{all_verified, ginlab, rows, run, skip};
use nix::libc;
use nix::sys::resource::{Resource, setrlimit};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Returns a command with its own `/dev/shm` of this size. Returns `None`, and prints the reason to stderr, if none can
/// be mounted.
fn in_shared_memory(size: &str, words: &[&str]) -> Option<Command> {
    let mounted = format!("mount -t tmpfs -o size={size} tmpfs /dev/shm && exec \"$@\"");
    let unshare = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "bash", "-c", &mounted, "bash"]).args(words);
        command
    };
    if !unshare(&["true"]).output().is_ok_and(|output| output.status.success()) {
        skip("no mount of its own for /dev/shm (root, unshare)");
        return None;
    }
    let mut command = unshare(words);
    command.envs(ginlab("").get_envs().filter_map(|(name, value)| Some((name, value?))));
    crate::common::clean(&mut command);
    // The mount hides a TMPDIR below /dev/shm.
    command.env("TMPDIR", "/tmp");
    Some(command)
}

/// Returns `ginlab` in its own `/dev/shm`, like [`in_shared_memory`].
fn with_shared_memory(size: &str, args: &str) -> Option<Command> {
    let words: Vec<&str> = std::iter::once(env!("CARGO_BIN_EXE_ginlab")).chain(args.split_whitespace()).collect();
    in_shared_memory(size, &words)
}

/// The software NICs use one page of /dev/shm per object.
#[test]
fn soft_nics_need_little_shared_memory() {
    let args = "all2all -p efa-verbs/soft:fast -d emulated --np 4 --rails 4 -b 8 -e 8 -n 20 --csv -";
    let Some(command) = with_shared_memory("240k", args) else { return };
    all_verified(&rows(&run(command).expect(0).stdout));
}

/// Uses Docker's default size, with more endpoints than fit over libfabric 1.17. The job must be rejected before a
/// missing page is accessed.
#[test]
fn oversized_endpoints_are_rejected() {
    let args = "write -p soft-efa:fast,cards=4 -d emulated --np 6 --rails 4 -b 8 -e 8 -n 2 -r 1 -t 15 --csv -";
    let Some(command) = with_shared_memory("64m", args) else { return };
    let done = run(command);
    if done.code == 0 {
        return all_verified(&rows(&done.stdout));
    }
    let full = "/dev/shm is full: libfabric needs 4194304 B in it for an endpoint, ";
    assert!(
        matches!(done.code, 1 | 2) && done.stderr.contains(full) && done.stderr.contains("--shm-size"),
        "{}",
        done.stderr
    );
    assert!(
        !done.stderr.contains("shared memory is full: /dev/shm has") && !done.stderr.contains("crashed"),
        "{}",
        done.stderr
    );
}

#[test]
fn full_shared_memory_is_reported() {
    for provider in ["soft-efa:fast", "efa-verbs/soft:fast", "shm"] {
        // Inodes also take pages, one for the file system and one for the directory.
        let args = format!("write -p {provider} -d emulated --np 2 --rails 1 -b 8 -e 8 -n 2 -r 1 -t 10");
        let Some(command) = with_shared_memory("16k", &args) else { return };
        let done = run(command);
        assert!(done.code == 1 || done.code == 2, "{provider}: {}: {}", done.code, done.stderr);
        let lines = done.complaints();
        let named = lines.iter().find(|line| line.contains("/dev/shm") && line.contains("full"));
        let named = named.unwrap_or_else(|| panic!("{provider}: {}", done.stderr));
        assert!(named.contains("available") && named.contains("--shm-size"), "{named}");
        for wrong in ["process crashed", "ulimit -v", "security group"] {
            assert!(!done.stderr.contains(wrong), "{provider}: {}", done.stderr);
        }
    }
}

#[test]
fn read_only_shared_memory_is_reported() {
    for provider in ["soft-efa:fast", "efa-verbs/soft:fast", "shm"] {
        let args = format!("write -p {provider} -d emulated --np 2 --rails 1 -b 8 -e 8 -n 2 -r 1 -t 10");
        let Some(command) = with_shared_memory("64m,ro", &args) else { return };
        let done = run(command);
        assert!(done.code == 1 || done.code == 2, "{provider}: {}: {}", done.code, done.stderr);
        let is_named = |line: &&&str| line.contains("/dev/shm cannot be used: Read-only file system");
        let lines = done.complaints();
        let named = lines.iter().find(is_named).unwrap_or_else(|| panic!("{provider}: {}", done.stderr));
        assert!(named.contains("a tmpfs that this user can write to"), "{named}");
    }
}

/// Makes these system calls fail with EPERM in a command, like a container's filter.
fn deny(command: &mut Command, calls: &[libc::c_long]) {
    let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    // The number of the call is at the start of the filter's data.
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for call in calls {
        filter.push(statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call as u32, 0, 1));
        filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0));
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0));
    let install = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: the closure makes only system calls. The filter lives as long as the closure, and the kernel copies
        // it.
        let refused = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
        };
        if refused { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec the closure makes only system calls.
    unsafe { command.pre_exec(install) };
}

#[test]
fn forbidden_cross_memory_calls_are_reported() {
    let calls = [libc::SYS_process_vm_readv, libc::SYS_process_vm_writev];
    let two = "-d emulated --np 2 --rails 1 -n 2 -r 1 -t 10";
    for args in [
        "doctor -p soft-efa:p5 --only smoke".to_owned(),
        format!("write -p soft-efa:fast -b 64 -e 64 {two}"),
        format!("write -p soft-efa:fast -b 256K -e 256K {two}"),
        format!("proxy -p soft-efa:p5 -b 4K -e 4K {two}"),
        format!("write -p efa-verbs/soft:fast -b 64 -e 64 {two}"),
    ] {
        let mut command = ginlab(&args);
        deny(&mut command, &calls);
        let done = run(command);
        assert_ne!(done.code, 0, "{args}");
        let all = done.stdout + &done.stderr;
        let named = ["process_vm_", "seccomp", "CAP_SYS_PTRACE", "--cap-add SYS_PTRACE", "ptrace_scope"];
        let is_named = |line: &str| named.iter().all(|word| line.contains(word));
        assert!(all.lines().any(is_named), "{args}: {all}");
        for wrong in ["security group", "firewall", "no memory", "ulimit -v"] {
            assert!(!all.contains(wrong), "{args}: {all}");
        }
    }
}

/// The sockets of three ranks with four rails exceed the limit of open files.
#[test]
fn limit_of_open_files_is_named() {
    let many_sockets = |hard| {
        let mut command = ginlab("all2all -p tcp -d emulated --np 3 --rails 4 -b 4K -e 4K -n 3 -w 0 -t 5 --csv -");
        let limit = move || Ok(setrlimit(Resource::RLIMIT_NOFILE, 48, hard)?);
        // SAFETY: between fork and exec the closure makes only a system call.
        unsafe { command.pre_exec(limit) };
        run(command)
    };
    // The soft limit is raised.
    all_verified(&rows(&many_sockets(256).expect(0).stdout));
    let done = many_sockets(48);
    assert!(matches!(done.code, 1 | 2), "{}: {}", done.code, done.stderr);
    assert!(done.stderr.contains("open files are needed, but the limit is 48; raise it (ulimit -n"), "{}", done.stderr);
}

/// A job whose first process is killed, and then a normal one. The job's ranks have exited when the `cat` that reads
/// their output has.
const AFTER_A_KILL: &str = r#"
exec 3> >(cat >/dev/null); reader=$!
"$0" write -p soft-efa:fast -d emulated --np 2 --rails 1 -b 64 -e 64 -n 100000000 -r 1 >&3 2>&3 & starter=$!
exec 3>&-
# Both ranks have recorded the files of their endpoints.
until [ "$(grep -l . /dev/shm/ginlab-*/* 2>/dev/null | wc -l)" = 2 ]; do :; done
kill -9 $starter; wait $starter 2>/dev/null; wait $reader
"$0" write -p soft-efa:fast -d emulated --np 2 --rails 1 -b 64 -e 64 -n 2 -r 1 --no-header >/dev/null || exit
ls -A /dev/shm
"#;

#[test]
fn next_run_removes_files_of_killed_jobs() {
    let words = ["bash", "-c", AFTER_A_KILL, env!("CARGO_BIN_EXE_ginlab")];
    let Some(command) = in_shared_memory("256m", &words) else { return };
    assert_eq!(run(command).expect(0).stdout, "");
}
