//! Warps: the 32 threads that issue together.
//!
//! The functions that take a mask bring its lanes together: each of them calls the same function with the same mask, at the same place of
//! the source. The emulated device holds kernels to that, and to what the hardware leaves undefined: a lane of the mask that has returned,
//! or the value of a lane outside the mask, ends the grid with the lane's name and the lines of the source.
//!
//! Lanes that took different branches need not be together afterwards, whatever the source looks like: a kernel that needs them
//! together says so by [`synchronize`] or by a block barrier.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emulation;
use crate::thread;

/// Threads in a full warp of this machine: 32, and 1 where each thread is a warp of its own (loom, Miri, feature `threads`).
#[cfg(target_arch = "nvptx64")]
pub const SIZE: u32 = 32;
/// Threads in a full warp of this machine: 32, and 1 where each thread is a warp of its own (loom, Miri, feature `threads`).
#[cfg(not(target_arch = "nvptx64"))]
pub const SIZE: u32 = emulation::SIZE;

#[cfg(target_arch = "nvptx64")]
mod device {
    // The intrinsics, not inline PTX: LLVM knows them as convergent and neither duplicates nor sinks them into a branch.
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

/// The lanes that run this instruction together, one bit each. Which these are the hardware decides: a lane may be missing that
/// went the same way, and behind a branch nothing brings the lanes together again.
#[inline(always)]
#[track_caller]
pub fn active_mask() -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: reads a property of the warp.
    unsafe {
        written!(reg32, "activemask.b32 {out};", options(nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    emulation::active_mask(core::panic::Location::caller())
}

/// This thread's lane, below [`SIZE`].
#[inline(always)]
pub fn lane() -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: reads a property of the thread.
    unsafe {
        written!(reg32, "mov.u32 {out}, %laneid;", options(nostack, pure, nomem))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    emulation::lane()
}

/// The lanes of this warp that the launch has, one bit each: all, but for the last warp of a block that is no multiple of them.
#[inline(always)]
pub fn launched_mask() -> u32 {
    let left = thread::block_dim_x() - thread::thread_idx_x() / SIZE * SIZE;
    if left >= SIZE { u32::MAX >> (u32::BITS - SIZE) } else { (1 << left) - 1 }
}

/// Gives every lane of `mask` the value that lane `source` holds. All lanes of `mask` must call it together.
#[inline(always)]
#[track_caller]
pub fn broadcast_u64(mask: u32, value: u64, source: u32) -> u64 {
    shuffle_u64(mask, value, source)
}

/// Gives each lane of `mask` the value that the lane it names holds. All lanes of `mask` must call it together.
#[inline(always)]
#[track_caller]
pub fn shuffle_u64(mask: u32, value: u64, source: u32) -> u64 {
    #[cfg(target_arch = "nvptx64")]
    {
        // SAFETY: the caller's lanes are those of the mask; the source lane is one of them.
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

/// As [`shuffle_u64`], of a number of 32 bits.
#[inline(always)]
#[track_caller]
pub fn shuffle_f32(mask: u32, value: f32, source: u32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's lanes are those of the mask; the source lane is one of them.
    return f32::from_bits(unsafe {
        device::shuffle_index(mask as i32, value.to_bits() as i32, source as i32, 31) as u32
    });
    #[cfg(not(target_arch = "nvptx64"))]
    f32::from_bits(emulation::shuffle(mask, value.to_bits() as u64, source) as u32)
}

/// What the lane below this one holds; its own in the first lane. All lanes of the warp call it together, and there are [`SIZE`] of them.
/// (The distance is a constant: a lane's number takes a register, and is asked for again where there is none.)
#[inline(always)]
#[track_caller]
pub fn from_lane_below_f32(value: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's lanes are all of the warp.
    return f32::from_bits(unsafe { device::shuffle_up(-1, value.to_bits() as i32, 1, 0) as u32 });
    #[cfg(not(target_arch = "nvptx64"))]
    shuffle_f32(u32::MAX >> (u32::BITS - SIZE), value, lane().saturating_sub(1))
}

/// As [`from_lane_below_f32`], of the lane above; its own in the last lane.
#[inline(always)]
#[track_caller]
pub fn from_lane_above_f32(value: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's lanes are all of the warp.
    return f32::from_bits(unsafe { device::shuffle_down(-1, value.to_bits() as i32, 1, 31) as u32 });
    #[cfg(not(target_arch = "nvptx64"))]
    shuffle_f32(u32::MAX >> (u32::BITS - SIZE), value, (lane() + 1).min(SIZE - 1))
}

/// The sum of what all lanes of a warp hold, in every lane. All lanes of the warp call it together, and there are [`SIZE`] of them.
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

/// The lanes of `mask` that hold the same value as this one, one bit each. All lanes of `mask` must call it together.
#[inline(always)]
#[track_caller]
pub fn match_any_u64(mask: u32, value: u64) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's lanes are those of the mask.
    return unsafe { device::match_any(mask as i32, value as i64) as u32 };
    #[cfg(not(target_arch = "nvptx64"))]
    emulation::match_any(mask, value)
}

/// Waits until all lanes of `mask` are here, and orders their memory accesses among each other.
#[inline(always)]
#[track_caller]
pub fn synchronize(mask: u32) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's lanes are those of the mask.
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
            // SAFETY: the caller's lanes are those of the mask.
            return unsafe { device::$name(mask as i32, predicate) as $type };
            #[cfg(not(target_arch = "nvptx64"))]
            $from(emulation::vote(mask, emulation::Vote::$kind, predicate))
        }
    )*};
}

votes! {
    /// The lanes of `mask` that say yes, one bit each. All lanes of `mask` must call it together.
    ballot -> u32 = Ballot, core::convert::identity;
    /// Whether one lane of `mask` says yes. All lanes of `mask` must call it together.
    any -> bool = Any, |yes| yes != 0;
    /// Whether all lanes of `mask` say yes. All lanes of `mask` must call it together.
    all -> bool = All, |yes| yes != 0;
}
