//! Where requests come from: what a request needs to know of the queue pair that posts it.

use crate::address::Gid;
use crate::context::Context;
use crate::counter::{Counter, OPERATIONS};
use crate::locked;
use crate::peer::Peer;
use crate::queue::{Page, READY};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};

/// A queue pair, as far as its requests know it.
pub struct Origin {
    /// Its card.
    pub context: &'static Context,
    /// What peers see of it.
    pub page: Page,
    /// Its number.
    pub number: u32,
    /// Where each operation is counted, if it is.
    pub counters: [OnceLock<Arc<Counter>>; OPERATIONS],
    /// Whom the last request went to.
    recent: Mutex<Option<(Gid, u32, Arc<Peer>)>>,
}

impl Origin {
    /// A pair of this number.
    pub fn new(context: &'static Context, page: Page, number: u32) -> Origin {
        Origin { context, page, number, counters: Default::default(), recent: Mutex::default() }
    }

    /// The peer of a request; `None` where there is none.
    pub fn peer(&self, gid: &Gid, number: u32) -> Option<Arc<Peer>> {
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

    /// Its process has gone.
    pub fn forget(&self, gid: &Gid, number: u32) {
        *locked(&self.recent) = None;
        self.context.peers.forget(gid, number);
    }
}
