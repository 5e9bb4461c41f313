//! What a message is made of, and the arithmetic on it; each step rounds once, in one order, so that a CPU finds the same bits.
//!
//! ```text
//! round, token, 0, 0 | topk experts | topk weights | to a multiple of 16 | values | scales (e4m3: one f32 for 128 values)
//! ```

use super::{Choice, Turn, UNIT_EXPERT};
use cuda_std::fp8::{E4M3_MOST, from_e4m3, to_e4m3};
use cuda_std::half::{pack_bf16, unpack_bf16};
use cuda_std::thread;
use cuda_std::vector::{load_words, store_words};

/// Values that share a scale.
pub const OF_SCALE: u32 = 128;
/// Choices of a token, at most.
pub const MOST_CHOICES: u32 = 32;
/// No scale is smaller than one that makes this the largest number.
pub const LEAST: f32 = 1e-4;

/// Bytes of a message before its values.
pub const fn header_bytes(topk: u32) -> u32 {
    (16 + 8 * topk).next_multiple_of(16)
}

/// Bytes of a message.
pub const fn message_bytes(hidden: u32, topk: u32, fp8: bool) -> u32 {
    header_bytes(topk) + if fp8 { hidden + 4 * hidden.div_ceil(OF_SCALE) } else { 2 * hidden }
}

/// What expert `expert` makes of a value: this times it, as bf16.
#[inline(always)]
pub fn expert_factor(expert: u32) -> f32 {
    1.0 + (expert % 61) as f32 / 64.0
}

/// Eight bf16.
#[inline(always)]
pub(super) fn unpacked(words: [u32; 4]) -> [f32; 8] {
    let pairs = words.map(unpack_bf16);
    core::array::from_fn(|at| pairs[at / 2][at % 2])
}

/// See [`unpacked`].
#[inline(always)]
pub(super) fn packed(values: [f32; 8]) -> [u32; 4] {
    core::array::from_fn(|at| pack_bf16([values[2 * at], values[2 * at + 1]]))
}

/// A message in this PE's heap.
#[derive(Clone, Copy)]
pub(super) struct Message {
    first: *mut u32,
    topk: u32,
    hidden: u32,
    fp8: bool,
}

impl Message {
    /// # Safety
    /// A place for a message of these arguments.
    #[inline(always)]
    pub unsafe fn at(turn: &Turn<'_>, first: *mut u8) -> Message {
        Message { first: first.cast(), topk: turn.args.topk, hidden: turn.args.hidden, fp8: turn.args.fp8 != 0 }
    }

    #[inline(always)]
    fn word(&self, at: u32) -> *mut u32 {
        // SAFETY: inside the message, as callers see to.
        unsafe { self.first.add(at as usize) }
    }

    /// The round that it was sent in.
    #[inline(always)]
    pub fn round(&self) -> u32 {
        // SAFETY: the first word. It may be what lay there before; it is not written meanwhile.
        unsafe { self.word(0).read() }
    }

    /// One of the router's choices.
    #[inline(always)]
    pub fn choice(&self, choice: u32) -> Choice {
        // SAFETY: in the header.
        unsafe {
            let weight = f32::from_bits(self.word(4 + self.topk + choice).read());
            Choice { expert: self.word(4 + choice).read(), weight }
        }
    }

    #[inline(always)]
    fn value_word(&self, at: u32) -> *mut u32 {
        self.word(header_bytes(self.topk) / 4 + at)
    }

    /// The scale of the eight values of this number.
    #[inline(always)]
    fn scale(&self, eight: u32) -> *mut f32 {
        self.value_word(self.hidden / 4 + eight * 8 / OF_SCALE).cast()
    }

    /// Eight values.
    #[inline(always)]
    pub fn values(&self, eight: u32) -> [f32; 8] {
        // SAFETY: in the message, whose values begin on a multiple of 16.
        unsafe {
            if !self.fp8 {
                return unpacked(load_words(self.value_word(4 * eight)));
            }
            let (words, scale) = (load_words::<2>(self.value_word(2 * eight)), self.scale(eight).read());
            core::array::from_fn(|at| from_e4m3((words[at / 4] >> (8 * (at % 4))) as u8) * scale)
        }
    }

    /// Writes this token's message, by all threads of the block.
    #[inline(always)]
    pub fn write(&self, turn: &Turn<'_>, token: u32) {
        let (lane, lanes) = (thread::thread_idx_x(), thread::block_dim_x());
        let mut at = lane;
        while at < self.topk {
            let choice = turn.choice(token, at);
            // SAFETY: in the header, which has room for all choices.
            unsafe {
                self.word(4 + at).write(choice.expert);
                self.word(4 + self.topk + at).write(choice.weight.to_bits());
            }
            at += lanes;
        }
        let row = (turn.variant * turn.args.tokens + token) as usize * (self.hidden / 2) as usize;
        // SAFETY: the header; the token's row of the input; below, no more eights than it has.
        let row = unsafe {
            if lane == 0 {
                store_words(self.word(0), [turn.round, token, 0, 0]);
            }
            turn.args.input.add(row)
        };
        let mut eight = lane;
        while eight < self.hidden / 8 {
            // SAFETY: as above.
            unsafe { self.write_values(row, eight) };
            eight += lanes;
        }
    }

    /// Eight values of a row. The scale is found by each thread that needs it: it reads what its neighbours read.
    #[inline(always)]
    unsafe fn write_values(&self, row: *const u32, eight: u32) {
        // SAFETY: the caller's contract; rows and values begin on multiples of 16.
        unsafe {
            let words = load_words::<4>(row.add(4 * eight as usize));
            if !self.fp8 {
                return store_words(self.value_word(4 * eight), words);
            }
            let first = eight * 8 / OF_SCALE * (OF_SCALE / 2);
            let end = (first + OF_SCALE / 2).min(self.hidden / 2);
            // Bits of numbers without a sign are in the order of the numbers.
            let (mut most, mut at) = (0, first);
            while at < end {
                for word in load_words::<4>(row.add(at as usize)) {
                    most = most.max(word << 16 & 0x7fff_ffff).max(word & 0x7fff_0000);
                }
                at += 4;
            }
            let most = f32::from_bits(most).max(LEAST);
            let by = E4M3_MOST / most;
            let codes = unpacked(words).map(|value| to_e4m3(value * by) as u32);
            let word = |at: usize| codes[at] | codes[at + 1] << 8 | codes[at + 2] << 16 | codes[at + 3] << 24;
            store_words(self.value_word(2 * eight), [word(0), word(4)]);
            if (eight * 8).is_multiple_of(OF_SCALE) {
                self.scale(eight).write(most / E4M3_MOST);
            }
        }
    }

    /// What this PE's experts make of it, summed by the weights in the router's order; of a message for one choice what that expert makes.
    #[inline(always)]
    pub fn write_made(&self, turn: &Turn<'_>, to: *mut u32, only: Option<u32>) {
        // Read once: where rails are, the heap may be host memory.
        let (mut chosen, mut count) = ([[0f32; 2]; MOST_CHOICES as usize], 0);
        for choice in 0..self.topk.min(MOST_CHOICES) {
            let Choice { expert, weight } = self.choice(choice);
            if only.map_or(expert / turn.args.experts == turn.world.me, |only| only == choice) {
                chosen[count] = [expert_factor(expert), if turn.args.unit == UNIT_EXPERT { 1.0 } else { weight }];
                count += 1;
            }
        }
        let mut eight = thread::thread_idx_x();
        while eight < self.hidden / 8 {
            let values = self.values(eight);
            let mut sum = [0f32; 8];
            for [by, weight] in &chosen[..count] {
                let made = unpacked(packed(values.map(|value| value * by)));
                sum = core::array::from_fn(|at| sum[at] + weight * made[at]);
            }
            // SAFETY: the caller gives room for a token in bf16.
            unsafe { store_words(to.add(4 * eight as usize), packed(sum)) };
            eight += thread::block_dim_x();
        }
    }
}
