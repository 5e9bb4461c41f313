//! What tests/fuzz feeds: both sides of the handshake, with numbers that are known beforehand.

use super::frame::{self, FrameKind};
use super::handshake::{Failure, Gate, Hello, MAX_HELLO_BYTES, NONCE_BYTES, Nonce, Opening, Refusal, Side};
use super::handshake::{json, proof};
use super::identity::Member;

const OURS: Nonce = [1; NONCE_BYTES];
const THEIRS: Nonce = [2; NONCE_BYTES];
const TOKEN: &str = "a token";

/// Everything that a connector sends, first a visitor's and then a rank's.
pub fn connectors() -> Vec<Vec<u8>> {
    let opening = Opening::with(OURS);
    let hello = Hello { rank: 1, size: 2, member: Member::here() };
    let start = [opening.prefix(), proof(TOKEN, Side::Connector, &OURS, &THEIRS)].concat();
    let greeting = |kind| frame::encode(kind, 0, "start", &json(&hello));
    [FrameKind::Session, FrameKind::Hello].map(|kind| [&start[..], &greeting(kind)].concat()).to_vec()
}

/// Everything that a listener sends: one that welcomes and one that refuses.
pub fn listeners() -> Vec<Vec<u8>> {
    let challenge = frame::encode(FrameKind::Challenge, 0, "start", &THEIRS);
    let start = [challenge, proof(TOKEN, Side::Listener, &OURS, &THEIRS)].concat();
    let refusal = Refusal { why: "two processes claim rank 1".into(), last_word: true };
    let ends = [(FrameKind::Welcome, json(&Member::here())), (FrameKind::Refuse, json(&refusal))];
    ends.map(|(kind, payload)| [&start[..], &frame::encode(kind, 0, "start", &payload)].concat()).to_vec()
}

/// What the listener makes of a connector's bytes; whether it let it in.
pub fn listen(bytes: &[u8]) -> bool {
    let (mut gate, mut buffer, mut answer) = (Gate::with(THEIRS), bytes.to_vec(), Vec::new());
    let ours = gate.step(&mut buffer, TOKEN, &mut answer) == Ok(true);
    if let (true, Ok(Some((frame, _)))) = (ours, frame::decode(&buffer, MAX_HELLO_BYTES)) {
        let _ = Hello::of(&frame);
    }
    ours
}

/// What the connector makes of a listener's bytes; whether it took it for its own.
pub fn connect(mut bytes: &[u8]) -> bool {
    let mut opening = Opening::with(OURS);
    while let Ok(Some((frame, used))) = frame::decode(bytes, MAX_HELLO_BYTES) {
        bytes = &bytes[used..];
        match opening.step(&frame, TOKEN, b"", &mut Vec::new()) {
            Ok(None) => {}
            Ok(Some(payload)) => return serde_json::from_slice::<Member>(&payload).is_ok(),
            Err(Failure::Refused(refusal)) => return refusal.last_word,
            Err(_) => return false,
        }
    }
    false
}

/// Frames of a job under way, and the parts in them; whether all bytes were frames.
pub fn frames(mut bytes: &[u8]) -> bool {
    while let Ok(Some((frame, used))) = frame::decode(bytes, frame::MAX_BYTES) {
        bytes = &bytes[used..];
        let _ = frame::split_parts(&frame.payload, 3);
        let _ = serde_json::from_slice::<Vec<usize>>(&frame.payload);
    }
    bytes.is_empty()
}

/// A step of a job of three ranks.
pub fn steps() -> Vec<Vec<u8>> {
    let all = frame::join_parts(&[b"first".to_vec(), Vec::new(), vec![7; 40]]);
    let frames = [(FrameKind::Part, &b"second"[..]), (FrameKind::Missing, b"[1,2]"), (FrameKind::All, &all)];
    let encoded = frames.map(|(kind, payload)| frame::encode(kind, 3, "row 4 barrier", payload));
    vec![encoded.concat(), frame::encode(FrameKind::Abort, 1, "failed", b"rail 2 is down")]
}
