//! 16-bit floating-point numbers, two in a 32-bit word: bf16 (the upper half of an f32) and f16 (IEEE 754 binary16).
//! Conversion to f32 is exact; conversion from f32 rounds to nearest even. The first number is in the low half of the
//! word, as in memory.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// Unpacks two bf16 numbers.
#[inline(always)]
pub fn unpack_bf16(word: u32) -> [f32; 2] {
    [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)]
}

/// Packs two numbers as bf16.
#[inline(always)]
pub fn pack_bf16(values: [f32; 2]) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: arithmetic on registers only.
    unsafe {
        written!(reg32, "cvt.rn.bf16x2.f32 {out}, {high}, {low};", high = in(reg32) values[1].to_bits(),
                 low = in(reg32) values[0].to_bits(), options(pure, nomem, nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let [low, high] = values.map(|value| u32::from(half::bf16::from_f32(value).to_bits()));
        high << 16 | low
    }
}

/// Unpacks two f16 numbers.
#[inline(always)]
pub fn unpack_f16(word: u32) -> [f32; 2] {
    #[cfg(target_arch = "nvptx64")]
    {
        let (low, high): (u32, u32);
        // SAFETY: arithmetic on registers only.
        unsafe {
            asm!("{{ .reg .b16 l, h; mov.b32 {{l, h}}, {word}; cvt.f32.f16 {low}, l; cvt.f32.f16 {high}, h; }}",
                 word = in(reg32) word, low = out(reg32) low, high = out(reg32) high, options(pure, nomem, nostack));
        }
        [f32::from_bits(low), f32::from_bits(high)]
    }
    #[cfg(not(target_arch = "nvptx64"))]
    [word as u16, (word >> 16) as u16].map(|bits| half::f16::from_bits(bits).to_f32())
}

/// Packs two numbers as f16.
#[inline(always)]
pub fn pack_f16(values: [f32; 2]) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: arithmetic on registers only.
    unsafe {
        written!(reg32, "cvt.rn.f16x2.f32 {out}, {high}, {low};", high = in(reg32) values[1].to_bits(),
                 low = in(reg32) values[0].to_bits(), options(pure, nomem, nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let [low, high] = values.map(|value| u32::from(half::f16::from_f32(value).to_bits()));
        high << 16 | low
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn unpacked_values_pack_back_with_ties_to_even() {
        for low in (0..=u16::MAX).step_by(7) {
            let word = u32::from(low) | 0x3c00_0000;
            let is_nan = unpack_f16(word)[0].is_nan();
            assert!(is_nan || pack_f16(unpack_f16(word)) == word, "f16 {low:#x}");
            let is_nan = unpack_bf16(word)[0].is_nan();
            assert!(is_nan || pack_bf16(unpack_bf16(word)) == word, "bf16 {low:#x}");
        }
        // These values are halfway between 256 and 258, and between 258 and 260, because bf16 has 8 significant bits.
        assert_eq!(unpack_bf16(pack_bf16([257.0, 259.0])), [256.0, 260.0]);
        assert_eq!(unpack_f16(pack_f16([2049.0, 2051.0])), [2048.0, 2052.0]);
    }
}
