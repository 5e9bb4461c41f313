//! Intake of requests that C or a GPU writes into the rings of a queue pair. The requests are read when the doorbell
//! rings, and checked against the rules.
//!
//! Misuse puts the queue pair in error. The request concerned completes with status 2, all others with status 1, and a
//! line on stderr names the rule. A real device does not report the reason.

use crate::address::Gid;
use crate::context::DeviceContext;
use crate::flight::SendSide;
use crate::inbox::Arrival;
use crate::locked;
use crate::memory::{FILLED, Range};
use crate::origin::Origin;
use crate::pair::{Receiver, RingProgress, SoftQueuePair};
use crate::queue::{PostedReceive, RECEIVE_PIECES};
use crate::request::{INLINE, PostedRequest, RequestIdentity, RequestKind};
use crate::rings::{DeviceRing, PairRings};
use crate::status;
use efa_queue::intake::{Intake as Rules, Refusal};
use efa_queue::request::{Malformed, RequestData, WORDS, WORDS_128};
use efa_queue::{DecodedRequest, ReceivePiece};
use std::fmt::Display;
use std::sync::atomic::Ordering;

/// Indices, among C's operations, of completed receives, reads by peers, and writes by peers.
const REMOTE: [usize; 3] = [1, 3, 5];

impl SoftQueuePair {
    /// Processes the rings and the peers' operations. Returns whether there was any progress.
    pub fn work(&self) -> bool {
        let mut moved = false;
        let mut intake = locked(&self.intake);
        if let Some(rings) = self.rings.get() {
            moved |= self.take_receives(rings, &mut intake);
            let mut sender = locked(&self.sender);
            if self.is_sending.load(Ordering::Acquire) {
                moved |= self.take_sends(rings, &mut intake, &mut sender);
            }
            moved |= sender.is_busy();
            sender.poll();
        }
        for (place, operation) in REMOTE.into_iter().enumerate() {
            let Some(counter) = self.origin.counters[operation].get() else { continue };
            let now = self.origin.page.counts()[place].load(Ordering::Acquire);
            if now != intake.counted[place] {
                counter.add(now - intake.counted[place], status::OK);
                intake.counted[place] = now;
                moved = true;
            }
        }
        moved
    }

    fn take_sends(&self, rings: &PairRings, intake: &mut RingProgress, sender: &mut SendSide) -> bool {
        let ring = &rings.send;
        if self.origin.context.machine.is_full() {
            return false;
        }
        let rules = Rules { seen: intake.sends, depth: ring.entries, max_batch: rings.max_batch };
        let ended = intake.sends.saturating_sub(u64::from(sender.under_way()));
        let count = match rules.poll(ring, ended) {
            Ok(count) => count,
            Err(Refusal::Batch { .. }) if intake.is_broken => return false,
            Err(refusal @ Refusal::Batch { number, .. }) => {
                self.break_off(intake, sender, identity(ring, number), &refusal);
                return false;
            }
            Err(refusal) => {
                self.say_broken(intake, &refusal);
                let doorbell = ring.rung();
                // The oldest request in flight takes the status, or if there is none, the request before the doorbell.
                if !sender.end_all(status::INTERNAL) {
                    sender.end(identity(ring, u64::from(doorbell.wrapping_sub(1))), status::INTERNAL);
                }
                // Continues from the doorbell's value.
                let new = doorbell.wrapping_sub(intake.sends as u16) as i16;
                intake.sends = intake.sends.saturating_add_signed(new.into());
                return true;
            }
        };
        let moved = count != intake.sends;
        while intake.sends < count {
            let number = intake.sends;
            intake.sends += 1;
            if ring.entry == WORDS_128 * 8 {
                self.take_send(&ring.words::<WORDS_128>(number as u32), (&rules, number), intake, sender);
            } else {
                self.take_send(&ring.words::<WORDS>(number as u32), (&rules, number), intake, sender);
            }
        }
        moved
    }

    fn take_send(
        &self,
        words: &[u64],
        (rules, number): (&Rules, u64),
        intake: &mut RingProgress,
        sender: &mut SendSide,
    ) {
        let identity = RequestIdentity::of(words);
        if intake.is_broken {
            sender.end(identity, status::FLUSHED);
            return;
        }
        if self.origin.context.machine.breaks() {
            self.break_off(intake, sender, identity, &"set to the error state by an injected fault");
            return;
        }
        match rules.decode(number, words) {
            Ok(written) => {
                let request = self.request(&written, intake, !DecodedRequest::asks_for_completion(words));
                sender.begin(request);
            }
            Err(Refusal::Malformed { why, .. }) if why != Malformed::NotARequest => {
                sender.end(identity, status_of(why));
            }
            Err(refusal) => self.break_off(intake, sender, identity, &refusal),
        }
    }

    fn request(&self, written: &DecodedRequest, intake: &mut RingProgress, is_silent: bool) -> PostedRequest {
        let Origin { context, page, .. } = &*self.origin;
        let head = &written.head;
        let mut request = PostedRequest {
            wr_id: head.id,
            kind: RequestKind::from(written.operation),
            number: head.to.pair.into(),
            qkey: head.to.key,
            // Converts the immediate to C's form, the network byte order.
            immediate: head.immediate.map(u32::to_be),
            is_silent,
            domain: page.domain(),
            ..PostedRequest::default()
        };
        match intake.gid(context, head.to.handle, page.domain()) {
            Some(gid) => request.gid = gid,
            // No domain has this number, so the request completes with status 4.
            None => request.domain = u32::MAX,
        }
        let mut own = |pieces: &[efa_queue::Local]| {
            for (index, piece) in pieces.iter().enumerate() {
                request.pieces[index] = (piece.address, piece.length.into());
                request.keys[index] = piece.key;
            }
        };
        let carried = |words: &[u64; 10], length: usize| {
            let mut bytes = [0; INLINE];
            for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            Some(Box::new((bytes, length)))
        };
        match &written.body {
            RequestData::Pieces(pieces, count) => own(&pieces[..*count]),
            RequestData::Memory(local, remote) => {
                own(&[*local]);
                (request.address, request.key) = (remote.address, remote.key);
            }
            RequestData::Carried(words, length) => request.inline = carried(words, *length),
            RequestData::CarriedTo(words, length, remote) => {
                request.inline = carried(words, *length);
                (request.address, request.key) = (remote.address, remote.key);
            }
        }
        request
    }

    /// Puts the queue pair in error because of a request that was never in flight.
    fn break_off(
        &self,
        intake: &mut RingProgress,
        sender: &mut SendSide,
        identity: RequestIdentity,
        why: &dyn Display,
    ) {
        self.say_broken(intake, why);
        sender.end(identity, status::INTERNAL);
        sender.end_all(status::FLUSHED);
    }

    fn say_broken(&self, intake: &mut RingProgress, why: &dyn Display) {
        if !std::mem::replace(&mut intake.is_broken, true) {
            eprintln!("soft_efa: queue pair {}: {why}; it is in error", self.number());
        }
    }

    fn take_receives(&self, rings: &PairRings, intake: &mut RingProgress) -> bool {
        let ring: &DeviceRing = &rings.receive;
        let doorbell = ring.rung();
        let new = doorbell.wrapping_sub(intake.receives as u16);
        if new == 0 {
            return false;
        }
        let mut receiver = locked(&self.receiver);
        let before = intake.receives;
        for _ in 0..new {
            if let Some(piece) = ReceivePiece::decode(ring.words(intake.receives as u32)) {
                let open = intake.open;
                if !self.take_receive(&piece, intake, &mut receiver) {
                    // The page is full: the piece stays in the ring until there is space.
                    intake.open = open;
                    break;
                }
            }
            intake.receives += 1;
        }
        intake.receives != before
    }

    /// Takes one piece of a receive. Returns whether there was space for it.
    fn take_receive(&self, piece: &ReceivePiece, intake: &mut RingProgress, receiver: &mut Receiver) -> bool {
        if piece.first {
            intake.open = Some((PostedReceive { wr_id: piece.id.into(), ..PostedReceive::default() }, 0));
        }
        let Some((mut posted, count)) = intake.open.take() else { return true };
        let Origin { context, page, .. } = &*self.origin;
        let range = Range { address: piece.address, bytes: piece.length.into(), access: FILLED, domain: page.domain() };
        let is_good = count < RECEIVE_PIECES && (piece.length == 0 || context.table.allows(piece.key, range));
        if !is_good {
            let refused = Arrival { wr_id: Some(posted.wr_id), status: status::INVALID_LKEY, ..Arrival::default() };
            let has_room = page.put(&refused);
            receiver.posted += u32::from(has_room);
            return has_room;
        }
        posted.pieces[count] = (piece.address, piece.length.into());
        if !piece.last {
            intake.open = Some((posted, count + 1));
            return true;
        }
        let has_room = page.post(&posted);
        receiver.posted += u32::from(has_room);
        has_room
    }
}

impl RingProgress {
    /// Returns the address of handle `number` of this domain.
    fn gid(&mut self, context: &DeviceContext, number: u16, domain: u32) -> Option<Gid> {
        let version = context.handles.version();
        if self.handles.0 != version || self.handles.1.is_empty() {
            self.handles = (version, context.gids(domain));
        }
        self.handles.1.get(usize::from(number)).copied().flatten()
    }
}

/// Returns the identity of the request in the slot of request `number`.
fn identity(ring: &DeviceRing, number: u64) -> RequestIdentity {
    RequestIdentity::of(&ring.words::<WORDS>(number as u32))
}

fn status_of(malformed: Malformed) -> u32 {
    match malformed {
        Malformed::Key(_) => status::INVALID_LKEY,
        Malformed::Lengths(..) | Malformed::Carried(_) => status::BAD_LENGTH,
        Malformed::NotARequest | Malformed::Operation(_) | Malformed::Reserved | Malformed::Pieces(_) => {
            status::UNSUPPORTED
        }
    }
}
