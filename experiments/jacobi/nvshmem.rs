//! NVIDIA's Jacobi program for NVSHMEM, run by rank 0 between ginlab's measurements, while the other ranks wait.

use super::args::{BlockCount, HaloExchange, JacobiConfig, Norm, SyncBy, When};
use super::columns::{self, SYNC};
use super::rank::Jacobi;
use crate::agreed::Agreed;
use crate::error::Failure;
use crate::runner::Rows;
use crate::values::{name, usage};
use ginlab::bootstrap::Bootstrap;
use ginlab::gin::PePath;
use ginlab::measure::stats::Summary;
use ginlab::report::RowStatus;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Microseconds per iteration on all GPUs, and on one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Times {
    all: f64,
    one: f64,
}

impl Jacobi {
    /// Returns an error if the option cannot be used on this device.
    pub fn check_nvshmem(&self) -> Result<(), Failure> {
        match self.args.nvshmem {
            Some(_) if self.args.world.is_emulated() => Err(usage("--nvshmem", "NVSHMEM requires GPUs")),
            _ => Ok(()),
        }
    }

    /// Returns NVSHMEM's row for the parameter combination's field, once per field and norm.
    pub fn nvshmem_row(&mut self, tuple: &JacobiConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let Some(command) = self.args.nvshmem.clone() else { return Ok(Rows::new()) };
        let (exchange, path, sync) = (HaloExchange::Row, PePath::Auto, SyncBy::Neighbours);
        let of_field = JacobiConfig { exchange, path, sync, grid: BlockCount::Auto, block: 0, ..*tuple };
        if self.given.contains(&of_field) {
            return Ok(Rows::new());
        }
        self.given.push(of_field);
        let agreed = Agreed::of(&self.session()?.world, self.session()?.neighbours(), ranks)?;
        let mut row = agreed.row("jacobi", "nvshmem", &self.session()?.world);
        row.fabric = "nvshmem".into();
        row.iterations = Some(u64::from(tuple.iterations));
        columns::chosen(&mut row, tuple, &name(tuple.norm), "");
        row.set(&SYNC, None::<String>);
        let limit = self.args.world.meet.timeout;
        let mut found: Vec<Times> = Vec::new();
        for _ in 0..self.args.repeat.repeats.max(1) {
            // Other ranks wait here.
            let mine = (ranks.rank() == 0).then(|| run(&command, tuple, limit));
            match ranks.value_of_first(&mine, "NVSHMEM's run")? {
                Some(Ok(times)) => found.push(times),
                why => {
                    let why = why.and_then(Result::err).unwrap_or_default();
                    row.status = RowStatus::Skipped(why);
                    return Ok(vec![(row, Vec::new())]);
                }
            }
        }
        let times: Vec<f64> = found.iter().map(|times| times.all).collect();
        let alone: Vec<f64> = found.iter().map(|times| times.one).collect();
        row.times(&times);
        if let (Some(all), Some(one)) = (Summary::of(&times), Summary::of(&alone)) {
            columns::scaling(&mut row, &of_field, all.p50, one.p50);
        }
        Ok(vec![(row, times)])
    }
}

/// Runs the command with the parameter combination's field. Returns the reason if it fails or does not end within
/// `limit`.
fn run(command: &str, tuple: &JacobiConfig, limit: Duration) -> Result<Times, String> {
    let JacobiConfig { nx, ny, iterations, .. } = *tuple;
    let between_norms = match tuple.when {
        _ if tuple.norm == Norm::Never => iterations + 1,
        When::Every(count) => count,
        When::Now | When::Delayed => 1,
    };
    let line = format!("{command} -csv -nx {nx} -ny {ny} -niter {iterations} -nccheck {between_norms}");
    let failed = |what: String| format!("--nvshmem {command:?}: {what}");
    let mut child = Command::new("sh")
        .args(["-c", &line])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let group = Pid::from_raw(child.id() as i32);
    let (sender, output) = channel();
    if let Some(mut pipe) = child.stdout.take() {
        // The thread ends with the command's output.
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let read = pipe.read_to_end(&mut text);
            // The receiver has given up if the command was too late.
            let _ = sender.send(read.map(|_| String::from_utf8_lossy(&text).into_owned()));
        });
    }
    let text = output.recv_timeout(limit).ok().and_then(Result::ok);
    if text.is_none() {
        // The launcher's processes are in its group.
        let _ = killpg(group, Signal::SIGKILL);
    }
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    let text = text.ok_or_else(|| failed(format!("did not end within {} s", limit.as_secs())))?;
    if !status.success() {
        return Err(failed(format!("{status}: {}", text.lines().last().unwrap_or("no output"))));
    }
    parse(&text, tuple).ok_or_else(|| failed("no line of figures for this field".into()))
}

/// Parses the line that the program prints with `-csv`: type, columns, rows, iterations, iterations between norms,
/// GPUs, 1, seconds on all GPUs, seconds on one.
fn parse(text: &str, tuple: &JacobiConfig) -> Option<Times> {
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let wanted = [tuple.nx, tuple.ny, tuple.iterations].map(|number| number.to_string());
        if fields.len() < 9 || fields[1..4] != wanted {
            return None;
        }
        let each = |field: &str| Some(field.parse::<f64>().ok()? * 1e6 / f64::from(tuple.iterations));
        Some(Times { all: each(fields[7])?, one: each(fields[8])? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);
    const TUPLE: JacobiConfig = JacobiConfig {
        exchange: HaloExchange::Row,
        norm: Norm::Block,
        when: When::Every(10),
        sync: SyncBy::Neighbours,
        path: PePath::Auto,
        nx: 64,
        ny: 32,
        iterations: 100,
        grid: BlockCount::Auto,
        block: 0,
        piece: 0,
    };

    #[test]
    fn figures_are_read_from_output() {
        // A command that prints its arguments, in the program's form.
        let command = "f() { echo warning; echo nvshmem, $3, $5, $7, $9, 2, 1, 0.5, 0.9; }; f";
        assert_eq!(run(command, &TUPLE, LIMIT), Ok(Times { all: 5000.0, one: 9000.0 }));
        let other = JacobiConfig { nx: 128, ..TUPLE };
        assert_eq!(parse("nvshmem, 64, 32, 100, 10, 2, 1, 0.5, 0.9", &other), None);
    }

    #[test]
    fn failures_are_one_line() {
        let why = |command: &str| run(command, &TUPLE, LIMIT).expect_err("a failure");
        assert!(why("echo no GPU; exit 3 #").contains("exit status: 3: no GPU"), "{}", why("echo no GPU; exit 3 #"));
        assert!(why("true").contains("no line of figures for this field"));
    }

    #[test]
    fn command_without_end_is_killed() {
        let why = run("sleep 1000 #", &TUPLE, Duration::ZERO).expect_err("too late");
        assert!(why.contains("did not end within 0 s"), "{why}");
    }
}
