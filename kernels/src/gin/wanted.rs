//! Conditions of waits for signals.

/// Condition of a wait for a signal's sum: a minimum, or one round.
///
/// Odd rounds add 1 and even rounds add 2 ([`WaitCondition::added`]). A receiver that waits for a round has received
/// all earlier ones, and the sender is at most one round ahead. The sum is therefore that of all earlier rounds plus 0
/// to
/// 3. The bit that the round adds shows whether the round is included, even if the next one arrived first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitCondition {
    /// Minimum sum, or the total that all rounds up to this one have added.
    sum: u64,
    /// Amount that the round adds, or 0 for a minimum.
    bit: u64,
}

impl WaitCondition {
    /// Requires a sum of at least `sum`.
    #[inline(always)]
    pub const fn at_least(sum: u64) -> WaitCondition {
        WaitCondition { sum, bit: 0 }
    }

    /// Requires round `round`, counted from 1.
    #[inline(always)]
    pub const fn round(round: u32) -> WaitCondition {
        WaitCondition { sum: 3 * (round as u64 / 2) + round as u64 % 2, bit: WaitCondition::added(round) }
    }

    /// Returns the amount that a round adds to its signal.
    #[inline(always)]
    pub const fn added(round: u32) -> u64 {
        2 - round as u64 % 2
    }

    /// Returns whether `sum` meets the condition.
    #[inline(always)]
    pub const fn is_met(self, sum: u64) -> bool {
        if self.bit == 0 {
            return sum >= self.sum;
        }
        // If all earlier rounds have arrived, the difference is `x - own` with `x` one of 0, own, other, own + other.
        // Its bit is clear if `own` is included. Two bits of the sum decide, so the round's number may wrap around to
        // 0.
        !sum.wrapping_sub(self.sum) & self.bit != 0
    }

    /// Returns the observed and required values for a report: sums, or numbers of rounds. The next round may have
    /// arrived but is not counted.
    pub(super) fn told(self, sum: u64) -> (u64, u64) {
        if self.bit == 0 {
            return (sum, self.sum);
        }
        let rounds = |sum: u64| sum / 3 * 2 + !sum.is_multiple_of(3) as u64;
        (rounds(sum).min(rounds(self.sum).saturating_sub(1)), rounds(self.sum))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the sum that all rounds up to `round` have added.
    fn added_up_to(round: u32) -> u64 {
        (1..=round).map(WaitCondition::added).sum()
    }

    proptest! {
        #[test]
        fn round_is_met_only_by_its_signal(round in 1u32..5000, own: bool, next: bool) {
            let before = added_up_to(round - 1);
            let sum = before + u64::from(own) * WaitCondition::added(round) + u64::from(next) * WaitCondition::added(round + 1);
            prop_assert_eq!(WaitCondition::round(round).is_met(sum), own);
            if !own {
                prop_assert_eq!(WaitCondition::round(round).told(sum), (u64::from(round) - 1, u64::from(round)));
            }
        }

        #[test]
        fn rounds_wrap_after_largest_number(ahead in 0u32..4, own: bool, next: bool) {
            // All rounds up to the largest number have added a sum with these two lowest bits.
            let mut sum = 3 * (u64::from(u32::MAX) / 2) + 1;
            for round in 0..ahead {
                sum += WaitCondition::added(round);
            }
            sum += u64::from(own) * WaitCondition::added(ahead) + u64::from(next) * WaitCondition::added(ahead + 1);
            prop_assert_eq!(WaitCondition::round(ahead).is_met(sum), own);
        }

        #[test]
        fn minimum_sum_is_met_by_equal_or_larger(wanted: u64, sum: u64) {
            prop_assert_eq!(WaitCondition::at_least(wanted).is_met(sum), sum >= wanted);
            prop_assert!(WaitCondition::at_least(wanted).is_met(wanted) && !WaitCondition::at_least(u64::MAX).is_met(u64::MAX - 1));
        }
    }
}
