//! Sums of several PEs' numbers, always in the order of PEs, so that all PEs that sum the same numbers compute the same
//! bits.

use super::{BF16, F32};
use crate::gin::{Fold, WorldView};
use cuda_std::half::{pack_bf16, pack_f16, unpack_bf16, unpack_f16};
use cuda_std::vector::{load_words, load_words_of, store_words};

/// The sum of the contents of one word: one 4-byte number, or two 2-byte numbers.
type Held = [f32; 2];

/// Number of 16-byte vectors that a thread has in flight from each source, for aligned and for unaligned sources. An
/// unaligned vector takes the registers of two.
const UNROLL: usize = 4;
const UNROLL_SHIFTED: usize = 2;

#[inline(always)]
fn first(element: u32, word: u32) -> Held {
    match element {
        F32 => [f32::from_bits(word), 0.0],
        BF16 => unpack_bf16(word),
        _ => unpack_f16(word),
    }
}

#[inline(always)]
fn add(element: u32, held: Held, word: u32) -> Held {
    let other = first(element, word);
    [held[0] + other[0], held[1] + other[1]]
}

#[inline(always)]
fn word(element: u32, held: Held) -> u32 {
    match element {
        F32 => held[0].to_bits(),
        BF16 => pack_bf16(held),
        _ => pack_f16(held),
    }
}

/// Sums of numbers of one element type, two words at a time.
pub(super) struct Adds(pub u32);

impl Fold for Adds {
    type Held = [Held; 2];

    #[inline(always)]
    fn first(&self, bytes: u64) -> [Held; 2] {
        [first(self.0, bytes as u32), first(self.0, (bytes >> 32) as u32)]
    }

    #[inline(always)]
    fn next(&self, held: [Held; 2], bytes: u64) -> [Held; 2] {
        [add(self.0, held[0], bytes as u32), add(self.0, held[1], (bytes >> 32) as u32)]
    }

    #[inline(always)]
    fn last(&self, held: [Held; 2]) -> u64 {
        (word(self.0, held[1]) as u64) << 32 | word(self.0, held[0]) as u64
    }
}

/// Several ranges of equal length: range `k` is at `offset + k * stride` in the heap of PE `first + k * step`.
#[derive(Clone, Copy)]
pub(super) struct Spread {
    pub first: u32,
    pub step: u32,
    pub offset: u64,
    pub stride: u64,
    pub count: u32,
    /// Index and offset of the single range that is elsewhere in its heap; [`NONE_APART`] if there is no such range.
    pub apart: (u32, u64),
}

/// Value of [`Spread::apart`] if no range is elsewhere.
pub(super) const NONE_APART: (u32, u64) = (u32::MAX, 0);

impl Spread {
    /// Creates a spread of ranges in this PE's own heap.
    #[inline(always)]
    pub fn own(world: &WorldView, offset: u64, stride: u64, count: u32) -> Spread {
        Spread { first: world.me, step: 0, offset, stride, count, apart: NONE_APART }
    }

    #[inline(always)]
    fn address(&self, world: &WorldView, number: u32) -> u64 {
        // SAFETY: `peers` has one entry per PE, and the heaps of a node's PEs are mapped.
        let heap = unsafe { (*world.peers.add((self.first + number * self.step) as usize)).heap };
        heap + self.offset + number as u64 * self.stride
    }

    /// Returns the address of a source, which may be the range in `apart`.
    #[inline(always)]
    fn source(&self, world: &WorldView, number: u32) -> u64 {
        let address = self.address(world, number);
        if number == self.apart.0 {
            address - self.offset - number as u64 * self.stride + self.apart.1
        } else {
            address
        }
    }
}

/// Sums the sources into every target. Called by all `threads` threads, of which this is number `rank`. Does not order
/// memory.
///
/// # Safety
/// All ranges must be mapped and `bytes` long. No other thread may write a source or access a target during the call. A
/// target may be one of the sources: each thread stores only bytes that no other thread has loaded. A target and an
/// identical source have the same alignment. After the head this source's vectors are therefore aligned, and a thread
/// loads no neighbouring bytes from it. Not inlined, and instantiated per element type, so that its registers are
/// allocated separately.
#[inline(never)]
pub(super) unsafe fn sum(
    world: &WorldView,
    element: u32,
    sources: &Spread,
    targets: &Spread,
    bytes: u64,
    (rank, threads): (u32, u32),
) {
    // The targets have the same alignment: heaps are aligned, and several targets have an aligned stride.
    let size = if element == F32 { 4 } else { 2 };
    let head = ((targets.offset.wrapping_neg()) % 16).min(bytes);
    let vectors = if targets.stride.is_multiple_of(16) { (bytes - head) / 16 } else { 0 };
    let place = ThreadRange { head, bytes, rank, threads };
    // SAFETY: the caller guarantees that all ranges are mapped and that no other thread accesses the targets.
    unsafe {
        match element {
            F32 => whole::<F32>(world, sources, targets, vectors, &place),
            BF16 => whole::<BF16>(world, sources, targets, vectors, &place),
            _ => whole::<{ super::F16 }>(world, sources, targets, vectors, &place),
        }
    }
    // Sums the numbers before and after the vectors, one by one.
    let mut number = rank as u64;
    while number * size < bytes - vectors * 16 {
        let at = number * size + if number * size < head { 0 } else { vectors * 16 };
        let load = |number: u32| {
            let address = sources.source(world, number) + at;
            // SAFETY: `at` is below `bytes` and aligned to the number's size.
            unsafe { if size == 4 { *(address as *const u32) } else { *(address as *const u16) as u32 } }
        };
        let mut held = first(element, load(0));
        for number in 1..sources.count {
            held = add(element, held, load(number));
        }
        let value = word(element, held);
        for number in 0..targets.count {
            let address = targets.address(world, number) + at;
            // SAFETY: `at` is below `bytes` and aligned to the number's size.
            unsafe {
                if size == 4 {
                    *(address as *mut u32) = value;
                } else {
                    *(address as *mut u16) = value as u16;
                }
            }
        }
        number += threads as u64;
    }
}

/// Share of a thread in a sum.
struct ThreadRange {
    /// Number of bytes before the first vector of the targets.
    head: u64,
    bytes: u64,
    rank: u32,
    threads: u32,
}

/// Loads the 16 bytes at offset `at` of a source that starts at `start`. If the address is not aligned to 16 bytes,
/// loads the two aligned vectors that hold them.
///
/// # Safety
/// The source must be `bytes` long and mapped. No other thread may write it during the call.
#[inline(always)]
unsafe fn load_vector<const SHIFTED: bool>(start: u64, at: u64, bytes: u64) -> [u32; 4] {
    let (address, inside) = (start + at, (start + at) as u32 % 16);
    if !SHIFTED || inside == 0 {
        // SAFETY: the caller guarantees that the 16 bytes are readable.
        return unsafe { load_words(address as *const u32) };
    }
    let low = address - inside as u64;
    // SAFETY: both vectors hold a byte of the source.
    let [low, high] =
        [low, low + 16].map(|vector| unsafe { load_words_of(vector as *const u32, (start, start + bytes)) });
    across(low, high, inside)
}

/// Returns the 16 bytes that start at byte `inside` (below 16) of two adjacent vectors.
#[inline(always)]
fn across(low: [u32; 4], high: [u32; 4], inside: u32) -> [u32; 4] {
    let all: [u32; 8] = core::array::from_fn(|at| if at < 4 { low[at] } else { high[at - 4] });
    // Shifts by two words, then by one word, then by bytes. An indexed array would be in local memory.
    let by_two: [u32; 6] = core::array::from_fn(|at| if inside & 8 != 0 { all[at + 2] } else { all[at] });
    let by_one: [u32; 5] = core::array::from_fn(|at| if inside & 4 != 0 { by_two[at + 1] } else { by_two[at] });
    core::array::from_fn(|at| (((by_one[at + 1] as u64) << 32 | by_one[at] as u64) >> (inside % 4 * 8)) as u32)
}

/// Sums `count` vectors of the targets after the head. Four aligned sources are summed by [`by_four`], others in rounds
/// of several vectors and then one vector at a time.
#[inline(always)]
unsafe fn whole<const ELEMENT: u32>(
    world: &WorldView,
    sources: &Spread,
    targets: &Spread,
    count: u64,
    place: &ThreadRange,
) {
    let aligned = |offset: u64| (offset + place.head).is_multiple_of(16);
    let apart = sources.apart.0 == NONE_APART.0 || aligned(sources.apart.1);
    // SAFETY: the caller guarantees that the ranges are mapped and have `count` vectors after the head.
    unsafe {
        if !(apart && aligned(sources.offset) && sources.stride.is_multiple_of(16)) {
            rounds::<ELEMENT, UNROLL_SHIFTED, true>(world, sources, targets, count, place);
        } else if sources.count == 4 {
            by_four::<ELEMENT>(world, sources, targets, count, place);
        } else {
            rounds::<ELEMENT, UNROLL, false>(world, sources, targets, count, place);
        }
    }
}

#[inline(always)]
unsafe fn rounds<const ELEMENT: u32, const N: usize, const SHIFTED: bool>(
    world: &WorldView,
    sources: &Spread,
    targets: &Spread,
    count: u64,
    place: &ThreadRange,
) {
    let (mut index, step) = (place.rank as u64, place.threads as u64);
    while index + (N as u64 - 1) * step < count {
        // SAFETY: the caller guarantees that the ranges are mapped, and all indices of the round are below `count`.
        unsafe { round::<ELEMENT, N, SHIFTED>(world, sources, targets, place, index) };
        index += N as u64 * step;
    }
    while index < count {
        // SAFETY: the caller guarantees that the ranges are mapped, and `index` is below `count`.
        unsafe { round::<ELEMENT, 1, SHIFTED>(world, sources, targets, place, index) };
        index += step;
    }
}

/// Adds the vectors of several sources, in their order.
#[inline(always)]
pub(super) fn added<const ELEMENT: u32, const N: usize>(loaded: &[[u32; 4]; N]) -> [u32; 4] {
    let mut sums = [0u32; 4];
    for (place, sum) in sums.iter_mut().enumerate() {
        let mut held = first(ELEMENT, loaded[0][place]);
        for other in &loaded[1..] {
            held = add(ELEMENT, held, other[place]);
        }
        *sum = word(ELEMENT, held);
    }
    sums
}

/// Sums four sources. The loads of all four overlap with each other and with the stores of the previous round.
/// Sequential loads, with the stores between rounds, would leave the links idle.
#[inline(always)]
unsafe fn by_four<const ELEMENT: u32>(
    world: &WorldView,
    sources: &Spread,
    targets: &Spread,
    count: u64,
    place: &ThreadRange,
) {
    let (rank, threads, head) = (place.rank as u64, place.threads as u64, place.head);
    let starts = [0, 1, 2, 3].map(|number| sources.source(world, number) + head);
    // SAFETY: the caller guarantees that the sources are mapped, and `index` is below `count`.
    let load = |index: u64| starts.map(|start| unsafe { load_words((start + index * 16) as *const u32) });
    let store = |index: u64, loaded: [[u32; 4]; 4]| {
        let sums = added::<ELEMENT, 4>(&loaded);
        for number in 0..targets.count {
            // SAFETY: the caller guarantees that the targets are mapped, and `index` is below `count`.
            unsafe { store_words((targets.address(world, number) + head + index * 16) as *mut u32, sums) };
        }
    };
    let mut index = rank;
    if index < count {
        let mut now = load(index);
        while index + threads < count {
            let next = load(index + threads);
            store(index, now);
            now = next;
            index += threads;
        }
        store(index, now);
    }
}

/// Sums `N` vectors of each source. Loads of the next source are in flight while those of the previous source are
/// added.
#[inline(always)]
unsafe fn round<const ELEMENT: u32, const N: usize, const SHIFTED: bool>(
    world: &WorldView,
    sources: &Spread,
    targets: &Spread,
    place: &ThreadRange,
    index: u64,
) {
    let offset = |vector: usize| place.head + (index + vector as u64 * place.threads as u64) * 16;
    let load = |number: u32| {
        let start = sources.source(world, number);
        let mut loaded = [[0u32; 4]; N];
        for (vector, loaded) in loaded.iter_mut().enumerate() {
            // SAFETY: the caller guarantees that the sources are mapped and have these vectors.
            *loaded = unsafe { load_vector::<SHIFTED>(start, offset(vector), place.bytes) };
        }
        loaded
    };
    let mut next = load(0);
    let mut held = [[[0f32; 2]; 4]; N];
    for number in 1..=sources.count {
        let now = next;
        if number < sources.count {
            next = load(number);
        }
        for (held, now) in held.iter_mut().zip(&now) {
            for (held, now) in held.iter_mut().zip(now) {
                *held = if number == 1 { first(ELEMENT, *now) } else { add(ELEMENT, *held, *now) };
            }
        }
    }
    for number in 0..targets.count {
        let start = targets.address(world, number);
        for (vector, held) in held.iter().enumerate() {
            let sums = held.map(|held| word(ELEMENT, held));
            // SAFETY: the caller guarantees that the targets are mapped and have these vectors.
            unsafe { store_words((start + offset(vector)) as *mut u32, sums) };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unaligned_vectors_hold_bytes_at_their_address(start in 0usize..16, at in 0usize..100) {
            #[repr(align(16))]
            struct Bytes([u8; 256]);
            let memory = Bytes(core::array::from_fn(|at| (at * 7 + 1) as u8));
            let source = memory.0.as_ptr() as u64 + start as u64;
            // SAFETY: source and vectors are inside the array.
            let vector = unsafe { load_vector::<true>(source, at as u64, at as u64 + 16) };
            let found: Vec<u8> = vector.into_iter().flat_map(u32::to_le_bytes).collect();
            prop_assert_eq!(&found[..], &memory.0[start + at..start + at + 16]);
            // Computes the sum from whole vectors, like a GPU.
            let vectors = |at: usize| core::array::from_fn(|word| u32::from_le_bytes(core::array::from_fn(|byte| memory.0[at + 4 * word + byte])));
            let (low, inside) = ((start + at) / 16 * 16, (start + at) % 16);
            prop_assert_eq!(across(vectors(low), vectors(low + 16), inside as u32), vector);
        }
    }
}
