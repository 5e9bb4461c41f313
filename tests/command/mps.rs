//! Ranks that share a GPU: the run's own MPS server, emulated by a double of NVIDIA's program, is started once, is
//! found by the ranks, and ends with the run, regardless of how the run ends.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::{JobOutput, OutputStream, ProcessGroup, TOO_LONG, children, ginlab, run};

const DOUBLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mps");

/// A directory for its own temporary files. The double behaves according to `mode`.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new(mode: &str) -> Machine {
        let machine = Machine { folder: tempfile::tempdir().unwrap() };
        fs::DirBuilder::new().mode(0o700).create(machine.runs()).unwrap();
        fs::write(machine.runs().join("mode"), mode).unwrap();
        machine
    }

    fn runs(&self) -> PathBuf {
        let path = self.folder.path();
        path.join(format!("ginlab-mps-{}", path.metadata().unwrap().uid()))
    }

    /// Returns a command with two PEs that would run on `gpus` GPUs.
    fn shmem(&self, gpus: usize, args: &str) -> Command {
        self.command(&format!("shmem --pretend-gpus {gpus} --cases signal-ping-pong -w 1 {args}"))
    }

    fn command(&self, args: &str) -> Command {
        let mut command = ginlab(args);
        let path = std::env::var("PATH").unwrap();
        command.env("TMPDIR", self.folder.path()).env("PATH", format!("{DOUBLE}:{path}"));
        command
    }

    /// Starts a run that lasts until it is ended, and waits until it measures.
    fn long_run(&self) -> ProcessGroup {
        let many = "-n 1000 -r 1 --block 1,2,3,4,5,6,7,8,9 --cases barrier-all,all-to-all -b 8 -e 4M -f 2";
        let mut job = ProcessGroup::start(self.shmem(1, many));
        job.until(OutputStream::Stdout, "barrie");
        job
    }

    /// Returns the requests that the double received, in order.
    fn record(&self) -> Vec<String> {
        let text = fs::read_to_string(self.runs().join("record")).unwrap_or_default();
        text.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    }

    /// Returns the processes of the double.
    fn servers(&self) -> Vec<Pid> {
        let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let here = format!("CUDA_MPS_PIPE_DIRECTORY={}", self.runs().display());
        let is_server = |pid: &i32| {
            let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            read("comm").starts_with(b"nvidia-cuda-mps")
                && read("environ").split(|byte| *byte == 0).any(|one| one.starts_with(here.as_bytes()))
        };
        pids.filter(is_server).map(Pid::from_raw).collect()
    }

    /// Checks that no process or directory of a server remains.
    #[track_caller]
    fn expect_nothing_left(&self) {
        let folders = fs::read_dir(self.runs()).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir());
        assert_eq!((self.servers(), folders.count()), (Vec::new(), 0), "{:?}", self.record());
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for pid in self.servers() {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
}

/// Method of ending a run: description, exit code and function.
type End = (&'static str, i32, fn(&ProcessGroup));

/// Returns the process of the run itself, which is a child of the process that waits for it, and the process of rank 1.
#[track_caller]
fn ranks(job: &ProcessGroup) -> [Pid; 2] {
    let zero = children(job.pid())[0];
    [zero, children(zero)[0]]
}

const SHORT: &str = "--np 2 -n 4 -r 1 --csv -";

#[test]
fn one_server_serves_all_ranks() {
    let machine = Machine::new("");
    let done = run(machine.shmem(1, "--np 3 -n 4 -r 1 --csv -")).expect(0);
    assert_eq!(machine.record(), ["start", "quit", "ended"]);
    machine.expect_nothing_left();
    // The run has found the server, and its output is this process's.
    let pipe = format!("CUDA_MPS_PIPE_DIRECTORY={}/", machine.runs().display());
    assert!(done.stderr.contains(&pipe) && done.stdout.lines().count() == 2, "{}{}", done.stderr, done.stdout);
    assert!(done.complaints().is_empty(), "{}", done.stderr);
}

#[test]
fn no_server_is_started_without_need() {
    let machine = Machine::new("");
    for (gpus, args) in [(2, SHORT), (1, "-d emulated --np 2 -n 4 -r 1"), (0, SHORT), (1, "--mps off --np 2 -n 4 -r 1")]
    {
        run(machine.shmem(gpus, args)).expect(0);
    }
    // Usage errors are reported before a server is started.
    run(machine.shmem(1, "--np 1")).expect(2);
    // Ranks can be threads of one process.
    let threads = "soak --seeds 1 -- shmem --pretend-gpus 1 --np 2 --cases signal-ping-pong -w 1 -n {seed} -r 1";
    run(machine.command(threads)).expect(0);
    // A launcher can start the rank.
    let mut launched = machine.shmem(1, "-n 4 -r 1");
    launched.env("OMPI_COMM_WORLD_SIZE", "1").env("OMPI_COMM_WORLD_RANK", "0");
    assert_ne!(run(launched).code, 0, "one PE is none");
    // Half of these ranks launch kernels, each on its own GPU.
    let mut proxy = ginlab("proxy --pretend-gpus 1 -p tcp -n 2 -w 1 -r 1 -e 4K");
    proxy.env("TMPDIR", machine.folder.path()).env("PATH", format!("{DOUBLE}:{}", std::env::var("PATH").unwrap()));
    run(proxy).expect(0);
    assert_eq!(machine.record(), [""; 0]);
}

#[test]
fn existing_server_is_used_and_kept() {
    let machine = Machine::new("");
    let theirs = machine.folder.path().join("theirs/run/pipe");
    fs::create_dir_all(&theirs).unwrap();
    fs::create_dir(theirs.with_file_name("log")).unwrap();
    let asked = |what: &[&str]| {
        let mut command = Command::new(format!("{DOUBLE}/nvidia-cuda-mps-control"));
        command.args(what).env("CUDA_MPS_PIPE_DIRECTORY", &theirs);
        command.env("CUDA_MPS_LOG_DIRECTORY", theirs.with_file_name("log"));
        command
    };
    assert!(asked(&["-d"]).status().unwrap().success());
    let named = |args| {
        let mut command = machine.shmem(1, args);
        command.env("CUDA_MPS_PIPE_DIRECTORY", &theirs);
        run(command).expect(0)
    };
    named(SHORT);
    let record = || fs::read_to_string(machine.folder.path().join("theirs/record")).unwrap();
    assert!(record().starts_with("start") && record().lines().count() == 1, "{}", record());
    let mut quit = asked(&[]);
    let mut quit = quit.stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut quit.stdin.take().unwrap(), b"quit\n").unwrap();
    quit.wait().unwrap();
    let deadline = Instant::now() + TOO_LONG;
    while !record().ends_with("ended\n") {
        assert!(Instant::now() < deadline, "{}", record());
        std::thread::yield_now();
    }
    // If the user names a directory in which no server runs any longer, the directory stays unchanged.
    named(SHORT);
    assert_eq!((machine.record(), record().lines().count()), (Vec::new(), 3));
}

#[test]
fn run_continues_if_server_cannot_start() {
    for mode in ["fails", "silent"] {
        let machine = Machine::new(mode);
        let done = run(machine.shmem(1, SHORT)).expect(0);
        assert_eq!((machine.record(), done.stdout.lines().count()), (vec!["start".to_owned()], 2), "{mode}");
        machine.expect_nothing_left();
    }
}

#[test]
fn server_ends_with_interrupted_or_failed_run() {
    let ended: [End; 4] = [
        ("SIGINT", 130, |job| job.signal(Signal::SIGINT)),
        ("SIGTERM", 130, |job| job.signal(Signal::SIGTERM)),
        ("rank 1 is killed", 1, |job| kill(ranks(job)[1], Signal::SIGKILL).unwrap()),
        ("the run is killed", 137, |job| kill(ranks(job)[0], Signal::SIGKILL).unwrap()),
    ];
    for (what, code, end) in ended {
        let machine = Machine::new("");
        let job = machine.long_run();
        assert_eq!(machine.record(), ["start"], "{what}");
        end(&job);
        let done: JobOutput = job.finish();
        assert_eq!(done.code, code, "{what}: {}", done.stderr);
        assert!(done.complaints().len() <= 1, "{what}: said once: {}", done.stderr);
        assert_eq!(machine.record(), ["start", "quit", "ended"], "{what}");
        machine.expect_nothing_left();
    }
}

#[test]
fn next_run_removes_leftovers_of_killed_run() {
    let machine = Machine::new("");
    let job = machine.long_run();
    job.signal(Signal::SIGKILL);
    // The ranks exit with their launcher.
    assert_eq!(job.finish().code, 137);
    assert_eq!((machine.servers().is_empty(), machine.record()), (false, vec!["start".to_owned()]));
    // A run that needs no server suffices.
    run(machine.shmem(2, SHORT)).expect(0);
    // On a busy machine the server may be killed before it records that it has ended.
    assert_eq!(machine.record()[..2], ["start", "quit"]);
    machine.expect_nothing_left();
}
