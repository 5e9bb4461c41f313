//! Rendezvous: exchanges between the 32 lanes of a warp.
//!
//! A rendezvous names its lanes by a mask. It is complete when each of them has arrived at the same call with the same
//! mask. Two lanes that wait for each other at different calls or with different masks are reported as a bug of the
//! kernel, even if the hardware would let them pass.
//!
//! The same holds for cases that the hardware leaves undefined: a lane that has returned, a lane outside its own mask,
//! and the value of a lane outside the mask. The message contains the lanes and the source lines.

use super::super::Vote;
use super::super::site::{RendezvousKind, has_returned};
use super::SIZE;
use super::state::{BlockState, LaneState, LaneStop, RendezvousCall, WarpState};
use std::panic::Location;

impl RendezvousCall {
    fn names(&self, lane: usize) -> bool {
        self.mask >> lane & 1 != 0
    }

    fn is_same(&self, other: &RendezvousCall) -> bool {
        self.mask == other.mask && self.site.is(&other.site)
    }
}

/// Iterates over the lanes of a mask.
fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (lane < SIZE).then_some(lane as usize)
    })
}

impl WarpState {
    /// Returns the lanes of `among` that wait at a rendezvous, and their calls.
    fn calls(&self, among: u32) -> impl Iterator<Item = (usize, RendezvousCall)> {
        lanes(self.meeting.get() & among).filter_map(|lane| Some((lane, self.calls[lane].get()?)))
    }

    /// Returns the name of a lane for messages.
    fn named(&self, lane: usize) -> String {
        format!("lane {lane} of warp {}", self.index)
    }

    /// Returns whether no lane waits at a rendezvous.
    #[inline]
    pub fn has_no_meeting(&self) -> bool {
        self.meeting.get() == 0
    }

    /// Describes a lane that waits at a rendezvous for lane `number`, if any.
    pub fn waits_for(&self, number: u32) -> Option<String> {
        let (lane, call) = self.calls(u32::MAX).find(|(_, call)| call.names(number as usize))?;
        Some(format!("{} waits for it at {}, mask {:#x}", self.named(lane), call.site, call.mask))
    }

    /// Describes up to four waiting lanes and their calls, for messages.
    pub fn waiting(&self) -> String {
        let line = |(lane, call): (usize, RendezvousCall)| {
            format!("; {} at {}, mask {:#x}", self.named(lane), call.site, call.mask)
        };
        self.calls(u32::MAX).take(4).map(line).collect()
    }

    /// Returns the reason why this lane must not make this call, if any.
    #[cold]
    fn refused(&self, lane: &LaneState, call: &RendezvousCall) -> Option<String> {
        let number = (lane.position.thread_idx_x % SIZE) as usize;
        let RendezvousCall { site, mask, source, .. } = *call;
        if !call.names(number) {
            return Some(format!("{} calls {site} with mask {mask:#x}, which does not contain it", self.named(number)));
        }
        let gone = mask & !self.alive.get();
        if gone != 0 {
            let first = self.index as usize * SIZE as usize + lanes(gone).next().unwrap_or(0);
            let known = lane.block().lanes.get(first).map(|gone| has_returned((first as u32, gone.last.get())));
            return Some(format!(
                "{} waits at {site} with mask {mask:#x}, of which {gone:#x} have returned or never existed{}{}",
                self.named(number),
                if known.is_some() { ": " } else { "" },
                known.unwrap_or_default()
            ));
        }
        if site.meeting == RendezvousKind::Shuffle && (source >= SIZE || mask >> source & 1 == 0) {
            return Some(format!(
                "{} requests a value of lane {source}, which is not in mask {mask:#x} of {site}",
                self.named(number)
            ));
        }
        if let Some(other) = lanes(self.at_barrier.get() & mask).next() {
            let there = lane.block().lanes[self.index as usize * SIZE as usize + other].last.get();
            return Some(format!(
                "{} waits at {site} with mask {mask:#x}, and lane {other}, which is in the mask, at {}",
                self.named(number),
                there.map_or("the block barrier".into(), |site| site.to_string())
            ));
        }
        let (other, there) = self.calls(mask).find(|(_, other)| other.names(number) && !other.is_same(call))?;
        Some(format!(
            "{} waits at {site} with mask {mask:#x}, lane {other} at {} with mask {:#x}; lanes that wait for each other must make the \
             same call with the same mask",
            self.named(number),
            there.site,
            there.mask
        ))
    }

    /// Waits for the lanes of the mask, and returns this lane's result.
    pub fn meet(&self, lane: &LaneState, call: RendezvousCall) -> u64 {
        let (block, number) = (lane.block(), (lane.position.thread_idx_x % SIZE) as usize);
        let mask = call.mask;
        let waiting = self.meeting.get() & mask;
        // Usually the first waiting lane is at this call with this mask; then all lanes that wait for this one are.
        let first = if waiting == 0 { None } else { self.calls[waiting.trailing_zeros() as usize].get() };
        let is_right = call.names(number)
            && mask & (self.at_barrier.get() | !self.alive.get()) == 0
            && (call.site.meeting != RendezvousKind::Shuffle || call.source < SIZE && call.names(call.source as usize))
            && first.is_none_or(|first| first.is_same(&call));
        if !is_right && let Some(why) = self.refused(lane, &call) {
            lane.fail(why);
        }
        lane.last.set(Some(call.site));
        self.calls[number].set(Some(call));
        self.meeting.set(self.meeting.get() | lane.bit());
        // A lane of the mask may still wait at another rendezvous, whose mask does not include this lane.
        let has_come = |other: usize| self.calls[other].get().is_some_and(|other| other.is_same(&call));
        if waiting | lane.bit() != mask || !lanes(mask).all(has_come) {
            lane.stop(LaneStop::Waits);
            return self.answers[number].get();
        }
        self.meeting.set(self.meeting.get() & !mask);
        self.answer(block, call.site.meeting, mask);
        if block.is_seeded() {
            block.wake(self, mask);
            lane.stop(LaneStop::Waits);
        } else {
            block.wake(self, mask & !lane.bit());
        }
        self.answers[number].get()
    }

    /// Computes the results; all lanes have arrived.
    fn answer(&self, block: &BlockState, meeting: RendezvousKind, mask: u32) {
        let call = |lane: usize| self.calls[lane].get();
        let value = |lane: usize| call(lane).map_or(0, |call| call.value);
        let yes = || lanes(mask).filter(|lane| value(*lane) != 0).fold(0, |yes: u32, lane| yes | 1 << lane);
        let all = |answer: u64| lanes(mask).for_each(|lane| self.answers[lane].set(answer));
        match meeting {
            // Block barriers, which do not use a rendezvous.
            RendezvousKind::SyncThreads | RendezvousKind::SyncThreadsOr => {}
            RendezvousKind::Synchronize => {
                if let Some(orders) = &block.orders {
                    let first = (self.index * SIZE) as usize;
                    let index = block.lanes[first].position.block_idx_x;
                    orders.join(index, lanes(mask).map(|lane| first + lane), block.lanes.len());
                }
            }
            RendezvousKind::Shuffle => {
                let wanted = |lane: usize| call(lane).map_or(lane, |call| (call.source % SIZE) as usize);
                lanes(mask).for_each(|lane| self.answers[lane].set(value(wanted(lane))));
            }
            RendezvousKind::Match => {
                for lane in lanes(mask) {
                    let same = lanes(mask).filter(|other| value(*other) == value(lane));
                    self.answers[lane].set(same.fold(0, |same, other| same | 1 << other));
                }
            }
            RendezvousKind::Vote(Vote::Ballot) => all(yes().into()),
            RendezvousKind::Vote(Vote::Any) => all((yes() != 0).into()),
            RendezvousKind::Vote(Vote::All) => all((yes() == mask).into()),
        }
    }

    /// Returns the lanes that are active together with this one: those that arrive at the same source location before
    /// every runnable lane of the warp has stopped. If seeded, a random subset of them.
    pub fn active(&self, lane: &LaneState, site: &'static Location<'static>) -> u32 {
        let (block, number) = (lane.block(), (lane.position.thread_idx_x % SIZE) as usize);
        self.sites[number].set(Some(site));
        self.asked[number].set(self.asks.replace(self.asks.get() + 1));
        self.asking.set(self.asking.get() | lane.bit());
        if !block.is_seeded() && self.runnable.get() & !self.spinning.get() == 0 {
            let group = self.group(number);
            if group == self.asking.get() {
                // This is the last lane that can arrive, and it need not stop.
                self.found(block, group, group & !lane.bit());
                return group;
            }
        }
        lane.stop(LaneStop::Waits);
        self.answers[number].get() as u32
    }

    /// Returns the lanes that wait for `active_mask` at the same source location as this one.
    fn group(&self, number: usize) -> u32 {
        let site = self.sites[number].get();
        lanes(self.asking.get()).filter(|lane| self.sites[*lane].get() == site).fold(0, |group, lane| group | 1 << lane)
    }

    fn found(&self, block: &BlockState, group: u32, woken: u32) {
        self.asking.set(self.asking.get() & !group);
        lanes(group).for_each(|lane| self.answers[lane].set(group.into()));
        block.wake(self, woken);
    }
}

impl BlockState {
    /// Answers the lanes that wait for `active_mask` when every runnable lane of the warp has stopped, one source
    /// location at a time. The location of the lane that arrived first is answered first, so that its lanes can catch
    /// up with the others: both sides of a branch reconverge after it. Returns false if no lane waits.
    pub fn gather(&self, warp: &WarpState) -> bool {
        let asking = warp.asking.get();
        let oldest = lanes(asking).min_by_key(|lane| warp.asked[*lane].get());
        let Some(mut first) = oldest else { return false };
        let mut thinned = u32::MAX;
        if self.is_seeded() {
            first = self.pick(asking) as usize;
            if self.random() & 1 != 0 {
                thinned = self.random() as u32 | 1 << first;
            }
        }
        let group = warp.group(first) & thinned;
        warp.found(self, group, group);
        true
    }
}
