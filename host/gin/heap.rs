//! The symmetric heap: one stretch of memory, and what of it is taken.

use ginlab_cuda::{Buffer, DeviceError};
use ginlab_fabric::Memory;
use kernels::gin::RESERVED_BYTES;
use std::collections::BTreeMap;

/// Objects begin at multiples of this: whole sectors of the cache, and more than any vector.
const ALIGNMENT: u64 = 256;

/// A heap as a rail registers it.
pub(super) fn for_rails(heap: &Buffer) -> Memory {
    Memory { address: heap.address(), bytes: heap.bytes(), cuda_device: heap.cuda_device() }
}

/// Zeroes a stretch of a heap.
pub(super) fn clear(heap: &Buffer, offset: u64, bytes: u64) -> Result<(), DeviceError> {
    const STEP: u64 = 1 << 20;
    let zeros = vec![0u8; bytes.min(STEP) as usize];
    let mut at = 0;
    while at < bytes {
        let length = STEP.min(bytes - at);
        heap.write((offset + at) as usize, &zeros[..length as usize])?;
        at += length;
    }
    Ok(())
}

/// What of a heap is taken. The same calls give the same offsets on every rank.
#[derive(Debug)]
pub(super) struct Space {
    /// Lengths by first byte, without two side by side.
    free: BTreeMap<u64, u64>,
    taken: BTreeMap<u64, u64>,
}

impl Space {
    /// All behind what is reserved, up to `bytes`.
    pub fn new(bytes: u64) -> Space {
        let first = RESERVED_BYTES.next_multiple_of(ALIGNMENT);
        let free = BTreeMap::from([(first, bytes.saturating_sub(first))]);
        Space { free, taken: BTreeMap::new() }
    }

    /// Takes the first stretch that is long enough.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let length = bytes.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let (&first, &there) = self.free.iter().find(|(_, there)| **there >= length)?;
        self.free.remove(&first);
        if there > length {
            self.free.insert(first + length, there - length);
        }
        self.taken.insert(first, length);
        Some(first)
    }

    /// Gives a stretch back; false when none begins there.
    pub fn give_back(&mut self, first: u64) -> bool {
        let Some(length) = self.taken.remove(&first) else { return false };
        let (mut first, mut length) = (first, length);
        if let Some(behind) = self.free.remove(&(first + length)) {
            length += behind;
        }
        if let Some((&before, &there)) = self.free.range(..first).next_back()
            && before + there == first
        {
            self.free.remove(&before);
            (first, length) = (before, there + length);
        }
        self.free.insert(first, length);
        true
    }

    /// All that is free.
    pub fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }

    /// The longest stretch.
    pub fn largest(&self) -> u64 {
        self.free.values().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stretches_do_not_meet_and_all_comes_back(sizes in prop::collection::vec(0u64..5000, 1..40), order: u64) {
            let mut space = Space::new(RESERVED_BYTES + 100_000);
            let all = space.free_bytes();
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (number, &bytes) in sizes.iter().enumerate() {
                if let Some(first) = space.take(bytes) {
                    prop_assert!(first >= RESERVED_BYTES && first + bytes <= RESERVED_BYTES + 100_000);
                    prop_assert!(first.is_multiple_of(ALIGNMENT));
                    prop_assert!(taken.iter().all(|(other, length)| first + bytes <= *other || other + length <= first));
                    taken.push((first, bytes));
                }
                if order >> (number % 64) & 1 == 1 && !taken.is_empty() {
                    let (first, _) = taken.swap_remove(number % taken.len());
                    prop_assert!(space.give_back(first) && !space.give_back(first));
                }
            }
            for (first, _) in taken {
                prop_assert!(space.give_back(first));
            }
            prop_assert_eq!((space.free_bytes(), space.largest()), (all, all));
        }
    }

    #[test]
    fn what_does_not_fit_is_not_taken() {
        let mut space = Space::new(RESERVED_BYTES + 1024);
        assert_eq!(space.take(u64::MAX), None);
        let all = space.largest();
        assert!(space.take(all).is_some());
        assert_eq!(space.take(1), None);
    }
}
