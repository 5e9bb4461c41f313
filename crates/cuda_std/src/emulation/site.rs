//! Where threads wait for each other, and what is said when they do not wait at the same place.
//!
//! On a GPU `bar.sync 0` does not know where in the code it stands: threads of a block that wait at two different barriers may pass both,
//! may hang, or may be stopped by the hardware, as the compiler has laid out the branches. The rule here is stricter: all threads of a
//! block meet at the same call, all of them, and all lanes of a mask meet at the same call with the same mask.

use super::Vote;
use std::fmt;
use std::panic::Location;

/// What threads meet for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(any(loom, miri, feature = "threads"), allow(dead_code))] // a warp of one lane meets nobody
pub enum Meeting {
    /// The block barrier.
    SyncThreads,
    /// The block barrier with a vote. The hardware forbids to mix it with the one without.
    SyncThreadsOr,
    /// The barrier of lanes of a warp.
    Synchronize,
    Shuffle,
    Match,
    Vote(Vote),
}

impl Meeting {
    /// As messages name it.
    pub fn name(self) -> &'static str {
        match self {
            Meeting::SyncThreads => "sync_threads",
            Meeting::SyncThreadsOr => "sync_threads_or",
            Meeting::Synchronize => "synchronize",
            Meeting::Shuffle => "a shuffle",
            Meeting::Match => "a match",
            Meeting::Vote(_) => "a vote",
        }
    }
}

/// A call at which threads wait for each other. What a library does inside of a call counts as the caller's line, as far as its functions are
/// marked `#[track_caller]`.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    pub meeting: Meeting,
    pub location: &'static Location<'static>,
}

impl Site {
    /// Whether this is the same call.
    #[inline(always)]
    pub fn is(&self, other: &Site) -> bool {
        // One call may have several copies of its location, one in each of a program's parts. Mostly it is the same one.
        self.meeting == other.meeting
            && (std::ptr::eq(self.location, other.location) || self.location == other.location)
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.location, self.meeting.name())
    }
}

/// Threads of one block wait at two different barriers.
pub fn two_barriers((thread, here): (u32, Site), (other, there): (u32, Site)) -> String {
    format!(
        "thread {thread} waits at {here}, thread {other} at {there}; all threads of a block must meet at the same barrier"
    )
}

/// A thread has returned; `last` is where it has met others before.
pub fn has_returned((gone, last): (u32, Option<Site>)) -> String {
    let last = last.map_or("has met nobody before".into(), |last| format!("has met others last at {last}"));
    format!("thread {gone} has returned ({last})")
}

/// A thread has returned and another one waits for the whole block.
pub fn one_has_left(gone: (u32, Option<Site>), (thread, here): (u32, Site)) -> String {
    format!(
        "{}, and thread {thread} waits for it at {here}; no thread may return while others of its block still meet: let the block agree \
         first (sync_threads_or)",
        has_returned(gone)
    )
}
