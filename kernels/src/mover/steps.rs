//! Encoding of a ring's entries. The host writes the entries for a lane's first block, and the first block writes the
//! entries for the lane's other blocks.

use cuda_std::memory::Word;

/// Number of entries of a ring written by the host.
pub const ENTRIES: u64 = 1024;
/// Number of words of an entry.
pub const ENTRY_WORDS: usize = 4;

/// The entries of a ring.
pub type Entries<const N: usize> = [[Word; ENTRY_WORDS]; N];

/// Number of a word's bits below its lap.
pub(super) const BITS: u32 = 48;
const MASK: u64 = (1 << BITS) - 1;

const COPY: u64 = 1;
const WORD: u64 = 2;
const MARK: u64 = 3;
const END: u64 = 4;
const TAKE: u64 = 5;
const COUNT: u64 = 6;

/// The request of an entry. Addresses and marks have 48 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Copies bytes between any two addresses that the device can access.
    Copy {
        /// Destination address.
        to: u64,
        /// Source address.
        from: u64,
        /// Number of bytes.
        bytes: u32,
    },
    /// Copies at most [`QUICK`](super::QUICK) bytes to pinned host memory. Each 8-byte word holds four of these bytes,
    /// and this tag in its upper half. No fence or mark follows, because the host recognizes each word by its tag.
    Take {
        /// Address of the words, a multiple of 8.
        to: u64,
        /// Source address.
        from: u64,
        /// Number of bytes.
        bytes: u32,
        /// Tag, different from the tag stored at the destination.
        tag: u32,
    },
    /// Stores a word of 8 bytes immediately. A thread that acquires it need not observe the writes of the preceding
    /// steps.
    Count {
        /// Address, a multiple of 8.
        to: u64,
        /// Value to store.
        value: u64,
    },
    /// Stores a word of 8 bytes after all preceding steps.
    Word {
        /// Address, a multiple of 8.
        to: u64,
        /// Value to store.
        value: u64,
    },
    /// Stores this value in [`MoverRing::passed`](super::MoverRing::passed) after all preceding steps.
    Mark(u64),
    /// Requests the lane's blocks to exit.
    End,
}

/// Returns the lap of entry `number` in a ring of `entries` entries, as encoded in the entry's words. It differs from
/// the previous lap, and from 0, the content of new memory.
#[inline(always)]
pub(super) fn lap(number: u64, entries: u64) -> u64 {
    number / entries % 0xffff + 1
}

/// Returns whether `word` is the third word of a copy.
#[inline(always)]
pub(super) fn is_copy(word: u64) -> bool {
    word << 16 >> 48 == COPY
}

impl Step {
    /// Returns whether the step's values fit in an entry.
    pub fn fits(self) -> bool {
        match self {
            Step::Copy { to, from, .. } | Step::Take { to, from, .. } => to | from <= MASK,
            Step::Word { to, .. } | Step::Count { to, .. } => to <= MASK,
            Step::Mark(mark) => mark <= MASK,
            Step::End => true,
        }
    }

    /// Returns whether there are unfenced writes after this short step; `open` indicates whether there were any before
    /// it.
    #[inline(always)]
    pub(super) fn leaves_open(self, open: bool) -> bool {
        match self {
            Step::Word { .. } => true,
            Step::Mark(_) => false,
            _ => open,
        }
    }

    /// Encodes the step as entry `number` of a ring of `entries` entries.
    #[inline(always)]
    pub fn encode(self, number: u64, entries: u64) -> [u64; ENTRY_WORDS] {
        let words = match self {
            Step::Copy { to, from, bytes } => [from, to, COPY << 32 | u64::from(bytes), 0],
            Step::Take { to, from, bytes, tag } => [from, to, TAKE << 32 | u64::from(bytes), u64::from(tag)],
            Step::Word { to, value } => [value & MASK, to, WORD << 32, value >> BITS],
            Step::Count { to, value } => [value & MASK, to, COUNT << 32, value >> BITS],
            Step::Mark(mark) => [mark, 0, MARK << 32, 0],
            Step::End => [0, 0, END << 32, 0],
        };
        words.map(|word| word & MASK | lap(number, entries) << BITS)
    }

    /// Decodes entry `number` of a ring of `entries` entries. Returns `None` while one of its words has an earlier lap.
    #[inline(always)]
    pub fn decode(words: [u64; ENTRY_WORDS], number: u64, entries: u64) -> Option<Step> {
        let mut index = 0;
        while index < ENTRY_WORDS {
            if words[index] >> BITS != lap(number, entries) {
                return None;
            }
            index += 1;
        }
        let [first, second, third, fourth] = words;
        Some(match third << 16 >> 48 {
            COPY => Step::Copy { to: second & MASK, from: first & MASK, bytes: third as u32 },
            TAKE => Step::Take { to: second & MASK, from: first & MASK, bytes: third as u32, tag: fourth as u32 },
            WORD => Step::Word { to: second & MASK, value: first & MASK | fourth << BITS },
            COUNT => Step::Count { to: second & MASK, value: first & MASK | fourth << BITS },
            MARK => Step::Mark(first & MASK),
            _ => Step::End,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn steps() -> impl Strategy<Value = Step> {
        let address = 0..=MASK;
        prop_oneof![
            (address.clone(), address.clone(), any::<u32>()).prop_map(|(to, from, bytes)| Step::Copy {
                to,
                from,
                bytes
            }),
            (address.clone(), address.clone(), any::<u32>(), any::<u32>())
                .prop_map(|(to, from, bytes, tag)| Step::Take { to, from, bytes, tag }),
            (address.clone(), any::<u64>()).prop_map(|(to, value)| Step::Word { to, value }),
            (address.clone(), any::<u64>()).prop_map(|(to, value)| Step::Count { to, value }),
            address.prop_map(Step::Mark),
            Just(Step::End),
        ]
    }

    /// Sizes of the rings of the host and of a lane's first block.
    fn rings() -> impl Strategy<Value = u64> {
        prop_oneof![Just(ENTRIES), Just(crate::mover::JOBS)]
    }

    proptest! {
        #[test]
        fn entry_decodes_to_its_step(step in steps(), number in any::<u64>(), entries in rings()) {
            prop_assert!(step.fits());
            prop_assert_eq!(Step::decode(step.encode(number, entries), number, entries), Some(step));
        }

        /// If any word is from another lap or is still new memory, no entry is decoded.
        #[test]
        fn entry_is_read_only_when_complete(
            step in steps(), number in ENTRIES..u64::MAX / 2, entries in rings(), place in 0..ENTRY_WORDS,
        ) {
            for old in [step.encode(number - entries, entries)[place], 0] {
                let mut words = step.encode(number, entries);
                words[place] = old;
                prop_assert_eq!(Step::decode(words, number, entries), None);
            }
        }
    }
}
