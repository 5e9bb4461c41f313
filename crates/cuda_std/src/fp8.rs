//! Numbers of one byte: e4m3 (1 sign, 4 exponent, 3 fraction bits; no infinity, largest 448), four in a word. To f32 exactly, and back
//! rounded to nearest even, what is larger cut to 448. By integer instructions, since GPUs before compute capability 8.9 have none for it.

/// The largest number.
pub const E4M3_MOST: f32 = 448.0;

/// The nearest e4m3 of a number that is not NaN.
#[inline(always)]
pub fn to_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let sign = (bits >> 24) as u8 & 0x80;
    let magnitude = f32::from_bits(bits & 0x7fff_ffff);
    if magnitude >= E4M3_MOST {
        return sign | 0x7e;
    }
    if magnitude < 0.015_625 {
        // Below 2^-6 numbers are 2^-9 apart, as f32 are from 2^14 on: the addition rounds. 8 of them are the code of 2^-6.
        return sign | ((magnitude + 16384.0).to_bits() - 16384f32.to_bits()) as u8;
    }
    let magnitude = magnitude.to_bits();
    // Half of the last place that stays, less one where that place is even; a carry goes into the exponent, as it should.
    let rounded = magnitude + 0x7_ffff + (magnitude >> 20 & 1);
    sign | ((rounded >> 20) - (120 << 3)) as u8
}

/// The number.
#[inline(always)]
pub fn from_e4m3(code: u8) -> f32 {
    let (sign, code) = ((code as u32 & 0x80) << 24, code as u32 & 0x7f);
    let magnitude = if code < 8 { code as f32 * (1.0 / 512.0) } else { f32::from_bits((code << 20) + (120 << 23)) };
    f32::from_bits(magnitude.to_bits() | sign)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// By its definition.
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
    fn what_lies_between_goes_to_the_nearer_one_and_ties_to_even() {
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
