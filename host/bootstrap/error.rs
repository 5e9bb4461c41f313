//! What can go wrong among ranks, and on a visit. Every error is one line: what is wrong, what is allowed, what to try.

use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::time::Duration;
use strum::{EnumString, IntoStaticStr};

use ginlab_base::text::printable;

/// What kind of end an error is. It goes with the error's words to the other ranks, so that a job ends alike whichever of its
/// ranks was the first to notice: a stall that a peer tells is a stall.
///
/// As it travels it is the label of the frame that has the words; a label that is none of these failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Ending {
    /// It was tried and failed.
    #[default]
    Failed,
    /// A wait ran into its bound.
    #[strum(serialize = "timed out")]
    TimedOut,
    /// The job cannot be as it was started: its options or its environment are to be changed.
    Usage,
    /// Ctrl-C or SIGTERM.
    Interrupted,
}

/// An error among ranks, or of a visit. It can be cloned, because the first error of a job is also the answer to every later call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    /// Ctrl-C or SIGTERM ended a wait at this step.
    #[error("interrupted at {0:?}")]
    Interrupted(String),
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
    /// No secret is shared by the ranks.
    #[error(
        "the ranks share no job token; set GINLAB_TOKEN to the same secret on every rank (`openssl rand -hex 16` makes one), \
         or GINLAB_TOKEN_FILE to a file that holds it"
    )]
    NoToken,
    /// The number of ranks cannot be.
    #[error("a job of {asked} ranks cannot be: allowed are 1 to {limit}")]
    BadSize {
        /// The number asked for.
        asked: usize,
        /// The largest number allowed.
        limit: usize,
    },
    /// All others: what kind of end it is, and the line, which stands where the error is made.
    #[error("{1}")]
    Other(Ending, String),
}

impl BootstrapError {
    /// The ranks were started with different options, versions or hardware: `key` is `first` on rank 0 and `other` on `ranks`.
    pub fn differ(key: &str, first: &str, other: &str, ranks: &[usize]) -> Self {
        let ranks = rank_list(ranks);
        BootstrapError::usage(format!("ranks differ: {key} is {first} on rank 0 but {other} on {ranks}"))
    }

    /// The time limit passed before everybody arrived at `what`. `note` has its own leading `; `, or is empty.
    pub(super) fn timed_out(after: Duration, missing: &[usize], arrived: &[usize], what: &str, note: &str) -> Self {
        let (after, missing, arrived) = (human(after), rank_list(missing), numbers(arrived));
        let text = format!("timed out after {after} waiting for {missing} at {what:?} (arrived: {arrived}){note}");
        BootstrapError::Other(Ending::TimedOut, text)
    }

    pub(super) fn failed(text: impl Into<String>) -> Self {
        BootstrapError::Other(Ending::Failed, text.into())
    }

    pub(super) fn usage(text: impl Into<String>) -> Self {
        BootstrapError::Other(Ending::Usage, text.into())
    }

    pub(super) fn too_large(what: &str, bytes: usize) -> Self {
        let most = super::frame::MAX_PART_BYTES;
        BootstrapError::failed(format!("{what:?} needs {bytes} bytes of one rank; at most {most} are allowed"))
    }

    /// A rank sent something that is not this protocol.
    pub(super) fn garbage(from: impl Display, text: impl Display) -> Self {
        BootstrapError::failed(format!("{from} sent something that is not ginlab's bootstrap protocol: {text}"))
    }

    /// The other side of a visit speaks otherwise than it should.
    pub(super) fn unexpected(peer: impl Display, what: &str, text: &str) -> Self {
        BootstrapError::failed(format!("{peer} sent something unexpected at {what:?}: {}", printable(text)))
    }

    /// The operating system refused something.
    pub(super) fn system(action: impl Display, error: impl Display) -> Self {
        BootstrapError::failed(format!("cannot {action}: {error}"))
    }

    /// An environment variable makes no sense.
    pub(super) fn bad_variable(name: &str, value: impl ToString, allowed: impl Display) -> Self {
        BootstrapError::usage(format!("{name}={:?} is not valid: {allowed}", value.to_string()))
    }

    /// What kind of end it is, here and on every rank that hears of it.
    pub fn ending(&self) -> Ending {
        use BootstrapError as Error;
        match self {
            Error::Aborted { ending, .. } | Error::Other(ending, _) => *ending,
            Error::Interrupted(_) => Ending::Interrupted,
            Error::NoToken | Error::BadSize { .. } => Ending::Usage,
            Error::Left { .. } | Error::ChildFailed { .. } => Ending::Failed,
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
        assert_eq!(left.to_string(), "rank 1 (host x, pid 123) left during \"start\": exit status: 3");
        assert_eq!(human(Duration::from_millis(200)), "200 ms");
    }

    #[test]
    fn the_kind_of_an_end_survives_the_way() {
        for ending in [Ending::Failed, Ending::TimedOut, Ending::Usage, Ending::Interrupted] {
            assert_eq!(<&str>::from(ending).parse(), Ok(ending));
        }
        assert_eq!("abort".parse::<Ending>().unwrap_or_default(), Ending::Failed);
    }
}
