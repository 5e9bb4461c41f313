//! One connection of a rank or of a session: a nonblocking socket, the received messages, and the messages not yet
//! sent. The owner performs the waits: ranks with poll(2), sessions with tokio.

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

/// Maximum number of undelivered frames; reading stops at this number. A peer that follows the protocol never has more
/// frames in flight.
const MAX_QUEUED: usize = 16;

/// Maximum number of unread progress reports that are kept.
const MAX_REPORTS: usize = 4;

/// Maximum number of bytes per read.
const CHUNK_BYTES: usize = 64 << 10;

/// Returns the error that an Abort frame reports.
pub(super) fn last_words_of(frame: &Frame) -> BootstrapError {
    BootstrapError::Aborted {
        rank: frame.step as usize,
        ending: frame.label.parse().unwrap_or_default(),
        text: printable(&String::from_utf8_lossy(&frame.payload)),
    }
}

/// A connection; the module documentation describes it.
#[derive(Debug)]
pub(super) struct Link {
    pub stream: TcpStream,
    /// Address of the other side.
    pub from: SocketAddr,
    pub member: Member,
    /// Received bytes that are not yet a complete encrypted message, or the start of a handshake.
    pub buffer: Vec<u8>,
    /// Decrypted bytes that are not yet a complete frame.
    plain: Vec<u8>,
    /// Encryption of all further bytes in both directions. `None` until the handshake is complete.
    seal: Option<Seal>,
    /// Maximum payload accepted. Small until the peer is authenticated.
    pub longest: usize,
    pub frames: VecDeque<Frame>,
    /// Payloads of the latest progress reports, which belong to no step.
    pub reports: VecDeque<Vec<u8>>,
    /// Error in the received bytes; every later read returns it again.
    spoilt: Option<String>,
    /// Whether the peer has closed or the connection broke.
    pub closed: bool,
    /// Unencrypted messages to send. They are encrypted in pieces as the socket accepts them, because frames of a
    /// gather are long and shared by many links.
    unsent: VecDeque<Arc<[u8]>>,
    /// Number of bytes of the first message in `unsent` that are encrypted.
    taken: usize,
    /// Encrypted bytes to send; the first `gone` of them have been written.
    wire: Vec<u8>,
    gone: usize,
}

impl Link {
    /// Creates a link from a connected socket.
    pub fn new(stream: TcpStream, from: SocketAddr) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // Converts an IPv4-mapped IPv6 address to IPv4.
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        // Placeholder until the peer has identified itself.
        let (member, longest) = (Member::default(), MAX_HELLO_BYTES);
        let (buffer, plain, wire) = (Vec::new(), Vec::new(), Vec::new());
        let (frames, unsent) = (VecDeque::new(), VecDeque::new());
        let (reports, spoilt) = (VecDeque::new(), None);
        let (seal, closed, taken, gone) = (None, false, 0, 0);
        #[rustfmt::skip]
        let link = Link { stream, from, member, buffer, plain, seal, longest, frames, reports, spoilt, closed, unsent, taken, wire, gone };
        Ok(link)
    }

    /// Encrypts all further bytes in both directions with `seal`.
    pub fn protect(&mut self, seal: Seal) {
        self.seal = Some(seal);
    }

    /// Returns whether the connection is encrypted.
    pub fn is_protected(&self) -> bool {
        self.seal.is_some()
    }

    /// Returns the number of received bytes that have not been delivered.
    pub fn unheard(&self) -> usize {
        let frames = self.frames.iter().map(|frame| frame.payload.len().max(1));
        self.buffer.len() + self.plain.len() + frames.sum::<usize>()
    }

    /// Reads up to `most` available bytes. Returns whether there may be more.
    pub fn read(&mut self, most: usize) -> bool {
        // Enough for a handshake. The buffer grows as bytes arrive.
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

    /// Decodes the frames in the received bytes. Before the handshake is complete, nothing is decoded.
    pub fn decode(&mut self) -> Result<(), String> {
        let Some(seal) = &mut self.seal else { return Ok(()) };
        let opened = seal.open(&mut self.buffer, &mut self.plain, frame::longest(self.longest));
        // Frames before a corrupted message are still valid.
        while let Some((frame, used)) = frame::decode(&self.plain, self.longest)? {
            self.plain.drain(..used);
            if frame.kind != FrameKind::Progress {
                self.frames.push_back(frame);
                continue;
            }
            self.reports.truncate(MAX_REPORTS - 1);
            self.reports.push_front(frame.payload);
        }
        opened
    }

    /// Reads and decodes all available bytes. Returns an error for invalid bytes. A closed connection is not an error:
    /// it sets [`Link::closed`].
    pub fn fill(&mut self) -> Result<(), String> {
        self.sound()?;
        self.fill_sound().inspect_err(|text| self.spoilt = Some(text.clone()))
    }

    /// Returns the error that an earlier [`Link::fill`] has returned, if any.
    pub fn sound(&self) -> Result<(), String> {
        self.spoilt.clone().map_or(Ok(()), Err)
    }

    fn fill_sound(&mut self) -> Result<(), String> {
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

    /// Returns whether more bytes can be read. Returns `false` while too many frames are undelivered.
    pub fn wants_more(&self) -> bool {
        self.frames.len() < MAX_QUEUED
    }

    /// Returns the error that the peer reported, if any. It takes precedence over all queued frames.
    pub fn abort(&self) -> Option<BootstrapError> {
        self.frames.iter().find(|frame| frame.kind == FrameKind::Abort).map(last_words_of)
    }

    /// Queues `bytes` after all unsent bytes, and sends as much as the socket accepts now.
    pub fn send(&mut self, bytes: impl Into<Arc<[u8]>>) {
        let bytes = bytes.into();
        if self.is_protected() {
            self.unsent.push_back(bytes);
        } else {
            self.wire.extend_from_slice(&bytes);
        }
        self.flush();
    }

    /// Continues sending. Returns whether all bytes have been sent. Also returns `true` if the connection is closed,
    /// since the remaining bytes were discarded.
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
            // This fails only after all 2^64 message numbers have been used.
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

    /// Returns whether everything queued has been sent.
    pub fn has_sent_all(&self) -> bool {
        self.unsent.is_empty() && self.gone == self.wire.len()
    }

    /// Shuts down the sending direction.
    pub fn shut(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Closes the connection so that the last bytes sent still arrive. Closing a socket with unread data would reset
    /// the connection, and the reset could overtake the last frame.
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
