//! This program once more, in a process of its own, while this one waits: it ends what the other has used, however that ends.
//!
//! The other process has a group of its own, so that it gets each signal once: a terminal and `timeout` send theirs to this process's group,
//! and this one passes on what comes.

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

/// What is passed on.
const PASSED: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// How long this process sleeps at most: a signal may have come to another of its threads.
const LOOK_EVERY: u16 = 200;

/// Runs this program with the same arguments and more variables; its exit code, 128 and the signal's number where one has ended it.
/// It ends when this process ends. Signals stay blocked behind this call, for the tidying that follows, which is bounded.
///
/// # Errors
/// When it could not be started; then signals are as before.
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
    // SAFETY: between fork and exec the closure makes only the system calls prctl, getppid, sigprocmask and sigaction, which are
    // async-signal-safe, and it allocates nothing.
    unsafe {
        command.pre_exec(move || {
            set_pdeathsig(Signal::SIGKILL)?;
            // The parent may have died before the line above took hold.
            if getppid() != parent {
                return Err(nix::errno::Errno::ESRCH.into());
            }
            // A group behind the terminal's may be stopped for writing to it.
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
        // Whatever ends the wait, what is there is looked at.
        let _ = poll(&mut waited, PollTimeout::from(LOOK_EVERY));
        while let Ok(Some(came)) = coming.read_signal() {
            pass_on(&child, came.ssi_signo as i32);
        }
        // It came before signals were blocked, or to another thread.
        if ginlab_base::signals::interrupted() && !std::mem::replace(&mut told, true) {
            pass_on(&child, Signal::SIGINT as i32);
        }
    }
}

/// The end of a terminal is a wish to end, too.
fn pass_on(child: &Child, number: i32) {
    let signal = match Signal::try_from(number) {
        Ok(Signal::SIGCHLD) | Err(_) => return,
        Ok(Signal::SIGHUP) => Signal::SIGTERM,
        Ok(signal) => signal,
    };
    // It is not reaped yet: nobody else has its number.
    let _ = kill(Pid::from_raw(child.id() as i32), signal);
}
