//! Timing model of a NIC. It has no clock: callers pass the real time, or that of a simulation.

/// A time or duration in picoseconds. Fine enough that a sum over a million writes is exact to the nanosecond.
pub type Picoseconds = u64;

const PER_MICROSECOND: f64 = 1e6;

/// Timing figures of a NIC, with the unit in each name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NicTimings {
    /// Line rate in one direction.
    pub line_rate_gbps: f64,
    /// Fraction of the line rate that the payload of very large writes reaches.
    pub peak_share: f64,
    /// Maximum number of writes that a NIC starts per second, in millions.
    pub rate_per_rail_mops: f64,
    /// Time from the last byte on the wire to its arrival. The acknowledgement takes the same time.
    pub one_way_us: f64,
    /// Half the range over which the one-way latency varies.
    pub one_way_spread_us: f64,
    /// Payload of a packet. After each write the wire is idle for the time of one packet.
    pub mtu_bytes: f64,
    /// Additional time of a write, as a fraction of the time of its bytes at the peak rate.
    pub start_up_share: f64,
    /// Upper limit of this additional time.
    pub start_up_most_us: f64,
    /// Maximum number of writes in the queue of a NIC; further posts are refused.
    pub queue_depth: f64,
}

/// Times of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteTimes {
    /// Time at which the NIC starts to send.
    pub begun: Picoseconds,
    /// Time at which the last byte leaves.
    pub sent: Picoseconds,
    /// Time at which the last byte is in the target's memory.
    pub delivered: Picoseconds,
    /// Time at which the acknowledgement arrives. The write is then complete.
    pub completed: Picoseconds,
}

/// Timing state of one NIC.
#[derive(Clone, Debug)]
pub struct Nic {
    picoseconds_per_byte: f64,
    start_up_share: f64,
    start_up_most: f64,
    interval: Picoseconds,
    idle: Picoseconds,
    one_way_least: Picoseconds,
    one_way_range: Picoseconds,
    /// Time until which the NIC is busy.
    free: Picoseconds,
    seed: u64,
    writes: u64,
}

impl Nic {
    /// Creates an idle NIC. NICs with the same seed have the same variation.
    #[must_use]
    pub fn new(figures: impl Into<NicTimings>, seed: u64) -> Nic {
        let figures = figures.into();
        let picoseconds = |microseconds: f64| (microseconds * PER_MICROSECOND).round() as Picoseconds;
        let bytes_per_second = figures.line_rate_gbps * 1e9 / 8.0 * figures.peak_share;
        let per_byte = 1e12 / bytes_per_second;
        let (one_way, spread) = (figures.one_way_us, figures.one_way_spread_us);
        Nic {
            picoseconds_per_byte: per_byte,
            start_up_share: figures.start_up_share,
            start_up_most: figures.start_up_most_us * PER_MICROSECOND,
            interval: picoseconds(1.0 / figures.rate_per_rail_mops),
            idle: (figures.mtu_bytes * per_byte).round() as Picoseconds,
            one_way_least: picoseconds((one_way - spread).max(0.0)),
            one_way_range: picoseconds(spread * 2.0),
            free: 0,
            seed,
            writes: 0,
        }
    }

    /// Returns the time until which the NIC is busy.
    #[must_use]
    pub fn free(&self) -> Picoseconds {
        self.free
    }

    /// Sets the time until which the NIC is busy, if other processes also send over it.
    pub fn set_free(&mut self, free: Picoseconds) {
        self.free = free;
    }

    /// Returns the time for which `bytes` occupy the wire.
    #[must_use]
    pub fn wire(&self, bytes: u64) -> Picoseconds {
        let at_peak = bytes as f64 * self.picoseconds_per_byte;
        (at_peak + (at_peak * self.start_up_share).min(self.start_up_most)).round() as Picoseconds
    }

    /// Posts a write of `bytes`. Returns its times.
    pub fn post(&mut self, now: Picoseconds, bytes: u64) -> WriteTimes {
        let begun = self.free.max(now);
        let wire = self.wire(bytes);
        // The next write starts when the wire is idle again, but not before the NIC's rate permits.
        self.free = begun + (wire + self.idle).max(self.interval);
        let sent = begun + wire;
        let delivered = sent + self.latency();
        WriteTimes { begun, sent, delivered, completed: delivered + self.latency() }
    }

    /// Returns the time of `count` writes of `bytes`, posted one after another with at most `outstanding` in flight,
    /// until all are acknowledged.
    #[must_use]
    pub fn stream(mut self, bytes: u64, count: u64, outstanding: usize, post: Picoseconds) -> Picoseconds {
        let (start, mut ends) = (self.free, std::collections::VecDeque::new());
        let (mut now, mut last) = (start, start);
        for _ in 0..count {
            if ends.len() == outstanding {
                now = now.max(ends.pop_front().unwrap_or_default());
            }
            now += post;
            let course = self.post(now, bytes);
            last = course.completed.max(last);
            ends.push_back(course.completed);
        }
        last - start
    }

    /// Returns a one-way latency, drawn uniformly from its range, since no more of the distribution is known.
    pub fn latency(&mut self) -> Picoseconds {
        self.writes += 1;
        let random = draw(self.seed, self.writes);
        self.one_way_least + ((u128::from(random) * u128::from(self.one_way_range)) >> 64) as Picoseconds
    }
}

/// Returns the `n`-th number of a seed. Uses the mixing of the payload pattern, so that simulations remain
/// reproducible.
pub(crate) fn draw(seed: u64, n: u64) -> u64 {
    let mixed = seed.wrapping_add(n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed ^ (mixed >> 29)
}
