//! Seeds of a program that is not one of ginlab's experiments: one process, with its children, per seed.

use crate::error::Failure;
use ginlab::signals;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Interval at which the process is checked for exit.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// Number of bytes at the end of the standard error that are searched for the reason.
const TAIL: u64 = 64 << 10;

/// Returns whether the first word of a command names a program instead of an experiment: it contains a slash.
pub fn is_program(words: &[String]) -> bool {
    words.first().is_some_and(|word| word.contains('/'))
}

/// Runs a program once. `limit` is the maximum duration.
///
/// # Errors
/// Returns [`Failure::Usage`] if the program cannot be started, [`Failure::Timeout`] if it has been killed at the
/// limit, and [`Failure::Run`] with the last line of its standard error if it fails.
pub fn run(words: &[String], limit: Duration) -> Result<(), Failure> {
    let Some((program, rest)) = words.split_first() else { return Err(Failure::Usage("no program given".into())) };
    let failed = |error: std::io::Error| Failure::Run(format!("cannot record the standard error: {error}"));
    let mut record = tempfile::tempfile().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(rest).stdin(Stdio::null()).stdout(Stdio::null()).stderr(record.try_clone().map_err(failed)?);
    // Starts a process group, so that the processes that the program starts are killed with it.
    let child = command.process_group(0).spawn();
    let mut child = child.map_err(|error| Failure::Usage(format!("{program}: {error}")))?;
    let Some(status) = wait(&mut child, limit)? else {
        let why = last_line(&mut record);
        return Err(Failure::Timeout(format!("killed after {} s (--limit): {why}", limit.as_secs())));
    };
    if status.success() { Ok(()) } else { Err(Failure::Run(format!("{status}: {}", last_line(&mut record)))) }
}

/// Waits until the child has exited. Returns `None` if it has been killed at the limit.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>, Failure> {
    let group = Pid::from_raw(child.id().cast_signed());
    let began = Instant::now();
    let mut told: Option<Instant> = None;
    loop {
        let status = child.try_wait();
        match status.map_err(|error| Failure::Run(format!("cannot wait for the program: {error}")))? {
            Some(_) if signals::interrupted() => return Err(Failure::Interrupted),
            Some(status) => return Ok(told.is_none().then_some(status)),
            None => {}
        }
        // Signals fail only if the group has exited; the next check finds that.
        match told {
            None if signals::interrupted() || began.elapsed() >= limit => {
                let _ = killpg(group, Signal::SIGTERM);
                told = Some(Instant::now());
            }
            Some(since) if since.elapsed() >= GRACE => {
                let _ = killpg(group, Signal::SIGKILL);
            }
            _ => {}
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Returns the last non-empty line of a file.
fn last_line(file: &mut File) -> String {
    let length = file.seek(SeekFrom::End(0)).unwrap_or(0);
    let mut bytes = Vec::new();
    let read = file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).and_then(|_| file.read_to_end(&mut bytes));
    let text = read.map(|_| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
    line.map_or_else(|| "no message on its standard error".to_owned(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<(), Failure> {
        run(&["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned()], limit)
    }

    #[test]
    fn failures_have_last_line_and_limit_ends_children() {
        let long = Duration::from_secs(60);
        assert!(shell("echo no reason >&2", long).is_ok());
        let text = |ended: Result<(), Failure>| ended.err().and_then(|failure| failure.text()).unwrap_or_default();
        assert_eq!(text(shell("echo first >&2; echo wrong word 7 >&2; exit 4", long)), "exit status: 4: wrong word 7");
        assert_eq!(text(shell("exit 1", long)), "exit status: 1: no message on its standard error");
        // The shell waits for its own child, which must also be killed at the limit.
        let late = shell("sleep 600; echo survived >&2", Duration::from_millis(1));
        assert!(matches!(&late, Err(Failure::Timeout(why)) if !why.contains("survived")), "{late:?}");
        let absent = run(&["./no-such-program".to_owned()], long);
        assert!(matches!(&absent, Err(Failure::Usage(why)) if why.starts_with("./no-such-program: ")), "{absent:?}");
    }
}
