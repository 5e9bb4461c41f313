//! One connection, of a rank or of a visitor: a socket that never waits, the messages that have come by it, and those that it
//! has not taken yet. Whoever has it does the waiting: ranks by poll(2), visits by tokio.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::error::BootstrapError;
use super::frame::{self, Frame, FrameKind};
use super::handshake::MAX_HELLO_BYTES;
use super::identity::Member;
use super::seal::{MAX_PIECE_BYTES, Seal};
use ginlab_base::text::printable;

/// A peer that follows the protocol never has more frames under way than this; reading stops here.
const MAX_QUEUED: usize = 16;

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// The error that a frame of last words tells.
pub(super) fn last_words_of(frame: &Frame) -> BootstrapError {
    BootstrapError::Aborted {
        rank: frame.step as usize,
        ending: frame.label.parse().unwrap_or_default(),
        text: printable(&String::from_utf8_lossy(&frame.payload)),
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    pub stream: TcpStream,
    /// The other side's address.
    pub from: SocketAddr,
    pub member: Member,
    /// What has come and is no whole sealed message yet, or the beginning of a handshake.
    pub buffer: Vec<u8>,
    /// What was opened and is no whole frame yet.
    plain: Vec<u8>,
    /// Of all that travels, once both sides have shaken hands.
    seal: Option<Seal>,
    /// The largest payload that is read: little, until the other side has proved itself.
    pub longest: usize,
    pub frames: VecDeque<Frame>,
    /// The peer has closed, or the connection broke.
    pub closed: bool,
    /// Sealed piece by piece when the socket takes them: frames of a gather are long, and are the same for many links.
    unsent: VecDeque<Arc<[u8]>>,
    /// Bytes of the first of them that were sealed.
    taken: usize,
    /// As it travels, and how much of it has gone.
    wire: Vec<u8>,
    gone: usize,
}

impl Link {
    /// Takes over a connected socket.
    pub fn new(stream: TcpStream, from: SocketAddr) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // Without the IPv6 spelling of an IPv4 address.
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        // In place of who has not said yet who it is.
        let (member, longest) = (Member::default(), MAX_HELLO_BYTES);
        let (buffer, plain, wire) = (Vec::new(), Vec::new(), Vec::new());
        let (frames, unsent) = (VecDeque::new(), VecDeque::new());
        let (seal, closed, taken, gone) = (None, false, 0, 0);
        Ok(Link { stream, from, member, buffer, plain, seal, longest, frames, closed, unsent, taken, wire, gone })
    }

    /// From here on everything is sealed, in both directions.
    pub fn protect(&mut self, seal: Seal) {
        self.seal = Some(seal);
    }

    /// Whether everything is sealed.
    pub fn is_protected(&self) -> bool {
        self.seal.is_some()
    }

    /// Bytes that have come and nobody has heard.
    pub fn unheard(&self) -> usize {
        let frames = self.frames.iter().map(|frame| frame.payload.len().max(1));
        self.buffer.len() + self.plain.len() + frames.sum::<usize>()
    }

    /// Reads so many bytes of what is there, at most; whether there may be more.
    pub fn read(&mut self, most: usize) -> bool {
        // Room for a handshake; more grows with what comes.
        self.buffer.reserve(most.min(512));
        match (&self.stream).take(most as u64).read_to_end(&mut self.buffer) {
            Ok(count) if count == most => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            _ => {
                self.closed = true;
                false
            }
        }
    }

    /// Makes frames of what has been read. Before the handshake has ended there are none.
    pub fn decode(&mut self) -> Result<(), String> {
        let Some(seal) = &mut self.seal else { return Ok(()) };
        let opened = seal.open(&mut self.buffer, &mut self.plain, frame::longest(self.longest));
        // What came before a spoilt message still counts.
        while let Some((frame, used)) = frame::decode(&self.plain, self.longest)? {
            self.plain.drain(..used);
            self.frames.push_back(frame);
        }
        opened
    }

    /// Reads what is there. An error is garbage; a closed connection is not an error but [`Link::closed`].
    pub fn fill(&mut self) -> Result<(), String> {
        self.decode()?;
        while self.wants_more() {
            let more = self.read(CHUNK_BYTES);
            self.decode()?;
            if !more || !self.is_protected() {
                break;
            }
        }
        Ok(())
    }

    /// Whether reading further makes sense.
    pub fn wants_more(&self) -> bool {
        self.frames.len() < MAX_QUEUED
    }

    /// The error that the peer reported, if it did: it goes before everything else in the queue.
    pub fn abort(&self) -> Option<BootstrapError> {
        self.frames.iter().find(|frame| frame.kind == FrameKind::Abort).map(last_words_of)
    }

    /// Sends behind what has not gone yet, as much as the socket takes now.
    pub fn send(&mut self, bytes: impl Into<Arc<[u8]>>) {
        let bytes = bytes.into();
        if self.is_protected() {
            self.unsent.push_back(bytes);
        } else {
            self.wire.extend_from_slice(&bytes);
        }
        self.flush();
    }

    /// Sends on; whether all has gone. It has nowhere to go when the connection is closed.
    pub fn flush(&mut self) -> bool {
        loop {
            while self.gone < self.wire.len() {
                match (&self.stream).write(&self.wire[self.gone..]) {
                    Ok(count) => self.gone += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => self.give_up(),
                }
            }
            self.wire.clear();
            self.gone = 0;
            let (Some(first), Some(seal)) = (self.unsent.front(), &mut self.seal) else { return true };
            let end = first.len().min(self.taken + MAX_PIECE_BYTES);
            let sealed = seal.close(&first[self.taken..end], &mut self.wire);
            self.taken = end;
            if end == first.len() {
                self.unsent.pop_front();
                self.taken = 0;
            }
            // The numbers of messages are used up, behind 2^64.
            if sealed.is_err() {
                self.give_up();
            }
        }
    }

    fn give_up(&mut self) {
        self.closed = true;
        self.unsent.clear();
        self.wire.clear();
        (self.taken, self.gone) = (0, 0);
    }

    /// Sends nothing more.
    pub fn shut(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Closes so that what was sent last still arrives: a socket closed with unread data resets the connection, and a
    /// reset may overtake the last frame.
    pub fn close(mut self) {
        self.shut();
        for _ in 0..16 {
            self.buffer.clear();
            if !self.read(CHUNK_BYTES) {
                break;
            }
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
