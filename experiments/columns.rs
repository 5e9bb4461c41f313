//! Columns that several experiments have in addition to the common ones.

use ginlab::report::{Column, Row};
use std::time::Duration;

/// Operations in flight.
pub const WINDOW: Column =
    Column::follows("window", "", "Maximum number of operations in flight per producer or target");
/// Distance in bytes between consecutive slots.
pub const SLOT_BYTES: Column = Column::follows("slot_bytes", "B", "Distance between consecutive slots");
/// Level at which an operation counts as complete.
pub const COMPLETION: Column = Column::follows("completion", "", "Completion level: `transmit`, `delivery`, `proxy`");
/// Number of posts that the provider rejected with EAGAIN.
pub const AGAIN: Column =
    Column::measured("eagain", "", "Number of posts of all ranks that the provider rejected with EAGAIN");
/// Payload bytes per rail.
pub const RAIL_BYTES: Column =
    Column::measured("rail_bytes", "B", "Payload bytes per rail, sum over all ranks, joined by `;`");
/// Percentiles of the time of a single operation, from post to completion.
pub const ACK: [Column; 3] = [
    Column::measured("ack_us_p50", "us", "Median time of one operation until it is acknowledged"),
    Column::measured("ack_us_p99", "us", "99th percentile of that time"),
    Column::measured("ack_us_p999", "us", "99.9th percentile of that time"),
];
/// Median time until all operations are posted.
pub const POST: Column = Column::measured(
    "post_us_p50",
    "us",
    "Median time until all operations were posted, without waiting for completion",
)
.shown("post", 7);
/// Threads that push or issue puts.
pub const SCOPE: Column = Column::chosen("scope", "", "Threads that put: `thread`, `warp`, `block`");
/// Times of the start of a run, on rank 0: registration, insertion of addresses, and the first two operations.
pub const COLD: [Column; 4] = [
    Column::measured("register_us", "us", "Time to register the source on all rails; in the first rows of a run"),
    Column::measured(
        "insert_us",
        "us",
        "Time to insert the addresses of one rank on all rails, mean over all ranks; in the first rows of a run",
    ),
    Column::measured(
        "first_us",
        "us",
        "Time of the first operation of this case, before any verification; in the first row of each number of rails",
    ),
    Column::measured("second_us", "us", "Time of the operation after it"),
];
/// Alignments of the target and the source of random shapes.
pub const ALIGNMENT: Column = Column::chosen(
    "alignment",
    "",
    "Alignment of target and source of random shapes: the remainders of both addresses by 16, joined by `/`",
);
/// Number of slots of a ring.
pub const RING_SLOTS: Column = Column::follows("ring_slots", "", "Slots of a ring");
/// Imbalance of the load of rails.
pub const IMBALANCE: Column = Column::measured(
    "imbalance_pct",
    "%",
    "Excess of the busiest rail of a rank over the mean of its rails; maximum over all ranks",
);
/// Rule that orders a put and its signal on rails.
pub const RULE: Column = Column::chosen(
    "rule",
    "",
    "Rule that keeps a put and its signal in order on rails: count, own, drain, sequence, kernel",
);
/// Number of proxy threads of a rank.
pub const PROXIES: Column = Column::chosen("proxies", "", "Proxy threads per rank, if rails are used");
/// Bus bandwidth as defined by nccl-tests.
pub const BUSBW: Column = Column::measured(
    "busbw_gbytes_s",
    "GB/s",
    "Bandwidth of the bytes that cross the wires: `algbw` times 2 (n - 1) / n for all-reduce, (n - 1) / n for \
     all-to-all, all-gather and reduce-scatter, 1 otherwise",
);
/// Upper bound of the bus bandwidth.
pub const CEILING: Column = Column::measured(
    "ceiling_gbytes_s",
    "GB/s",
    "Upper bound of the bus bandwidth, by the wires, for this operation and these nodes",
);
/// Bus bandwidth in percent of [`CEILING`].
pub const CEILING_PCT: Column = Column::measured("ceiling_pct", "%", "Bus bandwidth in percent of that bound");
/// Maximum bytes of one put.
pub const PACKET: Column = Column::chosen("packet_bytes", "B", "Maximum bytes of one put; empty if unlimited");
/// Route of an all-to-all to other nodes.
pub const ROUTE: Column = Column::chosen(
    "route",
    "",
    "`direct`: each GPU writes to each other one; `gathered`: over NVLink to the GPU at the target's position, which \
     writes one block for its machine",
);
/// Method of sharing GPUs between PEs.
pub const SHARING: Column = Column::follows(
    "sharing",
    "",
    "How PEs shared GPUs: `none` (each has its own), `one-process` (concurrent threads of one process), `mps` \
     (concurrent), `time-slices` (alternating slices of about 2 ms); empty on the emulated device",
);

/// Times of the start of a run on one rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cold {
    /// Time to register the source on all rails.
    pub register: Option<Duration>,
    /// Time to insert the addresses of all ranks on all rails.
    pub insert: Duration,
}

impl Cold {
    /// Sets the columns [`COLD`] of a row with the microseconds of the first two operations of its case. `ranks` is the
    /// number of ranks.
    /// Sets none if there are no such operations.
    pub fn fill(&self, row: &mut Row, singles: &[f64], ranks: usize) {
        if singles.is_empty() {
            return;
        }
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let [register, insert, first, second] = &COLD;
        row.set(register, self.register.map(micros)).set(insert, micros(self.insert) / ranks as f64);
        row.set(first, singles.first().copied()).set(second, singles.get(1).copied());
    }
}
