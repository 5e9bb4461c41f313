//! Peers that close before this rank.
//!
//! A rank may close, or its process may exit, as soon as its operations are complete. Slots that have arrived at this
//! rank by then are processed. Transfers that this rank starts on its own (returned slots, credits, answers to gets)
//! are dropped. An operation of NCCL that has not arrived at the peer causes an error that names the peer.

use super::Endpoint;
use super::outgoing::Part;
use ginlab_fabric::Rail;
use ginlab_proxy::engine::Loss;

impl<R: Rail> Endpoint<R> {
    /// Handles transfers that have failed.
    ///
    /// # Errors
    /// Returns the error of an operation that a peer has not received, with the number of the peer.
    pub(super) fn lost(&mut self) -> Result<(), String> {
        loop {
            let losses = self.engine.take_losses();
            if losses.is_empty() {
                return Ok(());
            }
            // A peer that has returned a slot has received it, even if the rail later reports a failure.
            self.slots_returned();
            for Loss { ticket, peer, error } in losses {
                if let Some(peer) = peer {
                    self.engine.forget_peer(peer, &error);
                }
                let part = self.out.flights.iter().find(|(flight, _)| Some(*flight) == ticket).map(|(_, part)| part);
                match part {
                    Some(part) if self.is_missed(part) => {
                        return Err(format!("an operation to rank {} has not arrived: {error}", part.peer));
                    }
                    Some(_) => {}
                    None if ticket.is_none() => self.out.stray = Some(error.to_string()),
                    None => {}
                }
            }
        }
    }

    /// Returns whether an operation of NCCL is incomplete because the write of this part has failed.
    fn is_missed(&self, part: &Part) -> bool {
        let asks = part.request.is_some() || self.out.gets.values().any(|wanted| wanted.peer == part.peer);
        asks && !self.out.peers[part.peer].has_returned(part.slot)
    }
}
