//! One connection of the star: a non-blocking socket and the frames that arrived on it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use super::error::{BootstrapError, Ending};
use super::frame::{self, Frame, FrameKind, MAX_BYTES};
use super::identity::Member;

/// A peer that follows the protocol never has more frames under way than this; reading stops here.
const MAX_QUEUED: usize = 16;

/// The error that a frame of last words tells.
pub(super) fn last_words_of(frame: &Frame) -> BootstrapError {
    BootstrapError::Aborted {
        rank: frame.step as usize,
        ending: Ending::of_label(&frame.label),
        text: crate::text::printable(&String::from_utf8_lossy(&frame.payload)),
    }
}

/// A connection to a rank.
pub(super) struct Link {
    stream: TcpStream,
    pub member: Member,
    buffer: Vec<u8>,
    /// The largest payload that is read.
    pub longest: usize,
    pub frames: VecDeque<Frame>,
    /// The peer has closed, or the connection broke.
    pub closed: bool,
    /// A frame was left half sent: nothing more may be sent, the peer could not tell where it begins.
    pub torn: bool,
}

impl Link {
    /// Takes over a connected socket; `buffer` is what was read from it already.
    pub fn new(stream: TcpStream, member: Member, buffer: Vec<u8>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Link { stream, member, buffer, longest: MAX_BYTES, frames: VecDeque::new(), closed: false, torn: false })
    }

    /// Reads what is there. An error is garbage; a closed connection is not an error but [`Link::closed`].
    pub fn fill(&mut self) -> Result<(), String> {
        self.parse()?;
        let mut chunk = [0u8; 64 << 10];
        while !self.closed && self.wants_more() {
            match self.stream.read(&mut chunk) {
                Ok(0) => self.closed = true,
                Ok(count) => {
                    self.buffer.extend_from_slice(&chunk[..count]);
                    self.parse()?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.closed = true,
            }
        }
        Ok(())
    }

    /// Whether reading further makes sense.
    pub fn wants_more(&self) -> bool {
        self.frames.len() < MAX_QUEUED
    }

    fn parse(&mut self) -> Result<(), String> {
        while let Some((frame, used)) = frame::decode(&self.buffer, self.longest)? {
            self.buffer.drain(..used);
            self.frames.push_back(frame);
        }
        Ok(())
    }

    /// The error that the peer reported, if it did: it goes before everything else in the queue.
    pub fn abort(&self) -> Option<BootstrapError> {
        self.frames.iter().find(|frame| frame.kind == FrameKind::Abort).map(last_words_of)
    }

    /// Sends as much as the socket takes now; the count, 0 when it is full.
    pub fn send_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.stream.write(bytes) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
            other => other,
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Drop for Link {
    /// Closes so that what was sent last still arrives: a socket closed with unread data resets the connection, and a
    /// reset may overtake the last frame.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        let mut chunk = [0u8; 4096];
        for _ in 0..256 {
            if !matches!(self.stream.read(&mut chunk), Ok(1..)) {
                break;
            }
        }
    }
}
