//! Encryption after the handshake: the stream of frames is split into Noise messages, each encrypted and authenticated.
//!
//! ```text
//! length of what follows (u16, little-endian)    encrypted bytes    tag (16 bytes)
//! ```
//!
//! The tag covers the number of the message, so that omitted, repeated, reordered and changed messages are detected.
//! The length is not encrypted; a wrong one invalidates the tag or makes the reader wait for more bytes. The decrypted
//! bytes form a stream, in which a frame may span several messages.

use snow::{HandshakeState, TransportState};

/// Maximum length of a Noise message.
const MAX_MESSAGE_BYTES: usize = 65_535;

const TAG_BYTES: usize = 16;

/// Maximum number of stream bytes in one message.
pub(super) const MAX_PIECE_BYTES: usize = MAX_MESSAGE_BYTES - TAG_BYTES;

/// Result of a handshake: one key for each direction.
#[derive(Debug)]
pub(super) struct Seal(TransportState);

impl Seal {
    pub fn new(handshake: HandshakeState) -> Result<Seal, snow::Error> {
        handshake.into_transport_mode().map(Seal)
    }

    /// Appends an encrypted message with the bytes of `piece`, at most [`MAX_PIECE_BYTES`].
    pub fn close(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), snow::Error> {
        let start = out.len();
        out.extend(((piece.len() + TAG_BYTES) as u16).to_le_bytes());
        out.resize(start + 2 + piece.len() + TAG_BYTES, 0);
        self.0.write_message(piece, &mut out[start + 2..]).inspect_err(|_| out.truncate(start)).map(drop)
    }

    /// Decrypts complete messages at the front of `buffer`, removes them, and appends their contents to `plain`. A
    /// message that announces more than `most` bytes is rejected before they arrive. After an error nothing more can be
    /// decrypted.
    pub fn open(&mut self, buffer: &mut Vec<u8>, plain: &mut Vec<u8>, most: usize) -> Result<(), String> {
        let mut at = 0;
        let opened = loop {
            let Some((length, rest)) = buffer[at..].split_first_chunk::<2>() else { break Ok(()) };
            let length = u16::from_le_bytes(*length) as usize;
            if length > most.saturating_add(TAG_BYTES) {
                break Err(format!("an encrypted message of {length} bytes, but at most {most} are allowed"));
            }
            let Some(message) = rest.get(..length) else { break Ok(()) };
            let start = plain.len();
            plain.resize(start + length, 0);
            let read = self.0.read_message(message, &mut plain[start..]);
            plain.truncate(start + read.as_ref().copied().unwrap_or_default());
            if read.is_err() {
                break Err("a message was changed, lost or repeated in transit".to_owned());
            }
            at += 2 + length;
        };
        buffer.drain(..at);
        opened
    }

    /// Resets the number of the next received message to 0, for tests/fuzz, which uses one handshake for all inputs.
    pub(super) fn rewind(&mut self) {
        self.0.set_receiving_nonce(0);
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::handshake::tests::seals;
    use proptest::prelude::*;

    const ALL: usize = usize::MAX;

    fn sealed(seal: &mut Seal, pieces: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        pieces.iter().for_each(|piece| seal.close(piece, &mut out).unwrap());
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn messages_survive_any_cut(pieces: Vec<Vec<u8>>, cuts: Vec<u8>) {
            let (mut ours, mut theirs) = seals();
            let bytes = sealed(&mut ours, &pieces.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let (mut buffer, mut plain, mut at) = (Vec::new(), Vec::new(), 0);
            for cut in cuts.into_iter().map(usize::from).chain([bytes.len()]) {
                let end = (at + cut).min(bytes.len());
                buffer.extend(&bytes[at..end]);
                theirs.open(&mut buffer, &mut plain, ALL).unwrap();
                at = end;
            }
            prop_assert_eq!((plain, buffer), (pieces.concat(), Vec::new()));
        }
    }

    #[test]
    fn any_changed_byte_is_found() {
        let (mut ours, mut theirs) = seals();
        let good = sealed(&mut ours, &[b"first", b"second"]);
        let second = 2 + 5 + TAG_BYTES;
        for at in 0..good.len() {
            let (mut bytes, mut plain) = (good.clone(), Vec::new());
            bytes[at] ^= 1;
            let opened = theirs.open(&mut bytes, &mut plain, ALL);
            // The changed length is longer than the available bytes, so the rest may still arrive.
            match [1, second, second + 1].contains(&at) {
                true => assert_eq!(opened, Ok(()), "byte {at}"),
                false => assert!(opened.unwrap_err().contains("changed, lost or repeated"), "byte {at}"),
            }
            assert_eq!(plain, if at < second { &b""[..] } else { b"first" }, "byte {at}");
            theirs.rewind();
        }
        let mut plain = Vec::new();
        assert_eq!(theirs.open(&mut good.clone(), &mut plain, ALL), Ok(()));
        assert_eq!(plain, b"firstsecond");
        // No message is accepted twice, or by its own sender.
        for seal in [&mut theirs, &mut ours] {
            assert!(seal.open(&mut good.clone(), &mut plain, ALL).is_err());
        }
    }

    #[test]
    fn messages_arrive_completely_and_in_order() {
        let (mut ours, mut theirs) = seals();
        let all: Vec<Vec<u8>> = [b"a", b"b"].map(|piece| sealed(&mut ours, &[piece])).to_vec();
        let mut plain = Vec::new();
        assert!(theirs.open(&mut all[1].clone(), &mut plain, ALL).is_err());
        assert_eq!(theirs.open(&mut all[0].clone(), &mut plain, ALL), Ok(()));
        assert!(theirs.open(&mut all[0].clone(), &mut plain, ALL).is_err());
        assert_eq!(theirs.open(&mut all[1].clone(), &mut plain, ALL), Ok(()));
        assert_eq!(plain, b"ab");
    }

    #[test]
    fn lengths_have_limits() {
        let (mut ours, mut theirs) = seals();
        let longest = vec![7; MAX_PIECE_BYTES];
        let (mut bytes, mut plain) = (sealed(&mut ours, &[&longest]), Vec::new());
        assert_eq!(theirs.open(&mut bytes.clone(), &mut plain, MAX_PIECE_BYTES), Ok(()));
        assert!(plain == longest);
        // The two bytes of the length suffice.
        bytes.truncate(2);
        let refused = theirs.open(&mut bytes, &mut plain, MAX_PIECE_BYTES - 1);
        assert_eq!(refused, Err("an encrypted message of 65535 bytes, but at most 65518 are allowed".to_owned()));
        // Too short for a tag.
        assert!(theirs.open(&mut vec![1, 0, 9], &mut plain, ALL).is_err());
        let mut out = vec![1];
        assert!(ours.close(&vec![0; MAX_PIECE_BYTES + 1], &mut out).is_err());
        assert_eq!(out, [1]);
    }
}
