//! A listening socket, of rank 0 or of a server for visits: many connections at once, none of which can hold up the others.
//!
//! Before the other side has proved anything, a connection has [`HANDSHAKE_LIMIT`] in all, however many bytes it dribbles; no
//! more than [`MAX_STRANGERS`] are kept, and when a further one comes the oldest goes, so that idle ones cannot keep the others
//! out; and stderr gets a few lines however many are turned away.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::error::{BootstrapError, human};
use super::frame::{self, Frame, FrameKind};
use super::greeting::{self, Refusal};
use super::handshake::{self, Key, Unwanted};
use super::link::Link;
use ginlab_base::text::printable;

/// A connection must have proved that it knows the token, and said who it is, within this time.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Connections that have not, at most (of a job: beyond its own).
const MAX_STRANGERS: usize = 64;

/// Bytes kept of a connection that has not proved anything.
const MAX_UNREAD: usize = 16 << 10;

/// What the oldest is told off for when it goes for a newer one.
const CROWDED_OUT: &str = "it said nothing for longest, and more came than are kept waiting";

/// Accepts those who know the token.
#[derive(Debug)]
pub(super) struct Acceptor {
    listener: TcpListener,
    key: Key,
    /// How many are kept.
    room: usize,
    /// Each has this time.
    pub patience: Duration,
    /// In the order of their coming.
    callers: Vec<Caller>,
    pub notices: Notices,
}

#[derive(Debug)]
struct Caller {
    link: Link,
    /// When it came, or was refused.
    since: Instant,
    /// Refused: only waits for the other side to read the answer and close.
    leaving: bool,
}

impl Acceptor {
    /// For `expected` connections that will have proved themselves and may not be looked for yet.
    pub fn new(listener: TcpListener, token: &str, expected: usize) -> Result<Self, BootstrapError> {
        listener.set_nonblocking(true).map_err(|error| BootstrapError::system("listen", error))?;
        let (key, room, patience) = (Key::of(token), expected + MAX_STRANGERS, HANDSHAKE_LIMIT);
        Ok(Acceptor { listener, key, room, patience, callers: Vec::new(), notices: Notices::default() })
    }

    /// Where it listens.
    pub fn address(&self) -> Result<SocketAddr, BootstrapError> {
        self.listener.local_addr().map_err(|error| BootstrapError::system("read the port of a socket", error))
    }

    /// What to wait for, for a while: there are time limits too.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.listener.as_fd()).chain(self.callers.iter().map(|caller| caller.link.as_fd()))
    }

    /// Moves every connection as far as it goes without waiting; those who have proved that they know the token, with the
    /// frame that says who they are.
    pub fn step(&mut self) -> Result<Vec<(Link, Frame)>, BootstrapError> {
        let accepted = self.accept();
        let mut come = Vec::new();
        for mut caller in std::mem::take(&mut self.callers) {
            match caller.advance(&self.key, self.patience) {
                Ok(None) => self.callers.push(caller),
                Ok(Some(frame)) => come.push((caller.link, frame)),
                Err(Unwanted::Stranger(_)) if caller.leaving => {}
                Err(Unwanted::Stranger(why)) => self.notices.tell(caller.link.from, &why),
                Err(Unwanted::Other(why)) => self.turn_away(caller.link, why, false),
            }
        }
        // Where no more can be accepted, those who have come still count.
        match accepted {
            Err(error) if come.is_empty() => Err(error),
            _ => Ok(come),
        }
    }

    /// Refuses one, and tells of it on stderr.
    pub fn turn_away(&mut self, link: Link, why: String, last_word: bool) {
        self.notices.tell(link.from, &why);
        self.refuse(link, why, last_word);
    }

    /// Answers with the reason, and closes when the other side has read it. [`Refusal`] says what a last word is.
    pub fn refuse(&mut self, mut link: Link, why: String, last_word: bool) {
        let refusal = greeting::json(&Refusal { why, last_word });
        link.send(frame::encode(FrameKind::Refuse, 0, "start", &refusal));
        link.shut();
        self.callers.push(Caller { link, since: Instant::now(), leaving: true });
    }

    fn accept(&mut self) -> Result<(), BootstrapError> {
        // Those who come faster than they can be looked at wait for the next turn.
        for _ in 0..MAX_STRANGERS {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    if self.callers.len() >= self.room {
                        self.let_oldest_go();
                    }
                    if let Ok(link) = Link::new(stream, from) {
                        self.callers.push(Caller { link, since: Instant::now(), leaving: false });
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The connector gave up in between.
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                // Too many open files, say: those who have said nothing yet go first.
                Err(error) if !self.let_oldest_go() => {
                    return Err(BootstrapError::system("accept a connection", error));
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Drops the oldest connection; whether there was one.
    fn let_oldest_go(&mut self) -> bool {
        if self.callers.is_empty() {
            return false;
        }
        let oldest = self.callers.remove(0);
        if !oldest.leaving {
            self.notices.tell(oldest.link.from, CROWDED_OUT);
        }
        true
    }
}

impl Caller {
    /// The frame that says who it is, when it has come: only who knows the token can have sealed it.
    fn advance(&mut self, key: &Key, patience: Duration) -> Result<Option<Frame>, Unwanted> {
        // Before the bytes are looked at: what has come in time counts.
        let late = self.since.elapsed() >= patience;
        let link = &mut self.link;
        link.read(MAX_UNREAD.saturating_sub(link.buffer.len()));
        if self.leaving {
            link.buffer.clear();
        } else {
            if !link.is_protected() {
                let mut answer = Vec::new();
                if let Some(seal) = handshake::admit(&mut link.buffer, key, &mut answer)? {
                    link.send(answer);
                    link.protect(seal);
                }
            }
            let decoded = link.decode();
            if let Some(frame) = link.frames.pop_front() {
                return Ok(Some(frame));
            }
            decoded.map_err(Unwanted::Other)?;
        }
        if link.closed {
            Err(Unwanted::Stranger("it closed before it said who it is".into()))
        } else if late {
            Err(Unwanted::Stranger(format!("it did not say who it is within {}", human(patience))))
        } else {
            Ok(None)
        }
    }
}

/// Refusals told one by one; after these, only at 16, 32, 64, ... of them.
const MAX_NOTICES: usize = 8;

/// Tells of connections that were turned away.
#[derive(Debug, Default)]
pub(super) struct Notices {
    refused: usize,
    last: String,
}

impl Notices {
    /// Notes one, and tells of it on stderr if it is due.
    pub fn tell(&mut self, from: SocketAddr, why: &str) {
        self.refused += 1;
        self.last = format!("{from}: {}", printable(why));
        if self.refused <= MAX_NOTICES {
            eprintln!("ginlab: refused a connection from {}", self.last);
        } else if self.refused.is_power_of_two() {
            eprintln!("ginlab: refused {} connections so far, the last from {}", self.refused, self.last);
        }
    }

    /// For the error of a wait that ended without everybody.
    pub fn clause(&self) -> String {
        match self.refused {
            0 => String::new(),
            1 => format!("; refused one connection: {}", self.last),
            n => format!("; refused {n} connections, the last: {}", self.last),
        }
    }
}
