//! What a ring's entry says. The host writes entries for a lane's first block, and that one for its others.

use cuda_std::memory::Word;

/// Entries of a ring of the host's.
pub const ENTRIES: u64 = 1024;
/// Words of an entry.
pub const ENTRY_WORDS: usize = 4;

/// Entries of a ring.
pub type Entries<const N: usize> = [[Word; ENTRY_WORDS]; N];

/// A word's bits below its lap.
pub(super) const BITS: u32 = 48;
const MASK: u64 = (1 << BITS) - 1;

const COPY: u64 = 1;
const WORD: u64 = 2;
const MARK: u64 = 3;
const END: u64 = 4;
const TAKE: u64 = 5;
const COUNT: u64 = 6;

/// What an entry asks for. Addresses and marks have 48 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Bytes, from and to any address that the device reaches.
    Copy {
        /// Where they go.
        to: u64,
        /// Where they are.
        from: u64,
        /// How many.
        bytes: u32,
    },
    /// A few bytes to pinned memory of the host, at most [`QUICK`](super::QUICK): each word of 8 has 4 of them and, above, this tag. Nothing waits
    /// behind it: the host knows each word by its tag.
    Take {
        /// Where the words go, a multiple of 8.
        to: u64,
        /// Where the bytes are.
        from: u64,
        /// How many.
        bytes: u32,
        /// Not the one that stands there.
        tag: u32,
    },
    /// A word of 8 bytes, at once: who acquires it need not see what the steps before it have written.
    Count {
        /// Where it goes, a multiple of 8.
        to: u64,
        /// What it becomes.
        value: u64,
    },
    /// A word of 8 bytes, behind all steps before it.
    Word {
        /// Where it goes, a multiple of 8.
        to: u64,
        /// What it becomes.
        value: u64,
    },
    /// [`Lane::passed`](super::Lane::passed) becomes this, behind all steps before it.
    Mark(u64),
    /// The lane's blocks end.
    End,
}

/// The lap of an entry's number in a ring of so many, as its words have it: never that of the lap before, and never 0, which new memory has.
#[inline(always)]
pub(super) fn lap(number: u64, entries: u64) -> u64 {
    number / entries % 0xffff + 1
}

/// Whether this is a copy's third word.
#[inline(always)]
pub(super) fn is_copy(word: u64) -> bool {
    word << 16 >> 48 == COPY
}

impl Step {
    /// Whether its numbers fit into an entry.
    pub fn fits(self) -> bool {
        match self {
            Step::Copy { to, from, .. } | Step::Take { to, from, .. } => to | from <= MASK,
            Step::Word { to, .. } | Step::Count { to, .. } => to <= MASK,
            Step::Mark(mark) => mark <= MASK,
            Step::End => true,
        }
    }

    /// Whether something has been written that no fence is behind, once this short step is done; `open`: whether it was so before.
    #[inline(always)]
    pub(super) fn leaves_open(self, open: bool) -> bool {
        match self {
            Step::Word { .. } => true,
            Step::Mark(_) => false,
            _ => open,
        }
    }

    /// As the entry of this number in a ring of so many.
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

    /// The entry of this number in a ring of so many; `None` while one of its words is of an earlier lap.
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

    /// Those of the host, and of a lane's first block.
    fn rings() -> impl Strategy<Value = u64> {
        prop_oneof![Just(ENTRIES), Just(crate::mover::JOBS)]
    }

    proptest! {
        #[test]
        fn an_entry_says_what_it_was_made_of(step in steps(), number in any::<u64>(), entries in rings()) {
            prop_assert!(step.fits());
            prop_assert_eq!(Step::decode(step.encode(number, entries), number, entries), Some(step));
        }

        /// A word of another lap, or of memory that is new, in any place: there is no entry yet.
        #[test]
        fn no_entry_is_read_before_all_of_it_is_there(
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
