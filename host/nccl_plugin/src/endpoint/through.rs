//! Sets of completed operations, which may complete out of order. The header of each slot contains the set of
//! operations that were complete before the slot was filled.

use std::collections::BTreeSet;

/// A set of operation numbers that are complete.
#[derive(Default)]
pub(super) struct Through {
    /// All operations up to this number are complete.
    pub through: u64,
    /// Complete operations with higher numbers.
    beyond: BTreeSet<u64>,
}

impl Through {
    /// Adds a number.
    pub fn note(&mut self, number: u64) {
        if number != self.through + 1 {
            self.beyond.insert(number);
            return;
        }
        self.through = number;
        while self.beyond.remove(&(self.through + 1)) {
            self.through += 1;
        }
    }

    /// Returns the set in the form of a header: a number up to which all are complete, and a mask of the 64 numbers
    /// after it. If a complete operation is further ahead, all numbers below the last 64 are reported as complete. A
    /// peer that waits for those does not wait indefinitely, because each operation is stored in slots before the next
    /// one.
    pub fn summary(&self) -> (u64, u64) {
        let Some(last) = self.beyond.last() else { return (self.through, 0) };
        let through = self.through.max(last.saturating_sub(64));
        let bits = self.beyond.range(through + 1..).fold(0, |bits, number| bits | 1 << (number - through - 1));
        (through, bits)
    }

    /// Returns whether all operations of a summary are in this set.
    pub fn covers(&self, (through, bits): (u64, u64)) -> bool {
        let has = |number: u64| number <= self.through || self.beyond.contains(&number);
        through <= self.through && (bits == 0 || (0..64).all(|bit| bits >> bit & 1 == 0 || has(through + 1 + bit)))
    }
}

#[cfg(test)]
mod tests {
    use super::Through;

    fn of(numbers: &[u64]) -> Through {
        let mut through = Through::default();
        numbers.iter().for_each(|number| through.note(*number));
        through
    }

    #[test]
    fn summary_contains_exactly_completed_operations() {
        let some = of(&[1, 2, 4, 66]);
        assert_eq!(some.summary(), (2, 1 << 1 | 1 << 63));
        assert_eq!((of(&[]).summary(), of(&[2, 1]).summary()), ((0, 0), (2, 0)));
        for (there, covered) in [
            (&[1, 2, 4, 66][..], true),
            (&[66, 4, 3, 2, 1], true),
            (&[1, 2, 3, 66], false),
            (&[1, 2, 4, 65], false),
            (&[1, 4, 66], false),
        ] {
            assert_eq!(of(there).covers(some.summary()), covered, "{there:?}");
        }
    }

    /// If a number is further ahead than the mask of a header, all numbers before the mask count as complete.
    #[test]
    fn summary_overestimates_beyond_mask() {
        let far = of(&[1, 70, 100]);
        assert_eq!(far.summary(), (36, 1 << 33 | 1 << 63));
        assert!(!far.covers(far.summary()));
        let all: Vec<u64> = (1..=100).collect();
        assert!(of(&all).covers(far.summary()));
    }
}
