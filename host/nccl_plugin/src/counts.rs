//! What goes and comes, by peer, and puts one by one.

use serde::Serialize;

/// Sizes are counted by powers of two: class `i` holds those below `2^i` bytes that no smaller class has.
const CLASSES: usize = 48;

/// What has gone to one peer, or come from it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Flow {
    /// Puts, those of no bytes too.
    pub puts: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Signals.
    pub signals: u64,
    /// The sum of what they add.
    pub added: u64,
    /// Gets.
    pub gets: u64,
    /// Their bytes.
    pub get_bytes: u64,
    /// Puts by size: pairs of the power of two that a size is below, and how many.
    pub sizes: Vec<(u64, u64)>,
    /// Of puts that have come: nanoseconds from NCCL's call there to the copy into memory here, in all. One machine's clock.
    pub delivery_ns: u64,
    /// The longest.
    pub slowest_ns: u64,
}

impl Flow {
    fn put(&mut self, bytes: u64, signal: Option<u64>) {
        self.puts += 1;
        self.bytes += bytes;
        if let Some(add) = signal {
            self.signals += 1;
            self.added = self.added.wrapping_add(add);
        }
        let below = if bytes == 0 { 0 } else { 1u64 << (64 - bytes.leading_zeros()).min(CLASSES as u32) };
        match self.sizes.binary_search_by_key(&below, |(below, _)| *below) {
            Ok(at) => self.sizes[at].1 += 1,
            Err(at) => self.sizes.insert(at, (below, 1)),
        }
    }
}

/// One put, for a trace.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// `put`, `get`, or `arrival`: a put of the peer that has come here.
    pub kind: &'static str,
    /// The other rank.
    pub peer: usize,
    /// Of the operations to that peer (of an arrival: of the peer's operations to us), from 1.
    pub number: u64,
    /// NCCL's context.
    pub context: u16,
    /// Bytes.
    pub bytes: u64,
    /// NCCL's call: nanoseconds of the system's monotonic clock.
    pub asked_ns: u64,
    /// It was complete; of an arrival: it was in memory.
    pub done_ns: u64,
    /// Region and offset of its signal, and the value that was reached there where this plugin knows it (0 otherwise).
    pub signal: Option<(u32, u64, u64)>,
    /// What the signal adds.
    pub add: u64,
}

/// What is counted.
#[derive(Debug)]
pub struct Counts {
    /// By peer: what has gone to it.
    pub to: Vec<Flow>,
    /// By peer: what has come from it.
    pub from: Vec<Flow>,
    /// Puts one by one.
    pub trace: Vec<Entry>,
    room: usize,
    /// Those that the trace had no room for.
    pub missed: u64,
}

impl Counts {
    /// Of so many peers, with room for so many puts.
    pub fn new(ranks: usize, room: usize) -> Counts {
        Counts {
            to: vec![Flow::default(); ranks],
            from: vec![Flow::default(); ranks],
            trace: Vec::new(),
            room,
            missed: 0,
        }
    }

    /// A put of ours.
    pub fn put(&mut self, peer: usize, bytes: u64, signal: Option<u64>) {
        if let Some(flow) = self.to.get_mut(peer) {
            flow.put(bytes, signal);
        }
    }

    /// A get of ours.
    pub fn get(&mut self, peer: usize, bytes: u64) {
        if let Some(flow) = self.from.get_mut(peer) {
            flow.gets += 1;
            flow.get_bytes += bytes;
        }
    }

    /// A put of a peer is in memory.
    pub fn arrived(&mut self, peer: usize, bytes: u64, signal: Option<u64>, took_ns: u64) {
        if let Some(flow) = self.from.get_mut(peer) {
            flow.put(bytes, signal);
            flow.delivery_ns += took_ns;
            flow.slowest_ns = flow.slowest_ns.max(took_ns);
        }
    }

    /// Whether single puts are recorded.
    pub fn traces(&self) -> bool {
        self.room > 0
    }

    /// Records one.
    pub fn note(&mut self, entry: Entry) {
        if self.trace.len() < self.room {
            self.trace.push(entry);
        } else {
            self.missed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puts_are_counted_by_peer_and_size() {
        let mut counts = Counts::new(2, 1);
        for bytes in [0, 1, 8, 15, 16] {
            counts.put(1, bytes, (bytes == 8).then_some(3));
        }
        counts.put(7, 1, None);
        let to = &counts.to[1];
        assert_eq!((to.puts, to.bytes, to.signals, to.added), (5, 40, 1, 3));
        assert_eq!(to.sizes, [(0, 1), (2, 1), (16, 2), (32, 1)]);
        counts.arrived(0, 8, Some(2), 50);
        counts.arrived(0, 8, None, 20);
        assert_eq!((counts.from[0].delivery_ns, counts.from[0].slowest_ns, counts.from[0].added), (70, 50, 2));
    }
}
