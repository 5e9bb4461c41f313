//! Messages of the star: a fixed header, a human-readable label and a payload.

/// Maximum payload of one frame, in bytes.
pub(super) const MAX_BYTES: usize = 64 << 20;

/// Maximum length of a rank's part, in any number of frames. The limit exceeds the data of any run, and prevents a
/// mistake from exhausting a machine's memory.
pub(super) const MAX_PART_BYTES: usize = 1 << 30;

/// Kind, padding, label length (u16), payload length (u32), step (u64), all little-endian.
const HEADER_BYTES: usize = 16;

/// Maximum length of a label. Both sides truncate labels to this length, so that labels stay comparable.
const MAX_LABEL_BYTES: usize = 200;

/// Purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
#[repr(u8)]
pub(super) enum FrameKind {
    /// Connector to rank 0: its identity.
    Hello = 1,
    /// Rank 0 to connector: accepted.
    Welcome = 2,
    /// Rank 0 to connector: refused, with the reason.
    Refuse = 3,
    /// A rank's part of an all-gather.
    Part = 4,
    /// All parts, from rank 0.
    All = 5,
    /// Ranks that are still missing, from rank 0 to the waiting ranks. The message also shows that rank 0 is alive and
    /// at the same step.
    Missing = 6,
    /// Error that stops the job. The step field contains the rank at which it occurred, the label its
    /// [`FailureKind`](super::error::FailureKind).
    Abort = 7,
    /// Session client to server: its identity.
    Session = 8,
    /// A message between the two sides of a session.
    Word = 9,
    /// Listener to connector: its message of the handshake, which proves that it knows the token.
    Proof = 10,
    /// Ranks that have made progress: this rank if sent to rank 0, all such ranks if sent by rank 0. Sent at most once
    /// a second.
    Progress = 11,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub kind: FrameKind,
    pub step: u64,
    pub label: String,
    pub payload: Vec<u8>,
}

/// Returns `text`, truncated to the maximum length of a label.
pub(super) fn label(text: &str) -> &str {
    let mut end = text.len().min(MAX_LABEL_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Encodes a frame. The payload must not exceed [`MAX_BYTES`]. Callers check this, and return an error that names the
/// step.
pub(super) fn encode(kind: FrameKind, step: u64, what: &str, payload: &[u8]) -> Vec<u8> {
    let what = label(what);
    let mut out = Vec::with_capacity(HEADER_BYTES + what.len() + payload.len());
    out.push(kind as u8);
    out.push(0);
    out.extend((what.len() as u16).to_le_bytes());
    out.extend((payload.len() as u32).to_le_bytes());
    out.extend(step.to_le_bytes());
    out.extend(what.as_bytes());
    out.extend(payload);
    out
}

/// Returns the length of a frame with a label of maximum length and a payload of `payload_bytes`.
pub(super) fn longest(payload_bytes: usize) -> usize {
    HEADER_BYTES + MAX_LABEL_BYTES + payload_bytes
}

/// Decodes one frame at the front of `buffer`. Returns the frame and its length, `None` while it is incomplete, or the
/// reason why it is invalid.
///
/// This function does not use tokio-util's codec, for three reasons. That codec reserves memory for the length in a
/// header before any of these bytes have arrived; tests/fuzz checks that a header without a payload cannot allocate
/// memory. It supports one length field per header, not two. Its `Framed` needs a socket of an event loop, but ranks
/// use plain blocking calls, also from within an event loop.
pub(super) fn decode(buffer: &[u8], max_bytes: usize) -> Result<Option<(Frame, usize)>, String> {
    let Some(header) = buffer.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let Some(kind) = FrameKind::from_repr(header[0]) else {
        return Err(format!("unknown message kind {}", header[0]));
    };
    let label_bytes = u16::from_le_bytes([header[2], header[3]]) as usize;
    let payload_bytes = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
    let [.., a, b, c, d, e, f, g, h] = *header;
    let step = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    if label_bytes > MAX_LABEL_BYTES || payload_bytes > max_bytes {
        return Err(format!("a message of {payload_bytes} bytes, but at most {max_bytes} are allowed"));
    }
    let total = HEADER_BYTES + label_bytes + payload_bytes;
    let Some(body) = buffer.get(HEADER_BYTES..total) else { return Ok(None) };
    let (text, payload) = body.split_at(label_bytes);
    let frame = Frame { kind, step, label: String::from_utf8_lossy(text).into_owned(), payload: payload.to_vec() };
    Ok(Some((frame, total)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_survive_any_cut(step: u64, what in ".{0,80}", payload: Vec<u8>, cut in 0usize..400) {
            let bytes = encode(FrameKind::Part, step, &what, &payload);
            prop_assert_eq!(decode(&bytes[..cut.min(bytes.len() - 1)], MAX_BYTES), Ok(None));
            let (frame, used) = decode(&bytes, MAX_BYTES).unwrap().unwrap();
            prop_assert_eq!(used, bytes.len());
            prop_assert_eq!(frame.label, label(&what));
            prop_assert_eq!((frame.kind, frame.step, frame.payload), (FrameKind::Part, step, payload));
        }
    }

    #[test]
    fn oversized_frame_is_rejected_by_its_length() {
        let mut bytes = encode(FrameKind::Part, 0, "x", b"");
        for (length, good) in [(MAX_BYTES as u32, true), (MAX_BYTES as u32 + 1, false), (u32::MAX, false)] {
            bytes[4..8].copy_from_slice(&length.to_le_bytes());
            assert_eq!(decode(&bytes, MAX_BYTES).is_ok(), good, "{length}");
        }
        assert_eq!((MAX_BYTES, MAX_PART_BYTES), (67_108_864, 1_073_741_824));
        let mut bytes = encode(FrameKind::Part, 0, "x", b"");
        for (length, good) in [(MAX_LABEL_BYTES as u16, true), (MAX_LABEL_BYTES as u16 + 1, false)] {
            bytes[2..4].copy_from_slice(&length.to_le_bytes());
            assert_eq!(decode(&bytes, MAX_BYTES).is_ok(), good, "{length}");
        }
    }

    #[test]
    fn long_label_is_truncated_between_characters() {
        assert_eq!((label("step 3"), label("")), ("step 3", ""));
        let plain = "x".repeat(MAX_LABEL_BYTES);
        assert_eq!((label(&plain), label(&format!("{plain}y"))), (plain.as_str(), plain.as_str()));
        // The last character would end two bytes after the limit.
        let wide = format!("{}\u{20ac}y", "x".repeat(MAX_LABEL_BYTES - 1));
        assert_eq!(label(&wide), "x".repeat(MAX_LABEL_BYTES - 1));
    }
}
