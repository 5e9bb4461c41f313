//! Runs this executable again in a child process while this process waits, so that it can clean up after any end of the
//! child.
//!
//! The child has its own process group, so that it receives each signal only once: a terminal and `timeout` send
//! signals to this process's group, and this process forwards them.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, kill, sigaction, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getpid, getppid};

/// Signals that are forwarded.
const PASSED: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// Maximum sleep in milliseconds. It is bounded because a signal may have been delivered to another thread.
const LOOK_EVERY: u16 = 200;

/// Runs this executable with the same arguments and additional environment variables. Returns its exit code, or 128
/// plus the signal number if a signal ended it. The child is killed if this process ends. Signals stay blocked after
/// this call, for the subsequent cleanup, which is bounded.
///
/// # Errors
/// Returns an error if the child cannot be started. The signal mask is then restored.
pub fn run<'a>(variables: impl IntoIterator<Item = (&'a str, &'a OsStr)>) -> io::Result<u8> {
    let mut waited = SigSet::empty();
    PASSED.into_iter().chain([Signal::SIGCHLD]).for_each(|signal| waited.add(signal));
    let mut before = SigSet::empty();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&waited), Some(&mut before))?;
    start_and_wait(variables, &waited, before).inspect_err(|_| {
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
    })
}

fn start_and_wait<'a>(
    variables: impl IntoIterator<Item = (&'a str, &'a OsStr)>,
    waited: &SigSet,
    before: SigSet,
) -> io::Result<u8> {
    let coming = SignalFd::with_flags(waited, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).envs(variables).process_group(0);
    let parent = getpid();
    // SAFETY: between fork and exec, the closure makes only the system calls prctl, getppid, sigprocmask and sigaction,
    // which are async-signal-safe, and does not allocate.
    unsafe {
        command.pre_exec(move || {
            set_pdeathsig(Signal::SIGKILL)?;
            // The parent may have exited before `set_pdeathsig` took effect.
            if getppid() != parent {
                return Err(nix::errno::Errno::ESRCH.into());
            }
            // A background process group may be stopped when it writes to the terminal.
            let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
            sigaction(Signal::SIGTTOU, &ignore)?;
            Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?)
        });
    }
    let mut child = command.spawn()?;
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1) as u8);
        }
        let mut waited = [PollFd::new(coming.as_fd(), PollFlags::POLLIN)];
        // Pending signals are read below, regardless of the reason why the wait ended.
        let _ = poll(&mut waited, PollTimeout::from(LOOK_EVERY));
        while let Ok(Some(came)) = coming.read_signal() {
            pass_on(&child, came.ssi_signo as i32);
        }
        // The signal arrived before signals were blocked, or was handled by another thread.
        if ginlab_base::signals::interrupted() && !std::mem::replace(&mut told, true) {
            pass_on(&child, Signal::SIGINT as i32);
        }
    }
}

/// Forwards a signal. SIGHUP, the end of a terminal, also requests termination.
fn pass_on(child: &Child, number: i32) {
    let signal = match Signal::try_from(number) {
        Ok(Signal::SIGCHLD) | Err(_) => return,
        Ok(Signal::SIGHUP) => Signal::SIGTERM,
        Ok(signal) => signal,
    };
    // The child has not been reaped, so its process ID is still valid.
    let _ = kill(Pid::from_raw(child.id() as i32), signal);
}
