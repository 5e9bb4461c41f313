//! What a wait wants of a signal.

/// What a wait wants of a signal's sum: at least a number, or one round.
///
/// Odd rounds add 1 and even rounds add 2 ([`Wanted::added`]). Whoever waits for a round has received all before it, and the sender is at
/// most one round ahead. So the sum is that of all rounds before, plus 0 to 3: the bit of a round's own number says whether it is among
/// what has come, also where the next one has come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The least sum; of a round: what all rounds up to it have added.
    sum: u64,
    /// 0, or what the round adds.
    bit: u64,
}

impl Wanted {
    /// This sum or more.
    #[inline(always)]
    pub const fn at_least(sum: u64) -> Wanted {
        Wanted { sum, bit: 0 }
    }

    /// This round, counted from 1.
    #[inline(always)]
    pub const fn round(round: u32) -> Wanted {
        Wanted { sum: 3 * (round as u64 / 2) + round as u64 % 2, bit: Wanted::added(round) }
    }

    /// What a round adds to its signal.
    #[inline(always)]
    pub const fn added(round: u32) -> u64 {
        2 - round as u64 % 2
    }

    /// Whether a sum says that it has come.
    #[inline(always)]
    pub const fn is_met(self, sum: u64) -> bool {
        if self.bit == 0 {
            return sum >= self.sum;
        }
        // With all rounds before and `x` of {0, own, other, own + other} the difference is `x - own`, whose bit is clear where own has come.
        // Two bits of the sum decide, so it does not matter when the round's number begins again at 0.
        !sum.wrapping_sub(self.sum) & self.bit != 0
    }

    /// What a report says was seen and wanted in vain: sums, or rounds, of which the next one may have come and does not count.
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

    /// What all rounds up to one have added.
    fn added_up_to(round: u32) -> u64 {
        (1..=round).map(Wanted::added).sum()
    }

    proptest! {
        #[test]
        fn a_round_is_met_by_its_own_signal_alone(round in 1u32..5000, own: bool, next: bool) {
            let before = added_up_to(round - 1);
            let sum = before + u64::from(own) * Wanted::added(round) + u64::from(next) * Wanted::added(round + 1);
            prop_assert_eq!(Wanted::round(round).is_met(sum), own);
            if !own {
                prop_assert_eq!(Wanted::round(round).told(sum), (u64::from(round) - 1, u64::from(round)));
            }
        }

        #[test]
        fn rounds_go_on_behind_the_largest_number(ahead in 0u32..4, own: bool, next: bool) {
            // All rounds up to the largest number have added what the two lowest bits say.
            let mut sum = 3 * (u64::from(u32::MAX) / 2) + 1;
            for round in 0..ahead {
                sum += Wanted::added(round);
            }
            sum += u64::from(own) * Wanted::added(ahead) + u64::from(next) * Wanted::added(ahead + 1);
            prop_assert_eq!(Wanted::round(ahead).is_met(sum), own);
        }

        #[test]
        fn a_least_sum_is_met_by_it_and_more(wanted: u64, sum: u64) {
            prop_assert_eq!(Wanted::at_least(wanted).is_met(sum), sum >= wanted);
            prop_assert!(Wanted::at_least(wanted).is_met(wanted) && !Wanted::at_least(u64::MAX).is_met(u64::MAX - 1));
        }
    }
}
