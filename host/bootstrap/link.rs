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
    /// What has come and is no whole frame yet, or the beginning of a handshake.
    pub buffer: Vec<u8>,
    /// The largest payload that is read: little, until the other side has proved itself.
    pub longest: usize,
    pub frames: VecDeque<Frame>,
    /// The peer has closed, or the connection broke.
    pub closed: bool,
    unsent: VecDeque<Arc<[u8]>>,
    /// Bytes of the first of them that have gone.
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
        let (buffer, frames, unsent) = (Vec::new(), VecDeque::new(), VecDeque::new());
        Ok(Link { stream, from, member, buffer, longest, frames, closed: false, unsent, gone: 0 })
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

    /// Reads what is there. An error is garbage; a closed connection is not an error but [`Link::closed`].
    pub fn fill(&mut self) -> Result<(), String> {
        let mut more = true;
        loop {
            while let Some((frame, used)) = frame::decode(&self.buffer, self.longest)? {
                self.buffer.drain(..used);
                self.frames.push_back(frame);
            }
            if !more || !self.wants_more() {
                return Ok(());
            }
            more = self.read(CHUNK_BYTES);
        }
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
        if !bytes.is_empty() {
            self.unsent.push_back(bytes);
            self.flush();
        }
    }

    /// Sends on; whether all has gone. It has nowhere to go when the connection is closed.
    pub fn flush(&mut self) -> bool {
        while let Some(first) = self.unsent.front() {
            match (&self.stream).write(&first[self.gone..]) {
                Ok(count) => self.gone += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.closed = true;
                    self.unsent.clear();
                }
            }
            if self.unsent.front().is_none_or(|first| self.gone == first.len()) {
                self.unsent.pop_front();
                self.gone = 0;
            }
        }
        true
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
