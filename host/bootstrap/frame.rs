//! Messages of the star: a fixed header, a label for people, a payload.

/// The largest payload of one frame.
pub(super) const MAX_BYTES: usize = 64 << 20;

/// The longest part of a rank, in however many frames: more than any run measures, and less than would fill a machine by mistake.
pub(super) const MAX_PART_BYTES: usize = 1 << 30;

/// kind, padding, label length (u16), payload length (u32), step (u64), all little-endian.
const HEADER_BYTES: usize = 16;

/// Labels are cut here, on both sides alike, so that they stay comparable.
const MAX_LABEL_BYTES: usize = 200;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr)]
#[repr(u8)]
pub(super) enum FrameKind {
    /// Connector to rank 0: who it is.
    Hello = 1,
    /// Rank 0 to connector: you are in.
    Welcome = 2,
    /// Rank 0 to connector: you are not, and why.
    Refuse = 3,
    /// A rank's part of an all-gather.
    Part = 4,
    /// All parts, from rank 0.
    All = 5,
    /// From rank 0 to those who wait: who is still missing. It tells a rank that rank 0 is at the same step and alive.
    Missing = 6,
    /// An error that stops the job: whose it is by the step, what kind of end by the label.
    Abort = 7,
    /// Visitor to server: who it is.
    Session = 8,
    /// What the two sides of a visit say to each other.
    Word = 9,
    /// Listener to connector: its message of the handshake, which proves that it knows the token.
    Proof = 10,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub kind: FrameKind,
    pub step: u64,
    pub label: String,
    pub payload: Vec<u8>,
}

/// The label as it travels.
pub(super) fn label(text: &str) -> &str {
    let mut end = text.len().min(MAX_LABEL_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Encodes a frame. The payload must not exceed [`MAX_BYTES`]; the callers check, with an error that names the step.
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

/// Bytes of a frame with the longest label and so long a payload.
pub(super) fn longest(payload_bytes: usize) -> usize {
    HEADER_BYTES + MAX_LABEL_BYTES + payload_bytes
}

/// Takes one frame from the front of `buffer`: the frame and its length, `None` while it is incomplete, or what is wrong.
///
/// By hand and not by tokio-util's codec: that one makes room for the length that a header announces before any of it has come
/// (tests/fuzz holds that nobody can have memory for a header), knows one length where there are two, and its `Framed` needs
/// a socket of an event loop, which ranks have not: they meet in plain calls, also from within a loop.
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
        return Err(format!("a message of {payload_bytes} bytes, at most {max_bytes} are allowed"));
    }
    let total = HEADER_BYTES + label_bytes + payload_bytes;
    let Some(body) = buffer.get(HEADER_BYTES..total) else { return Ok(None) };
    let (text, payload) = body.split_at(label_bytes);
    let frame = Frame { kind, step, label: String::from_utf8_lossy(text).into_owned(), payload: payload.to_vec() };
    Ok(Some((frame, total)))
}

/// Joins byte strings into one payload.
pub(super) fn join_parts<T: AsRef<[u8]>>(parts: &[T]) -> Vec<u8> {
    let lengths = parts.iter().map(|part| 4 + part.as_ref().len());
    let mut out = Vec::with_capacity(lengths.sum());
    for part in parts.iter().map(AsRef::as_ref) {
        out.extend((part.len() as u32).to_le_bytes());
        out.extend(part);
    }
    out
}

/// The inverse of [`join_parts`]; `None` when the bytes are not `count` parts.
pub(super) fn split_parts(mut bytes: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let mut parts = Vec::new();
    for _ in 0..count {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        parts.push(part.to_vec());
        bytes = rest;
    }
    bytes.is_empty().then_some(parts)
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

        #[test]
        fn parts_come_back(parts: Vec<Vec<u8>>) {
            prop_assert_eq!(split_parts(&join_parts(&parts), parts.len()), Some(parts));
        }
    }

    #[test]
    fn a_length_above_the_limit_is_refused_before_its_bytes_come() {
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
    fn a_long_label_is_cut_between_characters() {
        assert_eq!((label("step 3"), label("")), ("step 3", ""));
        let plain = "x".repeat(MAX_LABEL_BYTES);
        assert_eq!((label(&plain), label(&format!("{plain}y"))), (plain.as_str(), plain.as_str()));
        // The last character would end two bytes behind the limit.
        let wide = format!("{}\u{20ac}y", "x".repeat(MAX_LABEL_BYTES - 1));
        assert_eq!(label(&wide), "x".repeat(MAX_LABEL_BYTES - 1));
    }
}
