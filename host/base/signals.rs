//! Ctrl-C, SIGTERM and a closed standard output.
//!
//! The first signal only raises a flag: every bounded wait of the library looks at it, so that ranks, kernels and rails are
//! wound up in order. The second one ends the process at once, for the case that winding up hangs.
//!
//! SIGPIPE stays ignored, as Rust starts programs: a peer that closes a socket must be an error and not the end of the
//! process. Write results through [`stdout`] instead of `println!`, which panics once `head` has seen enough.

use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use signal_hook::consts::{SIGINT, SIGTERM};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);
static INSTALLED: OnceLock<Result<(), String>> = OnceLock::new();

/// Installs the handlers, once per process however often it is called.
pub fn install() -> io::Result<()> {
    let outcome = INSTALLED.get_or_init(|| {
        for signal in [SIGINT, SIGTERM] {
            take_over(signal).map_err(|error| format!("cannot take over signal {signal} from a library: {error}"))?;
            // In this order: the shutdown acts only on a flag that an earlier signal has raised.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, &INTERRUPTED)
                .and_then(|_| signal_hook::flag::register(signal, &INTERRUPTED))
                .map_err(|error| format!("cannot install the handler of signal {signal}: {error}"))?;
        }
        Ok(())
    });
    outcome.clone().map_err(io::Error::other)
}

/// Puts a signal back to its default. Libraries below libfabric (libinfinipath) install handlers of their own when they are
/// loaded, which end the process with code 1 and without a word; signal-hook would call them after ours.
fn take_over(signal: i32) -> Result<(), nix::Error> {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of this process.
    unsafe { sigaction(Signal::try_from(signal)?, &default) }.map(drop)
}

/// Whether a signal asked the program to stop, or nobody reads its output any more.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// The flag itself, for waits that take one.
pub fn flag() -> &'static AtomicBool {
    &INTERRUPTED
}

/// Whether the reader of standard output has gone. A program that stops for it ends quietly, with code 141 as a shell
/// reports SIGPIPE.
pub fn stdout_closed() -> bool {
    STDOUT_CLOSED.load(Ordering::Relaxed)
}

/// Standard output for results. When its reader has gone, the interrupt flag is raised, so that the run is wound up as
/// by Ctrl-C, and writes are swallowed.
pub fn stdout() -> Stdout {
    Stdout(())
}

/// See [`stdout`].
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
    fn a_closed_reader_is_a_request_to_stop() {
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
