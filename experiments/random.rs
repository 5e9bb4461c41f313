//! Random shapes: the generator, the options, and the distribution of the ratios to a baseline.

/// Number of rows that [`Ratios`] lists.
const WORST: usize = 10;

/// Random choices of a seed.
#[derive(Clone, Debug)]
pub struct SeededChoices(ginlab::random::Random);

impl SeededChoices {
    /// Returns the choices of `seed`.
    pub fn new(seed: u64) -> SeededChoices {
        SeededChoices(ginlab::random::Random(seed))
    }

    /// Returns 64 random bits.
    #[allow(clippy::should_implement_trait, reason = "the sequence has no end")]
    pub fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// Returns a number from `first` to `last`.
    pub fn from(&mut self, first: u64, last: u64) -> u64 {
        first + self.next() % (last - first + 1)
    }

    /// Returns one of the values.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.next() as usize % of.len()]
    }

    /// Returns a size up to 2^`most`, with equal probability for every octave, and for odd and even sizes.
    pub fn size(&mut self, most: u64) -> u64 {
        let power = self.from(0, most - 1);
        self.from(1 << power, (2 << power) - 1)
    }

    /// Returns a size from `least` to `most`, with about equal probability for every octave, and for odd and even
    /// sizes.
    pub fn size_within(&mut self, least: u64, most: u64) -> u64 {
        let (least, most) = (least.max(1), most.max(least).max(1));
        let power = self.from(least.ilog2().into(), most.ilog2().into());
        let size = self.from(1 << power, (2 << power) - 1) & !1 | self.from(0, 1);
        size.clamp(least, most)
    }
}

/// Options for random shapes.
#[derive(clap::Args, Clone, Debug)]
pub struct RandomArgs {
    /// Measure N random shapes; the options that select rows do not apply
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub random: Option<u32>,
    /// Seed of the random shapes
    #[arg(long, value_name = "S", default_value_t = 1, requires = "random")]
    pub seed: u64,
}

impl RandomArgs {
    /// Returns the generator of each shape, or `None` without `--random`. The shape with a given number is independent
    /// of how many shapes are drawn.
    pub fn generators(&self) -> Option<impl Iterator<Item = SeededChoices>> {
        let mut seeds = SeededChoices::new(self.seed);
        self.random.map(|count| (0..count).map(move |_| SeededChoices::new(seeds.next())))
    }
}

/// Ratios of random shapes: a baseline's time divided by ginlab's.
#[derive(Clone, Debug, Default)]
pub struct Ratios(Vec<(f64, String)>);

impl Ratios {
    /// Adds the ratio of one shape.
    pub fn add(&mut self, ratio: f64, shape: String) {
        self.0.push((ratio, shape));
    }

    /// Returns lines with the distribution and the worst shapes. If there is no baseline, the lines contain `baseline`,
    /// which explains how to obtain one.
    pub fn lines(&self, baseline: &str) -> Vec<String> {
        let mut sorted: Vec<&(f64, String)> = self.0.iter().collect();
        sorted.sort_by(|a, b| f64::total_cmp(&a.0, &b.0));
        let Some((median, _)) = sorted.get(sorted.len() / 2) else {
            return vec![format!("random shapes: no baseline ({baseline})")];
        };
        let below = |limit: f64| {
            let count = sorted.iter().filter(|(ratio, _)| *ratio < limit).count();
            format!("{count} ({:.1} %) below {limit:.2}", 100.0 * count as f64 / sorted.len() as f64)
        };
        let first = format!(
            "random shapes: {} ratios, {}, {}, median {median:.2}; the lowest:",
            sorted.len(),
            below(0.95),
            below(1.0),
        );
        let lowest = sorted.iter().take(WORST).map(|(ratio, shape)| format!("{ratio:.2}  {shape}"));
        std::iter::once(first).chain(lowest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_within_limits_and_half_odd() {
        let mut random = SeededChoices::new(7);
        let sizes: Vec<u64> = (0..4000).map(|_| random.size_within(1, 64 << 20)).collect();
        let share = |wanted: &dyn Fn(u64) -> bool| sizes.iter().filter(|size| wanted(**size)).count() as f64 / 4000.0;
        assert!(sizes.iter().all(|size| (1..=64 << 20).contains(size)));
        assert!((share(&|size| size % 2 == 1) - 0.5).abs() < 0.1);
        assert!((share(&|size| size < 8192) - 0.5).abs() < 0.1);
        assert_eq!(random.size_within(5, 5), 5);
    }

    #[test]
    fn shapes_do_not_depend_on_their_number() {
        let words = |random| {
            let args = RandomArgs { random: Some(random), seed: 3 };
            args.generators().into_iter().flatten().map(|mut random| random.next()).collect::<Vec<_>>()
        };
        assert_eq!(words(9)[..4], words(4));
        assert!(RandomArgs { random: None, seed: 3 }.generators().is_none());
    }

    #[test]
    fn lowest_ratios_are_listed_first() {
        let mut ratios = Ratios::default();
        assert_eq!(ratios.lines("use --nvshmem"), ["random shapes: no baseline (use --nvshmem)"]);
        for (ratio, shape) in [(2.0, "b"), (0.5, "a"), (0.97, "c"), (3.0, "d")] {
            ratios.add(ratio, shape.into());
        }
        let lines = ratios.lines("");
        assert_eq!(
            lines[0],
            "random shapes: 4 ratios, 1 (25.0 %) below 0.95, 2 (50.0 %) below 1.00, median 2.00; the lowest:"
        );
        assert_eq!(lines[1..3], ["0.50  a", "0.97  c"]);
    }
}
