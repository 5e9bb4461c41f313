//! Failed transfers that do not stop the engine, for owners that outlive their peers.

use super::{Engine, Queued};
use ginlab_fabric::{FabricError, Rail};

/// A transfer that failed. Its ticket counts as complete.
#[derive(Clone, Debug)]
pub struct Loss {
    /// Ticket of the transfer. `None` if no command of this engine requested it.
    pub ticket: Option<u64>,
    /// Peer of the transfer, if the rail refused its post.
    pub peer: Option<u32>,
    /// Error of the rail.
    pub error: FabricError,
}

impl<R: Rail> Engine<R> {
    /// Makes the engine continue after failed transfers. [`take_losses`](Engine::take_losses) returns them, instead of
    /// an error from [`pump`](Engine::pump) or [`progress`](Engine::progress). Errors of a whole rail are still
    /// returned as errors.
    pub fn keep_losses(&mut self) {
        self.losses.get_or_insert_default();
    }

    /// Returns the transfers that have failed since the last call.
    pub fn take_losses(&mut self) -> Vec<Loss> {
        self.losses.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Fails the commands that are waiting for credits or slots of a disconnected peer.
    pub fn forget_peer(&mut self, peer: u32, error: &FabricError) {
        for ticket in self.signals.forget(peer) {
            self.lose(Some(ticket), None, error.clone());
        }
    }

    /// Fails the first queued piece of a rail, whose post the rail has refused.
    ///
    /// # Errors
    /// Returns `error` if losses are not kept.
    #[cold]
    pub(super) fn lose_first(&mut self, rail: usize, error: FabricError) -> Result<(), FabricError> {
        let Some(Queued { ticket, peer, .. }) = self.losses.as_ref().and_then(|_| self.queues[rail].take_first())
        else {
            return Err(error);
        };
        self.queued -= 1;
        self.lose(Some(ticket), Some(u32::from(peer)), error);
        Ok(())
    }

    /// Records a failed transfer that is no longer posted, and completes its ticket.
    #[cold]
    pub(super) fn lose(&mut self, ticket: Option<u64>, peer: Option<u32>, error: FabricError) {
        if let Some(ticket) = ticket {
            self.tracker.complete(ticket);
            self.signals.landed(ticket);
        }
        if let Some(losses) = &mut self.losses {
            losses.push(Loss { ticket, peer, error });
        }
    }
}
