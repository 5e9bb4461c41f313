//! Starts the program once, or as several ranks.

use super::{NcclArgs, Variable};
use crate::error::Failure;
use ginlab::signals;
use std::ffi::OsString;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Interval at which children are checked for exit.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Time for the other ranks to exit after a rank has failed. Their own waits for this rank are also limited, and their
/// error messages contain more detail.
const GRACE: Duration = Duration::from_secs(10);

/// Returns the exit code as reported by a shell.
fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

fn command(program: &[OsString], variables: &[Variable]) -> Result<Command, Failure> {
    let Some((program, rest)) = program.split_first() else { return Err(Failure::Usage("no program given".into())) };
    let mut command = Command::new(program);
    command.args(rest).envs(variables.iter().map(|(name, value)| (name, value)));
    Ok(command)
}

fn start(program: &[OsString], command: &mut Command) -> Result<Child, Failure> {
    let name = program.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    command.spawn().map_err(|error| Failure::Usage(format!("{name}: {error}")))
}

/// Runs the program once. Returns its exit code.
pub fn one(program: &[OsString], variables: &[Variable]) -> Result<u8, Failure> {
    let mut child = start(program, &mut command(program, variables)?)?;
    await_all(std::slice::from_mut(&mut child))
}

/// Returns a port that is currently free.
fn free_port() -> Result<u16, Failure> {
    let failed = |error: std::io::Error| Failure::Run(format!("cannot find a free port: {error}"));
    Ok(TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?.local_addr().map_err(failed)?.port())
}

/// Runs the program as `count` ranks. Returns the first exit code other than success.
pub fn ranks(args: &NcclArgs, count: usize, variables: &[Variable]) -> Result<u8, Failure> {
    let (port, meeting) = (free_port()?, free_port()?);
    let mut children = Vec::new();
    for rank in 0..count {
        let mut command = command(&args.program, variables)?;
        let node = rank / usize::from(args.node_size);
        command.envs([
            ("RANK", rank.to_string()),
            ("LOCAL_RANK", rank.to_string()),
            ("WORLD_SIZE", count.to_string()),
            ("LOCAL_WORLD_SIZE", count.to_string()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", port.to_string()),
            ("NCCL_COMM_ID", format!("127.0.0.1:{meeting}")),
            ("NCCL_HOSTID", format!("ginlab-{node}")),
        ]);
        if let (0, Some(fault)) = (rank, &args.fault) {
            command.env("GINLAB_NCCL_FAULT", fault);
        }
        match start(&args.program, &mut command) {
            Ok(child) => children.push(child),
            Err(failure) => {
                end(&mut children);
                return Err(failure);
            }
        }
    }
    await_all(&mut children)
}

/// Waits until all children have exited. After a failure or Ctrl-C, kills them when the grace period has passed.
fn await_all(children: &mut [Child]) -> Result<u8, Failure> {
    let mut first = None;
    let mut late: Option<Instant> = None;
    loop {
        let mut running = 0;
        for (rank, child) in children.iter_mut().enumerate() {
            match child.try_wait() {
                Ok(None) => running += 1,
                Ok(Some(status)) if status.success() => {}
                Ok(Some(status)) if first.is_none() => {
                    eprintln!("ginlab: rank {rank} failed: {status}");
                    first = Some(code_of(status));
                }
                Ok(Some(_)) => {}
                Err(error) => return Err(Failure::Run(format!("cannot wait for rank {rank}: {error}"))),
            }
        }
        if running == 0 {
            return if signals::interrupted() { Err(Failure::Interrupted) } else { Ok(first.unwrap_or(0)) };
        }
        if first.is_some() || signals::interrupted() {
            let grace = if signals::interrupted() { Duration::from_secs(1) } else { GRACE };
            if Instant::now() >= *late.get_or_insert_with(|| Instant::now() + grace) {
                end(children);
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Kills children that are still running.
fn end(children: &mut [Child]) {
    for child in children {
        // Fails if the child has exited; the next check reaps it.
        let _ = child.kill();
    }
}
