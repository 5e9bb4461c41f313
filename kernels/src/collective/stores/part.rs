//! Sending one part to each PE by a warp, and summing a part.

use super::{AT_ONCE, Grid, Stored};
use crate::collective::sum::{NONE_APART, Spread, added, sum};
use crate::collective::{ALL_GATHER, ALL_REDUCE, BF16, F16, F32, MUTE};
use crate::gin::copy::copy_apart;
use cuda_std::vector::{load_words, store_words};

/// Number of bytes that a warp transfers with one 16-byte vector per lane.
const VECTORS_OF_LANES: u64 = 512;

impl Grid<'_> {
    /// Returns the bytes of a PE's chunk.
    #[inline(always)]
    fn length(&self, pe: u32) -> u64 {
        self.args.bytes.saturating_sub(u64::from(pe) * self.args.chunk).min(self.args.chunk)
    }

    /// Returns the offset of a part in its chunk.
    #[inline(always)]
    fn at(&self, piece: u32, part: u32) -> u64 {
        u64::from(piece * self.parts + part) * u64::from(self.part)
    }

    /// Returns the offset, in its chunk, of the part for the PE that is `step` places after this one. Each PE receives
    /// a different part of the same piece.
    #[inline(always)]
    fn shifted(&self, piece: u32, part: u32, step: u32) -> u64 {
        let shifted = part + step * self.apart;
        self.at(piece, if shifted < self.parts { shifted } else { shifted - self.parts })
    }

    /// Returns the source and destination addresses of this lane's first vector for the PE that is `step` places after
    /// this one.
    #[inline(always)]
    pub(super) fn way(&self, step: u32) -> (u64, u64) {
        let (args, pe) = (self.args, self.following(step));
        let object = if self.sums { args.scratch } else { args.to };
        // All-gather sends this PE's only chunk to every PE.
        let source = if args.operation == ALL_GATHER { 0 } else { u64::from(pe) * args.chunk };
        let (mine, lane) = (u64::from(self.world.me) * args.chunk, u64::from(self.lane) * 16);
        (self.world.heap as u64 + args.from.offset() + source + lane, self.heap(pe) + object.offset() + mine + lane)
    }

    /// Returns whether all parts of a piece that are sent to the PEs at the same time have full length. The last part
    /// of a chunk may be shorter.
    #[inline(always)]
    fn sends_whole(&self, piece: u32, part: u32) -> bool {
        self.whole
            || self.full
                && (1..=self.many).all(|step| {
                    let length = if self.args.operation == ALL_GATHER {
                        self.args.chunk
                    } else {
                        self.length(self.following(step))
                    };
                    self.shifted(piece, part, step) + u64::from(self.part) <= length
                })
    }

    /// Sends one part of a piece to each PE.
    #[inline(always)]
    pub(super) fn send(&self, piece: u32, part: u32, stored: &mut Stored) {
        if !self.sends_whole(piece, part) || self.args.flags & MUTE != 0 {
            return self.send_any(piece, part, stored);
        }
        // SAFETY: both ranges are in objects that the host allocated, in mapped heaps. All PEs have entered the
        // iteration, or the destination is scratch memory whose previous iteration is over.
        unsafe {
            match (self.world.pes, self.many) {
                (2, 1) => self.send_to::<1, 8, 1>(1, (self.from, self.to), piece, part),
                (2, _) => self.send_to::<2, 4, 2>(1, (self.from, self.to), piece, part),
                (3, 2) => self.send_to::<2, 4, 1>(1, (self.from, self.to), piece, part),
                (3, _) => self.send_to::<3, 2, 2>(1, (self.from, self.to), piece, part),
                (4, 3) => self.send_to::<3, 2, 1>(1, (self.from, self.to), piece, part),
                _ => {
                    self.send_to::<4, 2, 1>(1, (self.from, self.to), piece, part);
                    let mut step = 1 + AT_ONCE as u32;
                    while step <= self.many {
                        let (from, to) = self.way(step);
                        self.send_to::<1, 2, 1>(step, ([from; AT_ONCE], [to; AT_ONCE]), piece, part);
                        step += 1;
                    }
                }
            }
        }
        let others = u64::from(self.world.pes - 1);
        stored.bytes += others * u64::from(self.part);
        stored.parts += others;
    }

    /// Sends to `N` PEs, starting at the one `step` places after this one, in `R` rounds. In each round every lane
    /// loads `V` vectors, then stores each to all PEs in turn.
    ///
    /// # Safety
    /// The addresses must meet the requirements of [`send`](Grid::send), and a part must be `V * R` vectors per lane.
    #[inline(always)]
    unsafe fn send_to<const N: usize, const V: usize, const R: usize>(
        &self,
        step: u32,
        (from, to): ([u64; AT_ONCE], [u64; AT_ONCE]),
        piece: u32,
        part: u32,
    ) {
        let at: [u64; N] = core::array::from_fn(|place| self.shifted(piece, part, step + place as u32));
        for round in 0..R {
            let first = (round * V) as u64 * VECTORS_OF_LANES;
            let mut loaded = [[[0; 4]; N]; V];
            for (vector, loaded) in loaded.iter_mut().enumerate() {
                let offset = first + vector as u64 * VECTORS_OF_LANES;
                for (place, words) in loaded.iter_mut().enumerate() {
                    // SAFETY: the caller guarantees that a part of the source is `V * R` vectors of the warp, all
                    // readable.
                    *words = unsafe { load_words((from[place] + at[place] + offset) as *const u32) };
                }
            }
            for (vector, loaded) in loaded.iter().enumerate() {
                let offset = first + vector as u64 * VECTORS_OF_LANES;
                for (place, words) in loaded.iter().enumerate() {
                    // SAFETY: the caller guarantees the same of the destination, which is writable.
                    unsafe { store_words((to[place] + at[place] + offset) as *mut u32, *words) };
                }
            }
        }
    }

    /// Like [`send`](Grid::send), with parts of any length and any number of lanes.
    #[inline(always)]
    fn send_any(&self, piece: u32, part: u32, stored: &mut Stored) {
        let args = self.args;
        for step in 1..=self.many {
            let (pe, own) = (self.following(step), step == self.world.pes);
            if args.flags & MUTE != 0 && !own {
                continue;
            }
            let at = self.shifted(piece, part, step);
            let length = if args.operation == ALL_GATHER { args.chunk } else { self.length(pe) };
            let bytes = length.saturating_sub(at).min(u64::from(self.part));
            let (from, to) = self.way(step);
            let lane = u64::from(self.lane) * 16;
            // SAFETY: as in `send`, both ranges are in objects in mapped heaps, and the destination is free.
            unsafe {
                copy_apart((to - lane + at) as *mut u8, (from - lane + at) as *const u8, bytes, self.lane, self.lanes)
            };
            if !own {
                stored.bytes += bytes;
                stored.parts += u64::from(bytes > 0);
            }
        }
    }

    /// Sums one part of a piece of this PE's own chunk. Stores the sum to every PE or to this PE only.
    #[inline(always)]
    pub(super) fn add(&self, piece: u32, part: u32, stored: &mut Stored) {
        let (args, at) = (self.args, self.at(piece, part));
        let bytes = self.length(self.world.me).saturating_sub(at).min(u64::from(self.part));
        if args.operation == ALL_REDUCE {
            stored.bytes += bytes * u64::from(self.world.pes - 1);
        }
        let is_whole = self.full && bytes == u64::from(self.part);
        // SAFETY: all ranges are in objects that the host allocated, in mapped heaps. The parts of this piece have
        // arrived from every PE, so every PE has read its part of this chunk, and the result may overwrite the chunk.
        unsafe {
            match (self.world.pes, args.element) {
                (2, F32) if is_whole => self.add_of::<F32, 2, 8>(at),
                (2, BF16) if is_whole => self.add_of::<BF16, 2, 8>(at),
                (2, F16) if is_whole => self.add_of::<F16, 2, 8>(at),
                (3, F32) if is_whole => self.add_of::<F32, 3, 4>(at),
                (4, F32) if is_whole => self.add_of::<F32, 4, 2>(at),
                (4, BF16) if is_whole => self.add_of::<BF16, 4, 2>(at),
                (4, F16) if is_whole => self.add_of::<F16, 4, 2>(at),
                _ => self.add_any(at, bytes),
            }
        }
    }

    /// Sums a whole part of `V` vectors per lane from `N` PEs.
    ///
    /// # Safety
    /// The requirements of [`Grid::add`] must hold, and a part must be `V` vectors per lane.
    #[inline(always)]
    unsafe fn add_of<const ELEMENT: u32, const N: usize, const V: usize>(&self, at: u64) {
        let all = self.args.operation == ALL_REDUCE;
        let mut loaded = [[[0; 4]; N]; V];
        for (vector, loaded) in loaded.iter_mut().enumerate() {
            let offset = at + vector as u64 * VECTORS_OF_LANES;
            for (source, words) in self.sources.iter().zip(loaded.iter_mut()) {
                // SAFETY: the caller guarantees that the sources of a whole part are readable.
                *words = unsafe { load_words((source + offset) as *const u32) };
            }
        }
        for (vector, loaded) in loaded.iter().enumerate() {
            let offset = at + vector as u64 * VECTORS_OF_LANES;
            let sums = added::<ELEMENT, N>(loaded);
            // SAFETY: the caller guarantees that the destinations of a whole part are writable.
            let store = |to: u64| unsafe { store_words((to + offset) as *mut u32, sums) };
            if all {
                for to in self.sums_to.iter().take(N - 1) {
                    store(*to);
                }
            }
            store(self.sums_to[N - 1]);
        }
    }

    /// Like [`add`](Grid::add), with parts of any length and any number of lanes.
    ///
    /// # Safety
    /// The requirements of [`Grid::add`] must hold.
    #[inline(always)]
    unsafe fn add_any(&self, at: u64, bytes: u64) {
        let (args, world) = (self.args, *self.world);
        let own = u64::from(world.me) * args.chunk + at;
        let sources = Spread {
            apart: (world.me, args.from.offset() + own),
            ..Spread::own(&world, args.scratch.offset() + at, args.chunk, world.pes)
        };
        let (count, offset) = (world.pes, args.to.offset() + own);
        let targets = if args.operation == ALL_REDUCE {
            Spread { first: 0, step: 1, offset, stride: 0, count, apart: NONE_APART }
        } else {
            Spread::own(&world, args.to.offset() + at, 0, 1)
        };
        // SAFETY: the caller guarantees that the parts have arrived and that the destinations are free.
        unsafe { sum(&world, args.element, &sources, &targets, bytes, (self.lane, self.lanes)) };
    }
}
