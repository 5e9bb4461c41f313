//! A block: its lanes, its barrier, and whose turn it is.
//!
//! All of a block happens on one worker, so its state is in cells and takes neither locks nor atomic operations. Lanes reach it
//! through [`super::current`] while they run; the worker reaches it between two lanes. The two never hold a `&mut` to any of it.

use super::super::{Orders, Position};
use super::stacks::{Place, Stacks};
use super::warp::Warp;
use super::workers::Launch;
use super::{SIZE, become_lane};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::any::Any;
use std::cell::{Cell, OnceCell, UnsafeCell};
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::{io, ptr};

/// Why a lane gives the worker back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It spins: it looks again when the others have had their turns.
    Spins,
    /// It waits at a barrier or for lanes of its warp, which will make it ready again.
    Waits,
    /// The seed has taken the worker from it.
    Turns,
}

/// A warp's turn ends after so many of its lanes' turns, also when some could go on: others want to be seen as well.
const MOST_TURNS: u32 = 4096;

/// Lines of a lane's stack that it needs to go on: the frames of its stop, and the kernel's own.
#[cfg(target_arch = "x86_64")]
const FETCHED_LINES: usize = 6;

/// A lane.
pub struct Lane {
    pub position: Position,
    block: Cell<*const Block>,
    yielder: Cell<*const Yielder<(), Stop>>,
    /// Its stack pointer may not be below this when it stops.
    lowest: usize,
    /// Where it was when it stopped.
    stopped_at: Cell<usize>,
}

impl Lane {
    pub fn block(&self) -> &Block {
        // SAFETY: set when the block was made, which outlives its lanes' coroutines.
        unsafe { &*self.block.get() }
    }

    pub fn warp(&self) -> &Warp {
        &self.block().warps[(self.position.thread_idx_x / SIZE) as usize]
    }

    pub fn bit(&self) -> u32 {
        1 << (self.position.thread_idx_x % SIZE)
    }

    /// Fetches the end of its stack into the cache, while another lane has its turn: a block's stacks are more than the first
    /// cache holds (AMD EPYC, least of three runs in turns, 256 lanes: a barrier takes 7.9 instead of 8.3 us).
    #[inline(always)]
    fn fetch(&self) {
        #[cfg(target_arch = "x86_64")]
        for line in 0..FETCHED_LINES {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a hint; it may name any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(ptr::without_provenance(self.stopped_at.get() + 64 * line)) };
        }
    }

    /// Gives the worker back, until the lane is ready and has its turn.
    pub fn stop(&self, stop: Stop) {
        if self.block().ending.get() || std::thread::panicking() {
            // Destructors of a lane that is being unwound wait for nobody: the grid has ended.
            return;
        }
        let here = ptr::from_ref(&stop).addr();
        assert!(
            here >= self.lowest,
            "the kernel's stack is nearly full: {} bytes are left to it",
            super::stacks::STACK_BYTES
        );
        self.stopped_at.set(here);
        // SAFETY: set when the coroutine began, in which we are.
        unsafe { (*self.yielder.get()).suspend(stop) };
    }
}

/// A block's state.
pub struct Block {
    pub lanes: Box<[Lane]>,
    pub warps: Box<[Warp]>,
    /// Warps in which a lane can go on.
    ready: Cell<u32>,
    alive: Cell<u32>,
    arrived: Cell<u32>,
    vote: Cell<bool>,
    voted: Cell<bool>,
    seeded: bool,
    /// State of the random numbers.
    random: Cell<u64>,
    ending: Cell<bool>,
    pub orders: Option<Orders>,
    /// The block's shared memory, once somebody asks for it.
    pub shared: OnceCell<Box<[UnsafeCell<u128>]>>,
}

impl Block {
    fn index(&self) -> u32 {
        self.lanes[0].position.block_idx_x
    }

    pub fn is_seeded(&self) -> bool {
        self.seeded
    }

    /// The next random number (splitmix64).
    pub fn random(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// One of the bits that are set: the lowest, or any by the seed.
    pub fn pick(&self, mut bits: u32) -> u32 {
        if self.is_seeded() {
            for _ in 0..self.random() % bits.count_ones() as u64 {
                bits &= bits - 1;
            }
        }
        bits.trailing_zeros()
    }

    /// These lanes of a warp can go on.
    pub fn wake(&self, warp: &Warp, lanes: u32) {
        warp.runnable.set(warp.runnable.get() | lanes);
        self.ready.set(self.ready.get() | 1 << warp.index);
    }

    /// The block barrier with a vote.
    pub fn barrier(&self, lane: &Lane, predicate: bool) -> bool {
        let warp = lane.warp();
        self.arrived.set(self.arrived.get() + 1);
        self.vote.set(self.vote.get() | predicate);
        warp.at_barrier.set(warp.at_barrier.get() | lane.bit());
        if self.release_barrier() && !self.seeded {
            // The last one goes on at once: it need not be woken.
            warp.runnable.set(warp.runnable.get() & !lane.bit());
        } else {
            lane.stop(Stop::Waits);
        }
        self.voted.get()
    }

    /// Lets all go on when all that have not returned are there; whether they were.
    fn release_barrier(&self) -> bool {
        if self.arrived.get() == 0 || self.arrived.get() < self.alive.get() {
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

    /// A lane has returned.
    fn leave(&self, lane: &Lane) -> Result<(), String> {
        self.alive.set(self.alive.get() - 1);
        let warp = lane.warp();
        warp.alive.set(warp.alive.get() & !lane.bit());
        warp.check_meetings(lane.position.thread_idx_x % SIZE)?;
        self.release_barrier();
        Ok(())
    }

    /// Why nobody can go on, though not all have returned.
    fn stuck(&self) -> String {
        let at_barrier: u32 = self.warps.iter().map(|warp| warp.at_barrier.get().count_ones()).sum();
        let mut text = format!("block {}: all its threads wait for one another", self.index());
        if at_barrier > 0 {
            text += &format!("; {at_barrier} of {} at the block barrier", self.alive.get());
        }
        for warp in &self.warps {
            text += &warp.waiting();
        }
        text
    }
}

/// A block with the coroutines of its lanes.
pub struct Running {
    coroutines: Vec<Option<Coroutine<(), Stop, (), Place>>>,
    /// Counted, and not boxed: the lanes have its address too.
    block: Rc<Block>,
    /// Warps that have not had their turn in this round.
    left: u32,
}

impl Running {
    /// Makes the block; its lanes have not begun.
    ///
    /// # Safety
    /// `launch` outlives what is returned.
    pub unsafe fn new(launch: &Launch, index: u32, stacks: &mut Stacks) -> io::Result<Running> {
        let threads = launch.threads;
        let places = stacks.take(threads as usize)?;
        let lane = |(thread, place): (u32, &Place)| Lane {
            position: Position {
                thread_idx_x: thread,
                block_idx_x: index,
                block_dim_x: threads,
                grid_dim_x: launch.blocks,
            },
            block: Cell::new(ptr::null()),
            yielder: Cell::new(ptr::null()),
            lowest: place.lowest(),
            stopped_at: Cell::new(place.lowest()),
        };
        let warps: Box<[Warp]> = (0..threads.div_ceil(SIZE)).map(|warp| Warp::new(warp, threads)).collect();
        // By the block's number and not by the worker's: what a seed gives does not depend on the workers.
        let random = launch.seed.unwrap_or_default().wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(index.into());
        let block = Rc::new(Block {
            lanes: (0..).zip(&places).map(lane).collect(),
            ready: Cell::new(u32::MAX >> (u32::BITS - warps.len() as u32)),
            warps,
            alive: Cell::new(threads),
            arrived: Cell::new(0),
            vote: Cell::new(false),
            voted: Cell::new(false),
            seeded: launch.seed.is_some(),
            random: Cell::new(random),
            ending: Cell::new(false),
            orders: launch.orders.clone(),
            shared: OnceCell::new(),
        });
        for lane in &block.lanes {
            lane.block.set(Rc::as_ptr(&block));
        }
        let begin = |(place, lane): (Place, &Lane)| {
            let (lane, launch) = (ptr::from_ref(lane), ptr::from_ref(launch));
            // SAFETY: the closure's pointers are good while the coroutine is: the block is dropped after it, the launch outlives
            // both (contract of the caller).
            Some(unsafe {
                Coroutine::with_stack_unchecked(place, move |yielder: &Yielder<(), Stop>, ()| {
                    (*lane).yielder.set(yielder);
                    ((*launch).body)();
                })
            })
        };
        let coroutines = places.into_iter().zip(&block.lanes).map(begin).collect();
        Ok(Running { coroutines, block, left: 0 })
    }

    /// Gives each lane that can go on a turn or more, up to about so many lanes; the next visit begins with the others.
    ///
    /// # Errors
    /// A bug of the kernel, with block and thread.
    pub fn visit(&mut self, most: u32, stacks: &mut Stacks) -> Result<Visit, String> {
        if self.left == 0 {
            self.left = self.block.ready.get();
            if self.left == 0 {
                return Err(self.block.stuck());
            }
        }
        let mut visit = Visit::default();
        while self.left != 0 && visit.lanes < most {
            let index = self.block.pick(self.left);
            self.left &= !(1 << index);
            visit += self.visit_warp(index, stacks)?;
        }
        Ok(visit)
    }

    /// Whether every lane that can go on has had its turn.
    pub fn is_round_over(&self) -> bool {
        self.left == 0
    }

    /// Whether all lanes have returned.
    pub fn is_done(&self) -> bool {
        self.block.alive.get() == 0
    }

    fn visit_warp(&mut self, index: u32, stacks: &mut Stacks) -> Result<Visit, String> {
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
                Some(Stop::Spins) => {
                    warp.spinning.set(warp.spinning.get() | bit);
                    warp.runnable.set(warp.runnable.get() | bit);
                }
                Some(Stop::Turns) => warp.runnable.set(warp.runnable.get() | bit),
                Some(Stop::Waits) => {}
                None => {
                    if let Some(coroutine) = self.coroutines[thread].take() {
                        let place = coroutine.into_stack();
                        if place.is_overrun() {
                            return Err(format!("{}: the kernel's stack has overflown", name(&block.lanes[thread])));
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
        Ok(Visit { lanes: seen.count_ones(), spun: spun.count_ones() })
    }

    /// Ends the lanes that have not returned: unwinds their stacks.
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

/// What a visit to a block, or to several, has found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Visit {
    /// Lanes that had a turn.
    pub lanes: u32,
    /// Of these, the ones that spin.
    pub spun: u32,
}

impl AddAssign for Visit {
    fn add_assign(&mut self, other: Visit) {
        self.lanes += other.lanes;
        self.spun += other.spun;
    }
}

/// One turn of a lane; `None` when it has returned.
fn resume(lane: &Lane, coroutine: &mut Option<Coroutine<(), Stop, (), Place>>) -> Result<Option<Stop>, String> {
    let Some(coroutine) = coroutine else {
        return Err(format!("{}: has a turn after its end", name(lane)));
    };
    let result = become_lane(lane, || catch_unwind(AssertUnwindSafe(|| coroutine.resume(()))));
    match result {
        Ok(CoroutineResult::Yield(stop)) => Ok(Some(stop)),
        Ok(CoroutineResult::Return(())) => Ok(None),
        Err(panic) => Err(format!("{} panicked: {}", name(lane), text(&*panic))),
    }
}

fn name(lane: &Lane) -> String {
    format!("block {}, thread {}", lane.position.block_idx_x, lane.position.thread_idx_x)
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("with no text")
}
