//! Encoding of all ranks' parts in rank 0's answer. Equal parts are sent once, so that the answer to a barrier, to a
//! comparison of equal options or to a gather at rank 0 has the same length for any number of ranks.
//!
//! The payload is a sequence of runs of ranks. A run has a header of three u32, little-endian: the number of its ranks,
//! the index of a part, and the length of a part. An index that no earlier run has introduced means that the run
//! introduces one part per rank, whose bytes follow. Otherwise, all ranks of the run have this earlier part.

use std::collections::HashMap;

use super::frame::MAX_BYTES;

/// Length of a run's header.
const HEADER_BYTES: usize = 12;

/// Maximum number of bytes by which the encoding of a part exceeds the part.
pub(super) const PART_OVERHEAD_BYTES: usize = HEADER_BYTES;

/// Parts that ranks other than 0 receive in full. Of the other parts they receive the first byte, which indicates
/// whether more pieces follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// The parts of all ranks.
    All,
    /// The part of rank 0.
    First,
    /// None: only rank 0 receives the parts.
    Nothing,
}

impl Spread {
    /// Returns the bytes of each part that the other ranks receive.
    pub fn told(self, parts: &[Vec<u8>]) -> Vec<&[u8]> {
        let is_told = |rank: usize| self == Spread::All || (self == Spread::First && rank == 0);
        let of = |(rank, part): (usize, &Vec<u8>)| if is_told(rank) { part.len() } else { part.len().min(1) };
        parts.iter().enumerate().map(|(rank, part)| &part[..of((rank, part))]).collect()
    }
}

/// A run of ranks: its number of ranks, the index of its first part, and the part's length. The runs of a whole list
/// cover its ranks in order.
#[derive(Clone, Copy)]
struct PartRun {
    count: usize,
    index: usize,
    bytes: usize,
    /// Whether the run introduces its parts.
    is_new: bool,
}

/// Joins byte strings into one payload.
pub(super) fn join<T: AsRef<[u8]>>(parts: &[T]) -> Vec<u8> {
    let mut known: HashMap<&[u8], usize> = HashMap::new();
    let mut runs: Vec<PartRun> = Vec::new();
    for part in parts.iter().map(AsRef::as_ref) {
        let next = known.len();
        let index = *known.entry(part).or_insert(next);
        let (is_new, bytes) = (index == next, part.len());
        match runs.last_mut() {
            Some(run) if run.is_new == is_new && run.bytes == bytes && (is_new || run.index == index) => run.count += 1,
            _ => runs.push(PartRun { count: 1, index, bytes, is_new }),
        }
    }
    let of_new = |run: &PartRun| if run.is_new { run.count * run.bytes } else { 0 };
    let mut out = Vec::with_capacity(runs.iter().map(|run| HEADER_BYTES + of_new(run)).sum());
    let mut rank = 0;
    for run in runs {
        for number in [run.count, run.index, run.bytes] {
            out.extend((number as u32).to_le_bytes());
        }
        for part in parts[rank..rank + run.count].iter().filter(|_| run.is_new) {
            out.extend(part.as_ref());
        }
        rank += run.count;
    }
    out
}

/// Inverse of [`join`]. Returns `None` if `bytes` are not exactly `count` parts, or if the parts have more than
/// [`MAX_BYTES`] in total.
pub(super) fn split(mut bytes: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    // Ranks that introduced the parts.
    let mut known: Vec<usize> = Vec::new();
    let mut total = 0usize;
    while parts.len() < count {
        let header;
        (header, bytes) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let number = |at: usize| header.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let (run, index, length) = (number(0)? as usize, number(4)? as usize, number(8)? as usize);
        total = total.checked_add(run.checked_mul(length)?)?;
        if run == 0 || run > count - parts.len() || total > MAX_BYTES {
            return None;
        }
        if index == known.len() {
            for _ in 0..run {
                let part;
                (part, bytes) = bytes.split_at_checked(length)?;
                known.push(parts.len());
                parts.push(part.to_vec());
            }
        } else {
            let part = parts.get(*known.get(index)?)?.clone();
            if part.len() != length {
                return None;
            }
            parts.extend(std::iter::repeat_n(part, run));
        }
    }
    bytes.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn split_parts_are_joined_again(parts in prop::collection::vec(prop::collection::vec(0u8..3, 0..3), 0..40)) {
            let joined = join(&parts);
            let most: usize = parts.iter().map(|part| part.len() + PART_OVERHEAD_BYTES).sum();
            prop_assert!(joined.len() <= most);
            prop_assert_eq!(split(&joined, parts.len()), Some(parts.clone()));
            prop_assert_eq!(split(&joined, parts.len() + 1), None);
            if !joined.is_empty() {
                prop_assert_eq!(split(&joined[..joined.len() - 1], parts.len()), None);
            }
        }

        #[test]
        fn damaged_parts_are_refused_or_within_limits(mut bytes: Vec<u8>, count in 0usize..40) {
            let _ = split(&bytes, count);
            let mut good = join(&[&b"one"[..], b"one", b"two"]);
            bytes.truncate(good.len());
            good[..bytes.len()].copy_from_slice(&bytes);
            let _ = split(&good, count);
        }
    }

    /// Lengths of the answers in a job of 4096 ranks on 512 hosts.
    #[test]
    fn answers_of_large_jobs_are_short() {
        const RANKS: usize = 4096;
        let of = |part: &dyn Fn(usize) -> String| join(&(0..RANKS).map(part).collect::<Vec<_>>()).len();
        // A barrier, equal options, and a gather at rank 0.
        assert_eq!(of(&|_| String::new()), 24);
        assert_eq!(of(&|_| "x".repeat(1000)), 1024);
        // The value of rank 0.
        assert_eq!(of(&|rank| if rank == 0 { "12345678".into() } else { "0".into() }), 12 + 8 + 12 + 1 + 12);
        // Host names: one part per host.
        assert_eq!(of(&|rank| format!("host-{:04}", rank / 8)), 512 * (9 + 2 * 12));
        // Process IDs: all parts differ.
        assert_eq!(of(&|rank| format!("{:04}", rank + 1000)), 12 + 4 * RANKS);
    }

    #[test]
    fn repeated_parts_cannot_exceed_memory() {
        let long = vec![0u8; MAX_BYTES / 2 + 1];
        let joined = join(&[&long[..], &long[..]]);
        assert!(joined.len() < MAX_BYTES && split(&joined, 2).is_none());
        assert_eq!(split(&join(&[&long[..], b""]), 2).map(|parts| parts.len()), Some(2));
    }
}
