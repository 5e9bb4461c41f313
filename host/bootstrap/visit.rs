//! Visits: peers that come to a running program one by one, without ranks, and leave when they like.
//!
//! A visit is one TCP connection, opened with the magic, the version and the token of a job as a rank's is, so that ranks and
//! visitors who come to the wrong door are told so. Behind that the two sides speak in words: labelled JSON. The sockets are
//! tokio's, for programs that drive a fabric in the same loop ([`crate::flow`]). Every wait is bounded, and ends on Ctrl-C.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::error::human;
use super::frame::{self, Frame, FrameKind};
use super::hello::{self, Knock, Refusal};
use super::identity::Member;
use crate::signals;

/// Waits look at the interrupt flag this often.
const SLICE: Duration = Duration::from_millis(20);

/// One attempt to connect: a lost SYN is better repeated than waited for.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Between two attempts.
const BACKOFF: Duration = Duration::from_millis(100);

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

/// Listens for visits. `address` is `HOST:PORT`; port 0 lets the system choose.
///
/// # Errors
/// When the address is none of this host, or its port is taken.
pub async fn listen(address: &str) -> Result<TcpListener, VisitError> {
    TcpListener::bind(address).await.map_err(|error| VisitError::System {
        action: format!("listen on {address}"),
        text: format!("{error}; give HOST:PORT with an address of this host and a free port, or port 0 for any"),
    })
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

    /// Welcomes a visitor, or tells it why not.
    ///
    /// # Errors
    /// One line about who was turned away and why.
    pub async fn welcome(
        stream: TcpStream,
        from: SocketAddr,
        token: &str,
        limit: Duration,
    ) -> Result<Visit, VisitError> {
        let nobody = Member { host: String::new(), pid: 0, identity: String::new() };
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let mut visit = Visit { stream, buffer: Vec::new(), member: nobody, from, limit };
        let what = "welcome";
        visit.set_up()?;
        let used = loop {
            match hello::knock(&visit.buffer, token) {
                Knock::Ours(used) => break used,
                Knock::Incomplete => visit.fill(what).await?,
                // It gets no answer.
                Knock::Stranger => return Err(visit.unexpected(what, "it is not a ginlab".to_owned())),
                Knock::Other(why) => return Err(visit.refuse(why).await),
            }
        };
        visit.buffer.drain(..used);
        let frame = visit.next(what).await?;
        if frame.kind != FrameKind::Visit {
            let why = "it is a rank of a job, and here is a server for visits: the address is wrong".to_owned();
            return Err(visit.refuse(why).await);
        }
        let card: Card = visit.parse(what, &frame.payload)?;
        let ours = Card::here();
        if card.version != ours.version {
            let why = format!(
                "it is ginlab {}, the server {}: run the same ginlab on both sides",
                card.version, ours.version
            );
            return Err(visit.refuse(why).await);
        }
        visit.member = card.member;
        visit.write(&frame::encode(FrameKind::Welcome, 0, "visit", &hello::json(&ours)), what).await?;
        Ok(visit)
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
        let frame = self.next(what).await?;
        if frame.kind == FrameKind::Refuse {
            let refusal: Refusal = self.parse(what, &frame.payload)?;
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

    fn unexpected(&self, what: &str, text: String) -> VisitError {
        VisitError::Unexpected { peer: self.to_string(), what: what.to_owned(), text }
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
    async fn fill(&mut self, what: &str) -> Result<(), VisitError> {
        let mut chunk = [0; 4096];
        // Dropped unread, a read takes nothing from the socket.
        match bounded(self.limit, self.stream.read(&mut chunk)).await {
            Ok(Ok(count @ 1..)) => {
                self.buffer.extend_from_slice(&chunk[..count]);
                Ok(())
            }
            Ok(_) => Err(self.left(what)),
            Err(ended) => Err(self.ended(ended, what)),
        }
    }

    async fn next(&mut self, what: &str) -> Result<Frame, VisitError> {
        loop {
            match frame::decode(&self.buffer, MAX_WORD_BYTES) {
                Ok(Some((frame, used))) => {
                    self.buffer.drain(..used);
                    return Ok(frame);
                }
                Ok(None) => self.fill(what).await?,
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
        let nobody = Member { host: String::new(), pid: 0, identity: String::new() };
        let mut visit = Visit { stream, buffer: Vec::new(), member: nobody, from, limit };
        visit.set_up().map_err(Attempt::End)?;
        let mut greeting = hello::prefix(token);
        greeting.extend(frame::encode(FrameKind::Visit, 0, "visit", &hello::json(&Card::here())));
        let what = "welcome";
        visit.write(&greeting, what).await.map_err(Attempt::End)?;
        let frame = visit.next(what).await.map_err(Attempt::End)?;
        return match frame.kind {
            FrameKind::Welcome => {
                let card: Card = visit.parse(what, &frame.payload).map_err(Attempt::End)?;
                visit.member = card.member;
                Ok(visit)
            }
            FrameKind::Refuse => {
                let refusal: Refusal = visit.parse(what, &frame.payload).map_err(Attempt::End)?;
                Err(Attempt::End(VisitError::Refused { address: from.to_string(), why: refusal.why }))
            }
            other => Err(Attempt::End(visit.unexpected(what, format!("{other:?} instead of Welcome")))),
        };
    }
    Err(Attempt::Retry(last))
}
