//! Chance: what a rail draws, and the agenda of what it has put off.

use super::Who;
use super::spec::Spec;

/// SplitMix64. Two rails with different seeds share no stretch that matters.
fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ word >> 31
}

/// What a rail draws from.
#[derive(Debug)]
pub(super) struct Law {
    state: u64,
    spec: Spec,
}

impl Law {
    /// Of this rail of this rank: no two rails of a job draw the same.
    pub fn new(spec: &Spec, who: Who) -> Law {
        let place = u64::from(who.rank) << 32 | u64::from(who.proxy) << 16 | u64::from(who.rail);
        Law { state: mix(spec.seed) ^ mix(!place), spec: *spec }
    }

    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// A number below `end`, which is 1 or more.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end.max(1)
    }

    /// Whether what happens in so many percent of all cases happens now.
    pub fn happens(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A short delay, in events.
    pub fn short(&mut self) -> u64 {
        self.below(4).min(self.spec.delay)
    }

    /// A delay in events, with a heavy tail: one half is short, the other is spread over all octaves up to the longest.
    pub fn delay(&mut self) -> u64 {
        if self.happens(50) {
            return self.short();
        }
        let low = 1 << self.below(u64::from(self.spec.delay.ilog2()) + 1);
        (low + self.below(low)).min(self.spec.delay)
    }

    /// Cuts so many bytes at random places: where each packet begins, and its length. None for no bytes.
    pub fn cut(&mut self, bytes: u64) -> Vec<(u64, u64)> {
        if bytes == 0 {
            return Vec::new();
        }
        let packets = 1 + self.below(self.spec.packets.min(bytes));
        let mut begins: Vec<u64> = (1..packets).map(|_| 1 + self.below(bytes)).filter(|at| *at < bytes).collect();
        begins.push(0);
        begins.sort_unstable();
        begins.dedup();
        let ends = begins.iter().skip(1).copied().chain([bytes]);
        begins.iter().zip(ends).map(|(begin, end)| (*begin, end - begin)).collect()
    }
}

/// What has been put off, by the event at which it is due.
#[derive(Debug)]
pub(super) struct Agenda<T> {
    /// What is due first stands last.
    items: Vec<(u64, T)>,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Agenda { items: Vec::new() }
    }
}

impl<T> Agenda<T> {
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Puts it off until an event. Of what is due at the same one, the first may come first or last.
    pub fn put_off(&mut self, due: u64, item: T, law: &mut Law) {
        let before = law.happens(50);
        let at = self.items.partition_point(|(other, _)| *other > due || (before && *other == due));
        self.items.insert(at, (due, item));
    }

    /// What is due.
    pub fn take_due(&mut self, now: u64) -> Option<T> {
        self.items.pop_if(|(due, _)| *due <= now).map(|(_, item)| item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn law(seed: u64) -> Law {
        Law::new(&Spec { seed, ..Spec::default() }, Who::default())
    }

    #[test]
    fn a_good_part_is_short_and_a_good_part_is_held() {
        let mut law = law(3);
        let delays: Vec<u64> = (0..10_000).map(|_| law.delay()).collect();
        let part = |of: std::ops::RangeInclusive<u64>| delays.iter().filter(|delay| of.contains(delay)).count();
        assert!(part(0..=3) > 5_000 && part(8..=64) > 1_500 && part(33..=64) > 500 && part(65..=u64::MAX) == 0);
    }

    #[test]
    fn rails_draw_by_themselves_and_again_the_same() {
        let draws = |seed, rail| {
            let mut law = Law::new(&Spec { seed, ..Spec::default() }, Who { rail, ..Who::default() });
            (0..8).map(|_| law.below(1 << 60)).collect::<Vec<_>>()
        };
        assert_eq!(draws(1, 0), draws(1, 0));
        assert!(draws(1, 0) != draws(1, 1) && draws(1, 0) != draws(2, 0));
    }

    #[test]
    fn what_is_due_at_one_event_comes_in_any_order() {
        let (mut law, mut agenda) = (law(1), Agenda::default());
        (0..100).for_each(|item| agenda.put_off(7, item, &mut law));
        agenda.put_off(8, 1000, &mut law);
        assert_eq!(agenda.take_due(6), None);
        let order: Vec<u32> = std::iter::from_fn(|| agenda.take_due(7)).collect();
        assert!(order.len() == 100 && !agenda.is_empty());
        assert!(order.windows(2).filter(|pair| pair[0] > pair[1]).count() > 20, "{order:?}");
    }

    proptest! {
        #[test]
        fn packets_are_all_bytes_once(seed: u64, bytes in 0u64..100_000) {
            let packets = law(seed).cut(bytes);
            let mut next = 0;
            for (at, length) in &packets {
                prop_assert!(*at == next && *length > 0);
                next += length;
            }
            prop_assert!(next == bytes && packets.len() <= 8);
        }
    }
}
