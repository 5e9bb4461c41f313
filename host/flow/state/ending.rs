//! How a flow ends: by a stall, by an error of a rail, or by being dropped.

use super::{Kind, NOBODY, Operation, State};
use crate::FlowError;
use ginlab_fabric::Messages;
use ginlab_rails::{Turn, drain, leave_to_nics};
use std::task::Waker;
use std::time::Duration;

/// Operations and waits that a message names one by one.
const NAMED: usize = 4;

impl<R: Messages> State<R> {
    /// Whether something is in flight or waited for and nothing has moved within the timeout.
    pub fn check_stall(&mut self) -> Result<(), FlowError> {
        let busy = self.outstanding() || !self.immediates.nobody_waits();
        if self.clock.stalled(busy).is_none() {
            return Ok(());
        }
        let error = FlowError::Stalled { waited: self.clock.timeout(), state: self.describe() };
        Err(self.fail(error))
    }

    /// Everything that waits ends with this error, and so does everything that comes. What was posted keeps its memory until
    /// its completion, or for good.
    pub(super) fn fail(&mut self, error: FlowError) -> FlowError {
        self.dead = Some(Box::new(error.clone()));
        // Pieces that were never posted are nobody's: their operations wait for the others only.
        for rail in 0..self.lanes.len() {
            for piece in self.lanes[rail].take_all() {
                self.fail_piece(piece.key(), error.clone());
            }
        }
        for (_, operation) in &mut self.operations {
            if operation.outstanding > 0 && operation.error.is_none() {
                operation.error = Some(Box::new(error.clone()));
            }
            operation.waker.take().into_iter().for_each(Waker::wake);
        }
        self.immediates.wake();
        error
    }

    /// What is in flight, in one line: the oldest by name.
    pub fn describe(&self) -> String {
        let mut parts: Vec<String> = self.in_flight_operations().take(NAMED).map(Operation::describe).collect();
        let count = self.in_flight_operations().count();
        if count > NAMED {
            parts.push(format!("and {} more", count - NAMED));
        }
        // A send that nothing completes: the peer's receive may be one that a stranger's message has taken, and this one waits for room there.
        if self.in_flight_operations().any(|operation| matches!(operation.kind, Kind::Send | Kind::Receive)) {
            parts.push("a receive takes the first message that comes, here and at the peer, also a stranger's".into());
        }
        parts.extend(self.immediates.describe(NAMED));
        if self.immediates.waits() > NAMED {
            parts.push(format!("and {} more waits", self.immediates.waits() - NAMED));
        }
        if parts.is_empty() {
            parts.push("nothing in flight".into());
        }
        if let (count, Some(error)) = &self.incoming_failures {
            parts.push(format!("{count} incoming transfers that failed, the last: {error}"));
        }
        for lane in &self.lanes {
            let waiting = lane.waiting();
            parts.push(format!("rail {} with {} posts that it has not taken", lane.rail.name(), waiting.len()));
            // A rail that has taken nothing at all is none that is full: it still connects. Some providers try for ever.
            let first = waiting.first().and_then(|piece| self.operations.get(piece.key()));
            if let Some(Operation { peer, .. }) =
                first.filter(|first| lane.transfers() == 0 && first.peer as usize != NOBODY)
            {
                parts.push(format!(
                    "peer {peer} does not answer (is its process there, are both on one network, does a firewall stand between?)"
                ));
            }
        }
        parts.join(", ")
    }

    fn in_flight_operations(&self) -> impl Iterator<Item = &Operation<R>> {
        self.operations.iter().map(|(_, operation)| operation).filter(|operation| operation.outstanding > 0)
    }

    pub fn outstanding(&self) -> bool {
        self.in_flight_operations().next().is_some()
    }
}

impl<R: Messages> Operation<R> {
    fn describe(&self) -> String {
        let what = match self.kind {
            Kind::Write => "write of",
            Kind::Read => "read of",
            Kind::Send => "send of",
            Kind::Receive => "receive into",
        };
        let toward = match (self.peer as usize, self.kind) {
            (NOBODY, _) => String::new(),
            (peer, Kind::Read) => format!(" from peer {peer}"),
            (peer, _) => format!(" to peer {peer}"),
        };
        let pieces = if self.outstanding > 1 { format!(" ({} pieces left)", self.outstanding) } else { String::new() };
        format!("a {what} {} B{toward}{pieces}", self.bytes)
    }
}

impl<R: Messages> Drop for State<R> {
    /// Waits for what the NICs still hold. What they do not give back is left to them: its memory is never freed.
    fn drop(&mut self) {
        for rail in 0..self.lanes.len() {
            // Never posted: nobody holds it.
            for piece in self.lanes[rail].take_all() {
                self.complete(piece.key());
            }
        }
        let keys: Vec<usize> = self.operations.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.abandon(key));
        // Receives are taken back; writes take as long as the network does. A flow that has failed gets a short while.
        let timeout = self.clock.timeout();
        let patience = if self.dead.take().is_some() { timeout.min(Duration::from_millis(200)) } else { timeout };
        drain(patience, || {
            if !self.outstanding() {
                return Turn::Empty;
            }
            if self.progress().is_err() {
                // A rail that has failed for good gives nothing back any more, others may.
                self.dead = None;
            }
            Turn::Idle
        });
        if self.outstanding() {
            leave_to_nics((std::mem::take(&mut self.operations), std::mem::take(&mut self.lanes)));
        }
    }
}
