//! Happens-before tracking, for tests of protocols: a CPU run alone does not reveal missing barriers and fences.
//!
//! On the emulated device the lanes of a block are scheduled one at a time on one worker. Each lane therefore sees
//! immediately what the others have written, and a missing fence has no effect. The memory model of the hardware
//! guarantees less.
//!
//! An observed grid ([`EmulatedGrid::observed`](super::EmulatedGrid::observed)) tracks the model's rules for warps and
//! blocks by vector clocks. The clock of a lane contains, for each lane of its block, the latest moment that happened
//! before.
//!
//! - `warp::synchronize` and the block barrier: each participating lane obtains the clocks of all of them.
//! - A shuffle, a match, a vote, `active_mask`: no effect. They move values and order no memory.
//! - A fence: later stores of the lane release the clock that it has at the fence.
//! - A release store releases the lane's current clock.
//!
//! A test that acquires a word can then query whether this makes a certain write visible ([`Orders::releases`]). Chains
//! through memory (a lane acquires what another lane released) are not tracked here; loom covers them.

use super::Position;
#[cfg(not(any(loom, miri, feature = "threads")))]
use super::position;
use crate::memory::Word;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A point in the execution of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    block: u32,
    thread: usize,
    time: u32,
}

/// Vector clock, by thread of the block: the latest moment that happened before.
type Clock = Arc<[u32]>;

#[derive(Debug, Default)]
struct State {
    /// The lane's current clock and its clock at its last fence, by block and thread.
    lanes: HashMap<(u32, usize), [Clock; 2]>,
    /// The block of the last store, and the clock that the store released, by address.
    words: HashMap<usize, (u32, Clock)>,
}

/// Happens-before state of one grid.
#[derive(Clone, Debug, Default)]
pub struct Orders(Arc<Mutex<State>>);

impl State {
    fn lane(&mut self, block: u32, thread: usize, threads: usize) -> &mut [Clock; 2] {
        self.lanes.entry((block, thread)).or_insert_with(|| {
            let nothing: Clock = vec![0; threads].into();
            [nothing.clone(), nothing]
        })
    }

    fn join(&mut self, block: u32, threads: &mut dyn Iterator<Item = usize>, of: usize) {
        let threads: Vec<usize> = threads.collect();
        let mut joined = vec![0; of];
        for thread in &threads {
            for (joined, known) in joined.iter_mut().zip(self.lane(block, *thread, of)[0].iter()) {
                *joined = (*joined).max(*known);
            }
        }
        let joined: Clock = joined.into();
        for thread in threads {
            self.lane(block, thread, of)[0] = joined.clone();
        }
    }
}

impl Orders {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current moment of the calling lane; all its preceding writes happen before it.
    #[cfg(not(any(loom, miri, feature = "threads")))]
    pub fn now(&self) -> Moment {
        let Position { block_idx_x: block, thread_idx_x, block_dim_x, .. } = position();
        let thread = thread_idx_x as usize;
        let mut state = self.state();
        let known = &mut state.lane(block, thread, block_dim_x as usize)[0];
        let mut later = known.to_vec();
        later[thread] += 1;
        let time = later[thread];
        *known = later.into();
        Moment { block, thread, time }
    }

    /// Returns whether writes that precede `moment` are visible to a thread that acquires the value last stored to
    /// `word`.
    pub fn releases(&self, word: &Word, moment: Moment) -> bool {
        let state = self.state();
        let found = state.words.get(&std::ptr::from_ref(word).addr());
        found.is_some_and(|(block, known)| *block == moment.block && known[moment.thread] >= moment.time)
    }

    pub(super) fn join(&self, block: u32, threads: impl Iterator<Item = usize>, of: usize) {
        self.state().join(block, &mut { threads }, of);
    }

    pub(super) fn fenced(&self, at: Position) {
        let mut state = self.state();
        let lane = state.lane(at.block_idx_x, at.thread_idx_x as usize, at.block_dim_x as usize);
        lane[1] = lane[0].clone();
    }

    pub(super) fn stored(&self, at: Position, word: usize, release: bool) {
        let mut state = self.state();
        let [known, fenced] = state.lane(at.block_idx_x, at.thread_idx_x as usize, at.block_dim_x as usize);
        let released = if release { known.clone() } else { fenced.clone() };
        state.words.insert(word, (at.block_idx_x, released));
    }
}
