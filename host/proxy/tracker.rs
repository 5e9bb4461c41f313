//! The watermark. Rails complete out of order, but kernels wait in order.

/// Counts the outstanding pieces of each ticket and advances a watermark over the tickets without outstanding pieces.
#[derive(Debug)]
pub struct Tracker {
    /// Number of outstanding pieces of the tickets in the window `watermark..next`, at index `ticket & mask`.
    outstanding: Box<[u32]>,
    mask: u64,
    watermark: u64,
    next: u64,
}

impl Tracker {
    /// Creates a tracker for tickets from 0, with at most `window` tickets in flight. `window` is rounded up to a power
    /// of two.
    pub fn new(window: usize) -> Tracker {
        let window = window.next_power_of_two();
        Tracker { outstanding: vec![0; window].into(), mask: window as u64 - 1, watermark: 0, next: 0 }
    }

    /// Returns the number of tickets that can be started now.
    #[inline]
    pub fn room(&self) -> usize {
        (self.mask + 1 - (self.next - self.watermark)) as usize
    }

    /// Starts the next ticket, with one piece outstanding, and returns it. The caller must have checked
    /// [`room`](Tracker::room).
    #[inline]
    pub fn begin(&mut self) -> u64 {
        debug_assert!(self.room() > 0);
        let ticket = self.next;
        self.outstanding[(ticket & self.mask) as usize] = 1;
        self.next += 1;
        ticket
    }

    /// Adds outstanding pieces to a ticket that is not complete.
    #[inline]
    pub fn add(&mut self, ticket: u64, pieces: u32) {
        self.outstanding[(ticket & self.mask) as usize] += pieces;
    }

    /// Records the completion of one piece of `ticket`. Returns `false` and ignores the completion if the ticket has no
    /// outstanding piece.
    #[inline]
    pub fn complete(&mut self, ticket: u64) -> bool {
        // Below the watermark the difference wraps to a large number.
        if ticket.wrapping_sub(self.watermark) >= self.next - self.watermark {
            return false;
        }
        let outstanding = &mut self.outstanding[(ticket & self.mask) as usize];
        if *outstanding == 0 {
            return false;
        }
        *outstanding -= 1;
        if ticket == self.watermark {
            while self.watermark < self.next && self.outstanding[(self.watermark & self.mask) as usize] == 0 {
                self.watermark += 1;
            }
        }
        true
    }

    /// Returns the watermark: all lower tickets are complete.
    #[inline]
    pub fn watermark(&self) -> u64 {
        self.watermark
    }

    /// Returns the number of tickets from the watermark to the last one started.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.next - self.watermark
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn watermark_is_first_incomplete_ticket(
            pieces in prop::collection::vec(1u32..5, 1..64), order in prop::collection::vec(any::<u32>(), 256),
        ) {
            let mut tracker = Tracker::new(64);
            let mut outstanding: Vec<u32> = pieces.clone();
            for &count in &pieces {
                let ticket = tracker.begin();
                tracker.add(ticket, count - 1);
            }
            for choice in order {
                let open: Vec<usize> = (0..outstanding.len()).filter(|&ticket| outstanding[ticket] > 0).collect();
                let Some(&ticket) = open.get(choice as usize % open.len().max(1)) else { break };
                outstanding[ticket] -= 1;
                prop_assert!(tracker.complete(ticket as u64));
                let expected = outstanding.iter().position(|&count| count > 0).unwrap_or(outstanding.len());
                prop_assert_eq!(tracker.watermark(), expected as u64);
            }
        }
    }

    #[test]
    fn every_fragment_of_ticket_counts() {
        let mut tracker = Tracker::new(4);
        assert_eq!((tracker.room(), tracker.begin()), (4, 0));
        tracker.add(0, 2);
        assert_eq!((tracker.room(), tracker.begin(), tracker.begin()), (3, 1, 2));
        assert_eq!((tracker.room(), tracker.in_flight(), tracker.watermark()), (1, 3, 0));
        assert!(tracker.complete(1));
        for pieces_left in [2, 1] {
            assert!(tracker.complete(0));
            assert_eq!((tracker.watermark(), tracker.in_flight()), (0, 3), "{pieces_left} left");
        }
        assert!(tracker.complete(0));
        // Advances over the tickets that are already complete, and stops at the incomplete one.
        assert_eq!((tracker.watermark(), tracker.in_flight(), tracker.room()), (2, 1, 3));
        assert!(!tracker.complete(1) && !tracker.complete(3), "below, and not begun");
        assert!(tracker.complete(2));
        assert_eq!((tracker.watermark(), tracker.in_flight(), tracker.room()), (3, 0, 4));
    }

    #[test]
    fn window_must_be_power_of_two() {
        assert_eq!([1, 2, 3, 5].map(|window| Tracker::new(window).room()), [1, 2, 4, 8]);
    }

    #[test]
    fn wraps_and_refuses_strangers() {
        let mut tracker = Tracker::new(2);
        for lap in 0..5u64 {
            assert_eq!((tracker.begin(), tracker.begin()), (lap * 2, lap * 2 + 1));
            assert_eq!(tracker.room(), 0);
            assert!(!tracker.complete(lap * 2 + 2), "not begun, in the place of one that is");
            assert!(tracker.complete(lap * 2 + 1));
            assert_eq!(tracker.watermark(), lap * 2);
            assert!(!tracker.complete(lap * 2 + 1), "twice");
            assert!(tracker.complete(lap * 2));
            assert!(!tracker.complete(lap * 2 + 7), "never begun");
            assert_eq!(tracker.in_flight(), 0);
        }
    }
}
