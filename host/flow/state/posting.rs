//! Posting: the path from an operation to the rails.
//!
//! A write over one rail with an empty queue is posted directly from its arguments. This path is inlined as a whole
//! (`inline(always)`) and bypasses queues. After each call into the kernel the CPU mispredicts every return and finds
//! the cache cold, so stack frames and cache lines cost more here than instructions (experiments/write).

use super::{GONE, NOBODY, OperationKind, State};
use crate::{FlowError, Region, Target};
use ginlab_fabric::{Message, Messages, Post, Transfer};
use ginlab_rails as rails;

/// Options of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct TransferOptions {
    /// Rail that carries the whole transfer; `None` to let the strategy choose.
    pub rail: Option<usize>,
    /// Immediate to raise at the target after the last byte.
    pub immediate: Option<u32>,
}

impl TransferOptions {
    /// The strategy chooses the rails, and there is no immediate.
    pub const STRATEGY: TransferOptions = TransferOptions { rail: None, immediate: None };
}

/// Source and destination of a transfer: equally long ranges of a local and a remote region.
pub struct Segment<'a, R: Messages> {
    pub local: &'a Region<R>,
    pub offset: u64,
    pub target: &'a Target,
    pub at: u64,
    pub bytes: u64,
}

/// A post that a rail has not accepted yet. Its token is the key of its operation.
#[derive(Clone, Copy)]
pub enum PendingPost {
    Write(Transfer),
    Read(Transfer),
    Send(usize, Message),
    Receive(Message),
}

impl PendingPost {
    pub(super) fn key(&self) -> usize {
        match self {
            PendingPost::Write(transfer) | PendingPost::Read(transfer) => transfer.token as usize,
            PendingPost::Send(_, message) | PendingPost::Receive(message) => message.token as usize,
        }
    }
}

impl rails::Queueable for PendingPost {
    fn bytes(&self) -> u64 {
        match self {
            PendingPost::Write(transfer) | PendingPost::Read(transfer) => transfer.bytes,
            PendingPost::Send(_, message) => message.bytes,
            // A receive sends no bytes.
            PendingPost::Receive(_) => 0,
        }
    }
}

impl<R: Messages> State<R> {
    /// Posts a write or a read, or queues it until its rails accept it.
    #[inline(always)]
    pub fn transfer(
        &mut self,
        kind: OperationKind,
        stretch: Segment<'_, R>,
        way: TransferOptions,
    ) -> Result<usize, FlowError> {
        let Segment { local, offset, target, at, bytes } = stretch;
        let inside = |start: u64, length: u64| start.checked_add(bytes).is_some_and(|end| end <= length);
        let rails = self.queues.len();
        let known = self.peers.get(target.peer.0 * rails).is_some_and(|index| *index != GONE);
        let fits = inside(offset, local.bytes()) && inside(at, target.bytes());
        if !(fits && known && target.on_rail.len() == rails && self.dead.is_none() && self.corrupt.is_none()) {
            return self.corrupted_or_refused(kind, stretch, way);
        }
        let indivisible = way.immediate.is_some();
        let rail = match way.rail {
            _ if bytes == 0 && !indivisible => None,
            Some(rail) => Some(rail).filter(|_| bytes <= self.longest),
            None => self.scheduler.whole(bytes, self.longest, indivisible),
        };
        let Some(rail) = rail else { return self.pieces(kind, stretch, way) };
        let (Some(region), Some(&remote)) = (local.on_rail.get(rail), target.on_rail.get(rail)) else {
            return Err(FlowError::Refused(format!("no rail {rail}: this flow has {rails}")));
        };
        let key = self.begin(kind, local, target.peer.0, rail, 1, bytes);
        // Both exist: peers and targets have one entry per rail.
        let (queue, peer) = (&mut self.queues[rail], self.peers[target.peer.0 * rails + rail]);
        let immediate = way.immediate;
        let transfer = Transfer { immediate, ..Transfer::new(offset, (peer, remote, at), bytes, key as u64) };
        let piece = if kind == OperationKind::Read { PendingPost::Read } else { PendingPost::Write };
        if self.holds > 0 || !queue.is_free() {
            queue.push(piece(transfer));
            return Ok(key);
        }
        // SAFETY: the range was checked against the region, which the operation keeps until the completion. The caller
        // of `write_all` must not write the source before then, and must not use the destination of a read.
        let posted = queue.post(bytes, |rail| unsafe {
            if kind == OperationKind::Read { rail.read(region, &transfer) } else { rail.write(region, &transfer) }
        });
        match posted {
            Ok(Post::Accepted) => {}
            Ok(Post::Again) => queue.push(piece(transfer)),
            Err(error) => self.fail_piece(key, error.into()),
        }
        Ok(key)
    }

    /// Starts a transfer with the injected fault, or returns the reason why it is refused.
    #[cold]
    fn corrupted_or_refused(
        &mut self,
        kind: OperationKind,
        stretch: Segment<'_, R>,
        way: TransferOptions,
    ) -> Result<usize, FlowError> {
        let Some(left) = self.corrupt.take() else { return Err(self.why_refused(stretch)) };
        let counts = kind == OperationKind::Write && stretch.bytes > 0;
        let bytes = stretch.bytes - u64::from(counts && left == 0);
        let key = self.transfer(kind, Segment { bytes, ..stretch }, way);
        self.corrupt = if counts { left.checked_sub(1) } else { Some(left) };
        key
    }

    #[cold]
    fn why_refused(&self, stretch: Segment<'_, R>) -> FlowError {
        if let Some(error) = self.failure() {
            return error;
        }
        let Segment { local, offset, target, at, bytes } = stretch;
        FlowError::Refused(format!(
            "{bytes} B from offset {offset} of {} B to offset {at} of peer {}'s {} B on {} rails: this flow has {} rails \
             and {} peers",
            local.bytes(),
            target.peer.0,
            target.bytes(),
            target.on_rail.len(),
            self.queues.len(),
            self.peers.chunks(self.queues.len().max(1)).filter(|on_rail| on_rail[0] != GONE).count()
        ))
    }

    /// Starts a transfer that is empty, or that uses several rails or pieces.
    #[inline(never)]
    fn pieces(
        &mut self,
        kind: OperationKind,
        stretch: Segment<'_, R>,
        way: TransferOptions,
    ) -> Result<usize, FlowError> {
        let Segment { local, offset, target, at, bytes } = stretch;
        if (way.immediate.is_some() || way.rail.is_some()) && bytes > self.longest {
            let text = format!("{bytes} B in one transfer: at most {} B are supported", self.longest);
            return Err(FlowError::Refused(text));
        }
        let key = self.begin(kind, local, target.peer.0, 0, 0, bytes);
        if bytes == 0 {
            return Ok(key);
        }
        let (queues, first) = (&mut self.queues, target.peer.0 * target.on_rail.len());
        let (peers, mut last_rail) = (&self.peers, 0);
        let count = self.scheduler.schedule(bytes, self.longest, false, |piece| {
            let to = (peers[first + piece.rail], target.on_rail[piece.rail], at + piece.offset);
            let transfer = Transfer::new(offset + piece.offset, to, piece.bytes, key as u64);
            let piece_of = if kind == OperationKind::Read { PendingPost::Read } else { PendingPost::Write };
            queues[piece.rail].push(piece_of(transfer));
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
        kind: OperationKind,
        rail: usize,
        peer: usize,
        local: &Region<R>,
        message: Message,
    ) -> Result<usize, FlowError> {
        self.check_alive()?;
        if rail >= self.queues.len() {
            return Err(FlowError::Refused(format!("no rail {rail}: this flow has {}", self.queues.len())));
        }
        let mut message = message;
        if let Some(left) = self.corrupt.filter(|_| kind == OperationKind::Send && message.bytes > 0) {
            message.bytes -= u64::from(left == 0);
            self.corrupt = left.checked_sub(1);
        }
        let on_rail = self.on_rail(peer, rail);
        if kind == OperationKind::Send && on_rail.is_none() {
            return Err(FlowError::Refused(format!("no peer {peer}")));
        }
        let key =
            self.begin(kind, local, if kind == OperationKind::Send { peer } else { NOBODY }, rail, 1, message.bytes);
        let message = Message { token: key as u64, ..message };
        self.queues[rail].push(match on_rail {
            Some(peer) if kind == OperationKind::Send => PendingPost::Send(peer, message),
            _ => PendingPost::Receive(message),
        });
        if self.holds == 0 {
            self.post(rail);
        }
        Ok(key)
    }

    /// Posts queued pieces on every rail until the providers are full.
    #[inline]
    pub fn flush(&mut self) {
        for rail in 0..self.queues.len() {
            if !self.queues[rail].is_free() {
                self.post(rail);
            }
        }
    }

    pub(super) fn post(&mut self, index: usize) {
        loop {
            let State { queues, operations, .. } = self;
            let (_, outcome) = queues[index].pump(|rail, piece, more| {
                let region = &operations[piece.key()].local.on_rail[index];
                match piece {
                    // SAFETY: `transfer` checked the range, and the operation keeps the region until the completion.
                    PendingPost::Write(transfer) => unsafe { rail.write(region, &Transfer { more, ..*transfer }) },
                    // SAFETY: as for a write, `transfer` checked the range, and the operation keeps the region.
                    PendingPost::Read(transfer) => unsafe { rail.read(region, &Transfer { more, ..*transfer }) },
                    // SAFETY: the rail checks the range; the operation keeps the region until the completion.
                    PendingPost::Send(peer, message) => unsafe { rail.send(region, *peer, message) },
                    // SAFETY: as for a send, the rail checks the range, and the operation keeps the region.
                    PendingPost::Receive(message) => unsafe { rail.receive(region, message) },
                }
            });
            let Err(error) = outcome else { return };
            let Some(piece) = self.queues[index].take_first() else { return };
            self.fail_piece(piece.key(), error.into());
        }
    }
}
