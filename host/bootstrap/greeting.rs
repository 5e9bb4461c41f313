//! Payloads that identify the two sides of a connection before a job or a session starts.

use serde::{Deserialize, Serialize};

use super::frame::{Frame, FrameKind};
use super::identity::Member;
use ginlab_base::text::printable;

/// Identity of a rank that connects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub rank: usize,
    pub size: usize,
    pub member: Member,
}

/// Payload of a [`FrameKind::Refuse`].
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Refusal {
    pub why: String,
    /// Whether rank 0 of the right job refused, so that other addresses need not be tried.
    pub last_word: bool,
}

impl Refusal {
    /// Parses the payload of a frame. Makes its text printable.
    pub fn parse(payload: &[u8]) -> Result<Refusal, serde_json::Error> {
        let refusal: Refusal = serde_json::from_slice(payload)?;
        Ok(Refusal { why: printable(&refusal.why), ..refusal })
    }
}

impl Hello {
    /// Parses the first frame after the handshake. Makes its text printable. Returns the reason if the frame is not a
    /// Hello.
    pub fn of(frame: &Frame) -> Result<Hello, String> {
        match frame.kind {
            FrameKind::Hello => match serde_json::from_slice::<Hello>(&frame.payload) {
                Ok(hello) => Ok(Hello { member: hello.member.printable(), ..hello }),
                Err(error) => Err(format!("unreadable Hello: {}", printable(&error.to_string()))),
            },
            FrameKind::Session => {
                Err("it is a client, but this is the address of the ranks of a job; check the address".into())
            }
            other => Err(format!("{other:?} before Hello")),
        }
    }
}

/// Serializes one of this crate's small types, which cannot fail. A reader would reject an empty payload.
pub(super) fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn greeting_strings_are_printable() {
        let member = Member { host: "a\u{1b}[31mb".into(), pid: 7, identity: "c".into() };
        let hello = Hello { rank: 1, size: 2, member };
        let frame = Frame { kind: FrameKind::Hello, step: 0, label: String::new(), payload: json(&hello) };
        let read = Hello::of(&frame).unwrap();
        assert!(!read.member.host.contains('\u{1b}') && read.member.pid == 7, "{read:?}");
    }
}
