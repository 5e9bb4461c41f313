//! Statistics of sent and received operations by peer, and a trace of single puts.

use serde::Serialize;

/// Number of size classes. Class `i` contains the sizes below `2^i` bytes that do not belong to a smaller class.
const CLASSES: usize = 48;

/// Totals of the operations sent to one peer, or received from it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PeerTotals {
    /// Number of puts, including those without bytes.
    pub puts: u64,
    /// Total bytes of these puts.
    pub bytes: u64,
    /// Number of signals.
    pub signals: u64,
    /// Sum of the values that the signals add.
    pub added: u64,
    /// Number of gets.
    pub gets: u64,
    /// Total bytes of these gets.
    pub get_bytes: u64,
    /// Number of puts by size class, as pairs of the power of two that bounds the class and the count.
    pub sizes: Vec<(u64, u64)>,
    /// Total time in nanoseconds from NCCL's call on the peer to the copy into memory on this rank, over all puts
    /// received. Valid only if both ranks share a machine, and therefore a clock.
    pub delivery_ns: u64,
    /// Maximum of these times, in nanoseconds.
    pub slowest_ns: u64,
}

impl PeerTotals {
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

/// One operation of a trace.
#[derive(Clone, Debug, Serialize)]
pub struct TraceEntry {
    /// Kind: `put`, `get`, or `arrival` (a put of the peer that has been received).
    pub kind: &'static str,
    /// The other rank.
    pub peer: usize,
    /// Number among the operations to that peer, from 1. For an arrival, the number among the peer's operations to this
    /// rank.
    pub number: u64,
    /// Number of NCCL's context.
    pub context: u16,
    /// Number of bytes.
    pub bytes: u64,
    /// Time of NCCL's call: nanoseconds of the system's monotonic clock.
    pub asked_ns: u64,
    /// Time of completion. For an arrival, the time at which its bytes were in memory.
    pub done_ns: u64,
    /// Region and offset of the signal, and the value that the word then had if this plugin knows it (0 otherwise).
    /// `None` without a signal.
    pub signal: Option<(u32, u64, u64)>,
    /// Value that the signal adds.
    pub add: u64,
}

/// Statistics and trace of a communicator on one rank.
#[derive(Debug)]
pub struct CommunicatorStats {
    /// Totals of operations sent, by peer.
    pub to: Vec<PeerTotals>,
    /// Totals of operations received, by peer.
    pub from: Vec<PeerTotals>,
    /// Trace of single operations.
    pub trace: Vec<TraceEntry>,
    room: usize,
    /// Number of operations that were not traced because the trace was full.
    pub missed: u64,
}

impl CommunicatorStats {
    /// Creates statistics for `ranks` peers, with a trace of up to `room` operations.
    pub fn new(ranks: usize, room: usize) -> CommunicatorStats {
        CommunicatorStats {
            to: vec![PeerTotals::default(); ranks],
            from: vec![PeerTotals::default(); ranks],
            trace: Vec::new(),
            room,
            missed: 0,
        }
    }

    /// Records a put issued by this rank.
    pub fn put(&mut self, peer: usize, bytes: u64, signal: Option<u64>) {
        if let Some(flow) = self.to.get_mut(peer) {
            flow.put(bytes, signal);
        }
    }

    /// Records a get issued by this rank.
    pub fn get(&mut self, peer: usize, bytes: u64) {
        if let Some(flow) = self.from.get_mut(peer) {
            flow.gets += 1;
            flow.get_bytes += bytes;
        }
    }

    /// Records a put of a peer whose bytes are in memory, `took_ns` after NCCL's call on the peer.
    pub fn arrived(&mut self, peer: usize, bytes: u64, signal: Option<u64>, took_ns: u64) {
        if let Some(flow) = self.from.get_mut(peer) {
            flow.put(bytes, signal);
            flow.delivery_ns += took_ns;
            flow.slowest_ns = flow.slowest_ns.max(took_ns);
        }
    }

    /// Returns whether single operations are traced.
    pub fn traces(&self) -> bool {
        self.room > 0
    }

    /// Appends an entry to the trace, or counts it as missed.
    pub fn note(&mut self, entry: TraceEntry) {
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
        let mut counts = CommunicatorStats::new(2, 1);
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
