//! Listening socket of rank 0 or of a session server. Serves many connections concurrently. None of them can block the
//! others.
//!
//! Three limits protect against unauthenticated connections:
//!
//! - A connection must authenticate within [`HANDSHAKE_LIMIT`], however slowly its bytes arrive.
//! - At most [`MAX_UNAUTHENTICATED`] connections are kept. A further one replaces the oldest, so that idle connections
//!   cannot lock others out.
//! - Only a few lines are printed on stderr, regardless of the number of rejected connections.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};

use super::error::{BootstrapError, human};
use super::frame::{self, Frame, FrameKind};
use super::greeting::{self, Refusal};
use super::handshake::{self, Key, Unwanted};
use super::link::Link;
use super::wait::readable;
use ginlab_base::limits::explain;
use ginlab_base::text::printable;

/// Time within which a connection must be authenticated and have identified itself.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Maximum number of unauthenticated connections, in addition to those that a job expects.
const MAX_UNAUTHENTICATED: usize = 64;

/// Maximum number of bytes that are buffered for an unauthenticated connection.
const MAX_UNREAD: usize = 16 << 10;

/// Reason that is reported when a newer connection replaces the oldest one.
const CROWDED_OUT: &str = "it was silent for longest, and too many connections are waiting";

/// Accepts connections and returns those that have proved knowledge of the token.
#[derive(Debug)]
pub(super) struct Acceptor {
    listener: TcpListener,
    key: Key,
    /// Maximum number of connections kept.
    room: usize,
    /// Time within which each connection must authenticate.
    pub patience: Duration,
    /// Connections in the order of their arrival.
    callers: Vec<Caller>,
    pub notices: Notices,
}

#[derive(Debug)]
struct Caller {
    link: Link,
    /// Time at which the connection arrived or was refused.
    since: Instant,
    /// Whether the connection was refused. It is kept only until the other side has read the answer and closed.
    leaving: bool,
}

impl Acceptor {
    /// Creates an acceptor that keeps `expected` connections in addition to [`MAX_UNAUTHENTICATED`], for authenticated
    /// ranks that the caller has not collected yet.
    pub fn new(listener: TcpListener, token: &str, expected: usize) -> Result<Self, BootstrapError> {
        listener.set_nonblocking(true).map_err(|error| BootstrapError::system("listen", error))?;
        let (key, room, patience) = (Key::of(token), expected + MAX_UNAUTHENTICATED, HANDSHAKE_LIMIT);
        Ok(Acceptor { listener, key, room, patience, callers: Vec::new(), notices: Notices::default() })
    }

    /// Returns the local address.
    pub fn address(&self) -> Result<SocketAddr, BootstrapError> {
        self.listener.local_addr().map_err(|error| BootstrapError::system("read the port of a socket", error))
    }

    /// Returns the descriptors to poll. Poll with a timeout: connections also have time limits.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.listener.as_fd()).chain(self.callers.iter().map(|caller| caller.link.as_fd()))
    }

    /// Advances every connection until it would have to wait. Returns the connections that have been
    /// authenticated, each with the frame that identifies the peer.
    pub fn step(&mut self) -> Result<Vec<(Link, Frame)>, BootstrapError> {
        let accepted = self.accept();
        let ready = self.ready()?;
        let mut come = Vec::new();
        for (mut caller, is_ready) in std::mem::take(&mut self.callers).into_iter().zip(ready) {
            if !is_ready && caller.since.elapsed() < self.patience {
                self.callers.push(caller);
                continue;
            }
            match caller.advance(&self.key, self.patience) {
                Ok(None) => self.callers.push(caller),
                Ok(Some(frame)) => come.push((caller.link, frame)),
                Err(Unwanted::Stranger(_)) if caller.leaving => {}
                Err(Unwanted::Stranger(why)) => self.notices.tell(caller.link.from, &why),
                Err(Unwanted::Other(why)) => self.turn_away(caller.link, why, false),
            }
        }
        // If no further connection can be accepted, those that have authenticated are returned nevertheless.
        match accepted {
            Err(error) if come.is_empty() => Err(error),
            _ => Ok(come),
        }
    }

    /// Returns by connection whether it has bytes to read or has been closed. Makes one system call for all of them.
    fn ready(&self) -> Result<Vec<bool>, BootstrapError> {
        let fds = self.callers.iter().map(|caller| PollFd::new(caller.link.as_fd(), PollFlags::POLLIN));
        readable(&mut fds.collect::<Vec<_>>())
    }

    /// Refuses a connection and reports it on stderr. The parameters are those of [`refuse`](Acceptor::refuse).
    pub fn turn_away(&mut self, link: Link, why: String, last_word: bool) {
        self.notices.tell(link.from, &why);
        self.refuse(link, why, last_word);
    }

    /// Sends `why` and keeps the connection until the other side has read the message and closed.
    /// [`Refusal::last_word`] documents `last_word`.
    pub fn refuse(&mut self, mut link: Link, why: String, last_word: bool) {
        let refusal = greeting::json(&Refusal { why, last_word });
        link.send(frame::encode(FrameKind::Refuse, 0, "start", &refusal));
        link.shut();
        self.callers.push(Caller { link, since: Instant::now(), leaving: true });
    }

    fn accept(&mut self) -> Result<(), BootstrapError> {
        // Connections beyond this number wait in the listen queue until the next call.
        for _ in 0..MAX_UNAUTHENTICATED {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    if self.callers.len() >= self.room {
                        self.let_oldest_go(CROWDED_OUT);
                    }
                    if let Ok(link) = Link::new(stream, from) {
                        self.callers.push(Caller { link, since: Instant::now(), leaving: false });
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The connector gave up before the connection was accepted.
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                // Accepting failed, for example because too many files are open. Drops the oldest unauthenticated
                // connections, and names the limit.
                Err(error) => {
                    let why = explain(&error);
                    if !self.let_oldest_go(&why) {
                        return Err(BootstrapError::system("accept a connection", why));
                    }
                }
            }
        }
        Ok(())
    }

    /// Drops the oldest connection for the reason `why`. Returns whether there was one.
    fn let_oldest_go(&mut self, why: &str) -> bool {
        if self.callers.is_empty() {
            return false;
        }
        let oldest = self.callers.remove(0);
        if !oldest.leaving {
            self.notices.tell(oldest.link.from, why);
        }
        true
    }
}

impl Caller {
    /// Returns the frame that identifies the peer, once it has arrived. Only a peer with the token can have sealed it.
    fn advance(&mut self, key: &Key, patience: Duration) -> Result<Option<Frame>, Unwanted> {
        // Determined before the bytes are read, so that bytes that arrived in time count.
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
            Err(Unwanted::Stranger("it closed the connection before it identified itself".into()))
        } else if late {
            Err(Unwanted::Stranger(format!("it did not identify itself within {}", human(patience))))
        } else {
            Ok(None)
        }
    }
}

/// Number of refusals that are printed individually. After these, a line is printed only at refusal 16, 32, 64 and so
/// on.
const MAX_NOTICES: usize = 8;

/// Reports rejected connections.
#[derive(Debug, Default)]
pub(super) struct Notices {
    refused: usize,
    last: String,
}

impl Notices {
    /// Records a rejected connection, and prints it on stderr if a line is due.
    pub fn tell(&mut self, from: SocketAddr, why: &str) {
        self.refused += 1;
        self.last = format!("{from}: {}", printable(why));
        if self.refused <= MAX_NOTICES {
            eprintln!("ginlab: refused a connection from {}", self.last);
        } else if self.refused.is_power_of_two() {
            eprintln!("ginlab: refused {} connections so far, the last from {}", self.refused, self.last);
        }
    }

    /// Returns a clause about the rejected connections, for the error of a wait that ended before all ranks had
    /// connected.
    pub fn clause(&self) -> String {
        match self.refused {
            0 => String::new(),
            1 => format!("; refused one connection: {}", self.last),
            n => format!("; refused {n} connections, the last: {}", self.last),
        }
    }
}
