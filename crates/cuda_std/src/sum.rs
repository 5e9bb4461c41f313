//! Floating-point sums to which many threads of one GPU add without waiting for the result.
//!
//! The hardware chooses the order of the additions, so the last bits of such a sum vary from run to run.

use crate::memory::Word;
#[cfg(not(target_arch = "nvptx64"))]
use crate::memory::{compare_exchange_relaxed_gpu_u64, load_relaxed_gpu_u64};

/// Returns `sum + value * value`: one instruction on a GPU (`fma.rn.f32`, which rounds once); a CPU may round twice.
#[inline(always)]
pub fn square_onto(sum: f32, value: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: arithmetic on registers only.
    return f32::from_bits(unsafe {
        written!(reg32, "fma.rn.f32 {out}, {value}, {value}, {sum};", value = in(reg32) value.to_bits(),
                 sum = in(reg32) sum.to_bits(), options(pure, nomem, nostack))
    });
    #[cfg(not(target_arch = "nvptx64"))]
    return sum + value * value;
}

/// `red.relaxed.gpu.add.f64`: adds to a word that contains an `f64`; no order.
#[inline(always)]
pub fn add_relaxed_gpu_f64(word: &Word, value: f64) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the reference is valid for an atomic read-modify-write.
    unsafe {
        core::arch::asm!("red.relaxed.gpu.global.add.f64 [{address}], {value};", address = in(reg64) core::ptr::from_ref(word),
             value = in(reg64) value.to_bits(), options(nostack));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    replace(word, |bits| (f64::from_bits(bits) + value).to_bits());
}

/// `red.relaxed.gpu.add.f32`: adds to the low half of the word, an `f32`, and leaves the high half unchanged; no order.
#[inline(always)]
pub fn add_relaxed_gpu_f32(word: &Word, value: f32) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the reference is valid for an atomic read-modify-write; GPUs are little-endian.
    unsafe {
        core::arch::asm!("red.relaxed.gpu.global.add.f32 [{address}], {value};", address = in(reg64) core::ptr::from_ref(word),
             value = in(reg32) value.to_bits(), options(nostack));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    replace(word, |bits| bits >> 32 << 32 | (f32::from_bits(bits as u32) + value).to_bits() as u64);
}

/// Replaces the word by `sum` of it in a compare-exchange loop, because CPUs have no floating-point atomic add.
#[cfg(not(target_arch = "nvptx64"))]
fn replace(word: &Word, sum: impl Fn(u64) -> u64) {
    let mut seen = load_relaxed_gpu_u64(word);
    loop {
        let before = compare_exchange_relaxed_gpu_u64(word, seen, sum(seen));
        if before == seen {
            return;
        }
        seen = before;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sum_includes_additions_of_all_threads() {
        let (double, single) = (Word::new(0), Word::new(7 << 32));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        add_relaxed_gpu_f64(&double, 0.5);
                        add_relaxed_gpu_f32(&single, 0.25);
                    }
                });
            }
        });
        assert_eq!(f64::from_bits(load_relaxed_gpu_u64(&double)), 200.0);
        let bits = load_relaxed_gpu_u64(&single);
        assert_eq!((bits >> 32, f32::from_bits(bits as u32)), (7, 100.0));
    }
}
