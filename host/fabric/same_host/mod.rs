//! A rail between processes of one machine. Bytes are copied directly to the peer's memory, which is mapped here, and
//! immediates are sent through queues in shared memory.
//!
//! Modelled cards use it to move bytes. It needs no libfabric, and a small write costs only tens of nanoseconds, so
//! that the elapsed time is that of the model.
//!
//! A region that peers write to or read must be in memory of [`MemoryLocation::File`](ginlab_cuda::MemoryLocation). A
//! region that is only a source may be any host memory. Small writes are copied by the posting thread, others by
//! [`CopyThreads`] if there are any. A write is complete when its bytes are in the peer's memory. The files have no
//! names, so no file remains after a process is killed.

pub(super) mod inbox;
mod movers;
pub(super) mod peers;
mod stores;

pub use inbox::SENDERS as MAX_SENDERS;
pub use movers::CopyThreads;
pub use peers::SameHostRegion;
pub use stores::Stores;

use super::{Access, Completion, FabricError, MemoryRange, Post, Rail, RailLimits, RemoteRegion, Transfer};
use crossbeam_utils::Backoff;
use ginlab_base::memory_file::MemoryFile;
use inbox::Inbox;
use movers::Job;
use peers::{Peers, failed};
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum size of a copy that takes no longer than passing it to a copy thread.
const SMALL: u64 = 8 << 10;
/// Maximum number of writes in progress on the copy threads.
const OUTSTANDING: usize = 8192;
/// Number of polls between two checks of whether the peers' processes are alive.
const LOOK_EVERY: u32 = 4096;

const LIMITS: RailLimits = RailLimits {
    max_transfer_bytes: u64::MAX,
    max_outstanding: OUTSTANDING,
    immediate_bytes: 4,
    link_bits_per_second: None,
    cuda_memory: false,
};

/// A rail between processes of one machine. See the module documentation.
#[derive(Debug)]
pub struct SameHostRail {
    name: String,
    inbox: Inbox,
    peers: Peers,
    movers: Option<Arc<CopyThreads>>,
    /// Transfers on the copy threads, in the order of their posts.
    jobs: VecDeque<(Transfer, Arc<Job>)>,
    done: Vec<u64>,
    polls: u32,
}

impl SameHostRail {
    /// Opens a rail. `name` is used in messages.
    ///
    /// # Errors
    /// Returns an error if there is no memory for its inbox.
    pub fn open(name: &str, movers: Option<Arc<CopyThreads>>) -> Result<SameHostRail, FabricError> {
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

    /// Returns the mapped address of the peer's bytes. If a copy thread will use the address, also returns the file,
    /// which keeps it mapped. An immediate copy does not need the file.
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

    /// Copies immediately or queues the copy, unless too many copies are queued.
    ///
    /// # Safety
    /// Both ranges must be valid, and must stay valid until the token's completion.
    #[inline]
    unsafe fn copy(&mut self, source: *const u8, target: *mut u8, t: &Transfer, file: Option<Arc<MemoryFile>>) -> Post {
        match (&self.movers, file) {
            (Some(movers), Some(file)) => {
                if self.jobs.len() >= OUTSTANDING {
                    return Post::Again;
                }
                // SAFETY: the caller guarantees that both ranges are valid until completion. The job is reported only
                // when it is done, and `drop` waits for it.
                let job = unsafe { movers.copy(source, target, t.bytes, t.remote_offset, &file) };
                self.jobs.push_back((*t, job));
            }
            _ => {
                // SAFETY: the caller guarantees that both ranges are valid. They may overlap, for a put to the same
                // memory.
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

    unsafe fn register(&mut self, memory: MemoryRange, _access: Access) -> Result<SameHostRegion, FabricError> {
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
                // SAFETY: `reach` checked both ranges. The caller keeps the source valid, and the file keeps the target
                // mapped. Copy threads do not send the immediate; `poll` does, after they have copied.
                return Ok(unsafe { self.copy(source, target, t, file) });
            }
            // The immediate must not be visible before the bytes, so they are copied now. (Modelled cards send their
            // immediates separately.)
            // SAFETY: `reach` checked both ranges. The caller keeps the source valid, and the peer's memory stays
            // mapped.
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
        // SAFETY: `reach` checked both ranges. The caller keeps the target valid, and the file keeps the source mapped.
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
            let signalled = t.immediate.map_or(Ok(true), |immediate| self.peers.signal(&self.name, &t, immediate));
            completions.push(match signalled {
                // The queue of the peer is full. A later poll sends the immediate, and transfers posted later wait
                // until then.
                Ok(false) => break,
                Ok(true) => Completion::Done { token: t.token },
                // Only this transfer fails, because the immediates of other peers must still be taken.
                Err(error) => Completion::Failed { token: Some(t.token), error: Box::new(error) },
            });
            self.jobs.pop_front();
        }
        self.inbox.take(|value| completions.push(Completion::Immediate { value }));
        Ok(())
    }
}

impl Drop for SameHostRail {
    /// Waits until the copy threads no longer access this rank's memory. They never block, so the wait is bounded.
    fn drop(&mut self) {
        let backoff = Backoff::new();
        while self.jobs.iter().any(|(_, job)| !job.is_done()) {
            backoff.snooze();
        }
    }
}

#[cfg(test)]
mod tests;
