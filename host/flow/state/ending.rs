//! End of a flow: by a stall, by a rail error, or by a drop.

use super::{NOBODY, Operation, OperationKind, State};
use crate::FlowError;
use ginlab_fabric::Messages;
use ginlab_rails::{DrainStep, drain, leak_to_nics};
use std::task::Waker;
use std::time::Duration;

/// Maximum number of operations and of waits that a message names individually.
const NAMED: usize = 4;

impl<R: Messages> State<R> {
    /// Fails the flow if operations are in flight or awaited and nothing has progressed within the timeout.
    pub fn check_stall(&mut self) -> Result<(), FlowError> {
        let busy = self.outstanding() || !self.immediates.nobody_waits();
        if self.clock.stalled(busy).is_none() {
            return Ok(());
        }
        let error = FlowError::Stalled { waited: self.clock.timeout(), state: self.describe() };
        Err(self.fail(error))
    }

    /// Fails the flow: all waiting and later operations return `error`. Posted operations keep their memory until they
    /// complete, or indefinitely.
    pub(super) fn fail(&mut self, error: FlowError) -> FlowError {
        self.dead = Some(Box::new(error.clone()));
        // Pieces that were never posted get no completion, so they are failed here. Their operations then wait only for
        // the posted pieces.
        for rail in 0..self.queues.len() {
            for piece in self.queues[rail].take_all() {
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

    /// Describes the operations in flight and the waits in one line, in which the oldest ones are named.
    pub fn describe(&self) -> String {
        let mut parts: Vec<String> = self.in_flight_operations().take(NAMED).map(Operation::describe).collect();
        let count = self.in_flight_operations().count();
        if count > NAMED {
            parts.push(format!("and {} more", count - NAMED));
        }
        // A send may never complete because an unauthenticated process sent a message that consumed the peer's receive.
        if self
            .in_flight_operations()
            .any(|operation| matches!(operation.kind, OperationKind::Send | OperationKind::Receive))
        {
            parts.push(
                "a receive accepts the first message that arrives, even if a process outside this job sent it".into(),
            );
        }
        parts.extend(self.immediates.describe(NAMED));
        if self.immediates.waits() > NAMED {
            parts.push(format!("and {} more waits", self.immediates.waits() - NAMED));
        }
        if parts.is_empty() {
            parts.push("nothing in flight".into());
        }
        if let (count, Some(error)) = &self.incoming_failures {
            parts.push(format!("{count} failed incoming transfers, the last: {error}"));
        }
        for queue in &self.queues {
            let waiting = queue.waiting();
            parts.push(format!("rail {} with {} posts that it has not accepted", queue.rail.name(), waiting.len()));
            // A rail that has accepted no transfer at all is not full, but still connecting; some providers retry
            // indefinitely. The guess is omitted if a failure is known, because that is the cause.
            let is_known = self.incoming_failures.1.is_some();
            let first = waiting.first().and_then(|piece| self.operations.get(piece.key()));
            if let Some(Operation { peer, .. }) =
                first.filter(|first| !is_known && queue.transfers() == 0 && first.peer as usize != NOBODY)
            {
                parts.push(format!(
                    "peer {peer} does not answer (is its process running, are both on one network, does a firewall \
                     block it?)"
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
            OperationKind::Write => "write of",
            OperationKind::Read => "read of",
            OperationKind::Send => "send of",
            OperationKind::Receive => "receive into",
        };
        let toward = match (self.peer as usize, self.kind) {
            (NOBODY, _) => String::new(),
            (peer, OperationKind::Read) => format!(" from peer {peer}"),
            (peer, _) => format!(" to peer {peer}"),
        };
        let pieces =
            if self.outstanding > 1 { format!(" ({} fragments left)", self.outstanding) } else { String::new() };
        format!("a {what} {} B{toward}{pieces}", self.bytes)
    }
}

impl<R: Messages> Drop for State<R> {
    /// Waits until the NICs have released all buffers. Memory that they have not released by the timeout is never
    /// freed.
    fn drop(&mut self) {
        for rail in 0..self.queues.len() {
            // These pieces were never posted, so no NIC uses them.
            for piece in self.queues[rail].take_all() {
                self.complete(piece.key());
            }
        }
        let keys: Vec<usize> = self.operations.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.abandon(key));
        // Receives are cancelled; writes take as long as the network. A flow that has failed waits only briefly.
        let timeout = self.clock.timeout();
        let patience = if self.dead.take().is_some() { timeout.min(Duration::from_millis(200)) } else { timeout };
        drain(patience, || {
            if !self.outstanding() {
                return DrainStep::Empty;
            }
            if self.progress().is_err() {
                // A rail that has failed returns no more completions, but other rails may.
                self.dead = None;
            }
            DrainStep::Idle
        });
        if self.outstanding() {
            leak_to_nics((std::mem::take(&mut self.operations), std::mem::take(&mut self.queues)));
        }
    }
}
