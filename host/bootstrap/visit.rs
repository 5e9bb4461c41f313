//! Visits: peers that come to a running program one by one, without ranks, and leave when they like.
//!
//! A visit is one TCP connection, opened as a rank's is: both sides prove that they know the token (`bootstrap::hello` has the
//! protocol, and what others on the network can do), and ranks and visitors who come to the wrong door are told so. Behind
//! that the two sides speak in words: labelled JSON. The sockets are tokio's, for programs that drive a fabric in the same loop
//! ([`crate::flow`]). Every wait is bounded, and ends on Ctrl-C.
//!
//! A server takes its visitors from an [`Entrance`], which keeps those who have not proved anything away from it: few at a
//! time, for a short time, and with few words on stderr.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use super::error::human;
use super::frame::{self, Frame, FrameKind};
use super::guard::{CROWDED_OUT, HANDSHAKE_LIMIT, MAX_STRANGERS, Notices, shown};
use super::hello::{self, Answer, Gate, Knock, Opening, Refusal};
use super::identity::Member;
use crate::signals;
use crate::text::printable;

/// Waits look at the interrupt flag this often.
const SLICE: Duration = Duration::from_millis(20);

/// One attempt to connect: a lost SYN is better repeated than waited for.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Between two attempts.
const BACKOFF: Duration = Duration::from_millis(100);

/// The step in which the two sides meet.
const WELCOME: &str = "welcome";

/// Words are addresses, keys and plans.
const MAX_WORD_BYTES: usize = 1 << 20;

/// Why a visit did not begin, or ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VisitError {
    /// Nobody answered in time.
    #[error(
        "timed out after {} connecting to {address} (last attempt: {last}); is a server listening there, and does a firewall or \
         security group let this port through?",
        human(*.after)
    )]
    Unreachable {
        /// Where.
        address: String,
        /// The limit.
        after: Duration,
        /// What the last attempt said.
        last: String,
    },
    /// The other side is there, and does not want this visit.
    #[error("{address} refused: {why}")]
    Refused {
        /// Where.
        address: String,
        /// Its words.
        why: String,
    },
    /// The peer closed the connection, or its process ended.
    #[error("{peer} left at {what:?}")]
    Left {
        /// Who.
        peer: String,
        /// The step.
        what: String,
    },
    /// The peer is silent.
    #[error("timed out after {} at {what:?}; {peer} is silent", human(*.after))]
    Silent {
        /// Who.
        peer: String,
        /// The step.
        what: String,
        /// The limit.
        after: Duration,
    },
    /// The peer says something else than was expected.
    #[error("{peer} sent something unexpected at {what:?}: {text}")]
    Unexpected {
        /// Who.
        peer: String,
        /// The step.
        what: String,
        /// What was wrong.
        text: String,
    },
    /// Ctrl-C or SIGTERM.
    #[error("interrupted at {0:?}")]
    Interrupted(String),
    /// The operating system refused something.
    #[error("cannot {action}: {text}")]
    System {
        /// What was tried.
        action: String,
        /// The system's words.
        text: String,
    },
}

impl VisitError {
    /// Whether a time limit ended the wait (programs end with code 124 then).
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, VisitError::Unreachable { .. } | VisitError::Silent { .. })
    }
}

/// How a bounded wait ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By its limit.
    TimedOut,
    /// By Ctrl-C or SIGTERM.
    Interrupted,
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
pub struct Visit {
    stream: TcpStream,
    buffer: Vec<u8>,
    member: Member,
    from: SocketAddr,
    limit: Duration,
}

/// `host (pid 12)`.
impl fmt::Display for Visit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.member.pid == 0 {
            return write!(f, "{}", self.from);
        }
        write!(f, "{} (pid {}, {})", self.member.host, self.member.pid, self.from)
    }
}

/// Where visitors come in.
#[derive(Debug)]
pub struct Entrance {
    listener: TcpListener,
    token: Rc<str>,
    limit: Duration,
    /// Those who have not proved anything, and the tasks that hear them.
    strangers: JoinSet<(SocketAddr, Result<Visit, VisitError>)>,
    /// The same, oldest first; with some that have ended.
    waiting: VecDeque<(SocketAddr, AbortHandle)>,
    notices: Notices,
}

impl Entrance {
    /// Listens for visitors who know the token. `address` is `HOST:PORT`; port 0 lets the system choose. `limit` bounds every
    /// later wait of a visit.
    ///
    /// # Errors
    /// When the address is none of this host, or its port is taken.
    pub async fn listen(address: &str, token: &str, limit: Duration) -> Result<Entrance, VisitError> {
        let refused = |error: std::io::Error| VisitError::System {
            action: format!("listen on {address}"),
            text: format!("{error}; give HOST:PORT with an address of this host and a free port, or port 0 for any"),
        };
        Ok(Entrance {
            listener: TcpListener::bind(address).await.map_err(refused)?,
            token: token.into(),
            limit,
            strangers: JoinSet::new(),
            waiting: VecDeque::new(),
            notices: Notices::default(),
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> Result<SocketAddr, VisitError> {
        let refused = |error: std::io::Error| VisitError::System {
            action: "read the port of a socket".into(),
            text: error.to_string(),
        };
        self.listener.local_addr().map_err(refused)
    }

    /// Waits for the next visitor who has proved that it knows the token. Who does not is turned away, and told of on stderr.
    /// Needs a [`tokio::task::LocalSet`]; nobody is lost when the future is dropped.
    pub async fn next(&mut self) -> (SocketAddr, Visit) {
        loop {
            tokio::select! {
                Some(ended) = self.strangers.join_next() => match ended {
                    Ok((from, Ok(visit))) => return (from, visit),
                    Ok((from, Err(error))) => self.notices.tell(from, &reason(error)),
                    // Let go, and told of then.
                    Err(_) => {}
                },
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, from)) => self.hear(stream, from),
                    Err(error) => {
                        // Too many open files, say: who has proved nothing goes first, and the end of others may help.
                        eprintln!("ginlab: cannot accept a connection: {error}");
                        self.let_oldest_go();
                        tokio::time::sleep(BACKOFF).await;
                    }
                },
            }
        }
    }

    /// Turns away a visitor that [`next`](Entrance::next) has given, without waiting for it: there is no room for one more.
    pub fn turn_away(&mut self, from: SocketAddr, visit: Visit, why: &str) {
        self.notices.tell(from, why);
        drop(visit);
    }

    fn hear(&mut self, stream: TcpStream, from: SocketAddr) {
        self.waiting.retain(|(_, task)| !task.is_finished());
        if self.waiting.len() >= MAX_STRANGERS {
            self.let_oldest_go();
        }
        let (token, limit) = (self.token.clone(), self.limit);
        let task = self.strangers.spawn_local(async move { (from, Visit::welcome(stream, from, &token, limit).await) });
        self.waiting.push_back((from, task));
    }

    fn let_oldest_go(&mut self) {
        if let Some((from, task)) = self.waiting.pop_front() {
            task.abort();
            self.notices.tell(from, CROWDED_OUT);
        }
    }
}

/// Why somebody was turned away, beside its address.
fn reason(error: VisitError) -> String {
    match error {
        VisitError::Refused { why, .. } => why,
        VisitError::Unexpected { text, .. } => text,
        VisitError::Left { .. } => "it closed before it said who it is".to_owned(),
        VisitError::Silent { after, .. } => format!("it did not say who it is within {}", human(after)),
        other => other.to_string(),
    }
}

impl Visit {
    /// Goes to `HOST:PORT`, and tries until `limit` has passed: the server may come up later than its visitors. `limit` also
    /// bounds every later wait of the visit.
    ///
    /// # Errors
    /// When nobody answers in time, or the server refuses the token or the version.
    pub async fn connect(address: &str, token: &str, limit: Duration) -> Result<Visit, VisitError> {
        let began = Instant::now();
        let mut last = String::from("none");
        loop {
            let left = limit.saturating_sub(began.elapsed());
            match bounded(left, attempt(address, token, limit)).await {
                Ok(Ok(visit)) => return Ok(visit),
                Ok(Err(Attempt::End(error))) => return Err(error),
                Ok(Err(Attempt::Retry(why))) => last = why,
                Err(Ended::Interrupted) => return Err(VisitError::Interrupted(format!("connection to {address}"))),
                Err(Ended::TimedOut) => {}
            }
            if began.elapsed() >= limit {
                return Err(VisitError::Unreachable { address: address.to_owned(), after: limit, last });
            }
            tokio::time::sleep(BACKOFF.min(limit.saturating_sub(began.elapsed()))).await;
        }
    }

    /// Welcomes a visitor, or tells it why not, within [`HANDSHAKE_LIMIT`] in all.
    async fn welcome(stream: TcpStream, from: SocketAddr, token: &str, limit: Duration) -> Result<Visit, VisitError> {
        let all = HANDSHAKE_LIMIT.min(limit);
        let mut visit = Visit { stream, buffer: Vec::new(), member: Member::nobody(), from: shown(from), limit: all };
        match bounded(all, visit.meet(token)).await {
            Ok(Ok(())) => Ok(Visit { limit, ..visit }),
            Ok(Err(error)) => Err(error),
            Err(ended) => Err(visit.ended(ended, WELCOME)),
        }
    }

    /// The listener's side of the handshake.
    async fn meet(&mut self, token: &str) -> Result<(), VisitError> {
        self.set_up()?;
        let mut gate = Gate::new().map_err(|error| self.no_random(&error))?;
        loop {
            let mut answer = Vec::new();
            let knock = gate.step(&mut self.buffer, token, &mut answer);
            self.write(&answer, WELCOME).await?;
            match knock {
                Knock::Ours => break,
                Knock::Incomplete => self.fill(WELCOME, self.limit).await?,
                // It gets no answer.
                Knock::Stranger => return Err(self.unexpected(WELCOME, "it is not a ginlab".to_owned())),
                Knock::Other(why) => return Err(self.refuse(why).await),
            }
        }
        let frame = self.next(WELCOME, hello::MAX_HELLO_BYTES).await?;
        if frame.kind != FrameKind::Visit {
            let why = "it is a rank of a job, and here is a server for visits: the address is wrong".to_owned();
            return Err(self.refuse(why).await);
        }
        let card: Card = self.parse(WELCOME, &frame.payload)?;
        let ours = Card::here();
        if card.version != ours.version {
            let why = format!(
                "it is ginlab {}, the server {}: run the same ginlab on both sides",
                printable(&card.version),
                ours.version
            );
            return Err(self.refuse(why).await);
        }
        self.member = card.member.printable();
        self.write(&frame::encode(FrameKind::Welcome, 0, "visit", &hello::json(&ours)), WELCOME).await
    }

    /// Who the other side is.
    #[must_use]
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Whether both run on one host, in one network namespace.
    #[must_use]
    pub fn same_host(&self) -> bool {
        self.member.identity == Member::here().identity
    }

    /// Says a word. `what` names the step for people and is compared by the other side.
    ///
    /// # Errors
    /// When the peer has left, or takes nothing for too long.
    pub async fn say(&mut self, what: &str, word: &impl Serialize) -> Result<(), VisitError> {
        let payload = hello::json(word);
        if payload.len() > MAX_WORD_BYTES {
            let text = format!("{} bytes; a word has {MAX_WORD_BYTES} at most", payload.len());
            return Err(VisitError::System { action: format!("send the word of {what:?}"), text });
        }
        self.write(&frame::encode(FrameKind::Word, 0, what, &payload), what).await
    }

    /// Hears the word of this step.
    ///
    /// # Errors
    /// When the peer has left, is silent for too long, refuses to go on, or says something else.
    pub async fn hear<T: DeserializeOwned>(&mut self, what: &str) -> Result<T, VisitError> {
        let frame = self.next(what, MAX_WORD_BYTES).await?;
        if frame.kind == FrameKind::Refuse {
            let refusal = Refusal::parse(&frame.payload).map_err(|error| self.unexpected(what, error.to_string()))?;
            return Err(VisitError::Refused { address: self.to_string(), why: refusal.why });
        }
        if frame.kind != FrameKind::Word || frame.label != frame::label(what) {
            return Err(self.unexpected(what, format!("{:?} {:?}", frame.kind, frame.label)));
        }
        self.parse(what, &frame.payload)
    }

    /// Tells the other side why the visit ends, and returns that as an error.
    pub async fn refuse(&mut self, why: String) -> VisitError {
        let refusal = hello::json(&Refusal { why: why.clone(), last_word: true });
        // It may have gone already.
        let _ = self.write(&frame::encode(FrameKind::Refuse, 0, "visit", &refusal), "refusal").await;
        let _ = self.stream.shutdown().await;
        // What it still sends is read: a socket closed with unread data resets the connection, and a reset may overtake the
        // answer. A peer that does not close has a short while.
        let drained = async { while self.stream.read(&mut [0; 4096]).await.is_ok_and(|count| count > 0) {} };
        let _ = bounded(ATTEMPT, drained).await;
        VisitError::Refused { address: self.to_string(), why }
    }

    /// The socket, for bytes of any kind from here on.
    ///
    /// # Errors
    /// When the peer has said something that was not heard.
    pub fn into_stream(self) -> Result<TcpStream, VisitError> {
        match self.buffer.is_empty() {
            true => Ok(self.stream),
            false => Err(self.unexpected("change to plain bytes", format!("{} bytes too early", self.buffer.len()))),
        }
    }

    fn set_up(&self) -> Result<(), VisitError> {
        self.stream
            .set_nodelay(true)
            .map_err(|error| VisitError::System { action: "set up a socket".to_owned(), text: error.to_string() })
    }

    fn no_random(&self, error: &std::io::Error) -> VisitError {
        VisitError::System { action: "begin a handshake".to_owned(), text: error.to_string() }
    }

    fn unexpected(&self, what: &str, text: String) -> VisitError {
        VisitError::Unexpected { peer: self.to_string(), what: what.to_owned(), text: printable(&text) }
    }

    fn left(&self, what: &str) -> VisitError {
        VisitError::Left { peer: self.to_string(), what: what.to_owned() }
    }

    fn parse<T: DeserializeOwned>(&self, what: &str, payload: &[u8]) -> Result<T, VisitError> {
        serde_json::from_slice(payload).map_err(|error| self.unexpected(what, error.to_string()))
    }

    fn ended(&self, ended: Ended, what: &str) -> VisitError {
        match ended {
            Ended::Interrupted => VisitError::Interrupted(what.to_owned()),
            Ended::TimedOut => VisitError::Silent { peer: self.to_string(), what: what.to_owned(), after: self.limit },
        }
    }

    async fn write(&mut self, bytes: &[u8], what: &str) -> Result<(), VisitError> {
        match bounded(self.limit, self.stream.write_all(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(self.left(what)),
            Err(ended) => Err(self.ended(ended, what)),
        }
    }

    /// Reads some more.
    async fn fill(&mut self, what: &str, limit: Duration) -> Result<(), VisitError> {
        let mut chunk = [0; 4096];
        // Dropped unread, a read takes nothing from the socket.
        match bounded(limit, self.stream.read(&mut chunk)).await {
            Ok(Ok(count @ 1..)) => {
                self.buffer.extend_from_slice(&chunk[..count]);
                Ok(())
            }
            Ok(_) => Err(self.left(what)),
            Err(ended) => Err(self.ended(ended, what)),
        }
    }

    /// The next frame, which has the visit's limit in all, however its bytes come.
    async fn next(&mut self, what: &str, longest: usize) -> Result<Frame, VisitError> {
        let began = Instant::now();
        loop {
            match frame::decode(&self.buffer, longest) {
                Ok(Some((frame, used))) => {
                    self.buffer.drain(..used);
                    return Ok(frame);
                }
                Ok(None) => self.fill(what, self.limit.saturating_sub(began.elapsed())).await?,
                Err(text) => return Err(self.unexpected(what, text)),
            }
        }
    }
}

enum Attempt {
    /// May be better next time.
    Retry(String),
    End(VisitError),
}

async fn attempt(address: &str, token: &str, limit: Duration) -> Result<Visit, Attempt> {
    let retry = |error: std::io::Error| Attempt::Retry(error.to_string());
    // Names are looked up again each time: in a cluster that is starting, a name may appear late.
    let mut last = format!("{address} has no address");
    for from in tokio::net::lookup_host(address).await.map_err(retry)? {
        let stream = match tokio::time::timeout(ATTEMPT, TcpStream::connect(from)).await {
            // A port nobody listens on can connect to itself when it lies in the ephemeral range.
            Ok(Ok(stream)) if stream.local_addr().ok() != Some(from) => stream,
            Ok(Err(error)) => {
                last = format!("{from}: {error}");
                continue;
            }
            Ok(Ok(_)) => {
                last = format!("{from}: Connection refused");
                continue;
            }
            Err(_) => {
                last = format!("{from}: no answer");
                continue;
            }
        };
        let mut visit = Visit { stream, buffer: Vec::new(), member: Member::nobody(), from, limit };
        visit.set_up().map_err(Attempt::End)?;
        let mut opening = Opening::new().map_err(retry)?;
        let greeting = frame::encode(FrameKind::Visit, 0, "visit", &hello::json(&Card::here()));
        // A server that lets a connection go before it has proved anything may be crowded.
        let lost = |error: VisitError| match error {
            VisitError::Left { .. } => Attempt::Retry(format!("{from}: it closed the connection without an answer")),
            error => Attempt::End(error),
        };
        let mut words = opening.prefix();
        loop {
            visit.write(&words, WELCOME).await.map_err(lost)?;
            words.clear();
            let frame = visit.next(WELCOME, hello::MAX_HELLO_BYTES).await.map_err(lost)?;
            match opening.step(&frame, token, &greeting, &mut words) {
                Answer::Wait => {}
                Answer::Welcome(payload) => {
                    let card: Card = visit.parse(WELCOME, &payload).map_err(Attempt::End)?;
                    visit.member = card.member.printable();
                    return Ok(visit);
                }
                Answer::Refused(refusal) => {
                    return Err(Attempt::End(VisitError::Refused { address: from.to_string(), why: refusal.why }));
                }
                Answer::Foreign(why) => return Err(Attempt::End(visit.unexpected(WELCOME, why))),
            }
        }
    }
    Err(Attempt::Retry(last))
}
