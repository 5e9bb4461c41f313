//! A rail that keeps no order at all, for tests and studies: each transfer waits for a number of polls of its own, drawn by a seed, before
//! the rail below gets it. What EFA's datagrams may do, on any machine and much more often.

use super::{
    Access, BareLoop, Completion, FabricError, Memory, Message, Post, Rail, RailLimits, RemoteRegion, Transfer,
    passed_on_to_inner, writes_and_reads_alone,
};
use std::rc::Rc;

/// How names of such rails begin: `test:unordered`.
pub const NAME: &str = "test:unordered";
/// Transfers that wait at most.
const OUTSTANDING: usize = 1024;

/// How a rail disturbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disorder {
    /// Which delays it draws.
    pub seed: u64,
    /// The longest delay in polls.
    pub most_polls: u64,
    /// The longest transfer that it takes, in bytes: longer puts are cut.
    pub longest: u64,
}

impl Default for Disorder {
    fn default() -> Self {
        Disorder { seed: 1, most_polls: 24, longest: 64 << 10 }
    }
}

/// See the module.
#[derive(Debug)]
pub struct ShuffledRail<R: Rail> {
    // Before the rail: its regions.
    held: Vec<Held<R::Region>>,
    inner: R,
    disorder: Disorder,
    name: String,
    limits: RailLimits,
    random: u64,
    polls: u64,
}

#[derive(Debug)]
struct Held<G> {
    due: u64,
    region: Rc<G>,
    transfer: Transfer,
    read: bool,
}

impl<R: Rail> ShuffledRail<R> {
    /// A rail over another one.
    pub fn new(inner: R, disorder: Disorder) -> Self {
        let limits = RailLimits {
            max_transfer_bytes: disorder.longest.min(inner.limits().max_transfer_bytes),
            max_outstanding: OUTSTANDING,
            ..inner.limits().clone()
        };
        let name = format!("{NAME} over {}", inner.name());
        ShuffledRail { held: Vec::new(), inner, disorder, name, limits, random: disorder.seed | 1, polls: 0 }
    }

    /// xorshift64: any sequence without a pattern does.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn hold(&mut self, region: &Rc<R::Region>, transfer: &Transfer, read: bool) -> Post {
        if self.held.len() >= OUTSTANDING {
            return Post::Again;
        }
        let due = self.polls + self.draw() % (self.disorder.most_polls + 1);
        self.held.push(Held { due, region: region.clone(), transfer: Transfer { more: false, ..*transfer }, read });
        Post::Accepted
    }
}

impl<R: Rail> Rail for ShuffledRail<R> {
    passed_on_to_inner!();

    writes_and_reads_alone!();

    unsafe fn write(&mut self, region: &Self::Region, transfer: &Transfer) -> Result<Post, FabricError> {
        // As libfabric's rails do, so that tests over these meet it too.
        if transfer.bytes == 0 && transfer.immediate.is_none() {
            return Err(self.has_none("writes of nothing that say nothing"));
        }
        Ok(self.hold(region, transfer, false))
    }

    unsafe fn read(&mut self, region: &Self::Region, transfer: &Transfer) -> Result<Post, FabricError> {
        Ok(self.hold(region, transfer, true))
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        self.polls += 1;
        let mut at = 0;
        while at < self.held.len() {
            if self.held[at].due > self.polls {
                at += 1;
                continue;
            }
            // The last one takes its place: another disorder.
            let held = self.held.swap_remove(at);
            // SAFETY: the caller's contract of the post: its completion has not been told.
            let posted = unsafe {
                match held.read {
                    true => self.inner.read(&held.region, &held.transfer),
                    false => self.inner.write(&held.region, &held.transfer),
                }
            };
            if posted? == Post::Again {
                self.held.push(held);
                break;
            }
        }
        self.inner.poll(completions)
    }
}

#[cfg(test)]
mod tests {
    use super::super::null::NullRail;
    use super::*;

    #[test]
    fn every_transfer_arrives_once_and_not_in_order() {
        let mut rail = ShuffledRail::new(NullRail::new(), Disorder { longest: 100, ..Disorder::default() });
        rail.insert_peers(&[Vec::new()]).expect("a peer");
        // SAFETY: a null rail does not touch the memory.
        let region = unsafe { rail.register(Memory { address: 0, bytes: 64, cuda_device: None }, Access::ALL) };
        let region = region.expect("a region");
        let remote = rail.remote(&region);
        assert_eq!(rail.limits().max_transfer_bytes, 100);
        for token in 0..=OUTSTANDING as u64 {
            let (local_offset, peer, remote_offset, bytes, immediate, more) = (0, 0, 0, 8, None, false);
            let transfer = Transfer { local_offset, peer, remote, remote_offset, bytes, immediate, token, more };
            // SAFETY: a null rail does not touch the memory.
            let posted = unsafe { rail.write(&region, &transfer) };
            let expected = if token < OUTSTANDING as u64 { Post::Accepted } else { Post::Again };
            assert_eq!(posted, Ok(expected));
        }
        let mut completions = Vec::new();
        for _ in 0..Disorder::default().most_polls + 2 {
            rail.poll(&mut completions).expect("polled");
        }
        let tokens: Vec<u64> = completions
            .iter()
            .map(|completion| match completion {
                Completion::Done { token } => *token,
                other => panic!("{other:?}"),
            })
            .collect();
        let mut sorted = tokens.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..OUTSTANDING as u64).collect::<Vec<_>>());
        assert!(tokens.windows(2).filter(|pair| pair[0] > pair[1]).count() > OUTSTANDING / 4);
    }
}
