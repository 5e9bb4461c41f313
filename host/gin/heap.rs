//! The symmetric heap: a contiguous range of memory, and its allocations.

use ginlab_cuda::{Buffer, DeviceError};
use ginlab_fabric::MemoryRange;
use kernels::gin::RESERVED_BYTES;
use std::collections::BTreeMap;

/// Alignment of allocations: a multiple of a cache sector, and larger than any vector type.
const ALIGNMENT: u64 = 256;

/// Returns the heap in the form in which rails register it.
pub(super) fn for_rails(heap: &Buffer) -> MemoryRange {
    MemoryRange { address: heap.address(), bytes: heap.bytes(), cuda_device: heap.cuda_device() }
}

/// Zeroes a range of a heap.
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

/// Allocator of a heap. The same sequence of calls returns the same offsets on all ranks.
#[derive(Debug)]
pub(super) struct Space {
    /// Lengths of the free ranges, by first byte. No two ranges are adjacent.
    free: BTreeMap<u64, u64>,
    taken: BTreeMap<u64, Taken>,
    /// Number of allocations so far.
    count: u32,
}

#[derive(Debug)]
struct Taken {
    length: u64,
    /// Number of bytes requested, and their type.
    bytes: u64,
    kind: &'static str,
    /// Number of the allocation, in order, starting at 1.
    number: u32,
}

impl Space {
    /// Creates an allocator of the bytes between the reserved area and `bytes`.
    pub fn new(bytes: u64) -> Space {
        let first = RESERVED_BYTES.next_multiple_of(ALIGNMENT);
        let free = BTreeMap::from([(first, bytes.saturating_sub(first))]);
        Space { free, taken: BTreeMap::new(), count: 0 }
    }

    /// Allocates from the first free range that is large enough, for values of type `kind`.
    pub fn take(&mut self, bytes: u64, kind: &'static str) -> Option<u64> {
        let length = bytes.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let (&first, &there) = self.free.iter().find(|(_, there)| **there >= length)?;
        self.free.remove(&first);
        if there > length {
            self.free.insert(first + length, there - length);
        }
        self.count += 1;
        self.taken.insert(first, Taken { length, bytes, kind, number: self.count });
        Some(first)
    }

    /// Frees the range that starts at `first`. Returns `false` if no allocation starts there.
    pub fn give_back(&mut self, first: u64) -> bool {
        let Some(Taken { mut length, .. }) = self.taken.remove(&first) else { return false };
        let mut first = first;
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

    /// Returns the name of a byte for messages: its allocation and its offset there. `None` if it is not allocated.
    pub fn name(&self, offset: u64) -> Option<String> {
        let (first, taken) = self.taken.range(..=offset).next_back()?;
        let Taken { length, bytes, kind, number } = taken;
        let at = offset - first;
        (at < *length).then(|| format!("allocation {number} ({bytes} B of {kind}), byte {at} of it"))
    }

    /// Returns the first byte and the length of each object.
    pub fn taken(&self) -> impl Iterator<Item = (u64, u64)> {
        self.taken.iter().map(|(first, taken)| (*first, taken.length))
    }

    /// Returns the total number of free bytes.
    pub fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }

    /// Returns the length of the largest free range.
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
                if let Some(first) = space.take(bytes, "u8") {
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
    fn bytes_are_named_by_their_allocation() {
        let mut space = Space::new(RESERVED_BYTES + 10_000);
        let first = space.take(100, "u8").expect("space");
        let second = space.take(4096, "u64").expect("space");
        assert!(space.give_back(first));
        assert_eq!(space.name(second + 8), Some("allocation 2 (4096 B of u64), byte 8 of it".into()));
        assert_eq!([first, second - 1, second + 4096, 0].map(|offset| space.name(offset)), [None, None, None, None]);
        // Numbers of allocations are not reused.
        assert_eq!(space.take(8, "i32"), Some(first));
        assert_eq!(space.name(first), Some("allocation 3 (8 B of i32), byte 0 of it".into()));
    }

    #[test]
    fn oversized_allocation_fails() {
        let mut space = Space::new(RESERVED_BYTES + 1024);
        assert_eq!(space.take(u64::MAX, "u8"), None);
        let all = space.largest();
        assert!(space.take(all, "u8").is_some());
        assert_eq!(space.take(1, "u8"), None);
    }
}
