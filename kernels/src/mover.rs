//! A kernel that copies between the GPU's memory and pinned memory of the host, as the host asks it to by two rings in pinned memory. The plugin for
//! NCCL (`crates/nccl_plugin`) has it running while bytes come and go: a call of the driver for each copy costs the host 2 us, and a copy
//! engine begins some microseconds later.
//!
//! ```text
//! host     bytes in pinned memory, then an entry: four words, each with the lap in its top 16 bits
//! kernel   block 0 or 1: all words of an entry have the lap -> fence -> copy, word or mark, in the ring's order
//! ```
//!
//! Each ring is one block's, so that what it is asked for happens in order: a barrier of the block between two steps, and a fence before
//! each word and mark that has something before it. The kernel ends when it is asked to, or when nothing has been asked for as long as its deadline.

use crate::gin::copy::copy;
use crate::ring::CachePadded;
use cuda_std::memory::{Word, fence_acq_rel_gpu, fence_acq_rel_sys, load_relaxed_sys_u64, store_relaxed_sys_u64};
use cuda_std::shared::Dynamic;
use cuda_std::{args, kernel, thread};

/// Entries of a ring.
pub const ENTRIES: u64 = 1024;
/// Words of an entry.
pub const ENTRY_WORDS: usize = 4;
/// Entries that are looked at together: one load of a warp.
pub const LOOK: u64 = 8;
/// Rings, and blocks of the kernel.
pub const LANES: u32 = 2;
/// Bytes of shared memory of a block: the words of a look, and whether the wait is over.
pub const SHARED: u32 = LOOK_WORDS * 8 + 16;

/// Words of a look.
pub const LOOK_WORDS: u32 = LOOK as u32 * ENTRY_WORDS as u32;
/// A word's bits below its lap.
const BITS: u32 = 48;
const MASK: u64 = (1 << BITS) - 1;

const COPY: u64 = 1;
const WORD: u64 = 2;
const MARK: u64 = 3;
const END: u64 = 4;

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
    /// A word of 8 bytes, behind all steps before it.
    Word {
        /// Where it goes, a multiple of 8.
        to: u64,
        /// What it becomes.
        value: u64,
    },
    /// [`Lane::passed`] becomes this, behind all steps before it.
    Mark(u64),
    /// The block ends.
    End,
}

/// The lap of an entry's number, as its words have it: never that of the lap before, and never 0, which new memory has.
#[inline(always)]
fn lap(number: u64) -> u64 {
    number / ENTRIES % 0xffff + 1
}

impl Step {
    /// Whether its numbers fit into an entry.
    pub fn fits(self) -> bool {
        match self {
            Step::Copy { to, from, .. } => to | from <= MASK,
            Step::Word { to, .. } => to <= MASK,
            Step::Mark(mark) => mark <= MASK,
            Step::End => true,
        }
    }

    /// As the entry of this number.
    pub fn encode(self, number: u64) -> [u64; ENTRY_WORDS] {
        let words = match self {
            Step::Copy { to, from, bytes } => [from, to, COPY << 32 | u64::from(bytes), 0],
            Step::Word { to, value } => [value & MASK, to, WORD << 32, value >> BITS],
            Step::Mark(mark) => [mark, 0, MARK << 32, 0],
            Step::End => [0, 0, END << 32, 0],
        };
        words.map(|word| word & MASK | lap(number) << BITS)
    }

    /// The entry of this number; `None` while one of its words is of an earlier lap.
    #[inline(always)]
    pub fn decode(words: [u64; ENTRY_WORDS], number: u64) -> Option<Step> {
        let mut index = 0;
        while index < ENTRY_WORDS {
            if words[index] >> BITS != lap(number) {
                return None;
            }
            index += 1;
        }
        let [first, second, third, fourth] = words;
        Some(match third << 16 >> 48 {
            COPY => Step::Copy { to: second & MASK, from: first & MASK, bytes: third as u32 },
            WORD => Step::Word { to: second & MASK, value: first & MASK | fourth << BITS },
            MARK => Step::Mark(first & MASK),
            _ => Step::End,
        })
    }
}

/// A ring, in pinned memory. New memory is all zero.
#[repr(C)]
#[derive(Debug)]
pub struct Lane {
    /// Written by the host.
    pub entries: [[Word; ENTRY_WORDS]; ENTRIES as usize],
    /// The kernel's number, when its block has begun.
    pub here: CachePadded<Word>,
    /// Entries that have been read: the host may write over them.
    pub taken: CachePadded<Word>,
    /// The last mark that has been passed.
    pub passed: CachePadded<Word>,
    /// The kernel's number, when its block has ended.
    pub gone: CachePadded<Word>,
}

/// Arguments of [`mover`].
#[args]
pub struct MoverArgs {
    /// [`LANES`] of them.
    pub lanes: *const Lane,
    /// The number of each lane's next entry.
    pub first: [u64; LANES as usize],
    /// The kernel's number.
    pub number: u64,
    /// It ends when it has been asked for nothing for so long.
    pub timeout_ns: u64,
}

/// One block for each lane.
///
/// # Safety
/// The lanes and all that their entries name are valid until the block has said that it has gone; the grid is [`LANES`] blocks of at least
/// [`LOOK`] times [`ENTRY_WORDS`] threads with [`SHARED`] bytes of shared memory.
#[kernel]
pub unsafe fn mover(args: MoverArgs) {
    let block = thread::block_idx_x();
    // SAFETY: contract of the kernel.
    let lane = unsafe { &*args.lanes.add(block as usize) };
    let me = thread::thread_idx_x();
    let shared = Dynamic::of_block(SHARED);
    let (words, over) = (shared.at(0), shared.at(LOOK_WORDS * 8));
    if me == 0 {
        store_relaxed_sys_u64(&lane.here.0, args.number);
    }
    let mut number = if block == 0 { args.first[0] } else { args.first[1] };
    let mut since = thread::global_timer_ns();
    // Something was written that no fence is behind.
    let mut open = false;
    loop {
        if me < LOOK_WORDS {
            let entry = (number + u64::from(me) / ENTRY_WORDS as u64) % ENTRIES;
            // SAFETY: both are below the lengths.
            let word = unsafe { lane.entries.get_unchecked(entry as usize).get_unchecked(me as usize % ENTRY_WORDS) };
            let word = load_relaxed_sys_u64(word);
            let is_new = word >> BITS == lap(number + u64::from(me) / ENTRY_WORDS as u64);
            if is_new && me as usize % ENTRY_WORDS == 2 && word << 16 >> 48 == COPY {
                // The bytes to copy were written before the word, with release; the block's barrier below carries this to all threads.
                fence_acq_rel_sys();
            }
            // SAFETY: inside the block's memory; the others read it behind a barrier, and have done so before the one at the loop's end.
            unsafe {
                shared.store(words + me * 8, [word as u32]);
                shared.store(words + me * 8 + 4, [(word >> 32) as u32]);
            }
        }
        if me == 0 {
            let late = thread::global_timer_ns().wrapping_sub(since) > args.timeout_ns;
            // SAFETY: as above.
            unsafe { shared.store(over, [u32::from(late)]) };
        }
        thread::sync_threads();
        let mut seen = 0;
        while seen < LOOK as u32 {
            let mut entry = [0; ENTRY_WORDS];
            let mut index = 0;
            while index < ENTRY_WORDS {
                let at = words + (seen * ENTRY_WORDS as u32 + index as u32) * 8;
                // SAFETY: inside the block's memory, written before the barrier.
                let ([low], [high]) = unsafe { (shared.load::<1>(at), shared.load::<1>(at + 4)) };
                entry[index] = u64::from(low) | u64::from(high) << 32;
                index += 1;
            }
            let Some(step) = Step::decode(entry, number + u64::from(seen)) else { break };
            if seen > 0 {
                // What is asked for next may read or write what the step before it wrote.
                thread::sync_threads();
            }
            seen += 1;
            match step {
                Step::Copy { to, from, bytes } => {
                    // SAFETY: contract of the kernel.
                    unsafe { copy(to as *mut u8, from as *const u8, u64::from(bytes), me, thread::block_dim_x()) };
                    open = true;
                }
                Step::Word { to, value } => {
                    if me == 0 {
                        // Behind what this and, before the barrier, the other threads wrote: for kernels of this GPU, who wait for the word.
                        if open {
                            fence_acq_rel_gpu();
                        }
                        // SAFETY: contract of the kernel.
                        store_relaxed_sys_u64(unsafe { &*(to as *const Word) }, value);
                    }
                    open = true;
                }
                Step::Mark(mark) => {
                    if me == 0 {
                        if open {
                            fence_acq_rel_sys();
                        }
                        store_relaxed_sys_u64(&lane.passed.0, mark);
                    }
                    open = false;
                }
                Step::End => {
                    leave(lane, me, number + u64::from(seen), args.number);
                    return;
                }
            }
        }
        // SAFETY: as above.
        let [late] = unsafe { shared.load::<1>(over) };
        if seen > 0 {
            number += u64::from(seen);
            since = thread::global_timer_ns();
            if me == 0 {
                store_relaxed_sys_u64(&lane.taken.0, number);
            }
        } else if late != 0 {
            leave(lane, me, number, args.number);
            return;
        }
        // Before the words in shared memory are written over; and the last step is behind it.
        thread::sync_threads();
    }
}

/// The block's last words, behind all that it has done.
#[inline(always)]
fn leave(lane: &Lane, me: u32, taken: u64, number: u64) {
    thread::sync_threads();
    if me == 0 {
        store_relaxed_sys_u64(&lane.taken.0, taken);
        fence_acq_rel_sys();
        store_relaxed_sys_u64(&lane.gone.0, number);
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
            (address.clone(), any::<u64>()).prop_map(|(to, value)| Step::Word { to, value }),
            address.prop_map(Step::Mark),
            Just(Step::End),
        ]
    }

    proptest! {
        #[test]
        fn an_entry_says_what_it_was_made_of(step in steps(), number in any::<u64>()) {
            prop_assert!(step.fits());
            prop_assert_eq!(Step::decode(step.encode(number), number), Some(step));
        }

        /// A word of another lap, or of memory that is new, in any place: there is no entry yet.
        #[test]
        fn no_entry_is_read_before_all_of_it_is_there(step in steps(), number in ENTRIES..u64::MAX / 2, place in 0..ENTRY_WORDS) {
            for old in [step.encode(number - ENTRIES)[place], 0] {
                let mut words = step.encode(number);
                words[place] = old;
                prop_assert_eq!(Step::decode(words, number), None);
            }
        }
    }
}
