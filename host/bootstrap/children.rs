//! Child processes of rank 0.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid, getppid};

use super::error::BootstrapError;
use ginlab_base::limits::explain;
use ginlab_base::shm_cleanup;

/// Time that children have to exit after SIGTERM.
const TERM_GRACE: Duration = Duration::from_millis(500);

/// Polling interval of a bounded wait for the exit of a process.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Child processes by rank. Dropping this kills and reaps those that still run, and removes files that they left in
/// /dev/shm.
#[derive(Default)]
pub(super) struct Children {
    list: Vec<(usize, Child)>,
}

impl Children {
    /// Starts a copy of this program, with the same arguments, as `rank`.
    pub fn start(&mut self, rank: usize, environment: &[(&str, String)]) -> Result<(), BootstrapError> {
        let program =
            std::env::current_exe().map_err(|e| BootstrapError::system("find this program's executable", e))?;
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1));
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        // Only rank 0 writes results; messages of the other ranks go to stderr.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        let parent = getpid();
        // SAFETY: between fork and exec the closure makes only the system calls prctl and getppid, which are
        // async-signal-safe, and it allocates nothing.
        unsafe { command.pre_exec(move || die_with(parent)) };
        let child = command
            .spawn()
            .map_err(|e| BootstrapError::system(format!("start rank {rank} ({})", program.display()), explain(&e)))?;
        self.list.push((rank, child));
        Ok(())
    }

    /// Returns a rank whose process has exited, if any.
    pub fn ended(&mut self) -> Option<usize> {
        self.list.iter_mut().find_map(|(rank, child)| matches!(child.try_wait(), Ok(Some(_))).then_some(*rank))
    }

    /// Waits up to `limit` until the process of `rank` exits, and returns its exit status as text. `None` if it is
    /// still running.
    pub fn status(&mut self, rank: usize, limit: Duration) -> Option<String> {
        let (_, child) = self.list.iter_mut().find(|(other, _)| *other == rank)?;
        let status = await_end(child, Instant::now() + limit)?;
        Some(status.to_string())
    }

    /// Renumbers the ranks. Children that are not among `left` are killed.
    pub fn renumber(&mut self, left: &[usize]) {
        self.list.retain_mut(|(rank, child)| match left.iter().position(|old| old == rank) {
            Some(new) => {
                *rank = new;
                true
            }
            None => {
                let _ = child.kill();
                let _ = child.wait();
                false
            }
        });
    }

    /// Returns the process ID of `rank`.
    pub fn pid(&self, rank: usize) -> Option<u32> {
        self.list.iter().find(|(other, _)| *other == rank).map(|(_, child)| child.id())
    }

    /// Waits up to `limit` until all children have exited on their own, after the last step of the job. Returns an
    /// error for the first that failed.
    pub fn finish(&mut self, limit: Duration) -> Result<(), BootstrapError> {
        let deadline = Instant::now() + limit;
        for (rank, child) in &mut self.list {
            let pid = child.id();
            let status = match await_end(child, deadline) {
                Some(status) if status.success() => continue,
                Some(status) => status.to_string(),
                None => format!("still running {} after the end of the job", super::error::human(limit)),
            };
            return Err(BootstrapError::ChildFailed { rank: *rank, pid, status });
        }
        Ok(())
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        // A child that has not been reaped keeps its process ID, so the signal cannot reach another process.
        self.list.retain_mut(|(_, child)| matches!(child.try_wait(), Ok(None)));
        for (_, child) in &self.list {
            let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
        }
        let deadline = Instant::now() + TERM_GRACE;
        self.list.retain_mut(|(_, child)| await_end(child, deadline).is_none());
        for (_, child) in &mut self.list {
            let _ = child.kill();
            let _ = child.wait();
        }
        shm_cleanup::remove_stale();
    }
}

fn await_end(child: &mut Child, deadline: Instant) -> Option<std::process::ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
            _ => return None,
        }
    }
}

/// Runs in the new process: makes the system kill it when the parent ends for any reason.
fn die_with(parent: Pid) -> io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    // The parent may have died before prctl took effect.
    if getppid() == parent { Ok(()) } else { Err(Errno::ESRCH.into()) }
}
