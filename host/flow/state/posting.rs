//! Posting: the way from an operation to the rails.
//!
//! A write that goes over one rail, with nothing before it, is posted from where it stands. That path is kept in one piece
//! (`inline(always)`) and out of queues: behind each call into the kernel the processor mispredicts every return and finds the
//! cache cold, so frames and lines cost more here than instructions (experiments/write).

use super::{GONE, Kind, NOBODY, State};
use crate::{FlowError, Region, Target};
use ginlab_fabric::{Message, Messages, Post, Transfer};
use ginlab_rails as rails;

/// How a transfer goes.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The one rail that takes all of it; otherwise the strategy says.
    pub rail: Option<usize>,
    /// Raised at the target behind the last byte.
    pub immediate: Option<u32>,
}

impl Way {
    /// As the strategy says, and nothing more.
    pub const STRATEGY: Way = Way { rail: None, immediate: None };
}

/// What is to be moved: bytes of a local region and of a peer's.
pub struct Stretch<'a, R: Messages> {
    pub local: &'a Region<R>,
    pub offset: u64,
    pub target: &'a Target,
    pub at: u64,
    pub bytes: u64,
}

/// A post that a rail has not taken yet; its token is its operation's key.
#[derive(Clone, Copy)]
pub enum Piece {
    Write(Transfer),
    Read(Transfer),
    Send(usize, Message),
    Receive(Message),
}

impl Piece {
    pub(super) fn key(&self) -> usize {
        match self {
            Piece::Write(transfer) | Piece::Read(transfer) => transfer.token as usize,
            Piece::Send(_, message) | Piece::Receive(message) => message.token as usize,
        }
    }
}

impl rails::Piece for Piece {
    fn bytes(&self) -> u64 {
        match self {
            Piece::Write(transfer) | Piece::Read(transfer) => transfer.bytes,
            Piece::Send(_, message) => message.bytes,
            // Room is nothing that goes out.
            Piece::Receive(_) => 0,
        }
    }
}

impl<R: Messages> State<R> {
    /// Posts a write or a read, or lays it by until its rails take it.
    #[inline(always)]
    pub fn transfer(&mut self, kind: Kind, stretch: Stretch<'_, R>, way: Way) -> Result<usize, FlowError> {
        let Stretch { local, offset, target, at, bytes } = stretch;
        let inside = |start: u64, length: u64| start.checked_add(bytes).is_some_and(|end| end <= length);
        let rails = self.lanes.len();
        let known = self.peers.get(target.peer.0 * rails).is_some_and(|index| *index != GONE);
        let fits = inside(offset, local.bytes()) && inside(at, target.bytes());
        if !(fits && known && target.on_rail.len() == rails && self.dead.is_none()) {
            return Err(self.why_refused(stretch));
        }
        let indivisible = way.immediate.is_some();
        let rail = match way.rail {
            _ if bytes == 0 && !indivisible => None,
            Some(rail) => Some(rail).filter(|_| bytes <= self.longest),
            None => self.scheduler.whole(bytes, self.longest, indivisible),
        };
        let Some(rail) = rail else { return self.pieces(kind, stretch, way) };
        let (Some(region), Some(&remote)) = (local.on_rail.get(rail), target.on_rail.get(rail)) else {
            return Err(FlowError::Refused(format!("rail {rail}: this flow has {rails}")));
        };
        let key = self.begin(kind, local, target.peer.0, rail, 1, bytes);
        // Both are there: peers and targets have an entry for each rail.
        let (lane, peer) = (&mut self.lanes[rail], self.peers[target.peer.0 * rails + rail]);
        let (immediate, token, more) = (way.immediate, key as u64, false);
        let transfer =
            Transfer { local_offset: offset, peer, remote, remote_offset: at, bytes, immediate, token, more };
        let piece = if kind == Kind::Read { Piece::Read } else { Piece::Write };
        if self.holds > 0 || !lane.is_free() {
            lane.push(piece(transfer));
            return Ok(key);
        }
        // SAFETY: the range was checked against the region, which the operation keeps until the completion; that nobody
        // writes the source before is what `write_all` asks of its caller, as a NIC would. The same for what a read fills.
        let posted = lane.post(bytes, |rail| unsafe {
            if kind == Kind::Read { rail.read(region, &transfer) } else { rail.write(region, &transfer) }
        });
        match posted {
            Ok(Post::Accepted) => {}
            Ok(Post::Again) => lane.push(piece(transfer)),
            Err(error) => self.fail_piece(key, error.into()),
        }
        Ok(key)
    }

    #[cold]
    fn why_refused(&self, stretch: Stretch<'_, R>) -> FlowError {
        if let Some(error) = self.failure() {
            return error;
        }
        let Stretch { local, offset, target, at, bytes } = stretch;
        FlowError::Refused(format!(
            "{bytes} B from offset {offset} of {} B to offset {at} of peer {}'s {} B on {} rails: this flow has {} rails and \
             {} peers",
            local.bytes(),
            target.peer.0,
            target.bytes(),
            target.on_rail.len(),
            self.lanes.len(),
            self.peers.chunks(self.lanes.len().max(1)).filter(|on_rail| on_rail[0] != GONE).count()
        ))
    }

    /// Over several rails, in several transfers, or nothing at all.
    #[inline(never)]
    fn pieces(&mut self, kind: Kind, stretch: Stretch<'_, R>, way: Way) -> Result<usize, FlowError> {
        let Stretch { local, offset, target, at, bytes } = stretch;
        if (way.immediate.is_some() || way.rail.is_some()) && bytes > self.longest {
            let text = format!("{bytes} B in one transfer: it takes {} B at most", self.longest);
            return Err(FlowError::Refused(text));
        }
        let key = self.begin(kind, local, target.peer.0, 0, 0, bytes);
        if bytes == 0 {
            return Ok(key);
        }
        let (lanes, first) = (&mut self.lanes, target.peer.0 * target.on_rail.len());
        let (peers, mut last_rail) = (&self.peers, 0);
        let count = self.scheduler.schedule(bytes, self.longest, false, |piece| {
            let transfer = Transfer {
                local_offset: offset + piece.offset,
                peer: peers[first + piece.rail],
                remote: target.on_rail[piece.rail],
                remote_offset: at + piece.offset,
                bytes: piece.bytes,
                immediate: None,
                token: key as u64,
                more: false,
            };
            let piece_of = if kind == Kind::Read { Piece::Read } else { Piece::Write };
            lanes[piece.rail].push(piece_of(transfer));
            last_rail = piece.rail;
        });
        let operation = &mut self.operations[key];
        (operation.outstanding, operation.rail) = (count as u32, last_rail as u16);
        if self.holds == 0 {
            self.flush();
        }
        Ok(key)
    }

    pub fn message(
        &mut self,
        kind: Kind,
        rail: usize,
        peer: usize,
        local: &Region<R>,
        message: Message,
    ) -> Result<usize, FlowError> {
        self.check_alive()?;
        if rail >= self.lanes.len() {
            return Err(FlowError::Refused(format!("rail {rail}: this flow has {}", self.lanes.len())));
        }
        let on_rail = self.on_rail(peer, rail);
        if kind == Kind::Send && on_rail.is_none() {
            return Err(FlowError::Refused(format!("there is no peer {peer}")));
        }
        let key = self.begin(kind, local, if kind == Kind::Send { peer } else { NOBODY }, rail, 1, message.bytes);
        let message = Message { token: key as u64, ..message };
        self.lanes[rail].push(match on_rail {
            Some(peer) if kind == Kind::Send => Piece::Send(peer, message),
            _ => Piece::Receive(message),
        });
        if self.holds == 0 {
            self.post(rail);
        }
        Ok(key)
    }

    /// Posts what waits on every rail, as far as the providers take it.
    #[inline]
    pub fn flush(&mut self) {
        for rail in 0..self.lanes.len() {
            if !self.lanes[rail].is_free() {
                self.post(rail);
            }
        }
    }

    pub(super) fn post(&mut self, index: usize) {
        loop {
            let State { lanes, operations, .. } = self;
            let (_, outcome) = lanes[index].pump(|rail, piece, more| {
                let region = &operations[piece.key()].local.on_rail[index];
                match piece {
                    // SAFETY: as in `transfer`.
                    Piece::Write(transfer) => unsafe { rail.write(region, &Transfer { more, ..*transfer }) },
                    // SAFETY: as in `transfer`.
                    Piece::Read(transfer) => unsafe { rail.read(region, &Transfer { more, ..*transfer }) },
                    // SAFETY: the rail checks the range; the operation keeps the region until the completion.
                    Piece::Send(peer, message) => unsafe { rail.send(region, *peer, message) },
                    // SAFETY: as for a send.
                    Piece::Receive(message) => unsafe { rail.receive(region, message) },
                }
            });
            let Err(error) = outcome else { return };
            let Some(piece) = self.lanes[index].take_first() else { return };
            self.fail_piece(piece.key(), error.into());
        }
    }
}
