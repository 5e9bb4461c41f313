//! A request as it was posted.

use crate::abi::ibv_sge;
use crate::address::Gid;
use std::ffi::c_int;

/// Pieces of a send.
pub const SEND_PIECES: usize = 2;
/// Bytes that a request carries itself at most, which is one of 128 bytes; one of 64 carries [`SHORT_INLINE`].
pub const INLINE: usize = 80;

/// See [`INLINE`].
pub const SHORT_INLINE: usize = 32;

/// What a request does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Into a receive of the peer.
    #[default]
    Send,
    /// Into the peer's registered memory.
    Write,
    /// Out of the peer's registered memory.
    Read,
}

/// A request as it was posted.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// C's name for it.
    pub wr_id: u64,
    /// What it does.
    pub kind: Kind,
    /// Whom it goes to: card, queue pair, key.
    pub gid: Gid,
    /// See `gid`.
    pub number: u32,
    /// See `gid`.
    pub qkey: u32,
    /// The protection domain of the address handle.
    pub domain: u32,
    /// The peer's memory.
    pub address: u64,
    /// The key of that memory.
    pub key: u32,
    /// Immediate.
    pub immediate: Option<u32>,
    /// Where its bytes are.
    pub pieces: [(u64, u64); SEND_PIECES],
    /// The keys of that memory.
    pub keys: [u32; SEND_PIECES],
    /// The bytes themselves, of a request that carries them.
    pub inline: Option<([u8; INLINE], usize)>,
    /// Whether nobody asked for its completion.
    pub is_silent: bool,
}

impl Request {
    /// Takes over its bytes: where they are, or, inline, themselves, so many at most.
    ///
    /// # Safety
    /// The list has so many pieces; inline their bytes are there.
    pub unsafe fn take(&mut self, list: *const ibv_sge, count: usize, inline: Option<usize>) -> c_int {
        let mut bytes = ([0; INLINE], 0);
        for index in 0..count {
            // SAFETY: the list has so many.
            let piece = unsafe { *list.add(index) };
            if inline.is_none() {
                self.pieces[index] = (piece.addr, u64::from(piece.length));
                self.keys[index] = piece.lkey;
                continue;
            }
            let end = bytes.1 + piece.length as usize;
            let room = bytes.0.get_mut(bytes.1..end).filter(|_| inline.is_some_and(|most| end <= most));
            let Some(room) = room else { return libc::EINVAL };
            // SAFETY: C's bytes, which are there.
            let from = unsafe {
                std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(piece.addr as usize), room.len())
            };
            room.copy_from_slice(from);
            bytes.1 = end;
        }
        self.inline = inline.map(|_| bytes);
        0
    }

    /// Bytes that it moves.
    pub fn bytes(&self) -> u64 {
        match &self.inline {
            Some((_, length)) => *length as u64,
            None => self.pieces.iter().map(|(_, length)| length).sum(),
        }
    }
}
