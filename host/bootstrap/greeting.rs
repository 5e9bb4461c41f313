//! What the two sides of a connection say of themselves and to each other before a job or a visit begins.

use serde::{Deserialize, Serialize};

use super::frame::{Frame, FrameKind};
use super::identity::Member;
use ginlab_base::text::printable;

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

    #[test]
    fn the_words_of_a_greeting_are_fit_to_be_shown() {
        let member = Member { host: "a\u{1b}[31mb".into(), pid: 7, identity: "c".into() };
        let hello = Hello { rank: 1, size: 2, member };
        let frame = Frame { kind: FrameKind::Hello, step: 0, label: String::new(), payload: json(&hello) };
        let read = Hello::of(&frame).unwrap();
        assert!(!read.member.host.contains('\u{1b}') && read.member.pid == 7, "{read:?}");
    }
}
