//! Calls at which threads wait for each other, and the messages if they do not wait at the same one.
//!
//! On a GPU, `bar.sync 0` does not identify its place in the code. Threads of a block that wait at two different
//! barriers may pass both, hang, or be stopped by the hardware, depending on how the compiler arranged the branches.
//! The rule here is stricter. All threads of a block must meet at the same call, and all lanes of a mask must meet at
//! the same call with the same mask.

use super::Vote;
use std::fmt;
use std::panic::Location;

/// Kind of meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(any(loom, miri, feature = "threads"), allow(dead_code))] // a warp of one lane meets no others
pub enum RendezvousKind {
    /// The block barrier.
    SyncThreads,
    /// The block barrier with a vote. The hardware forbids mixing it with the one without.
    SyncThreadsOr,
    /// The barrier of lanes of a warp.
    Synchronize,
    Shuffle,
    Match,
    Vote(Vote),
}

impl RendezvousKind {
    /// Returns the name used in messages.
    pub fn name(self) -> &'static str {
        match self {
            RendezvousKind::SyncThreads => "sync_threads",
            RendezvousKind::SyncThreadsOr => "sync_threads_or",
            RendezvousKind::Synchronize => "synchronize",
            RendezvousKind::Shuffle => "a shuffle",
            RendezvousKind::Match => "a match",
            RendezvousKind::Vote(_) => "a vote",
        }
    }
}

/// A call at which threads wait for each other. A meeting inside a library function counts as the caller's line if the
/// functions in between are marked `#[track_caller]`.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    pub meeting: RendezvousKind,
    pub location: &'static Location<'static>,
}

impl Site {
    /// Returns whether this is the same call.
    #[inline(always)]
    pub fn is(&self, other: &Site) -> bool {
        // The location of one call may have several copies, one per codegen unit. Usually both are the same copy.
        self.meeting == other.meeting
            && (std::ptr::eq(self.location, other.location) || self.location == other.location)
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.location, self.meeting.name())
    }
}

/// Describes threads of one block that wait at two different barriers.
pub fn two_barriers((thread, here): (u32, Site), (other, there): (u32, Site)) -> String {
    format!(
        "thread {thread} waits at {here}, thread {other} at {there}; all threads of a block must meet at the same barrier"
    )
}

/// Describes a thread that has returned; `last` is the last call at which it met others.
pub fn has_returned((gone, last): (u32, Option<Site>)) -> String {
    let last = last.map_or("has not met other threads".into(), |last| format!("last met other threads at {last}"));
    format!("thread {gone} has returned ({last})")
}

/// Describes a thread that has returned while another one waits for the whole block.
pub fn one_has_left(gone: (u32, Option<Site>), (thread, here): (u32, Site)) -> String {
    format!(
        "{}, and thread {thread} waits for it at {here}; no thread may return before the last meeting of its block: \
         let the block agree first (sync_threads_or)",
        has_returned(gone)
    )
}
