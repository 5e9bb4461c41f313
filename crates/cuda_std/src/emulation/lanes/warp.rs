//! A warp: 32 lanes that ask each other things.
//!
//! A rendezvous names its lanes by a mask. As on the hardware it is complete when each of them has come to one of the same kind
//! with the same mask, wherever in the code that is. What the hardware leaves undefined (a lane that has returned, a lane outside
//! its own mask, a value of a lane outside the mask) is a bug of the kernel here, with the lane's name.

use super::super::Vote;
use super::SIZE;
use super::block::{Block, Lane, Stop};
use std::cell::Cell;
use std::panic::Location;

/// What lanes meet for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    Synchronize,
    Shuffle,
    Match,
    Vote(Vote),
}

impl Meeting {
    fn name(self) -> &'static str {
        match self {
            Meeting::Synchronize => "synchronize",
            Meeting::Shuffle => "a shuffle",
            Meeting::Match => "a match",
            Meeting::Vote(_) => "a vote",
        }
    }
}

/// A lane at a rendezvous.
#[derive(Clone, Copy)]
struct Call {
    meeting: Meeting,
    mask: u32,
    value: u64,
    /// The lane whose value it wants.
    source: u32,
}

/// A warp's state.
pub struct Warp {
    pub index: u32,
    /// Lanes that the launch has, and have not returned.
    pub alive: Cell<u32>,
    pub runnable: Cell<u32>,
    /// Of these, the ones that spin: not again in this turn of the warp.
    pub spinning: Cell<u32>,
    pub at_barrier: Cell<u32>,
    /// Lanes that ask who is active.
    pub asking: Cell<u32>,
    sites: [Cell<Option<&'static Location<'static>>>; SIZE as usize],
    /// Who of them came first.
    asked: [Cell<u64>; SIZE as usize],
    asks: Cell<u64>,
    /// Lanes at a rendezvous.
    meeting: Cell<u32>,
    calls: [Cell<Call>; SIZE as usize],
    answers: [Cell<u64>; SIZE as usize],
}

/// Calls `each` with every lane of a mask.
fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (lane < SIZE).then_some(lane as usize)
    })
}

impl Warp {
    pub fn new(index: u32, threads: u32) -> Warp {
        let all = u32::MAX >> (SIZE - SIZE.min(threads - index * SIZE));
        let nothing = Call { meeting: Meeting::Synchronize, mask: 0, value: 0, source: 0 };
        Warp {
            index,
            alive: Cell::new(all),
            runnable: Cell::new(all),
            spinning: Cell::new(0),
            at_barrier: Cell::new(0),
            asking: Cell::new(0),
            sites: [const { Cell::new(None) }; SIZE as usize],
            asked: [const { Cell::new(0) }; SIZE as usize],
            asks: Cell::new(0),
            meeting: Cell::new(0),
            calls: [nothing; SIZE as usize].map(Cell::new),
            answers: [const { Cell::new(0) }; SIZE as usize],
        }
    }

    /// After this lane has returned: whether others wait for it.
    pub fn check_meetings(&self, gone: u32) -> Result<(), String> {
        match lanes(self.meeting.get()).find(|lane| self.calls[*lane].get().mask >> gone & 1 != 0) {
            None => Ok(()),
            Some(lane) => Err(format!(
                "lane {gone} of warp {} has returned, and lane {lane} waits for it at {}",
                self.index,
                self.calls[lane].get().meeting.name()
            )),
        }
    }

    /// Who waits at what, for a message.
    pub fn waiting(&self) -> String {
        let line = |lane: usize| {
            let call = self.calls[lane].get();
            format!("; lane {lane} of warp {} at {} of lanes {:#x}", self.index, call.meeting.name(), call.mask)
        };
        lanes(self.meeting.get()).take(4).map(line).collect()
    }

    /// Brings lanes of a mask together and returns this lane's answer.
    pub fn meet(&self, lane: &Lane, meeting: Meeting, mask: u32, value: u64, source: u32) -> u64 {
        let (block, number) = (lane.block(), lane.position.thread_idx_x % SIZE);
        assert!(
            mask & lane.bit() != 0,
            "lane {number} calls {} of lanes {mask:#x}, to which it does not belong",
            meeting.name()
        );
        assert!(
            mask & !self.alive.get() == 0,
            "lane {number} calls {} of lanes {mask:#x}, of which {:#x} have returned or never were",
            meeting.name(),
            mask & !self.alive.get()
        );
        assert!(
            meeting != Meeting::Shuffle || source < SIZE && mask >> source & 1 != 0,
            "lane {number} wants a value of lane {source}, which is not among the lanes {mask:#x} that shuffle"
        );
        self.calls[number as usize].set(Call { meeting, mask, value, source });
        self.meeting.set(self.meeting.get() | lane.bit());
        let have_come = |other: usize| {
            let call = self.calls[other].get();
            call.mask == mask && call.meeting == meeting
        };
        if self.meeting.get() & mask != mask || !lanes(mask).all(have_come) {
            lane.stop(Stop::Waits);
            return self.answers[number as usize].get();
        }
        self.meeting.set(self.meeting.get() & !mask);
        self.answer(block, meeting, mask);
        if block.is_seeded() {
            block.wake(self, mask);
            lane.stop(Stop::Waits);
        } else {
            block.wake(self, mask & !lane.bit());
        }
        self.answers[number as usize].get()
    }

    /// All have come.
    fn answer(&self, block: &Block, meeting: Meeting, mask: u32) {
        let value = |lane: usize| self.calls[lane].get().value;
        let yes = || lanes(mask).filter(|lane| value(*lane) != 0).fold(0, |yes: u32, lane| yes | 1 << lane);
        let all = |answer: u64| lanes(mask).for_each(|lane| self.answers[lane].set(answer));
        match meeting {
            Meeting::Synchronize => {
                if let Some(orders) = &block.orders {
                    let first = (self.index * SIZE) as usize;
                    let index = block.lanes[first].position.block_idx_x;
                    orders.join(index, lanes(mask).map(|lane| first + lane), block.lanes.len());
                }
            }
            Meeting::Shuffle => {
                lanes(mask).for_each(|lane| self.answers[lane].set(value(self.calls[lane].get().source as usize)));
            }
            Meeting::Match => {
                for lane in lanes(mask) {
                    let same = lanes(mask).filter(|other| value(*other) == value(lane));
                    self.answers[lane].set(same.fold(0, |same, other| same | 1 << other));
                }
            }
            Meeting::Vote(Vote::Ballot) => all(yes().into()),
            Meeting::Vote(Vote::Any) => all((yes() != 0).into()),
            Meeting::Vote(Vote::All) => all((yes() == mask).into()),
        }
    }

    /// The lanes that are active together with this one: those that come to the same place of the source before every lane of the
    /// warp that can go on has stopped somewhere. By the seed, some of them.
    pub fn active(&self, lane: &Lane, site: &'static Location<'static>) -> u32 {
        let (block, number) = (lane.block(), (lane.position.thread_idx_x % SIZE) as usize);
        self.sites[number].set(Some(site));
        self.asked[number].set(self.asks.replace(self.asks.get() + 1));
        self.asking.set(self.asking.get() | lane.bit());
        if !block.is_seeded() && self.runnable.get() & !self.spinning.get() == 0 {
            let group = self.group(number);
            if group == self.asking.get() {
                // The last one that can come: it need not stop.
                self.found(block, group, group & !lane.bit());
                return group;
            }
        }
        lane.stop(Stop::Waits);
        self.answers[number].get() as u32
    }

    /// The lanes that ask at the same place as this one.
    fn group(&self, number: usize) -> u32 {
        let site = self.sites[number].get();
        lanes(self.asking.get()).filter(|lane| self.sites[*lane].get() == site).fold(0, |group, lane| group | 1 << lane)
    }

    fn found(&self, block: &Block, group: u32, woken: u32) {
        self.asking.set(self.asking.get() & !group);
        lanes(group).for_each(|lane| self.answers[lane].set(group.into()));
        block.wake(self, woken);
    }
}

impl Block {
    /// Every lane of the warp that can go on has stopped: those that ask are answered, one place of the source at a time. Those who
    /// came first go first, so that they can still come to where the others are: the two sides of a branch meet behind it. False
    /// when none asks.
    pub fn gather(&self, warp: &Warp) -> bool {
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
