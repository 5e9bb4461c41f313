//! Striping: distribution of puts over the rails.

/// Alignment of the pieces of a split put: a multiple of the page size, and of the packet size of every known NIC.
pub const SPLIT_ALIGNMENT: u64 = 4096;
/// Minimum size of a put that `auto` splits. Smaller puts are distributed round-robin as a whole. The value is the
/// default size from which the AWS plugin for NCCL stripes.
pub const DEFAULT_AUTO_THRESHOLD: u64 = 256 * 1024;

/// Distribution of puts over the rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::EnumString)]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown)]
pub enum Strategy {
    /// All puts on rail 0.
    Single,
    /// Each put is split over all rails.
    Split,
    /// Whole puts, round-robin over the rails.
    RoundRobin,
    /// Puts of at least `threshold` bytes are split; smaller ones are distributed round-robin.
    Auto {
        /// Minimum size in bytes of a split put.
        #[strum(default_with = "usual_threshold")]
        threshold: u64,
    },
}

fn usual_threshold() -> u64 {
    DEFAULT_AUTO_THRESHOLD
}

fn unknown(text: &str) -> String {
    format!("invalid strategy {text:?}: expected one of single, split, round-robin, auto")
}

/// One piece of a put on one rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Index of the rail.
    pub rail: usize,
    /// Offset of the first byte from the start of the put.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// Assigns puts to rails, and keeps the round-robin position.
#[derive(Clone, Debug)]
pub struct Scheduler {
    rails: usize,
    next: usize,
    /// Minimum size in bytes of a put that is split over all rails. (Stored as a number instead of the strategy, to
    /// avoid a branch per put.)
    split_from: u64,
    takes_turns: bool,
}

impl Scheduler {
    /// Creates a scheduler for `rails` rails. 0 is treated as 1.
    pub fn new(strategy: Strategy, rails: usize) -> Scheduler {
        let split_from = match strategy {
            Strategy::Split if rails > 1 => 2 * SPLIT_ALIGNMENT,
            Strategy::Auto { threshold } if rails > 1 => threshold.max(2 * SPLIT_ALIGNMENT),
            _ => u64::MAX,
        };
        Scheduler { rails: rails.max(1), next: 0, split_from, takes_turns: strategy != Strategy::Single }
    }

    /// Calls `each` for every piece of a put of `bytes`, at most `longest` bytes each, and returns their number.
    ///
    /// An `indivisible` put, which raises a signal after its last byte, stays on one rail: on an unordered fabric
    /// nothing else indicates that the other pieces have arrived. A put of 0 bytes is one piece of 0 bytes.
    #[inline]
    pub fn schedule(&mut self, bytes: u64, longest: u64, indivisible: bool, mut each: impl FnMut(Fragment)) -> usize {
        if let Some(rail) = self.whole(bytes, longest, indivisible) {
            each(Fragment { rail, offset: 0, bytes });
            return 1;
        }
        let longest = longest.max(1);
        if self.splits(bytes, indivisible) {
            // Whole pages, as evenly as possible. The last piece includes the rest, which is less than a page: if it
            // were rounded up, puts just above a multiple would leave rails unused.
            let rails = (self.rails as u64).min((bytes + SPLIT_ALIGNMENT / 2) / SPLIT_ALIGNMENT);
            // With fewer pages than rails, a rest of at least half a page uses a rail of its own.
            let pages = (bytes / SPLIT_ALIGNMENT).max(rails);
            let (least, more) = (pages / rails, pages % rails);
            let (mut start, mut pieces) = (0, 0);
            for rail in 0..rails {
                let share = (least + u64::from(rail < more)) * SPLIT_ALIGNMENT;
                let share = if rail + 1 == rails { bytes - start } else { share };
                pieces += cut(rail as usize, start, share, longest, &mut each);
                start += share;
            }
            return pieces;
        }
        let rail = self.turn();
        cut(rail, 0, bytes, longest, &mut each)
    }

    /// Returns the rail of a put that is sent in one piece. Returns `None`, and leaves the round-robin position
    /// unchanged, if the put must be split.
    #[inline]
    pub fn whole(&mut self, bytes: u64, longest: u64, indivisible: bool) -> Option<usize> {
        (bytes <= longest && !self.splits(bytes, indivisible)).then(|| self.turn())
    }

    #[inline]
    fn splits(&self, bytes: u64, indivisible: bool) -> bool {
        bytes >= self.split_from && !indivisible
    }

    #[inline]
    fn turn(&mut self) -> usize {
        let rail = self.next;
        if self.takes_turns {
            self.next = if rail + 1 == self.rails { 0 } else { rail + 1 };
        }
        rail
    }
}

/// Splits a range on one rail into transfers of at most `longest` bytes. Returns their number.
fn cut(rail: usize, start: u64, bytes: u64, longest: u64, each: &mut impl FnMut(Fragment)) -> usize {
    if bytes <= longest {
        each(Fragment { rail, offset: start, bytes });
        return 1;
    }
    let mut offset = 0;
    let mut pieces = 0;
    while offset < bytes {
        let length = longest.min(bytes - offset);
        each(Fragment { rail, offset: start + offset, bytes: length });
        offset += length;
        pieces += 1;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::{DEFAULT_AUTO_THRESHOLD, Fragment, SPLIT_ALIGNMENT, Scheduler, Strategy, cut};
    use proptest::prelude::{Just, Strategy as _, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

    fn strategies() -> impl proptest::strategy::Strategy<Value = Strategy> {
        prop_oneof![
            Just(Strategy::Single),
            Just(Strategy::Split),
            Just(Strategy::RoundRobin),
            (0u64..1 << 22).prop_map(|threshold| Strategy::Auto { threshold }),
        ]
    }

    fn pieces(scheduler: &mut Scheduler, bytes: u64, longest: u64, indivisible: bool) -> Vec<Fragment> {
        let mut pieces = Vec::new();
        let count = scheduler.schedule(bytes, longest, indivisible, |piece| pieces.push(piece));
        assert_eq!(count, pieces.len());
        pieces
    }

    proptest! {
        #[test]
        fn every_byte_is_scheduled_exactly_once(
            strategy in strategies(), rails in 1usize..70, bytes in 0u64..1 << 24, cuts in 1u64..2000,
            indivisible in any::<bool>(), repeats in 1usize..5,
        ) {
            // Limits the number of pieces to a few thousand, for any size.
            let longest = (bytes / cuts).max(1);
            let mut scheduler = Scheduler::new(strategy, rails);
            for _ in 0..repeats {
                let pieces = pieces(&mut scheduler, bytes, longest, indivisible);
                let mut expected = 0;
                for piece in &pieces {
                    prop_assert_eq!(piece.offset, expected);
                    prop_assert!(piece.rail < rails);
                    prop_assert!(piece.bytes <= longest && (piece.bytes > 0 || bytes == 0));
                    expected += piece.bytes;
                }
                prop_assert_eq!(expected, bytes);
                if indivisible || matches!(strategy, Strategy::Single | Strategy::RoundRobin) {
                    prop_assert!(pieces.iter().all(|piece| piece.rail == pieces[0].rail));
                }
            }
        }

        #[test]
        fn split_is_even_and_aligned(rails in 1usize..70, bytes in 1u64..1 << 40) {
            let mut scheduler = Scheduler::new(Strategy::Split, rails);
            let pieces = pieces(&mut scheduler, bytes, u64::MAX, false);
            // Each rail has one piece, if there are enough pages; half a page counts as one. Pieces differ by less than
            // two pages, and none exceeds an equal share by a page. A put of less than two pages is not split.
            let pages = if bytes < 2 * SPLIT_ALIGNMENT { 1 } else { (bytes + SPLIT_ALIGNMENT / 2) / SPLIT_ALIGNMENT };
            prop_assert_eq!(pieces.len() as u64, pages.clamp(1, rails as u64));
            let mut start = 0;
            for (number, piece) in pieces.iter().enumerate() {
                prop_assert_eq!((piece.rail, piece.offset), (number, start));
                prop_assert!(start.is_multiple_of(SPLIT_ALIGNMENT));
                start += piece.bytes;
            }
            prop_assert_eq!(start, bytes);
            let lengths = || pieces.iter().map(|piece| piece.bytes);
            let (least, most) = (lengths().min().unwrap_or(0), lengths().max().unwrap_or(0));
            prop_assert!(most - least < 2 * SPLIT_ALIGNMENT, "{} to {}", least, most);
            prop_assert!(most < bytes / pieces.len() as u64 + SPLIT_ALIGNMENT, "{} of {}", most, bytes);
        }

        #[test]
        fn auto_splits_from_its_threshold_on(rails in 2usize..9, threshold in 0u64..1 << 22, beyond in 0u64..1 << 20) {
            let mut scheduler = Scheduler::new(Strategy::Auto { threshold }, rails);
            // A put of less than two pages is not split, whatever the threshold.
            let least = threshold.max(2 * SPLIT_ALIGNMENT);
            prop_assert_eq!(pieces(&mut scheduler, least - 1, u64::MAX, false).len(), 1);
            prop_assert!(pieces(&mut scheduler, least + beyond, u64::MAX, false).len() > 1);
            prop_assert_eq!(pieces(&mut scheduler, least + beyond, u64::MAX, true).len(), 1);
        }

        #[test]
        fn whole_selects_unfragmented_puts(
            strategy in strategies(), rails in 1usize..9, bytes in 0u64..1 << 20, longest in 1u64..1 << 20,
            indivisible in any::<bool>(),
        ) {
            let mut scheduler = Scheduler::new(strategy, rails);
            let expected = pieces(&mut scheduler.clone(), bytes, longest, indivisible);
            let untouched = scheduler.next;
            match scheduler.whole(bytes, longest, indivisible) {
                Some(rail) => prop_assert_eq!(expected, [Fragment { rail, offset: 0, bytes }]),
                None => {
                    // The round-robin position is unchanged.
                    prop_assert!(expected.len() > 1);
                    prop_assert_eq!(scheduler.next, untouched);
                }
            }
        }
    }

    #[test]
    fn round_robin_alternates_and_single_does_not() {
        let mut turns = Scheduler::new(Strategy::RoundRobin, 3);
        let rails: Vec<usize> = (0..7).flat_map(|_| pieces(&mut turns, 10, 1 << 20, false)).map(|p| p.rail).collect();
        assert_eq!(rails, [0, 1, 2, 0, 1, 2, 0]);
        let mut single = Scheduler::new(Strategy::Single, 3);
        assert!((0..5).flat_map(|_| pieces(&mut single, 10, 4, false)).all(|piece| piece.rail == 0));
    }

    /// The sizes at which the decision changes, as literal cases.
    #[test]
    fn strategies_split_ranges_at_their_thresholds() {
        let rails = |strategy, rails, bytes| -> Vec<usize> {
            pieces(&mut Scheduler::new(strategy, rails), bytes, u64::MAX, false)
                .iter()
                .map(|piece| piece.rail)
                .collect()
        };
        assert_eq!(rails(Strategy::Split, 4, 2 * SPLIT_ALIGNMENT - 1), [0]);
        assert_eq!(rails(Strategy::Split, 4, 2 * SPLIT_ALIGNMENT), [0, 1]);
        assert_eq!(rails(Strategy::Split, 4, 4 * SPLIT_ALIGNMENT), [0, 1, 2, 3]);
        // One byte more than an equal share of whole pages must not leave rails unused.
        assert_eq!(rails(Strategy::Split, 32, 64 * SPLIT_ALIGNMENT + 1).len(), 32);
        assert_eq!(rails(Strategy::Split, 1, 1 << 20), [0], "one rail has nobody to share with");
        assert_eq!(rails(Strategy::Single, 4, 1 << 20), [0]);
        assert_eq!(rails(Strategy::RoundRobin, 4, 1 << 20), [0]);
        assert_eq!(DEFAULT_AUTO_THRESHOLD, 262_144);
        let auto = "auto".parse().expect("known");
        assert_eq!(rails(auto, 2, DEFAULT_AUTO_THRESHOLD - 1), [0]);
        assert_eq!(rails(auto, 2, DEFAULT_AUTO_THRESHOLD), [0, 1]);
        assert_eq!(rails(auto, 0, 1 << 20), [0], "no rail is one");
    }

    #[test]
    fn range_is_fragmented_to_provider_limit() {
        let of = |bytes, longest| {
            let mut pieces = Vec::new();
            let count = cut(3, 100, bytes, longest, &mut |piece| pieces.push((piece.rail, piece.offset, piece.bytes)));
            assert_eq!(count, pieces.len());
            pieces
        };
        assert_eq!(of(10, 10), [(3, 100, 10)]);
        assert_eq!(of(10, 4), [(3, 100, 4), (3, 104, 4), (3, 108, 2)]);
        assert_eq!(of(8, 4), [(3, 100, 4), (3, 104, 4)]);
        assert_eq!(of(0, 4), [(3, 100, 0)]);
    }

    #[test]
    fn names_go_both_ways() {
        for name in ["single", "split", "round-robin", "auto"] {
            assert_eq!(name.parse::<Strategy>().expect("known").to_string(), name);
        }
        assert!("stripe".parse::<Strategy>().expect_err("unknown").contains("round-robin"));
    }
}
