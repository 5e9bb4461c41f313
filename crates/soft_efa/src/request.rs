//! A posted request.

use crate::abi::ibv_sge;
use crate::address::Gid;
use efa_queue::{DecodedRequest, EfaOperation};
use std::ffi::c_int;

/// Maximum number of pieces of a send.
pub const SEND_PIECES: usize = 2;
/// Maximum bytes of inline data of a 128-byte request. A 64-byte request carries up to [`SHORT_INLINE`].
pub const INLINE: usize = 80;

/// Maximum bytes of inline data of a 64-byte request.
pub const SHORT_INLINE: usize = 32;

/// Operation of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestKind {
    /// Sends into a receive of the peer.
    #[default]
    Send,
    /// Writes to the peer's registered memory.
    Write,
    /// Reads the peer's registered memory.
    Read,
}

impl From<EfaOperation> for RequestKind {
    fn from(operation: EfaOperation) -> RequestKind {
        match operation {
            EfaOperation::Send => RequestKind::Send,
            EfaOperation::Write => RequestKind::Write,
            EfaOperation::Read => RequestKind::Read,
        }
    }
}

/// Fields of a written request that its completion repeats, also if the request is invalid or flushed.
#[derive(Clone, Copy, Debug)]
pub struct RequestIdentity {
    /// C's ID of the request.
    pub wr_id: u64,
    /// Operation of the request; a send if the request has no valid operation.
    pub kind: RequestKind,
}

impl RequestIdentity {
    /// Returns the identity of the request with these words, at least four.
    pub fn of(words: &[u64]) -> RequestIdentity {
        RequestIdentity {
            wr_id: words[0] & 0xffff | words[3] & !0xffff,
            kind: DecodedRequest::operation_of(words).map(RequestKind::from).unwrap_or_default(),
        }
    }
}

/// A posted request.
#[derive(Clone, Debug, Default)]
pub struct PostedRequest {
    /// C's ID of the request.
    pub wr_id: u64,
    /// Operation of the request.
    pub kind: RequestKind,
    /// Address of the destination device.
    pub gid: Gid,
    /// Number of the destination queue pair.
    pub number: u32,
    /// Queue key of the destination.
    pub qkey: u32,
    /// Protection domain of the address handle.
    pub domain: u32,
    /// Address of the peer's memory.
    pub address: u64,
    /// Remote key of the peer's memory.
    pub key: u32,
    /// Immediate data, if any.
    pub immediate: Option<u32>,
    /// Address and length of each local piece.
    pub pieces: [(u64, u64); SEND_PIECES],
    /// Local keys of the pieces.
    pub keys: [u32; SEND_PIECES],
    /// Inline data and its length, if any.
    pub inline: Option<Box<([u8; INLINE], usize)>>,
    /// Whether the request does not ask for a completion.
    pub is_silent: bool,
}

impl PostedRequest {
    /// Takes over the pieces, or, with `inline`, copies up to `inline` bytes of data. Returns C's error code.
    ///
    /// # Safety
    /// `list` must be valid for `count` pieces, whose bytes must be readable with `inline`.
    pub unsafe fn take(&mut self, list: *const ibv_sge, count: usize, inline: Option<usize>) -> c_int {
        let mut bytes = ([0; INLINE], 0);
        for index in 0..count {
            // SAFETY: the caller guarantees that the list has `count` pieces.
            let piece = unsafe { *list.add(index) };
            if inline.is_none() {
                self.pieces[index] = (piece.addr, u64::from(piece.length));
                self.keys[index] = piece.lkey;
                continue;
            }
            let end = bytes.1 + piece.length as usize;
            let room = bytes.0.get_mut(bytes.1..end).filter(|_| inline.is_some_and(|most| end <= most));
            let Some(room) = room else { return libc::EINVAL };
            // The address of an empty piece may be null.
            if room.is_empty() {
                continue;
            }
            // SAFETY: the caller guarantees that the bytes of the pieces are readable.
            let from = unsafe {
                std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(piece.addr as usize), room.len())
            };
            room.copy_from_slice(from);
            bytes.1 = end;
        }
        self.inline = inline.map(|_| Box::new(bytes));
        0
    }

    /// Returns the number of bytes that the request moves.
    pub fn bytes(&self) -> u64 {
        match &self.inline {
            Some(carried) => carried.1 as u64,
            None => self.pieces.iter().map(|(_, length)| length).sum(),
        }
    }

    /// Shortens the request by its last byte, for an injected fault. A request without bytes stays as it is.
    pub fn drop_last_byte(&mut self) {
        match &mut self.inline {
            Some(carried) => carried.1 = carried.1.saturating_sub(1),
            None => {
                self.pieces.iter_mut().rfind(|(_, length)| *length > 0).into_iter().for_each(|(_, length)| *length -= 1)
            }
        }
    }
}
