//! A rail with its queue of pieces to post and its counters.

use super::Counters;
use super::busy::Busy;
use ginlab_fabric::{Completion, FabricError, Post, Rail};

/// Maximum number of posts per doorbell (FI_MORE). A provider may delay the doorbell while further posts follow, but
/// not for long.
const LONGEST_CHAIN: usize = 16;
/// Minimum number of posted pieces at the front of the queue for which they are removed.
const CLEAR_FROM: usize = 1024;

/// A transfer that can be queued and posted on a rail.
pub trait Queueable: Copy {
    /// Returns the number of bytes that the piece adds to the bytes posted.
    fn bytes(&self) -> u64;
}

/// A rail and the queue of pieces to post on it, oldest first.
#[derive(Debug)]
pub struct RailQueue<R, P> {
    /// The rail.
    pub rail: R,
    /// Queued pieces. The queue is usually filled and emptied in one iteration. A `Vec` with an index therefore
    /// suffices, and the queued pieces are a slice.
    pieces: Vec<P>,
    /// Index of the first piece that is not posted.
    first: usize,
    bytes: u64,
    transfers: u64,
    again: u64,
    /// Time with transfers in flight; `None` unless [`RailQueue::time`] was called. Boxed, so that the fields that each
    /// post uses occupy few cache lines.
    busy: Option<Box<Busy>>,
}

impl<R: Rail, P: Queueable> RailQueue<R, P> {
    /// Creates the queue of a rail, empty.
    pub fn new(rail: R) -> RailQueue<R, P> {
        RailQueue { rail, pieces: Vec::new(), first: 0, bytes: 0, transfers: 0, again: 0, busy: None }
    }

    /// Starts to measure the time with transfers in flight. Must be called while there are none. The cost is two reads
    /// of the clock each time the rail becomes busy and idle again.
    pub fn time(&mut self) {
        self.busy.get_or_insert_default();
    }

    /// Counts polled completions of this rail, for the time with transfers in flight.
    #[inline(always)]
    pub fn completed(&mut self, completions: &[Completion]) {
        if let Some(busy) = &mut self.busy {
            busy.completed(completions);
        }
    }

    /// Returns the pieces that the rail has not accepted yet.
    #[inline]
    pub fn waiting(&self) -> &[P] {
        &self.pieces[self.first..]
    }

    /// Returns whether the queue is empty, so that a direct [`post`](RailQueue::post) does not overtake other pieces.
    #[inline(always)]
    pub fn is_free(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Appends a piece to the queue.
    #[inline]
    pub fn push(&mut self, piece: P) {
        self.pieces.push(piece);
    }

    /// Returns the number of transfers that the rail has accepted.
    pub fn transfers(&self) -> u64 {
        self.transfers
    }

    /// Returns the number of bytes of the accepted transfers.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Posts directly, without the queue, and counts the result. Must only be called while the queue is empty. If the
    /// rail does not accept the transfer, the caller keeps it.
    #[inline(always)]
    pub fn post(
        &mut self,
        bytes: u64,
        post: impl FnOnce(&mut R) -> Result<Post, FabricError>,
    ) -> Result<Post, FabricError> {
        if let Some(busy) = &mut self.busy {
            busy.start();
        }
        let posted = post(&mut self.rail);
        match &posted {
            Ok(Post::Accepted) => {
                self.bytes += bytes;
                self.transfers += 1;
                if let Some(busy) = &mut self.busy {
                    busy.posted(1);
                }
            }
            Ok(Post::Again) => self.again += 1,
            Err(_) => {}
        }
        posted
    }

    /// Posts queued pieces in order until the rail is full or a post fails. Returns the number posted. The last
    /// argument of `post` indicates whether another post follows immediately. A piece whose post failed remains first
    /// in the queue ([`take_first`](RailQueue::take_first)).
    #[inline]
    pub fn pump(
        &mut self,
        mut post: impl FnMut(&mut R, &P, bool) -> Result<Post, FabricError>,
    ) -> (usize, Result<(), FabricError>) {
        if self.is_free() {
            return (0, Ok(()));
        }
        if let Some(busy) = &mut self.busy {
            busy.start();
        }
        let waiting = &self.pieces[self.first..];
        let (mut taken, mut bytes, mut outcome) = (0, 0, Ok(()));
        for piece in waiting {
            let more = taken + 1 < waiting.len() && (taken + 1) % LONGEST_CHAIN != 0;
            match post(&mut self.rail, piece, more) {
                Ok(Post::Accepted) => {
                    bytes += piece.bytes();
                    taken += 1;
                }
                Ok(Post::Again) => {
                    self.again += 1;
                    break;
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        self.bytes += bytes;
        self.transfers += taken as u64;
        if let Some(busy) = &mut self.busy {
            busy.posted(taken as u64);
        }
        self.first += taken;
        self.clear();
        (taken, outcome)
    }

    #[inline]
    fn clear(&mut self) {
        if self.first == self.pieces.len() {
            self.pieces.clear();
            self.first = 0;
        } else if self.first >= CLEAR_FROM {
            self.pieces.drain(..self.first);
            self.first = 0;
        }
    }

    /// Removes the oldest queued piece without posting it and returns it.
    pub fn take_first(&mut self) -> Option<P> {
        let first = self.waiting().first().copied()?;
        self.first += 1;
        self.clear();
        Some(first)
    }

    /// Removes all queued pieces without posting them and returns them, oldest first.
    pub fn take_all(&mut self) -> Vec<P> {
        let all = self.pieces.split_off(self.first);
        self.first = self.pieces.len();
        self.clear();
        all
    }

    /// Removes the first queued piece that `like` accepts, without posting it, and returns it.
    pub fn take(&mut self, like: impl Fn(&P) -> bool) -> Option<P> {
        let at = self.first + self.waiting().iter().position(like)?;
        let taken = self.pieces.remove(at);
        self.clear();
        Some(taken)
    }
}

/// Returns the totals of `queues`.
pub fn counters<R: Rail, P: Queueable>(queues: &[RailQueue<R, P>]) -> Counters {
    Counters {
        rail_bytes: queues.iter().map(|queue| queue.bytes).collect(),
        rail_transfers: queues.iter().map(|queue| queue.transfers).collect(),
        rail_busy: queues.iter().filter_map(|queue| queue.busy.as_deref()).map(Busy::total).collect(),
        again: queues.iter().map(|queue| queue.again).sum(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

    use super::*;
    use ginlab_fabric::null::NullRail;
    use std::time::Duration;

    impl Queueable for u64 {
        fn bytes(&self) -> u64 {
            *self
        }
    }

    fn queue(pieces: impl IntoIterator<Item = u64>) -> RailQueue<NullRail, u64> {
        let mut queue = RailQueue::new(NullRail::new());
        pieces.into_iter().for_each(|piece| queue.push(piece));
        queue
    }

    /// Posts until the rail has accepted `most` pieces. Returns each piece, and whether a following post was announced
    /// with it.
    fn pump(queue: &mut RailQueue<NullRail, u64>, most: usize) -> Vec<(u64, bool)> {
        let mut posted = Vec::new();
        let (taken, outcome) = queue.pump(|_, piece, more| {
            if posted.len() == most {
                return Ok(Post::Again);
            }
            posted.push((*piece, more));
            Ok(Post::Accepted)
        });
        assert_eq!((taken, outcome), (posted.len(), Ok(())));
        posted
    }

    #[test]
    fn pieces_go_out_in_order_and_each_once() {
        let mut queue = queue(0..3000);
        assert!(!queue.is_free());
        let mut posted = Vec::new();
        // Includes pumps that remove posted pieces from the front and pumps that do not.
        for most in [1, 1022, 1, 1, 0, 974, 5000, 5] {
            posted.extend(pump(&mut queue, most).into_iter().map(|(piece, _)| piece));
            let next = posted.len() as u64;
            assert_eq!(queue.waiting(), (next..3000).collect::<Vec<_>>());
            assert!(queue.first < CLEAR_FROM && (queue.waiting().is_empty() == queue.is_free()));
        }
        assert_eq!(posted, (0..3000).collect::<Vec<_>>());
        assert_eq!((queue.bytes(), queue.transfers()), ((0..3000).sum(), 3000));
        let counters = counters(&[queue]);
        assert_eq!((counters.rail_bytes, counters.rail_transfers), (vec![(0..3000).sum()], vec![3000]));
        // All pumps were refused once, except the one that posted the last piece and the one on the empty queue.
        assert_eq!(counters.again, 6);
    }

    #[test]
    fn long_queue_releases_memory_of_front() {
        let mut queue = queue(0..3000);
        pump(&mut queue, 10);
        assert_eq!((queue.waiting()[0], queue.pieces.len(), queue.first), (10, 3000, 10));
        pump(&mut queue, CLEAR_FROM - 10);
        assert_eq!((queue.waiting()[0], queue.pieces.len(), queue.first), (1024, 3000 - 1024, 0));
        pump(&mut queue, 3000);
        assert_eq!((queue.pieces.len(), queue.first), (0, 0));
    }

    #[test]
    fn doorbell_is_deferred_except_after_last_post() {
        let mut queue = queue(0..40);
        let held: Vec<bool> = pump(&mut queue, 99).into_iter().map(|(_, more)| more).collect();
        let expected: Vec<bool> = (1..=40).map(|post| post % 16 != 0 && post != 40).collect();
        assert_eq!(held, expected);
    }

    #[test]
    fn failed_fragment_stays_first_and_is_removable() {
        let mut queue = queue(0..4);
        let error = queue.rail.has_none("this");
        let (taken, outcome) = queue.pump(|_, piece, _| match piece {
            2 => Err(error.clone()),
            _ => Ok(Post::Accepted),
        });
        assert_eq!((taken, outcome), (2, Err(error)));
        assert_eq!((queue.take_first(), queue.waiting()), (Some(2), &[3][..]));
        assert_eq!((queue.take_first(), queue.take_first(), queue.is_free()), (Some(3), None, true));
        assert_eq!((queue.bytes(), queue.transfers()), (1, 2));
    }

    #[test]
    fn only_unposted_fragments_are_removed() {
        let mut queue = queue([5, 6, 7, 6]);
        pump(&mut queue, 1);
        assert_eq!((queue.take(|piece| *piece == 5), queue.take(|piece| *piece == 7)), (None, Some(7)));
        assert_eq!(queue.waiting(), [6, 6]);
        assert_eq!((queue.take(|piece| *piece == 6), queue.is_free()), (Some(6), false));
        assert_eq!((queue.take(|piece| *piece == 6), queue.is_free()), (Some(6), true));
    }

    #[test]
    fn waiting_fragments_are_removed_and_posted_ones_kept() {
        let mut queue = queue(0..5);
        pump(&mut queue, 2);
        assert_eq!((queue.take_all(), queue.is_free(), queue.take_all()), (vec![2, 3, 4], true, vec![]));
        queue.push(9);
        assert_eq!((queue.waiting(), queue.transfers()), (&[9][..], 2));
    }

    #[test]
    fn only_timed_rails_report_busy_time() {
        let (mut timed, untimed) = (queue([1, 2]), queue([]));
        assert_eq!(counters(&[untimed]).rail_busy, []);
        timed.time();
        pump(&mut timed, 2);
        let done = |token| Completion::Done { token };
        timed.completed(&[done(0)]);
        let first = counters(std::slice::from_ref(&timed)).rail_busy[0];
        let second = counters(std::slice::from_ref(&timed)).rail_busy[0];
        assert!(second > first && first > Duration::ZERO, "one transfer is in flight: {first:?}, {second:?}");
        timed.completed(&[Completion::Immediate { value: 1 }, done(1)]);
        let idle = counters(std::slice::from_ref(&timed)).rail_busy[0];
        assert!(idle >= second);
        assert_eq!(counters(std::slice::from_ref(&timed)).rail_busy[0], idle, "nothing is in flight");
        assert_eq!(timed.post(9, |_| Ok(Post::Again)), Ok(Post::Again));
        assert_eq!(counters(std::slice::from_ref(&timed)).rail_busy[0], idle, "a refused post is not in flight");
    }

    #[test]
    fn direct_post_is_counted() {
        let mut queue = queue([]);
        assert_eq!(queue.post(9, |_| Ok(Post::Accepted)), Ok(Post::Accepted));
        assert_eq!(queue.post(9, |_| Ok(Post::Again)), Ok(Post::Again));
        let error = queue.rail.has_none("this");
        assert_eq!(queue.post(9, |_| Err(error.clone())), Err(error));
        let expected = Counters { rail_bytes: vec![9], rail_transfers: vec![1], rail_busy: Vec::new(), again: 1 };
        assert_eq!(counters(&[queue]), expected);
    }
}
