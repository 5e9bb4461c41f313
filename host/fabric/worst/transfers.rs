//! Puts and gets, from the post to the completion.

use super::claims::{Claim, Claimed, Use};
use super::flight::{Flight, Packet, packets};
use super::traffic::End;
use super::{Due, OUTSTANDING, WorstRail, WorstRegion, bytes, faults};
use crate::same_host::peers::{self, failed};
use crate::{Completion, FabricError, Post, Transfer, mistake};

impl WorstRail {
    /// Posts a put, or a get.
    pub(super) fn post(&mut self, region: &WorstRegion, t: &Transfer, read: bool) -> Result<Post, FabricError> {
        if t.bytes > self.spec.longest {
            let text = format!("a transfer can have at most {} B", self.spec.longest);
            return Err(mistake(&self.name, peers::operation(t), text));
        }
        let (other, command) = (self.rank_of(t.peer), (self.who.proxy, t.token));
        let number = match t.bytes {
            0 => 0,
            _ => self.ours.traffic.number(self.line(t, other), command, read),
        };
        let mut flight = Flight {
            transfer: Transfer { more: false, ..*t },
            read,
            other,
            number,
            posted: self.ours.tick(),
            region: region.number,
            from: 0,
            to: 0,
            file: None,
            packets: Vec::new(),
            missing: 0,
            signal: t.immediate.filter(|_| !read),
            closed: false,
            claims: Vec::new(),
        };
        if t.bytes > 0 {
            let (file, at) = self.peers.reach(&self.name, &region.near, t)?;
            flight.file = Some(file.clone());
            let (here, there) = (region.near.address + t.local_offset, file.address() + at);
            (flight.from, flight.to) = if read { (there, here) } else { (here, there) };
            if self.flights.len() >= OUTSTANDING || self.answers_again() {
                return Ok(Post::Again);
            }
            if !self.prepare(&mut flight, region, at)? {
                return Ok(Post::Again);
            }
        } else if self.peers.get(t.peer).is_none_or(|peer| peer.has_ended) {
            return Err(mistake(&self.name, peers::operation(t), "no such peer, or its process exited"));
        } else if self.flights.len() >= OUTSTANDING || self.answers_again() {
            return Ok(Post::Again);
        }
        self.events += 1;
        self.last += 1;
        let key = self.last;
        // The delay of the whole transfer is that of its last packet.
        let longest = self.law.delay();
        let last = self.law.below(flight.packets.len() as u64) as usize;
        for packet in 0..flight.packets.len() {
            let delay = if packet == last { longest } else { self.law.below(longest + 1) };
            self.put_off(delay, Due::Packet(key, packet));
        }
        let is_empty = flight.packets.is_empty();
        if !is_empty && !read {
            self.ours.traffic.sent(other, (flight.from, t.bytes), flight.posted);
        }
        self.flights.insert(key, flight);
        if is_empty {
            self.put_off(longest, Due::Packet(key, 0));
        }
        Ok(Post::Accepted)
    }

    /// Splits a transfer into packets, claims its bytes and poisons the destination. Returns `false` if a table of
    /// claims is full.
    fn prepare(&mut self, flight: &mut Flight, region: &WorstRegion, at: u64) -> Result<bool, FabricError> {
        let (t, read) = (flight.transfer, flight.read);
        let (there, here) = ((t.remote.key, at), region.near.place(t.local_offset));
        let cuts = self.law.cut(t.bytes);
        // SAFETY: `reach` has checked that both ranges are in memory that is mapped here, and the caller guarantees
        // that the local one is valid.
        unsafe { bytes::take(&mut self.bounce, flight.from, t.bytes) };
        let (packets, sum) = packets(&self.bounce, &cuts);
        (flight.missing, flight.packets) = (packets.len(), packets);
        let peer = self.peers.get(t.peer).map_or(0, |peer| peer.inbox.pid);
        let is_own =
            |(key, first): (u64, u64)| peer == std::process::id() && key == there.0 && first.abs_diff(at) < t.bytes;
        if !read && here.is_some_and(is_own) {
            // A put onto its own source changes nothing, so it cannot be checked.
            let same = here == Some(there);
            return if same { Ok(true) } else { Err(faults::itself(&self.name, self.who.rank, flight)) };
        }
        let claim = |usage, (file, offset), in_region| Claim {
            usage,
            signals: t.immediate.is_some(),
            who: self.who,
            other: flight.other,
            number: flight.number,
            home: self.home,
            pid: std::process::id(),
            file,
            offset,
            bytes: t.bytes,
            in_region,
        };
        let theirs = self.tables[t.peer].0.clone();
        let far = (theirs, claim(if read { Use::Source } else { Use::Put(sum) }, there, t.remote_offset));
        // Two gets from one place write the same bytes.
        let origin = crc32fast::hash([u64::from(peer), there.0, there.1].map(u64::to_le_bytes).as_flattened());
        let near =
            here.filter(|_| read).map(|here| (self.ours.clone(), claim(Use::Sink(origin), here, t.local_offset)));
        let mut beside = false;
        for (table, claim) in std::iter::once(far).chain(near) {
            let claimed = table.claim(&claim).map_err(|error| failed(&self.name, peers::operation(&t), &error));
            match claimed {
                Ok(Claimed::Taken { number, beside: other }) => {
                    flight.claims.push((table, number));
                    beside |= other;
                }
                // The content of the destination is unknown, so it is not poisoned.
                Ok(Claimed::Meets(_)) if !self.spec.watch => beside = true,
                Ok(Claimed::Full) => {
                    flight.close();
                    return Ok(false);
                }
                Ok(Claimed::Meets(other)) => {
                    flight.close();
                    return Err(faults::twice(&self.name, self.who.rank, flight, &other));
                }
                Err(error) => {
                    flight.close();
                    return Err(error);
                }
            }
        }
        let Some(poison) = self.poison().filter(|_| !beside) else { return Ok(true) };
        // A destination that already contains the bytes, from an earlier put or from another put of the same bytes, is
        // not poisoned: no reader may observe other bytes. SAFETY: the range was checked above, and the destination
        // belongs to this transfer until its completion.
        let stand = unsafe { bytes::stand(&self.bounce, flight.to) };
        if !stand {
            // SAFETY: the range was checked above, and the destination belongs to this transfer until its completion.
            unsafe { bytes::fill(flight.to, t.bytes, poison) };
        }
        Ok(true)
    }

    /// Delivers a packet, possibly again.
    pub(super) fn deliver(&mut self, key: u64, number: usize) {
        let Some(flight) = self.flights.get_mut(&key) else { return };
        if let Some(packet) = flight.packets.get_mut(number) {
            if flight.closed {
                return;
            }
            // SAFETY: both ranges were checked at the post. The poster keeps the source valid until the completion,
            // reported after this, and the flight keeps the peer's memory mapped.
            unsafe { bytes::take(&mut self.bounce, flight.from + packet.at, packet.bytes) };
            if self.spec.watch && !flight.read && crc32fast::hash(&self.bounce) != packet.sum {
                let packet = *packet;
                return self.fail_rewritten(key, packet);
            }
            // SAFETY: both ranges were checked at the post, and the flight keeps the peer's memory mapped.
            unsafe { bytes::store(&self.bounce, flight.to + packet.at) };
            let first = !std::mem::replace(&mut packet.arrived, true);
            flight.missing -= usize::from(first);
            if self.law.happens(self.spec.resend) {
                let delay = 1 + self.law.delay();
                self.put_off(delay, Due::Packet(key, number));
            }
            if !first {
                return;
            }
        }
        let Some(flight) = self.flights.get(&key) else { return };
        if flight.missing == 0 {
            let signals = flight.signal.is_some();
            // Each is reported at its own event.
            let delays = [1 + self.law.delay(), 1 + self.law.delay()];
            if signals {
                self.put_off(delays[0], Due::Signal(key));
            }
            self.put_off(delays[1], Due::Complete(key));
        }
    }

    /// Sends the immediate to the target's rail, which reports it later. Returns `false` if that rail must take earlier
    /// immediates first.
    pub(super) fn signal(&mut self, key: u64) -> bool {
        let watch = self.spec.watch;
        let Some(flight) = self.flights.get_mut(&key) else { return true };
        let Some(immediate) = flight.signal else { return true };
        // Up to this point, the source could be read again.
        if watch && let Some(packet) = flight.changed(&mut self.bounce) {
            self.fail_rewritten(key, packet);
            return true;
        }
        // The time is taken before the immediate is sent, so that a put that waits for the immediate has a later time.
        let time = self.ours.tick();
        match self.peers.signal(&self.name, &flight.transfer, immediate) {
            Ok(false) => return false,
            Ok(true) => {
                flight.signal = None;
                flight.close();
                let (t, other, is_bare) = (flight.transfer, flight.other, flight.packets.is_empty());
                self.ours.traffic.signalled(self.line(&t, other), (self.who.proxy, t.token), is_bare, time);
            }
            Err(error) => self.fail(key, error),
        }
        true
    }

    /// Completes a flight once its immediate has been sent. The target then needs nothing further from the sender.
    pub(super) fn complete(&mut self, key: u64) {
        if !self.signal(key) {
            return self.put_off(1, Due::Complete(key));
        }
        let Some(flight) = self.flights.get_mut(&key) else { return };
        // The target's response proves that the source is no longer read, but the libfabric specification does not
        // guarantee this.
        if self.spec.watch
            && (!flight.closed || self.spec.strict)
            && let Some(packet) = flight.changed(&mut self.bounce)
        {
            return self.fail_rewritten(key, packet);
        }
        flight.close();
        let token = flight.transfer.token;
        self.flights.remove(&key);
        self.ready.push(Completion::Done { token });
    }

    /// Returns both ends of a transfer.
    fn line(&self, t: &Transfer, other: u32) -> (End, End) {
        ((self.who.rank, self.home), (other, t.remote.key))
    }

    /// Returns the rank of a peer.
    pub(super) fn rank_of(&self, peer: usize) -> u32 {
        self.tables.get(peer).map_or(u32::MAX, |(_, _, rank)| *rank)
    }

    /// Fails a put whose source has changed.
    #[cold]
    fn fail_rewritten(&mut self, key: u64, packet: Packet) {
        let Some(flight) = self.flights.get(&key) else { return };
        let landed = self.landed((flight.from + packet.at, packet.bytes), flight.other, flight.posted);
        let error = faults::rewritten(&self.name, self.who.rank, flight, packet, landed.as_ref());
        self.fail(key, error);
    }

    fn fail(&mut self, key: u64, error: FabricError) {
        if let Some(mut flight) = self.flights.remove(&key) {
            flight.close();
            self.end(flight.transfer.token, error);
        }
    }
}
