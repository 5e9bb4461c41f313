//! NVSHMEM's side of a comparison: a separate program (baseline/nvshmem.cu) that measures on request, line by line.

use super::args::ShmemConfig;
use crate::error::Failure;
use crate::values::name;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Times of one launch in microseconds, defined like ginlab's: one-way times for ping-pongs.
#[derive(Clone, Copy, Debug)]
pub struct LaunchTimes {
    pub min: f64,
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
}

/// The running program. Dropping it ends the program.
pub struct Nvshmem {
    child: Child,
    requests: Option<ChildStdin>,
    answers: Receiver<String>,
    timeout: Duration,
    /// Version from the program's first line.
    pub version: String,
}

impl Nvshmem {
    /// Starts the program through a shell.
    pub fn start(command: &str, timeout: Duration) -> Result<Nvshmem, Failure> {
        let failed = |what: &str| Failure::Run(format!("--nvshmem {command:?}: {what}"));
        let mut child = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(&error.to_string()))?;
        let requests = child.stdin.take();
        let output = child.stdout.take().ok_or_else(|| failed("no output"))?;
        let (sender, answers) = channel();
        // The thread ends with the program's output.
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        std::thread::spawn(move || lines.try_for_each(|line| sender.send(line)));
        let mut started = Nvshmem { child, requests, answers, timeout, version: String::new() };
        // Other libraries also print to stdout.
        started.version =
            started.line("ready ").ok_or_else(|| failed("it did not start (its first line must be \"ready\")"))?;
        Ok(started)
    }

    /// Returns the rest of the next line that starts with `begin`, or `None` if there is none within the timeout.
    fn line(&mut self, begin: &str) -> Option<String> {
        let mut lines = std::iter::from_fn(|| self.answers.recv_timeout(self.timeout).ok());
        lines.find_map(|line| Some(line.strip_prefix(begin)?.trim().to_owned()))
    }

    /// Requests one launch. Returns `None` if the program does not support the case.
    pub fn measure(&mut self, tuple: &ShmemConfig) -> Result<Option<LaunchTimes>, Failure> {
        let ShmemConfig { case, scope, bytes, grid, block, iterations, warmup, to_at, from_at, .. } = tuple;
        let shape = format!("{bytes} {grid} {block} {warmup} {iterations} {to_at} {from_at}");
        let request = format!("{} {} {shape}", name(*case), name(*scope));
        let failed = |what: &str| Failure::Run(format!("NVSHMEM baseline, request {request:?}: {what}"));
        let requests = self.requests.as_mut().ok_or_else(|| failed("it exited"))?;
        writeln!(requests, "{request}").and_then(|()| requests.flush()).map_err(|error| failed(&error.to_string()))?;
        let answer = self.line("times ").ok_or_else(|| failed("no answer in time"))?;
        let numbers: Vec<f64> = answer.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        Ok(<[f64; 4]>::try_from(numbers).ok().map(|[min, p50, p99, p999]| LaunchTimes { min, p50, p99, p999 }))
    }
}

impl Drop for Nvshmem {
    fn drop(&mut self) {
        // The program exits at the end of its input. A launcher that does not forward this end is killed.
        self.requests = None;
        for _ in 0..200 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
