//! Which operations have ended, though not in their order: what the completion of a put promises is told to the peer in each header behind it.

use std::collections::BTreeSet;

/// Which of some numbered operations have come to an end.
#[derive(Default)]
pub(super) struct Through {
    /// All up to this one.
    pub through: u64,
    /// Those beyond it.
    beyond: BTreeSet<u64>,
}

impl Through {
    /// One more.
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

    /// All of them as a header has them: all up to a number, and of the 64 after it some, by bit. Where one is further ahead than that, all
    /// before those 64 count as ended: who waits for them does not wait for ever, since each operation is in slots before the next one is.
    pub fn summary(&self) -> (u64, u64) {
        let Some(last) = self.beyond.last() else { return (self.through, 0) };
        let through = self.through.max(last.saturating_sub(64));
        let bits = self.beyond.range(through + 1..).fold(0, |bits, number| bits | 1 << (number - through - 1));
        (through, bits)
    }

    /// Whether all of a summary have ended here.
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
    fn a_summary_names_what_has_ended_and_nothing_else() {
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

    /// With what is further ahead than a header has bits for, all before count as ended.
    #[test]
    fn a_summary_says_rather_too_much() {
        let far = of(&[1, 70, 100]);
        assert_eq!(far.summary(), (36, 1 << 33 | 1 << 63));
        assert!(!far.covers(far.summary()));
        let all: Vec<u64> = (1..=100).collect();
        assert!(of(&all).covers(far.summary()));
    }
}
