//! A rail between processes of one machine that are each other's: bytes are copied straight into the peer's memory, which is
//! mapped here; immediates go through queues in shared memory. What moves the bytes of modelled cards: it needs no libfabric, and
//! a small write costs it tens of nanoseconds, so that the time that passes is the model's.
//!
//! A region that peers write to or read lies in memory of [`Place::File`](ginlab_cuda::Place); what is only written *from* may be any
//! host memory. Small writes are copied by the thread that posts, others by [`Movers`] where there are some. A write is complete when
//! its bytes are in the peer's memory. Nothing is left behind by a process that is killed: the files have no names.

pub(super) mod inbox;
mod movers;
pub(super) mod peers;
mod stores;

pub use movers::Movers;
pub use peers::SameHostRegion;
pub use stores::Stores;

use super::{Access, Completion, FabricError, Memory, Post, Rail, RailLimits, RemoteRegion, Transfer};
use crossbeam_utils::Backoff;
use ginlab_base::memory_file::MemoryFile;
use inbox::Inbox;
use movers::Job;
use peers::{Peers, failed};
use std::collections::VecDeque;
use std::sync::Arc;

/// Up to here a copy takes no longer than to hand it over.
const SMALL: u64 = 8 << 10;
/// Writes that are with the movers, at most.
const OUTSTANDING: usize = 8192;
/// Polls between two looks whether the peers' processes are there.
const LOOK_EVERY: u32 = 4096;

const LIMITS: RailLimits = RailLimits {
    max_transfer_bytes: u64::MAX,
    max_outstanding: OUTSTANDING,
    immediate_bytes: 4,
    link_bits_per_second: None,
    cuda_memory: false,
};

/// See the module.
#[derive(Debug)]
pub struct SameHostRail {
    name: String,
    inbox: Inbox,
    peers: Peers,
    movers: Option<Arc<Movers>>,
    /// With the movers, in the order of their posts.
    jobs: VecDeque<(Transfer, Arc<Job>)>,
    done: Vec<u64>,
    polls: u32,
}

impl SameHostRail {
    /// Opens one; `name` is for messages.
    ///
    /// # Errors
    /// When there is no memory for its inbox.
    pub fn open(name: &str, movers: Option<Arc<Movers>>) -> Result<SameHostRail, FabricError> {
        let inbox = Inbox::new().map_err(|error| failed(name, "opening an inbox in shared memory", &error))?;
        Ok(SameHostRail {
            name: name.to_owned(),
            inbox,
            peers: Peers::default(),
            movers,
            jobs: VecDeque::new(),
            done: Vec::new(),
            polls: 0,
        })
    }

    /// The peer's bytes, mapped, and for a mover the file that keeps them so: a copy made here and now needs none.
    #[inline]
    fn reach(
        &mut self,
        region: &SameHostRegion,
        t: &Transfer,
    ) -> Result<(*mut u8, Option<Arc<MemoryFile>>), FabricError> {
        let (file, at) = self.peers.reach(&self.name, region, t)?;
        let kept = (self.movers.is_some() && t.bytes > SMALL).then(|| file.clone());
        Ok(((file.address() + at) as *mut u8, kept))
    }

    /// Copies now or soon, unless too much is under way.
    ///
    /// # Safety
    /// Both stretches are valid and stay so until the token's completion.
    #[inline]
    unsafe fn copy(&mut self, source: *const u8, target: *mut u8, t: &Transfer, file: Option<Arc<MemoryFile>>) -> Post {
        match (&self.movers, file) {
            (Some(movers), Some(file)) => {
                if self.jobs.len() >= OUTSTANDING {
                    return Post::Again;
                }
                // SAFETY: the caller's contract; the job is reported only when it is done, and `drop` waits for it.
                let job = unsafe { movers.copy(source, target, t.bytes, t.remote_offset, &file) };
                self.jobs.push_back((*t, job));
            }
            _ => {
                // SAFETY: the caller's contract. They may be the same memory, of a put onto itself.
                unsafe { std::ptr::copy(source, target, t.bytes as usize) };
                self.done.push(t.token);
            }
        }
        Post::Accepted
    }
}

impl Rail for SameHostRail {
    type Region = SameHostRegion;

    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> &RailLimits {
        &LIMITS
    }

    fn address(&self) -> Result<Vec<u8>, FabricError> {
        Ok(peers::address(self.inbox.name()))
    }

    fn add_peer(&mut self, address: &[u8]) -> Result<usize, FabricError> {
        self.peers.add(&self.name, address)
    }

    fn remove_peer(&mut self, peer: usize) -> Result<(), FabricError> {
        self.peers.remove(&self.name, peer)
    }

    unsafe fn register(&mut self, memory: Memory, _access: Access) -> Result<SameHostRegion, FabricError> {
        SameHostRegion::new(&self.name, memory)
    }

    fn remote(&self, region: &SameHostRegion) -> RemoteRegion {
        region.remote()
    }

    #[inline]
    unsafe fn write(&mut self, region: &SameHostRegion, t: &Transfer) -> Result<Post, FabricError> {
        if t.bytes > 0 {
            let (target, file) = self.reach(region, t)?;
            let source = (region.address + t.local_offset) as *const u8;
            if t.immediate.is_none() || file.is_some() {
                // SAFETY: checked by `reach`; the caller's contract for the source, and the file keeps the target. Movers do not raise the
                // immediate: `poll` does, when they have copied.
                return Ok(unsafe { self.copy(source, target, t, file) });
            }
            // Nobody may see the immediate before the bytes: copied here and now. Modelled cards send theirs by itself.
            // SAFETY: as above.
            unsafe { std::ptr::copy(source, target, t.bytes as usize) };
        }
        if let Some(immediate) = t.immediate
            && !self.peers.signal(&self.name, t, immediate)?
        {
            return Ok(Post::Again);
        }
        self.done.push(t.token);
        Ok(Post::Accepted)
    }

    unsafe fn read(&mut self, region: &SameHostRegion, t: &Transfer) -> Result<Post, FabricError> {
        let (source, file) = self.reach(region, t)?;
        let target = (region.address + t.local_offset) as *mut u8;
        // SAFETY: checked by `reach`; the caller's contract for the target, and the file keeps the source.
        Ok(unsafe { self.copy(source, target, t, file) })
    }

    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(LOOK_EVERY) {
            self.peers.look();
        }
        completions.extend(self.done.drain(..).map(|token| Completion::Done { token }));
        while let Some((t, job)) = self.jobs.front()
            && job.is_done()
        {
            let t = *t;
            // A peer whose queue is full is told at a later poll; what was posted behind waits with it.
            if let Some(immediate) = t.immediate
                && !self.peers.signal(&self.name, &t, immediate)?
            {
                break;
            }
            self.jobs.pop_front();
            completions.push(Completion::Done { token: t.token });
        }
        self.inbox.take(|value| completions.push(Completion::Immediate { value }));
        Ok(())
    }
}

impl Drop for SameHostRail {
    /// The movers must have done with our memory. They copy and wait for nothing, so that has an end.
    fn drop(&mut self) {
        let backoff = Backoff::new();
        while self.jobs.iter().any(|(_, job)| !job.is_done()) {
            backoff.snooze();
        }
    }
}

#[cfg(test)]
mod tests;
