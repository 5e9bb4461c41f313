//! Puts and gets: the way from the post to the completion.

use super::claims::{Claim, Claimed, Use};
use super::flight::{Flight, packets};
use super::{Due, OUTSTANDING, WorstRail, WorstRegion, bytes, faults};
use crate::same_host::peers::{self, failed};
use crate::{Completion, FabricError, Post, Transfer, mistake};

impl WorstRail {
    /// Posts a put, or a get.
    pub(super) fn post(&mut self, region: &WorstRegion, t: &Transfer, read: bool) -> Result<Post, FabricError> {
        if t.bytes > self.spec.longest {
            let text = format!("a transfer has at most {} B here", self.spec.longest);
            return Err(mistake(&self.name, peers::operation(t), text));
        }
        let mut flight = Flight {
            transfer: Transfer { more: false, ..*t },
            read,
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
            return Err(mistake(&self.name, peers::operation(t), "there is no such peer, or its process has ended"));
        } else if self.flights.len() >= OUTSTANDING || self.answers_again() {
            return Ok(Post::Again);
        }
        self.events += 1;
        self.last += 1;
        let key = self.last;
        // The whole transfer is as late as its last packet.
        let longest = self.law.delay();
        let last = self.law.below(flight.packets.len() as u64) as usize;
        for packet in 0..flight.packets.len() {
            let delay = if packet == last { longest } else { self.law.below(longest + 1) };
            self.put_off(delay, Due::Packet(key, packet));
        }
        let is_empty = flight.packets.is_empty();
        self.flights.insert(key, flight);
        if is_empty {
            self.put_off(longest, Due::Packet(key, 0));
        }
        Ok(Post::Accepted)
    }

    /// Cuts, claims and poisons; false when there is no room for a claim now.
    fn prepare(&mut self, flight: &mut Flight, region: &WorstRegion, at: u64) -> Result<bool, FabricError> {
        let (t, read) = (flight.transfer, flight.read);
        let (there, here) = ((t.remote.key, at), region.near.place(t.local_offset));
        let cuts = self.law.cut(t.bytes);
        // SAFETY: `reach` has found both stretches in memory that is mapped here; the local one is the caller's contract.
        unsafe { bytes::take(&mut self.bounce, flight.from, t.bytes) };
        let (packets, sum) = packets(&self.bounce, &cuts);
        (flight.missing, flight.packets) = (packets.len(), packets);
        let peer = self.peers.get(t.peer).map_or(0, |peer| peer.inbox.pid);
        let is_own =
            |(key, first): (u64, u64)| peer == std::process::id() && key == there.0 && first.abs_diff(at) < t.bytes;
        if !read && here.is_some_and(is_own) {
            // Onto itself, where nothing changes and nothing can be watched.
            let same = here == Some(there);
            return if same { Ok(true) } else { Err(faults::itself(&self.name, &t, flight.region)) };
        }
        let claim = |usage, (file, offset), in_region| Claim {
            usage,
            who: self.who,
            pid: std::process::id(),
            token: t.token,
            file,
            offset,
            bytes: t.bytes,
            in_region,
        };
        let theirs = self.tables[t.peer].0.clone();
        let far = (theirs, claim(if read { Use::Source } else { Use::Put(sum) }, there, t.remote_offset));
        // Two gets from one place bring the same.
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
                // Nobody knows what stands there: it is left alone.
                Ok(Claimed::Meets(_)) if !self.spec.watch => beside = true,
                Ok(Claimed::Full) => {
                    flight.close();
                    return Ok(false);
                }
                Ok(Claimed::Meets(other)) => {
                    flight.close();
                    return Err(faults::twice(&self.name, &t, read, flight.region, &other));
                }
                Err(error) => {
                    flight.close();
                    return Err(error);
                }
            }
        }
        let Some(poison) = self.poison().filter(|_| !beside) else { return Ok(true) };
        // Bytes that stand there already, or that another put of the same bytes may have brought: no reader ever finds others.
        // SAFETY: as above; the destination is this transfer's until its completion.
        let stand = unsafe { bytes::stand(&self.bounce, flight.to) };
        if !stand {
            // SAFETY: as above.
            unsafe { bytes::fill(flight.to, t.bytes, poison) };
        }
        Ok(true)
    }

    /// A packet arrives, perhaps not for the first time.
    pub(super) fn deliver(&mut self, key: u64, number: usize) {
        let Some(flight) = self.flights.get_mut(&key) else { return };
        if let Some(packet) = flight.packets.get_mut(number) {
            if flight.closed {
                return;
            }
            // SAFETY: both stretches were found at the post. The source is the poster's until the completion, which is behind this; the
            // flight keeps the peer's memory mapped.
            unsafe { bytes::take(&mut self.bounce, flight.from + packet.at, packet.bytes) };
            if self.spec.watch && !flight.read && crc32fast::hash(&self.bounce) != packet.sum {
                let error = faults::rewritten(&self.name, &flight.transfer, flight.region, packet.at);
                return self.fail(key, error);
            }
            // SAFETY: as above.
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
            // Each at an event of its own.
            let delays = [1 + self.law.delay(), 1 + self.law.delay()];
            if signals {
                self.put_off(delays[0], Due::Signal(key));
            }
            self.put_off(delays[1], Due::Complete(key));
        }
    }

    /// The immediate goes to the target's rail, which tells it when it likes; false when that has to take earlier ones first.
    pub(super) fn signal(&mut self, key: u64) -> bool {
        let watch = self.spec.watch;
        let Some(flight) = self.flights.get_mut(&key) else { return true };
        let Some(immediate) = flight.signal else { return true };
        // Until now the source might have been read again.
        if watch && let Some(at) = flight.changed(&mut self.bounce) {
            let error = faults::rewritten(&self.name, &flight.transfer, flight.region, at);
            self.fail(key, error);
            return true;
        }
        match self.peers.signal(&self.name, &flight.transfer, immediate) {
            Ok(false) => return false,
            Ok(true) => {
                flight.signal = None;
                flight.close();
            }
            Err(error) => self.fail(key, error),
        }
        true
    }

    /// A flight is complete, once its immediate has left: the target needs nothing of its sender any more.
    pub(super) fn complete(&mut self, key: u64) {
        if !self.signal(key) {
            return self.put_off(1, Due::Complete(key));
        }
        let Some(flight) = self.flights.get_mut(&key) else { return };
        // The target's answer proves that nothing is read any more, but not by libfabric's letter.
        if self.spec.watch
            && (!flight.closed || self.spec.strict)
            && let Some(at) = flight.changed(&mut self.bounce)
        {
            let error = faults::rewritten(&self.name, &flight.transfer, flight.region, at);
            return self.fail(key, error);
        }
        flight.close();
        let token = flight.transfer.token;
        self.flights.remove(&key);
        self.ready.push(Completion::Done { token });
    }

    fn fail(&mut self, key: u64, error: FabricError) {
        if let Some(mut flight) = self.flights.remove(&key) {
            flight.close();
            self.end(flight.transfer.token, error);
        }
    }
}
