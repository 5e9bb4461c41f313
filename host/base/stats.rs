//! Statistics of repeated measurements, and their units.

use std::time::Duration;

/// Time in microseconds, the unit of all reported times.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Micros(pub f64);

impl From<Duration> for Micros {
    fn from(time: Duration) -> Self {
        Self(time.as_secs_f64() * 1e6)
    }
}

impl Micros {
    /// Returns the bandwidth of `bytes` moved in this time, in GB/s (10^9 B/s). `None` if the time is 0.
    pub fn gbytes_s(self, bytes: u64) -> Option<f64> {
        (self.0 > 0.0).then(|| bytes as f64 / self.0 / 1e3)
    }

    /// Returns the rate in 10^6 operations per second. `None` if the time is 0.
    pub fn mops(self, operations: u64) -> Option<f64> {
        (self.0 > 0.0).then(|| operations as f64 / self.0)
    }
}

/// Statistics of a set of samples. The JSON report also contains the samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Number of samples.
    pub count: usize,
    /// Smallest sample.
    pub min: f64,
    /// Median; for an even count, the mean of the two middle samples.
    pub p50: f64,
    /// 99th percentile by the nearest-rank method: one of the samples, which is the maximum for fewer than 100 samples.
    pub p99: f64,
    /// Largest sample.
    pub max: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Coefficient of variation in percent: sample standard deviation divided by mean. `None` for fewer than two
    /// samples or a mean of 0.
    pub cv_pct: Option<f64>,
}

impl Summary {
    /// Summarizes samples. Returns `None` if there are none, or one is not finite.
    pub fn of(samples: &[f64]) -> Option<Self> {
        if samples.iter().any(|sample| !sample.is_finite()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let count = sorted.len();
        let middle = count / 2;
        let p50 = if count % 2 == 1 { sorted[middle] } else { sorted[middle - 1].midpoint(sorted[middle]) };
        // Nearest rank: the smallest sample that at least 99 % of all samples do not exceed. Computed in integers,
        // because 0.99 has no exact binary representation.
        let p99 = sorted[(count * 99).div_ceil(100) - 1];
        // The mean is computed relative to the minimum, to avoid cancellation for large, similar samples.
        let mean = min + sorted.iter().map(|sample| sample - min).sum::<f64>() / count as f64;
        let cv_pct = (count > 1 && mean != 0.0).then(|| {
            let squares = sorted.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>();
            100.0 * (squares / (count - 1) as f64).sqrt() / mean.abs()
        });
        Some(Self { count, min, p50, p99, max, mean, cv_pct })
    }
}

/// Returns the median, or `None` if there are no values. For an even count, returns the larger of the two middle
/// values, so that the result is below a limit only if more than half of the values are.
pub fn upper_median<T: Copy + Into<f64>>(values: &[T]) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| f64::total_cmp(&(*a).into(), &(*b).into()));
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_values() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((summary.min, summary.p50, summary.p99, summary.max, summary.mean), (1.0, 2.5, 4.0, 4.0, 2.5));
        assert!((summary.cv_pct.unwrap() - 51.6398).abs() < 1e-3);
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(Summary::of(&hundred).unwrap().p99, 99.0);
        let hundred_and_one: Vec<f64> = (1..=101).map(f64::from).collect();
        assert_eq!(Summary::of(&hundred_and_one).unwrap().p99, 100.0);
    }

    #[test]
    fn few_or_bad_samples() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
        assert_eq!(Summary::of(&[f64::INFINITY]), None);
        let one = Summary::of(&[5.0]).unwrap();
        assert_eq!((one.min, one.p50, one.p99, one.max, one.cv_pct), (5.0, 5.0, 5.0, 5.0, None));
    }

    #[test]
    fn upper_median_is_a_value() {
        assert_eq!((upper_median::<f64>(&[]), upper_median(&[3.0f32, 1.0])), (None, Some(3.0)));
        assert_eq!(upper_median(&[5.0, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn rates_have_documented_units() {
        let time = Micros::from(Duration::from_micros(10));
        assert_eq!(time.gbytes_s(1_000_000), Some(100.0));
        assert_eq!(time.mops(20), Some(2.0));
        assert_eq!(Micros(0.0).gbytes_s(1), None);
        assert_eq!(Micros(0.0).mops(1), None);
    }

    proptest! {
        #[test]
        fn ordered_and_measured(samples in prop::collection::vec(0.0f64..1e9, 1..300)) {
            let summary = Summary::of(&samples).unwrap();
            prop_assert!(summary.min <= summary.p50 && summary.p50 <= summary.p99 && summary.p99 <= summary.max);
            prop_assert!(summary.min <= summary.mean && summary.mean <= summary.max * (1.0 + 1e-12));
            prop_assert!(samples.contains(&summary.p99));
            let at_most = samples.iter().filter(|sample| **sample <= summary.p99).count();
            prop_assert!(at_most * 100 >= samples.len() * 99);
            let below = samples.iter().filter(|sample| **sample < summary.p99).count();
            prop_assert!(below * 100 < samples.len() * 99);
            prop_assert!(summary.cv_pct.is_none_or(|cv| cv >= 0.0));
        }

        #[test]
        fn order_does_not_matter(samples in prop::collection::vec(0.0f64..1e9, 1..50)) {
            let mut reversed = samples.clone();
            reversed.reverse();
            prop_assert_eq!(Summary::of(&samples), Summary::of(&reversed));
        }

        #[test]
        fn equal_samples_do_not_vary(value in 0.001f64..1e9, count in 2usize..100) {
            let summary = Summary::of(&vec![value; count]).unwrap();
            prop_assert_eq!(summary.cv_pct, Some(0.0));
            prop_assert_eq!(summary.p50, value);
        }
    }
}
