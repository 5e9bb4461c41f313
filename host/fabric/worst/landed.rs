//! Finds the put or get that wrote to the source of a transfer in flight, and the missing wait.

use super::claims::{Claim, Logged, Use};
use super::messages::Broken;
use super::{WorstRail, faults};
use crate::same_host::peers::key_of;
use ginlab_base::memory_file;

/// The missing wait that allowed a put or get to write to a source in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// The source was sent before those bytes had arrived in it.
    Arrival,
    /// The other rank posted its put without a signal that the source is free.
    Turn,
    /// The source's rank signalled that the source is free before its own transfer was complete.
    Completion,
    /// The source's rank issued a put or get into the source.
    Own,
}

/// A put or get that wrote to a source in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct LandedTransfer {
    pub claim: Claim,
    pub missing: Missing,
}

impl WorstRail {
    /// Returns the put or get that wrote to these bytes of this process while a transfer to rank `target`, posted at
    /// `since`, read them. `None` if a CPU or a kernel wrote them.
    #[cold]
    pub(super) fn landed(&self, (address, bytes): (u64, u64), target: u32, since: u64) -> Option<LandedTransfer> {
        let file = memory_file::containing(address, bytes)?;
        let (key, offset) = (key_of(file.name()), address - file.address());
        let writers = self.ours.writers((key, offset, bytes)).ok()?;
        let in_flight = writers.iter().filter(|one| one.ended > since);
        // Prefers a transfer that was posted later, because it is always an error. A transfer that was already in
        // flight may have been complete except for its immediate.
        let writer = in_flight.min_by_key(|one| (one.begun < since, one.begun))?;
        let (claim, me) = (writer.claim, self.who.rank);
        // History of one byte that belongs to both transfers.
        let byte = claim.offset.max(offset);
        let fills = self.ours.writers((key, byte, 1)).ok()?;
        let fills: Vec<&Logged> = fills.iter().filter(|one| one.begun <= writer.begun).collect();
        let earlier = fills.iter().filter(|one| one.begun < writer.begun).max_by_key(|one| one.begun);
        let sends = |first, end| self.ours.traffic.sends(file.address() + byte, target, (first, end));
        // Whether all earlier contents of the byte had been sent. The writer then brings the bytes that were to be sent
        // now.
        let is_next = |earlier: &&Logged| sends(earlier.begun, writer.begun) > 0 && sends(0, since + 1) >= fills.len();
        let missing = if writer.begun < since && earlier.is_none_or(is_next) {
            Missing::Arrival
        } else if claim.who.rank == me {
            Missing::Own
        } else {
            let is_of_sender = |one: &Claim| one.who.rank == claim.who.rank && matches!(one.usage, Use::Put(_));
            let count = earlier.filter(|one| is_of_sender(&one.claim)).map_or(0, |one| one.claim.number.into());
            // A signal after the arrival of the earlier bytes may have released the source.
            let first = earlier.map_or(since, |one| one.ended);
            let line = ((me, self.home), (claim.who.rank, claim.home));
            match self.ours.traffic.has_signalled(line, (first, writer.begun), count) {
                true => Missing::Completion,
                false => Missing::Turn,
            }
        };
        Some(LandedTransfer { claim, missing })
    }

    /// Fails a message with its error.
    pub(super) fn break_message(&mut self, broken: &Broken) {
        let landed = match *broken {
            Broken::Rewritten { peer, from, bytes, since, .. } => self.landed((from, bytes), self.rank_of(peer), since),
            _ => None,
        };
        let (token, error) = faults::message(&self.name, self.who.rank, broken, landed.as_ref());
        self.end(token, error);
    }
}
