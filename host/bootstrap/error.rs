//! What can go wrong among ranks. Every error is one line: what is wrong, what is allowed, what to try.

use std::time::Duration;

/// What kind of end an error is. It goes with the error's words to the other ranks, so that a job ends alike whichever of its
/// ranks was the first to notice: a stall that a peer tells is a stall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Ending {
    /// It was tried and failed.
    #[default]
    Failed,
    /// A wait ran into its bound.
    TimedOut,
    /// The job cannot be as it was started: its options or its environment are to be changed.
    Usage,
    /// Ctrl-C or SIGTERM.
    Interrupted,
}

impl Ending {
    /// As it travels: the label of the frame that has the words.
    pub(super) fn label(self) -> &'static str {
        match self {
            Ending::Failed => "failed",
            Ending::TimedOut => "timed out",
            Ending::Usage => "usage",
            Ending::Interrupted => "interrupted",
        }
    }

    /// The kind of this label; what is none of them failed.
    pub(super) fn of_label(label: &str) -> Ending {
        let known = [Ending::TimedOut, Ending::Usage, Ending::Interrupted];
        known.into_iter().find(|ending| ending.label() == label).unwrap_or_default()
    }
}

/// An error of the bootstrap. It can be cloned, because the first error of a job is also the answer to every later call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    /// The time limit passed before everybody arrived.
    #[error("timed out after {} waiting for {} at {what:?} (arrived: {}){note}", human(*.after), rank_list(.missing), numbers(.arrived))]
    TimedOut {
        /// The limit.
        after: Duration,
        /// The ranks that did not arrive, as far as this rank knows.
        missing: Vec<usize>,
        /// The ranks that did.
        arrived: Vec<usize>,
        /// The step that waited.
        what: String,
        /// A further clause for people, with its own leading `; `, or nothing.
        note: String,
    },
    /// Ctrl-C or SIGTERM ended a wait.
    #[error("interrupted at {what:?}")]
    Interrupted {
        /// The step that was waiting.
        what: String,
    },
    /// A peer closed its connection or its process ended.
    #[error("rank {rank} (host {host}, pid {pid}) left during {what:?}{}", status.as_ref().map(|s| format!(": {s}")).unwrap_or_default())]
    Left {
        /// Who left.
        rank: usize,
        /// Its host name.
        host: String,
        /// Its process.
        pid: u32,
        /// How its process ended, when it was a child of this one.
        status: Option<String>,
        /// What this rank was doing.
        what: String,
    },
    /// A rank reported an error of its own, and the job stops for it.
    #[error("rank {rank} stopped the job: {text}")]
    Aborted {
        /// Who reported.
        rank: usize,
        /// What kind of end it is there, and so here.
        ending: Ending,
        /// Its words.
        text: String,
    },
    /// Two ranks are at different steps of the program.
    #[error(
        "ranks are out of step: rank {rank} is at {theirs:?} (step {their_step}), rank 0 at {ours:?} (step {our_step}); every rank must make the same calls in the same order"
    )]
    OutOfStep {
        /// The rank that differs from rank 0.
        rank: usize,
        /// Its label.
        theirs: String,
        /// Its step number.
        their_step: u64,
        /// Rank 0's label.
        ours: String,
        /// Rank 0's step number.
        our_step: u64,
    },
    /// The ranks were started with different options, versions or hardware.
    #[error("ranks differ: {key} is {first} on rank 0 but {other} on {}", rank_list(.ranks))]
    Differ {
        /// The first key that differs.
        key: String,
        /// Rank 0's value, in quotes, or `not given`.
        first: String,
        /// The other value, in quotes, or `not given`.
        other: String,
        /// The ranks with the other value.
        ranks: Vec<usize>,
    },
    /// A rank's part above the limit.
    #[error("{what:?} needs {bytes} bytes of one rank; at most {} are allowed", super::frame::MAX_PART_BYTES)]
    TooLarge {
        /// The step.
        what: String,
        /// The size asked for.
        bytes: usize,
    },
    /// A peer sent something that is not this protocol.
    #[error("{from} sent something that is not ginlab's bootstrap protocol: {text}")]
    Garbage {
        /// Who.
        from: String,
        /// What was wrong.
        text: String,
    },
    /// A process of this job came with a rank or size that cannot be.
    #[error("{peer} cannot join: {why}")]
    BadPeer {
        /// Host, process and address.
        peer: String,
        /// Why not.
        why: String,
    },
    /// Rank 0 refused this rank.
    #[error("rank 0 at {master} refused rank {rank}: {why}")]
    Refused {
        /// Where rank 0 listens.
        master: String,
        /// Our rank.
        rank: usize,
        /// Rank 0's words.
        why: String,
    },
    /// Rank 0 was not reached in time.
    #[error("timed out after {} connecting rank {rank} to rank 0 at {master} (last attempt: {last}); is rank 0 running, and does a firewall or security group let this port through?", human(*.after))]
    Unreachable {
        /// The limit.
        after: Duration,
        /// Our rank.
        rank: usize,
        /// All addresses tried.
        master: String,
        /// What the last attempt said.
        last: String,
    },
    /// An environment variable is missing.
    #[error("{name} is not set, and {needed_by}; {fix}")]
    MissingVariable {
        /// The variable.
        name: String,
        /// Who needs it.
        needed_by: String,
        /// What to do.
        fix: String,
    },
    /// An environment variable makes no sense.
    #[error("{name}={value:?} is not valid: {allowed}")]
    BadVariable {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// No secret is shared by the ranks.
    #[error(
        "the ranks share no job token; set GINLAB_TOKEN to the same secret on every rank (`openssl rand -hex 16` makes one), \
         or GINLAB_TOKEN_FILE to a file that holds it"
    )]
    NoToken,
    /// What the ranks share is known to everybody.
    #[error(
        "{name} is no secret: everybody on the cluster can see it, so it is a job token on the loopback only; set GINLAB_TOKEN \
         to the same secret on every rank (`export GINLAB_TOKEN=$(openssl rand -hex 16)` before srun or mpirun), or \
         GINLAB_TOKEN_FILE to a file that holds it"
    )]
    PublicToken {
        /// The variable that is set.
        name: String,
    },
    /// The number of ranks cannot be.
    #[error("a job of {asked} ranks cannot be: allowed are 1 to {limit}")]
    BadSize {
        /// The number asked for.
        asked: usize,
        /// The largest number allowed.
        limit: usize,
    },
    /// The number of ranks asked for is not what the launcher started.
    #[error(
        "{asked} ranks were asked for, but the {kind} bootstrap has {size}; leave the number out, or start that many"
    )]
    SizeMismatch {
        /// The number asked for.
        asked: usize,
        /// The kind of bootstrap.
        kind: super::Kind,
        /// The number there is.
        size: usize,
    },
    /// A launcher started several ranks, but each of them believes to be alone.
    #[error("{launcher} started {started} but {side} says 1: {cause}")]
    Alone {
        /// The launcher.
        launcher: String,
        /// How many it started.
        started: String,
        /// Who says 1.
        side: String,
        /// Why that happens and what to do.
        cause: String,
    },
    /// MPI is asked for, but this binary has none.
    #[error(
        "{why}, but this ginlab was built without MPI: build it with `--features mpi`, or use the tcp bootstrap (set RANK, WORLD_SIZE, MASTER_ADDR and GINLAB_TOKEN on every rank)"
    )]
    NoMpi {
        /// Who asks for MPI.
        why: String,
    },
    /// MPI itself failed.
    #[error("MPI: {0}")]
    Mpi(String),
    /// No network interface fits.
    #[error("no network interface matches {pattern:?}; this host has: {available}")]
    NoInterface {
        /// The pattern asked for.
        pattern: String,
        /// The interfaces that are up.
        available: String,
    },
    /// A child process failed at the end.
    #[error("rank {rank} (pid {pid}) ended badly: {status}")]
    ChildFailed {
        /// The rank.
        rank: usize,
        /// Its process.
        pid: u32,
        /// Its exit status.
        status: String,
    },
    /// The operating system refused something.
    #[error("cannot {action}: {text}")]
    System {
        /// What was tried.
        action: String,
        /// The system's words, and what to try.
        text: String,
    },
}

impl BootstrapError {
    pub(super) fn system(action: impl Into<String>, error: impl std::fmt::Display) -> Self {
        BootstrapError::System { action: action.into(), text: error.to_string() }
    }

    /// What kind of end it is, here and on every rank that hears of it.
    pub fn ending(&self) -> Ending {
        use BootstrapError as Error;
        match self {
            Error::Aborted { ending, .. } => *ending,
            Error::TimedOut { .. } | Error::Unreachable { .. } => Ending::TimedOut,
            Error::Interrupted { .. } => Ending::Interrupted,
            Error::Differ { .. }
            | Error::MissingVariable { .. }
            | Error::BadVariable { .. }
            | Error::NoToken
            | Error::PublicToken { .. }
            | Error::BadSize { .. }
            | Error::SizeMismatch { .. }
            | Error::Alone { .. }
            | Error::NoMpi { .. }
            | Error::NoInterface { .. } => Ending::Usage,
            _ => Ending::Failed,
        }
    }
}

/// `60 s`, `200 ms`.
pub(super) fn human(duration: Duration) -> String {
    if duration.subsec_millis() == 0 {
        format!("{} s", duration.as_secs())
    } else {
        format!("{} ms", duration.as_millis())
    }
}

/// `rank 1`, `ranks 1, 3`.
pub(super) fn rank_list(ranks: &[usize]) -> String {
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, numbers(ranks))
}

/// `0, 2`, `none`.
fn numbers(ranks: &[usize]) -> String {
    if ranks.is_empty() {
        return "none".to_owned();
    }
    ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn lines_read_well() {
        let late = BootstrapError::TimedOut {
            after: Duration::from_secs(60),
            missing: vec![1, 3],
            arrived: vec![0, 2],
            what: "row 4 barrier".into(),
            note: String::new(),
        };
        assert_eq!(
            late.to_string(),
            "timed out after 60 s waiting for ranks 1, 3 at \"row 4 barrier\" (arrived: 0, 2)"
        );
        let left = BootstrapError::Left {
            rank: 1,
            host: "x".into(),
            pid: 123,
            status: Some("exit status: 3".into()),
            what: "start".into(),
        };
        assert_eq!(left.to_string(), "rank 1 (host x, pid 123) left during \"start\": exit status: 3");
        assert_eq!(human(Duration::from_millis(200)), "200 ms");
    }

    #[test]
    fn the_kind_of_an_end_survives_the_way() {
        for ending in [Ending::Failed, Ending::TimedOut, Ending::Usage, Ending::Interrupted] {
            assert_eq!(Ending::of_label(ending.label()), ending);
        }
        assert_eq!(Ending::of_label("abort"), Ending::Failed);
    }
}
