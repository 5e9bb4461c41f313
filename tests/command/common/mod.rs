//! Runs the command in tests: every process within a deadline, without leaving any process.

pub mod lab;
pub mod libfabric2;
pub mod server;
#[path = "../../skips/mod.rs"]
mod skips;

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use ginlab::report::Row;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Time limit that no command of these tests reaches, even if other tests share the cores.
pub const TOO_LONG: Duration = Duration::from_secs(50);

/// Variables through which launchers and earlier jobs would affect a test.
const FOREIGN: [&str; 14] = [
    "GINLAB_",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_",
    "OMPI_",
    "PMI",
    "SLURM_",
    "SKYPILOT_",
    "TORCHELASTIC_",
    "NO_COLOR",
    "TERM",
    "CUDA_MPS_",
    "FI_",
];

/// Returns the command with these arguments (separated by spaces), in an environment without launchers.
pub fn ginlab(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ginlab"));
    command.args(args.split_whitespace());
    clean(&mut command);
    command
}

/// Sizes of libfabric's pools, which it zeroes for each endpoint, and the interval at which its connections make
/// progress.
///
/// For 8 endpoints over the NICs of a p5 the EFA provider zeroes 1480 MB with its defaults, 490 MB with these. For 8
/// endpoints over tcp, it zeroes 71 MB with 128 messages posted per connection and 27 MB with 64. The first 64 take one
/// pool each. By default, connections over tcp make a step every 10 ms while proxies spin: a minimal run of two ranks
/// takes 260 ms of CPU time instead of 190.
const POOLS: [(&str, &str); 6] = [
    ("FI_OFI_RXM_BUFFER_SIZE", "1024"),
    ("FI_OFI_RXM_CM_PROGRESS_INTERVAL", "300"),
    ("FI_OFI_RXM_MSG_RX_SIZE", "64"),
    ("FI_OFI_RXM_MSG_TX_SIZE", "64"),
    ("FI_EFA_RX_SIZE", "64"),
    ("FI_EFA_TX_SIZE", "64"),
];

/// Removes launchers from the environment, and makes libfabric start with small pools.
pub fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name != "GINLAB_LIBFABRIC"
            && name.to_str().is_some_and(|name| FOREIGN.iter().any(|foreign| name.starts_with(foreign)))
        {
            command.env_remove(name);
        }
    }
    command.envs(POOLS);
}

/// Returns the command under mpirun on this machine. Returns `None`, and prints the reason to stderr, if that is
/// impossible.
pub fn mpirun(ranks: usize, args: &str) -> Option<Command> {
    let mut command = Command::new("mpirun");
    if !cfg!(feature = "mpi") || Command::new("mpirun").arg("--version").output().is_err() {
        skip("built without the feature mpi, or no mpirun");
        return None;
    }
    clean(&mut command);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    // Idle ranks of Open MPI would spin otherwise. The launcher must not leave this machine.
    command.args("--oversubscribe --mca mpi_yield_when_idle 1 --mca btl self,vader -np".split_whitespace());
    command.arg(ranks.to_string()).arg(env!("CARGO_BIN_EXE_ginlab")).args(args.split_whitespace());
    Some(command)
}

/// Returns `ginlab proxy` with these arguments, on the emulated device, so that a machine with a GPU tests the same.
pub fn proxy(args: &str) -> Command {
    ginlab(&format!("proxy -d emulated {args}"))
}

/// Runs the command to completion.
#[track_caller]
pub fn run(command: Command) -> JobOutput {
    ProcessGroup::start(command).finish()
}

/// Output and exit code of a job.
#[derive(Debug)]
pub struct JobOutput {
    /// Exit code, or 128 + signal.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl JobOutput {
    /// Panics unless the code is this one.
    #[track_caller]
    pub fn expect(self, code: i32) -> JobOutput {
        assert_eq!(self.code, code, "stdout:\n{}stderr:\n{}", self.stdout, self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self
    }

    /// Returns the lines of stderr without the header.
    pub fn complaints(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| !line.starts_with("# ")).collect()
    }

    /// Returns the only line of stderr in addition to the header.
    #[track_caller]
    pub fn complaint(&self) -> &str {
        let lines = self.complaints();
        assert_eq!(lines.len(), 1, "one line was expected:\n{}", self.stderr);
        lines[0]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// A running process group. All its processes hold its stderr, so it ends with the last of them. Processes that
/// still run at the deadline, or when the job is dropped, are killed.
pub struct ProcessGroup {
    child: Child,
    lines: Receiver<(OutputStream, String)>,
    said: [String; 2],
    deadline: Instant,
}

impl ProcessGroup {
    /// Starts the command.
    pub fn start(command: Command) -> ProcessGroup {
        ProcessGroup::start_reading(command, usize::MAX)
    }

    /// Starts the command, and closes its stdout after `stdout_lines` lines.
    pub fn start_reading(mut command: Command, stdout_lines: usize) -> ProcessGroup {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        read(OutputStream::Stdout, child.stdout.take().unwrap(), stdout_lines, sender.clone());
        read(OutputStream::Stderr, child.stderr.take().unwrap(), usize::MAX, sender);
        ProcessGroup { child, lines, said: Default::default(), deadline: Instant::now() + TOO_LONG }
    }

    /// Extends the deadline of a job that consists of `times` runs.
    pub fn runs(mut self, times: u32) -> ProcessGroup {
        self.deadline += TOO_LONG * (times - 1);
        self
    }

    /// Waits for a line that contains `part`.
    #[track_caller]
    pub fn until(&mut self, stream: OutputStream, part: &str) {
        self.until_line(stream, part);
    }

    /// Waits for a line that contains `part`, and returns it.
    #[track_caller]
    pub fn until_line(&mut self, stream: OutputStream, part: &str) -> String {
        loop {
            match self.next() {
                Some((of, line)) if of == stream && line.contains(part) => return line,
                Some(_) => {}
                None => panic!("{part:?} did not come; {}", self.report()),
            }
        }
    }

    /// Returns the next line; `None` if all processes have exited.
    #[track_caller]
    fn next(&mut self) -> Option<(OutputStream, String)> {
        match self.lines.recv_timeout(self.deadline.saturating_duration_since(Instant::now())) {
            Ok((stream, line)) => {
                self.said[stream as usize] += &line;
                Some((stream, line))
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("not ended within {TOO_LONG:?}; {}", self.report()),
        }
    }

    fn report(&self) -> String {
        format!("stdout:\n{}stderr:\n{}", self.said[0], self.said[1])
    }

    /// Waits until all processes have exited.
    #[track_caller]
    pub fn finish(mut self) -> JobOutput {
        while self.next().is_some() {}
        let status = self.child.wait().unwrap();
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap();
        let [stdout, stderr] = std::mem::take(&mut self.said);
        JobOutput { code, stdout, stderr }
    }

    /// Sends a signal to the first process only.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Returns the first process.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Returns the process of a rank that `ginlab` has started.
    #[track_caller]
    pub fn rank(&self, rank: usize) -> Pid {
        let wanted = format!("GINLAB_RANK={rank}");
        let is_rank = |pid: &Pid| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        };
        let found = children(self.pid()).into_iter().find(is_rank);
        found.unwrap_or_else(|| panic!("no rank {rank} below {}", self.pid()))
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // The processes may have exited already.
        let _ = killpg(self.pid(), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

fn read(stream: OutputStream, pipe: impl Read + Send + 'static, most: usize, lines: Sender<(OutputStream, String)>) {
    std::thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        for _ in 0..most {
            let mut line = Vec::new();
            if pipe.read_until(b'\n', &mut line).is_err() || line.is_empty() {
                return;
            }
            if lines.send((stream, String::from_utf8_lossy(&line).into_owned())).is_err() {
                return;
            }
        }
    });
}

/// Returns a port that is not in use. Ephemeral ports are avoided, because the system may assign one to a connection of
/// another test before it is used. Concurrent tests have separate ranges below those, selected by the slot that nextest
/// assigns.
pub fn free_port() -> u16 {
    const FIRST: u32 = 20_000;
    const SLOTS: u32 = 120;
    const PORTS: u32 = 100;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let slot = std::env::var("NEXTEST_TEST_GLOBAL_SLOT").ok().and_then(|slot| slot.parse().ok()).unwrap_or(0);
    let first = FIRST + slot % SLOTS * PORTS;
    // Differs from the port of the previous test, whose program may not have exited yet.
    let next = || std::process::id().wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % PORTS;
    (0..PORTS)
        .map(|_| (first + next()) as u16)
        .find(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok())
        .expect("a free port")
}

/// Waits until a process listens on a port of 127.0.0.1. Its connections send nothing and close, like a port scan.
#[track_caller]
pub fn until_listening(port: u16) {
    wait_for(
        || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok(),
        &format!("somebody who listens on port {port}"),
    );
}

/// Polls `done` until it is true. Panics with `what` at the deadline.
#[track_caller]
pub fn wait_for(done: impl Fn() -> bool, what: &str) {
    let deadline = Instant::now() + TOO_LONG;
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::yield_now();
    }
}

/// Returns the processes with this parent.
pub fn children(parent: Pid) -> Vec<Pid> {
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name in parentheses may contain anything; state and parent follow the last parenthesis.
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        after_name.split(' ').nth(1) == Some(&parent.to_string())
    };
    pids.filter(is_child).map(Pid::from_raw).collect()
}

/// Returns one rank of a tcp job of two on this machine, with this command line.
pub fn tcp_rank(rank: usize, port: u16, token: &str, args: &str) -> Command {
    let mut command = ginlab(args);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", "2").env("GINLAB_TOKEN", token);
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command
}

/// Calls `one` for each item, `at_once` at a time: jobs that wait for a deadline leave the CPU to others.
pub fn beside_each_other<T: Sync>(at_once: usize, all: &[T], one: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(item) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    one(item);
                }
            });
        }
    });
}

/// Runs both concurrently.
pub fn both(first: Command, second: Command) -> (JobOutput, JobOutput) {
    let (first, second) = (ProcessGroup::start(first), ProcessGroup::start(second));
    (first.finish(), second.finish())
}

/// A line of a listing's CSV by column. Listings have other columns than [`rows`].
pub type ListingRecord = BTreeMap<String, String>;

/// Returns the lines of the CSV text of a listing.
#[track_caller]
pub fn records(csv: &str) -> Vec<ListingRecord> {
    csv::Reader::from_reader(csv.as_bytes()).deserialize().map(|record| record.unwrap()).collect()
}

/// Returns the rows of a CSV text, after a check of its columns.
#[track_caller]
pub fn rows(csv: &str) -> Vec<Row> {
    let mut lines = csv::Reader::from_reader(csv.as_bytes());
    let common: Vec<&str> = Row::COMMON.iter().map(|column| column.name).collect();
    assert_eq!(lines.headers().unwrap().iter().take(common.len()).collect::<Vec<_>>(), common);
    lines.deserialize().map(|row| row.unwrap_or_else(|error| panic!("{error} in:\n{csv}"))).collect()
}

/// Returns the rows of a CSV file.
#[track_caller]
pub fn rows_of(path: &Path) -> Vec<Row> {
    rows(&std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// Returns names and bytes of files, for `passed`.
pub fn contents(files: &[PathBuf]) -> Vec<u8> {
    let mut all = Vec::new();
    for file in files {
        let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        all.extend_from_slice(file.as_os_str().as_encoded_bytes());
        all.extend_from_slice(&bytes.len().to_le_bytes());
        all.extend_from_slice(&bytes);
    }
    all
}

/// Panics unless every row is measured and verified without a wrong byte.
#[track_caller]
pub fn all_verified(rows: &[Row]) {
    assert!(!rows.is_empty());
    for row in rows {
        // The minimal round trip transfers nothing that could be wrong.
        let expected = if row.case == "ping-pong" { None } else { Some(0) };
        assert_eq!((row.wrong_bytes, row.status.to_string().as_str()), (expected, "ok"), "{row:?}");
        assert!(row.time_us_p50.is_some_and(|time| time > 0.0), "{row:?}");
    }
}

/// Returns the number of rows with each value of a column.
pub fn count_by<T: std::hash::Hash + Eq>(rows: &[Row], value: impl Fn(&Row) -> T) -> HashMap<T, usize> {
    let mut counts = HashMap::new();
    for row in rows {
        *counts.entry(value(row)).or_default() += 1;
    }
    counts
}

pub use skips::skip;
