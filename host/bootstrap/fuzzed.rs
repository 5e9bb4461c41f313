//! Inputs and entry points for tests/fuzz: both sides of the handshake with fixed keys, and the frames that follow it.

use std::cell::RefCell;

use super::frame::{self, FrameKind};
use super::greeting::{Hello, Refusal, json};
use super::handshake::{self, Failure, Key, MAX_HELLO_BYTES, Opening, admit, reply};
use super::identity::Member;
use super::parts;
use super::seal::Seal;

fn connector() -> Key {
    Key::known("a token", [1; 32])
}

fn listener() -> Key {
    Key::known("a token", [2; 32])
}

/// Runs a handshake. Returns the connector's first message, the listener's answer, the connector's seal and the
/// listener's.
fn met() -> Option<(Vec<u8>, Vec<u8>, Seal, Seal)> {
    let (opening, first) = Opening::new(&connector()).ok()?;
    let mut answer = Vec::new();
    let listener = admit(&mut first.clone(), &listener(), &mut answer).ok()??;
    let connector = opening.finish(&reply(&mut answer.clone()).ok()??).ok()?;
    Some((first, answer, connector, listener))
}

/// Returns the first frames of connectors: that of a session client and that of a rank.
pub fn greetings() -> Vec<Vec<u8>> {
    let hello = Hello { rank: 1, size: 2, member: Member::here() };
    [FrameKind::Session, FrameKind::Hello].map(|kind| frame::encode(kind, 0, "start", &json(&hello))).to_vec()
}

/// Returns the first frames of listeners: a welcome and a refusal.
pub fn answers() -> Vec<Vec<u8>> {
    let refusal = Refusal { why: "two processes claim rank 1".into(), last_word: true };
    let ends = [(FrameKind::Welcome, json(&Member::here())), (FrameKind::Refuse, json(&refusal))];
    ends.map(|(kind, payload)| frame::encode(kind, 0, "start", &payload)).to_vec()
}

/// Returns all bytes that connectors send: a session client and a rank.
pub fn connectors() -> Vec<Vec<u8>> {
    let whole = |greeting: Vec<u8>| {
        let (mut bytes, _, mut seal, _) = met()?;
        seal.close(&greeting, &mut bytes).ok().map(|()| bytes)
    };
    greetings().into_iter().filter_map(whole).collect()
}

/// Returns all bytes that listeners send: with a welcome and with a refusal.
pub fn listeners() -> Vec<Vec<u8>> {
    let whole = |answer: Vec<u8>| {
        let (_, mut bytes, _, mut seal) = met()?;
        seal.close(&answer, &mut bytes).ok().map(|()| bytes)
    };
    answers().into_iter().filter_map(whole).collect()
}

/// Processes a connector's bytes as the listener does. Returns whether the connector was accepted.
pub fn listen(bytes: &[u8]) -> bool {
    let (mut buffer, mut plain) = (bytes.to_vec(), Vec::new());
    match admit(&mut buffer, &listener(), &mut Vec::new()) {
        Ok(Some(mut seal)) => {
            seal.open(&mut buffer, &mut plain, frame::longest(MAX_HELLO_BYTES)).is_ok() && greeting(&plain)
        }
        _ => false,
    }
}

/// Processes a listener's bytes as the connector does. Returns whether the listener was accepted.
pub fn connect(bytes: &[u8]) -> bool {
    let (mut buffer, mut plain) = (bytes.to_vec(), Vec::new());
    let Ok(Some(theirs)) = reply(&mut buffer) else { return false };
    let seal = Opening::new(&connector()).and_then(|(opening, _)| opening.finish(&theirs));
    seal.is_ok_and(|mut seal| {
        seal.open(&mut buffer, &mut plain, frame::longest(MAX_HELLO_BYTES)).is_ok() && answer(&plain)
    })
}

/// Processes a connector's first frame, after decryption, as the listener does. Returns whether it is valid.
pub fn greeting(bytes: &[u8]) -> bool {
    let Ok(Some((frame, _))) = frame::decode(bytes, MAX_HELLO_BYTES) else { return false };
    // The payload of a session client is parsed by the session.
    Hello::of(&frame).is_ok() || frame.kind == FrameKind::Session
}

/// Processes a listener's first frame, after decryption, as the connector does. Returns whether it is valid.
pub fn answer(bytes: &[u8]) -> bool {
    // The same bytes, unencrypted.
    let _ = reply(&mut bytes.to_vec());
    let Ok(Some((frame, _))) = frame::decode(bytes, MAX_HELLO_BYTES) else { return false };
    match handshake::welcome(frame) {
        Ok(payload) => serde_json::from_slice::<Member>(&payload).is_ok(),
        Err(failure) => matches!(failure, Failure::Refused(Refusal { last_word: true, .. })),
    }
}

/// Decodes frames of a running job and the parts in them. Returns whether all bytes were frames.
pub fn frames(mut bytes: &[u8]) -> bool {
    while let Ok(Some((frame, used))) = frame::decode(bytes, frame::MAX_BYTES) {
        bytes = &bytes[used..];
        let _ = parts::split(&frame.payload, 3);
        let _ = serde_json::from_slice::<Vec<usize>>(&frame.payload);
    }
    bytes.is_empty()
}

/// Returns the frames of one step of a job of three ranks, and an abort.
pub fn steps() -> Vec<Vec<u8>> {
    let all = parts::join(&[b"first".to_vec(), Vec::new(), Vec::new()]);
    let frames = [(FrameKind::Part, &b"second"[..]), (FrameKind::Missing, b"[1,2]"), (FrameKind::All, &all)];
    let encoded = frames.map(|(kind, payload)| frame::encode(kind, 3, "row 4 barrier", payload));
    vec![encoded.concat(), frame::encode(FrameKind::Abort, 1, "failed", b"rail 2 is down")]
}

/// Returns the same frames, encrypted as on the wire.
pub fn sealed_steps() -> Vec<Vec<u8>> {
    let whole = |step: Vec<u8>| {
        let ((_, _, mut seal, _), mut bytes) = (met()?, Vec::new());
        // Frames may be split anywhere.
        let mut pieces = step.chunks(30);
        pieces.all(|piece| seal.close(piece, &mut bytes).is_ok()).then_some(bytes)
    };
    steps().into_iter().filter_map(whole).collect()
}

/// Decrypts sealed frames as a listener does and decodes them. Returns whether all bytes were frames.
pub fn sealed(bytes: &[u8]) -> bool {
    thread_local! {
        static SEAL: RefCell<Option<Seal>> = RefCell::new(met().map(|(_, _, _, listener)| listener));
    }
    let (mut buffer, mut plain) = (bytes.to_vec(), Vec::new());
    let opened = SEAL.with_borrow_mut(|seal| {
        let Some(seal) = seal else { return false };
        seal.rewind();
        seal.open(&mut buffer, &mut plain, frame::MAX_BYTES).is_ok()
    });
    frames(&plain) && opened && buffer.is_empty()
}
