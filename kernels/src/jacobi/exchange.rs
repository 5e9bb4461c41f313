//! Exchange of boundary rows between PEs, by calls of [`gin`](crate::gin). Not inlined, so that it does not take
//! registers from the stencil's threads.

use super::stencil::{WIDTH, load, store};
use super::{EXCHANGE_BLOCK, EXCHANGE_HOST, EXCHANGE_P, HaloLink, TRACE_SENT, TRACE_WAITED};
use crate::gin::{Block, Context, Scope, Thread};
use crate::ring::Status;
use cuda_std::memory::{fence_acq_rel_sys, fetch_add_relaxed_gpu_u64};
use cuda_std::thread;

/// Waits until the rows that iteration `iteration` reads on this side have arrived. Called by all threads of a block.
/// After a failure it does not wait, and the results of the grid are invalid.
///
/// # Safety
/// `link` must be valid.
#[inline(never)]
pub unsafe fn receive(link: *const HaloLink, iteration: u32, side: usize) -> Result<(), Status> {
    // SAFETY: the caller guarantees that `link` is valid.
    let link = unsafe { &*link };
    if thread::sync_threads_or(link.world.has_failed()) {
        return Err(Status::ENDED);
    }
    let began = thread::global_timer_ns();
    let wanted = link.counted[side] + (iteration as u64 - 1) * link.each;
    let result = link.world.context(Block).signal_wait_until(link.signals[side], wanted);
    link.note(iteration, TRACE_WAITED, || thread::global_timer_ns() - began);
    result
}

/// Sends a tile's part of the boundary row on this side, which is in device memory at `row`. Called by all threads of a
/// block. Each thread must have stored its own columns of the row: four from `column` on, if `any` is set.
///
/// # Safety
/// `link` must be valid. `row` must be the boundary row of this side that iteration `iteration` has computed. `tile`
/// must be the first column of the tile and its number of columns.
#[inline(never)]
pub unsafe fn send(
    link: *const HaloLink,
    iteration: u32,
    side: usize,
    row: *const f32,
    column: u32,
    any: bool,
    tile: [u32; 2],
) {
    // SAFETY: the caller guarantees that `link` is valid.
    let link = unsafe { &*link };
    if thread::sync_threads_or(link.world.has_failed()) {
        return;
    }
    let began = thread::global_timer_ns();
    let parity = (iteration as usize + 1) % 2;
    let to = Route {
        link,
        peer: link.peers[side],
        out: parity * 2 + side,
        // This PE's first row is the lower halo row of the PE above.
        halo: parity * 2 + 1 - side,
        side,
    };
    // A failure is recorded in the world's report, where the next launch finds it. SAFETY: the caller guarantees that
    // `row` is valid. This thread loads only points that it has stored.
    let _ = unsafe { to.send(row, column, any, tile) };
    link.note(iteration, TRACE_SENT, || thread::global_timer_ns() - began);
}

/// Destination of a boundary row, for one side and one parity.
struct Route<'a> {
    link: &'a HaloLink,
    peer: u32,
    out: usize,
    halo: usize,
    side: usize,
}

impl Route<'_> {
    #[inline(always)]
    unsafe fn send(&self, row: *const f32, column: u32, any: bool, [first, count]: [u32; 2]) -> Result<(), Status> {
        let link = self.link;
        let (out, halo) = (link.out[self.out / 2][self.out % 2], link.halo[self.halo / 2][self.halo % 2]);
        let pitch = out.len() as u32;
        // SAFETY: the caller guarantees that `row` is valid at this thread's columns.
        let points = unsafe { load(row.add(column as usize)) };
        if link.exchange == EXCHANGE_P {
            let mut line = link.world.context(Thread);
            for point in 0..WIDTH as u32 {
                if any && column + point < pitch {
                    // The context keeps the failure.
                    let _ = line.p(halo.at((column + point) as u64), points[point as usize], self.peer);
                }
            }
            // Over NVLink, the fence of the signal covers the stores of the whole block.
            if !line.is_mapped(self.peer) {
                // Each thread waits for its own values. One may fail while its neighbours continue to the barriers of
                // the put, so the block must agree.
                let stop = line.quiet().map_or_else(|stop| stop.0, |()| 0);
                let agreed = Block.agree(stop);
                if agreed != 0 {
                    return Err(Status(agreed));
                }
            }
            return self.put(first as u64, 0);
        }
        if any {
            // SAFETY: these are this thread's columns of a row in the heap.
            unsafe { store(link.world.local(out).add(column as usize), &points) };
        }
        if link.exchange == EXCHANGE_BLOCK {
            return self.put(first as u64, count as u64);
        }
        if link.exchange == EXCHANGE_HOST {
            return Ok(());
        }
        // Counts the finished tiles of the row. Each tile fences its stores before it is counted. The last tile has
        // then observed the counts of all others, and fences before its block reads their stores.
        thread::sync_threads();
        let mut last = false;
        if thread::thread_idx_x() == 0 {
            fence_acq_rel_sys();
            let tiles = pitch.div_ceil(thread::block_dim_x() * WIDTH as u32) as u64;
            // SAFETY: `done` has two words.
            let before = fetch_add_relaxed_gpu_u64(unsafe { &*link.done.add(self.side) }, 1);
            last = (before + 1).is_multiple_of(tiles);
            fence_acq_rel_sys();
        }
        if thread::sync_threads_or(last) { self.put(0, pitch as u64) } else { Ok(()) }
    }

    /// Puts `count` columns and signals the neighbour if it waits for them. Not inlined, because there are three call
    /// sites.
    #[inline(never)]
    fn put(&self, first: u64, count: u64) -> Result<(), Status> {
        let link = self.link;
        let (out, halo) = (link.out[self.out / 2][self.out % 2], link.halo[self.halo / 2][self.halo % 2]);
        let (from, to) = (out.slice(first, count), halo.slice(first, count));
        let mut line: Context<Block> = link.world.context(Block);
        if link.neighbours != 0 {
            line.put_signal_nbi(to, from, link.signals[1 - self.side], 1, self.peer)?;
        } else {
            line.put_nbi(to, from, self.peer)?;
        }
        // Over rails the row may be overwritten only after it has been sent. The wait also reports a failure
        // immediately.
        if line.is_mapped(self.peer) { Ok(()) } else { line.quiet() }
    }
}
