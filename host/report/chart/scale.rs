//! Where values lie along an axis, and where its ticks stand.
//!
//! Positions are what the drawing library gets: the value itself, or its logarithm. The library's own axes would choose
//! ticks that know neither sizes nor sweeps.

use super::{Axis, Kind, label};

/// An axis with its ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    log: bool,
    binary: bool,
    /// The positions of the two ends.
    pub low: f64,
    /// See `low`.
    pub high: f64,
}

/// A place on an axis that is marked and named.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// The position.
    pub at: f64,
    /// The name.
    pub label: String,
}

/// The steps between ticks that people find easy to read, within a power of ten.
const EASY: [f64; 3] = [1.0, 2.0, 5.0];
/// The steps between powers of two that are named.
const POWERS_OF_TWO: [i32; 6] = [1, 2, 4, 5, 10, 20];
/// The marks within a power of ten, from dense to sparse.
const WITHIN_DECADES: [&[f64]; 3] = [&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], &EASY, &[1.0]];

impl Scale {
    /// A scale that holds these values. The horizontal one has them all; the vertical one stands on zero, unless it is
    /// logarithmic or goes below.
    pub fn new(axis: &Axis, values: impl Iterator<Item = f64>, from_zero: bool) -> Self {
        let log = axis.kind == Kind::Log;
        let mut scale = Self { log, binary: axis.binary, low: f64::INFINITY, high: f64::NEG_INFINITY };
        if let Kind::Categories(names) = &axis.kind {
            (scale.low, scale.high) = (-0.5, names.len().max(1) as f64 - 0.5);
            return scale;
        }
        for value in values {
            let position = scale.position(value);
            scale.low = scale.low.min(position);
            scale.high = scale.high.max(position);
        }
        if scale.low > scale.high {
            (scale.low, scale.high) = (0.0, 1.0);
        }
        let stands = from_zero && !log && scale.low >= 0.0;
        if stands {
            scale.low = 0.0;
        }
        // One value alone still needs an axis around it.
        let least = match scale.high.abs() {
            _ if log => 0.15,
            0.0 => 1.0,
            high => 0.05 * high,
        };
        let room = (0.04 * (scale.high - scale.low)).max(if scale.high > scale.low { 0.0 } else { least });
        scale.high += room;
        if !stands {
            scale.low -= room;
        }
        if scale.high <= scale.low {
            scale.high = scale.low + 1.0;
        }
        scale
    }

    /// The position of a value.
    pub fn position(&self, value: f64) -> f64 {
        if self.log { value.log10() } else { value }
    }

    /// How far a position lies along the axis, from 0 to 1.
    pub fn along(&self, position: f64) -> f64 {
        (position - self.low) / (self.high - self.low)
    }

    fn value(&self, position: f64) -> f64 {
        if self.log { 10f64.powf(position) } else { position }
    }

    /// A tick at a value.
    pub fn tick(&self, value: f64) -> Tick {
        Tick { at: self.position(value), label: if self.binary { label::binary(value) } else { label::plain(value) } }
    }

    /// Easy ticks, as many as there are up to `most` (at least 2).
    pub fn ticks(&self, most: usize) -> Vec<Tick> {
        let most = most.max(2);
        let logarithmic = if self.log { self.log_values(most) } else { Vec::new() };
        // Between two powers nothing is easy but even steps.
        let values = if logarithmic.len() < 2 { self.even_values(most) } else { logarithmic };
        values.into_iter().map(|value| self.tick(value)).collect()
    }

    fn log_values(&self, most: usize) -> Vec<f64> {
        let holds = |value: &f64| (self.low..=self.high).contains(&self.position(*value));
        if self.binary {
            let (low, high) = (self.value(self.low).log2(), self.value(self.high).log2());
            let powers = |step: i32| {
                let multiples = (low / f64::from(step)).ceil() as i32..=(high / f64::from(step)).floor() as i32;
                multiples.map(move |multiple| 2f64.powi(multiple * step)).filter(|value| *value >= 1.0)
            };
            let fitting = POWERS_OF_TWO.into_iter().find(|step| powers(*step).count() <= most);
            return fitting.map_or_else(Vec::new, |step| powers(step).collect());
        }
        let decades = self.low.floor() as i32..=self.high.ceil() as i32;
        for within in WITHIN_DECADES {
            let values = decades.clone().flat_map(|decade| within.iter().map(move |digit| digit * 10f64.powi(decade)));
            let values: Vec<f64> = values.filter(holds).collect();
            if values.len() <= most {
                return values;
            }
        }
        let step = (self.high - self.low) as usize / most + 1;
        decades.filter(|decade| decade % step as i32 == 0).map(|decade| 10f64.powi(decade)).filter(holds).collect()
    }

    fn even_values(&self, most: usize) -> Vec<f64> {
        let (low, high) = (self.value(self.low), self.value(self.high));
        let rough = (high - low) / (most - 1) as f64;
        let step = if self.binary {
            2f64.powf(rough.log2().ceil()).max(1.0)
        } else {
            let decade = 10f64.powf(rough.log10().floor());
            let easy = EASY.into_iter().map(|factor| factor * decade).find(|step| *step >= rough * 0.9999);
            easy.unwrap_or(10.0 * decade)
        };
        let multiples = (low / step).ceil() as i64..=(high / step).floor() as i64;
        multiples.map(|multiple| multiple as f64 * step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn axis(kind: Kind, binary: bool) -> Axis {
        Axis { label: String::new(), kind, binary }
    }

    fn labels(axis: &Axis, values: &[f64], most: usize) -> String {
        let ticks = Scale::new(axis, values.iter().copied(), true).ticks(most);
        ticks.into_iter().map(|tick| tick.label).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn sizes_stand_at_powers_of_two() {
        let log = axis(Kind::Log, true);
        let shown = [
            labels(&log, &[64.0, 4194304.0], 20),
            labels(&log, &[64.0, 4194304.0], 10),
            labels(&log, &[64.0, 4194304.0], 5),
            labels(&log, &[1.0, 1e12], 6),
            labels(&log, &[4096.0], 6),
            labels(&axis(Kind::Linear, true), &[64.0, 1048576.0], 6),
        ];
        insta::assert_snapshot!(shown.join("\n"), @r"
        64 128 256 512 1K 2K 4K 8K 16K 32K 64K 128K 256K 512K 1M 2M 4M
        64 256 1K 4K 16K 64K 256K 1M 4M
        256 4K 64K 1M
        1 1K 1M 1G 1T
        3K 4K 5K
        0 256K 512K 768K 1M
        ");
    }

    #[test]
    fn numbers_stand_at_decades_or_easy_steps() {
        let log = axis(Kind::Log, false);
        let linear = axis(Kind::Linear, false);
        let shown = [
            labels(&log, &[0.05, 600.0], 8),
            labels(&log, &[3.0, 95.0], 8),
            labels(&log, &[1e-9, 1e9], 6),
            labels(&log, &[4.1, 4.8], 6),
            labels(&linear, &[0.0, 1.3], 8),
            labels(&linear, &[12.0, 372.0], 8),
            labels(&linear, &[-3.0, 5.0], 5),
            labels(&linear, &[0.0, 0.0], 5),
            labels(&linear, &[0.00012], 5),
        ];
        insta::assert_snapshot!(shown.join("\n"), @r"
        0.1 1 10 100
        5 10 20 50 100
        1e-8 1e-4 1 10000 1e8
        4.2 4.4 4.6 4.8
        0 0.2 0.4 0.6 0.8 1 1.2
        0 100 200 300
        0 5
        0 0.5 1
        0 5e-5 1e-4
        ");
    }

    proptest! {
        #[test]
        fn ticks_are_few_ordered_and_on_the_axis(
            one in 1e-9f64..1e12, two in 1e-9f64..1e12, log in any::<bool>(), binary in any::<bool>(), most in 2usize..20,
        ) {
            let kind = if log { Kind::Log } else { Kind::Linear };
            let scale = Scale::new(&axis(kind, binary), [one, two].into_iter(), false);
            prop_assert!(scale.low < scale.high);
            let ticks = scale.ticks(most);
            prop_assert!(ticks.len() <= most + 1, "{ticks:?}");
            prop_assert!(ticks.windows(2).all(|pair| pair[0].at < pair[1].at));
            let room = 1e-9 * (scale.high - scale.low).max(1.0);
            prop_assert!(ticks.iter().all(|tick| tick.at >= scale.low - room && tick.at <= scale.high + room));
        }
    }
}
