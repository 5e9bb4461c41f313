//! How a put is laid over the rails.

/// Pieces of a split put begin at multiples of this: whole pages, and whole packets of every NIC we know.
pub const SPLIT_ALIGNMENT: u64 = 4096;
/// From this size on `auto` splits a put; below it whole puts take turns. The size at which the AWS plugin for NCCL
/// begins to stripe, by its default.
pub const DEFAULT_AUTO_THRESHOLD: u64 = 256 * 1024;

/// How puts are laid over the rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::EnumString)]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown)]
pub enum Strategy {
    /// Everything on rail 0.
    Single,
    /// Each put is cut over all rails.
    Split,
    /// Whole puts take turns.
    RoundRobin,
    /// Split from this many bytes on, take turns below.
    Auto {
        /// The size at which splitting begins.
        #[strum(default_with = "usual_threshold")]
        threshold: u64,
    },
}

fn usual_threshold() -> u64 {
    DEFAULT_AUTO_THRESHOLD
}

fn unknown(text: &str) -> String {
    format!("strategy {text:?} is none of single, split, round-robin, auto")
}

/// One piece of a put on one rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which rail.
    pub rail: usize,
    /// First byte, from the start of the put.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Lays puts over rails; remembers whose turn it is.
#[derive(Clone, Debug)]
pub struct Scheduler {
    rails: usize,
    next: usize,
    /// Puts of this many bytes and more are cut over all rails. (Numbers in place of the strategy: no jump on the way of each
    /// put.)
    split_from: u64,
    takes_turns: bool,
}

impl Scheduler {
    /// A scheduler for `rails` rails, at least 1.
    pub fn new(strategy: Strategy, rails: usize) -> Scheduler {
        let split_from = match strategy {
            Strategy::Split if rails > 1 => SPLIT_ALIGNMENT + 1,
            Strategy::Auto { threshold } if rails > 1 => threshold.max(SPLIT_ALIGNMENT + 1),
            _ => u64::MAX,
        };
        Scheduler { rails: rails.max(1), next: 0, split_from, takes_turns: strategy != Strategy::Single }
    }

    /// Calls `each` for every piece of a put of `bytes`. An `indivisible` put (one that raises a signal behind its last
    /// byte) stays on one rail: on an unordered fabric nothing else says that the other pieces have arrived.
    /// A put of 0 bytes is one piece of 0 bytes.
    #[inline]
    pub fn schedule(&mut self, bytes: u64, longest: u64, indivisible: bool, mut each: impl FnMut(Piece)) -> usize {
        if let Some(rail) = self.whole(bytes, longest, indivisible) {
            each(Piece { rail, offset: 0, bytes });
            return 1;
        }
        let longest = longest.max(1);
        if self.splits(bytes, indivisible) {
            let share = bytes.div_ceil(self.rails as u64).next_multiple_of(SPLIT_ALIGNMENT);
            let mut pieces = 0;
            for (rail, start) in (0..bytes).step_by(share as usize).enumerate() {
                pieces += cut(rail, start, share.min(bytes - start), longest, &mut each);
            }
            return pieces;
        }
        let rail = self.turn();
        cut(rail, 0, bytes, longest, &mut each)
    }

    /// The rail of a put that goes out in one piece; nothing, and nobody's turn, if it is cut.
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

/// Cuts a stretch of one rail into transfers that the provider takes.
fn cut(rail: usize, start: u64, bytes: u64, longest: u64, each: &mut impl FnMut(Piece)) -> usize {
    if bytes <= longest {
        each(Piece { rail, offset: start, bytes });
        return 1;
    }
    let mut offset = 0;
    let mut pieces = 0;
    while offset < bytes {
        let length = longest.min(bytes - offset);
        each(Piece { rail, offset: start + offset, bytes: length });
        offset += length;
        pieces += 1;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::{DEFAULT_AUTO_THRESHOLD, Piece, SPLIT_ALIGNMENT, Scheduler, Strategy, cut};
    use proptest::prelude::{Just, Strategy as _, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

    fn strategies() -> impl proptest::strategy::Strategy<Value = Strategy> {
        prop_oneof![
            Just(Strategy::Single),
            Just(Strategy::Split),
            Just(Strategy::RoundRobin),
            (0u64..1 << 22).prop_map(|threshold| Strategy::Auto { threshold }),
        ]
    }

    fn pieces(scheduler: &mut Scheduler, bytes: u64, longest: u64, indivisible: bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let count = scheduler.schedule(bytes, longest, indivisible, |piece| pieces.push(piece));
        assert_eq!(count, pieces.len());
        pieces
    }

    proptest! {
        #[test]
        fn every_byte_goes_out_exactly_once(
            strategy in strategies(), rails in 1usize..70, bytes in 0u64..1 << 24, cuts in 1u64..2000,
            indivisible in any::<bool>(), repeats in 1usize..5,
        ) {
            // At most some thousand pieces, whatever the size.
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
        fn a_split_is_even_and_aligned(rails in 1usize..70, bytes in 1u64..1 << 40) {
            let mut scheduler = Scheduler::new(Strategy::Split, rails);
            let pieces = pieces(&mut scheduler, bytes, u64::MAX, false);
            // In whole pages, each rail its own piece, none of them a page longer than it must be. A put of one page or less
            // cannot be cut.
            let pages = bytes.div_ceil(SPLIT_ALIGNMENT);
            let share = pages.div_ceil(rails as u64);
            prop_assert_eq!(pieces.len() as u64, pages.div_ceil(share));
            for (number, piece) in pieces.iter().enumerate() {
                let offset = number as u64 * share * SPLIT_ALIGNMENT;
                let length = (share * SPLIT_ALIGNMENT).min(bytes - offset);
                prop_assert_eq!(*piece, Piece { rail: number, offset, bytes: length });
            }
        }

        #[test]
        fn auto_splits_from_its_threshold_on(rails in 2usize..9, threshold in 0u64..1 << 22, beyond in 0u64..1 << 20) {
            let mut scheduler = Scheduler::new(Strategy::Auto { threshold }, rails);
            // What fits into one page is not cut, whatever the threshold.
            let least = threshold.max(SPLIT_ALIGNMENT + 1);
            prop_assert_eq!(pieces(&mut scheduler, least - 1, u64::MAX, false).len(), 1);
            prop_assert!(pieces(&mut scheduler, least + beyond, u64::MAX, false).len() > 1);
            prop_assert_eq!(pieces(&mut scheduler, least + beyond, u64::MAX, true).len(), 1);
        }

        #[test]
        fn whole_says_what_goes_out_in_one_piece(
            strategy in strategies(), rails in 1usize..9, bytes in 0u64..1 << 20, longest in 1u64..1 << 20,
            indivisible in any::<bool>(),
        ) {
            let mut scheduler = Scheduler::new(strategy, rails);
            let expected = pieces(&mut scheduler.clone(), bytes, longest, indivisible);
            let untouched = scheduler.next;
            match scheduler.whole(bytes, longest, indivisible) {
                Some(rail) => prop_assert_eq!(expected, [Piece { rail, offset: 0, bytes }]),
                None => {
                    // And it is nobody's turn.
                    prop_assert!(expected.len() > 1);
                    prop_assert_eq!(scheduler.next, untouched);
                }
            }
        }
    }

    #[test]
    fn round_robin_takes_turns_and_single_does_not() {
        let mut turns = Scheduler::new(Strategy::RoundRobin, 3);
        let rails: Vec<usize> = (0..7).flat_map(|_| pieces(&mut turns, 10, 1 << 20, false)).map(|p| p.rail).collect();
        assert_eq!(rails, [0, 1, 2, 0, 1, 2, 0]);
        let mut single = Scheduler::new(Strategy::Single, 3);
        assert!((0..5).flat_map(|_| pieces(&mut single, 10, 4, false)).all(|piece| piece.rail == 0));
    }

    /// The sizes that decide, by hand.
    #[test]
    fn where_splitting_begins() {
        let rails = |strategy, rails, bytes| -> Vec<usize> {
            pieces(&mut Scheduler::new(strategy, rails), bytes, u64::MAX, false)
                .iter()
                .map(|piece| piece.rail)
                .collect()
        };
        assert_eq!(rails(Strategy::Split, 4, SPLIT_ALIGNMENT), [0]);
        assert_eq!(rails(Strategy::Split, 4, SPLIT_ALIGNMENT + 1), [0, 1]);
        assert_eq!(rails(Strategy::Split, 4, 4 * SPLIT_ALIGNMENT), [0, 1, 2, 3]);
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
    fn a_stretch_is_cut_into_what_the_provider_takes() {
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
