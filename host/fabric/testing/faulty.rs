//! A rail with injected faults, for tests and fault experiments. The rail wraps any other rail and follows a script.

use std::collections::VecDeque;
use std::ptr::{NonNull, with_exposed_provenance_mut};

use nix::sys::mman::mlock;

use super::layer::{Layer, Layered, Posting};
use crate::libfabric::{self, FailedOperation};
use crate::{Completion, FabricError, MemoryRange, Post, Rail, mistake};

/// The faults to inject. None by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RailFaults {
    /// Number of initial posts that return [`Post::Again`].
    pub again_first: u64,
    /// Every n-th later post returns [`Post::Again`]; `None` for no later post.
    pub again_every: Option<u64>,
    /// Numbers of the completions that fail, counted from 1 over all transfers of the rail. The data may have been
    /// transferred.
    pub fail_completions: Vec<u64>,
    /// Number of the first poll, counted from 1, that returns an error. All later polls return it as well.
    pub dead_from_poll: Option<u64>,
    /// Number of initial polls that report a failed incoming transfer of a peer.
    pub incoming_failures: u64,
    /// Number of polls by which each completion and immediate is delayed.
    pub delay_polls: u64,
    /// Number of the registration that is refused, counted from 1.
    pub refuse_registration: Option<u64>,
    /// Whether registered memory is locked. Drivers of NICs lock it, but providers without a NIC do not. If the system
    /// refuses to lock memory (`ulimit -l`), its registration fails. Registered memory stays locked until it is freed.
    pub lock_memory: bool,
    /// Whether the completions of one poll are returned in reverse order.
    pub reverse: bool,
}

/// A rail with injected faults.
pub type FaultyRail<R> = Layered<R, FaultScript>;

/// The faults, and the progress of the script.
#[derive(Debug, Default)]
pub struct FaultScript {
    faults: RailFaults,
    posts: u64,
    agains: u64,
    completed: u64,
    polls: u64,
    registrations: u64,
    /// Completions with the number of the poll that returns them.
    held: VecDeque<(u64, Completion)>,
}

impl<R: Rail> FaultyRail<R> {
    /// Wraps a rail.
    pub fn new(inner: R, faults: RailFaults) -> Self {
        Layered::over(inner, FaultScript { faults, ..FaultScript::default() })
    }

    /// Replaces the script without resetting the counters.
    pub fn set_faults(&mut self, faults: RailFaults) {
        self.layer.faults = faults;
    }

    /// Returns the number of posts so far, including refused ones.
    pub fn posts(&self) -> u64 {
        self.layer.posts
    }

    /// Returns the number of posts for which the script returned [`Post::Again`].
    pub fn agains(&self) -> u64 {
        self.layer.agains
    }
}

fn error(rail: &str, operation: &str) -> FabricError {
    FabricError { code: nix::libc::EIO, ..mistake(rail, operation, "scripted fault") }
}

fn lock(rail: &str, memory: MemoryRange) -> Result<(), FabricError> {
    let first = NonNull::new(with_exposed_provenance_mut(memory.address as usize));
    // SAFETY: the caller of `register` guarantees that the memory is valid, and locking does not change it.
    let locked = first.map_or(Ok(()), |first| unsafe { mlock(first, memory.bytes) });
    let what = format!("registration of {} B", memory.bytes);
    locked.map_err(|error| libfabric::error(rail, FailedOperation::RegisteringHost, what, -(error as i64)))
}

impl FaultScript {
    fn alter(&mut self, rail: &str, completion: Completion) -> Completion {
        let Completion::Done { token } = completion else { return completion };
        self.completed += 1;
        if self.faults.fail_completions.contains(&self.completed) {
            let error = error(rail, &format!("completion {}", self.completed));
            return Completion::Failed { token: Some(token), error: Box::new(error) };
        }
        Completion::Done { token }
    }
}

impl Layer for FaultScript {
    fn before_register(&mut self, rail: &str, memory: MemoryRange) -> Result<(), FabricError> {
        self.registrations += 1;
        if self.faults.refuse_registration == Some(self.registrations) {
            return Err(error(rail, &format!("registration of {} B", memory.bytes)));
        }
        if self.faults.lock_memory { lock(rail, memory) } else { Ok(()) }
    }

    fn before_post(&mut self, posting: Posting<'_>) -> Post {
        if matches!(posting, Posting::Receive(_)) {
            return Post::Accepted;
        }
        self.posts += 1;
        let beyond = self.posts.saturating_sub(self.faults.again_first);
        let refused =
            beyond == 0 || self.faults.again_every.is_some_and(|every| every > 0 && beyond.is_multiple_of(every));
        self.agains += u64::from(refused);
        if refused { Post::Again } else { Post::Accepted }
    }

    fn before_poll(&mut self, rail: &str) -> Result<(), FabricError> {
        self.polls += 1;
        let dead = self.faults.dead_from_poll.is_some_and(|first| self.polls >= first);
        if dead { Err(error(rail, "poll")) } else { Ok(()) }
    }

    fn after_poll(&mut self, rail: &str, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        for completion in completions.drain(..) {
            let altered = self.alter(rail, completion);
            self.held.push_back((self.polls.saturating_add(self.faults.delay_polls), altered));
        }
        if self.polls <= self.faults.incoming_failures {
            let error = Box::new(error(rail, "an incoming transfer"));
            completions.push(Completion::Failed { token: None, error });
        }
        let start = completions.len();
        while self.held.front().is_some_and(|(due, _)| *due <= self.polls) {
            completions.extend(self.held.pop_front().map(|(_, completion)| completion));
        }
        if self.faults.reverse {
            completions[start..].reverse();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::null::NullRail;
    use crate::{Access, Transfer};

    fn run(faults: RailFaults, posts: u64, polls: usize) -> (Vec<Vec<Result<u64, u64>>>, FaultyRail<NullRail>) {
        let mut rail = FaultyRail::new(NullRail::new(), faults);
        rail.insert_peers(&[Vec::new()]).expect("a peer");
        // SAFETY: a null rail does not access the memory.
        let region = unsafe { rail.register(MemoryRange { address: 0, bytes: 64, cuda_device: None }, Access::ALL) }
            .expect("a region");
        let remote = rail.remote(&region);
        for token in 0..posts {
            let transfer = Transfer::new(0, (0, remote, 0), 8, token);
            // SAFETY: a null rail does not access the memory.
            unsafe { rail.write(&region, &transfer) }.expect("a post");
        }
        let batches = (0..polls)
            .map(|_| {
                let mut completions = Vec::new();
                rail.poll(&mut completions).expect("a poll");
                completions
                    .into_iter()
                    .map(|completion| match completion {
                        Completion::Done { token } => Ok(token),
                        Completion::Failed { token, .. } => Err(token.expect("a token")),
                        other => panic!("only writes were posted: {other:?}"),
                    })
                    .collect()
            })
            .collect();
        (batches, rail)
    }

    #[test]
    fn faulty_rail_without_faults_is_transparent() {
        let (batches, rail) = run(RailFaults::default(), 3, 2);
        assert_eq!(batches, [vec![Ok(0), Ok(1), Ok(2)], vec![]]);
        assert_eq!((rail.posts(), rail.agains(), rail.inner().counted().transfers), (3, 0, 3));
    }

    #[test]
    fn again_storms_occur_first_and_periodically() {
        let faults = RailFaults { again_first: 2, again_every: Some(3), ..Default::default() };
        let (batches, rail) = run(faults, 9, 1);
        // Posts 1, 2, 5 and 8 are refused. Their tokens are one less.
        assert_eq!(batches, [vec![Ok(2), Ok(3), Ok(5), Ok(6), Ok(8)]]);
        assert_eq!(rail.agains(), 4);
    }

    #[test]
    fn chosen_completions_fail_with_their_token() {
        let (batches, _) = run(RailFaults { fail_completions: vec![2], ..Default::default() }, 3, 1);
        assert_eq!(batches, [vec![Ok(0), Err(1), Ok(2)]]);
    }

    #[test]
    fn completions_come_late_and_in_reverse() {
        let (batches, _) = run(RailFaults { delay_polls: 2, reverse: true, ..Default::default() }, 3, 4);
        assert_eq!(batches, [vec![], vec![], vec![Ok(2), Ok(1), Ok(0)], vec![]]);
    }

    #[test]
    fn dead_rail_fails_every_poll() {
        let mut rail = FaultyRail::new(NullRail::new(), RailFaults { dead_from_poll: Some(2), ..Default::default() });
        let mut completions = Vec::new();
        assert!(rail.poll(&mut completions).is_ok());
        for _ in 0..3 {
            assert!(rail.poll(&mut completions).expect_err("dead").to_string().contains("scripted fault"));
        }
    }
}
