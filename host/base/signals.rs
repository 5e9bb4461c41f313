//! Ctrl-C, SIGTERM and a closed standard output.
//!
//! The first signal only sets a flag, which every bounded wait of the library polls, so that ranks, kernels and rails
//! are shut down in order. The second signal exits immediately, in case the shutdown hangs.
//!
//! SIGPIPE stays ignored, as is the default in Rust: a closed socket must be an error and not end the process. Write
//! results through [`stdout`] instead of `println!`, which panics when the reader, for example `head`, closes the pipe.

use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use signal_hook::consts::{SIGINT, SIGTERM};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);
static INSTALLED: OnceLock<Result<(), String>> = OnceLock::new();

/// Installs the handlers. Calls after the first have no effect.
pub fn install() -> io::Result<()> {
    let outcome = INSTALLED.get_or_init(|| {
        for signal in [SIGINT, SIGTERM] {
            take_over(signal).map_err(|error| format!("cannot take over signal {signal} from a library: {error}"))?;
            // The order matters: the shutdown acts only on a flag that an earlier signal has set.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, &INTERRUPTED)
                .and_then(|_| signal_hook::flag::register(signal, &INTERRUPTED))
                .map_err(|error| format!("cannot install the handler of signal {signal}: {error}"))?;
        }
        Ok(())
    });
    outcome.clone().map_err(io::Error::other)
}

/// Restores the default action of a signal. When loaded, some libraries used by libfabric (libinfinipath) install
/// handlers that exit with code 1 and without a message. signal-hook would call them after the handlers of this module.
fn take_over(signal: i32) -> Result<(), nix::Error> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of this process.
    unsafe { sigaction(Signal::try_from(signal)?, &default) }.map(drop)
}

/// Returns whether a signal has requested a stop, or standard output was closed.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Returns the flag, for waits that take one.
pub fn flag() -> &'static AtomicBool {
    &INTERRUPTED
}

/// Returns whether the reader of standard output has closed it. The process should then exit without a message and with
/// code 141, the code with which a shell reports SIGPIPE.
pub fn stdout_closed() -> bool {
    STDOUT_CLOSED.load(Ordering::Relaxed)
}

/// Returns standard output for results. If its reader closes it, the interrupt flag is set, so that the run shuts down
/// as after Ctrl-C, and further writes are discarded.
pub fn stdout() -> Stdout {
    Stdout(())
}

/// Standard output for results; see [`stdout`].
#[derive(Debug)]
pub struct Stdout(());

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        swallow_broken_pipe(io::stdout().write(bytes), bytes.len(), &STDOUT_CLOSED, &INTERRUPTED)
    }

    fn flush(&mut self) -> io::Result<()> {
        swallow_broken_pipe(io::stdout().flush(), (), &STDOUT_CLOSED, &INTERRUPTED)
    }
}

fn swallow_broken_pipe<T>(
    outcome: io::Result<T>,
    pretended: T,
    closed: &AtomicBool,
    interrupt: &AtomicBool,
) -> io::Result<T> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {
            closed.store(true, Ordering::Relaxed);
            interrupt.store(true, Ordering::Relaxed);
            Ok(pretended)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn closed_reader_requests_stop() {
        let (closed, interrupt) = (AtomicBool::new(false), AtomicBool::new(false));
        let broken = Err(io::Error::from(ErrorKind::BrokenPipe));
        assert_eq!(swallow_broken_pipe(broken, 7, &closed, &interrupt).unwrap(), 7);
        assert!(closed.into_inner() && interrupt.into_inner());

        let (closed, interrupt) = (AtomicBool::new(false), AtomicBool::new(false));
        let full = Err(io::Error::from(ErrorKind::StorageFull));
        assert!(swallow_broken_pipe(full, 7, &closed, &interrupt).is_err());
        assert!(!closed.into_inner() && !interrupt.into_inner());
    }

    #[test]
    fn installing_twice_is_once() {
        install().unwrap();
        install().unwrap();
    }
}
