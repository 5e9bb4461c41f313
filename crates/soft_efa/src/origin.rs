//! Origin of requests: the state of a queue pair that its requests need.

use crate::address::Gid;
use crate::context::DeviceContext;
use crate::counter::{CompletionCounter, OPERATIONS};
use crate::locked;
use crate::peer::PeerQueuePair;
use crate::queue::{PairPage, READY};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};

/// The part of a queue pair that its requests use.
pub struct Origin {
    /// Device of the queue pair.
    pub context: &'static DeviceContext,
    /// Page that peers access.
    pub page: PairPage,
    /// Number of the queue pair.
    pub number: u32,
    /// Completion counter of each operation, if any.
    pub counters: [OnceLock<Arc<CompletionCounter>>; OPERATIONS],
    /// Destination of the last request.
    recent: Mutex<Option<(Gid, u32, Arc<PeerQueuePair>)>>,
}

impl Origin {
    /// Creates the origin of queue pair `number`.
    pub fn new(context: &'static DeviceContext, page: PairPage, number: u32) -> Origin {
        Origin { context, page, number, counters: Default::default(), recent: Mutex::default() }
    }

    /// Returns the peer of a request, or `None` if it does not exist.
    pub fn peer(&self, gid: &Gid, number: u32) -> Option<Arc<PeerQueuePair>> {
        let mut recent = locked(&self.recent);
        if let Some((known, of, peer)) = &*recent
            && (known, *of) == (gid, number)
            && peer.page.state().load(Ordering::Acquire) == READY
        {
            return Some(peer.clone());
        }
        let peer = self.context.peers.find(gid, number)?;
        *recent = Some((*gid, number, peer.clone()));
        Some(peer)
    }

    /// Removes a peer whose process has exited.
    pub fn forget(&self, gid: &Gid, number: u32) {
        *locked(&self.recent) = None;
        self.context.peers.forget(gid, number);
    }
}
