//! Ranks of an experiment: how they are connected, and how all of them end for the same reason.

use crate::error::Failure;
use crate::mps::Kernels;
use ginlab::bootstrap::{self, Bootstrap, BootstrapError, BootstrapKind, BootstrapOptions};
use ginlab::mps::MpsStep;
use ginlab::signals;
use std::time::{Duration, Instant};

/// Ranks that an experiment requests.
pub struct Ranks {
    /// Bootstrap of the ranks. `None` to detect it from the environment.
    pub kind: Option<BootstrapKind>,
    /// Requested number of ranks.
    pub asked: Option<usize>,
    /// Number of ranks of a local job if none was requested.
    pub default: usize,
    /// Rejects a number of ranks that the experiment does not support.
    pub check: Box<dyn Fn(usize) -> Result<(), Failure>>,
    /// Maximum wait of a rank for the others. A rank may have to wait while another one measures a row, whose own waits
    /// are bounded.
    pub timeout: Duration,
    /// Interfaces on which other hosts can reach rank 0.
    pub interfaces: Option<String>,
    /// Settings that must be equal on all ranks.
    pub fingerprint: Vec<(String, String)>,
    /// Settings of MPS for ranks that share a GPU. `None` if ranks run no kernels.
    pub mps: Option<Kernels>,
    /// Whether the run continues without ranks that do not connect, leave or fail.
    pub partial: bool,
}

impl Ranks {
    pub fn options(&self) -> BootstrapOptions {
        BootstrapOptions {
            timeout: self.timeout,
            fingerprint: self.fingerprint.clone(),
            interfaces: self.interfaces.clone(),
            partial: self.partial,
            ..BootstrapOptions::default()
        }
    }

    /// Connects the ranks. Returns [`Failure::Elsewhere`] if another process did the run.
    fn open(self) -> Result<Bootstrap, Failure> {
        let options = self.options();
        let kind = self.kind.map_or_else(|| BootstrapKind::asked_for(&bootstrap::process_env), Ok)?;
        let asked = self.asked.or((kind == BootstrapKind::Local).then_some(self.default));
        // Check before any process is spawned.
        asked.map_or(Ok(()), |asked| (self.check)(asked))?;
        if let (BootstrapKind::Local, Some(ranks), Some(kernels)) = (kind, asked, self.mps)
            && !bootstrap::is_spawned_child()
            && let MpsStep::Ended(code) = kernels.before(ranks)
        {
            return Err(Failure::Elsewhere(code));
        }
        let ranks = Bootstrap::open(kind, asked, options)?;
        (self.check)(ranks.size())?;
        Ok(ranks)
    }
}

/// Connects the ranks and runs this one. All ranks end for the same reason.
pub fn with_ranks(
    ranks: Option<Ranks>,
    rank: impl FnOnce(&mut Bootstrap) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let ranks = match ranks.map_or_else(|| Ok(Bootstrap::alone()?), Ranks::open) {
        Err(Failure::Elsewhere(0)) => return Ok(()),
        opened => opened?,
    };
    let told = |failure| if bootstrap::is_spawned_child() { Failure::Told(Box::new(failure)) } else { failure };
    ended(ranks, rank).map_err(told)
}

/// Runs this rank and notifies the others of its result.
pub fn ended(mut ranks: Bootstrap, rank: impl FnOnce(&mut Bootstrap) -> Result<(), Failure>) -> Result<(), Failure> {
    match rank(&mut ranks) {
        Ok(()) => ranks.finish().map_err(Failure::from),
        Err(failure) => {
            let failure = with_cause(failure, &mut ranks);
            if let Some(text) = failure.text() {
                ranks.abort(failure.ending(), &text);
            }
            Err(failure)
        }
    }
}

/// Replaces a failed rail or a timeout by its cause: Ctrl-C, which a terminal sends to every rank, or a peer that
/// exited. A rail often detects it first, so that this function waits up to 500 ms for rank 0 to report the peer. A
/// reported failure keeps its kind, so that the exit code does not depend on which rank detected it first.
fn with_cause(failure: Failure, ranks: &mut Bootstrap) -> Failure {
    let (Failure::Run(text) | Failure::Timeout(text)) = &failure else { return failure };
    let deadline = Instant::now() + Duration::from_millis(500);
    loop {
        if signals::interrupted() {
            return if signals::stdout_closed() { Failure::StdoutClosed } else { Failure::Interrupted };
        }
        match ranks.check_peers() {
            Ok(()) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            // Unless `text` already contains it.
            Err(error @ (BootstrapError::Left { .. } | BootstrapError::Aborted { .. }))
                if !text.contains(&error.to_string()) =>
            {
                // Both ranks may have failed for the same reason.
                let told = error.to_string();
                return Failure::of(error.ending(), if told.contains(text) { told } else { format!("{told}: {text}") });
            }
            _ => return failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Rank `first` of two stalls and reports it. Returns the failure of the other rank, which was waiting for it or
    /// failed with `own`.
    fn other(first: usize, own: Option<Failure>) -> Failure {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its number");
        let rank = |mut ranks: Bootstrap| {
            if ranks.rank() == first {
                let stall = Failure::Timeout("nothing has completed for 3s".into());
                ranks.abort(stall.ending(), &stall.text().unwrap_or_default());
                return None;
            }
            Some(match &own {
                Some(failure) => with_cause(failure.clone(), &mut ranks),
                None => ranks.barrier("row 1").expect_err("the other one has stopped").into(),
            })
        };
        std::thread::scope(|scope| {
            let one = scope
                .spawn(|| rank(Bootstrap::join(&[address], 1, 2, "two", BootstrapOptions::default()).expect("joined")));
            let zero = rank(Bootstrap::serve(listener, 2, "two", BootstrapOptions::default()).expect("served"));
            one.join().expect("rank 1").or(zero).expect("one of them was not the first")
        })
    }

    #[test]
    fn peer_timeout_is_reported_as_timeout() {
        let same = Failure::Timeout("nothing has completed for 3s".into());
        let failures =
            [None, Some(Failure::Timeout("mine".into())), Some(Failure::Run("a rail has failed".into())), Some(same)];
        for first in [0, 1] {
            for own in &failures {
                let failure = other(first, own.clone());
                let text = failure.text().unwrap_or_default();
                assert!(matches!(failure, Failure::Timeout(_)), "{first} {own:?}: {failure:?}");
                let told = format!("rank {first} stopped the job: nothing has completed for 3s");
                assert!(text.starts_with(&told), "{text}");
                assert_eq!(text.matches("nothing has completed").count(), 1, "{text}");
            }
        }
    }
}
