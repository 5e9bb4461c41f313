//! Stacks for lanes: many, small, and not one mapping more than needed.
//!
//! A slab is one mapping for many stacks. Each stack has [`STACK_BYTES`] of address space and takes the memory that it touches.
//! A guard page for each would be two mappings for each, and a system allows 65,530 in all; so one guard stands below a slab, and
//! each stack is checked instead: its pointer at every stop of its lane, and its last word, which nobody may have written, when
//! the lane has returned.

use corosensei::stack::{STACK_ALIGNMENT, Stack, StackPointer};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};
use std::{io, iter};

/// Address space of a stack. Kernels keep a few hundred bytes; the message of a panic and its backtrace want more.
pub const STACK_BYTES: usize = 128 * 1024;
/// A lane that stops with less than this left is about to overflow.
const RESERVE_BYTES: usize = 16 * 1024;
const STACKS_PER_SLAB: usize = 1024;
const GUARD_BYTES: usize = 64 * 1024;
/// Slabs that are kept for the next grid: their pages need not be found and cleared again.
const KEPT_SLABS: usize = 16;

/// A stack begins so many lines below the end of its place, by its number, that the hot ends of neighbours lie in different sets
/// of the first cache. Few enough that a small kernel still needs one page alone.
const COLOURS: usize = 32;
const COLOUR_BYTES: usize = 64;
const _: () = assert!(COLOUR_BYTES.is_multiple_of(STACK_ALIGNMENT));

/// One stack, of a slab that outlives it.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    base: StackPointer,
    limit: StackPointer,
}

// SAFETY: from `limit` to `base` is memory of one slab that nobody else uses. It has no guard page of its own: see the module.
unsafe impl Stack for Place {
    fn base(&self) -> StackPointer {
        self.base
    }

    fn limit(&self) -> StackPointer {
        self.limit
    }
}

impl Place {
    /// The lowest address that a lane may stop at.
    pub fn lowest(&self) -> usize {
        self.limit.get() + RESERVE_BYTES
    }

    /// Whether the last word has been written: the lane has overflown, maybe into its neighbour.
    pub fn is_overrun(&self) -> bool {
        // SAFETY: the slab is mapped and the lane has returned; a page that nobody touched reads as zeros and takes no memory.
        unsafe { (self.limit.get() as *const u64).read() != 0 }
    }
}

struct Slab(NonNull<c_void>);

// SAFETY: a mapping; whoever holds the slab holds its memory.
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
        // SAFETY: a new mapping; the calls below are within it.
        unsafe {
            let slab = Slab(mmap_anonymous(None, BYTES, access, flags)?);
            mprotect(slab.0, GUARD_BYTES, ProtFlags::PROT_NONE)?;
            // A huge page would take the memory of sixteen stacks for the first one. A system without them has nothing to refuse.
            let _ = madvise(slab.0, SLAB_BYTES, MmapAdvise::MADV_NOHUGEPAGE);
            Ok(slab)
        }
    }

    fn place(&self, index: usize) -> Place {
        let limit = self.0.addr().get() + GUARD_BYTES + index * STACK_BYTES;
        let base = limit + STACK_BYTES - index % COLOURS * COLOUR_BYTES;
        let address = |address| StackPointer::new(address).expect("above the slab's first byte");
        Place { base: address(base), limit: address(limit) }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and its stacks are gone (contract of `Stacks`).
        let _ = unsafe { munmap(self.0, SLAB_BYTES) };
    }
}

/// The stacks of one worker.
#[derive(Default)]
pub struct Stacks {
    slabs: Vec<Slab>,
    free: Vec<Place>,
}

impl Stacks {
    /// So many stacks, which come back by [`give_back`](Stacks::give_back) before `self` is dropped.
    pub fn take(&mut self, count: usize) -> io::Result<Vec<Place>> {
        while self.free.len() < count {
            let slab = Slab::new()?;
            self.free.extend((0..STACKS_PER_SLAB).rev().map(|index| slab.place(index)));
            self.slabs.push(slab);
        }
        Ok(iter::repeat_with(|| self.free.pop()).take(count).flatten().collect())
    }

    /// A stack that nobody uses any more.
    pub fn give_back(&mut self, place: Place) {
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
