//! One rail, what waits for it, and what it was given.

use super::Counters;
use ginlab_fabric::{FabricError, Post, Rail};

/// Longest run of posts behind one doorbell (FI_MORE): a provider may hold it while more follows, but not for long.
const LONGEST_CHAIN: usize = 16;
/// Pieces that have been posted are cleared away once there are so many before the first that waits.
const CLEAR_FROM: usize = 1024;

/// Something to be posted on a rail.
pub trait Piece: Copy {
    /// What it adds to the bytes posted.
    fn bytes(&self) -> u64;
}

/// A rail with the pieces that wait for it, oldest first.
#[derive(Debug)]
pub struct Lane<R, P> {
    /// Where they are posted.
    pub rail: R,
    /// Mostly it is filled and emptied in one turn, so a plain list with a mark does, and what is posted is a slice.
    pieces: Vec<P>,
    /// Pieces before this one are posted.
    first: usize,
    bytes: u64,
    transfers: u64,
    again: u64,
}

impl<R: Rail, P: Piece> Lane<R, P> {
    /// With nothing that waits.
    pub fn new(rail: R) -> Lane<R, P> {
        Lane { rail, pieces: Vec::new(), first: 0, bytes: 0, transfers: 0, again: 0 }
    }

    /// Pieces that the rail has not taken yet.
    #[inline]
    pub fn waiting(&self) -> &[P] {
        &self.pieces[self.first..]
    }

    /// Whether nothing waits, so that a post does not overtake anything.
    #[inline(always)]
    pub fn is_free(&self) -> bool {
        self.pieces.is_empty()
    }

    /// A piece that waits for its turn.
    #[inline]
    pub fn push(&mut self, piece: P) {
        self.pieces.push(piece);
    }

    /// Transfers that the rail has taken.
    pub fn transfers(&self) -> u64 {
        self.transfers
    }

    /// Bytes of these.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Posts from where it stands. Only while nothing waits; what the rail does not take is the caller's.
    #[inline(always)]
    pub fn post(
        &mut self,
        bytes: u64,
        post: impl FnOnce(&mut R) -> Result<Post, FabricError>,
    ) -> Result<Post, FabricError> {
        let posted = post(&mut self.rail);
        match &posted {
            Ok(Post::Accepted) => {
                self.bytes += bytes;
                self.transfers += 1;
            }
            Ok(Post::Again) => self.again += 1,
            Err(_) => {}
        }
        posted
    }

    /// Posts what waits, in order, as far as the rail takes it; how many it took. `post` is told whether more follows at once.
    /// The piece whose post failed is still the first that waits ([`take_first`](Lane::take_first)).
    #[inline]
    pub fn pump(
        &mut self,
        mut post: impl FnMut(&mut R, &P, bool) -> Result<Post, FabricError>,
    ) -> (usize, Result<(), FabricError>) {
        if self.is_free() {
            return (0, Ok(()));
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

    /// The piece that has waited longest; it is not posted.
    pub fn take_first(&mut self) -> Option<P> {
        let first = self.waiting().first().copied()?;
        self.first += 1;
        self.clear();
        Some(first)
    }

    /// All that waits, oldest first; it is not posted.
    pub fn take_all(&mut self) -> Vec<P> {
        let all = self.pieces.split_off(self.first);
        self.first = self.pieces.len();
        self.clear();
        all
    }

    /// The first piece that waits and is like this; it is not posted.
    pub fn take(&mut self, like: impl Fn(&P) -> bool) -> Option<P> {
        let at = self.first + self.waiting().iter().position(like)?;
        let taken = self.pieces.remove(at);
        self.clear();
        Some(taken)
    }
}

/// What these lanes have been given.
pub fn counters<R: Rail, P: Piece>(lanes: &[Lane<R, P>]) -> Counters {
    Counters {
        rail_bytes: lanes.iter().map(|lane| lane.bytes).collect(),
        rail_transfers: lanes.iter().map(|lane| lane.transfers).collect(),
        again: lanes.iter().map(|lane| lane.again).sum(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

    use super::*;
    use ginlab_fabric::null::NullRail;

    impl Piece for u64 {
        fn bytes(&self) -> u64 {
            *self
        }
    }

    fn lane(pieces: impl IntoIterator<Item = u64>) -> Lane<NullRail, u64> {
        let mut lane = Lane::new(NullRail::new());
        pieces.into_iter().for_each(|piece| lane.push(piece));
        lane
    }

    /// Posts until the rail has taken so many; which were taken, and whether more followed each.
    fn pump(lane: &mut Lane<NullRail, u64>, most: usize) -> Vec<(u64, bool)> {
        let mut posted = Vec::new();
        let (taken, outcome) = lane.pump(|_, piece, more| {
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
        let mut lane = lane(0..3000);
        assert!(!lane.is_free());
        let mut posted = Vec::new();
        // Also where posted pieces are cleared away and where they are not.
        for most in [1, 1022, 1, 1, 0, 974, 5000, 5] {
            posted.extend(pump(&mut lane, most).into_iter().map(|(piece, _)| piece));
            let next = posted.len() as u64;
            assert_eq!(lane.waiting(), (next..3000).collect::<Vec<_>>());
            assert!(lane.first < CLEAR_FROM && (lane.waiting().is_empty() == lane.is_free()));
        }
        assert_eq!(posted, (0..3000).collect::<Vec<_>>());
        assert_eq!((lane.bytes(), lane.transfers()), ((0..3000).sum(), 3000));
        let counters = counters(&[lane]);
        assert_eq!((counters.rail_bytes, counters.rail_transfers), (vec![(0..3000).sum()], vec![3000]));
        // The pump that ended with the last piece was told nothing, and the last found nothing.
        assert_eq!(counters.again, 6);
    }

    #[test]
    fn a_long_queue_gives_its_front_back() {
        let mut lane = lane(0..3000);
        pump(&mut lane, 10);
        assert_eq!((lane.waiting()[0], lane.pieces.len(), lane.first), (10, 3000, 10));
        pump(&mut lane, CLEAR_FROM - 10);
        assert_eq!((lane.waiting()[0], lane.pieces.len(), lane.first), (1024, 3000 - 1024, 0));
        pump(&mut lane, 3000);
        assert_eq!((lane.pieces.len(), lane.first), (0, 0));
    }

    #[test]
    fn a_doorbell_is_held_for_so_many_posts_and_not_behind_the_last() {
        let mut lane = lane(0..40);
        let held: Vec<bool> = pump(&mut lane, 99).into_iter().map(|(_, more)| more).collect();
        let expected: Vec<bool> = (1..=40).map(|post| post % 16 != 0 && post != 40).collect();
        assert_eq!(held, expected);
    }

    #[test]
    fn a_piece_that_fails_waits_first_and_can_be_taken() {
        let mut lane = lane(0..4);
        let error = lane.rail.has_none("this");
        let (taken, outcome) = lane.pump(|_, piece, _| match piece {
            2 => Err(error.clone()),
            _ => Ok(Post::Accepted),
        });
        assert_eq!((taken, outcome), (2, Err(error)));
        assert_eq!((lane.take_first(), lane.waiting()), (Some(2), &[3][..]));
        assert_eq!((lane.take_first(), lane.take_first(), lane.is_free()), (Some(3), None, true));
        assert_eq!((lane.bytes(), lane.transfers()), (1, 2));
    }

    #[test]
    fn a_piece_is_taken_from_the_middle_and_never_one_that_was_posted() {
        let mut lane = lane([5, 6, 7, 6]);
        pump(&mut lane, 1);
        assert_eq!((lane.take(|piece| *piece == 5), lane.take(|piece| *piece == 7)), (None, Some(7)));
        assert_eq!(lane.waiting(), [6, 6]);
        assert_eq!((lane.take(|piece| *piece == 6), lane.is_free()), (Some(6), false));
        assert_eq!((lane.take(|piece| *piece == 6), lane.is_free()), (Some(6), true));
    }

    #[test]
    fn what_waits_is_taken_and_what_was_posted_is_not() {
        let mut lane = lane(0..5);
        pump(&mut lane, 2);
        assert_eq!((lane.take_all(), lane.is_free(), lane.take_all()), (vec![2, 3, 4], true, vec![]));
        lane.push(9);
        assert_eq!((lane.waiting(), lane.transfers()), (&[9][..], 2));
    }

    #[test]
    fn a_post_from_where_it_stands_is_counted() {
        let mut lane = lane([]);
        assert_eq!(lane.post(9, |_| Ok(Post::Accepted)), Ok(Post::Accepted));
        assert_eq!(lane.post(9, |_| Ok(Post::Again)), Ok(Post::Again));
        let error = lane.rail.has_none("this");
        assert_eq!(lane.post(9, |_| Err(error.clone())), Err(error));
        let expected = Counters { rail_bytes: vec![9], rail_transfers: vec![1], again: 1 };
        assert_eq!(counters(&[lane]), expected);
    }
}
