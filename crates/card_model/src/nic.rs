//! The arithmetic of a modelled card. No clock of its own: who uses it gives it the real time, or one of a simulation.

/// A moment or a length of time in picoseconds: fine enough that a sum over a million writes is exact to the nanosecond.
pub type Picoseconds = u64;

const PER_MICROSECOND: f64 = 1e6;

/// What is known of a card. Units stand in the names.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Line rate, one way.
    pub line_rate_gbps: f64,
    /// Share of the line rate that the payload of very large writes reaches.
    pub peak_share: f64,
    /// Most writes a second that a card begins, in millions.
    pub rate_per_rail_mops: f64,
    /// From the last byte on the wire to its arrival; the acknowledgement takes as long again.
    pub one_way_us: f64,
    /// Half the range over which the one-way latency varies.
    pub one_way_spread_us: f64,
    /// Payload of a packet. Between two writes the wire is idle for as long as one takes.
    pub mtu_bytes: f64,
    /// By this share a write takes longer than its bytes at the peak rate ...
    pub start_up_share: f64,
    /// ... until so much is lost.
    pub start_up_most_us: f64,
    /// Writes that a card holds; beyond that a post is refused.
    pub queue_depth: f64,
}

/// What becomes of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Course {
    /// The card begins to send it.
    pub begun: Picoseconds,
    /// The last byte leaves.
    pub sent: Picoseconds,
    /// The last byte is in the target's memory.
    pub delivered: Picoseconds,
    /// Its acknowledgement is back: the completion.
    pub completed: Picoseconds,
}

/// One card.
#[derive(Clone, Debug)]
pub struct Nic {
    picoseconds_per_byte: f64,
    start_up_share: f64,
    start_up_most: f64,
    interval: Picoseconds,
    idle: Picoseconds,
    one_way_least: Picoseconds,
    one_way_range: Picoseconds,
    /// The card sends nothing new before.
    free: Picoseconds,
    seed: u64,
    writes: u64,
}

impl Nic {
    /// An idle card. Cards with the same seed vary alike.
    #[must_use]
    pub fn new(figures: impl Into<Figures>, seed: u64) -> Nic {
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

    /// Until then it sends what it has.
    #[must_use]
    pub fn free(&self) -> Picoseconds {
        self.free
    }

    /// Others send over the same card: it is busy until then.
    pub fn set_free(&mut self, free: Picoseconds) {
        self.free = free;
    }

    /// How long the wire carries so many bytes.
    #[must_use]
    pub fn wire(&self, bytes: u64) -> Picoseconds {
        let at_peak = bytes as f64 * self.picoseconds_per_byte;
        (at_peak + (at_peak * self.start_up_share).min(self.start_up_most)).round() as Picoseconds
    }

    /// A write of so many bytes is posted.
    pub fn post(&mut self, now: Picoseconds, bytes: u64) -> Course {
        let begun = self.free.max(now);
        let wire = self.wire(bytes);
        // The next one begins when the wire is free again, and not before the card can take it.
        self.free = begun + (wire + self.idle).max(self.interval);
        let sent = begun + wire;
        let delivered = sent + self.latency();
        Course { begun, sent, delivered, completed: delivered + self.latency() }
    }

    /// How long so many writes of one size take, posted one after another, so many of them outstanding at most: until the last
    /// one is acknowledged.
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

    /// One way through the network, evenly spread: what is known of it is a range.
    pub fn latency(&mut self) -> Picoseconds {
        self.writes += 1;
        let random = draw(self.seed, self.writes);
        self.one_way_least + ((u128::from(random) * u128::from(self.one_way_range)) >> 64) as Picoseconds
    }
}

/// The n-th number of a seed, by the mixing that payloads are made by: simulations stay what they were.
pub(crate) fn draw(seed: u64, n: u64) -> u64 {
    let mixed = seed.wrapping_add(n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    mixed ^ (mixed >> 29)
}
