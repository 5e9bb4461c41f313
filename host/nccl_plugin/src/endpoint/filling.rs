//! Filling of a slot: its header, and its bytes, which are copied by `memcpy` or out of GPU memory.

use super::Endpoint;
use super::outgoing::Watched;
use super::outgoing::{Outgoing, Part, Peer, PendingGet, Sending};
use crate::copies::CopyDirection;
use crate::counts::TraceEntry;
use crate::operation::{RemoteLocation, Source, What};
use crate::wire::{HEADER, SlotHeader, SlotKind};
use ginlab_fabric::Rail;

/// Header of a put without bytes.
const EMPTY: SlotHeader = SlotHeader {
    kind: SlotKind::Put,
    signals: false,
    context: 0,
    bytes: 0,
    number: 0,
    turn: 0,
    parts: 0,
    at: RemoteLocation { region: 0, offset: 0 },
    then: RemoteLocation { region: 0, offset: 0 },
    add: 0,
    total: 0,
    get: 0,
    at_ns: 0,
    behind: 0,
    among: 0,
};

impl<R: Rail> Endpoint<R> {
    /// Fills a slot with the next part of the first queued operation to `peer`. Returns the number of bytes in it.
    pub(super) fn fill_slot(&mut self, peer: usize, slot: usize) -> Result<usize, String> {
        let target = self.slot(true, peer, slot);
        let room = self.layout.room as u64;
        let traces = self.coll.settings.trace > 0;
        let Outgoing { peers, gets, last_get, .. } = &mut self.out;
        let Peer { queue, complete, .. } = &mut peers[peer];
        let Some(sending) = queue.front_mut() else { return Ok(0) };
        let Sending { operation, number, turn, parts, next } = sending;
        let start = u64::from(*next) * room;
        let (behind, among) = complete.summary();
        let (number, context, at_ns) = (*number, operation.context, operation.at_ns);
        let mut header = SlotHeader { context, number, turn: *turn, parts: *parts, at_ns, behind, among, ..EMPTY };
        *next += 1;
        let last = *next == *parts;
        let mut note = (traces && last).then(|| {
            let (asked_ns, done_ns) = (at_ns, 0);
            Box::new(TraceEntry {
                kind: "put",
                peer,
                number,
                context,
                bytes: 0,
                asked_ns,
                done_ns,
                signal: None,
                add: 0,
            })
        });
        let mut source: Option<Source> = None;
        let carried = operation.carried.is_some();
        let mut request = Some(operation.request.clone());
        match operation.what {
            What::Put { from, bytes, to, signal } => {
                let length = room.min(bytes - start.min(bytes));
                (header.bytes, header.total) = (length as u32, bytes);
                header.at = RemoteLocation { region: to.region, offset: to.offset + start };
                if let Some(signal) = signal {
                    header.signals = true;
                    (header.then, header.add) = (signal.at, signal.add);
                }
                if let Some(note) = &mut note {
                    note.bytes = bytes;
                    note.signal = signal.map(|signal| (signal.at.region, signal.at.offset, 0));
                    note.add = signal.map_or(0, |signal| signal.add);
                }
                source = Some(Source { address: from.address + start, ..from });
            }
            What::Answer { from, bytes, to, get } => {
                let length = room.min(bytes - start.min(bytes));
                (header.kind, header.bytes, header.total, header.get) = (SlotKind::Answer, length as u32, bytes, get);
                header.at = RemoteLocation { region: to.region, offset: to.offset + start };
                source = Some(Source { address: from.address + start, ..from });
                (request, note) = (None, None);
            }
            What::Get { from, bytes, to } => {
                *last_get += 1;
                (header.kind, header.total, header.get) = (SlotKind::Get, bytes, *last_get);
                (header.at, header.then) = (from, to);
                if let Some(note) = &mut note {
                    (note.kind, note.bytes) = ("get", bytes);
                }
                // A get is complete when its answer has arrived.
                let wanted = PendingGet { request: operation.request.clone(), left: bytes, note: note.take(), peer };
                gets.insert(*last_get, wanted);
                request = None;
            }
        }
        // The operation is kept until the bytes are copied, because it may contain them.
        let _ended = if last { queue.pop_front() } else { None };
        // SAFETY: a slot of this rank that is not in use: its last write is complete and the peer has returned it.
        unsafe { std::ptr::copy_nonoverlapping(header.encode().as_ptr(), target, HEADER) };
        let ends = last.then_some(header.number);
        // Bytes that the request carries are not in NCCL's memory, and the source of an answer may change.
        let watched = source
            .filter(|_| {
                self.watches && header.bytes > 0 && header.kind == SlotKind::Put && !carried && peer != self.coll.rank
            })
            .map(|source| Watched { source, sum: 0 });
        let part = Part { peer, slot, bytes: HEADER + header.bytes as usize, ends, request, note, watched };
        // SAFETY: the source is NCCL's memory, in a region that was checked when the operation was submitted and is
        // valid until its request is complete. The slot belongs to this rank until then and has space for the part.
        unsafe { self.fill_body(source, target.wrapping_add(HEADER), header.bytes as usize, part) }?;
        Ok(header.bytes as usize)
    }

    /// Copies `bytes` bytes of the source, if any, to the body of a slot, immediately or on the copy queue. `part` is
    /// sent after they have been copied.
    ///
    /// # Safety
    /// `source` and `body` must be valid for `bytes` bytes until the part has been sent, and no other party may write
    /// to them.
    unsafe fn fill_body(
        &mut self,
        source: Option<Source>,
        body: *mut u8,
        bytes: usize,
        part: Part,
    ) -> Result<(), String> {
        match source {
            Some(source) if bytes > 0 && source.cuda => {
                // SAFETY: the caller guarantees source and body.
                unsafe { self.copies.take_out(body as u64, source.address, bytes, false) }
                    .map_err(|why| format!("reading {bytes} B for rank {}: {why}", part.peer))?;
                let mark = self.copies.mark(CopyDirection::Out)?;
                self.out.copying.push_back((mark, part));
            }
            Some(source) if bytes > 0 => {
                // SAFETY: the caller guarantees source and body, which is in this rank's own memory.
                unsafe { std::ptr::copy_nonoverlapping(source.address as *const u8, body, bytes) };
                self.out.ready.push_back(part);
            }
            _ => self.out.ready.push_back(part),
        }
        Ok(())
    }
}
