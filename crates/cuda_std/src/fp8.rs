//! 8-bit floating-point numbers: e4m3 (1 sign, 4 exponent, 3 fraction bits; no infinity, largest value 448). Conversion
//! to f32 is exact; conversion from f32 rounds to nearest even and saturates at 448. Uses integer instructions, since
//! GPUs before compute capability 8.9 have no conversion instruction.

/// The largest e4m3 value.
pub const E4M3_MOST: f32 = 448.0;

/// Converts a number, which must not be NaN, to the nearest e4m3 code.
#[inline(always)]
pub fn to_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let sign = (bits >> 24) as u8 & 0x80;
    let magnitude = f32::from_bits(bits & 0x7fff_ffff);
    if magnitude >= E4M3_MOST {
        return sign | 0x7e;
    }
    if magnitude < 0.015_625 {
        // Below 2^-6, e4m3 values are spaced 2^-9 apart, like f32 values from 2^14 on, so the addition rounds
        // correctly. Code 8 is 2^-6.
        return sign | ((magnitude + 16384.0).to_bits() - 16384f32.to_bits()) as u8;
    }
    let magnitude = magnitude.to_bits();
    // Adds half a unit of the last kept bit, minus one if that bit is even. A carry correctly increments the exponent.
    let rounded = magnitude + 0x7_ffff + (magnitude >> 20 & 1);
    sign | ((rounded >> 20) - (120 << 3)) as u8
}

/// Returns the value of an e4m3 code.
#[inline(always)]
pub fn from_e4m3(code: u8) -> f32 {
    let (sign, code) = ((code as u32 & 0x80) << 24, code as u32 & 0x7f);
    let magnitude = if code < 8 { code as f32 * (1.0 / 512.0) } else { f32::from_bits((code << 20) + (120 << 23)) };
    f32::from_bits(magnitude.to_bits() | sign)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Decodes by the definition of e4m3.
    fn number(code: u8) -> f32 {
        let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7));
        let magnitude = if exponent == 0 {
            fraction / 8.0 * 2f32.powi(-6)
        } else {
            (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7)
        };
        if code & 0x80 == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn every_code_is_its_number_and_comes_back() {
        for code in (0..=0x7e).chain(0x80..=0xfe) {
            assert_eq!(from_e4m3(code).to_bits(), number(code).to_bits(), "{code:#x}");
            assert_eq!(to_e4m3(number(code)), code);
        }
    }

    #[test]
    fn conversion_rounds_to_nearest_even() {
        for code in 0..0x7eu8 {
            let (low, high) = (number(code), number(code + 1));
            let middle = (low + high) / 2.0;
            assert_eq!(to_e4m3(middle), code + (code & 1), "tie above {code:#x}");
            assert_eq!(to_e4m3(f32::from_bits(middle.to_bits() - 1)), code);
            assert_eq!(to_e4m3(f32::from_bits(middle.to_bits() + 1)), code + 1);
            assert_eq!(to_e4m3(-middle), 0x80 | (code + (code & 1)));
        }
        assert_eq!((to_e4m3(460.0), to_e4m3(1e9), to_e4m3(f32::NEG_INFINITY)), (0x7e, 0x7e, 0xfe));
    }
}
