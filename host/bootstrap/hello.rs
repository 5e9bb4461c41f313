//! The first bytes of a connection, the same for both sides.
//!
//! A connector sends the magic, the protocol version and the job's token; rank 0 refuses a wrong one before it reads
//! anything else. Then follow ordinary frames: Hello, answered by Welcome or Refuse. The token keeps jobs apart and
//! strangers out of an otherwise trusted network; it travels in the clear.

use serde::{Deserialize, Serialize};

use super::frame::{self, Frame};
use super::identity::Member;

const MAGIC: [u8; 8] = *b"ginlab\r\n";

/// Raised whenever frames or their meaning change.
const PROTOCOL: u32 = 2;

/// The longest token.
pub(super) const MAX_TOKEN_BYTES: usize = 256;

/// A Hello is small; whoever announces more is no rank.
const MAX_HELLO_BYTES: usize = 4096;

/// What a connector says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub rank: usize,
    pub size: usize,
    pub member: Member,
}

/// The payload of a Refuse.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Refusal {
    pub why: String,
    /// Rank 0 of the right job has spoken: trying other addresses is of no use.
    pub last_word: bool,
}

/// Magic, version, token.
pub(super) fn prefix(token: &str) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(PROTOCOL.to_le_bytes());
    out.extend((token.len() as u16).to_le_bytes());
    out.extend(token.as_bytes());
    out
}

/// What the first bytes of a connection tell.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Knock {
    /// More bytes are needed.
    Incomplete,
    /// Not a rank at all: gets no answer.
    Stranger,
    /// A ginlab, but not one of this job: gets this answer.
    Other(String),
    /// The token fits; it took this many bytes.
    Ours(usize),
}

/// Judges the first bytes of a connection.
pub(super) fn knock(buffer: &[u8], token: &str) -> Knock {
    let known = buffer.len().min(MAGIC.len());
    if buffer[..known] != MAGIC[..known] {
        return Knock::Stranger;
    }
    let Some((version, rest)) = buffer[known..].split_first_chunk::<4>() else { return Knock::Incomplete };
    let version = u32::from_le_bytes(*version);
    if version != PROTOCOL {
        let why =
            format!("it speaks bootstrap protocol {version}, this side {PROTOCOL}: run the same ginlab everywhere");
        return Knock::Other(why);
    }
    let Some((length, rest)) = rest.split_first_chunk::<2>() else { return Knock::Incomplete };
    let length = u16::from_le_bytes(*length) as usize;
    if length > MAX_TOKEN_BYTES {
        return Knock::Stranger;
    }
    match rest.get(..length) {
        None => Knock::Incomplete,
        Some(theirs) if theirs == token.as_bytes() => Knock::Ours(MAGIC.len() + 4 + 2 + length),
        Some(_) => Knock::Other(
            "it has another job token: set GINLAB_TOKEN to the same secret on every rank of the job".into(),
        ),
    }
}

/// Reads the Hello that follows the prefix: it and its length, `None` while incomplete.
pub(super) fn read_hello(buffer: &[u8]) -> Result<Option<(Hello, usize)>, String> {
    let Some((frame, used)) = frame::decode(buffer, MAX_HELLO_BYTES)? else { return Ok(None) };
    match frame {
        Frame { kind: frame::FrameKind::Hello, payload, .. } => match serde_json::from_slice(&payload) {
            Ok(hello) => Ok(Some((hello, used))),
            Err(error) => Err(format!("unreadable Hello: {error}")),
        },
        Frame { kind: frame::FrameKind::Visit, .. } => {
            Err("it comes for a visit, and here ranks of a job meet: the address is wrong".into())
        }
        other => Err(format!("{:?} before Hello", other.kind)),
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
    fn every_cut_of_the_prefix_is_incomplete() {
        let bytes = prefix("secret");
        for cut in 0..bytes.len() {
            assert_eq!(knock(&bytes[..cut], "secret"), Knock::Incomplete, "{cut}");
        }
        assert_eq!(knock(&bytes, "secret"), Knock::Ours(bytes.len()));
        assert!(matches!(knock(&bytes, "Secret"), Knock::Other(_)));
    }

    #[test]
    fn strangers_and_other_versions() {
        assert_eq!(knock(b"GET / HTTP/1.1\r\n", "t"), Knock::Stranger);
        assert_eq!(knock(b"g\0", "t"), Knock::Stranger);
        let mut newer = prefix("t");
        newer[8] = 9;
        assert!(matches!(knock(&newer, "t"), Knock::Other(why) if why.contains("protocol 9")));
        let mut long = prefix("t");
        long[12..14].copy_from_slice(&u16::MAX.to_le_bytes());
        assert_eq!(knock(&long, "t"), Knock::Stranger);
    }
}
