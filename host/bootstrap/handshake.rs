//! The first bytes of a connection, the same for ranks and visitors: both sides prove that they know the job's token.
//!
//! ```text
//! connector                                                  listener
//!   magic, protocol version, 32 random bytes            -->
//!                                                       <--  Challenge: 32 random bytes of its own
//!   Proof: HMAC(token, "connector", both numbers)       -->
//!   Hello (a rank) or Session (a visitor)                 -->
//!                                                       <--  Proof: HMAC(token, "listener", both numbers)
//!                                                       <--  Welcome or Refuse
//! ```
//!
//! HMAC is HMAC-SHA-256, compared in constant time. The token itself never travels. The listener proves nothing to a side
//! that has not proved itself, and a Refuse that comes before the listener's Proof ends one attempt and not the search
//! ([`Refusal::last_word`] counts only behind it).
//!
//! What others on the network can do:
//!
//! - *Whoever connects* without the token gets random bytes and a refusal. He can take up the places of
//!   [`acceptor`](super::acceptor) for others who are no further than he is, and nothing else.
//! - *Whoever listens in* learns what is said behind the handshake: host names, addresses of rails, keys of registered
//!   memory, immediates. He cannot use a recorded handshake again, since both numbers are fresh. With a key that he saw he can
//!   write where its holder can, as long as that registration lives, if he reaches the rail. From a recorded handshake he can
//!   try tokens on his own machine: a token has to be random (128 bits: `openssl rand -hex 16`), not a word.
//! - *Whoever answers in rank 0's place* gets a proof that fits nothing but this one connection, and can try tokens with it.
//! - *Whoever sits in the middle* can pass the handshake on and then change what follows, which is neither encrypted nor
//!   signed. Where that is to be feared, the network itself has to prevent it (a VPC, WireGuard); the rails' own traffic is
//!   open there too.

use std::io;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::error::BootstrapError;
use super::frame::{self, Frame, FrameKind};
use super::identity::Member;
use ginlab_base::text::printable;

const MAGIC: [u8; 8] = *b"ginlab\r\n";

/// Raised whenever frames or their meaning change.
const PROTOCOL: u32 = 2;

/// The longest token.
pub(super) const MAX_TOKEN_BYTES: usize = 256;

/// A Hello is small; whoever announces more is no rank.
pub(super) const MAX_HELLO_BYTES: usize = 4096;

pub(super) const NONCE_BYTES: usize = 32;
const PREFIX_BYTES: usize = MAGIC.len() + 4 + NONCE_BYTES;

/// What a connector says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub rank: usize,
    pub size: usize,
    pub member: Member,
}

/// The payload of a Refuse.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Refusal {
    pub why: String,
    /// Rank 0 of the right job has spoken: trying other addresses is of no use.
    pub last_word: bool,
}

impl Refusal {
    /// From the payload of a frame; its words are fit to be shown.
    pub fn parse(payload: &[u8]) -> Result<Refusal, serde_json::Error> {
        let refusal: Refusal = serde_json::from_slice(payload)?;
        Ok(Refusal { why: printable(&refusal.why), ..refusal })
    }
}

/// A number that is used once.
pub(super) type Nonce = [u8; NONCE_BYTES];

fn nonce() -> io::Result<Nonce> {
    let mut bytes = [0; NONCE_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(format!("no random numbers: {error}")))?;
    Ok(bytes)
}

#[derive(Clone, Copy)]
pub(super) enum Side {
    Connector,
    Listener,
}

/// What the side has to know for its proof. Each side's is its own, so that nobody can hand a proof back to its maker.
fn mac(token: &str, side: Side, connector: &Nonce, listener: &Nonce) -> Hmac<Sha256> {
    // HMAC takes keys of any length.
    let mut mac = Hmac::<Sha256>::new_from_slice(token.as_bytes()).expect("a key of any length");
    mac.update(b"ginlab bootstrap 2 ");
    mac.update(match side {
        Side::Connector => b"connector",
        Side::Listener => b"listener ",
    });
    mac.update(connector);
    mac.update(listener);
    mac
}

pub(super) fn proof(token: &str, side: Side, connector: &Nonce, listener: &Nonce) -> Vec<u8> {
    frame::encode(FrameKind::Proof, 0, "start", &mac(token, side, connector, listener).finalize().into_bytes())
}

/// In constant time.
fn proves(frame: &Frame, token: &str, side: Side, connector: &Nonce, listener: &Nonce) -> bool {
    frame.kind == FrameKind::Proof && mac(token, side, connector, listener).verify_slice(&frame.payload).is_ok()
}

/// The listener's side of one connection, up to the other side's proof.
#[derive(Debug)]
pub(super) struct Gate {
    ours: Nonce,
    theirs: Option<Nonce>,
}

/// Somebody who is not let in, and why.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unwanted {
    /// It may be no ginlab at all: gets no answer.
    Stranger(String),
    /// A ginlab, but not one of this job: gets this answer.
    Other(String),
}

impl Gate {
    /// For a connection that has just been accepted.
    pub fn new() -> io::Result<Gate> {
        Ok(Gate::with(nonce()?))
    }

    pub(super) fn with(ours: Nonce) -> Gate {
        Gate { ours, theirs: None }
    }

    /// Takes what has arrived from the front of `buffer`, and appends to `answer` what is to be sent; whether the other side knows
    /// the token, for which more bytes may be needed. Not called again then: what is left in the buffer are ordinary frames.
    pub fn step(&mut self, buffer: &mut Vec<u8>, token: &str, answer: &mut Vec<u8>) -> Result<bool, Unwanted> {
        let theirs = match self.theirs {
            Some(theirs) => theirs,
            None => {
                let Some(theirs) = prefix(buffer)? else { return Ok(false) };
                buffer.drain(..PREFIX_BYTES);
                answer.extend(frame::encode(FrameKind::Challenge, 0, "start", &self.ours));
                *self.theirs.insert(theirs)
            }
        };
        match frame::decode(buffer, NONCE_BYTES) {
            Ok(None) => Ok(false),
            Ok(Some((frame, used))) if proves(&frame, token, Side::Connector, &theirs, &self.ours) => {
                buffer.drain(..used);
                answer.extend(proof(token, Side::Listener, &theirs, &self.ours));
                Ok(true)
            }
            Ok(Some((Frame { kind: FrameKind::Proof, .. }, _))) => Err(Unwanted::Other(
                "it has another job token: set GINLAB_TOKEN to the same secret on every rank of the job".into(),
            )),
            Ok(Some(_)) | Err(_) => Err(stranger()),
        }
    }
}

fn stranger() -> Unwanted {
    Unwanted::Stranger("it is not a ginlab".to_owned())
}

/// The connector's number, from the first bytes of a connection; `None` while they are incomplete.
fn prefix(buffer: &[u8]) -> Result<Option<Nonce>, Unwanted> {
    let known = buffer.len().min(MAGIC.len());
    if buffer[..known] != MAGIC[..known] {
        return Err(stranger());
    }
    let Some((version, rest)) = buffer[known..].split_first_chunk::<4>() else { return Ok(None) };
    let version = u32::from_le_bytes(*version);
    if version != PROTOCOL {
        let why =
            format!("it speaks bootstrap protocol {version}, this side {PROTOCOL}: run the same ginlab everywhere");
        return Err(Unwanted::Other(why));
    }
    Ok(rest.first_chunk().copied())
}

/// The connector's side of one connection, up to Welcome or Refuse.
#[derive(Debug)]
pub(super) struct Opening {
    ours: Nonce,
    theirs: Option<Nonce>,
    proven: bool,
}

/// Why a connection to a listener came to nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// May be better next time.
    Retry(String),
    /// A ginlab does not want us.
    Refused(Refusal),
    /// It is not what was looked for.
    Foreign(String),
    /// The wait is over.
    End(BootstrapError),
}

impl Opening {
    /// For a connection that has just been opened.
    pub fn new() -> io::Result<Opening> {
        Ok(Opening::with(nonce()?))
    }

    pub(super) fn with(ours: Nonce) -> Opening {
        Opening { ours, theirs: None, proven: false }
    }

    /// What to send first.
    pub fn prefix(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(PROTOCOL.to_le_bytes());
        out.extend(self.ours);
        out
    }

    /// Takes a frame of the listener's, and appends to `answer` what is to be sent: the proof, and the greeting behind it. The
    /// payload of its Welcome is the end; before, there is more to come.
    pub fn step(
        &mut self,
        frame: &Frame,
        token: &str,
        greeting: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let foreign = |why: String| Err(Failure::Foreign(format!("not a ginlab of this job: {why}")));
        match (frame.kind, self.theirs, self.proven) {
            (FrameKind::Challenge, None, _) => {
                let Ok(theirs) = Nonce::try_from(&*frame.payload) else {
                    return foreign(format!("a challenge of {} bytes", frame.payload.len()));
                };
                self.theirs = Some(theirs);
                answer.extend(proof(token, Side::Connector, &self.ours, &theirs));
                answer.extend(greeting);
                Ok(None)
            }
            (FrameKind::Proof, Some(theirs), false) => {
                self.proven = proves(frame, token, Side::Listener, &self.ours, &theirs);
                if self.proven { Ok(None) } else { foreign("it does not know the job's token".into()) }
            }
            (FrameKind::Welcome, _, true) => Ok(Some(frame.payload.clone())),
            (FrameKind::Refuse, _, proven) => match Refusal::parse(&frame.payload) {
                Ok(refusal) => {
                    let last_word = refusal.last_word && proven;
                    Err(Failure::Refused(Refusal { last_word, ..refusal }))
                }
                Err(error) => foreign(format!("unreadable Refuse: {}", printable(&error.to_string()))),
            },
            (other, ..) => foreign(format!("{other:?} out of turn")),
        }
    }
}

impl Hello {
    /// From the first frame behind the proof, or why it is none; its words are fit to be shown.
    pub fn of(frame: &Frame) -> Result<Hello, String> {
        match frame.kind {
            FrameKind::Hello => match serde_json::from_slice::<Hello>(&frame.payload) {
                Ok(hello) => Ok(Hello { member: hello.member.printable(), ..hello }),
                Err(error) => Err(format!("unreadable Hello: {}", printable(&error.to_string()))),
            },
            FrameKind::Session => {
                Err("it comes for a visit, and here ranks of a job meet: the address is wrong".into())
            }
            other => Err(format!("{other:?} before Hello")),
        }
    }
}

/// JSON of one of our own small types, which cannot fail; an empty payload would be refused by the reader.
pub(super) fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn frames(bytes: &[u8]) -> Vec<Frame> {
        let (mut frames, mut at) = (Vec::new(), 0);
        while let Some((frame, used)) = frame::decode(&bytes[at..], frame::MAX_BYTES).unwrap() {
            frames.push(frame);
            at += used;
        }
        assert_eq!(at, bytes.len());
        frames
    }

    /// Both sides with these tokens: what each has sent, and how the listener judges.
    fn meet(connector: &str, listener: &str) -> (Vec<u8>, Vec<u8>, Result<bool, Unwanted>, Opening) {
        let (mut gate, mut opening) = (Gate::new().unwrap(), Opening::new().unwrap());
        let (mut sent, mut answered) = (opening.prefix(), Vec::new());
        let mut buffer = sent.clone();
        assert_eq!(gate.step(&mut buffer, listener, &mut answered), Ok(false));
        let mut answer = Vec::new();
        assert_eq!(opening.step(&frames(&answered)[0], connector, b"greeting", &mut answer), Ok(None));
        sent.extend(&answer);
        buffer.extend(&answer);
        let knock = gate.step(&mut buffer, listener, &mut answered);
        if knock == Ok(true) {
            assert_eq!(buffer, b"greeting");
        }
        (sent, answered, knock, opening)
    }

    #[test]
    fn the_words_of_a_greeting_are_fit_to_be_shown() {
        let member = Member { host: "a\u{1b}[31mb".into(), pid: 7, identity: "c".into() };
        let hello = Hello { rank: 1, size: 2, member };
        let payload = serde_json::to_vec(&hello).unwrap();
        let frame = Frame { kind: FrameKind::Hello, step: 0, label: String::new(), payload };
        let read = Hello::of(&frame).unwrap();
        assert!(!read.member.host.contains('\u{1b}') && read.member.pid == 7, "{read:?}");
    }

    #[test]
    fn both_sides_prove_the_token_and_neither_sends_it() {
        let (sent, answered, knock, mut opening) = meet("a secret", "a secret");
        assert_eq!(knock, Ok(true));
        for bytes in [&sent, &answered] {
            assert!(!bytes.windows(8).any(|window| window == b"a secret"));
        }
        let welcome = frame::encode(FrameKind::Welcome, 0, "start", b"me");
        let proof = &frames(&answered)[1];
        let step = |opening: &mut Opening, frame: &Frame| opening.step(frame, "a secret", b"", &mut Vec::new());
        // Not before the proof.
        assert!(matches!(step(&mut opening, &frames(&welcome)[0]), Err(Failure::Foreign(_))));
        assert_eq!(step(&mut opening, proof), Ok(None));
        assert_eq!(step(&mut opening, &frames(&welcome)[0]), Ok(Some(b"me".to_vec())));
        assert!(
            matches!(meet("another", "a secret").2, Err(Unwanted::Other(why)) if why.contains("another job token"))
        );
    }

    #[test]
    fn nothing_that_was_recorded_is_of_use() {
        let (sent, answered, ..) = meet("t", "t");
        // The connector's whole part again, to a listener that chooses another number.
        let (mut gate, mut answer) = (Gate::new().unwrap(), Vec::new());
        assert!(matches!(gate.step(&mut sent.clone(), "t", &mut answer), Err(Unwanted::Other(_))));
        assert_eq!(frames(&answer).len(), 1, "a challenge, and no proof of the listener's");
        // The listener's whole part again.
        let mut opening = Opening::new().unwrap();
        let step = |opening: &mut Opening, frame: &Frame| opening.step(frame, "t", b"", &mut Vec::new());
        assert_eq!(step(&mut opening, &frames(&answered)[0]), Ok(None));
        assert!(matches!(step(&mut opening, &frames(&answered)[1]), Err(Failure::Foreign(_))));
        // The connector's own proof, handed back to it.
        let (mut opening, mut own) = (Opening::new().unwrap(), Vec::new());
        assert_eq!(opening.step(&frames(&answered)[0], "t", b"", &mut own), Ok(None));
        assert!(matches!(step(&mut opening, &frames(&own)[0]), Err(Failure::Foreign(_))));
    }

    #[test]
    fn a_refusal_is_the_last_word_only_of_who_has_proved_the_token() {
        let refusal = Refusal { why: "no\x1b[2J".into(), last_word: true };
        let refuse = &frames(&frame::encode(FrameKind::Refuse, 0, "start", &json(&refusal)))[0];
        let (_, answered, _, mut opening) = meet("t", "t");
        let step = |opening: &mut Opening, frame: &Frame| opening.step(frame, "t", b"", &mut Vec::new());
        let expected = |last_word| Err(Failure::Refused(Refusal { why: "no?[2J".into(), last_word }));
        assert_eq!(step(&mut opening, refuse), expected(false));
        assert_eq!(step(&mut opening, &frames(&answered)[1]), Ok(None));
        assert_eq!(step(&mut opening, refuse), expected(true));
    }

    #[test]
    fn every_cut_is_incomplete() {
        let (sent, ..) = meet("secret", "secret");
        let last = sent.len() - b"greeting".len();
        for cut in 0..last {
            let mut gate = Gate::new().unwrap();
            assert_eq!(gate.step(&mut sent[..cut].to_vec(), "secret", &mut Vec::new()), Ok(false), "{cut}");
        }
    }

    #[test]
    fn strangers_and_other_versions() {
        let knock = |bytes: &[u8]| Gate::new().unwrap().step(&mut bytes.to_vec(), "t", &mut Vec::new());
        assert_eq!(knock(b"GET / HTTP/1.1\r\n"), Err(stranger()));
        assert_eq!(knock(b"g\0"), Err(stranger()));
        let mut newer = Opening::new().unwrap().prefix();
        newer[8] = 9;
        assert!(matches!(knock(&newer), Err(Unwanted::Other(why)) if why.contains("protocol 9")));
        // Behind the prefix: another frame than a proof, one that is too long, and none at all.
        let prefix = Opening::new().unwrap().prefix();
        let hello = frame::encode(FrameKind::Hello, 0, "start", b"{}");
        let long = frame::encode(FrameKind::Proof, 0, "start", &[0; 33]);
        for garbage in [&hello[..], &long, &[0xff; 16]] {
            assert_eq!(knock(&[&prefix, garbage].concat()), Err(stranger()));
        }
        let short = frame::encode(FrameKind::Proof, 0, "start", &[0; 31]);
        assert!(matches!(knock(&[&prefix[..], &short].concat()), Err(Unwanted::Other(_))));
    }
}
