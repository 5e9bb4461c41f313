//! Block barrier, and the return of lanes.

use super::super::site::{Site, has_returned, one_has_left, two_barriers};
use super::SIZE;
use super::state::{BlockState, LaneState, LaneStop};

impl BlockState {
    /// Block barrier with a vote. Returns whether any lane's `predicate` is true.
    pub fn barrier(&self, lane: &LaneState, predicate: bool, site: Site) -> bool {
        let (warp, thread) = (lane.warp(), lane.position.thread_idx_x);
        let first = if self.arrived.get() == 0 { None } else { self.first.get() };
        let is_right = first.is_none_or(|(_, first)| first.is(&site)) && self.is_whole() && warp.has_no_meeting();
        if !is_right && let Some(why) = self.refused(lane, first, site) {
            lane.fail(why);
        }
        if first.is_none() {
            self.first.set(Some((thread, site)));
        }
        lane.last.set(Some(site));
        self.arrived.set(self.arrived.get() + 1);
        self.vote.set(self.vote.get() | predicate);
        warp.at_barrier.set(warp.at_barrier.get() | lane.bit());
        if self.release_barrier() && !self.seeded {
            // The last lane to arrive continues immediately and need not be woken.
            warp.runnable.set(warp.runnable.get() & !lane.bit());
        } else {
            lane.stop(LaneStop::Waits);
        }
        self.voted.get()
    }

    /// Returns whether no lane has returned.
    fn is_whole(&self) -> bool {
        self.alive.get() as usize == self.lanes.len()
    }

    /// Returns the reason why this lane must not wait at this barrier, if any.
    #[cold]
    fn refused(&self, lane: &LaneState, first: Option<(u32, Site)>, site: Site) -> Option<String> {
        let here = (lane.position.thread_idx_x, site);
        if let Some(first) = first
            && !first.1.is(&site)
        {
            return Some(two_barriers(here, first));
        }
        if let Some(gone) = self.lanes.iter().find(|lane| lane.warp().alive.get() & lane.bit() == 0) {
            return Some(one_has_left((gone.position.thread_idx_x, gone.last.get()), here));
        }
        let waits = lane.warp().waits_for(here.0 % SIZE)?;
        Some(format!("thread {} waits at {site}, and {waits}", here.0))
    }

    /// Releases the barrier if all lanes have arrived. Returns whether they had.
    fn release_barrier(&self) -> bool {
        if (self.arrived.get() as usize) < self.lanes.len() {
            return false;
        }
        self.arrived.set(0);
        self.voted.set(self.vote.replace(false));
        for warp in &self.warps {
            let lanes = warp.at_barrier.replace(0);
            if lanes != 0 {
                self.wake(warp, lanes);
            }
        }
        if let Some(orders) = &self.orders {
            orders.join(self.index(), 0..self.lanes.len(), self.lanes.len());
        }
        true
    }

    /// Records that a lane has returned.
    pub fn leave(&self, lane: &LaneState) -> Result<(), String> {
        self.alive.set(self.alive.get() - 1);
        let (warp, thread) = (lane.warp(), lane.position.thread_idx_x);
        warp.alive.set(warp.alive.get() & !lane.bit());
        let gone = (thread, lane.last.get());
        let at_barrier = if self.arrived.get() == 0 { None } else { self.first.get() };
        let why = match (at_barrier, warp.waits_for(thread % SIZE)) {
            (Some(first), _) => one_has_left(gone, first),
            (None, Some(waits)) => format!("{}, and {waits}", has_returned(gone)),
            (None, None) => return Ok(()),
        };
        Err(format!("block {}: {why}", self.index()))
    }

    /// Describes the deadlock when no lane is runnable, but not all have returned.
    pub fn stuck(&self) -> String {
        let at_barrier: u32 = self.warps.iter().map(|warp| warp.at_barrier.get().count_ones()).sum();
        let mut text = format!("block {}: all its threads wait for one another", self.index());
        if at_barrier > 0
            && let Some((_, site)) = self.first.get()
        {
            text += &format!("; {at_barrier} of {} at {site}", self.alive.get());
        }
        for warp in &self.warps {
            text += &warp.waiting();
        }
        text
    }
}
