//! What orders what: for tests of protocols, whose missing barriers and fences no run on a CPU would show.
//!
//! On the emulated device the lanes of a block take turns on one worker, so each sees at once what the others have written, and a
//! fence too few has no effect. The memory model of the hardware promises less. An observed grid
//! ([`Grid::observed`](super::Grid::observed)) therefore keeps account of its rules for warps and blocks, by vector clocks: each lane
//! knows of each other lane of its block up to which moment it has happened before.
//!
//! - `warp::synchronize` and the block barrier: each lane that takes part then knows what all of them knew.
//! - A shuffle, a match, a vote, `active_mask`: nothing. They move values and order no memory.
//! - A fence: what the lane knows now is what its later stores release.
//! - A release store releases what the lane knows.
//!
//! Whoever acquires a word may then ask whether that shows it a certain write ([`Orders::releases`]). Chains through memory (a lane
//! acquires what another one has released) are not followed here; they are loom's.

use super::Position;
#[cfg(not(any(loom, miri, feature = "threads")))]
use super::position;
use crate::memory::Word;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A moment of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    block: u32,
    thread: usize,
    time: u32,
}

/// By thread of the block, the last moment that has happened before.
type Clock = Arc<[u32]>;

#[derive(Debug, Default)]
struct State {
    /// By block and thread: what it knows, and what it knew at its last fence.
    lanes: HashMap<(u32, usize), [Clock; 2]>,
    /// By address: the block that stored there last, and what that released.
    words: HashMap<usize, (u32, Clock)>,
}

/// The account of one grid.
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

    /// The moment of the calling lane: all that it has written so far is before it.
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

    /// Whether what was written before that moment is visible to whoever acquires the value that a lane has last stored to this
    /// word.
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
