//! The first bytes of a connection, the same for ranks and visitors: a handshake of the Noise protocol, which only those finish
//! who know the job's token.
//!
//! ```text
//! connector                                                  listener
//!   magic, protocol version, Noise's first message      -->
//!                                                       <--  Proof: Noise's second message, or Refuse
//!   (from here on all is sealed)
//!   Hello (a rank) or Session (a visitor)               -->
//!                                                       <--  Welcome or Refuse
//! ```
//!
//! The pattern is `NNpsk0`: both sides choose a key for this one connection, and a key made of the token goes into all that
//! follows. The token itself never travels. Magic and version go into it too, so that nobody between can change them.
//! Frames behind the handshake are encrypted and authenticated ([`seal`](super::seal)).
//!
//! Both messages say that their sender knows the token. The first may be a recorded one; so a connector has proved itself when
//! its first sealed frame has been opened, and not before. A Refuse that comes in clear ends one attempt and not the search
//! ([`Refusal::last_word`] counts only where it is sealed).
//!
//! What others on the network can do:
//!
//! - *Whoever connects* without the token gets a refusal; with a recorded first message, an answer that he cannot read. He can
//!   take up the places of [`acceptor`](super::acceptor) for others who are no further than he is, and nothing else.
//! - *Whoever listens in* sees who talks to whom, when, and how much. What is said he cannot read, also not later, when he has
//!   learnt the token. From a recorded handshake he can try tokens on his own machine: a token has to be random (128 bits:
//!   `openssl rand -hex 16`), not a word.
//! - *Whoever answers in rank 0's place* gets a message that fits nothing but this one connection, and can try tokens with it.
//! - *Whoever sits in the middle* can cut the connection, hold bytes back, or spoil them, which is found. He can also pretend
//!   that the other side is no ginlab, or refuses: before the seal nothing is sure.
//! - *Whoever knows the token* can be any rank and any server, and read and change everything as the one in the middle.
//!
//! The rails' own traffic is not sealed, nor are bytes that a visit has given up its words for
//! ([`Session::into_stream`](super::session::Session::into_stream)).

use std::fmt::{self, Display};

use blake2::{Blake2s256, Digest};
use snow::HandshakeState;

use super::error::BootstrapError;
use super::frame::{self, Frame, FrameKind};
use super::greeting::Refusal;
use super::seal::Seal;
use ginlab_base::text::printable;

const MAGIC: [u8; 8] = *b"ginlab\r\n";

/// Raised whenever frames or their meaning change.
const PROTOCOL: u32 = 3;

/// The longest token.
pub(super) const MAX_TOKEN_BYTES: usize = 256;

/// A Hello is small; whoever announces more is no rank.
pub(super) const MAX_HELLO_BYTES: usize = 4096;

/// Each side's message of the handshake: its key of this connection, and a tag.
const NOISE_BYTES: usize = 32 + 16;

/// Magic and protocol version.
const START_BYTES: usize = MAGIC.len() + 4;

/// A token, as Noise takes it.
#[derive(Clone)]
pub(super) struct Key {
    shared: [u8; 32],
    /// This side's key of the connection. Random where there is none; tests/fuzz has some.
    own: Option<[u8; 32]>,
}

/// Secrets are not shown.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    pub fn of(token: &str) -> Key {
        let shared = Blake2s256::new().chain_update(b"ginlab job token\0").chain_update(token).finalize().into();
        Key { shared, own: None }
    }

    pub fn known(token: &str, own: [u8; 32]) -> Key {
        Key { own: Some(own), ..Key::of(token) }
    }
}

/// What a connection begins with, in clear.
fn start() -> Vec<u8> {
    [&MAGIC[..], &PROTOCOL.to_le_bytes()].concat()
}

#[derive(Clone, Copy)]
enum Side {
    Connector,
    Listener,
}

/// A side before the first message.
fn side(side: Side, key: &Key) -> Result<HandshakeState, snow::Error> {
    let start = start();
    let mut noise =
        snow::Builder::new("Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s".parse()?).prologue(&start)?.psk(0, &key.shared)?;
    if let Some(own) = &key.own {
        noise = noise.fixed_ephemeral_key_for_testing_only(own);
    }
    match side {
        Side::Connector => noise.build_initiator(),
        Side::Listener => noise.build_responder(),
    }
}

/// The next message of the handshake, which carries nothing else.
fn message(noise: &mut HandshakeState) -> Result<[u8; NOISE_BYTES], snow::Error> {
    let mut message = [0; NOISE_BYTES];
    noise.write_message(&[], &mut message).map(|_| message)
}

/// Takes the other side's message; whether it is right.
fn takes(noise: &mut HandshakeState, message: &[u8; NOISE_BYTES]) -> bool {
    noise.read_message(message, &mut [0; NOISE_BYTES]).is_ok()
}

/// Somebody who is not let in, and why.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unwanted {
    /// It may be no ginlab at all: gets no answer.
    Stranger(String),
    /// A ginlab, but not one of this job: gets this answer.
    Other(String),
}

/// The listener's side of one connection. Takes the beginning from the front of `buffer`, and appends the answer to `answer`; the
/// seal of all that follows, or `None` while more bytes are needed. The other side may still be somebody who repeats a message
/// of another: it has proved itself when the seal has opened its first frame.
pub(super) fn admit(buffer: &mut Vec<u8>, key: &Key, answer: &mut Vec<u8>) -> Result<Option<Seal>, Unwanted> {
    let Some(theirs) = first_message(buffer)? else { return Ok(None) };
    let unable = |error| Unwanted::Stranger(format!("this side cannot answer it: {error}"));
    let mut noise = side(Side::Listener, key).map_err(unable)?;
    if !takes(&mut noise, &theirs) {
        return Err(Unwanted::Other(
            "it has another job token: set GINLAB_TOKEN to the same secret on every rank of the job".into(),
        ));
    }
    buffer.drain(..START_BYTES + NOISE_BYTES);
    let ours = message(&mut noise).map_err(unable)?;
    answer.extend(frame::encode(FrameKind::Proof, 0, "start", &ours));
    Seal::new(noise).map(Some).map_err(unable)
}

/// The connector's message, from the first bytes of a connection; `None` while they are incomplete.
fn first_message(buffer: &[u8]) -> Result<Option<[u8; NOISE_BYTES]>, Unwanted> {
    let known = buffer.len().min(MAGIC.len());
    if buffer[..known] != MAGIC[..known] {
        return Err(Unwanted::Stranger("it is not a ginlab".to_owned()));
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

/// The connector's side of one connection, up to the listener's message.
#[derive(Debug)]
pub(super) struct Opening(HandshakeState);

impl Opening {
    /// For a connection that has just been opened, and what to send first.
    pub fn new(key: &Key) -> Result<(Opening, Vec<u8>), Failure> {
        let unable = |error| Failure::Retry(format!("this side cannot begin: {error}"));
        let mut noise = side(Side::Connector, key).map_err(unable)?;
        let first = message(&mut noise).map_err(unable)?;
        Ok((Opening(noise), [&start()[..], &first].concat()))
    }

    /// Takes the listener's message; the seal of all that follows.
    pub fn finish(self, theirs: &[u8; NOISE_BYTES]) -> Result<Seal, Failure> {
        let Opening(mut noise) = self;
        if !takes(&mut noise, theirs) {
            return Err(foreign("it does not know the job's token"));
        }
        Seal::new(noise).map_err(foreign)
    }
}

/// Takes the listener's message from the front of `buffer`, or its refusal; `None` while more bytes are needed.
pub(super) fn reply(buffer: &mut Vec<u8>) -> Result<Option<[u8; NOISE_BYTES]>, Failure> {
    let Some((frame, used)) = frame::decode(buffer, MAX_HELLO_BYTES).map_err(foreign)? else { return Ok(None) };
    buffer.drain(..used);
    match frame.kind {
        FrameKind::Proof => match frame.payload.as_slice().try_into() {
            Ok(message) => Ok(Some(message)),
            Err(_) => Err(foreign(format_args!("a proof of {} bytes", frame.payload.len()))),
        },
        FrameKind::Refuse => Err(refused(&frame, false)),
        other => Err(foreign(format_args!("{other:?} out of turn"))),
    }
}

/// The words of welcome, from the first sealed frame of the listener's.
pub(super) fn welcome(frame: Frame) -> Result<Vec<u8>, Failure> {
    match frame.kind {
        FrameKind::Welcome => Ok(frame.payload),
        FrameKind::Refuse => Err(refused(&frame, true)),
        other => Err(foreign(format_args!("{other:?} out of turn"))),
    }
}

/// A refusal, which is the last word only behind the proof.
fn refused(frame: &Frame, proven: bool) -> Failure {
    match Refusal::parse(&frame.payload) {
        Ok(refusal) => Failure::Refused(Refusal { last_word: refusal.last_word && proven, ..refusal }),
        Err(error) => foreign(format_args!("unreadable Refuse: {}", printable(&error.to_string()))),
    }
}

pub(super) fn foreign(why: impl Display) -> Failure {
    Failure::Foreign(format!("not a ginlab of this job: {why}"))
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::greeting::json;

    /// What each side has sent, the listener's judgement, and what the connector makes of it.
    struct Meeting {
        sent: Vec<u8>,
        answered: Vec<u8>,
        listener: Result<Option<Seal>, Unwanted>,
        connector: Result<Seal, Failure>,
    }

    /// Both sides with these tokens.
    fn meet(connector: &str, listener: &str) -> Meeting {
        let (opening, sent) = Opening::new(&Key::of(connector)).unwrap();
        let (mut buffer, mut answered) = (sent.clone(), Vec::new());
        let listener = admit(&mut buffer, &Key::of(listener), &mut answered);
        let connector = match reply(&mut answered.clone()) {
            Ok(Some(theirs)) => opening.finish(&theirs),
            Ok(None) => Err(Failure::Retry("no answer".into())),
            Err(failure) => Err(failure),
        };
        Meeting { sent, answered, listener, connector }
    }

    /// A connector's seal and its listener's.
    pub fn seals() -> (Seal, Seal) {
        let Meeting { listener, connector, .. } = meet("t", "t");
        (connector.unwrap(), listener.unwrap().unwrap())
    }

    /// What one side says in one sealed message, as the other side hears it.
    fn said(from: &mut Seal, to: &mut Seal, words: &[u8]) -> Vec<u8> {
        let (mut bytes, mut plain) = (Vec::new(), Vec::new());
        from.close(words, &mut bytes).unwrap();
        assert!(!bytes.windows(words.len()).any(|window| window == words), "in clear");
        to.open(&mut bytes, &mut plain, usize::MAX).unwrap();
        plain
    }

    fn knock(bytes: &[u8]) -> Result<bool, Unwanted> {
        admit(&mut bytes.to_vec(), &Key::of("t"), &mut Vec::new()).map(|seal| seal.is_some())
    }

    fn frame_of(kind: FrameKind, payload: &[u8]) -> Frame {
        Frame { kind, step: 0, label: String::new(), payload: payload.to_vec() }
    }

    fn is_foreign<T>(outcome: Result<T, Failure>, part: &str) -> bool {
        outcome.is_err_and(|failure| matches!(failure, Failure::Foreign(why) if why.contains(part)))
    }

    #[test]
    fn both_sides_meet_and_neither_sends_the_token() {
        let Meeting { sent, answered, listener, connector } = meet("a secret", "a secret");
        for bytes in [&sent, &answered] {
            assert!(!bytes.windows(8).any(|window| window == b"a secret"));
        }
        let (mut ours, mut theirs) = (connector.unwrap(), listener.unwrap().unwrap());
        assert_eq!(said(&mut ours, &mut theirs, b"who I am"), b"who I am");
        assert_eq!(said(&mut theirs, &mut ours, b"welcome, you"), b"welcome, you");
    }

    #[test]
    fn another_token_is_told_by_either_side() {
        let Meeting { sent, answered, listener, .. } = meet("another", "a secret");
        assert!(matches!(listener, Err(Unwanted::Other(why)) if why.contains("another job token")));
        assert!(answered.is_empty(), "who has proved nothing learns nothing");
        // One that answers whatever the token is.
        let mut answered = Vec::new();
        admit(&mut sent.clone(), &Key::of("another"), &mut answered).unwrap().unwrap();
        let (opening, _) = Opening::new(&Key::of("a secret")).unwrap();
        assert!(is_foreign(opening.finish(&reply(&mut answered).unwrap().unwrap()), "does not know the job's token"));
        assert_ne!(Key::of("a").shared, Key::of("b").shared);
        assert_ne!(Key::of("").shared, Key::of("\0").shared);
    }

    #[test]
    fn nothing_that_was_recorded_is_of_use() {
        let Meeting { sent, answered, connector, .. } = meet("t", "t");
        let mut hello = Vec::new();
        connector.unwrap().close(b"hello", &mut hello).unwrap();
        // The connector's whole part again: the seal is another one.
        let (mut buffer, mut answer) = ([sent.clone(), hello].concat(), Vec::new());
        let mut seal = admit(&mut buffer, &Key::of("t"), &mut answer).unwrap().unwrap();
        let mut plain = Vec::new();
        let why = seal.open(&mut buffer, &mut plain, usize::MAX).unwrap_err();
        assert!(why.contains("repeated on its way") && plain.is_empty(), "{why}");
        // The listener's whole part again.
        let (opening, _) = Opening::new(&Key::of("t")).unwrap();
        assert!(is_foreign(opening.finish(&reply(&mut answered.clone()).unwrap().unwrap()), "token"));
        // The connector's own message, handed back to it.
        let (opening, own) = Opening::new(&Key::of("t")).unwrap();
        assert!(is_foreign(opening.finish(own[START_BYTES..].try_into().unwrap()), "token"));
    }

    #[test]
    fn a_refusal_is_the_last_word_only_where_it_is_sealed() {
        let refusal = Refusal { why: "no\x1b[2J".into(), last_word: true };
        let expected = |last_word| Failure::Refused(Refusal { why: "no?[2J".into(), last_word });
        let mut clear = frame::encode(FrameKind::Refuse, 0, "start", &json(&refusal));
        assert_eq!(reply(&mut clear), Err(expected(false)));
        assert_eq!(welcome(frame_of(FrameKind::Refuse, &json(&refusal))), Err(expected(true)));
        assert!(is_foreign(welcome(frame_of(FrameKind::Refuse, b"{")), "unreadable Refuse"));
    }

    #[test]
    fn a_welcome_counts_only_where_it_is_sealed() {
        assert_eq!(welcome(frame_of(FrameKind::Welcome, b"me")), Ok(b"me".to_vec()));
        assert!(is_foreign(welcome(frame_of(FrameKind::Part, b"me")), "Part out of turn"));
        let replies = [(FrameKind::Welcome, 2, "Welcome out of turn"), (FrameKind::Proof, 47, "a proof of 47 bytes")];
        for (kind, bytes, why) in replies {
            assert!(is_foreign(reply(&mut frame::encode(kind, 0, "start", &vec![0; bytes])), why), "{why}");
        }
        let long = frame::encode(FrameKind::Proof, 0, "start", &[0; MAX_HELLO_BYTES + 1]);
        assert!(is_foreign(reply(&mut long[..16].to_vec()), "a message of 4097 bytes"));
    }

    #[test]
    fn every_cut_is_incomplete() {
        let Meeting { sent, answered, .. } = meet("t", "t");
        for cut in 0..sent.len() {
            assert_eq!(knock(&sent[..cut]), Ok(false), "{cut}");
        }
        assert_eq!(knock(&sent), Ok(true));
        for cut in 0..answered.len() {
            assert_eq!(reply(&mut answered[..cut].to_vec()), Ok(None), "{cut}");
        }
    }

    #[test]
    fn strangers_and_other_versions() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"g\0"] {
            assert_eq!(knock(bytes), Err(Unwanted::Stranger("it is not a ginlab".into())));
        }
        let (_, first) = Opening::new(&Key::of("t")).unwrap();
        for version in [2, 9] {
            let mut other = first.clone();
            other[8] = version;
            let said = format!("protocol {version}, this side 3");
            // Before the rest has come.
            for bytes in [&other[..START_BYTES], &other] {
                assert!(matches!(knock(bytes), Err(Unwanted::Other(why)) if why.contains(&said)));
            }
        }
        for at in START_BYTES..first.len() {
            let mut spoilt = first.clone();
            spoilt[at] ^= 1;
            assert!(matches!(knock(&spoilt), Err(Unwanted::Other(why)) if why.contains("another job token")), "{at}");
        }
    }
}
