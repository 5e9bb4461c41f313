//! Columns that several experiments have beside the common ones.

use ginlab::report::Column;

/// Operations in flight.
pub const WINDOW: Column = Column::follows("window", "", "Operations in flight per producer or target before it waits");
/// Bytes from one slot to the next.
pub const SLOT_BYTES: Column = Column::follows("slot_bytes", "B", "Bytes from one slot to the next");
/// When an operation counts as complete.
pub const COMPLETION: Column =
    Column::follows("completion", "", "The completion level: `transmit`, `delivery`, `proxy`");
/// How often the provider had no room.
pub const AGAIN: Column = Column::measured("again", "", "How often the provider answered \"again\" to a post");
/// What went over each rail.
pub const RAIL_BYTES: Column = Column::measured("rail_bytes", "B", "Payload bytes per rail, joined by `;`");
/// Single operations, from post to completion.
pub const ACK: [Column; 3] = [
    Column::measured("ack_us_p50", "us", "Median time of one operation until it is acknowledged"),
    Column::measured("ack_us_p99", "us", "99th percentile of it"),
    Column::measured("ack_us_p999", "us", "99.9th percentile of it"),
];
/// Until everything was posted.
pub const POST: Column =
    Column::measured("post_us_p50", "us", "Median time until all was posted, without waiting for completion")
        .shown("post", 7);
/// Who pushes or puts.
pub const SCOPE: Column = Column::chosen("scope", "", "Who puts: `thread`, `warp`, `block`");
/// Slots of a ring.
pub const RING_SLOTS: Column = Column::follows("ring_slots", "", "Slots of a ring");
/// How evenly rails are loaded.
pub const IMBALANCE: Column = Column::measured(
    "imbalance_pct",
    "%",
    "By how many percent the busiest rail of a rank carries more than the mean of its rails; of all ranks the largest",
);
/// How rails keep the order of a put and its signal.
pub const RULE: Column = Column::chosen(
    "rule",
    "",
    "How a put and its signal are kept in order on rails: count, own, drain, sequence, kernel",
);
/// Proxy threads.
pub const PROXIES: Column = Column::chosen("proxies", "", "Proxy threads of a rank, where rails are used");
/// What of an operation crosses the wires, as nccl-tests counts.
pub const BUSBW: Column = Column::measured(
    "busbw_gbytes_s",
    "GB/s",
    "What of it crosses the wires: `algbw` times 2 (n - 1) / n for all-reduce, (n - 1) / n for all-to-all, all-gather and reduce-scatter, 1 otherwise",
);
/// What the wires allow.
pub const CEILING: Column = Column::measured(
    "ceiling_gbytes_s",
    "GB/s",
    "The most bus bandwidth that the wires allow for this operation and these nodes",
);
/// In percent of it.
pub const CEILING_PCT: Column = Column::measured("ceiling_pct", "%", "Bus bandwidth in percent of that");
/// Into what pieces bytes are cut.
pub const PACKET: Column = Column::chosen("packet_bytes", "B", "Bytes of one put at most; empty: as many as there are");
/// How an all-to-all goes to other nodes.
pub const ROUTE: Column = Column::chosen(
    "route",
    "",
    "`direct`: each GPU writes to each; `gathered`: by NVLink to the GPU of the target's place, which writes one block for its machine",
);
/// How PEs of one GPU ran.
pub const SHARING: Column = Column::follows(
    "sharing",
    "",
    "How PEs shared GPUs: `none` (each has its own), `one-process` (side by side: threads of one process), `mps` (side by side), `time-slices` (in turns of about 2 ms); empty on the emulated device",
);
