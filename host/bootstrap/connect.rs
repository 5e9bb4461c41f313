//! Connecting to a listener: from a rank to rank 0, and from a session client to its server.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use serde::de::DeserializeOwned;

use super::error::{BootstrapError, FailureKind, human};
use super::greeting::Refusal;
use super::handshake::{self, Failure, Key, Opening};
use super::link::Link;
use super::wait::Clock;

/// Timeout of one connection attempt. If a SYN is lost, a new attempt is faster than waiting for its retransmission.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Maximum time spent on one of several candidate addresses: a wrong address may belong to any service.
const CANDIDATE: Duration = Duration::from_secs(3);

const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const LAST_BACKOFF: Duration = Duration::from_millis(500);

/// Listener to which a connection is made, and the identity of the connecting side.
pub(super) struct Search<'a> {
    /// Description of the address, for messages.
    pub place: &'a str,
    pub token: &'a str,
    /// The frame that identifies this side.
    pub greeting: Vec<u8>,
    /// `Some` for a rank of a job, which keeps trying if the peer is not the expected one: the address may be wrong, or
    /// may belong to another job at the moment. `None` for a session client, which has one address and fails
    /// immediately.
    pub rank: Option<usize>,
}

impl Search<'_> {
    /// Tries the addresses that `candidates` returns until the clock expires. Returns the connection and the payload of
    /// the welcome. Calls `candidates` again in every round, since names may appear late in a cluster that is starting.
    pub fn connect<W: DeserializeOwned>(
        &self,
        candidates: impl Fn() -> Result<Vec<SocketAddr>, String>,
        clock: &Clock,
    ) -> Result<(Link, W), BootstrapError> {
        let (them, us, question) = match self.rank {
            Some(rank) => ("rank 0 at ", format!(" rank {rank}"), "is rank 0 running"),
            None => ("", String::new(), "is a server listening there"),
        };
        let patient = self.rank.is_some();
        let mut last = String::from("none");
        let mut backoff = FIRST_BACKOFF;
        loop {
            let addresses = candidates().unwrap_or_else(|error| {
                last = error;
                Vec::new()
            });
            let mut refusals = 0;
            for &address in &addresses {
                if clock.expired() {
                    break;
                }
                let patience = if addresses.len() == 1 { clock.remaining() } else { CANDIDATE };
                last = match self.attempt(address, &clock.within(patience)) {
                    Ok(found) => return Ok(found),
                    Err(Failure::End(error)) => return Err(error),
                    Err(Failure::Foreign(why)) if !patient => {
                        return Err(BootstrapError::unexpected(address, "welcome", &why));
                    }
                    Err(Failure::Retry(why) | Failure::Foreign(why)) => format!("{address}: {why}"),
                    Err(Failure::Refused(Refusal { why, last_word })) => {
                        refusals += 1;
                        if last_word || !patient || refusals == addresses.len() {
                            return Err(BootstrapError::failed(format!("{them}{address} refused{us}: {why}")));
                        }
                        format!("{address}: refused: {why}")
                    }
                };
            }
            if clock.interrupted() {
                return Err(BootstrapError::Interrupted("start".into()));
            }
            if clock.expired() {
                let text = format!(
                    "timed out after {} connecting{us} to {them}{} (last attempt: {last}); {question}, and does a firewall or \
                     security group let this port through?",
                    human(clock.timeout),
                    self.place
                );
                return Err(BootstrapError::Other(FailureKind::TimedOut, text));
            }
            clock.pause(backoff);
            backoff = (backoff * 2).min(LAST_BACKOFF);
        }
    }

    fn attempt<W: DeserializeOwned>(&self, address: SocketAddr, clock: &Clock) -> Result<(Link, W), Failure> {
        let retry = |error: std::io::Error| Failure::Retry(error.to_string());
        // The limit must not be zero, and the clock may expire at any moment.
        let limit = clock.remaining().clamp(Duration::from_millis(1), ATTEMPT);
        let stream = TcpStream::connect_timeout(&address, limit).map_err(retry)?;
        if stream.local_addr().ok() == Some(address) {
            // Without a listener, a port in the ephemeral range can connect to itself.
            return Err(Failure::Retry("Connection refused".into()));
        }
        let mut link = Link::new(stream, address).map_err(retry)?;
        let (opening, first) = Opening::new(&Key::of(self.token))?;
        link.send(first);
        let theirs = loop {
            match handshake::reply(&mut link.buffer)? {
                Some(theirs) => break theirs,
                None => more(&mut link, clock)?,
            }
        };
        link.protect(opening.finish(&theirs)?);
        link.send(self.greeting.as_slice());
        let frame = loop {
            match link.frames.pop_front() {
                Some(frame) => break frame,
                None => more(&mut link, clock)?,
            }
        };
        let unreadable = |error| Failure::Foreign(format!("unreadable Welcome: {error}"));
        Ok((link, serde_json::from_slice(&handshake::welcome(frame)?).map_err(unreadable)?))
    }
}

/// Waits one slice for more bytes from the other side.
fn more(link: &mut Link, clock: &Clock) -> Result<(), Failure> {
    if link.closed {
        return Err(Failure::Retry("it closed the connection without an answer".into()));
    }
    if clock.interrupted() {
        return Err(Failure::End(BootstrapError::Interrupted("start".into())));
    }
    if clock.expired() {
        return Err(Failure::Retry("it accepted the connection, but did not answer".into()));
    }
    let mut flags = PollFlags::POLLIN;
    flags.set(PollFlags::POLLOUT, !link.flush());
    clock.poll(&mut [PollFd::new(link.as_fd(), flags)]).map_err(Failure::End)?;
    link.fill().map_err(handshake::foreign)
}
