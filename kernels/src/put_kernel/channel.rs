//! The operations put and quiet of the put kernel, and of tests that emulate it. (Programs use [`gin`](crate::gin).)
//!
//! A [`PutChannel`] belongs to one thread, or to the thread that leads a block. It stores the last ticket, for which
//! `quiet` waits.

use crate::command::{Command, Opcode};
use crate::outlet::Outlet;
use crate::ring::producer::Fence;
use crate::ring::{Observe, Status};

/// A put: source, destination and length.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// Region of this rank that contains the source.
    pub source_region: u32,
    /// Offset of the first byte in the source region.
    pub source_offset: u64,
    /// Region of the peer that contains the destination.
    pub destination_region: u32,
    /// Offset of the first byte in the destination region.
    pub destination_offset: u64,
    /// Number of bytes to write.
    pub bytes: u64,
    /// Destination rank.
    pub peer: u32,
}

impl Put {
    #[inline(always)]
    pub(crate) fn command(&self, opcode: Opcode, immediate: u32) -> Command {
        let source = (self.source_region, self.source_offset);
        let destination = (self.destination_region, self.destination_offset);
        Command { opcode, immediate, ..Command::put(source, destination, self.bytes, self.peer) }
    }
}

/// A producer's handle of an outlet.
#[derive(Debug)]
pub struct PutChannel {
    outlet: Outlet,
    last: Option<u64>,
    /// Latest watermark that this thread has observed. Tickets below it need no memory access.
    known: u64,
}

impl PutChannel {
    /// Creates a channel without puts.
    #[inline(always)]
    pub fn new(outlet: impl Into<Outlet>) -> PutChannel {
        PutChannel { outlet: outlet.into(), last: None, known: 0 }
    }

    #[inline(always)]
    fn post(&mut self, command: &Command, observe: &mut impl Observe) -> Result<u64, Status> {
        let ticket = self.outlet.push(Fence::Payload, command, observe)?;
        self.last = Some(ticket);
        Ok(ticket)
    }

    /// Puts without waiting ("non-blocking, implicit"): the source may be reused only after a quiet that covers the
    /// ticket. Returns the ticket.
    ///
    /// # Errors
    /// Returns the [`Status`] if the outlet stays full until the deadline, or the proxy or NIC queue has ended.
    #[inline(always)]
    pub fn put_nbi(&mut self, put: &Put) -> Result<u64, Status> {
        self.put_nbi_observed(put, &mut ())
    }

    /// Like [`put_nbi`](PutChannel::put_nbi), but calls `observe` at each stage, for measurements.
    ///
    /// # Errors
    /// Returns the same errors as [`put_nbi`](PutChannel::put_nbi).
    #[inline(always)]
    pub fn put_nbi_observed(&mut self, put: &Put, observe: &mut impl Observe) -> Result<u64, Status> {
        self.post(&put.command(Opcode::Put, 0), observe)
    }

    /// Like [`put_nbi`](PutChannel::put_nbi), but also delivers `immediate` to the target after all bytes have arrived.
    ///
    /// # Errors
    /// Returns the same errors as [`put_nbi`](PutChannel::put_nbi).
    #[inline(always)]
    pub fn put_signal_nbi(&mut self, put: &Put, immediate: u32) -> Result<u64, Status> {
        self.post(&put.command(Opcode::PutSignal, immediate), &mut ())
    }

    /// Puts, and waits until the bytes have arrived at the target.
    ///
    /// # Errors
    /// Returns the same errors as [`put_nbi`](PutChannel::put_nbi), or the [`Status`] that ended the wait.
    #[inline(always)]
    pub fn put(&mut self, put: &Put) -> Result<(), Status> {
        let ticket = self.put_nbi(put)?;
        self.quiet_until(ticket)
    }

    /// Waits until all puts of this channel have arrived at the target.
    ///
    /// # Errors
    /// Returns the [`Status`] that ended the wait.
    #[inline(always)]
    pub fn quiet(&mut self) -> Result<(), Status> {
        match self.last {
            Some(ticket) => self.quiet_until(ticket),
            None => Ok(()),
        }
    }

    /// Returns whether all puts of this channel are known to have arrived, without loading the watermark.
    #[inline(always)]
    pub fn is_quiet(&self) -> bool {
        self.last.is_none_or(|last| last < self.known)
    }

    /// Waits until the put of `ticket`, and the puts of all preceding tickets of the outlet, have arrived at the
    /// target.
    ///
    /// # Errors
    /// Returns the [`Status`] that ended the wait.
    #[inline(always)]
    pub fn quiet_until(&mut self, ticket: u64) -> Result<(), Status> {
        if ticket >= self.known {
            self.known = self.outlet.wait(ticket)?;
        }
        Ok(())
    }
}
