//! Rows of numbers as models store them: bf16, or e4m3 with one scale per 128 values. Rows are accessed in groups of
//! eight values: 16 or 8 bytes, one access.
//!
//! ```text
//! bf16: two bytes for each value        e4m3: a byte for each, then an f32 for each 128
//! ```
//!
//! Each step rounds once, in a fixed order, so that a CPU that performs the same steps computes the same bits.

use crate::fp8::{E4M3_MOST, from_e4m3, to_e4m3};
use crate::half::{pack_bf16, unpack_bf16};
use crate::vector::{load_words, store_words};

/// Maximum number of terms of a sum.
pub const MOST_TERMS: u32 = 32;
/// Number of values that share a scale.
pub const GROUP: u32 = 128;
/// Lower bound of a group's largest magnitude when its scale is computed, so that no scale is 0.
pub const LEAST: f32 = 1e-4;

/// Returns the size in bytes of a row of `values` values, which must be a multiple of 8.
pub const fn bytes(values: u32, e4m3: bool) -> u32 {
    if e4m3 { values + 4 * values.div_ceil(GROUP) } else { 2 * values }
}

/// Unpacks eight bf16 values.
#[inline(always)]
fn unpacked(words: [u32; 4]) -> [f32; 8] {
    let pairs = words.map(unpack_bf16);
    core::array::from_fn(|at| pairs[at / 2][at % 2])
}

/// Inverse of [`unpacked`].
#[inline(always)]
fn packed(values: [f32; 8]) -> [u32; 4] {
    core::array::from_fn(|at| pack_bf16([values[2 * at], values[2 * at + 1]]))
}

/// Returns the values rounded to bf16.
#[inline(always)]
pub fn through_bf16(values: [f32; 8]) -> [f32; 8] {
    unpacked(packed(values))
}

/// Returns the address of the group of eight `number` in a row of bf16.
#[inline(always)]
unsafe fn at(row: *mut u32, number: u32) -> *mut u32 {
    // SAFETY: the caller guarantees that the row has this group.
    unsafe { row.add(4 * number as usize) }
}

/// Loads the group of eight `number` of a row of `values` values.
///
/// # Safety
/// The row must be aligned to 16 bytes and have this group, and no thread may write it concurrently.
#[inline(always)]
pub unsafe fn load(row: *const u32, values: u32, e4m3: bool, number: u32) -> [f32; 8] {
    // SAFETY: the caller guarantees that the row is aligned and has this group. The scales follow the values.
    unsafe {
        if !e4m3 {
            return unpacked(load_words(at(row.cast_mut(), number)));
        }
        let codes = load_words::<2>(row.add(2 * number as usize));
        let scale = row.add((values / 4 + number * 8 / GROUP) as usize).cast::<f32>().read();
        core::array::from_fn(|at| from_e4m3((codes[at / 4] >> (8 * (at % 4))) as u8) * scale)
    }
}

/// Copies groups of eight of a bf16 row to another row, unchanged or as e4m3. `numbers` are the groups assigned to this
/// thread.
///
/// # Safety
/// As for [`load`]. In addition, `to` must be aligned to 16 bytes and have space for the row, and exactly one thread
/// must write each group.
#[inline(always)]
pub unsafe fn encode(to: *mut u32, from: *const u32, values: u32, e4m3: bool, numbers: impl Iterator<Item = u32>) {
    for number in numbers {
        // SAFETY: the caller guarantees that both rows are aligned and have these groups.
        unsafe {
            let words = load_words::<4>(at(from.cast_mut(), number));
            if e4m3 { encode_eight(to, from, values, number, words) } else { store_words(at(to, number), words) }
        }
    }
}

/// Encodes one group of eight as e4m3. Each thread computes the scale itself: its reads are those of the neighbouring
/// threads.
#[inline(always)]
unsafe fn encode_eight(to: *mut u32, from: *const u32, values: u32, number: u32, words: [u32; 4]) {
    let first = number * 8 / GROUP * (GROUP / 2);
    let end = (first + GROUP / 2).min(values / 2);
    // Bit patterns of non-negative floats are ordered like the numbers.
    let (mut most, mut word) = (0, first);
    // SAFETY: the caller guarantees that both rows are aligned and have this group; `end` does not exceed the row.
    unsafe {
        while word < end {
            for pair in load_words::<4>(from.add(word as usize)) {
                most = most.max(pair << 16 & 0x7fff_ffff).max(pair & 0x7fff_0000);
            }
            word += 4;
        }
        let most = f32::from_bits(most).max(LEAST);
        let by = E4M3_MOST / most;
        let codes = unpacked(words).map(|value| to_e4m3(value * by) as u32);
        let four = |at: usize| codes[at] | codes[at + 1] << 8 | codes[at + 2] << 16 | codes[at + 3] << 24;
        store_words(to.add(2 * number as usize), [four(0), four(4)]);
        if (number * 8).is_multiple_of(GROUP) {
            to.add((values / 4 + number * 8 / GROUP) as usize).write((most / E4M3_MOST).to_bits());
        }
    }
}

/// Writes groups of eight of a weighted sum as bf16. `terms` is at most 32; the terms for which `is_wanted` holds are
/// added in order. `term(term, group)` returns the weight and the values of a group. `numbers` are the groups assigned
/// to this thread.
///
/// # Safety
/// As for [`encode`].
#[inline(always)]
pub unsafe fn sum(
    to: *mut u32,
    numbers: impl Iterator<Item = u32>,
    terms: u32,
    is_wanted: impl Fn(u32) -> bool,
    term: impl Fn(u32, u32) -> (f32, [f32; 8]),
) {
    let wanted = (0..terms).fold(0u32, |wanted, number| wanted | (is_wanted(number) as u32) << number);
    for number in numbers {
        let (mut sum, mut left) = ([0f32; 8], wanted);
        while left != 0 {
            let (weight, values) = term(left.trailing_zeros(), number);
            left &= left - 1;
            sum = core::array::from_fn(|at| sum[at] + weight * values[at]);
        }
        // SAFETY: the caller guarantees that `to` is aligned, has this group, and that only this thread writes it.
        unsafe { store_words(at(to, number), packed(sum)) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// 200 values, so that the last scale group is incomplete; aligned to 16 bytes.
    #[repr(align(16))]
    struct Row([u32; 128]);

    const VALUES: u32 = 200;

    fn row() -> Row {
        let value = |at: usize| ((at * 37 % 101) as f32 - 50.0) / 16.0 * if at < 128 { 1.0 } else { 1e-6 };
        Row(core::array::from_fn(|word| pack_bf16([value(2 * word), value(2 * word + 1)])))
    }

    fn value(row: &Row, at: usize) -> f32 {
        unpack_bf16(row.0[at / 2])[at % 2]
    }

    #[test]
    fn bf16_rows_are_copied_and_e4m3_rows_scaled() {
        let (from, mut bf16, mut e4m3) = (row(), Row([0; 128]), Row([0; 128]));
        // SAFETY: the rows are aligned and large enough.
        unsafe {
            encode(bf16.0.as_mut_ptr(), from.0.as_ptr(), VALUES, false, 0..VALUES / 8);
            encode(e4m3.0.as_mut_ptr(), from.0.as_ptr(), VALUES, true, 0..VALUES / 8);
        }
        assert_eq!(bf16.0[..100], from.0[..100]);
        assert_eq!(bytes(VALUES, false), 400);
        assert_eq!(bytes(VALUES, true), 208, "two scales");
        assert_eq!(e4m3.0[52..], [0; 76]);
        let groups = [0..128, 128..200];
        for (number, group) in groups.into_iter().enumerate() {
            let most = group.clone().fold(LEAST, |most, at| most.max(value(&from, at).abs()));
            let scale = f32::from_bits(e4m3.0[50 + number]);
            assert_eq!(scale, most / E4M3_MOST);
            for at in group {
                let code = (e4m3.0[at / 4] >> (8 * (at % 4))) as u8;
                assert_eq!(code, to_e4m3(value(&from, at) * (E4M3_MOST / most)));
                // SAFETY: the rows are aligned, and contain the group of `at`.
                let [a, b] = [(&bf16, false), (&e4m3, true)]
                    .map(|(row, is)| unsafe { load(row.0.as_ptr(), VALUES, is, at as u32 / 8) }[at % 8]);
                assert_eq!((a, b), (value(&from, at), from_e4m3(code) * scale));
            }
        }
    }

    #[test]
    fn sum_adds_selected_terms_in_order() {
        let mut to = Row([0; 128]);
        // In any other order, the large terms would cancel the small one.
        let terms = [7.0, 3e8, -3e8, 1.0];
        // SAFETY: the row is aligned and large enough.
        unsafe {
            sum(
                to.0.as_mut_ptr(),
                1..3,
                4,
                |number| number > 0,
                |number, eight| (eight as f32, [terms[number as usize]; 8]),
            )
        };
        assert_eq!(to.0[..4], [0; 4]);
        assert_eq!((unpack_bf16(to.0[4]), unpack_bf16(to.0[8])), ([1.0; 2], [2.0; 2]));
        assert_eq!(to.0[12..], [0; 116]);
    }
}
