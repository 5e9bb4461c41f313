//! What C, or a device, has written into the rings of a queue pair: taken by the card when the doorbell says so, and held against the rules.
//!
//! A card that is misused stops the pair: the request in question completes with status 2, all others with status 1, and a line on
//! stderr says what the rule is. A real card has no words for it.

use crate::address::Gid;
use crate::context::Context;
use crate::flight::Sender;
use crate::locked;
use crate::memory::{FILLED, Range};
use crate::origin::Origin;
use crate::pair::{Intake, Pair, Receiver};
use crate::queue::{Arrival, RECEIVE_PIECES, Receive as Posted};
use crate::request::{INLINE, Kind, Request};
use crate::rings::{Ring, Rings};
use crate::status;
use efa_queue::request::{Body, Malformed, WORDS, WORDS_128};
use efa_queue::rules::{Refused, rung};
use efa_queue::{Operation, Receive, Request as Written};
use std::sync::atomic::Ordering;

/// Receives that peers have filled, reads and writes of peers: which of C's operations they are.
const REMOTE: [usize; 3] = [1, 3, 5];

impl Pair {
    /// The card's look at the rings and at what peers have done; whether anything has moved.
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

    fn take_sends(&self, rings: &Rings, intake: &mut Intake, sender: &mut Sender) -> bool {
        let ring = &rings.send;
        if self.origin.context.machine.is_full() {
            return false;
        }
        let doorbell = ring.rung();
        if doorbell == intake.sends as u16 {
            self.look_ahead(rings, intake, sender);
            return false;
        }
        let ended = intake.sends.saturating_sub(u64::from(sender.under_way()));
        let count = match rung(intake.sends, ended, doorbell.into(), ring.entries, ring.entries) {
            Ok(count) => count,
            Err(refused) => {
                self.say_broken(intake, &rule(refused, ring.entries));
                // The oldest that is under way bears it, or where none is, what stands before the doorbell.
                if !sender.end_all(status::INTERNAL) {
                    let id = ring.words::<1>(u32::from(doorbell).wrapping_sub(1))[0] & 0xffff;
                    sender.end(id, Kind::Send, status::INTERNAL);
                }
                // From here on, whatever the count is.
                let new = doorbell.wrapping_sub(intake.sends as u16) as i16;
                intake.sends = intake.sends.saturating_add_signed(new.into());
                return true;
            }
        };
        while intake.sends < count {
            let number = intake.sends as u32;
            intake.sends += 1;
            if ring.entry == WORDS_128 * 8 {
                self.take_send(&ring.words::<WORDS_128>(number), ring.phase(number), intake, sender);
            } else {
                self.take_send(&ring.words::<WORDS>(number), ring.phase(number), intake, sender);
            }
        }
        true
    }

    /// The card has room for so many requests behind the doorbell: the next one is there, and the doorbell has not come.
    fn look_ahead(&self, rings: &Rings, intake: &mut Intake, sender: &mut Sender) {
        let ring = &rings.send;
        let number = (intake.sends as u32).wrapping_add(rings.max_batch);
        let [first] = ring.words::<1>(number);
        let is_written = first >> 23 & 1 != 0 && first >> 24 & 1 == u64::from(ring.phase(number));
        if intake.is_broken || !is_written || rings.max_batch >= ring.entries {
            return;
        }
        // Whoever writes it has rung for those before, with a fence in between: pairs with that one.
        std::sync::atomic::fence(Ordering::Acquire);
        if ring.rung() == intake.sends as u16 {
            let text = format!("more than max_batch = {} requests are written and not rung for", rings.max_batch);
            self.break_off(intake, sender, first & 0xffff, &text);
        }
    }

    fn take_send(&self, words: &[u64], phase: u8, intake: &mut Intake, sender: &mut Sender) {
        let id = words[0] & 0xffff | words[3] & !0xffff;
        if intake.is_broken {
            sender.end(id, Kind::Send, status::FLUSHED);
            return;
        }
        if self.origin.context.machine.breaks() {
            self.break_off(intake, sender, id, "the card finds it in error, as it was told to");
            return;
        }
        if words[0] >> 24 & 1 != u64::from(phase) {
            let text = "a request behind the doorbell has the phase of the lap before: its words were not there";
            self.break_off(intake, sender, id, text);
            return;
        }
        match Written::decode(words) {
            Ok(written) => {
                let request = self.request(&written, intake, !Written::asks_for_completion(words));
                sender.begin(request);
            }
            Err(Malformed::NotARequest) => {
                self.break_off(intake, sender, id, "what is behind the doorbell is no request");
            }
            Err(malformed) => sender.end(id, Kind::Send, status_of(malformed)),
        }
    }

    fn request(&self, written: &Written, intake: &mut Intake, is_silent: bool) -> Request {
        let Origin { context, page, .. } = &*self.origin;
        let head = &written.head;
        let mut request = Request {
            wr_id: head.id,
            kind: match written.operation {
                Operation::Send => Kind::Send,
                Operation::Write => Kind::Write,
                Operation::Read => Kind::Read,
            },
            number: head.to.pair.into(),
            qkey: head.to.key,
            // As C has it, who sees the bytes of the network.
            immediate: head.immediate.map(u32::to_be),
            is_silent,
            domain: page.domain(),
            ..Request::default()
        };
        match intake.gid(context, head.to.handle, page.domain()) {
            Some(gid) => request.gid = gid,
            // No domain has this number: status 4.
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
            Body::Pieces(pieces, count) => own(&pieces[..*count]),
            Body::Memory(local, remote) => {
                own(&[*local]);
                (request.address, request.key) = (remote.address, remote.key);
            }
            Body::Carried(words, length) => request.inline = carried(words, *length),
            Body::CarriedTo(words, length, remote) => {
                request.inline = carried(words, *length);
                (request.address, request.key) = (remote.address, remote.key);
            }
        }
        request
    }

    /// A request that was never under way stops the pair.
    fn break_off(&self, intake: &mut Intake, sender: &mut Sender, id: u64, why: &str) {
        self.say_broken(intake, why);
        sender.end(id, Kind::Send, status::INTERNAL);
        sender.end_all(status::FLUSHED);
    }

    fn say_broken(&self, intake: &mut Intake, why: &str) {
        if !std::mem::replace(&mut intake.is_broken, true) {
            eprintln!("soft_efa: queue pair {}: {why}; it is in error", self.number());
        }
    }

    fn take_receives(&self, rings: &Rings, intake: &mut Intake) -> bool {
        let ring: &Ring = &rings.receive;
        let doorbell = ring.rung();
        let new = doorbell.wrapping_sub(intake.receives as u16);
        if new == 0 {
            return false;
        }
        let mut receiver = locked(&self.receiver);
        for _ in 0..new {
            let piece = Receive::decode(ring.words(intake.receives as u32));
            intake.receives += 1;
            let Some(piece) = piece else { continue };
            self.take_receive(&piece, intake, &mut receiver);
        }
        true
    }

    fn take_receive(&self, piece: &Receive, intake: &mut Intake, receiver: &mut Receiver) {
        if piece.first {
            intake.open = Some((Posted { wr_id: piece.id.into(), ..Posted::default() }, 0));
        }
        let Some((mut posted, count)) = intake.open.take() else { return };
        let Origin { context, page, .. } = &*self.origin;
        let range = Range { address: piece.address, bytes: piece.length.into(), access: FILLED, domain: page.domain() };
        let is_good = count < RECEIVE_PIECES && (piece.length == 0 || context.table.allows(piece.key, range));
        if !is_good {
            receiver.posted += 1;
            page.put(&Arrival { wr_id: Some(posted.wr_id), status: status::INVALID_LKEY, ..Arrival::default() });
            return;
        }
        posted.pieces[count] = (piece.address, piece.length.into());
        if !piece.last {
            intake.open = Some((posted, count + 1));
        } else if page.post(&posted) {
            receiver.posted += 1;
        }
    }
}

impl Intake {
    /// The address of a handle of this domain.
    fn gid(&mut self, context: &Context, number: u16, domain: u32) -> Option<Gid> {
        let version = context.handles.version();
        if self.handles.0 != version || self.handles.1.is_empty() {
            self.handles = (version, context.gids(domain));
        }
        self.handles.1.get(usize::from(number)).copied().flatten()
    }
}

fn rule(refused: Refused, depth: u32) -> String {
    match refused {
        Refused::Back(by) => format!("the doorbell went back by {by}"),
        Refused::Batch(count) | Refused::Depth(count) => {
            format!("{count} requests are under way, and the queue has {depth} slots")
        }
    }
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
