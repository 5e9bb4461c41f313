//! The arithmetic of a modelled NIC: when a write that is posted now is on its way, there, and acknowledged. No clock of its
//! own: the rail asks it with the real time, simulations with theirs.

use super::profile::Profile;
use kernels::pattern;
use std::collections::VecDeque;

/// A moment or a length of time in picoseconds: fine enough that a sum over a million writes is exact to the nanosecond.
pub type Picoseconds = u64;

const PER_MICROSECOND: f64 = 1e6;

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
    pub fn new(profile: &Profile, seed: u64) -> Nic {
        let picoseconds = |microseconds: f64| (microseconds * PER_MICROSECOND).round() as Picoseconds;
        let bytes_per_second = profile.line_rate_gbps.value * 1e9 / 8.0 * profile.peak_share.value;
        let per_byte = 1e12 / bytes_per_second;
        let (one_way, spread) = (profile.one_way_us.value, profile.one_way_spread_us.value);
        Nic {
            picoseconds_per_byte: per_byte,
            start_up_share: profile.start_up_share.value,
            start_up_most: profile.start_up_most_us.value * PER_MICROSECOND,
            interval: picoseconds(1.0 / profile.rate_per_rail_mops.value),
            idle: (profile.mtu_bytes.value * per_byte).round() as Picoseconds,
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
        let (start, mut ends) = (self.free, VecDeque::new());
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
        let random = pattern::word(self.seed, self.writes);
        self.one_way_least + ((u128::from(random) * u128::from(self.one_way_range)) >> 64) as Picoseconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn p5() -> Nic {
        Nic::new(&Profile::named("p5").expect("known"), 1)
    }

    /// MB/s of so many writes of one size, with so many outstanding, as fi_rma_bw counts them.
    fn stream(bytes: u64, count: u64, outstanding: usize, post: Picoseconds) -> f64 {
        (bytes * count) as f64 / p5().stream(bytes, count, outstanding, post) as f64 * 1e6
    }

    /// The table of fi_rma_bw on a real p5.48xlarge, one card, one thread: bytes by MB/s.
    fn measured() -> Vec<(u64, f64)> {
        let text = include_str!("../../../tests/fixtures/p5/fi_rma_bw.txt");
        let row = |line: &str| {
            let mut columns = line.split_whitespace();
            let size = columns.next()?;
            let (number, unit) = match size.trim_end_matches(['k', 'm']) {
                number if size.ends_with('k') => (number, 1024.0),
                number if size.ends_with('m') => (number, 1024.0 * 1024.0),
                number => (number, 1.0),
            };
            Some(((number.parse::<f64>().ok()? * unit) as u64, columns.nth(3)?.parse().ok()?))
        };
        text.lines().skip(1).map(|line| row(line).unwrap_or_else(|| panic!("{line}"))).collect()
    }

    #[test]
    fn one_card_of_p5_stays_within_15_percent_of_the_real_one_at_every_size() {
        let table = measured();
        assert_eq!((table.len(), table[0], table[45]), (46, (1, 0.75), (8 << 20, 10504.60)));
        for (bytes, measured) in table {
            let count = if bytes < 65536 {
                20_000
            } else if bytes < 1 << 20 {
                2000
            } else {
                200
            };
            let ratio = stream(bytes, count, 64, 450_000) / measured;
            assert!((0.85..=1.15).contains(&ratio), "{bytes} B: {ratio:.3} of {measured} MB/s");
        }
    }

    #[test]
    fn large_writes_of_p5_reach_97_gbps_on_one_card() {
        let gbps = stream(64 << 20, 100, 16, 450_000) * 8.0 / 1000.0;
        assert!((96.5..=97.5).contains(&gbps), "{gbps}");
    }

    #[test]
    fn a_lone_small_write_takes_a_round_trip() {
        for seed in 0..100 {
            let mut nic = Nic::new(&Profile::named("p5").expect("known"), seed);
            let course = nic.post(0, 64);
            assert!((15_000_000..=25_100_000).contains(&course.completed), "{course:?}");
        }
    }

    proptest! {
        /// A card sends one write at a time, in order; arrivals may overtake each other.
        #[test]
        fn courses_are_sound(posts in proptest::collection::vec((0u64..100_000_000, 0u64..1 << 24), 1..200)) {
            let mut nic = p5();
            let (mut now, mut sent) = (0, 0);
            for (later, bytes) in posts {
                now += later;
                let course = nic.post(now, bytes);
                prop_assert!(course.begun >= now && course.begun >= sent);
                prop_assert_eq!(course.sent, course.begun + nic.wire(bytes));
                for (from, to) in [(course.sent, course.delivered), (course.delivered, course.completed)] {
                    prop_assert!((7_500_000..=12_500_000).contains(&(to - from)));
                }
                sent = course.sent;
            }
        }

        #[test]
        fn more_bytes_take_longer(bytes in 0u64..1 << 40, more in 1u64..1 << 20) {
            prop_assert!(p5().wire(bytes + more) > p5().wire(bytes));
        }
    }
}
