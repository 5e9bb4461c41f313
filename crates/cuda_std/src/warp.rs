//! Warps: the 32 threads that issue instructions together.
//!
//! Functions that take a mask require all its lanes: each must call the same function with the same mask, at the same
//! place in the source. The emulated device enforces this, and two cases that the hardware leaves undefined: a lane of
//! the mask that has returned, and the value of a lane outside the mask. A violation ends the grid with the lane's name
//! and the source lines.
//!
//! Lanes that took different branches are not necessarily converged afterwards, regardless of the structure of the
//! source. A kernel that needs convergence must request it by [`synchronize`] or a block barrier.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emulation;
use crate::thread;

/// Number of threads in a full warp of this machine: 32, or 1 if each thread is its own warp (loom, Miri, feature
/// `threads`).
#[cfg(target_arch = "nvptx64")]
pub const SIZE: u32 = 32;
/// Number of threads in a full warp of this machine: 32, or 1 if each thread is its own warp (loom, Miri, feature
/// `threads`).
#[cfg(not(target_arch = "nvptx64"))]
pub const SIZE: u32 = emulation::SIZE;

#[cfg(target_arch = "nvptx64")]
mod device {
    // The intrinsics instead of inline PTX, because LLVM knows that they are convergent and neither duplicates nor
    // sinks them into a branch.
    unsafe extern "unadjusted" {
        #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
        pub fn shuffle_index(mask: i32, value: i32, source: i32, clamp: i32) -> i32;
        #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
        pub fn shuffle_up(mask: i32, value: i32, by: i32, clamp: i32) -> i32;
        #[link_name = "llvm.nvvm.shfl.sync.down.i32"]
        pub fn shuffle_down(mask: i32, value: i32, by: i32, clamp: i32) -> i32;
        #[link_name = "llvm.nvvm.bar.warp.sync"]
        pub fn synchronize(mask: i32);
        #[link_name = "llvm.nvvm.match.any.sync.i64"]
        pub fn match_any(mask: i32, value: i64) -> i32;
        #[link_name = "llvm.nvvm.vote.ballot.sync"]
        pub fn ballot(mask: i32, predicate: bool) -> i32;
        #[link_name = "llvm.nvvm.vote.any.sync"]
        pub fn any(mask: i32, predicate: bool) -> bool;
        #[link_name = "llvm.nvvm.vote.all.sync"]
        pub fn all(mask: i32, predicate: bool) -> bool;
    }
}

/// Returns the lanes that execute this instruction together, one bit each. The hardware decides which these are: a lane
/// that took the same path may be missing, and lanes do not necessarily reconverge after a branch.
#[inline(always)]
#[track_caller]
pub fn active_mask() -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the instruction only reads a property of the warp.
    unsafe {
        written!(reg32, "activemask.b32 {out};", options(nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    emulation::active_mask(core::panic::Location::caller())
}

/// Returns this thread's lane, below [`SIZE`].
#[inline(always)]
pub fn lane() -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the instruction only reads a property of the thread.
    unsafe {
        written!(reg32, "mov.u32 {out}, %laneid;", options(nostack, pure, nomem))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    emulation::lane()
}

/// Returns the lanes of this warp that were launched, one bit each. Lanes are missing only in the last warp of a block
/// whose size is not a multiple of the warp size.
#[inline(always)]
pub fn launched_mask() -> u32 {
    let left = thread::block_dim_x() - thread::thread_idx_x() / SIZE * SIZE;
    if left >= SIZE { u32::MAX >> (u32::BITS - SIZE) } else { (1 << left) - 1 }
}

/// Returns to every lane of `mask` the value of lane `source`. All lanes of `mask` must call it together.
#[inline(always)]
#[track_caller]
pub fn broadcast_u64(mask: u32, value: u64, source: u32) -> u64 {
    shuffle_u64(mask, value, source)
}

/// Returns to each lane of `mask` the value of the lane `source`, which each lane chooses. All lanes of `mask` must
/// call it together.
#[inline(always)]
#[track_caller]
pub fn shuffle_u64(mask: u32, value: u64, source: u32) -> u64 {
    #[cfg(target_arch = "nvptx64")]
    {
        // SAFETY: the calling lanes are those of `mask`, and `source` is one of them.
        let (low, high) = unsafe {
            (
                device::shuffle_index(mask as i32, value as i32, source as i32, 31),
                device::shuffle_index(mask as i32, (value >> 32) as i32, source as i32, 31),
            )
        };
        ((high as u32 as u64) << 32) | low as u32 as u64
    }
    #[cfg(not(target_arch = "nvptx64"))]
    emulation::shuffle(mask, value, source)
}

/// Like [`shuffle_u64`], for an `f32`.
#[inline(always)]
#[track_caller]
pub fn shuffle_f32(mask: u32, value: f32, source: u32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the calling lanes are those of `mask`, and `source` is one of them.
    return f32::from_bits(unsafe {
        device::shuffle_index(mask as i32, value.to_bits() as i32, source as i32, 31) as u32
    });
    #[cfg(not(target_arch = "nvptx64"))]
    f32::from_bits(emulation::shuffle(mask, value.to_bits() as u64, source) as u32)
}

/// Returns the value of the lane below, or the lane's own value in lane 0. All lanes of the warp must call it together,
/// and there must be [`SIZE`] of them. (The distance is a constant, because a lane index takes a register, and is
/// recomputed where none is free.)
#[inline(always)]
#[track_caller]
pub fn from_lane_below_f32(value: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the calling lanes are all lanes of the warp.
    return f32::from_bits(unsafe { device::shuffle_up(-1, value.to_bits() as i32, 1, 0) as u32 });
    #[cfg(not(target_arch = "nvptx64"))]
    shuffle_f32(u32::MAX >> (u32::BITS - SIZE), value, lane().saturating_sub(1))
}

/// Like [`from_lane_below_f32`], with the lane above. The last lane receives its own value.
#[inline(always)]
#[track_caller]
pub fn from_lane_above_f32(value: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the calling lanes are all lanes of the warp.
    return f32::from_bits(unsafe { device::shuffle_down(-1, value.to_bits() as i32, 1, 31) as u32 });
    #[cfg(not(target_arch = "nvptx64"))]
    shuffle_f32(u32::MAX >> (u32::BITS - SIZE), value, (lane() + 1).min(SIZE - 1))
}

/// Returns the sum of the values of all lanes of a warp, in every lane. All lanes of the warp must call it together,
/// and there must be [`SIZE`] of them.
#[inline(always)]
#[track_caller]
pub fn sum_f32(mut value: f32) -> f32 {
    let mask = u32::MAX >> (u32::BITS - SIZE);
    let mut step = SIZE / 2;
    while step > 0 {
        value += shuffle_f32(mask, value, lane() ^ step);
        step /= 2;
    }
    value
}

/// Returns the lanes of `mask` that have the same value as this one, one bit each. All lanes of `mask` must call it
/// together.
#[inline(always)]
#[track_caller]
pub fn match_any_u64(mask: u32, value: u64) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the calling lanes are those of `mask`.
    return unsafe { device::match_any(mask as i32, value as i64) as u32 };
    #[cfg(not(target_arch = "nvptx64"))]
    emulation::match_any(mask, value)
}

/// Waits until all lanes of `mask` have arrived, and orders their memory accesses among each other.
#[inline(always)]
#[track_caller]
pub fn synchronize(mask: u32) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the calling lanes are those of `mask`.
    unsafe {
        device::synchronize(mask as i32)
    };
    #[cfg(not(target_arch = "nvptx64"))]
    emulation::synchronize(mask);
}

/// Defines votes: LLVM's intrinsic on the device, a rendezvous of the emulated warp on the host.
macro_rules! votes {
    ($($(#[$doc:meta])* $name:ident -> $type:ty = $kind:ident, $from:expr;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        #[track_caller]
        pub fn $name(mask: u32, predicate: bool) -> $type {
            #[cfg(target_arch = "nvptx64")]
            // SAFETY: the calling lanes are those of `mask`.
            return unsafe { device::$name(mask as i32, predicate) as $type };
            #[cfg(not(target_arch = "nvptx64"))]
            $from(emulation::vote(mask, emulation::Vote::$kind, predicate))
        }
    )*};
}

votes! {
    /// Returns the lanes of `mask` whose `predicate` is true, one bit each. All lanes of `mask` must call it together.
    ballot -> u32 = Ballot, core::convert::identity;
    /// Returns whether `predicate` is true in any lane of `mask`. All lanes of `mask` must call it together.
    any -> bool = Any, |yes| yes != 0;
    /// Returns whether `predicate` is true in all lanes of `mask`. All lanes of `mask` must call it together.
    all -> bool = All, |yes| yes != 0;
}
