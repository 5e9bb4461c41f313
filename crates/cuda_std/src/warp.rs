//! Warps: the 32 threads that issue together. On the emulated device each thread is its own warp of one.

/// Threads in a full warp of this machine.
pub const SIZE: u32 = if cfg!(target_arch = "nvptx64") { 32 } else { 1 };

#[cfg(target_arch = "nvptx64")]
mod device {
    // The intrinsics, not inline PTX: LLVM knows them as convergent and neither duplicates nor sinks them into a branch.
    unsafe extern "unadjusted" {
        #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
        pub fn shuffle_index(mask: i32, value: i32, source: i32, clamp: i32) -> i32;
        #[link_name = "llvm.nvvm.bar.warp.sync"]
        pub fn synchronize(mask: i32);
        #[link_name = "llvm.nvvm.match.any.sync.i64"]
        pub fn match_any(mask: i32, value: i64) -> i32;
    }
}

/// The lanes that run this instruction together, one bit each.
#[inline(always)]
pub fn active_mask() -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let mask: u32;
        // SAFETY: reads a property of the warp.
        unsafe {
            core::arch::asm!("activemask.b32 {mask};", mask = out(reg32) mask, options(nostack));
        }
        mask
    }
    #[cfg(not(target_arch = "nvptx64"))]
    1
}

/// This thread's lane, below [`SIZE`].
#[inline(always)]
pub fn lane() -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let lane: u32;
        // SAFETY: reads a property of the thread.
        unsafe {
            core::arch::asm!("mov.u32 {lane}, %laneid;", lane = out(reg32) lane, options(nostack, pure, nomem));
        }
        lane
    }
    #[cfg(not(target_arch = "nvptx64"))]
    0
}

/// Gives every lane of `mask` the value that lane `source` holds. All lanes of `mask` must call it together.
#[inline(always)]
pub fn broadcast_u64(mask: u32, value: u64, source: u32) -> u64 {
    shuffle_u64(mask, value, source)
}

/// Gives each lane of `mask` the value that the lane it names holds. All lanes of `mask` must call it together.
#[inline(always)]
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
    {
        let _ = (mask, source);
        value
    }
}

/// The lanes of `mask` that hold the same value as this one, one bit each. All lanes of `mask` must call it together.
#[inline(always)]
pub fn match_any_u64(mask: u32, value: u64) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's lanes are those of the mask.
    return unsafe { device::match_any(mask as i32, value as i64) as u32 };
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let _ = value;
        mask
    }
}

/// Waits until all lanes of `mask` are here, and orders their memory accesses among each other.
#[inline(always)]
pub fn synchronize(mask: u32) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's lanes are those of the mask.
    unsafe {
        device::synchronize(mask as i32)
    };
    #[cfg(not(target_arch = "nvptx64"))]
    let _ = mask;
}
