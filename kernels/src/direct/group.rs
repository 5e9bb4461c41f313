//! Lanes of a warp that use the same queue together.

use super::NicQueue;
use cuda_std::warp;

/// A group of lanes. All its lanes must call the methods that exchange values together.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub mask: u32,
    /// Index of the lane that acts for the group.
    pub leader: u32,
    /// Index of this lane in the group.
    pub rank: u32,
    pub lanes: u32,
}

impl Group {
    /// Returns a group of this lane only.
    #[inline(always)]
    pub fn alone() -> Group {
        let lane = warp::lane();
        Group { mask: 1 << lane, leader: lane, rank: 0, lanes: 1 }
    }

    /// Returns the group of the active lanes that use the same queue.
    #[inline(always)]
    #[track_caller]
    pub fn of(queue: &NicQueue) -> Group {
        let mut mask = warp::active_mask();
        if mask.count_ones() > 1 {
            mask = warp::match_any_u64(mask, queue.words as u64);
        }
        let below = mask & ((1u32 << warp::lane()) - 1);
        Group { mask, leader: mask.trailing_zeros(), rank: below.count_ones(), lanes: mask.count_ones() }
    }

    #[inline(always)]
    pub fn leads(&self) -> bool {
        self.rank == 0
    }

    /// Returns the leader's value to all lanes.
    #[inline(always)]
    #[track_caller]
    pub fn share(&self, value: u64) -> u64 {
        if self.lanes == 1 { value } else { warp::broadcast_u64(self.mask, value, self.leader) }
    }

    /// Returns whether `yes` is true on any lane.
    #[inline(always)]
    #[track_caller]
    pub fn any(&self, yes: bool) -> bool {
        if self.lanes == 1 { yes } else { warp::any(self.mask, yes) }
    }

    /// Returns the number of lanes before the first whose `yes` is false.
    #[inline(always)]
    #[track_caller]
    pub fn leading(&self, yes: bool) -> u32 {
        if self.lanes == 1 {
            return yes as u32;
        }
        let no = self.mask & !warp::ballot(self.mask, yes);
        let below = if no == 0 { u32::MAX } else { (1 << no.trailing_zeros()) - 1 };
        (self.mask & below).count_ones()
    }

    /// Returns the value of the lane with index `rank`.
    #[inline(always)]
    #[track_caller]
    pub fn of_rank(&self, rank: u32, value: u64) -> u64 {
        if self.lanes == 1 {
            return value;
        }
        let lane = warp::ballot(self.mask, self.rank == rank).trailing_zeros();
        warp::broadcast_u64(self.mask, value, lane)
    }

    /// Returns the largest value of all lanes.
    #[inline(always)]
    #[track_caller]
    pub fn latest(&self, value: u64) -> u64 {
        // Starts with the last lane's value. It is usually the largest, because the lanes usually post together.
        let mut latest = self.of_rank(self.lanes - 1, value);
        while self.any(value > latest) {
            let larger = warp::ballot(self.mask, value > latest);
            latest = warp::broadcast_u64(self.mask, value, larger.trailing_zeros());
        }
        latest
    }

    /// Barrier of the group: makes the lanes' preceding accesses visible to all of them.
    #[inline(always)]
    #[track_caller]
    pub fn meet(&self) {
        if self.lanes > 1 {
            warp::synchronize(self.mask);
        }
    }
}
