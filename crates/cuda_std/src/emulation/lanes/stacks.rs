//! Stacks for lanes: many and small, with as few mappings as possible.
//!
//! A slab is one mapping for many stacks. Each stack has [`STACK_BYTES`] of address space, and uses only the memory
//! that it touches. A guard page per stack would need two mappings per stack, and Linux allows 65,530 in total by
//! default.
//!
//! Therefore a slab has a single guard below it, and each stack is checked instead. The checks are of its stack pointer
//! at every stop of the lane, and of its last word, which must still be zero when the lane has returned.

use corosensei::stack::{STACK_ALIGNMENT, Stack, StackPointer};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};
use std::{io, iter};

/// Address space per stack. Optimized kernels use a few hundred bytes; a panic message and its backtrace need more. An
/// unoptimized kernel has separate variables for each of its calls, up to 10 KiB each: a test's kernel with ten calls
/// has a frame of 95 KiB.
pub const STACK_BYTES: usize = 256 * 1024;
/// Minimum space that must remain when a lane stops; less means that it is about to overflow. The backtrace of the panic
/// that reports it needs more than 16 KiB.
const RESERVE_BYTES: usize = 64 * 1024;
const STACKS_PER_SLAB: usize = 1024;
const GUARD_BYTES: usize = 64 * 1024;
/// Number of slabs kept for the next grid, so that their pages need not be faulted in and cleared again.
const KEPT_SLABS: usize = 16;

/// Cache colouring: the base of each stack is offset by a number of cache lines that depends on its index. The hot ends
/// of neighbouring stacks then map to different sets of the L1 cache. Small enough that a small kernel still touches
/// only one page.
const COLOURS: usize = 32;
const COLOUR_BYTES: usize = 64;
const _: () = assert!(COLOUR_BYTES.is_multiple_of(STACK_ALIGNMENT));

/// One stack, in a slab that outlives it.
#[derive(Clone, Copy, Debug)]
pub struct LaneStack {
    base: StackPointer,
    limit: StackPointer,
}

// SAFETY: the memory from `limit` to `base` is in one slab and used by no other stack. It has no guard page; the module
// documentation describes the checks that replace it.
unsafe impl Stack for LaneStack {
    fn base(&self) -> StackPointer {
        self.base
    }

    fn limit(&self) -> StackPointer {
        self.limit
    }
}

impl LaneStack {
    /// Returns the lowest permitted stack pointer at a stop.
    pub fn lowest(&self) -> usize {
        self.limit.get() + RESERVE_BYTES
    }

    /// Returns whether the last word has been written: the stack has overflowed, possibly into the neighbouring one.
    pub fn is_overrun(&self) -> bool {
        // SAFETY: the slab is mapped, and the lane has returned. A page that was never touched reads as zeros and uses
        // no memory.
        unsafe { (self.limit.get() as *const u64).read() != 0 }
    }
}

struct Slab(NonNull<c_void>);

// SAFETY: a slab owns its mapping, which is not tied to a thread.
unsafe impl Send for Slab {}

const SLAB_BYTES: usize = GUARD_BYTES + STACKS_PER_SLAB * STACK_BYTES;

static KEPT: Mutex<Vec<Slab>> = Mutex::new(Vec::new());

impl Slab {
    fn new() -> io::Result<Slab> {
        let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(slab) = kept {
            return Ok(slab);
        }
        const BYTES: NonZeroUsize = NonZeroUsize::new(SLAB_BYTES).expect("not zero");
        let (access, flags) =
            (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE);
        // SAFETY: a new mapping; the calls below stay within it.
        unsafe {
            let slab = Slab(mmap_anonymous(None, BYTES, access, flags)?);
            mprotect(slab.0, GUARD_BYTES, ProtFlags::PROT_NONE)?;
            // A huge page would allocate the memory of sixteen stacks for the first one. An error is ignored: a system
            // without huge pages needs no advice.
            let _ = madvise(slab.0, SLAB_BYTES, MmapAdvise::MADV_NOHUGEPAGE);
            Ok(slab)
        }
    }

    fn place(&self, index: usize) -> LaneStack {
        let limit = self.0.addr().get() + GUARD_BYTES + index * STACK_BYTES;
        let base = limit + STACK_BYTES - index % COLOURS * COLOUR_BYTES;
        let address = |address| StackPointer::new(address).expect("above the slab's first byte");
        LaneStack { base: address(base), limit: address(limit) }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: this slab owns the mapping, and its stacks are no longer in use (contract of `Stacks`).
        let _ = unsafe { munmap(self.0, SLAB_BYTES) };
    }
}

/// The stacks of one worker.
#[derive(Default)]
pub struct Stacks {
    slabs: Vec<Slab>,
    free: Vec<LaneStack>,
}

impl Stacks {
    /// Takes `count` stacks, which must be returned by [`give_back`](Stacks::give_back) before `self` is dropped.
    pub fn take(&mut self, count: usize) -> io::Result<Vec<LaneStack>> {
        while self.free.len() < count {
            let slab = Slab::new()?;
            self.free.extend((0..STACKS_PER_SLAB).rev().map(|index| slab.place(index)));
            self.slabs.push(slab);
        }
        Ok(iter::repeat_with(|| self.free.pop()).take(count).flatten().collect())
    }

    /// Returns a stack that is no longer in use.
    pub fn give_back(&mut self, place: LaneStack) {
        self.free.push(place);
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        while kept.len() < KEPT_SLABS
            && let Some(slab) = self.slabs.pop()
        {
            kept.push(slab);
        }
    }
}
