//! Ranks as processes: the `local` bootstrap starting copies of this test program, the example, and two hosts emulated
//! by network namespaces.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use ginlab::bootstrap::{Bootstrap, BootstrapOptions, is_spawned_child};

const MODE: &str = "GINLAB_TEST_MODE";

/// Time that exceeds the limit of any of these tests, for the wait of a rank that only its parent can end.
const TOO_LONG: Duration = Duration::from_secs(20);

fn options() -> BootstrapOptions {
    BootstrapOptions { timeout: TOO_LONG, ..BootstrapOptions::default() }
}

/// Returns a command that runs this program as the ranks of `mode`.
fn again(mode: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "rank_of_parent_test", "--ignored", "--nocapture"]).env(MODE, mode);
    command
}

/// Runs the command to completion. Its children inherit stderr, so this also waits for the last of them.
fn run(mode: &str) -> (Output, String) {
    let began = Instant::now();
    let output = again(mode).output().unwrap();
    assert!(began.elapsed() < TOO_LONG, "{mode} left a process behind");
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    (output, text)
}

/// Body of the ranks that the following tests start. It is not itself a test.
#[test]
#[ignore = "started by the other tests"]
fn rank_of_parent_test() {
    let Ok(mode) = std::env::var(MODE) else { return };
    if mode == "kernel does not end" {
        return endless();
    }
    let rank: usize = std::env::var("GINLAB_RANK").ok().and_then(|rank| rank.parse().ok()).unwrap_or(0);
    assert_eq!(is_spawned_child(), rank > 0);
    if mode == "never joins" && rank == 1 {
        std::process::exit(7);
    }
    if mode == "stubborn" {
        ginlab::signals::install().unwrap();
    }
    let mut ranks = match Bootstrap::auto(Some(3), options()) {
        Ok(ranks) => ranks,
        Err(error) => return say(rank, &error.to_string()),
    };
    match &*mode {
        "fine" | "ends badly" => {
            let pids = ranks.all_gather(std::process::id().to_string().as_bytes(), "pids").unwrap();
            assert_eq!(pids.iter().collect::<std::collections::HashSet<_>>().len(), 3);
            let outcome = ranks.finish();
            if mode == "ends badly" && rank == 1 {
                std::process::exit(5);
            }
            say(rank, &format!("{outcome:?}"));
        }
        "leaves" => {
            if rank == 1 {
                std::process::exit(7);
            }
            say(rank, &ranks.barrier("row 3").unwrap_err().to_string());
        }
        "parent dies" | "parent drops" | "stubborn" => {
            if rank > 0 {
                std::thread::park_timeout(TOO_LONG);
            } else if mode == "parent dies" {
                nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
            } else {
                drop(ranks);
                say(rank, "dropped");
            }
        }
        other => panic!("no mode {other}"),
    }
}

/// Runs a kernel that never ends, on the emulated device.
fn endless() {
    unsafe fn spin(_: u64) {
        loop {
            cuda_std::thread::relax();
        }
    }
    let kernel = cuda_std::Kernel::new("spin", spin);
    // SAFETY: the kernel accesses no memory.
    let launch = unsafe { ginlab::cuda::Device::Emulated.launch(&kernel, 1, 1, 0u64) }.unwrap();
    let asked = || Err(ginlab::cuda::DeviceError::Missing("asked to end".into()));
    let _ = launch.wait_ending(Duration::from_millis(20), asked);
}

#[test]
fn endless_kernel_is_left_to_driver() {
    let (output, text) = run("kernel does not end");
    assert_eq!(output.status.code(), Some(124), "{text}");
    contains(&text, "the kernel has not ended 20ms after it was aborted");
}

fn say(rank: usize, text: &str) {
    // Uses a single write, so that lines of several processes are not interleaved.
    std::io::stderr().write_all(format!("[{rank}] {text}\n").as_bytes()).unwrap();
}

#[track_caller]
fn contains(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in: {text}");
}

#[test]
fn local_ranks_connect_and_finish() {
    let (output, text) = run("fine");
    assert!(output.status.success(), "{text}");
    for rank in 0..3 {
        contains(&text, &format!("[{rank}] Ok(())"));
    }
}

#[test]
fn child_that_never_joins_is_named() {
    let (_, text) = run("never joins");
    contains(&text, "[0] lost connection to rank 1 (host ");
    contains(&text, ") during \"start\": exit status: 7");
    // Rank 2 is notified, or exited before it could join.
    assert!(!text.contains("[2] timed out"), "{text}");
}

#[test]
fn leaving_child_is_named_with_status() {
    let (_, text) = run("leaves");
    contains(&text, ") during \"row 3\": exit status: 7\n");
    contains(&text, "[0] lost connection to rank 1 (host ");
}

#[test]
fn child_failing_after_last_step_fails_job() {
    let (_, text) = run("ends badly");
    contains(&text, "[0] Err(ChildFailed { rank: 1, pid: ");
    contains(&text, "status: \"exit status: 5\"");
}

#[test]
fn children_do_not_outlive_parent() {
    let (output, text) = run("parent dies");
    assert!(!output.status.success(), "{text}");
    for mode in ["parent drops", "stubborn"] {
        let (output, text) = run(mode);
        assert!(output.status.success(), "{text}");
        contains(&text, "[0] dropped");
    }
}

#[test]
fn ranks_example_prints_table() {
    // target/<profile>/deps/this-test and target/<profile>/examples/ranks
    let here = std::env::current_exe().unwrap();
    let example = here.parent().and_then(|deps| deps.parent()).unwrap().join("examples/ranks");
    if !example.exists() {
        println!(
            "skipped: {} is not built (`cargo test` builds it, `cargo test --test spawn` does not)",
            example.display()
        );
        return;
    }
    let output = Command::new(example).arg("3").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.lines().count(), 3);
    contains(&text, "local rank 2/3: local 2/3, host ");
}

/// Two network namespaces connected by a veth pair, removed when dropped.
struct TwoHosts([String; 2]);

impl TwoHosts {
    fn new() -> Result<Self, String> {
        let id = std::process::id();
        let hosts = TwoHosts(["a", "b"].map(|side| format!("ginlab-{id}-{side}")));
        let [a, b] = &hosts.0;
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        ip(&["-n", a, "link", "add", "rail0", "type", "veth", "peer", "name", "rail0", "netns", b])?;
        for (host, address) in [(a, "10.99.41.1/24"), (b, "10.99.41.2/24")] {
            ip(&["-n", host, "address", "add", address, "dev", "rail0"])?;
            ip(&["-n", host, "link", "set", "rail0", "up"])?;
            ip(&["-n", host, "link", "set", "lo", "up"])?;
        }
        Ok(hosts)
    }

    /// Starts the example on one of the hosts.
    fn start(&self, rank: usize, example: &PathBuf, token: &str) -> std::process::Child {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[rank]]).arg(example);
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2").env("GINLAB_TOKEN", token);
        command.env("MASTER_ADDR", "10.99.41.1").env("MASTER_PORT", "29400");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        for host in &self.0 {
            let _ = ip(&["netns", "delete", host]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("ip: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(format!("ip {}: {text}", arguments.join(" "))) }
}

#[test]
fn tcp_connects_two_hosts() {
    let here = std::env::current_exe().unwrap();
    let example = here.parent().and_then(|deps| deps.parent()).unwrap().join("examples/ranks");
    if !example.exists() {
        println!("skipped: {} is not built", example.display());
        return;
    }
    let hosts = match TwoHosts::new() {
        Ok(hosts) => hosts,
        Err(reason) => {
            println!("skipped: cannot make network namespaces (needs root and iproute2): {reason}");
            return;
        }
    };
    // Rank 1 starts first, so that it must retry until rank 0 listens.
    let second = hosts.start(1, &example, "token");
    let first = hosts.start(0, &example, "token").wait_with_output().unwrap();
    let second = second.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&[first.stdout, first.stderr, second.stderr].concat()).into_owned();
    assert!(first.status.success() && second.status.success(), "{text}");
    contains(&text, "tcp rank 0/2: local 0/1, host ");
    contains(&text, "tcp rank 1/2: local 0/1, host ");
}
