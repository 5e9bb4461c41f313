//! A running block: the coroutines of its lanes, and their scheduling.

use super::super::{Orders, Position};
use super::stacks::{LaneStack, Stacks};
use super::state::{BlockState, LaneState, LaneStop, WarpState};
use super::{SIZE, become_lane};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::any::Any;
use std::cell::{Cell, OnceCell};
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::{io, ptr};

/// Number of resumed lanes after which a visit to a warp ends even if lanes are runnable, so that other warps are also
/// scheduled.
const MOST_TURNS: u32 = 4096;

/// Parameters of a grid that a worker needs to start its blocks.
pub struct GridLaunch<'a> {
    pub blocks: u32,
    pub threads: u32,
    pub seed: Option<u64>,
    pub orders: Option<Orders>,
    pub body: &'a (dyn Fn() + Sync),
}

/// A block with the coroutines of its lanes.
pub struct RunningBlock {
    coroutines: Vec<Option<Coroutine<(), LaneStop, (), LaneStack>>>,
    /// `Rc` instead of `Box`, because the lanes also hold its address.
    block: Rc<BlockState>,
    /// Warps that have not been visited in this round, one bit each.
    left: u32,
}

impl RunningBlock {
    /// Creates the block; its lanes have not started.
    ///
    /// # Safety
    /// `launch` must outlive the returned value.
    pub unsafe fn new(launch: &GridLaunch, index: u32, stacks: &mut Stacks) -> io::Result<RunningBlock> {
        let threads = launch.threads;
        let places = stacks.take(threads as usize)?;
        let lane = |(thread_idx_x, place): (u32, &LaneStack)| {
            let position =
                Position { thread_idx_x, block_idx_x: index, block_dim_x: threads, grid_dim_x: launch.blocks };
            LaneState::new(position, place.lowest())
        };
        let warps: Box<[WarpState]> = (0..threads.div_ceil(SIZE)).map(|warp| WarpState::new(warp, threads)).collect();
        // Depends on the index of the block, not on the worker, so that the order for a seed is independent of the
        // workers.
        let random = launch.seed.unwrap_or_default().wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(index.into());
        let block = Rc::new(BlockState {
            lanes: (0..).zip(&places).map(lane).collect(),
            ready: Cell::new(u32::MAX >> (u32::BITS - warps.len() as u32)),
            warps,
            alive: Cell::new(threads),
            arrived: Cell::new(0),
            first: Cell::new(None),
            failed: Cell::new(None),
            vote: Cell::new(false),
            voted: Cell::new(false),
            seeded: launch.seed.is_some(),
            random: Cell::new(random),
            ending: Cell::new(false),
            orders: launch.orders.clone(),
            shared: OnceCell::new(),
        });
        for lane in &block.lanes {
            lane.belongs_to(Rc::as_ptr(&block));
        }
        let begin = |(place, lane): (LaneStack, &LaneState)| {
            let (lane, launch) = (ptr::from_ref(lane), ptr::from_ref(launch));
            // SAFETY: the pointers in the closure are valid as long as the coroutine: the block is dropped after it,
            // and the caller guarantees that the launch outlives both.
            Some(unsafe {
                Coroutine::with_stack_unchecked(place, move |yielder: &Yielder<(), LaneStop>, ()| {
                    (*lane).begins(yielder);
                    ((*launch).body)();
                })
            })
        };
        let coroutines = places.into_iter().zip(&block.lanes).map(begin).collect();
        Ok(RunningBlock { coroutines, block, left: 0 })
    }

    /// Resumes each runnable lane one or more times, for about `most` lanes at most. The next visit continues with the
    /// remaining warps.
    ///
    /// # Errors
    /// Returns a description of a bug of the kernel, with block and thread.
    pub fn visit(&mut self, most: u32, stacks: &mut Stacks) -> Result<VisitResult, String> {
        if self.left == 0 {
            self.left = self.block.ready.get();
            if self.left == 0 {
                return Err(self.block.stuck());
            }
        }
        let mut visit = VisitResult::default();
        while self.left != 0 && visit.lanes < most {
            let index = self.block.pick(self.left);
            self.left &= !(1 << index);
            visit += self.visit_warp(index, stacks)?;
        }
        Ok(visit)
    }

    /// Returns whether every warp with a runnable lane has been visited in this round.
    pub fn is_round_over(&self) -> bool {
        self.left == 0
    }

    /// Returns whether all lanes have returned.
    pub fn is_done(&self) -> bool {
        self.block.alive.get() == 0
    }

    fn visit_warp(&mut self, index: u32, stacks: &mut Stacks) -> Result<VisitResult, String> {
        let block = &*self.block;
        let warp = &block.warps[index as usize];
        warp.spinning.set(0);
        let mut seen = 0;
        for _ in 0..MOST_TURNS {
            let can = warp.runnable.get() & !warp.spinning.get();
            if can == 0 {
                if !block.gather(warp) {
                    break;
                }
                continue;
            }
            let number = block.pick(can);
            let bit = 1 << number;
            seen |= bit;
            warp.runnable.set(warp.runnable.get() & !bit);
            let thread = (index * SIZE + number) as usize;
            if can > bit {
                block.lanes[(index * SIZE + (can & !bit).trailing_zeros()) as usize].fetch();
            }
            match resume(&block.lanes[thread], &mut self.coroutines[thread])? {
                Some(LaneStop::Spins) => {
                    warp.spinning.set(warp.spinning.get() | bit);
                    warp.runnable.set(warp.runnable.get() | bit);
                }
                Some(LaneStop::Turns) => warp.runnable.set(warp.runnable.get() | bit),
                Some(LaneStop::Waits) => {}
                Some(LaneStop::Failed) => return Err(block.failed.take().unwrap_or_default()),
                None => {
                    if let Some(coroutine) = self.coroutines[thread].take() {
                        let place = coroutine.into_stack();
                        if place.is_overrun() {
                            return Err(format!("{}: the kernel's stack has overflowed", name(&block.lanes[thread])));
                        }
                        stacks.give_back(place);
                    }
                    block.leave(&block.lanes[thread])?;
                }
            }
        }
        if warp.runnable.get() == 0 && warp.asking.get() == 0 {
            block.ready.set(block.ready.get() & !(1 << index));
        }
        let spun = seen & warp.spinning.get();
        Ok(VisitResult { lanes: seen.count_ones(), spun: spun.count_ones() })
    }

    /// Ends the lanes that have not returned, by unwinding their stacks.
    pub fn end(mut self, stacks: &mut Stacks) {
        self.block.ending.set(true);
        for (lane, coroutine) in self.block.lanes.iter().zip(&mut self.coroutines) {
            if let Some(mut coroutine) = coroutine.take() {
                become_lane(lane, || coroutine.force_unwind());
                stacks.give_back(coroutine.into_stack());
            }
        }
    }
}

/// Result of a visit to one or more blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct VisitResult {
    /// Number of lanes resumed.
    pub lanes: u32,
    /// Number of these lanes that spin.
    pub spun: u32,
}

impl AddAssign for VisitResult {
    fn add_assign(&mut self, other: VisitResult) {
        self.lanes += other.lanes;
        self.spun += other.spun;
    }
}

/// Resumes a lane until it stops. Returns `None` if it has returned.
fn resume(
    lane: &LaneState,
    coroutine: &mut Option<Coroutine<(), LaneStop, (), LaneStack>>,
) -> Result<Option<LaneStop>, String> {
    let Some(coroutine) = coroutine else {
        return Err(format!("{}: resumed after it had ended", name(lane)));
    };
    let result = become_lane(lane, || catch_unwind(AssertUnwindSafe(|| coroutine.resume(()))));
    match result {
        Ok(CoroutineResult::Yield(stop)) => Ok(Some(stop)),
        Ok(CoroutineResult::Return(())) => Ok(None),
        Err(panic) => Err(format!("{} panicked: {}", name(lane), text(&*panic))),
    }
}

fn name(lane: &LaneState) -> String {
    format!("block {}, thread {}", lane.position.block_idx_x, lane.position.thread_idx_x)
}

pub fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
