//! Start of a connection, the same for ranks and session clients: a Noise handshake that only peers with the job's
//! token complete.
//!
//! ```text
//! connector                                                  listener
//!   magic, protocol version, Noise's first message      -->
//!                                                       <--  Proof: Noise's second message, or Refuse
//!   (from here on all is encrypted)
//!   Hello (a rank) or Session (a session client)        -->
//!                                                       <--  Welcome or Refuse
//! ```
//!
//! The pattern is `NNpsk0`: both sides choose an ephemeral key, and a pre-shared key derived from the token is mixed
//! into all subsequent messages. The token itself is never sent. Magic and version are mixed in as well, so that an
//! attacker in the middle cannot change them undetected. Frames after the handshake are encrypted and authenticated
//! ([`seal`](super::seal)).
//!
//! Both messages show that their sender knows the token, but the first may be a replayed recording. Therefore the
//! connector is authenticated only when its first encrypted frame has been decrypted. An unencrypted Refuse ends one
//! attempt, but not the search ([`Refusal::last_word`] counts only in an encrypted frame).
//!
//! Abilities of an attacker on the network:
//!
//! - *Without the token* a connector gets a refusal; with a recorded first message it gets an answer that it cannot
//!   read. It can occupy slots of [`acceptor`](super::acceptor) that other unauthenticated peers need, and nothing
//!   else.
//! - *An eavesdropper* sees which hosts communicate, when, and how much. It cannot decrypt the contents, not even if it
//!   learns the token later. It can test guesses of the token offline against a recorded handshake, so the token must
//!   be random (128 bits: `openssl rand -hex 16`), not a word.
//! - *An impostor of rank 0* gets a message that is valid only for this one connection, and can test guesses of the
//!   token against it.
//! - *A man in the middle* can cut the connection, delay bytes, or change them, which is detected. It can also pretend
//!   that the other side is not ginlab, or that it refuses: nothing is authenticated before the seal.
//! - *With the token* an attacker can act as any rank and any server, and as a man in the middle can read and change
//!   everything.
//!
//! The traffic of the rails is not encrypted. Neither are the bytes of a stream into which a session was converted
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

/// Version of the protocol. Must be raised whenever frames or their meaning change.
const PROTOCOL: u32 = 4;

/// Maximum length of a token.
pub(super) const MAX_TOKEN_BYTES: usize = 256;

/// Maximum payload of a frame during the handshake. A Hello is small, and a peer that announces more bytes is not a
/// rank.
pub(super) const MAX_HELLO_BYTES: usize = 4096;

/// Length of each side's message of the handshake: its ephemeral key and a tag.
const NOISE_BYTES: usize = 32 + 16;

const START_BYTES: usize = MAGIC.len() + 4;

/// A token in the form that Noise requires.
#[derive(Clone)]
pub(super) struct Key {
    shared: [u8; 32],
    /// This side's ephemeral key: `None` for a random one, `Some` for tests/fuzz.
    own: Option<[u8; 32]>,
}

/// Omits the secrets.
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

/// Returns the unencrypted start of a connection: magic and protocol version.
fn start() -> Vec<u8> {
    [&MAGIC[..], &PROTOCOL.to_le_bytes()].concat()
}

#[derive(Clone, Copy)]
enum Side {
    Connector,
    Listener,
}

/// Creates the handshake state of `side`, before the first message.
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

/// Returns the next message of the handshake, which has no payload.
fn message(noise: &mut HandshakeState) -> Result<[u8; NOISE_BYTES], snow::Error> {
    let mut message = [0; NOISE_BYTES];
    noise.write_message(&[], &mut message).map(|_| message)
}

/// Reads the other side's message of the handshake. Returns whether the message is valid.
fn takes(noise: &mut HandshakeState, message: &[u8; NOISE_BYTES]) -> bool {
    noise.read_message(message, &mut [0; NOISE_BYTES]).is_ok()
}

/// Reasons why a peer is not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unwanted {
    /// The peer may not be ginlab: it gets no answer.
    Stranger(String),
    /// The peer is a ginlab of another job: it gets the reason as an answer.
    Other(String),
}

/// Runs the listener's side of one connection: takes the connector's message from the front of `buffer` and appends the
/// answer to `answer`. Returns the seal of all subsequent bytes, or `None` while more bytes are needed. The peer may
/// still be replaying a recorded message: it is authenticated once the seal has decrypted its first frame.
pub(super) fn admit(buffer: &mut Vec<u8>, key: &Key, answer: &mut Vec<u8>) -> Result<Option<Seal>, Unwanted> {
    let Some(theirs) = first_message(buffer)? else { return Ok(None) };
    let unable = |error| Unwanted::Stranger(format!("this side cannot answer: {error}"));
    let mut noise = side(Side::Listener, key).map_err(unable)?;
    if !takes(&mut noise, &theirs) {
        return Err(Unwanted::Other(
            "it has a different job token; set GINLAB_TOKEN to the same secret on every rank of the job".into(),
        ));
    }
    buffer.drain(..START_BYTES + NOISE_BYTES);
    let ours = message(&mut noise).map_err(unable)?;
    answer.extend(frame::encode(FrameKind::Proof, 0, "start", &ours));
    Seal::new(noise).map(Some).map_err(unable)
}

/// Returns the connector's message from the first bytes of a connection; `None` while they are incomplete.
fn first_message(buffer: &[u8]) -> Result<Option<[u8; NOISE_BYTES]>, Unwanted> {
    let known = buffer.len().min(MAGIC.len());
    if buffer[..known] != MAGIC[..known] {
        return Err(Unwanted::Stranger("it is not a ginlab process".to_owned()));
    }
    let Some((version, rest)) = buffer[known..].split_first_chunk::<4>() else { return Ok(None) };
    let version = u32::from_le_bytes(*version);
    if version != PROTOCOL {
        let why = format!(
            "it uses bootstrap protocol {version}, but this side uses {PROTOCOL}; run the same ginlab everywhere"
        );
        return Err(Unwanted::Other(why));
    }
    Ok(rest.first_chunk().copied())
}

/// Failures to connect to a listener.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// An attempt that might succeed if retried.
    Retry(String),
    /// The other ginlab refused this side.
    Refused(Refusal),
    /// The peer is not the expected one.
    Foreign(String),
    /// The attempt was interrupted.
    End(BootstrapError),
}

/// The connector's side of one connection, until the listener's message has arrived.
#[derive(Debug)]
pub(super) struct Opening(HandshakeState);

impl Opening {
    /// Creates the state of a connection that has just been opened. Also returns the bytes to send first.
    pub fn new(key: &Key) -> Result<(Opening, Vec<u8>), Failure> {
        let unable = |error| Failure::Retry(format!("this side cannot start: {error}"));
        let mut noise = side(Side::Connector, key).map_err(unable)?;
        let first = message(&mut noise).map_err(unable)?;
        Ok((Opening(noise), [&start()[..], &first].concat()))
    }

    /// Reads the listener's message. Returns the seal of all subsequent bytes.
    pub fn finish(self, theirs: &[u8; NOISE_BYTES]) -> Result<Seal, Failure> {
        let Opening(mut noise) = self;
        if !takes(&mut noise, theirs) {
            return Err(foreign("it does not have the job's token"));
        }
        Seal::new(noise).map_err(foreign)
    }
}

/// Takes the listener's message, or its refusal, from the front of `buffer`; `None` while more bytes are needed.
pub(super) fn reply(buffer: &mut Vec<u8>) -> Result<Option<[u8; NOISE_BYTES]>, Failure> {
    let Some((frame, used)) = frame::decode(buffer, MAX_HELLO_BYTES).map_err(foreign)? else { return Ok(None) };
    buffer.drain(..used);
    match frame.kind {
        FrameKind::Proof => match frame.payload.as_slice().try_into() {
            Ok(message) => Ok(Some(message)),
            Err(_) => Err(foreign(format_args!("a proof of {} bytes", frame.payload.len()))),
        },
        FrameKind::Refuse => Err(refused(&frame, false)),
        other => Err(foreign(format_args!("unexpected {other:?}"))),
    }
}

/// Returns the payload of the welcome, from the first encrypted frame of the listener.
pub(super) fn welcome(frame: Frame) -> Result<Vec<u8>, Failure> {
    match frame.kind {
        FrameKind::Welcome => Ok(frame.payload),
        FrameKind::Refuse => Err(refused(&frame, true)),
        other => Err(foreign(format_args!("unexpected {other:?}"))),
    }
}

/// Parses a refusal. It can be final only if the listener has proved that it knows the token.
fn refused(frame: &Frame, proven: bool) -> Failure {
    match Refusal::parse(&frame.payload) {
        Ok(refusal) => Failure::Refused(Refusal { last_word: refusal.last_word && proven, ..refusal }),
        Err(error) => foreign(format_args!("unreadable Refuse: {}", printable(&error.to_string()))),
    }
}

pub(super) fn foreign(why: impl Display) -> Failure {
    Failure::Foreign(format!("not a ginlab process of this job: {why}"))
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::greeting::json;

    /// Bytes sent by each side, and the results of the listener and of the connector.
    struct HandshakeResult {
        sent: Vec<u8>,
        answered: Vec<u8>,
        listener: Result<Option<Seal>, Unwanted>,
        connector: Result<Seal, Failure>,
    }

    /// Runs a handshake of two sides with these tokens.
    fn meet(connector: &str, listener: &str) -> HandshakeResult {
        let (opening, sent) = Opening::new(&Key::of(connector)).unwrap();
        let (mut buffer, mut answered) = (sent.clone(), Vec::new());
        let listener = admit(&mut buffer, &Key::of(listener), &mut answered);
        let connector = match reply(&mut answered.clone()) {
            Ok(Some(theirs)) => opening.finish(&theirs),
            Ok(None) => Err(Failure::Retry("no answer".into())),
            Err(failure) => Err(failure),
        };
        HandshakeResult { sent, answered, listener, connector }
    }

    /// Returns a connector's seal and its listener's.
    pub fn seals() -> (Seal, Seal) {
        let HandshakeResult { listener, connector, .. } = meet("t", "t");
        (connector.unwrap(), listener.unwrap().unwrap())
    }

    /// Encrypts `words` as one message. Returns the message as decrypted by the other side.
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
    fn handshake_succeeds_without_sending_token() {
        let HandshakeResult { sent, answered, listener, connector } = meet("a secret", "a secret");
        for bytes in [&sent, &answered] {
            assert!(!bytes.windows(8).any(|window| window == b"a secret"));
        }
        let (mut ours, mut theirs) = (connector.unwrap(), listener.unwrap().unwrap());
        assert_eq!(said(&mut ours, &mut theirs, b"who I am"), b"who I am");
        assert_eq!(said(&mut theirs, &mut ours, b"welcome, you"), b"welcome, you");
    }

    #[test]
    fn token_mismatch_is_reported_by_both_sides() {
        let HandshakeResult { sent, answered, listener, .. } = meet("another", "a secret");
        assert!(matches!(listener, Err(Unwanted::Other(why)) if why.contains("a different job token")));
        assert!(answered.is_empty(), "who has proved nothing learns nothing");
        // Emulates a listener that answers any token.
        let mut answered = Vec::new();
        admit(&mut sent.clone(), &Key::of("another"), &mut answered).unwrap().unwrap();
        let (opening, _) = Opening::new(&Key::of("a secret")).unwrap();
        assert!(is_foreign(opening.finish(&reply(&mut answered).unwrap().unwrap()), "does not have the job's token"));
        assert_ne!(Key::of("a").shared, Key::of("b").shared);
        assert_ne!(Key::of("").shared, Key::of("\0").shared);
    }

    #[test]
    fn replayed_handshake_is_rejected() {
        let HandshakeResult { sent, answered, connector, .. } = meet("t", "t");
        let mut hello = Vec::new();
        connector.unwrap().close(b"hello", &mut hello).unwrap();
        // Replays all bytes of the connector: the new connection has another seal.
        let (mut buffer, mut answer) = ([sent.clone(), hello].concat(), Vec::new());
        let mut seal = admit(&mut buffer, &Key::of("t"), &mut answer).unwrap().unwrap();
        let mut plain = Vec::new();
        let why = seal.open(&mut buffer, &mut plain, usize::MAX).unwrap_err();
        assert!(why.contains("repeated in transit") && plain.is_empty(), "{why}");
        // Replays all bytes of the listener.
        let (opening, _) = Opening::new(&Key::of("t")).unwrap();
        assert!(is_foreign(opening.finish(&reply(&mut answered.clone()).unwrap().unwrap()), "token"));
        // Reflects the connector's own message.
        let (opening, own) = Opening::new(&Key::of("t")).unwrap();
        assert!(is_foreign(opening.finish(own[START_BYTES..].try_into().unwrap()), "token"));
    }

    #[test]
    fn refusal_is_final_only_if_encrypted() {
        let refusal = Refusal { why: "no\x1b[2J".into(), last_word: true };
        let expected = |last_word| Failure::Refused(Refusal { why: "no?[2J".into(), last_word });
        let mut clear = frame::encode(FrameKind::Refuse, 0, "start", &json(&refusal));
        assert_eq!(reply(&mut clear), Err(expected(false)));
        assert_eq!(welcome(frame_of(FrameKind::Refuse, &json(&refusal))), Err(expected(true)));
        assert!(is_foreign(welcome(frame_of(FrameKind::Refuse, b"{")), "unreadable Refuse"));
    }

    #[test]
    fn welcome_is_accepted_only_if_encrypted() {
        assert_eq!(welcome(frame_of(FrameKind::Welcome, b"me")), Ok(b"me".to_vec()));
        assert!(is_foreign(welcome(frame_of(FrameKind::Part, b"me")), "unexpected Part"));
        let replies = [(FrameKind::Welcome, 2, "unexpected Welcome"), (FrameKind::Proof, 47, "a proof of 47 bytes")];
        for (kind, bytes, why) in replies {
            assert!(is_foreign(reply(&mut frame::encode(kind, 0, "start", &vec![0; bytes])), why), "{why}");
        }
        let long = frame::encode(FrameKind::Proof, 0, "start", &[0; MAX_HELLO_BYTES + 1]);
        assert!(is_foreign(reply(&mut long[..16].to_vec()), "a message of 4097 bytes"));
    }

    #[test]
    fn every_cut_is_incomplete() {
        let HandshakeResult { sent, answered, .. } = meet("t", "t");
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
            assert_eq!(knock(bytes), Err(Unwanted::Stranger("it is not a ginlab process".into())));
        }
        let (_, first) = Opening::new(&Key::of("t")).unwrap();
        for version in [2, 9] {
            let mut other = first.clone();
            other[8] = version;
            let said = format!("protocol {version}, but this side uses {PROTOCOL}");
            // The version is checked even before the remaining bytes have arrived.
            for bytes in [&other[..START_BYTES], &other] {
                assert!(matches!(knock(bytes), Err(Unwanted::Other(why)) if why.contains(&said)));
            }
        }
        for at in START_BYTES..first.len() {
            let mut spoilt = first.clone();
            spoilt[at] ^= 1;
            assert!(
                matches!(knock(&spoilt), Err(Unwanted::Other(why)) if why.contains("a different job token")),
                "{at}"
            );
        }
    }
}
