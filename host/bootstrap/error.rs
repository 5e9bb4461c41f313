//! Errors among ranks and in sessions. Every message is one line: the problem, the permitted values, and a remedy.

use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::time::Duration;
use strum::{EnumString, IntoStaticStr};

use ginlab_base::text::printable;

/// Maximum number of runs of consecutive numbers in a message.
const MAX_RUNS: usize = 16;

/// Kind of an error. It is sent to the other ranks with the error's text, so that a job ends in the same way on every
/// rank. For example, a stall that a peer reports counts as a stall on this rank.
///
/// On the wire, the kind is the label of the frame that contains the text. An unknown label is read as `Failed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum FailureKind {
    /// An operation failed.
    #[default]
    Failed,
    /// A wait exceeded its limit.
    #[strum(serialize = "timed out")]
    TimedOut,
    /// The job cannot run as it was started: its options or its environment must be changed.
    Usage,
    /// Ctrl-C or SIGTERM.
    Interrupted,
}

/// An error among ranks, or in a session. It can be cloned, because every later call returns the first error of a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    /// Ctrl-C or SIGTERM ended a wait at this step.
    #[error("interrupted at {0:?}")]
    Interrupted(String),
    /// A peer closed its connection or its process exited.
    #[error("lost connection to rank {rank} (host {host}, pid {pid}) during {what:?}{}", status.as_ref().map(|s| format!(": {s}")).unwrap_or_default())]
    Left {
        /// The rank that left.
        rank: usize,
        /// Host name of that rank.
        host: String,
        /// Process ID of that rank.
        pid: u32,
        /// Exit status of that process, if it was a child of this process.
        status: Option<String>,
        /// The step at which this rank was.
        what: String,
    },
    /// A rank reported an error, which stops the job.
    #[error("rank {rank} stopped the job: {text}")]
    Aborted {
        /// The rank that reported the error.
        rank: usize,
        /// Kind of the error on that rank, and therefore on this one.
        ending: FailureKind,
        /// Text of the error on that rank.
        text: String,
    },
    /// A child process failed at the end of the job.
    #[error("rank {rank} (pid {pid}) failed: {status}")]
    ChildFailed {
        /// Rank of the child.
        rank: usize,
        /// Process ID of the child.
        pid: u32,
        /// Exit status of the child.
        status: String,
    },
    /// The ranks share no secret.
    #[error(
        "the ranks share no job token; set GINLAB_TOKEN to the same secret on every rank (`openssl rand -hex 16` makes \
         one), or GINLAB_TOKEN_FILE to a file that holds it"
    )]
    NoToken,
    /// The number of ranks is out of range.
    #[error("invalid number of ranks {asked}: must be from 1 to {limit}")]
    BadSize {
        /// Requested number of ranks.
        asked: usize,
        /// Maximum number of ranks.
        limit: usize,
    },
    /// No network interface of rank 0 can be offered to other hosts, or too many.
    #[error("{0}")]
    Interfaces(String),
    /// Any other error: its kind and its message, which is written where the error is created.
    #[error("{1}")]
    Other(FailureKind, String),
}

impl BootstrapError {
    /// Creates the error for ranks that were started with different options, versions or hardware: `key` is `first` on
    /// rank 0 and `other` on `ranks`.
    pub fn differ(key: &str, first: &str, other: &str, ranks: &[usize]) -> Self {
        let ranks = rank_list(ranks);
        BootstrapError::usage(format!("ranks differ: {key} is {first} on rank 0 but {other} on {ranks}"))
    }

    /// Creates the error for a time limit that passed before all ranks arrived at `what`. `note` starts with `; ` or is
    /// empty.
    pub(super) fn timed_out(after: Duration, missing: &[usize], arrived: &[usize], what: &str, note: &str) -> Self {
        let (after, missing, arrived) = (human(after), rank_list(missing), numbers(arrived));
        let text = format!("timed out after {after} waiting for {missing} at {what:?} (arrived: {arrived}){note}");
        BootstrapError::Other(FailureKind::TimedOut, text)
    }

    pub(super) fn failed(text: impl Into<String>) -> Self {
        BootstrapError::Other(FailureKind::Failed, text.into())
    }

    pub(super) fn usage(text: impl Into<String>) -> Self {
        BootstrapError::Other(FailureKind::Usage, text.into())
    }

    pub(super) fn too_large(what: &str, bytes: usize) -> Self {
        let most = super::frame::MAX_PART_BYTES;
        BootstrapError::failed(format!("{what:?} needs {bytes} bytes of one rank, but at most {most} are allowed"))
    }

    /// Creates the error for received data that does not conform to this protocol.
    pub(super) fn garbage(from: impl Display, text: impl Display) -> Self {
        BootstrapError::failed(format!("{from} does not follow ginlab's bootstrap protocol: {text}"))
    }

    /// Creates the error for an unexpected message from the other side of a session.
    pub(super) fn unexpected(peer: impl Display, what: &str, text: &str) -> Self {
        BootstrapError::failed(format!("{peer} sent an unexpected message at {what:?}: {}", printable(text)))
    }

    /// Creates the error for a failed system call.
    pub(super) fn system(action: impl Display, error: impl Display) -> Self {
        BootstrapError::failed(format!("cannot {action}: {error}"))
    }

    /// Creates the error for an environment variable with an invalid value.
    pub(super) fn bad_variable(name: &str, value: impl ToString, allowed: impl Display) -> Self {
        BootstrapError::usage(format!("{name}={:?} is not valid: {allowed}", value.to_string()))
    }

    /// Returns the kind of the error, which is the same on every rank that receives the error.
    pub fn ending(&self) -> FailureKind {
        use BootstrapError as Error;
        match self {
            Error::Aborted { ending, .. } | Error::Other(ending, _) => *ending,
            Error::Interrupted(_) => FailureKind::Interrupted,
            Error::NoToken | Error::BadSize { .. } | Error::Interfaces(_) => FailureKind::Usage,
            Error::Left { .. } | Error::ChildFailed { .. } => FailureKind::Failed,
        }
    }
}

/// Formats a duration, for example `60 s` or `200 ms`.
pub(super) fn human(duration: Duration) -> String {
    if duration.subsec_millis() == 0 {
        format!("{} s", duration.as_secs())
    } else {
        format!("{} ms", duration.as_millis())
    }
}

/// Formats an ascending list of ranks, for example `rank 1`, `ranks 1, 3` or `ranks 1 to 4095`.
#[must_use]
pub fn rank_list(ranks: &[usize]) -> String {
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, numbers(ranks))
}

/// Formats an ascending list of numbers, for example `0, 2`, `1 to 4, 7`, or `none`. Omits numbers after [`MAX_RUNS`]
/// runs, and names their count.
fn numbers(ranks: &[usize]) -> String {
    if ranks.is_empty() {
        return "none".to_owned();
    }
    let runs: Vec<&[usize]> = ranks.chunk_by(|one, next| one + 1 == *next).collect();
    let run = |run: &&[usize]| match run {
        [first, _, .., last] => format!("{first} to {last}"),
        few => few.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
    };
    let shown: Vec<String> = runs.iter().take(MAX_RUNS).map(run).collect();
    let omitted: usize = runs.iter().skip(MAX_RUNS).map(|run| run.len()).sum();
    shown.join(", ") + &if omitted > 0 { format!(" and {omitted} more") } else { String::new() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn lines_read_well() {
        let late = BootstrapError::timed_out(Duration::from_secs(60), &[1, 3], &[0, 2], "row 4 barrier", "");
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
        assert_eq!(left.to_string(), "lost connection to rank 1 (host x, pid 123) during \"start\": exit status: 3");
        assert_eq!(human(Duration::from_millis(200)), "200 ms");
    }

    #[test]
    fn messages_about_thousands_of_ranks_are_short() {
        let all: Vec<usize> = (0..4096).collect();
        let late = BootstrapError::timed_out(Duration::from_secs(60), &all[1..], &[0], "start", "");
        assert_eq!(late.to_string(), "timed out after 60 s waiting for ranks 1 to 4095 at \"start\" (arrived: 0)");
        assert_eq!(rank_list(&[0, 1, 2, 4, 5, 9]), "ranks 0 to 2, 4, 5, 9");
        let even: Vec<usize> = (0..4096).step_by(2).collect();
        assert!(rank_list(&even).ends_with("28, 30 and 2032 more"), "{}", rank_list(&even));
    }

    #[test]
    fn error_kind_survives_round_trip() {
        for ending in [FailureKind::Failed, FailureKind::TimedOut, FailureKind::Usage, FailureKind::Interrupted] {
            assert_eq!(<&str>::from(ending).parse(), Ok(ending));
        }
        assert_eq!("abort".parse::<FailureKind>().unwrap_or_default(), FailureKind::Failed);
    }
}
