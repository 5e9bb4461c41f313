//! Rounds of an all-to-all on one rank: the rank writes a block to every other rank. Immediates notify it when all of
//! its blocks have arrived.

use super::args::{All2AllArgs, All2AllConfig};
use super::pairs::Start;
use crate::error::Failure;
use crate::job::Job;
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::any::AnyRail;
use ginlab::flow::{Region, Target};
use ginlab::rails::strategy::{Fragment, Scheduler, Strategy};
use ginlab::signals;
use std::time::Instant;

/// Pieces into which every block of a row is split. They are equal for all pairs and rounds, and their rails are
/// relative to the rail that [`Start::rail`] assigns to the pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    pieces: Vec<Fragment>,
    rails: usize,
    /// Whether the rails in `pieces` are absolute: all pieces use rail 0.
    fixed: bool,
    start: Start,
}

impl Cut {
    /// Creates the pieces. `longest` is the maximum size of one transfer.
    pub fn new(tuple: &All2AllConfig, longest: u64) -> Cut {
        let splits = match tuple.strategy {
            Strategy::Split => true,
            Strategy::Auto { threshold } => tuple.bytes >= threshold,
            Strategy::Single | Strategy::RoundRobin => false,
        };
        let (strategy, rails) = if splits { (Strategy::Split, tuple.rails) } else { (Strategy::Single, 1) };
        let mut pieces = Vec::new();
        Scheduler::new(strategy, rails).schedule(tuple.bytes, longest, false, |piece| pieces.push(piece));
        Cut { pieces, rails: tuple.rails, fixed: tuple.strategy == Strategy::Single, start: tuple.start }
    }

    /// Returns the maximum number of pieces of a block that one rail carries.
    pub fn on_one_rail(&self) -> usize {
        let pieces = |rail| self.pieces.iter().filter(|piece| piece.rail == rail).count();
        (0..self.rails).map(pieces).max().unwrap_or_default()
    }

    /// Returns the pieces of one block, each with the rail that carries it.
    fn of_pair(&self, round: u64, from: usize, to: usize, ranks: usize) -> impl Iterator<Item = Fragment> {
        let first = if self.fixed { 0 } else { self.start.rail(round, from, to, ranks, self.rails) };
        self.pieces.iter().map(move |piece| Fragment { rail: (first + piece.rail) % self.rails, ..*piece })
    }
}

/// State of one rank.
pub struct All2all {
    pub args: All2AllArgs,
    pub job: Job,
    pub source: Region<AnyRail>,
    pub destination: Region<AnyRail>,
    /// Destinations of the other ranks, indexed by rank.
    pub targets: Vec<Target>,
    /// Number of rounds so far. The immediates of the next round carry the next number. All ranks count identically.
    pub step: u32,
    /// Maximum size of one transfer on every rail.
    pub longest: u64,
    /// Number of the next verified round, so that every round has a different pattern.
    pub iteration: u32,
}

impl All2all {
    /// Runs one round of blocks at distance `stride`. Returns the microseconds until this rank has sent and received
    /// everything. Block `to` of the source becomes block `from` in the destination of rank `to`. `round` selects the
    /// rails.
    ///
    /// No barrier is needed between rounds: a rank ends a round only when all others have started it, and immediates of
    /// the next round have a different number.
    pub async fn round(&mut self, cut: &Cut, stride: u64, round: u64, all: &mut Bootstrap) -> Result<f64, Failure> {
        // Waits also check for interrupts, but short rounds may complete without waiting long enough.
        if signals::interrupted() {
            return Err(Failure::Interrupted);
        }
        let (rank, ranks) = (all.rank(), all.size());
        self.step = self.step.wrapping_add(1);
        let began = Instant::now();
        let mut writes = Vec::with_capacity(cut.pieces.len() * (ranks - 1));
        for to in cut.start.targets(rank, ranks) {
            let (offset, at) = (to as u64 * stride, rank as u64 * stride);
            for piece in cut.of_pair(round, rank, to, ranks) {
                let (from, into) = (offset + piece.offset, at + piece.offset);
                let target = &self.targets[to];
                let flow = &self.job.flow;
                writes.push(flow.write_on(piece.rail, &self.source, from, target, into, piece.bytes, Some(self.step)));
            }
        }
        // Every other rank splits its blocks in the same way.
        let expected = writes.len() as u64;
        self.job.wait_signal(self.step, expected, all).await?;
        for write in writes {
            write.await?;
        }
        Ok(began.elapsed().as_secs_f64() * 1e6)
    }

    /// Runs a round of empty blocks. Returns when all ranks have entered it. Later writes of other ranks happen after
    /// all actions of this rank that precede the call.
    pub async fn gate(&mut self, all: &mut Bootstrap) -> Result<(), Failure> {
        let nothing = Cut {
            pieces: vec![Fragment { rail: 0, offset: 0, bytes: 0 }],
            rails: 1,
            fixed: true,
            start: Start::Spread,
        };
        self.round(&nothing, 0, 0, all).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::tuples;
    use super::super::pairs;
    use super::{All2AllConfig, Cut, Fragment};
    use clap::Parser;
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: super::super::args::All2AllArgs,
    }

    fn tuple(bytes: u64, rails: usize, strategy: &str) -> All2AllConfig {
        let text = format!("all2all -b {bytes} -e {bytes} --rails {rails} --strategy {strategy} -n 1");
        let line = Line::try_parse_from(text.split_whitespace()).unwrap_or_else(|error| panic!("{error}"));
        tuples(&line.args).unwrap_or_else(|failure| panic!("{failure:?}"))[0]
    }

    proptest! {
        /// Every rank sends and receives the same number of bytes on each rail over the rounds of a row, and every
        /// byte of a block is sent exactly once.
        #[test]
        fn rails_carry_equal_bytes(
            bytes in 0u64..5_000_000, rails in 1usize..9, ranks in 2usize..12, rank: prop::sample::Index,
            strategy in prop::sample::select(vec!["round-robin", "split", "auto"]), longest in prop::sample::select(vec![u64::MAX, 65_536, 100_003]),
        ) {
            let tuple = tuple(bytes, rails, strategy);
            let cut = Cut::new(&tuple, longest);
            let rank = rank.index(ranks);
            let (mut sent, mut received) = (vec![0; rails], vec![0; rails]);
            for round in 7..7 + tuple.rounds(ranks) {
                for peer in pairs::targets(rank, ranks) {
                    let mut next = 0;
                    for piece in cut.of_pair(round, rank, peer, ranks) {
                        prop_assert_eq!(piece.offset, next);
                        prop_assert!(piece.bytes <= longest);
                        next += piece.bytes;
                        sent[piece.rail] += piece.bytes;
                    }
                    prop_assert_eq!(next, bytes);
                    cut.of_pair(round, peer, rank, ranks).for_each(|piece| received[piece.rail] += piece.bytes);
                }
            }
            prop_assert!(sent.iter().all(|load| *load == sent[0]), "{:?}", sent);
            prop_assert_eq!(&sent, &received);
            prop_assert_eq!(pairs::imbalance_pct(&sent), 0.0);
        }
    }

    #[test]
    fn single_uses_only_rail_0() {
        let cut = Cut::new(&tuple(1 << 20, 4, "single"), u64::MAX);
        let rails: Vec<_> = (0..9).flat_map(|round| cut.of_pair(round, 1, 0, 3).map(|piece| piece.rail)).collect();
        assert_eq!(rails, [0; 9]);
        assert_eq!(cut.on_one_rail(), 1);
        let cut = Cut::new(&tuple(1 << 20, 4, "split"), 1 << 16);
        assert_eq!((cut.pieces.len(), cut.on_one_rail()), (16, 4));
    }

    #[test]
    fn empty_block_is_one_fragment() {
        for strategy in ["single", "round-robin", "split", "auto"] {
            let cut = Cut::new(&tuple(0, 4, strategy), u64::MAX);
            assert_eq!(cut.pieces, [Fragment { rail: 0, offset: 0, bytes: 0 }], "{strategy}");
        }
    }
}
