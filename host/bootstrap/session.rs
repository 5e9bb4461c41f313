//! Visits: peers that come to a running program one by one, without ranks, and leave when they like.
//!
//! A visit is one TCP connection, opened as a rank's is: both sides prove that they know the token (`bootstrap::handshake` has
//! the protocol, and what others on the network can do), and ranks and visitors who come to the wrong acceptor are told so.
//! Behind that the two sides speak in words: labelled JSON, encrypted. They wait by tokio, for programs that drive a fabric in
//! the same loop (the library's `flow`). Every wait is bounded, and ends on Ctrl-C.
//!
//! A server takes its visitors from an [`Entrance`], which keeps those who have not proved anything away from it: few at a
//! time, for a short time, and with few words on stderr.

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
use super::error::{BootstrapError, Ending, human};
use super::frame::{self, Frame, FrameKind};
use super::greeting::{self, Refusal};
use super::identity::Member;
use super::link::Link;
use super::wait::{Clock, SLICE};
use ginlab_base::signals;
use ginlab_base::text::printable;

/// What no socket tells of is looked at this often: time limits of connections that have not proved anything, and whether there is
/// room for one more after one could not be accepted.
const MOMENT: Duration = Duration::from_millis(100);

/// How long the other side may take to close, and the system to come back from looking a name up.
const GRACE: Duration = Duration::from_secs(1);

/// Words are addresses, keys and plans.
const MAX_WORD_BYTES: usize = 1 << 20;

/// How a bounded wait ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By its limit.
    TimedOut,
    /// By Ctrl-C or SIGTERM.
    Interrupted,
}

impl Ended {
    /// The error of a wait for `peer`.
    fn at(self, what: &str, limit: Duration, peer: impl fmt::Display) -> BootstrapError {
        match self {
            Ended::Interrupted => BootstrapError::Interrupted(what.to_owned()),
            Ended::TimedOut => {
                let text = format!("timed out after {} at {what:?}; {peer} is silent", human(limit));
                BootstrapError::Other(Ending::TimedOut, text)
            }
        }
    }
}

/// Waits for a future, no longer than `limit` and no longer than nobody interrupts.
///
/// # Errors
/// Which of the two ended the wait; the future is dropped then.
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

/// What a visitor says of itself.
#[derive(Debug, Serialize, Deserialize)]
struct Card {
    version: String,
    member: Member,
}

impl Card {
    fn here() -> Card {
        Card { version: env!("CARGO_PKG_VERSION").to_owned(), member: Member::here() }
    }
}

/// A connection to a peer, of either side.
#[derive(Debug)]
pub struct Session {
    link: Link,
    limit: Duration,
}

/// `host (pid 12, 10.0.0.1:7002)`.
impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Link { member, from, .. } = &self.link;
        write!(f, "{} (pid {}, {from})", member.host, member.pid)
    }
}

/// Where visitors come in.
#[derive(Debug)]
pub struct Entrance {
    acceptor: Acceptor,
    limit: Duration,
    /// Those who have come and were not asked for yet.
    come: VecDeque<Session>,
}

impl Entrance {
    /// Listens for visitors who know the token. `address` is `HOST:PORT`; port 0 lets the system choose. `limit` bounds every
    /// later wait of a visit.
    ///
    /// # Errors
    /// When the address is none of this host, or its port is taken.
    pub async fn listen(address: &str, token: &str, limit: Duration) -> Result<Entrance, BootstrapError> {
        let refused = |error: io::Error| {
            let hint = "give HOST:PORT with an address of this host and a free port, or port 0 for any";
            BootstrapError::system(format_args!("listen on {address}"), format_args!("{error}; {hint}"))
        };
        let listener = TcpListener::bind(address).await.and_then(TcpListener::into_std).map_err(refused)?;
        let mut acceptor = Acceptor::new(listener, token, 0)?;
        acceptor.patience = acceptor.patience.min(limit);
        Ok(Entrance { acceptor, limit, come: VecDeque::new() })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> Result<SocketAddr, BootstrapError> {
        self.acceptor.address()
    }

    /// Waits for the next visitor who has proved that it knows the token. Who does not is turned away, and told of on stderr.
    /// Nobody is lost when the future is dropped.
    pub async fn next(&mut self) -> Session {
        loop {
            if let Some(visit) = self.come.pop_front() {
                return visit;
            }
            match self.acceptor.step() {
                Ok(come) if come.is_empty() => ready(self.acceptor.descriptors(), Interest::READABLE).await,
                Ok(come) => come.into_iter().for_each(|(link, frame)| self.let_in(link, &frame)),
                Err(error) => {
                    // Too many open files, say: the end of others may help.
                    eprintln!("ginlab: {error}");
                    tokio::time::sleep(MOMENT).await;
                }
            }
        }
    }

    fn let_in(&mut self, mut link: Link, frame: &Frame) {
        let ours = Card::here();
        let refusal = match serde_json::from_slice::<Card>(&frame.payload) {
            _ if frame.kind != FrameKind::Session => {
                "it is a rank of a job, and here is a server for visits: the address is wrong".to_owned()
            }
            Err(error) => error.to_string(),
            Ok(card) if card.version != ours.version => {
                let theirs = printable(&card.version);
                format!("it is ginlab {theirs}, the server {}: run the same ginlab on both sides", ours.version)
            }
            Ok(card) => {
                link.send(frame::encode(FrameKind::Welcome, 0, "visit", &greeting::json(&ours)));
                return self.come.push_back(Session::new(link, card, self.limit));
            }
        };
        self.acceptor.turn_away(link, refusal, true);
    }

    /// Turns away a visitor that [`next`](Entrance::next) has given: there is no room for one more.
    pub fn turn_away(&mut self, visit: Session, why: &str) {
        self.acceptor.notices.tell(visit.link.from, why);
        visit.link.close();
    }
}

/// Waits until something happens at one of the sockets, or for a moment.
async fn ready(sockets: impl Iterator<Item = BorrowedFd<'_>>, interest: Interest) {
    // SAFETY: a borrowed descriptor stays open, and the same file, for longer than its watch lives.
    let watch = |socket| unsafe { AsyncFd::register_with_interest(socket, interest) };
    // What the system will not watch is looked at every now and then.
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
    fn new(mut link: Link, card: Card, limit: Duration) -> Session {
        (link.member, link.longest) = (card.member.printable(), MAX_WORD_BYTES);
        Session { link, limit }
    }

    /// Goes to `HOST:PORT`, and tries until `limit` has passed: the server may come up later than its visitors. `limit` also
    /// bounds every later wait of the visit.
    ///
    /// # Errors
    /// When nobody answers in time, or the server refuses the token or the version.
    pub async fn connect(address: &str, token: &str, limit: Duration) -> Result<Session, BootstrapError> {
        let (place, token) = (address.to_owned(), token.to_owned());
        // In a thread of its own: looking names up waits too.
        let searching = tokio::task::spawn_blocking(move || {
            let greeting = frame::encode(FrameKind::Session, 0, "visit", &greeting::json(&Card::here()));
            let search = Search { place: &place, token: &token, greeting, rank: None };
            let candidates = || place.to_socket_addrs().map(Iterator::collect).map_err(|error| error.to_string());
            search.connect::<Card>(candidates, &Clock::new(limit, signals::flag()))
        });
        let what = format!("connection to {address}");
        match bounded(limit.saturating_add(GRACE), searching).await {
            Ok(Ok(found)) => found.map(|(link, card)| Session::new(link, card, limit)),
            Ok(Err(error)) => Err(BootstrapError::system("connect", error)),
            Err(ended) => Err(ended.at(&what, limit, "the system's resolver")),
        }
    }

    /// Who the other side is.
    #[must_use]
    pub fn member(&self) -> &Member {
        &self.link.member
    }

    /// Where it is.
    #[must_use]
    pub fn from(&self) -> SocketAddr {
        self.link.from
    }

    /// Whether both run on one host, in one network namespace.
    #[must_use]
    pub fn same_host(&self) -> bool {
        self.link.member.identity == Member::here().identity
    }

    /// Says a word. `what` names the step for people and is compared by the other side.
    ///
    /// # Errors
    /// When the peer has left, or takes nothing for too long.
    pub async fn say(&mut self, what: &str, word: &impl Serialize) -> Result<(), BootstrapError> {
        let payload = greeting::json(word);
        if payload.len() > MAX_WORD_BYTES {
            let text = format!("{} bytes; a word has {MAX_WORD_BYTES} at most", payload.len());
            return Err(BootstrapError::system(format_args!("send the word of {what:?}"), text));
        }
        self.write(frame::encode(FrameKind::Word, 0, what, &payload), what).await
    }

    /// Hears the word of this step.
    ///
    /// # Errors
    /// When the peer has left, is silent for too long, refuses to go on, or says something else.
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

    /// The next frame. Nothing is lost when the future is dropped.
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

    /// Tells the other side why the visit ends, and returns that as an error.
    pub async fn refuse(&mut self, why: String) -> BootstrapError {
        let refusal = greeting::json(&Refusal { why: why.clone(), last_word: true });
        // It may have gone already.
        let _ = self.write(frame::encode(FrameKind::Refuse, 0, "visit", &refusal), "refusal").await;
        self.link.shut();
        // What it still sends is read: a socket closed with unread data resets the connection, and a reset may overtake the
        // answer. A peer that does not close has a short while.
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

    /// The socket, for bytes of any kind from here on: in clear, without the words' seal.
    ///
    /// # Errors
    /// When the peer has said something that was not heard.
    pub fn into_stream(self) -> Result<TcpStream, BootstrapError> {
        let early = self.link.unheard();
        if early > 0 {
            return Err(BootstrapError::unexpected(
                &self,
                "change to plain bytes",
                &format!("{early} bytes too early"),
            ));
        }
        TcpStream::from_std(self.link.stream).map_err(|error| BootstrapError::system("go on with a socket", error))
    }

    fn left(&self, what: &str) -> BootstrapError {
        BootstrapError::failed(format!("{self} left at {what:?}"))
    }

    fn refused(&self, why: &str) -> BootstrapError {
        BootstrapError::failed(format!("{self} refused: {why}"))
    }
}
