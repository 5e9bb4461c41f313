//! Sessions: peers that connect to a running program one by one, without ranks, and leave at any time.
//!
//! A session is one TCP connection, opened like that of a rank. Both sides prove that they know the token
//! (`bootstrap::handshake` documents the protocol, and what an attacker on the network can do). Ranks and session
//! clients that connect to the wrong acceptor are refused with that reason. After the handshake the two sides exchange
//! encrypted messages of labelled JSON. They wait with tokio, for programs that drive a fabric in the same event loop
//! (the library's `flow`). Every wait is bounded, and ends on Ctrl-C.
//!
//! A server accepts its clients from a [`SessionListener`], which limits the effects of unauthenticated peers: it keeps
//! few of them, for a short time, and prints few lines about them.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::iter;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::Poll;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpListener, TcpStream};

use super::acceptor::Acceptor;
use super::connect::Search;
use super::error::{BootstrapError, FailureKind, human};
use super::frame::{self, Frame, FrameKind};
use super::greeting::{self, Refusal};
use super::identity::Member;
use super::link::Link;
use super::wait::{Clock, SLICE};
use ginlab_base::signals;
use ginlab_base::text::printable;

/// Interval at which conditions without a socket event are checked: the time limits of unauthenticated connections, and
/// whether another connection can be accepted after a failure.
const MOMENT: Duration = Duration::from_millis(100);

/// Time within which the other side must close, and by which the system's resolver may exceed the limit.
const GRACE: Duration = Duration::from_secs(1);

/// Maximum size of a message. Messages are addresses, keys and plans.
const MAX_WORD_BYTES: usize = 1 << 20;

/// Reasons why a bounded wait ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The limit was exceeded.
    TimedOut,
    /// Ctrl-C or SIGTERM.
    Interrupted,
}

impl Ended {
    /// Returns the error of a wait for `peer`.
    fn at(self, what: &str, limit: Duration, peer: impl fmt::Display) -> BootstrapError {
        match self {
            Ended::Interrupted => BootstrapError::Interrupted(what.to_owned()),
            Ended::TimedOut => {
                let text = format!("timed out after {} at {what:?}: {peer} is silent", human(limit));
                BootstrapError::Other(FailureKind::TimedOut, text)
            }
        }
    }
}

/// Waits for `future` for at most `limit`, or until an interrupt.
///
/// # Errors
/// Returns the reason if the wait ended without a result. The future is then dropped.
pub async fn bounded<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, Ended> {
    let began = Instant::now();
    let mut future = std::pin::pin!(future);
    loop {
        let slice = SLICE.min(limit.saturating_sub(began.elapsed()));
        match tokio::time::timeout(slice, future.as_mut()).await {
            Ok(result) => return Ok(result),
            Err(_) if signals::interrupted() => return Err(Ended::Interrupted),
            Err(_) if began.elapsed() >= limit => return Err(Ended::TimedOut),
            Err(_) => {}
        }
    }
}

/// Identity of a session client or server.
#[derive(Debug, Serialize, Deserialize)]
struct RankInfo {
    version: String,
    member: Member,
}

impl RankInfo {
    fn here() -> RankInfo {
        RankInfo { version: env!("CARGO_PKG_VERSION").to_owned(), member: Member::here() }
    }
}

/// A connection to a peer, on either side.
#[derive(Debug)]
pub struct Session {
    link: Link,
    limit: Duration,
}

/// Formats the peer, for example `host (pid 12, 10.0.0.1:7002)`.
impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Link { member, from, .. } = &self.link;
        write!(f, "{} (pid {}, {from})", member.host, member.pid)
    }
}

/// Server side of sessions: accepts clients.
#[derive(Debug)]
pub struct SessionListener {
    acceptor: Acceptor,
    limit: Duration,
    /// Authenticated clients that [`next`](SessionListener::next) has not returned yet.
    come: VecDeque<Session>,
}

impl SessionListener {
    /// Listens for clients that know the token. `address` is `HOST:PORT`; with port 0 the system chooses one. `limit`
    /// bounds every later wait of a session.
    ///
    /// # Errors
    /// Returns an error if the address is not one of this host, or its port is in use.
    pub async fn listen(address: &str, token: &str, limit: Duration) -> Result<SessionListener, BootstrapError> {
        let refused = |error: io::Error| {
            let hint = "use HOST:PORT with an address of this host and a free port, or port 0 for any";
            BootstrapError::system(format_args!("listen on {address}"), format_args!("{error}; {hint}"))
        };
        let listener = TcpListener::bind(address).await.and_then(TcpListener::into_std).map_err(refused)?;
        let mut acceptor = Acceptor::new(listener, token, 0)?;
        acceptor.patience = acceptor.patience.min(limit);
        Ok(SessionListener { acceptor, limit, come: VecDeque::new() })
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn address(&self) -> Result<SocketAddr, BootstrapError> {
        self.acceptor.address()
    }

    /// Waits for the next client that has proved that it knows the token. Other clients are refused, and reported on
    /// stderr. No client is lost if the future is dropped.
    pub async fn next(&mut self) -> Session {
        loop {
            if let Some(visit) = self.come.pop_front() {
                return visit;
            }
            match self.acceptor.step() {
                Ok(come) if come.is_empty() => ready(self.acceptor.descriptors(), Interest::READABLE).await,
                Ok(come) => come.into_iter().for_each(|(link, frame)| self.let_in(link, &frame)),
                Err(error) => {
                    // For example, too many files are open. Retries, since closing other connections may help.
                    eprintln!("ginlab: {error}");
                    tokio::time::sleep(MOMENT).await;
                }
            }
        }
    }

    fn let_in(&mut self, mut link: Link, frame: &Frame) {
        let ours = RankInfo::here();
        let refusal = match serde_json::from_slice::<RankInfo>(&frame.payload) {
            _ if frame.kind != FrameKind::Session => {
                "it is a rank of a job, but this is the address of a server; check the address".to_owned()
            }
            Err(error) => error.to_string(),
            Ok(card) if card.version != ours.version => {
                let theirs = printable(&card.version);
                format!("it is ginlab {theirs}, but the server is {}; run the same ginlab on both sides", ours.version)
            }
            Ok(card) => {
                link.send(frame::encode(FrameKind::Welcome, 0, "visit", &greeting::json(&ours)));
                return self.come.push_back(Session::new(link, card, self.limit));
            }
        };
        self.acceptor.turn_away(link, refusal, true);
    }

    /// Closes the session of a client that [`next`](SessionListener::next) has returned, because the server has no
    /// capacity for it. Reports `why` on stderr.
    pub fn turn_away(&mut self, visit: Session, why: &str) {
        self.acceptor.notices.tell(visit.link.from, why);
        visit.link.close();
    }
}

/// Waits until one of the sockets is ready, at most for [`MOMENT`].
async fn ready(sockets: impl Iterator<Item = BorrowedFd<'_>>, interest: Interest) {
    // SAFETY: a borrowed descriptor stays open, and refers to the same file, longer than its watch exists.
    let watch = |socket| unsafe { AsyncFd::register_with_interest(socket, interest) };
    // Sockets that cannot be watched are covered by the timeout below.
    let watched: Vec<_> = sockets.filter_map(|socket| watch(socket).ok()).collect();
    let any = poll_fn(|context| {
        let is_ready = |socket: &AsyncFd<_>| {
            socket.poll_read_ready(context).is_ready() || socket.poll_write_ready(context).is_ready()
        };
        if watched.iter().any(is_ready) { Poll::Ready(()) } else { Poll::Pending }
    });
    let _ = tokio::time::timeout(MOMENT, any).await;
}

impl Session {
    fn new(mut link: Link, card: RankInfo, limit: Duration) -> Session {
        (link.member, link.longest) = (card.member.printable(), MAX_WORD_BYTES);
        Session { link, limit }
    }

    /// Connects to `HOST:PORT`, retrying until `limit` has passed, since the server may start later than its clients.
    /// `limit` also bounds every later wait of the session.
    ///
    /// # Errors
    /// Returns an error if no server answers in time, or the server refuses the token or the version.
    pub async fn connect(address: &str, token: &str, limit: Duration) -> Result<Session, BootstrapError> {
        let (place, token) = (address.to_owned(), token.to_owned());
        // Runs on a separate thread, because name resolution blocks.
        let searching = tokio::task::spawn_blocking(move || {
            let greeting = frame::encode(FrameKind::Session, 0, "visit", &greeting::json(&RankInfo::here()));
            let search = Search { place: &place, token: &token, greeting, rank: None };
            let candidates = || place.to_socket_addrs().map(Iterator::collect).map_err(|error| error.to_string());
            search.connect::<RankInfo>(candidates, &Clock::new(limit, signals::flag()))
        });
        let what = format!("connection to {address}");
        match bounded(limit.saturating_add(GRACE), searching).await {
            Ok(Ok(found)) => found.map(|(link, card)| Session::new(link, card, limit)),
            Ok(Err(error)) => Err(BootstrapError::system("connect", error)),
            Err(ended) => Err(ended.at(&what, limit, "the system's resolver")),
        }
    }

    /// Returns the identity of the other side.
    #[must_use]
    pub fn member(&self) -> &Member {
        &self.link.member
    }

    /// Returns the address of the other side.
    #[must_use]
    pub fn from(&self) -> SocketAddr {
        self.link.from
    }

    /// Returns whether both sides run on one host, in one network namespace.
    #[must_use]
    pub fn same_host(&self) -> bool {
        self.link.member.identity == Member::here().identity
    }

    /// Sends a message. `what` is a human-readable name of the step, which the other side compares with its own.
    ///
    /// # Errors
    /// Returns an error if the peer has left, or has not read for too long.
    pub async fn say(&mut self, what: &str, word: &impl Serialize) -> Result<(), BootstrapError> {
        let payload = greeting::json(word);
        if payload.len() > MAX_WORD_BYTES {
            let text = format!("{} bytes, but at most {MAX_WORD_BYTES} are allowed", payload.len());
            return Err(BootstrapError::system(format_args!("send the message of {what:?}"), text));
        }
        self.write(frame::encode(FrameKind::Word, 0, what, &payload), what).await
    }

    /// Receives the message of this step.
    ///
    /// # Errors
    /// Returns an error if the peer has left, has sent nothing for too long, refuses to continue, or sends a different
    /// message.
    pub async fn hear<T: DeserializeOwned>(&mut self, what: &str) -> Result<T, BootstrapError> {
        let unexpected = |visit: &Session, text: &str| BootstrapError::unexpected(visit, what, text);
        let frame = match bounded(self.limit, self.next(what)).await {
            Ok(frame) => frame?,
            Err(ended) => return Err(ended.at(what, self.limit, self)),
        };
        match frame.kind {
            FrameKind::Word if frame.label == frame::label(what) => {
                serde_json::from_slice(&frame.payload).map_err(|error| unexpected(self, &error.to_string()))
            }
            FrameKind::Refuse => Err(match Refusal::parse(&frame.payload) {
                Ok(Refusal { why, .. }) => self.refused(&why),
                Err(error) => unexpected(self, &error.to_string()),
            }),
            other => Err(unexpected(self, &format!("{other:?} {:?}", frame.label))),
        }
    }

    /// Returns the next frame. No frame is lost if the future is dropped.
    async fn next(&mut self, what: &str) -> Result<Frame, BootstrapError> {
        loop {
            let read = self.link.fill();
            if let Some(frame) = self.link.frames.pop_front() {
                return Ok(frame);
            }
            read.map_err(|text| BootstrapError::unexpected(&*self, what, &text))?;
            if self.link.closed {
                return Err(self.left(what));
            }
            ready(iter::once(self.link.as_fd()), Interest::READABLE).await;
        }
    }

    async fn write(&mut self, bytes: Vec<u8>, what: &str) -> Result<(), BootstrapError> {
        self.link.send(bytes);
        let written = async {
            while !self.link.flush() {
                ready(iter::once(self.link.as_fd()), Interest::WRITABLE).await;
            }
        };
        match bounded(self.limit, written).await {
            Ok(()) if self.link.closed => Err(self.left(what)),
            Ok(()) => Ok(()),
            Err(ended) => Err(ended.at(what, self.limit, self)),
        }
    }

    /// Sends `why` to the other side as the reason for the end of the session. Returns it as an error.
    pub async fn refuse(&mut self, why: String) -> BootstrapError {
        let refusal = greeting::json(&Refusal { why: why.clone(), last_word: true });
        // Errors are ignored, because the peer may have left already.
        let _ = self.write(frame::encode(FrameKind::Refuse, 0, "visit", &refusal), "refusal").await;
        self.link.shut();
        // Reads and discards remaining bytes from the peer for a short time. Closing a socket with unread data would
        // reset the connection, and the reset could overtake the refusal.
        let drained = async {
            while !self.link.closed {
                self.link.buffer.clear();
                if !self.link.read(4096) {
                    ready(iter::once(self.link.as_fd()), Interest::READABLE).await;
                }
            }
        };
        let _ = bounded(GRACE, drained).await;
        self.refused(&why)
    }

    /// Returns the socket, for further bytes of any kind, which are not encrypted.
    ///
    /// # Errors
    /// Returns an error if the peer has sent a message that was not received.
    pub fn into_stream(self) -> Result<TcpStream, BootstrapError> {
        let early = self.link.unheard();
        if early > 0 {
            return Err(BootstrapError::unexpected(
                &self,
                "change to plain bytes",
                &format!("{early} unexpected bytes"),
            ));
        }
        TcpStream::from_std(self.link.stream).map_err(|error| BootstrapError::system("continue with a socket", error))
    }

    fn left(&self, what: &str) -> BootstrapError {
        BootstrapError::failed(format!("{self} disconnected at {what:?}"))
    }

    fn refused(&self, why: &str) -> BootstrapError {
        BootstrapError::failed(format!("{self} refused: {why}"))
    }
}
