//! Random numbers of a rail, and the queue of delayed events.

use super::Who;
use super::spec::WorstSpec;
use ginlab_base::random::{Random, mix};

/// Random number generator of a rail.
#[derive(Debug)]
pub(super) struct RailRandom {
    random: Random,
    spec: WorstSpec,
}

impl RailRandom {
    /// Creates the generator for a rail of a rank. In practice, the sequences of the rails of a job do not overlap.
    pub fn new(spec: &WorstSpec, who: Who) -> RailRandom {
        let place = u64::from(who.rank) << 32 | u64::from(who.proxy) << 16 | u64::from(who.rail);
        RailRandom { random: Random(mix(spec.seed) ^ mix(!place)), spec: *spec }
    }

    /// Returns a number below `end`, which must be at least 1.
    pub fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    /// Returns `true` with a probability of `percent` percent.
    pub fn happens(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns a short delay, in events.
    pub fn short(&mut self) -> u64 {
        self.below(4).min(self.spec.delay)
    }

    /// Returns a delay in events, with a heavy tail: half of the delays are short, and the others are spread over all
    /// octaves up to the maximum.
    pub fn delay(&mut self) -> u64 {
        if self.happens(50) {
            return self.short();
        }
        let low = 1 << self.below(u64::from(self.spec.delay.ilog2()) + 1);
        (low + self.below(low)).min(self.spec.delay)
    }

    /// Splits `bytes` bytes at random positions. Returns the offset and length of each packet; empty for 0 bytes.
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

/// Delayed events, ordered by their due time.
#[derive(Debug)]
pub(super) struct EventQueue<T> {
    /// Events, sorted by decreasing time. The next event is last.
    items: Vec<(u64, T)>,
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        EventQueue { items: Vec::new() }
    }
}

impl<T> EventQueue<T> {
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Delays an item until `due`. Items due at the same time are returned in random order.
    pub fn put_off(&mut self, due: u64, item: T, law: &mut RailRandom) {
        let before = law.happens(50);
        let at = self.items.partition_point(|(other, _)| *other > due || (before && *other == due));
        self.items.insert(at, (due, item));
    }

    /// Removes and returns an item that is due.
    pub fn take_due(&mut self, now: u64) -> Option<T> {
        self.items.pop_if(|(due, _)| *due <= now).map(|(_, item)| item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn law(seed: u64) -> RailRandom {
        RailRandom::new(&WorstSpec { seed, ..WorstSpec::default() }, Who::default())
    }

    #[test]
    fn delays_are_often_short_and_often_long() {
        let mut law = law(3);
        let delays: Vec<u64> = (0..10_000).map(|_| law.delay()).collect();
        let part = |of: std::ops::RangeInclusive<u64>| delays.iter().filter(|delay| of.contains(delay)).count();
        assert!(part(0..=3) > 5_000 && part(8..=64) > 1_500 && part(33..=64) > 500 && part(65..=u64::MAX) == 0);
    }

    #[test]
    fn rails_draw_independently_and_reproducibly() {
        let draws = |seed, rail| {
            let mut law = RailRandom::new(&WorstSpec { seed, ..WorstSpec::default() }, Who { rail, ..Who::default() });
            (0..8).map(|_| law.below(1 << 60)).collect::<Vec<_>>()
        };
        assert_eq!(draws(1, 0), draws(1, 0));
        assert!(draws(1, 0) != draws(1, 1) && draws(1, 0) != draws(2, 0));
    }

    #[test]
    fn simultaneous_events_are_delivered_in_any_order() {
        let (mut law, mut agenda) = (law(1), EventQueue::default());
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
