//! Conversion of a profile to the parameters of the modelled card, and comparison with the measurements of a real card.

use super::profile::Profile;
use card_model::NicTimings;

impl From<&Profile> for NicTimings {
    fn from(profile: &Profile) -> NicTimings {
        NicTimings {
            line_rate_gbps: profile.line_rate_gbps.value,
            peak_share: profile.peak_share.value,
            rate_per_rail_mops: profile.rate_per_rail_mops.value,
            one_way_us: profile.one_way_us.value,
            one_way_spread_us: profile.one_way_spread_us.value,
            mtu_bytes: profile.mtu_bytes.value,
            start_up_share: profile.start_up_share.value,
            start_up_most_us: profile.start_up_most_us.value,
            queue_depth: profile.queue_depth.value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use card_model::{Nic, Picoseconds};
    use proptest::prelude::*;

    fn p5() -> Nic {
        Nic::new(&Profile::named("p5").expect("known"), 1)
    }

    /// Returns the rate in MB/s of `count` writes of one size with `outstanding` in flight, computed like in fi_rma_bw.
    fn stream(bytes: u64, count: u64, outstanding: usize, post: Picoseconds) -> f64 {
        (bytes * count) as f64 / p5().stream(bytes, count, outstanding, post) as f64 * 1e6
    }

    /// Returns the table of fi_rma_bw on a real p5.48xlarge, one card, one thread: bytes and MB/s.
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
    fn modelled_p5_nic_is_within_15_percent() {
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
    fn large_p5_writes_reach_97_gbps_per_nic() {
        let gbps = stream(64 << 20, 100, 16, 450_000) * 8.0 / 1000.0;
        assert!((96.5..=97.5).contains(&gbps), "{gbps}");
    }

    #[test]
    fn single_small_write_takes_round_trip() {
        for seed in 0..100 {
            let mut nic = Nic::new(&Profile::named("p5").expect("known"), seed);
            let course = nic.post(0, 64);
            assert!((15_000_000..=25_100_000).contains(&course.completed), "{course:?}");
        }
    }

    proptest! {
        /// A card sends one write at a time, in order; arrivals can overtake each other.
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
