//! Puts and quiet of the put kernel, and of tests that play one. (Programs use [`gin`](crate::gin).)
//!
//! One [`Channel`] belongs to one thread (or to the thread that leads a block). It remembers the last ticket, and `quiet`
//! waits for that.

use crate::command::{Command, Opcode};
use crate::ring::{Observe, Ring, Status};

/// A put: which bytes of which region go where.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// Our region.
    pub source_region: u32,
    /// First byte in it.
    pub source_offset: u64,
    /// The peer's region.
    pub destination_region: u32,
    /// First byte in that.
    pub destination_offset: u64,
    /// Bytes to write.
    pub bytes: u64,
    /// The rank to write to.
    pub peer: u32,
}

impl Put {
    #[inline(always)]
    pub(crate) fn command(&self, opcode: Opcode, immediate: u32) -> Command {
        Command {
            opcode,
            source_region: self.source_region,
            source_offset: self.source_offset,
            destination_region: self.destination_region,
            destination_offset: self.destination_offset,
            bytes: self.bytes,
            peer: self.peer,
            immediate,
        }
    }
}

/// One producer's end of a ring.
#[derive(Debug)]
pub struct Channel {
    ring: Ring,
    last: Option<u64>,
    /// The newest watermark that this thread has seen: what lies below it needs no look at memory.
    known: u64,
}

impl Channel {
    /// A channel that has put nothing yet.
    #[inline(always)]
    pub fn new(ring: Ring) -> Channel {
        Channel { ring, last: None, known: 0 }
    }

    #[inline(always)]
    fn post(&mut self, command: &Command, observe: &mut impl Observe) -> Result<u64, Status> {
        let ticket = if self.ring.is_to_card() {
            // Nobody observes it: a life of its own has no stages of a ring.
            self.ring.post_to_card(command.encode())?
        } else {
            self.ring.push_observed(command, observe)?
        };
        self.last = Some(ticket);
        Ok(ticket)
    }

    /// Puts without waiting ("non-blocking, implicit"): the source may be reused only after a quiet that covers the ticket.
    ///
    /// # Errors
    /// [`Status`] when the ring stayed full until the deadline or the proxy has ended.
    #[inline(always)]
    pub fn put_nbi(&mut self, put: &Put) -> Result<u64, Status> {
        self.put_nbi_observed(put, &mut ())
    }

    /// As [`put_nbi`](Channel::put_nbi), for a study that wants to know more of it.
    ///
    /// # Errors
    /// As [`put_nbi`](Channel::put_nbi).
    #[inline(always)]
    pub fn put_nbi_observed(&mut self, put: &Put, observe: &mut impl Observe) -> Result<u64, Status> {
        self.post(&put.command(Opcode::Put, 0), observe)
    }

    /// As [`put_nbi`](Channel::put_nbi), and counts `immediate` at the target once all bytes are there.
    ///
    /// # Errors
    /// As [`put_nbi`](Channel::put_nbi).
    #[inline(always)]
    pub fn put_signal_nbi(&mut self, put: &Put, immediate: u32) -> Result<u64, Status> {
        self.post(&put.command(Opcode::PutSignal, immediate), &mut ())
    }

    /// Puts and waits until the bytes are at the target.
    ///
    /// # Errors
    /// As [`put_nbi`](Channel::put_nbi), or the reason the wait ended.
    #[inline(always)]
    pub fn put(&mut self, put: &Put) -> Result<(), Status> {
        let ticket = self.put_nbi(put)?;
        self.quiet_until(ticket)
    }

    /// Waits until everything this channel has put is at the target.
    ///
    /// # Errors
    /// The reason the wait ended otherwise.
    #[inline(always)]
    pub fn quiet(&mut self) -> Result<(), Status> {
        match self.last {
            Some(ticket) => self.quiet_until(ticket),
            None => Ok(()),
        }
    }

    /// Whether everything this channel has put is known to be at the target, without a look at memory.
    #[inline(always)]
    pub fn is_quiet(&self) -> bool {
        self.last.is_none_or(|last| last < self.known)
    }

    /// Waits until this ticket, and every ticket of the ring before it, is at the target.
    ///
    /// # Errors
    /// The reason the wait ended otherwise.
    #[inline(always)]
    pub fn quiet_until(&mut self, ticket: u64) -> Result<(), Status> {
        if ticket >= self.known {
            self.known = self.ring.wait(ticket)?;
        }
        Ok(())
    }
}
